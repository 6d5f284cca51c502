//! One file of the commit log, mapped.
//!
//! Bytes below `published` never change again and may be read by anybody; bytes above belong to the one thread that holds the
//! log's lock. Here and in `journal/window.rs` is the crate's `unsafe` code.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use disk::pages::Resident;
use disk::{Disk, DiskFile, OpenHow, pages};
use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::record::{self, Scanned};
use rustix::io::Errno;

use crate::error::StoreError;
use crate::governor::ColdPages;
use crate::rewrite;
use crate::stretch::Copied;

#[cfg(test)]
mod tests;

/// Pages are this large on every machine that we run on; larger ones only make rounding coarser than needed.
const PAGE: u64 = 4096;
/// Records up to this size are copied to be looked at: no message is larger. What is no record may claim to be.
const SCRATCH_MAX: usize = 64 << 20;
/// Of what is written again so much is on its way to the device at a time: memory has a limit.
const AGAIN_BYTES: usize = 64 << 20;

/// How the kernel reads pages of the log that are not in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// With pages around them, as it does by default (`MADV_NORMAL`).
    Ahead,
    /// Alone (`MADV_RANDOM`).
    Random,
}

/// A file of the log, `bytes` long, whose first byte has the log offset `base`.
pub struct Segment {
    base: u64,
    bytes: u64,
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// Open while there is something to prepare or to flush, so that a log of a thousand files does not need as many
    /// descriptors. Guards nothing else; nothing is taken inside it.
    file: Mutex<Option<Arc<dyn DiskFile>>>,
    map: MmapRaw,
    /// How many bytes may be read. Release here pairs with Acquire in `as_ref`: seeing the length is seeing the bytes.
    published: AtomicU64,
    /// Whether somebody read in it since pages of it were let go of. Relaxed: a hint.
    was_read: AtomicBool,
    /// Mapped for reading alone: to write into it would end the process with a signal.
    is_read_only: bool,
    /// Whether what is brought in comes with the rest of its chunk, where pages are accounted for. Relaxed: a hint.
    reads_ahead: AtomicBool,
    /// Where pages that are brought in are accounted for, and what leads to this from there.
    cold: Arc<ColdPages>,
    myself: Weak<Segment>,
}

/// Where pages are accounted for, reads bring in what they ask for and no more: some devices are set up for megabytes ahead, and we read ahead
/// ourselves.
fn open_file(disk: &dyn Disk, path: &Path, how: OpenHow, cold: &ColdPages) -> io::Result<Arc<dyn DiskFile>> {
    let file = disk.open(path, how)?;
    if cold.is_bounded() {
        // A hint: without it more memory is used.
        let _ = rustix::fs::fadvise(file.descriptor(), 0, None, rustix::fs::Advice::Random);
    }
    Ok(file)
}

/// RocketMQ's name of the file that begins at `base`.
pub(crate) fn file_name(base: u64) -> String {
    format!("{base:020}")
}

