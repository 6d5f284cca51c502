//! What the machine knows about itself, asked once at start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;

/// Facts that defaults are made from.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, RocketMQ's default for `brokerName`.
    pub host_name: String,
    /// The address by which others reach it.
    pub address: IpAddr,
    /// The user's home, where RocketMQ's store is by default.
    pub home: PathBuf,
}

impl Machine {
    /// Asks the system. Sends nothing.
    pub fn read() -> Machine {
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|name| name.trim().to_owned())
            .ok()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "DEFAULT_BROKER".to_owned());
        let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
        Machine { host_name, address: first_address(), home }
    }
}

/// The first address that is not loopback: the one that leads out, else one that the kernel calls its own.
fn first_address() -> IpAddr {
    // Connecting a datagram socket sends nothing; it makes the kernel choose a route. The far ends are documentation addresses.
    let leads_out = |from: IpAddr, far: IpAddr| {
        let socket = UdpSocket::bind((from, 0)).ok()?;
        socket.connect((far, 9)).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback() && !address.is_unspecified()).then_some(address)
    };
    leads_out(Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into())
        .or_else(|| own_address(&std::fs::read_to_string("/proc/net/fib_trie").ok()?))
        .or_else(|| leads_out(Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()))
        .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
}

/// In the kernel's routing trie an address of this machine is a leaf followed by the words `host LOCAL`.
fn own_address(trie: &str) -> Option<IpAddr> {
    let mut leaf = None;
    for line in trie.lines() {
        if let Some(address) = line.trim_start().strip_prefix("|-- ") {
            leaf = address.trim().parse::<Ipv4Addr>().ok();
        } else if line.contains("host LOCAL")
            && let Some(address) = leaf.filter(|address| !address.is_loopback())
        {
            return Some(IpAddr::V4(address));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_gives_the_first_address_that_is_not_loopback() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 10.1.0.0\n        /16 link UNICAST\n     |-- 10.1.2.3\n        /32 host LOCAL\n";
        assert_eq!(own_address(trie), Some(IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3))));
        assert_eq!(own_address(""), None);
    }
}
