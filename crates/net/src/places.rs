//! How many connections a process may have, whichever of its ports they came to.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bound on connections that the listeners of a process share.
///
/// Each connection is a descriptor, and so is each file: without this bound, connections that nobody uses would take those with which a
/// store opens the next file of its log.
#[derive(Debug)]
pub struct Places {
    max: usize,
    free: Arc<Semaphore>,
}

impl Places {
    /// So many, all of them free.
    pub fn new(max: usize) -> Places {
        let max = max.min(Semaphore::MAX_PERMITS);
        Places { max, free: Arc::new(Semaphore::new(max)) }
    }

    /// How many there are.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes one, until what is returned is dropped. `None`: all are taken.
    pub(crate) fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }
}
