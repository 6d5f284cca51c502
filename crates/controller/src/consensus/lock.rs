//! The file `lock` of a controller's folder: one controller at a time.

use std::fs::{File, TryLockError};
use std::path::Path;

use disk::Disk;
use journal::JournalError;

use super::options::ConsensusError;

/// Keeps other controllers out of a folder, until it is released or dropped, or the process ends.
pub(super) struct FolderLock {
    file: File,
}

impl FolderLock {
    /// Takes the lock of `dir`, which is made if there is none. Does not wait for another holder.
    pub fn take(dir: &Path, disk: &dyn Disk) -> Result<FolderLock, ConsensusError> {
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| JournalError::Disk { doing, path, source }
        };
        disk.create_dir(dir).map_err(failed("make", dir))?;
        let path = dir.join("lock");
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(failed("open", &path))?;
        match file.try_lock() {
            Ok(()) => Ok(FolderLock { file }),
            Err(TryLockError::WouldBlock) => Err(ConsensusError::Locked { dir: dir.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed("lock", &path)(source).into()),
        }
    }

    /// Lets others in. Nothing in the folder may be changed after that.
    pub fn release(&self) {
        // What cannot be given back goes with the descriptor.
        let _ = self.file.unlock();
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // A child that another thread is just starting has a copy of the descriptor, and would keep
        // the lock until its program begins.
        self.release();
    }
}
