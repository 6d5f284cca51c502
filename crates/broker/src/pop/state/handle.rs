//! The strings by which clients name what they popped: handles (`POP_CK`, `extraInfo`) and what a pop's answer says of its messages.

use std::fmt::Write;

use protocol::code::ResponseCode;
use protocol::names;

use crate::refusal::Refusal;

/// In the place of a revive queue: popped in order.
pub(crate) const ORDER_QUEUE: i32 = 999;

/// Where a message comes from, as handles say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The topic itself.
    Topic,
    /// `%RETRY%group_topic`.
    RetryV1,
    /// `%RETRY%group+topic`.
    RetryV2,
}

impl Origin {
    pub(crate) fn mark(self) -> char {
        match self {
            Origin::Topic => '0',
            Origin::RetryV1 => '1',
            Origin::RetryV2 => '2',
        }
    }

    /// Of a topic, as Apache tells it by the name alone.
    pub(crate) fn of(topic: &str) -> Origin {
        if !names::is_retry_topic(topic) {
            Origin::Topic
        } else if topic.contains('+') {
            Origin::RetryV2
        } else {
            Origin::RetryV1
        }
    }

    /// The topic that a batch of acknowledgements means.
    pub(crate) fn topic(mark: &str, topic: &str, group: &str) -> String {
        match mark {
            "1" => retry_topic(topic, group, Origin::RetryV1),
            "2" => retry_topic(topic, group, Origin::RetryV2),
            _ => topic.to_owned(),
        }
    }
}

/// Where messages of a topic come again for a group.
pub(crate) fn retry_topic(topic: &str, group: &str, origin: Origin) -> String {
    let between = if origin == Origin::RetryV2 { "+" } else { "_" };
    [names::RETRY_PREFIX, group, between, topic].concat()
}

/// The topic that a pop's retry topic belongs to; a topic that is none belongs to itself.
pub(crate) fn origin_topic<'a>(topic: &'a str, group: &str) -> &'a str {
    let rest = topic.strip_prefix(names::RETRY_PREFIX).and_then(|rest| rest.strip_prefix(group));
    rest.and_then(|rest| rest.strip_prefix(['_', '+'])).unwrap_or(topic)
}

/// What a client says of a message that it popped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) start: u64,
    /// In milliseconds.
    pub(crate) pop_time: i64,
    /// In milliseconds.
    pub(crate) invisible_ms: i64,
    pub(crate) revive_qid: i32,
}

impl Handle {
    /// `start popTime invisibleTime reviveQid …`; the rest repeats what the request says.
    pub(crate) fn parse(text: &str) -> Result<Handle, Refusal> {
        let refuse = |what: &str| {
            let shown: String = text.chars().take(128).collect();
            let remark = format!("extraInfo \"{shown}\" is no handle of a popped message: {what}");
            Refusal::new(ResponseCode::MessageIllegal, remark)
        };
        let mut parts = text.split(' ');
        let mut number = |name: &str| {
            let part = parts.next().filter(|part| !part.is_empty()).ok_or_else(|| refuse(&format!("no {name}")))?;
            part.parse::<i64>().map_err(|_| refuse(&format!("{name} is no number")))
        };
        let start = u64::try_from(number("start offset")?).map_err(|_| refuse("the start offset is negative"))?;
        let (pop_time, invisible_ms) = (number("pop time")?, number("invisible time")?);
        let revive_qid =
            i32::try_from(number("revive queue id")?).map_err(|_| refuse("the revive queue id is out of range"))?;
        Ok(Handle { start, pop_time, invisible_ms, revive_qid })
    }

    pub(crate) fn is_order(&self) -> bool {
        self.revive_qid == ORDER_QUEUE
    }

    /// When the lease is over, as the client knows it.
    pub(crate) fn until(&self) -> i64 {
        self.pop_time.saturating_add(self.invisible_ms)
    }

