//! Settings of the kernel's memory: reserves, promises, mappings, caches, huge pages.

use env::counted;

use super::{VM, number, set, vm};
use crate::finding::{Finding, Severity, size};
use crate::patient::Patient;

/// Of all memory, in percent, that a reserve may take before it is a mistake.
const RESERVE_PERCENT_MAX: u64 = 10;
/// Mappings that a broker has beside those of its log: programs, allocator, stacks, journal.
const MAPS_BESIDE_LOG: u64 = 2048;

/// R1.48
pub fn extra_free_kbytes(patient: &Patient) -> Vec<Finding> {
    vec![match vm(patient, "extra_free_kbytes") {
        Err(finding) => *finding,
        Ok(value) => number(Severity::Ok, "extra_free_kbytes", value)
            .effect("not needed: sends go into pages that were made ready before, and do not wait for free memory"),
    }]
}

/// R1.49
pub fn min_free_kbytes(patient: &Patient) -> Vec<Finding> {
    let value = match vm(patient, "min_free_kbytes") {
        Ok(value) => value,
        Err(finding) => return vec![*finding],
    };
    let total = patient.host.memory("MemTotal");
    let percent = total.and_then(|total| value.saturating_mul(1024 * 100).checked_div(total));
    let finding = match percent {
        Some(percent) if percent > RESERVE_PERCENT_MAX => set(
            number(Severity::Warning, "min_free_kbytes", value).effect(format!(
                "{percent} % of the memory is kept free for emergencies, and missing as page cache: consumers that are behind read from the \
                 device earlier, and other processes may be killed for want of it"
            )),
            "min_free_kbytes",
            value,
            67_584,
            ", and remove the line from /etc/sysctl.conf",
        ),
        Some(_) | None => number(Severity::Ok, "min_free_kbytes", value)
            .effect("not needed: the kernel's own value is enough, since sends do not wait for free memory"),
    };
    vec![match total {
        Some(total) => finding.seen("/proc/meminfo", format!("MemTotal {}", size(total))),
        None => finding,
    }]
}

/// R1.50
pub fn overcommit_memory(patient: &Patient) -> Vec<Finding> {
    vec![match vm(patient, "overcommit_memory") {
        Err(finding) => *finding,
        Ok(2) => {
            let host = &patient.host;
            let (limit, used) = (host.memory("CommitLimit"), host.memory("Committed_AS"));
            let left = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
            let finding = number(Severity::Note, "overcommit_memory", 2)
                .effect(
                    "the kernel promises no more memory than there is. That suits this broker, whose log is mapped from files and does not \
                     count; but when the promises are used up it is refused memory, and ends",
                )
                .fix("sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio");
            match left {
                Some(left) => finding.seen("/proc/meminfo", format!("{} may still be promised", size(left))),
                None => finding,
            }
        }
        Ok(value) => number(Severity::Ok, "overcommit_memory", value).effect(
            "not needed: no memory is reserved that is not used; the log is mapped from files, which does not count",
        ),
    }]
}

/// R1.51. The value is what was written last, so what repeats it is looked for as well.
pub fn drop_caches(patient: &Patient) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let folder = "/etc/sysctl.d";
    let listed = patient.host.list(folder).into_iter().map(|name| format!("{folder}/{name}"));
    for file in std::iter::once("/etc/sysctl.conf".to_owned()).chain(listed) {
        let text = patient.host.text(&file).unwrap_or_default();
        let sets = |line: &&str| {
            let key = line.split('=').next().unwrap_or_default().trim().replace('/', ".");
            key.trim_start_matches('-') == "vm.drop_caches"
        };
        if let Some(line) = text.lines().map(str::trim).find(sets) {
            findings.push(
                Finding::warning("the page cache is thrown away each time that the kernel's settings are loaded")
                    .of(&file)
                    .seen(&file, line)
                    .effect("consumers that were served from memory read from the device, all at once; it makes nothing faster")
                    .fix(format!("remove the line from {file}")),
            );
        }
    }
    if findings.is_empty() {
        findings.push(match vm(patient, "drop_caches") {
            Ok(0) => number(Severity::Ok, "drop_caches", 0)
                .effect("never do this: it throws away what consumers are about to read, and helps nobody"),
            Ok(value) => number(Severity::Note, "drop_caches", value)
                .effect(
                    "somebody has thrown the page cache away since the machine started. On a running broker consumers then read from the \
                     device until the cache is warm again",
                )
                .fix("remove it from scripts and timers"),
            // Newer kernels let it be written only.
            Err(finding) => Finding { severity: Severity::Ok, ..*finding }
                .effect("never do this: it throws away what consumers are about to read, and helps nobody"),
        });
    }
    findings
}

