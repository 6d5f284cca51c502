//! A disk that can become full, and that knows what of each file a loss of power would leave.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use disk::{Disk, DiskFile, OpenHow, RealDisk};
use env::Random;
use parking_lot::{Mutex, MutexGuard};

/// What a device writes whole or not at all.
const SECTOR_BYTES: usize = 512;

#[derive(Clone, Debug, Default)]
pub(super) struct Device(Arc<State>);

#[derive(Debug, Default)]
struct State {
    is_full: AtomicBool,
    has_no_room_for_snapshots: AtomicBool,
    cannot_open_folders: AtomicBool,
    /// How often a snapshot was synced.
    snapshot_syncs: AtomicU64,
    /// What the device has of each file for sure: as it was when its last sync began.
    synced: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    images: Mutex<Vec<tempfile::TempDir>>,
    /// What each step that changes files leaves images of; none: only renames do.
    each_step: Mutex<Option<Vec<Lost>>>,
    /// Held by a step from its images to its end, so that no image shows half of another.
    turn: Mutex<()>,
}

/// What a loss of power takes of what was written since the last sync.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost {
    All,
    /// Some sectors, by this number.
    Some(u32),
}

impl Device {
    /// From now on nothing new has room, or has again.
    pub(super) fn be_full(&self, is_full: bool) {
        self.0.is_full.store(is_full, Ordering::SeqCst);
    }

    /// From now on no snapshot has room, or has again; what is smaller does.
    pub(super) fn refuse_snapshots(&self, are_refused: bool) {
        self.0.has_no_room_for_snapshots.store(are_refused, Ordering::SeqCst);
    }

    /// From now on no folder can be opened to be synced, as where the process has no descriptor left.
    pub(super) fn refuse_folders(&self) {
        self.0.cannot_open_folders.store(true, Ordering::SeqCst);
    }

    /// How often a snapshot was synced.
    pub(super) fn snapshot_syncs(&self) -> u64 {
        self.0.snapshot_syncs.load(Ordering::SeqCst)
    }

    /// What a loss of power would leave of the files in `dir` now.
    pub(super) fn image(&self, dir: &Path, lost: Lost) -> tempfile::TempDir {
        let image = tempfile::tempdir().unwrap();
        let synced = self.0.synced.lock();
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let newest = std::fs::read(entry.path()).unwrap();
            let kept = match (synced.get(&entry.path()), lost) {
                (None, _) => newest,
                (Some(synced), Lost::All) => synced.clone(),
                (Some(synced), Lost::Some(seed)) => mixed(synced, newest, seed),
            };
            std::fs::write(image.path().join(entry.file_name()), kept).unwrap();
        }
        image
    }

    /// What losses of power before each step of `work` that changes files would have left.
    pub(super) fn images_of_each_step(&self, lost: &[Lost], work: impl FnOnce()) -> Vec<tempfile::TempDir> {
        self.images();
        *self.0.each_step.lock() = Some(lost.to_vec());
        work();
        *self.0.each_step.lock() = None;
        self.images()
    }

    /// The file or name `path` is about to change, while the guard lives.
    fn step(&self, path: &Path) -> MutexGuard<'_, ()> {
        let turn = self.0.turn.lock();
        let lost = self.0.each_step.lock().clone();
        for lost in lost.into_iter().flatten() {
            let image = self.image(path.parent().unwrap(), lost);
            self.0.images.lock().push(image);
        }
        turn
    }

    /// What a loss of power behind each rename would have left.
    pub(super) fn images(&self) -> Vec<tempfile::TempDir> {
        std::mem::take(&mut self.0.images.lock())
    }
}

/// Of each sector the state that was synced or the newest; the length is the newest.
fn mixed(synced: &[u8], mut newest: Vec<u8>, seed: u32) -> Vec<u8> {
    let dice = Random::seeded(u64::from(seed));
    for (at, sector) in newest.chunks_mut(SECTOR_BYTES).enumerate() {
        if dice.below(2) == 0 {
            sector.fill(0);
            let from = synced.get(at * SECTOR_BYTES..).unwrap_or_default();
            let bytes = from.len().min(sector.len());
            sector[..bytes].copy_from_slice(&from[..bytes]);
        }
    }
    newest
}

/// One that is not finished.
fn is_snapshot(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "tmp")
}

impl disk::DiskLayer for Device {
    fn inner(&self) -> &dyn Disk {
        &RealDisk
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let _turn = self.step(path);
        if is_snapshot(path) && self.0.has_no_room_for_snapshots.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = RealDisk.open(path, how)?;
        Ok(Arc::new(DeviceFile { file, path: path.to_owned(), device: self.clone() }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _turn = self.step(to);
        RealDisk.rename(from, to)?;
        let synced = self.0.synced.lock().remove(from);
        self.0.synced.lock().extend(synced.map(|synced| (to.to_owned(), synced)));
        let image = self.image(to.parent().unwrap(), Lost::All);
        self.0.images.lock().push(image);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let _turn = self.step(path);
        RealDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let _turn = self.step(&dir.join("a name"));
        // The machine says it as it says it of any folder that it cannot open.
        let is_refused = self.0.cannot_open_folders.load(Ordering::SeqCst);
        if is_refused { RealDisk.sync_dir(&dir.join("no such folder")) } else { RealDisk.sync_dir(dir) }
    }
}

#[derive(Debug)]
struct DeviceFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    device: Device,
}

impl DeviceFile {
    fn is_full(&self) -> bool {
        self.device.0.is_full.load(Ordering::SeqCst)
    }
}

impl disk::FileLayer for DeviceFile {
    fn inner(&self) -> &dyn DiskFile {
        &*self.file
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let _turn = self.device.step(&self.path);
        if self.is_full() {
            // Half of it went through.
            self.file.write_at(&bytes[..bytes.len() / 2], at)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_at(bytes, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        let _turn = self.device.step(&self.path);
        let bytes = std::fs::read(&self.path)?;
        self.file.sync_data()?;
        if is_snapshot(&self.path) {
            self.device.0.snapshot_syncs.fetch_add(1, Ordering::SeqCst);
        }
        self.device.0.synced.lock().insert(self.path.clone(), bytes);
        Ok(())
    }
    /// What is refused has made the file longer all the same, as ext4 does it.
    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        if self.is_full() {
            self.file.set_len(self.file.len()?.max(at + bytes / 2))?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.allocate(at, bytes)
    }
}
