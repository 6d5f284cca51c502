//! Keys that appends hand on: who stores a message has its properties in hand, and the thread `index` need not look for them in the log.
//!
//! It is a help only. What is not handed on, because there was no room or because whoever appended did not know the keys, is read.

use std::ops::Range;
use std::sync::Arc;

use crate::fold::{IndexKey, MessageKeys, TopicHash, each};
use crate::queue_log::ConsumeQueue;

/// Keys that wait for the thread at most, 1.5 MiB: those of 60 ms at a million messages a second, three times its pace, since the thread is
/// late where the processor is busy.
const KEYS_MAX: usize = 64 << 10;
/// Stretches of the log that wait for the thread at most, 32 KiB.
const RUNS_MAX: usize = 1 << 10;

/// Hashes the keys of records that go into the log, most of which are of the same topic as the one before.
#[derive(Default)]
pub(crate) struct Hasher {
    last: Option<(Arc<ConsumeQueue>, TopicHash)>,
}

impl Hasher {
    /// Appends the hashes that the index has of a message in this queue.
    pub fn hash(&mut self, queue: &Arc<ConsumeQueue>, message: &MessageKeys<'_>, hashes: &mut Vec<u32>) {
        let known = self.last.as_ref().filter(|(last, _)| Arc::ptr_eq(last, queue) || last.topic() == queue.topic());
        let topic = match known {
            Some((_, hash)) => *hash,
            None => self.last.insert((Arc::clone(queue), TopicHash::of(queue.topic()))).1,
        };
        each(message, &mut |kind, key| hashes.push(topic.of_key(kind, key)));
    }

    /// Lets go of the queue.
    pub fn clear(&mut self) {
        self.last = None;
    }
}

/// Records that lie one behind the other in the log, all of whose keys are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub from: u64,
    pub to: u64,
    /// Which of the keys that are handed on are theirs.
    pub keys: Range<usize>,
}

/// Runs in the order of the log, and their keys. Never grows.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    pub runs: Vec<Run>,
    pub keys: Vec<IndexKey>,
}

impl Ahead {
    pub fn with_room() -> Ahead {
        Ahead { runs: Vec::with_capacity(RUNS_MAX), keys: Vec::with_capacity(KEYS_MAX) }
    }

    /// Takes note of a record, if there is room. Under the log's lock, so it does nothing else.
    pub fn note(&mut self, at: u64, end: u64, store_timestamp: i64, hashes: &[u32]) {
        if self.keys.capacity() - self.keys.len() < hashes.len() {
            return;
        }
        let keys = self.keys.len()..self.keys.len() + hashes.len();
        let is_room_for_a_run = self.runs.len() < self.runs.capacity();
        match self.runs.last_mut() {
            Some(run) if run.to == at => (run.to, run.keys.end) = (end, keys.end),
            _ if is_room_for_a_run => self.runs.push(Run { from: at, to: end, keys }),
            _ => return,
        }
        self.keys.extend(hashes.iter().map(|hash| IndexKey { hash: *hash, at, store_timestamp }));
    }

    pub fn clear(&mut self) {
        self.runs.clear();
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(ahead: &Ahead) -> Vec<(u64, u64, usize)> {
        ahead.runs.iter().map(|run| (run.from, run.to, run.keys.len())).collect()
    }

    #[test]
    fn records_without_a_gap_between_them_are_one_run_also_when_they_have_no_keys() {
        let mut ahead = Ahead::with_room();
        for (at, end, hashes) in [(10, 20, &[1, 2][..]), (20, 30, &[]), (30, 40, &[3]), (50, 60, &[4])] {
            ahead.note(at, end, 7, hashes);
        }
        assert_eq!(runs(&ahead), [(10, 40, 3), (50, 60, 1)]);
        let keys: Vec<_> = ahead.keys.iter().map(|key| (key.hash, key.at)).collect();
        assert_eq!(keys, [(1, 10), (2, 10), (3, 30), (4, 50)]);
    }

    #[test]
    fn what_finds_no_room_is_left_out_and_nothing_grows() {
        let mut none = Ahead::default();
        none.note(0, 10, 7, &[]);
        none.note(10, 20, 7, &[1]);
        assert_eq!((runs(&none), none.keys.len()), (vec![], 0));

        let mut ahead = Ahead::with_room();
        let room = (ahead.runs.capacity(), ahead.keys.capacity());
        for at in 0..1_000_000 {
            // Never one behind the other.
            ahead.note(at * 10, at * 10 + 9, 7, &[1]);
        }
        assert_eq!((ahead.runs.len(), ahead.keys.len()), (room.0, room.0));
        ahead.clear();
        for at in 0..1_000_000 {
            ahead.note(at, at + 1, 7, &[1, 2, 3]);
        }
        assert_eq!((ahead.runs.capacity(), ahead.keys.capacity()), room);
        let noted = ahead.keys.len() as u64 / 3;
        assert_eq!(runs(&ahead), [(0, noted, ahead.keys.len())]);
        // With what is behind a record without room a new run begins, not one with a hole.
        ahead.note(2_000_000, 2_000_001, 7, &[]);
        assert_eq!(runs(&ahead).last(), Some(&(2_000_000, 2_000_001, 0)));
    }
}
