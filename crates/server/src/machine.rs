//! What the process asks of its machine at start: how much memory it has, and as many descriptors as it may have.

use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use store::{DESCRIPTORS, QUEUE_DESCRIPTORS};

/// With fewer a file would be opened for each write.
const QUEUE_FILES_MIN: usize = 8;

/// Who says how much memory there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The memory cgroup, in bytes.
    Cgroup(u64),
    /// The machine has so many bytes, and no cgroup says less.
    Machine(u64),
}

/// Memory that this process may use: the machine's, or less where a cgroup says so.
pub fn memory() -> Memory {
    let cgroups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least(cgroup_bytes(&cgroups, Path::new("/sys/fs/cgroup")), machine_bytes())
}

fn least(cgroup: Option<u64>, machine: u64) -> Memory {
    match cgroup {
        // A number beyond the machine is no limit: version 1 has one always.
        Some(limit) if limit < machine => Memory::Cgroup(limit),
        Some(_) | None => Memory::Machine(machine),
    }
}

/// The smallest limit of the groups that `/proc/self/cgroup` names and of all above them, in version 2 and in version 1. In a container
/// the names may be those of the outside; the root, which is the container's own, is looked at in any case. From `memory.high` on the kernel
/// takes pages back and has whoever wants more wait, so nobody gets as far as a `memory.max` above it.
fn cgroup_bytes(cgroups: &str, root: &Path) -> Option<u64> {
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, files): (_, &[&str]) = match controllers {
            "" => (root.to_owned(), &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        let group = Path::new(group.trim_start_matches('/'));
        // "max" is no number and no limit.
        let said = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let limit = |group: &Path| files.iter().filter_map(|file| said(root.join(group).join(file))).min();
        group.ancestors().filter_map(limit).min()
    };
    cgroups.lines().filter_map(of_line).min()
}

fn machine_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib << 10)
}

/// Raises the limit of open files to what the system lets us have: each connection is one, and the soft limit is often 1024.
pub fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Who gets how many of the files that may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// Files of consume queues.
    pub queues: usize,
    /// Connections of all ports together.
    pub connections: usize,
}

impl Descriptors {
    /// By the limit that counts for this process.
    pub fn ours() -> Descriptors {
        Descriptors::within(getrlimit(Resource::Nofile).current)
    }

    /// `None`: there is no limit. The store has its own before anybody connects, half of them where there are few: connections that nobody
    /// needs must not keep the next file of the log from being opened.
    fn within(limit: Option<u64>) -> Descriptors {
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let files = DESCRIPTORS.min(limit / 2);
        let others = DESCRIPTORS - QUEUE_DESCRIPTORS;
        Descriptors { queues: files.saturating_sub(others).max(QUEUE_FILES_MIN), connections: limit - files }
    }
}

/// Keeps the allocator from taking memory two megabytes at a time: of every thread's few kilobytes that would make 2 MiB, and an idle
/// process would be a third larger.
pub fn use_small_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "transparent huge pages stay as they are");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_has_its_descriptors_before_connections() {
        let plenty = Descriptors::within(Some(1 << 20));
        assert_eq!((plenty.queues, plenty.connections), (512, (1 << 20) - 600));
        let few = Descriptors::within(Some(1024));
        assert_eq!((few.queues, few.connections), (424, 512));
        let fewest = Descriptors::within(Some(64));
        assert_eq!((fewest.queues, fewest.connections), (8, 32));
        assert_eq!(Descriptors::within(None).queues, 512);
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts_in_both_versions() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("system.slice/gantry.service/memory.max", "max\n");
        write("system.slice/memory.max", "2147483648\n");
        write("memory/docker/memory.limit_in_bytes", "1073741824\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(cgroup_bytes("0::/system.slice/gantry.service\n", root.path()), Some(2 << 30));
        assert_eq!(cgroup_bytes("5:cpu:/x\n4:memory:/docker/abc\n0::/\n", root.path()), Some(1 << 30));
        assert_eq!(cgroup_bytes("0::/user.slice\n", root.path()), None);
        // As a container of version 2 sees it: its own group is the root.
        write("memory.max", "134217728\n");
        assert_eq!(cgroup_bytes("0::/\n", root.path()), Some(128 << 20));
        // Whichever of the two is smaller, wherever it stands.
        write("memory.high", "max\n");
        assert_eq!(cgroup_bytes("0::/\n", root.path()), Some(128 << 20));
        write("memory.high", "100663296\n");
        assert_eq!(cgroup_bytes("0::/\n", root.path()), Some(96 << 20));
        write("system.slice/memory.high", "67108864\n");
        assert_eq!(cgroup_bytes("0::/system.slice/gantry.service\n", root.path()), Some(64 << 20));
    }

    #[test]
    fn a_cgroup_counts_where_it_says_less_than_the_machine_has() {
        assert_eq!(least(Some(1 << 30), 8 << 30), Memory::Cgroup(1 << 30));
        assert_eq!(least(Some(u64::MAX), 8 << 30), Memory::Machine(8 << 30));
        assert_eq!(least(None, 8 << 30), Memory::Machine(8 << 30));
    }
}
