//! What the broker's process may have: files, memory, processors; and how long tasks wait for them.

use store::DESCRIPTORS;

use crate::finding::{Finding, size};
use crate::patient::Patient;

use super::groups::{self, Group};

/// Fewer than this leave hardly a connection.
const FILES_MIN: u64 = 1024;
/// A broker runs in 64 MiB; below this its page cache is too small to be of use.
const MEMORY_MIN: u64 = 128 << 20;
/// Of the periods of the quota, in percent, in which the group was held back.
const THROTTLED_PERCENT_MAX: u64 = 5;
/// Of a minute, in percent, in which tasks waited.
const WAIT_PERCENT_MAX: [(&str, &str, f64); 3] =
    [("memory", "some", 10.0), ("io", "full", 25.0), ("cpu", "some", 50.0)];

/// R1.59: soft limits are raised to the hard one at start, so that one counts.
pub fn nofile(patient: &Patient) -> Vec<Finding> {
    let path = format!("/proc/{}/limits", patient.process());
    let unread = Finding::note("the limit of open files cannot be read")
        .effect("how many clients the broker can have is not known; run as its user or as root");
    let Some(text) = patient.host.text(&path) else {
        return vec![unread.seen(path, "not readable")];
    };
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap_or_default();
    let mut limits = line.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX));
    let (Some(soft), Some(hard)) = (limits.next(), limits.next()) else {
        return vec![unread.seen(path, line)];
    };
    let wanted = patient.target.settings.net().map_or(0, |net| net.connections_max as u64);
    let connections = hard - hard.min(DESCRIPTORS as u64 * 2) / 2;
    let shown = |limit: u64| if limit == u64::MAX { "unlimited".to_owned() } else { limit.to_string() };
    let found = |finding: Finding| {
        finding
            .seen(&path, format!("soft {}, hard {}", shown(soft), shown(hard)))
            .seen("connectionsMax", wanted)
            .figure("soft", soft)
            .figure("hard", hard)
    };
    let title = format!("open files: soft limit {}, hard limit {}", shown(soft), shown(hard));
    vec![found(if hard < FILES_MIN {
        Finding::warning(title)
            .effect(format!(
                "the store takes up to {DESCRIPTORS} of them, and half of fewer, which leaves {connections} connections; more are closed as they \
                 come. The soft limit does not matter: a server raises it to the hard one"
            ))
            .fix("LimitNOFILE=65536 in the systemd unit, or `* hard nofile 65536` in /etc/security/limits.conf")
    } else if connections < wanted {
        Finding::note(title)
            .effect(format!(
                "enough for some {connections} connections, fewer than connectionsMax ({wanted}) allows. Queues and topics take none, however \
                 many; a server raises the soft limit to the hard one by itself"
            ))
            .fix("LimitNOFILE= in the systemd unit (or `* hard nofile` in /etc/security/limits.conf), if so many clients will come")
    } else {
        Finding::ok(title).effect(
            "enough. `ulimit -n 655350` is not needed: a server raises the soft limit to the hard one, and queues take no descriptors",
        )
    })]
}

/// R0.1: memory of the machine, or of the innermost group with a limit, and kills in it.
pub fn memory(patient: &Patient) -> Vec<Finding> {
    let total = patient.host.memory("MemTotal");
    let limit = groups::memory(patient);
    let mut findings = Vec::new();
    let usable = limit.as_ref().map(|group| group.limit).into_iter().chain(total).min();
    let Some(usable) = usable else {
        return vec![
            Finding::note("how much memory there is cannot be read")
                .seen("/proc/meminfo", "no MemTotal")
                .effect("a broker takes it to be 1 GiB then, unless memoryLimit says more"),
        ];
    };
    let said = |mut finding: Finding| {
        if let Some(total) = total {
            finding = finding.seen("/proc/meminfo", format!("MemTotal {}", size(total)));
        }
        if let Some(Group { file, limit, used, .. }) = &limit {
            let used = used.map_or(String::new(), |used| format!(", {} in use, page cache included", size(used)));
            finding = finding.seen(file, format!("{}{used}", size(*limit)));
        }
        finding.figure("usableBytes", usable)
    };
    let by = if limit.as_ref().is_some_and(|group| group.limit == usable) { "the cgroup" } else { "the machine" };
    let title = format!("{} of memory, by {by}", size(usable));
    findings.push(said(if usable < MEMORY_MIN {
        Finding::warning(title)
            .effect("the broker runs in it, but hardly anything stays cached: consumers that are a little behind read from the device")
            .fix(format!("give it {} or more", size(2 * MEMORY_MIN)))
    } else {
        Finding::ok(title).effect("how much of the log is taken to be in memory follows from it; no setting is needed")
    }));
    if let Some((file, kills)) = limit.and_then(|group| group.kills).filter(|(_, kills)| *kills > 0) {
        findings.push(
            Finding::warning(format!("the kernel has killed {kills} processes of this group for want of memory"))
                .of("kills")
                .seen(file, format!("oom_kill {kills}"))
                .effect("whoever was killed stopped in the middle of its work; a broker recovers at its next start")
                .fix("raise the limit, or take other processes out of the group")
                .figure("kills", kills),
        );
    }
    findings
}

