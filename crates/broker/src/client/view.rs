//! Looking at what is stored: a record by its place (33), offsets by time and by bound (29 to 32).
//!
//! A look that may have to read the disk does so beside ([`crate::cold`]).

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{
    EarliestStoreTimeReply, GetEarliestStoreTime, GetMaxOffset, GetMinOffset, SearchOffset, ViewMessage,
};
use replica::lag::Slaves;
use store::{Boundary, ConsumeQueue, LogSlice, Store};

use crate::broker::Broker;
use crate::client::eventual::{Eventual, encode_offset};
use crate::cold;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::topics::Topics;
use crate::static_topic::NamedQueue;
use crate::static_topic::forward::Forward;
use crate::static_topic::progress::{self, Queues};

/// 33.
pub(crate) fn message_by_id(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let offset = ViewMessage::decode(&request.header.fields)?.offset;
    let record = record_at(&broker.store, offset)?;
    let record = if offset == 0 { first_given(record, Arc::clone(&broker.slaves)) } else { record };
    record.answer(broker, session, request, out, encode_record)
}

/// A slave with an empty log asks for the first record, and then reports that it has it.
fn first_given(record: Eventual<LogSlice>, slaves: Arc<Slaves>) -> Eventual<LogSlice> {
    let note = move |record: &LogSlice| slaves.note_first(LogOffset(record.as_ref().len() as u64));
    match record {
        Eventual::Now(record) => {
            note(&record);
            Eventual::Now(record)
        }
        Eventual::OnDisk(look) => Eventual::OnDisk(Box::new(move |store| look(store).inspect(note))),
        Eventual::Elsewhere(asking) => Eventual::Elsewhere(asking),
    }
}

/// The record that begins at a log offset. A replica that connects asks for the last one that it has, also if it could not acknowledge that.
pub(crate) fn record_at(store: &Store, offset: i64) -> Result<Eventual<LogSlice>, Refusal> {
    let not_found =
        move || Refusal::new(ResponseCode::SystemError, format!("can not find message by the offset, {offset}"));
    let at = cold::log_offset(offset).ok_or_else(not_found)?;
    match store.written_record_at(at) {
        Ok(found) => found.map(Eventual::Now).ok_or_else(not_found),
        Err(_) => Ok(Eventual::OnDisk(Box::new(move |store| cold::written(store, at)?.ok_or_else(not_found)))),
    }
}

fn encode_record(reply_to: ReplyTo, slice: LogSlice, out: &mut Outgoing) {
    let bytes = slice.as_ref().len();
    let (owner, range) = slice.into_parts();
    out.reply_shared(reply_to, ResponseCode::Success, None, &(), bytes, std::iter::once(SharedSlice { owner, range }));
}

/// The state that tells where a queue begins and ends.
pub(crate) struct Bounds<'a> {
    store: &'a Arc<Store>,
    topics: &'a Topics,
    forward: &'a Arc<Forward>,
}

/// Asks for the offset at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeOrder<'a> {
    pub(crate) queue: NamedQueue<'a>,
    pub(crate) timestamp: i64,
    pub(crate) boundary: Boundary,
    /// A lite topic of the topic, whose queue is meant then.
    pub(crate) lite_topic: Option<&'a str>,
}

impl<'a> TimeOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<TimeOrder<'a>, Refusal> {
        let asked = SearchOffset::decode(&request.header.fields)?;
        Ok(TimeOrder {
            queue: NamedQueue::of(request, asked.topic, asked.queue_id),
            timestamp: asked.timestamp,
            boundary: match asked.boundary_type {
                Some(name) if name.eq_ignore_ascii_case("UPPER") => Boundary::Upper,
                Some(_) | None => Boundary::Lower,
            },
            lite_topic: asked.lite_topic.filter(|name| !name.trim().is_empty()),
        })
    }
}

