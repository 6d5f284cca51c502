//! How work is laid out over threads, in one place, and how many descriptors the process may hold.
//!
//! The store starts and names its own threads. Everything else runs on tokio's workers, one a processor: requests never block, so
//! more would only take turns.

use std::thread::available_parallelism;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// Looking up names and closing the store are all that ever blocks outside the workers.
const BLOCKING_THREADS: usize = 8;

/// The runtime of the process.
pub fn runtime() -> anyhow::Result<Runtime> {
    let workers = available_parallelism().map_or(1, usize::from);
    Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("gantry")
        .enable_all()
        .build()
        .context("cannot start the worker threads")
}

/// Each connection is a descriptor, and the soft limit is often 1024: take what the hard limit allows.
pub fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, wanted)
    {
        tracing::warn!(%error, limit = ?limit.current, "the limit of open files stays as it is");
    }
}