/// R0.1: processors, the quota, and how often the group was held back by it.
pub fn processors(patient: &Patient) -> Vec<Finding> {
    let info = patient.host.text("/proc/cpuinfo").unwrap_or_default();
    let count = info.lines().filter(|line| line.starts_with("processor")).count();
    let Some(quota) = groups::processors(patient) else {
        return vec![
            Finding::ok(format!("{count} processors, without a quota"))
                .seen("/proc/cpuinfo", format!("{count} processors"))
                .effect("a thread for each serves connections")
                .figure("processors", count),
        ];
    };
    let finding = Finding::ok(format!("{count} processors, of which a quota allows {:.2}", quota.processors))
        .seen("/proc/cpuinfo", format!("{count} processors"))
        .seen(&quota.file, &quota.said)
        .figure("processors", count)
        .figure("quota", quota.processors);
    let finding = match quota.throttled {
        Some((file, periods, throttled)) => {
            let finding = finding
                .seen(file, format!("held back in {throttled} of {periods} periods"))
                .figure("throttledPeriods", throttled);
            let percent = throttled.saturating_mul(100).checked_div(periods).unwrap_or(0);
            if percent > THROTTLED_PERCENT_MAX {
                Finding { severity: crate::finding::Severity::Warning, ..finding }
                    .effect(format!(
                        "in {percent} % of the periods all threads of the group stood still for up to 0.1 s: sends and pulls take that much \
                         longer, with no word in any log"
                    ))
                    .fix("raise the quota (resources.limits.cpu), or remove it")
            } else {
                finding.effect(
                    "the group is hardly ever held back; a thread for each processor of the quota serves connections",
                )
            }
        }
        None => finding.effect("a thread for each processor of the quota serves connections"),
    };
    vec![finding]
}

/// How long tasks of the machine waited in the last minute.
pub fn pressure(patient: &Patient) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut seen = Vec::new();
    for (what, kind, limit) in WAIT_PERCENT_MAX {
        let path = format!("/proc/pressure/{what}");
        let text = patient.host.text(&path).unwrap_or_default();
        let Some(line) = text.lines().find(|line| line.starts_with(kind)) else { continue };
        let Some(percent) = word(line, "avg60=") else { continue };
        seen.push((path.clone(), line.to_owned()));
        if percent > limit {
            findings.push(
                Finding::warning(format!("tasks waited for {what} during {percent:.0} % of the last minute"))
                    .of(what)
                    .seen(path, line)
                    .effect(match what {
                        "memory" => "memory is short: pages are given up and read again, and whoever needs one waits",
                        "io" => {
                            "nothing could run because the disk was busy: flushes and reads of old messages take longer"
                        }
                        _ => "more wants to run than there are processors: answers take longer",
                    })
                    .fix("see who uses it: gantry doctor watch, top, iotop")
                    .figure("percent", percent),
            );
        }
    }
    if findings.is_empty() {
        let finding = match seen.is_empty() {
            true => {
                Finding::ok("this kernel does not tell how long tasks wait").seen("/proc/pressure", "no such files")
            }
            false => Finding::ok("tasks hardly wait for memory, disk and processors"),
        };
        findings.push(seen.into_iter().fold(finding, |finding, (path, line)| finding.seen(path, line)));
    }
    findings
}

