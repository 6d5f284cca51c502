//! Reads what `tests/recorder` (class `FilterRecorder`) has written with the published classes.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

/// A field: `\\` is a backslash, `\uXXXX` a UTF-16 unit, everything else itself.
pub fn unescape(field: &str) -> String {
    let mut units = Vec::new();
    let mut rest = field;
    while let Some(first) = rest.bytes().next() {
        let (unit, bytes) = match rest.get(..2) {
            Some("\\u") => (u16::from_str_radix(&rest[2..6], 16).unwrap(), 6),
            Some("\\\\") => (u16::from(b'\\'), 2),
            _ => (u16::from(first), 1),
        };
        units.push(unit);
        rest = &rest[bytes..];
    }
    String::from_utf16(&units).unwrap()
}
