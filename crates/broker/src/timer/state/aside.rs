//! The timer messages that are set aside since the device did not give them. The task tries them
//! again (`timer/duty/aside.rs`).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;
use journal::Journal;
use parking_lot::Mutex;
use protocol::LogOffset;

use crate::unreadable::Tries;
use crate::{tables, wall_time};

/// So many are set aside, a row of the journal each. With more of them the queue waits for the
/// first, and slots stay open.
pub(crate) const ASIDE_MAX: usize = 10_000;
/// So many recalls are kept for them.
pub(crate) const RECALLS_MAX: usize = 10_000;

#[derive(Debug, Default)]
struct Waiting {
    /// By place in the log: when each was taken in, or set aside, in ms.
    messages: BTreeMap<u64, i64>,
    /// By slot: what was taken back.
    recalls: BTreeSet<(i64, Box<str>)>,
}

/// What the journal knows of.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Guards itself only.
    state: Mutex<Waiting>,
}

fn recall_row(slot: i64, key: &str) -> Vec<u8> {
    // Longer than the row of a message: the key of a recall is not empty.
    [&slot.to_be_bytes(), key.as_bytes()].concat()
}

impl Rows {
    /// Takes a row of the journal, if it is one of these.
    pub(crate) fn load(&self, key: &[u8], value: &[u8]) {
        let Some((number, key)) = key.split_first_chunk::<8>() else { return };
        let state = &mut *self.state.lock();
        if !key.is_empty() {
            state.recalls.insert((i64::from_be_bytes(*number), String::from_utf8_lossy(key).into()));
        } else if let Ok(taken_in) = value.try_into() {
            state.messages.insert(u64::from_be_bytes(*number), i64::from_be_bytes(taken_in));
        }
    }

    pub(crate) fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let (messages, recalls) = {
            let state = self.state.lock();
            (state.messages.clone(), state.recalls.clone())
        };
        messages.iter().for_each(|(at, taken_in)| f(&at.to_be_bytes(), &taken_in.to_be_bytes()));
        recalls.iter().for_each(|(slot, key)| f(&recall_row(*slot, key), &[]));
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().messages.len()
    }

    /// Where the first of them lies in the log.
    pub(crate) fn first(&self) -> Option<LogOffset> {
        self.state.lock().messages.keys().next().map(|at| LogOffset(*at))
    }

    pub(crate) fn places(&self) -> Vec<u64> {
        self.state.lock().messages.keys().copied().collect()
    }

    pub(crate) fn get(&self, at: u64) -> Option<i64> {
        self.state.lock().messages.get(&at).copied()
    }

    pub(crate) fn has(&self, at: u64) -> bool {
        self.get(at).is_some()
    }

    /// Adds a message. Returns the position in the journal; none if there are too many.
    pub(crate) fn add(&self, journal: &Journal, at: u64, taken_in: i64) -> Option<u64> {
        let messages = &mut self.state.lock().messages;
        if messages.len() >= ASIDE_MAX {
            return None;
        }
        messages.insert(at, taken_in);
        Some(journal.put(tables::TIMERS, &at.to_be_bytes(), &taken_in.to_be_bytes()))
    }

    /// Keeps recalls of a slot. Returns the position in the journal; none if there are too many.
    pub(crate) fn keep<'a>(
        &self,
        journal: &Journal,
        slot: i64,
        keys: impl ExactSizeIterator<Item = &'a str>,
    ) -> Option<u64> {
        let recalls = &mut self.state.lock().recalls;
        if recalls.len() + keys.len() > RECALLS_MAX {
            return None;
        }
        let mut position = 0;
        for key in keys.filter(|key| !key.is_empty()) {
            if recalls.insert((slot, key.into())) {
                position = journal.put(tables::TIMERS, &recall_row(slot, key), &[]);
            }
        }
        Some(position)
    }

    /// Whether a recall is kept that was due in this slot or behind it, as one is that came late.
    pub(crate) fn takes_back(&self, slot: i64, topic: &str, uniq_key: &str) -> bool {
        let with_topic = format!("{topic}+{uniq_key}");
        let state = self.state.lock();
        let mut kept = state.recalls.range((slot, Box::default())..);
        kept.any(|(_, key)| **key == *uniq_key || **key == *with_topic)
    }

    /// What became of it is on the device. Recalls are kept as long as one is left that they may
    /// take back.
    pub(crate) fn forget(&self, journal: &Journal, at: u64) {
        let state = &mut *self.state.lock();
        state.messages.remove(&at);
        journal.delete(tables::TIMERS, &at.to_be_bytes());
        if state.messages.is_empty() {
            for (slot, key) in std::mem::take(&mut state.recalls) {
                journal.delete(tables::TIMERS, &recall_row(slot, &key));
            }
        }
    }
}

/// When each is tried again. One whose fate is in the log and not flushed yet has a row and is not
/// here.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    pub(crate) due: BTreeSet<(i64, u64)>,
    pub(crate) tries: Tries<u64>,
    /// Those that are counted for their topic.
    pub(crate) counted: HashSet<u64>,
}

impl Aside {
    /// Whether it failed for the first time.
    pub(crate) fn failed(&mut self, at: u64, now: i64) -> bool {
        let (is_first, pause) = self.tries.failed(at);
        self.due.insert((now.saturating_add(pause), at));
        is_first
    }

    /// The first that is due; it is not here any more.
    pub(crate) fn take_due(&mut self, now: i64) -> Option<u64> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first().map(|(_, at)| at)
    }

    pub(crate) fn set_back(&mut self, by: i64, now: i64) {
        wall_time::set_back(&mut self.due, by, now);
    }

    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }
}
