//! What Apache's timer store keeps beside the log: `timerlog`, `timerwheel` and `config/timercheck`, read and written in its formats.
//!
//! The timer log has a unit for each message that waits, the wheel leads from a slot of time to the units that are due in it, and the
//! check-point says how far both have come. All of it follows from the queue `rmq_sys_wheel_timer` and the check-point, and a broker of
//! either make goes on where the other stopped. Synchronous; whoever holds [`TimerFiles`] calls it from a thread that may wait.
//!
//! Invariant: a unit is written before the slot that leads to it, and the check-point after both are on the device. So a wheel that does not lead to
//! the newest unit is not the log's: Apache's broker leaves such a one when it stops, and makes it anew at each start.

mod checkpoint;
mod log;
mod rebuild;
#[cfg(test)]
mod tests;
mod turned;
mod wheel;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, sync_or_end};
use protocol::LogOffset;

pub use checkpoint::{TIMER_MARKS_BYTES, TimerMarks};
pub use log::{TimerUnit, timer_magic};
pub(crate) use rebuild::is_in_its_slot;
pub use turned::Turned;
pub use wheel::TIMER_SLOTS_AHEAD;

use crate::error::StoreError;
use checkpoint::Checkpoint;
use log::{Log, UNIT_BYTES};
use wheel::{Contents, Slot, Wheel};

/// Units that one look for the oldest message that waits passes over at most.
const LOOK_MAX: usize = 1 << 20;

/// Where the files are and how they are made.
#[derive(Clone, Debug)]
pub struct TimerOptions {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `mappedFileSizeTimerLog`; files on disk of another size win.
    pub log_file_bytes: u64,
    /// `timerPrecisionMs`.
    pub precision_ms: i64,
    /// [`crate::StoreOptions::timer_slots_ahead`].
    pub slots_ahead: i64,
}

/// What a start has to know of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogState {
    /// Where the commit log ended: a unit that leads further has lost its message.
    pub end: LogOffset,
    /// Nobody closed the store, so the wheel may not say what the timer log says.
    pub was_abnormal: bool,
}

/// The files, open.
#[derive(Debug)]
pub struct TimerFiles {
    log: Log,
    wheel: Wheel,
    checkpoint: Checkpoint,
    /// Before this position of the timer log every unit is done with, as far as a look has found.
    needed: u64,
    /// A file of the log that was written and is not synced, but for the last one.
    unsynced: Vec<(PathBuf, Arc<dyn DiskFile>)>,
    /// Messages that wait, as the slots count them at the start.
    pending: i64,
    first_slot: Option<i64>,
    last: Option<TimerUnit>,
    /// A write failed half way: whatever the log has from here on is to be forgotten, and the wheel to be built anew.
    broken_at: Option<u64>,
    /// Where the messages of units lie that the last look at all of the log has passed over.
    damaged: BTreeSet<LogOffset>,
    disk: Arc<dyn Disk>,
    options: TimerOptions,
}

