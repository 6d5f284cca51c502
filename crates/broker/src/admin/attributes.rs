//! Attributes of topics and groups: which there are, what they may be, and how a request changes them.
//!
//! A request says `+key=value` to set and `-key` to remove, as `mqadmin updateTopic -a` writes it.

use std::collections::{BTreeMap, BTreeSet};

use protocol::code::ResponseCode;

use crate::refusal::Refusal;
use crate::state::topics::flush::{FLUSH_DISK_TYPE, FLUSH_DISK_TYPES};
use crate::state::topics::replica_ack::{REPLICA_ACK, REPLICA_ACKS};

/// Bytes of a value that may be anything.
const TEXT_BYTES_MAX: usize = 1024;

/// What an attribute may be.
#[derive(Clone, Copy, Debug)]
enum AttributeKind {
    OneOf(&'static [&'static str]),
    /// Anything that is not too long.
    Text,
    /// Between two numbers.
    Number(i64, i64),
}

/// One attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute {
    name: &'static str,
    kind: AttributeKind,
    /// May be set after creation too.
    is_changeable: bool,
    /// The only value that this broker keeps yet, with what it lacks for the others that Apache knows.
    only: Option<(&'static str, &'static str)>,
}

/// Of topics.
pub(crate) const OF_TOPICS: &[Attribute] = &[
    Attribute {
        name: "queue.type",
        kind: AttributeKind::OneOf(&["BatchCQ", "SimpleCQ"]),
        is_changeable: false,
        only: None,
    },
    Attribute {
        name: "cleanup.policy",
        kind: AttributeKind::OneOf(&["DELETE", "COMPACTION"]),
        is_changeable: false,
        only: Some(("DELETE", "compaction")),
    },
    Attribute {
        name: "message.type",
        kind: AttributeKind::OneOf(&[
            "UNSPECIFIED",
            "NORMAL",
            "FIFO",
            "DELAY",
            "TRANSACTION",
            "PRIORITY",
            "LITE",
            "MIXED",
        ]),
        is_changeable: true,
        only: None,
    },
    // Minutes; 30 days at most.
    Attribute {
        name: "lite.topic.expiration",
        kind: AttributeKind::Number(-1, 43_200),
        is_changeable: true,
        only: None,
    },
    // -1: as long as the broker keeps messages.
    Attribute {
        name: "reserve.time",
        kind: AttributeKind::Number(-1, i64::MAX),
        is_changeable: true,
        only: Some(("-1", "retention by topic")),
    },
    // Ours: Apache has no such attributes.
    changeable(FLUSH_DISK_TYPE, AttributeKind::OneOf(FLUSH_DISK_TYPES)),
    changeable(REPLICA_ACK, AttributeKind::OneOf(REPLICA_ACKS)),
];

/// Of groups.
pub(crate) const OF_GROUPS: &[Attribute] = &[
    changeable("priority.factor", AttributeKind::Number(0, 100)),
    changeable("lite.bind.topic", AttributeKind::Text),
    changeable("lite.sub.model", AttributeKind::OneOf(&["Shared", "Exclusive"])),
    changeable("lite.sub.reset.offset.exclusive", AttributeKind::OneOf(&["true", "false"])),
    changeable("lite.sub.reset.offset.unsubscribe", AttributeKind::OneOf(&["true", "false"])),
    changeable("lite.sub.client.quota", AttributeKind::Number(-1, i64::MAX)),
    changeable("lite.sub.client.max.event.cnt", AttributeKind::Number(10, i64::MAX)),
    changeable("lite.sub.wildcard", AttributeKind::Text),
];

const fn changeable(name: &'static str, kind: AttributeKind) -> Attribute {
    Attribute { name, kind, is_changeable: true, only: None }
}

/// Reads `+key=value,-key`. An empty text changes nothing.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, String>, Refusal> {
    let mut changes = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (key, value) = match part.split_once('=') {
            Some((key, value)) => (key.trim(), value.trim()),
            None if part.starts_with('-') => (part, ""),
            None => return Err(wrong(format!("add attribute without value: {part}"))),
        };
        if changes.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(wrong(format!("key duplication: {key}")));
        }
    }
    Ok(changes)
}

