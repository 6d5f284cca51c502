//! Records that go into the log together: encoded outside its lock, stamped and copied inside it.

mod check;

use std::ops::Range;
use std::sync::Arc;

use env::TimeMs;
use protocol::LogOffset;

use crate::fold::{KEYS_OF_RECORD_MAX, MessageKeys};
use crate::index::Hasher;
use crate::queue_log::ConsumeQueue;

/// What a record's unit in its consume queue says besides where the record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagsCode {
    /// The hash of the message's tag.
    Code(i64),
    /// The schedule topic: when to deliver, counted from the time of storing, in ms.
    DeliverAfterMs(i64),
}

impl TagsCode {
    /// As the unit of a record holds it that is stored `now`: by the clock, which may have been set back below the last time in the log.
    /// Nobody waits for that difference.
    pub(crate) fn at(self, now: TimeMs) -> i64 {
        match self {
            TagsCode::Code(code) => code,
            TagsCode::DeliverAfterMs(delay) => now.0.saturating_add(delay),
        }
    }
}

/// Where a record came to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// Its first byte.
    pub at: LogOffset,
    /// The byte behind its last.
    pub end: LogOffset,
    /// Its number in its queue.
    pub queue_offset: u64,
    /// The time that the store wrote into it.
    pub store_timestamp: i64,
}

pub(crate) struct BatchEntry {
    pub queue: Arc<ConsumeQueue>,
    pub tags: TagsCode,
    /// With light queues: room for their numbers included, so that the record may end before.
    pub bytes: Range<usize>,
    /// Which of the batch's hashes are those of its keys, if they are known.
    pub keys: Option<Range<u32>>,
    /// Which of the batch's light queues it stands in.
    pub light: Range<u32>,
    /// Bytes of its properties; only with light queues.
    pub properties_bytes: u32,
    /// Messages in a record that is a batch: its last property is `INNER_BASE`, to be stamped. None of a record that is one message.
    pub inner: Option<u16>,
    /// Records of the same group lie in one file: a batch of messages is there as a whole or not at all.
    pub group: usize,
}

impl BatchEntry {
    pub fn count(&self) -> u16 {
        self.inner.unwrap_or(1)
    }
}

/// Encoded records and their queues. Keeps its buffers when cleared, so that a connection fills one again and again.
#[derive(Default)]
pub struct RecordBatch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<BatchEntry>,
    pub(crate) landed: Vec<Landed>,
    pub(crate) light: Vec<Arc<ConsumeQueue>>,
    /// Of keys, for the index.
    pub(crate) hashes: Vec<u32>,
    hasher: Hasher,
    /// So many of the hashes are those of records. What stands behind them was said of a record that has not come yet.
    hashes_done: usize,
    open_group: Option<usize>,
    next_group: usize,
}

/// A batch keeps buffers up to this size when it is cleared; a rare 4 MB message does not pin its memory.
const KEPT_BYTES: usize = 256 << 10;

impl RecordBatch {
    /// Empty.
    pub fn new() -> RecordBatch {
        RecordBatch::default()
    }

    /// Adds the record that `encode` appends to its argument: one message.
    pub fn push(&mut self, queue: &Arc<ConsumeQueue>, tags: TagsCode, encode: impl FnOnce(&mut Vec<u8>)) {
        self.push_entry(queue, tags, None, 0..0, 0, encode);
    }

    /// The same of a record whose keys are known: those that its properties have. It must not be one of a transaction that was rolled back.
    pub fn push_with_keys(
        &mut self,
        queue: &Arc<ConsumeQueue>,
        tags: TagsCode,
        keys: &MessageKeys<'_>,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        self.begin_keys();
        self.say_keys_of_next(queue, keys);
        self.push_entry(queue, tags, None, 0..0, 0, encode);
        self.take_said_keys();
    }

    /// Forgets what was said of the keys of a record that was not pushed then.
    pub fn begin_keys(&mut self) {
        self.hashes.truncate(self.hashes_done);
    }

    /// Says which keys the record has that comes next, by [`RecordBatch::push_inner_batch_with_keys`] to this queue: its own first, then those
    /// of each message in it.
    pub fn say_keys_of_next(&mut self, queue: &Arc<ConsumeQueue>, keys: &MessageKeys<'_>) {
        if self.hashes.len() - self.hashes_done <= KEYS_OF_RECORD_MAX {
            self.hasher.hash(queue, keys, &mut self.hashes);
        }
    }

