//! From a place or an offset to units: from memory under the tail's lock, else from the files.

use std::sync::atomic::Ordering;

use super::batch::UnitPlace;
use super::error::QueueError;
use super::queue::ConsumeQueue;
use super::unit::{RAW_BYTES_MAX, Unit};

/// Bytes of units read from a file at once: a page, so that a chunk fits on the stack.
const CHUNK_BYTES: usize = 4096;

/// How a read of units ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitsRead {
    /// So many units were appended; fewer than asked for where the queue ends.
    Units(usize),
    /// So many units were appended; the next ones are on the device only, and the caller does not want to wait for it.
    Cold(usize),
}

/// How a read of raw units ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawRead {
    pub read: UnitsRead,
    /// So many of the units came from files: what is in memory is as it was pushed, and a file may have been damaged.
    pub in_files: usize,
}

/// A read of one unit.
pub(super) enum Raw {
    /// Its bytes come first.
    Unit([u8; RAW_BYTES_MAX]),
    /// There is none.
    Nothing,
    /// It is on the device only, and the caller does not want to wait for it.
    Cold,
}

impl ConsumeQueue {
    /// Reads up to `max` units, as many as there are, from the one that holds the message `from` on, into the end of `out`.
    ///
    /// With `may_block` false it never waits for a device.
    pub fn read_units(
        &self,
        from: u64,
        max: usize,
        may_block: bool,
        out: &mut Vec<Unit>,
    ) -> Result<UnitsRead, QueueError> {
        let place = match self.place_of(from, may_block)? {
            UnitPlace::At(place) => place,
            UnitPlace::Nowhere => return Ok(UnitsRead::Units(0)),
            UnitPlace::Cold => return Ok(UnitsRead::Cold(0)),
        };
        let read = self.read_raw(place, max, may_block, |raw| {
            let unit = Unit::decode(raw);
            out.extend(unit);
            unit.is_some()
        })?;
        Ok(read.read)
    }

    /// Shows up to `max` raw units from a place on, as many as there are, until `take` finds that one is none.
    pub(super) fn read_raw(
        &self,
        from: u64,
        max: usize,
        may_block: bool,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<RawRead, QueueError> {
        let layout = self.layout();
        let unit_bytes = layout.unit_bytes;
        let mut place = from.max(self.first_file.load(Ordering::Acquire));
        if place > from {
            // What lies below the first file is gone.
            return Ok(RawRead { read: UnitsRead::Units(0), in_files: 0 });
        }
        let (mut got, mut in_files) = (0, 0);
        let mut take = |raw: &[u8]| {
            let is_unit = take(raw);
            got += usize::from(is_unit);
            is_unit
        };
        let mut left = max;
        // Each turn ends the read or brings `place` further.
        while left > 0 {
            let memory_begins = match self.tail.lock().as_deref() {
                Some(tail) if place >= tail.first() => {
                    tail.each(place, left, &mut take);
                    break;
                }
                Some(tail) => tail.first(),
                None => self.next_place(),
            };
            if place >= memory_begins {
                break;
            }
            let wanted = (memory_begins - place).min(left as u64).min(layout.file_end(place) - place);
            let wanted = (wanted as usize).min(CHUNK_BYTES / unit_bytes);
            let mut chunk = [0u8; CHUNK_BYTES];
            let raw = &mut chunk[..wanted * unit_bytes];
            let file = match self.file(place) {
                Ok(file) => file,
                // Retention was here between our look and the open.
                Err(error) if error.is_missing_file() => break,
                Err(error) => return Err(error),
            };
            let at = layout.byte_in_file(place);
            let read = if may_block { file.read_at(raw, at).map(Some) } else { file.read_cached_at(raw, at) };
            let Some(read) = read.map_err(|source| self.failed("read", place, source))? else {
                return Ok(RawRead { read: UnitsRead::Cold(got), in_files });
            };
            let count = raw[..read].chunks_exact(unit_bytes).take_while(|raw| take(raw)).count();
            in_files += count;
            place += count as u64;
            left -= count;
            if count < wanted {
                break;
            }
        }
        Ok(RawRead { read: UnitsRead::Units(got), in_files })
    }

    /// Where a reader goes on who finds nothing at this offset, though the queue goes on: where the queue begins now, at what is in memory, or
    /// at the next file, as in RocketMQ. Units of batches say themselves where they belong, so that a search has passed the hole already.
    pub fn behind_hole(&self, offset: u64) -> u64 {
        let min = self.min_offset();
        if offset < min {
            return min;
        }
        if self.is_batch() {
            return self.max_offset();
        }
        let next_file = self.layout().file_end(offset);
        match self.tail.lock().as_deref() {
            Some(tail) if tail.first() > offset => next_file.min(tail.first()),
            Some(_) | None => next_file.min(self.max_offset()),
        }
    }

    /// The unit of the record that holds the message of an offset, if the queue has it. May wait for the device.
    pub fn unit_at(&self, offset: u64) -> Result<Option<Unit>, QueueError> {
        match self.is_batch() {
            true => Ok(self.span_at(offset)?.map(|span| span.unit)),
            false => self.unit_in(offset),
        }
    }

    /// The unit at a place, if the queue has it. May wait for the device.
    pub(super) fn unit_in(&self, place: u64) -> Result<Option<Unit>, QueueError> {
        Ok(match self.raw_in(place, true)? {
            Raw::Unit(raw) => Unit::decode(&raw),
            Raw::Nothing | Raw::Cold => None,
        })
    }

    /// What is at a place.
    pub(super) fn raw_in(&self, place: u64, may_block: bool) -> Result<Raw, QueueError> {
        if place >= self.next_place() || place < self.first_file.load(Ordering::Acquire) {
            return Ok(Raw::Nothing);
        }
        let mut raw = [0; RAW_BYTES_MAX];
        if let Some(tail) = self.tail.lock().as_deref()
            && place >= tail.first()
        {
            let mut found = Raw::Nothing;
            tail.each(place, 1, |unit| {
                raw[..unit.len()].copy_from_slice(unit);
                found = Raw::Unit(raw);
                true
            });
            return Ok(found);
        }
        let file = match self.file(place) {
            Ok(file) => file,
            Err(error) if error.is_missing_file() => return Ok(Raw::Nothing),
            Err(error) => return Err(error),
        };
        let (at, bytes) = (self.layout().byte_in_file(place), self.layout().unit_bytes);
        let unit = &mut raw[..bytes];
        let read = if may_block { file.read_at(unit, at).map(Some) } else { file.read_cached_at(unit, at) };
        Ok(match read.map_err(|source| self.failed("read", place, source))? {
            Some(read) if read == bytes => Raw::Unit(raw),
            Some(_short) => Raw::Nothing,
            None => Raw::Cold,
        })
    }
}
