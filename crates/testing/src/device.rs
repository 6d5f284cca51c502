//! The machine's device, whose journal can be made to refuse what is written, whose log can be made to keep a flush or a write waiting, and
//! whose consume queues a read; and of whose journal it is known what a loss of power would leave.
//!
//! A sync does not go to the machine: no test asks what its device has, and that takes as long as everybody else who writes lets it.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test that cannot go on fails")]

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use disk::faults::{Call, Fault, FaultDisk, Files, How, SYNCS};

const JOURNAL: Files = Files::Under("journal");
const LOG: Files = Files::Under("commitlog");
const QUEUES: Files = Files::Under("consumequeue");

/// The journal's file system gives blocks only for what is written: every change is a call that can be refused.
const NO_ROOM_AHEAD: Fault = Fault::new(&[Call::Allocate], JOURNAL, How::Fails(ErrorKind::Unsupported));
const JOURNAL_FULL: Fault = Fault::new(&[Call::Write], JOURNAL, How::Fails(ErrorKind::StorageFull));
const LOG_FULL: Fault = Fault::new(&[Call::Allocate], LOG, How::Fails(ErrorKind::StorageFull));
const FLUSH_HELD: Fault = Fault::new(SYNCS, LOG, How::Waits);
const LOG_HELD: Fault = Fault::new(&[Call::Write], LOG, How::Waits);
/// Nothing of the consume queues is in memory, and reads of them wait.
const READS_HELD: Fault = Fault::new(&[Call::Read], QUEUES, How::Waits);
const QUEUES_BROKEN: Fault = Fault::new(&[Call::Read], QUEUES, How::Breaks);

/// Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device(FaultDisk);

impl Default for Device {
    fn default() -> Device {
        Device::of(FaultDisk::default())
    }
}

impl Device {
    fn of(disk: FaultDisk) -> Device {
        for calls in [SYNCS, &[Call::SyncDir], &[Call::SyncFileSystem]] {
            disk.set(Fault::new(calls, Files::All, How::Skipped), true);
        }
        Device(disk)
    }

    /// As a store takes it.
    pub fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.0.clone())
    }

    /// One whose journal can be filled.
    pub fn to_be_filled() -> Device {
        let device = Device::default();
        device.0.set(NO_ROOM_AHEAD, true);
        device
    }

    /// One that may lose its power.
    pub fn to_lose_power() -> Device {
        Device(Device::default().0.keeping(JOURNAL))
    }

    /// The same device below a copy of a folder: what it had of the journal there it has of the copy's. Of [`Device::to_lose_power`].
    pub fn moved(&self, from: &Path, to: &Path) -> Device {
        Device::of(self.0.moved(from, to))
    }

    /// Takes from a copy of `dir` what its journal had not brought to the device. Of [`Device::to_lose_power`].
    pub fn take_power(&self, dir: &Path, image: &Path) {
        for (path, bytes) in self.0.all_safe() {
            let path = image.join(path.strip_prefix(dir).unwrap());
            if path.exists() {
                std::fs::write(path, bytes).unwrap();
            }
        }
    }

    /// From now on nothing more can be written into the journal, or it can again. Of [`Device::to_be_filled`].
    pub fn fill_journal(&self, is_full: bool) {
        self.0.set(JOURNAL_FULL, is_full);
    }

    /// From now on no flush of the log comes to its end, or all do again.
    pub fn hold_flush(&self, is_held: bool) {
        self.0.set(FLUSH_HELD, is_held);
    }

    /// From now on no write of the log comes to its end, or all do again.
    pub fn hold_log(&self, is_held: bool) {
        self.0.set(LOG_HELD, is_held);
    }

    /// From now on there is no room for the log, or there is again.
    pub fn fill_log(&self, is_full: bool) {
        self.0.set(LOG_FULL, is_full);
    }

    /// From now on every read of a consume queue has to wait for the device, which gives nothing; or all come to their end.
    pub fn hold_reads(&self, are_held: bool) {
        self.0.set(READS_HELD, are_held);
    }

    /// From now on reads of the log that touch one of these bytes of its first file fail, as where a page of the device is broken.
    pub fn break_log_at(&self, places: &[u64]) {
        self.0.lift(&[Call::Read], &LOG);
        self.0.set(Fault::new(&[Call::Read], LOG, How::Breaks).at(places), !places.is_empty());
    }

    /// From now on every read of a file of a consume queue fails, or none does any more.
    pub fn break_queues(&self, are_broken: bool) {
        self.0.set(QUEUES_BROKEN, are_broken);
    }

    /// How many reads are held.
    pub fn reads_waiting(&self) -> usize {
        self.0.waiting(&READS_HELD)
    }
}
