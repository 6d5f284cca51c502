//! Queues that are built from further back than a start would begin by what it then finds of them: written down before the first unit, so that a
//! start that finds them half built, ours or Apache's, builds all of it.

use disk::Disk;

use super::before::Before;
use crate::checkpoint::{Checkpoint, Marks};
use crate::error::StoreError;
use crate::lock::AbortFile;
use crate::options::StoreOptions;
use crate::resume::Resume;

/// Where it is written down.
#[derive(Clone, Copy)]
pub(crate) struct Unfinished<'a> {
    pub abort: &'a AbortFile,
    pub checkpoint: &'a Checkpoint,
    pub resume: &'a Resume,
}

impl Unfinished<'_> {
    /// From now on a start finds a store that nobody has closed, with queues of which nothing is known to be on the device: it reads the log from its
    /// beginning.
    pub fn begin(
        &self,
        before: &Before,
        was_abnormal: bool,
        options: &StoreOptions,
        disk: &dyn Disk,
    ) -> Result<(), StoreError> {
        // What the process before us had handed over is about to change.
        self.resume.forget();
        // Where there is no check-point, all of the log is read in any case.
        if let Some(marks) = before.marks {
            self.checkpoint.put(&Marks { queues_timestamp: 0, ..*marks })?;
        }
        if was_abnormal {
            return Ok(());
        }
        self.abort.raise()?;
        let root = &options.root;
        disk.sync_dir(root).map_err(|source| StoreError::Disk { doing: "sync", path: root.clone(), source })
    }

    /// All is built, and on the device as far as the check-point vouches for it. `abort` stays: the store is open.
    pub fn end(&self, before: &Before) -> Result<(), StoreError> {
        before.marks.map_or(Ok(()), |marks| self.checkpoint.put(marks))
    }
}