impl TimerFiles {
    /// Opens the files, or makes them; the wheel is built anew from the timer log after a crash, and where it does not lead to the newest unit.
    ///
    /// `is_whole` is asked then about units that the check-point does not vouch for, of which the device may have a part: whether one says what its
    /// message says. The timer log ends at the first one that does not; what had a unit behind that is taken in again. It is asked, too, about others
    /// for which the wheel has no place: one that says what its message says keeps the files from being opened, but for its exact time; a damaged one
    /// is passed over.
    pub fn open(
        disk: &Arc<dyn Disk>,
        options: &TimerOptions,
        state: LogState,
        is_whole: &dyn Fn(&TimerUnit) -> bool,
    ) -> Result<TimerFiles, StoreError> {
        let precision = options.precision_ms.max(1);
        let options = &TimerOptions { precision_ms: precision, ..options.clone() };
        let checkpoint = Checkpoint::open(&**disk, &options.root)?;
        let marks = checkpoint.marks;
        let flushed = u64::try_from(marks.log_flushed).unwrap_or(0);
        // A whole number of units and their end, whatever the setting says.
        let file_bytes = options.log_file_bytes.max(4096);
        let mut log = Log::open(disk, &options.root, file_bytes, flushed, !state.was_abnormal)?;
        let path = options.root.join("timerwheel");
        let last = log.last_unit()?;
        let is_loaded =
            !state.was_abnormal && disk.len(&path).is_ok_and(|bytes| bytes == wheel::file_bytes(options.slots_ahead));
        let mut wheel = Wheel::open(&**disk, options, is_loaded)?;
        let mut found = if is_loaded { wheel.load(marks.read_time)? } else { Contents::default() };
        if let (Some((at, unit)), Some(slot)) = (last, found.newest)
            && slot.last == position(at)
            && slot.time != unit.slot
            && is_anything_to_come(&log, marks.read_time)?
        {
            let ticks = slot.time / precision;
            let why = format!(
                "was written with timerPrecisionMs={}, not {precision}, and messages wait; set it back until they are delivered",
                unit.slot / ticks.max(1)
            );
            return Err(StoreError::Malformed { path, why });
        }
        let leads_to = found.newest.map(|slot| (slot.last, slot.time));
        let has_units = log.end > log.min();
        let keep =
            is_loaded && leads_to == last.map(|(at, unit)| (position(at), unit.slot)) && last.is_some() == has_units;
        if is_loaded && !keep {
            tracing::info!("timerwheel does not lead to the newest timer message; it is built anew from timerlog");
            wheel = Wheel::open(&**disk, options, false)?;
            found = Contents::default();
        }
        // Names that were made just now: a check-point speaks of what they lead to.
        for dir in [&options.root.join("config"), &options.root.join("timerlog"), &options.root] {
            disk.sync_dir(dir).map_err(|source| StoreError::Disk {
                doing: "sync the folder",
                path: dir.clone(),
                source,
            })?;
        }
        let mut files = TimerFiles {
            needed: log.min(),
            wheel,
            checkpoint,
            unsynced: Vec::new(),
            pending: found.count,
            first_slot: found.first,
            last: last.map(|(_, unit)| unit),
            broken_at: None,
            damaged: BTreeSet::new(),
            disk: Arc::clone(disk),
            options: options.clone(),
            log,
        };
        if !keep {
            files.rebuild(state.end, flushed, is_whole)?;
        }
        Ok(files)
    }

    /// How far taking in and delivering have come, as the check-point says.
    pub fn marks(&self) -> TimerMarks {
        self.checkpoint.marks
    }

    /// Whether the timer log has some units, and ends before those that the check-point speaks of.
    pub fn has_less_than_noted(&self) -> bool {
        self.last.is_some() && position(self.log.end) < self.checkpoint.marks.log_flushed
    }

    /// How many messages waited when the files were opened.
    pub fn pending(&self) -> u64 {
        u64::try_from(self.pending).unwrap_or(0)
    }

    /// The first slot, in ms, in which a message waited when the files were opened.
    pub fn first_slot(&self) -> Option<i64> {
        self.first_slot
    }

    /// The newest unit at the start: the queue was taken in at least up to its message.
    pub fn last(&self) -> Option<TimerUnit> {
        self.last
    }

    /// Adds units, in the order of their messages. Says how many: fewer than there are when a slot is not free yet.
    pub fn append(&mut self, units: &[TimerUnit], read_time: i64) -> Result<usize, StoreError> {
        self.mend()?;
        let start = self.log.end;
        let added = self.append_all(units, read_time);
        if added.is_err() {
            self.broken_at = Some(start);
        }
        added
    }

    /// After a failed write: as if it had not begun.
    fn mend(&mut self) -> Result<(), StoreError> {
        if let Some(at) = self.broken_at {
            self.log.cut(at)?;
            self.wheel = Wheel::open(&*self.disk, &self.options, false)?;
            // What the start has passed over is passed over again.
            let damaged = self.damaged.clone();
            self.rebuild(LogOffset(u64::MAX), u64::MAX, &|unit| !damaged.contains(&unit.at))?;
            self.broken_at = None;
        }
        Ok(())
    }

