//! How a connection begins: the slave's hello, and the master's answer.

use protocol::LogOffset;

use super::{
    ANSWER, END, Fields, GREETING_BYTES_MAX, HEADER_BYTES, Header, Identity, MAGIC, Misread, NAME_BYTES_MAX,
    WORDS_BYTES_MAX, fill, framed, words,
};
use crate::wire::secret::{Nonce, PROOF_BYTES, Proof};

/// Bytes in front of a greeting's fields.
const LENGTH_BYTES: usize = 4;
/// The longest answer to a hello.
pub(super) const ANSWER_BYTES_MAX: usize = LENGTH_BYTES + GREETING_BYTES_MAX + 1 + PROOF_BYTES;

/// What either side says of itself first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The version that it speaks.
    pub version: u16,
    /// Which broker it is.
    pub who: Identity,
    /// Bytes of a file of its log (`mappedFileSizeCommitLog`).
    pub segment_bytes: u64,
    /// Where its log begins.
    pub min: LogOffset,
    /// Where its log ends.
    pub end: LogOffset,
    /// Used for this connection only.
    pub nonce: Nonce,
}

impl Greeting {
    /// Its bytes, in whose place they stand. A name of more than [`NAME_BYTES_MAX`] is not sent.
    pub fn encode(&self) -> Result<Vec<u8>, Misread> {
        let mut fields = Vec::with_capacity(256);
        fields.extend(self.who.broker_id.to_be_bytes());
        for number in [self.segment_bytes, self.min.0, self.end.0] {
            fields.extend(number.to_be_bytes());
        }
        fields.extend(self.nonce);
        for (what, name) in [("the name of the cluster", &self.who.cluster), ("the name of the set", &self.who.set)] {
            let too_long = Misread::Length { what, bytes: name.len(), limit: NAME_BYTES_MAX };
            let bytes = u16::try_from(name.len()).ok().filter(|bytes| usize::from(*bytes) <= NAME_BYTES_MAX);
            fields.extend(bytes.ok_or(too_long)?.to_be_bytes());
            fields.extend(name.as_bytes());
        }
        // Two names of the longest kind leave room.
        let bytes = u16::try_from(fields.len()).unwrap_or(u16::MAX);
        Ok([self.version.to_be_bytes().as_slice(), &bytes.to_be_bytes(), &fields].concat())
    }

    /// The greeting that these bytes begin with, and how long it is.
    fn decode(bytes: &[u8]) -> Result<(Greeting, usize), Misread> {
        let mut head = Fields { what: "a greeting", left: bytes };
        let version = u16::from_be_bytes(head.chunk("its version")?);
        let stated = usize::from(u16::from_be_bytes(head.chunk("its length")?));
        let mut fields = Fields { what: "a greeting", left: head.take(stated, "its fields")? };
        let broker_id = i64::from_be_bytes(fields.chunk("the broker's id")?);
        let segment_bytes = u64::from_be_bytes(fields.chunk("the size of files")?);
        let (min, end) = (fields.offset("the begin of the log")?, fields.offset("the end of the log")?);
        let nonce = fields.chunk("the nonce")?;
        let (cluster, set) = (fields.name("cluster")?, fields.name("set")?);
        let who = Identity { cluster, set, broker_id };
        Ok((Greeting { version, who, segment_bytes, min, end, nonce }, LENGTH_BYTES + stated))
    }
}

/// A hello, as it came: proofs are of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What it says.
    pub greeting: Greeting,
    /// All of it.
    pub bytes: Vec<u8>,
}

impl Hello {
    /// To be sent.
    pub fn new(greeting: Greeting) -> Result<Hello, Misread> {
        let bytes = [MAGIC.as_slice(), &greeting.encode()?].concat();
        Ok(Hello { greeting, bytes })
    }
}

/// Whether a slave that begins with this byte speaks this stream, and not the plain one.
pub fn begins_hello(first: u8) -> bool {
    first >= 0x80
}

/// Gathers a hello, which comes in any parts.
#[derive(Debug, Default)]
pub struct Hellos {
    bytes: Vec<u8>,
}

impl Hellos {
    /// The hello, once it is whole; `bytes` are shortened by what is taken of them.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Hello>, Misread> {
        const HEAD: usize = MAGIC.len() + LENGTH_BYTES;
        let is_headed = fill(&mut self.bytes, bytes, HEAD);
        let begun = self.bytes.len().min(MAGIC.len());
        if self.bytes[..begun] != MAGIC[..begun] {
            return Err(Misread::Magic);
        }
        if !is_headed {
            return Ok(None);
        }
        let stated = usize::from(u16::from_be_bytes([self.bytes[HEAD - 2], self.bytes[HEAD - 1]]));
        if stated > GREETING_BYTES_MAX {
            return Err(Misread::Length { what: "a hello", bytes: stated, limit: GREETING_BYTES_MAX });
        }
        if !fill(&mut self.bytes, bytes, HEAD + stated) {
            return Ok(None);
        }
        let (greeting, _) = Greeting::decode(&self.bytes[MAGIC.len()..])?;
        Ok(Some(Hello { greeting, bytes: std::mem::take(&mut self.bytes) }))
    }
}

/// The frame with which a master answers a hello. `greeting`: as [`Greeting::encode`] says; proofs are of these bytes.
pub fn answer(greeting: &[u8], proof: Option<&Proof>) -> Vec<u8> {
    let proof: &[u8] = proof.map_or(&[], |proof| proof);
    // 0 or 32.
    framed(ANSWER, &[greeting, &[proof.len() as u8], proof].concat())
}

/// The answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the master says of itself.
    pub greeting: Greeting,
    /// The greeting's bytes, of which proofs are.
    pub bytes: Vec<u8>,
    /// That it has the secret.
    pub proof: Option<Proof>,
}

/// What a master says to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// It goes on.
    Goes(Answer),
    /// It ends the connection.
    Ends(String),
}

/// Gathers the answer to a hello.
#[derive(Debug, Default)]
pub struct Answers {
    bytes: Vec<u8>,
}

impl Answers {
    /// The answer, once it is whole; `bytes` are shortened by what is taken of them.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Answered>, Misread> {
        if !fill(&mut self.bytes, bytes, HEADER_BYTES) {
            return Ok(None);
        }
        let Header { kind, body_bytes, .. } = Header::decode(&self.bytes[..])?;
        let limit = match kind {
            ANSWER => ANSWER_BYTES_MAX,
            END => WORDS_BYTES_MAX,
            _ => return Err(Misread::Kind { what: "a frame", kind }),
        };
        if body_bytes > limit {
            return Err(Misread::Length { what: "the answer to a hello", bytes: body_bytes, limit });
        }
        if !fill(&mut self.bytes, bytes, HEADER_BYTES + body_bytes) {
            return Ok(None);
        }
        let body = &self.bytes[HEADER_BYTES..];
        if kind == END {
            return Ok(Some(Answered::Ends(words(body))));
        }
        let (greeting, length) = Greeting::decode(body)?;
        let mut fields = Fields { what: "the answer to a hello", left: body };
        let bytes = fields.take(length, "the greeting")?.to_vec();
        let [proof_bytes] = fields.chunk("the length of the proof")?;
        let proof = match usize::from(proof_bytes) {
            0 => None,
            PROOF_BYTES => Some(fields.chunk("the proof")?),
            bytes => return Err(Misread::Length { what: "a proof", bytes, limit: PROOF_BYTES }),
        };
        Ok(Some(Answered::Goes(Answer { greeting, bytes, proof })))
    }
}
