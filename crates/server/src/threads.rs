//! How work is laid out over threads, in one place.
//!
//! The store starts and names its own threads. Everything else runs on tokio's workers, one a processor: requests never block, so
//! more would only take turns.

use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// What blocks runs outside the workers: looking up names, opening and closing the store, writing settings and JSON files, unfolding
/// registrations. A resolver that does not answer holds a thread for half a minute, and must not hold up the files; threads without
/// work end by themselves.
const BLOCKING_THREADS: usize = 64;

/// What the workers are called, and those that block.
pub const WORKER_NAME: &str = "gantry";

/// The runtime of the process.
pub fn runtime() -> anyhow::Result<Runtime> {
    let workers = available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name(WORKER_NAME)
        .enable_all()
        .build()
        .context("cannot start the worker threads")
}
