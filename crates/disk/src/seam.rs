//! The file system as a handle: the one seam at which tests put full disks, failing devices and torn writes.
//!
//! Everything that the store does to files other than through a mapping goes through [`Disk`] and [`DiskFile`]. Calls are
//! synchronous and may block; no lock of the hot path is held across one (ARCHITECTURE.md names those that are).

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use memmap2::MmapRaw;
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use tracing::error;

use crate::turns;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenHow {
    /// It must exist; it will only be read.
    Read,
    /// It must exist; it will be read and written.
    Write,
    /// It is made if it does not exist; it will be read and written.
    Create,
}

/// What a directory holds under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, without its directory. Names that are not UTF-8 are nobody's of ours and are left out of lists.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// A file system.
///
/// A method that is added here stands in `layer.rs` too: with a body here it would else be answered
/// past the layers.
pub trait Disk: Debug + Send + Sync {
    /// Makes a directory and those above it; that it exists is fine.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// What is in a directory, in no order. A directory that does not exist is empty.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// The length of a file.
    fn len(&self, path: &Path) -> io::Result<u64>;
    /// Opens a file.
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name; one that had that name is gone. Atomic.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. That there is none is fine.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with all that it holds. That there is none is fine.
    fn remove_tree(&self, dir: &Path) -> io::Result<()>;
    /// Makes the names in a directory survive a loss of power.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Makes all files of the file system that holds `dir` survive a loss of power: one call instead of thousands.
    fn sync_file_system(&self, dir: &Path) -> io::Result<()>;
    /// A sync of a file's bytes that went past [`DiskFile`] has failed. Returns what there is to say.
    fn sync_failed(&self, path: &Path, error: io::Error) -> io::Error {
        let _ = path;
        error
    }
    /// Names the memory that a file is in, and the file as it is now. A process that is told the same name as another before it, finds in
    /// files what that had handed to the kernel, synced or not. `None` where nobody knows.
    fn memory_of(&self, path: &Path) -> Option<String> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let file = fs::symlink_metadata(path).ok()?;
        let (seconds, nanoseconds) = (file.ctime(), file.ctime_nsec());
        Some(format!("{} {}/{} {seconds}.{nanoseconds:09}", boot.trim(), file.dev(), file.ino()))
    }
    /// Names a file, whatever is written into it: the same after a loss of power, and another one for a copy. `None` where nobody knows.
    fn identity_of(&self, path: &Path) -> Option<String> {
        let file = fs::symlink_metadata(path).ok()?;
        // Numbers are given again, and the file system says when it gave this one; some do not.
        let made = file.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
        Some(format!("{} {}", file.ino(), made.map_or(0, |made| made.as_nanos())))
    }
    /// Names the file system that holds `path`, as long as it is mounted.
    fn device(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.dev())
    }
    /// How full the device is that holds `path`.
    fn space(&self, path: &Path) -> io::Result<DiskUse> {
        DiskUse::of(path)
    }
}

/// Why a sync of a folder, or of its file system, was not even begun: it cannot be opened now, for want of descriptors perhaps. What was written is as
/// sure as before, and another attempt tells; of one that was begun and failed it does not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotBegun(#[source] io::Error);

/// Whether a sync that failed was begun.
pub fn was_begun(error: &io::Error) -> bool {
    error.get_ref().is_none_or(|inner| !inner.is::<NotBegun>())
}

fn open_to_sync(dir: &Path) -> io::Result<File> {
    File::open(dir).map_err(|error| io::Error::new(error.kind(), NotBegun(error)))
}

/// Brings a file to the device, or ends the process: what the kernel could not write it may have forgotten, and it says so once. Whoever tried
/// again would take for safe what is lost; the next start finds out.
pub fn sync_or_end(file: &dyn DiskFile, path: &Path) {
    if let Err(error) = file.sync_data() {
        error!(path = %path.display(), %error, "a file cannot be brought to the device: ending the process");
        turns::end_process();
    }
}

/// How full a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that we may still use.
    pub available: u64,
}

impl DiskUse {
    /// Of the device that holds `path`.
    pub fn of(path: &Path) -> io::Result<DiskUse> {
        let stat = rustix::fs::statvfs(path)?;
        // As `df` and Java count it: what is reserved for root is neither used nor available.
        let used = stat.f_blocks.saturating_sub(stat.f_bfree);
        Ok(DiskUse {
            total: used.saturating_add(stat.f_bavail).saturating_mul(stat.f_frsize),
            available: stat.f_bavail.saturating_mul(stat.f_frsize),
        })
    }

    /// Used, in percent. Rounded up, as `df` and RocketMQ do: it is above a whole percentage as soon as the device is.
    pub fn used_percent(&self) -> u8 {
        let used = u128::from(self.total.saturating_sub(self.available));
        let total = u128::from(self.total).max(1);
        u8::try_from((used * 100).div_ceil(total)).unwrap_or(100)
    }
}

