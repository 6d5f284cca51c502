//! Java's property files: `key=value`, `key: value` or `key value`, comments with `#` and `!`, `\` at the end of a line, escapes.
//!
//! Pure text in, lines out. One difference to Java is wanted: blanks after a value are cut, because `10911 ` is a typing error that
//! RocketMQ answers by taking its default without a word.

use std::ops::Range;

/// One setting of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it begins, counted from 1.
    pub number: usize,
    /// Before the separator, unescaped.
    pub key: String,
    /// Behind it, unescaped and without blanks around.
    pub value: String,
    /// The value as Java reads it, if that is another one: Java takes each byte of a file for a character (ISO 8859-1), so letters beyond
    /// ASCII that are not written as escapes become others.
    pub of_java: Option<String>,
}

/// Why a line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number}: \\u must be followed by four hexadecimal digits")]
pub struct BadEscape {
    /// Where the line begins, counted from 1.
    pub number: usize,
}

/// The bytes that some editors put in front of UTF-8. Java takes them for a part of the first key.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The text of a file. One that is UTF-8 is read as that. Of another one each byte is a character, as for Java; those beyond ASCII come as
/// escapes, so that a text with letters beyond ASCII is always UTF-8.
pub fn text_of(bytes: Vec<u8>) -> String {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return text,
        Err(not_utf8) => not_utf8.into_bytes(),
    };
    let mut text = String::with_capacity(bytes.len());
    let mut is_escaped = false;
    for byte in bytes {
        if byte.is_ascii() {
            text.push(char::from(byte));
        } else {
            if is_escaped {
                // The backslash in front of a letter says nothing; in front of an escape it would.
                text.pop();
            }
            text.push_str(&format!("\\u{byte:04x}"));
        }
        is_escaped = byte == b'\\' && !is_escaped;
    }
    text
}

/// Cuts a file into its settings, in order. A key may appear more than once.
pub fn parse(text: &str) -> Result<Vec<Line>, BadEscape> {
    Ok(scan(text)?.into_iter().map(|found| found.line).collect())
}

/// Whether a file begins with a byte order mark.
pub fn has_byte_order_mark(bytes: &[u8]) -> bool {
    bytes.starts_with(BYTE_ORDER_MARK)
}

/// The file with other values. The last line that sets a changed key is replaced where it stands, and what the file did not set follows at
/// the end; all other bytes stay as they are, whatever they mean. Of several changes of one key the last counts.
pub fn with_changes(file: &[u8], changes: &[(String, String)]) -> Result<Vec<u8>, BadEscape> {
    let (mark, bytes) = file.split_at(if has_byte_order_mark(file) { BYTE_ORDER_MARK.len() } else { 0 });
    // A character a byte, as in Java: a place in one is a place in the other.
    let text: Vec<char> = bytes.iter().copied().map(char::from).collect();
    let found = scan_chars(&text)?;
    let mut left: Vec<&(String, String)> = Vec::new();
    for (place, change) in changes.iter().enumerate() {
        if !changes[place + 1..].iter().any(|later| later.0 == change.0) {
            left.push(change);
        }
    }
    let eol = line_end_of(bytes);
    let mut out = mark.to_vec();
    let mut done = 0;
    let mut goes_on = false;
    for (place, setting) in found.iter().enumerate() {
        let is_last = !found[place + 1..].iter().any(|later| later.line.key == setting.line.key);
        let change = left.iter().position(|(key, _)| *key == setting.line.key).filter(|_| is_last);
        goes_on = setting.goes_on && change.is_none();
        if let Some(at) = change {
            out.extend_from_slice(&bytes[done..setting.place.start]);
            out.extend_from_slice(one_line_of(left.remove(at)).as_bytes());
            done = setting.place.end;
        }
    }
    out.extend_from_slice(&bytes[done..]);
    if left.is_empty() {
        return Ok(out);
    }
    let is_open = out.len() > mark.len() && !out.ends_with(b"\n") && !out.ends_with(b"\r");
    if is_open {
        out.extend_from_slice(eol);
    }
    if goes_on {
        // The last line would go on in ours: an empty one ends it.
        out.extend_from_slice(eol);
    }
    for (place, change) in left.iter().enumerate() {
        out.extend_from_slice(one_line_of(change).as_bytes());
        if !is_open || place + 1 < left.len() {
            out.extend_from_slice(eol);
        }
    }
    Ok(out)
}