impl Segment {
    /// Makes the file (sparse, at its full length, as RocketMQ expects) if it is not there, and maps it.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        base: u64,
        bytes: u64,
        cold: &Arc<ColdPages>,
    ) -> Result<Arc<Segment>, StoreError> {
        let path = dir.join(file_name(base));
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = open_file(&**disk, &path, OpenHow::Create, cold).map_err(failed("open"))?;
        if file.len().map_err(failed("measure"))? != bytes {
            file.set_len(bytes).map_err(failed("extend"))?;
        }
        let length = usize::try_from(bytes).map_err(|_| failed("map")(io::Error::from(io::ErrorKind::InvalidInput)))?;
        let map = MmapOptions::new().len(length).map_raw(file.descriptor().as_raw_fd()).map_err(failed("map"))?;
        Ok(Segment::mapped(disk, file, path, base, map, false, cold))
    }

    /// Maps a file that cannot be written, and has its full length.
    pub(crate) fn open_read_only(
        disk: &Arc<dyn Disk>,
        dir: &Path,
        base: u64,
        bytes: u64,
        cold: &Arc<ColdPages>,
    ) -> Result<Arc<Segment>, StoreError> {
        let path = dir.join(file_name(base));
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = open_file(&**disk, &path, OpenHow::Read, cold).map_err(failed("open"))?;
        if file.len().map_err(failed("measure"))? != bytes {
            return Err(failed("extend")(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        let length = usize::try_from(bytes).map_err(|_| failed("map")(io::Error::from(io::ErrorKind::InvalidInput)))?;
        let options = MmapOptions::new().len(length).to_owned();
        let map = options.map_raw_read_only(file.descriptor().as_raw_fd()).map_err(failed("map"))?;
        Ok(Segment::mapped(disk, file, path, base, map, true, cold))
    }

    fn mapped(
        disk: &Arc<dyn Disk>,
        file: Arc<dyn DiskFile>,
        path: PathBuf,
        base: u64,
        map: MmapRaw,
        is_read_only: bool,
        cold: &Arc<ColdPages>,
    ) -> Arc<Segment> {
        let segment = Arc::new_cyclic(|myself| Segment {
            base,
            bytes: map.len() as u64,
            path,
            disk: Arc::clone(disk),
            file: Mutex::new(Some(file)),
            map,
            published: AtomicU64::new(0),
            was_read: AtomicBool::new(false),
            is_read_only,
            reads_ahead: AtomicBool::new(true),
            cold: Arc::clone(cold),
            myself: Weak::clone(myself),
        });
        if cold.is_exact() {
            segment.touch_singly(base, segment.end());
        }
        segment
    }

    /// From now on a touch of `from..to` (log offsets) brings in what is touched, and nothing around it: not megabytes ahead, as some devices are
    /// set up for, nor pages so large that they cannot be given back singly.
    pub(crate) fn touch_singly(&self, from: u64, to: u64) {
        let (start, end) = self.pages(from, to);
        // A hint: without it more memory is used.
        let _ = self.map.advise_range(Advice::Random, start as usize, (end - start) as usize);
    }

    /// Undoes that.
    pub(crate) fn touch_around(&self, from: u64) {
        let (start, end) = self.pages(from, self.end());
        let _ = self.map.advise_range(Advice::Normal, start as usize, (end - start) as usize);
    }

    /// What does not keep it.
    pub(crate) fn myself(&self) -> Weak<Segment> {
        Weak::clone(&self.myself)
    }

    /// Maps as many bytes as the file has, to be read only. For those who look at a store that nobody writes: nothing is made or
    /// extended, and a write through the mapping would be a fault.
    pub(crate) fn look(disk: &Arc<dyn Disk>, dir: &Path, base: u64) -> Result<Arc<Segment>, StoreError> {
        let path = dir.join(file_name(base));
        let failed = |doing| {
            let path = path.clone();
            move |source| StoreError::Disk { doing, path, source }
        };
        let file = disk.open(&path, OpenHow::Read).map_err(failed("open"))?;
        let bytes = file.len().map_err(failed("measure"))?;
        let length = usize::try_from(bytes).map_err(|_| failed("map")(io::Error::from(io::ErrorKind::InvalidInput)))?;
        let options = MmapOptions::new().len(length).to_owned();
        let map = options.map_raw_read_only(file.descriptor().as_raw_fd()).map_err(failed("map"))?;
        let segment = Segment::mapped(disk, file, path, base, map, true, &Arc::new(ColdPages::unbounded()));
        segment.publish(segment.end());
        segment.rest();
        Ok(segment)
    }

    /// The log offset of its first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The log offset behind its last byte.
    pub fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Whether a log offset lies in it.
    pub(crate) fn holds(&self, at: u64) -> bool {
        (self.base..self.end()).contains(&at)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it cannot be written.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Closes the file: everything in it is written and flushed. Whoever needs it after all opens it again.
    pub(crate) fn rest(&self) {
        let file = self.file.lock().take();
        drop(file);
    }

    fn file(&self) -> io::Result<Arc<dyn DiskFile>> {
        if let Some(file) = &*self.file.lock() {
            return Ok(Arc::clone(file));
        }
        let how = if self.is_read_only { OpenHow::Read } else { OpenHow::Write };
        let file = open_file(&*self.disk, &self.path, how, &self.cold)?;
        *self.file.lock() = Some(Arc::clone(&file));
        Ok(file)
    }

    /// Lets readers see everything below `to`, a log offset.
    pub(crate) fn publish(&self, to: u64) {
        self.published.fetch_max(to.saturating_sub(self.base).min(self.bytes), Ordering::Release);
    }

    /// Takes back what was published above `to`. For recovery, before there are readers.
    pub(crate) fn unpublish(&self, to: u64) {
        self.published.store(to.saturating_sub(self.base).min(self.bytes), Ordering::Release);
    }

    /// Copies `bytes` to the log offset `at`. Only whoever holds the log's lock may call it, for what is not published.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        let start = (at - self.base) as usize;
        assert!(!self.is_read_only, "nothing is appended to a file that cannot be written");
        assert!(start as u64 >= self.published.load(Ordering::Relaxed), "published bytes do not change");
        assert!(start + bytes.len() <= self.map.len(), "a write stays inside its segment");
        // SAFETY: the range lies inside the mapping (asserted), which may be written (asserted) and lives as long as `self`. Nobody else writes: the caller
        // holds the log's lock. Nobody reads: `as_ref` shows published bytes only, and these are not (asserted).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(start), bytes.len()) };
    }

    /// Writes `bytes` to the log offset `at` through the file, which may wait for the device. Only the thread `commit` may call it, for what is
    /// not published.
    pub(crate) fn write_through(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let start = at - self.base;
        assert!(!self.is_read_only, "nothing is appended to a file that cannot be written");
        assert!(start >= self.published.load(Ordering::Relaxed), "published bytes do not change");
        assert!(start + bytes.len() as u64 <= self.bytes, "a write stays inside its segment");
        self.file()?.write_at(bytes, start)
    }

    /// Gives the log offsets `from..to` their blocks on the device, so that writing them cannot meet a full disk (which a
    /// mapping would answer with a signal). `with_zeros`: and writes zeros there.
    pub(crate) fn allocate(&self, from: u64, to: u64, with_zeros: bool) -> io::Result<()> {
        let (start, end) = self.pages(from, to);
        if start == end {
            return Ok(());
        }
        let file = self.file()?;
        let is_allocated = match file.allocate(start, end - start) {
            Ok(()) => true,
            // Not every file system can; writing zeros is the plain way to the same end.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => false,
            Err(error) => return Err(error),
        };
        if !is_allocated || with_zeros {
            // Only to what was asked for: in the page before it there are records.
            write_zeros(&*file, from.clamp(self.base, self.end()) - self.base, end)?;
        }
        Ok(())
    }

    /// Brings the pages of the log offsets `from..to` into memory, so that writing them faults none. `in_bulk`: as many at a time as the kernel
    /// likes, some MiB beyond `to` perhaps, also where each touch counts ([`touch_singly`](Segment::touch_singly)). Singly each page is a fault that
    /// the kernel takes for one that waited for the device.
    ///
    /// An error is what a write there would meet as a signal: a file system that gives blocks anew to what is written over, say, and has none left.
    pub(crate) fn populate(&self, from: u64, to: u64, in_bulk: bool) -> io::Result<()> {
        let (start, end) = self.pages(from, to);
        let advise = |advice| self.map.advise_range(advice, start as usize, (end - start) as usize);
        let is_exact = in_bulk && self.cold.is_exact();
        // A hint, as is the one below.
        let _ = is_exact.then(|| advise(Advice::Normal));
        let populated = match advise(Advice::PopulateWrite) {
            // Old kernels (before 5.14) do not know this advice.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.touch(from, to);
                Ok(())
            }
            // The kernel's word for a signal that it spared us.
            Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                Err(io::Error::other("the file system gives no pages to write to; it may be full, or damaged"))
            }
            done => done,
        };
        let _ = is_exact.then(|| advise(Advice::Random));
        populated
    }

    /// The plain way to the same end: one byte of each page is written as it is. Only of pages that begin at `from` or behind it, since others
    /// append to the one in which it lies; that one came with the stretch before.
    fn touch(&self, from: u64, to: u64) {
        assert!(!self.is_read_only, "nothing is appended to a file that cannot be written");
        let (_, end) = self.pages(from, to);
        let first = (from.clamp(self.base, self.end()) - self.base).next_multiple_of(PAGE);
        for at in (first..end).step_by(PAGE as usize) {
            // SAFETY: the byte lies inside the mapping, which may be written (asserted) and lives as long as `self`. Nobody else touches it:
            // appends stay below the log's room, which does not reach `from` before this returns, and readers see published bytes only.
            // Volatile, or it would be no write at all.
            unsafe {
                let byte = self.map.as_mut_ptr().add(at as usize);
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    fn note_read(&self) {
        // A look first: a store would take the cache line from the other readers.
        if !self.was_read.load(Ordering::Relaxed) {
            self.was_read.store(true, Ordering::Relaxed);
        }
    }

    /// Whether somebody read in it since this was last asked.
    pub(crate) fn take_was_read(&self) -> bool {
        self.was_read.load(Ordering::Relaxed) && self.was_read.swap(false, Ordering::Relaxed)
    }

    /// Takes the pages of `from..to` out of our page table; the kernel keeps them cached as it sees fit.
    pub(crate) fn let_go(&self, from: u64, to: u64) {
        let start = (from.clamp(self.base, self.end()) - self.base).next_multiple_of(PAGE);
        let end = (to.clamp(self.base, self.end()) - self.base) / PAGE * PAGE;
        if start < end {
            // SAFETY: the mapping is shared and backed by a file, so dropping pages loses nothing: the next access maps the
            // same bytes again.
            let _ = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start as usize, (end - start) as usize)
            };
        }
    }

    /// Takes the pages of `from..to` out of memory, as far as they are on the device: the next access reads them there. Says whether the kernel
    /// was told; it keeps what is dirty, or in use.
    pub(crate) fn forget_cached(&self, from: u64, to: u64) -> bool {
        let start = from.clamp(self.base, self.end()) - self.base;
        let end = to.clamp(self.base, self.end()) - self.base;
        if start >= end {
            return true;
        }
        // Pages that stand in a page table stay.
        self.let_go(from, to);
        self.touch_singly(from, to);
        self.with_file(|file| file.forget_cached(start, end - start)).is_ok()
    }

    /// How much of it is in memory.
    pub(crate) fn resident(&self) -> io::Result<Resident> {
        self.with_file(|file| pages::resident(file.descriptor(), 0, self.bytes))
    }

    /// Whether all of `from..to` is in memory, as far as it lies in the segment. Where the kernel does not say, it is not.
    pub(crate) fn has_in_memory(&self, from: u64, to: u64) -> bool {
        let (start, end) = self.pages(from, to);
        let found = self.with_file(|file| pages::resident(file.descriptor(), start, end));
        found.is_ok_and(|found| found.cached >= end - start)
    }

    /// Opens the file for one call only, if it rests.
    fn with_file<T>(&self, call: impl FnOnce(&dyn DiskFile) -> io::Result<T>) -> io::Result<T> {
        let open = self.file.lock().clone();
        let file = open.map_or_else(|| open_file(&*self.disk, &self.path, OpenHow::Read, &self.cold), Ok)?;
        call(&*file)
    }

    /// Tells the kernel how its pages will be read when they are not in memory: around what is asked for, or only that.
    pub(crate) fn advise(&self, mode: ReadMode) -> io::Result<()> {
        if self.cold.is_bounded() {
            // What is read ahead is accounted for, so it is read by us.
            self.reads_ahead.store(mode == ReadMode::Ahead, Ordering::Relaxed);
            return Ok(());
        }
        self.map.advise(match mode {
            ReadMode::Ahead => Advice::Normal,
            ReadMode::Random => Advice::Random,
        })
    }

    /// Brings published bytes into memory; waits for the device.
    ///
    /// To touch them instead would end the process with a signal if the device fails, or if somebody cut the file.
    pub(crate) fn bring_in(&self, range: Range<usize>) -> Result<(), StoreError> {
        if range.is_empty() {
            return Ok(());
        }
        self.note_read();
        let start = range.start / PAGE as usize * PAGE as usize;
        let bytes = range.end - start;
        let ahead = self.with_ahead(start..range.end);
        // The device works on all of it while the pages are mapped one by one.
        let _ = self.map.advise_range(Advice::WillNeed, start, ahead.len());
        let brought = match self.map.advise_range(Advice::PopulateRead, start, bytes) {
            // Kernels before 5.14 do not know this advice.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.read_through(start..range.end),
            // The kernel's word for a signal that it spared us.
            Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                // Reading the file the other way says why, if there is more to say. Without that, the page was never written.
                self.read_through(start..range.end).and(Err(io::Error::other(format!(
                    "the file system gives no page to read, and may be full ({error})"
                ))))
            }
            done => done,
        };
        self.cold.note(self, &ahead);
        brought.map_err(|source| StoreError::Read {
            path: self.path.clone(),
            at: self.base + range.start as u64,
            source,
        })
    }

    /// Where published bytes lie in the file; `None` where they are not (all) there.
    pub(crate) fn published_range(&self, at: u64, bytes: usize) -> Option<Range<usize>> {
        let start = usize::try_from(at.checked_sub(self.base)?).ok()?;
        let end = start.checked_add(bytes)?;
        (end <= self.published.load(Ordering::Acquire) as usize).then_some(start..end)
    }

    /// Where what is brought in is accounted for.
    pub(crate) fn cold_pages(&self) -> &ColdPages {
        &self.cold
    }

    /// Reads published stretches, which lie in their order, one behind the other; waits for the device. Not through the mapping, so that
    /// nothing of them stays in our page table.
    pub(crate) fn read_parts(&self, parts: &[Range<usize>]) -> Result<Vec<u8>, StoreError> {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(Vec::new()) };
        let gap = if self.reads_ahead.load(Ordering::Relaxed) { self.cold.ahead() } else { 0 };
        let mut brought: Vec<Range<usize>> = parts
            .chunk_by(|one, next| next.start - one.end <= gap)
            .filter_map(|near| Some(near.first()?.start / PAGE as usize * PAGE as usize..near.last()?.end))
            .collect();
        if let Some(end) = brought.last_mut() {
            *end = self.with_ahead(end.start..last.end);
        }
        let mut bytes = vec![0; parts.iter().map(Range::len).sum()];
        let read = self.with_file(|file| {
            // The device works on all of it while it is read bit by bit. A hint.
            for range in &brought {
                let length = NonZeroU64::new(range.len() as u64);
                let _ =
                    rustix::fs::fadvise(file.descriptor(), range.start as u64, length, rustix::fs::Advice::WillNeed);
            }
            let mut to = 0;
            for run in parts.chunk_by(|one, next| one.end == next.start) {
                let start = run.first().map_or(0, |part| part.start);
                let from = to;
                to += run.iter().map(Range::len).sum::<usize>();
                if file.read_at(&mut bytes[from..to], start as u64)? < to - from {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has lost its end"));
                }
            }
            Ok(())
        });
        self.cold.note_used(bytes.len(), self, &brought);
        let at = self.base + first.start as u64;
        read.map_err(|source| StoreError::Read { path: self.path.clone(), at, source })?;
        Ok(bytes)
    }

    /// A copy of published bytes, read through the file; waits for the device. None of more than `SCRATCH_MAX`, and where the file's name is
    /// gone, which leaves the mapping as it is.
    fn scratch(&self, range: Range<usize>) -> Result<Option<Vec<u8>>, StoreError> {
        if range.len() > SCRATCH_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; range.len()];
        let read = self.with_file(|file| match file.read_at(&mut bytes, range.start as u64)? {
            read if read < range.len() => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has lost its end"))
            }
            _ => Ok(()),
        });
        self.cold.note(self, &range);
        let at = self.base + range.start as u64;
        if read.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        read.map_err(|source| StoreError::Read { path: self.path.clone(), at, source })?;
        Ok(Some(bytes))
    }

    /// The published record that begins at the log offset `at`, or the first bytes of what is none; waits for the device. As in
    /// [`Segment::read_parts`] not through the mapping, but for what [`Segment::scratch`] does not give.
    pub(crate) fn record_bytes(&self, at: u64) -> Result<Cow<'_, [u8]>, StoreError> {
        let published = self.published.load(Ordering::Acquire) as usize;
        let start = usize::try_from(at.saturating_sub(self.base)).unwrap_or(usize::MAX).min(published);
        let Some(head) = self.scratch(start..published.min(start + RECORD_HEAD))? else {
            return self.mapped_record(at);
        };
        let rest = published - start;
        // A stated length that is no record's is not worth a read.
        let total = match head.first_chunk() {
            Some(total) if !matches!(record::scan(&head, false), Err(_) | Ok(Scanned::Blank { .. })) => {
                rest.min(u32::from_be_bytes(*total) as usize)
            }
            Some(_) | None => 0,
        };
        if total <= head.len() {
            return Ok(Cow::Owned(head));
        }
        if total > SCRATCH_MAX {
            return self.mapped_record(at);
        }
        self.note_read();
        match self.read_parts(std::slice::from_ref(&(start..start + total))) {
            Err(StoreError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => self.mapped_record(at),
            read => read.map(Cow::Owned),
        }
    }

    fn mapped_record(&self, at: u64) -> Result<Cow<'_, [u8]>, StoreError> {
        let rest = self.record_at(at)?;
        let bytes = match record::scan(rest, false) {
            Ok(Scanned::Record(view)) => view.total_size(),
            Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => rest.len().min(RECORD_HEAD),
        };
        Ok(Cow::Borrowed(&rest[..bytes]))
    }

    /// What is brought in with these bytes.
    fn with_ahead(&self, range: Range<usize>) -> Range<usize> {
        if !self.cold.is_bounded() || !self.reads_ahead.load(Ordering::Relaxed) {
            return range;
        }
        let ahead = self.cold.ahead();
        let published = self.published.load(Ordering::Relaxed) as usize;
        let end = if ahead == 0 { range.end } else { range.end.next_multiple_of(ahead) };
        range.start..end.min(published.max(range.end))
    }

    /// Reads the bytes and forgets them: they are in memory then, or the device says why not.
    fn read_through(&self, range: Range<usize>) -> io::Result<()> {
        let file = self.file()?;
        let mut buffer = vec![0; range.len().min(64 << 10)];
        let mut at = range.start;
        // Each turn reads a piece.
        while at < range.end {
            let wanted = buffer.len().min(range.end - at);
            if file.read_at(&mut buffer[..wanted], at as u64)? < wanted {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has lost its end"));
            }
            at += wanted;
        }
        Ok(())
    }

    /// What is published from the log offset `at` on.
    pub(crate) fn published_from(&self, at: u64) -> Option<&[u8]> {
        self.as_ref().get(usize::try_from(at.checked_sub(self.base)?).ok()?..)
    }

    /// As `published_from`; the record that begins there (and no more) is brought into memory.
    pub(crate) fn record_at(&self, at: u64) -> Result<&[u8], StoreError> {
        Walk::new(self, 0).record_at(at)
    }

    /// Makes everything in it survive a loss of power.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    /// Makes the log offsets `from..to`, as far as they lie in it, survive a loss of power.
    ///
    /// What is prepared behind them stays as it is. The kernel writes and write-protects whatever is dirty in a file that is synced as
    /// a whole, prepared pages among it: they would be written twice, and each of them would fault in the append that comes to it.
    pub(crate) fn sync_range(&self, from: u64, to: u64) -> io::Result<()> {
        let (start, end) = self.pages(from, to);
        let (start, bytes) = (start as usize, (end - start) as usize);
        match self.file() {
            Ok(file) => file.sync_mapped(&self.map, start, bytes),
            // There may be no descriptor left, or no name. Nothing has failed to reach the device by that, and what is mapped needs neither.
            Err(_) => self.map.flush_range(start, bytes).map_err(|error| self.disk.sync_failed(&self.path, error)),
        }
    }

    /// Writes again what it holds, and brings that to the device. For recovery after a failed sync. Returns how many bytes; none of a file that cannot
    /// be written.
    pub(crate) fn write_again(&self) -> io::Result<u64> {
        if self.is_read_only {
            return Ok(0);
        }
        let file = self.file()?;
        let mut written = 0;
        for at in (0..self.bytes).step_by(AGAIN_BYTES) {
            let some = rewrite::write_data(&*file, at, self.bytes.min(at + AGAIN_BYTES as u64))?;
            if some > 0 {
                file.sync_data()?;
                written += some;
            }
        }
        Ok(written)
    }

    /// Writes over what stands at a log offset. For recovery, where that is damaged.
    pub(crate) fn mend(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file()?;
        file.write_at(bytes, at - self.base)?;
        file.sync_data()
    }

    /// Where, from `place` in the file on, the first byte lies that may be other than zero.
    pub(crate) fn data_from(&self, place: usize) -> io::Result<Option<usize>> {
        let found = self.file()?.data_from(place as u64)?;
        Ok(found.and_then(|data| usize::try_from(data).ok()).filter(|data| (*data as u64) < self.bytes))
    }

    /// Where, from `place` in the file on, the first stretch begins that was never written, as far as the file system knows; the file's end if
    /// there is none.
    pub(crate) fn hole_from(&self, place: usize) -> io::Result<usize> {
        let found = self.file()?.hole_from(place as u64)?;
        Ok(found.filter(|hole| *hole > place as u64).unwrap_or(self.bytes).min(self.bytes) as usize)
    }

    /// Whether nothing was ever written at a place in the file, as far as the file system knows.
    fn is_hole_at(&self, place: usize) -> bool {
        self.with_file(|file| file.hole_from(place as u64)).is_ok_and(|hole| hole == Some(place as u64))
    }

    /// Zeroes everything from the log offset `from` on. For recovery: a reader of RocketMQ's takes zeros for the end.
    pub(crate) fn cut(&self, from: u64) -> io::Result<()> {
        zero(&*self.file()?, from - self.base, self.bytes)?;
        // Not all of the file: before these zeros there may be a gigabyte on its way to the device.
        self.sync_range(from, self.end())
    }

    /// Whether any byte in `range` is not zero. Holes are not looked at.
    pub(crate) fn has_bytes(&self, range: Range<usize>) -> io::Result<bool> {
        let file = self.file()?;
        // Read, not through the mapping: what is looked at here is not needed again.
        let mut buffer = vec![0; 64 << 10];
        let mut at = range.start;
        // Each turn looks at a piece, and the file system says where the next one is.
        while at < range.end {
            match file.data_from(at as u64)? {
                Some(data) if data < range.end as u64 => at = data as usize,
                Some(_) | None => return Ok(false),
            }
            let wanted = buffer.len().min(range.end - at);
            let read = if self.cold.is_bounded() {
                file.read_once_at(&mut buffer[..wanted], at as u64)?
            } else {
                file.read_at(&mut buffer[..wanted], at as u64)?
            };
            if buffer[..read].iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
            at += wanted;
        }
        Ok(false)
    }

    fn pages(&self, from: u64, to: u64) -> (u64, u64) {
        let start = (from.clamp(self.base, self.end()) - self.base) / PAGE * PAGE;
        let end = (to.clamp(self.base, self.end()) - self.base).next_multiple_of(PAGE).min(self.bytes);
        (start, end.max(start))
    }
}

