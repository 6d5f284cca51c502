//! Files and folders of consume queues that a loss of power could still take.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::DiskFile;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::descriptors::FileKey;

/// Files (and directories) that are made durable one by one, and held open until then; from here on, the file system is synced as a whole.
pub(super) const SYNCED_SINGLY_MAX: usize = 256;

/// Files written and directories made since the last sync.
#[derive(Default)]
pub(super) struct Unsynced {
    pub(super) files: HashMap<FileKey, Arc<dyn DiskFile>, FixedState>,
    pub(super) dirs: Vec<PathBuf>,
    /// There were too many to remember each: the whole file system is due.
    pub(super) is_everything: bool,
}

impl Unsynced {
    pub(super) fn note(&mut self, queue: u64, file_start: u64, file: &Arc<dyn DiskFile>) {
        if self.is_everything {
            return;
        }
        // The oldest descriptor stays: of what the kernel could not write, a younger one may hear nothing, since the first to ask (a governor that
        // waits for pages, say) was told already.
        self.files.entry((queue, file_start)).or_insert_with(|| Arc::clone(file));
        self.limit();
    }

    pub(super) fn note_made(&mut self, dir: PathBuf) {
        if !self.is_everything {
            self.dirs.push(dir);
            self.limit();
        }
    }

    pub(super) fn forget(&mut self, queue: u64, from: u64, to: u64) {
        self.files.retain(|key, _| key.0 != queue || !(from..to).contains(&key.1));
    }

    /// Forgets folders that are made in `dir`, and itself: they are gone.
    pub(super) fn forget_below(&mut self, dir: &Path) {
        self.dirs.retain(|made| !made.starts_with(dir));
    }

    fn limit(&mut self) {
        if self.files.len() + self.dirs.len() > SYNCED_SINGLY_MAX {
            *self = Unsynced { is_everything: true, ..Unsynced::default() };
        }
    }
}

#[cfg(test)]
mod tests {
    use disk::{Disk, OpenHow, RealDisk};

    use super::*;

    #[test]
    fn a_file_is_synced_by_the_descriptor_that_was_open_before_the_first_write() {
        let dir = tempfile::tempdir().unwrap();
        let open = || RealDisk.open(&dir.path().join("file"), OpenHow::Create).unwrap();
        let (first, second) = (open(), open());
        let mut unsynced = Unsynced::default();
        unsynced.note(7, 0, &first);
        unsynced.note(7, 0, &second);
        assert!(Arc::ptr_eq(&unsynced.files[&(7, 0)], &first));
    }
}