/// How the lines of a file end: as its first one does.
fn line_end_of(bytes: &[u8]) -> &'static [u8] {
    match bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        Some(at) if bytes[at..].starts_with(b"\r\n") => b"\r\n",
        Some(at) if bytes[at] == b'\r' => b"\r",
        Some(_) | None => b"\n",
    }
}

/// A line, without its end, that [`parse`] and Java read as this key and value, in ASCII.
pub fn one_line(key: &str, value: &str) -> String {
    let escaped = |text: &str, also: &[char]| {
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.chars().enumerate() {
            match c {
                '\t' => out.push_str("\\t"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\u{c}' => out.push_str("\\f"),
                '\\' => out.push_str("\\\\"),
                // At the front it would be a comment, or lost.
                '#' | '!' | ' ' if at == 0 => out.extend(['\\', c]),
                c if also.contains(&c) => out.extend(['\\', c]),
                ' '..='~' => out.push(c),
                c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
            }
        }
        out
    };
    format!("{}={}", escaped(key, &['=', ':', ' ']), escaped(value, &[]))
}

fn one_line_of((key, value): &(String, String)) -> String {
    one_line(key, value)
}

/// Why a text is not one that people write, if it holds what they do not.
pub(crate) fn is_binary(text: &str) -> Option<String> {
    let is_odd = |c: &char| c.is_ascii_control() && !matches!(c, '\t' | '\n' | '\r' | '\u{c}' | '\u{1a}');
    let odd = text.chars().find(is_odd)?;
    Some(format!("it holds the control character U+{:04X}", u32::from(odd)))
}

/// A setting and the place of its lines.
struct Found {
    line: Line,
    /// From the beginning of its first line to the end of its last, without what ends that. In the units of the text that was scanned.
    place: Range<usize>,
    /// The file ends in the middle of it: more text would belong to it.
    goes_on: bool,
}

fn scan(text: &str) -> Result<Vec<Found>, BadEscape> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    scan_chars(&text.chars().collect::<Vec<char>>())
}

/// Each setting, and where it stands.
fn scan_chars(text: &[char]) -> Result<Vec<Found>, BadEscape> {
    let mut found = Vec::new();
    let mut lines = PhysicalLines { text, at: 0, number: 0 };
    while let Some((number, first, _)) = lines.next() {
        let start = without_blanks(&text[first.clone()]);
        if matches!(start, [] | ['#' | '!', ..]) {
            continue;
        }
        let mut logical = start.to_vec();
        let mut end = first.end;
        let mut goes_on = false;
        // An odd number of backslashes at the end: the last one joins the next line, whose leading blanks do not count.
        while logical.iter().rev().take_while(|c| **c == '\\').count() % 2 == 1 {
            logical.pop();
            let Some((_, next, is_ended)) = lines.next() else {
                goes_on = true;
                break;
            };
            // Behind the end of the last line nothing has come yet.
            goes_on = next.is_empty() && !is_ended;
            if !goes_on {
                end = next.end;
            }
            logical.extend_from_slice(without_blanks(&text[next]));
        }
        let logical: String = logical.into_iter().collect();
        let (key, value) = split(&logical);
        let value = value.trim_end_matches(is_blank);
        let unescape = |text: &str| unescape(text).ok_or(BadEscape { number });
        let of_java = match value.is_ascii() {
            true => None,
            false => Some(unescape(&value.bytes().map(char::from).collect::<String>())?),
        };
        let line = Line { number, key: unescape(key)?, value: unescape(value)?, of_java };
        found.push(Found { line, place: first.start..end, goes_on });
    }
    Ok(found)
}

/// The lines of a text as Java ends them, with `\n`, `\r` or both: their numbers, their places, and whether something ends them.
struct PhysicalLines<'a> {
    text: &'a [char],
    at: usize,
    number: usize,
}

impl Iterator for PhysicalLines<'_> {
    type Item = (usize, Range<usize>, bool);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.text.get(self.at..)?;
        self.number += 1;
        let start = self.at;
        let Some(length) = rest.iter().position(|c| matches!(c, '\n' | '\r')) else {
            // Past the end, so that the next call finds nothing.
            self.at = self.text.len() + 1;
            return Some((self.number, start..self.text.len(), false));
        };
        let end = start + length;
        self.at = end + if rest[length..].starts_with(&['\r', '\n']) { 2 } else { 1 };
        Some((self.number, start..end, true))
    }
}

fn without_blanks(line: &[char]) -> &[char] {
    &line[line.iter().take_while(|c| is_blank(**c)).count()..]
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\u{c}')
}

