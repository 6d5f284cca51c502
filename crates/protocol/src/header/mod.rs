//! Headers: what stands between the lengths and the body of a frame.
//!
//! Decoding borrows from the frame. Only what cannot be borrowed (strings with escapes) is written to the connection's
//! [`HeaderScratch`], which is reused, so a connection in steady state allocates nothing here.

mod binary;
mod encode;
mod fields;
mod json;

pub use encode::{EncodeFields, FieldSink, Head, write_frame};
pub(crate) use fields::Name;
pub use fields::{Fields, HeaderScratch};

use crate::frame::Serialization;
use fields::Span;

/// Set in the flag of every response.
pub const FLAG_RESPONSE: i32 = 1;
/// Set in the flag of a request that nobody answers.
pub const FLAG_ONEWAY: i32 = 2;

/// More `extFields` than any client sends; a header with more is refused.
pub const FIELDS_MAX: usize = 1024;

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

/// Reads a header.
pub fn decode<'a>(
    bytes: &'a [u8],
    serialization: Serialization,
    scratch: &'a mut HeaderScratch,
) -> Result<Header<'a>, HeaderError> {
    scratch.reset();
    // What the spans count from, and how much of it is known to be text.
    let (parts, counted, known_text) = match serialization {
        Serialization::Json => {
            let text = std::str::from_utf8(bytes).map_err(|_| HeaderError::NotUtf8("header"))?;
            (json::decode(text, scratch)?, bytes, text)
        }
        Serialization::Binary => binary::decode(bytes, scratch)?,
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
        fields: scratch.lend(counted, known_text),
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
