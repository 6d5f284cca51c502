//! What clients are told to connect to, and who else can.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use config::BrokerRole;

use super::finding::Finding;
use super::host::Host;
use super::names::name_servers_of;
use super::patient::{PATIENCE, Patient};

/// Clients that "send through the VIP channel" use the port two below the broker's.
const VIP_BELOW: u16 = 2;

/// Addresses of this machine that are not loopback, as the kernel's tables say.
pub(super) fn own_addresses(host: &Host) -> BTreeSet<IpAddr> {
    let mut own = BTreeSet::new();
    let mut leaf = None;
    // In the routing trie an address of this machine is a leaf followed by the words `host LOCAL`.
    for line in host.text("/proc/net/fib_trie").unwrap_or_default().lines() {
        if let Some(address) = line.trim_start().strip_prefix("|-- ") {
            leaf = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.contains("host LOCAL") {
            own.extend(leaf.filter(|address| !address.is_loopback()).map(IpAddr::V4));
        }
    }
    for line in host.text("/proc/net/if_inet6").unwrap_or_default().lines() {
        let digits = line.split_whitespace().next().and_then(|word| u128::from_str_radix(word, 16).ok());
        let address = digits.map(Ipv6Addr::from).filter(|ip| !ip.is_loopback() && !ip.is_unicast_link_local());
        own.extend(address.map(IpAddr::V6));
    }
    own
}

fn listed(addresses: &BTreeSet<IpAddr>) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// Blocks that the Internet has no route to, besides those that `std` knows: address and length of the prefix (RFC 6890, and 9637 for the last).
const NOT_ROUTED_V4: [(Ipv4Addr, u32); 8] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    // Shared by providers.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    // For documentation, as the next but one and its neighbour.
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    // For measurements between networks.
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Groups of receivers, and what was never given out.
    (Ipv4Addr::new(224, 0, 0, 0), 3),
];
const NOT_ROUTED_V6: [(Ipv6Addr, u32); 3] = [
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
];

/// An address that the whole world could reach.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let is_within =
                |(block, length): (Ipv4Addr, u32)| (ip.to_bits() ^ block.to_bits()).leading_zeros() >= length;
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || NOT_ROUTED_V4.into_iter().any(is_within))
        }
        IpAddr::V6(ip) => {
            let is_within =
                |(block, length): (Ipv6Addr, u32)| (ip.to_bits() ^ block.to_bits()).leading_zeros() >= length;
            let is_own = ip.is_loopback() || ip.is_unspecified() || ip.is_unique_local() || ip.is_unicast_link_local();
            !(is_own || NOT_ROUTED_V6.into_iter().any(is_within))
        }
    }
}

/// Whether a name server is on another machine.
fn is_far(server: &str) -> bool {
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(ip) => !ip.is_loopback(),
        Err(_) => host != "localhost",
    }
}

/// What `brokerIP1` stands for, and `brokerIP2` where it is something else.
pub fn advertised(patient: &Patient) -> Vec<Finding> {
    let mut findings = first(patient);
    findings.extend(second(patient));
    findings
}

/// Where name servers say that replicas find this broker.
fn second(patient: &Patient) -> Option<Finding> {
    let settings = &patient.target.settings;
    let host = settings.text("brokerIP2");
    if host == settings.text("brokerIP1") {
        return None;
    }
    let at = format!("{host}:{}", settings.text("haListenPort"));
    let title = format!("replicas are told to connect to {at}");
    let seen = |finding: Finding| {
        finding.of("brokerIP2").seen(settings.origin("brokerIP2").to_string(), format!("brokerIP2={host}"))
    };
    let found = match (host.as_str(), 0).to_socket_addrs() {
        Ok(found) => found.map(|address| address.ip()).collect::<BTreeSet<IpAddr>>(),
        Err(error) => {
            return Some(
                seen(Finding::warning(format!("brokerIP2={host} leads nowhere")))
                    .seen("name look-up", error)
                    .effect("name servers hand it out all the same; a replica could not find the broker")
                    .fix("an address of this machine that replicas reach, or none: then it is brokerIP1"),
            );
        }
    };
    let own = own_addresses(&patient.host);
    let fix = match own.first() {
        Some(address) => format!("brokerIP2={address}, or what replicas reach this machine by"),
        None => "brokerIP2= what replicas reach this machine by".to_owned(),
    };
    let finding = if found.iter().any(IpAddr::is_unspecified) {
        Finding::warning(title).effect("that is no address of anything").fix(fix)
    } else if found.iter().all(IpAddr::is_loopback) {
        // Who tells clients the same means this machine only.
        let is_first = settings.text("brokerIP1").parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        match is_first {
            true => Finding::ok(title).effect("brokerIP1 is for this machine only, too"),
            false => Finding::warning(title).effect("a replica on another machine is led to itself").fix(fix),
        }
    } else if !own.is_empty() && found.is_disjoint(&own) {
        Finding::note(title)
            .effect("it is not an address of this machine: right behind a translation of addresses if that leads here, and wrong otherwise")
    } else {
        Finding::ok(title).effect("it is an address of this machine")
    };
    Some(seen(finding).seen("/proc/net/fib_trie, /proc/net/if_inet6", format!("own addresses: {}", listed(&own))))
}

