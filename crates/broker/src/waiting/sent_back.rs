//! Readers of a connection that a slave has sent back to the master.
//!
//! A stock client whose route has no master comes back to the slave at once, thousands of times a second, with the offset that it was sent back
//! with. So the slave knows it again, and answers it later the next time.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::waiting::hold::Lane;

/// Queues of which a connection's last offset is known: more than a client reads, as a rule. One more, and all are forgotten.
const QUEUES_MAX: usize = 10_000;

/// With which offset a connection was sent back last, by queue.
#[derive(Default)]
pub(crate) struct SentBack {
    /// By the address of the lane: one that is gone leaves an answer that comes later, once.
    offsets: HashMap<usize, i64>,
}

impl SentBack {
    /// A reader that wants `offset` of this lane is to be sent back. Whether it was before.
    pub(crate) fn is_here_again(&mut self, lane: &Arc<Lane>, offset: i64) -> bool {
        let lane = Arc::as_ptr(lane) as usize;
        if self.offsets.len() >= QUEUES_MAX && !self.offsets.contains_key(&lane) {
            self.offsets.clear();
        }
        self.offsets.insert(lane, offset) == Some(offset)
    }
}
