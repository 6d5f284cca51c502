//! Looking at what is stored: a record by its place (33), offsets by time and by bound (29 to 32).
//!
//! A look that may have to read the disk does so beside ([`crate::cold`]).

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{
    EarliestStoreTimeReply, GetEarliestStoreTime, GetMaxOffset, GetMinOffset, OffsetReply, SearchOffset, ViewMessage,
};
use store::{Boundary, ConsumeQueue, LogSlice, StoreError};

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::{cold, static_topic};

/// 33.
pub(crate) fn message_by_id(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let offset = ViewMessage::decode(&request.header.fields)?.offset;
    let reply_to = request.reply_to();
    let at = cold::log_offset(offset).ok_or_else(|| not_found(offset))?;
    cold::with_record(broker, session, at, out, move |_, _, found, out| match found {
        Ok(Some(slice)) => show(reply_to, slice, out),
        Ok(None) => refuse(reply_to, &not_found(offset), out),
        Err(refusal) => refuse(reply_to, &refusal, out),
    })
}

fn show(reply_to: ReplyTo, slice: LogSlice, out: &mut Outgoing) {
    let bytes = slice.as_ref().len();
    let (owner, range) = slice.into_parts();
    out.reply_shared(reply_to, ResponseCode::Success, None, &(), bytes, std::iter::once(SharedSlice { owner, range }));
}

fn not_found(offset: i64) -> Refusal {
    Refusal::new(ResponseCode::SystemError, format!("can not find message by the offset, {offset}"))
}

fn refuse(reply_to: ReplyTo, refusal: &Refusal, out: &mut Outgoing) {
    out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
}

/// A queue that exists. Asking for the offsets of another one does not create it.
fn queue(broker: &Broker, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
    broker.store.existing_queue(topic, u32::try_from(queue_id).ok()?)
}

/// 29.
pub(crate) fn offset_by_time(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = SearchOffset::decode(&request.header.fields)?;
    let (reply_to, boundary) = (request.reply_to(), boundary(&asked));
    if let Some(mapping) = static_topic::of(broker, asked.topic, request) {
        return static_topic::progress::offset_by_time(broker, session, request, &mapping, &asked, boundary);
    }
    let timestamp = asked.timestamp;
    let lite_queue = asked.lite_topic.filter(|name| !name.trim().is_empty());
    let lite_queue = lite_queue.map(|lite_topic| names::lite_queue(asked.topic, lite_topic));
    let Some(queue) = queue(broker, lite_queue.as_deref().unwrap_or(asked.topic), asked.queue_id) else {
        return reply_offset(reply_to, 0, out);
    };
    cold::read(
        broker,
        session,
        move |store| store.offset_by_time(&queue, timestamp, boundary),
        move |_, _, found, out| match found {
            Ok(offset) => out.reply(reply_to, ResponseCode::Success, None, &OffsetReply { offset: offset as i64 }, &[]),
            Err(error) => refuse(reply_to, &Refusal::failed(error), out),
        },
    )
}

/// Which side of a time 29 asks for.
fn boundary(asked: &SearchOffset<'_>) -> Boundary {
    match asked.boundary_type {
        Some(name) if name.eq_ignore_ascii_case("UPPER") => Boundary::Upper,
        Some(_) | None => Boundary::Lower,
    }
}

/// 30.
pub(crate) fn max_offset(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetMaxOffset::decode(&request.header.fields)?;
    if let Some(mapping) = static_topic::of(broker, asked.topic, request) {
        return static_topic::progress::max_offset(broker, session, request, &mapping, &asked);
    }
    // A consumer that begins at a number which a loss of power gives out again would miss a message.
    let end = |queue: Arc<ConsumeQueue>| {
        if asked.committed { broker.store.visible_end(&queue) } else { queue.max_offset() }
    };
    let max = queue(broker, asked.topic, asked.queue_id).map_or(0, end);
    reply_offset(request.reply_to(), max as i64, out)
}

/// 31.
pub(crate) fn min_offset(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetMinOffset::decode(&request.header.fields)?;
    if let Some(mapping) = static_topic::of(broker, asked.topic, request) {
        return static_topic::progress::min_offset(broker, session, request, &mapping, &asked);
    }
    let min = queue(broker, asked.topic, asked.queue_id).map_or(0, |queue| queue.min_offset());
    reply_offset(request.reply_to(), min as i64, out)
}

/// 32: when the oldest message of a queue was stored; -1 when there is none.
pub(crate) fn earliest_store_time(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetEarliestStoreTime::decode(&request.header.fields)?;
    if let Some(mapping) = static_topic::of(broker, asked.topic, request) {
        return static_topic::progress::earliest_store_time(broker, session, request, &mapping, &asked);
    }
    let reply_to = request.reply_to();
    let Some(queue) = queue(broker, asked.topic, asked.queue_id) else {
        out.reply(reply_to, ResponseCode::Success, None, &EarliestStoreTimeReply { timestamp: -1 }, &[]);
        return Ok(());
    };
    cold::read(
        broker,
        session,
        move |store| match queue.unit_at(queue.min_offset())? {
            Some(unit) => store.store_time_of(&unit),
            None => Ok(None),
        },
        move |_, _, found: Result<Option<i64>, StoreError>, out| match found {
            Ok(time) => {
                let reply = EarliestStoreTimeReply { timestamp: time.unwrap_or(-1) };
                out.reply(reply_to, ResponseCode::Success, None, &reply, &[]);
            }
            Err(error) => refuse(reply_to, &Refusal::failed(error), out),
        },
    )
}

fn reply_offset(reply_to: ReplyTo, offset: i64, out: &mut Outgoing) -> Result<(), Refusal> {
    out.reply(reply_to, ResponseCode::Success, None, &OffsetReply { offset }, &[]);
    Ok(())
}