fn first(patient: &Patient) -> Vec<Finding> {
    let settings = &patient.target.settings;
    let host = settings.text("brokerIP1");
    let origin = settings.origin("brokerIP1").to_string();
    let own = own_addresses(&patient.host);
    let found = match (host.as_str(), 0).to_socket_addrs() {
        Ok(found) => found.map(|address| address.ip()).collect::<BTreeSet<IpAddr>>(),
        Err(error) => {
            return vec![
                Finding::error(format!("brokerIP1={host} leads nowhere"))
                    .seen(origin, format!("brokerIP1={host}"))
                    .seen("name look-up", error)
                    .effect("a start ends with this; clients could not find the broker either")
                    .fix("an address of this machine, or a name that its clients can look up"),
            ];
        }
    };
    let seen = |finding: Finding| {
        let finding = finding.seen(&origin, format!("brokerIP1={host}"));
        let finding =
            if host.parse::<IpAddr>().is_err() { finding.seen("name look-up", listed(&found)) } else { finding };
        finding.seen("/proc/net/fib_trie, /proc/net/if_inet6", format!("own addresses: {}", listed(&own)))
    };
    let title = format!("clients are told to connect to {host}");
    let far: Vec<String> = name_servers_of(patient).into_iter().filter(|server| is_far(server)).collect();
    let fix = match own.first() {
        Some(address) => format!("brokerIP1={address}, or what clients reach this machine by"),
        None => "brokerIP1= what clients reach this machine by".to_owned(),
    };
    let is_loopback = found.iter().all(IpAddr::is_loopback);
    vec![seen(if found.iter().any(IpAddr::is_unspecified) {
        Finding::error(title)
            .effect("that is no address of anything: every client would connect to its own machine")
            .fix(fix)
    } else if is_loopback && !far.is_empty() {
        Finding::error(title)
            .effect(format!(
                "clients that ask {} are told to connect to their own machine, and find no broker there",
                far.join(", ")
            ))
            .fix(fix)
    } else if is_loopback {
        Finding::ok(title)
            .effect("only clients on this machine find the broker, which is what a start without a file means")
    } else if found.iter().any(|ip| matches!(ip, IpAddr::V4(ip) if ip.is_link_local())) {
        Finding::warning(title)
            .effect("169.254.… is what a machine calls itself when nobody gave it an address")
            .fix(fix)
    } else if settings.given("brokerIP1").is_none() && own.len() > 1 {
        Finding::warning(title)
            .effect(format!(
                "this machine has {} addresses ({}), and nobody said which one clients can reach. It also stands in the ids of messages",
                own.len(),
                listed(&own)
            ))
            .fix(fix)
    } else if found.len() > 1 {
        Finding::note(title)
            .effect("the name stands for several addresses: clients may try another one than records hold")
    } else if !own.is_empty() && found.is_disjoint(&own) {
        Finding::note(title).effect(
            "it is not an address of this machine: right behind a translation of addresses (containers, load balancers) if that leads here, and \
             wrong otherwise. Try it from a client: gantry admin brokerStatus -b HOST:PORT",
        )
    } else {
        Finding::ok(title).effect("it is an address of this machine")
    })]
}

fn connect(host: &str, port: u16) -> Result<(), String> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut last = "no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(_) => return Ok(()),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(last)
}

