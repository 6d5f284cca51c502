//! Tells the clients of a group of a lite topic that has something for them.

use std::sync::Arc;

use env::Clock;
use store::Store;

use super::state::Lite;
use super::state::subscriptions::Left;
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::pop::Pops;
use crate::state::offsets::Offsets;

/// The state that says whether a lite topic has something for a group, and which client is told.
#[derive(Clone, Copy)]
pub(crate) struct Offers<'a> {
    pub(crate) lite: &'a Arc<Lite<ClientHandle>>,
    pub(crate) store: &'a Store,
    pub(crate) offsets: &'a Offsets,
    pub(crate) pops: &'a Pops,
    pub(crate) clock: &'a Clock,
}

impl<'a> Offers<'a> {
    pub(crate) fn of(broker: &'a Broker) -> Offers<'a> {
        let Broker { lite, store, offsets, pops, clock, .. } = broker;
        Offers { lite, store, offsets, pops, clock }
    }

    /// Tells a group of a light queue, if there is something for it now; else when its open batch is
    /// over.
    pub(crate) fn offer(&self, group: &str, queue: &str) {
        if !self.has_more(group, queue) {
            return;
        }
        match self.blocked_until(group, queue) {
            Some(at_ms) => self.lite.look_at(group, queue, at_ms),
            None => self.lite.tell(queue, Some(group)),
        }
    }

    /// Tells others what a client was told of that is gone.
    pub(super) fn hand_on(&self, left: &Left) {
        for queue in &left.queues {
            self.offer(&left.group, queue);
        }
    }

    pub(super) fn has_more(&self, group: &str, name: &str) -> bool {
        let Some(queue) = self.store.existing_queue(name, 0) else { return false };
        let max = queue.max_offset() as i64;
        let is_behind = || self.offsets.committed(group, name, 0).is_none_or(|committed| committed < max);
        max > 0 && (self.offsets.is_reset_pending(group, name, 0) || is_behind())
    }

    pub(super) fn blocked_until(&self, group: &str, queue: &str) -> Option<i64> {
        // The next pop forgets the batch of a queue that was set back.
        if self.offsets.is_reset_pending(group, queue, 0) {
            return None;
        }
        self.pops.lite_blocked_until(group, queue, self.clock.now().0)
    }
}
