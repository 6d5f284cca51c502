//! What a mapping says: which physical queue a logical one is, and how offsets of the one become offsets of the other.
//!
//! A snapshot, never changed: a new mapping replaces it. No clock and no I/O; everything here is arithmetic on what operators sent, so
//! it saturates where they sent nonsense.

use std::ops::Deref;
use std::sync::Arc;

use protocol::body::{LogicQueueMappingItem, TopicQueueMappingDetail, TopicQueueMappingInfo};
use protocol::code::ResponseCode;
use tokio::sync::watch;

use crate::refusal::Refusal;

/// The mapping of a static topic, as this broker has it.
#[derive(Debug)]
pub(crate) struct Mapping {
    detail: Arc<TopicQueueMappingDetail>,
    /// Closed when nobody holds this mapping any more: sends that began under it hold it until they are stored.
    held: watch::Sender<()>,
}

/// The physical queues of a logical one that this broker leads, oldest first. To be kept as long as an answer takes: it does not hold the
/// mapping.
#[derive(Clone, Debug)]
pub(crate) struct PhysicalQueues {
    detail: Arc<TopicQueueMappingDetail>,
    queue_id: i32,
}

impl PhysicalQueues {
    /// The topic.
    pub(crate) fn topic(&self) -> &str {
        &self.detail.topic
    }

    /// Whether a physical queue is this broker's.
    pub(crate) fn is_here(&self, item: &LogicQueueMappingItem) -> bool {
        item.bname == self.detail.bname
    }

    /// The refusal if none of them holds what is asked for.
    pub(crate) fn not_led(&self) -> Refusal {
        not_led(&self.detail, self.queue_id)
    }
}

impl Deref for PhysicalQueues {
    type Target = [LogicQueueMappingItem];

    fn deref(&self) -> &[LogicQueueMappingItem] {
        self.detail.hosted_queues.get(&self.queue_id).map_or(&[], Vec::as_slice)
    }
}

impl Mapping {
    pub(crate) fn new(mut detail: TopicQueueMappingDetail) -> Mapping {
        detail.curr_id_map = Default::default();
        Mapping { detail: Arc::new(detail), held: watch::Sender::new(()) }
    }

    /// As tools see it.
    pub(crate) fn detail(&self) -> &TopicQueueMappingDetail {
        &self.detail
    }

    /// Closed when nobody holds this mapping any more.
    pub(crate) fn held(&self) -> watch::Receiver<()> {
        self.held.subscribe()
    }

    /// The same as [`Mapping::led`], for a task that outlives the request.
    pub(crate) fn places(&self, queue_id: i32) -> Result<PhysicalQueues, Refusal> {
        self.led(queue_id).map(|_| PhysicalQueues { detail: Arc::clone(&self.detail), queue_id })
    }

    /// The physical queues of a logical one that this broker answers for, oldest first; the last one takes the messages.
    pub(crate) fn led(&self, queue_id: i32) -> Result<&[LogicQueueMappingItem], Refusal> {
        let items = self.detail.hosted_queues.get(&queue_id);
        items
            .filter(|items| items.last().is_some_and(|leader| self.is_here(leader)))
            .map(Vec::as_slice)
            .ok_or_else(|| self.not_led(queue_id))
    }

    /// The refusal for a queue that another broker leads, or that is none.
    pub(crate) fn not_led(&self, queue_id: i32) -> Refusal {
        not_led(&self.detail, queue_id)
    }

    /// Whether a physical queue is this broker's.
    pub(crate) fn is_here(&self, item: &LogicQueueMappingItem) -> bool {
        item.bname == self.detail.bname
    }

    /// The logical queues that this broker answers for.
    pub(crate) fn led_queues(&self) -> impl Iterator<Item = (i32, &LogicQueueMappingItem)> {
        let leaders = self.detail.hosted_queues.iter().filter_map(|(id, items)| Some((*id, items.last()?)));
        leaders.filter(|(_, leader)| self.is_here(leader))
    }

    /// The logical queue that a physical one of this broker is, or was, a place of, and the place that takes its messages now.
    pub(crate) fn leader_behind(&self, queue_id: u32) -> Option<(i32, &LogicQueueMappingItem)> {
        let is_it = |item: &LogicQueueMappingItem| self.is_here(item) && u32::try_from(item.queue_id) == Ok(queue_id);
        let (id, items) = self.detail.hosted_queues.iter().find(|(_, items)| items.iter().any(is_it))?;
        Some((*id, items.last()?))
    }

