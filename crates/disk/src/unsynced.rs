//! The file `unsynced`: a sync has failed, and the kernel may hold more than the device has.
//!
//! A page that the kernel could not write it keeps, and takes for clean: whoever reads it finds what was written, no later sync writes it, and all of
//! them succeed. So a start after a process that ended itself would vouch for bytes that the device never got. Whoever syncs through
//! [`Unsynced::watched`] leaves the mark when that fails, before anybody hears of it; a start that finds it writes again what no check-point
//! vouches for (`store/again.rs`, recovery), and removes it when all of that is on the device.
//!
//! Neither the mark nor its removal is synced. A machine that goes down takes the kernel's pages along with the mark, and what a start reads then is what
//! the device has; a mark that comes back costs one start some writing.
//!
//! A process that is killed between the failed sync and the mark leaves none. That hole is as long as
//! three calls of the file system, and open.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapRaw;
use parking_lot::Mutex;
use tracing::warn;

use crate::layer::{DiskLayer, FileLayer};
use crate::seam::{self, Disk, DiskFile, OpenHow};

/// So much of what the mark says is read.
const TEXT_BYTES_MAX: usize = 1024;

/// The mark of a store.
#[derive(Debug)]
pub struct Unsynced {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// What the process before us has left.
    found: Option<String>,
    /// Whether a sync of this process has failed. The file is written and removed under it, so that a start does not remove what it has just left itself.
    has_failed: Mutex<bool>,
}

impl Unsynced {
    /// Where the mark of the store at `root` lies.
    pub fn path(root: &Path) -> PathBuf {
        root.join("unsynced")
    }

    /// Of the store at `root`.
    pub fn find(root: &Path, disk: &Arc<dyn Disk>) -> io::Result<Arc<Unsynced>> {
        let path = Unsynced::path(root);
        let found = path.exists().then(|| text_of(&**disk, &path)).transpose()?;
        Ok(Arc::new(Unsynced { path, disk: Arc::clone(disk), found, has_failed: Mutex::new(false) }))
    }

    /// What the process before us said of its sync that failed. None: there was none.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// The disk, but that a sync which fails leaves the mark.
    pub fn watched(self: &Arc<Unsynced>) -> Arc<dyn Disk> {
        Arc::new(WatchedDisk(Arc::clone(self)))
    }

    /// What the process before us has left is on the device: removes its mark, unless a sync has failed since.
    pub fn clear(&self) {
        let has_failed = self.has_failed.lock();
        if self.found.is_some()
            && !*has_failed
            && let Err(error) = self.disk.remove(&self.path)
        {
            warn!(path = %self.path.display(), %error, "cannot be removed: the next start writes again what it finds, too");
        }
    }

    /// Leaves the mark. Returns what there is to say of the failure.
    fn note(&self, what: &Path, error: io::Error) -> io::Error {
        let mut has_failed = self.has_failed.lock();
        *has_failed = true;
        let left = self.disk.open(&self.path, OpenHow::Create).and_then(|file| {
            file.set_len(0)?;
            file.write_at(format!("{}: {error}\n", what.display()).as_bytes(), 0)
        });
        match left {
            Ok(()) => error,
            Err(why) => io::Error::new(
                error.kind(),
                format!(
                    "{error}; and {} cannot be written ({why}): start the machine again first, or the next start takes for safe what is not on \
                     the device",
                    self.path.display()
                ),
            ),
        }
    }
}

/// A mark whose text is not whole is one all the same.
fn text_of(disk: &dyn Disk, path: &Path) -> io::Result<String> {
    let mut bytes = vec![0; TEXT_BYTES_MAX];
    let read = disk.open(path, OpenHow::Read)?.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..read]).trim_end().to_owned())
}

/// The sync of a folder leaves no mark: names are kept by the file system's own journal, without
/// which it does not go on, so that none of them is clean and missing.
#[derive(Debug)]
struct WatchedDisk(Arc<Unsynced>);

impl DiskLayer for WatchedDisk {
    fn inner(&self) -> &dyn Disk {
        &*self.0.disk
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let inner = self.inner().open(path, how)?;
        Ok(Arc::new(WatchedFile { inner, path: path.to_owned(), unsynced: Arc::clone(&self.0) }))
    }
    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        match self.inner().sync_file_system(dir) {
            Err(error) if seam::was_begun(&error) => Err(self.0.note(dir, error)),
            synced => synced,
        }
    }
    fn sync_failed(&self, path: &Path, error: io::Error) -> io::Error {
        self.0.note(path, error)
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Arc<dyn DiskFile>,
    path: PathBuf,
    unsynced: Arc<Unsynced>,
}

impl FileLayer for WatchedFile {
    fn inner(&self) -> &dyn DiskFile {
        &*self.inner
    }
    fn read_once_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.inner.read_once_at(buffer, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data().map_err(|error| self.unsynced.note(&self.path, error))
    }
    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        self.inner.sync_mapped(map, start, bytes).map_err(|error| self.unsynced.note(&self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governed::{FilePages, governed};
    use crate::seam::RealDisk;

    #[test]
    fn a_sync_that_was_not_even_begun_leaves_no_mark() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let unsynced = Unsynced::find(dir.path(), &disk).unwrap();
        assert!(unsynced.watched().sync_file_system(&dir.path().join("nowhere")).is_err());
        assert_eq!(Unsynced::find(dir.path(), &disk).unwrap().found(), None);
    }

    #[test]
    fn a_mark_stays_for_the_next_start_if_a_sync_fails_while_it_is_worked_off() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let find = || Unsynced::find(dir.path(), &disk).unwrap();
        let broken = || io::Error::other("broken");
        assert_eq!(find().note(Path::new("a/b"), broken()).to_string(), "broken");
        let start = find();
        assert_eq!(start.found(), Some("a/b: broken"));
        start.note(Path::new("c"), broken());
        start.clear();
        assert_eq!(find().found(), Some("c: broken"));
        find().clear();
        assert_eq!(find().found(), None);
    }

    #[test]
    fn a_sync_that_went_past_its_file_leaves_the_mark_too() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let find = || Unsynced::find(dir.path(), &disk).unwrap();
        let broken = || io::Error::other("broken");
        let watched = find().watched();
        assert_eq!(watched.sync_failed(Path::new("a"), broken()).to_string(), "broken");
        assert_eq!(find().found(), Some("a: broken"));
        let governed = governed(&watched, &Arc::new(FilePages::new(1 << 20, &watched)));
        governed.sync_failed(Path::new("b"), broken());
        assert_eq!(find().found(), Some("b: broken"));
    }

    #[test]
    fn a_mark_that_cannot_be_left_is_part_of_what_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let unsynced = Unsynced::find(&dir.path().join("nowhere"), &disk).unwrap();
        let said = unsynced.note(Path::new("a"), io::Error::other("broken")).to_string();
        assert!(said.starts_with("broken; and ") && said.contains("start the machine again"), "{said}");
    }
}
