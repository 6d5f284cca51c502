//! Network interfaces: how fast their links are, which bounds what producers and consumers can have.

use crate::finding::Finding;
use crate::patient::Patient;

/// Where interfaces are.
const INTERFACES: &str = "/sys/class/net";
/// In Mbit/s; a disk of any kind takes more than a slower link brings.
const SLOW: u64 = 1000;

/// R1.1: the speed of each link that is up.
pub fn speed(patient: &Patient) -> Vec<Finding> {
    let host = &patient.host;
    let mut findings = Vec::new();
    let mut silent = Vec::new();
    for name in host.list(INTERFACES).into_iter().filter(|name| name != "lo") {
        let (state, path) = (format!("{INTERFACES}/{name}/operstate"), format!("{INTERFACES}/{name}/speed"));
        if host.text(&state).is_some_and(|state| state == "down") {
            continue;
        }
        // What has no link says -1, or refuses to be read: bridges, tunnels, interfaces of virtual machines.
        let Some(speed) = host.number(&path).filter(|speed| *speed > 0) else {
            silent.push(name);
            continue;
        };
        let title = format!("{name}: {speed} Mbit/s");
        // Of a byte of payload some percent are headers.
        let effect = format!("some {} MB/s each way, shared by producers, consumers and all else", speed / 8);
        let finding = if speed < SLOW {
            Finding::note(title)
                .fix(format!("ethtool {name} shows what was agreed upon: a cable or a port may be at fault"))
        } else {
            Finding::ok(title)
        };
        findings.push(finding.of(&name).seen(path, speed).effect(effect).figure("megabitsPerSecond", speed));
    }
    if findings.is_empty() {
        let seen = match silent.is_empty() {
            true => "no interface that is up".to_owned(),
            false => format!("{} say nothing", silent.join(", ")),
        };
        findings.push(
            Finding::ok("the speed of the network is not shown here")
                .seen(format!("{INTERFACES}/*/speed"), seen)
                .effect("so it is where the network is virtual; gantry doctor watch shows what goes through it"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    #[test]
    fn each_link_that_is_up_tells_its_speed_and_a_slow_one_is_noted() {
        let fake = FakeHost::with(&[
            ("/sys/class/net/lo/speed", "1\n"),
            ("/sys/class/net/eth0/speed", "10000\n"),
            ("/sys/class/net/eth0/operstate", "up\n"),
            ("/sys/class/net/eth1/speed", "100\n"),
            ("/sys/class/net/eth2/speed", "1000\n"),
            ("/sys/class/net/eth2/operstate", "down\n"),
            ("/sys/class/net/tun0/speed", "-1\n"),
        ]);
        let found = speed(&patient(&fake, ""));
        let told: Vec<_> = found.iter().map(|one| (one.subject.as_deref().unwrap(), one.severity)).collect();
        assert_eq!(told, [("eth0", Severity::Ok), ("eth1", Severity::Note)]);
        assert_eq!(found[0].title, "eth0: 10000 Mbit/s");
        assert_eq!(found[0].figures["megabitsPerSecond"], 10_000);
        let silent = FakeHost::with(&[("/sys/class/net/eth0/speed", "-1\n")]);
        let found = speed(&patient(&silent, "")).remove(0);
        assert!(found.severity == Severity::Ok && found.evidence[0].value == "eth0 say nothing", "{found:?}");
    }
}
