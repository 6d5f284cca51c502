//! The `extFields` of a header: where they lie, and how they are found by name.
//!
//! A header's fields are kept in the order of the wire. A name is compared as one number, its first eight bytes, and a table of
//! hints says where a name lies or that it is not there, so a request finds its fields in any order at the same cost.

use super::{FIELDS_MAX, HeaderError};

/// Scratch space above this is given back after the header that needed it.
const SCRATCH_BYTES_KEPT: usize = 64 << 10;

/// How many hints there are: a few times the fields of the largest hot request.
const HINTS: usize = 64;

/// Spreads names over the hints. Chosen so that no two fields of a send or of a pull share one (a test holds it to that).
const SPREAD: u64 = 0x6e68_eb72_2140_0053;

/// Space that decoding needs, owned by a connection and reused for each of its headers.
#[derive(Debug)]
pub struct HeaderScratch {
    entries: Vec<Entry>,
    /// Unescaped keys, values and remarks: UTF-8, one after the other.
    pub(super) text: Vec<u8>,
    /// For each hint: 0 when no name with it was seen, else one more than the place where such a name was put.
    hints: [u16; HINTS],
    /// Where in the header the bytes begin that the spans count from.
    base: usize,
}

/// One field: where its key and value lie.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// See [`first_word`].
    word: u64,
    key: Span,
    value: Span,
}

/// A piece of the header, or of the scratch text: where it begins (32 bits), above it its length (31 bits), at the top which of
/// the two it is.
///
/// One number, and not three, because it goes through memory several times on its way into an entry: parts that are stored
/// one by one and loaded as one stall the processor for longer than all else that is done with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(u64);

impl Span {
    const UNESCAPED: u64 = 1 << 63;

    /// The bytes of the header from `start` to `end`. A header's length has 24 bits.
    #[inline(always)]
    pub(super) fn of_header(start: usize, end: usize) -> Span {
        Span(start as u64 | ((end - start) as u64) << 32)
    }

    /// The bytes of the scratch text from `start` to `end`.
    #[inline(always)]
    pub(super) fn of_text(start: usize, end: usize) -> Span {
        Span(Span::of_header(start, end).0 | Span::UNESCAPED)
    }

    #[inline(always)]
    fn is_unescaped(self) -> bool {
        self.0 & Span::UNESCAPED != 0
    }

    #[inline(always)]
    fn start(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    pub(super) fn len(self) -> usize {
        (self.0 << 1 >> 33) as usize
    }

    #[inline(always)]
    fn range(self) -> std::ops::Range<usize> {
        self.start()..self.start() + self.len()
    }
}

impl Default for HeaderScratch {
    fn default() -> HeaderScratch {
        HeaderScratch { entries: Vec::new(), text: Vec::new(), hints: [0; HINTS], base: 0 }
    }
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
        self.lend(header.get(self.base..).unwrap_or_default(), "")
    }

    /// As [`HeaderScratch::fields`], for the bytes that the spans count from, of which `known_text` is a first part that is
    /// known to be UTF-8.
    #[inline]
    pub(super) fn lend<'a>(&'a self, header: &'a [u8], known_text: &'a str) -> Fields<'a> {
        // Only whole characters are ever put there; a type cannot say so.
        let text = std::str::from_utf8(&self.text).unwrap_or_default();
        Fields { entries: &self.entries, header, known_text, text, hints: &self.hints }
    }

    #[inline]
    pub(super) fn reset(&mut self) {
        self.entries.clear();
        self.text.clear();
        self.hints = [0; HINTS];
        self.base = 0;
        if self.text.capacity() > SCRATCH_BYTES_KEPT {
            self.text = Vec::new();
        }
    }

    /// From here on, spans count from this place of the header.
    pub(super) fn count_from(&mut self, base: usize) {
        self.base = base;
    }

    #[inline(always)]
    pub(super) fn bytes<'a>(&'a self, header: &'a [u8], span: Span) -> &'a [u8] {
        piece(header, &self.text, span)
    }

    /// The [`first_word`] of a key.
    #[inline(always)]
    pub(super) fn word(&self, header: &[u8], key: Span) -> u64 {
        let source = if key.is_unescaped() { &self.text } else { header };
        word_at(source, key.start(), key.len())
    }

    /// Adds a field; a key that is there already gets the new value, as in a Java map.
    #[inline(always)]
    pub(super) fn insert(&mut self, header: &[u8], key: Span, value: Span) -> Result<(), HeaderError> {
        let word = self.word(header, key);
        let hint = hint(word, key.len());
        if self.hints[hint] != 0 && self.replace(header, word, key, value) {
            return Ok(());
        }
        if self.entries.len() == FIELDS_MAX {
            return Err(HeaderError::TooManyFields);
        }
        self.entries.push(Entry { word, key, value });
        self.hints[hint] = self.entries.len() as u16;
        Ok(())
    }

    #[inline(never)]
    fn replace(&mut self, header: &[u8], word: u64, key: Span, value: Span) -> bool {
        let Some(at) = self.place(header, word, key) else { return false };
        self.entries[at].value = value;
        true
    }

    /// Takes a field out again: a later `null` leaves nothing of it, as in a Java map.
    #[inline(never)]
    pub(super) fn remove(&mut self, header: &[u8], key: Span) {
        let word = self.word(header, key);
        // Hints that now point beside their fields only cost a search.
        if let Some(at) = self.place(header, word, key) {
            self.entries.remove(at);
        }
    }

    fn place(&self, header: &[u8], word: u64, key: Span) -> Option<usize> {
        let name = self.bytes(header, key);
        self.entries.iter().position(|entry| entry.word == word && self.bytes(header, entry.key) == name)
    }
}

