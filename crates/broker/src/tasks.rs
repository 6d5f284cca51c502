//! Tasks that run until they are told to end, each known by a name: the one way to stop of all that the broker does by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::critical::run_critical;

/// Says to a task that it has to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    pub(crate) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Ready when the task has to end, and from then on.
    pub(crate) async fn asked(&mut self) {
        // An error: the owner of the tasks is gone.
        let _ = self.0.wait_for(|is_asked| *is_asked).await;
    }
}

struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// The tasks that run.
#[derive(Default)]
pub(crate) struct Tasks {
    /// By name. Guards nothing else.
    running: Mutex<BTreeMap<&'static str, Running>>,
}

impl Tasks {
    /// Runs a task that must not panic. Nothing happens if the one of this name has not ended yet.
    pub(crate) fn run<F>(&self, name: &'static str, task: impl FnOnce(Stop) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = self.running.lock();
        if running.get(name).is_some_and(|known| !known.task.is_finished()) {
            tracing::error!(task = name, "the task has not ended yet, it is not started again");
            return;
        }
        let (stop, asked) = watch::channel(false);
        let task = tokio::spawn(run_critical(name, task(Stop(asked))));
        running.insert(name, Running { stop, task });
    }

    /// Whether the task of this name was started, and not told to end.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.running.lock().get(name).is_some_and(|one| !*one.stop.borrow())
    }

    /// Tells these tasks to end, in this order, and waits for all of them, though not longer than `limit`.
    pub(crate) async fn end(&self, names: &[&'static str], limit: Duration) {
        let mut ending: Vec<(&'static str, Running)> = {
            let mut running = self.running.lock();
            names.iter().filter_map(|name| running.remove_entry(name)).collect()
        };
        for (_, one) in &ending {
            one.stop.send_replace(true);
        }
        let ended = async {
            for (_, one) in &mut ending {
                // A panic has ended the process.
                let _ = (&mut one.task).await;
            }
        };
        if tokio::time::timeout(limit, ended).await.is_ok() {
            return;
        }
        ending.retain(|(_, one)| !one.task.is_finished());
        for (task, _) in &ending {
            tracing::warn!(task, "does not end, going on without");
        }
        // They must not run twice.
        self.running.lock().extend(ending);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_task_that_has_ended_can_be_started_again_and_one_that_has_not_cannot() {
        let tasks = Tasks::default();
        for _ in 0..2 {
            tasks.run("obeys", |mut stop| async move { stop.asked().await });
            assert!(tasks.has("obeys"));
            tasks.end(&["obeys", "unknown"], LIMIT).await;
            assert!(!tasks.has("obeys"));
        }
        tasks.run("defies", |_| pending());
        tasks.end(&["defies"], Duration::from_millis(1)).await;
        tasks.run("defies", |_| async { unreachable!("it runs already") });
        tokio::task::yield_now().await;
        assert!(!tasks.has("defies"), "it was told to end");
    }
}
