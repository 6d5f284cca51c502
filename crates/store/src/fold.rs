//! What follows from a record: the unit in its consume queue. Recovery derives the queues from the log with it; an append, which
//! holds the parsed message, says the same to [`crate::RecordBatch`] directly.

use protocol::LogOffset;
use protocol::delay::DelayLevels;
use protocol::light;
use protocol::names::SCHEDULE_TOPIC;
use protocol::properties::name;
use protocol::record::RecordView;
use protocol::sys_flag;

use crate::queue_log::Unit;

/// A record's place in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePlace<'a> {
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

/// Where a record belongs; none for those that consumers never see (halves of transactions of old, and their roll-backs, and
/// topics that cannot be).
pub fn place_of<'a>(record: &RecordView<'a>, delays: &DelayLevels) -> Option<QueuePlace<'a>> {
    match sys_flag::transaction(record.sys_flag()) {
        sys_flag::TRANSACTION_PREPARED | sys_flag::TRANSACTION_ROLLBACK => return None,
        _none_or_commit => {}
    }
    if !is_folder_name(record.topic()) {
        return None;
    }
    let tags = match delay_level(record) {
        Some(level) => record.store_timestamp().saturating_add(delays.delay_ms(level.min(delays.max_level()))),
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

/// The places of a record in light queues, which have its unit too. `own` is its place in its own queue.
pub fn light_places<'a>(record: &RecordView<'a>, own: &QueuePlace<'a>) -> impl Iterator<Item = QueuePlace<'a>> {
    let (unit, store_time, is_batch) = (own.unit, own.store_time, own.is_batch);
    // A batch that is one record stands in its own queue only, whatever its properties say.
    let places = light::places(record).filter(move |(topic, _)| !is_batch && is_folder_name(topic));
    places.map(move |(topic, offset)| QueuePlace {
        topic,
        queue_id: light::QUEUE_ID,
        offset,
        unit,
        count: 1,
        is_batch: false,
        store_time,
    })
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
