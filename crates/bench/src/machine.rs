//! The machine that a load ran on: processors, memory, the file system of the store, and network links.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::process::{Disk, kilobytes};

/// More links than this say nothing; hosts of containers have thousands.
const LINKS_MAX: usize = 8;

/// The machine that the load ran on, so that a result means something elsewhere. What was not found out is empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// The kernel's version.
    pub kernel: String,
    /// The load average of the last minute, before the run.
    pub load_before: String,
    /// The file system of the store: that of the folder of `--disk`, or of the files that the server's process has open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_system: Option<FileSystem>,
    /// Network interfaces of this machine that are up, but for loopback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// What the disk did before the run, if that was asked for (`--disk`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

/// A file system, as the kernel's table of mounts has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileSystem {
    /// A folder on it.
    pub folder: String,
    /// `ext4`, `xfs`, `overlay`, …
    pub kind: String,
    /// What is mounted: a device as a rule.
    pub source: String,
    /// With which options.
    pub options: String,
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its driver; virtual ones have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Mbit/s; virtual ones do not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub megabits_per_second: Option<u64>,
}

impl Machine {
    /// What this machine says of itself.
    pub fn read() -> Machine {
        Machine::below(Path::new("/"))
    }

    /// The same, below another root folder.
    fn below(root: &Path) -> Machine {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (processors, memory) = (text("proc/cpuinfo"), text("proc/meminfo"));
        let named = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Machine {
            processor: named.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kilobytes(&memory, "MemTotal").unwrap_or(0),
            kernel: text("proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: text("proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            file_system: None,
            links: links(root),
            disk: None,
        }
    }

    /// The same with the disk that was measured, and the file system that the store is on, as far as somebody said where that is.
    pub fn with_store(self, disk: Option<Disk>, server: Option<u32>) -> Machine {
        let root = Path::new("/");
        let folder = disk.as_ref().map(|disk| PathBuf::from(&disk.folder));
        let folder = folder.or_else(|| log_folder(root, server?));
        Machine { file_system: folder.and_then(|folder| file_system(root, &folder)), disk, ..self }
    }
}

/// The folder of the commit log that a broker of this machine has mapped. Gantry and Apache map its files alike.
fn log_folder(root: &Path, pid: u32) -> Option<PathBuf> {
    let maps = fs::read_to_string(root.join(format!("proc/{pid}/maps"))).ok()?;
    let file = maps
        .lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|path| path.contains("/commitlog/")))?;
    Path::new(file).parent().map(Path::to_owned)
}

/// The file system that a folder is on: of all mounts above it the deepest, and of several in one place the last.
fn file_system(root: &Path, folder: &Path) -> Option<FileSystem> {
    let place = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
    let mount = |line: &str| {
        // "36 35 98:0 /root /mount options optional - kind source options".
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(4);
        let (point, options) = (unescaped(head.next()?), head.next()?);
        let mut tail = tail.split(' ');
        let (kind, source) = (tail.next()?, unescaped(tail.next()?));
        let depth = Path::new(&point).components().count();
        place.starts_with(&point).then(|| {
            let (folder, kind) = (folder.display().to_string(), kind.to_owned());
            (depth, FileSystem { folder, kind, source, options: options.to_owned() })
        })
    };
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, found)| found)
}

/// The table of mounts writes blanks as octal numbers.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

fn links(root: &Path) -> Vec<Link> {
    let interfaces = root.join("sys/class/net");
    let mut names: Vec<String> = fs::read_dir(&interfaces)
        .map(|entries| entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    names.retain(|name| {
        name != "lo"
            && fs::read_to_string(interfaces.join(name).join("operstate")).is_ok_and(|state| state.trim() == "up")
    });
    names.sort();
    names.truncate(LINKS_MAX);
    let link = |name: String| {
        let about = interfaces.join(&name);
        let driver = fs::read_link(about.join("device/driver")).ok();
        let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let speed = fs::read_to_string(about.join("speed")).ok().and_then(|speed| speed.trim().parse().ok());
        Link { name, driver, megabits_per_second: speed.filter(|speed| *speed > 0) }
    };
    names.into_iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_file_system_of_a_folder_is_the_deepest_mount_above_it() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      23 22 8:2 / /nowhere/my\\040data rw,noatime shared:2 - xfs /dev/sdb1 rw\n\
                      24 22 8:3 / /nowhere/my rw - tmpfs none rw\n";
        let root = fake(&[("proc/self/mountinfo", mounts)]);
        let found = file_system(root.path(), Path::new("/nowhere/my data/store")).unwrap();
        assert_eq!(
            (found.kind.as_str(), found.source.as_str(), found.options.as_str()),
            ("xfs", "/dev/sdb1", "rw,noatime")
        );
        assert_eq!(file_system(root.path(), Path::new("/nowhere/mydata")).unwrap().kind, "ext4");
    }

    #[test]
    fn links_that_are_up_are_named_with_driver_and_speed() {
        let root = fake(&[
            ("sys/class/net/lo/operstate", "up\n"),
            ("sys/class/net/eth0/operstate", "up\n"),
            ("sys/class/net/eth0/speed", "10000\n"),
            ("sys/class/net/eth1/operstate", "down\n"),
            ("sys/class/net/veth1/operstate", "up\n"),
            ("sys/class/net/veth1/speed", "-1\n"),
        ]);
        fs::create_dir_all(root.path().join("sys/class/net/eth0/device")).unwrap();
        std::os::unix::fs::symlink("../../drivers/ixgbe", root.path().join("sys/class/net/eth0/device/driver"))
            .unwrap();
        let link = |name: &str, driver: Option<&str>, megabits_per_second| Link {
            name: name.to_owned(),
            driver: driver.map(str::to_owned),
            megabits_per_second,
        };
        let expected = [link("eth0", Some("ixgbe"), Some(10_000)), link("veth1", None, None)];
        assert_eq!(Machine::below(root.path()).links, expected);
    }

    #[test]
    fn the_store_of_a_broker_is_where_its_log_is_mapped_from() {
        let maps = "7f00-7f01 r-xp 00000000 08:01 7 /usr/bin/gantry\n\
                    7f02-7f03 rw-s 00000000 08:02 9 /srv/my store/commitlog/00000000000000000000\n";
        let root = fake(&[("proc/7/maps", maps)]);
        assert_eq!(log_folder(root.path(), 7), Some(PathBuf::from("/srv/my store/commitlog")));
        assert_eq!(log_folder(root.path(), 8), None);
    }
}
