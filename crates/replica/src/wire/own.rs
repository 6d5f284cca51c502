//! The stream of the log between two brokers of Gantry (version 1).
//!
//! | from | what | bytes |
//! |---|---|---|
//! | slave | hello | [`MAGIC`], a greeting |
//! | either | greeting | version 2, bytes that follow 2; broker id 8, bytes of a file 8, begin and end of the log 8 each, nonce 32, cluster and set (each: length 2, UTF-8) |
//! | master | frame | kind 1, flags 1, log offset 8, bytes of the body 4; the body |
//! | slave | note | kind 1, bytes of the body 1; the body |
//!
//! Frames: 1 the log, 2 a heartbeat (no body; the log offset is that of the next byte), 3 the end (words for people), 4 the answer to a hello (a greeting, then
//! the length of a proof 1, and the proof). Notes: 1 a proof, 2 what the slave has (written 8, flushed 8), 3 it leaves (a reason 1). A master sends
//! nothing of the log before the first note 2.
//!
//! What later versions add: both speak the lower one of the two versions. What stands in a greeting, a note 2 or a note 3 behind what is known is passed
//! over, and so are frames and notes of a kind from 128 on, and flags. A kind below that ends the connection.
//!
//! All numbers are big-endian; log offsets are below 2^63. A length is checked before anything is kept of what it counts.

mod greeting;

use protocol::LogOffset;

use super::Gathered;
use super::secret::{Proof, Secret};

pub use greeting::{Answer, Answered, Answers, Greeting, Hello, Hellos, answer, begins_hello};

/// A hello begins with this.
pub const MAGIC: [u8; 8] = *b"\x9fGantry\n";
/// The version that this program speaks.
pub const VERSION: u16 = 1;
/// Bytes of a cluster's or a set's name.
pub const NAME_BYTES_MAX: usize = 512;
/// Bytes of a greeting behind its length: what is known takes half of it.
pub const GREETING_BYTES_MAX: usize = 2048;
/// Bytes in front of a body.
pub const HEADER_BYTES: usize = 14;
/// Bytes of a body of the log.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes of the words with which a master ends a connection.
pub const WORDS_BYTES_MAX: usize = 1024;

/// The body of a frame that is passed over.
const PASSED_BYTES_MAX: usize = BODY_BYTES_MAX;

const LOG: u8 = 1;
const HEARTBEAT: u8 = 2;
const END: u8 = 3;
const ANSWER: u8 = 4;
/// Kinds from here on may be passed over.
const PASSED_FROM: u8 = 128;
/// The slave has the master count what is on its device, so it says soon what is.
const ASKS_FOR_DEVICE: u8 = 1;

const PROOF: u8 = 1;
const HAS: u8 = 2;
const LEAVES: u8 = 3;

/// Bytes that are not of this stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    /// A first byte that no report has, and then something else than a hello.
    #[error("the first bytes are neither a log offset nor a hello")]
    Magic,
    /// More than there may be.
    #[error("{what} states {bytes} bytes, the limit is {limit}")]
    Length {
        /// What states it.
        what: &'static str,
        /// As stated.
        bytes: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Less than there has to be.
    #[error("{what} ends inside {field}")]
    Short {
        /// What ends.
        what: &'static str,
        /// What is cut.
        field: &'static str,
    },
    /// A name that is no text.
    #[error("the name of the {0} is not UTF-8")]
    Name(&'static str),
    /// A number that is no log offset.
    #[error("{what} states {number}, which is no log offset")]
    Offset {
        /// What states it.
        what: &'static str,
        /// As stated.
        number: u64,
    },
    /// Something that has no place here.
    #[error("{what} of the kind {kind} is not known, or has no place here")]
    Kind {
        /// A frame or a note.
        what: &'static str,
        /// As stated.
        kind: u8,
    },
}

/// Which broker it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `brokerClusterName`.
    pub cluster: String,
    /// `brokerName`.
    pub set: String,
    /// `brokerId`.
    pub broker_id: i64,
}

/// A broker of a set, as it shows itself on this stream.
#[derive(Clone, Debug)]
pub struct Member {
    /// Which broker it is.
    pub who: Identity,
    /// What the other side has to prove; none: nothing, and addresses are looked at.
    pub secret: Option<Secret>,
}

