//! Message ids: the one that says where a record lies, and the one that a client makes before it sends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Appends the id of the record at `at` in the log of `host`: upper-case hex of address, port and offset.
pub fn offset_message_id(out: &mut String, host: SocketAddr, at: u64) {
    offset_message_ids(out, host, std::iter::once(at));
}

/// Appends the ids of several records of one log, with commas between them. A batch has a thousand, all of which begin alike.
pub fn offset_message_ids(out: &mut String, host: SocketAddr, places: impl Iterator<Item = u64>) {
    let mut begin = None;
    for at in places {
        match &begin {
            None => {
                let start = out.len();
                push_ip(out, host.ip());
                push_hex(out, u32::from(host.port()).to_be_bytes());
                begin = Some(start..out.len());
            }
            Some(begin) => {
                out.push(',');
                out.extend_from_within(begin.clone());
            }
        }
        push_hex(out, at.to_be_bytes());
    }
}

/// Why a message id cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageIdError {
    /// 32 digits for IPv4, 56 for IPv6.
    #[error("message id has {0} characters, not 32 or 56")]
    Length(usize),
    /// Something else than 0-9 A-F.
    #[error("message id is not hexadecimal")]
    NotHex,
    /// A port above 65535.
    #[error("message id holds port {0}")]
    Port(u32),
}

/// The host and the place in its log that an offset message id names.
pub fn parse_offset_message_id(id: &str) -> Result<(SocketAddr, u64), MessageIdError> {
    let mut digits = [0u8; 28];
    let bytes = unhex(id, &mut digits)?;
    let (address, rest) = bytes.split_at(bytes.len() - 12);
    let port = number(&rest[..4]);
    let port = u16::try_from(port).map_err(|_| MessageIdError::Port(port as u32))?;
    Ok((SocketAddr::new(ip_of(address), port), number(&rest[4..])))
}

/// What a unique id is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId {
    /// The client's address.
    pub ip: IpAddr,
    /// Its process, as far as 16 bits tell.
    pub pid: u16,
    /// Tells several users within a process apart (in Java: the class loader).
    pub hash: u32,
    /// Milliseconds since the month began, in the client's time zone.
    pub since_month_ms: u32,
    /// The client's counter.
    pub counter: u16,
}

/// Appends a unique id (`UNIQ_KEY`). `now_ms` and `month_start_ms` are the client's clock and the beginning of its month.
pub fn unique_id(out: &mut String, ip: IpAddr, pid: u32, hash: u32, now_ms: i64, month_start_ms: i64, counter: u16) {
    unique_id_start(out, ip, pid, hash);
    unique_id_end(out, (now_ms - month_start_ms) as u32, counter);
}

/// Appends what all unique ids of one maker begin with.
pub fn unique_id_start(out: &mut String, ip: IpAddr, pid: u32, hash: u32) {
    push_ip(out, ip);
    push_hex(out, (pid as u16).to_be_bytes());
    push_hex(out, hash.to_be_bytes());
}

/// Appends what is a unique id's own, behind [`unique_id_start`].
pub fn unique_id_end(out: &mut String, since_month_ms: u32, counter: u16) {
    let mut own = [0; 6];
    own[..4].copy_from_slice(&since_month_ms.to_be_bytes());
    own[4..].copy_from_slice(&counter.to_be_bytes());
    push_hex(out, own);
}

/// Takes a unique id apart. Clients of other languages make ids of the same length with other contents.
pub fn parse_unique_id(id: &str) -> Result<UniqueId, MessageIdError> {
    let mut digits = [0u8; 28];
    let bytes = unhex(id, &mut digits)?;
    let (address, rest) = bytes.split_at(bytes.len() - 12);
    Ok(UniqueId {
        ip: ip_of(address),
        pid: number(&rest[..2]) as u16,
        hash: number(&rest[2..6]) as u32,
        since_month_ms: number(&rest[6..10]) as u32,
        counter: number(&rest[10..]) as u16,
    })
}

fn push_ip(out: &mut String, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(ip) => push_hex(out, ip.octets()),
        IpAddr::V6(ip) => push_hex(out, ip.octets()),
    }
}

fn push_hex<const N: usize>(out: &mut String, bytes: [u8; N]) {
    let digits = bytes.map(|byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    // Digits are text.
    out.push_str(std::str::from_utf8(digits.as_flattened()).unwrap_or_default());
}

fn unhex<'a>(id: &str, out: &'a mut [u8; 28]) -> Result<&'a [u8], MessageIdError> {
    if id.len() != 32 && id.len() != 56 {
        return Err(MessageIdError::Length(id.len()));
    }
    for (byte, pair) in out.iter_mut().zip(id.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(MessageIdError::NotHex);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Ok(&out[..id.len() / 2])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn ip_of(bytes: &[u8]) -> IpAddr {
    match <[u8; 16]>::try_from(bytes) {
        Ok(octets) => Ipv6Addr::from(octets).into(),
        Err(_) => Ipv4Addr::from(number(bytes) as u32).into(),
    }
}