    /// What was said is true of the record that was pushed last.
    fn take_said_keys(&mut self) {
        if self.hashes.len() - self.hashes_done > KEYS_OF_RECORD_MAX {
            // Not all of them are put into the index: who reads the record knows which.
            self.begin_keys();
            return;
        }
        let start = std::mem::replace(&mut self.hashes_done, self.hashes.len());
        let Some(entry) = self.entries.last_mut() else { return };
        entry.keys = Some(start as u32..self.hashes.len() as u32);
    }

    /// Adds a record that stands in light queues too, which are taken out of `light`: different ones, and none of them its own queue.
    ///
    /// Its properties, of `properties_bytes`, must end with the room that [`protocol::light::put_room`] makes for so many numbers.
    pub fn push_light(
        &mut self,
        queue: &Arc<ConsumeQueue>,
        tags: TagsCode,
        light: &mut Vec<Arc<ConsumeQueue>>,
        properties_bytes: usize,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.light.len() as u32;
        self.light.append(light);
        self.push_entry(queue, tags, None, start..self.light.len() as u32, properties_bytes as u32, encode);
    }

    /// Adds a record that holds `count` messages, 1 to 32767, to the queue of a BatchCQ topic. Its last property is
    /// [`protocol::record::INNER_BASE_PLACE`].
    pub fn push_inner_batch(
        &mut self,
        queue: &Arc<ConsumeQueue>,
        tags: TagsCode,
        count: u16,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        assert!(queue.is_batch() && count > 0, "a batch of {count} messages for {queue:?}");
        self.push_entry(queue, tags, Some(count), 0..0, 0, encode);
    }

    /// The same of a record whose keys are known: all that were said since [`RecordBatch::begin_keys`].
    pub fn push_inner_batch_with_keys(
        &mut self,
        queue: &Arc<ConsumeQueue>,
        tags: TagsCode,
        count: u16,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        self.push_inner_batch(queue, tags, count, encode);
        self.take_said_keys();
    }

    #[inline]
    fn push_entry(
        &mut self,
        queue: &Arc<ConsumeQueue>,
        tags: TagsCode,
        inner: Option<u16>,
        light: Range<u32>,
        properties_bytes: u32,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let start = self.bytes.len();
        encode(&mut self.bytes);
        let group = self.open_group.unwrap_or_else(|| {
            self.next_group += 1;
            self.next_group
        });
        let bytes = start..self.bytes.len();
        self.entries.push(BatchEntry {
            queue: Arc::clone(queue),
            tags,
            bytes,
            keys: None,
            light,
            properties_bytes,
            inner,
            group,
        });
    }

    /// What is pushed until [`RecordBatch::end_group`] will lie in one file of the log.
    pub fn begin_group(&mut self) {
        self.next_group += 1;
        self.open_group = Some(self.next_group);
    }

    /// Ends the group.
    pub fn end_group(&mut self) {
        self.open_group = None;
    }

    /// Takes back the records from number `from` on. They must not have been appended.
    pub fn truncate(&mut self, from: usize) {
        if let Some(entry) = self.entries.get(from) {
            self.bytes.truncate(entry.bytes.start);
            if let Some(first) = self.entries[from..].iter().find(|entry| !entry.light.is_empty()) {
                self.light.truncate(first.light.start as usize);
            }
            if let Some(keys) = self.entries[from..].iter().find_map(|entry| entry.keys.as_ref()) {
                self.hashes_done = keys.start as usize;
            }
            self.entries.truncate(from);
        }
        self.begin_keys();
        self.open_group = None;
    }

    /// How many records there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many bytes the records have.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Where the records came to lie, as far as they are appended: one for each, in order.
    pub fn landed(&self) -> &[Landed] {
        &self.landed
    }

    /// Whether all records are appended.
    pub fn is_appended(&self) -> bool {
        self.landed.len() == self.entries.len()
    }

    /// The light queues that its records stand in.
    pub fn light_queues(&self) -> &[Arc<ConsumeQueue>] {
        &self.light
    }

    /// The queue of a record.
    pub fn queue(&self, record: usize) -> &Arc<ConsumeQueue> {
        &self.entries[record].queue
    }

    /// Forgets all records, keeps the buffers.
    pub fn clear(&mut self) {
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes.shrink_to(KEPT_BYTES);
        }
        self.entries.clear();
        self.landed.clear();
        self.light.clear();
        self.hashes.clear();
        self.hashes_done = 0;
        self.hashes.shrink_to(KEPT_BYTES / size_of::<u32>());
        self.hasher.clear();
        self.open_group = None;
        self.next_group = 0;
    }
}
