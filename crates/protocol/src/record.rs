//! Stored records: the form that a message has on disk, on slaves, and on the way to consumers.
//!
//! Encoding happens outside every lock, with the three fields that depend on the position left zero; [`stamp`] fills them in.
//! Reading trusts nothing: every length is checked before it is used.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::java::crc32;
use crate::properties;
use crate::sys_flag;
use crate::tags;

/// Magic of a record whose topic length takes one byte.
pub const MAGIC_V1: u32 = 0xdaa3_20a7;
/// Magic of a record whose topic length takes two bytes.
pub const MAGIC_V2: u32 = 0xdaa3_20ab;
/// Magic of the blank that ends a commit-log file.
pub const MAGIC_BLANK: u32 = 0xcbd4_3194;
/// What is kept free at the end of each commit-log file for a blank.
pub const BLANK_BYTES: usize = 8;
/// The longest topic that a v1 record is used for.
pub const TOPIC_V1_MAX: usize = 127;
/// The longest topic at all.
pub const TOPIC_MAX: usize = 255;
/// The longest properties.
pub const PROPERTIES_MAX: usize = i16::MAX as usize;

/// Where the fields of a record sit, up to its first variable part.
///
/// The same bytes go to the disk, to slaves and to consumers, so this table is the only place that knows them. From the store
/// timestamp on it holds for an IPv4 born host; an IPv6 one moves the rest by [`at::V6_EXTRA`], an IPv6 store host again.
pub mod at {
    /// i32: the whole record.
    pub const TOTAL_SIZE: usize = 0;
    /// u32: v1, v2 or blank.
    pub const MAGIC_CODE: usize = 4;
    /// i32: CRC32 of the body without the sign bit.
    pub const BODY_CRC: usize = 8;
    /// i32.
    pub const QUEUE_ID: usize = 12;
    /// i32: the user's own.
    pub const FLAG: usize = 16;
    /// i64: stamped.
    pub const QUEUE_OFFSET: usize = 20;
    /// i64: stamped.
    pub const LOG_OFFSET: usize = 28;
    /// i32.
    pub const SYS_FLAG: usize = 36;
    /// i64: milliseconds.
    pub const BORN_TIMESTAMP: usize = 40;
    /// Address (4 or 16) and port (i32).
    pub const BORN_HOST: usize = 48;
    /// i64: milliseconds, stamped.
    pub const STORE_TIMESTAMP: usize = 56;
    /// Address (4 or 16) and port (i32).
    pub const STORE_HOST: usize = 64;
    /// i32.
    pub const RECONSUME_TIMES: usize = 72;
    /// i64: where the half message of a committed one lies.
    pub const PREPARED_OFFSET: usize = 76;
    /// i32, and the body follows.
    pub const BODY_SIZE: usize = 84;
    /// The body.
    pub const BODY: usize = 88;
    /// What an IPv6 address takes more than an IPv4 one.
    pub const V6_EXTRA: usize = 12;
}

const _: () = assert!(at::LOG_OFFSET == at::QUEUE_OFFSET + size_of::<u64>());
const _: () = assert!(at::STORE_TIMESTAMP == at::BORN_HOST + 8 && at::RECONSUME_TIMES == at::STORE_HOST + 8);

/// The smallest record: no body, no topic, no properties.
/// Bytes of the shortest record there can be.
pub const RECORD_BYTES_MIN: usize = at::BODY + 1 + 2;

/// A message before it has a place.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the names are those of the table above")]
pub struct RecordDraft<'a> {
    pub topic: &'a str,
    pub queue_id: i32,
    pub flag: i32,
    /// The two address bits are set by the encoder, from the hosts.
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: SocketAddr,
    pub store_host: SocketAddr,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub properties: &'a [u8],
}

/// Why a message cannot become a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Over [`TOPIC_MAX`], or empty.
    #[error("topic of {0} bytes; it must have 1 to {TOPIC_MAX}")]
    TopicLength(usize),
    /// Over [`PROPERTIES_MAX`].
    #[error("properties of {0} bytes are over the limit of {PROPERTIES_MAX}")]
    PropertiesTooLong(usize),
    /// Beyond what a record's length can state.
    #[error("body of {0} bytes does not fit a record")]
    BodyTooLong(usize),
}