/// Who has the broker's ports: the broker, nobody, or somebody else.
pub fn port(patient: &Patient) -> Vec<Finding> {
    let settings = &patient.target.settings;
    let (host, port) = (settings.text("brokerIP1"), settings.text("listenPort").parse::<u16>().unwrap_or(0));
    if patient.is_anothers() {
        return vec![anothers(patient, port)];
    }
    if patient.runtime_info().is_ok() {
        return reached(patient, &host, port);
    }
    if port == 0 {
        return vec![Finding::ok("the broker takes a free port at each start (listenPort=0)").seen("listenPort", "0")];
    }
    let bind = settings.text("bindAddress").parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let mut findings = Vec::new();
    let vip = port.checked_sub(VIP_BELOW).filter(|port| *port > 0);
    let of_log = log_port(patient, port);
    for (port, what, key) in
        [(Some(port), "broker", "listenPort"), (vip, "VIP channel", "listenPort"), (of_log, "slaves", "haListenPort")]
    {
        let Some(port) = port else { continue };
        let at = SocketAddr::from((bind, port));
        // Only whether it could be had: nobody is listened to.
        let Err(error) = TcpListener::bind(at) else { continue };
        let is = |kind: ErrorKind| error.kind() == kind;
        let effect = if is(ErrorKind::AddrInUse) {
            "somebody else listens there, and it is not a broker that answers: a start ends here"
        } else if is(ErrorKind::PermissionDenied) {
            "this user may not listen there: ports below 1024 are root's"
        } else if is(ErrorKind::AddrNotAvailable) {
            "bindAddress is not an address of this machine: a start ends here"
        } else {
            "a start ends here"
        };
        findings.push(
            Finding::error(format!("the port of the {what}, {at}, cannot be had"))
                .of(port.to_string())
                .seen(format!("bind {at}"), error)
                .effect(effect)
                .fix(format!("ss -ltnp 'sport = :{port}' shows who has it; or set {key}")),
        );
    }
    if findings.is_empty() {
        let ports: Vec<String> = [Some(port), vip, of_log].into_iter().flatten().map(|port| port.to_string()).collect();
        findings.push(
            Finding::ok(format!("the ports of the broker ({}) are free", ports.join(", ")))
                .seen(format!("bind {bind}"), "possible"),
        );
    }
    findings
}

/// Where a master whose main port is `port` gives its log; none: it is a slave.
fn log_port(patient: &Patient, port: u16) -> Option<u16> {
    let settings = patient.target.settings.broker().ok()?;
    if settings.broker_role == BrokerRole::Slave {
        return None;
    }
    let is_next = settings.ha_listen_port.0.checked_sub(1) == Some(settings.listen_port);
    if is_next { port.checked_add(1) } else { Some(settings.ha_listen_port.0) }
}

/// Another broker has the port.
fn anothers(patient: &Patient, port: u16) -> Finding {
    let (server, store) = (patient.server(), &patient.target.store);
    let name = patient.name_there().map_or_else(String::new, |name| format!(" (its name is {name})"));
    Finding::error(format!("a broker that has not this store open answers at {server}{name}"))
        .of(port.to_string())
        .seen(format!("request 28 to {server}"), "answered")
        .seen(store.join("lock").display().to_string(), "not locked")
        .effect("a start ends here, as the port is taken; what that broker tells is not looked at")
        .fix(format!(
            "set listenPort, or stop that broker: ss -ltnp 'sport = :{port}' shows which it is. If it is the one that is meant, with a store \
             elsewhere or in a container: --server {server}"
        ))
}

