//! Units on their way into files, and files that come and go. Under the maintenance lock, but for the look at a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk::{DiskFile, OpenHow};

use super::descriptors::file_path;
use super::error::QueueError;
use super::queue::ConsumeQueue;
use super::unit::Unit;

/// Units that one turn of a flush copies out under the tail's lock: 80 KiB, some 10 µs.
const FLUSH_UNITS: u64 = 4096;
/// Blank units written at once.
const BLANK_UNITS: usize = 204;

impl ConsumeQueue {
    /// Writes what is not yet in files, unless that is fewer units than `least`, then keeps at most `window` bytes of units in memory. Says
    /// whether there was anything; if not, the queue has given its memory back and is no longer listed. Under the maintenance lock.
    pub(super) fn flush(&self, window: usize, least: usize, scratch: &mut Vec<u8>) -> Result<bool, QueueError> {
        let mut is_active = false;
        loop {
            scratch.clear();
            let from = {
                let mut tail = self.tail.lock();
                let Some(units) = tail.as_deref_mut() else { return Ok(false) };
                let pending = units.pending_bytes();
                if !is_active && pending > 0 && pending < (least * self.layout().unit_bytes) as u64 {
                    return Ok(true);
                }
                let from = units.written();
                // To the end of the file and not more than a chunk: the lock stands in the way of the log.
                units.copy_pending((self.layout().file_end(from) - from).min(FLUSH_UNITS), scratch);
                if scratch.is_empty() {
                    if is_active {
                        units.forget_all_but(window);
                    } else {
                        *tail = None;
                    }
                    return Ok(is_active);
                }
                from
            };
            is_active = true;
            self.write(from, scratch)?;
            // Gone when the topic was deleted meanwhile, which has counted the units already.
            if let Some(tail) = self.tail.lock().as_deref_mut() {
                tail.note_written(scratch.len());
                self.shared.count_written(scratch.len() as u64);
            }
        }
    }

    /// Writes units, all of one file, from a place on; makes the file if it is the next one.
    pub(super) fn write(&self, from: u64, bytes: &[u8]) -> Result<(), QueueError> {
        let file_start = self.layout().file_start(from);
        let file =
            if file_start < self.files_end.load(Ordering::Acquire) { self.file(from)? } else { self.make_file(from)? };
        let at = self.layout().byte_in_file(from);
        file.write_at(bytes, at).map_err(|source| self.failed("write", from, source))?;
        self.shared.unsynced.lock().note(self.number, file_start, &file);
        Ok(())
    }

    fn make_file(&self, from: u64) -> Result<Arc<dyn DiskFile>, QueueError> {
        let dir = self.dir();
        let (shared, layout) = (&self.shared, self.layout());
        shared.disk.create_dir(&dir).map_err(|source| QueueError::disk("make", &dir, source))?;
        let file_start = layout.file_start(from);
        let path = || file_path(&dir, layout.byte_of(file_start));
        let file = shared.descriptors.get(&*shared.disk, (self.number, file_start), OpenHow::Create, path)?;
        file.set_len(layout.file_bytes).map_err(|source| self.failed("extend", from, source))?;
        let is_first = self.files_end.load(Ordering::Acquire) == self.first_file.load(Ordering::Acquire);
        if is_first {
            // RocketMQ takes a unit of zeros for the queue's end, so the stretch that never held units is not left zero.
            let blanks = Unit::BLANK.encode().repeat(BLANK_UNITS);
            let end = layout.byte_of(from - file_start);
            for at in (0..end).step_by(blanks.len()) {
                let bytes = blanks.len().min((end - at) as usize);
                file.write_at(&blanks[..bytes], at).map_err(|source| self.failed("write", from, source))?;
            }
            self.first_file.store(file_start, Ordering::Release);
        }
        self.files_end.store(file_start + layout.units_per_file(), Ordering::Release);
        shared.unsynced.lock().note_made(dir);
        Ok(file)
    }

    /// Removes the files that begin at places of `from..to`. Under the maintenance lock.
    pub(super) fn remove_files(&self, from: u64, to: u64) -> Result<(), QueueError> {
        let (dir, layout) = (self.dir(), self.layout());
        for start in (from..to).step_by(layout.units_per_file() as usize) {
            let path = file_path(&dir, layout.byte_of(start));
            self.shared.disk.remove(&path).map_err(|source| QueueError::disk("remove", &path, source))?;
        }
        self.shared.descriptors.forget(self.number, from, to);
        self.shared.unsynced.lock().forget(self.number, from, to);
        Ok(())
    }

    pub(super) fn file(&self, place: u64) -> Result<Arc<dyn DiskFile>, QueueError> {
        let layout = self.layout();
        let file_start = layout.file_start(place);
        let path = || file_path(&self.dir(), layout.byte_of(file_start));
        self.shared.descriptors.get(&*self.shared.disk, (self.number, file_start), OpenHow::Write, path)
    }

    pub(super) fn dir(&self) -> PathBuf {
        let mut dir = self.layout().dir.join(self.topic());
        dir.push(self.id().to_string());
        dir
    }

    pub(super) fn failed(&self, doing: &'static str, place: u64, source: std::io::Error) -> QueueError {
        let path = file_path(&self.dir(), self.layout().byte_of(self.layout().file_start(place)));
        QueueError::disk(doing, &path, source)
    }
}