impl<'a> RecordDraft<'a> {
    /// An empty message of queue 0 that a client at `host` sent at time 0, for those who have more to say only of some of it.
    pub fn plain(topic: &'a str, host: SocketAddr) -> RecordDraft<'a> {
        RecordDraft {
            topic,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            body: &[],
            properties: &[],
        }
    }

    /// The size that [`RecordDraft::encode`] will write.
    pub fn encoded_bytes(&self) -> usize {
        let topic_length_bytes = if self.topic.len() > TOPIC_V1_MAX { 2 } else { 1 };
        let hosts = v6_extra(self.born_host) + v6_extra(self.store_host);
        at::BODY + hosts + self.body.len() + topic_length_bytes + self.topic.len() + 2 + self.properties.len()
    }

    /// Appends the record to `out`, CRC included, and says how large it is. Version 2 is used when the topic needs it.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<usize, RecordError> {
        if self.topic.is_empty() || self.topic.len() > TOPIC_MAX {
            return Err(RecordError::TopicLength(self.topic.len()));
        }
        if self.properties.len() > PROPERTIES_MAX {
            return Err(RecordError::PropertiesTooLong(self.properties.len()));
        }
        if self.body.len() > i32::MAX as usize - (1 << 20) {
            return Err(RecordError::BodyTooLong(self.body.len()));
        }
        let total = self.encoded_bytes();
        out.reserve(total);
        let start = out.len();

        // The part before the body is built in one piece on the stack: one copy instead of sixteen.
        let is_v2 = self.topic.len() > TOPIC_V1_MAX;
        let mut fixed = [0u8; at::BODY + 2 * at::V6_EXTRA];
        put(&mut fixed, at::TOTAL_SIZE, (total as u32).to_be_bytes());
        put(&mut fixed, at::MAGIC_CODE, if is_v2 { MAGIC_V2 } else { MAGIC_V1 }.to_be_bytes());
        put(&mut fixed, at::BODY_CRC, crc32(self.body).to_be_bytes());
        put(&mut fixed, at::QUEUE_ID, self.queue_id.to_be_bytes());
        put(&mut fixed, at::FLAG, self.flag.to_be_bytes());
        put(&mut fixed, at::SYS_FLAG, self.sys_flag_with_hosts().to_be_bytes());
        put(&mut fixed, at::BORN_TIMESTAMP, self.born_timestamp.to_be_bytes());
        let store_timestamp_at = put_host(&mut fixed, at::BORN_HOST, self.born_host);
        let mut next = put_host(&mut fixed, store_timestamp_at + 8, self.store_host);
        put(&mut fixed, next, self.reconsume_times.to_be_bytes());
        next += 4;
        put(&mut fixed, next, self.prepared_offset.to_be_bytes());
        next += 8;
        put(&mut fixed, next, (self.body.len() as u32).to_be_bytes());
        next += 4;

        out.extend_from_slice(&fixed[..next]);
        out.extend_from_slice(self.body);
        if is_v2 {
            out.extend_from_slice(&(self.topic.len() as u16).to_be_bytes());
        } else {
            out.push(self.topic.len() as u8);
        }
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(&(self.properties.len() as u16).to_be_bytes());
        out.extend_from_slice(self.properties);
        debug_assert_eq!(out.len() - start, total);
        Ok(total)
    }

    fn sys_flag_with_hosts(&self) -> i32 {
        let flag = self.sys_flag & !(sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6);
        let born = if is_v6(self.born_host) { sys_flag::BORN_HOST_V6 } else { 0 };
        let store = if is_v6(self.store_host) { sys_flag::STORE_HOST_V6 } else { 0 };
        flag | born | store
    }
}

fn is_v6(host: SocketAddr) -> bool {
    // A v4 client of a dual-stack socket is a v4 host, as in Java.
    host.ip().to_canonical().is_ipv6()
}

fn v6_extra(host: SocketAddr) -> usize {
    if is_v6(host) { at::V6_EXTRA } else { 0 }
}

fn put<const N: usize>(fixed: &mut [u8], at: usize, bytes: [u8; N]) {
    fixed[at..at + N].copy_from_slice(&bytes);
}

/// Writes address and port; where they end.
fn put_host(fixed: &mut [u8], at: usize, host: SocketAddr) -> usize {
    let port_at = match host.ip().to_canonical() {
        IpAddr::V4(ip) => {
            put(fixed, at, ip.octets());
            at + 4
        }
        IpAddr::V6(ip) => {
            put(fixed, at, ip.octets());
            at + 16
        }
    };
    put(fixed, port_at, u32::from(host.port()).to_be_bytes());
    port_at + 4
}

