//! Java's property files: `key=value`, `key: value` or `key value`, comments with `#` and `!`, `\` at the end of a line, escapes.
//!
//! Pure text in, lines out. One difference to Java is wanted: blanks after a value are cut, because `10911 ` is a typing error that
//! RocketMQ answers by taking its default without a word.

/// One setting of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where it begins, counted from 1.
    pub number: usize,
    /// Before the separator, unescaped.
    pub key: String,
    /// Behind it, unescaped and without blanks around.
    pub value: String,
}

/// Why a line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {number}: \\u must be followed by four hexadecimal digits")]
pub struct BadEscape {
    /// Where the line begins, counted from 1.
    pub number: usize,
}

/// The text of a file. RocketMQ's files are Latin-1 by the letter of Java's rules and UTF-8 in practice; both are read.
pub fn text_of(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text),
        Err(not_utf8) => not_utf8.into_bytes().into_iter().map(char::from).collect(),
    }
}

/// Cuts a file into its settings, in order. A key may appear more than once.
pub fn parse(text: &str) -> Result<Vec<Line>, BadEscape> {
    Ok(scan(text)?.into_iter().map(|(line, _)| line).collect())
}

/// The file with other values: a line that sets a changed key is replaced where it stands, all others stay as they are, and what the
/// file did not set follows at the end. Of several changes of one key the last counts.
pub fn with_changes(text: &str, changes: &[(String, String)]) -> Result<String, BadEscape> {
    let settings = scan(text)?;
    let mut left: Vec<&(String, String)> = Vec::new();
    for (place, change) in changes.iter().enumerate() {
        if !changes[place + 1..].iter().any(|later| later.0 == change.0) {
            left.push(change);
        }
    }
    let keys: Vec<&str> = left.iter().map(|(key, _)| key.as_str()).collect();
    let mut settings = settings.iter().filter(|(line, _)| keys.contains(&line.key.as_str())).peekable();
    let mut out = String::with_capacity(text.len());
    // Counted from 1; the lines of the replaced setting end here.
    let mut replaced_to = 0;
    for (number, physical) in (1..).zip(text.lines()) {
        if let Some((line, last)) = settings.next_if(|(line, _)| line.number == number) {
            replaced_to = *last;
            if let Some(at) = left.iter().position(|(key, _)| *key == line.key) {
                out.push_str(&setting(left.remove(at)));
            }
        }
        if number > replaced_to {
            out.push_str(physical);
            out.push('\n');
        }
    }
    if out.trim_end_matches('\n').bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1 {
        // The last line would go on in ours.
        out.push('\n');
    }
    left.into_iter().for_each(|change| out.push_str(&setting(change)));
    Ok(out)
}

/// A line that [`parse`] reads as this key and value.
fn setting((key, value): &(String, String)) -> String {
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
                c => out.push(c),
            }
        }
        out
    };
    format!("{}={}\n", escaped(key, &['=', ':', ' ']), escaped(value, &[]))
}

/// Each setting, and the number of the last line that belongs to it.
fn scan(text: &str) -> Result<Vec<(Line, usize)>, BadEscape> {
    let mut found = Vec::new();
    let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).enumerate();
    while let Some((index, first)) = lines.next() {
        let start = first.trim_start_matches(is_blank);
        if start.is_empty() || start.starts_with(['#', '!']) {
            continue;
        }
        let mut logical = start.to_owned();
        let mut end = index + 1;
        // An odd number of backslashes at the end: the last one joins the next line, whose leading blanks do not count.
        while logical.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1 {
            logical.pop();
            let Some((index, next)) = lines.next() else { break };
            end = index + 1;
            logical.push_str(next.trim_start_matches(is_blank));
        }
        let number = index + 1;
        let (key, value) = split(&logical);
        let unescape = |text: &str| unescape(text).ok_or(BadEscape { number });
        let line = Line { number, key: unescape(key)?, value: unescape(value.trim_end_matches(is_blank))? };
        found.push((line, end));
    }
    Ok(found)
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

    #[test]
    fn changed_keys_keep_their_place_new_ones_follow_and_the_rest_is_left_alone() {
        let changes = [pair("b", "1"), pair("c", "x\\y"), pair("b", "9")];
        let text = "# b=0\na=1\n b = 2,\\\n  3\nb:4\nbb=5";
        assert_eq!(with_changes(text, &changes).unwrap(), "# b=0\na=1\nb=9\nbb=5\nc=x\\\\y\n");
        assert_eq!(with_changes("", &changes[..1]).unwrap(), "b=1\n");
    }

    #[test]
    fn latin_1_is_read_when_it_is_not_utf_8() {
        assert_eq!(text_of(vec![b'a', b'=', 0xe9]), "a=é");
        assert_eq!(text_of("\u{feff}a=中".as_bytes().to_vec()), "a=中");
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
            let changed = with_changes(&text, &[(key.clone(), value.clone())]).unwrap();
            let of_key: Vec<_> = pairs(&changed).into_iter().filter(|(found, _)| *found == key).collect();
            prop_assert_eq!(of_key, [(key.clone(), value)]);
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
