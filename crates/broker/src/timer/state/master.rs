//! How far a master has delivered timer messages, as its slave keeps it.
//!
//! A slave takes none in. It passes over those that the master is done with, up to the first that may still wait, and notes in the check-point how far
//! the master has come. So old files of the log may go, and a master that this broker becomes takes in the rest without what was delivered.
//!
//! The check-point of that master says only how far itself has come, so a row of the journal keeps what the one before had done until all of it is
//! passed.

use std::sync::atomic::Ordering;

use journal::Journal;
use protocol::body::TimerMetrics;
use protocol::record::RecordView;
use store::{Store, StoreError, TimerMarks};

use super::{Count, Timers, out_ms};
use crate::tables;
use crate::timer::agenda;

/// The journal's key of [`DoneByMaster`].
pub(super) const DONE: &[u8] = b"done";

/// Units that are read at a time.
const UNITS: usize = 512;
/// Messages that are passed over with one answer of the master at most.
const PASSED_MAX: u64 = 100_000;

/// A master takes a message in so long after it was stored at the most, in ms, as far as this is not seen otherwise. By when it does it decides whether
/// the message is rolled.
const TAKEN_IN_MS: i64 = 60_000;
/// One that is due sooner may have come too late for its slot, in ms. It is delivered in one that begins so much later at the most.
const SOON_MS: i64 = 5_000;

/// What a master had done when it was followed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::timer) struct DoneByMaster {
    /// Messages before this one of the queue were taken in.
    before: u64,
    /// Of these, those of slots before this one are delivered, or stored again. In ms.
    slot: i64,
    precision: i64,
    window: i64,
}

impl DoneByMaster {
    /// What the master had done that this broker has followed, and where the journal has it. The check-point says it until there is one of our own.
    pub(in crate::timer) fn then(timers: &Timers, store: &Store, marks: &TimerMarks) -> (DoneByMaster, u64) {
        let done = DoneByMaster::of(timers, marks);
        let mut kept = timers.done_by_master.lock();
        if marks.queue_offset < marks.master_queue_offset {
            // What the copy has not got of the queue, others get the places of.
            let end = store.existing_queue(timers.topic.name(), 0).map_or(0, |queue| queue.max_offset());
            let done = DoneByMaster { before: done.before.min(end), ..done };
            *kept = Some(done);
            return (done, store.journal().put(tables::TIMERS, DONE, &done.to_row()));
        }
        (kept.unwrap_or(DoneByMaster { before: 0, ..done }), 0)
    }

    /// The master of whose check-point these are marks.
    fn of(timers: &Timers, marks: &TimerMarks) -> DoneByMaster {
        DoneByMaster {
            before: u64::try_from(marks.master_queue_offset).unwrap_or(0),
            slot: marks.read_time,
            precision: timers.precision,
            window: timers.window,
        }
    }

    /// A row of the journal.
    pub(super) fn of_row(row: &[u8]) -> Option<DoneByMaster> {
        let (fields, rest) = row.as_chunks::<8>();
        let [before, slot, precision, window] = *<&[[u8; 8]; 4]>::try_from(fields).ok().filter(|_| rest.is_empty())?;
        let number = i64::from_be_bytes;
        let [slot, precision, window] = [slot, precision, window].map(number);
        Some(DoneByMaster { before: u64::from_be_bytes(before), slot, precision, window })
    }

    pub(super) fn to_row(self) -> [u8; 32] {
        let DoneByMaster { before, slot, precision, window } = self;
        let mut row = [0; 32];
        let [slot, precision, window] = [slot, precision, window].map(i64::to_be_bytes);
        row.copy_from_slice([before.to_be_bytes(), slot, precision, window].as_flattened());
        row
    }

    /// Whether all that the master had taken in is passed, for good if messages before `next` are. True once.
    pub(in crate::timer) fn is_over(&mut self, next: u64) -> bool {
        let is_over = self.before > 0 && next >= self.before;
        if is_over {
            self.before = 0;
        }
        is_over
    }

    /// Whether the master is done with the message at this offset of the queue. In doubt it is not: the message comes twice then, and is not lost.
    pub(in crate::timer) fn has(&self, offset: u64, view: &RecordView<'_>) -> bool {
        offset < self.before && out_ms(view).is_none_or(|out| self.has_passed(view.store_timestamp(), out))
    }

    /// Whether it has passed the slot, whichever that is, of a message that was stored then and is due behind the slot `out`.
    fn has_passed(&self, stored: i64, out: i64) -> bool {
        let slot = |taken_in| agenda::slot(self.precision, self.window, taken_in, out).0;
        let last = slot(stored).max(slot(stored.saturating_add(TAKEN_IN_MS)));
        let late = if out < stored.saturating_add(SOON_MS) { SOON_MS } else { 0 };
        last.saturating_add(late) < self.slot
    }
}

