//! What a store looked like when it was closed, kept in the journal: so that the next start notices consume queues that were
//! deleted or cut while nobody was looking.
//!
//! Another broker may have had the store in between. It moves the log's end, and then nothing here applies any more: a start
//! compares the queues only where the log is what it was.

use journal::{Journal, JournalLook, TableId};
use protocol::LogOffset;

use crate::queue_log::{QueueLogs, fnv};

const TABLE: TableId = TableId(250);
/// The number stands for what [`fingerprint`] counts: what counted something else is not compared.
const KEY: &[u8] = b"closed/2";

/// The store as it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    /// The log's lower end.
    pub min: u64,
    /// The log's end.
    pub end: u64,
    /// Store time of its newest record.
    pub last_timestamp: i64,
    /// Of the consume queues that have messages.
    pub queues: u64,
}

impl Closed {
    pub fn remember(&self, journal: &Journal) {
        let fields = [self.min, self.end, self.last_timestamp as u64, self.queues].map(u64::to_be_bytes);
        journal.put(TABLE, KEY, fields.as_flattened());
    }

    /// The note of the last stop holds no more.
    pub fn forget(journal: &Journal) {
        journal.delete(TABLE, KEY);
    }

    pub fn recall(journal: &Journal) -> Option<Closed> {
        let mut closed = None;
        journal.load(TABLE, |key, value| closed = Closed::decode(key, value).or(closed));
        closed
    }

    /// The same of a journal that nobody opens.
    pub fn in_look(journal: &JournalLook) -> Option<Closed> {
        let mut closed = None;
        journal.load(TABLE, |key, value| closed = Closed::decode(key, value).or(closed));
        closed
    }

    fn decode(key: &[u8], value: &[u8]) -> Option<Closed> {
        match (key, value.as_chunks::<8>()) {
            (KEY, ([min, end, last_timestamp, queues], [])) => Some(Closed {
                min: u64::from_be_bytes(*min),
                end: u64::from_be_bytes(*end),
                last_timestamp: i64::from_be_bytes(*last_timestamp),
                queues: u64::from_be_bytes(*queues),
            }),
            _another => None,
        }
    }
}

/// A number for where the files of all queues begin and the queues end, whatever their order. Queues without a message that the log still has do not count: they
/// may or may not have left a file.
pub(crate) fn fingerprint(queues: &QueueLogs, log_min: u64) -> u64 {
    let living = queues.queues().into_iter().filter(|queue| queue.log_end() > LogOffset(log_min));
    living.fold(0, |sum: u64, queue| {
        let numbers =
            [u64::from(queue.id()), queue.files_begin(), queue.max_offset(), queue.log_end().0].map(u64::to_be_bytes);
        sum.wrapping_add(fnv(queue.topic().as_bytes().iter().chain(numbers.as_flattened())))
    })
}
