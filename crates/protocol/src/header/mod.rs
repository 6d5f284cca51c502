//! Headers: what stands between the lengths and the body of a frame.
//!
//! Decoding borrows from the frame. Only what cannot be borrowed (strings with escapes) is written to the connection's
//! [`HeaderScratch`], which is reused, so a connection in steady state allocates nothing here.

mod binary;
mod encode;
mod json;

pub use encode::{EncodeFields, FieldSink, Head, write_frame};

use crate::frame::Serialization;

/// Set in the flag of every response.
pub const FLAG_RESPONSE: i32 = 1;
/// Set in the flag of a request that nobody answers.
pub const FLAG_ONEWAY: i32 = 2;

/// More `extFields` than any client sends; a header with more is refused.
pub const FIELDS_MAX: usize = 1024;

/// Scratch space above this is given back after the header that needed it.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

/// What a request or a response says about itself.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Request code, or response code.
    pub code: i32,
    /// The language of the peer.
    pub language: Language,
    /// The peer's version: an ordinal of RocketMQ's version table.
    pub version: i32,
    /// The requester's number for this exchange.
    pub opaque: i32,
    /// [`FLAG_RESPONSE`], [`FLAG_ONEWAY`].
    pub flag: i32,
    /// Text for people.
    pub remark: Option<&'a str>,
    /// The `extFields`.
    pub fields: Fields<'a>,
}

impl Header<'_> {
    /// Whether this answers a request of ours.
    pub fn is_response(&self) -> bool {
        self.flag & FLAG_RESPONSE != 0
    }

    /// Whether nobody waits for an answer.
    pub fn is_oneway(&self) -> bool {
        self.flag & FLAG_ONEWAY != 0
    }
}

/// The language that a peer says it is written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Language {
    Java,
    Cpp,
    Dotnet,
    Python,
    Delphi,
    Erlang,
    Ruby,
    /// Also whatever this table does not know.
    #[default]
    Other,
    Http,
    Go,
    Php,
    Oms,
    Rust,
    NodeJs,
}

/// By code: the place in this table is the byte in a binary header.
const LANGUAGES: [(Language, &str); 14] = [
    (Language::Java, "JAVA"),
    (Language::Cpp, "CPP"),
    (Language::Dotnet, "DOTNET"),
    (Language::Python, "PYTHON"),
    (Language::Delphi, "DELPHI"),
    (Language::Erlang, "ERLANG"),
    (Language::Ruby, "RUBY"),
    (Language::Other, "OTHER"),
    (Language::Http, "HTTP"),
    (Language::Go, "GO"),
    (Language::Php, "PHP"),
    (Language::Oms, "OMS"),
    (Language::Rust, "RUST"),
    (Language::NodeJs, "NODE_JS"),
];

impl Language {
    /// RocketMQ's name, as in JSON.
    pub fn name(self) -> &'static str {
        LANGUAGES[self as usize].1
    }

    fn from_name(name: &str) -> Language {
        LANGUAGES.iter().find(|(_, known)| *known == name).map_or(Language::Other, |(language, _)| *language)
    }

    fn from_byte(byte: u8) -> Language {
        LANGUAGES.get(usize::from(byte)).map_or(Language::Other, |(language, _)| *language)
    }
}

/// Why a header cannot be read. The only answer is to close the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It ends in the middle of something.
    #[error("header ends inside {0}")]
    Truncated(&'static str),
    /// A length inside the header reaches beyond it, or is negative.
    #[error("{what} has length {length}, and {room} bytes are left")]
    BadLength {
        /// Of what.
        what: &'static str,
        /// As stated.
        length: i64,
        /// As there is.
        room: usize,
    },
    /// Text that is not UTF-8.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// Not a JSON object of the known shape.
    #[error("not a JSON header at byte {at}: expected {expected}")]
    NotJson {
        /// Where.
        at: usize,
        /// What should have been there.
        expected: &'static str,
    },
    /// More fields than [`FIELDS_MAX`].
    #[error("more than {FIELDS_MAX} fields")]
    TooManyFields,
}

/// Space that decoding needs, owned by a connection and reused for each of its headers.
#[derive(Debug, Default)]
pub struct HeaderScratch {
    entries: Vec<Entry>,
    /// Unescaped keys, values and remarks.
    text: String,
    /// One bit for each key seen, so that the usual header without duplicates is not searched for them.
    seen: u64,
}

/// One field: where its key and value lie.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Span,
    value: Span,
    /// The key's [`fingerprint`]: most names differ in it, so most comparisons of names are of one number.
    print: u32,
}

/// A piece of the header, or of the scratch text when `unescaped`.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    len: u32,
    unescaped: bool,
}

impl HeaderScratch {
    /// Empty, without an allocation.
    pub fn new() -> HeaderScratch {
        HeaderScratch::default()
    }

    /// The fields of the header that was decoded last; `header` is the bytes that it was decoded from.
    ///
    /// For whoever keeps both and asks later. Other bytes give other fields, or none.
    pub fn fields<'a>(&'a self, header: &'a [u8]) -> Fields<'a> {
        Fields { entries: &self.entries, header, header_text: "", text: &self.text, seen: self.seen }
    }

    fn reset(&mut self) {
        self.entries.clear();
        self.text.clear();
        self.seen = 0;
        if self.text.capacity() > SCRATCH_BYTES_KEPT {
            self.text = String::new();
        }
    }

