//! What the broker has to know of a message's properties, and the property string that it stores.
//!
//! Apache parses properties into a map and prints the map again. We look once and copy: a record's properties are the client's, in their
//! order, without those that only a broker may set, followed by ours.

use protocol::properties::{self, NAME_VALUE, PROPERTY_END, name};
use store::MessageKeys;

use crate::state::stats::MessageType;
use crate::state::topics::flush::FLUSH_DISK_TYPE;
use crate::state::topics::replica_ack::REPLICA_ACK;

/// Characters of the longest number.
const DIGITS: usize = 20;

/// Properties of a message that decide what becomes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SendProperties<'a> {
    /// `TAGS`; empty when there are none.
    pub(crate) tags: &'a str,
    /// `UNIQ_KEY`; empty when the client made none.
    pub(crate) uniq_key: &'a str,
    /// `KEYS`; empty when there are none.
    pub(crate) keys: &'a str,
    /// `WAIT=false`: the producer does not want to wait for the disk, nor for slaves.
    pub(crate) is_hasty: bool,
    /// `flush.disk.type`, as it stands there.
    pub(crate) flush_disk_type: Option<&'a str>,
    /// `replica.ack`, as it stands there.
    pub(crate) replica_ack: Option<&'a str>,
    /// `DELAY`, as it stands there.
    pub(crate) delay: Option<&'a str>,
    /// `TRAN_MSG=true`: a half message.
    pub(crate) is_half: bool,
    /// `TIMER_DELAY_SEC`, `TIMER_DELAY_MS` and `TIMER_DELIVER_MS`, as they stand there.
    pub(crate) delay_sec: Option<&'a str>,
    pub(crate) delay_ms: Option<&'a str>,
    pub(crate) deliver_ms: Option<&'a str>,
    /// `TIMER_OUT_MS` is there: the message has waited already.
    pub(crate) has_timer_out: bool,
    /// `TIMER_DEL_UNIQKEY` is there: the message takes another one back.
    pub(crate) is_timer_delete: bool,
    /// `__SHARDINGKEY` is there: the message belongs to an order.
    has_sharding_key: bool,
    /// `_SYS_MSG_PRIORITY_`, as it stands there.
    priority: Option<&'a str>,
    /// `INNER_NUM` is there, which only batches stored as one record have.
    pub(crate) has_inner_num: bool,
    /// `INNER_MULTI_DISPATCH`: the light queues that it is to stand in.
    pub(crate) light: Option<&'a str>,
    /// `INNER_MULTI_QUEUE_OFFSET` is there, which only a broker may set.
    pub(crate) has_light_numbers: bool,
    /// `__LITE_TOPIC`: the small topic within its topic that it belongs to.
    pub(crate) lite_topic: Option<&'a str>,
    /// There is something that is not copied.
    is_to_be_cleaned: bool,
}

impl<'a> SendProperties<'a> {
    /// Looks at each property once. Of several with the same name the last counts, as in a Java map.
    pub(crate) fn of(text: &'a str) -> SendProperties<'a> {
        let mut facts = SendProperties::default();
        for (key, value) in properties::iter(text) {
            match key {
                name::TAGS => facts.tags = value,
                name::UNIQ_KEY => facts.uniq_key = value,
                name::KEYS => facts.keys = value,
                name::WAIT => facts.is_hasty = value.eq_ignore_ascii_case("false"),
                FLUSH_DISK_TYPE => facts.flush_disk_type = Some(value),
                REPLICA_ACK => facts.replica_ack = Some(value),
                name::DELAY => facts.delay = Some(value),
                name::TRAN_MSG => facts.is_half = value.eq_ignore_ascii_case("true"),
                name::TIMER_DELAY_SEC => facts.delay_sec = Some(value),
                name::TIMER_DELAY_MS => facts.delay_ms = Some(value),
                name::TIMER_DELIVER_MS => facts.deliver_ms = Some(value),
                name::TIMER_OUT_MS => facts.has_timer_out = true,
                name::TIMER_DEL_UNIQKEY => facts.is_timer_delete = true,
                name::SHARDING_KEY => facts.has_sharding_key = true,
                name::PRIORITY => {
                    facts.priority = Some(value);
                    facts.is_to_be_cleaned = true;
                }
                name::INNER_NUM => facts.has_inner_num = true,
                name::INNER_MULTI_DISPATCH => facts.light = Some(value),
                name::LITE_TOPIC => facts.lite_topic = Some(value),
                name::INNER_MULTI_QUEUE_OFFSET => {
                    facts.has_light_numbers = true;
                    facts.is_to_be_cleaned = true;
                }
                name::POP_CK
                | name::CLUSTER
                | name::MSG_REGION
                | name::TRACE_ON
                | name::REAL_TOPIC
                | name::REAL_QID
                | name::TRANSACTION_ID => {
                    facts.is_to_be_cleaned = true;
                }
                _ => {}
            }
        }
        facts
    }

    /// What the message is found by, if its properties are stored as they are.
    pub(crate) fn message_keys(&self) -> MessageKeys<'a> {
        MessageKeys { uniq_key: self.uniq_key, keys: self.keys, tag: self.tags }
    }