/// Fills in what depends on the place of an encoded record: called under the lock of the log, so it does nothing else.
///
/// # Panics
/// If `record` is shorter than the fixed part of a record: the caller passes what [`RecordDraft::encode`] wrote.
pub fn stamp(record: &mut [u8], queue_offset: u64, log_offset: u64, store_timestamp: i64) {
    put(record, at::QUEUE_OFFSET, queue_offset.to_be_bytes());
    put(record, at::LOG_OFFSET, log_offset.to_be_bytes());
    // The bit lies in the last byte of the flag.
    let is_born_v6 = i32::from(record[at::SYS_FLAG + 3]) & sys_flag::BORN_HOST_V6 != 0;
    let store_timestamp_at = at::STORE_TIMESTAMP + if is_born_v6 { at::V6_EXTRA } else { 0 };
    put(record, store_timestamp_at, store_timestamp.to_be_bytes());
}

/// The queue offset of an encoded record, without a look at the rest of it.
pub fn queue_offset(record: &[u8]) -> Option<u64> {
    let (bytes, _) = record.get(at::QUEUE_OFFSET..)?.split_first_chunk()?;
    Some(u64::from_be_bytes(*bytes))
}

/// The last property of a record that is a batch, before [`stamp_inner_base`] has written the offset of its first message there. RocketMQ
/// writes as many digits as the number has; it reads leading zeros all the same.
pub const INNER_BASE_PLACE: &str = "INNER_BASE\u{1}0000000000000000000\u{2}";
/// Digits of the largest i64.
const INNER_BASE_DIGITS: usize = 19;

/// Fills in the offset of a batch's first message, in a record that ends with [`INNER_BASE_PLACE`]. Under the lock of the log.
///
/// # Panics
/// If the record is shorter than that.
pub fn stamp_inner_base(record: &mut [u8], base: u64) {
    let end = record.len() - 1;
    let mut rest = base;
    for digit in record[end - INNER_BASE_DIGITS..end].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// What stands at the beginning of a buffer of the log.
#[derive(Clone, Copy, Debug)]
pub enum Scanned<'a> {
    /// A whole record.
    Record(RecordView<'a>),
    /// The rest of the file is not used: `bytes` from here to its end.
    Blank {
        /// As the blank itself says.
        bytes: usize,
    },
    /// Zeros: nothing was ever written here; or less than the record that begins here.
    Nothing,
}

/// Why bytes of the log are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Corrupt {
    /// Neither a record nor a blank nor zeros.
    #[error("magic code {0:#010x} is neither a record's nor a blank's")]
    Magic(u32),
    /// A length that cannot be.
    #[error("{what} of {length} bytes in a record of {total_bytes}")]
    Length {
        /// Of what.
        what: &'static str,
        /// As stated.
        length: i64,
        /// As the record states of itself.
        total_bytes: usize,
    },
    /// The body is not the one that was written.
    #[error("body CRC {found:#x} is not {stated:#x}")]
    Crc {
        /// As stated.
        stated: u32,
        /// As computed.
        found: u32,
    },
    /// The body is, the topic or the properties are not. See [`RecordView::is_torn`].
    #[error("bytes of the topic or of the properties never came to the device")]
    Torn,
}

/// The least that a device writes as one: after a loss of power a sector is as it was, or as it was
/// to be.
const SECTOR_BYTES: usize = 512;

/// In front of the properties.
const PROPERTIES_LENGTH_BYTES: usize = 2;

/// Whether of bytes at that log offset all are zeros that one sector has.
fn lacks_share(at: usize, bytes: &[u8]) -> bool {
    let (first, rest) = bytes.split_at(bytes.len().min(SECTOR_BYTES - at % SECTOR_BYTES));
    let is_missing = |share: &[u8]| !share.is_empty() && share.iter().all(|byte| *byte == 0);
    is_missing(first) || rest.chunks(SECTOR_BYTES).any(is_missing)
}

