//! A disk that can become full, and that knows what of each file a loss of power would leave.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use disk::faults::{Call, Fault, FaultDisk, Files, How, SYNCS, Step};
use env::Random;
use parking_lot::Mutex;

/// What a device writes whole or not at all.
const SECTOR_BYTES: usize = 512;

const FULL: Fault = Fault::new(&[Call::Write, Call::Allocate], Files::All, How::HalfDone);
/// One that is not finished.
const SNAPSHOTS: Files = Files::Ending("tmp");
const SNAPSHOTS_REFUSED: Fault =
    Fault::new(&[Call::Open, Call::OpenToWrite], SNAPSHOTS, How::Fails(ErrorKind::StorageFull));
const FOLDERS_REFUSED: Fault = Fault::new(&[Call::SyncDir], Files::All, How::NotBegun);

#[derive(Clone, Debug)]
pub(super) struct Device {
    disk: FaultDisk,
    images: Arc<Images>,
}

#[derive(Debug, Default)]
struct Images {
    taken: Mutex<Vec<tempfile::TempDir>>,
    /// What each step that changes files leaves images of; none: only renames do.
    each_step: Mutex<Option<Vec<Lost>>>,
}

/// What a loss of power takes of what was written since the last sync.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lost {
    All,
    /// Some sectors, by this number.
    Some(u32),
}

impl Default for Device {
    fn default() -> Device {
        let images = Arc::<Images>::default();
        let into = Arc::clone(&images);
        let disk = FaultDisk::noting().keeping(Files::All).watched(move |disk, step, folder| {
            let lost = match step {
                Step::Before => into.each_step.lock().clone().unwrap_or_default(),
                Step::Renamed => vec![Lost::All],
            };
            into.taken.lock().extend(lost.into_iter().map(|lost| image(disk, folder, lost)));
        });
        Device { disk, images }
    }
}

impl Device {
    /// As a journal takes it.
    pub(super) fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    /// From now on nothing new has room, or has again.
    pub(super) fn be_full(&self, is_full: bool) {
        self.disk.set(FULL, is_full);
    }

    /// From now on no snapshot has room, or has again; what is smaller does.
    pub(super) fn refuse_snapshots(&self, are_refused: bool) {
        self.disk.set(SNAPSHOTS_REFUSED, are_refused);
    }

    /// From now on no folder can be opened to be synced, as where the process has no descriptor left.
    pub(super) fn refuse_folders(&self) {
        self.disk.set(FOLDERS_REFUSED, true);
    }

    /// How often a snapshot was synced.
    pub(super) fn snapshot_syncs(&self) -> u64 {
        self.disk.count(SYNCS, &SNAPSHOTS) as u64
    }

    /// What a loss of power would leave of the files in `dir` now.
    pub(super) fn image(&self, dir: &Path, lost: Lost) -> tempfile::TempDir {
        image(&self.disk, dir, lost)
    }

    /// What losses of power before each step of `work` that changes files would have left.
    pub(super) fn images_of_each_step(&self, lost: &[Lost], work: impl FnOnce()) -> Vec<tempfile::TempDir> {
        self.images();
        *self.images.each_step.lock() = Some(lost.to_vec());
        work();
        *self.images.each_step.lock() = None;
        self.images()
    }

    /// What a loss of power behind each rename would have left.
    pub(super) fn images(&self) -> Vec<tempfile::TempDir> {
        std::mem::take(&mut self.images.taken.lock())
    }
}

fn image(disk: &FaultDisk, dir: &Path, lost: Lost) -> tempfile::TempDir {
    let image = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let newest = std::fs::read(entry.path()).unwrap();
        let kept = match (disk.safe(&entry.path()), lost) {
            (None, _) => newest,
            (Some(synced), Lost::All) => synced,
            (Some(synced), Lost::Some(seed)) => mixed(&synced, newest, seed),
        };
        std::fs::write(image.path().join(entry.file_name()), kept).unwrap();
    }
    image
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
