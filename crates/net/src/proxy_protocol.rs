//! The PROXY protocol, versions 1 and 2: a load balancer's first words, naming the client that it speaks for.
//!
//! Pure. Apache's server accepts both, always, and so do we.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const V1_START: &[u8] = b"PROXY ";
const V1_BYTES_MAX: usize = 107;
const V2_START: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V2_FIXED_BYTES: usize = 16;

/// What the first bytes of a connection say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No PROXY header.
    Nothing,
    /// Perhaps one: more bytes are needed to tell, or to have it whole.
    Perhaps,
    /// A header of `bytes` bytes.
    Header {
        /// Its length; what follows is the connection proper.
        bytes: usize,
        /// Client and server address as the client saw them. `None`: the proxy speaks for itself, or for something
        /// without an address.
        addresses: Option<(SocketAddr, SocketAddr)>,
    },
}

/// The start of a PROXY header, and then something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed PROXY protocol header: {0}")]
pub(crate) struct Malformed(&'static str);

pub(crate) fn parse(start: &[u8]) -> Result<Found, Malformed> {
    let is_prefix = |whole: &[u8]| {
        let common = start.len().min(whole.len());
        start[..common] == whole[..common]
    };
    if start.is_empty() {
        return Ok(Found::Perhaps);
    }
    if is_prefix(V1_START) {
        return if start.len() < V1_START.len() { Ok(Found::Perhaps) } else { version_1(start) };
    }
    if is_prefix(V2_START) {
        return if start.len() < V2_FIXED_BYTES { Ok(Found::Perhaps) } else { version_2(start) };
    }
    Ok(Found::Nothing)
}

/// `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n`
fn version_1(start: &[u8]) -> Result<Found, Malformed> {
    let window = &start[..start.len().min(V1_BYTES_MAX)];
    let Some(end) = window.windows(2).position(|two| two == b"\r\n") else {
        return if start.len() < V1_BYTES_MAX { Ok(Found::Perhaps) } else { Err(Malformed("line too long")) };
    };
    let line = std::str::from_utf8(&window[V1_START.len()..end]).map_err(|_| Malformed("not text"))?;
    let mut words = line.split(' ');
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Ok(Found::Header { bytes: end + 2, addresses: None });
    }
    let mut address = || {
        let word = words.next().ok_or(Malformed("address missing"))?;
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| Malformed("not an IPv4 address")),
            "TCP6" => word.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| Malformed("not an IPv6 address")),
            _ => Err(Malformed("unknown family")),
        }
    };
    let (client, server) = (address()?, address()?);
    let mut port = || -> Result<u16, Malformed> {
        words.next().ok_or(Malformed("port missing"))?.parse().map_err(|_| Malformed("not a port"))
    };
    let (client_port, server_port) = (port()?, port()?);
    if words.next().is_some() {
        return Err(Malformed("more than two addresses and two ports"));
    }
    let addresses = Some((SocketAddr::new(client, client_port), SocketAddr::new(server, server_port)));
    Ok(Found::Header { bytes: end + 2, addresses })
}

/// ```text
/// 0           12          13       14       16
/// | signature | ver:4 cmd:4 | family | length | addresses, then TLVs (skipped)
/// ```
fn version_2(start: &[u8]) -> Result<Found, Malformed> {
    let (version_command, family) = (start[12], start[13]);
    let bytes = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([start[14], start[15]]));
    if version_command >> 4 != 2 {
        return Err(Malformed("unknown version"));
    }
    let is_local = match version_command & 0x0f {
        0 => true,
        1 => false,
        _ => return Err(Malformed("unknown command")),
    };
    if start.len() < bytes {
        return Ok(Found::Perhaps);
    }
    let part = &start[V2_FIXED_BYTES..bytes];
    let addresses = match family {
        _ if is_local => None,
        // Over TCP or over UDP; the address is what we are after.
        0x11 | 0x12 => Some(pair::<4>(part)?),
        0x21 | 0x22 => Some(pair::<16>(part)?),
        // Unspecified, and unix sockets: nobody whom we could name.
        0x00 | 0x31 | 0x32 => None,
        _ => return Err(Malformed("unknown family")),
    };
    Ok(Found::Header { bytes, addresses })
}

