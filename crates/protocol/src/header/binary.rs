//! The ROCKETMQ form of a header.
//!
//! ```text
//! code i16 · language i8 · version i16 · opaque i32 · flag i32 · remark i32 + n · fields i32 + { key i16 + n · value i32 + n }
//! ```

use super::{HeaderError, HeaderScratch, Language, Parts, Span};

pub(super) fn decode(bytes: &[u8], scratch: &mut HeaderScratch) -> Result<Parts, HeaderError> {
    let mut reader = Reader { bytes, at: 0 };
    let code = i32::from(i16::from_be_bytes(reader.take("code")?));
    let [language] = reader.take("language")?;
    let version = i32::from(i16::from_be_bytes(reader.take("version")?));
    let opaque = i32::from_be_bytes(reader.take("opaque")?);
    let flag = i32::from_be_bytes(reader.take("flag")?);
    let remark_bytes = i32::from_be_bytes(reader.take("remark length")?);
    let remark = reader.span("remark", i64::from(remark_bytes), bytes.len())?;

    let fields_bytes = i32::from_be_bytes(reader.take("fields length")?);
    let fields = reader.skip("fields", i64::from(fields_bytes), bytes.len())?;
    let end = reader.at;
    reader.at = fields;
    while reader.at < end {
        let key_bytes = i16::from_be_bytes(reader.take("key length")?);
        let key = reader.span("key", i64::from(key_bytes), end)?;
        let value_bytes = i32::from_be_bytes(reader.take("value length")?);
        let value = reader.span("value", i64::from(value_bytes), end)?;
        // Java reads an empty string as null here, so an empty value is an absent one.
        if let (Some(key), Some(value)) = (key, value) {
            scratch.insert(bytes, key, value)?;
        }
    }
    Ok(Parts { code, language: Language::from_byte(language), version, opaque, flag, remark })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], HeaderError> {
        let taken = self.bytes.get(self.at..self.at + N).and_then(|bytes| bytes.try_into().ok());
        self.at += N;
        taken.ok_or(HeaderError::Truncated(what))
    }

    /// Steps over `length` bytes that must end by `end`; where they began.
    fn skip(&mut self, what: &'static str, length: i64, end: usize) -> Result<usize, HeaderError> {
        let start = self.at;
        let room = end.saturating_sub(start);
        match usize::try_from(length) {
            Ok(bytes) if bytes <= room => self.at += bytes,
            _ => return Err(HeaderError::BadLength { what, length, room }),
        }
        Ok(start)
    }

    /// The text of `length` bytes, checked to be UTF-8; none when empty.
    fn span(&mut self, what: &'static str, length: i64, end: usize) -> Result<Option<Span>, HeaderError> {
        let start = self.skip(what, length, end)?;
        if start == self.at {
            return Ok(None);
        }
        let text = &self.bytes[start..self.at];
        // Nearly all text is short and ASCII, which is told faster than by the full check.
        if text.iter().fold(0, |all, byte| all | byte) >= 0x80 {
            std::str::from_utf8(text).map_err(|_| HeaderError::NotUtf8(what))?;
        }
        Ok(Some(Span { start: start as u32, len: (self.at - start) as u32, unescaped: false }))
    }
}
