//! Sends that travel together (code 30001): one request for messages and batches of several topics and queues. Our own, not RocketMQ's.
//!
//! What the sends of a client have in common stands once, in the header ([`SendTogether`](crate::request::SendTogether)). The body of
//! the request is its parts, a send each; all numbers are big-endian:
//!
//! ```text
//! length i32 of what follows · queueId i32 · sysFlag i32 · flag i32 · kind u8 (0 message, 1 batch)
//! · topic u8 + n · properties i32 + n · body: the rest
//! ```
//!
//! The body of the answer is the host of the log, for message ids, and an answer a part, in any order:
//!
//! ```text
//! address u8 (4 or 16) + n · port u16
//! length i32 of what follows · number of the part i32 · code i32 · queueId i32 · queueOffset i64 · records i32 + 8n (log offsets)
//! · remark i32 (-1: none) + n · handle i32 (-1: none) + n
//! ```

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// The length of a part, and what has always the same size behind it.
const LENGTH_BYTES: usize = 4;
const PART_FIXED_BYTES: usize = 4 + 4 + 4 + 1;

/// A send within a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Which queue; negative: any.
    pub queue_id: i32,
    /// See [`crate::sys_flag`].
    pub sys_flag: i32,
    /// The user's own value.
    pub flag: i32,
    /// The body is a batch.
    pub is_batch: bool,
    /// Where to.
    pub topic: &'a str,
    /// See [`crate::properties`].
    pub properties: &'a str,
    /// The message's body, as bytes of the request's body.
    pub body: Range<usize>,
}

/// What became of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAnswer<'a> {
    /// Which part, from 0.
    pub number: usize,
    /// As in the answer to a single send, see [`crate::code::ResponseCode`].
    pub code: i32,
    /// Its queue.
    pub queue_id: i32,
    /// Its place in the queue; of a batch, the first one's.
    pub queue_offset: i64,
    /// Where its records lie in the log: 8 bytes each, see [`PartAnswer::places`].
    records: &'a [u8],
    /// As in the answer to a single send.
    pub remark: Option<&'a str>,
    /// Takes a message back that waits for its time.
    pub recall_handle: Option<&'a str>,
}

impl PartAnswer<'_> {
    /// The log offset of each of its records.
    pub fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.records.as_chunks::<8>().0.iter().map(|place| u64::from_be_bytes(*place))
    }
}

/// Why a body cannot be taken apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TogetherError {
    /// A length reaches beyond what is there, or is negative.
    #[error("part {number}: {what} has length {length}, and {room} bytes are left")]
    BadLength {
        /// Which part, from 0.
        number: usize,
        /// Of what.
        what: &'static str,
        /// As stated, in bytes.
        length: i64,
        /// As there is, in bytes.
        room: usize,
    },
    /// A number that means nothing.
    #[error("part {number}: {what} is {value}; {expected}")]
    BadValue {
        /// Which part, from 0.
        number: usize,
        /// Of what.
        what: &'static str,
        /// As stated.
        value: i64,
        /// What may stand there.
        expected: &'static str,
    },
    /// Text that is not UTF-8.
    #[error("part {number}: {what} is not UTF-8")]
    NotUtf8 {
        /// Which part, from 0.
        number: usize,
        /// What is not.
        what: &'static str,
    },
    /// A text that its length cannot state.
    #[error("{what} has {length} bytes; the limit is {limit}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its bytes.
        length: usize,
        /// How many there may be.
        limit: usize,
    },
}

/// Bytes of a part with these texts and so long a body, its length included.
pub fn part_bytes(topic: &str, properties: &str, body_bytes: usize) -> usize {
    LENGTH_BYTES + PART_FIXED_BYTES + 1 + topic.len() + LENGTH_BYTES + properties.len() + body_bytes
}

/// Appends a part; `part.body` is not looked at, `body` is what it holds. After an error nothing is appended.
pub fn put_part(out: &mut Vec<u8>, part: &Part<'_>, body: &[u8]) -> Result<(), TogetherError> {
    let too_long = |what, length, limit| TogetherError::TooLong { what, length, limit };
    let topic_bytes =
        u8::try_from(part.topic.len()).map_err(|_| too_long("the topic", part.topic.len(), usize::from(u8::MAX)))?;
    let length = part_bytes(part.topic, part.properties, body.len()) - LENGTH_BYTES;
    let length = i32::try_from(length).map_err(|_| too_long("the part", length, i32::MAX as usize))?;
    out.reserve(LENGTH_BYTES + length as usize);
    put_i32(out, length);
    put_i32(out, part.queue_id);
    put_i32(out, part.sys_flag);
    put_i32(out, part.flag);
    out.push(u8::from(part.is_batch));
    out.push(topic_bytes);
    out.extend_from_slice(part.topic.as_bytes());
    // Shorter than the part, whose length was stated.
    put_i32(out, part.properties.len() as i32);
    out.extend_from_slice(part.properties.as_bytes());
    out.extend_from_slice(body);
    Ok(())
}

