//! The JSON form of a header, read in one pass without building a tree.
//!
//! Accepts what fastjson, Go and C++ clients write: keys in any order, whitespace, unknown members of any shape, `null` for
//! anything, numbers and booleans as field values (their text is the value), numbers as strings, escapes with surrogates.

use super::fields::Span;
use super::{HeaderError, HeaderScratch, Language, Parts};

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
            Member::Unknown if scanner.peek() == Some(b'"') => scanner.skip_string()?,
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
    #[cold]
    fn expected(&self, expected: &'static str) -> HeaderError {
        if self.at >= self.bytes.len() {
            return HeaderError::Truncated(expected);
        }
        HeaderError::NotJson { at: self.at, expected }
    }

    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline(always)]
    fn white(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    #[inline(always)]
    fn eat(&mut self, byte: u8, what: &'static str) -> Result<(), HeaderError> {
        if self.peek() != Some(byte) {
            return Err(self.expected(what));
        }
        self.at += 1;
        Ok(())
    }

    /// The next key of an object and the colon after it; none at the closing brace.
    ///
    /// Nearly all headers are written without whitespace, so what stands between two members is compared at once.
    #[inline(always)]
    fn key(&mut self, is_first: &mut bool, scratch: &mut HeaderScratch) -> Result<Option<Span>, HeaderError> {
        if (*is_first || !self.literal(b",\"")) && !self.key_follows(is_first)? {
            return Ok(None);
        }
        let key = self.string_content(scratch)?;
        if self.peek() != Some(b':') {
            self.white();
        }
        self.eat(b':', "a colon")?;
        self.white();
        Ok(Some(key))
    }

    /// Steps, with whitespace, over what stands before a key, up to its content; false at the closing brace.
    #[inline(never)]
    fn key_follows(&mut self, is_first: &mut bool) -> Result<bool, HeaderError> {
        self.white();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::replace(is_first, false) {
            self.eat(b',', "a comma or a closing brace")?;
            self.white();
        }
        self.eat(b'"', "a string")?;
        Ok(true)
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
            match self.value(scratch)? {
                Some(value) => scratch.insert(self.bytes, key, value)?,
                None => scratch.remove(self.bytes, key),
            }
        }
        Ok(())
    }

    /// A value as text: a string's content, or the text of anything else; none for null.
    #[inline(always)]
    fn value(&mut self, scratch: &mut HeaderScratch) -> Result<Option<Span>, HeaderError> {
        if self.peek() == Some(b'"') {
            self.at += 1;
            return self.string_content(scratch).map(Some);
        }
        self.bare_value()
    }

    #[inline(never)]
    fn bare_value(&mut self) -> Result<Option<Span>, HeaderError> {
        let start = self.at;
        if self.literal(b"null") {
            return Ok(None);
        }
        self.skip()?;
        Ok(Some(Span::of_header(start, self.at)))
    }

    #[inline(always)]
    fn literal<const N: usize>(&mut self, word: &[u8; N]) -> bool {
        let is_there = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>()) == Some(word);
        self.at += if is_there { N } else { 0 };
        is_there
    }

    /// What stands between an opening quote, which is behind us, and the closing one.
    #[inline(always)]
    fn string_content(&mut self, scratch: &mut HeaderScratch) -> Result<Span, HeaderError> {
        let start = self.at;
        self.at = find_special(self.bytes, start);
        if self.peek() == Some(b'"') {
            let span = Span::of_header(start, self.at);
            self.at += 1;
            return Ok(span);
        }
        self.escaped_content(start, &mut scratch.text)
    }

    /// The rest of a string whose first escape is at the scanner's place; all of it goes to `text`.
    #[inline(never)]
    fn escaped_content(&mut self, start: usize, text: &mut Vec<u8>) -> Result<Span, HeaderError> {
        let text_start = text.len();
        text.extend_from_slice(&self.bytes[start..self.at]);
        loop {
            self.copy_plain(text);
            match self.peek() {
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(text)?;
                }
                Some(_) => {
                    self.at += 1;
                    return Ok(Span::of_text(text_start, text.len()));
                }
                None => return Err(HeaderError::Truncated("a string")),
            }
        }
    }

    /// Copies up to the next quote or backslash. Between two escapes there are a few bytes, so each word is copied whole
    /// while it is looked at, and what was too much is taken back.
    #[inline(always)]
    fn copy_plain(&mut self, text: &mut Vec<u8>) {
        while let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            text.extend_from_slice(word);
            let found = specials(*word);
            if found != 0 {
                let plain = (found.trailing_zeros() / 8) as usize;
                text.truncate(text.len() - (8 - plain));
                self.at += plain;
                return;
            }
            self.at += 8;
        }
        let end = find_special(self.bytes, self.at);
        text.extend_from_slice(self.bytes.get(self.at..end).unwrap_or_default());
        self.at = end;
    }

    /// The character of an escape whose backslash is behind us.
    #[inline(always)]
    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), HeaderError> {
        let Some(byte) = self.peek() else { return Err(HeaderError::Truncated("an escape")) };
        let plain = match byte {
            b'u' => {
                self.at += 1;
                let unit = self.hex4()?;
                // The separators of properties are such characters, and so most escapes are.
                if unit < 0x80 {
                    text.push(unit as u8);
                } else {
                    let character = self.beyond_ascii(unit)?;
                    text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                return Ok(());
            }
            b'"' | b'\\' | b'/' | b'\'' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            _ => return Err(self.expected("an escape")),
        };
        text.push(plain);
        self.at += 1;
        Ok(())
    }

    /// The character that begins with a UTF-16 unit. Half a surrogate pair has no UTF-8 form; Java would store `?`, we keep the
    /// position with the replacement character.
    #[inline(never)]
    fn beyond_ascii(&mut self, unit: u32) -> Result<char, HeaderError> {
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

    #[inline(always)]
    fn hex4(&mut self) -> Result<u32, HeaderError> {
        let mut unit = 0;
        if let Some(digits) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<4>()) {
            for digit in digits {
                unit = unit << 4 | HEX_DIGITS[usize::from(*digit)];
            }
            if unit < NO_HEX_DIGIT {
                self.at += 4;
                return Ok(unit);
            }
        }
        while let Some(b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') = self.peek() {
            self.at += 1;
        }
        Err(self.expected("a hexadecimal digit"))
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

/// Above any sum of four hexadecimal digits.
const NO_HEX_DIGIT: u32 = 1 << 16;

/// The value of each hexadecimal digit. What is none has a bit that ends up at or above [`NO_HEX_DIGIT`] wherever it stands.
const HEX_DIGITS: [u32; 256] = {
    let mut table = [NO_HEX_DIGIT; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u32;
        table[b"0123456789ABCDEF"[value] as usize] = value as u32;
        value += 1;
    }
    table
};

/// The place of the next quote or backslash at or after `at`; the end if there is none.
///
/// Strings in headers are short and many, so this looks at eight bytes at a time without the cost of a call to a vector search.
#[inline(always)]
fn find_special(bytes: &[u8], mut at: usize) -> usize {
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let found = specials(*word);
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    find_special_at_end(bytes, at)
}

#[inline(never)]
fn find_special_at_end(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| matches!(byte, b'"' | b'\\')).unwrap_or(rest.len())
}

/// The high bit of each byte that is a quote or a backslash. Bytes above the first such one may be marked wrongly, and nobody
/// looks at them.
#[inline(always)]
fn specials(word: [u8; 8]) -> u64 {
    const QUOTES: u64 = u64::from_le_bytes([b'"'; 8]);
    const BACKSLASHES: u64 = u64::from_le_bytes([b'\\'; 8]);
    const LOW: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    let word = u64::from_le_bytes(word);
    let (quotes, backslashes) = (word ^ QUOTES, word ^ BACKSLASHES);
    (quotes.wrapping_sub(LOW) & !quotes | backslashes.wrapping_sub(LOW) & !backslashes) & HIGH
}