/// The first eight bytes of a name, the first one lowest, zeros for those that it does not have.
pub(super) const fn first_word(name: &[u8]) -> u64 {
    let mut word = 0;
    let mut at = 0;
    while at < name.len() && at < 8 {
        word |= (name[at] as u64) << (8 * at);
        at += 1;
    }
    word
}

/// [`first_word`] of a piece of `bytes`, by one load unless the piece is at the very end.
#[inline(always)]
fn word_at(bytes: &[u8], at: usize, len: usize) -> u64 {
    let Some(rest) = bytes.get(at..) else { return 0 };
    let Some(word) = rest.first_chunk::<8>() else { return first_word(rest.get(..len).unwrap_or(rest)) };
    let word = u64::from_le_bytes(*word);
    if len < 8 { word & ((1 << (8 * len)) - 1) } else { word }
}

#[inline(always)]
const fn hint(word: u64, len: usize) -> usize {
    ((word ^ (len as u64) << 56).wrapping_mul(SPREAD) >> 58) as usize
}

#[inline(always)]
fn piece<'a>(header: &'a [u8], text: &'a [u8], span: Span) -> &'a [u8] {
    let source = if span.is_unescaped() { text } else { header };
    source.get(span.range()).unwrap_or_default()
}

/// A name that is looked up, with what the look-up compares. For the tables of requests, the compiler works it out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'n> {
    pub(crate) text: &'n str,
    word: u64,
    hint: usize,
}

impl<'n> Name<'n> {
    pub(crate) const fn new(text: &'n str) -> Name<'n> {
        let word = first_word(text.as_bytes());
        Name { text, word, hint: hint(word, text.len()) }
    }
}

/// The `extFields` of a header.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    entries: &'a [Entry],
    header: &'a [u8],
    /// A first part of `header` that is known to be text: its pieces need no further check.
    known_text: &'a str,
    text: &'a str,
    hints: &'a [u16; HINTS],
}

impl<'a> Fields<'a> {
    /// No field at all.
    pub const EMPTY: Fields<'static> =
        Fields { entries: &[], header: &[], known_text: "", text: "", hints: &[0; HINTS] };

    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.find(Name::new(name))
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

    /// As [`Fields::get`], for a name whose hint is known.
    #[inline(always)]
    pub(crate) fn find(&self, name: Name<'_>) -> Option<&'a str> {
        let place = usize::from(self.hints[name.hint]);
        if place == 0 {
            return None;
        }
        match self.entries.get(place - 1) {
            Some(entry) if self.is_named(entry, name) => Some(self.text_of(entry.value)),
            Some(_) | None => self.search(name),
        }
    }

    #[inline(never)]
    fn search(&self, name: Name<'_>) -> Option<&'a str> {
        let entry = self.entries.iter().find(|entry| self.is_named(entry, name))?;
        Some(self.text_of(entry.value))
    }

    #[inline(always)]
    fn is_named(&self, entry: &Entry, name: Name<'_>) -> bool {
        entry.word == name.word
            && entry.key.len() == name.text.len()
            && (name.text.len() <= 8 || piece(self.header, self.text.as_bytes(), entry.key) == name.text.as_bytes())
    }

    /// A piece as text. All of it was checked when it was decoded; beyond `known_text` it is proven again, for want of a type
    /// that remembers.
    #[inline(always)]
    fn text_of(&self, span: Span) -> &'a str {
        let source = if span.is_unescaped() { self.text } else { self.known_text };
        match source.get(span.range()) {
            Some(text) => text,
            None => self.text_proven_again(span),
        }
    }

    #[inline(never)]
    fn text_proven_again(&self, span: Span) -> &'a str {
        std::str::from_utf8(piece(self.header, self.text.as_bytes(), span)).unwrap_or_default()
    }
}

impl std::fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{FieldSpec, PullMessage, SendMessage};

    #[test]
    fn no_two_fields_of_a_hot_request_share_a_hint() {
        for table in [SendMessage::FIELDS_V1, SendMessage::FIELDS_V2, PullMessage::FIELDS] {
            let mut seen = 0u64;
            for FieldSpec { name, .. } in table {
                let bit = 1 << Name::new(name).hint;
                assert_eq!(seen & bit, 0, "{name}");
                seen |= bit;
            }
        }
    }
}
