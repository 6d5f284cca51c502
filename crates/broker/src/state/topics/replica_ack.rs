//! The attribute `replica.ack` of a topic: whether acknowledgements wait for slaves.
//!
//! It is read from the topic's attributes when these change, not when a message comes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};

/// Name of the attribute, and of the property.
pub(crate) const REPLICA_ACK: &str = "replica.ack";
/// Its values.
pub(crate) const REPLICA_ACKS: &[&str] = &[NONE, SYNC, ALL];

pub(crate) const NONE: &str = "NONE";
pub(crate) const SYNC: &str = "SYNC";
pub(crate) const ALL: &str = "ALL";

/// Which slaves an acknowledgement waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplicaAck {
    /// None.
    None,
    /// As many as the broker is set to wait for, and one at least.
    Sync,
    /// All that are in sync, and as many as with `SYNC` at least.
    All,
}

/// What that name means.
pub(crate) fn read(text: &str) -> Option<ReplicaAck> {
    match text {
        NONE => Some(ReplicaAck::None),
        SYNC => Some(ReplicaAck::Sync),
        ALL => Some(ReplicaAck::All),
        _ => None,
    }
}

/// What a topic asks for. Relaxed: it stands alone.
pub(crate) struct TopicReplicaAck(AtomicU8);

impl TopicReplicaAck {
    pub(crate) fn of(attributes: &BTreeMap<String, String>) -> TopicReplicaAck {
        let word = TopicReplicaAck(AtomicU8::new(0));
        word.follow(attributes);
        word
    }

    /// The topic has these attributes now.
    pub(crate) fn follow(&self, attributes: &BTreeMap<String, String>) {
        // Another broker may have left what we would refuse.
        let word = match attributes.get(REPLICA_ACK).and_then(|text| read(text)) {
            None => 0,
            Some(ReplicaAck::None) => 1,
            Some(ReplicaAck::Sync) => 2,
            Some(ReplicaAck::All) => 3,
        };
        self.0.store(word, Ordering::Relaxed);
    }

    /// Its word; none if it leaves that to the broker.
    pub(crate) fn get(&self) -> Option<ReplicaAck> {
        match self.0.load(Ordering::Relaxed) {
            1 => Some(ReplicaAck::None),
            2 => Some(ReplicaAck::Sync),
            3 => Some(ReplicaAck::All),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_says_it_until_its_attributes_say_something_else() {
        let attributes = |value: &str| BTreeMap::from([(REPLICA_ACK.to_owned(), value.to_owned())]);
        let word = TopicReplicaAck::of(&attributes("SYNC"));
        assert_eq!(word.get(), Some(ReplicaAck::Sync));
        for (text, expected) in [("ALL", Some(ReplicaAck::All)), ("NONE", Some(ReplicaAck::None)), ("some", None)] {
            word.follow(&attributes(text));
            assert_eq!(word.get(), expected);
        }
        word.follow(&attributes("ALL"));
        word.follow(&BTreeMap::new());
        assert_eq!(word.get(), None);
    }
}
