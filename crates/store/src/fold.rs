//! What follows from a record of the log: its places in consume queues and its entries in the key index. Both are derived here
//! and nowhere else. Pure, so that it runs on any thread.
//!
//! Followers take it in: recovery, a copy of the log, and `gantry store verify` by blocks
//! (`recovery/blocks.rs`); the thread `index`, and `gantry store verify` for keys (`look/keys.rs`),
//! record by record. An append takes a shortcut: it holds the parsed message, and tells queues and
//! index directly ([`crate::RecordBatch`]). Builds with debug assertions hold that against what is
//! derived here.
//!
//! Timers, half messages, and delayed messages follow from the queues of their topics, so they need no follower of their own.

mod keys;

use protocol::LogOffset;
use protocol::delay::DelayLevels;
use protocol::light;
use protocol::names::{self, SCHEDULE_TOPIC};
use protocol::properties::name;
use protocol::record::{self, Corrupt, RecordView, Scanned};
use protocol::sys_flag;

pub(crate) use self::keys::{IndexKey, KEYS_OF_RECORD_MAX, KeyOf, TopicHash, each, has_own, hash_of, inner_with};
pub use self::keys::{KeyKind, MessageKeys};
use crate::queue_log::Unit;

/// A record's place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The queue.
    pub queue_id: u32,
    /// The number in the queue.
    pub offset: u64,
    /// The unit.
    pub unit: Unit,
    /// How many messages the record holds; more than one only in a BatchCQ topic.
    pub count: u16,
    /// Whether the record is a batch, which only a BatchCQ topic has.
    pub is_batch: bool,
    /// When it was stored, in ms.
    pub store_time: i64,
}

/// Something that follows the log. Another kind of it is another method here, and a constant that says who takes it.
pub(crate) trait Follower<'a> {
    /// Whether it takes places in queues.
    const TAKES_PLACES: bool = false;
    /// Whether it takes keys. A look for them unpacks batches.
    const TAKES_KEYS: bool = false;

    /// Takes the record's next place: the one in its own queue comes first, those in light queues follow.
    fn place(&mut self, _: QueuePlace<'a>) {}

    /// Takes the record's next entry in the key index.
    fn key(&mut self, _: IndexKey, _: KeyOf) {}
}

/// The settings that what follows from a record depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fold<'o> {
    /// The levels of the schedule topic.
    pub delays: &'o DelayLevels,
    /// Whether there are light queues.
    pub has_light_queues: bool,
}

impl Fold<'_> {
    /// Shows a follower what it takes of a record.
    pub fn show<'a, F: Follower<'a>>(&self, record: &RecordView<'a>, follower: &mut F) {
        if F::TAKES_PLACES {
            self.places(record).for_each(|place| follower.place(place));
        }
        if F::TAKES_KEYS {
            keys::entries_of(record, |key, of| follower.key(key, of));
        }
    }

    /// The places of a record in queues, that in its own queue first.
    pub fn places<'a>(&self, record: &RecordView<'a>) -> impl Iterator<Item = QueuePlace<'a>> {
        let own = self.own_place(record);
        // A batch that is one record stands in its own queue only, whatever its properties say.
        let stands_in_light = own.filter(|own| self.has_light_queues && !own.is_batch);
        let light = stands_in_light.into_iter().flat_map(move |own| {
            let places = light::places(record).filter(|(topic, _)| is_folder_name(topic));
            places.map(move |(topic, offset)| QueuePlace { topic, queue_id: light::QUEUE_ID, offset, count: 1, ..own })
        });
        own.into_iter().chain(light)
    }

    /// None for a record that consumers never see: half messages of brokers before 4.3, roll-backs, and topics that cannot be.
    fn own_place<'a>(&self, record: &RecordView<'a>) -> Option<QueuePlace<'a>> {
        let is_half = sys_flag::transaction(record.sys_flag()) == sys_flag::TRANSACTION_PREPARED;
        if is_half || is_rolled_back(record) || !is_folder_name(record.topic()) {
            return None;
        }
        let tags = match delay_level(record) {
            Some(level) => {
                let delay = self.delays.delay_ms(level.min(self.delays.max_level()));
                record.store_timestamp().saturating_add(delay)
            }
            None => record.tags_code(),
        };
        Some(QueuePlace {
            topic: record.topic(),
            queue_id: u32::try_from(record.queue_id()).ok()?,
            offset: record.queue_offset(),
            unit: Unit { at: LogOffset(record.log_offset()), size: u32::try_from(record.total_size()).ok()?, tags },
            count: record.message_count(),
            is_batch: record.sys_flag() & sys_flag::INNER_BATCH != 0,
            store_time: record.store_timestamp(),
        })
    }
}

/// Reads the record at the beginning of `bytes` where a loss of power may have left half of it.
pub(crate) fn scan_after_crash(bytes: &[u8], check_crc: bool) -> Result<Scanned<'_>, Corrupt> {
    let scanned = record::scan(bytes, check_crc)?;
    match &scanned {
        Scanned::Record(view) if check_crc && view.is_torn() => Err(Corrupt::Torn),
        Scanned::Record(_) | Scanned::Blank { .. } | Scanned::Nothing => Ok(scanned),
    }
}

/// The whole record that these bytes begin with, if it says that it lies at `at`.
pub(crate) fn whole_at(bytes: &[u8], at: u64, check_crc: bool) -> Option<RecordView<'_>> {
    match scan_after_crash(bytes, check_crc) {
        Ok(Scanned::Record(view)) if view.log_offset() == at => Some(view),
        Ok(Scanned::Record(_) | Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}

/// Whether a record says that it has that number in a queue: its own queue, or one of its light queues.
pub(crate) fn says(record: &RecordView<'_>, topic: &str, queue_id: u32, number: u64) -> bool {
    (record.queue_offset(), record.topic(), i64::from(record.queue_id())) == (number, topic, i64::from(queue_id))
        || names::is_lmq(topic) && light::places(record).any(|found| found == (topic, number))
}

/// A roll-back of brokers before 4.3, or what fills a gap of the log (`recovery/gap.rs`): no queue and no key leads to it.
fn is_rolled_back(record: &RecordView<'_>) -> bool {
    sys_flag::transaction(record.sys_flag()) == sys_flag::TRANSACTION_ROLLBACK
}

/// The topic becomes the name of a folder. What is in the log need not have come through our checks.
pub(crate) fn is_folder_name(topic: &str) -> bool {
    let is_strange = matches!(topic, "" | "." | "..") || topic.len() > 255;
    !is_strange && !topic.bytes().any(|byte| byte == b'/' || byte == 0)
}

/// Units of the schedule topic hold the time of delivery in the place of the tag.
fn delay_level(record: &RecordView<'_>) -> Option<i32> {
    if record.topic() != SCHEDULE_TOPIC {
        return None;
    }
    record.property(name::DELAY)?.parse().ok().filter(|level| *level > 0)
}
