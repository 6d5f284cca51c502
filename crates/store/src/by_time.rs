//! From a store time to an offset. A damaged unit on the way would send the search to the wrong
//! side, and a consumer past messages that it never got: so each unit that a file gave is held
//! against its record, and mended where it is not true.

use std::cell::RefCell;
use std::ops::ControlFlow::{self, Break, Continue};

use crate::error::StoreError;
use crate::mend::Mend;
use crate::queue_log::{Boundary, ConsumeQueue, Span, Unit};
use crate::store::Store;

/// Units looked at on either side of one whose record the log has lost.
const LOOKED_AT: usize = 4096;

impl Store {
    /// The queue offset for a store time, as RocketMQ searches it. May wait for the device.
    pub fn offset_by_time(&self, queue: &ConsumeQueue, timestamp: i64, boundary: Boundary) -> Result<u64, StoreError> {
        let failed = RefCell::new(None);
        let unit_at = |offset: u64| {
            if failed.borrow().is_some() {
                // The search comes to its end, and nobody looks at what it found.
                return Ok(None);
            }
            let unit = match queue.is_batch() {
                true => self.mend_in_time(queue, offset).map(|()| None),
                false => self.unit_in_time(queue, offset),
            };
            match unit {
                Ok(unit) => Ok(unit),
                Err(StoreError::Queue(error)) => Err(error),
                Err(error) => {
                    *failed.borrow_mut() = Some(error);
                    Ok(None)
                }
            }
        };
        let store_time = |unit: &Unit| match self.store_time_of(unit) {
            Ok(time) => time,
            Err(error) => {
                *failed.borrow_mut() = Some(error);
                None
            }
        };
        let found = queue.offset_by_time(timestamp, boundary, self.min_offset(), unit_at, store_time)?;
        failed.into_inner().map_or(Ok(found), Err)
    }

    /// The unit that says when the message of an offset was stored: its own, or where the log has
    /// lost its record, the next one behind it, or before it if there is none behind. None if there
    /// is none near.
    fn unit_in_time(&self, queue: &ConsumeQueue, offset: u64) -> Result<Option<Unit>, StoreError> {
        let mut place = offset;
        for _ in 0..LOOKED_AT {
            match self.stored_unit(queue, place)? {
                Break(unit) if unit.is_some() || place == offset => return Ok(unit),
                // The queue ends there.
                Break(_none) => break,
                Continue(next) => place = next,
            }
        }
        for place in (queue.min_offset()..offset).rev().take(LOOKED_AT) {
            if let Break(unit) = self.stored_unit(queue, place)? {
                return Ok(unit);
            }
        }
        Ok(None)
    }

    /// The unit at a place of an ordinary queue, mended if it was damaged; or the place to go on
    /// at, where the log has lost its record.
    fn stored_unit(&self, queue: &ConsumeQueue, place: u64) -> Result<ControlFlow<Option<Unit>, u64>, StoreError> {
        // Asked before the read: what is in memory is as it was pushed, and may be in a file a
        // moment later.
        let is_in_memory = place >= queue.memory_begins();
        let unit = queue.unit_at(place)?;
        if !queue.has_unit_of(place) || is_in_memory || unit.is_some_and(|unit| unit.is_blank()) {
            return Ok(Break(unit));
        }
        if let Some(unit) = unit {
            if unit.tags == Unit::LOST {
                let is_timed = self.store_time_of(&unit)?.is_some();
                return Ok(if is_timed { Break(Some(unit)) } else { Continue(place + 1) });
            }
            if self.is_sound_unit(queue, place, &Span { unit, base: place, count: 1 }) {
                return Ok(Break(Some(unit)));
            }
        }
        Ok(match self.mend(queue, place)? {
            Mend::Lost(next) => Continue(next.max(place + 1)),
            Mend::Done | Mend::Removed => Break(queue.unit_at(place)?),
        })
    }

    /// Mends the unit at a place of a queue of batches, if it is damaged.
    fn mend_in_time(&self, queue: &ConsumeQueue, place: u64) -> Result<(), StoreError> {
        if !queue.places().contains(&place) || place >= queue.memory_begins() {
            return Ok(());
        }
        let is_sound = |span: Span| !span.unit.is_message() || self.is_sound_unit(queue, place, &span);
        if !queue.span_at_place(place)?.is_some_and(is_sound) {
            self.mend(queue, place)?;
        }
        Ok(())
    }

    /// Whether the unit at a place leads to its record: in the log, in the write pool, or where
    /// retention took it a moment ago.
    fn is_sound_unit(&self, queue: &ConsumeQueue, place: u64, span: &Span) -> bool {
        let unit = &span.unit;
        let is_in_pool = unit.at.0 >= self.shared.log.readable_to(u64::MAX) && unit.end() <= queue.log_end();
        is_in_pool || self.is_removed(queue, place, unit) || self.is_true(queue, span)
    }
}
