//! From a key to records.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use protocol::LogOffset;
use protocol::record::{self, Scanned};

use super::files::KeyIndex;
use crate::error::StoreError;
use crate::fold::{KeyKind, has_own, hash_of, inner_with};
use crate::record_at::RecordAt;
use crate::segment::LogSlice;
use crate::store::Store;

/// How long a question waits for the index to come as far as the log.
const PATIENCE: Duration = Duration::from_secs(2);
/// Entries of the index that one question looks at: a tag that is everywhere has a chain of millions.
const ENTRIES_MAX: usize = 1_000_000;
/// Bytes of records in one answer, the first record whatever its size: clients take frames of 16 MiB.
const BYTES_MAX: usize = 8 << 20;

/// A question.
#[derive(Clone, Debug)]
pub struct KeyQuery {
    /// Of this topic.
    pub topic: String,
    /// With this key.
    pub key: String,
    /// What the key is.
    pub kind: KeyKind,
    /// Messages at most.
    pub max: usize,
    /// Stored no earlier, in ms.
    pub begin: i64,
    /// Stored no later, in ms.
    pub end: i64,
}

/// A message that was found.
#[derive(Debug)]
pub enum KeyMatch {
    /// A whole record of the log.
    Record(LogSlice),
    /// A message of a batch that is one record (BatchCQ), as a record of its own.
    Inner(Vec<u8>),
}

impl KeyMatch {
    /// The record.
    pub fn bytes(&self) -> &[u8] {
        match self {
            KeyMatch::Record(slice) => slice.as_ref(),
            KeyMatch::Inner(record) => record,
        }
    }
}

/// What was found, newest first.
#[derive(Debug, Default)]
pub struct KeyAnswer {
    /// The messages.
    pub found: Vec<KeyMatch>,
    /// Store time of the newest record that has a key, in ms; 0 if there is none.
    pub index_timestamp: i64,
    /// Where that record lies.
    pub index_offset: i64,
    /// So many entries have the key that not all of them were looked at.
    pub is_cut: bool,
}

impl Store {
    /// Looks up messages by key. What was appended before the call is found. May wait for the device.
    pub fn query(&self, query: &KeyQuery) -> Result<KeyAnswer, StoreError> {
        let Some(index) = &self.shared.index else { return Ok(KeyAnswer::default()) };
        index.catch_up(self.end().0);
        let header = index.newest_header().unwrap_or_default();
        let mut answer = KeyAnswer {
            found: Vec::new(),
            index_timestamp: header.end_timestamp,
            index_offset: header.end_offset,
            is_cut: false,
        };
        if query.max == 0 {
            return Ok(answer);
        }
        let hash = hash_of(&query.topic, query.kind, &query.key);
        let (mut seen, mut bytes) = (HashSet::new(), 0);
        let mut entries_left = ENTRIES_MAX;
        let files = index.files.read().clone();
        for file in files.iter().rev() {
            let header = file.header();
            if header.end_timestamp < query.begin {
                break;
            }
            if header.is_empty() || header.begin_timestamp > query.end {
                continue;
            }
            let wants_more = file.find(hash, query.begin, query.end, &mut entries_left, &mut |at| {
                // A record whose keys are in two files, or twice in one.
                if !seen.insert(at) {
                    return Ok(true);
                }
                // An index is a hint: where it leads to nothing, nothing is lost.
                let RecordAt::Record(slice) = self.record_at_cold(LogOffset(at))? else { return Ok(true) };
                for found in matches(slice, query, query.max - answer.found.len()) {
                    bytes += found.bytes().len();
                    if bytes > BYTES_MAX && !answer.found.is_empty() {
                        return Ok(false);
                    }
                    answer.found.push(found);
                    if answer.found.len() >= query.max {
                        return Ok(false);
                    }
                }
                Ok(true)
            })?;
            answer.is_cut = entries_left == 0;
            if !wants_more || answer.is_cut {
                break;
            }
        }
        Ok(answer)
    }
}

/// The messages of a record, `max` at most, that the question is for: different keys share hashes, and an entry knows seconds only.
fn matches(slice: LogSlice, query: &KeyQuery, max: usize) -> Vec<KeyMatch> {
    let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), false) else { return Vec::new() };
    let stored = view.store_timestamp();
    if view.topic() != query.topic || stored < query.begin || query.end < stored {
        return Vec::new();
    }
    if has_own(&view, query.kind, &query.key) {
        return vec![KeyMatch::Record(slice)];
    }
    inner_with(&view, query.kind, &query.key, max).into_iter().map(KeyMatch::Inner).collect()
}

impl KeyIndex {
    fn catch_up(&self, end: u64) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.bell.ring();
        self.indexed.wait_until(end, Instant::now() + PATIENCE);
        self.asked.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether somebody waits.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst) > 0
    }
}
