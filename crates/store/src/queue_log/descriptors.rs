//! Open files of consume queues: a bounded number, however many queues there are.
//!
//! A descriptor is opened when a file is read or written, shared while it is here, and closed some time after others were
//! needed more. The lock guards the table only; files are opened and closed outside it.

use std::path::Path;
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow};
use env::Buggify;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::Mutex;

use super::error::QueueError;

/// A file of a queue: the queue's number and the index of the file's first unit.
pub(super) type FileKey = (u64, u64);

pub(super) struct Descriptors {
    limit: usize,
    buggify: Buggify,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// Counts uses; the time by which the least recent are found.
    uses: u64,
    files: HashMap<FileKey, (u64, Arc<dyn DiskFile>), FixedState>,
}

impl Descriptors {
    pub fn new(limit: usize, buggify: Buggify) -> Descriptors {
        Descriptors { limit: limit.max(4), buggify, open: Mutex::new(Open::default()) }
    }

    /// The open file; `path` is asked for, and opened, only if it is not here.
    pub fn get(
        &self,
        disk: &dyn Disk,
        key: FileKey,
        how: OpenHow,
        path: impl FnOnce() -> std::path::PathBuf,
    ) -> Result<Arc<dyn DiskFile>, QueueError> {
        {
            let mut open = self.open.lock();
            open.uses += 1;
            let now = open.uses;
            if self.buggify.at("queues: a descriptor had to go") {
                open.files.remove(&key);
            } else if let Some((used, file)) = open.files.get_mut(&key) {
                *used = now;
                return Ok(Arc::clone(file));
            }
        }
        let path = path();
        let file = disk.open(&path, how).map_err(|source| QueueError::disk("open", &path, source))?;
        self.put(key, &file);
        Ok(file)
    }

    fn put(&self, key: FileKey, file: &Arc<dyn DiskFile>) {
        let mut closed = Vec::new();
        let mut open = self.open.lock();
        if open.files.len() >= self.limit {
            // A quarter at once, so that the search for the oldest is paid once for many opens.
            let mut uses: Vec<u64> = open.files.values().map(|(used, _)| *used).collect();
            uses.sort_unstable();
            let oldest_kept = uses[self.limit / 4];
            closed.extend(open.files.extract_if(|_, (used, _)| *used < oldest_kept).map(|(_, (_, file))| file));
        }
        let now = open.uses;
        open.files.insert(key, (now, Arc::clone(file)));
        drop(open);
        drop(closed);
    }

    /// Forgets the files of a queue that begin at `from` or above and below `to`, since they are gone from the disk.
    pub fn forget(&self, queue: u64, from: u64, to: u64) {
        let closed: Vec<_> = {
            let mut open = self.open.lock();
            open.files.extract_if(|key, _| key.0 == queue && (from..to).contains(&key.1)).collect()
        };
        drop(closed);
    }

    pub fn count(&self) -> usize {
        self.open.lock().files.len()
    }
}

/// `%020d`, as RocketMQ names every file by its first byte.
pub(super) fn file_path(dir: &Path, first_byte: u64) -> std::path::PathBuf {
    dir.join(format!("{first_byte:020}"))
}
