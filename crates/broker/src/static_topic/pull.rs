//! A pull from a static topic: its logical offset says which physical queue it reads, and where that ends the next one begins.
//!
//! What this broker holds itself is read like any other queue, with the answer rewritten. The rest is asked of the holder, which answers
//! at once; the caller's side does that, with what [`place`] says.

use std::sync::Arc;

use bytes::Bytes;
use net::Response;
use protocol::body::{LogicQueueMappingItem, MASTER_ID};
use protocol::code::ResponseCode;
use protocol::record::{self, Scanned};
use protocol::request::PullReply;
use store::{LogSlice, Read, ReadStatus};

use crate::broker::Broker;
use crate::parked::Asked;
use crate::refusal::Refusal;
use crate::state::topics::Topic;
use crate::state::topics::mapping::{Mapping, PhysicalQueues, end, find, known_end, locate, logical, next};
use crate::static_topic::forward::unexpected;
use crate::static_topic::offsets::PulledCommit;

/// The remark of an answer that tells of a reset.
pub(crate) const OFFSET_RESET: &str = "OFFSET_RESET";

impl Asked {
    /// `offset` of a logical queue, for which the physical one at `place` is read.
    pub(crate) fn of(queue_id: i32, offset: i64, items: &[LogicQueueMappingItem], place: usize) -> Asked {
        Asked { queue_id, offset, generation: items[place].generation, end: end(items, place), commit_offset: None }
    }

    /// What the pull commits once it has passed its checks.
    pub(crate) fn commit(&self, broker: &Broker, group: &str, topic: &Arc<Topic>) -> Option<PulledCommit> {
        self.commit_offset.map(|offset| PulledCommit::new(broker, topic, group, self.queue_id, offset))
    }

    /// Takes away what a read found behind the end of its place: a filter may have passed over all that lies before.
    pub(crate) fn cut(&self, mut found: Read, slices: &mut Vec<LogSlice>) -> Read {
        if found.next <= self.end || found.status != ReadStatus::Found {
            return found;
        }
        let kept = slices.iter().take_while(|slice| is_before(slice.as_ref(), self.end)).count();
        found.next = self.end;
        found.count = found.count.saturating_sub(slices.len() - kept);
        slices.truncate(kept);
        found.bytes = slices.iter().map(|slice| slice.as_ref().len()).sum();
        if kept == 0 {
            found.status = ReadStatus::NoMatchedMessage;
        }
        found
    }
}

/// Whether a record lies before a physical offset.
fn is_before(record: &[u8], end: i64) -> bool {
    match record::scan(record, false) {
        Ok(Scanned::Record(view)) => i64::try_from(view.queue_offset()).is_ok_and(|offset| offset < end),
        Ok(_) | Err(_) => false,
    }
}

/// Which broker reads for a pull from a logical queue.
pub(crate) enum ReadPlace {
    /// This one.
    Here(PhysicalPull),
    /// Another one has to be asked.
    Elsewhere(HeldElsewhere),
}

/// What is read for a pull from a logical queue.
pub(crate) struct PhysicalPull {
    pub(crate) queue_id: i32,
    pub(crate) offset: i64,
    pub(crate) count_max: i32,
    pub(crate) asked: Asked,
}

/// A physical queue that another broker holds.
pub(crate) struct HeldElsewhere {
    /// `brokerName` of that broker.
    pub(crate) holder: String,
    pub(crate) pull: PhysicalPull,
    places: PhysicalQueues,
}

