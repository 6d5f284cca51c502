//! The wheel, built anew from the timer log: after a crash, and where it does not lead to the newest unit.

use std::collections::BTreeSet;
use std::path::PathBuf;

use protocol::LogOffset;
use protocol::properties::name;
use protocol::record::RecordView;

use super::log::{TimerUnit, timer_magic};
use super::wheel::{Slot, Wheel};
use super::{TimerFiles, add, position};
use crate::error::StoreError;

/// What another precision has cut off a time is shorter than the longest that anybody sets, in ms.
const OTHER_PRECISION_MAX: i64 = 60_000;

impl TimerFiles {
    /// Fills the empty wheel from the timer log, which ends where it leads beyond the commit log, and from `flushed` on also at a unit that is not whole
    /// or whose place is not free. One that is whole and has no slot with this precision keeps the files from being opened.
    pub(super) fn rebuild(
        &mut self,
        log_end: LogOffset,
        flushed: u64,
        is_whole: &dyn Fn(&TimerUnit) -> bool,
    ) -> Result<(), StoreError> {
        let mut rebuild = Rebuild {
            wheel: &mut self.wheel,
            read_time: self.checkpoint.marks.read_time,
            precision: self.options.precision_ms,
            log_dir: self.options.root.join("timerlog"),
            flushed,
            is_whole,
            at_hand: None,
            pending: 0,
            first_slot: None,
            last: None,
            damaged: BTreeSet::new(),
            log_min: position(self.log.min()),
            astray: Vec::new(),
        };
        let mut failed = None;
        let end = self.log.scan_chained(self.log.min(), &mut |at, unit, previous| {
            if unit.at.0 + u64::from(unit.size) > log_end.0 || at >= flushed && !is_whole(&unit) {
                return false;
            }
            rebuild.put(at, unit, previous).unwrap_or_else(|error| {
                failed = Some(error);
                false
            })
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        rebuild.finish()?;
        let Rebuild { pending, first_slot, last, damaged, astray, .. } = rebuild;
        for (at, unit, previous) in astray.iter().filter(|(at, ..)| *at < end) {
            self.log.overwrite(*at, unit, *previous)?;
        }
        self.log.cut(end)?;
        self.pending = pending;
        self.first_slot = first_slot;
        self.last = last.map(|(_, unit)| unit);
        self.damaged = damaged;
        Ok(())
    }
}

/// A wheel that is being filled.
struct Rebuild<'a> {
    wheel: &'a mut Wheel,
    /// The first slot that is not done with.
    read_time: i64,
    precision: i64,
    log_dir: PathBuf,
    /// Up to here the check-point speaks of the timer log.
    flushed: u64,
    is_whole: &'a dyn Fn(&TimerUnit) -> bool,
    /// Neighbours in the log are often due together, so the slot of the last one is kept at hand.
    at_hand: Option<Slot>,
    pending: i64,
    first_slot: Option<i64>,
    /// The newest unit and its position.
    last: Option<(u64, TimerUnit)>,
    /// Where the messages of units that were passed over lie.
    damaged: BTreeSet<LogOffset>,
    /// Where the log begins.
    log_min: i64,
    /// Units that do not lead to the one before them in their slot since some have moved (see `turned.rs`), and where they are to lead.
    astray: Vec<(u64, TimerUnit, i64)>,
}

/// What the wheel has for a unit.
enum WheelPlace {
    /// This slot.
    Slot(Slot),
    /// None before another time is done with: its message is to be taken in again.
    NotFree,
    /// None at all: the unit is damaged.
    Damaged,
}

impl Rebuild<'_> {
    /// Adds a unit. Says whether the log goes on with it.
    fn put(&mut self, at: u64, unit: TimerUnit, previous: i64) -> Result<bool, StoreError> {
        if unit.slot >= self.read_time {
            if self.at_hand.is_none_or(|slot| slot.time != unit.slot) {
                self.write_at_hand()?;
                match self.place_of(at, &unit)? {
                    WheelPlace::Slot(slot) => self.at_hand = Some(slot),
                    WheelPlace::NotFree => return Ok(false),
                    WheelPlace::Damaged => {
                        self.damaged.insert(unit.at);
                    }
                }
            }
            if let Some(slot) = &mut self.at_hand {
                // The first one of a slot may lead to one that is gone.
                if slot.last != previous && (slot.last >= 0 || previous >= self.log_min) {
                    self.astray.push((at, unit, slot.last));
                }
                self.pending += i64::from(add(slot, at, &unit));
                self.first_slot = Some(self.first_slot.map_or(unit.slot, |first| first.min(unit.slot)));
            }
        }
        self.last = Some((at, unit));
        Ok(true)
    }

