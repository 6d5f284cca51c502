//! The stretch of the journal's file that changes are copied into by whoever puts them.
//!
//! A bundle that is handed to the thread costs two changes of context, one to the thread and one back to whoever waits. Most are a
//! few dozen bytes, so where the kernel's having them is enough, they are copied through a mapping instead, without a call.
//!
//! The stretch has its blocks and its pages before it is used. A sync leaves its pages to be written by a fault again, which the
//! kernel serves in a microsecond, or in as many milliseconds as the file system's own journal is busy; so the thread that syncs touches
//! those that come next. What the copy can still meet is a page that the kernel dropped and the device does not give back, a signal,
//! as in the log's tail. Where a file system needs new blocks to overwrite old ones, blocks ahead promise nothing, and there is no window.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use disk::{DiskFile, invariant};
use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::bundle::{self, BundleKind, HEADER_BYTES, Head};

/// What may be mapped at a time. Less would be used up before the thread comes round.
pub(super) const ROOM_BYTES_MIN: u64 = 64 << 10;
pub(super) const ROOM_BYTES_MAX: u64 = 4 << 20;
/// Mappings begin at a multiple of this.
const PAGE: u64 = 4096;
/// Zeros that a file has behind its last bundle at most, when nothing was lost.
pub(super) const UNUSED_BYTES_MAX: u64 = ROOM_BYTES_MAX + PAGE;

/// Numbers of file systems (`f_type` of statfs) that never overwrite in place: btrfs, ZFS, F2FS, bcachefs.
const COPY_ON_WRITE: [u32; 4] = [0x9123_683E, 0x2FC1_2FC1, 0xF2F5_2010, 0xCA45_1A4E];

/// Where bundles go on, in the part of the file that is mapped. Whoever holds it is the only one to write the file.
pub(super) struct Window {
    map: Arc<MmapRaw>,
    /// The byte of the file that is mapped first.
    pub(super) base: u64,
    /// The byte of the file at which the next bundle goes.
    pub(super) at: u64,
    /// Position of the newest entry in the file.
    pub(super) position: u64,
}

impl Window {
    /// Makes room of `bytes` behind byte `at` of `file`, which ends with the entry `position`. `Unsupported` where the file system gives
    /// no blocks ahead, or none that count: a mapping of a hole would meet a full device with a signal.
    pub(super) fn open(file: &dyn DiskFile, at: u64, position: u64, bytes: u64) -> io::Result<Window> {
        if copies_on_write(file.descriptor())? {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let base = at / PAGE * PAGE;
        let bytes = bytes.clamp(ROOM_BYTES_MIN, ROOM_BYTES_MAX).next_multiple_of(PAGE);
        file.allocate(base, bytes)?;
        let map = MmapOptions::new().offset(base).len(bytes as usize).map_raw(file.descriptor().as_raw_fd())?;
        populate(&map, 0..map.len())?;
        Ok(Window { map: Arc::new(map), base, at, position })
    }

    /// What to touch after a sync, so that the next changes meet pages that may be written. All of it is written by the next one,
    /// changed or not: so it is the page at the end, the next one, and twice what came between the last two (`recent` bytes), up to an
    /// eighth of the room.
    pub(super) fn ahead(&self, recent: u64) -> Ahead {
        let start = (self.at - self.base) / PAGE * PAGE;
        let bytes = recent.saturating_mul(2).min(self.len() / 8).next_multiple_of(PAGE) + 2 * PAGE;
        Ahead { map: Arc::clone(&self.map), range: start as usize..(start + bytes).min(self.len()) as usize }
    }

    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Bytes that are left.
    pub(super) fn room(&self) -> u64 {
        self.base + self.len() - self.at
    }

    /// Copies a bundle of `entries` that ends with the entry `last`. False if it does not fit.
    pub(super) fn append(&mut self, entries: &[u8], last: u64, synced: u64) -> bool {
        let start = (self.at - self.base) as usize;
        assert!(start <= self.map.len(), "byte {} is behind the window at {}", self.at, self.base);
        let bytes = HEADER_BYTES + entries.len();
        if self.map.len() - start < bytes {
            return false;
        }
        // A reader would take what follows for a bundle of another journal, and end.
        invariant::not_below("the position of a bundle of the journal", self.position + 1, last);
        let header = bundle::seal(Head { kind: BundleKind::Entries, previous: self.position, last, synced }, entries);
        // SAFETY: both ranges lie inside the mapping (checked above), which lives as long as `self`. Nobody else touches it: `self`
        // is borrowed mutably, and the file is read only by the next process that opens it.
        unsafe {
            let to = self.map.as_mut_ptr().add(start);
            std::ptr::copy_nonoverlapping(header.as_ptr(), to, HEADER_BYTES);
            std::ptr::copy_nonoverlapping(entries.as_ptr(), to.add(HEADER_BYTES), entries.len());
        }
        self.at += bytes as u64;
        self.position = last;
        true
    }

    /// Whether it is time to make the next one.
    pub(super) fn is_low(&self) -> bool {
        self.at - self.base > self.len() / 2
    }

    /// Goes on where `before` was left; `self` was made behind a byte that `before` had passed then.
    pub(super) fn follow(&mut self, before: &Window) {
        assert!(
            before.at >= self.base && before.at - self.base <= self.len(),
            "byte {} is outside the window at {}",
            before.at,
            self.base
        );
        self.at = before.at;
        self.position = before.position;
    }
}

/// Pages of a window that the next changes go to.
pub(super) struct Ahead {
    map: Arc<MmapRaw>,
    range: Range<usize>,
}

impl Ahead {
    /// Brings the pages. May wait for the file system; whoever puts changes does not.
    pub(super) fn touch(self) -> io::Result<()> {
        populate(&self.map, self.range)
    }
}

fn populate(map: &MmapRaw, range: Range<usize>) -> io::Result<()> {
    match map.advise_range(Advice::PopulateWrite, range.start, range.len()) {
        // Old kernels (before 5.14) do not know this advice: then whoever puts a change faults the page.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        // Anything else is what a copy would meet as a signal.
        done => done,
    }
}

fn copies_on_write(file: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = rustix::fs::fstatfs(file)?;
    Ok(COPY_ON_WRITE.iter().any(|number| i128::from(*number) == i128::from(stat.f_type)))
}

#[cfg(test)]
mod tests {
    use disk::{Disk, OpenHow, RealDisk};
    use testing::ending::ends_process;

