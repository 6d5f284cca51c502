//! What a consumer wants of a topic: by tags, which a queue's units know, or by a condition on properties, for which the record is looked into.
//!
//! What that costs is counted in steps ([`Effort`]), so that a read on a network worker ends before others feel it. One that takes long runs
//! on the thread `filter-0`, in portions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use config::BrokerSettings;
use filter::{Expression, Steps};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::tags::{self, Subscription};
use store::{ColdRead, ColdReadRefused, Copies, RecordFilter, Store};

use crate::client_handle::ClientHandle;
use crate::refusal::Refusal;
use crate::state::clients::{ClientSubscription, ConsumerGroup};

/// RocketMQ's name of conditions on properties.
pub(crate) const SQL92: &str = "SQL92";
/// Longest subscription by tags, in bytes. Apache has no limit; this is room for a hundred thousand tags of forty characters.
pub(crate) const TAGS_BYTES_MAX: usize = 4 << 20;

/// Steps of a read on a network worker: about a millisecond. A condition of a few terms passes over as many messages as a read may
/// (`maxFilterMessageSize`) long before.
const STEPS_OF_WORKER: u64 = 100_000;
/// Steps of a read on a thread of its own, about 5 ms: others wait for that thread.
const STEPS_ASIDE: u64 = 500_000;
/// A look into a record costs so much besides, most of it the wait for memory.
const STEPS_OF_RECORD: u64 = 10;
/// A condition of more parts is not evaluated on network workers: an append may wake a thousand pulls that have it.
const PARTS_ON_WORKER_MAX: usize = 256;
/// A subscription by tags of more bytes is not taken apart on network workers …
const TAGS_ON_WORKER_BYTES_MAX: usize = 16 << 10;
/// … nor are so many codes sorted there.
const CODES_ON_WORKER_MAX: usize = 4096;

/// A filter, ready for any number of messages.
#[derive(Debug)]
pub(crate) enum MessageFilter {
    /// By tag codes. Clients look again, since codes may collide.
    Tags(ByTags),
    /// By properties. Null and an evaluation that fails are a no, as in Apache.
    Sql(Expression),
    /// Retries, by what the group wants of the topics that they come from (`filterSupportRetry`).
    Retries(Arc<ConsumerGroup<ClientHandle>>),
}

impl MessageFilter {
    /// By a tag expression. `Ok(None)`: everything. An error says what is wrong.
    pub(crate) fn tags(expression: &str) -> Result<Option<Arc<MessageFilter>>, String> {
        if expression.len() > TAGS_BYTES_MAX {
            return Err(format!(
                "the tags of the subscription have {} bytes, the limit is {TAGS_BYTES_MAX}",
                expression.len()
            ));
        }
        if expression.len() <= TAGS_ON_WORKER_BYTES_MAX {
            return match Subscription::parse(expression) {
                Some(subscription) => Ok(MessageFilter::subscription(subscription)),
                None => Err(no_tag(expression)),
            };
        }
        if Subscription::is_refused(expression) {
            return Err(no_tag(&expression[..expression.floor_char_boundary(100)]));
        }
        Ok(Some(Arc::new(MessageFilter::Tags(ByTags::later(Said::Text(expression.into()))))))
    }

    /// By the tag codes of a heartbeat. `None`: everything.
    pub(crate) fn codes(codes: &[i32]) -> Option<Arc<MessageFilter>> {
        if codes.len() <= CODES_ON_WORKER_MAX {
            return MessageFilter::subscription(Subscription::of_codes(codes.to_vec()));
        }
        Some(Arc::new(MessageFilter::Tags(ByTags::later(Said::Codes(codes.into())))))
    }

    fn subscription(subscription: Subscription) -> Option<Arc<MessageFilter>> {
        (!subscription.is_all()).then(|| Arc::new(MessageFilter::Tags(ByTags::of(subscription))))
    }

    /// Whether a network worker leaves it to another thread from the first.
    pub(crate) fn takes_long(&self) -> bool {
        match self {
            MessageFilter::Tags(by_tags) => by_tags.wanted.get().is_none(),
            MessageFilter::Sql(sql) => sql.parts() > PARTS_ON_WORKER_MAX,
            // Which of its conditions counts, each retry says itself.
            MessageFilter::Retries(_) => false,
        }
    }
}

fn no_tag(expression: &str) -> String {
    format!("\"{expression}\" holds no tag")
}

/// What a subscription by tags was made of, if that is not done yet.
#[derive(Debug)]
enum Said {
    Text(Box<str>),
    Codes(Box<[i32]>),
}

/// A subscription by tags. Units know the tags, but for those that Apache wrote with extension files, of which the record is asked.
#[derive(Debug)]
pub(crate) struct ByTags {
    said: Said,
    /// Made by the first read, where there is much to make: that one runs aside.
    wanted: OnceLock<Subscription>,
    /// Such a unit was met, and there will be more; until then no record is looked into. Relaxed: whoever looks into the record of such a unit has
    /// asked for the unit before.
    looks_into_records: AtomicBool,
}