/// At the first `=`, `:` or blank that is not escaped; blanks around one separator belong to it.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line
        .char_indices()
        .find(|(_, c)| {
            let ends = !is_escaped && (matches!(c, '=' | ':') || is_blank(*c));
            is_escaped = *c == '\\' && !is_escaped;
            ends
        })
        .map_or(line.len(), |(at, _)| at);
    let rest = line[end..].trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..end], rest.trim_start_matches(is_blank))
}

fn unescape(text: &str) -> Option<String> {
    if !text.contains('\\') {
        return Some(text.to_owned());
    }
    // Java counts in UTF-16: a character beyond the first plane is written as two escapes.
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    let push = |units: &mut Vec<u16>, c: char| units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
    while let Some(c) = chars.next() {
        if c != '\\' {
            push(&mut units, c);
            continue;
        }
        match chars.next() {
            None => break,
            Some('t') => push(&mut units, '\t'),
            Some('n') => push(&mut units, '\n'),
            Some('r') => push(&mut units, '\r'),
            Some('f') => push(&mut units, '\u{c}'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let is_hex = digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                units.push(is_hex.then(|| u16::from_str_radix(&digits, 16).ok()).flatten()?);
            }
            Some(other) => push(&mut units, other),
        }
    }
    Some(String::from_utf16_lossy(&units))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text).unwrap().into_iter().map(|line| (line.key, line.value)).collect()
    }

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn all_three_separators_and_both_comments_are_understood() {
        let text = "# one\n! two\n\na=1\n b : 2 \nc 3\nd\ne==5\n";
        assert_eq!(pairs(text), [pair("a", "1"), pair("b", "2"), pair("c", "3"), pair("d", ""), pair("e", "=5")]);
    }

    #[test]
    fn a_backslash_joins_lines_and_two_do_not() {
        assert_eq!(pairs("a=x;\\\n   y\nb=z\\\\\nc=1"), [pair("a", "x;y"), pair("b", "z\\"), pair("c", "1")]);
        assert_eq!(pairs("a=1\\"), [pair("a", "1")]);
    }

    #[test]
    fn escapes_are_those_of_java() {
        assert_eq!(pairs("a\\=b=c\\td\\u4e2d\\ud83d\\ude00\\q"), [pair("a=b", "c\td中😀q")]);
        assert_eq!(parse("x=1\ny=\\u12"), Err(BadEscape { number: 2 }));
    }

    #[test]
    fn windows_line_ends_and_blanks_at_the_end_do_not_count() {
        assert_eq!(pairs("listenPort=10911 \r\nbrokerId=0\r\n"), [pair("listenPort", "10911"), pair("brokerId", "0")]);
    }

    #[test]
    fn a_line_keeps_the_number_where_it_begins() {
        let numbers: Vec<usize> = parse("#\na=1\\\n2\n\nb=3").unwrap().iter().map(|line| line.number).collect();
        assert_eq!(numbers, [2, 5]);
    }

    fn changed(text: &[u8], changes: &[(String, String)]) -> String {
        String::from_utf8(with_changes(text, changes).unwrap()).unwrap()
    }

    #[test]
    fn changed_keys_keep_their_place_new_ones_follow_and_the_rest_is_left_alone() {
        let changes = [pair("b", "1"), pair("c", "x\\y"), pair("b", "9")];
        let text = b"# b=0\na=1\n b = 2\nb:4,\\\n  5\nbb=5\n";
        assert_eq!(changed(text, &changes), "# b=0\na=1\n b = 2\nb=9\nbb=5\nc=x\\\\y\n");
        assert_eq!(changed(b"", &changes[..1]), "b=1\n");
    }

    #[test]
    fn a_setting_over_several_lines_is_replaced_as_a_whole_and_others_are_left_alone() {
        let text = b"# a comment \\\na=x,\\\n  y,\\\n  z\nb=p\\\n  a=q\nc=d\\\\\n";
        let expected = "# a comment \\\na=1\nb=p\\\n  a=q\nc=d\\\\\n";
        assert_eq!(changed(text, &[pair("a", "1")]), expected);
    }

    #[test]
    fn a_file_keeps_its_line_ends_its_mark_and_its_missing_last_line_end() {
        let changes = [pair("b", "2"), pair("c", "3")];
        for (before, after) in [
            ("a=1\r\nb=1\r\n", "a=1\r\nb=2\r\nc=3\r\n"),
            ("a=1\rb=1\r", "a=1\rb=2\rc=3\r"),
            ("a=1\nb=1", "a=1\nb=2\nc=3"),
            ("\u{feff}b=1\n", "\u{feff}b=2\nc=3\n"),
            ("\u{feff}", "\u{feff}b=2\nc=3\n"),
            ("a=1\r\n# no end", "a=1\r\n# no end\r\nb=2\r\nc=3"),
        ] {
            assert_eq!(changed(before.as_bytes(), &changes), after, "{before:?}");
        }
    }

    #[test]
    fn a_change_never_becomes_a_part_of_a_last_line_that_ends_in_a_backslash() {
        for text in ["storePathRootDir=/data\\", "storePathRootDir=/data\\\n", "storePathRootDir=/da\\\n ta\\"] {
            let before = pairs(text);
            let after = changed(text.as_bytes(), &[pair("b", "2")]);
            assert!(after.starts_with(text), "{after:?}");
            assert_eq!(pairs(&after), [before, vec![pair("b", "2")]].concat(), "{after:?}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf_8_stay_as_they_are_and_new_values_are_ascii() {
        // A comment in GBK; the second byte of one of its letters is a backslash.
        let text = b"# \xc5\xe4\xd6\xc3\x81\x5c\na=\xd6\xd0\nb=1\n";
        let after = with_changes(text, &[pair("b", "中😀")]).unwrap();
        assert_eq!(after, b"# \xc5\xe4\xd6\xc3\x81\x5c\na=\xd6\xd0\nb=\\u4e2d\\ud83d\\ude00\n");
        assert_eq!(pairs(&text_of(after)), [pair("a", "ÖÐ"), pair("b", "中😀")]);
    }

    #[test]
    fn latin_1_is_read_when_it_is_not_utf_8() {
        assert_eq!(pairs(&text_of(vec![b'a', b'=', 0xe9])), [pair("a", "é")]);
        assert_eq!(pairs(&text_of(b"a=\\\xe9\\\\\xe9".to_vec())), [pair("a", "é\\é")]);
        assert_eq!(pairs(&text_of("\u{feff}a=中".as_bytes().to_vec())), [pair("a", "中")]);
    }

    #[test]
    fn letters_beyond_ascii_are_others_for_java_unless_they_are_escaped() {
        let of_java = |text: &str| parse(text).unwrap().remove(0).of_java;
        assert_eq!(of_java("a=é\\u4e2d"), Some("Ã©中".to_owned()));
        assert_eq!(of_java("a=\\u4e2d"), None);
        assert_eq!(of_java(&text_of(vec![b'a', b'=', 0xe9])), None);
    }

    #[test]
    fn a_carriage_return_alone_ends_a_line_as_for_java() {
        assert_eq!(pairs("a=1\rb=2\r\nc=3"), [pair("a", "1"), pair("b", "2"), pair("c", "3")]);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-z=:#!\\\\ \t\r\nu0-9é中]{0,200}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_is_changed_is_read_again_as_it_was_said(
            text in "[a-c=:#\\\\ \t\n]{0,60}",
            key in "[a-c=:# !\\\\\t\n中]{1,6}",
            value in "[a-c=:# !\\\\\t\n中]{0,20}",
        ) {
            let value = value.trim().to_owned();
            prop_assume!(parse(&text).is_ok());
            let changed = with_changes(text.as_bytes(), &[(key.clone(), value.clone())]).unwrap();
            let changed = String::from_utf8(changed).unwrap();
            let of_key = pairs(&changed).into_iter().rfind(|(found, _)| *found == key);
            prop_assert_eq!(of_key, Some((key.clone(), value)));
            let others = |text: &str| pairs(text).into_iter().filter(|(found, _)| *found != key).collect::<Vec<_>>();
            prop_assert_eq!(others(&changed), others(&text));
        }

        #[test]
        fn plain_settings_come_back_as_they_were(settings in proptest::collection::vec(("[a-zA-Z.]{1,20}", "[a-zA-Z0-9/:;.-]{0,30}"), 0..20)) {
            let text: String = settings.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
            let expected: Vec<_> = settings.iter().map(|(k, v)| pair(k, v.trim_start_matches([':', '=']))).collect();
            let found = pairs(&text);
            prop_assert_eq!(found.len(), expected.len());
            for ((key, value), (expected_key, _)) in found.iter().zip(&expected) {
                prop_assert_eq!(key, expected_key);
                prop_assert!(text.contains(value.as_str()));
            }
        }
    }
}
