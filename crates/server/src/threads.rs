//! How work is laid out over threads, in one place.
//!
//! The store starts and names its own threads. Everything else runs on tokio's workers, one a processor: requests never block, so
//! more would only take turns.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// What blocks runs outside the workers: looking up names, opening and closing the store, writing settings and JSON files, unfolding
/// registrations. A resolver that does not answer holds a thread for half a minute, and must not hold up the files; threads without
/// work end by themselves.
const BLOCKING_THREADS: usize = 64;

/// What the workers are called. Those that block have a name of their own, so that who looks at a thread knows which it is.
pub const WORKER_NAME: &str = "gantry";
/// No longer than the kernel takes.
const BLOCKING_NAME: &str = "gantry-blocking";

/// The runtime of the process.
pub fn runtime() -> anyhow::Result<Runtime> {
    let workers = available_parallelism().map_or(1, usize::from);
    // Tokio asks for names in the order in which it starts threads: the workers first, all of them, which stay until the end.
    let named = AtomicUsize::new(0);
    let name = move || if named.fetch_add(1, Ordering::Relaxed) < workers { WORKER_NAME } else { BLOCKING_NAME };
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name_fn(move || name().to_owned())
        .enable_all()
        .build()
        .context("cannot start the worker threads")?;
    // A worker is a thread that takes up that work first; one that is started for blocking work could come before it. So nobody gets
    // the runtime before each worker holds a task.
    let all_are_there = Arc::new(Barrier::new(workers + 1));
    for _ in 0..workers {
        let all_are_there = Arc::clone(&all_are_there);
        runtime.spawn(async move { all_are_there.wait() });
    }
    all_are_there.wait();
    Ok(runtime)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_name() -> Option<String> {
        std::thread::current().name().map(str::to_owned)
    }

    #[test]
    fn workers_and_threads_that_block_are_told_apart_by_their_names() {
        let workers = available_parallelism().map_or(1, usize::from);
        let runtime = runtime().unwrap();
        // Each task holds a worker until all are held, so that each says its name once.
        let all_are_held = Arc::new(Barrier::new(workers));
        let hold = |_| {
            let all_are_held = Arc::clone(&all_are_held);
            runtime.spawn(async move {
                all_are_held.wait();
                own_name()
            })
        };
        let held: Vec<_> = (0..workers).map(hold).collect();
        let blocking: Vec<_> = (0..8).map(|_| runtime.spawn_blocking(own_name)).collect();
        for name in held {
            assert_eq!(runtime.block_on(name).unwrap().as_deref(), Some(WORKER_NAME));
        }
        for name in blocking {
            assert_eq!(runtime.block_on(name).unwrap().as_deref(), Some(BLOCKING_NAME));
        }
        assert!(BLOCKING_NAME.len() < 16, "the kernel cuts what is longer");
    }
}
