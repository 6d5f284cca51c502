//! Control groups, version 1 and 2: the smallest limit that holds for a process, the broker's where it is known ([`Patient::process`]).
//!
//! In a container the names in `/proc/PID/cgroup` may be those of the outside; the root, which is the container's own, is looked at in
//! any case.

use std::path::Path;

use crate::patient::Patient;

/// Where groups are.
const ROOT: &str = "/sys/fs/cgroup";

/// The memory that a group may have.
pub struct Group {
    /// Where the limit stands: `memory.max`, or `memory.high` if that is less.
    pub file: String,
    /// In bytes.
    pub limit: u64,
    /// What it has now, page cache included.
    pub used: Option<u64>,
    /// Processes that were killed in it for want of memory, and where that stands.
    pub kills: Option<(String, u64)>,
}

/// Processors that a group may have.
pub struct Quota {
    /// Where it stands.
    pub file: String,
    /// What the file says.
    pub said: String,
    /// How many, in parts of one.
    pub processors: f64,
    /// Where it stands, periods so far, and those in which the group was held back.
    pub throttled: Option<(String, u64, u64)>,
}

/// The folders of the process's groups of a controller: version 2 (true) and version 1, each with those above it.
fn folders(patient: &Patient, controller: &str) -> Vec<(bool, String)> {
    let host = &patient.host;
    let mut folders = Vec::new();
    for line in host.text(&format!("/proc/{}/cgroup", patient.process())).unwrap_or_default().lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (is_new, root) = match controllers {
            "" => (true, ROOT.to_owned()),
            _ if controllers.split(',').any(|name| name == controller) => {
                // Where several share a hierarchy its folder has all their names, and most systems make links of the single ones.
                let shared = format!("{ROOT}/{controllers}");
                (false, if host.has(&shared) { shared } else { format!("{ROOT}/{controller}") })
            }
            _ => continue,
        };
        for above in Path::new(group.trim_start_matches('/')).ancestors() {
            let above = above.to_string_lossy();
            folders.push((is_new, format!("{root}/{above}").trim_end_matches('/').to_owned()));
        }
    }
    folders
}

/// The smallest limit of memory on the way up; none if there is none. From `memory.high` on the kernel takes pages back and has whoever wants more
/// wait, so that nobody gets as far as a `memory.max` above it: a server keeps to the smaller one too.
pub fn memory(patient: &Patient) -> Option<Group> {
    let host = &patient.host;
    let of = |(is_new, folder): (bool, String)| {
        let (limits, [used, kills]): (&[&str], [&str; 2]) = match is_new {
            true => (&["memory.max", "memory.high"], ["memory.current", "memory.events"]),
            false => (&["memory.limit_in_bytes"], ["memory.usage_in_bytes", "memory.oom_control"]),
        };
        let said = limits.iter().filter_map(|name| {
            let file = format!("{folder}/{name}");
            // "max" is no number and no limit; version 1 writes the largest number of pages for it.
            let limit = host.number(&file).filter(|bytes| *bytes < 1 << 60)?;
            Some((file, limit))
        });
        let (file, limit) = said.min_by_key(|(_, limit)| *limit)?;
        let events = format!("{folder}/{kills}");
        let count = value(&host.text(&events).unwrap_or_default(), "oom_kill");
        let used = host.number(&format!("{folder}/{used}"));
        Some(Group { file, limit, used, kills: count.map(|count| (events, count)) })
    };
    folders(patient, "memory").into_iter().filter_map(of).min_by_key(|group| group.limit)
}

/// The smallest quota of processors on the way up; none if there is none.
pub fn processors(patient: &Patient) -> Option<Quota> {
    let host = &patient.host;
    let of = |(is_new, folder): (bool, String)| {
        let (file, said) = if is_new {
            let file = format!("{folder}/cpu.max");
            let said = host.text(&file)?;
            (file, said)
        } else {
            let file = format!("{folder}/cpu.cfs_quota_us");
            let said = format!("{} {}", host.text(&file)?, host.text(&format!("{folder}/cpu.cfs_period_us"))?);
            (file, said)
        };
        let (quota, period) = said.split_once(' ')?;
        // "max", and -1 in version 1: none.
        let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
        if period == 0 {
            return None;
        }
        let stat = format!("{folder}/cpu.stat");
        let text = host.text(&stat).unwrap_or_default();
        let throttled = value(&text, "nr_periods").zip(value(&text, "nr_throttled"));
        let throttled = throttled.map(|(periods, throttled)| (stat, periods, throttled));
        Some(Quota { file, said: said.clone(), processors: quota as f64 / period as f64, throttled })
    };
    let quotas = folders(patient, "cpu").into_iter().filter_map(of);
    quotas.min_by(|one, other| one.processors.total_cmp(&other.processors))
}