/// Bytes that a scan brings into memory at once.
pub(crate) const SCAN_STRETCH: usize = 1 << 20;

/// Looks at one record of a segment after the other, and brings them into memory by the stretch: small ones at first, since what
/// follows may be the log's end.
pub(crate) struct Walk<'a> {
    segment: &'a Segment,
    /// Bytes up to here are in memory, from where the walk began.
    to: usize,
    stretch: usize,
    stretch_max: usize,
}

impl<'a> Walk<'a> {
    /// Brings in up to `stretch_max` bytes beyond what is looked at.
    pub fn new(segment: &'a Segment, stretch_max: usize) -> Walk<'a> {
        Walk { segment, to: 0, stretch: stretch_max.min(16 << 10), stretch_max }
    }

    /// One that begins at `from` or behind it, with everything below `to` brought in at once. Both are log offsets of published bytes, which
    /// come with it.
    pub fn ahead(segment: &'a Segment, from: u64, to: u64) -> Result<(Walk<'a>, &'a [u8]), StoreError> {
        let range = (from - segment.base) as usize..(to - segment.base) as usize;
        segment.bring_in(range.clone())?;
        let walk = Walk { segment, to: range.end, stretch: 0, stretch_max: 0 };
        Ok((walk, &segment.as_ref()[range]))
    }

    /// What is published from the log offset `at` on; the record that begins there is in memory, or the first bytes of what
    /// is none.
    pub fn record_at(&mut self, at: u64) -> Result<&'a [u8], StoreError> {
        let bytes = self.segment.as_ref();
        let start = usize::try_from(at.saturating_sub(self.segment.base)).unwrap_or(usize::MAX).min(bytes.len());
        let rest = &bytes[start..];
        if let Err(error) = self.bring_in(start, rest.len().min(RECORD_HEAD), bytes.len()) {
            // A file system in memory that is full gives no page to look at what was never written, and nothing is there.
            return if self.segment.is_hole_at(start) { Ok(&rest[..0]) } else { Err(error) };
        }
        if let Some(total) = rest.first_chunk().map(|total| u32::from_be_bytes(*total)) {
            // A stated length that is no record's brings in too much at worst.
            self.bring_in(start, rest.len().min(total as usize), bytes.len())?;
        }
        Ok(rest)
    }

