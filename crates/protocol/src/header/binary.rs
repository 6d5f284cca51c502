//! The ROCKETMQ form of a header.
//!
//! ```text
//! code i16 · language i8 · version i16 · opaque i32 · flag i32 · remark i32 + n · fields i32 + { key i16 + n · value i32 + n }
//! ```

use super::fields::Span;
use super::{HeaderError, HeaderScratch, Language, Parts};

/// The parts of the header, the bytes of its fields, which the fields' spans count from, and how much of these is text.
pub(super) fn decode<'a>(
    bytes: &'a [u8],
    scratch: &mut HeaderScratch,
) -> Result<(Parts, &'a [u8], &'a str), HeaderError> {
    let mut reader = Reader { bytes, at: 0 };
    let code = i32::from(i16::from_be_bytes(reader.take("code")?));
    let [language] = reader.take("language")?;
    let version = i32::from(i16::from_be_bytes(reader.take("version")?));
    let opaque = i32::from_be_bytes(reader.take("opaque")?);
    let flag = i32::from_be_bytes(reader.take("flag")?);
    let remark_bytes = i32::from_be_bytes(reader.take("remark length")?);
    let remark = reader.piece("remark", i64::from(remark_bytes))?;
    // The caller proves that it is text.
    let remark = (!remark.is_empty()).then(|| Span::of_header(reader.at - remark.len(), reader.at));
    let parts = Parts { code, language: Language::from_byte(language), version, opaque, flag, remark };

    let fields_bytes = i32::from_be_bytes(reader.take("fields length")?);
    let fields = reader.piece("fields", i64::from(fields_bytes))?;
    scratch.count_from(reader.at - fields.len());
    let known_text = leading_text(fields);
    let mut reader = Reader { bytes: fields, at: 0 };
    while reader.at < fields.len() {
        let key_bytes = i16::from_be_bytes(reader.take("key length")?);
        let key = reader.text("key", i64::from(key_bytes), known_text)?;
        let value_bytes = i32::from_be_bytes(reader.take("value length")?);
        let value = reader.text("value", i64::from(value_bytes), known_text)?;
        match (key.len(), value.len()) {
            // Java reads a key without a length as null, which nobody asks for.
            (0, _) => {}
            // Java reads an empty string as null here, so an empty value is an absent one.
            (_, 0) => scratch.remove(fields, key),
            (_, _) => scratch.insert(fields, key, value)?,
        }
    }
    Ok((parts, fields, known_text))
}

/// The text that the fields begin with, lengths and all: these are small numbers, so nearly always all of it is ASCII, and
/// telling so at once is cheaper than telling it of each piece. What lies beyond (a value of 128 bytes and more has such a
/// length) is looked at piece by piece.
fn leading_text(fields: &[u8]) -> &str {
    match std::str::from_utf8(fields) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&fields[..error.valid_up_to()]).unwrap_or_default(),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    #[inline(always)]
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], HeaderError> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        self.at += N;
        taken.copied().ok_or(HeaderError::Truncated(what))
    }

    /// The next `length` bytes.
    #[inline(always)]
    fn piece(&mut self, what: &'static str, length: i64) -> Result<&'a [u8], HeaderError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let piece = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let piece = piece.ok_or(HeaderError::BadLength { what, length, room: rest.len() })?;
        self.at += piece.len();
        Ok(piece)
    }

    /// The place of `length` bytes, checked to be UTF-8.
    #[inline(always)]
    fn text(&mut self, what: &'static str, length: i64, known_text: &str) -> Result<Span, HeaderError> {
        let start = self.at;
        let piece = self.piece(what, length)?;
        // A piece that begins or ends inside a character of the known text is none.
        if known_text.get(start..self.at).is_none() && std::str::from_utf8(piece).is_err() {
            return Err(HeaderError::NotUtf8(what));
        }
        Ok(Span::of_header(start, self.at))
    }
}