    fn place_of(&mut self, at: u64, unit: &TimerUnit) -> Result<WheelPlace, StoreError> {
        let (slot, precision) = (unit.slot, self.precision);
        if slot.rem_euclid(precision) != 0 {
            if self.is_damaged(at, unit) {
                return Ok(WheelPlace::Damaged);
            }
            return Err(self.malformed(format!(
                "a message waits in the slot of {slot}, which timerPrecisionMs={precision} does not have; set the precision back until it is \
                 delivered"
            )));
        }
        if let Some(free) = self.wheel.slot_to_write(slot, self.read_time)? {
            return Ok(WheelPlace::Slot(free));
        }
        // What the check-point does not speak of can be taken in again without being delivered again.
        if at >= self.flushed {
            return Ok(WheelPlace::NotFree);
        }
        if self.is_damaged(at, unit) {
            return Ok(WheelPlace::Damaged);
        }
        let held = self.wheel.raw(slot)?;
        if held.time >= unit.written {
            // That was to come when the unit was written, and kept its place: in a wheel of our length the unit would have had to wait.
            return Err(self.malformed(format!(
                "messages wait in the slots of {} and {slot}, which have one place in the wheel: the version that wrote them has a longer wheel; \
                 let it go on until one of them is delivered",
                held.time
            )));
        }
        // It was given its place when that was done with, which the check-point does not know yet.
        self.pending -= i64::from(held.count);
        Ok(WheelPlace::Slot(Slot::empty(slot)))
    }

    /// Whether the message of a unit says something else, which is named: no setting and no other version would bring it to delivery.
    fn is_damaged(&self, at: u64, unit: &TimerUnit) -> bool {
        // When exactly it is due hangs on the precision, which may have been another one.
        let is_damaged = !(self.is_whole)(&TimerUnit { due: 0, ..*unit });
        if is_damaged {
            tracing::warn!(
                position = at,
                slot = unit.slot,
                log_offset = unit.at.0,
                "a unit of the timer log is damaged: its message does not say what it says, and is not delivered by it"
            );
        }
        is_damaged
    }

    fn malformed(&self, why: String) -> StoreError {
        StoreError::Malformed { path: self.log_dir.clone(), why }
    }

    fn write_at_hand(&mut self) -> Result<(), StoreError> {
        self.at_hand.take().map_or(Ok(()), |slot| self.wheel.write(&slot))
    }

    /// Lets the wheel lead to the newest unit also if its slot is done with, as far as there is a place: a start looks whether it does.
    fn finish(&mut self) -> Result<(), StoreError> {
        self.write_at_hand()?;
        let is_done_with = |(_, unit): &(u64, TimerUnit)| (1..self.read_time).contains(&unit.slot);
        let Some((at, unit)) = self.last.filter(is_done_with) else { return Ok(()) };
        if unit.slot.rem_euclid(self.precision) == 0
            && let Some(free) = self.wheel.slot_to_write(unit.slot, self.read_time)?
        {
            let at = position(at);
            self.wheel.write(&Slot { first: at, last: at, count: 0, ..free })?;
            self.wheel.passed(unit.slot);
        }
        Ok(())
    }
}

/// Whether a unit stands in the slot that its message asks for, as far as that can be told: one that came late is in a later one, and one that is to
/// be stored once more in an earlier one.
pub(crate) fn is_in_its_slot(unit: &TimerUnit, view: &RecordView<'_>, precision_ms: i64) -> bool {
    let out = view.property(name::TIMER_OUT_MS).and_then(|text| text.parse::<i64>().ok());
    let Some(out) = out else { return true };
    if unit.magic & timer_magic::ROLL != 0 {
        return unit.slot <= out;
    }
    if unit.magic & timer_magic::MOVED != 0 {
        return true;
    }
    // A slot may be done with a moment before its time is over, at a stop.
    let precision = precision_ms.max(1);
    let is_late = unit.slot > out && unit.slot <= unit.written.saturating_add(precision);
    let is_of_another_precision =
        unit.slot.rem_euclid(precision) != 0 && (1..OTHER_PRECISION_MAX).contains(&out.saturating_sub(unit.slot));
    is_late || is_of_another_precision || unit.slot == out || unit.slot == out.saturating_sub(out.rem_euclid(precision))
}
