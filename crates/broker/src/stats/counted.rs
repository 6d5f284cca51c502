//! What was counted since the start, for who reads counters and makes rates of them himself.

use super::{Stats, meter::Meter};

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

/// What a group got of a topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupCounted<'a> {
    pub(crate) group: &'a str,
    pub(crate) topic: &'a str,
    pub(crate) is_system: bool,
    pub(crate) got: Counted,
    /// Given up: in the dead-letter queue.
    pub(crate) dead: u64,
}

impl Stats {
    /// Shows what each topic was sent: its name, and whether it is a system topic.
    pub(crate) fn each_topic(&self, show: &mut dyn FnMut(&str, bool, Counted)) {
        for (name, meters) in &self.topics.pin() {
            show(name, meters.is_system, Counted::of(&meters.put_nums, &meters.put_size));
        }
    }

    /// Shows what each group got of each topic.
    pub(crate) fn each_group(&self, show: &mut dyn FnMut(GroupCounted<'_>)) {
        for (key, meters) in &self.groups.pin() {
            let got = Counted::of(&meters.get_nums, &meters.get_size);
            let (group, topic) = (&*key.group, &*key.topic);
            show(GroupCounted { group, topic, is_system: meters.is_system, got, dead: meters.dead.sum() });
        }
    }
}
