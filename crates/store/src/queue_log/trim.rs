//! Both ends of the queues follow the log: retention takes from the front, recovery from the back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::DiskFile;
use protocol::LogOffset;

use super::QueueLogs;
use super::batch::UnitPlace;
use super::error::QueueError;
use super::queue::ConsumeQueue;
use super::tail::Tail;
use super::unit::Unit;
use crate::segment::zero;

/// Units looked at at once.
const STRETCH: u64 = 4096;
/// Bytes looked at at once behind a queue's end.
const LOOKED_AT: usize = 4096;

/// Where a queue was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Nowhere.
    Nothing,
    /// Where it was to be.
    There,
    /// In front of that.
    Earlier,
}

impl QueueLogs {
    /// Follows the log's lower end: what points below `min_log_offset` is no longer in the queues. Returns how many files
    /// went; a queue keeps its last file, which remembers its offset. A queue that cannot follow does not keep the others from it; the first
    /// error is returned.
    pub fn trim_below(&self, min_log_offset: LogOffset) -> Result<usize, QueueError> {
        let (mut files, mut first_error) = (0, None);
        for queue in self.queues() {
            // Between two queues others may do maintenance.
            let _files = self.shared.maintenance.lock();
            match queue.trim_below(min_log_offset) {
                Ok(gone) => files += gone,
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        first_error.map_or(Ok(files), Err)
    }

    /// Whether a queue has a file that goes when the log begins at `log_offset`.
    pub fn has_file_below(&self, log_offset: u64) -> bool {
        // One that cannot be read is no reason to delete anything.
        self.queues().iter().any(|queue| queue.has_file_below(log_offset).unwrap_or(false))
    }

    /// Follows the log's upper end after recovery: what points at `log_end` or above at the end of a queue is no longer in it. Returns
    /// how many units went.
    ///
    /// `begun`: below which log offset records of a topic are of a life of it that is over. Units of such do not end a queue either.
    pub fn truncate_above(&self, log_end: LogOffset, begun: &dyn Fn(&str) -> u64) -> Result<u64, QueueError> {
        let mut units = 0;
        for queue in self.queues() {
            let _files = self.shared.maintenance.lock();
            units += queue.truncate_above(log_end, LogOffset(begun(queue.topic())))?;
        }
        Ok(units)
    }

    /// Leaves nothing in the files of queues behind their ends. For a start that finds what a loss of power may have left, when the queues have what the
    /// log has: units go to the device in any order, so that behind zeros there may be some of records that the log has lost. A later start would take
    /// them for the queue's own, once it had grown as far as to them.
    pub(crate) fn clear_behind(&self, queues: &[Arc<ConsumeQueue>]) -> Result<(), QueueError> {
        for queue in queues {
            let _files = self.shared.maintenance.lock();
            queue.clear_behind_end()?;
        }
        Ok(())
    }

    /// Forgets what a queue has from the unit of the message `number` on, if any is given; but if one that points at `log_end` or above lies
    /// before that, and before others that point below, what it has from there on. For recovery, before [`QueueLogs::truncate_above`] and with
    /// the same `begun`.
    pub(crate) fn cut(
        &self,
        queue: &ConsumeQueue,
        number: Option<u64>,
        log_end: LogOffset,
        begun: LogOffset,
    ) -> Result<Cut, QueueError> {
        let place = match number.map(|number| queue.place_of(number, true)).transpose()? {
            Some(UnitPlace::At(place)) => Some(place),
            Some(UnitPlace::Nowhere | UnitPlace::Cold) | None => None,
        };
        let _files = self.shared.maintenance.lock();
        let end = place.unwrap_or(u64::MAX).min(queue.end_in_log(begun, log_end)?);
        if let Some(beyond) = queue.first_beyond(end, log_end)? {
            queue.cut_at(beyond)?;
            return Ok(Cut::Earlier);
        }
        let Some(place) = place else { return Ok(Cut::Nothing) };
        queue.cut_at(place)?;
        Ok(Cut::There)
    }
}

impl ConsumeQueue {
    fn has_file_below(&self, log_offset: u64) -> Result<bool, QueueError> {
        let (first, end) = (self.first_file.load(Ordering::Acquire), self.files_end.load(Ordering::Acquire));
        let second = first + self.layout().units_per_file();
        // The last file stays.
        if self.is_deleted() || second >= end {
            return Ok(false);
        }
        Ok(self.believed(second - 1)?.is_some_and(|unit| unit.is_blank() || unit.at.0 < log_offset))
    }

    /// The unit at a place, or the next one behind it where that is no unit, or does not lie between those beside it in the log though they are in
    /// order: units of zeros never reached the device, or it damaged them, and so it may have done with others. None if there is none near.
    fn believed(&self, place: u64) -> Result<Option<Unit>, QueueError> {
        // Units that are gone stay in their file, and say so of the first one too.
        let from = place.saturating_sub(1).max(self.first_file.load(Ordering::Acquire)).min(place);
        let mut units = [None; 3];
        let mut count = 0;
        self.read_raw(from, units.len(), true, |raw| {
            units[count] = Unit::decode(raw);
            count += 1;
            true
        })?;
        let (before, this, after) = match from < place {
            true => (units[0], units[1], units[2]),
            false => (None, units[0], units[1]),
        };
        if let Some(this) = this {
            return Ok(match (before, after) {
                (Some(before), Some(after)) if !this.is_blank() && before.at <= after.at => {
                    Some(if (before.at..=after.at).contains(&this.at) { this } else { after })
                }
                (Some(_) | None, Some(_) | None) => Some(this),
            });
        }
        let mut found = None;
        self.read_raw(place, STRETCH as usize, true, |raw| {
            found = Unit::decode(raw);
            found.is_none()
        })?;
        Ok(found)
    }

    pub(super) fn trim_below(&self, min_log_offset: LogOffset) -> Result<usize, QueueError> {
        let (min, next) = (self.min_place(), self.next_place());
        if self.is_deleted() || min == next {
            return Ok(0);
        }
        if self.min_at_plus_one.load(Ordering::Acquire) > min_log_offset.0 {
            return Ok(0);
        }
        // A damaged unit must not take those before it along, nor hold them.
        let is_gone = |unit: Option<Unit>| unit.is_some_and(|unit| unit.is_blank() || unit.at < min_log_offset);
        let new_min = if self.log_end() <= min_log_offset {
            next
        } else {
            self.first_that(min, next, |place| Ok(!is_gone(self.believed(place)?)))?
        };
        let first = if new_min < next { self.span_in(new_min)? } else { None };
        if let Some(span) = first.filter(|span| span.unit.end() <= self.log_end()) {
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
        // Units that wait for a file keep it, gone or not: after a loss of power there may be others ahead of it.
        let written = self.tail.lock().as_deref().map_or(next, Tail::written);
        let keep_from = self.layout().file_start(new_min.min(written)).min(files_end.saturating_sub(units_per_file));
        if keep_from <= first_file {
            return Ok(0);
        }
        // First the readers' bound, then the files: a reader that was faster finds no file and ends.
        self.first_file.store(keep_from, Ordering::Release);
        for file in (first_file..keep_from).step_by(units_per_file as usize) {
            if let Err(error) = self.remove_files(file, file + units_per_file) {
                // It goes the next time, and those behind it then: a start would take a gap between them for the queue's end.
                self.first_file.store(file, Ordering::Release);
                return Err(error);
            }
        }
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

    fn truncate_above(&self, log_end: LogOffset, begun: LogOffset) -> Result<u64, QueueError> {
        let next = self.next_place();
        if self.log_end() <= log_end || self.is_deleted() {
            return Ok(0);
        }
        let new_next = self.end_in_log(begun, log_end)?;
        self.cut_at(new_next)?;
        Ok(next - new_next)
    }

    /// The first place before `end` whose unit points at `log_end` or above.
    fn first_beyond(&self, end: u64, log_end: LogOffset) -> Result<Option<u64>, QueueError> {
        let mut from = self.min_place();
        // Each turn looks at a stretch behind the last one.
        while from < end {
            let to = end.min(from + STRETCH);
            let (mut place, mut found) = (from, None);
            self.read_raw(from, (to - from) as usize, true, |raw| {
                let is_beyond = Unit::decode(raw).is_some_and(|unit| !unit.is_blank() && unit.at >= log_end);
                if is_beyond {
                    found = Some(place);
                }
                place += 1;
                !is_beyond
            })?;
            if found.is_some() {
                return Ok(found);
            }
            from = to;
        }
        Ok(None)
    }

    /// The place behind the last unit that points into the log between the two offsets, or stands before the first one of the queue.
    ///
    /// Looked for from the end, since what lies before need not be in order: the device may have written a unit and none of those in front of it,
    /// and others behind it that point beyond the log's end.
    fn end_in_log(&self, begun: LogOffset, log_end: LogOffset) -> Result<u64, QueueError> {
        let min = self.min_place();
        let is_in_log =
            |unit: Unit| unit.is_blank() || unit.at < log_end && (unit.at >= begun || unit.tags == Unit::LOST);
        let mut end = self.next_place();
        // Each turn looks at a stretch before the last one.
        while end > min {
            let from = end.saturating_sub(STRETCH).max(min);
            let (mut place, mut found) = (from, None);
            self.read_raw(from, (end - from) as usize, true, |raw| {
                place += 1;
                if Unit::decode(raw).is_some_and(is_in_log) {
                    found = Some(place);
                }
                true
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            end = from;
        }
        Ok(min)
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

    /// Leaves nothing in the files behind the queue's end. Units that wait for a file are written over whatever stands there.
    fn clear_behind_end(&self) -> Result<(), QueueError> {
        let (first_file, next) = (self.first_file.load(Ordering::Acquire), self.next_place());
        if self.is_deleted() || self.files_end.load(Ordering::Acquire) <= first_file {
            return Ok(());
        }
        // Whole files. What is in the one that stays is looked at below.
        self.cut_files(first_file, next, next)?;
        let (layout, file_start) = (self.layout(), self.layout().file_start(next));
        if file_start >= self.files_end.load(Ordering::Acquire) {
            return Ok(());
        }
        let file = self.file(next)?;
        let failed = |source| self.failed("clear", next, source);
        let (from, to) = (layout.byte_in_file(next), layout.file_bytes);
        if has_bytes(&*file, from, to).map_err(failed)? {
            zero(&*file, from, to).map_err(failed)?;
            self.shared.unsynced.lock().note(self.number, file_start, &file);
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

/// Whether a file has anything but zeros between two bytes.
fn has_bytes(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<bool> {
    let mut buffer = [0; LOOKED_AT];
    let mut at = from;
    // Each turn looks at a piece, and the file system says where the next one is.
    while at < to {
        match file.data_from(at)? {
            Some(data) if data < to => at = at.max(data),
            Some(_) | None => return Ok(false),
        }
        let wanted = (to - at).min(LOOKED_AT as u64) as usize;
        let read = file.read_once_at(&mut buffer[..wanted], at)?;
        if buffer[..read].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        at += wanted as u64;
    }
    Ok(false)
}
