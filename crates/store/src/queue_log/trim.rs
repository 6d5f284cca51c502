//! Both ends of the queues follow the log: retention takes from the front, recovery from the back.

use std::sync::atomic::Ordering;

use protocol::LogOffset;

use super::queue::ConsumeQueue;
use super::unit::Unit;
use super::{QueueError, QueueLogs};

impl QueueLogs {
    /// Follows the log's lower end: what points below `min_log_offset` is no longer in the queues. Returns how many files
    /// went; a queue keeps its last file, which remembers its offset.
    pub fn trim_below(&self, min_log_offset: LogOffset) -> Result<usize, QueueError> {
        let mut files = 0;
        for queue in self.queues() {
            // Between two queues others may do maintenance.
            let _files = self.shared.maintenance.lock();
            files += queue.trim_below(min_log_offset)?;
        }
        Ok(files)
    }

    /// Follows the log's upper end after recovery: what points at `log_end` or above is no longer in the queues. Returns
    /// how many units went.
    pub fn truncate_above(&self, log_end: LogOffset) -> Result<u64, QueueError> {
        let mut units = 0;
        for queue in self.queues() {
            let _files = self.shared.maintenance.lock();
            units += queue.truncate_above(log_end)?;
        }
        Ok(units)
    }
}

impl ConsumeQueue {
    fn trim_below(&self, min_log_offset: LogOffset) -> Result<usize, QueueError> {
        let (min, next) = (self.min_place(), self.next_place());
        if self.is_deleted() || min == next {
            return Ok(0);
        }
        if self.min_at_plus_one.load(Ordering::Acquire) > min_log_offset.0 {
            return Ok(0);
        }
        // Units of zeros never reached the device, though some behind them have. The log may have their records: what comes before them stays.
        let are_holes_gone = self.unit_in(min)?.is_none();
        let is_gone =
            |unit: Option<Unit>| unit.map_or(are_holes_gone, |unit| unit.is_blank() || unit.at < min_log_offset);
        let new_min = if self.log_end() <= min_log_offset {
            next
        } else {
            self.first_that(min, next, |place| Ok(!is_gone(self.unit_in(place)?)))?
        };
        let first = if new_min < next { self.span_in(new_min)? } else { None };
        if let Some(span) = first {
            self.min_at_plus_one.store(span.unit.at.0 + 1, Ordering::Release);
        }
        if let Some(batches) = &self.batches {
            batches.min.store(new_min, Ordering::Release);
            let base = first.map_or_else(|| self.max_offset(), |span| span.base);
            self.min.fetch_max(base, Ordering::AcqRel);
        } else {
            self.min.fetch_max(new_min, Ordering::AcqRel);
        }
        let files_end = self.files_end.load(Ordering::Acquire);
        let first_file = self.first_file.load(Ordering::Acquire);
        let units_per_file = self.layout().units_per_file();
        let keep_from = self.layout().file_start(new_min).min(files_end.saturating_sub(units_per_file));
        if keep_from <= first_file {
            return Ok(0);
        }
        // First the readers' bound, then the files: a reader that was faster finds no file and ends.
        self.first_file.store(keep_from, Ordering::Release);
        self.remove_files(first_file, keep_from)?;
        Ok(((keep_from - first_file) / units_per_file) as usize)
    }

    /// What points into a stretch of the log that was lost keeps its number and nothing else. Returns how many units did. For recovery.
    pub(crate) fn lose(&self, from: LogOffset, to: LogOffset, lost: Unit) -> Result<u64, QueueError> {
        let (min, next) = (self.min_place(), self.next_place());
        if self.log_end() <= from {
            return Ok(0);
        }
        let is_behind = |unit: Option<Unit>| unit.is_some_and(|unit| !unit.is_blank() && unit.at >= from);
        let first = self.first_that(min, next, |place| Ok(is_behind(self.unit_in(place)?)))?;
        let mut place = first;
        while place < next
            && let Some(unit) = self.unit_in(place)?
            && unit.at < to
        {
            if unit != lost {
                self.mend_in(place, lost)?;
            }
            place += 1;
        }
        Ok(place - first)
    }

    fn truncate_above(&self, log_end: LogOffset) -> Result<u64, QueueError> {
        let (min, next) = (self.min_place(), self.next_place());
        if self.log_end() <= log_end || self.is_deleted() {
            return Ok(0);
        }
        // A unit of zeros never reached the device, though one behind it has. What of the log it could stand for is in its place by now, so its
        // record is beyond the end too.
        let is_beyond = |unit: Option<Unit>| unit.is_none_or(|unit| !unit.is_blank() && unit.at >= log_end);
        let new_next = self.first_that(min, next, |place| Ok(is_beyond(self.unit_in(place)?)))?;
        self.cut_at(new_next)?;
        Ok(next - new_next)
    }

    /// Forgets the units from a place on, which is not below the first unit that the log has. Under the maintenance lock, before
    /// anybody pushes.
    pub(super) fn cut_at(&self, new_next: u64) -> Result<(), QueueError> {
        let (min, next) = (self.min_place(), self.next_place());
        let first_file = self.first_file.load(Ordering::Acquire);
        let last = if new_next > min { self.span_in(new_next - 1)? } else { None };
        let mut written_end = next;
        {
            let mut tail = self.tail.lock();
            if let Some(tail) = tail.as_deref_mut() {
                written_end = tail.written();
                self.shared.count_written(tail.truncate(new_next));
            }
            if let Some(batches) = &self.batches {
                batches.next.store(new_next, Ordering::Release);
                batches.forget_stops();
                self.next.store(last.map_or_else(|| self.min_offset(), |span| span.next()), Ordering::Release);
            } else {
                self.next.store(new_next, Ordering::Release);
            }
        }
        self.cut_files(first_file, new_next, written_end)?;
        let end = last.filter(|span| !span.unit.is_blank()).map_or(0, |span| span.unit.end().0);
        self.log_end.store(end, Ordering::Release);
        self.min_at_plus_one.store(0, Ordering::Release);
        Ok(())
    }

    /// Leaves in the files nothing at or above unit `next`: the next load, ours or Apache's, finds the end by the first zeros.
    fn cut_files(&self, first_file: u64, next: u64, written_end: u64) -> Result<(), QueueError> {
        let files_end = self.files_end.load(Ordering::Acquire);
        if files_end <= first_file {
            return Ok(());
        }
        let units_per_file = self.layout().units_per_file();
        // The file that holds the queue's last unit stays, and the first one always: it remembers the queue's offset.
        let last_kept = self.layout().file_start(next.saturating_sub(1).max(first_file));
        let new_files_end = last_kept + units_per_file;
        self.files_end.store(new_files_end.min(files_end), Ordering::Release);
        if new_files_end < files_end {
            self.remove_files(new_files_end, files_end)?;
            // They must not come back: what they say would be of another log.
            self.shared.unsynced.lock().note_made(self.dir());
        }
        let zero_from = next.max(last_kept);
        let zero_to = written_end.min(new_files_end);
        if zero_from < zero_to && zero_from < new_files_end {
            let zeros = vec![0; self.layout().byte_of(zero_to - zero_from) as usize];
            self.write(zero_from, &zeros)?;
        }
        Ok(())
    }

    /// The first offset of `from..to` of which `holds` is true, given that it is false before and true after; `to` if none.
    pub(super) fn first_that(
        &self,
        from: u64,
        to: u64,
        mut holds: impl FnMut(u64) -> Result<bool, QueueError>,
    ) -> Result<u64, QueueError> {
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low + (high - low) / 2;
            if holds(middle)? {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        Ok(low)
    }
}
