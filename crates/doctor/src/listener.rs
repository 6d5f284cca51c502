//! The process that listens at an address of this machine, as the kernel's tables of sockets say.

use std::collections::BTreeSet;
use std::net::{IpAddr, ToSocketAddrs};

use super::address::own_addresses;
use super::host::Host;

/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// The process that listens at `server` (host and port); or why it is not known.
pub fn of(host: &Host, server: &str) -> Result<i32, String> {
    let addresses: Vec<_> = match server.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => return Err(format!("{server}: {error}")),
    };
    let own = own_addresses(host);
    let is_here = |ip: IpAddr| ip.is_loopback() || own.contains(&ip);
    let Some(port) = addresses.iter().find(|address| is_here(address.ip())).map(|address| address.port()) else {
        return Err(format!("{server} is not an address of this machine"));
    };
    let sockets = sockets(host, port);
    if sockets.is_empty() {
        return Err(format!(
            "nobody listens on port {port} here; behind a forwarded port the broker is elsewhere, in a container say"
        ));
    }
    let mut numbers = host.list("/proc").into_iter().filter_map(|name| name.parse::<i32>().ok());
    let holds = |pid: &i32| {
        let folder = format!("/proc/{pid}/fd");
        host.list(&folder).iter().any(|file| {
            let link = std::fs::read_link(host.path(&format!("{folder}/{file}")));
            link.is_ok_and(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
        })
    };
    numbers.find(holds).ok_or_else(|| {
        format!("whose port {port} is cannot be seen: another user's process, or one in a container. Run as its user or as root, or name it with --pid")
    })
}

/// Sockets that listen on a port, as links in `/proc/PID/fd` name them.
fn sockets(host: &Host, port: u16) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = host.text(table).unwrap_or_default();
        // `sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode …`, numbers in hexadecimal.
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, LISTENS, _, _, _, _, _, inode, ..] = words.as_slice() else { continue };
            let local = local.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            if local == Some(port) {
                found.insert(format!("socket:[{inode}]"));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::host::fake::FakeHost;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        \x20  0: 00000000:2A9F 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0\n\
        \x20  1: 0100007F:2A9F 0100007F:9C40 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0\n";

    #[test]
    fn a_listener_is_found_by_its_socket_and_otherwise_it_is_said_why_not() {
        let trie = "  |-- 10.1.2.3\n    /32 host LOCAL\n";
        let fake = FakeHost::with(&[("/proc/net/tcp", TABLE), ("/proc/net/fib_trie", trie)]);
        let of = |server: &str| super::of(&fake.host(), server);
        assert!(of("127.0.0.1:10911").unwrap_err().contains("cannot be seen"));
        // Whoever is connected to the port has a socket of that port, too.
        fake.link("/proc/41/fd/7", "socket:[4712]");
        assert!(of("127.0.0.1:10911").unwrap_err().contains("cannot be seen"));
        fake.link("/proc/42/fd/9", "socket:[4711]");
        assert_eq!((of("127.0.0.1:10911"), of("10.1.2.3:10911")), (Ok(42), Ok(42)));
        assert!(of("127.0.0.1:10912").unwrap_err().contains("nobody listens on port 10912"));
        assert!(of("203.0.113.9:10911").unwrap_err().contains("not an address of this machine"));
        assert!(of("no.such.host.invalid:1").is_err());
    }
}