/// The broker answers somewhere; does it answer where clients are told?
fn reached(patient: &Patient, host: &str, port: u16) -> Vec<Finding> {
    let server = patient.server();
    // A free port was taken: only the broker knows it.
    let port = match port {
        0 => server.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0),
        port => port,
    };
    let mut findings = Vec::new();
    match connect(host, port) {
        Ok(()) => findings.push(
            Finding::ok(format!("the broker can be reached at {host}:{port}"))
                .seen(format!("connect {host}:{port}"), "connected")
                .effect("from this machine, that is; firewalls between it and the clients cannot be seen from here"),
        ),
        Err(error) => findings.push(
            Finding::error(format!("the broker runs, and cannot be reached where clients are told: {host}:{port}"))
                .seen(format!("connect {host}:{port}"), error)
                .seen(format!("request 28 to {server}"), "answered")
                .effect("clients get this address from the name server, and connect in vain")
                .fix("brokerIP1= an address that leads here; or open the port in the firewall"),
        ),
    }
    // Where the broker listens on all addresses its port answers there, too, if that leads here.
    let second = patient.target.settings.text("brokerIP2");
    let is_everywhere = patient.target.settings.text("bindAddress").parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    if second != host && is_everywhere {
        findings.push(match connect(&second, port) {
            Ok(()) => Finding::ok(format!("brokerIP2 leads to the broker, too: {second}:{port}"))
                .of("brokerIP2")
                .seen(format!("connect {second}:{port}"), "connected")
                .effect("from this machine, that is"),
            Err(error) => Finding::warning(format!("brokerIP2 does not lead to the broker: {second}:{port}"))
                .of("brokerIP2")
                .seen(format!("connect {second}:{port}"), error)
                .effect("name servers say that replicas find it there")
                .fix("brokerIP2= an address of this machine, or none: then it is brokerIP1"),
        });
    }
    if let Some(of_log) = log_port(patient, port)
        && let Err(error) = connect(&second, of_log)
    {
        findings.push(
            Finding::warning(format!("slaves cannot get the log at {second}:{of_log}"))
                .of("haListenPort")
                .seen(format!("connect {second}:{of_log}"), error)
                .effect("name servers tell slaves to get it there")
                .fix("open the port in the firewall, or brokerIP2= an address that leads here"),
        );
    }
    let vip = port.saturating_sub(VIP_BELOW);
    if let Some(error) = (vip > 0).then(|| connect(host, vip)).and_then(Result::err) {
        findings.push(
            Finding::warning(format!("the port of the VIP channel, {host}:{vip}, cannot be reached"))
                .of("vip")
                .seen(format!("connect {host}:{vip}"), error)
                .effect("clients with vipChannelEnabled=true, the default before 4.5.1, cannot send")
                .fix("open the port in the firewall, or set vipChannelEnabled=false in those clients"),
        );
    }
    findings
}

