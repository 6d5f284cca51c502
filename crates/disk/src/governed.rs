//! A file system whose files give their pages back: what was read or written longest ago makes way for what is now.
//!
//! It stands between consume queues, the key index and timer messages on one side and the machine's file system on the other, and notes what
//! passes. Pages are noted in two generations. When the young one has grown to half of the budget, the old one is dropped, the young one
//! is sent to the device, and is the old one from then on: so what is dropped has been written, as a rule, and what is used all the time
//! is always noted anew.

use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use memmap2::MmapRaw;
use parking_lot::Mutex;
use rustix::fs::Advice;

use crate::layer::{DiskLayer, FileLayer};
use crate::pages;
use crate::seam::{Disk, DiskFile, OpenHow};

const PAGE: u64 = 4096;
/// Stretches of a file are noted by this much of it: no page of the kernel's is larger.
const CHUNK: u64 = 2 << 20;
/// Who reads on where he stopped gets so much ahead.
const AHEAD: u64 = 128 << 10;

/// Puts a budget over the files that are opened through the result.
pub fn governed(disk: &Arc<dyn Disk>, pages: &Arc<FilePages>) -> Arc<dyn Disk> {
    Arc::new(GovernedDisk { inner: Arc::clone(disk), pages: Arc::clone(pages) })
}

/// Pages that passed, and the budget for them.
#[derive(Debug)]
pub struct FilePages {
    limit: u64,
    disk: Arc<dyn Disk>,
    /// Guards nothing else; nothing is taken inside it, and no call of the system made under it.
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    young: Generation,
    old: Generation,
}

#[derive(Debug, Default)]
struct Generation {
    bytes: u64,
    stretches: HashMap<(Arc<Path>, u64), (u64, u64), FixedState>,
}

impl Generation {
    /// Adds a stretch of one chunk.
    fn add(&mut self, path: &Arc<Path>, chunk: u64, from: u64, to: u64) {
        let stretch = self.stretches.entry((Arc::clone(path), chunk)).or_insert((from, from));
        let before = stretch.1 - stretch.0;
        *stretch = (stretch.0.min(from), stretch.1.max(to));
        self.bytes += stretch.1 - stretch.0 - before;
    }
}

impl FilePages {
    /// None is noted yet. Notes go back to `disk` when `limit` bytes are reached.
    pub fn new(limit: u64, disk: &Arc<dyn Disk>) -> FilePages {
        FilePages { limit, disk: Arc::clone(disk), noted: Mutex::new(Noted::default()) }
    }

    /// Bytes that are noted.
    pub fn bytes(&self) -> u64 {
        let noted = self.noted.lock();
        noted.young.bytes + noted.old.bytes
    }

    fn note(&self, path: &Arc<Path>, from: u64, to: u64) {
        let (from, to) = (from / PAGE * PAGE, to.next_multiple_of(PAGE));
        let full = {
            let mut noted = self.noted.lock();
            for chunk in from / CHUNK..to.div_ceil(CHUNK) {
                let begin = chunk * CHUNK;
                noted.young.add(path, chunk, from.max(begin), to.min(begin + CHUNK));
            }
            (noted.young.bytes > self.limit / 2).then(|| noted.turn())
        };
        if let Some(full) = full {
            self.give_back(full);
        }
    }

    fn give_back(&self, Turned { gone, aging }: Turned) {
        for (path, from, to) in aging {
            self.with(&path, |file| pages::start_writing(file.descriptor(), from, to - from));
        }
        for (path, from, to) in gone {
            self.with(&path, |file| {
                // What is dirty cannot be dropped. Of a failure hears whoever syncs through a descriptor that was open before, as all do who have
                // to know of it: they keep the one that they wrote with.
                let _ = pages::finish_writing(file.descriptor(), from, to - from);
                file.forget_cached(from, to - from)
            });
        }
    }

    /// A file that is gone, or cannot be opened now, keeps its pages: they are the kernel's to drop.
    fn with(&self, path: &Path, call: impl FnOnce(&dyn DiskFile) -> io::Result<()>) {
        let _ = self.disk.open(path, OpenHow::Read).and_then(|file| call(&*file));
    }

    /// Drops what is noted, of both generations.
    pub fn clear(&self) {
        let (first, second) = {
            let mut noted = self.noted.lock();
            (noted.turn(), noted.turn())
        };
        self.give_back(first);
        self.give_back(second);
    }
}

type Stretch = (Arc<Path>, u64, u64);

struct Turned {
    gone: Vec<Stretch>,
    aging: Vec<Stretch>,
}