/// How many parts a request's body holds, by their lengths alone: what is in each is for [`parts`] to judge.
pub fn count(body: &[u8]) -> Result<usize, TogetherError> {
    let mut rest = Rest { bytes: body, number: 0 };
    while !rest.bytes.is_empty() {
        let length = rest.i32("part")?;
        rest.take("part", i64::from(length))?;
        rest.number += 1;
    }
    Ok(rest.number)
}

/// The parts of a request's body, in their order. A part that cannot be read is an error, and the next one follows; where its length is
/// wrong nothing follows.
pub fn parts(body: &[u8]) -> impl Iterator<Item = Result<Part<'_>, TogetherError>> {
    let mut rest = Rest { bytes: body, number: 0 };
    std::iter::from_fn(move || {
        let (part, at) = rest.next("part", body.len())?;
        Some(part.and_then(|part| read_part(part, at)))
    })
}

fn read_part(mut part: Rest<'_>, at: usize) -> Result<Part<'_>, TogetherError> {
    let end = at + part.bytes.len();
    let (queue_id, sys_flag, flag) = (part.i32("queueId")?, part.i32("sysFlag")?, part.i32("flag")?);
    let is_batch = match part.u8("kind")? {
        0 => false,
        1 => true,
        other => return Err(part.bad("kind", i64::from(other), "0 is a message, 1 a batch")),
    };
    let topic_bytes = part.u8("topic")?;
    let topic = part.text("topic", i64::from(topic_bytes))?;
    let properties_bytes = part.i32("properties")?;
    let properties = part.text("properties", i64::from(properties_bytes))?;
    Ok(Part { queue_id, sys_flag, flag, is_batch, topic, properties, body: end - part.bytes.len()..end })
}

/// Begins the body of an answer.
pub fn put_host(out: &mut Vec<u8>, host: SocketAddr) {
    match host.ip().to_canonical() {
        IpAddr::V4(ip) => {
            out.push(4);
            out.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            out.push(16);
            out.extend_from_slice(&ip.octets());
        }
    }
    out.extend_from_slice(&host.port().to_be_bytes());
}

/// Appends what became of a part; `places`: the log offsets of its records.
pub fn put_answer(out: &mut Vec<u8>, answer: &PartAnswer<'_>, places: impl Iterator<Item = u64>) {
    let start = out.len();
    put_i32(out, 0);
    // Counts of parts and records, and lengths of what we say, are far below 2^31.
    put_i32(out, answer.number as i32);
    put_i32(out, answer.code);
    put_i32(out, answer.queue_id);
    out.extend_from_slice(&answer.queue_offset.to_be_bytes());
    let counted = out.len();
    put_i32(out, 0);
    for place in places {
        out.extend_from_slice(&place.to_be_bytes());
    }
    let records = (out.len() - counted - 4) / 8;
    out[counted..counted + 4].copy_from_slice(&(records as i32).to_be_bytes());
    put_opt(out, answer.remark);
    put_opt(out, answer.recall_handle);
    let length = out.len() - start - LENGTH_BYTES;
    out[start..start + LENGTH_BYTES].copy_from_slice(&(length as i32).to_be_bytes());
}

impl<'a> PartAnswer<'a> {
    /// Of a part that is not stored.
    pub fn refused(number: usize, code: i32, remark: &'a str) -> PartAnswer<'a> {
        PartAnswer { remark: Some(remark), ..PartAnswer::stored(number, code, -1, -1) }
    }

    /// The same, with a remark and the handle that takes the message back.
    pub fn saying(self, remark: Option<&'a str>, recall_handle: Option<&'a str>) -> PartAnswer<'a> {
        PartAnswer { remark, recall_handle, ..self }
    }

    /// Of one that is. Its records are said when it is written.
    pub fn stored(number: usize, code: i32, queue_id: i32, queue_offset: i64) -> PartAnswer<'a> {
        PartAnswer { number, code, queue_id, queue_offset, records: &[], remark: None, recall_handle: None }
    }
}