/// R1.52
pub fn zone_reclaim_mode(patient: &Patient) -> Vec<Finding> {
    vec![match vm(patient, "zone_reclaim_mode") {
        Err(finding) => *finding,
        Ok(0) => number(Severity::Ok, "zone_reclaim_mode", 0)
            .effect("as it should be, and as it is by default: memory of another node is used before the cache is given up"),
        Ok(value) => set(
            number(Severity::Warning, "zone_reclaim_mode", value).effect(
                "a node that is full gives up its page cache although others have room: consumers that are behind read from the device, and \
                 a thread that needs memory waits meanwhile",
            ),
            "zone_reclaim_mode",
            value,
            0,
            "",
        ),
    }]
}

/// R1.53: a file of the log is a mapping, whatever the number of topics and queues.
pub fn max_map_count(patient: &Patient) -> Vec<Finding> {
    let limit = match vm(patient, "max_map_count") {
        Ok(limit) => limit,
        Err(finding) => return vec![*finding],
    };
    let file_bytes = patient.target.settings.store().map_or(1 << 30, |store| store.mapped_file_size_commit_log).max(1);
    let bytes = |place: &std::path::PathBuf| {
        rustix::fs::statvfs(place).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize))
    };
    let total = patient.places().iter().map(bytes).fold(0, u64::saturating_add);
    let files = total.div_ceil(file_bytes);
    let seen = format!("{} on the disk, {} a file: at most {}", size(total), size(file_bytes), counted(files, "file"));
    // The kernel counts them in an int.
    let enough = files.saturating_add(MAPS_BESIDE_LOG).next_power_of_two().min(i32::MAX as u64);
    vec![
        if files.saturating_add(MAPS_BESIDE_LOG) > limit {
            number(Severity::Warning, "max_map_count", limit)
                .effect(
                    "each file of the log is one mapping. A log that fills this disk would have more of them than a process may have, and the \
                     next file could not be made",
                )
                .fix(format!("mappedFileSizeCommitLog=1G for a new store, or sysctl -w vm.max_map_count={enough}"))
                .change(format!("{VM}/max_map_count"), limit, enough)
        } else {
            number(Severity::Ok, "max_map_count", limit).effect(
                "not needed: only files of the log are mapped; consume queues, however many, have no mapping of their own",
            )
        }
        .seen("mappedFileSizeCommitLog", seen),
    ]
}

/// R0.13 to R0.15: openEuler's limit of the page cache.
pub fn cache_reclaim(patient: &Patient) -> Vec<Finding> {
    vec![match vm(patient, "cache_reclaim_enable") {
        Err(finding) => Finding { title: "this kernel has no limit of the page cache".to_owned(), ..*finding }.effect(
            "not needed: it is a setting of openEuler's kernels, and this broker asks for no particular kernel",
        ),
        Ok(value) => {
            let mut finding = Finding::ok(match value {
                0 => "openEuler's limit of the page cache is off",
                _ => "openEuler's limit of the page cache is on",
            })
            .effect("not needed, and it does no harm: sends go into pages that were made ready, whether or not old ones are given up");
            for name in ["cache_reclaim_enable", "cache_reclaim_s", "cache_reclaim_weight", "cache_limit_mbytes"] {
                if let Some(text) = patient.host.text(&format!("{VM}/{name}")) {
                    finding = finding.seen(format!("{VM}/{name}"), text);
                }
            }
            finding
        }
    }]
}

/// Of huge pages only the process's own memory could suffer, and a server switches them off for itself.
pub fn huge_pages(patient: &Patient) -> Vec<Finding> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    vec![match patient.host.text(path) {
        None => {
            Finding::ok("this kernel has no transparent huge pages").seen(path, "no such file").effect("not needed")
        }
        Some(text) => Finding::ok(format!("transparent huge pages: {}", chosen(&text))).seen(path, &text).effect(
            "not needed: a server switches them off for its own memory, and the log's pages are the file system's",
        ),
    }]
}

