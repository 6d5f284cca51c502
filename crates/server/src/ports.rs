//! Which ports to bind: those that were asked for, or free ones.
//!
//! Ports are bound before the store is opened, so that "taken" is the first thing said and nothing has to be undone. They are listened at
//! when there is somebody to serve; until then they are held, so that nobody else is given a free one that we chose.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::Context;
use net::Port;

/// Clients that "send through the VIP channel" use the port two below the broker's.
pub const VIP_BELOW: u16 = 2;

/// A free port with a free VIP port is not always found at the first try.
const TRIES: usize = 64;

/// How long a port that is taken is asked for again: a process that was killed gives its own back when the system has taken its memory.
pub const PATIENCE: Duration = Duration::from_secs(3);
pub const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The name server's port; `from` says who wants it.
pub fn for_names(bind: IpAddr, wanted: u16, from: &str) -> anyhow::Result<Port> {
    patiently((bind, wanted).into()).with_context(|| taken("name server", bind, wanted, from))
}

/// The controller's port; `from` says who wants it.
pub fn for_controller(bind: IpAddr, wanted: u16, from: &str) -> anyhow::Result<Port> {
    patiently((bind, wanted).into()).with_context(|| taken("controller", bind, wanted, from))
}

/// The port for slaves; `from` says who wants it.
pub fn for_slaves(bind: IpAddr, wanted: u16, from: &str) -> anyhow::Result<Port> {
    patiently((bind, wanted).into()).with_context(|| taken("broker's slaves", bind, wanted, from))
}

/// Binds an address as soon as a process that ends has given it back.
fn patiently(address: SocketAddr) -> io::Result<Port> {
    let since = Instant::now();
    // Ends with the port, another error, or the patience.
    loop {
        match Port::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && since.elapsed() < PATIENCE => {
                // The start has nothing else to do: whatever it did, it would have to undo.
                std::thread::park_timeout(LOOK_AGAIN);
            }
            bound => return bound,
        }
    }
}

/// Where a master gives its log to slaves (`haListenPort`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPort {
    /// Nowhere: the broker is a slave.
    Nowhere,
    /// At the port behind the broker's.
    Next,
    /// At this port.
    At(u16),
}

/// The ports of a broker.
#[derive(Debug)]
pub struct ForBroker {
    /// The broker's own.
    pub main: Port,
    /// Two below, if there is a port.
    pub vip: Option<Port>,
    /// For slaves.
    pub log: Option<Port>,
}

/// The broker's port, its VIP port if there is one two below, and the port for slaves; `from` says who wants the first, `log_from` the last.
pub fn for_broker(bind: IpAddr, wanted: u16, from: &str, log: LogPort, log_from: &str) -> anyhow::Result<ForBroker> {
    let mut last = None;
    // Those beside a port that the kernel chose may be somebody's who does not listen yet: then all are chosen anew.
    let (tries, bind_beside): (_, fn(SocketAddr) -> _) =
        if wanted == 0 { (TRIES, Port::bind_free) } else { (1, patiently) };
    // One that was asked for does not depend on the others, so it is waited for once.
    let mut of_log = match log {
        LogPort::At(port) => Some(for_slaves(bind, port, log_from)?),
        LogPort::Next | LogPort::Nowhere => None,
    };
    for _ in 0..tries {
        let main = patiently((bind, wanted).into()).with_context(|| taken("broker", bind, wanted, from))?;
        let beside = || {
            let port = main.local_addr().port();
            let vip = port.checked_sub(VIP_BELOW).filter(|port| *port > 0).map(|port| {
                let what = || taken("broker's VIP channel, two below its port", bind, port, from);
                bind_beside((bind, port).into()).with_context(what)
            });
            let next = match log {
                LogPort::Nowhere | LogPort::At(_) => None,
                LogPort::Next => {
                    let next =
                        port.checked_add(1).with_context(|| format!("no port is behind {port}: set haListenPort"))?;
                    let what = || taken("broker's slaves, one above its port", bind, next, log_from);
                    Some(bind_beside((bind, next).into()).with_context(what)?)
                }
            };
            anyhow::Ok((vip.transpose()?, next))
        };
        match beside() {
            Ok((vip, next)) => return Ok(ForBroker { main, vip, log: next.or(of_log.take()) }),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no free port was found")))
}

fn taken(what: &str, bind: IpAddr, port: u16, from: &str) -> String {
    format!("cannot listen on {} for the {what} ({from})", SocketAddr::from((bind, port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{Ipv4Addr, TcpListener};

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_port_in_use_is_named() {
        let holder = TcpListener::bind((LOCAL, 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let error = for_names(LOCAL, port, "listenPort, default").unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains(&format!("127.0.0.1:{port}")) && said.contains("in use"), "{said}");
        assert!(said.contains("(listenPort, default)"), "{said}");
    }

    #[test]
    fn a_port_is_ours_as_soon_as_a_process_that_ends_has_given_it_back() {
        let holder = TcpListener::bind((LOCAL, 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        assert!(Port::bind((LOCAL, port).into()).is_err());
        let asking = std::thread::spawn(move || {
            for_names(LOCAL, port, "listenPort, default").map(|port| port.local_addr().port())
        });
        drop(holder);
        assert_eq!(asking.join().unwrap().unwrap(), port);
        let holder = TcpListener::bind((LOCAL, 0)).unwrap();
        let taken = holder.local_addr().unwrap().port();
        let ending = std::thread::spawn(move || {
            std::thread::park_timeout(3 * LOOK_AGAIN);
            drop(holder);
        });
        let ports = for_broker(LOCAL, taken, "listenPort, default", LogPort::Nowhere, "").unwrap();
        assert_eq!(ports.main.local_addr().port(), taken);
        assert!(ports.log.is_none());
        ending.join().unwrap();
    }

    #[test]
    fn a_free_port_comes_with_its_vip_port_and_the_one_for_slaves() {
        let port = |port: Port| port.local_addr().port();
        let ForBroker { main, vip, log } = for_broker(LOCAL, 0, "listenPort, default", LogPort::Next, "").unwrap();
        let main = port(main);
        assert_eq!((port(vip.unwrap()) + VIP_BELOW, port(log.unwrap())), (main, main + 1));
    }

    #[test]
    fn a_port_for_slaves_in_use_is_named() {
        let holder = TcpListener::bind((LOCAL, 0)).unwrap();
        let taken = holder.local_addr().unwrap().port();
        let error = for_broker(LOCAL, 0, "listenPort", LogPort::At(taken), "haListenPort, default").unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains(&format!("127.0.0.1:{taken} for the broker's slaves (haListenPort, default)")), "{said}");
    }

    #[test]
    fn a_free_port_is_given_to_nobody_else_before_it_is_listened_at() {
        // So many that some would be given twice if they were let go.
        let bound = || for_broker(LOCAL, 0, "listenPort, default", LogPort::Next, "").unwrap();
        let held: Vec<ForBroker> = (0..300).map(|_| bound()).collect();
        let ports: Vec<Port> =
            held.into_iter().flat_map(|ports| [ports.main, ports.vip.unwrap(), ports.log.unwrap()]).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(|port| port.local_addr().port()).collect();
        assert_eq!(numbers.len(), ports.len());
    }
}