/// Finds the physical queue of a pull, and which broker holds it.
pub(crate) fn place(
    mapping: &Mapping,
    queue_id: i32,
    offset: i64,
    count_max: i32,
    commit_offset: Option<i64>,
) -> Result<ReadPlace, Refusal> {
    let places = mapping.places(queue_id).map_err(|refusal| {
        let (topic, broker) = (&mapping.detail().topic, &mapping.detail().bname);
        let remark =
            format!("{topic}-{queue_id} cannot find mapping item in request process of current broker {broker}");
        Refusal { remark, ..refusal }
    })?;
    let (at, physical) = locate(&places, offset).ok_or_else(|| mapping.not_led(queue_id))?;
    let item = &places[at];
    // What is committed is an offset of the logical queue; Apache takes it for one of the physical queue that is read.
    let asked = Asked { commit_offset, ..Asked::of(queue_id, offset, &places, at) };
    let left = asked.end.saturating_sub(physical.max(item.start_offset)).max(1);
    let pull = PhysicalPull {
        queue_id: item.queue_id,
        offset: physical,
        count_max: count_max.min(i32::try_from(left).unwrap_or(i32::MAX)),
        asked,
    };
    if mapping.is_here(item) {
        return Ok(ReadPlace::Here(pull));
    }
    let holder = item.bname.clone();
    Ok(ReadPlace::Elsewhere(HeldElsewhere { holder, pull, places }))
}

/// What a client is told of what the holder of a physical queue has answered.
pub(crate) struct Told {
    pub(crate) code: ResponseCode,
    pub(crate) remark: Option<String>,
    pub(crate) fields: PullReply,
    /// Records, one behind the other.
    pub(crate) body: Bytes,
}

impl HeldElsewhere {
    /// The holder's answer, as the client gets it.
    pub(crate) fn told(&self, answer: Response) -> Result<Told, Refusal> {
        let code = match ResponseCode::from_i32(answer.code) {
            Some(
                code @ (ResponseCode::Success
                | ResponseCode::PullNotFound
                | ResponseCode::PullRetryImmediately
                | ResponseCode::PullOffsetMoved),
            ) => code,
            Some(_) | None => return Err(unexpected(&self.holder, &answer)),
        };
        let fields = PullReply::decode(&answer.fields.as_fields()).map_err(Refusal::failed)?;
        let (asked, read_from) = (&self.pull.asked, self.pull.offset);
        let mut found = Found { code, next: fields.next_begin_offset, min: fields.min_offset, max: fields.max_offset };
        let mut body = answer.body;
        if code == ResponseCode::Success && found.next > asked.end {
            body.truncate(bytes_before(&body, asked.end));
            if body.is_empty() {
                found = Found { code: ResponseCode::PullRetryImmediately, next: asked.end, ..found };
            }
        }
        // As Apache's brokers name it, and ours.
        let is_reset = code == ResponseCode::PullOffsetMoved && answer.remark.as_deref() == Some(OFFSET_RESET);
        let (code, fields) = if is_reset {
            reset(&self.places, asked, read_from, found, fields)
        } else {
            rewrite(&self.places, asked, read_from, found, fields)
        };
        if code != ResponseCode::Success {
            body = Bytes::new();
        }
        Ok(Told { code, remark: answer.remark, fields, body })
    }
}

/// How many bytes of records, one behind the other, lie before a physical offset.
fn bytes_before(records: &[u8], end: i64) -> usize {
    let mut bytes = 0;
    while let Ok(Scanned::Record(view)) = record::scan(&records[bytes..], false)
        && i64::try_from(view.queue_offset()).is_ok_and(|offset| offset < end)
    {
        bytes += view.bytes().len();
    }
    bytes
}

/// What reading a physical queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) code: ResponseCode,
    pub(crate) next: i64,
    pub(crate) min: i64,
    pub(crate) max: i64,
}

