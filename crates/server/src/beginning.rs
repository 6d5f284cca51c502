//! Whether a start finds what it may expect: a store that was there before, where the settings say.
//!
//! A wrong letter in a path, a device that is not mounted, or a log that lies elsewhere looks like a store that nobody has used yet. Such a
//! start serves an empty store, and consumers go back to offset 0. So a new store is never begun without a word.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use config::{Settings, StoreSettings};
use tracing::{info, warn};

/// Entries of a folder that are looked at for another store.
const NEIGHBOURS_MAX: usize = 1_000;
/// Other stores that are named.
const NAMED_MAX: usize = 5;

/// What lies where the store is to be, before anything is made there.
pub struct Beginning {
    root: PathBuf,
    log_dirs: Vec<PathBuf>,
    has_log: bool,
    has_state: bool,
    has_queues: bool,
}

impl Beginning {
    /// Looks.
    pub fn of(settings: &StoreSettings) -> Beginning {
        let root = settings.store_path_root_dir.clone();
        let log_dirs = settings.store_path_commit_log.clone();
        let has_log = log_dirs.iter().chain(&settings.read_only_commit_log_store_paths).any(|dir| has_log_file(dir));
        Beginning {
            has_log,
            has_state: has_state(&root),
            has_queues: has_entries(&root.join("consumequeue")),
            root,
            log_dirs,
        }
    }

    /// Nothing of a store is there.
    pub fn is_new(&self) -> bool {
        !self.has_log && !self.has_state && !self.has_queues
    }

    /// A folder that `/etc/fstab` mounts and that is not mounted: what would be made there is not what was meant.
    pub fn refuse_unmounted(&self, settings: &Settings) -> anyhow::Result<()> {
        if self.has_log && self.has_state {
            return Ok(());
        }
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (fstab, mounts) = (read("/etc/fstab"), read("/proc/self/mountinfo"));
        let places = self.log_dirs.iter().map(|dir| (dir, "storePathCommitLog", self.has_log));
        let places = places.chain([(&self.root, "storePathRootDir", self.has_state)]);
        for (place, key, _) in places.filter(|(.., is_there)| !is_there) {
            if let Some(mount) = unmounted(place, &fstab, &mounts) {
                bail!(
                    "nothing of a store is in {} ({key}, {}), and {}, where /etc/fstab mounts a device, is not mounted: mount it, or remove its line \
                     from /etc/fstab to begin a new store there",
                    place.display(),
                    settings.origin(key),
                    mount.display()
                );
            }
        }
        Ok(())
    }

    /// Says what is missing of a store, and where else one is.
    pub fn tell(&self, settings: &Settings) {
        let root = self.root.display();
        let from = settings.origin("storePathRootDir");
        if self.is_new() {
            info!(%root, origin = %from, "a new store is begun: nothing of one is there");
            let others = self.other_stores(&settings.default_of("storePathRootDir"));
            if !others.is_empty() {
                let stores: Vec<String> =
                    others.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
                warn!(
                    stores = stores.join(", "),
                    "a new store is begun although there are stores beside it: if one of them was meant, stop, and set storePathRootDir to it"
                );
            }
        } else if !self.has_log {
            let log: Vec<String> = self.log_dirs.iter().map(|dir| dir.display().to_string()).collect();
            warn!(
                %root,
                log = log.join(","),
                origin = %settings.origin("storePathCommitLog"),
                "an empty log is begun, although config/ or the journal is there: if its log lies elsewhere, stop, and set storePathCommitLog to it"
            );
        } else if !self.has_state {
            warn!(
                %root,
                origin = %from,
                "a log is there, but neither a journal nor config/*.json: groups begin without offsets; if they lie elsewhere, stop, and set \
                 storePathRootDir to it"
            );
        }
    }

    /// Stores where one may have been meant: beside the root, above it, in it, or where RocketMQ has it by default.
    fn other_stores(&self, default: &str) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> = Vec::new();
        let mut look = |path: PathBuf| {
            if found.len() < NAMED_MAX && path != self.root && !found.contains(&path) && is_store(&path) {
                found.push(path);
            }
        };
        let parent = self.root.parent().filter(|parent| !parent.as_os_str().is_empty());
        let in_folder = |folder: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(folder).into_iter().flatten().take(NEIGHBOURS_MAX);
            let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            paths.sort();
            paths
        };
        if let Some(parent) = parent {
            look(parent.to_owned());
            in_folder(parent).into_iter().for_each(&mut look);
        }
        in_folder(&self.root).into_iter().for_each(&mut look);
        look(PathBuf::from(default));
        found
    }
}

