//! Work that may block.

use std::sync::Arc;

use tokio::task::JoinHandle;

/// Runs it on a thread that may wait. In the simulator, where one thread runs at a time, in a task of its own. It cannot be cancelled.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if disk::turns::are_given() {
        return tokio::spawn(async move { work() });
    }
    tokio::task::spawn_blocking(work)
}

/// Runs work that takes time with large tables on a thread that serves no connection. A panic there goes on here.
pub(crate) async fn beside<O: Send + Sync + 'static, T: Send + 'static>(
    owner: &Arc<O>,
    work: impl FnOnce(&O) -> T + Send + 'static,
) -> T {
    let owner = Arc::clone(owner);
    match spawn(move || work(&owner)).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and every task with it.
            Err(_cancelled) => std::future::pending().await,
        },
    }
}
