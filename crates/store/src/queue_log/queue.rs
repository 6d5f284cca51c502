//! One consume queue: what was pushed and is not yet in a file, a recent stretch beside it, and the way to the files.
//!
//! One thread at a time pushes (whoever holds the log's lock). Readers run beside it: what is in memory they copy under the
//! tail's lock, the rest they read from files outside any lock. Files change only under the maintenance lock of
//! [`QueueLogs`](super::QueueLogs). A queue at rest is this struct and nothing else: no buffer, descriptor or thread.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use protocol::LogOffset;

use super::descriptors::file_path;
use super::unit::{RawUnit, UNIT_BYTES, Unit};
use super::{QueueError, Shared};
use crate::disk::{DiskFile, OpenHow};

/// Units read from a file at once: a page's worth, so that a chunk fits on the stack.
const CHUNK_UNITS: usize = 204;

/// What became of a unit that recovery pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushedAt {
    /// It was the next one.
    Added,
    /// The queue had it, or begins above it.
    Already,
    /// The queue had something else at its place, which is overwritten.
    Mended,
}

/// How a read of units ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitsRead {
    /// So many units were appended; fewer than asked for where the queue ends.
    Units(usize),
    /// So many units were appended; the next ones are on the device only, and the caller does not want to wait for it.
    Cold(usize),
}

/// The messages of one queue of a topic, by number.
pub struct ConsumeQueue {
    pub(super) shared: Arc<Shared>,
    topic: Arc<str>,
    id: u32,
    /// Names the queue in the table of descriptors; never reused.
    pub(super) number: u64,
    /// One more than the last unit. Written under the tail's lock; Release pairs with the Acquire of readers that look
    /// before they take the lock.
    pub(super) next: AtomicU64,
    /// The first unit whose record the log still has.
    pub(super) min: AtomicU64,
    /// One more than the log offset of unit `min`; 0 if nobody looked. Spares retention a read of every queue.
    pub(super) min_at_plus_one: AtomicU64,
    /// Where the last unit's record ends; 0 without units.
    pub(super) log_end: AtomicU64,
    /// Files on disk: from the one whose first unit is `first_file`, dense, up to unit `files_end`. Written under the
    /// maintenance lock, each stored after the change on disk that makes it true; readers that race find no file or no
    /// unit, and end.
    pub(super) first_file: AtomicU64,
    pub(super) files_end: AtomicU64,
    /// Set once, when the topic is deleted. What is pushed after that goes nowhere.
    pub(super) is_deleted: AtomicBool,
    /// Guards the units in memory. Taken inside the log's lock by push; nothing is taken inside it but the list of queues
    /// that have something to write.
    pub(super) tail: Mutex<Option<Box<Tail>>>,
}

/// Units in memory: `recent` holds those from `first` to the queue's end.
#[derive(Default)]
pub(super) struct Tail {
    pub recent: VecDeque<RawUnit>,
    pub first: u64,
    /// Units below this are in the files. `first <= written <= first + recent.len()`.
    pub written: u64,
    /// Whether the queue stands in the list of those that the next flush visits.
    pub is_listed: bool,
    /// What flushes found in memory lately, in units.
    pub usual: usize,
}

impl Tail {
    fn end(&self) -> u64 {
        self.first + self.recent.len() as u64
    }
}

impl ConsumeQueue {
    pub(super) fn new(shared: Arc<Shared>, topic: Arc<str>, id: u32) -> ConsumeQueue {
        ConsumeQueue {
            number: shared.next_number.fetch_add(1, Ordering::Relaxed),
            shared,
            topic,
            id,
            next: AtomicU64::new(0),
            min: AtomicU64::new(0),
            min_at_plus_one: AtomicU64::new(0),
            log_end: AtomicU64::new(0),
            first_file: AtomicU64::new(0),
            files_end: AtomicU64::new(0),
            is_deleted: AtomicBool::new(false),
            tail: Mutex::new(None),
        }
    }

    /// The topic's name.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The queue's number in its topic.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The lowest offset whose message the log still has; `max_offset` if there is none.
    pub fn min_offset(&self) -> u64 {
        self.min.load(Ordering::Acquire)
    }

