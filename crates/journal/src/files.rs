//! The journal's directory: `<position>.journal` holds the changes after a position, `<position>.snapshot` the state at
//! (or after) one, `*.tmp` a snapshot that was not finished.

use std::path::{Path, PathBuf};

use disk::{Disk, OpenHow, pages};

use crate::error::JournalError;

/// The files of a journal, by the position in their names, ascending.
#[derive(Debug, Default)]
pub struct Files {
    pub journals: Vec<u64>,
    pub snapshots: Vec<u64>,
    pub unfinished: Vec<PathBuf>,
}

pub fn journal_path(dir: &Path, position: u64) -> PathBuf {
    dir.join(format!("{position:020}.journal"))
}

pub fn snapshot_path(dir: &Path, position: u64) -> PathBuf {
    dir.join(format!("{position:020}.snapshot"))
}

pub fn list(disk: &dyn Disk, dir: &Path) -> Result<Files, JournalError> {
    let mut files = Files::default();
    for entry in disk.list(dir).map_err(|source| JournalError::disk("list", dir, source))? {
        if let Some(position) = entry.name.strip_suffix(".journal").and_then(|name| name.parse().ok()) {
            files.journals.push(position);
        } else if let Some(position) = entry.name.strip_suffix(".snapshot").and_then(|name| name.parse().ok()) {
            files.snapshots.push(position);
        } else if entry.name.ends_with(".tmp") {
            files.unfinished.push(dir.join(entry.name));
        }
    }
    files.journals.sort_unstable();
    files.snapshots.sort_unstable();
    Ok(files)
}

/// Bytes of the journal in `dir` that are in memory. A file that goes meanwhile counts nothing.
pub fn resident(disk: &dyn Disk, dir: &Path) -> u64 {
    let of = |path: &Path| {
        let file = disk.open(path, OpenHow::Read)?;
        pages::resident(file.descriptor(), 0, file.len()?)
    };
    let entries = disk.list(dir).unwrap_or_default();
    entries.iter().map(|entry| of(&dir.join(&entry.name)).unwrap_or_default().cached).sum()
}

/// Removes what the snapshot at `position` makes void.
pub fn remove_before(disk: &dyn Disk, dir: &Path, position: u64) -> Result<(), JournalError> {
    let files = list(disk, dir)?;
    let journals = files.journals.iter().map(|start| (*start, journal_path(dir, *start)));
    let snapshots = files.snapshots.iter().map(|start| (*start, snapshot_path(dir, *start)));
    for (_, path) in journals.chain(snapshots).filter(|(start, _)| *start < position) {
        disk.remove(&path).map_err(|source| JournalError::disk("remove", &path, source))?;
    }
    Ok(())
}