/// Reads the record at the beginning of `buffer`.
pub fn scan(buffer: &[u8], check_crc: bool) -> Result<Scanned<'_>, Corrupt> {
    let (Some(total), Some(magic)) = (word(buffer, at::TOTAL_SIZE), word(buffer, at::MAGIC_CODE)) else {
        return Ok(Scanned::Nothing);
    };
    let total_bytes = total as usize;
    let is_v2 = match magic {
        MAGIC_V1 => false,
        MAGIC_V2 => true,
        MAGIC_BLANK if total_bytes < BLANK_BYTES => {
            return Err(Corrupt::Length { what: "blank", length: i64::from(total), total_bytes });
        }
        MAGIC_BLANK => return Ok(Scanned::Blank { bytes: total_bytes }),
        0 if total == 0 => return Ok(Scanned::Nothing),
        other => return Err(Corrupt::Magic(other)),
    };
    if total_bytes < RECORD_BYTES_MIN || total > i32::MAX as u32 {
        return Err(Corrupt::Length { what: "record", length: i64::from(total), total_bytes });
    }
    let Some(bytes) = buffer.get(..total_bytes) else { return Ok(Scanned::Nothing) };

    let flag = word(bytes, at::SYS_FLAG).unwrap_or_default() as i32;
    let born_extra = if flag & sys_flag::BORN_HOST_V6 != 0 { at::V6_EXTRA } else { 0 };
    let store_extra = if flag & sys_flag::STORE_HOST_V6 != 0 { at::V6_EXTRA } else { 0 };
    let mut parts = Parts { bytes, at: at::BODY_SIZE + born_extra + store_extra };
    let body = parts.part::<4>("body")?;
    let topic = if is_v2 { parts.part::<2>("topic")? } else { parts.part::<1>("topic")? };
    let properties = parts.part::<2>("properties")?;
    if parts.at != total_bytes {
        return Err(parts.bad("record", parts.at as i64));
    }
    let view = RecordView {
        bytes,
        born_extra: born_extra as u8,
        tail_extra: (born_extra + store_extra) as u8,
        body: (body.0, body.1),
        topic: std::str::from_utf8(&bytes[topic.0..topic.1]).unwrap_or_default(),
        properties: &bytes[properties.0..properties.1],
    };
    if check_crc {
        let (stated, found) = (view.body_crc(), crc32(view.body()));
        // Apache writes no CRC for an empty body.
        if stated != found && !view.body().is_empty() {
            return Err(Corrupt::Crc { stated, found });
        }
    }
    Ok(Scanned::Record(view))
}

fn word(buffer: &[u8], at: usize) -> Option<u32> {
    buffer.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

struct Parts<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parts<'_> {
    /// The range of a part whose length is stated in `N` bytes in front of it.
    fn part<const N: usize>(&mut self, what: &'static str) -> Result<(usize, usize), Corrupt> {
        let Some(stated) = self.bytes.get(self.at..self.at + N) else { return Err(self.bad(what, -1)) };
        let length = stated.iter().fold(0u64, |length, byte| length << 8 | u64::from(*byte)) as usize;
        let start = self.at + N;
        let end = start + length;
        if end > self.bytes.len() {
            return Err(self.bad(what, length as i64));
        }
        self.at = end;
        Ok((start, end))
    }

    fn bad(&self, what: &'static str, length: i64) -> Corrupt {
        Corrupt::Length { what, length, total_bytes: self.bytes.len() }
    }
}

/// A whole record, read where it lies.
#[derive(Clone, Copy)]
pub struct RecordView<'a> {
    bytes: &'a [u8],
    born_extra: u8,
    tail_extra: u8,
    body: (usize, usize),
    topic: &'a str,
    /// Apache writes the properties inside a batch as they come, so bytes that are no text are no damage.
    properties: &'a [u8],
}

#[allow(missing_docs, reason = "the names are those of the table above")]
impl<'a> RecordView<'a> {
    /// The record itself.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn total_size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a loss of power has kept a part of the topic or of the properties from the device.
    ///
    /// The record has a checksum of its body only, and what never came to the device reads as zeros.
    /// A sector's whole share of a topic or of properties is no value, and no properties that a broker
    /// stores end with a zero. The record is taken to lie where it says.
    pub fn is_torn(&self) -> bool {
        if self.properties.last() == Some(&0) {
            return true;
        }
        let end = (self.log_offset() as usize).wrapping_add(self.bytes.len());
        let properties_at = end.wrapping_sub(self.properties.len());
        let topic_at = properties_at.wrapping_sub(PROPERTIES_LENGTH_BYTES + self.topic.len());
        lacks_share(topic_at, self.topic.as_bytes()) || lacks_share(properties_at, self.properties)
    }

    pub fn is_v2(&self) -> bool {
        self.u32(at::MAGIC_CODE) == MAGIC_V2
    }

