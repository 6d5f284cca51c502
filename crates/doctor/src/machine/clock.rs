//! Clocks: how the kernel tells the time, and who keeps it right.

use crate::finding::Finding;
use crate::patient::Patient;

/// Sources that are read without leaving the process, by the names that kernels give them.
const FAST: [&str; 6] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter", "stp", "timebase"];
/// Programs that keep the clock, as `/proc/PID/comm` names them (15 letters at most).
const KEEPERS: [&str; 8] =
    ["chronyd", "ntpd", "systemd-timesyn", "openntpd", "ptp4l", "phc2sys", "vmtoolsd", "VBoxService"];
/// `systemd-timesyncd` makes this file once the clock is right.
const SYNCHRONIZED: &str = "/run/systemd/timesync/synchronized";

/// Each send asks for the time.
pub fn source(patient: &Patient) -> Vec<Finding> {
    let folder = "/sys/devices/system/clocksource/clocksource0";
    let path = format!("{folder}/current_clocksource");
    let Some(source) = patient.host.text(&path) else {
        return vec![Finding::ok("the clock source is not shown here").seen(path, "no such file")];
    };
    let others = patient.host.text(&format!("{folder}/available_clocksource")).unwrap_or_default();
    vec![if FAST.contains(&source.as_str()) {
        Finding::ok(format!("clock source: {source}"))
            .seen(path, &source)
            .effect("the time is read without a system call")
    } else {
        Finding::warning(format!("clock source: {source}"))
            .seen(path, &source)
            .seen(format!("{folder}/available_clocksource"), &others)
            .effect("every look at the clock is a system call, or a read of a slow device. Each request takes several")
            .fix(match others.split(' ').find(|other| FAST.contains(other)) {
                Some(better) => format!("echo {better} > {folder}/current_clocksource"),
                None => "see the kernel's log (dmesg | grep -i clocksource) for why it trusts no faster one".to_owned(),
            })
    }]
}

/// Messages carry the time of the producer and of the broker, and delays, retention and queries go by it.
pub fn synchronisation(patient: &Patient) -> Vec<Finding> {
    let host = &patient.host;
    if host.has(SYNCHRONIZED) {
        return vec![Finding::ok("the clock is synchronised").seen(SYNCHRONIZED, "there")];
    }
    let keeper =
        host.list("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())).find_map(|pid| {
            let comm = format!("/proc/{pid}/comm");
            let name = host.text(&comm)?;
            KEEPERS.contains(&name.as_str()).then_some((comm, name))
        });
    vec![match keeper {
        Some((comm, name)) => Finding::ok(format!("{name} keeps the clock")).seen(comm, name),
        None => Finding::note("nobody who keeps the clock is seen")
            .seen("/proc/*/comm", format!("none of {}", KEEPERS.join(", ")))
            .effect(
                "in a container that is as it should be: the host keeps it. On a host of its own the clock drifts: delayed messages come early or \
                 late, files are kept too long or too short, and times of messages from different machines cannot be compared",
            )
            .fix("on a host: install chrony, or systemctl enable --now systemd-timesyncd"),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn a_slow_clock_source_is_a_warning_with_the_faster_one() {
        let folder = "/sys/devices/system/clocksource/clocksource0";
        let fake = FakeHost::with(&[(&format!("{folder}/current_clocksource"), "tsc\n")]);
        assert_eq!(source(&patient(&fake, "")).remove(0).severity, Severity::Ok);
        fake.write(&format!("{folder}/current_clocksource"), "hpet\n");
        fake.write(&format!("{folder}/available_clocksource"), "hpet tsc acpi_pm\n");
        let found = source(&patient(&fake, "")).remove(0);
        assert_eq!(found.severity, Severity::Warning);
        assert!(found.fix.unwrap().starts_with("echo tsc > "));
    }

    #[test]
    fn who_keeps_the_clock_is_found_by_its_file_or_its_process() {
        let severity =
            |files: &[(&str, &str)]| synchronisation(&patient(&FakeHost::with(files), "")).remove(0).severity;
        assert_eq!(severity(&[("/proc/1/comm", "systemd\n")]), Severity::Note);
        assert_eq!(severity(&[("/proc/1/comm", "systemd\n"), ("/proc/77/comm", "chronyd\n")]), Severity::Ok);
        assert_eq!(severity(&[(SYNCHRONIZED, "")]), Severity::Ok);
    }
}
