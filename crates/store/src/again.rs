//! The same bytes, written once more: pages that the kernel takes for clean are to be written again, and go to the device with the next sync.
//!
//! Here, whole files: journal, check-points, timer log and key index. Recovery does it with log and queues, from where the check-point speaks of.

use std::path::Path;

use disk::{Disk, DiskFile, OpenHow};

use crate::error::StoreError;
use crate::index::is_index_file;
use crate::rewrite::{Failed, write_all, write_data};
use crate::timer;

/// The last files of the key index, which may have been written since it was synced: the newest, and the one that was full before.
const INDEX_FILES: usize = 2;

/// [`write_all`] or [`write_data`].
type WriteAgain = fn(&dyn DiskFile, u64, u64) -> Result<u64, Failed>;

/// Brings to the device what the files of the store at `root` say, but for those of log and queues; `index`: where the key index is. Before anything
/// else is read: a read may take pages out of memory. Returns how many bytes were written. Appends a sentence for each file of the index that cannot be
/// read and is removed: the log has what it said.
pub(crate) fn write_files(
    root: &Path,
    index: Option<&Path>,
    disk: &dyn Disk,
    findings: &mut Vec<String>,
) -> Result<u64, StoreError> {
    let mut written = 0;
    let journal = root.join("journal");
    for name in names(disk, &journal, |name| name.ends_with(".journal") || name.ends_with(".snapshot"))? {
        written += write_file(disk, &journal.join(name), 0, write_all)?;
    }
    for path in [root.join("checkpoint"), root.join("config").join("timercheck")] {
        if path.exists() {
            written += write_file(disk, &path, 0, write_all)?;
        }
    }
    let flushed =
        timer::look_at_marks(disk, root)?.and_then(|marks| u64::try_from(marks.log_flushed).ok()).unwrap_or(0);
    let timers = root.join("timerlog");
    for name in names(disk, &timers, |name| name.len() == 20)? {
        let Ok(base) = name.parse::<u64>() else { continue };
        written += write_file(disk, &timers.join(name), flushed.saturating_sub(base), write_data)?;
    }
    if let Some(dir) = index {
        let files = names(disk, dir, is_index_file)?;
        written += write_index(dir, &files[files.len().saturating_sub(INDEX_FILES)..], disk, findings)?;
    }
    Ok(written)
}

/// The same of files of the key index. From the first one on that cannot be read they are removed: the index has no gaps.
fn write_index(dir: &Path, files: &[String], disk: &dyn Disk, findings: &mut Vec<String>) -> Result<u64, StoreError> {
    let mut written = 0;
    for (place, name) in files.iter().enumerate() {
        let path = dir.join(name);
        match write_and_sync(disk, &path, 0, write_data) {
            Ok(bytes) => written += bytes,
            Err(Failed::Read(why)) => {
                findings.push(format!(
                    "{} cannot be read ({why}), and is built again from the log with what follows it",
                    path.display()
                ));
                // The newest first, for whoever does not get to the end of it.
                for path in files[place..].iter().rev().map(|name| dir.join(name)) {
                    disk.remove(&path).map_err(|source| StoreError::Disk { doing: "remove", path, source })?;
                }
                break;
            }
            Err(Failed::Write(source)) => return Err(StoreError::Disk { doing: "write again", path, source }),
        }
    }
    Ok(written)
}

/// The files of a folder, by name.
fn names(disk: &dyn Disk, dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, StoreError> {
    let entries = disk.list(dir).map_err(|source| StoreError::Disk { doing: "list", path: dir.to_owned(), source })?;
    let files = entries.into_iter().filter(|entry| !entry.is_dir && is_wanted(&entry.name));
    let mut names: Vec<String> = files.map(|entry| entry.name).collect();
    names.sort_unstable();
    Ok(names)
}

fn write_file(disk: &dyn Disk, path: &Path, from: u64, write: WriteAgain) -> Result<u64, StoreError> {
    let failed = |why: Failed| StoreError::Disk { doing: "write again", path: path.to_owned(), source: why.into() };
    write_and_sync(disk, path, from, write).map_err(failed)
}

fn write_and_sync(disk: &dyn Disk, path: &Path, from: u64, write: WriteAgain) -> Result<u64, Failed> {
    let file = disk.open(path, OpenHow::Write).map_err(Failed::Write)?;
    let to = file.len().map_err(Failed::Write)?;
    let written = write(&*file, from, to)?;
    if written > 0 {
        file.sync_data().map_err(Failed::Write)?;
    }
    Ok(written)
}
