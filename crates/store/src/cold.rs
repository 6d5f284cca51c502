//! Reads that wait for the device, on threads of their own, so that a consumer that is days behind holds up nobody else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use disk::turns::{self, Handle};
use disk::worker;
use parking_lot::Mutex;
use tracing::error;

use crate::error::StoreError;

/// A read that may wait.
pub type ColdRead = Box<dyn FnOnce() + Send>;

/// Why a read that may wait is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ColdReadRefused {
    /// So many wait for the device already that one more would wait for too long.
    #[error("too many reads wait for the disk: {waiting}, the limit is {limit}")]
    Full {
        /// How many wait.
        waiting: usize,
        /// How many may.
        limit: usize,
    },
    /// The store is being closed.
    #[error("the store is shutting down")]
    Closed,
}

/// Threads that do such reads, and the queue before them.
pub(crate) struct ColdReads {
    limit: usize,
    /// None once the store is closed: that ends the threads.
    sender: Mutex<Option<Sender<ColdRead>>>,
}

impl ColdReads {
    pub fn start(name: &str, threads: usize, limit: usize) -> Result<(Arc<ColdReads>, Vec<Handle>), StoreError> {
        let (sender, receiver) = bounded::<ColdRead>(limit);
        let mut handles = Vec::new();
        for number in 0..threads.max(1) {
            let receiver: Receiver<ColdRead> = receiver.clone();
            handles.push(worker::spawn(&format!("{name}-{number}"), move || {
                // Ends when the store closes.
                while let Some(read) = turns::receive(&receiver) {
                    run(read);
                }
            })?);
        }
        Ok((Arc::new(ColdReads { limit, sender: Mutex::new(Some(sender)) }), handles))
    }

    pub fn submit(&self, read: ColdRead) -> Result<(), ColdReadRefused> {
        let sender = self.sender.lock().clone().ok_or(ColdReadRefused::Closed)?;
        match sender.try_send(read) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(ColdReadRefused::Full { waiting: sender.len(), limit: self.limit }),
            Err(TrySendError::Disconnected(_)) => Err(ColdReadRefused::Closed),
        }
    }

    /// Whether a quarter of those that may wait do: one more waits for a second or so.
    pub fn is_crowded(&self) -> bool {
        let waiting = self.sender.lock().as_ref().map_or(0, Sender::len);
        waiting > 0 && waiting >= self.limit / 4
    }

    /// Lets the threads finish what waits, then end.
    pub fn stop(&self) {
        self.sender.lock().take();
    }
}

/// A bug in one read costs that read: what it owned is dropped, and whoever waits for it has to learn by that.
fn run(read: ColdRead) {
    if catch_unwind(AssertUnwindSafe(read)).is_err() {
        error!("a cold read panicked");
    }
}
