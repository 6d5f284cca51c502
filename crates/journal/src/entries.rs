//! Changes on their way to a second machine: the entries of a bundle ([`crate::bundle`]), without the bundle.
//!
//! They come from a connection, so every length is checked, and nothing is believed that the writer would not have written.

use crate::bundle::{self, ENTRY_HEADER_BYTES};
use crate::change::{Change, TableId};

/// Bytes that are no changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the changes of {bytes} bytes do not add up at byte {at}: {what}")]
pub struct EntriesError {
    /// Where the entry begins.
    pub at: usize,
    /// How many bytes there are in all.
    pub bytes: usize,
    /// What is wrong.
    pub what: &'static str,
}

/// Adds a change to `out`.
pub fn write_change(out: &mut Vec<u8>, change: Change<'_>) {
    bundle::put_entry(out, change.table, change.key, change.value);
}

/// The changes that [`write_change`] has written one behind the other, in order.
///
/// # Errors
/// If any byte of them is not what it would have written.
pub fn read_changes(entries: &[u8]) -> Result<Vec<Change<'_>>, EntriesError> {
    let (mut changes, mut rest) = (Vec::new(), entries);
    // Each turn passes a header at least.
    while !rest.is_empty() {
        let at = entries.len() - rest.len();
        let (change, left) = read_change(rest).map_err(|what| EntriesError { at, bytes: entries.len(), what })?;
        changes.push(change);
        rest = left;
    }
    Ok(changes)
}

/// The change at the start, and what follows it.
fn read_change(entries: &[u8]) -> Result<(Change<'_>, &[u8]), &'static str> {
    let (header, rest) = entries.split_at_checked(ENTRY_HEADER_BYTES).ok_or("its header is cut short")?;
    let length = |at| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    let (key_bytes, value_bytes) = (length(2), length(6));
    let (key, rest) = rest.split_at_checked(key_bytes).ok_or("its key is longer than what is left")?;
    let (value, rest) = rest.split_at_checked(value_bytes).ok_or("its value is longer than what is left")?;
    let value = match (header[1], value) {
        (1, value) => Some(value),
        (0, []) => None,
        (0, _) => return Err("a deletion has a value"),
        _ => return Err("it is neither a value nor a deletion"),
    };
    Ok((Change { table: TableId(header[0]), key, value }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = Vec::new();
        for (table, key, value) in
            [(1, &b"topic"[..], Some(&b"{}"[..])), (6, b"T@G", None), (21, b"", Some(b"")), (200, b"k", Some(b"value"))]
        {
            write_change(&mut bytes, Change { table: TableId(table), key, value });
        }
        bytes
    }

    /// Table, key and value.
    type Plain<'a> = (u8, &'a [u8], Option<&'a [u8]>);

    fn plain<'a>(change: &Change<'a>) -> Plain<'a> {
        (change.table.0, change.key, change.value)
    }

    #[test]
    fn changes_are_read_as_they_were_written() {
        let bytes = sample();
        let changes: Vec<_> = read_changes(&bytes).unwrap().iter().map(plain).collect();
        let expected: [Plain<'_>; 4] =
            [(1, b"topic", Some(b"{}")), (6, b"T@G", None), (21, b"", Some(b"")), (200, b"k", Some(b"value"))];
        assert_eq!(changes, expected);
        assert!(read_changes(&[]).unwrap().is_empty());
    }

    #[test]
    fn changes_that_are_cut_short_or_damaged_are_refused_or_others_and_never_more_than_came() {
        let bytes = sample();
        let ends: Vec<usize> = {
            let mut written = Vec::new();
            let mut ends = vec![0];
            for change in read_changes(&bytes).unwrap() {
                write_change(&mut written, change);
                ends.push(written.len());
            }
            ends
        };
        for end in 0..bytes.len() {
            assert_eq!(read_changes(&bytes[..end]).is_ok(), ends.contains(&end), "cut at {end}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                // What is taken is what those bytes say: written again they are the same.
                if let Ok(changes) = read_changes(&damaged) {
                    let mut again = Vec::new();
                    changes.into_iter().for_each(|change| write_change(&mut again, change));
                    assert_eq!(again, damaged, "bit {bit} of byte {at}");
                }
            }
        }
        let what = |bytes: &[u8]| read_changes(bytes).unwrap_err();
        assert_eq!(what(&[1; 9]), EntriesError { at: 0, bytes: 9, what: "its header is cut short" });
        assert_eq!(what(&[1, 1, 255, 255, 255, 255, 0, 0, 0, 0]).what, "its key is longer than what is left");
        assert_eq!(what(&[1, 1, 0, 0, 0, 0, 255, 255, 255, 255]).what, "its value is longer than what is left");
        assert_eq!(what(&[1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7]).what, "a deletion has a value");
        assert_eq!(what(&[1, 2, 0, 0, 0, 0, 0, 0, 0, 0]).what, "it is neither a value nor a deletion");
    }
}
