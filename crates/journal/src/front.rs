//! A file of bundles, read from its front to its end, a stretch at a time: a start's memory does not grow with the journal.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, DiskFile, OpenHow};

use crate::bundle::{self, HEADER_BYTES, Head};
use crate::error::JournalError;

/// Bytes that a start reads at a time.
const STRETCH_BYTES: usize = 1 << 20;

pub(super) struct Front {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    len: u64,
    /// The byte of the file with which `stretch` begins.
    at: u64,
    stretch: Vec<u8>,
    /// Bytes that are read at a time; more where a bundle is longer.
    step: usize,
}

impl Front {
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> Result<Front, JournalError> {
        Front::open_in_steps(disk, path, STRETCH_BYTES)
    }

    /// The same, with so many bytes that are read at a time.
    pub(super) fn open_in_steps(disk: &dyn Disk, path: &Path, step: usize) -> Result<Front, JournalError> {
        let failed = |source| JournalError::disk("read", path, source);
        let file = disk.open(path, OpenHow::Read).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        Ok(Front { file, path: path.to_owned(), len, at: 0, stretch: Vec::new(), step })
    }

    /// Forgets what was read: the file may have grown or changed from byte `at` on. Not before one
    /// that was asked for earlier.
    pub(super) fn renew(&mut self, at: u64) -> Result<(), JournalError> {
        self.len = self.file.len().map_err(|source| JournalError::disk("read", &self.path, source))?;
        self.at = at;
        self.stretch.clear();
        self.stretch.shrink_to(self.step);
        Ok(())
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The bundle at byte `at`, if there is a whole valid one. Not before one that was asked for earlier.
    pub(super) fn bundle(&mut self, at: u64) -> Result<Option<(Head, &[u8])>, JournalError> {
        self.hold(at, HEADER_BYTES)?;
        if let Some(bytes) = bundle::bytes(self.from(at)) {
            self.hold(at, bytes)?;
        }
        Ok(bundle::open(self.from(at)))
    }

    /// All that there is from byte `at` on: where the journal ends, or is damaged.
    pub(super) fn rest(&mut self, at: u64) -> Result<&[u8], JournalError> {
        self.hold(at, usize::MAX)?;
        Ok(self.from(at))
    }

    fn from(&self, at: u64) -> &[u8] {
        self.stretch.get((at - self.at) as usize..).unwrap_or_default()
    }

    /// Has the stretch begin at or before `at`, and hold so many bytes from there, or all there are.
    fn hold(&mut self, at: u64, bytes: usize) -> Result<(), JournalError> {
        let wanted = (bytes as u64).min(self.len.saturating_sub(at)) as usize;
        if self.from(at).len() >= wanted {
            return Ok(());
        }
        let passed = ((at - self.at) as usize).min(self.stretch.len());
        self.stretch.drain(..passed);
        self.at = at;
        let held = self.stretch.len();
        let goal = (bytes.max(self.step) as u64).min(self.len - at) as usize;
        self.stretch.resize(goal, 0);
        let failed = |source| JournalError::disk("read", &self.path, source);
        let read = self.file.read_once_at(&mut self.stretch[held..], at + held as u64).map_err(failed)?;
        self.stretch.truncate(held + read);
        if held + read < goal {
            // It has become shorter than it said.
            self.len = at + (held + read) as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use disk::RealDisk;

    use super::*;
    use crate::bundle::BundleKind;

    #[test]
    fn bundles_across_and_beyond_stretches_are_read_whole_and_memory_stays_a_stretch() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let sizes = [0, 10, STRETCH_BYTES - 50, 1, STRETCH_BYTES, 3 * STRETCH_BYTES, 700, 0];
        let (mut file, mut starts) = (Vec::new(), Vec::new());
        for round in 0..4u64 {
            for (n, size) in sizes.into_iter().enumerate() {
                let payload = vec![n as u8; size];
                starts.push((file.len() as u64, payload.len(), n as u8));
                let head = Head { kind: BundleKind::Entries, previous: round, last: n as u64, synced: 0 };
                file.extend_from_slice(&bundle::seal(head, &payload));
                file.extend_from_slice(&payload);
            }
        }
        let end = file.len() as u64;
        file.extend_from_slice(b"and what is no bundle");
        std::fs::write(&path, &file).unwrap();
        let mut front = Front::open(&RealDisk, &path).unwrap();
        for (at, bytes, byte) in starts {
            let (head, payload) = front.bundle(at).unwrap().unwrap();
            assert_eq!((head.last, payload.len()), (u64::from(byte), bytes));
            assert!(payload.iter().all(|found| *found == byte));
            assert!(front.stretch.len() <= 4 * STRETCH_BYTES);
        }
        assert!(front.bundle(end).unwrap().is_none());
        assert_eq!(front.rest(end).unwrap(), b"and what is no bundle");
        assert!(front.bundle(front.len()).unwrap().is_none());
        assert_eq!(front.rest(front.len()).unwrap(), b"");
    }
}