impl ByTags {
    fn of(wanted: Subscription) -> ByTags {
        ByTags { wanted: OnceLock::from(wanted), ..ByTags::later(Said::Codes(Box::default())) }
    }

    fn later(said: Said) -> ByTags {
        ByTags { said, wanted: OnceLock::new(), looks_into_records: AtomicBool::new(false) }
    }

    fn wanted(&self) -> &Subscription {
        self.wanted.get_or_init(|| match &self.said {
            // Bars alone were refused before.
            Said::Text(text) => Subscription::parse(text).unwrap_or_else(Subscription::all),
            Said::Codes(codes) => Subscription::of_codes(codes.to_vec()),
        })
    }

    fn wants_unit(&self, tags: i64) -> bool {
        if !tags::is_extension_address(tags) {
            return self.wanted().matches(tags);
        }
        // Others read by this too: it is written once.
        if !self.looks_into_records.load(Ordering::Relaxed) {
            self.looks_into_records.store(true, Ordering::Relaxed);
        }
        true
    }

    fn wants_record(&self, record: &[u8]) -> bool {
        !self.looks_into_records.load(Ordering::Relaxed)
            || view(record).is_some_and(|view| self.wanted().matches(view.tags_code()))
    }
}

/// Where a read runs, and so what it may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// On a thread that serves sockets.
    Worker,
    /// On the thread for filters that take long.
    Filter,
    /// On a thread that may wait for the device.
    Cold,
}

impl At {
    /// Whether it may wait for the device.
    pub(crate) fn may_fault(self) -> bool {
        self == At::Cold
    }

    /// What one read may spend there.
    pub(crate) fn effort(self) -> Effort {
        match self {
            At::Worker => Effort { steps: Steps::new(STEPS_OF_WORKER), finishes: false, given: STEPS_OF_WORKER },
            At::Filter | At::Cold => Effort { steps: Steps::new(STEPS_ASIDE), finishes: true, given: STEPS_ASIDE },
        }
    }

    /// Has it done there.
    pub(crate) fn submit(self, store: &Store, read: ColdRead) -> Result<(), ColdReadRefused> {
        match self {
            At::Cold => store.cold_read(read),
            At::Worker | At::Filter => store.filter_read(read),
        }
    }
}

/// What a read, or a pop of many, may still spend on looks into records.
#[derive(Debug)]
pub(crate) struct Effort {
    steps: Steps,
    /// A look that has begun ends whatever it costs, so the read gets on by one record at least.
    finishes: bool,
    given: u64,
}

impl Effort {
    /// Whether nothing is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.steps.left() == 0
    }

    /// How much was spent.
    pub(crate) fn spent(&self) -> u64 {
        self.given - self.steps.left()
    }

    /// Whether a record is wanted by a look into it. `None`: nobody can afford to know.
    fn look(&self, record: &[u8], look: impl FnOnce(&RecordView<'_>, &Steps) -> Option<bool>) -> Option<bool> {
        if self.is_spent() {
            return None;
        }
        let all;
        let steps = if self.finishes {
            all = Steps::unbounded();
            &all
        } else {
            &self.steps
        };
        let found = match steps.take(STEPS_OF_RECORD) {
            Ok(()) => view(record).map_or(Some(false), |view| look(&view, steps)),
            Err(_) => None,
        };
        if self.finishes {
            // The last look may cost more than was left.
            let _ = self.steps.take(u64::MAX - steps.left());
        }
        found
    }
}

/// A retry is wanted if its message would be: a group that changed its mind does not get what it does not want any more. What it wants
/// by tags its units have said.
fn wants_retry(group: &ConsumerGroup<ClientHandle>, view: &RecordView<'_>, steps: &Steps) -> Option<bool> {
    let origin = view.property(name::RETRY_TOPIC).filter(|topic| !names::is_retry_topic(topic));
    let subscription = origin.and_then(|topic| group.subscription(topic));
    match subscription.as_deref().and_then(ClientSubscription::sql) {
        Some(sql) => sql.matches_within(view.properties_bytes(), steps),
        None => Some(true),
    }
}

fn view(record: &[u8]) -> Option<RecordView<'_>> {
    match record::scan(record, false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}

/// For one read: what is wanted, what it may cost, and who has what is copied for it.
pub(crate) struct Reader<'a> {
    pub(crate) want: Option<&'a MessageFilter>,
    pub(crate) effort: &'a Effort,
    pub(crate) copies: Option<&'a Copies>,
}

impl RecordFilter for Reader<'_> {
    fn wants_unit(&mut self, tags: i64) -> bool {
        match self.want {
            Some(MessageFilter::Tags(by_tags)) => by_tags.wants_unit(tags),
            Some(MessageFilter::Sql(_) | MessageFilter::Retries(_)) | None => true,
        }
    }

    fn wants_record(&mut self, record: &[u8]) -> Option<bool> {
        match self.want {
            Some(MessageFilter::Sql(sql)) => {
                self.effort.look(record, |view, steps| sql.matches_within(view.properties_bytes(), steps))
            }
            Some(MessageFilter::Retries(group)) => {
                self.effort.look(record, |view, steps| wants_retry(group, view, steps))
            }
            Some(MessageFilter::Tags(by_tags)) => Some(by_tags.wants_record(record)),
            None => Some(true),
        }
    }

    fn copies(&self) -> Option<&Copies> {
        self.copies
    }
}