/// The answer about a physical queue, told of the logical one. `offset`: where the physical queue was read from.
pub(crate) fn rewrite(
    items: &[LogicQueueMappingItem],
    asked: &Asked,
    offset: i64,
    found: Found,
    fields: PullReply,
) -> (ResponseCode, PullReply) {
    let Some(at) = items.iter().position(|item| item.generation == asked.generation) else {
        // The queue has been cleaned away meanwhile: the client asks again, from where it was.
        let (next, none) = (asked.offset, None);
        let fields =
            PullReply { next_begin_offset: next, min_offset: next, max_offset: next, offset_delta: none, ..fields };
        return (ResponseCode::PullRetryImmediately, fields);
    };
    let (at, found) = revise(items, at, offset, found);
    let (item, end) = (&items[at], end(items, at));
    let fields = PullReply {
        suggest_which_broker_id: MASTER_ID,
        next_begin_offset: logical(item, found.next.min(end)),
        min_offset: logical(item, found.min.max(item.start_offset).min(end)),
        max_offset: logical(item, found.max.min(end)).max(items.last().map_or(-1, known_end)),
        offset_delta: Some(item.logic_offset.saturating_sub(item.start_offset)),
        ..fields
    };
    (found.code, fields)
}

/// The same where an operator says where to go on, wherever the client is.
fn reset(
    items: &[LogicQueueMappingItem],
    asked: &Asked,
    offset: i64,
    found: Found,
    fields: PullReply,
) -> (ResponseCode, PullReply) {
    let (code, mut fields) = rewrite(items, asked, offset, found, fields);
    let Some(item) = items.iter().find(|item| item.generation == asked.generation) else { return (code, fields) };
    fields.next_begin_offset = logical(item, found.next);
    (found.code, fields)
}

/// Where nothing was found, or what does not belong to the logical queue: whether the client goes on in this physical queue, or in the next
/// one.
fn revise(items: &[LogicQueueMappingItem], at: usize, offset: i64, found: Found) -> (usize, Found) {
    let again = ResponseCode::PullRetryImmediately;
    let (start, end) = (items[at].start_offset, end(items, at));
    if found.code == ResponseCode::Success && (start..end).contains(&offset) {
        return (at, found);
    }
    let is_first = find(items, 0) == Some(at);
    let first = found.min.max(start);
    if offset < first {
        // Messages in the middle are gone by their age: no reason to ask the client where it wants to begin.
        let code = if is_first { ResponseCode::PullOffsetMoved } else { again };
        return (at, Found { code, next: first, ..found });
    }
    let end = found.max.min(end);
    if offset < end {
        return (at, found);
    }
    if let Some(next) = next(items, at) {
        let start = items[next].start_offset;
        return (next, Found { code: again, next: start, min: start, max: start });
    }
    if at + 1 < items.len() {
        // It is not decided yet where the queue goes on.
        return (at, Found { code: ResponseCode::PullNotFound, next: end, ..found });
    }
    (at, found)
}

/// Whether a pull that found nothing in the physical queue may wait there: nothing comes behind it.
pub(crate) fn may_wait(topic: &Topic, asked: &Asked) -> bool {
    let Some(mapping) = topic.mapping() else { return true };
    let items = mapping.led(asked.queue_id);
    items.is_ok_and(|items| items.last().is_some_and(|leader| leader.generation == asked.generation))
}

/// Refuses a pull that has waited, if its queue has moved to another broker meanwhile.
pub(crate) fn still_led(topic: &Topic, asked: &Asked) -> Result<(), Refusal> {
    topic.mapping().map_or(Ok(()), |mapping| mapping.led(asked.queue_id).map(|_| ()))
}

/// What this broker found in its own physical queue, as the client gets it. `offset`: where it was read from.
///
/// `mapping`: as it was before anybody looked where the queue ends; by a newer one the client might pass over what came in between.
pub(crate) fn tell(
    mapping: Option<&Mapping>,
    asked: &Asked,
    offset: i64,
    found: &Read,
    code: ResponseCode,
    fields: PullReply,
) -> (ResponseCode, PullReply) {
    // A topic that is gone meanwhile has no mapping, and neither has its successor of the same name anything of this queue.
    let items = mapping.and_then(|mapping| mapping.led(asked.queue_id).ok()).unwrap_or_default();
    let read = Found { code, next: fields.next_begin_offset, min: fields.min_offset, max: fields.max_offset };
    if found.status == ReadStatus::OffsetReset {
        return reset(items, asked, offset, read, fields);
    }
    rewrite(items, asked, offset, read, fields)
}