impl fmt::Display for Beginning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_new(), self.has_log) {
            (true, _) => "new",
            (false, true) => "as found",
            (false, false) => "with a new log",
        })
    }
}

/// A file of the log, which is called by its first offset.
fn has_log_file(dir: &Path) -> bool {
    let is_segment = |name: &OsStr| name.len() == 20 && name.as_bytes().iter().all(u8::is_ascii_digit);
    fs::read_dir(dir).into_iter().flatten().any(|entry| entry.is_ok_and(|entry| is_segment(&entry.file_name())))
}

/// What groups and topics are known from.
fn has_state(root: &Path) -> bool {
    has_entries(&root.join("journal"))
        || root.join("config/topics.json").exists()
        || root.join("config/consumerOffset.json").exists()
}

fn has_entries(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

fn is_store(path: &Path) -> bool {
    has_log_file(&path.join("commitlog")) || (has_state(path) && has_entries(&path.join("consumequeue")))
}

/// The mount point at or above `place` that `fstab` names and that is not mounted.
fn unmounted(place: &Path, fstab: &str, mounts: &str) -> Option<PathBuf> {
    let place = std::path::absolute(place).unwrap_or_else(|_| place.to_owned());
    let mounted: Vec<PathBuf> =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(|path| PathBuf::from(unescaped(path))).collect();
    let lines = fstab.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let points = lines.filter_map(|line| line.split_whitespace().nth(1)).filter(|point| point.starts_with('/'));
    let mut points: Vec<PathBuf> = points.map(|point| PathBuf::from(unescaped(point))).collect();
    // The innermost one is where the store would be.
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    let nearest = points.into_iter().find(|point| place.starts_with(point))?;
    (nearest != Path::new("/") && !mounted.contains(&nearest)).then_some(nearest)
}

/// Blanks, tabs, line ends and backslashes stand in both files as three octal digits.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_of_fstab_that_is_not_mounted_is_found_by_what_lies_below_it() {
        let fstab = "# a comment\nUUID=1 / ext4 defaults 0 1\n/dev/sdb1\t/data xfs defaults 0 2\n/dev/sdc1 /with\\040blank xfs\nUUID=2 none swap sw 0 0\n";
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 8:17 / /data rw - xfs /dev/sdb1 rw\n";
        let of = |place: &str, mounts: &str| unmounted(Path::new(place), fstab, mounts);
        assert_eq!(of("/data/store", mounts), None);
        assert_eq!(of("/data/store", &mounts[..mounts.find('\n').unwrap()]), Some("/data".into()));
        assert_eq!(of("/database/store", ""), None);
        assert_eq!(of("/with blank/store", mounts), Some("/with blank".into()));
        assert_eq!(of("/home/store", ""), None);
    }

    fn beginning(root: PathBuf) -> Beginning {
        let log_dirs = vec![root.join("commitlog")];
        let (has_log, has_state) = (has_log_file(&log_dirs[0]), has_state(&root));
        Beginning { has_log, has_state, has_queues: has_entries(&root.join("consumequeue")), log_dirs, root }
    }

    fn make(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    #[test]
    fn a_store_beside_a_mistyped_one_is_found_also_one_with_a_blank_at_its_end() {
        let own = tempfile::tempdir().unwrap();
        // A step down: stores beside the temporary folder are other tests'.
        let folder = own.path().join("data");
        for name in ["store", "store "] {
            make(&folder.join(name), &["commitlog/00000000000000000000", "config/topics.json"]);
        }
        make(&folder.join("other"), &["commitlog/readme"]);
        let new = beginning(folder.join("stroe"));
        assert!(new.is_new() && new.to_string() == "new");
        assert_eq!(new.other_stores("/nowhere"), [folder.join("store"), folder.join("store ")]);
        let above = beginning(folder.clone());
        assert_eq!(above.other_stores("/nowhere").len(), 2);
        let below = beginning(folder.join("store/store"));
        assert_eq!(below.other_stores("/nowhere"), [folder.join("store")]);
    }

    #[test]
    fn half_a_store_is_no_new_one() {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), &["config/topics.json"]);
        let half = beginning(folder.path().to_owned());
        assert!(!half.is_new() && half.to_string() == "with a new log");
        make(folder.path(), &["commitlog/00000000000000000000"]);
        assert_eq!(beginning(folder.path().to_owned()).to_string(), "as found");
    }
}
