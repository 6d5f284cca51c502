//! A pull from a static topic: its logical offset says which physical queue it reads, and where that ends the next one begins.
//!
//! What this broker holds itself is read like any other queue, with the answer rewritten. For the rest the pull is passed on to the
//! holder, which answers at once.

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request, Response};
use protocol::body::{LogicQueueMappingItem, MASTER_ID};
use protocol::code::{ResponseCode, request};
use protocol::record::{self, Scanned};
use protocol::request::{PullMessage, PullReply};
use protocol::sys_flag::pull as bits;
use store::{LogSlice, Read, ReadStatus};

use crate::broker::Broker;
use crate::parked::Asked;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::topics::Topic;
use crate::state::topics::mapping::{Mapping, end, find, known_end, locate, logical, next};
use crate::static_topic::forward::unexpected;
use crate::static_topic::offsets::PulledCommit;
use crate::static_topic::replies::answer_later;

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

/// Who reads for a pull.
pub(crate) enum ReadPlace {
    /// This broker; the pull names the physical queue now.
    Here(Option<Asked>),
    /// Another one was asked, and a task answers.
    Elsewhere,
}

/// Finds the physical queue of a pull, and asks whoever holds it if that is not this broker.
pub(crate) fn place(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    topic: &Arc<Topic>,
    message: &mut PullMessage<'_>,
) -> Result<ReadPlace, Refusal> {
    let Some(mapping) = crate::static_topic::of_topic(topic, request) else { return Ok(ReadPlace::Here(None)) };
    let queue_id = message.queue_id;
    let places = mapping.places(queue_id).map_err(|refusal| {
        let (topic, broker) = (topic.name(), &mapping.detail().bname);
        let remark =
            format!("{topic}-{queue_id} cannot find mapping item in request process of current broker {broker}");
        Refusal { remark, ..refusal }
    })?;
    let (at, offset) = locate(&places, message.queue_offset).ok_or_else(|| mapping.not_led(queue_id))?;
    let item = &places[at];
    let mut asked = Asked::of(queue_id, message.queue_offset, &places, at);
    if message.sys_flag & bits::COMMIT_OFFSET != 0 {
        // Of the logical queue; Apache takes it for one of the physical queue that is read.
        asked.commit_offset = Some(message.commit_offset);
        message.sys_flag &= !bits::COMMIT_OFFSET;
    }
    message.queue_id = item.queue_id;
    message.queue_offset = offset;
    let left = asked.end.saturating_sub(offset.max(item.start_offset)).max(1);
    message.max_msg_nums = message.max_msg_nums.min(i32::try_from(left).unwrap_or(i32::MAX));
    if mapping.is_here(item) {
        return Ok(ReadPlace::Here(Some(asked)));
    }
    let (question, holder) = (Question::of(message), item.bname.clone());
    // What it commits is left to 15: by the time the holder has answered, and so made the checks of a pull, a later commit may be done.
    let (forward, reply_to) = (Arc::clone(&broker.forward), request.reply_to());
    answer_later(broker, session, request, async move {
        let answer = forward.ask(&holder, request::PULL_MESSAGE, &question.fields()).await?;
        told(&places, &asked, question.queue_offset, &holder, &answer, reply_to)
    })?;
    Ok(ReadPlace::Elsewhere)
}

/// A pull, kept for a task.
struct Question {
    group: String,
    topic: String,
    subscription: Option<String>,
    expression_type: Option<String>,
    queue_id: i32,
    queue_offset: i64,
    max_msg_nums: i32,
    max_msg_bytes: Option<i32>,
    sys_flag: i32,
    sub_version: i64,
}

impl Question {
    fn of(message: &PullMessage<'_>) -> Question {
        Question {
            group: message.consumer_group.to_owned(),
            topic: message.topic.to_owned(),
            subscription: message.subscription.map(str::to_owned),
            expression_type: message.expression_type.map(str::to_owned),
            queue_id: message.queue_id,
            queue_offset: message.queue_offset,
            max_msg_nums: message.max_msg_nums,
            max_msg_bytes: message.max_msg_bytes,
            // The holder must not wait for a message that will not come.
            sys_flag: message.sys_flag & !bits::SUSPEND,
            sub_version: message.sub_version,
        }
    }

    fn fields(&self) -> PullMessage<'_> {
        PullMessage {
            max_msg_nums: self.max_msg_nums,
            sys_flag: self.sys_flag,
            subscription: self.subscription.as_deref(),
            sub_version: self.sub_version,
            expression_type: self.expression_type.as_deref(),
            max_msg_bytes: self.max_msg_bytes,
            ..PullMessage::at(&self.group, &self.topic, self.queue_id, self.queue_offset)
        }
    }
}

/// The holder's answer, as the client gets it.
fn told(
    items: &[LogicQueueMappingItem],
    asked: &Asked,
    physical_offset: i64,
    holder: &str,
    answer: &Response,
    reply_to: ReplyTo,
) -> Result<Outgoing, Refusal> {
    let code = match ResponseCode::from_i32(answer.code) {
        Some(
            code @ (ResponseCode::Success
            | ResponseCode::PullNotFound
            | ResponseCode::PullRetryImmediately
            | ResponseCode::PullOffsetMoved),
        ) => code,
        Some(_) | None => return Err(unexpected(holder, answer)),
    };
    let fields = PullReply::decode(&answer.fields.as_fields()).map_err(Refusal::failed)?;
    let mut found = Found { code, next: fields.next_begin_offset, min: fields.min_offset, max: fields.max_offset };
    let mut body = &answer.body[..];
    if code == ResponseCode::Success && found.next > asked.end {
        body = &body[..bytes_before(body, asked.end)];
        if body.is_empty() {
            found = Found { code: ResponseCode::PullRetryImmediately, next: asked.end, ..found };
        }
    }
    // As Apache's brokers name it, and ours.
    let is_reset = code == ResponseCode::PullOffsetMoved && answer.remark.as_deref() == Some(OFFSET_RESET);
    let (code, fields) = if is_reset {
        reset(items, asked, physical_offset, found, fields)
    } else {
        rewrite(items, asked, physical_offset, found, fields)
    };
    if code != ResponseCode::Success {
        body = &[];
    }
    let mut out = Outgoing::new();
    out.reply(reply_to, code, answer.remark.as_deref(), &fields, body);
    Ok(out)
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
