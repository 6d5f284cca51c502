//! What the process asks of its machine at start: how much memory it has, and as many descriptors as it may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Memory that this process may use: the cgroup's limit (version 2 or 1) or the machine's, in bytes.
pub fn memory_bytes() -> u64 {
    let limit = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let cgroup = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let machine = machine_bytes();
    cgroup.into_iter().filter_map(limit).chain([machine]).min().unwrap_or(machine)
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

/// Keeps the allocator from taking memory two megabytes at a time: of every thread's few kilobytes that would make 2 MiB, and an idle
/// process would be a third larger.
pub fn use_small_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "transparent huge pages stay as they are");
    }
}
