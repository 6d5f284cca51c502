//! What is done about a sync that failed in the process before this one.
//!
//! The kernel takes such pages for clean: this process would read a vote or an entry that the device
//! never got, and no sync would bring it (see [`Unsynced`]). So the journal's files are written again
//! before they are read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, OpenHow, Unsynced};
use journal::JournalError;

/// Bytes that are written again at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Where the journal lies in a controller's folder.
pub(super) fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// The disk of the controller in `dir`: a sync that fails leaves a mark there, and what an earlier one
/// has left is on the device when this returns.
pub(super) fn watched(dir: &Path, disk: &Arc<dyn Disk>) -> Result<Arc<dyn Disk>, JournalError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| JournalError::Disk { doing, path, source }
    };
    disk.create_dir(dir).map_err(failed("make", dir))?;
    let unsynced = Unsynced::find(dir, disk).map_err(failed("read", &Unsynced::path(dir)))?;
    let watched = unsynced.watched();
    if let Some(failure) = unsynced.found() {
        let journal = journal_dir(dir);
        for entry in watched.list(&journal).map_err(failed("list", &journal))? {
            let path = journal.join(entry.name);
            write_again(&*watched, &path).map_err(failed("write again", &path))?;
        }
        tracing::warn!(failure, "a sync of the controller's journal has failed before: its files were written again");
        unsynced.clear();
    }
    Ok(watched)
}

fn write_again(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let file = disk.open(path, OpenHow::Write)?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    // Each turn writes a piece, or finds the file's end.
    loop {
        let read = file.read_at(&mut piece, at)?;
        if read == 0 {
            return file.sync_data();
        }
        file.write_at(&piece[..read], at)?;
        at += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use disk::faults::{Fault, FaultDisk, Files, How, SYNCS};

    use super::*;

    #[test]
    fn what_a_failed_sync_has_left_in_the_kernel_only_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let faults = FaultDisk::noting().keeping(Files::All);
        let disk: Arc<dyn Disk> = Arc::new(faults.clone());
        let journal = journal_dir(dir.path());
        let path = journal.join("7.journal");
        let bytes = vec![7; PIECE_BYTES + 1];

        let of_this = watched(dir.path(), &disk).unwrap();
        of_this.create_dir(&journal).unwrap();
        let file = of_this.open(&path, OpenHow::Create).unwrap();
        file.write_at(&bytes, 0).unwrap();
        faults.set(Fault::new(SYNCS, Files::In(journal.clone()), How::Loses).once(), true);
        assert!(file.sync_data().is_err());
        // The process ends here. A sync of the next one brings nothing.
        let file = disk.open(&path, OpenHow::Write).unwrap();
        file.sync_data().unwrap();
        assert!(faults.dropped_pages(&journal) > 0 && faults.safe(&path).as_ref() != Some(&bytes));

        watched(dir.path(), &disk).unwrap();
        assert_eq!((faults.dropped_pages(&journal), faults.safe(&path)), (0, Some(bytes)));
        assert!(!Unsynced::path(dir.path()).exists());
    }
}