/// An open file. Reads and writes name their place, so that threads may share it.
///
/// As with [`Disk`], a method that is added stands in `layer.rs` too.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;
    /// As `read_at` if that needs no device; `None` if it would have to wait for one.
    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>>;
    /// As `read_at`, for bytes that nobody will want again: they do not stay in memory if they were not there before.
    fn read_once_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let read = self.read_at(buffer, at)?;
        // A hint: what stays costs memory, not bytes.
        let _ = self.forget_cached(at, read as u64);
        Ok(read)
    }
    /// Takes what is in memory of a stretch out of it, as far as it is on the device and nobody maps it.
    fn forget_cached(&self, at: u64, bytes: u64) -> io::Result<()> {
        match NonZeroU64::new(bytes) {
            Some(bytes) => Ok(rustix::fs::fadvise(self.descriptor(), at, Some(bytes), Advice::DontNeed)?),
            None => Ok(()),
        }
    }
    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Cuts or extends the file; what is added reads as zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Its length.
    fn len(&self) -> io::Result<u64>;
    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Makes what was written survive a loss of power.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes what was written into a mapping of the file, `bytes` from `start` on, survive a loss of power; more than that if need be.
    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        let _ = (map, start, bytes);
        self.sync_data()
    }
    /// The descriptor, for a mapping.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Gives a stretch its blocks, so that writing it through a mapping cannot meet a full device. What it holds stays.
    /// `Unsupported` where the file system cannot.
    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        fallocate(self.descriptor(), FallocateFlags::empty(), at, bytes)
    }
    /// Where the first byte at or behind `at` lies that may be other than zero, as far as the file system knows.
    fn data_from(&self, at: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(self.descriptor(), SeekFrom::Data(at)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            // It does not know.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
            Err(error) => Err(error.into()),
        }
    }
    /// Where, from `at` on, the first stretch begins that was never written, or the file ends; `None` where the file system does not know. What lies
    /// before it may be zeros all the same.
    fn hole_from(&self, at: u64) -> io::Result<Option<u64>> {
        match rustix::fs::seek(self.descriptor(), SeekFrom::Hole(at)) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
    /// Gives the blocks of a stretch back: it reads as zeros. `Unsupported` where the file system cannot.
    fn punch(&self, at: u64, bytes: u64) -> io::Result<()> {
        fallocate(self.descriptor(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes)
    }
}

fn fallocate(file: BorrowedFd<'_>, how: FallocateFlags, at: u64, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, how, at, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
        done => Ok(done?),
    }
}

/// The machine's own file systems.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string() {
                found.push(DirEntry { name, is_dir: entry.file_type()?.is_dir() });
            }
        }
        Ok(found)
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match how {
            OpenHow::Read => {}
            OpenHow::Write => {
                options.write(true);
            }
            OpenHow::Create => {
                options.write(true).create(true).truncate(false);
            }
        }
        Ok(Arc::new(RealFile { file: options.open(path)?, has_dontcache: AtomicBool::new(true) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        unless_missing(fs::remove_file(path))
    }

    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        unless_missing(fs::remove_dir_all(dir))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        open_to_sync(dir)?.sync_all()
    }

    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(open_to_sync(dir)?)?)
    }
}

fn unless_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) | Err(_) => done,
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    /// Whether kernel and file system take [`RWF_DONTCACHE`]: folders of a store may lie on several. Relaxed: a hint that saves a call.
    has_dontcache: AtomicBool,
}

/// The kernel's flag for reads whose pages do not stay (Linux 6.14, where the file system has it).
const RWF_DONTCACHE: u32 = 0x80;

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.file.read_at(&mut buffer[read..], at + read as u64) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        let wanted = buffer.len();
        let read =
            rustix::io::preadv2(self.file.as_fd(), &mut [io::IoSliceMut::new(buffer)], at, ReadWriteFlags::NOWAIT);
        match read {
            Ok(bytes) if bytes == wanted || at + bytes as u64 >= self.len()? => Ok(Some(bytes)),
            // The first pages are there and the rest is not.
            Ok(_) | Err(Errno::AGAIN) => Ok(None),
            // Not every file system and kernel can tell; a read that may wait is better than none.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => self.read_at(buffer, at).map(Some),
            Err(error) => Err(error.into()),
        }
    }

    fn read_once_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        if self.has_dontcache.load(Ordering::Relaxed) {
            let how = ReadWriteFlags::from_bits_retain(RWF_DONTCACHE);
            match rustix::io::preadv2(self.file.as_fd(), &mut [io::IoSliceMut::new(buffer)], at, how) {
                Ok(read) if read == buffer.len() || read == 0 => return Ok(read),
                // The rest, or all of it, the other way.
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.has_dontcache.store(false, Ordering::Relaxed)
                }
                Err(error) => return Err(error.into()),
            }
        }
        let read = self.read_at(buffer, at)?;
        // A hint: what stays costs memory, not bytes.
        let _ = self.forget_cached(at, read as u64);
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    // `msync` is the one call that is `fdatasync` for a stretch of a file.
    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        map.flush_range(start, bytes)
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
