//! After a failed sync: what queues have in their files, written again, since the kernel may have it and the device not.

use std::sync::atomic::Ordering;

use protocol::LogOffset;

use super::QueueLogs;
use super::error::QueueError;
use super::queue::ConsumeQueue;
use super::unit::Unit;
use crate::rewrite;

impl QueueLogs {
    /// Writes the units of records from `from` on, as far as they are in files, and whatever stands behind them there. Returns how many bytes; the next
    /// [`sync_all`](Self::sync_all) brings them to the device. For recovery.
    pub(crate) fn write_again(&self, from: LogOffset) -> Result<u64, QueueError> {
        let mut written = 0;
        for queue in self.queues() {
            let _files = self.shared.maintenance.lock();
            written += queue.write_again(from)?;
        }
        Ok(written)
    }
}

impl ConsumeQueue {
    fn write_again(&self, from: LogOffset) -> Result<u64, QueueError> {
        let (min, next) = (self.min_place(), self.next_place());
        let is_behind = |unit: Option<Unit>| unit.is_some_and(|unit| !unit.is_blank() && unit.at >= from);
        let first = self.first_that(min, next, |place| Ok(is_behind(self.unit_in(place)?)))?;
        let first_file = self.first_file.load(Ordering::Acquire);
        // What stands before a queue's first unit was written with it.
        let begin = if first == min && min < next { first_file } else { first.max(first_file) };
        let layout = self.layout();
        let units = layout.units_per_file();
        let mut written = 0;
        for start in (layout.file_start(begin)..self.files_end.load(Ordering::Acquire)).step_by(units as usize) {
            let file = self.file(start)?;
            let at = layout.byte_of(begin.saturating_sub(start));
            let end = layout.byte_of(next.clamp(start, start + units) - start);
            // Behind the units there are zeros, or nothing.
            let again = rewrite::write_all(&*file, at, end)
                .and_then(|bytes| Ok(bytes + rewrite::write_data(&*file, at.max(end), layout.file_bytes)?))
                .map_err(|why| self.failed("write again", start, why.into()))?;
            if again > 0 {
                self.shared.unsynced.lock().note(self.number, start, &file);
                written += again;
            }
        }
        Ok(written)
    }
}
