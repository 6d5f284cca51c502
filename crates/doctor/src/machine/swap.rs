//! Swap: the incident behind RocketMQ's `os.sh` was a host that stood still while it swapped.

use super::groups::forbids_swap;
use super::{number, set, vm};
use crate::finding::{Finding, Severity, size};
use crate::patient::Patient;

/// `vm.swappiness` up to here keeps memory in memory while there is any cache to give up.
const SWAPPINESS_LOW: u64 = 10;

/// A line of `/proc/swaps`.
struct Area {
    name: String,
    bytes: u64,
    used: u64,
}

impl Area {
    /// Compressed memory: nothing waits for a device.
    fn is_memory(&self) -> bool {
        self.name.starts_with("/dev/zram")
    }
}

fn areas(patient: &Patient) -> Vec<Area> {
    let text = patient.host.text("/proc/swaps").unwrap_or_default();
    let area = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let kib = |word: &str| word.parse::<u64>().ok()?.checked_mul(1024);
        Some(Area { name, bytes: kib(words.nth(1)?)?, used: kib(words.next()?)? })
    };
    text.lines().skip(1).filter_map(area).collect()
}

/// R1.42, R1.46, R1.47: is there swap on a disk, and may the broker go there?
pub fn swap(patient: &Patient) -> Vec<Finding> {
    let areas = areas(patient);
    if areas.is_empty() {
        return vec![
            Finding::ok("there is no swap").seen("/proc/swaps", "no area").effect("nothing can be swapped out"),
        ];
    }
    let (total, used) = areas.iter().fold((0, 0), |(total, used), area| (total + area.bytes, used + area.used));
    let said = |finding: Finding| {
        areas.iter().fold(finding, |finding, area| {
            finding.seen("/proc/swaps", format!("{}: {}, {} in use", area.name, size(area.bytes), size(area.used)))
        })
    };
    let title = format!("swap is on: {}, {} in use", size(total), size(used));
    if let Some(path) = forbids_swap(patient) {
        return vec![said(Finding::ok(title)).seen(path, "0").effect("this cgroup may not use it")];
    }
    if areas.iter().all(Area::is_memory) {
        return vec![said(Finding::note(title)).effect(
            "it is compressed memory: what was put there comes back without a disk, for some processor time of whoever needs it",
        )];
    }
    vec![
        said(Finding::warning(title))
            .effect(
                "the log is never swapped, since its pages belong to files; but tables and buffers of the broker are memory like any other. \
                 When memory is short they go to the disk, and whoever needs them waits for it: sends and pulls stand still for as long as the \
                 disk is busy with that. The broker goes on, slowly",
            )
            .fix(
                "swapoff -a, and take swap out of /etc/fstab; or for the broker alone: MemorySwapMax=0 in its systemd unit \
                 (memory.swap.max=0 of its cgroup)",
            )
            .figure("bytes", total)
            .figure("usedBytes", used),
    ]
}

/// R1.58
pub fn swappiness(patient: &Patient) -> Vec<Finding> {
    let value = match vm(patient, "swappiness") {
        Ok(value) => value,
        Err(finding) => return vec![*finding],
    };
    let has_disk = areas(patient).iter().any(|area| !area.is_memory());
    let finding = number(Severity::Ok, "swappiness", value);
    vec![if !has_disk || forbids_swap(patient).is_some() {
        finding.effect("not needed: there is no swap on a disk for the broker")
    } else if value <= SWAPPINESS_LOW {
        finding.effect("memory stays in memory while there is page cache to give up")
    } else {
        let finding = Finding { severity: Severity::Note, ..finding }.effect(
            "the broker runs with any value. With this one the kernel also swaps memory out in favour of page cache, so that a large read of \
             another program can cost a pause here",
        );
        set(finding, "swappiness", value, 1, "; better no swap at all")
    }]
}

/// R1.57
pub fn page_cluster(patient: &Patient) -> Vec<Finding> {
    vec![match vm(patient, "page-cluster") {
        Err(finding) => *finding,
        Ok(value) => number(Severity::Ok, "page-cluster", value)
            .effect("not needed: it says how many pages are read back from swap at a time, which matters to nobody who does not swap"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    const HEAD: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    fn with(areas: &str, more: &[(&str, &str)]) -> FakeHost {
        let fake = FakeHost::with(more);
        fake.write("/proc/swaps", &format!("{HEAD}{areas}"));
        fake
    }

    #[test]
    fn swap_on_a_disk_is_a_warning_and_swap_in_memory_is_not() {
        let severity = |fake: FakeHost| swap(&patient(&fake, "")).remove(0).severity;
        assert_eq!(severity(with("", &[])), Severity::Ok);
        assert_eq!(severity(with("/dev/zram0 partition 1024 0 100\n", &[])), Severity::Note);
        let disk = "/dev/sda2                               partition\t15728640\t\t1024\t\t-2\n";
        let found = swap(&patient(&with(disk, &[]), "")).remove(0);
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.title, "swap is on: 15.0 GiB, 1.0 MiB in use");
        assert!(found.fix.unwrap().contains("swapoff -a"));
        let forbids = [
            ("/proc/self/cgroup", "0::/system.slice/gantry.service\n"),
            ("/sys/fs/cgroup/system.slice/gantry.service/memory.swap.max", "0\n"),
        ];
        assert_eq!(severity(with(disk, &forbids)), Severity::Ok);
        let of_another = [("/proc/self/cgroup", "0::/user.slice\n"), ("/proc/7/cgroup", forbids[0].1), forbids[1]];
        let fake = with(disk, &of_another);
        let mut patient = patient(&fake, "");
        assert_eq!(swap(&patient).remove(0).severity, Severity::Warning);
        patient.pid = Some(7);
        assert_eq!(swap(&patient).remove(0).severity, Severity::Ok);
    }

    #[test]
    fn swappiness_matters_where_there_is_swap() {
        let disk = "/swapfile file 1024 0 -2\n";
        for (areas, value, expected) in [
            ("", "60", Severity::Ok),
            (disk, "1", Severity::Ok),
            (disk, "60", Severity::Note),
            ("/dev/zram0 partition 1024 0 100\n", "100", Severity::Ok),
        ] {
            let fake = with(areas, &[("/proc/sys/vm/swappiness", value), ("/proc/sys/vm/page-cluster", "3")]);
            assert_eq!(swappiness(&patient(&fake, "")).remove(0).severity, expected, "{areas}{value}");
            assert_eq!(page_cluster(&patient(&fake, "")).remove(0).severity, Severity::Ok);
        }
    }
}
