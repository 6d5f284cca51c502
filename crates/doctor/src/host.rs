//! The files in which a kernel tells about itself, below `/` or below a folder that looks like it.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A machine, as its files show it.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor`, as `/sys/dev/block` and `/proc/diskstats` name it. File systems without a device of their own have major 0.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Which kind it is: `ext4`, `overlay`.
    pub kind: String,
    /// How it is mounted, options of the file system included.
    pub options: Vec<String>,
    /// What is mounted.
    pub source: String,
}

impl Host {
    /// This machine.
    pub fn real() -> Host {
        Host::at(Path::new("/"))
    }

    /// The one whose files are below `root`.
    pub fn at(root: &Path) -> Host {
        Host { root: root.to_owned() }
    }

    /// Where a file of the machine really is.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Is it there?
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// What a file says, without blanks around; nothing if there is no such file.
    pub fn read(&self, path: &str) -> io::Result<Option<String>> {
        match fs::read_to_string(self.path(path)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a file that is there; none is made.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).truncate(true).open(self.path(path))?.write_all(text.as_bytes())
    }

    /// What a file says; nothing if it cannot be read.
    pub fn text(&self, path: &str) -> Option<String> {
        self.read(path).ok().flatten()
    }

    /// The number that a file says.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// Names in a folder, sorted; none if there is no such folder.
    pub fn list(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    /// A line of `/proc/meminfo`, in bytes.
    pub fn memory(&self, name: &str) -> Option<u64> {
        kib_of(&self.text("/proc/meminfo")?, name)
    }

    /// A line of `/proc/PID/status` that counts kB, in bytes.
    pub fn of_process(&self, pid: i32, name: &str) -> Option<u64> {
        kib_of(&self.text(&format!("/proc/{pid}/status"))?, name)
    }

    /// The file system that holds `path`, which must be absolute and without symbolic links.
    pub fn mount_of(&self, path: &Path) -> Option<Mount> {
        let table = self.text("/proc/self/mountinfo")?;
        let holds = table.lines().filter_map(mount).filter(|mount| path.starts_with(&mount.point));
        // Of several at one place the last one hides the others.
        holds.max_by_key(|mount| mount.point.components().count())
    }

    /// A file of the block device `major:minor`, such as `queue/scheduler`. Partitions have those of their disk.
    pub fn of_device(&self, device: &str, file: &str) -> Option<(String, String)> {
        // The folder is a link: `..` leads from the partition to its disk.
        ["", "../"].iter().find_map(|up| {
            let path = format!("/sys/dev/block/{device}/{up}{file}");
            Some((path.clone(), self.text(&path)?))
        })
    }
}

fn kib_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A line of `/proc/self/mountinfo`: `36 35 98:0 /root /point options [more …] - kind source options`.
fn mount(line: &str) -> Option<Mount> {
    let (before, behind) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(2);
    let (device, _, point, options) = (before.next()?, before.next()?, before.next()?, before.next()?);
    let mut behind = behind.split(' ');
    let (kind, source) = (behind.next()?, behind.next()?);
    let more = behind.next().unwrap_or_default();
    let mut all: Vec<String> = Vec::new();
    for option in options.split(',').chain(more.split(',')) {
        if !option.is_empty() && !all.iter().any(|known| known == option) {
            all.push(option.to_owned());
        }
    }
    Some(Mount {
        device: device.to_owned(),
        point: PathBuf::from(unescaped(point)),
        kind: kind.to_owned(),
        options: all,
        source: unescaped(source),
    })
}

/// Blanks in names are written as octal numbers: `\040`.
fn unescaped(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.as_bytes();
    while let Some((first, rest)) = bytes.split_first() {
        let code = match (first, rest) {
            (b'\\', [a, b, c, ..]) => {
                std::str::from_utf8(&[*a, *b, *c]).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok())
            }
            _ => None,
        };
        match code {
            Some(byte) => {
                out.push(byte);
                bytes = &rest[3..];
            }
            None => {
                out.push(*first);
                bytes = rest;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A folder that looks like a machine, for tests.
#[cfg(test)]
pub mod fake {
    use super::Host;
    use std::fs;
    use std::path::Path;

    /// A machine of these files.
    pub struct FakeHost {
        folder: tempfile::TempDir,
    }

    impl FakeHost {
        pub fn with(files: &[(&str, &str)]) -> FakeHost {
            let fake = FakeHost { folder: tempfile::tempdir().unwrap() };
            for (path, text) in files {
                fake.write(path, text);
            }
            fake
        }

        pub fn write(&self, path: &str, text: &str) {
            let path = self.host().path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        pub fn link(&self, path: &str, to: &str) {
            let path = self.host().path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(to, path).unwrap();
        }

        pub fn root(&self) -> &Path {
            self.folder.path()
        }

        pub fn host(&self) -> Host {
            Host::at(self.folder.path())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeHost;
    use super::*;

    const MOUNTS: &str = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
        30 27 8:17 / /data\\040one rw,noatime shared:3 - xfs /dev/sdb1 rw,nobarrier\n\
        31 27 0:40 / /data rw - tmpfs tmp rw\n";

    #[test]
    fn the_deepest_mount_holds_a_path_and_names_may_have_blanks() {
        let fake = FakeHost::with(&[("/proc/self/mountinfo", MOUNTS)]);
        let of = |path: &str| fake.host().mount_of(Path::new(path)).unwrap();
        assert_eq!((of("/var/lib").device, of("/var/lib").kind), ("254:0".to_owned(), "ext4".to_owned()));
        let disk = of("/data one/store");
        assert_eq!((disk.device.as_str(), disk.kind.as_str(), disk.source.as_str()), ("8:17", "xfs", "/dev/sdb1"));
        assert_eq!(disk.options, ["rw", "noatime", "nobarrier"]);
        // Not `/data`: names of folders are compared as a whole.
        assert_eq!(of("/data two").kind, "ext4");
        assert_eq!(of("/data/store").kind, "tmpfs");
    }

    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let fake = FakeHost::with(&[
            ("/sys/devices/pci/sdb/queue/scheduler", "none [mq-deadline]\n"),
            ("/sys/devices/pci/sdb/sdb1/partition", "1\n"),
        ]);
        fake.link("/sys/dev/block/8:17", "../../devices/pci/sdb/sdb1");
        fake.link("/sys/dev/block/8:16", "../../devices/pci/sdb");
        for device in ["8:16", "8:17"] {
            let (_, said) = fake.host().of_device(device, "queue/scheduler").unwrap();
            assert_eq!(said, "none [mq-deadline]");
        }
        assert_eq!(fake.host().of_device("0:40", "queue/scheduler"), None);
    }

    #[test]
    fn figures_of_memory_are_bytes() {
        let fake = FakeHost::with(&[
            ("/proc/meminfo", "MemTotal:       16384 kB\nMemAvailable:    8 kB\nHugePages_Total: 0\n"),
            ("/proc/7/status", "Name:\tgantry\nVmRSS:\t   20 kB\nVmSwap:\t    0 kB\n"),
        ]);
        let host = fake.host();
        assert_eq!((host.memory("MemTotal"), host.memory("Mem")), (Some(16 << 20), None));
        assert_eq!((host.of_process(7, "VmRSS"), host.of_process(8, "VmRSS")), (Some(20 << 10), None));
    }
}
