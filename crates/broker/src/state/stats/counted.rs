//! What was counted since the start, for who reads counters and makes rates of them himself.

use super::ends::EndsCounted;
use super::meter::Meter;
use super::sorts::SortCounted;
use super::{Stats, TopicMeters};

/// Messages and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Counted {
    fn of(messages: &Meter, bytes: &Meter) -> Counted {
        Counted { messages: messages.sum(), bytes: bytes.sum() }
    }
}

/// What a topic was sent.
pub(crate) struct TopicCounted {
    pub(crate) topic: String,
    pub(crate) is_system: bool,
    /// Of each sort of messages that came.
    pub(crate) sorts: Vec<SortCounted>,
    /// How its transactions ended, if it had any.
    pub(crate) ends: Option<EndsCounted>,
}

impl TopicCounted {
    fn of(name: &str, meters: &TopicMeters) -> TopicCounted {
        let sorts = meters.sorts.counted().collect();
        TopicCounted { topic: name.to_owned(), is_system: meters.is_system, sorts, ends: meters.ends.counted() }
    }
}

/// What a group got of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupCounted<'a> {
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) got: Counted,
    /// Given up: in the dead-letter queue.
    pub(crate) dead: u64,
}

impl Stats {
    /// What each topic was sent, in the order of their names.
    pub(crate) fn of_topics(&self) -> Vec<TopicCounted> {
        let topics = self.topics.pin();
        let mut all: Vec<_> = topics.iter().map(|(name, meters)| TopicCounted::of(name, meters)).collect();
        all.sort_unstable_by(|one, other| one.topic.cmp(&other.topic));
        all
    }

    /// Shows what each group got of each topic.
    pub(crate) fn each_group(&self, show: &mut dyn FnMut(GroupCounted<'_>)) {
        for (key, meters) in &self.groups.pin() {
            let got = Counted::of(&meters.get_nums, &meters.get_size);
            let (group, topic) = (&*key.group, &*key.topic);
            show(GroupCounted { group, topic, got, dead: meters.dead.sum() });
        }
    }
}