/// The file that keeps the process's memory out of swap: its group's, or that of one above it.
///
/// Version 1 has nothing like it: `memory.swappiness` and `memory.memsw.limit_in_bytes` hold while a group is at its own limit, and not
/// when the machine is short of memory.
pub fn forbids_swap(patient: &Patient) -> Option<String> {
    let of_new = folders(patient, "memory").into_iter().filter(|(is_new, _)| *is_new);
    let mut files = of_new.map(|(_, folder)| format!("{folder}/memory.swap.max"));
    files.find(|file| patient.host.text(file).as_deref() == Some("0"))
}

/// The number behind a name at the beginning of a line.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn the_smallest_limit_on_the_way_up_counts_in_version_2() {
        let fake = FakeHost::with(&[
            ("/proc/self/cgroup", "0::/system.slice/gantry.service\n"),
            ("/sys/fs/cgroup/system.slice/gantry.service/memory.max", "max\n"),
            ("/sys/fs/cgroup/system.slice/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/system.slice/memory.current", "1048576\n"),
            ("/sys/fs/cgroup/system.slice/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ]);
        let patient = patient(&fake, "");
        let group = memory(&patient).unwrap();
        assert_eq!((group.limit, group.used), (2 << 30, Some(1 << 20)));
        assert_eq!(group.file, "/sys/fs/cgroup/system.slice/memory.max");
        assert_eq!(processors(&patient).unwrap().processors, 1.5);
    }

    #[test]
    fn memory_high_counts_where_it_is_less_and_is_named() {
        let fake = FakeHost::with(&[
            ("/proc/self/cgroup", "0::/pod\n"),
            ("/sys/fs/cgroup/pod/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/pod/memory.high", "1073741824\n"),
            ("/sys/fs/cgroup/pod/memory.current", "1048576\n"),
        ]);
        let of = |fake: &FakeHost| memory(&patient(fake, "")).map(|group| (group.file, group.limit, group.used));
        let high = ("/sys/fs/cgroup/pod/memory.high".to_owned(), 1 << 30, Some(1 << 20));
        assert_eq!(of(&fake), Some(high.clone()));
        fake.write("/sys/fs/cgroup/pod/memory.max", "max\n");
        assert_eq!(of(&fake), Some(high));
        fake.write("/sys/fs/cgroup/pod/memory.high", "max\n");
        assert_eq!(of(&fake), None);
    }

    #[test]
    fn version_1_is_read_also_where_controllers_share_a_folder() {
        let fake = FakeHost::with(&[
            ("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/\n"),
            ("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "1073741824\n"),
            ("/sys/fs/cgroup/memory/docker/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "200000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 1\n"),
        ]);
        let patient = patient(&fake, "");
        let group = memory(&patient).unwrap();
        assert_eq!((group.limit, group.kills.map(|(_, kills)| kills)), (1 << 30, Some(3)));
        let quota = processors(&patient).unwrap();
        assert_eq!((quota.processors, quota.throttled.map(|(_, all, held)| (all, held))), (2.0, Some((10, 4))));
    }

    #[test]
    fn without_groups_there_is_no_limit() {
        let fake = FakeHost::with(&[("/proc/self/cgroup", "0::/\n")]);
        let patient = patient(&fake, "");
        assert!(memory(&patient).is_none() && processors(&patient).is_none() && forbids_swap(&patient).is_none());
    }

    #[test]
    fn the_groups_of_the_broker_count_and_not_those_of_who_looks() {
        let fake = FakeHost::with(&[
            ("/proc/self/cgroup", "0::/user.slice\n"),
            ("/proc/7/cgroup", "0::/system.slice/gantry.service\n"),
            ("/sys/fs/cgroup/user.slice/memory.max", "1048576\n"),
            ("/sys/fs/cgroup/user.slice/cpu.max", "10000 100000\n"),
            ("/sys/fs/cgroup/user.slice/memory.swap.max", "0\n"),
            ("/sys/fs/cgroup/system.slice/gantry.service/memory.max", "2147483648\n"),
            ("/sys/fs/cgroup/system.slice/gantry.service/cpu.max", "200000 100000\n"),
        ]);
        let mut patient = patient(&fake, "");
        assert_eq!(memory(&patient).unwrap().limit, 1 << 20);
        assert!(forbids_swap(&patient).is_some());
        patient.pid = Some(7);
        assert_eq!(memory(&patient).unwrap().limit, 2 << 30);
        assert_eq!(processors(&patient).unwrap().processors, 2.0);
        assert_eq!(forbids_swap(&patient), None);
        // A group above forbids it for all below.
        fake.write("/sys/fs/cgroup/system.slice/gantry.service/memory.swap.max", "max\n");
        fake.write("/sys/fs/cgroup/system.slice/memory.swap.max", "0\n");
        assert_eq!(forbids_swap(&patient).unwrap(), "/sys/fs/cgroup/system.slice/memory.swap.max");
    }
}