    fn append_all(&mut self, units: &[TimerUnit], read_time: i64) -> Result<usize, StoreError> {
        let mut added = 0;
        // Each turn fills a file or ends the units.
        while added < units.len() {
            let mut at = self.log.next()?;
            let room = self.log.room().min(units.len() - added);
            let mut slots: BTreeMap<i64, Slot> = BTreeMap::new();
            let mut bytes = Vec::with_capacity(room * UNIT_BYTES);
            for unit in &units[added..added + room] {
                let slot = match slots.get_mut(&unit.slot) {
                    Some(slot) => slot,
                    None => match self.wheel.slot_to_write(unit.slot, read_time)? {
                        Some(slot) => slots.entry(unit.slot).or_insert(slot),
                        None => break,
                    },
                };
                unit.encode(slot.last, &mut bytes);
                add(slot, at, unit);
                at += UNIT_BYTES as u64;
            }
            self.log.write(&bytes)?;
            for slot in slots.values() {
                self.wheel.write(slot)?;
            }
            let written = bytes.len() / UNIT_BYTES;
            added += written;
            if written < room {
                break;
            }
            if added < units.len()
                && let Some((path, file)) = self.log.last_file()
            {
                self.unsynced.push((path.to_owned(), Arc::clone(file)));
            }
        }
        Ok(added)
    }

    /// The first slot from `from` on that holds something, in ms.
    pub fn next_slot(&self, from: i64) -> Option<i64> {
        self.wheel.next_from(from)
    }

    /// How many messages are due in a slot, if that is known without waiting.
    pub fn count_of(&self, slot: i64) -> u64 {
        self.wheel.slot(slot).map_or(0, |slot| u64::try_from(slot.count).unwrap_or(0))
    }

    /// Adds the units of the slots from `from` up to but not including `to`, each slot newest first; stops after a slot with which there are
    /// `max` or more. Says up to where it came; a slot that was read is not found again by [`next_slot`](Self::next_slot).
    pub fn read(&mut self, from: i64, to: i64, max: usize, units: &mut Vec<TimerUnit>) -> Result<i64, StoreError> {
        self.mend()?;
        let mut next = from;
        // Each turn passes a slot.
        while let Some(time) = self.wheel.next_from(next).filter(|time| *time < to) {
            let slot = self.wheel.raw(time)?;
            next = time + self.options.precision_ms;
            if slot.last >= 0 && slot.time > time {
                // The place is that of a later time, which is still to be found.
                continue;
            }
            let mut position = if slot.time == time { slot.last } else { -1 };
            while let Ok(at) = u64::try_from(position) {
                let Some((unit, previous)) = self.log.unit_at(at)? else { break };
                // A damaged one says another time, and leads to those before it all the same.
                if unit.slot == time {
                    units.push(unit);
                }
                if previous >= position {
                    break;
                }
                position = previous;
            }
            self.wheel.passed(time);
            if units.len() >= max {
                return Ok(next);
            }
        }
        Ok(to)
    }

    /// What is to be done so that the check-point says this: slots before `read_time` are done with, messages before `queue_offset` have
    /// units. It is done without holding the files.
    pub fn checkpoint(&mut self, read_time: i64, queue_offset: u64, now: i64) -> TimerCheckpoint {
        let named = |(path, file): (&Path, &Arc<dyn DiskFile>)| (path.to_owned(), Arc::clone(file));
        let mut files = std::mem::take(&mut self.unsynced);
        files.extend(self.log.last_file().map(named));
        files.push(named(self.wheel.file()));
        let queue_offset = i64::try_from(queue_offset).unwrap_or(i64::MAX);
        let [state, _, counter] = self.marks().version;
        let marks = TimerMarks {
            read_time,
            log_flushed: i64::try_from(self.log.end).unwrap_or(i64::MAX),
            queue_offset,
            master_queue_offset: queue_offset,
            version: [state, now, counter.saturating_add(1)],
        };
        TimerCheckpoint { files, checkpoint: named(self.checkpoint.file()), marks }
    }

    /// The same on a slave: how far its master has come, and which message may be the first here that waits.
    pub fn checkpoint_of_master(&mut self, master: &TimerMarks, queue_offset: u64, now: i64) -> TimerCheckpoint {
        let TimerMarks { read_time, master_queue_offset, version, .. } = *master;
        let checkpoint = self.checkpoint(read_time, queue_offset, now);
        let marks = TimerMarks { master_queue_offset, version, ..checkpoint.marks };
        TimerCheckpoint { marks, ..checkpoint }
    }

