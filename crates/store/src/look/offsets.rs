//! Committed offsets against the ends of their queues.

use std::collections::HashSet;
use std::path::PathBuf;

use protocol::names;

use super::finding::Finding;

const EFFECT: &str = "the group is not given the messages that get the numbers in between";
const REMEDY: &str = "gantry store repair, if queues lack units; else resetOffsetByTime or skipAccumulatedMessage for the group after the start. \
     After a crash the next start takes such offsets back by itself";

/// How far a group has come in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The queue's number.
    pub queue_id: u32,
    /// The offset of what it gets next.
    pub offset: u64,
}

/// What the broker's tables say, which are no business of the store.
#[derive(Clone, Debug, Default)]
pub struct KnownTables {
    /// Names of topics; none if nobody knows.
    pub topics: Option<HashSet<String>>,
    /// Committed offsets of physical queues; those of static topics count something else.
    pub offsets: Vec<Committed>,
    /// Where the offsets stand: a file, or the folder of the journal.
    pub offsets_in: PathBuf,
}

impl KnownTables {
    /// Whether there is such a topic, as far as anybody knows. Light queues are in no table.
    pub(super) fn has_topic(&self, topic: &str) -> bool {
        names::is_lmq(topic) || self.topics.as_ref().is_none_or(|topics| topics.contains(topic))
    }

    /// Names each offset behind the end of its queue.
    pub(super) fn verify(&self, end_of: impl Fn(&str, u32) -> u64, tell: &mut dyn FnMut(Finding)) {
        for Committed { group, topic, queue_id, offset } in &self.offsets {
            let end = end_of(topic, *queue_id);
            // What a deleted topic left is in nobody's way.
            if *offset > end && self.has_topic(topic) {
                tell(Finding {
                    file: self.offsets_in.clone(),
                    at: None,
                    what: format!(
                        "group {group} has committed {offset} in queue {topic}/{queue_id}, which ends at {end}"
                    ),
                    effect: EFFECT,
                    remedy: REMEDY,
                });
            }
        }
    }
}
