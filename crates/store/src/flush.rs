//! The `flush` thread: makes what is written survive a loss of power.
//!
//! With SYNC_FLUSH it clocks itself: while the device is busy with one group, the next one gathers, and it goes round at once as
//! long as anything is unflushed. With ASYNC_FLUSH it goes round every flush interval. With nothing to flush it sleeps until an
//! append calls it, and lets the thread `queues` do so too.
//!
//! Where one producer alone waits for a device that is quick, the thread that appends flushes by itself ([`flush_here`]): to call another
//! thread and to be called back takes as long as the device.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::error;

use crate::segment::Segment;
use crate::store::Shared;

/// A flush that takes longer than this is left to the thread `flush`: to have it called costs a tenth of a millisecond, and whoever
/// appends has others to serve.
const QUICK: Duration = Duration::from_millis(1);

pub(crate) fn run(shared: &Shared) {
    // Stops when the store closes, after a last round.
    loop {
        shared.flush_bell.wait(None, || shared.is_stopping() || shared.log.end.get() > shared.flushed.get());
        shared.call_followers();
        if !shared.is_sync_flush() && !shared.is_stopping() {
            shared.flush_bell.rest(shared.options.flush_interval);
        }
        let is_stopping = shared.is_stopping();
        flush(shared);
        if is_stopping {
            return;
        }
    }
}

/// Flushes everything that is written at this moment.
pub(crate) fn flush(shared: &Shared) {
    // Whoever else flushes has taken less; two at once would move `flushed` past what one of them is still at.
    let _turn = shared.flush_turn.lock();
    flush_in_turn(shared);
}

/// The same by a thread that has just appended up to `end`, if that is quicker than to have it done, and right now: no other flush is
/// under way, lately each append was flushed by itself (so nobody's would gather meanwhile), and the device answered soon.
///
/// Says whether it was done. If not, the thread `flush` has to be called.
pub(crate) fn flush_here(shared: &Shared, end: u64) -> bool {
    if !shared.lone_flushes.load(Ordering::Relaxed) {
        return false;
    }
    let Some(_turn) = shared.flush_turn.try_lock() else { return false };
    flush_in_turn(shared);
    shared.flushed.get() >= end
}

fn flush_in_turn(shared: &Shared) {
    let appends = shared.appends.swap(0, Ordering::Relaxed);
    // First the time, then the end: whatever was stored by that time lies below that end.
    let timestamp = shared.last_timestamp.load(Ordering::Acquire);
    let end = shared.log.end.get();
    let from = shared.flushed.get();
    if end <= from {
        return;
    }
    let began = shared.clock.elapsed();
    for segment in shared.log.segments_between(from, end) {
        sync(&segment, from, end);
        if segment.end() <= end {
            segment.rest();
        }
    }
    let took = shared.clock.elapsed().saturating_sub(began);
    shared.lone_flushes.store(appends <= 1 && took <= QUICK, Ordering::Relaxed);
    shared.flushed_timestamp.fetch_max(timestamp, Ordering::Release);
    shared.flushed.advance(end);
}

/// Brings the log offsets `from..to`, as far as they lie in the segment, to the device.
pub(crate) fn sync(segment: &Segment, from: u64, to: u64) {
    if let Err(error) = segment.sync_range(from, to) {
        // The kernel may have dropped the pages that it could not write, and says so once, to whoever syncs next. We no longer know what is
        // on the device, so nothing may be acknowledged any more; the next start finds out.
        error!(path = %segment.path().display(), %error, "the log cannot be flushed: ending the process");
        std::process::abort();
    }
}
