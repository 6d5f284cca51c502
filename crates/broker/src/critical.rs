//! Tasks without which the broker only seems to work: delayed delivery, expiry of parked pulls, offsets on their way to the journal.
//!
//! A panic in a request's handler costs its connection. A panic in one of these would end what it does for everybody, without a sign until
//! somebody misses a message; so it ends the process, as one in a thread of the store does, and the next start goes on from the disk.

/// Runs a task that must not panic.
pub(crate) async fn run_critical(name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    let ended = tokio::spawn(work).await;
    if ended.is_err_and(|error| error.is_panic()) {
        tracing::error!(task = name, "a task that the broker needs has panicked; the process ends");
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const CHILD: &str = "GANTRY_TEST_OF_VITAL_TASKS";
    const SIGABRT: i32 = 6;

    /// Runs itself once more, in a process that may die.
    #[tokio::test]
    async fn a_vital_task_that_panics_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            return super::run_critical("doomed", async { panic!("as the test wants") }).await;
        }
        let name = "critical::tests::a_vital_task_that_panics_ends_the_process";
        let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "1").output();
        assert_eq!(child.unwrap().status.signal(), Some(SIGABRT));
    }
}
