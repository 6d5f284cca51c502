//! From a store time to an offset. A damaged unit on the way would send the search to the wrong side, and a consumer past messages that it never got: so
//! each unit that a file gave is held against its record, and mended where it is not true.

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
            match self.unit_in_time(queue, offset) {
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

    /// The unit that says when the message of an offset was stored: its own, or where the log has lost its record, the next one behind it, or before it
    /// if there is none behind. None if there is none near.
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

    /// The unit at a place of an ordinary queue, mended if it was damaged; or the place to go on at, where the log has lost its record.
    fn stored_unit(&self, queue: &ConsumeQueue, place: u64) -> Result<ControlFlow<Option<Unit>, u64>, StoreError> {
        let unit = queue.unit_at(place)?;
        // What is in memory is as it was pushed.
        if !queue.has_unit_of(place) || place >= queue.memory_begins() || unit.is_some_and(|unit| unit.is_blank()) {
            return Ok(Break(unit));
        }
        if let Some(unit) = unit {
            if unit.tags == Unit::LOST {
                let is_timed = self.store_time_of(&unit)?.is_some();
                return Ok(if is_timed { Break(Some(unit)) } else { Continue(place + 1) });
            }
            let is_in_pool = unit.at.0 >= self.shared.log.readable_to(u64::MAX) && unit.end() <= queue.log_end();
            let is_own = || self.is_true(queue, &Span { unit, base: place, count: 1 });
            if is_in_pool || self.is_removed(queue, place, &unit) || is_own() {
                return Ok(Break(Some(unit)));
            }
        }
        Ok(match self.mend(queue, place)? {
            Mend::Lost(next) => Continue(next.max(place + 1)),
            Mend::Done | Mend::Removed => Break(queue.unit_at(place)?),
        })
    }
}
