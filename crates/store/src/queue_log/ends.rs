//! Where all queues end, as one number that is kept while they are written: a start after a kill holds it against what it finds, so that a queue of
//! which files are gone is noticed, though nothing of it was written lately.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::QueueLogs;
use super::error::QueueError;
use super::queue::ConsumeQueue;

/// Units looked at one by one from a queue's end, before it is halved.
const LOOKED_AT: usize = 32;

impl QueueLogs {
    /// From now on the number speaks of the units whose records begin below that log offset, as far as queues are flushed.
    pub(crate) fn count_ends_below(&self, log_offset: u64) {
        self.shared.counted_below.store(log_offset, Ordering::Relaxed);
    }

    /// The number, as the queues are flushed.
    pub(crate) fn counted_ends(&self) -> u64 {
        self.shared.counted_ends.load(Ordering::Relaxed)
    }

    /// Begins to keep it, for queues that have all records of the log below that offset.
    pub(crate) fn begin_to_count_ends(&self, log_end: u64) -> Result<(), QueueError> {
        self.count_ends_below(log_end);
        self.queues().iter().try_for_each(|queue| queue.count_end().map(|_| ()))
    }

    /// What the number was when all records of the log below `log_offset` were in the files, and no others.
    pub(crate) fn ends_below(&self, log_offset: u64) -> Result<u64, QueueError> {
        let mut sum = 0_u64;
        for queue in self.queues() {
            sum = sum.wrapping_add(queue.end_number(queue.end_below(log_offset)?));
        }
        Ok(sum)
    }

    /// Before files of queues are removed for another reason than the log's lower end, this is called.
    pub(crate) fn before_removal(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.before_removal.set(Box::new(call));
    }
}

impl ConsumeQueue {
    /// Counts where the queue ends. Says whether all of its units count: if not, it is to be asked again. Under the maintenance lock, or before
    /// there are threads.
    pub(super) fn count_end(&self) -> Result<bool, QueueError> {
        let below = self.shared.counted_below.load(Ordering::Relaxed);
        let end = self.end_below(below)?;
        self.count(self.end_number(end));
        if self.is_deleted() {
            self.forget_end();
        }
        Ok(end == self.next_place())
    }

    /// Its topic is deleted.
    pub(super) fn forget_end(&self) {
        self.count(0);
    }

    fn count(&self, number: u64) {
        let before = self.counted.swap(number, Ordering::AcqRel);
        self.shared.counted_ends.fetch_add(number.wrapping_sub(before), Ordering::Relaxed);
    }

    /// The place behind the last unit whose record begins below a log offset.
    fn end_below(&self, log_offset: u64) -> Result<u64, QueueError> {
        let (min, mut end) = (self.min_place(), self.next_place());
        if self.log_end().0 <= log_offset {
            return Ok(end);
        }
        let is_above = |place: u64| -> Result<bool, QueueError> {
            Ok(self.unit_in(place)?.is_none_or(|unit| !unit.is_blank() && unit.at.0 >= log_offset))
        };
        for _ in 0..LOOKED_AT {
            if end <= min || !is_above(end - 1)? {
                return Ok(end);
            }
            end -= 1;
        }
        self.first_that(min, end, is_above)
    }

    /// One number for the queue and where it ends; 0 without a unit.
    fn end_number(&self, end: u64) -> u64 {
        if end == 0 {
            return 0;
        }
        let numbers = [u64::from(self.id()), end].map(u64::to_be_bytes);
        fnv(self.topic().as_bytes().iter().chain(numbers.as_flattened()))
    }
}

/// Queues that a flush has visited, and that are to be visited again.
pub(super) fn is_to_be_counted(queue: &Arc<ConsumeQueue>) -> bool {
    // One that cannot be read costs a start the look at all of the log, if it comes to that.
    !queue.count_end().unwrap_or(true)
}

/// FNV-1a: must give the same in every version of ours.
pub(crate) fn fnv<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