    use super::*;

    const ROOM: u64 = 256 << 10;

    fn file(dir: &tempfile::TempDir, name: &str) -> Arc<dyn DiskFile> {
        RealDisk.open(&dir.path().join(name), OpenHow::Create).unwrap()
    }

    #[test]
    fn a_bundle_that_ends_with_the_window_fits_and_one_byte_more_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = file(&dir, "journal");
        let mut window = Window::open(&*file, 5_000, 7, ROOM).unwrap();
        let room = (4_096 + ROOM - 5_000) as usize - HEADER_BYTES;
        assert!(!window.append(&vec![1; room + 1], 8, 7));
        assert_eq!((window.at, window.position), (5_000, 7));
        assert!(window.append(&vec![1; room], 8, 7));
        assert_eq!((window.at, window.position), (4_096 + ROOM, 8));
        assert!(!window.append(&[], 9, 7));
        window.ahead(1 << 40).touch().unwrap();
        let mut bytes = vec![0; room + HEADER_BYTES];
        assert_eq!(file.read_at(&mut bytes, 5_000).unwrap(), bytes.len());
        let (head, payload) = bundle::open(&bytes).unwrap();
        assert_eq!((head.previous, head.last, payload.len()), (7, 8, room));
    }

    #[test]
    fn what_is_touched_ahead_of_an_idle_journal_is_two_pages_and_of_a_busy_one_an_eighth_of_the_room() {
        let dir = tempfile::tempdir().unwrap();
        let window = Window::open(&*file(&dir, "journal"), 5_000, 7, ROOM).unwrap();
        assert_eq!(window.ahead(0).range, 0..8_192);
        assert_eq!(window.ahead(3_000).range, 0..16_384);
        assert_eq!(window.ahead(u64::MAX).range, 0..(32 << 10) + 8_192);
        let last = Window::open(&*file(&dir, "last"), ROOM - 1, 7, 0).unwrap();
        assert_eq!(last.room(), ROOM_BYTES_MIN - 4_095);
    }

    #[test]
    fn a_bundle_that_does_not_go_on_ends_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let mut window = Window::open(&*file(&dir, "journal"), 5_000, 7, ROOM).unwrap();
        assert!(ends_process(|| assert!(!window.append(b"change", 7, 7))));
        assert_eq!((window.at, window.position), (5_000, 7));
    }

    #[test]
    #[should_panic(expected = "outside the window")]
    fn a_window_does_not_follow_one_that_lies_further_on() {
        let dir = tempfile::tempdir().unwrap();
        let far = Window::open(&*file(&dir, "a"), 2 * ROOM, 1, ROOM).unwrap();
        Window::open(&*file(&dir, "b"), 0, 1, ROOM).unwrap().follow(&far);
    }
}
