//! How far a master has delivered timer messages, as its slave keeps it.
//!
//! A slave takes none in. It passes over those that the master is done with, up to the first that may still wait, and notes in the check-point how far
//! the master has come. So old files of the log may go, and a master that this broker becomes takes in the rest without what was delivered.

use std::sync::atomic::Ordering;

use protocol::body::TimerMetrics;
use protocol::record::RecordView;
use store::{Store, StoreError, TimerMarks};

use super::{Count, Timers, out_ms};
use crate::timer::agenda;

/// Units that are read at a time.
const UNITS: usize = 512;
/// Messages that are passed over with one answer of the master at most.
const PASSED_MAX: u64 = 100_000;

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
    /// The master of whose check-point these are marks. On a master nothing is left to which that applies: it has taken in what lies before.
    pub(in crate::timer) fn of(timers: &Timers, marks: &TimerMarks) -> DoneByMaster {
        DoneByMaster {
            before: u64::try_from(marks.master_queue_offset).unwrap_or(0),
            slot: marks.read_time,
            precision: timers.precision,
            window: timers.window,
        }
    }

    /// Whether the master is done with the message at this offset of the queue.
    pub(in crate::timer) fn has(&self, offset: u64, view: &RecordView<'_>) -> bool {
        let slot = |out| agenda::slot(self.precision, self.window, view.store_timestamp(), out).0;
        offset < self.before && out_ms(view).is_none_or(|out| slot(out) < self.slot)
    }
}

impl Timers {
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

    #[test]
    fn a_master_is_done_with_what_it_took_in_and_whose_slot_it_has_passed() {
        let (precision, window) = (1000, 100_000);
        let slot = |stored, out| agenda::slot(precision, window, stored, out);
        assert_eq!(slot(50_500, 60_000), (60_000, false));
        assert_eq!(slot(50_500, 60_999), (60_000, false));
        // Rolled: it is stored again when half of the window, or all of it, has passed.
        assert_eq!(slot(50_500, 160_000), (100_000, true));
        assert_eq!(slot(50_500, 900_000), (150_000, true));
    }
}
