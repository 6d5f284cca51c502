//! Queues of a topic as tools see them: those that its configuration names, and how far each has come.

use std::sync::Arc;

use store::{ConsumeQueue, Store};

use crate::state::topics::Topic;

impl Topic {
    /// Queue ids that can be read or written, with the queue where it has ever been used.
    pub(crate) fn queues(&self, store: &Store) -> Vec<(i32, Option<Arc<ConsumeQueue>>)> {
        let config = self.config();
        let queues = config.read_queue_nums.max(config.write_queue_nums);
        (0..queues).map(|id| (id, store.existing_queue(self.name(), id as u32))).collect()
    }
}

/// Smallest and next offset of a queue, as RocketMQ's signed numbers.
pub(crate) fn ends(queue: &ConsumeQueue) -> (i64, i64) {
    let signed = |offset: u64| i64::try_from(offset).unwrap_or(i64::MAX);
    (signed(queue.min_offset()), signed(queue.max_offset()))
}