    /// The priority of a message that is of the type PRIORITY in Apache's order of types: a transaction, a delay and an order win. Java
    /// reads what is not a number as -1.
    pub(crate) fn priority(&self) -> Option<i32> {
        let is_other = self.is_half || self.delay.is_some() || self.timer().is_some() || self.has_sharding_key;
        let priority = self.stated_priority()?;
        (!is_other && priority >= 0).then_some(priority)
    }

    /// What metrics call the message, in Apache's order of types there.
    pub(crate) fn message_type(&self) -> MessageType {
        if self.is_half {
            MessageType::Transaction
        } else if self.has_sharding_key {
            MessageType::Fifo
        } else if self.delay.is_some() || self.timer().is_some() {
            MessageType::Delay
        } else {
            MessageType::Normal
        }
    }

    fn stated_priority(&self) -> Option<i32> {
        self.priority?.parse().ok()
    }

    /// What a recall of the message with this unique key says: it waits for the same time.
    pub(crate) fn of_recall(uniq_key: &'a str, deliver_ms: &'a str) -> SendProperties<'a> {
        SendProperties { uniq_key, deliver_ms: Some(deliver_ms), is_timer_delete: true, ..SendProperties::default() }
    }

    /// The property that asks for a delivery time, if one does, and what it says. Of several the first in Apache's order counts.
    pub(crate) fn timer(&self) -> Option<(&'static str, &'a str)> {
        let named = |name, text: Option<&'a str>| text.map(|text| (name, text));
        named(name::TIMER_DELAY_SEC, self.delay_sec)
            .or(named(name::TIMER_DELAY_MS, self.delay_ms))
            .or(named(name::TIMER_DELIVER_MS, self.deliver_ms))
    }

    /// The delay level, 0 for none; `Err` holds what is not a number.
    pub(crate) fn delay_level(&self) -> Result<i32, &'a str> {
        self.delay.map_or(Ok(0), |text| text.parse().map_err(|_| text))
    }
}

/// Where a delayed message will go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real<'a> {
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
}

/// What the broker adds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Additions<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) region: &'a str,
    pub(crate) trace_on: bool,
    /// For a message without one.
    pub(crate) uniq_key: Option<&'a str>,
    /// For a half message.
    pub(crate) transaction_id: Option<&'a str>,
    /// For a message that waits in the schedule topic or in the one of half messages.
    pub(crate) real: Option<Real<'a>>,
    /// For a message that waits for its time: the slot that it is due behind, in ms.
    pub(crate) timer_out: Option<i64>,
    /// For a message that goes to a dead-letter queue directly.
    pub(crate) is_dead: bool,
    /// The light queue of a lite message.
    pub(crate) lite_queue: Option<&'a str>,
}

