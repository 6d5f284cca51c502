//! The stretch of the journal's file that changes are copied into by whoever puts them.
//!
//! A bundle that is handed to the thread costs two changes of context, one to the thread and one back to whoever waits. Most are a
//! few dozen bytes, so where the kernel's having them is enough, they are copied through a mapping instead: no call, no wait. The
//! stretch has its blocks and its pages before it is used, so the copy meets neither a full device nor a page that is not there.

use std::io;
use std::os::fd::AsRawFd;

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::bundle::{self, HEADER_BYTES, Head, Kind};
use crate::disk::DiskFile;

/// How much is mapped at a time. At ten thousand changes a second it lasts for a tenth of one.
const WINDOW_BYTES: u64 = 256 << 10;
/// Mappings begin at a multiple of this.
const PAGE: u64 = 4096;

/// Where bundles go on, in the part of the file that is mapped. Whoever holds it is the only one to write the file.
pub(super) struct Window {
    map: MmapRaw,
    /// The byte of the file that is mapped first.
    base: u64,
    /// The byte of the file at which the next bundle goes.
    pub(super) at: u64,
    /// Position of the newest entry in the file.
    pub(super) position: u64,
}

impl Window {
    /// Makes room behind byte `at` of `file`, which ends with the entry `position`. `Unsupported` where the file system gives no blocks
    /// ahead: a mapping of a hole would meet a full device with a signal.
    pub(super) fn open(file: &dyn DiskFile, at: u64, position: u64) -> io::Result<Window> {
        let base = at / PAGE * PAGE;
        file.allocate(base, WINDOW_BYTES)?;
        let map = MmapOptions::new().offset(base).len(WINDOW_BYTES as usize).map_raw(file.descriptor().as_raw_fd())?;
        // Old kernels (before 5.14) do not know this advice: then whoever puts a change faults the page.
        let _ = map.advise(Advice::PopulateWrite);
        Ok(Window { map, base, at, position })
    }

    /// Copies a bundle of `entries` that ends with the entry `last`. False if it does not fit.
    pub(super) fn append(&mut self, entries: &[u8], last: u64, synced: u64) -> bool {
        let start = (self.at - self.base) as usize;
        let bytes = HEADER_BYTES + entries.len();
        if self.map.len() - start < bytes {
            return false;
        }
        let header = bundle::seal(Head { kind: Kind::Entries, previous: self.position, last, synced }, entries);
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
        self.at - self.base > WINDOW_BYTES / 2
    }

    /// Goes on where `before` was left; `self` was made behind a byte that `before` had passed then.
    pub(super) fn follow(&mut self, before: &Window) {
        self.at = before.at;
        self.position = before.position;
    }
}