/// Conditions on properties cost the broker a look into each message, so Apache wants them allowed; we keep its setting and its default.
pub(crate) fn check_property_filter(settings: &BrokerSettings, kind: &str) -> Result<(), Refusal> {
    let why = match kind {
        SQL92 if settings.enable_property_filter => return Ok(()),
        SQL92 => "enablePropertyFilter is false",
        _ => "there are TAG and SQL92",
    };
    let remark = format!("The broker does not support consumer to filter message by {kind} ({why})");
    Err(Refusal::new(ResponseCode::SystemError, remark))
}

#[cfg(test)]
mod tests {
    use protocol::record::RecordDraft;

    use super::*;

    fn record(tags: &str) -> Vec<u8> {
        let properties = format!("TAGS\u{1}{tags}\u{2}");
        let host = "127.0.0.1:1".parse().unwrap();
        let mut record = Vec::new();
        RecordDraft { properties: properties.as_bytes(), ..RecordDraft::plain("T", host) }.encode(&mut record).unwrap();
        record
    }

    #[test]
    fn a_unit_of_apaches_that_does_not_say_the_tags_is_wanted_if_its_record_is() {
        let want = MessageFilter::tags("A || C").unwrap().unwrap();
        let effort = At::Worker.effort();
        let mut reader = Reader { want: Some(&want), effort: &effort, copies: None };
        assert_eq!(["A", "B"].map(|tag| reader.wants_unit(tags::code(tag))), [true, false]);
        assert!(reader.wants_unit(i64::from(i32::MIN) - 1 - 52));
        assert_eq!(["A", "B", "C"].map(|tag| reader.wants_record(&record(tag))), [Some(true), Some(false), Some(true)]);
        assert_eq!(["A", "B"].map(|tag| reader.wants_unit(tags::code(tag))), [true, false]);
    }

    #[test]
    fn a_look_that_a_network_worker_cannot_afford_is_finished_aside_one_record_at_least() {
        let terms: Vec<String> = (0..2300).map(|n| format!("TAGS STARTSWITH '{n}'")).collect();
        let want = MessageFilter::Sql(Expression::compile(&terms.join(" OR ")).unwrap());
        assert!(want.takes_long());
        let wanted = |at: At, records: usize| {
            let effort = at.effort();
            let mut reader = Reader { want: Some(&want), effort: &effort, copies: None };
            (0..records).map(|_| reader.wants_record(&record("A"))).take_while(Option::is_some).count()
        };
        let (here, aside) = (wanted(At::Worker, 1000), wanted(At::Filter, 1000));
        assert!((1..100).contains(&here), "{here}");
        assert!((here + 1..500).contains(&aside), "{aside}");
    }

    #[test]
    fn one_record_that_costs_more_than_a_read_may_spend_is_undecided_on_a_worker_and_decided_aside() {
        let terms: Vec<String> = (0..200).map(|n| format!("TAGS CONTAINS 'x{n}'")).collect();
        let want = MessageFilter::Sql(Expression::compile(&terms.join(" OR ")).unwrap());
        let long = record(&"A".repeat(20_000));
        let look = |at: At| {
            let effort = at.effort();
            let found = Reader { want: Some(&want), effort: &effort, copies: None }.wants_record(&long);
            (found, effort.is_spent())
        };
        assert_eq!((look(At::Worker).0, look(At::Filter).0), (None, Some(false)));
        assert!(look(At::Worker).1);
    }

    #[test]
    fn a_huge_set_of_tags_is_not_taken_apart_where_it_is_read_and_filters_all_the_same() {
        let tags: Vec<String> = (0..100_000).map(|n| format!("tag{n}")).collect();
        let text = tags.join("||");
        let codes: Vec<i32> = tags.iter().map(|tag| tags::code(tag) as i32).collect();
        for want in [MessageFilter::tags(&text).unwrap().unwrap(), MessageFilter::codes(&codes).unwrap()] {
            assert!(want.takes_long());
            let effort = At::Filter.effort();
            let mut reader = Reader { want: Some(&want), effort: &effort, copies: None };
            assert_eq!(
                ["tag7", "tag99999", "other"].map(|tag| reader.wants_unit(tags::code(tag))),
                [true, true, false]
            );
            assert!(!want.takes_long(), "it is made, and asking it is a look into a sorted list");
        }
        assert!(!MessageFilter::tags("A || B").unwrap().unwrap().takes_long());
        let refused = MessageFilter::tags(&"|".repeat(TAGS_BYTES_MAX + 1)).unwrap_err();
        assert!(refused.contains("4194305 bytes, the limit is 4194304"), "{refused}");
        assert!(MessageFilter::tags(&"|".repeat(20_000)).unwrap_err().ends_with("holds no tag"));
    }
}
