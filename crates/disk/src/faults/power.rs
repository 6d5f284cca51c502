//! What the device has of files, beside what the kernel has.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{FaultDisk, Files};

const PAGE: usize = 4096;

#[derive(Clone)]
pub(super) struct Power {
    pub files: Files,
    /// Files as they were when their last sync began.
    safe: BTreeMap<PathBuf, Vec<u8>>,
    /// Pages, by their number, as the kernel had them when a sync failed: as long as they stay so,
    /// no sync brings them.
    dropped: BTreeMap<(PathBuf, usize), Vec<u8>>,
}

impl Power {
    pub fn of(files: Files) -> Power {
        Power { files, safe: BTreeMap::new(), dropped: BTreeMap::new() }
    }

    /// Some bytes of a file are brought to the device, or fail to be.
    pub fn sync(&mut self, path: &Path, now: &[u8], bytes: Range<usize>, is_dropped: bool) {
        let Power { safe, dropped, .. } = self;
        let safe = safe.entry(path.to_owned()).or_default();
        safe.resize(now.len(), 0);
        for (number, page) in now.chunks(PAGE).enumerate() {
            let at = number * PAGE;
            let safe = &mut safe[at..at + page.len()];
            if at + PAGE <= bytes.start || at >= bytes.end || safe == page {
                continue;
            }
            let key = (path.to_owned(), number);
            if is_dropped {
                dropped.insert(key, page.to_vec());
            } else if dropped.get(&key).is_none_or(|dropped| dropped != page) {
                safe.copy_from_slice(page);
            }
        }
    }

    /// What is written again is no longer taken for clean.
    pub fn wrote(&mut self, path: &Path, bytes: Range<usize>) {
        let pages = bytes.start / PAGE..bytes.end.div_ceil(PAGE);
        self.dropped.retain(|(of, page), _| of != path || !pages.contains(page));
    }

    pub fn rename(&mut self, from: &Path, to: &Path) {
        let safe = self.safe.remove(from);
        self.safe.extend(safe.map(|safe| (to.to_owned(), safe)));
    }
}

impl FaultDisk {
    /// What the device has of a file for sure; none if no sync of it has come to its end. Of
    /// [`FaultDisk::keeping`], as all that follows.
    pub fn safe(&self, path: &Path) -> Option<Vec<u8>> {
        self.0.state.lock().power.as_ref()?.safe.get(path).cloned()
    }

    /// Files that the device has something of, each with that.
    pub fn all_safe(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.0.state.lock().power.as_ref().map_or_else(BTreeMap::new, |power| power.safe.clone())
    }

    /// How many pages of files in a folder the kernel takes for clean, and the device does not
    /// have.
    pub fn dropped_pages(&self, folder: &Path) -> usize {
        let state = self.0.state.lock();
        state.power.iter().flat_map(|power| power.dropped.keys()).filter(|(path, _)| path.starts_with(folder)).count()
    }

    /// The same device below another folder, for a copy of what the kernel has. Faults do not come
    /// along.
    pub fn moved(&self, from: &Path, to: &Path) -> FaultDisk {
        let power = self.0.state.lock().power.clone();
        let moved = |path: &Path| path.strip_prefix(from).map_or_else(|_| path.to_owned(), |below| to.join(below));
        let power = power.map(|power| Power {
            files: if power.files == Files::In(from.to_owned()) { Files::In(to.to_owned()) } else { power.files },
            safe: power.safe.into_iter().map(|(path, bytes)| (moved(&path), bytes)).collect(),
            dropped: power.dropped.into_iter().map(|((path, page), bytes)| ((moved(&path), page), bytes)).collect(),
        });
        let disk = FaultDisk::default();
        disk.0.state.lock().power = power;
        disk
    }

    /// All files in a folder whose contents at a loss of power are known.
    pub fn kept_files(&self) -> io::Result<Vec<PathBuf>> {
        let folder = match self.0.state.lock().power.as_ref().map(|power| power.files.clone()) {
            Some(Files::In(folder)) => folder,
            _ => return Ok(Vec::new()),
        };
        files_in(&folder)
    }

    /// None of the files in a folder comes to the device as it is.
    pub(super) fn lose(&self, folder: &Path) -> io::Result<()> {
        for path in files_in(folder)? {
            let now = std::fs::read(&path)?;
            if let Some(power) = &mut self.0.state.lock().power {
                power.sync(&path, &now, 0..usize::MAX, true);
            }
        }
        Ok(())
    }
}

/// All files below a folder.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    Ok(found)
}
