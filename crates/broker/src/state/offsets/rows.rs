//! Committed offsets as rows of the journal: keys, values, and the table that a snapshot is made of.

use std::sync::Arc;

use env::TimeMs;
use journal::Table;
use store::Store;
use store::look::Committed;

use crate::state::offsets::{Change, Offsets, SEPARATOR, split_key};
use crate::tables;

/// Puts what has changed into the journal. Returns the position after it.
pub(crate) fn put(store: &Store, offsets: &Offsets) -> u64 {
    let journal = store.journal();
    let is_new_version = offsets.take_changes(&mut |change, key| {
        write_key(key, &change);
        match change.offset {
            Some(offset) => journal.put(tables::OFFSETS, key, &value(offset, change.committed_at)),
            None => journal.delete(tables::OFFSETS, key),
        }
    });
    if is_new_version {
        let version = serde_json::to_vec(&offsets.version()).unwrap_or_default();
        journal.put(tables::VERSIONS, tables::OFFSETS_VERSION, &version);
    }
    journal.position()
}

/// Key of an offset in the journal.
pub(crate) fn write_key(key: &mut Vec<u8>, change: &Change<'_>) {
    key.clear();
    key.extend_from_slice(change.topic.as_bytes());
    key.push(SEPARATOR as u8);
    key.extend_from_slice(change.group.as_bytes());
    key.push(0);
    key.extend_from_slice(&change.queue_id.to_be_bytes());
}

/// Value of an offset in the journal.
pub(crate) fn value(offset: i64, committed_at: TimeMs) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&offset.to_le_bytes());
    bytes[8..].copy_from_slice(&committed_at.0.to_le_bytes());
    bytes
}

/// The offset, and when it was committed.
pub(crate) fn parse_value(value: &[u8]) -> Option<(i64, Option<TimeMs>)> {
    let (offset, rest) = value.split_first_chunk::<8>()?;
    let committed_at = match rest {
        [] => None,
        rest => Some(TimeMs(i64::from_le_bytes(rest.try_into().ok()?))),
    };
    Some((i64::from_le_bytes(*offset), committed_at))
}

/// Topic, group and queue of a key.
pub(crate) fn parse_key(key: &[u8]) -> Option<(&str, &str, i32)> {
    let (names, queue_id) = key.split_last_chunk::<4>()?;
    let names = std::str::from_utf8(names.strip_suffix(&[0])?).ok()?;
    let (topic, group) = split_key(names)?;
    Some((topic, group, i32::from_be_bytes(*queue_id)))
}

/// An entry of the journal's table of offsets; none if it is not understood, or no offset that a queue can have.
pub(crate) fn committed(key: &[u8], value: &[u8]) -> Option<Committed> {
    let (topic, group, queue_id) = parse_key(key)?;
    let (offset, _) = parse_value(value)?;
    let (queue_id, offset) = (queue_id.try_into().ok()?, offset.try_into().ok()?);
    Some(Committed { group: group.to_owned(), topic: topic.to_owned(), queue_id, offset })
}

/// The offsets that the journal holds.
pub(crate) fn load(store: &Store, offsets: &Offsets, now: TimeMs) {
    store.journal().load(tables::OFFSETS, |key, value| {
        match (parse_key(key), parse_value(value)) {
            (Some((topic, group, queue_id)), Some((offset, committed_at))) => {
                // Of unknown age: what the group has not read yet is kept once more for as long as any message is.
                offsets.restore(topic, group, queue_id, offset, committed_at.unwrap_or(now))
            }
            // The journal's checksums hold, so this was written by a broker that knows more than we do.
            (None, _) | (_, None) => {
                tracing::error!(key = %String::from_utf8_lossy(key), "offset in the journal not understood")
            }
        }
    });
    store.journal().load(tables::VERSIONS, |name, value| {
        if name == tables::OFFSETS_VERSION
            && let Ok(version) = serde_json::from_slice(value)
        {
            offsets.set_version(version);
        }
    });
}

/// The table, for snapshots.
pub(crate) struct OffsetTable(pub(crate) Arc<Offsets>);

impl Table for OffsetTable {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let mut key = Vec::new();
        self.0.for_each(&mut |change| {
            if let Some(offset) = change.offset {
                write_key(&mut key, &change);
                f(&key, &value(offset, change.committed_at));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_an_offset_is_read_as_it_was_written() {
        let mut key = Vec::new();
        write_key(
            &mut key,
            &Change { topic: "%RETRY%G", group: "G", queue_id: 258, offset: None, committed_at: TimeMs(0) },
        );
        assert_eq!(parse_key(&key), Some(("%RETRY%G", "G", 258)));
        for (topic, group) in [("%LMQ%GID@@@device", "G"), ("T", "%LMQ%GID@@@device"), ("%LMQ%a", "%LMQ%a")] {
            write_key(&mut key, &Change { topic, group, queue_id: 0, offset: None, committed_at: TimeMs(0) });
            assert_eq!(parse_key(&key), Some((topic, group, 0)));
        }
        assert_eq!(parse_key(b"T@G"), None);
        assert_eq!(parse_value(&value(7, TimeMs(9))), Some((7, Some(TimeMs(9)))));
        assert_eq!(parse_value(&7i64.to_le_bytes()), Some((7, None)));
        assert_eq!(parse_value(b"seven"), None);
    }
}
