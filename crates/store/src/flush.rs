//! The `flush` thread: makes what is written survive a loss of power.
//!
//! With SYNC_FLUSH it clocks itself: while the device is busy with one group, the next one gathers, and it goes round at once as
//! long as anything is unflushed. With ASYNC_FLUSH it goes round every flush interval, and sooner when more has gathered than is to be dirty at a
//! time, or when somebody waits for it. With nothing to flush it sleeps until an append calls it, and lets the thread `queues` do so too.
//! Which of the two it is may change at any time ([`Mode`]).

use std::sync::atomic::{AtomicU64, Ordering};

use disk::turns;
use tracing::error;

use crate::options::FlushMode;
use crate::segment::Segment;
use crate::store::Shared;

/// A start after a kill does not know of less that it is on the device, and keeps it in memory until it has flushed it again.
const NOTED_EVERY: u64 = 8 << 20;
/// From so many bytes on, pages are taken out of our page table before they are written: all at once. Otherwise the kernel makes each of them
/// read-only by itself, and interrupts the other processors for each.
const LET_GO_MIN: u64 = 16 << 10;

/// What counts as safe at this moment, for acknowledgements and for consumers.
///
/// From ASYNC_FLUSH to SYNC_FLUSH there is a time between: sends wait for the device at once, and consumers go on seeing what is written, until
/// all is flushed that was shown to them. Otherwise a pull that was woken for a message would find it gone, and wait for the next one.
pub(crate) struct Mode {
    state: AtomicU64,
    /// The number of the next turn.
    turns: AtomicU64,
}

const ASYNC: u64 = 0;
const SYNC: u64 = 1;

/// A change to SYNC_FLUSH that is under way. Each has its own number, so that a flush which began before it does not complete it.
#[derive(Clone, Copy)]
pub(crate) struct Turn(u64);

impl Mode {
    pub fn new(mode: FlushMode) -> Mode {
        let state = match mode {
            FlushMode::Async => ASYNC,
            FlushMode::Sync => SYNC,
        };
        Mode { state: AtomicU64::new(state), turns: AtomicU64::new(SYNC + 1) }
    }

    /// Acknowledgements wait for the device.
    ///
    /// SeqCst: whoever has appended, and then does not see the change, has appended before the flush that completes it looks for the log's end.
    pub fn is_sync(&self) -> bool {
        self.state.load(Ordering::SeqCst) != ASYNC
    }

    /// Consumers see what is on the device.
    pub fn shows_flushed(&self) -> bool {
        self.state.load(Ordering::SeqCst) == SYNC
    }

    /// Changes it, and says whether it was another one.
    pub fn set(&self, mode: FlushMode) -> bool {
        match mode {
            FlushMode::Async => self.state.swap(ASYNC, Ordering::SeqCst) != ASYNC,
            FlushMode::Sync => {
                let turn = self.turns.fetch_add(1, Ordering::Relaxed);
                self.state.compare_exchange(ASYNC, turn, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            }
        }
    }

    /// Before a flush looks for the log's end.
    fn turn(&self) -> Turn {
        Turn(self.state.load(Ordering::SeqCst))
    }

    /// That flush is done: what was shown before the change is on the device.
    fn turned(&self, turn: Turn) {
        if turn.0 > SYNC {
            let _ = self.state.compare_exchange(turn.0, SYNC, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

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
        let turn = shared.flush_mode.turn();
        flush(shared);
        shared.flush_mode.turned(turn);
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
        shared.flushed.advance(to);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_are_shown_less_only_after_a_flush_that_began_behind_the_change() {
        let mode = Mode::new(FlushMode::Async);
        let before = mode.turn();
        assert!(mode.set(FlushMode::Sync) && !mode.set(FlushMode::Sync));
        assert!(mode.is_sync() && !mode.shows_flushed());
        mode.turned(before);
        assert!(!mode.shows_flushed(), "that flush may have looked for the log's end before the change");
        // There and back while a flush is under way.
        let during = mode.turn();
        assert!(mode.set(FlushMode::Async) && mode.set(FlushMode::Sync));
        mode.turned(during);
        assert!(!mode.shows_flushed());
        mode.turned(mode.turn());
        assert!(mode.is_sync() && mode.shows_flushed());
        assert!(mode.set(FlushMode::Async) && !mode.set(FlushMode::Async));
        assert!(!mode.is_sync() && !mode.shows_flushed());
    }
}