    /// One more than the highest offset.
    pub fn max_offset(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// The offset that the next push takes.
    pub fn next_offset(&self) -> u64 {
        self.max_offset()
    }

    /// Where the last unit's record ends in the log; 0 without units.
    pub fn log_end(&self) -> LogOffset {
        LogOffset(self.log_end.load(Ordering::Acquire))
    }

    /// The number of the first unit for which there is a place in its files.
    pub(crate) fn files_begin(&self) -> u64 {
        self.first_file.load(Ordering::Acquire)
    }

    /// Whether its topic was deleted while somebody still held it.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// Adds the next unit. Memory only; readers see it at once. One thread at a time: whoever holds the log's lock.
    pub fn push(self: &Arc<Self>, unit: Unit) {
        let mut tail = self.tail.lock();
        let next = self.next.load(Ordering::Relaxed);
        if self.is_deleted.load(Ordering::Relaxed) {
            self.next.store(next + 1, Ordering::Release);
            return;
        }
        let tail = tail.get_or_insert_with(|| Box::new(Tail { first: next, written: next, ..Tail::default() }));
        tail.recent.push_back(unit.encode());
        self.log_end.store(unit.end().0, Ordering::Release);
        self.next.store(next + 1, Ordering::Release);
        if !tail.is_listed {
            tail.is_listed = true;
            self.shared.listed.lock().push(Arc::clone(self));
        }
        self.shared.count_pushed();
    }

    /// Adds the unit that the log says belongs at `offset`, unless it is there. For recovery, before anybody else pushes.
    ///
    /// A queue without live units may begin anywhere; any other refuses a gap, because what is missing would be served as
    /// nothing.
    pub fn push_at(self: &Arc<Self>, offset: u64, unit: Unit) -> Result<PushedAt, QueueError> {
        let next = self.max_offset();
        if offset < next {
            return self.mend(offset, unit);
        }
        if offset > next {
            if self.min_offset() < next {
                let topic = self.topic.to_string();
                return Err(QueueError::Gap { topic, queue_id: self.id, next, offset, at: unit.at });
            }
            self.begin_at(offset)?;
        }
        self.push(unit);
        Ok(PushedAt::Added)
    }

    pub(super) fn mend(&self, offset: u64, unit: Unit) -> Result<PushedAt, QueueError> {
        if offset < self.min_offset() || self.unit_at(offset)? == Some(unit) {
            return Ok(PushedAt::Already);
        }
        let raw = unit.encode();
        let is_written = match self.tail.lock().as_deref_mut() {
            Some(tail) if offset >= tail.first => {
                tail.recent[(offset - tail.first) as usize] = raw;
                offset < tail.written
            }
            Some(_) | None => true,
        };
        if is_written {
            self.write(offset, &raw)?;
        }
        if offset + 1 == self.max_offset() {
            self.log_end.store(unit.end().0, Ordering::Release);
        }
        if offset == self.min_offset() {
            self.min_at_plus_one.store(0, Ordering::Release);
        }
        Ok(PushedAt::Mended)
    }

    /// Lets the queue begin at `offset`, without a unit. For recovery: what it had is gone from the log and would only leave a
    /// gap, or is not what the log says.
    pub(crate) fn begin_at(&self, offset: u64) -> Result<(), QueueError> {
        let _files = self.shared.maintenance.lock();
        self.remove_files(self.first_file.load(Ordering::Acquire), self.files_end.load(Ordering::Acquire))?;
        let mut tail = self.tail.lock();
        if let Some(tail) = tail.as_deref_mut() {
            self.shared.count_written(tail.end() - tail.written);
            *tail = Tail { first: offset, written: offset, is_listed: tail.is_listed, ..Tail::default() };
        }
        let file_start = self.shared.file_start(offset);
        self.first_file.store(file_start, Ordering::Release);
        self.files_end.store(file_start, Ordering::Release);
        self.min.store(offset, Ordering::Release);
        self.min_at_plus_one.store(0, Ordering::Release);
        self.next.store(offset, Ordering::Release);
        self.log_end.store(0, Ordering::Release);
        Ok(())
    }

    /// Reads up to `max` units from `from` on, as many as there are, into the end of `out`.
    ///
    /// With `may_block` false it never waits for a device.
    pub fn read_units(
        &self,
        from: u64,
        max: usize,
        may_block: bool,
        out: &mut Vec<Unit>,
    ) -> Result<UnitsRead, QueueError> {
        let mut offset = from.max(self.first_file.load(Ordering::Acquire));
        if offset > from {
            // What lies below the first file is gone.
            return Ok(UnitsRead::Units(0));
        }
        let before = out.len();
        let got = |out: &Vec<Unit>| out.len() - before;
        // Each turn ends the read or brings `offset` further.
        while got(out) < max {
            let left = max - got(out);
            let memory_begins = match self.tail.lock().as_deref() {
                Some(tail) if offset >= tail.first => {
                    let skip = (offset - tail.first) as usize;
                    out.extend(tail.recent.iter().skip(skip).take(left).map_while(Unit::decode));
                    break;
                }
                Some(tail) => tail.first,
                None => self.max_offset(),
            };
            if offset >= memory_begins {
                break;
            }
            let wanted = (memory_begins - offset).min(left as u64).min(self.shared.file_end(offset) - offset);
            let mut raw = [0u8; CHUNK_UNITS * UNIT_BYTES];
            let raw = &mut raw[..(wanted as usize).min(CHUNK_UNITS) * UNIT_BYTES];
            let file = match self.file(offset) {
                Ok(file) => file,
                // Retention was here between our look and the open.
                Err(error) if error.is_missing_file() => break,
                Err(error) => return Err(error),
            };
            let at = self.shared.byte_in_file(offset);
            let read = if may_block { file.read_at(raw, at).map(Some) } else { file.read_cached_at(raw, at) };
            let Some(read) = read.map_err(|source| self.failed("read", offset, source))? else {
                return Ok(UnitsRead::Cold(got(out)));
            };
            let (units, _) = raw[..read].as_chunks::<UNIT_BYTES>();
            let mut count = 0;
            for unit in units.iter().map_while(Unit::decode) {
                out.push(unit);
                count += 1;
            }
            offset += count as u64;
            if count < raw.len() / UNIT_BYTES {
                break;
            }
        }
        Ok(UnitsRead::Units(got(out)))
    }

    /// Where a reader goes on who finds nothing at this offset, though the queue goes on: where the queue begins now, at what is in memory, or
    /// at the next file, as in RocketMQ.
    pub fn behind_hole(&self, offset: u64) -> u64 {
        let min = self.min_offset();
        if offset < min {
            return min;
        }
        let next_file = self.shared.file_end(offset);
        match self.tail.lock().as_deref() {
            Some(tail) if tail.first > offset => next_file.min(tail.first),
            Some(_) | None => next_file.min(self.max_offset()),
        }
    }

    /// The unit at an offset, if the queue has it. May wait for the device.
    pub fn unit_at(&self, offset: u64) -> Result<Option<Unit>, QueueError> {
        if offset >= self.max_offset() || offset < self.first_file.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Some(tail) = self.tail.lock().as_deref()
            && offset >= tail.first
        {
            return Ok(tail.recent.get((offset - tail.first) as usize).and_then(Unit::decode));
        }
        let file = match self.file(offset) {
            Ok(file) => file,
            Err(error) if error.is_missing_file() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut raw = [0; UNIT_BYTES];
        let read = file.read_at(&mut raw, self.shared.byte_in_file(offset));
        match read.map_err(|source| self.failed("read", offset, source))? {
            UNIT_BYTES => Ok(Unit::decode(&raw)),
            _short => Ok(None),
        }
    }

    /// Writes what is not yet in files, then keeps at most `window` units in memory. Says whether there was anything; if
    /// not, the queue has given its memory back and is no longer listed. Under the maintenance lock.
    pub(super) fn flush(&self, window: usize, scratch: &mut Vec<u8>) -> Result<bool, QueueError> {
        let mut is_active = false;
        loop {
            scratch.clear();
            let from = {
                let mut tail = self.tail.lock();
                let Some(units) = tail.as_deref_mut() else { return Ok(false) };
                let pending = (units.written - units.first) as usize;
                // To the end of the file and not more than a chunk: the lock stands in the way of the log.
                let room = (self.shared.file_end(units.written) - units.written).min(FLUSH_UNITS) as usize;
                // In two pieces, as they lie: unit by unit would take several times as long.
                let (front, back) = units.recent.as_slices();
                let of_front = front.get(pending..).unwrap_or_default();
                let of_back = back.get(pending.saturating_sub(front.len())..).unwrap_or_default();
                let count = room.min(of_front.len());
                scratch.extend_from_slice(of_front[..count].as_flattened());
                scratch.extend_from_slice(of_back[..(room - count).min(of_back.len())].as_flattened());
                if scratch.is_empty() {
                    if is_active {
                        units.forget_all_but(window);
                    } else {
                        *tail = None;
                    }
                    return Ok(is_active);
                }
                units.written
            };
            is_active = true;
            self.write(from, scratch)?;
            let count = (scratch.len() / UNIT_BYTES) as u64;
            // Gone when the topic was deleted meanwhile, which has counted the units already.
            if let Some(tail) = self.tail.lock().as_deref_mut() {
                tail.written += count;
                self.shared.count_written(count);
            }
        }
    }

    /// Writes units, all of one file, at `from`; makes the file if it is the next one.
    pub(super) fn write(&self, from: u64, bytes: &[u8]) -> Result<(), QueueError> {
        let file_start = self.shared.file_start(from);
        let file =
            if file_start < self.files_end.load(Ordering::Acquire) { self.file(from)? } else { self.make_file(from)? };
        let at = self.shared.byte_in_file(from);
        file.write_at(bytes, at).map_err(|source| self.failed("write", from, source))?;
        self.shared.unsynced.lock().note(self.number, file_start, &file);
        Ok(())
    }

    fn make_file(&self, from: u64) -> Result<Arc<dyn DiskFile>, QueueError> {
        let dir = self.dir();
        let shared = &self.shared;
        shared.disk.create_dir(&dir).map_err(|source| QueueError::disk("make", &dir, source))?;
        let file_start = shared.file_start(from);
        let path = || file_path(&dir, file_start * UNIT_BYTES as u64);
        let file = shared.descriptors.get(&*shared.disk, (self.number, file_start), OpenHow::Create, path)?;
        file.set_len(shared.file_bytes).map_err(|source| self.failed("extend", from, source))?;
        let is_first = self.files_end.load(Ordering::Acquire) == self.first_file.load(Ordering::Acquire);
        if is_first {
            // RocketMQ takes a unit of zeros for the queue's end, so the stretch that never held units is not left zero.
            let blanks = Unit::BLANK.encode().repeat(CHUNK_UNITS);
            let end = (from - file_start) * UNIT_BYTES as u64;
            for at in (0..end).step_by(blanks.len()) {
                let bytes = blanks.len().min((end - at) as usize);
                file.write_at(&blanks[..bytes], at).map_err(|source| self.failed("write", from, source))?;
            }
            self.first_file.store(file_start, Ordering::Release);
        }
        self.files_end.store(file_start + shared.units_per_file(), Ordering::Release);
        shared.unsynced.lock().note_made(dir);
        Ok(file)
    }

    /// Removes the files that begin in `from..to`. Under the maintenance lock.
    pub(super) fn remove_files(&self, from: u64, to: u64) -> Result<(), QueueError> {
        let dir = self.dir();
        for start in (from..to).step_by(self.shared.units_per_file() as usize) {
            let path = file_path(&dir, start * UNIT_BYTES as u64);
            self.shared.disk.remove(&path).map_err(|source| QueueError::disk("remove", &path, source))?;
        }
        self.shared.descriptors.forget(self.number, from, to);
        self.shared.unsynced.lock().forget(self.number, from, to);
        Ok(())
    }

    pub(super) fn file(&self, offset: u64) -> Result<Arc<dyn DiskFile>, QueueError> {
        let file_start = self.shared.file_start(offset);
        let path = || file_path(&self.dir(), file_start * UNIT_BYTES as u64);
        self.shared.descriptors.get(&*self.shared.disk, (self.number, file_start), OpenHow::Write, path)
    }

    pub(super) fn dir(&self) -> PathBuf {
        let mut dir = self.shared.dir.join(&*self.topic);
        dir.push(self.id.to_string());
        dir
    }

    pub(super) fn failed(&self, doing: &'static str, offset: u64, source: std::io::Error) -> QueueError {
        let path = file_path(&self.dir(), self.shared.file_start(offset) * UNIT_BYTES as u64);
        QueueError::disk(doing, &path, source)
    }
}

/// Units that one turn of a flush copies out under the tail's lock: 80 KiB, some 10 µs.
const FLUSH_UNITS: u64 = 4096;

impl Tail {
    /// Drops written units from the front until at most `window` are left, and memory that a past burst needed and a good many
    /// flushes since did not: what a busy queue gave back, its next push would have to get again under the log's lock.
    fn forget_all_but(&mut self, window: usize) {
        self.usual = self.recent.len().max(self.usual - self.usual.div_ceil(16));
        let beyond = self.recent.len().saturating_sub(window);
        let forgotten = beyond.min((self.written - self.first) as usize);
        self.recent.drain(..forgotten);
        self.first += forgotten as u64;
        let capacity_wanted = (self.usual * 2).max(16);
        if self.recent.capacity() > capacity_wanted * 4 {
            self.recent.shrink_to(capacity_wanted);
        }
    }
}

impl std::fmt::Debug for ConsumeQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ConsumeQueue({}/{} {}..{})", self.topic, self.id, self.min_offset(), self.max_offset())
    }
}
