//! Work that may block.

use tokio::task::JoinHandle;

/// Runs it on a thread that may wait. In the simulator, where one thread runs at a time, in a task of its own. It cannot be cancelled.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if store::turns::are_given() {
        return tokio::spawn(async move { work() });
    }
    tokio::task::spawn_blocking(work)
}
