//! Where the log of a deleted topic ended, kept in the journal.
//!
//! The log keeps the messages of a deleted topic until their file goes, and a start after a crash builds queues from the log.
//! What lies below a topic's mark belongs to a life that is over: it must not come back, let alone under the offsets of a new
//! life of the same name. A mark is dropped when nothing lies below it any more,
//! and the files of the topic's queues are gone.

use std::collections::{HashMap, HashSet};

use journal::{Journal, JournalLook, TableId};

const TABLE: TableId = TableId(251);

/// By topic, the log offset below which its messages are none of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deleted(HashMap<String, u64>);

impl Deleted {
    pub fn remember(journal: &Journal, topic: &str, end: u64) -> u64 {
        journal.put(TABLE, topic.as_bytes(), &end.to_be_bytes())
    }

    pub fn recall(journal: &Journal) -> Deleted {
        let mut deleted = Deleted::default();
        journal.load(TABLE, |topic, end| deleted.note(topic, end));
        deleted
    }

    /// The same of a journal that nobody opens.
    pub fn in_look(journal: &JournalLook) -> Deleted {
        let mut deleted = Deleted::default();
        journal.load(TABLE, |topic, end| deleted.note(topic, end));
        deleted
    }

    fn note(&mut self, topic: &[u8], end: &[u8]) {
        if let (Ok(topic), Ok(end)) = (std::str::from_utf8(topic), <[u8; 8]>::try_from(end)) {
            self.0.insert(topic.to_owned(), u64::from_be_bytes(end));
        }
    }

    /// The log offset below which messages of the topic belong to a life that is over; 0 if it was never deleted.
    pub fn end_of(&self, topic: &str) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.get(topic).copied().unwrap_or(0) }
    }

    /// The topics and their marks.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(topic, end)| (topic.as_str(), *end))
    }

    /// Drops the marks of what the log has no more, but for those of topics in `kept`. Says whether
    /// that was all of them.
    pub fn forget_below(&self, journal: &Journal, min: u64, kept: &HashSet<String>) -> bool {
        let mut is_all = true;
        for (topic, _) in self.iter().filter(|(_, mark)| *mark <= min) {
            if kept.contains(topic) {
                is_all = false;
            } else {
                journal.delete(TABLE, topic.as_bytes());
            }
        }
        is_all
    }

    /// Brings the marks to what the log has, from `min` to `end`. A log that lost its end will have new messages above it, which
    /// a mark from before must not take away: if one had to be brought down, the journal's position of that, which the device has to have first.
    pub fn follow_log(&self, journal: &Journal, min: u64, end: u64) -> Option<u64> {
        let mut brought_down = None;
        for (topic, mark) in self.iter() {
            let position = if mark.min(end) <= min {
                journal.delete(TABLE, topic.as_bytes())
            } else if mark > end {
                Deleted::remember(journal, topic, end)
            } else {
                continue;
            };
            if mark > end {
                brought_down = Some(position);
            }
        }
        brought_down
    }
}
