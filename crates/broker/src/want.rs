//! What a consumer wants of a topic: by tags, which a queue's units know, or by a condition on properties, for which the record is looked into.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use filter::Expression;
use net::Connection;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::tags::{self, Subscription};
use store::{Copies, Wanted};

use crate::clients::{ClientSubscription, ConsumerGroup};
use crate::session::Work;

/// RocketMQ's name of conditions on properties.
pub(crate) const SQL92: &str = "SQL92";

/// A filter, ready for any number of messages.
#[derive(Debug)]
pub(crate) enum Want {
    /// By tag codes. Clients look again, since codes may collide.
    Tags(ByTags),
    /// By properties. Null and an evaluation that fails are a no, as in Apache.
    Sql(Expression),
    /// Retries, by what the group wants of the topics that they come from (`filterSupportRetry`).
    Retries(Arc<ConsumerGroup<Connection<Work>>>),
}

impl Want {
    /// For a subscription by tags. `None`: everything.
    pub(crate) fn tags(subscription: Subscription) -> Option<Arc<Want>> {
        let by_tags = |wanted| ByTags { wanted, looks_into_records: AtomicBool::new(false) };
        (!subscription.is_all()).then(|| Arc::new(Want::Tags(by_tags(subscription))))
    }
}

/// A subscription by tags. Units know the tags, but for those that Apache wrote with extension files, of which the record is asked.
#[derive(Debug)]
pub(crate) struct ByTags {
    wanted: Subscription,
    /// Such a unit was met, and there will be more; until then no record is looked into. Relaxed: whoever looks into the record of such a unit has
    /// asked for the unit before.
    looks_into_records: AtomicBool,
}

impl ByTags {
    fn wants_unit(&self, tags: i64) -> bool {
        if !tags::is_extension_address(tags) {
            return self.wanted.matches(tags);
        }
        // Others read by this too: it is written once.
        if !self.looks_into_records.load(Ordering::Relaxed) {
            self.looks_into_records.store(true, Ordering::Relaxed);
        }
        true
    }

    fn wants_record(&self, record: &[u8]) -> bool {
        !self.looks_into_records.load(Ordering::Relaxed)
            || view(record).is_some_and(|view| self.wanted.matches(view.tags_code()))
    }
}

/// A retry is wanted if its message would be: a group that changed its mind does not get what it does not want any more. What it wants
/// by tags its units have said.
fn wants_retry(group: &ConsumerGroup<Connection<Work>>, view: &RecordView<'_>) -> bool {
    let origin = view.property(name::RETRY_TOPIC).filter(|topic| !names::is_retry_topic(topic));
    let subscription = origin.and_then(|topic| group.subscription(topic));
    subscription.as_deref().and_then(ClientSubscription::sql).is_none_or(|sql| sql.matches(view.properties_bytes()))
}

fn view(record: &[u8]) -> Option<RecordView<'_>> {
    match record::scan(record, false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}

/// For one read: what is wanted, and who has what is copied for it.
pub(crate) struct Reader<'a>(pub(crate) Option<&'a Want>, pub(crate) Option<&'a Copies>);

impl Wanted for Reader<'_> {
    fn wants_unit(&mut self, tags: i64) -> bool {
        match self.0 {
            Some(Want::Tags(by_tags)) => by_tags.wants_unit(tags),
            Some(Want::Sql(_) | Want::Retries(_)) | None => true,
        }
    }

    fn wants_record(&mut self, record: &[u8]) -> bool {
        match self.0 {
            Some(Want::Sql(sql)) => view(record).is_some_and(|view| sql.matches(view.properties_bytes())),
            Some(Want::Retries(group)) => view(record).is_some_and(|view| wants_retry(group, &view)),
            Some(Want::Tags(by_tags)) => by_tags.wants_record(record),
            None => true,
        }
    }

    fn copies(&self) -> Option<&Copies> {
        self.1
    }
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
        let want = Want::tags(Subscription::parse("A || C").unwrap()).unwrap();
        let mut reader = Reader(Some(&want), None);
        assert_eq!(["A", "B"].map(|tag| reader.wants_unit(tags::code(tag))), [true, false]);
        assert!(reader.wants_unit(i64::from(i32::MIN) - 1 - 52));
        assert_eq!(["A", "B", "C"].map(|tag| reader.wants_record(&record(tag))), [true, false, true]);
        assert_eq!(["A", "B"].map(|tag| reader.wants_unit(tags::code(tag))), [true, false]);
    }
}
