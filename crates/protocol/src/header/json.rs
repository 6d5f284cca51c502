//! The JSON form of a header, read in one pass without building a tree.
//!
//! Accepts what fastjson, Go and C++ clients write: keys in any order, whitespace, unknown members of any shape, `null` for
//! anything, numbers and booleans as field values (their text is the value), numbers as strings, escapes with surrogates.

use super::fields::{Span, first_word};
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
    /// `word` is the [`first_word`] of `name`.
    #[inline(always)]
    fn of(word: u64, name: &[u8]) -> Member {
        // As numbers, because comparing short names byte by byte is a chain of jumps for each member of each header.
        const CODE: u64 = first_word(b"code");
        const VERSION: u64 = first_word(b"version");
        const OPAQUE: u64 = first_word(b"opaque");
        const FLAG: u64 = first_word(b"flag");
        const LANGUAGE: u64 = first_word(b"language");
        const REMARK: u64 = first_word(b"remark");
        const EXT_FIELD: u64 = first_word(b"extField");
        match (word, name.len()) {
            (CODE, 4) => Member::Code,
            (VERSION, 7) => Member::Version,
            (OPAQUE, 6) => Member::Opaque,
            (FLAG, 4) => Member::Flag,
            (LANGUAGE, 8) => Member::Language,
            (REMARK, 6) => Member::Remark,
            (EXT_FIELD, 9) if name.ends_with(b"s") => Member::ExtFields,
            _ => Member::Unknown,
        }
    }
}

/// Reads `text`, which is the whole header: every piece of it between two ASCII bytes is UTF-8 too.
pub(super) fn decode(text: &str, scratch: &mut HeaderScratch) -> Result<Parts, HeaderError> {
    let bytes = text.as_bytes();
    let mut scanner = Scanner { bytes, at: 0, block: 0, specials: specials(bytes) };
    scanner.header(scratch).map_err(|stop| scanner.refusal(stop))
}

/// Why the scanner does not go on; where, it knows itself. Small enough to be returned in a register, unlike the error that
/// it becomes.
#[derive(Clone, Copy)]
enum Stop {
    Expected(&'static &'static str),
    TooManyFields,
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the bytes begin that `specials` describes.
    block: usize,
    /// See [`specials`]. Ends of strings are found for 64 bytes at once, because looking for one after the other would have each
    /// string wait for the end of the one before it.
    specials: u64,
}