/// There is no access control, so who reaches the port can do everything.
pub fn access(patient: &Patient) -> Vec<Finding> {
    let settings = &patient.target.settings;
    let bind = settings.text("bindAddress");
    let bound = bind.parse::<IpAddr>().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let seen =
        |finding: Finding| finding.seen(settings.origin("bindAddress").to_string(), format!("bindAddress={bind}"));
    if bound.is_loopback() {
        return vec![seen(Finding::ok("only this machine can reach the broker"))];
    }
    let own = own_addresses(&patient.host);
    let reachable: BTreeSet<IpAddr> = if bound.is_unspecified() { own } else { BTreeSet::from([bound]) };
    let public: BTreeSet<IpAddr> = reachable.into_iter().filter(|ip| is_public(*ip)).collect();
    let effect = "this version has no access control: whoever reaches the port can read and write everything, and change settings";
    let fix = "let only your own networks reach it (firewall, security group), or bindAddress= an address of a closed network";
    vec![seen(if public.is_empty() {
        Finding::note("other machines can reach the broker").effect(effect).fix(fix)
    } else {
        Finding::warning(format!("the broker listens on an address of the open Internet: {}", listed(&public)))
            .effect(effect)
            .fix(fix)
    })]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    const ONE: &str = "Main:\n  |-- 127.0.0.1\n    /32 host LOCAL\n  |-- 10.1.0.0\n    /16 link UNICAST\n  |-- 10.1.2.3\n    /32 host LOCAL\n";
    const TWO: &str = "Main:\n  |-- 10.1.2.3\n    /32 host LOCAL\n  |-- 172.17.0.1\n    /32 host LOCAL\n";

    fn on(trie: &str, settings: &str) -> Finding {
        advertised(&patient(&FakeHost::with(&[("/proc/net/fib_trie", trie)]), settings)).remove(0)
    }

    #[test]
    fn own_addresses_are_those_of_both_families_without_loopback_and_links() {
        let fake = FakeHost::with(&[
            ("/proc/net/fib_trie", ONE),
            (
                "/proc/net/if_inet6",
                "00000000000000000000000000000001 01 80 10 80 lo\nfe800000000000000000000000000001 02 40 20 80 eth0\n20010db8000000000000000000000007 02 40 00 80 eth0\n",
            ),
        ]);
        assert_eq!(listed(&own_addresses(&fake.host())), "10.1.2.3, 2001:db8::7");
    }

    #[test]
    fn an_address_that_leads_clients_to_themselves_is_an_error() {
        let names = "namesrvAddr=192.0.2.1:9876";
        assert_eq!(on(ONE, &format!("brokerIP1=127.0.0.1\n{names}")).severity, Severity::Error);
        assert_eq!(on(ONE, "brokerIP1=127.0.0.1\nnamesrvAddr=localhost:9876").severity, Severity::Ok);
        assert_eq!(on(ONE, "brokerIP1=0.0.0.0").severity, Severity::Error);
        assert_eq!(on(ONE, &format!("brokerIP1=10.1.2.3\n{names}")).severity, Severity::Ok);
        let elsewhere = on(ONE, &format!("brokerIP1=203.0.113.9\n{names}"));
        assert!(elsewhere.severity == Severity::Note && elsewhere.effect.contains("translation"), "{elsewhere:?}");
        assert_eq!(on(ONE, "brokerIP1=no.such.host.invalid").severity, Severity::Error);
    }

    #[test]
    fn a_second_address_is_looked_at_where_it_is_another_one() {
        let second = |text: &str| {
            let fake = FakeHost::with(&[("/proc/net/fib_trie", TWO)]);
            let mut found = advertised(&patient(&fake, &format!("brokerIP1=10.1.2.3\n{text}")));
            assert_eq!(found.remove(0).severity, Severity::Ok);
            found.pop()
        };
        assert_eq!(second(""), None);
        assert_eq!(second("brokerIP2=10.1.2.3"), None);
        for (host, expected) in [
            ("172.17.0.1", Severity::Ok),
            ("203.0.113.9", Severity::Note),
            ("127.0.0.1", Severity::Warning),
            ("0.0.0.0", Severity::Warning),
            ("no.such.host.invalid", Severity::Warning),
        ] {
            let found = second(&format!("brokerIP2={host}\nhaListenPort=10999")).unwrap();
            assert_eq!((found.severity, found.subject.as_deref()), (expected, Some("brokerIP2")), "{found:?}");
            assert!(expected != Severity::Ok || found.title.ends_with("172.17.0.1:10999"), "{found:?}");
        }
    }

    #[test]
    fn of_several_addresses_somebody_has_to_choose() {
        let found = on(TWO, "");
        assert!(found.severity == Severity::Warning && found.fix.unwrap().contains("10.1.2.3"));
        assert_eq!(on(TWO, "brokerIP1=172.17.0.1").severity, Severity::Ok);
    }

    #[test]
    fn a_port_that_somebody_else_has_is_an_error_and_a_free_one_is_not() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = holder.local_addr().unwrap().port();
        let text = format!("bindAddress=127.0.0.1\nbrokerIP1=127.0.0.1\nlistenPort={taken}");
        let fake = FakeHost::with(&[]);
        let found = port(&patient(&fake, &text));
        assert!(found[0].severity == Severity::Error && found[0].effect.contains("somebody else"), "{found:?}");
        assert_eq!(found[0].subject.as_deref(), Some(taken.to_string().as_str()));
        assert_eq!(port(&patient(&fake, "listenPort=0")).remove(0).severity, Severity::Ok);
    }

    #[test]
    fn who_can_reach_the_broker_is_told_by_its_addresses() {
        let severity = |trie: &str, settings: &str| {
            access(&patient(&FakeHost::with(&[("/proc/net/fib_trie", trie)]), settings)).remove(0).severity
        };
        assert_eq!(severity(ONE, "bindAddress=127.0.0.1"), Severity::Ok);
        assert_eq!(severity(ONE, ""), Severity::Note);
        assert_eq!(severity("  |-- 8.8.4.4\n    /32 host LOCAL\n", ""), Severity::Warning);
        assert_eq!(severity("  |-- 192.0.2.2\n    /32 host LOCAL\n", ""), Severity::Note);
    }

    #[test]
    fn only_what_has_a_route_is_of_the_open_internet() {
        let is_public = |address: &str| is_public(address.parse().unwrap());
        for address in [
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "127.0.0.1",
            "169.254.1.1",
            "0.0.0.0",
            "100.127.0.1",
            "192.0.0.8",
            "192.0.2.2",
            "198.51.100.7",
            "203.0.113.9",
            "198.19.255.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "2001:db8::7",
            "3fff:fff::1",
            "::ffff:10.1.2.3",
            "::ffff:192.0.2.2",
        ] {
            assert!(!is_public(address), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.4.4",
            "100.63.0.1",
            "100.128.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.0.3.1",
            "198.17.0.1",
            "198.20.0.1",
            "198.51.101.1",
            "203.0.114.1",
            "223.255.255.1",
            "2001:db7::1",
            "2606:4700::1111",
            "::ffff:8.8.4.4",
        ] {
            assert!(is_public(address), "{address}");
        }
    }
}
