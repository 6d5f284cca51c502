//! After a loss of power: groups that had come further than what is left of their queues.
//!
//! The journal that holds offsets is brought to the device apart from the log. With ASYNC_FLUSH it may remember a message as consumed which the
//! log has lost; the next messages get the numbers of the lost ones, and the group would never see them.

use std::sync::atomic::Ordering;

use protocol::names;

use super::{Offsets, set};
use crate::broker::Broker;

/// What was too far, and the end of its queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) queue_id: i32,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

impl Offsets {
    /// Takes offsets that lie behind the end of their queue back to it. `end_of`: the end of a topic's queue; none of those that are not to
    /// be looked at.
    fn cut(&self, end_of: impl Fn(&str, i32) -> Option<i64>) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (key, entry) in &self.table.pin() {
            for (queue_id, from) in entry.committed() {
                let Some(to) = end_of(&key.topic, queue_id).filter(|end| from > *end) else { continue };
                let Ok(queue) = usize::try_from(queue_id) else { continue };
                if entry.peek(queue, |slot| slot.reset.load(Ordering::Relaxed) < 0 && set(slot, to)) == Some(true) {
                    self.mark(entry);
                    cuts.push(Cut { topic: key.topic.to_string(), group: key.group.to_string(), queue_id, from, to });
                }
            }
        }
        cuts
    }
}

/// At a start, before anybody is served.
pub(crate) fn cut(broker: &Broker) {
    if !broker.store.was_abnormal() {
        return;
    }
    let cuts = broker.offsets.cut(|topic, queue_id| {
        // In a static topic offsets are those of logical queues, which may end on another broker.
        let known = broker.topics.get(topic).filter(|topic| !topic.is_static() && !names::is_lmq(topic.name()))?;
        let queue = u32::try_from(queue_id).ok().filter(|_| known.has_queue(queue_id))?;
        // What is not there is empty, and begins at 0.
        Some(broker.store.existing_queue(topic, queue).map_or(0, |queue| queue.max_offset() as i64))
    });
    if let Some(first) = cuts.first() {
        tracing::warn!(
            offsets = cuts.len(),
            ?first,
            "groups had come further than what the crash left of their queues: they go on at the end of them"
        );
    }
}

#[cfg(test)]
mod tests {
    use env::Clock;

    use super::*;

    #[test]
    fn offsets_behind_the_end_of_their_queue_are_taken_back_to_it() {
        let offsets = Offsets::new(Clock::real());
        offsets.commit("g", "T", 0, 7);
        offsets.commit("g", "T", 1, 5);
        offsets.commit("g", "Elsewhere", 0, 9);
        let cuts = offsets.cut(|topic, _| (topic == "T").then_some(5));
        let cut = Cut { topic: "T".to_owned(), group: "g".to_owned(), queue_id: 0, from: 7, to: 5 };
        assert_eq!(cuts, [cut]);
        assert_eq!((offsets.committed("g", "T", 0), offsets.committed("g", "T", 1)), (Some(5), Some(5)));
        assert_eq!(offsets.committed("g", "Elsewhere", 0), Some(9));
    }
}