/// The number behind a word: `avg60=1.18`.
fn word(line: &str, name: &str) -> Option<f64> {
    line.split(' ').find_map(|word| word.strip_prefix(name))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    fn limits(soft: &str, hard: &str) -> String {
        format!(
            "Limit Soft Limit Hard Limit Units\nMax open files            {soft}    {hard}    files\nMax locked memory 1 1 bytes\n"
        )
    }

    #[test]
    fn the_hard_limit_of_files_counts_and_not_the_soft_one() {
        for (soft, hard, expected) in [
            ("1024", "1048576", Severity::Ok),
            ("1024", "1024", Severity::Note),
            ("256", "512", Severity::Warning),
            ("unlimited", "unlimited", Severity::Ok),
        ] {
            let fake = FakeHost::with(&[("/proc/self/limits", &limits(soft, hard))]);
            let found = nofile(&patient(&fake, "")).remove(0);
            assert_eq!(found.severity, expected, "{found:?}");
            assert!(found.evidence[0].value.contains(&format!("hard {hard}")), "{found:?}");
        }
    }

    const MEMINFO: (&str, &str) = ("/proc/meminfo", "MemTotal: 8388608 kB\n");

    #[test]
    fn a_small_cgroup_and_its_kills_are_warned_of() {
        let machine = FakeHost::with(&[MEMINFO]);
        let found = memory(&patient(&machine, ""));
        assert!(found.len() == 1 && found[0].title == "8.0 GiB of memory, by the machine", "{found:?}");
        let files = [
            MEMINFO,
            ("/proc/self/cgroup", "0::/pod\n"),
            ("/sys/fs/cgroup/pod/memory.max", "67108864\n"),
            ("/sys/fs/cgroup/pod/memory.current", "33554432\n"),
            ("/sys/fs/cgroup/pod/memory.events", "low 0\nmax 7\noom 2\noom_kill 2\n"),
        ];
        let found = memory(&patient(&FakeHost::with(&files), ""));
        assert_eq!(found.iter().map(|one| one.severity).collect::<Vec<_>>(), [Severity::Warning, Severity::Warning]);
        assert!(
            found[0].title == "64.0 MiB of memory, by the cgroup" && found[1].title.contains("killed 2"),
            "{found:?}"
        );
    }

    const TWO: (&str, &str) = ("/proc/cpuinfo", "processor\t: 0\nmodel name: x\n\nprocessor\t: 1\n");

    #[test]
    fn being_held_back_by_a_quota_is_a_warning() {
        let found = processors(&patient(&FakeHost::with(&[TWO]), "")).remove(0);
        assert_eq!((found.severity, found.title.as_str()), (Severity::Ok, "2 processors, without a quota"));
        for (throttled, expected) in [("1", Severity::Ok), ("200", Severity::Warning)] {
            let stat = format!("usage_usec 5\nnr_periods 1000\nnr_throttled {throttled}\nthrottled_usec 9\n");
            let fake = FakeHost::with(&[
                TWO,
                ("/proc/self/cgroup", "0::/pod\n"),
                ("/sys/fs/cgroup/pod/cpu.max", "50000 100000\n"),
                ("/sys/fs/cgroup/pod/cpu.stat", &stat),
            ]);
            let found = processors(&patient(&fake, "")).remove(0);
            assert_eq!(found.severity, expected, "{found:?}");
            assert!(found.title.ends_with("allows 0.50"), "{}", found.title);
        }
    }

    #[test]
    fn long_waits_are_named_by_what_is_waited_for() {
        let line = |kind: &str, percent: &str| format!("{kind} avg10=0.00 avg60={percent} avg300=0.00 total=1\n");
        let fake = FakeHost::with(&[
            ("/proc/pressure/memory", &line("some", "40.00")),
            ("/proc/pressure/io", &(line("some", "90.00") + &line("full", "1.00"))),
        ]);
        let found = pressure(&patient(&fake, ""));
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].severity, found[0].subject.as_deref()), (Severity::Warning, Some("memory")));
        assert_eq!(pressure(&patient(&FakeHost::with(&[]), "")).remove(0).severity, Severity::Ok);
    }
}
