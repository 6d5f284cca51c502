//! The store's own threads: how they are started, called and stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::error::StoreError;

/// Calls a thread that waits. A ring while nobody waits is not lost: the next wait ends at once.
#[derive(Default)]
pub(crate) struct Bell {
    /// Guards nothing but itself.
    rung: Mutex<bool>,
    changed: Condvar,
    /// Whether the thread is about to wait or waits. SeqCst on both sides: of the caller's work and the thread's last look
    /// for work one sees the other.
    is_idle: AtomicBool,
}

impl Bell {
    /// Calls, at the cost of one load if the thread is busy anyway: it looks once more before it waits.
    pub fn call(&self) {
        if self.is_idle.swap(false, Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Rings.
    pub fn ring(&self) {
        *self.rung.lock() = true;
        self.changed.notify_one();
    }

    /// Waits until the bell rings or `timeout` is over, unless `has_work` finds something once callers know that we wait.
    pub fn wait(&self, timeout: Option<Duration>, has_work: impl FnOnce() -> bool) {
        self.is_idle.store(true, Ordering::SeqCst);
        if !has_work() {
            let mut rung = self.rung.lock();
            if !*rung {
                match timeout {
                    Some(timeout) => {
                        self.changed.wait_for(&mut rung, timeout);
                    }
                    None => self.changed.wait(&mut rung),
                }
            }
            *rung = false;
        }
        self.is_idle.store(false, Ordering::SeqCst);
    }
}

/// Starts a thread under a name that shows in `top -H`.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, StoreError> {
    Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|source| StoreError::Thread { name: name.to_owned(), source })
}
