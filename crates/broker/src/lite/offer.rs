//! Tells the clients of a group of a lite topic that has something for them.

use store::Store;

use super::state::subscriptions::Left;
use crate::broker::Broker;
use crate::state::offsets::Offsets;

/// Tells a group of a light queue, if there is something for it now; else when its open batch is
/// over.
pub(crate) fn offer(broker: &Broker, group: &str, queue: &str) {
    if !has_more(&broker.store, &broker.offsets, group, queue) {
        return;
    }
    match blocked_until(broker, group, queue) {
        Some(at_ms) => broker.lite.look_at(group, queue, at_ms),
        None => broker.lite.tell(queue, Some(group)),
    }
}

/// Tells others what a client was told of that is gone.
pub(super) fn hand_on(broker: &Broker, left: &Left) {
    for queue in &left.queues {
        offer(broker, &left.group, queue);
    }
}

pub(super) fn has_more(store: &Store, offsets: &Offsets, group: &str, name: &str) -> bool {
    let Some(queue) = store.existing_queue(name, 0) else { return false };
    let max = queue.max_offset() as i64;
    let is_behind = || offsets.committed(group, name, 0).is_none_or(|committed| committed < max);
    max > 0 && (offsets.is_reset_pending(group, name, 0) || is_behind())
}

pub(super) fn blocked_until(broker: &Broker, group: &str, queue: &str) -> Option<i64> {
    // The next pop forgets the batch of a queue that was set back.
    if broker.offsets.is_reset_pending(group, queue, 0) {
        return None;
    }
    broker.pops.lite_blocked_until(group, queue, broker.clock.now().0)
}