impl Noted {
    /// The young are the old ones now.
    fn turn(&mut self) -> Turned {
        let before = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        let mut gone = Vec::new();
        for ((path, chunk), (_, to)) in before.stretches {
            // From the chunk's beginning, since the kernel drops a large page as a whole or not at all. What was used again since stays.
            let begin = chunk * CHUNK;
            match self.old.stretches.get(&(Arc::clone(&path), chunk)) {
                Some((used_from, used_to)) => {
                    gone.push((Arc::clone(&path), begin, *used_from));
                    gone.push((path, *used_to, to));
                }
                None => gone.push((path, begin, to)),
            }
        }
        gone.retain(|(_, from, to)| from < to);
        let aging = self.old.stretches.iter().map(|((path, _), (from, to))| (Arc::clone(path), *from, *to)).collect();
        Turned { gone, aging }
    }
}

#[derive(Debug)]
struct GovernedDisk {
    inner: Arc<dyn Disk>,
    pages: Arc<FilePages>,
}

impl DiskLayer for GovernedDisk {
    fn inner(&self) -> &dyn Disk {
        &*self.inner
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner.open(path, how)?;
        // What is read ahead is accounted for, so it is read by us: some devices are set up for megabytes of it. A hint.
        let _ = rustix::fs::fadvise(inner.descriptor(), 0, None, Advice::Random);
        let (path, pages) = (path.into(), Arc::clone(&self.pages));
        Ok(Arc::new(GovernedFile { inner, path, pages, read_to: AtomicU64::new(u64::MAX) }))
    }
}

#[derive(Debug)]
struct GovernedFile {
    inner: Arc<dyn DiskFile>,
    path: Arc<Path>,
    pages: Arc<FilePages>,
    /// Where the last read ended. Relaxed: a hint.
    read_to: AtomicU64,
}

impl FileLayer for GovernedFile {
    fn inner(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut end = at + buffer.len() as u64;
        // A unit may have been read twice, or passed over.
        if self.read_to.swap(end, Ordering::Relaxed).abs_diff(at) < PAGE {
            end = end.next_multiple_of(AHEAD);
            let _ = rustix::fs::fadvise(self.inner.descriptor(), at, NonZeroU64::new(end - at), Advice::WillNeed);
        }
        let read = self.inner.read_at(buffer, at)?;
        self.pages.note(&self.path, at, end);
        Ok(read)
    }
    fn read_once_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.inner.read_once_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.inner.write_at(bytes, at)?;
        self.pages.note(&self.path, at, at + bytes.len() as u64);
        Ok(())
    }
    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        self.inner.sync_mapped(map, start, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::RealDisk;

    fn resident(file: &dyn DiskFile) -> u64 {
        pages::resident(file.descriptor(), 0, 1 << 30).unwrap().cached
    }

    #[test]
    fn what_is_written_and_read_stays_within_the_budget_and_is_all_there() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let real: Arc<dyn Disk> = Arc::new(RealDisk);
        let limit = 2 << 20;
        let pages = Arc::new(FilePages::new(limit, &real));
        let disk = governed(&real, &pages);
        let paths: Vec<_> = (0..8).map(|number| dir.path().join(number.to_string())).collect();
        let piece = |number: usize, at: usize| vec![(number * 31 + at) as u8; 64 << 10];
        let files: Vec<_> = paths.iter().map(|path| disk.open(path, OpenHow::Create).unwrap()).collect();
        let mut most = 0;
        for at in 0..32 {
            for (number, file) in files.iter().enumerate() {
                file.write_at(&piece(number, at), (at as u64) << 16).unwrap();
                file.sync_data().unwrap();
            }
            most = most.max(files.iter().map(|file| resident(&**file)).sum());
        }
        assert!(most <= limit + (1 << 20), "16 MiB were written, {most} bytes were in memory");
        for (number, file) in files.iter().enumerate() {
            for at in 0..32 {
                let mut read = vec![0; 64 << 10];
                assert_eq!(file.read_at(&mut read, at << 16).unwrap(), read.len());
                assert_eq!(read, piece(number, at as usize));
            }
        }
        let now: u64 = files.iter().map(|file| resident(&**file)).sum();
        assert!(now <= limit + (1 << 20), "16 MiB were read, {now} bytes are in memory");
        pages.clear();
        assert_eq!((pages.bytes(), files.iter().map(|file| resident(&**file)).sum::<u64>()), (0, 0));
    }

    #[test]
    fn a_stretch_that_is_used_all_the_time_is_not_dropped() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let real: Arc<dyn Disk> = Arc::new(RealDisk);
        let pages = Arc::new(FilePages::new(2 << 20, &real));
        let disk = governed(&real, &pages);
        let used = disk.open(&dir.path().join("used"), OpenHow::Create).unwrap();
        let other = disk.open(&dir.path().join("other"), OpenHow::Create).unwrap();
        for at in 0..64 {
            used.write_at(&[1; 4096], 0).unwrap();
            other.write_at(&[2; 128 << 10], at * (128 << 10)).unwrap();
            other.sync_data().unwrap();
            used.sync_data().unwrap();
            assert_eq!(resident(&*used), 4096, "{at}");
        }
    }
}