    /// The check-point is on the device.
    pub fn checkpointed(&mut self, checkpoint: &TimerCheckpoint) {
        self.checkpoint.marks = checkpoint.marks;
    }

    /// Shows the messages that wait, oldest first.
    pub fn for_each(&self, show: &mut dyn FnMut(&TimerUnit)) -> Result<(), StoreError> {
        let read_time = self.marks().read_time;
        self.log.scan(self.log.min(), &mut |_, unit| {
            if unit.slot >= read_time {
                show(&unit);
            }
            true
        })?;
        Ok(())
    }

    /// The log offset of the oldest message that waits, as far as the order of units tells; files of the timer log before it go.
    pub fn needed_from(&mut self) -> Result<Option<LogOffset>, StoreError> {
        let read_time = self.marks().read_time;
        let mut found = None;
        let mut passed = 0;
        let end = self.log.scan(self.needed.max(self.log.min()), &mut |_, unit| {
            passed += 1;
            let is_needed = unit.slot >= read_time || passed >= LOOK_MAX;
            if is_needed {
                found = Some(unit.at);
            }
            !is_needed
        })?;
        self.needed = end;
        self.log.remove_below(end)?;
        Ok(found)
    }
}

/// A check-point on its way to the device: first what it speaks of, then itself.
#[derive(Debug)]
pub struct TimerCheckpoint {
    files: Vec<(PathBuf, Arc<dyn DiskFile>)>,
    checkpoint: (PathBuf, Arc<dyn DiskFile>),
    marks: TimerMarks,
}

impl TimerCheckpoint {
    /// What it says.
    pub fn marks(&self) -> TimerMarks {
        self.marks
    }

    /// Waits for the device. One that cannot sync ends the process.
    pub fn write(&self) -> Result<(), StoreError> {
        let failed = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        for (path, file) in &self.files {
            sync_or_end(&**file, path);
        }
        let (path, file) = &self.checkpoint;
        file.write_at(&self.marks.encode(), 0).map_err(failed("write", path))?;
        sync_or_end(&**file, path);
        Ok(())
    }
}

/// As a slot says it.
fn position(at: u64) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}

/// Whether a unit of the log is not done with.
fn is_anything_to_come(log: &Log, read_time: i64) -> Result<bool, StoreError> {
    let mut is_any = false;
    log.scan(log.min(), &mut |_, unit| {
        is_any = unit.slot >= read_time;
        !is_any
    })?;
    Ok(is_any)
}

/// Adds a unit to what its slot says. Returns by how much that changes the messages that wait: Apache counts down for one that takes another
/// back.
fn add(slot: &mut Slot, at: u64, unit: &TimerUnit) -> i32 {
    let at = position(at);
    let step = if unit.magic & timer_magic::DELETE == 0 { 1 } else { -1 };
    if slot.first < 0 {
        slot.first = at;
    }
    slot.last = at;
    slot.count = slot.count.saturating_add(step);
    step
}

/// Reads the check-point without opening the timer store; none if there is no whole one.
pub(crate) fn look_at_marks(disk: &dyn Disk, root: &Path) -> Result<Option<TimerMarks>, StoreError> {
    let path = root.join("config").join("timercheck");
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Checkpoint::open(disk, root)?.marks))
}

/// The timer log as it lies there.
pub(crate) struct TimerLogLook {
    /// How many files.
    pub files: usize,
    /// Where the units that follow each other from the first one on end.
    pub end: u64,
    /// Where those of the last file end: further on only if something is wrong in between.
    pub last: u64,
}

/// Shows the units of the timer log and their positions, through a `disk` that changes nothing. None if it has no files.
pub(crate) fn look_at_log(
    disk: &Arc<dyn Disk>,
    root: &Path,
    show: &mut dyn FnMut(u64, &TimerUnit),
) -> Result<Option<TimerLogLook>, StoreError> {
    let log = Log::open(disk, root, 0, 0, false)?;
    if log.count() == 0 {
        return Ok(None);
    }
    let end = log.scan(log.min(), &mut |at, unit| {
        show(at, &unit);
        true
    })?;
    Ok(Some(TimerLogLook { files: log.count(), end, last: log.end }))
}
