//! Units made anew while the queue is read and written: a file gave others than were put into it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::batch::Span;
use super::batch_unit::BatchUnit;
use super::error::QueueError;
use super::queue::ConsumeQueue;
use super::tail::Tail;

impl ConsumeQueue {
    /// The places of its units, from the first one whose record the log has.
    pub(crate) fn places(&self) -> Range<u64> {
        self.min_place()..self.next_place()
    }

    /// The first place that is in memory, where units are as they were pushed.
    pub(crate) fn memory_begins(&self) -> u64 {
        self.tail.lock().as_deref().map_or_else(|| self.next_place(), Tail::first)
    }

    /// The unit at a place, none where the bytes are no unit. May wait for the device.
    pub(crate) fn span_at_place(&self, place: u64) -> Result<Option<Span>, QueueError> {
        self.span_in(place)
    }

    /// Replaces the unit at a place by what the log says, in the file and in memory. Says whether the queue still has that place.
    pub(crate) fn renew(&self, place: u64, span: Span, store_time: i64) -> Result<bool, QueueError> {
        // Retention takes files under it.
        let _files = self.shared.maintenance.lock();
        if self.is_deleted() || !self.places().contains(&place) {
            return Ok(false);
        }
        let Span { unit, base, count } = span;
        let of_batch = BatchUnit { unit, store_time, base, count }.encode();
        // An ordinary unit is the beginning of that of a batch.
        let raw = &of_batch[..self.layout().unit_bytes];
        let is_in_file = match self.tail.lock().as_deref_mut() {
            Some(tail) if place >= tail.first() => tail.mend(place, raw),
            Some(_) | None => true,
        };
        if is_in_file {
            self.write(place, raw)?;
        }
        if place + 1 == self.next_place() {
            self.log_end.store(unit.end().0, Ordering::Release);
        }
        if place == self.min_place() {
            self.min_at_plus_one.store(0, Ordering::Release);
        }
        if let Some(batches) = &self.batches {
            batches.forget_stops();
        }
        Ok(true)
    }
}
