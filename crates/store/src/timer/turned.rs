//! What becomes of the timer log when the clock was set back.
//!
//! A check-point that is ahead of the clock says of the slots up to it that they are done with, and so they are: but their time comes a second time, and
//! the messages that are sent from now on belong there. So each unit of them is marked as done with in the timer log, and then the check-point goes back.
//! The unit of a message that was sent while the clock was ahead moves by as much as the clock.

use super::TimerFiles;
use super::log::{TimerUnit, timer_magic};
use super::wheel::Wheel;
use crate::error::StoreError;
use protocol::LogOffset;

/// What becomes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turned {
    /// It stays as it is.
    Stays,
    /// Its message is delivered: it must not be found when its slot comes again.
    Done,
    /// It is written anew, as it is due by the clock as it is now.
    Moves(TimerUnit),
}

/// Units that are kept in memory before they are written: 1.3 MB.
const PAGE: usize = 1 << 14;

impl TimerFiles {
    /// Goes on with the slot `to`, with which the check-point was done, since the clock was set back; `next` is the first message of the queue that is
    /// not taken in. `decide` is asked about each unit of `to` and of later slots, in the order of the log, up to twice; when it returns, all that is on
    /// the device.
    ///
    /// Marks first, then the check-point, then what moves: whatever a crash leaves of that, nothing is delivered twice, and what has not moved is asked
    /// about again at the next start.
    pub fn set_back(
        &mut self,
        to: i64,
        next: u64,
        now: i64,
        decide: &mut dyn FnMut(&TimerUnit) -> Turned,
    ) -> Result<(), StoreError> {
        self.mend()?;
        let end = self.log.end;
        let turned = self.turn(to, next, now, decide);
        if turned.is_err() {
            // The wheel is made anew before it is used again; nothing of the log is wrong.
            self.broken_at = Some(end);
        }
        turned
    }

    fn turn(
        &mut self,
        to: i64,
        next: u64,
        now: i64,
        decide: &mut dyn FnMut(&TimerUnit) -> Turned,
    ) -> Result<(), StoreError> {
        let precision = self.options.precision_ms;
        let to = to.max(precision * 2);
        // A slot that is done with, and the last such one: its place in the wheel is that of no slot to come.
        let before = to - precision;
        self.each_page(to, &mut |unit| {
            (decide(unit) == Turned::Done).then(|| TimerUnit {
                slot: before,
                written: unit.written.min(before),
                magic: unit.magic | timer_magic::MOVED,
                ..*unit
            })
        })?;
        let checkpoint = self.checkpoint(to, next, now);
        checkpoint.write()?;
        self.checkpointed(&checkpoint);
        self.each_page(to, &mut |unit| match decide(unit) {
            Turned::Moves(moved) => Some(TimerUnit { magic: moved.magic | timer_magic::MOVED, ..moved }),
            Turned::Stays | Turned::Done => None,
        })?;
        self.wheel = Wheel::open(&*self.disk, &self.options, false)?;
        let damaged = self.damaged.clone();
        self.rebuild(LogOffset(u64::MAX), u64::MAX, &|unit| !damaged.contains(&unit.at))?;
        self.log.sync_from(self.log.min());
        Ok(())
    }

    /// Writes units of `to` and later slots anew.
    fn each_page(&mut self, to: i64, anew: &mut dyn FnMut(&TimerUnit) -> Option<TimerUnit>) -> Result<(), StoreError> {
        let mut from = self.log.min();
        let end = self.log.end;
        let mut page: Vec<(u64, TimerUnit, i64)> = Vec::new();
        // Each turn passes a page of units that are written anew, or comes to the end.
        loop {
            page.clear();
            from = self.log.scan_chained(from, &mut |at, unit, previous| {
                if at >= end || page.len() == PAGE {
                    return false;
                }
                if unit.slot >= to
                    && let Some(unit) = anew(&unit)
                {
                    page.push((at, unit, previous));
                }
                true
            })?;
            for (at, unit, previous) in &page {
                self.log.overwrite(*at, unit, *previous)?;
            }
            if page.len() < PAGE {
                break;
            }
        }
        self.log.sync_from(self.log.min());
        Ok(())
    }
}
