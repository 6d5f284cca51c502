//! Keeps what the store's files occupy in memory within one number.
//!
//! `shares.rs` says what each consumer gets. The log is the thread `governor`'s work: it drops what lies behind the hot window once that is
//! on the device, and the thread `segments` makes nothing ready beyond the log's share, so that senders wait rather than memory grows. What
//! is read from the device is bounded where it is read (`cold.rs`), the other files where they are
//! opened (`disk/governed.rs`). `count.rs` counts what is really there, and whatever is too much is
//! dropped, oldest first.

mod cold;
mod count;
mod figures;
mod program;
mod shares;
mod window;

use std::sync::atomic::Ordering;
use std::time::Duration;

use disk::pages::OVERLAP;
use tracing::warn;

pub(crate) use cold::ColdPages;
pub use count::resident_below;
pub use figures::MemoryFigures;
pub use shares::{GovernorOptions, MEMORY_LIMIT_MIN, Shares};
use shares::{pass_bytes, squeezed};
pub(crate) use window::Governor;

use crate::store::Shared;

/// Fewer bytes are not worth a call.
const STEP: u64 = 1 << 20;
/// Between two counts where nothing is written or read.
const COUNT_AT_REST: Duration = Duration::from_secs(10);
/// A count may take this share of one processor: the more there is to count, the rarer it is done.
const COUNT_COST: u32 = 200;
/// Nor is it done more often than that.
const COUNT_PAUSE: Duration = Duration::from_millis(250);

impl Governor {
    /// What was counted last.
    pub fn figures(&self, shared: &Shared) -> MemoryFigures {
        self.counts.figures(shared, self)
    }

    /// Counts what is there. What is too much is swept out, and if that is not enough the hot window gives way. Says whether it was too much.
    fn keep_limit(&self, shared: &Shared) -> bool {
        let limit = self.options.limit;
        let found = self.counts.count(shared, self);
        let mut occupied = found;
        if occupied > limit {
            sweep(shared, self);
            occupied = self.counts.count(shared, self);
        }
        let before = self.squeezed.load(Ordering::Relaxed);
        self.squeezed.store(squeezed(before, self.options.shares.hot, occupied, limit), Ordering::Release);
        found > limit
    }

    /// Up to where the log may be dropped.
    fn due_to(&self, shared: &Shared) -> u64 {
        let hot_from = shared.log.end.get().saturating_sub(self.hot());
        hot_from.min(shared.flushed.get())
    }

    fn due(&self, shared: &Shared) -> u64 {
        self.due_to(shared).saturating_sub(self.dropped_to.load(Ordering::Relaxed))
    }

    /// Drops up to `bytes` of the log, oldest first, and says how many.
    fn drop_log(&self, shared: &Shared, bytes: u64) -> u64 {
        let from = self.dropped_to.load(Ordering::Relaxed);
        let to = self.due_to(shared).min(from.saturating_add(bytes));
        if to <= from {
            return 0;
        }
        // First told, then done: whoever reads there now accounts for it himself.
        shared.cold_pages.keep_from(to);
        let begin = from.saturating_sub(OVERLAP);
        for segment in shared.log.segments_between(begin, to) {
            segment.forget_cached(begin, to);
        }
        self.dropped_to.store(to, Ordering::Release);
        self.dropped.fetch_add(to - from, Ordering::Relaxed);
        to - from
    }
}

/// Follows the log until the store closes.
pub(crate) fn run(shared: &Shared) {
    let Some(governor) = &shared.governor else { return };
    let GovernorOptions { period, weight, limit, .. } = governor.options;
    let (mut end_before, mut count_at, mut was_over) = (shared.log.end.get(), Duration::ZERO, false);
    let mut is_count_wanted = true;
    // Twice if the process before us left what was not on the device: the kernel keeps that until it is.
    let mut is_sweep_due = shared.flushed.get() < shared.opened_at;
    sweep(shared, governor);
    while !shared.is_stopping() {
        let is_sweep_possible = || is_sweep_due && shared.flushed.get() >= shared.opened_at;
        let is_due = || {
            let is_page_due = governor.due(shared) >= STEP || shared.cold_pages.was_noted();
            shared.is_stopping() || is_page_due || is_sweep_possible()
        };
        let until_count = count_at.saturating_sub(shared.clock.elapsed()).max(Duration::from_millis(1));
        shared.governor_bell.wait(Some(if is_count_wanted { until_count } else { COUNT_AT_REST }), is_due);
        if is_sweep_possible() {
            is_sweep_due = false;
            sweep(shared, governor);
        }
        let end = shared.log.end.get();
        is_count_wanted |= shared.cold_pages.take_noted() || end != end_before;
        let mut left = pass_now(weight, end - end_before);
        end_before = end;
        // Ends with the pass, or when nothing is due.
        while left > 0 && !shared.is_stopping() {
            let dropped = governor.drop_log(shared, left.min(governor.options.shares.dirty));
            if dropped == 0 {
                break;
            }
            left = left.saturating_sub(dropped);
            if shared.is_room_held.swap(false, Ordering::SeqCst) {
                shared.segments_bell.ring();
            }
        }
        let now = shared.clock.elapsed();
        if now >= count_at {
            let is_over = governor.keep_limit(shared);
            if is_over && !was_over {
                let figures = governor.figures(shared);
                let (occupied, heap) = (figures.occupied(), figures.heap);
                warn!(limit, occupied, heap, "more memory than memoryLimit was occupied");
            }
            was_over = is_over;
            is_count_wanted = is_over;
            let took = shared.clock.elapsed().saturating_sub(now);
            count_at = now + (took * COUNT_COST).max(COUNT_PAUSE);
        }
        if !shared.is_stopping() && governor.due(shared) < governor.options.shares.dirty {
            shared.governor_bell.rest(period);
        }
    }
}

