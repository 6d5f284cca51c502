//! The turn to pop from a queue: one pop at a time, and one that missed it is woken when it ends.

use std::sync::Arc;

use super::state::Pops;
use super::state::handle::origin_topic;
use super::state::ledger::{PopQueue, QueueName, QueueRef};
use crate::state::offsets::GroupTopicRef;
use crate::waiting::hold::Hold;

/// A turn to pop from a queue; ends when dropped, and wakes a pop that has missed it.
pub(super) struct Claim {
    pops: Arc<Pops>,
    hold: Arc<Hold>,
    pub(super) queue: PopQueue,
}

impl Claim {
    /// None if somebody else has the turn.
    pub(super) fn of(pops: &Arc<Pops>, hold: &Arc<Hold>, name: QueueRef<'_>) -> Option<Claim> {
        let queue = pops.claim(name)?;
        Some(Claim { pops: Arc::clone(pops), hold: Arc::clone(hold), queue })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let missed = self.pops.release(self.queue);
        if let Some(QueueName { group, topic, queue_id }) = &missed {
            let (key, queue_id) = waits_for(QueueRef { group, topic, queue_id: *queue_id });
            self.hold.pops.arrived_in(key, queue_id);
        }
    }
}

/// Where the pops of a queue wait, and the queue as they name it. What is in a retry topic is for
/// everybody who pops its topic.
pub(super) fn waits_for(name: QueueRef<'_>) -> (GroupTopicRef<'_>, Option<i32>) {
    let topic = origin_topic(name.topic, name.group);
    (GroupTopicRef { group: name.group, topic }, (topic == name.topic).then_some(name.queue_id))
}
