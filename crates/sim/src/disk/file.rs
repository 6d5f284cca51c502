//! An open file of a disk that loses power.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;

use disk::DiskFile;
use memmap2::MmapRaw;

use super::Shared;
use super::failing::{Asks, Synced};

const PAGE: u64 = 4096;

#[derive(Debug)]
pub(super) struct CrashFile {
    file: Arc<dyn DiskFile>,
    node: u64,
    path: PathBuf,
    shared: Arc<Shared>,
}

impl CrashFile {
    pub(super) fn new(file: Arc<dyn DiskFile>, node: u64, path: PathBuf, shared: Arc<Shared>) -> CrashFile {
        CrashFile { file, node, path, shared }
    }

    /// What is in the stretch when a sync begins is on the device when it ends; what comes meanwhile may be or not.
    fn sync(&self, start: u64, end: Option<u64>) -> io::Result<()> {
        self.shared.call("sync", &self.path, [start, end.unwrap_or(u64::MAX)], &[])?;
        let captured = self.shared.state.lock().nodes.capture(self.node, start, end)?;
        self.shared.sync_takes_time();
        self.shared.call("synced", &self.path, [start, end.unwrap_or(u64::MAX)], &[])?;
        let failed = self.shared.may(Asks::Sync(Synced::File), &self.path);
        let nodes = &mut self.shared.state.lock().nodes;
        match failed {
            Ok(()) if self.shared.rules.lies => {}
            Ok(()) => nodes.settle(captured),
            Err(_) => nodes.drop_some(captured, &self.shared.random),
        }
        failed
    }
}

impl DiskFile for CrashFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buffer, at)
    }

    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        self.file.read_cached_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.shared.call("write", &self.path, [at, bytes.len() as u64], bytes)?;
        // The log's files have their blocks before they are written.
        let has_room = self.path.starts_with("commitlog") && at + bytes.len() as u64 <= self.file.len()?;
        if let Err(error) = self.shared.may(if has_room { Asks::Change } else { Asks::Room }, &self.path) {
            self.file.write_at(&bytes[..self.shared.part_of(bytes.len())], at)?;
            return Err(error);
        }
        self.shared.state.lock().nodes.wrote(self.node, at, bytes.len());
        if self.path.ends_with("unsynced") {
            self.shared.state.lock().is_mark_due = false;
        }
        if !self.path.starts_with("commitlog") || bytes.iter().all(|byte| *byte == 0) {
            return self.file.write_at(bytes, at);
        }
        // Records, by the thread `commit`: the kernel takes them page by page, and a process can be killed in between.
        let within = at + u64::from(self.shared.random.below(bytes.len() as u32 + 1));
        let front = (within / PAGE * PAGE).saturating_sub(at) as usize;
        self.file.write_at(&bytes[..front], at)?;
        self.shared.sync_takes_time();
        self.shared.call("writes on", &self.path, [at, front as u64], &[])?;
        self.file.write_at(&bytes[front..], at + front as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.shared.call("set len", &self.path, [len, 0], &[])?;
        let before = self.file.len()?;
        self.shared.may(if len > before { Asks::Room } else { Asks::Change }, &self.path)?;
        let mut state = self.shared.state.lock();
        if len < before {
            state.nodes.cut(self.node, len);
        } else if len > before {
            state.nodes.grew(self.node, &self.path, len);
        }
        self.file.set_len(len)
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(0, None)
    }

    fn sync_mapped(&self, _map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        self.sync(start as u64, Some((start + bytes) as u64))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.descriptor()
    }

    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        self.shared.call("allocate", &self.path, [at, bytes], &[])?;
        self.shared.may(Asks::Room, &self.path)?;
        let mut state = self.shared.state.lock();
        if self.file.len()? < at + bytes {
            state.nodes.grew(self.node, &self.path, at + bytes);
        }
        self.file.allocate(at, bytes)
    }

    fn punch(&self, at: u64, bytes: u64) -> io::Result<()> {
        self.shared.call("punch", &self.path, [at, bytes], &[])?;
        self.shared.may(Asks::Change, &self.path)?;
        self.file.punch(at, bytes)
    }
}
