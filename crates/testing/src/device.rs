//! The machine's device, whose journal can be made to refuse what is written, whose log can be made to keep a flush or a write waiting, and
//! whose consume queues a read; and of whose journal it is known what a loss of power would leave.
//!
//! A sync does not go to the machine: no test asks what its device has, and that takes as long as everybody else who writes lets it.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow, RealDisk};
use parking_lot::{Condvar, Mutex};

/// "Input/output error".
const EIO: i32 = 5;

#[derive(Debug, Default)]
struct Faults {
    is_journal_full: bool,
    is_flush_held: bool,
    is_log_held: bool,
    is_log_full: bool,
    /// Nothing of the consume queues is in memory, and reads of them wait.
    are_reads_held: bool,
    reads_waiting: usize,
    /// Nothing of the consume queues can be read.
    are_queues_broken: bool,
    /// Bytes of the log's first file that cannot be read.
    unreadable: Vec<u64>,
    /// The journal's file system gives blocks only for what is written: every change is a call that can be refused.
    has_no_room_ahead: bool,
    /// The journal's files as they were when their last sync began, where that is asked for.
    synced: Option<BTreeMap<PathBuf, Vec<u8>>>,
}

/// Clones are the same device.
#[derive(Clone, Debug, Default)]
pub struct Device {
    faults: Arc<(Mutex<Faults>, Condvar)>,
}

impl Device {
    /// One whose journal can be filled.
    pub fn to_be_filled() -> Device {
        let device = Device::default();
        device.faults.0.lock().has_no_room_ahead = true;
        device
    }

    /// One that may lose its power.
    pub fn to_lose_power() -> Device {
        let device = Device::default();
        device.faults.0.lock().synced = Some(BTreeMap::new());
        device
    }

    /// Takes from a copy of `dir` what its journal had not brought to the device. Of [`Device::to_lose_power`].
    pub fn take_power(&self, dir: &Path, image: &Path) {
        let synced = self.faults.0.lock().synced.clone().unwrap();
        for (path, bytes) in synced {
            let path = image.join(path.strip_prefix(dir).unwrap());
            if path.exists() {
                std::fs::write(path, bytes).unwrap();
            }
        }
    }

    /// From now on nothing more can be written into the journal, or it can again. Of [`Device::to_be_filled`].
    pub fn fill_journal(&self, is_full: bool) {
        self.faults.0.lock().is_journal_full = is_full;
    }

    /// From now on no flush of the log comes to its end, or all do again.
    pub fn hold_flush(&self, is_held: bool) {
        self.faults.0.lock().is_flush_held = is_held;
        self.faults.1.notify_all();
    }

    /// From now on no write of the log comes to its end, or all do again.
    pub fn hold_log(&self, is_held: bool) {
        self.faults.0.lock().is_log_held = is_held;
        self.faults.1.notify_all();
    }

    /// From now on there is no room for the log, or there is again.
    pub fn fill_log(&self, is_full: bool) {
        self.faults.0.lock().is_log_full = is_full;
    }

    /// From now on every read of a consume queue has to wait for the device, which gives nothing; or all come to their end.
    pub fn hold_reads(&self, are_held: bool) {
        self.faults.0.lock().are_reads_held = are_held;
        self.faults.1.notify_all();
    }

    /// From now on reads of the log that touch one of these bytes of its first file fail, as where a page of the device is broken.
    pub fn break_log_at(&self, places: &[u64]) {
        self.faults.0.lock().unreadable = places.to_vec();
    }

    /// From now on every read of a file of a consume queue fails, or none does any more.
    pub fn break_queues(&self, are_broken: bool) {
        self.faults.0.lock().are_queues_broken = are_broken;
    }

    /// How many reads are held.
    pub fn reads_waiting(&self) -> usize {
        self.faults.0.lock().reads_waiting
    }
}

impl disk::DiskLayer for Device {
    fn inner(&self) -> &dyn Disk {
        &RealDisk
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let is_in = |folder: &str| path.parent().is_some_and(|parent| parent.ends_with(folder));
        let (is_journal, is_log) = (is_in("journal"), is_in("commitlog"));
        let is_queue = path.components().any(|part| part.as_os_str() == "consumequeue");
        let (inner, path) = (RealDisk.open(path, how)?, path.to_owned());
        Ok(Arc::new(File { inner, path, device: self.clone(), is_journal, is_log, is_queue }))
    }
    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
    fn sync_file_system(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct File {
    inner: Arc<dyn DiskFile>,
    path: PathBuf,
    device: Device,
    is_journal: bool,
    is_log: bool,
    is_queue: bool,
}

impl File {
    fn check_readable(&self, bytes: usize, at: u64) -> io::Result<()> {
        let touched = at..at + bytes as u64;
        let faults = self.device.faults.0.lock();
        let is_log_broken = self.is_log && faults.unreadable.iter().any(|place| touched.contains(place));
        match is_log_broken || self.is_queue && faults.are_queues_broken {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => Ok(()),
        }
    }
}

impl disk::FileLayer for File {
    fn inner(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        if self.is_queue {
            let (faults, released) = &*self.device.faults;
            let mut faults = faults.lock();
            faults.reads_waiting += 1;
            released.wait_while(&mut faults, |faults| faults.are_reads_held);
            faults.reads_waiting -= 1;
        }
        self.check_readable(buffer.len(), at)?;
        self.inner.read_at(buffer, at)
    }
    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        if self.is_queue && self.device.faults.0.lock().are_reads_held {
            return Ok(None);
        }
        self.check_readable(buffer.len(), at)?;
        self.inner.read_cached_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.is_journal && self.device.faults.0.lock().is_journal_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.is_log {
            let (faults, released) = &*self.device.faults;
            released.wait_while(&mut faults.lock(), |faults| faults.is_log_held);
        }
        self.inner.write_at(bytes, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        if self.is_log {
            let (faults, released) = &*self.device.faults;
            released.wait_while(&mut faults.lock(), |faults| faults.is_flush_held);
        }
        let is_kept = self.is_journal && self.device.faults.0.lock().synced.is_some();
        let bytes = if is_kept { std::fs::read(&self.path)? } else { Vec::new() };
        if let Some(synced) = self.device.faults.0.lock().synced.as_mut().filter(|_| is_kept) {
            synced.insert(self.path.clone(), bytes);
        }
        Ok(())
    }
    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        if self.is_journal && self.device.faults.0.lock().has_no_room_ahead {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if self.is_log && self.device.faults.0.lock().is_log_full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.inner.allocate(at, bytes)
    }
}
