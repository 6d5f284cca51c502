//! Topics that wait until they are made on the other brokers of the cluster. `placement.rs` makes
//! them.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Topics that wait for their turn; clients make them. More stay where they are.
const WAITING_MAX: usize = 10_000;

/// A topic, and the one that it was made from.
pub(crate) struct PlacementJob {
    pub(crate) topic: Arc<str>,
    pub(crate) template: Box<str>,
    pub(crate) tries: u32,
}

/// Topics on their way to the other brokers. The mutex guards nothing else.
#[derive(Default)]
pub(crate) struct Placement {
    waiting: Mutex<VecDeque<PlacementJob>>,
    added: Notify,
}

impl Placement {
    /// Has a topic made on the other brokers, soon.
    pub(crate) fn add(&self, topic: &Arc<str>, template: &str) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            drop(waiting);
            tracing::warn!(%topic, limit = WAITING_MAX, "topic stays on this broker: too many wait to be made on others");
            return;
        }
        waiting.push_back(PlacementJob { topic: Arc::clone(topic), template: template.into(), tries: 0 });
        drop(waiting);
        self.added.notify_one();
    }

    /// Takes the first one that waits.
    pub(crate) fn next(&self) -> Option<PlacementJob> {
        self.waiting.lock().pop_front()
    }

    /// Puts one that could not be made at the end.
    pub(crate) fn again(&self, wanted: PlacementJob) {
        self.waiting.lock().push_back(wanted);
    }

    /// Waits until one is added.
    pub(crate) async fn added(&self) {
        self.added.notified().await;
    }
}