    /// What name servers and clients need of it.
    pub(crate) fn info(&self) -> TopicQueueMappingInfo {
        TopicQueueMappingInfo {
            bname: self.detail.bname.clone(),
            curr_id_map: self.led_queues().map(|(id, leader)| (id, leader.queue_id)).collect(),
            dirty: self.detail.dirty,
            epoch: self.detail.epoch,
            scope: self.detail.scope.clone(),
            topic: self.detail.topic.clone(),
            total_queues: self.detail.total_queues,
        }
    }
}

/// Apache's words, typing error included.
fn not_led(detail: &TopicQueueMappingDetail, queue_id: i32) -> Refusal {
    let (topic, broker) = (&detail.topic, &detail.bname);
    let remark = format!("{topic}-{queue_id} does not exit in request process of current broker {broker}");
    Refusal::new(ResponseCode::NotLeaderForQueue, remark)
}

/// Whether it is decided at which logical offset a physical queue begins. While a queue moves, its new place is written to before that.
pub(crate) fn is_decided(item: &LogicQueueMappingItem) -> bool {
    item.logic_offset >= 0
}

/// The place of the physical queue that holds a logical offset: the last one that begins at or before it, or the first one.
pub(crate) fn find(items: &[LogicQueueMappingItem], logical: i64) -> Option<usize> {
    let decided = |item: &LogicQueueMappingItem| is_decided(item);
    let found = items.iter().rposition(|item| decided(item) && item.logic_offset <= logical);
    found.or_else(|| items.iter().position(decided))
}

/// The place of the physical queue where a logical one goes on behind another, if that is decided.
pub(crate) fn next(items: &[LogicQueueMappingItem], place: usize) -> Option<usize> {
    items.get(place + 1).filter(|item| is_decided(item)).map(|_| place + 1)
}

/// Whether it is decided where a physical queue ends.
pub(crate) fn has_end(item: &LogicQueueMappingItem) -> bool {
    item.end_offset > item.start_offset
}

/// The physical offset where a place ends as part of the logical queue: where that was decided, and never behind the beginning of the
/// next one. What comes later, because it waited for its time, belongs to nobody. The last place has no end.
pub(crate) fn end(items: &[LogicQueueMappingItem], place: usize) -> i64 {
    let Some((item, later)) = items.get(place).zip(items.get(place + 1)) else { return i64::MAX };
    let decided = if has_end(item) { item.end_offset } else { i64::MAX };
    if is_decided(later) { decided.min(physical(item, later.logic_offset)) } else { decided }
}

/// The place to read for a logical offset, and the physical offset there: where a place has ended, the beginning of the next one.
pub(crate) fn locate(items: &[LogicQueueMappingItem], logical: i64) -> Option<(usize, i64)> {
    let mut place = find(items, logical)?;
    let mut offset = physical(&items[place], logical);
    while offset >= end(items, place)
        && let Some(later) = next(items, place)
    {
        (place, offset) = (later, items[later].start_offset);
    }
    Some((place, offset))
}

/// The logical offset of a physical one, which may lie beyond the end.
pub(crate) fn logical(item: &LogicQueueMappingItem, physical: i64) -> i64 {
    item.logic_offset.saturating_add(physical.saturating_sub(item.start_offset).max(0))
}

/// The same for an answer: -1 while it is not decided where the queue begins, and never beyond the end.
pub(crate) fn logical_or_unknown(item: &LogicQueueMappingItem, physical: i64) -> i64 {
    match is_decided(item) {
        false => -1,
        true if item.end_offset >= item.start_offset => logical(item, physical.min(item.end_offset)),
        true => logical(item, physical),
    }
}

/// The physical offset of a logical one; negative before the queue.
pub(crate) fn physical(item: &LogicQueueMappingItem, logical: i64) -> i64 {
    logical.saturating_sub(item.logic_offset).saturating_add(item.start_offset)
}

/// The largest logical offset that a mapping itself vouches for.
pub(crate) fn known_end(item: &LogicQueueMappingItem) -> i64 {
    if item.end_offset >= item.start_offset { logical(item, item.end_offset) } else { item.logic_offset }
}
