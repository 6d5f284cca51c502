//! The JSON form of a header, read in one pass without building a tree.
//!
//! Accepts what fastjson, Go and C++ clients write: keys in any order, whitespace, unknown members of any shape, `null` for
//! anything, numbers and booleans as field values (their text is the value), numbers as strings, escapes with surrogates.

use super::{HeaderError, HeaderScratch, Language, Parts, Span};

/// Deeper than any client nests what we skip.
const DEPTH_MAX: usize = 64;

/// The members that we read.
enum Member {
    Code,
    Version,
    Opaque,
    Flag,
    Language,
    Remark,
    ExtFields,
    Unknown,
}

impl Member {
    fn of(name: &[u8]) -> Member {
        match name {
            b"code" => Member::Code,
            b"version" => Member::Version,
            b"opaque" => Member::Opaque,
            b"flag" => Member::Flag,
            b"language" => Member::Language,
            b"remark" => Member::Remark,
            b"extFields" => Member::ExtFields,
            _ => Member::Unknown,
        }
    }
}

/// Reads `text`, which is the whole header: every piece of it between two ASCII bytes is UTF-8 too.
pub(super) fn decode(text: &str, scratch: &mut HeaderScratch) -> Result<Parts, HeaderError> {
    let bytes = text.as_bytes();
    let mut scanner = Scanner { bytes, at: 0 };
    let mut parts = Parts::default();
    scanner.white();
    scanner.eat(b'{', "an object")?;
    let mut is_first = true;
    while let Some(key) = scanner.key(&mut is_first, scratch)? {
        match Member::of(scratch.bytes(bytes, key)) {
            Member::Code => parts.code = scanner.integer()?,
            Member::Version => parts.version = scanner.integer()?,
            Member::Opaque => parts.opaque = scanner.integer()?,
            Member::Flag => parts.flag = scanner.integer()?,
            Member::Language => parts.language = scanner.language(scratch)?,
            Member::Remark => parts.remark = scanner.value(scratch)?,
            Member::ExtFields => scanner.fields(scratch)?,
            Member::Unknown => scanner.skip()?,
        }
    }
    scanner.white();
    if scanner.at != bytes.len() {
        return Err(scanner.expected("the end"));
    }
    Ok(parts)
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn expected(&self, expected: &'static str) -> HeaderError {
        if self.at >= self.bytes.len() {
            return HeaderError::Truncated(expected);
        }
        HeaderError::NotJson { at: self.at, expected }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn white(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8, what: &'static str) -> Result<(), HeaderError> {
        if self.peek() != Some(byte) {
            return Err(self.expected(what));
        }
        self.at += 1;
        Ok(())
    }

    /// The next key of an object and the colon after it; none at the closing brace.
    fn key(&mut self, is_first: &mut bool, scratch: &mut HeaderScratch) -> Result<Option<Span>, HeaderError> {
        self.white();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(None);
        }
        if !std::mem::replace(is_first, false) {
            self.eat(b',', "a comma or a closing brace")?;
            self.white();
        }
        let key = self.string(scratch)?;
        self.white();
        self.eat(b':', "a colon")?;
        self.white();
        Ok(Some(key))
    }

    fn integer(&mut self) -> Result<i32, HeaderError> {
        let is_quoted = self.peek() == Some(b'"');
        if self.literal(b"null") {
            return Ok(0);
        }
        self.at += usize::from(is_quoted);
        let start = self.at;
        let is_negative = self.peek() == Some(b'-');
        self.at += usize::from(is_negative);
        let digits = self.at;
        let mut value = 0i64;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
            self.at += 1;
        }
        if digits == self.at {
            return Err(self.expected("an integer"));
        }
        let value = if is_negative { -value } else { value };
        let value = i32::try_from(value).map_err(|_| HeaderError::NotJson { at: start, expected: "an i32" })?;
        if is_quoted {
            self.eat(b'"', "a quote after an integer")?;
        }
        Ok(value)
    }

    fn language(&mut self, scratch: &mut HeaderScratch) -> Result<Language, HeaderError> {
        let name = self.value(scratch)?;
        let name = name.and_then(|span| std::str::from_utf8(scratch.bytes(self.bytes, span)).ok());
        Ok(name.map_or(Language::Other, Language::from_name))
    }

    fn fields(&mut self, scratch: &mut HeaderScratch) -> Result<(), HeaderError> {
        if self.literal(b"null") {
            return Ok(());
        }
        self.eat(b'{', "an object of fields")?;
        let mut is_first = true;
        while let Some(key) = self.key(&mut is_first, scratch)? {
            if let Some(value) = self.value(scratch)? {
                scratch.insert(self.bytes, key, value)?;
            }
        }
        Ok(())
    }

    /// A value as text: a string's content, or the text of anything else; none for null.
    fn value(&mut self, scratch: &mut HeaderScratch) -> Result<Option<Span>, HeaderError> {
        if self.peek() == Some(b'"') {
            return self.string(scratch).map(Some);
        }
        let start = self.at;
        if self.literal(b"null") {
            return Ok(None);
        }
        self.skip()?;
        Ok(Some(Span { start: start as u32, len: (self.at - start) as u32, unescaped: false }))
    }

    fn literal(&mut self, word: &[u8]) -> bool {
        let is_there = self.bytes[self.at..].starts_with(word);
        self.at += if is_there { word.len() } else { 0 };
        is_there
    }

    fn string(&mut self, scratch: &mut HeaderScratch) -> Result<Span, HeaderError> {
        self.eat(b'"', "a string")?;
        let start = self.at;
        self.at = find_special(self.bytes, start);
        match self.peek() {
            Some(b'"') => {
                let span = Span { start: start as u32, len: (self.at - start) as u32, unescaped: false };
                self.at += 1;
                Ok(span)
            }
            Some(_) => self.escaped_string(start, scratch),
            None => Err(HeaderError::Truncated("a string")),
        }
    }

    /// The rest of a string whose first escape is at the scanner's place.
    fn escaped_string(&mut self, start: usize, scratch: &mut HeaderScratch) -> Result<Span, HeaderError> {
        let text_start = scratch.text.len();
        let mut run = start;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.copy(run, &mut scratch.text);
                    self.at += 1;
                    let len = (scratch.text.len() - text_start) as u32;
                    return Ok(Span { start: text_start as u32, len, unescaped: true });
                }
                Some(b'\\') => {
                    self.copy(run, &mut scratch.text);
                    self.at += 1;
                    let character = self.escape()?;
                    scratch.text.push(character);
                    run = self.at;
                }
                Some(_) => self.at = find_special(self.bytes, self.at),
                None => return Err(HeaderError::Truncated("a string")),
            }
        }
    }

    fn copy(&self, run: usize, text: &mut String) {
        // Both ends lie beside ASCII bytes, so this is a whole number of characters of text that was checked above.
        text.push_str(std::str::from_utf8(&self.bytes[run..self.at]).unwrap_or_default());
    }

    fn escape(&mut self) -> Result<char, HeaderError> {
        let Some(byte) = self.peek() else { return Err(HeaderError::Truncated("an escape")) };
        let character = match byte {
            b'"' | b'\\' | b'/' | b'\'' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.expected("an escape")),
        };
        self.at += 1;
        Ok(character)
    }

    /// The character after `\u`. Half a surrogate pair has no UTF-8 form; Java would store `?`, we keep the position with
    /// the replacement character.
    fn unicode(&mut self) -> Result<char, HeaderError> {
        let unit = self.hex4()?;
        if let 0xd800..=0xdbff = unit
            && self.literal(b"\\u")
        {
            let after = self.at;
            let low = self.hex4()?;
            if let 0xdc00..=0xdfff = low {
                let scalar = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(scalar).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            // What follows is a character of its own.
            self.at = after - 2;
        }
        Ok(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, HeaderError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = match self.peek() {
                Some(byte @ b'0'..=b'9') => byte - b'0',
                Some(byte @ b'a'..=b'f') => byte - b'a' + 10,
                Some(byte @ b'A'..=b'F') => byte - b'A' + 10,
                Some(_) | None => return Err(self.expected("a hexadecimal digit")),
            };
            unit = unit << 4 | u32::from(digit);
            self.at += 1;
        }
        Ok(unit)
    }

    /// Steps over one value of any shape. Inside it only the nesting and the strings are checked: nobody reads it.
    fn skip(&mut self) -> Result<(), HeaderError> {
        let mut closers = [0u8; DEPTH_MAX];
        let mut depth = 0;
        loop {
            let Some(byte) = self.peek() else { return Err(HeaderError::Truncated("a value")) };
            match byte {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    let Some(closer) = closers.get_mut(depth) else { return Err(self.expected("less nesting")) };
                    *closer = byte + 2;
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    if depth == 0 || closers[depth - 1] != byte {
                        return Err(self.expected("a value"));
                    }
                    depth -= 1;
                    self.at += 1;
                }
                b'-' | b'+' | b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => self.skip_word(),
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => return Err(self.expected("a value")),
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn skip_word(&mut self) {
        while let Some(b'-' | b'+' | b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z') = self.peek() {
            self.at += 1;
        }
    }

    fn skip_string(&mut self) -> Result<(), HeaderError> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 2,
                Some(_) => self.at = find_special(self.bytes, self.at),
                None => return Err(HeaderError::Truncated("a string")),
            }
        }
    }
}

/// The place of the next quote or backslash at or after `at`; the end if there is none.
///
/// Strings in headers are short and many, so this looks at eight bytes at a time without the cost of a call to a vector search.
#[inline]
fn find_special(bytes: &[u8], mut at: usize) -> usize {
    const QUOTES: u64 = u64::from_le_bytes([b'"'; 8]);
    const BACKSLASHES: u64 = u64::from_le_bytes([b'\\'; 8]);
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        let found = zero_bytes(word ^ QUOTES) | zero_bytes(word ^ BACKSLASHES);
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(rest.len())
}

/// The high bit of each byte that is zero. Bytes above the first such one may be marked wrongly, and nobody looks at them.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    const LOW: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    word.wrapping_sub(LOW) & !word & HIGH
}