/// Two addresses of `N` bytes, then two ports.
fn pair<const N: usize>(part: &[u8]) -> Result<(SocketAddr, SocketAddr), Malformed>
where
    IpAddr: From<[u8; N]>,
{
    let ip = |at: usize| -> Option<IpAddr> { Some(IpAddr::from(<[u8; N]>::try_from(part.get(at..at + N)?).ok()?)) };
    let port = |at: usize| -> Option<u16> { Some(u16::from_be_bytes(part.get(at..at + 2)?.try_into().ok()?)) };
    let read = || {
        let client = SocketAddr::new(ip(0)?, port(2 * N)?);
        Some((client, SocketAddr::new(ip(N)?, port(2 * N + 2)?)))
    };
    read().ok_or(Malformed("too short for its addresses"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(version_command: u8, family: u8, part: &[u8]) -> Vec<u8> {
        let mut all = V2_START.to_vec();
        all.extend([version_command, family]);
        all.extend((part.len() as u16).to_be_bytes());
        all.extend(part);
        all
    }

    #[test]
    fn version_1_names_client_and_server() {
        let line = b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 10911\r\nrest";
        let addresses = Some(("192.0.2.1:56324".parse().unwrap(), "198.51.100.1:10911".parse().unwrap()));
        assert_eq!(parse(line), Ok(Found::Header { bytes: line.len() - 4, addresses }));
        let line = b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n";
        let addresses = Some(("[2001:db8::1]:1".parse().unwrap(), "[::1]:2".parse().unwrap()));
        assert_eq!(parse(line), Ok(Found::Header { bytes: line.len(), addresses }));
        let unknown = b"PROXY UNKNOWN ffff::1 whatever\r\n";
        assert_eq!(parse(unknown), Ok(Found::Header { bytes: unknown.len(), addresses: None }));
    }

    #[test]
    fn version_2_names_the_client_in_every_family_and_skips_what_follows() {
        let mut part = vec![192, 0, 2, 1, 198, 51, 100, 1, 0xdc, 0x04, 0x2a, 0x9f];
        part.extend([0xe0, 0, 3, b'a', b'b', b'c']);
        let whole = v2(0x21, 0x11, &part);
        let addresses = Some(("192.0.2.1:56324".parse().unwrap(), "198.51.100.1:10911".parse().unwrap()));
        assert_eq!(parse(&whole), Ok(Found::Header { bytes: whole.len(), addresses }));

        let mut part = vec![0; 32];
        (part[15], part[31]) = (1, 2);
        part.extend([0, 7, 0, 8]);
        let whole = v2(0x21, 0x21, &part);
        let addresses = Some(("[::1]:7".parse().unwrap(), "[::2]:8".parse().unwrap()));
        assert_eq!(parse(&whole), Ok(Found::Header { bytes: whole.len(), addresses }));

        for (command, family, part) in [(0x20, 0x00, 0), (0x20, 0x11, 12), (0x21, 0x00, 5), (0x21, 0x31, 216)] {
            let whole = v2(command, family, &vec![0; part]);
            assert_eq!(parse(&whole), Ok(Found::Header { bytes: whole.len(), addresses: None }));
        }
    }

    #[test]
    fn a_header_that_comes_byte_by_byte_is_waited_for() {
        for whole in [b"PROXY TCP4 1.2.3.4 5.6.7.8 9 10\r\n".to_vec(), v2(0x21, 0x11, &[1; 12])] {
            for end in 0..whole.len() {
                assert_eq!(parse(&whole[..end]), Ok(Found::Perhaps), "{end} bytes");
            }
            assert!(matches!(parse(&whole), Ok(Found::Header { .. })));
        }
    }

    #[test]
    fn a_malformed_header_is_refused_and_other_bytes_are_left_alone() {
        for line in [
            "PROXY TCP4 1.2.3.4 5.6.7.8 9\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 9 10 11\r\n",
            "PROXY TCP4 ::1 5.6.7.8 9 10\r\n",
            "PROXY TCP6 1.2.3.4 ::1 9 10\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 9 65536\r\n",
            "PROXY SCTP 1.2.3.4 5.6.7.8 9 10\r\n",
        ] {
            assert!(parse(line.as_bytes()).is_err(), "{line}");
        }
        assert!(parse(&[b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat()).is_err());
        assert!(parse(&v2(0x11, 0x11, &[0; 12])).is_err());
        assert!(parse(&v2(0x22, 0x11, &[0; 12])).is_err());
        assert!(parse(&v2(0x21, 0x11, &[0; 11])).is_err());
        assert!(parse(&v2(0x21, 0x44, &[0; 12])).is_err());
        for other in [&b"POST / HTTP/1.1"[..], &[0, 0, 0, 90], &[0x16, 3, 1], b"\r\nhello"] {
            assert_eq!(parse(other), Ok(Found::Nothing));
        }
    }
}
