//! The `flush` thread: makes what is written survive a loss of power.
//!
//! With SYNC_FLUSH it clocks itself: while the device is busy with one group, the next one gathers, and it goes round at once as
//! long as anything is unflushed. With ASYNC_FLUSH it goes round every flush interval, and sooner when more has gathered than is to be dirty at a
//! time, or when somebody waits for it. With nothing to flush it sleeps until an append calls it, and lets the thread `queues` do so too.
//! Which of the two it is may change at any time ([`crate::stage`]).

use std::sync::atomic::Ordering;

use disk::turns;
use tracing::error;

use crate::segment::Segment;
use crate::store::Shared;

/// A start after a kill does not know of less that it is on the device, and keeps it in memory until it has flushed it again.
const NOTED_EVERY: u64 = 8 << 20;
/// From so many bytes on, pages are taken out of our page table before they are written: all at once. Otherwise the kernel makes each of them
/// read-only by itself, and interrupts the other processors for each.
const LET_GO_MIN: u64 = 16 << 10;

pub(crate) fn run(shared: &Shared) {
    // Stops when the store closes, after a last round.
    loop {
        shared.flush_bell.wait(None, || shared.is_stopping() || shared.log.end.get() > shared.flushed.get());
        shared.wake_queues();
        if let Some(index) = &shared.index {
            index.bell.call();
        }
        if !shared.is_sync_flush() && !shared.is_stopping() && !shared.flush_wanted.load(Ordering::SeqCst) {
            shared.flush_bell.rest(shared.options.flush_interval);
        }
        // What was wanted until now is done now. Acquires what whoever wanted it had appended.
        shared.flush_wanted.swap(false, Ordering::SeqCst);
        let is_stopping = shared.is_stopping();
        flush(shared);
        if is_stopping {
            return;
        }
    }
}

/// Flushes everything that is written at this moment.
pub(crate) fn flush(shared: &Shared) {
    // First the time, then the end: whatever was stored by that time lies below that end.
    let timestamp = shared.last_timestamp.load(Ordering::Acquire);
    let end = shared.log.end.get();
    let from = shared.flushed.get();
    if end <= from {
        return;
    }
    // Each piece that is on the device may go from memory.
    let piece = shared.governor.as_ref().map_or(u64::MAX, |governor| governor.options.shares.dirty);
    let mut at = from;
    while at < end {
        let to = end.min(at.saturating_add(piece));
        for segment in shared.log.segments_between(at, to) {
            if to - at >= LET_GO_MIN {
                segment.let_go(at, to);
            }
            sync(shared, &segment, at, to);
            if segment.end() <= to {
                segment.rest();
            }
        }
        if to == end {
            shared.flushed_timestamp.fetch_max(timestamp, Ordering::Release);
        }
        // Before and after, as in `pool::commit`.
        shared.confirmed.raise_to(shared.log.end.get(), to);
        shared.flushed.advance(to);
        shared.confirm();
        shared.resume.flushed_to(to, NOTED_EVERY);
        if shared.is_room_held.load(Ordering::SeqCst) {
            // Somebody waits for room: not at the end of its rest, but now.
            shared.governor_bell.ring();
        } else {
            shared.governor_bell.call();
        }
        at = to;
    }
}

/// Brings the log offsets `from..to`, as far as they lie in the segment, to the device.
pub(crate) fn sync(shared: &Shared, segment: &Segment, from: u64, to: u64) {
    if let Err(error) = segment.sync_range(from, to) {
        // The kernel may have dropped the pages that it could not write, or takes them for clean, and says so once, to whoever syncs next. We no
        // longer know what is on the device, so nothing may be acknowledged any more; the next start finds the mark (`unsynced.rs`) and writes it again.
        shared.resume.forget();
        error!(path = %segment.path().display(), %error, "the log cannot be flushed: ending the process");
        turns::end_process();
    }
}