impl<'a> Bounds<'a> {
    pub(crate) fn of(broker: &'a Broker) -> Bounds<'a> {
        Bounds { store: &broker.store, topics: &broker.topics, forward: &broker.forward }
    }

    /// The physical queues of a logical one.
    fn physical(&self, queue: &NamedQueue<'_>) -> Result<Option<Queues>, Refusal> {
        let mapping = queue.mapping(self.topics);
        mapping.map(|mapping| Queues::of(self.store, self.forward, &mapping, queue.queue_id)).transpose()
    }

    /// A queue that exists. Asking for the offsets of another one does not create it.
    fn queue(&self, topic: &str, queue_id: i32) -> Option<Arc<ConsumeQueue>> {
        self.store.existing_queue(topic, u32::try_from(queue_id).ok()?)
    }

    /// The offset at a time; 0 in a queue that does not exist.
    pub(crate) fn offset_by_time(&self, order: &TimeOrder<'_>) -> Result<Eventual<i64>, Refusal> {
        let &TimeOrder { queue, timestamp, boundary, lite_topic } = order;
        if let Some(queues) = self.physical(&queue)? {
            return Ok(Eventual::Elsewhere(progress::offset_by_time(queues, timestamp, boundary)));
        }
        let lite_queue = lite_topic.map(|lite_topic| names::lite_queue(queue.topic, lite_topic));
        let Some(queue) = self.queue(lite_queue.as_deref().unwrap_or(queue.topic), queue.queue_id) else {
            return Ok(Eventual::Now(0));
        };
        Ok(Eventual::OnDisk(Box::new(move |store| {
            store.offset_by_time(&queue, timestamp, boundary).map(|offset| offset as i64).map_err(Refusal::failed)
        })))
    }

    /// The offset behind the last message, or with `committed` behind the last one that consumers
    /// may read.
    pub(crate) fn max_offset(&self, queue: &NamedQueue<'_>, committed: bool) -> Result<Eventual<i64>, Refusal> {
        if let Some(queues) = self.physical(queue)? {
            return progress::max_offset(queues, committed).map(Eventual::Elsewhere);
        }
        // A consumer that begins at a number which a loss of power gives out again would miss a
        // message.
        let end = |queue: Arc<ConsumeQueue>| {
            if committed { self.store.visible_end(&queue) } else { queue.max_offset() }
        };
        Ok(Eventual::Now(self.queue(queue.topic, queue.queue_id).map_or(0, end) as i64))
    }

    /// The offset of the first message.
    pub(crate) fn min_offset(&self, queue: &NamedQueue<'_>) -> Result<Eventual<i64>, Refusal> {
        if let Some(queues) = self.physical(queue)? {
            return progress::min_offset(queues).map(Eventual::Elsewhere);
        }
        Ok(Eventual::Now(self.queue(queue.topic, queue.queue_id).map_or(0, |queue| queue.min_offset()) as i64))
    }

    /// When the first message was stored; -1 if there is none.
    pub(crate) fn earliest_store_time(&self, queue: &NamedQueue<'_>) -> Result<Eventual<i64>, Refusal> {
        if let Some(queues) = self.physical(queue)? {
            return progress::earliest_store_time(queues).map(Eventual::Elsewhere);
        }
        let Some(queue) = self.queue(queue.topic, queue.queue_id) else { return Ok(Eventual::Now(-1)) };
        Ok(Eventual::OnDisk(Box::new(move |store| {
            let Some(unit) = queue.unit_at(queue.min_offset()).map_err(Refusal::failed)? else { return Ok(-1) };
            Ok(store.store_time_of(&unit).map_err(Refusal::failed)?.unwrap_or(-1))
        })))
    }
}

/// 29.
pub(crate) fn offset_by_time(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = TimeOrder::decode(request)?;
    Bounds::of(broker).offset_by_time(&order)?.answer(broker, session, request, out, encode_offset)
}

/// 30.
pub(crate) fn max_offset(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetMaxOffset::decode(&request.header.fields)?;
    let queue = NamedQueue::of(request, asked.topic, asked.queue_id);
    Bounds::of(broker).max_offset(&queue, asked.committed)?.answer(broker, session, request, out, encode_offset)
}

/// 31.
pub(crate) fn min_offset(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetMinOffset::decode(&request.header.fields)?;
    let queue = NamedQueue::of(request, asked.topic, asked.queue_id);
    Bounds::of(broker).min_offset(&queue)?.answer(broker, session, request, out, encode_offset)
}

/// 32.
pub(crate) fn earliest_store_time(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetEarliestStoreTime::decode(&request.header.fields)?;
    let queue = NamedQueue::of(request, asked.topic, asked.queue_id);
    let found = Bounds::of(broker).earliest_store_time(&queue)?;
    found.answer(broker, session, request, out, |reply_to, timestamp, out| {
        out.reply(reply_to, ResponseCode::Success, None, &EarliestStoreTimeReply { timestamp }, &[]);
    })
}