/// Bytes that the pass which begins now may give back. Processors are counted each time: a cpuset, a quota or a hot-plug may have changed them.
fn pass_now(weight: u32, came: u64) -> u64 {
    pass_bytes(weight, std::thread::available_parallelism().map_or(1, usize::from), came)
}

/// Drops all that no share is for: what lies below the log's hot window and was dirty or in use when it was dropped, what was read, and
/// what the process before us left in memory.
fn sweep(shared: &Shared, governor: &Governor) {
    shared.cold_pages.clear();
    governor.files.clear();
    let to = governor.dropped_to.load(Ordering::Relaxed);
    for segment in shared.log.segments_between(0, to) {
        if shared.is_stopping() {
            return;
        }
        segment.forget_cached(segment.base(), to);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use env::TimeMs;
    use protocol::record::RecordDraft;

    use super::*;
    use crate::batch::{RecordBatch, TagsCode};
    use crate::error::{AppendError, Cold};
    use crate::options::{Retention, StoreEnv, StoreOptions};
    use crate::store::Store;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_pass_follows_processors_that_come_and_go() {
        // A thread has its own set of processors, so nothing else of this process notices.
        let passes = std::thread::spawn(|| {
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            let before = pass_now(1, 0);
            sched_setaffinity(None, &one).unwrap();
            let with_one = pass_now(1, 0);
            sched_setaffinity(None, &all).unwrap();
            (before, with_one, pass_now(1, 0))
        });
        let (before, with_one, after) = passes.join().unwrap();
        assert_eq!(with_one, pass_bytes(1, 1, 0));
        assert_eq!(before, after);
        assert_eq!(before, pass_bytes(1, std::thread::available_parallelism().unwrap().get(), 0));
    }

    #[test]
    fn what_a_small_window_has_dropped_is_not_taken_to_be_in_memory_when_the_window_has_grown_again() {
        let dir = tempfile::tempdir().unwrap();
        let shares = Shares {
            program: 0,
            requests: 0,
            pool: 0,
            log: 16 * MIB,
            hot: 4 * MIB,
            ahead: MIB,
            dirty: MIB,
            cold: MIB,
            files: MIB,
        };
        let governor = GovernorOptions { limit: 1 << 40, period: Duration::from_millis(10), weight: 1, shares };
        // Whatever the machine's disk is at.
        let retention = Retention {
            disk_max_used_percent: 100,
            disk_clean_forcibly_percent: 100,
            disk_warning_percent: 100,
            ..Retention::default()
        };
        let options = StoreOptions {
            segment_bytes: 4 * MIB,
            hot_bytes: shares.hot,
            governor: Some(governor),
            retention,
            ..StoreOptions::at(dir.path())
        };
        let (store, _) = Store::open(options, StoreEnv::real()).unwrap();
        let (queue, body) = (store.queue("orders", 0).unwrap(), vec![7_u8; 64 << 10]);
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft { body: &body, ..RecordDraft::plain("orders", host) };
        let mut places = Vec::new();
        while store.end().0 < 6 * MIB {
            let mut batch = RecordBatch::new();
            batch.push(&queue, TagsCode::Code(0), |out| {
                draft.encode(out).unwrap();
            });
            while let Err(error) = store.append(&mut batch, TimeMs(1)) {
                let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
                assert!(store.room().wait_until(needed, Instant::now() + Duration::from_secs(60)));
            }
            places.push(batch.landed()[0].at);
        }
        // Its thread would do in its own time what is done here.
        store.close().unwrap();
        let governor = store.shared.governor.as_ref().unwrap();
        let end = store.end().0;
        let within = *places.iter().find(|at| at.0 > end - 3 * MIB).unwrap();
        let last = *places.last().unwrap();
        assert!(store.record_at(within).is_ok());
        governor.squeezed.store(3 * MIB, Ordering::Release);
        assert!(governor.drop_log(&store.shared, u64::MAX) > 0);
        governor.squeezed.store(0, Ordering::Release);
        assert_eq!(store.record_at(within).map(|_| ()), Err(Cold));
        assert!(store.record_at(last).is_ok());
    }
}
