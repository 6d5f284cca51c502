//! Tasks that end together.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::vital::vital;

/// Longer than a last export and a last good-bye take.
const LAST_WORK: Duration = Duration::from_secs(5);

/// The tasks, and the word that ends them.
pub(crate) struct Tasks {
    stop: watch::Sender<bool>,
    /// Guards nothing else.
    running: Mutex<JoinSet<()>>,
}

impl Tasks {
    pub(crate) fn new() -> Tasks {
        Tasks { stop: watch::Sender::new(false), running: Mutex::default() }
    }

    /// Turns true when the tasks have to end.
    pub(crate) fn stopping(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Runs a task that must not panic.
    pub(crate) fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.running.lock().spawn(vital(name, task));
    }

    /// Ends the tasks and waits for them, though not for ever. False if that was asked for before.
    pub(crate) async fn end(&self, what: &str) -> bool {
        if self.stop.send_replace(true) {
            return false;
        }
        let mut running = std::mem::take(&mut *self.running.lock());
        let ended = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_WORK, ended).await.is_err() {
            tracing::warn!(what, "does not end, going on without");
        }
        true
    }
}