/// Bytes that are taken from the front.
struct Fields<'a> {
    what: &'static str,
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], Misread> {
        let (taken, left) = self.left.split_at_checked(bytes).ok_or(Misread::Short { what: self.what, field })?;
        self.left = left;
        Ok(taken)
    }

    fn chunk<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Misread> {
        let (taken, left) = self.left.split_first_chunk().ok_or(Misread::Short { what: self.what, field })?;
        self.left = left;
        Ok(*taken)
    }

    fn offset(&mut self, field: &'static str) -> Result<LogOffset, Misread> {
        let number = u64::from_be_bytes(self.chunk(field)?);
        offset(self.what, number)
    }

    fn name(&mut self, field: &'static str) -> Result<String, Misread> {
        let bytes = usize::from(u16::from_be_bytes(self.chunk(field)?));
        if bytes > NAME_BYTES_MAX {
            return Err(Misread::Length { what: "a name", bytes, limit: NAME_BYTES_MAX });
        }
        String::from_utf8(self.take(bytes, field)?.to_vec()).map_err(|_| Misread::Name(field))
    }
}

fn offset(what: &'static str, number: u64) -> Result<LogOffset, Misread> {
    let offset = i64::try_from(number).is_ok().then_some(LogOffset(number));
    offset.ok_or(Misread::Offset { what, number })
}

/// Takes from `bytes` what is missing to `wanted`. Whether that is all.
fn fill(to: &mut Vec<u8>, bytes: &mut &[u8], wanted: usize) -> bool {
    let (taken, rest) = bytes.split_at(wanted.saturating_sub(to.len()).min(bytes.len()));
    to.extend_from_slice(taken);
    *bytes = rest;
    to.len() >= wanted
}

/// The header in front of a body of the log; of 0 bytes: a heartbeat. `asks_for_device`: the master counts what is on the slave's device.
pub fn header(at: LogOffset, body_bytes: u32, asks_for_device: bool) -> [u8; HEADER_BYTES] {
    let kind = if body_bytes == 0 { HEARTBEAT } else { LOG };
    head(kind, if asks_for_device { ASKS_FOR_DEVICE } else { 0 }, at, body_bytes)
}

fn head(kind: u8, flags: u8, at: LogOffset, body_bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [kind, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[2..10].copy_from_slice(&at.0.to_be_bytes());
    header[10..].copy_from_slice(&body_bytes.to_be_bytes());
    header
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [head(kind, 0, LogOffset(0), bytes).as_slice(), body].concat()
}

/// The frame with which a master ends a connection: why, for people, cut to [`WORDS_BYTES_MAX`].
pub fn end(why: &str) -> Vec<u8> {
    framed(END, &why.as_bytes()[..why.floor_char_boundary(WORDS_BYTES_MAX)])
}

/// As text for a line of the log output, whatever bytes it is.
fn words(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The head of a frame.
struct Header {
    kind: u8,
    flags: u8,
    at: LogOffset,
    body_bytes: usize,
}

impl Header {
    fn decode(bytes: &[u8]) -> Result<Header, Misread> {
        let mut fields = Fields { what: "a frame", left: bytes };
        let [kind, flags] = fields.chunk("its kind")?;
        let at = fields.offset("its log offset")?;
        let body_bytes = u32::from_be_bytes(fields.chunk("its length")?) as usize;
        Ok(Header { kind, flags, at, body_bytes })
    }
}

/// A part of the stream of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A frame of the log begins, or a heartbeat.
    Header {
        /// The log offset of its first byte.
        at: LogOffset,
        /// Bytes of the body; 0: a heartbeat.
        body_bytes: u32,
        /// The master counts what is on the slave's device.
        asks_for_device: bool,
    },
    /// Bytes of the body, in order: the first ones, or those that follow.
    Body(&'a [u8]),
    /// The master ends the connection, and says why.
    End(String),
}

/// What is left of the frame that has begun.
#[derive(Debug)]
enum Left {
    Nothing,
    Log(usize),
    Passed(usize),
    Words { wanted: usize, text: Vec<u8> },
}

/// Reads the frames of a master behind its answer. Holds no body of the log.
#[derive(Debug)]
pub struct Frames {
    header: Gathered<HEADER_BYTES>,
    left: Left,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { header: Gathered::new(), left: Left::Nothing }
    }
}

impl Frames {
    /// The next piece of `bytes`, which are shortened by it. None: the rest is less than a header or than the words of an end, and is kept.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Misread> {
        // Each turn takes bytes, or is the last.
        loop {
            match &mut self.left {
                Left::Nothing => {
                    let Some(header) = self.header.take(bytes) else { return Ok(None) };
                    if let Some(piece) = self.begin(Header::decode(&header)?)? {
                        return Ok(Some(piece));
                    }
                }
                Left::Log(left) | Left::Passed(left) if *left > 0 => {
                    if bytes.is_empty() {
                        return Ok(None);
                    }
                    let (body, rest) = bytes.split_at((*left).min(bytes.len()));
                    *left -= body.len();
                    *bytes = rest;
                    if matches!(self.left, Left::Log(_)) {
                        return Ok(Some(Piece::Body(body)));
                    }
                }
                Left::Log(_) | Left::Passed(_) => self.left = Left::Nothing,
                Left::Words { wanted, text } => {
                    if !fill(text, bytes, *wanted) {
                        return Ok(None);
                    }
                    let why = words(text);
                    self.left = Left::Nothing;
                    return Ok(Some(Piece::End(why)));
                }
            }
        }
    }

    fn begin(&mut self, header: Header) -> Result<Option<Piece<'static>>, Misread> {
        let Header { kind, flags, at, body_bytes } = header;
        let (what, limit) = match kind {
            LOG => ("a frame of the log", BODY_BYTES_MAX),
            HEARTBEAT => ("a heartbeat", 0),
            END => ("the end", WORDS_BYTES_MAX),
            PASSED_FROM.. => ("a frame", PASSED_BYTES_MAX),
            _ => return Err(Misread::Kind { what: "a frame", kind }),
        };
        if body_bytes > limit {
            return Err(Misread::Length { what, bytes: body_bytes, limit });
        }
        match kind {
            LOG | HEARTBEAT => {
                self.left = Left::Log(body_bytes);
                let asks_for_device = flags & ASKS_FOR_DEVICE != 0;
                // It is below the limit.
                Ok(Some(Piece::Header { at, body_bytes: body_bytes as u32, asks_for_device }))
            }
            END => {
                self.left = Left::Words { wanted: body_bytes, text: Vec::new() };
                Ok(None)
            }
            _ => {
                self.left = Left::Passed(body_bytes);
                Ok(None)
            }
        }
    }
}

