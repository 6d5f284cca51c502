//! What one client is to look into: lite topics that have something for its group, each once, oldest first.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashSet;

/// A client that waits for messages asks again within this time, in milliseconds: Apache's longest wait and some more.
const WAITING_MS: i64 = 35_000;
/// One that has been told of something asks for it within this time, in milliseconds, or somebody else gets it.
const TAKING_MS: i64 = 10_000;

/// The light queues that a client is told of.
pub(super) struct Events {
    queues: VecDeque<Arc<str>>,
    known: HashSet<Arc<str>>,
    /// So many at once.
    pub(super) max: usize,
    /// When the client popped last, or came, in the clock's milliseconds.
    asked_ms: i64,
    has_popped: bool,
}

impl Events {
    pub(super) fn new(max: usize, now_ms: i64) -> Events {
        Events { queues: VecDeque::new(), known: HashSet::new(), max, asked_ms: now_ms, has_popped: false }
    }

    /// False when there is no room for one more.
    pub(super) fn offer(&mut self, queue: &Arc<str>) -> bool {
        if self.known.contains(queue) {
            return true;
        }
        if self.queues.len() >= self.max {
            return false;
        }
        self.known.insert(Arc::clone(queue));
        self.queues.push_back(Arc::clone(queue));
        true
    }

    /// The client asks for the next one.
    pub(super) fn take(&mut self, now_ms: i64) -> Option<Arc<str>> {
        self.asked_ms = now_ms;
        self.has_popped = true;
        let queue = self.queues.pop_front()?;
        self.known.remove(&queue);
        Some(queue)
    }

    /// It could not be looked into: it is the next one again.
    pub(super) fn put_back(&mut self, queue: Arc<str>) {
        if self.known.insert(Arc::clone(&queue)) {
            self.queues.push_front(queue);
        }
    }

    /// Whether the client was told of it.
    pub(super) fn remove(&mut self, queue: &str) -> bool {
        let was_known = self.known.remove(queue);
        if was_known {
            self.queues.retain(|other| **other != *queue);
        }
        was_known
    }

    /// All of them, from a client that goes or does not read.
    pub(super) fn drain(&mut self) -> Vec<Arc<str>> {
        self.known.clear();
        std::mem::take(&mut self.queues).into()
    }

    /// Whether the client seems to be there.
    pub(super) fn is_reading(&self, now_ms: i64) -> bool {
        let limit = if self.queues.is_empty() { WAITING_MS } else { TAKING_MS };
        now_ms.saturating_sub(self.asked_ms) <= limit
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Whether there is room enough to look for more.
    pub(super) fn is_low(&self) -> bool {
        self.queues.len() <= self.max / 5
    }

    /// When the client popped last; none if it never did.
    pub(super) fn popped_ms(&self) -> Option<i64> {
        self.has_popped.then_some(self.asked_ms)
    }
}