    pub fn body_crc(&self) -> u32 {
        self.u32(at::BODY_CRC)
    }

    pub fn queue_id(&self) -> i32 {
        self.u32(at::QUEUE_ID) as i32
    }

    pub fn flag(&self) -> i32 {
        self.u32(at::FLAG) as i32
    }

    pub fn queue_offset(&self) -> u64 {
        self.u64(at::QUEUE_OFFSET)
    }

    pub fn log_offset(&self) -> u64 {
        self.u64(at::LOG_OFFSET)
    }

    pub fn sys_flag(&self) -> i32 {
        self.u32(at::SYS_FLAG) as i32
    }

    pub fn born_timestamp(&self) -> i64 {
        self.u64(at::BORN_TIMESTAMP) as i64
    }

    pub fn born_host(&self) -> SocketAddr {
        self.host(at::BORN_HOST, self.sys_flag() & sys_flag::BORN_HOST_V6 != 0)
    }

    pub fn store_timestamp(&self) -> i64 {
        self.u64(at::STORE_TIMESTAMP + usize::from(self.born_extra)) as i64
    }

    pub fn store_host(&self) -> SocketAddr {
        let at = at::STORE_HOST + usize::from(self.born_extra);
        self.host(at, self.sys_flag() & sys_flag::STORE_HOST_V6 != 0)
    }

    pub fn reconsume_times(&self) -> i32 {
        self.u32(at::RECONSUME_TIMES + usize::from(self.tail_extra)) as i32
    }

    pub fn prepared_offset(&self) -> i64 {
        self.u64(at::PREPARED_OFFSET + usize::from(self.tail_extra)) as i64
    }

    pub fn body(&self) -> &'a [u8] {
        &self.bytes[self.body.0..self.body.1]
    }

    /// The topic; empty when it is not UTF-8, which no topic's name is.
    pub fn topic(&self) -> &'a str {
        self.topic
    }

    /// The properties, with U+FFFD for what is not UTF-8.
    pub fn properties(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.properties)
    }

    /// The properties as they stand there.
    pub fn properties_bytes(&self) -> &'a [u8] {
        self.properties
    }

    /// The value of one property; none either when it is not UTF-8.
    pub fn property(&self, name: &str) -> Option<&'a str> {
        properties::get_in_bytes(self.properties, name).and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The code of its tags, as a consume queue holds it.
    pub fn tags_code(&self) -> i64 {
        self.property(properties::name::TAGS).map_or(0, tags::code)
    }

    /// How many messages the record holds: more than one if it is a batch ([`sys_flag::INNER_BATCH`]) of a BatchCQ topic, where
    /// `INNER_NUM` says it. RocketMQ takes what that does not say for one message.
    pub fn message_count(&self) -> u16 {
        if self.sys_flag() & sys_flag::INNER_BATCH == 0 {
            return 1;
        }
        let stated = self.property(properties::name::INNER_NUM).and_then(|count| count.parse::<i16>().ok());
        stated.and_then(|count| u16::try_from(count).ok()).filter(|count| *count > 0).unwrap_or(1)
    }

    /// The draft that would become this record again.
    pub fn to_draft(&self) -> RecordDraft<'a> {
        RecordDraft {
            topic: self.topic,
            queue_id: self.queue_id(),
            flag: self.flag(),
            sys_flag: self.sys_flag(),
            born_timestamp: self.born_timestamp(),
            born_host: self.born_host(),
            store_host: self.store_host(),
            reconsume_times: self.reconsume_times(),
            prepared_offset: self.prepared_offset(),
            body: self.body(),
            properties: self.properties,
        }
    }

    fn u32(&self, at: usize) -> u32 {
        word(self.bytes, at).unwrap_or_default()
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    fn host(&self, at: usize, is_v6: bool) -> SocketAddr {
        if is_v6 {
            let high = u128::from(self.u64(at)) << 64;
            let ip = Ipv6Addr::from(high | u128::from(self.u64(at + 8)));
            return SocketAddr::new(ip.into(), self.u32(at + 16) as u16);
        }
        SocketAddr::new(Ipv4Addr::from(self.u32(at)).into(), self.u32(at + 4) as u16)
    }
}

impl std::fmt::Debug for RecordView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordView")
            .field("topic", &self.topic)
            .field("queue_id", &self.queue_id())
            .field("queue_offset", &self.queue_offset())
            .field("log_offset", &self.log_offset())
            .field("total_size", &self.total_size())
            .finish()
    }
}