    fn bring_in(&mut self, start: usize, bytes: usize, end: usize) -> Result<(), StoreError> {
        let wanted = start + bytes;
        if wanted <= self.to {
            return Ok(());
        }
        let to = (wanted + self.stretch).min(end);
        // What is asked for must be there; what lies behind it is somebody else's question.
        self.segment.bring_in(start..wanted)?;
        self.to = if self.stretch > 0 && self.segment.bring_in(wanted..to).is_ok() { to } else { wanted };
        self.stretch = (self.stretch * 2).min(self.stretch_max);
        Ok(())
    }
}

/// Length and magic code.
const RECORD_HEAD: usize = 8;

/// Leaves zeros in a file from one byte to another.
pub(crate) fn zero(file: &dyn DiskFile, start: u64, end: u64) -> io::Result<()> {
    let page = start.next_multiple_of(PAGE).min(end);
    write_zeros(file, start, page)?;
    if page == end {
        return Ok(());
    }
    match file.punch(page, end - page) {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => write_zeros(file, page, end),
        punched => punched,
    }
}

fn write_zeros(file: &dyn DiskFile, start: u64, end: u64) -> io::Result<()> {
    let zeros = [0; 64 << 10];
    for at in (start..end).step_by(zeros.len()) {
        let bytes = (end - at).min(zeros.len() as u64) as usize;
        file.write_at(&zeros[..bytes], at)?;
    }
    Ok(())
}