/// Why a slave leaves, when it has the master's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// It has another secret.
    OtherSecret,
    /// It has a secret, and the master has proved nothing.
    NoProof,
    /// The master has proved something, and it has no secret.
    NoSecret,
    /// Something else.
    Other,
}

impl Leaves {
    const ALL: [(u8, Leaves); 4] =
        [(1, Leaves::OtherSecret), (2, Leaves::NoProof), (3, Leaves::NoSecret), (0, Leaves::Other)];
}

/// What a slave says behind its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// That it has the secret.
    Proof(Proof),
    /// How far it has the log.
    Has {
        /// In its kernel's hands, or on its device if it is set so.
        written: LogOffset,
        /// On its device.
        flushed: LogOffset,
    },
    /// It goes.
    Leaves(Leaves),
}

impl Note {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let noted = |kind, body: &[u8]| [&[kind, body.len() as u8], body].concat();
        match self {
            Note::Proof(proof) => noted(PROOF, proof),
            Note::Has { written, flushed } => noted(HAS, &[written.0.to_be_bytes(), flushed.0.to_be_bytes()].concat()),
            Note::Leaves(why) => {
                let code = Leaves::ALL.iter().find(|(_, known)| known == why).map_or(0, |(code, _)| *code);
                noted(LEAVES, &[code])
            }
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Note, Misread> {
        let mut fields = Fields { what: "a note", left: body };
        match kind {
            PROOF => Ok(Note::Proof(fields.chunk("a proof")?)),
            HAS => {
                Ok(Note::Has { written: fields.offset("what is written")?, flushed: fields.offset("what is flushed")? })
            }
            LEAVES => {
                let [code] = fields.chunk("a reason")?;
                let why = Leaves::ALL.iter().find(|(known, _)| *known == code).map_or(Leaves::Other, |(_, why)| *why);
                Ok(Note::Leaves(why))
            }
            _ => Err(Misread::Kind { what: "a note", kind }),
        }
    }
}

/// Reads the notes of a slave.
#[derive(Debug)]
pub struct Notes {
    head: Gathered<2>,
    begun: Option<(u8, usize)>,
    body: Vec<u8>,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { head: Gathered::new(), begun: None, body: Vec::new() }
    }
}

impl Notes {
    /// The next note of `bytes`, which are shortened by it. None: the rest is less than one, and is kept.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Note>, Misread> {
        // Each turn takes bytes, or is the last.
        loop {
            let (kind, wanted) = match self.begun {
                Some(begun) => begun,
                None => {
                    let Some([kind, wanted]) = self.head.take(bytes) else { return Ok(None) };
                    *self.begun.insert((kind, usize::from(wanted)))
                }
            };
            if !fill(&mut self.body, bytes, wanted) {
                return Ok(None);
            }
            self.begun = None;
            let note = if kind >= PASSED_FROM { None } else { Some(Note::decode(kind, &self.body)?) };
            self.body.clear();
            if note.is_some() {
                return Ok(note);
            }
        }
    }
}

#[cfg(test)]
mod tests;