/// The host and the answers that the body of an answer holds, in any order. After an error nothing follows.
pub fn answers(
    body: &[u8],
) -> Result<(SocketAddr, impl Iterator<Item = Result<PartAnswer<'_>, TogetherError>>), TogetherError> {
    let mut rest = Rest { bytes: body, number: 0 };
    let ip: IpAddr = match rest.u8("address")? {
        4 => rest.fixed::<4>("address")?.into(),
        16 => rest.fixed::<16>("address")?.into(),
        other => return Err(rest.bad("address", i64::from(other), "it has 4 or 16 bytes")),
    };
    let host = SocketAddr::new(ip, u16::from_be_bytes(rest.fixed("port")?));
    let answers = std::iter::from_fn(move || {
        let (answer, _) = rest.next("answer", body.len())?;
        let answer = answer.and_then(read_answer);
        if answer.is_err() {
            rest.bytes = &[];
        }
        Some(answer)
    });
    Ok((host, answers))
}

fn read_answer(mut answer: Rest<'_>) -> Result<PartAnswer<'_>, TogetherError> {
    let number = answer.i32("number")?;
    let number = usize::try_from(number).map_err(|_| answer.bad("number", i64::from(number), "parts count from 0"))?;
    let (code, queue_id) = (answer.i32("code")?, answer.i32("queueId")?);
    let queue_offset = i64::from_be_bytes(answer.fixed("queueOffset")?);
    let records = i64::from(answer.i32("records")?);
    let records = answer.take("records", records * 8)?;
    let (remark, recall_handle) = (answer.opt_text("remark")?, answer.opt_text("handle")?);
    Ok(PartAnswer { number, code, queue_id, queue_offset, records, remark, recall_handle })
}

fn put_i32(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_opt(out: &mut Vec<u8>, text: Option<&str>) {
    put_i32(out, text.map_or(-1, |text| text.len() as i32));
    out.extend_from_slice(text.unwrap_or_default().as_bytes());
}

/// What is not read yet.
struct Rest<'a> {
    bytes: &'a [u8],
    /// Which part it is of, or the next one.
    number: usize,
}

impl<'a> Rest<'a> {
    /// The next thing with a length before it, and where it begins in a body of `body_bytes` bytes; nothing at the end, and behind a wrong
    /// length.
    fn next(&mut self, what: &'static str, body_bytes: usize) -> Option<(Result<Rest<'a>, TogetherError>, usize)> {
        if self.bytes.is_empty() {
            return None;
        }
        let number = self.number;
        let length = self.i32(what);
        let at = body_bytes - self.bytes.len();
        let taken = length.and_then(|length| self.take(what, i64::from(length)));
        match &taken {
            Ok(_) => self.number += 1,
            Err(_) => self.bytes = &[],
        }
        Some((taken.map(|bytes| Rest { bytes, number }), at))
    }

    fn take(&mut self, what: &'static str, length: i64) -> Result<&'a [u8], TogetherError> {
        let taken = usize::try_from(length).ok().and_then(|length| self.bytes.split_at_checked(length));
        let Some((taken, rest)) = taken else {
            return Err(TogetherError::BadLength { number: self.number, what, length, room: self.bytes.len() });
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], TogetherError> {
        let room = self.bytes.len();
        let Some((taken, rest)) = self.bytes.split_first_chunk() else {
            return Err(TogetherError::BadLength { number: self.number, what, length: N as i64, room });
        };
        self.bytes = rest;
        Ok(*taken)
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, TogetherError> {
        self.fixed(what).map(i32::from_be_bytes)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, TogetherError> {
        self.fixed(what).map(u8::from_be_bytes)
    }

    fn text(&mut self, what: &'static str, length: i64) -> Result<&'a str, TogetherError> {
        let number = self.number;
        let bytes = self.take(what, length)?;
        std::str::from_utf8(bytes).map_err(|_| TogetherError::NotUtf8 { number, what })
    }

    fn opt_text(&mut self, what: &'static str) -> Result<Option<&'a str>, TogetherError> {
        match self.i32(what)? {
            -1 => Ok(None),
            length => self.text(what, i64::from(length)).map(Some),
        }
    }

    fn bad(&self, what: &'static str, value: i64, expected: &'static str) -> TogetherError {
        TogetherError::BadValue { number: self.number, what, value, expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part<'a>(topic: &'a str, properties: &'a str) -> Part<'a> {
        Part { queue_id: 3, sys_flag: 1, flag: -7, is_batch: true, topic, properties, body: 0..0 }
    }

    fn two() -> Vec<u8> {
        let mut out = Vec::new();
        put_part(&mut out, &part("Orders", "TAGS\u{1}A\u{2}"), b"one").unwrap();
        put_part(&mut out, &Part { is_batch: false, queue_id: -1, ..part("ü", "") }, b"").unwrap();
        out
    }

    #[test]
    fn parts_come_back_as_they_were_put_in() {
        let body = two();
        assert_eq!(count(&body), Ok(2));
        let read: Vec<Part<'_>> = parts(&body).map(Result::unwrap).collect();
        assert_eq!(&body[read[0].body.clone()], b"one");
        assert_eq!(read[0], Part { body: read[0].body.clone(), ..part("Orders", "TAGS\u{1}A\u{2}") });
        assert_eq!((read[1].topic, read[1].queue_id, read[1].body.len()), ("ü", -1, 0));
        assert_eq!(part_bytes("ü", "", 0), body.len() - read[0].body.end);
    }

    #[test]
    fn a_length_that_does_not_fit_is_named_and_nothing_follows() {
        let body = two();
        let cut = &body[..body.len() - 1];
        let said = count(cut).unwrap_err().to_string();
        assert_eq!(said, "part 1: part has length 20, and 19 bytes are left");
        assert_eq!(parts(cut).map(|part| part.is_ok()).collect::<Vec<_>>(), [true, false]);
        assert_eq!(count(&[0, 0]).unwrap_err().to_string(), "part 0: part has length 4, and 2 bytes are left");
        assert_eq!(
            count(&(-1_i32).to_be_bytes()).unwrap_err().to_string(),
            "part 0: part has length -1, and 0 bytes are left"
        );
    }

    #[test]
    fn a_part_that_cannot_be_read_leaves_those_behind_it_alone() {
        let mut body = two();
        // The topic reaches beyond its part.
        body[LENGTH_BYTES + PART_FIXED_BYTES] = 200;
        let read: Vec<_> = parts(&body).collect();
        let said = read[0].as_ref().unwrap_err().to_string();
        assert!(said.starts_with("part 0: topic has length 200, and "), "{said}");
        assert!(read[1].is_ok() && count(&body) == Ok(2));
        let mut body = two();
        body[LENGTH_BYTES + PART_FIXED_BYTES - 1] = 2;
        assert_eq!(
            parts(&body).next().unwrap().unwrap_err().to_string(),
            "part 0: kind is 2; 0 is a message, 1 a batch"
        );
        let mut body = two();
        body[LENGTH_BYTES + PART_FIXED_BYTES + 1] = 0xff;
        assert_eq!(parts(&body).next().unwrap().unwrap_err().to_string(), "part 0: topic is not UTF-8");
    }

    #[test]
    fn a_topic_that_its_length_cannot_state_is_refused() {
        let mut out = Vec::new();
        let said = put_part(&mut out, &part(&"t".repeat(256), ""), b"").unwrap_err().to_string();
        assert_eq!((said.as_str(), out.len()), ("the topic has 256 bytes; the limit is 255", 0));
    }

    #[test]
    fn answers_come_back_as_they_were_put_in_for_hosts_of_either_kind() {
        for host in ["127.0.0.1:10911", "[::1]:7"] {
            let mut body = Vec::new();
            put_host(&mut body, host.parse().unwrap());
            put_answer(&mut body, &PartAnswer::refused(1, 17, "no"), std::iter::empty());
            let handle = PartAnswer { recall_handle: Some("h"), ..PartAnswer::stored(0, 0, 2, 9) };
            put_answer(&mut body, &handle, [5, u64::MAX].into_iter());
            let (said, read) = answers(&body).unwrap();
            let read: Vec<_> = read.map(Result::unwrap).collect();
            assert_eq!((said.to_string().as_str(), read.len()), (host, 2));
            assert_eq!((read[0].number, read[0].code, read[0].remark), (1, 17, Some("no")));
            assert_eq!((read[1].number, read[1].queue_id, read[1].queue_offset), (0, 2, 9));
            assert_eq!(read[1].places().collect::<Vec<_>>(), [5, u64::MAX]);
            assert_eq!((read[1].remark, read[1].recall_handle), (None, Some("h")));
            for length in 1..body.len() {
                // Cut anywhere, something is missing and nothing is made up.
                let whole = answers(&body[..length]).map_or(0, |(_, read)| read.filter(Result::is_ok).count());
                assert!(whole < 2);
            }
        }
    }
}