impl AsRef<[u8]> for Segment {
    /// What is published.
    fn as_ref(&self) -> &[u8] {
        let published = self.published.load(Ordering::Acquire) as usize;
        // SAFETY: the mapping is at least this long and lives as long as `self`. Published bytes are not written again (see
        // `write`); recovery, which may `cut`, runs before there are readers. Another process must not write the file: the
        // store's lock keeps other brokers out.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), published) }
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} +{} of {})", self.base, self.published.load(Ordering::Relaxed), self.bytes)
    }
}

/// Bytes of the log that stay readable as long as this is held, also when their file is deleted.
#[derive(Clone)]
pub struct LogSlice {
    owner: Owner,
    at: u64,
    range: Range<usize>,
}

/// Who keeps the bytes.
#[derive(Clone)]
enum Owner {
    /// Their place in the log.
    Segment(Arc<Segment>),
    /// A copy: see [`crate::stretch`].
    Copied(Arc<Copied>),
}

impl LogSlice {
    /// The published bytes of `segment` from the log offset `at` on; `None` where they are not (all) there.
    pub(crate) fn new(segment: &Arc<Segment>, at: u64, bytes: usize) -> Option<LogSlice> {
        let range = segment.published_range(at, bytes)?;
        segment.note_read();
        Some(LogSlice { owner: Owner::Segment(Arc::clone(segment)), at, range })
    }