/// The word in brackets of several: `always [madvise] never`.
pub fn chosen(text: &str) -> &str {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(text, |(word, _)| word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    type Look = fn(&Patient) -> Vec<Finding>;

    /// The one finding of `look` on a machine of these files.
    fn one(look: Look, files: &[(&str, &str)]) -> Finding {
        one_with(look, files, "")
    }

    fn one_with(look: Look, files: &[(&str, &str)], settings: &str) -> Finding {
        let mut findings = look(&patient(&FakeHost::with(files), settings));
        assert_eq!(findings.len(), 1);
        findings.remove(0)
    }

    #[test]
    fn default_values_need_nothing_and_say_why() {
        let checks: [(Look, &str, &str); 6] = [
            (min_free_kbytes, "min_free_kbytes", "67584"),
            (overcommit_memory, "overcommit_memory", "0"),
            (overcommit_memory, "overcommit_memory", "1"),
            (drop_caches, "drop_caches", "0"),
            (zone_reclaim_mode, "zone_reclaim_mode", "0"),
            (max_map_count, "max_map_count", "65530"),
        ];
        for (look, name, value) in checks {
            let path = format!("/proc/sys/vm/{name}");
            let finding = one(look, &[(&path, value), ("/proc/meminfo", "MemTotal: 8388608 kB\n")]);
            assert_eq!(finding.severity, Severity::Ok, "{finding:?}");
            assert_eq!((finding.evidence[0].from.as_str(), finding.evidence[0].value.as_str()), (&*path, value));
            assert!(!finding.effect.is_empty() && finding.fix.is_none(), "{finding:?}");
        }
    }

    #[test]
    fn what_a_kernel_does_not_have_is_not_missed() {
        for look in [extra_free_kbytes, zone_reclaim_mode, cache_reclaim, huge_pages, drop_caches] {
            assert_eq!(one(look, &[]).severity, Severity::Ok);
        }
        let there = one(extra_free_kbytes, &[("/proc/sys/vm/extra_free_kbytes", "2000000\n")]);
        assert!(there.severity == Severity::Ok && there.effect.starts_with("not needed"), "{there:?}");
    }

    #[test]
    fn a_reserve_of_a_quarter_of_the_memory_is_a_warning() {
        let files = [("/proc/sys/vm/min_free_kbytes", "1000000"), ("/proc/meminfo", "MemTotal: 4000000 kB\n")];
        let finding = one(min_free_kbytes, &files);
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.effect.starts_with("25 %"), "{}", finding.effect);
    }

    #[test]
    fn strict_promises_are_noted_with_what_is_left() {
        let files = [
            ("/proc/sys/vm/overcommit_memory", "2"),
            ("/proc/meminfo", "CommitLimit: 3072 kB\nCommitted_AS: 1024 kB\n"),
        ];
        let finding = one(overcommit_memory, &files);
        assert_eq!(finding.severity, Severity::Note);
        assert!(finding.evidence.iter().any(|seen| seen.value.starts_with("2.0 MiB")), "{finding:?}");
    }

    #[test]
    fn who_drops_caches_is_named() {
        let once = one(drop_caches, &[("/proc/sys/vm/drop_caches", "1")]);
        assert_eq!(once.severity, Severity::Note);
        let files =
            [("/proc/sys/vm/drop_caches", "1"), ("/etc/sysctl.d/99-rocketmq.conf", "# os.sh\nvm.drop_caches=1\n")];
        let always = one(drop_caches, &files);
        assert_eq!(always.severity, Severity::Warning);
        assert_eq!(always.subject.as_deref(), Some("/etc/sysctl.d/99-rocketmq.conf"));
    }

    #[test]
    fn reclaim_of_one_node_is_a_warning() {
        assert_eq!(one(zone_reclaim_mode, &[("/proc/sys/vm/zone_reclaim_mode", "1")]).severity, Severity::Warning);
    }

    #[test]
    fn mappings_are_counted_against_the_files_that_the_disk_could_hold() {
        let files = [("/proc/sys/vm/max_map_count", "65530")];
        assert_eq!(one_with(max_map_count, &files, "mappedFileSizeCommitLog=1G").severity, Severity::Ok);
        let small = one_with(max_map_count, &files, "mappedFileSizeCommitLog=4096");
        assert_eq!(small.severity, Severity::Warning, "{small:?}");
        assert!(small.fix.unwrap().contains("mappedFileSizeCommitLog=1G"));
    }

    #[test]
    fn the_limit_of_openeuler_is_recognised() {
        let files = [("/proc/sys/vm/cache_reclaim_enable", "1"), ("/proc/sys/vm/cache_reclaim_s", "30")];
        let finding = one(cache_reclaim, &files);
        assert!(finding.title.ends_with("is on") && finding.severity == Severity::Ok, "{finding:?}");
        assert_eq!(finding.evidence.len(), 2);
    }

    #[test]
    fn the_word_in_brackets_is_the_one_that_holds() {
        assert_eq!(chosen("always [madvise] never"), "madvise");
        assert_eq!(chosen("none"), "none");
        let files = [("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")];
        assert_eq!(one(huge_pages, &files).title, "transparent huge pages: always");
    }
}
