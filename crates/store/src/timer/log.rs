//! The files `timerlog/<20 digits>`: a unit for each message that waits, in the order in which they came.
//!
//! ```text
//! unit, 52 bytes   size i32 (52), position of the unit before in the same slot i64 (-1 for none), magic i32, written at i64,
//!                  slot - written at i32, log offset of the message i64, its size i32, hash of its topic i32, reserved i64
//! end of a file    bytes left i32, i64 0, blank magic i32
//! ```
//!
//! Big-endian, times in ms. The reserved field holds, in units of ours, the exact time of delivery; Apache writes 0 and does not look.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow, sync_or_end};
use protocol::LogOffset;

use crate::error::StoreError;

/// Bytes of a unit.
pub(super) const UNIT_BYTES: usize = 52;
const UNIT: u64 = UNIT_BYTES as u64;
/// What a file's end takes at least.
const BLANK_BYTES: u64 = 16;
const BLANK_MAGIC: i32 = -875_286_124;
/// A file holds a unit and its end at least.
const LEAST_BYTES: u64 = UNIT + BLANK_BYTES;
/// Read at once.
const CHUNK: usize = UNIT_BYTES * 1024;

/// Bits of a unit's magic.
pub mod timer_magic {
    /// Every unit has it.
    pub const DEFAULT: i32 = 1;
    /// When its slot comes, the message is stored in the timer topic again.
    pub const ROLL: i32 = 1 << 1;
    /// The message takes another one back.
    pub const DELETE: i32 = 1 << 2;
    /// The clock was set back, and the unit was given another slot than its message asks for. Apache's broker takes the bit for valid and does not
    /// look at it.
    pub const MOVED: i32 = 1 << 3;
}

/// One message that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerUnit {
    /// The slot in which it is due, in ms.
    pub slot: i64,
    /// When exactly, in ms; 0 in units that Apache wrote.
    pub due: i64,
    /// When the unit was written, in ms.
    pub written: i64,
    /// Where the message lies.
    pub at: LogOffset,
    /// Its bytes.
    pub size: u32,
    /// Bits of [`timer_magic`].
    pub magic: i32,
    /// Java's hash of the name of its real topic.
    pub topic_hash: i32,
}

impl TimerUnit {
    pub(super) fn encode(&self, previous: i64, out: &mut Vec<u8>) {
        // Apache adds the two; one that waited for longer than 24 days counts as written with its slot.
        let (written, ahead) = match i32::try_from(self.slot - self.written) {
            Ok(ahead) => (self.written, ahead),
            Err(_) => (self.slot, 0),
        };
        out.extend_from_slice(&(UNIT_BYTES as i32).to_be_bytes());
        out.extend_from_slice(&previous.to_be_bytes());
        out.extend_from_slice(&self.magic.to_be_bytes());
        out.extend_from_slice(&written.to_be_bytes());
        out.extend_from_slice(&ahead.to_be_bytes());
        out.extend_from_slice(&self.at.0.to_be_bytes());
        out.extend_from_slice(&self.size.to_be_bytes());
        out.extend_from_slice(&self.topic_hash.to_be_bytes());
        out.extend_from_slice(&self.due.to_be_bytes());
    }

    /// The unit, and the position of the one before it in its slot. `None` where there is no unit.
    pub(super) fn decode(bytes: &[u8]) -> Option<(TimerUnit, i64)> {
        let mut rest = bytes.get(..UNIT_BYTES)?;
        let int = |rest: &mut &[u8]| {
            let (head, tail) = rest.split_first_chunk::<4>()?;
            *rest = tail;
            Some(i32::from_be_bytes(*head))
        };
        let long = |rest: &mut &[u8]| {
            let (head, tail) = rest.split_first_chunk::<8>()?;
            *rest = tail;
            Some(i64::from_be_bytes(*head))
        };
        let size = int(&mut rest)?;
        let previous = long(&mut rest)?;
        let magic = int(&mut rest)?;
        let written = long(&mut rest)?;
        let ahead = int(&mut rest)?;
        let at = u64::try_from(long(&mut rest)?).ok()?;
        let bytes_of_message = u32::try_from(int(&mut rest)?).ok()?;
        let topic_hash = int(&mut rest)?;
        let due = long(&mut rest)?;
        let is_unit = size == UNIT_BYTES as i32 && magic & timer_magic::DEFAULT != 0 && (1..16).contains(&magic);
        let slot = written.checked_add(i64::from(ahead))?;
        let unit = TimerUnit { slot, due, written, at: LogOffset(at), size: bytes_of_message, magic, topic_hash };
        is_unit.then_some((unit, previous))
    }
}