    /// Bytes of a copy, which stand in the log at the log offset `at`.
    pub(crate) fn of_copy(copied: &Arc<Copied>, at: u64, range: Range<usize>) -> LogSlice {
        LogSlice { owner: Owner::Copied(Arc::clone(copied)), at, range }
    }

    /// Where it begins.
    pub fn at(&self) -> LogOffset {
        LogOffset(self.at)
    }

    /// Who keeps the bytes, and which of them they are.
    pub fn into_parts(self) -> (Arc<dyn AsRef<[u8]> + Send + Sync>, Range<usize>) {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = match self.owner {
            Owner::Segment(segment) => segment,
            Owner::Copied(copied) => copied,
        };
        (owner, self.range)
    }

    /// Its bytes as the device gives them, to be looked at: not in the mapping, where a page may be dropped for another reader meanwhile, and a
    /// device that fails then would be a signal.
    pub(crate) fn to_check(&self) -> Result<Cow<'_, [u8]>, StoreError> {
        match &self.owner {
            Owner::Segment(segment) => {
                Ok(segment.scratch(self.range.clone())?.map_or_else(|| Cow::Borrowed(self.as_ref()), Cow::Owned))
            }
            Owner::Copied(_) => Ok(Cow::Borrowed(self.as_ref())),
        }
    }

    /// The fields of a fixed place at its beginning, in the same way.
    pub(crate) fn head_to_check(&self) -> Result<Cow<'_, [u8]>, StoreError> {
        let head = self.range.start..self.range.end.min(self.range.start + record::at::BODY);
        match &self.owner {
            Owner::Segment(segment) => {
                let copy = segment.scratch(head.clone())?;
                Ok(copy.map_or_else(|| Cow::Borrowed(&(**segment).as_ref()[head]), Cow::Owned))
            }
            Owner::Copied(copied) => Ok(Cow::Borrowed(&(**copied).as_ref()[head])),
        }
    }

    /// Brings it into memory; waits for the device.
    pub(crate) fn bring_in(&self) -> Result<(), StoreError> {
        match &self.owner {
            Owner::Segment(segment) => segment.bring_in(self.range.clone()),
            Owner::Copied(_) => Ok(()),
        }
    }
}

impl AsRef<[u8]> for LogSlice {
    fn as_ref(&self) -> &[u8] {
        let all = match &self.owner {
            Owner::Segment(segment) => (**segment).as_ref(),
            Owner::Copied(copied) => (**copied).as_ref(),
        };
        &all[self.range.clone()]
    }
}

impl fmt::Debug for LogSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogSlice({} bytes at {})", self.range.len(), self.at)
    }
}