/// The attributes after the changes.
pub(crate) fn alter(
    known: &[Attribute],
    is_creation: bool,
    current: &BTreeMap<String, String>,
    changes: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Refusal> {
    let mut after = current.clone();
    let mut seen = BTreeSet::new();
    for (signed, value) in changes {
        let (sign, key) = match (signed.strip_prefix('+'), signed.strip_prefix('-')) {
            (Some(key), _) => ('+', key),
            (None, Some(key)) => ('-', key),
            (None, None) => return Err(wrong(format!("add/alter attribute format is wrong: {signed}"))),
        };
        if !seen.insert(key) {
            return Err(wrong(format!("alter duplication key. key: {key}")));
        }
        if is_creation && sign == '-' {
            return Err(wrong(format!("only add attribute is supported while creating topic. key: {key}")));
        }
        if sign == '-' && !current.contains_key(key) {
            return Err(wrong(format!("attempt to delete a nonexistent key: {key}")));
        }
        let Some(attribute) = known.iter().find(|attribute| attribute.name == key) else {
            return Err(wrong(format!("unsupported key: {key}")));
        };
        if !is_creation && !attribute.is_changeable {
            return Err(wrong(format!("attempt to update an unchangeable attribute. key: {key}")));
        }
        if sign == '-' {
            after.remove(key);
            continue;
        }
        attribute.check(value)?;
        after.insert(key.to_owned(), value.clone());
    }
    Ok(after)
}

impl Attribute {
    fn check(&self, value: &str) -> Result<(), Refusal> {
        let name = self.name;
        match self.kind {
            AttributeKind::OneOf(values) if !values.contains(&value) => {
                return Err(wrong(format!("value is not in set: {name}={value}, allowed: {}", values.join(", "))));
            }
            AttributeKind::Number(least, most)
                if !value.parse::<i64>().is_ok_and(|number| (least..=most).contains(&number)) =>
            {
                return Err(wrong(format!("value is not in range({least}, {most}): {name}={value}")));
            }
            AttributeKind::Text if value.len() > TEXT_BYTES_MAX => {
                let bytes = value.len();
                return Err(wrong(format!("value of {name} has {bytes} bytes, the limit is {TEXT_BYTES_MAX}")));
            }
            AttributeKind::OneOf(_) | AttributeKind::Number(..) | AttributeKind::Text => {}
        }
        match self.only {
            Some((kept, missing)) if kept != value => {
                Err(wrong(format!("{name}={value} is not supported: this broker has no {missing} yet")))
            }
            Some(_) | None => Ok(()),
        }
    }
}

fn wrong(remark: String) -> Refusal {
    Refusal::new(ResponseCode::SystemError, remark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn altered(is_creation: bool, current: &[(&str, &str)], text: &str) -> Result<BTreeMap<String, String>, String> {
        let changes = parse(text).map_err(|refusal| refusal.remark)?;
        alter(OF_TOPICS, is_creation, &map(current), &changes).map_err(|refusal| refusal.remark)
    }

    #[test]
    fn attributes_are_set_changed_and_removed() {
        assert_eq!(altered(true, &[], "+message.type=FIFO"), Ok(map(&[("message.type", "FIFO")])));
        assert_eq!(altered(true, &[], "+message.type=PRIORITY"), Ok(map(&[("message.type", "PRIORITY")])));
        assert_eq!(altered(true, &[], "+queue.type=BatchCQ"), Ok(map(&[("queue.type", "BatchCQ")])));
        let current = [("message.type", "FIFO")];
        assert_eq!(
            altered(false, &current, "+message.type=NORMAL, +reserve.time=-1"),
            Ok(map(&[("message.type", "NORMAL"), ("reserve.time", "-1")]))
        );
        assert_eq!(altered(false, &[("reserve.time", "5")], "-reserve.time"), Ok(map(&[])));
        assert_eq!(altered(true, &[], "+cleanup.policy=DELETE"), Ok(map(&[("cleanup.policy", "DELETE")])));
        assert_eq!(altered(false, &current, "-message.type"), Ok(map(&[])));
        let durable = [("flush.disk.type", "SYNC_FLUSH")];
        assert_eq!(altered(true, &[], "+flush.disk.type=SYNC_FLUSH"), Ok(map(&durable)));
        assert_eq!(altered(false, &durable, "-flush.disk.type"), Ok(map(&[])));
        assert_eq!(altered(false, &current, ""), Ok(map(&current)));
    }

    #[test]
    fn a_text_is_not_as_long_as_it_likes() {
        let bind = |bytes: usize| {
            let changes = map(&[("+lite.bind.topic", &"x".repeat(bytes))]);
            alter(OF_GROUPS, true, &map(&[]), &changes).map_err(|refusal| refusal.remark)
        };
        assert!(bind(TEXT_BYTES_MAX).is_ok());
        assert_eq!(bind(1025), Err("value of lite.bind.topic has 1025 bytes, the limit is 1024".to_owned()));
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (is_creation, current, text, part) in [
            (true, vec![], "+colour=red", "unsupported key: colour"),
            (true, vec![], "+message.type=LOUD", "message.type=LOUD"),
            (true, vec![], "+reserve.time=soon", "reserve.time=soon"),
            (false, vec![], "+reserve.time=5", "this broker has no retention by topic yet"),
            (true, vec![], "+cleanup.policy=COMPACTION", "this broker has no compaction yet"),
            (true, vec![], "+flush.disk.type=SYNC", "allowed: ASYNC_FLUSH, SYNC_FLUSH"),
            (true, vec![], "-message.type", "only add"),
            (false, vec![], "-message.type", "nonexistent"),
            (false, vec![("queue.type", "SimpleCQ")], "+queue.type=SimpleCQ", "unchangeable"),
            (false, vec![("queue.type", "BatchCQ")], "+queue.type=SimpleCQ", "unchangeable"),
            (false, vec![], "+queue.type=BatchCQ", "unchangeable"),
            (true, vec![], "+queue.type=BatchCq", "allowed: BatchCQ, SimpleCQ"),
            (true, vec![], "+message.type=LITE,+lite.topic.expiration=43201", "lite.topic.expiration=43201"),
            (true, vec![], "message.type=FIFO", "format is wrong"),
            (true, vec![], "+message.type", "without value"),
            (false, vec![("message.type", "FIFO")], "+message.type=NORMAL,-message.type", "duplication"),
        ] {
            let remark = altered(is_creation, &current, text).unwrap_err();
            assert!(remark.contains(part), "{text}: {remark}");
        }
    }
}