/// Replaces `out` by the properties to store.
pub(crate) fn write(out: &mut Vec<u8>, client: &str, facts: &SendProperties<'_>, add: &Additions<'_>) {
    out.clear();
    let drops_timer = add.real.is_some() && add.timer_out.is_none();
    let drops_more =
        add.is_dead || drops_timer && facts.timer().is_some() || add.lite_queue.is_some() && facts.light.is_some();
    if facts.is_to_be_cleaned || drops_more {
        copy_except(out, client, |key| match key {
            // POP_CK is an acknowledgement handle, which a client must not make; the others are ours to say. Recovery believes the numbers
            // in light queues.
            name::POP_CK | name::INNER_MULTI_QUEUE_OFFSET | name::CLUSTER | name::MSG_REGION | name::TRACE_ON => true,
            name::REAL_TOPIC | name::REAL_QID => add.real.is_some(),
            name::TRANSACTION_ID => add.transaction_id.is_some(),
            // A delay level wins over a delivery time.
            name::TIMER_DELAY_SEC | name::TIMER_DELAY_MS | name::TIMER_DELIVER_MS => drops_timer,
            name::DELAY => add.is_dead,
            name::INNER_MULTI_DISPATCH => add.lite_queue.is_some(),
            // Apache keeps what means nothing, and drops what would if the message were of this type.
            name::PRIORITY => {
                (add.is_dead || facts.priority().is_none()) && facts.stated_priority().is_some_and(|stated| stated >= 0)
            }
            _ => false,
        });
    } else {
        out.extend_from_slice(client.as_bytes());
        if !out.is_empty() && out.last() != Some(&PROPERTY_END) {
            out.push(PROPERTY_END);
        }
    }
    if let Some(uniq_key) = add.uniq_key {
        put(out, name::UNIQ_KEY, uniq_key);
    }
    put(out, name::MSG_REGION, add.region);
    put(out, name::TRACE_ON, if add.trace_on { "true" } else { "false" });
    put(out, name::CLUSTER, add.cluster);
    if let Some(queue) = add.lite_queue {
        put(out, name::INNER_MULTI_DISPATCH, queue);
    }
    if add.is_dead {
        put(out, name::DELAY, "-1");
    }
    if let Some(transaction_id) = add.transaction_id {
        put(out, name::TRANSACTION_ID, transaction_id);
    }
    if let Some(timer_out) = add.timer_out {
        put(out, name::TIMER_OUT_MS, decimal(&mut [0; DIGITS], timer_out));
    }
    if let Some(real) = add.real {
        put_real(out, real);
    }
}

/// Adds where a delayed message will go.
pub(crate) fn put_real(out: &mut Vec<u8>, real: Real<'_>) {
    put(out, name::REAL_TOPIC, real.topic);
    put(out, name::REAL_QID, decimal(&mut [0; DIGITS], i64::from(real.queue_id)));
}

/// Adds the properties of `client` but those that are dropped.
pub(crate) fn copy_except(out: &mut Vec<u8>, client: &str, is_dropped: impl Fn(&str) -> bool) {
    for (key, value) in properties::iter(client) {
        if !is_dropped(key) {
            put(out, key, value);
        }
    }
}

/// Adds one property. Readers drop a property without a value, so an empty one is not written.
pub(crate) fn put(out: &mut Vec<u8>, key: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    out.extend_from_slice(key.as_bytes());
    out.push(NAME_VALUE);
    out.extend_from_slice(value.as_bytes());
    out.push(PROPERTY_END);
}