impl Timers {
    /// Nothing is left of what a master had done.
    pub(in crate::timer) fn forget_master(&self, journal: &Journal) {
        let mut kept = self.done_by_master.lock();
        if kept.take().is_some() {
            journal.delete(tables::TIMERS, DONE);
        }
    }

    /// Takes over how far the master has come. Waits for the device.
    pub(crate) fn follow(&self, store: &Store, master: &TimerMarks, now: i64) -> Result<(), StoreError> {
        let next = self.first_waiting(store, &DoneByMaster::of(self, master))?;
        self.figures.next.store(next, Ordering::Relaxed);
        self.figures.read_time.store(master.read_time, Ordering::Relaxed);
        let mut files = self.files.lock();
        let checkpoint = files.checkpoint_of_master(master, next, now);
        let known = files.marks();
        let marks = checkpoint.marks();
        if (known.read_time, known.queue_offset, known.master_queue_offset)
            == (marks.read_time, marks.queue_offset, marks.master_queue_offset)
        {
            return Ok(());
        }
        checkpoint.write()?;
        files.checkpointed(&checkpoint);
        // That was another master.
        self.forget_master(store.journal());
        Ok(())
    }

    /// The first message of the queue, from the one on that was it before, with which the master is not done.
    fn first_waiting(&self, store: &Store, done: &DoneByMaster) -> Result<u64, StoreError> {
        let before = self.figures.next.load(Ordering::Relaxed);
        let Some(queue) = store.existing_queue(self.topic.name(), 0) else { return Ok(before) };
        let mut next = before.max(queue.min_offset());
        let limit = queue.max_offset().min(done.before).min(next.saturating_add(PASSED_MAX));
        let mut units = Vec::new();
        // Each turn passes messages, or is the last.
        while next < limit {
            units.clear();
            let most = usize::try_from(limit - next).unwrap_or(UNITS).min(UNITS);
            store.units(&queue, next, most, true, &mut units)?;
            if units.is_empty() {
                break;
            }
            for unit in &units {
                // What the log does not have any more waits no longer.
                let is_done = !unit.is_message()
                    || store.about_record_cold(unit.at, |view| done.has(next, view))?.unwrap_or(true);
                if !is_done {
                    return Ok(next);
                }
                next += 1;
            }
        }
        Ok(next)
    }

    /// Shows the counts of the master (61).
    pub(crate) fn take_counts(&self, told: &TimerMetrics) {
        let mut counts = self.counts.lock();
        counts.clear();
        let waiting = told.timing_count.iter().take(super::COUNTED_TOPICS_MAX);
        counts.extend(waiting.map(|(topic, told)| {
            (topic.as_str().into(), Count { count: told.count, changed_at: told.time_stamp, ..Count::default() })
        }));
        let pending = told.timing_count.values().map(|told| told.count.max(0)).fold(0, i64::saturating_add);
        self.figures.pending.store(pending, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: i64 = 600_000;

    fn has_passed(read: i64, stored: i64, out: i64) -> bool {
        DoneByMaster { before: 1, slot: read, precision: 1000, window: WINDOW }.has_passed(stored, out)
    }

    #[test]
    fn a_master_is_done_with_what_has_its_slot_behind_it() {
        assert!(!has_passed(160_000, 50_500, 160_999));
        assert!(has_passed(161_000, 50_500, 160_999));
        // Rolled: it is stored again when half of the window, or all of it, has passed.
        let (half, whole) = (50_500 + WINDOW + 150_000, 50_500 + 3 * WINDOW);
        assert!(!has_passed(350_000, 50_500, half) && has_passed(411_000, 50_500, half));
        assert!(!has_passed(650_000, 50_500, whole) && has_passed(711_000, 50_500, whole));
    }

    #[test]
    fn what_a_master_had_done_is_kept_in_a_row_until_it_is_passed() {
        let mut done = DoneByMaster { before: 7, slot: 161_000, precision: 1000, window: WINDOW };
        let row = done.to_row();
        assert_eq!(DoneByMaster::of_row(&row), Some(done));
        assert_eq!((DoneByMaster::of_row(&row[..31]), DoneByMaster::of_row(&row[..24])), (None, None));
        assert_eq!([6, 7, 8].map(|next| done.is_over(next)), [false, true, false]);
    }

    #[test]
    fn a_master_that_may_have_placed_a_message_elsewhere_is_not_done_with_it_yet() {
        // Rolled if it was taken in at once, and a second later not.
        let out = 50_500 + WINDOW;
        assert!(!has_passed(360_000, 50_500, out) && !has_passed(out - 1000, 50_500, out));
        assert!(has_passed(out + 1000, 50_500, out));
        // Due when it was taken in: it goes to the slot that comes next.
        assert!(!has_passed(53_000, 50_500, 51_000) && has_passed(57_000, 50_500, 51_000));
    }
}
