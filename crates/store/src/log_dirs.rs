//! The folders that hold the files of the commit log: one, or several that take turns.
//!
//! As with RocketMQ's `storePathCommitLog=/a,/b` the file of number n (its first byte over the size of a file) is made in folder n modulo their
//! count, in the order of their names; a folder whose device is nearly full is passed over, and so is, once the store is open, one that does not take
//! the file (`prepare.rs`). A start that needs a file asks one folder only, so that one that was never of use is named while somebody looks. Where
//! a file lies says nothing about what is in it, so that files may be moved from one folder to another while the broker is down.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use disk::{Disk, DiskUse};

use crate::error::StoreError;

/// A folder whose file system does not say how full it is.
#[derive(Debug)]
pub(crate) struct Unmeasured {
    pub path: PathBuf,
    pub source: io::Error,
}

impl From<Unmeasured> for StoreError {
    fn from(Unmeasured { path, source }: Unmeasured) -> StoreError {
        StoreError::Disk { doing: "tell how full the disk is of", path, source }
    }
}

/// Where the log's files are, and where the next one goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDirs {
    /// Take new files; at least one. In the order of their names.
    taking: Vec<PathBuf>,
    /// Hold files, and get no more.
    read_only: Vec<PathBuf>,
}

impl LogDirs {
    /// A single one.
    pub fn one(dir: PathBuf) -> LogDirs {
        LogDirs { taking: vec![dir], read_only: Vec::new() }
    }

    /// Those of `storePathCommitLog` and of `readOnlyCommitLogStorePaths`; a folder that is in both takes no new files. `None` if none is left
    /// that does.
    pub fn new(dirs: &[PathBuf], read_only: &[PathBuf]) -> Option<LogDirs> {
        let read_only: BTreeSet<PathBuf> = read_only.iter().cloned().collect();
        let taking: BTreeSet<PathBuf> = dirs.iter().filter(|dir| !read_only.contains(*dir)).cloned().collect();
        let is_any = !taking.is_empty();
        is_any.then(|| LogDirs { taking: taking.into_iter().collect(), read_only: read_only.into_iter().collect() })
    }

    /// Those that take new files.
    pub fn taking(&self) -> &[PathBuf] {
        &self.taking
    }

    /// Those that do not.
    pub fn read_only(&self) -> &[PathBuf] {
        &self.read_only
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.taking.len() + self.read_only.len()
    }

    /// Brings the names of all files to the device. A folder that takes no files may lose some, unless it cannot be written: then there is nothing to
    /// bring, and nothing is said if that is refused.
    pub(crate) fn sync(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        for dir in &self.taking {
            disk.sync_dir(dir).map_err(|source| StoreError::Disk { doing: "sync", path: dir.clone(), source })?;
        }
        for dir in &self.read_only {
            let _ = disk.sync_dir(dir);
        }
        Ok(())
    }

    /// Brings it to the device that the file at `path` is gone, which is to be so before one beside it in the log goes: several folders may lie on
    /// several file systems, and these keep no order among each other. With a loss of power a file could come back and its neighbour not, and no
    /// start would take a log with a gap. Of one folder the file system keeps the order.
    pub(crate) fn sync_removal(&self, disk: &dyn Disk, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(dir) if self.count() > 1 => disk.sync_dir(dir),
            Some(_) | None => Ok(()),
        }
    }

    /// The first, for a sentence about the log as a whole.
    pub(crate) fn first(&self) -> &Path {
        &self.taking[0]
    }

    /// The folders for the file of that number, in the order in which they are to be asked. They take turns; those that are fuller than
    /// `full_percent` come behind those that are not, and those that do not say how full they are last.
    pub(crate) fn for_file(&self, disk: &dyn Disk, number: u64, full_percent: u8) -> Vec<&Path> {
        let (mut roomy, mut full, mut unmeasured) = (Vec::new(), Vec::new(), Vec::new());
        for dir in &self.taking {
            let group = match disk.space(dir) {
                Ok(space) if space.used_percent() <= full_percent => &mut roomy,
                Ok(_) => &mut full,
                Err(_) => &mut unmeasured,
            };
            group.push(&**dir);
        }
        for group in [&mut roomy, &mut full, &mut unmeasured] {
            let count = group.len().max(1);
            group.rotate_left((number % count as u64) as usize);
        }
        [roomy, full, unmeasured].concat()
    }

    /// The first of them.
    pub(crate) fn of_file(&self, disk: &dyn Disk, number: u64, full_percent: u8) -> &Path {
        match &self.taking[..] {
            [only] => only,
            _several => self.for_file(disk, number, full_percent)[0],
        }
    }

    /// The emptiest of those that take new files, and how full it is: as long as one has room, the log has. None if none says how full it is.
    pub(crate) fn emptiest(&self, disk: &dyn Disk, unmeasured: &mut Vec<Unmeasured>) -> Option<(&Path, DiskUse)> {
        let mut emptiest: Option<(&Path, DiskUse)> = None;
        for dir in &self.taking {
            match disk.space(dir) {
                Ok(space) => {
                    let is_before = |(_, best): &(&Path, DiskUse)| best.used_percent() <= space.used_percent();
                    emptiest = emptiest.filter(is_before).or(Some((dir, space)));
                }
                Err(source) => unmeasured.push(Unmeasured { path: dir.clone(), source }),
            }
        }
        emptiest
    }
}

#[cfg(test)]
mod tests {
    use disk::RealDisk;

    use super::*;

    fn dirs(names: &[&str]) -> Vec<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn files_take_turns_in_the_order_of_the_folders_names() {
        let found = LogDirs::new(&dirs(&["/c", "/a", "/b", "/a"]), &dirs(&["/b", "/old"])).unwrap();
        assert_eq!(found.taking(), dirs(&["/a", "/c"]));
        assert_eq!(found.read_only(), dirs(&["/b", "/old"]));
        let turns: Vec<&Path> = (0..4).map(|number| found.of_file(&RealDisk, number, 100)).collect();
        assert_eq!(turns, [Path::new("/a"), Path::new("/c"), Path::new("/a"), Path::new("/c")]);
    }

    #[test]
    fn somebody_has_to_take_the_next_file() {
        assert_eq!(LogDirs::new(&dirs(&["/a"]), &dirs(&["/a"])), None);
        assert_eq!(LogDirs::new(&[], &[]), None);
    }
}