/// A number's digits, without allocating.
fn decimal(digits: &mut [u8; DIGITS], number: i64) -> &str {
    let mut at = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    std::str::from_utf8(&digits[at..]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::properties::get;

    const OURS: Additions<'static> = Additions {
        cluster: "C",
        region: "R",
        trace_on: true,
        uniq_key: None,
        transaction_id: None,
        real: None,
        timer_out: None,
        is_dead: false,
        lite_queue: None,
    };

    fn stored(client: &str, add: &Additions<'_>) -> String {
        let mut out = vec![7; 3];
        write(&mut out, client, &SendProperties::of(client), add);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_the_client_says_is_kept_in_its_order_and_ours_follows() {
        assert_eq!(
            stored("KEYS\u{1}k\u{2}TAGS\u{1}a\u{2}", &OURS),
            "KEYS\u{1}k\u{2}TAGS\u{1}a\u{2}MSG_REGION\u{1}R\u{2}TRACE_ON\u{1}true\u{2}CLUSTER\u{1}C\u{2}"
        );
    }

    #[test]
    fn a_missing_last_separator_is_added_before_ours() {
        assert!(stored("TAGS\u{1}a", &OURS).starts_with("TAGS\u{1}a\u{2}MSG_REGION"));
        assert!(stored("", &OURS).starts_with("MSG_REGION"));
    }

    #[test]
    fn a_client_cannot_set_what_only_a_broker_may() {
        let kept = stored("POP_CK\u{1}x\u{2}CLUSTER\u{1}theirs\u{2}a\u{1}b\u{2}", &OURS);
        assert_eq!(get(&kept, "POP_CK"), None);
        assert_eq!(kept.matches("CLUSTER").count(), 1);
        assert_eq!(get(&kept, "CLUSTER"), Some("C"));
        assert_eq!(get(&kept, "a"), Some("b"));
    }

    #[test]
    fn a_delay_level_wins_over_a_delivery_time_and_names_the_real_queue() {
        let real = Some(Real { topic: "T", queue_id: 3 });
        let kept =
            stored("DELAY\u{1}2\u{2}TIMER_DELIVER_MS\u{1}9\u{2}REAL_TOPIC\u{1}old\u{2}", &Additions { real, ..OURS });
        assert_eq!(get(&kept, "TIMER_DELIVER_MS"), None);
        assert_eq!(get(&kept, "DELAY"), Some("2"));
        assert_eq!(get(&kept, "REAL_TOPIC"), Some("T"));
        assert_eq!(get(&kept, "REAL_QID"), Some("3"));
        assert_eq!(kept.matches("REAL_TOPIC").count(), 1);
    }

    #[test]
    fn a_timer_message_keeps_what_its_producer_said_and_names_its_slot() {
        let real = Some(Real { topic: "T", queue_id: 3 });
        let add = Additions { real, timer_out: Some(1_700_000_000_000), ..OURS };
        let kept = stored("TIMER_DELIVER_MS\u{1}1700000000500\u{2}", &add);
        assert_eq!(get(&kept, "TIMER_DELIVER_MS"), Some("1700000000500"));
        assert_eq!(get(&kept, "TIMER_OUT_MS"), Some("1700000000000"));
        assert_eq!((get(&kept, "REAL_TOPIC"), get(&kept, "REAL_QID")), (Some("T"), Some("3")));
    }

    #[test]
    fn of_several_times_the_first_in_apaches_order_counts() {
        let timer = |client: &str| SendProperties::of(client).timer().map(|(name, text)| (name, text.to_owned()));
        let all = "TIMER_DELIVER_MS\u{1}1\u{2}TIMER_DELAY_MS\u{1}2\u{2}TIMER_DELAY_SEC\u{1}3\u{2}";
        assert_eq!(timer(all), Some(("TIMER_DELAY_SEC", "3".to_owned())));
        assert_eq!(timer(&all.replace("TIMER_DELAY_SEC", "OTHER")), Some(("TIMER_DELAY_MS", "2".to_owned())));
        assert_eq!(timer("TIMER_OUT_MS\u{1}1\u{2}"), None);
    }

    #[test]
    fn a_dead_message_is_not_delayed_again() {
        let kept = stored("DELAY\u{1}3\u{2}", &Additions { is_dead: true, ..OURS });
        assert_eq!(get(&kept, "DELAY"), Some("-1"));
        assert_eq!(kept.matches("DELAY").count(), 1);
    }

    #[test]
    fn facts_are_read_as_java_reads_them() {
        let facts = SendProperties::of(
            "WAIT\u{1}FALSE\u{2}TRAN_MSG\u{1}True\u{2}DELAY\u{1}x\u{2}TAGS\u{1}a\u{2}TAGS\u{1}b\u{2}KEYS\u{1}\u{2}",
        );
        assert!(facts.is_hasty && facts.is_half && facts.keys.is_empty());
        assert_eq!((facts.tags, facts.delay_level()), ("b", Err("x")));
        assert_eq!(SendProperties::of("DELAY\u{1}18\u{2}").delay_level(), Ok(18));
    }

    #[test]
    fn a_priority_counts_for_a_message_that_is_nothing_else() {
        let priority = |client: &str| SendProperties::of(client).priority();
        assert_eq!(priority("_SYS_MSG_PRIORITY_\u{1}3\u{2}"), Some(3));
        for other in ["-1", "high"] {
            let client = format!("_SYS_MSG_PRIORITY_\u{1}{other}\u{2}");
            assert_eq!(priority(&client), None);
            assert_eq!(get(&stored(&client, &OURS), "_SYS_MSG_PRIORITY_"), Some(other));
        }
        for other in ["DELAY\u{1}1", "TRAN_MSG\u{1}true", "__SHARDINGKEY\u{1}order-7", "TIMER_DELAY_MS\u{1}9"] {
            let client = format!("_SYS_MSG_PRIORITY_\u{1}3\u{2}{other}\u{2}");
            assert_eq!(priority(&client), None, "{other}");
            assert_eq!(get(&stored(&client, &OURS), "_SYS_MSG_PRIORITY_"), None, "{other}");
        }
        assert_eq!(get(&stored("_SYS_MSG_PRIORITY_\u{1}3\u{2}", &OURS), "_SYS_MSG_PRIORITY_"), Some("3"));
    }

    #[test]
    fn numbers_have_the_digits_that_display_gives_them() {
        for number in [0, 7, -1, 42, i64::MAX, i64::MIN] {
            assert_eq!(decimal(&mut [0; DIGITS], number), number.to_string());
        }
    }
}