    fn bytes<'a>(&'a self, header: &'a [u8], span: Span) -> &'a [u8] {
        piece(header, &self.text, span)
    }

    /// Adds a field; a key that is there already gets the new value, as in a Java map.
    fn insert(&mut self, header: &[u8], key: Span, value: Span) -> Result<(), HeaderError> {
        let name = self.bytes(header, key);
        let print = fingerprint(name);
        let bit = 1u64 << (print & 63);
        if self.seen & bit != 0 {
            let found = self.entries.iter().position(|entry| self.bytes(header, entry.key) == name);
            if let Some(index) = found {
                self.entries[index].value = value;
                return Ok(());
            }
        }
        if self.entries.len() == FIELDS_MAX {
            return Err(HeaderError::TooManyFields);
        }
        self.seen |= bit;
        self.entries.push(Entry { key, value, print });
        Ok(())
    }
}

/// Different for the short names of the hot requests, cheap for all; of a name in a table the compiler computes it.
#[inline(always)]
fn fingerprint(name: &[u8]) -> u32 {
    let first = u32::from(name.first().copied().unwrap_or(0));
    let last = u32::from(name.last().copied().unwrap_or(0));
    first
        .wrapping_add((name.len() as u32 - u32::from(!name.is_empty())).wrapping_mul(7))
        .wrapping_add(last.wrapping_mul(2))
}

fn piece<'a>(header: &'a [u8], text: &'a str, span: Span) -> &'a [u8] {
    let range = span.start as usize..span.start as usize + span.len as usize;
    let source = if span.unescaped { text.as_bytes() } else { header };
    source.get(range).unwrap_or_default()
}

/// The `extFields` of a header.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    entries: &'a [Entry],
    header: &'a [u8],
    /// The header as text, when it is one (JSON): its pieces need no further check.
    header_text: &'a str,
    text: &'a str,
    /// See [`HeaderScratch`]: a name whose bit is not set is not there.
    seen: u64,
}

impl<'a> Fields<'a> {
    /// No field at all.
    pub const EMPTY: Fields<'static> = Fields { entries: &[], header: &[], header_text: "", text: "", seen: 0 };

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.get_from(&mut 0, name)
    }

    /// All fields, in the order of the wire.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let fields = *self;
        fields.entries.iter().map(move |entry| (fields.text_of(entry.key), fields.text_of(entry.value)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As [`Fields::get`], but looks first at `cursor`, where the field after the last one found is: clients write fields
    /// in the order of the tables, so reading a whole table looks at each field once.
    #[inline(always)]
    pub(crate) fn get_from(&self, cursor: &mut usize, name: &str) -> Option<&'a str> {
        let print = fingerprint(name.as_bytes());
        if self.seen & 1 << (print & 63) == 0 {
            return None;
        }
        self.find(cursor, name, print)
    }

    fn find(&self, cursor: &mut usize, name: &str, print: u32) -> Option<&'a str> {
        let (before, after) = self.entries.split_at(*cursor);
        let is_it = |entry: &&Entry| {
            entry.print == print
                && entry.key.len as usize == name.len()
                && piece(self.header, self.text, entry.key) == name.as_bytes()
        };
        if let Some(at) = after.iter().position(|entry| is_it(&entry)) {
            *cursor += at + 1;
            return Some(self.text_of(after[at].value));
        }
        let at = before.iter().position(|entry| is_it(&entry))?;
        *cursor = at + 1;
        Some(self.text_of(before[at].value))
    }

    /// A piece as text. It was checked when it was decoded; only the binary form has to prove it again, for want of a type
    /// that remembers.
    #[inline]
    fn text_of(&self, span: Span) -> &'a str {
        let range = span.start as usize..span.start as usize + span.len as usize;
        let source = if span.unescaped { self.text } else { self.header_text };
        match source.get(range) {
            Some(text) => text,
            None => std::str::from_utf8(piece(self.header, self.text, span)).unwrap_or_default(),
        }
    }
}

impl std::fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Reads a header.
pub fn decode<'a>(
    bytes: &'a [u8],
    serialization: Serialization,
    scratch: &'a mut HeaderScratch,
) -> Result<Header<'a>, HeaderError> {
    scratch.reset();
    let (parts, header_text) = match serialization {
        Serialization::Json => {
            let text = std::str::from_utf8(bytes).map_err(|_| HeaderError::NotUtf8("header"))?;
            (json::decode(text, scratch)?, text)
        }
        Serialization::Binary => (binary::decode(bytes, scratch)?, ""),
    };
    let scratch: &'a HeaderScratch = scratch;
    let remark = match parts.remark {
        Some(span) => {
            Some(std::str::from_utf8(scratch.bytes(bytes, span)).map_err(|_| HeaderError::NotUtf8("remark"))?)
        }
        None => None,
    };
    Ok(Header {
        code: parts.code,
        language: parts.language,
        version: parts.version,
        opaque: parts.opaque,
        flag: parts.flag,
        remark,
        fields: Fields {
            entries: &scratch.entries,
            header: bytes,
            header_text,
            text: &scratch.text,
            seen: scratch.seen,
        },
    })
}

/// What both forms decode into, before the scratch is lent out.
#[derive(Default)]
struct Parts {
    code: i32,
    language: Language,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Option<Span>,
}

#[cfg(test)]
mod tests;
