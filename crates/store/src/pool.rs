//! The write pool (`transientStorePoolEnable=true`): appends gather in anonymous memory, and the thread `commit` writes to the log's files.
//!
//! Whoever appends touches neither mapping nor page cache, and does not wait where the kernel holds a writer back. The thread takes all that has
//! gathered, writes it (`pwrite`, a call a buffer), publishes it, and moves the log's end: who waits for [`crate::Store::written`] is answered,
//! and consumers see it. While it writes, the next buffers fill: it needs no period and no least size. A crash loses what it had not written,
//! which nobody was told is stored.
//!
//! The pool has a number of buffers of one size. A buffer holds whole groups of records of one file, so that the log's end is never inside one.

mod buffers;

use std::sync::atomic::Ordering;
use std::time::Duration;

use disk::turns;
use tracing::error;

pub use buffers::PoolOptions;
pub(crate) use buffers::{Buffer, Gathered, Pool};

use crate::store::Shared;

/// How long buffers that are not in use are kept.
const REST: Duration = Duration::from_secs(5);

/// Writes what gathers until the store closes.
pub(crate) fn run(shared: &Shared) {
    let Some(pool) = &shared.log.pool else { return };
    // Stops when the store closes, after a last round.
    loop {
        let has_work = || shared.is_stopping() || pool.end() > shared.log.end.get();
        pool.bell.wait(pool.has_spare().then_some(REST), has_work);
        if !has_work() {
            pool.give_up_spare();
            continue;
        }
        let is_stopping = shared.is_stopping();
        commit(shared);
        if is_stopping {
            return;
        }
    }
}

/// Writes what is gathered at this moment.
pub(crate) fn commit(shared: &Shared) {
    let Shared { log, .. } = shared;
    let Some(pool) = &log.pool else { return };
    let (buffers, timestamp) = log.take_gathered();
    for Buffer { segment, at, bytes, end, count } in buffers {
        if let Err(error) = segment.write_through(at, &bytes) {
            // Part of it may be there. It was promised to nobody, and what stands behind it is not to be promised either: the next start
            // finds where the log ends.
            shared.resume.forget();
            error!(path = %segment.path().display(), %error, "the log cannot be written: ending the process");
            turns::end_process();
        }
        segment.publish(end);
        // First the buffer, then the end: who found the pool full waits for the end.
        pool.give_back(bytes, count);
        // Before the end: a waiter that hears that it is written may see it. And after it: the mode
        // may have changed between.
        shared.confirmed.raise_written(end);
        log.end.advance(end);
        shared.confirmed.raise_written(end);
        shared.flush_bell.call();
    }
    // First the end, then the time: see `flush`.
    shared.last_timestamp.fetch_max(timestamp, Ordering::Release);
    if log.end.get() >= log.call_at.load(Ordering::Relaxed) {
        shared.segments_bell.call();
    }
}
