//! What the kernel says about the pages of our files, by the newest call that it has.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::{MmapOptions, MmapRaw};

/// Pages are this large wherever we run; where they are larger, what is counted by `mincore` is an upper bound.
const PAGE: u64 = 4096;
/// `mincore` answers a byte a page: so many bytes of a file are asked for at once.
const ASKED_AT_ONCE: u64 = 256 << 20;

/// The kernel drops a large page as a whole or not at all, so each stretch begins a little before
/// the end of the last one.
pub const OVERLAP: u64 = 2 << 20;

/// Pages of a stretch of a file that are in memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// In memory.
    pub cached: u64,
    /// What became of those that were changed; none where the kernel has no word for it.
    pub changed: Option<Changed>,
}

/// Changed pages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Not on their way to the device.
    pub dirty: u64,
    /// On their way.
    pub writeback: u64,
}

impl std::ops::Add for Changed {
    type Output = Changed;

    fn add(self, more: Changed) -> Changed {
        Changed { dirty: self.dirty + more.dirty, writeback: self.writeback + more.writeback }
    }
}

/// Whether the kernel has `cachestat` (Linux 6.5). Relaxed: a hint that saves a call.
static HAS_CACHESTAT: AtomicBool = AtomicBool::new(true);

/// Counts the pages of the bytes `from..to` of a file that are in memory; waits for no device. `PermissionDenied` where the file is somebody
/// else's: of one that we may not write the kernel tells nothing.
pub fn resident(file: BorrowedFd<'_>, from: u64, to: u64) -> io::Result<Resident> {
    if from >= to {
        return Ok(Resident { cached: 0, changed: Some(Changed::default()) });
    }
    if HAS_CACHESTAT.load(Ordering::Relaxed) {
        match cachestat(file, from, to).map_err(|error| (error.raw_os_error(), error)) {
            Ok(counted) => return Ok(counted),
            Err((Some(libc::ENOSYS), _)) => HAS_CACHESTAT.store(false, Ordering::Relaxed),
            // What the kernel says of this file, and a filter of system calls that does not know the number of all; and what some file
            // systems say.
            Err((Some(libc::EPERM | libc::EOPNOTSUPP), _)) => {}
            Err((_, error)) => return Err(error),
        }
    }
    // To others `mincore` says that all pages are in memory.
    if !is_told_of(file)? {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    by_mincore(file, from, to)
}

/// Whether the kernel tells us which pages of a file are in memory: those of the file's owner and of whoever may write it.
fn is_told_of(file: BorrowedFd<'_>) -> io::Result<bool> {
    let is_ours = rustix::fs::fstat(file)?.st_uid == rustix::process::geteuid().as_raw();
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(is_ours || rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok())
}

/// Sends what is dirty of a stretch on its way to the device, without waiting for it to arrive.
pub fn start_writing(file: BorrowedFd<'_>, at: u64, bytes: u64) -> io::Result<()> {
    range_call(file, at, bytes, libc::SYNC_FILE_RANGE_WRITE)
}

/// The same, and waits until it has arrived. Promises nothing about a loss of power.
pub fn finish_writing(file: BorrowedFd<'_>, at: u64, bytes: u64) -> io::Result<()> {
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
    let changed = Changed { dirty: bytes(counted.dirty), writeback: bytes(counted.writeback) };
    Ok(Resident { cached: bytes(counted.cached), changed: Some(changed) })
}

/// By a mapping that is made for it and touched by nobody. Says that all is in memory where [`is_told_of`] says no.
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
    Ok(Resident { cached, changed: None })
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

    use rustix::process::Uid;

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

    #[test]
    fn somebody_elses_file_is_not_counted_and_does_not_end_the_counting_of_ours() {
        if !rustix::process::geteuid().is_root() {
            println!("not looked at: only root can be somebody else");
            return;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, [7; 64 << 10]).unwrap();
            let file = File::open(&path).unwrap();
            file.sync_data().unwrap();
            file
        };
        let (theirs, ours) = (file("theirs"), file("ours"));
        rustix::fs::fadvise(&theirs, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let nobody = Uid::from_raw(65534);
        std::os::unix::fs::fchown(&ours, Some(nobody.as_raw()), None).unwrap();
        let counted = std::thread::spawn(move || {
            // Of this thread alone, which ends.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            [&theirs, &ours].map(|file| resident(file.as_fd(), 0, 64 << 10).unwrap_or_default())
        });
        let [theirs, ours] = counted.join().unwrap();
        assert_eq!(theirs.cached, 0, "nothing of it is in memory");
        assert_eq!(ours.cached, 64 << 10);
        let own_file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let is_known = cachestat(own_file.as_fd(), 0, 1).is_ok();
        assert_eq!(ours.changed.is_some(), is_known, "what the kernel knows of our files is not given up");
    }
}
