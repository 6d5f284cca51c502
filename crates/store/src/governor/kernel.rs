//! What the kernel says about the pages of our files, by the newest call that it has.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Pages are this large wherever we run; where they are larger, what is counted by `mincore` is an upper bound.
const PAGE: u64 = 4096;
/// `mincore` answers a byte a page: so many bytes of a file are asked for at once.
const ASKED_AT_ONCE: u64 = 256 << 20;

/// Pages of a stretch of a file that are in memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    /// In memory.
    pub cached: u64,
    /// Of these, changed and not on their way to the device. 0 where the kernel does not say.
    pub dirty: u64,
    /// Of these, on their way to the device. 0 where the kernel does not say.
    pub writeback: u64,
}

impl std::ops::AddAssign for Resident {
    fn add_assign(&mut self, other: Resident) {
        self.cached += other.cached;
        self.dirty += other.dirty;
        self.writeback += other.writeback;
    }
}

/// Whether the kernel has `cachestat` (Linux 6.5). Relaxed: a hint that saves a call.
static HAS_CACHESTAT: AtomicBool = AtomicBool::new(true);

/// Counts the pages of the bytes `from..to` of a file that are in memory; waits for no device.
pub(crate) fn resident(file: BorrowedFd<'_>, from: u64, to: u64) -> io::Result<Resident> {
    if from >= to {
        return Ok(Resident::default());
    }
    if HAS_CACHESTAT.load(Ordering::Relaxed) {
        match cachestat(file, from, to) {
            // Older kernels, and filters of system calls that do not know the number, say one of these.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP)) => {
                HAS_CACHESTAT.store(false, Ordering::Relaxed);
            }
            counted => return counted,
        }
    }
    by_mincore(file, from, to)
}

/// Sends what is dirty of a stretch on its way to the device, without waiting for it to arrive.
pub(crate) fn start_writing(file: BorrowedFd<'_>, at: u64, bytes: u64) -> io::Result<()> {
    range_call(file, at, bytes, libc::SYNC_FILE_RANGE_WRITE)
}

/// The same, and waits until it has arrived. Promises nothing about a loss of power.
pub(crate) fn finish_writing(file: BorrowedFd<'_>, at: u64, bytes: u64) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    range_call(file, at, bytes, all)
}

fn range_call(file: BorrowedFd<'_>, at: u64, bytes: u64, how: libc::c_uint) -> io::Result<()> {
    let (Ok(at), Ok(bytes)) = (libc::off64_t::try_from(at), libc::off64_t::try_from(bytes)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: numbers only; no memory of ours is read or written.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), at, bytes, how) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[repr(C)]
struct Range {
    from: u64,
    bytes: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counted {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// The number of the system call, the same on all machines.
const CACHESTAT: libc::c_long = 451;

fn cachestat(file: BorrowedFd<'_>, from: u64, to: u64) -> io::Result<Resident> {
    let range = Range { from, bytes: to - from };
    let mut counted = Counted::default();
    // SAFETY: the kernel reads `range` and writes `counted`, both of which have its layout and live for the call.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counted, 0) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = |pages: u64| pages.saturating_mul(PAGE);
    Ok(Resident { cached: bytes(counted.cached), dirty: bytes(counted.dirty), writeback: bytes(counted.writeback) })
}

/// By a mapping that is made for it and touched by nobody.
fn by_mincore(file: BorrowedFd<'_>, from: u64, to: u64) -> io::Result<Resident> {
    let length = rustix::fs::fstat(file)?.st_size;
    let to = if from < to { to.min(u64::try_from(length).unwrap_or(0)) } else { from / PAGE * PAGE };
    let mut at = from / PAGE * PAGE;
    let mut cached = 0;
    // Each turn asks for a stretch.
    while at < to {
        let bytes = (to - at).min(ASKED_AT_ONCE) as usize;
        let map = MmapOptions::new().offset(at).len(bytes).map_raw_read_only(file.as_raw_fd())?;
        cached += resident_pages(&map)? * PAGE;
        at += bytes as u64;
    }
    Ok(Resident { cached, ..Resident::default() })
}

fn resident_pages(map: &MmapRaw) -> io::Result<u64> {
    let mut pages = vec![0_u8; map.len().div_ceil(PAGE as usize)];
    // SAFETY: the mapping lives for the call, and the vector has a byte for each of its pages.
    let done = unsafe { libc::mincore(map.as_mut_ptr().cast(), map.len(), pages.as_mut_ptr().cast()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(pages.iter().filter(|page| **page & 1 != 0).count() as u64)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn both_ways_count_what_was_written_and_stay_inside_the_file() {
        let mut file: File = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        let both = |from, to| {
            let plain = by_mincore(file.as_fd(), from, to).unwrap().cached;
            let newest = resident(file.as_fd(), from, to).unwrap().cached;
            (plain, newest)
        };
        assert_eq!(both(0, 64 << 10), (64 << 10, 64 << 10));
        assert_eq!(both(4096, 8192), (4096, 4096));
        assert_eq!(both(0, 1 << 30), (64 << 10, 64 << 10));
        assert_eq!(both(1 << 20, 1 << 30), (0, 0));
        assert_eq!(both(5, 5), (0, 0));
    }

    #[test]
    fn what_is_dropped_is_not_counted() {
        let mut file: File = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; 64 << 10]).unwrap();
        file.sync_data().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(resident(file.as_fd(), 0, 64 << 10).unwrap().cached, 0);
        assert_eq!(by_mincore(file.as_fd(), 0, 64 << 10).unwrap().cached, 0);
    }
}
