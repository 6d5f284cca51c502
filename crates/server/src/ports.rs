//! Which ports to bind: those that were asked for, or free ones.
//!
//! Ports are looked at before the store is opened, so that "taken" is the first thing said and nothing has to be undone.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use anyhow::Context;

/// Clients that "send through the VIP channel" use the port two below the broker's.
pub const VIP_BELOW: u16 = 2;

/// A free port with a free VIP port is not always found at the first try.
const TRIES: usize = 64;

/// The name server's port.
pub fn for_names(bind: IpAddr, wanted: u16) -> anyhow::Result<SocketAddr> {
    look((bind, wanted).into()).with_context(|| taken("name server", bind, wanted))
}

/// The broker's port, and its VIP port if there is one two below.
pub fn for_broker(bind: IpAddr, wanted: u16) -> anyhow::Result<(SocketAddr, Option<SocketAddr>)> {
    let mut last = None;
    for _ in 0..if wanted == 0 { TRIES } else { 1 } {
        let main = look((bind, wanted).into()).with_context(|| taken("broker", bind, wanted))?;
        let Some(vip_port) = main.port().checked_sub(VIP_BELOW).filter(|port| *port > 0) else {
            return Ok((main, None));
        };
        match look((bind, vip_port).into()) {
            Ok(vip) => return Ok((main, Some(vip))),
            Err(error) => last = Some(anyhow::Error::new(error).context(taken("broker's VIP channel", bind, vip_port))),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no free port was found")))
}

fn taken(what: &str, bind: IpAddr, port: u16) -> String {
    format!("cannot listen on {} for the {what}", SocketAddr::from((bind, port)))
}

/// Binds and lets go: the real listener follows within milliseconds.
fn look(address: SocketAddr) -> io::Result<SocketAddr> {
    TcpListener::bind(address)?.local_addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn a_port_in_use_is_named() {
        let holder = TcpListener::bind((LOCAL, 0)).unwrap();
        let port = holder.local_addr().unwrap().port();
        let error = for_names(LOCAL, port).unwrap_err();
        let said = format!("{error:#}");
        assert!(said.contains(&format!("127.0.0.1:{port}")) && said.contains("in use"), "{said}");
    }

    #[test]
    fn a_free_port_comes_with_its_vip_port() {
        let (main, vip) = for_broker(LOCAL, 0).unwrap();
        assert_eq!(vip.unwrap().port() + VIP_BELOW, main.port());
    }
}