impl Scanner<'_> {
    /// Why we stopped where we are.
    #[cold]
    fn refusal(&self, stop: Stop) -> HeaderError {
        match stop {
            Stop::TooManyFields => HeaderError::TooManyFields,
            Stop::Expected(expected) if self.at >= self.bytes.len() => HeaderError::Truncated(expected),
            Stop::Expected(expected) => HeaderError::NotJson { at: self.at, expected },
        }
    }

    #[inline(always)]
    fn header(&mut self, scratch: &mut HeaderScratch) -> Result<Parts, Stop> {
        let mut parts = Parts::default();
        self.white();
        self.eat(b'{', &"an object")?;
        let mut is_first = true;
        while let Some(key) = self.key(&mut is_first, scratch)? {
            match Member::of(scratch.word(self.bytes, key), scratch.bytes(self.bytes, key)) {
                Member::Code => parts.code = self.integer()?,
                Member::Version => parts.version = self.integer()?,
                Member::Opaque => parts.opaque = self.integer()?,
                Member::Flag => parts.flag = self.integer()?,
                Member::Language => parts.language = self.language(scratch)?,
                Member::Remark => parts.remark = self.value(scratch)?,
                Member::ExtFields => self.fields(scratch)?,
                Member::Unknown if self.peek() == Some(b'"') => self.skip_string()?,
                Member::Unknown => self.skip()?,
            }
        }
        self.white();
        if self.at != self.bytes.len() {
            return Err(Stop::Expected(&"the end"));
        }
        Ok(parts)
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
    fn eat(&mut self, byte: u8, what: &'static &'static str) -> Result<(), Stop> {
        if self.peek() != Some(byte) {
            return Err(Stop::Expected(what));
        }
        self.at += 1;
        Ok(())
    }

    /// The next key of an object and the colon after it; none at the closing brace.
    ///
    /// Nearly all headers are written without whitespace, so what stands between two members is compared at once.
    #[inline(always)]
    fn key(&mut self, is_first: &mut bool, scratch: &mut HeaderScratch) -> Result<Option<Span>, Stop> {
        if (*is_first || !self.literal(b",\"")) && !self.key_follows(is_first)? {
            return Ok(None);
        }
        let key = self.string_content(scratch)?;
        if self.peek() != Some(b':') {
            self.white();
        }
        self.eat(b':', &"a colon")?;
        self.white();
        Ok(Some(key))
    }

    /// Steps, with whitespace, over what stands before a key, up to its content; false at the closing brace.
    #[inline(never)]
    fn key_follows(&mut self, is_first: &mut bool) -> Result<bool, Stop> {
        self.white();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(false);
        }
        if !std::mem::replace(is_first, false) {
            self.eat(b',', &"a comma or a closing brace")?;
            self.white();
        }
        self.eat(b'"', &"a string")?;
        Ok(true)
    }

    fn integer(&mut self) -> Result<i32, Stop> {
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
            return Err(Stop::Expected(&"an integer"));
        }
        let value = if is_negative { -value } else { value };
        let Ok(value) = i32::try_from(value) else {
            self.at = start;
            return Err(Stop::Expected(&"an i32"));
        };
        if is_quoted {
            self.eat(b'"', &"a quote after an integer")?;
        }
        Ok(value)
    }

    fn language(&mut self, scratch: &mut HeaderScratch) -> Result<Language, Stop> {
        let name = self.value(scratch)?;
        let name = name.and_then(|span| std::str::from_utf8(scratch.bytes(self.bytes, span)).ok());
        Ok(name.map_or(Language::Other, Language::from_name))
    }

    fn fields(&mut self, scratch: &mut HeaderScratch) -> Result<(), Stop> {
        if self.literal(b"null") {
            return Ok(());
        }
        self.eat(b'{', &"an object of fields")?;
        let mut is_first = true;
        while let Some(key) = self.key(&mut is_first, scratch)? {
            match self.value(scratch)? {
                Some(value) => scratch.insert(self.bytes, key, value).map_err(|_| Stop::TooManyFields)?,
                None => scratch.remove(self.bytes, key),
            }
        }
        Ok(())
    }

    /// A value as text: a string's content, or the text of anything else; none for null.
    #[inline(always)]
    fn value(&mut self, scratch: &mut HeaderScratch) -> Result<Option<Span>, Stop> {
        if self.peek() == Some(b'"') {
            self.at += 1;
            return self.string_content(scratch).map(Some);
        }
        self.bare_value()
    }

    #[inline(never)]
    fn bare_value(&mut self) -> Result<Option<Span>, Stop> {
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
    fn string_content(&mut self, scratch: &mut HeaderScratch) -> Result<Span, Stop> {
        let start = self.at;
        self.at = self.special_from(start);
        if self.peek() == Some(b'"') {
            let span = Span::of_header(start, self.at);
            self.at += 1;
            return Ok(span);
        }
        self.escaped_content(start, &mut scratch.text)
    }

    /// The rest of a string whose first escape is at the scanner's place; all of it goes to `text`.
    #[inline(never)]
    fn escaped_content(&mut self, start: usize, text: &mut Vec<u8>) -> Result<Span, Stop> {
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
                None => return Err(Stop::Expected(&"a string")),
            }
        }
    }

    /// Copies up to the next quote or backslash. Between two escapes there are a few bytes, so whole words are copied and what
    /// was too much is taken back.
    #[inline(always)]
    fn copy_plain(&mut self, text: &mut Vec<u8>) {
        let end = self.special_from(self.at);
        let len = text.len() + end - self.at;
        while self.at < end
            && let Some(word) = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>())
        {
            text.extend_from_slice(word);
            self.at += 8;
        }
        text.extend_from_slice(self.bytes.get(self.at..end).unwrap_or_default());
        text.truncate(len);
        self.at = end;
    }

    /// The place of the next quote or backslash at or after `at`; the end if there is none.
    #[inline(always)]
    fn special_from(&mut self, mut at: usize) -> usize {
        loop {
            let offset = at.wrapping_sub(self.block);
            if offset < BLOCK {
                let left = self.specials >> offset;
                if left != 0 {
                    return at + left.trailing_zeros() as usize;
                }
                at = self.block + BLOCK;
            }
            let Some(rest @ [_, ..]) = self.bytes.get(at..) else { return self.bytes.len() };
            (self.block, self.specials) = (at, specials(rest));
        }
    }

    /// The character of an escape whose backslash is behind us.
    #[inline(always)]
    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), Stop> {
        let Some(byte) = self.peek() else { return Err(Stop::Expected(&"an escape")) };
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
            _ => return Err(Stop::Expected(&"an escape")),
        };
        text.push(plain);
        self.at += 1;
        Ok(())
    }

    /// The character that begins with a UTF-16 unit. Half a surrogate pair has no UTF-8 form; Java would store `?`, we keep the
    /// position with the replacement character.
    #[inline(never)]
    fn beyond_ascii(&mut self, unit: u32) -> Result<char, Stop> {
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
    fn hex4(&mut self) -> Result<u32, Stop> {
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
        Err(Stop::Expected(&"a hexadecimal digit"))
    }

    /// Steps over one value of any shape. Inside it only the nesting and the strings are checked: nobody reads it.
    fn skip(&mut self) -> Result<(), Stop> {
        let mut closers = [0u8; DEPTH_MAX];
        let mut depth = 0;
        loop {
            let Some(byte) = self.peek() else { return Err(Stop::Expected(&"a value")) };
            match byte {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    let Some(closer) = closers.get_mut(depth) else { return Err(Stop::Expected(&"less nesting")) };
                    *closer = byte + 2;
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    if depth == 0 || closers[depth - 1] != byte {
                        return Err(Stop::Expected(&"a value"));
                    }
                    depth -= 1;
                    self.at += 1;
                }
                b'-' | b'+' | b'.' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => self.skip_word(),
                b' ' | b'\t' | b'\r' | b'\n' | b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                _ => return Err(Stop::Expected(&"a value")),
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

    fn skip_string(&mut self) -> Result<(), Stop> {
        self.at += 1;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at += 2,
                Some(_) => self.at = self.special_from(self.at),
                None => return Err(Stop::Expected(&"a string")),
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

/// How many bytes [`specials`] describes.
const BLOCK: usize = 64;

/// One bit for each of the first 64 bytes, lowest first: whether it is a quote or a backslash.
#[inline(never)]
fn specials(bytes: &[u8]) -> u64 {
    let mut padded = [0; BLOCK];
    let block = match bytes.first_chunk::<BLOCK>() {
        Some(block) => block,
        None => {
            padded[..bytes.len()].copy_from_slice(bytes);
            &padded
        }
    };
    // The compiler does this for many bytes at a time.
    let marks = block.map(|byte| u8::from((byte == b'"') | (byte == b'\\')));
    let (words, _) = marks.as_chunks::<8>();
    let mut found = 0;
    for (index, word) in words.iter().enumerate() {
        // The product has the lowest bits of the eight bytes together in its highest byte.
        let together = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        found |= together << (8 * index);
    }
    found
}