    /// The whole handle, for a message that is given under another topic than its own.
    pub(crate) fn write(&self, out: &mut String, origin: Origin, broker: &str, queue_id: i32, offset: u64) {
        let Handle { start, pop_time, invisible_ms, revive_qid } = self;
        let mark = origin.mark();
        // Writing to memory cannot fail.
        let _ = write!(out, "{start} {pop_time} {invisible_ms} {revive_qid} {mark} {broker} {queue_id} {offset}");
    }
}

/// `startOffsetInfo`: one more queue.
pub(crate) fn add_start(out: &mut String, origin: Origin, queue_id: i32, start: u64) {
    let _ = write!(out, "{}{} {queue_id} {start}", between(out), origin.mark());
}

/// `msgOffsetInfo`: one more queue.
pub(crate) fn add_offsets(out: &mut String, origin: Origin, queue_id: i32, offsets: &[u64]) {
    let _ = write!(out, "{}{} {queue_id} ", between(out), origin.mark());
    for (place, offset) in offsets.iter().enumerate() {
        let _ = write!(out, "{}{offset}", if place > 0 { "," } else { "" });
    }
}

/// `orderCountInfo`: how often one message was consumed.
pub(crate) fn add_count(out: &mut String, origin: Origin, queue_id: i32, offset: u64, times: i32) {
    let _ = write!(out, "{}{} qo{queue_id}%{offset} {times}", between(out), origin.mark());
}

/// `orderCountInfo`: how often every message of a queue was consumed at least, for old clients.
pub(crate) fn add_queue_count(out: &mut String, origin: Origin, queue_id: i32, times: i32) {
    let _ = write!(out, "{}{} {queue_id} {times}", between(out), origin.mark());
}

fn between(out: &str) -> &'static str {
    if out.is_empty() { "" } else { ";" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_those_of_java() {
        let handle = Handle { start: 1, pop_time: 2, invisible_ms: 3, revive_qid: 4 };
        let mut text = String::new();
        // ExtraInfoUtil.buildExtraInfo(1, 2, 3, 4, "%RETRY%g+t", "bn", 5, 6)
        handle.write(&mut text, Origin::of("%RETRY%g+t"), "bn", 5, 6);
        assert_eq!(text, "1 2 3 4 2 bn 5 6");
        assert_eq!(Handle::parse(&text), Ok(handle));
    }

    #[test]
    fn infos_are_those_of_java() {
        let mut counts = String::new();
        add_count(&mut counts, Origin::Topic, 2, 7, 3);
        add_queue_count(&mut counts, Origin::Topic, 2, 1);
        assert_eq!(counts, "0 qo2%7 3;0 2 1");
        let mut offsets = String::new();
        add_offsets(&mut offsets, Origin::RetryV1, 0, &[5, 6, 9]);
        add_offsets(&mut offsets, Origin::Topic, 3, &[1]);
        assert_eq!(offsets, "1 0 5,6,9;0 3 1");
        let mut starts = String::new();
        add_start(&mut starts, Origin::Topic, 3, 1);
        add_start(&mut starts, Origin::Topic, 4, 0);
        assert_eq!(starts, "0 3 1;0 4 0");
    }

    #[test]
    fn what_is_no_handle_is_refused_with_what_is_wrong() {
        for (text, why) in [
            ("", "no start offset"),
            ("1 2 3", "no revive queue id"),
            ("-1 2 3 4 0 b 0 0", "negative"),
            ("1 x 3 4", "pop time is no number"),
            ("1 2 3 99999999999", "out of range"),
        ] {
            let refusal = Handle::parse(text).unwrap_err();
            assert_eq!(refusal.code, ResponseCode::MessageIllegal);
            assert!(refusal.remark.contains(why), "{}", refusal.remark);
        }
    }

    #[test]
    fn retry_topics_lead_back_to_their_topics() {
        for origin in [Origin::RetryV1, Origin::RetryV2] {
            let retry = retry_topic("t_1", "g_1", origin);
            assert_eq!(Origin::of(&retry), origin);
            assert_eq!(origin_topic(&retry, "g_1"), "t_1");
        }
        assert_eq!(origin_topic("t", "g"), "t");
        assert_eq!(origin_topic("%RETRY%g", "g"), "%RETRY%g");
    }
}