#[derive(Debug)]
struct LogFile {
    base: u64,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
}

#[derive(Debug)]
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    files: Vec<LogFile>,
    /// Where the next unit goes.
    pub end: u64,
    /// The last stretch that `unit_at` read, and where it begins.
    window: (u64, Vec<u8>),
}

impl Log {
    /// Opens the files that are there, and finds their end from `flushed` on if `is_sure`, else from the first unit on.
    pub fn open(
        disk: &Arc<dyn Disk>,
        root: &Path,
        file_bytes: u64,
        flushed: u64,
        is_sure: bool,
    ) -> Result<Log, StoreError> {
        let dir = root.join("timerlog");
        let failed = |doing: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Disk { doing, path, source }
        };
        disk.create_dir(&dir).map_err(failed("make", &dir))?;
        let mut names = disk.list(&dir).map_err(failed("list", &dir))?;
        names.sort_by(|one, other| one.name.cmp(&other.name));
        let mut files = Vec::new();
        for entry in names.iter().filter(|entry| !entry.is_dir && entry.name.len() == 20) {
            let Ok(base) = entry.name.parse::<u64>() else { continue };
            let path = dir.join(&entry.name);
            let file = disk.open(&path, OpenHow::Write).map_err(failed("open", &path))?;
            let bytes = file.len().map_err(failed("measure", &path))?;
            if bytes == 0 {
                disk.remove(&path).map_err(failed("remove", &path))?;
                continue;
            }
            files.push((LogFile { base, path, file }, bytes));
        }
        // What is there wins over the setting, unless a loss of power has left less of the only file.
        let file_bytes = match &files[..] {
            [] => file_bytes,
            [(_, bytes)] if *bytes < LEAST_BYTES || !is_sure => file_bytes.max(*bytes),
            [(_, bytes), ..] => *bytes,
        };
        let mut expected = files.first().map_or(0, |(first, _)| first.base);
        let last = files.last().map_or(0, |(last, _)| last.base);
        for (LogFile { base, path, file }, bytes) in &files {
            // The last one may have been cut, or made, and its length did not reach the device.
            let is_short = *base == last && *bytes < file_bytes;
            if *base != expected || *bytes != file_bytes && !is_short || file_bytes < LEAST_BYTES {
                let why = format!(
                    "has {bytes} bytes and begins at {base}; {file_bytes} bytes from {expected} on belong there"
                );
                return Err(StoreError::Malformed { path: path.clone(), why });
            }
            if is_short {
                file.set_len(file_bytes).map_err(failed("extend", path))?;
            }
            expected += file_bytes;
        }
        let files = files.into_iter().map(|(file, _)| file).collect();
        let mut log = Log { disk: Arc::clone(disk), dir, file_bytes, files, end: 0, window: (0, Vec::new()) };
        log.end = log.files.first().map_or(0, |first| first.base);
        let last = log.files.last().map_or(0, |last| last.base);
        let from = if is_sure && flushed >= last && flushed <= last + log.file_bytes { flushed } else { last };
        log.end = if log.files.is_empty() { 0 } else { from };
        log.end = log.scan(log.end, &mut |_, _| true)?;
        Ok(log)
    }

    /// How many files there are.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// The oldest unit's position.
    pub fn min(&self) -> u64 {
        self.files.first().map_or(self.end, |first| first.base)
    }

    /// Shows units from `from` on until `visit` says no; says where it ended.
    pub fn scan(&self, from: u64, visit: &mut dyn FnMut(u64, TimerUnit) -> bool) -> Result<u64, StoreError> {
        self.scan_chained(from, &mut |at, unit, _| visit(at, unit))
    }

    /// The same with the position of the unit before it in its slot.
    pub fn scan_chained(
        &self,
        from: u64,
        visit: &mut dyn FnMut(u64, TimerUnit, i64) -> bool,
    ) -> Result<u64, StoreError> {
        let mut at = from;
        let mut chunk = vec![0; CHUNK];
        // Ends at what is no unit: each turn moves on.
        while let Some(file) = self.file_of(at) {
            let end = file.base + self.file_bytes;
            let wanted = usize::try_from((end - at).min(CHUNK as u64)).unwrap_or(CHUNK);
            let read = self.read(file, &mut chunk[..wanted], at)?;
            let (units, rest) = chunk[..read].as_chunks::<UNIT_BYTES>();
            for bytes in units {
                match TimerUnit::decode(bytes) {
                    Some((unit, previous)) if visit(at, unit, previous) => at += UNIT,
                    Some(_) => return Ok(at),
                    None if is_blank(bytes) => {
                        at = end;
                        break;
                    }
                    None => return Ok(at),
                }
            }
            if units.is_empty() {
                if !is_blank(rest) {
                    return Ok(at);
                }
                at = end;
            }
        }
        Ok(at)
    }

    fn read(&self, file: &LogFile, buffer: &mut [u8], at: u64) -> Result<usize, StoreError> {
        file.file.read_at(buffer, at - file.base).map_err(|source| StoreError::Disk {
            doing: "read",
            path: file.path.clone(),
            source,
        })
    }

    fn file_of(&self, at: u64) -> Option<&LogFile> {
        let first = self.files.first()?.base;
        let place = usize::try_from(at.checked_sub(first)? / self.file_bytes).ok()?;
        self.files.get(place)
    }

    /// The unit at a position and the position of the one before it in its slot. Positions of a slot are asked for backwards, so the
    /// stretch before comes along.
    pub fn unit_at(&mut self, at: u64) -> Result<Option<(TimerUnit, i64)>, StoreError> {
        let is_held = |window: &(u64, Vec<u8>)| at >= window.0 && at + UNIT <= window.0 + window.1.len() as u64;
        if !is_held(&self.window) {
            let mut bytes = std::mem::take(&mut self.window.1);
            bytes.resize(CHUNK, 0);
            let Some(file) = self.file_of(at) else { return Ok(None) };
            let from = (at + UNIT).saturating_sub(CHUNK as u64).max(file.base);
            let wanted = usize::try_from(at + UNIT - from).unwrap_or(CHUNK);
            let read = self.read(file, &mut bytes[..wanted], from)?;
            bytes.truncate(read);
            self.window = (from, bytes);
            if !is_held(&self.window) {
                return Ok(None);
            }
        }
        let place = usize::try_from(at - self.window.0).unwrap_or(usize::MAX);
        Ok(self.window.1.get(place..).and_then(TimerUnit::decode))
    }

    /// The last unit and its position. `None` also where it does not end at the log's end: behind the end of a full file.
    pub fn last_unit(&mut self) -> Result<Option<(u64, TimerUnit)>, StoreError> {
        let Some(at) = self.end.checked_sub(UNIT).filter(|at| *at >= self.min()) else { return Ok(None) };
        Ok(self.unit_at(at)?.map(|(unit, _)| (at, unit)))
    }

    /// Where the next unit will go, with a new file begun if the last one is full.
    pub fn next(&mut self) -> Result<u64, StoreError> {
        let base = match self.files.last() {
            Some(last) => {
                let left = (last.base + self.file_bytes).saturating_sub(self.end);
                if left >= UNIT + BLANK_BYTES {
                    return Ok(self.end);
                }
                if left >= BLANK_BYTES {
                    let mut blank = Vec::with_capacity(16);
                    blank.extend_from_slice(&(left as i32).to_be_bytes());
                    blank.extend_from_slice(&0i64.to_be_bytes());
                    blank.extend_from_slice(&BLANK_MAGIC.to_be_bytes());
                    last.file.write_at(&blank, self.end - last.base).map_err(|source| StoreError::Disk {
                        doing: "write",
                        path: last.path.clone(),
                        source,
                    })?;
                    sync_or_end(&*last.file, &last.path);
                }
                last.base + self.file_bytes
            }
            None => self.end,
        };
        let path = self.dir.join(format!("{base:020}"));
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = self.disk.open(&path, OpenHow::Create).map_err(failed("make"))?;
        file.set_len(self.file_bytes).map_err(failed("extend"))?;
        self.disk.sync_dir(&self.dir).map_err(failed("sync the folder of"))?;
        self.files.push(LogFile { base, path, file });
        self.end = base;
        Ok(base)
    }

    /// How many units fit before the file's end.
    pub fn room(&self) -> usize {
        let left = self.files.last().map_or(0, |last| (last.base + self.file_bytes).saturating_sub(self.end));
        usize::try_from(left.saturating_sub(BLANK_BYTES) / UNIT).unwrap_or(0)
    }

    /// Writes whole units at the end; they fit into the file.
    pub fn write(&mut self, units: &[u8]) -> Result<(), StoreError> {
        let Some(last) = self.files.last() else { return Ok(()) };
        last.file.write_at(units, self.end - last.base).map_err(|source| StoreError::Disk {
            doing: "write",
            path: last.path.clone(),
            source,
        })?;
        if self.window.0 + self.window.1.len() as u64 > self.end {
            self.window.1.clear();
        }
        self.end += units.len() as u64;
        Ok(())
    }

    /// Writes a unit in the place of another one.
    pub fn overwrite(&mut self, at: u64, unit: &TimerUnit, previous: i64) -> Result<(), StoreError> {
        self.window.1.clear();
        let Some(file) = self.file_of(at) else { return Ok(()) };
        let mut bytes = Vec::with_capacity(UNIT_BYTES);
        unit.encode(previous, &mut bytes);
        file.file.write_at(&bytes, at - file.base).map_err(|source| StoreError::Disk {
            doing: "write",
            path: file.path.clone(),
            source,
        })
    }

    /// Waits until the device has every file from the position `from` on.
    pub fn sync_from(&self, from: u64) {
        for file in self.files.iter().filter(|file| file.base + self.file_bytes > from) {
            sync_or_end(&*file.file, &file.path);
        }
    }

    /// Whatever lies behind `end` is no unit.
    pub fn cut(&mut self, end: u64) -> Result<(), StoreError> {
        self.window.1.clear();
        // First the file: one that stays on disk stays part of the log, and goes the next time.
        while let Some(last) = self.files.last().filter(|last| last.base > end) {
            self.disk.remove(&last.path).map_err(|source| StoreError::Disk {
                doing: "remove",
                path: last.path.clone(),
                source,
            })?;
            self.files.pop();
        }
        if let Some(last) = self.files.last() {
            let cut = last.file.set_len(end - last.base).and_then(|()| last.file.set_len(self.file_bytes));
            cut.map_err(|source| StoreError::Disk { doing: "cut", path: last.path.clone(), source })?;
        }
        self.end = end;
        Ok(())
    }

    /// Removes the files that end at or before `needed`, but the last.
    pub fn remove_below(&mut self, needed: u64) -> Result<usize, StoreError> {
        let mut removed = 0;
        // First the file: if one stayed on disk and the next one went, no start would take the gap.
        while let [first, _, ..] = &self.files[..]
            && first.base + self.file_bytes <= needed
        {
            self.disk.remove(&first.path).map_err(|source| StoreError::Disk {
                doing: "remove",
                path: first.path.clone(),
                source,
            })?;
            self.files.remove(0);
            removed += 1;
        }
        Ok(removed)
    }

    pub fn last_file(&self) -> Option<(&Path, &Arc<dyn DiskFile>)> {
        self.files.last().map(|last| (last.path.as_path(), &last.file))
    }
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.get(12..16).is_some_and(|magic| magic == BLANK_MAGIC.to_be_bytes())
}
