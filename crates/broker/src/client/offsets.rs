//! 14, 15, 43, 314: clients and tools ask for committed offsets, and set them.

use net::{Outgoing, Request};
use protocol::body::ConsumerOffsets;
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{CloneGroupOffset, OffsetReply, QueryConsumerOffset, UpdateConsumerOffset};

use crate::answer::{reply_json, reply_ok};
use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::offsets::{Client, rows};
use crate::static_topic::offsets::Placed;
use crate::{cold, static_topic};

/// 15: a group has come this far.
pub(crate) fn update(
    broker: &Broker,
    session: &Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let said = UpdateConsumerOffset::decode(&request.header.fields)
        .map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
    // Not made, as in Apache: a name that was mistyped would stay for good.
    broker.groups.get(said.consumer_group).ok_or_else(|| {
        Refusal::new(ResponseCode::SubscriptionGroupNotExist, format!("Group {} not exist!", said.consumer_group))
    })?;
    let (said, target, is_forgotten) = match static_topic::offsets::place_commit(broker, session, request, said)? {
        Placed::Here(said, target) => (said, target, false),
        Placed::Forgotten(said) => (said, None, true),
        Placed::Elsewhere => return Ok(()),
    };
    let Some(topic) = broker.topics.get(said.topic) else {
        return Err(Refusal::new(ResponseCode::TopicNotExist, format!("Topic {} not exist!", said.topic)));
    };
    // A topic that has become smaller is read to its end; any other id would cost memory for every id below it.
    let is_there = |id| broker.store.existing_queue(said.topic, id).is_some();
    if !topic.has_queue(said.queue_id) && !u32::try_from(said.queue_id).is_ok_and(is_there) {
        let remark = format!("topic {} has no queue {}", said.topic, said.queue_id);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    let asks_first = || broker.clients.asks_first(said.consumer_group).unwrap_or(true);
    let client = Client { connection: session.connection.id(), asks_first: &asks_first };
    if broker.offsets.passes_over(&client, said.consumer_group, said.topic, said.queue_id, said.commit_offset) {
        let remark = Some("Offset has been previously reset");
        out.reply(request.reply_to(), ResponseCode::Success, remark, &(), &[]);
        return Ok(());
    }
    match target {
        Some(target) => target.note_at_once(broker, said.consumer_group),
        None if is_forgotten => broker.offsets.forget_queue(said.consumer_group, said.topic, said.queue_id),
        None => {
            broker.offsets.commit_by(&client, said.consumer_group, said.topic, said.queue_id, said.commit_offset);
        }
    }
    reply_ok(request, out);
    Ok(())
}

/// 14: how far has a group come? Code 22 lets the client begin where its own setting says.
pub(crate) fn query(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let mut asked = QueryConsumerOffset::decode(&request.header.fields)?;
    let reply_to = request.reply_to();
    if let Some(mapping) = static_topic::of(broker, asked.topic, request) {
        let physical = static_topic::offsets::query(broker, session, request, &mapping, &asked, out)?;
        let Some(queue_id) = physical else { return Ok(()) };
        asked.queue_id = queue_id;
    }
    if let Some(offset) = broker.offsets.committed(asked.consumer_group, asked.topic, asked.queue_id) {
        // Whoever sees an offset may rely on it, a crash right after included. Nearly always it is written already. While the journal
        // cannot be written, a consumer that gets a message twice after a crash is better off than one that gets none now.
        rows::put(&broker.store, &broker.offsets);
        if !broker.store.journal().is_failing() {
            session.durable_or_late_after(broker.offsets.put_at(asked.consumer_group, asked.topic));
        }
        out.reply(reply_to, ResponseCode::Success, None, &OffsetReply { offset }, &[]);
        return Ok(());
    }
    // It begins where it likes, and has nothing from before.
    broker.offsets.begins(session.connection.id(), asked.consumer_group, asked.topic, asked.queue_id);
    if asked.set_zero_if_not_found == Some(false) {
        return Err(not_found("Not found, do not set to zero, maybe this group boot first"));
    }
    // A group that joins a young topic gets all of it: nothing has been deleted, and what is there is still in memory. That holds for a
    // queue without a message too, as in Apache 4.x. 5.x answers 22 there, and a client that then asks for the queue's end never sees
    // a first message that is stored in between.
    let queue = u32::try_from(asked.queue_id).ok().and_then(|id| broker.store.existing_queue(asked.topic, id));
    let is_empty = match &queue {
        Some(queue) => queue.max_offset() == 0,
        None => broker.topics.get(asked.topic).is_some_and(|topic| topic.has_queue(asked.queue_id)),
    };
    if is_empty {
        out.reply(reply_to, ResponseCode::Success, None, &OffsetReply { offset: 0 }, &[]);
        return Ok(());
    }
    let Some(queue) = queue.filter(|queue| queue.min_offset() == 0) else {
        return Err(not_found(BOOTS_FIRST));
    };
    let hot_bytes = HOT_BYTES;
    cold::read(
        broker,
        session,
        move |store| {
            let first = queue.unit_at(0).ok().flatten();
            first.is_some_and(|unit| store.end().0.saturating_sub(unit.at.0) <= hot_bytes)
        },
        move |_, _, is_hot, out| {
            if is_hot {
                out.reply(reply_to, ResponseCode::Success, None, &OffsetReply { offset: 0 }, &[]);
            } else {
                out.reply(reply_to, ResponseCode::QueryNotFound, Some(BOOTS_FIRST), &(), &[]);
            }
        },
    )
}

/// So far behind the log's end a first message still counts as recent. Apache takes 40 % of the machine's memory for it
/// (`accessMessageInMemoryMaxRatio`), so that the same group begins elsewhere on another machine; we take what 10 GiB make.
const HOT_BYTES: u64 = 4 << 30;
/// Clients know it by its code and people by these words.
const BOOTS_FIRST: &str = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first";

fn not_found(remark: &str) -> Refusal {
    Refusal::new(ResponseCode::QueryNotFound, remark)
}

/// 43: all offsets, for a slave.
pub(crate) fn all(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let body = ConsumerOffsets { data_version: Some(broker.offsets.version()), offset_table: broker.offsets.table() };
    reply_json(request, out, &body);
    Ok(())
}

/// 314: copy the offsets of a group to another.
pub(crate) fn copy(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = CloneGroupOffset::decode(&request.header.fields)?;
    let bad = |error: names::NameError| Refusal::new(ResponseCode::InvalidParameter, error.to_string());
    names::check_group(wanted.dest_group).map_err(bad)?;
    if broker.groups.get(wanted.dest_group).is_none() {
        broker.offsets.check_room_for(format_args!("group {}", wanted.dest_group))?;
    }
    let topics = match wanted.topic.filter(|topic| !topic.trim().is_empty()) {
        Some(topic) => [topic.into()].into(),
        None => broker.offsets.topics_of(wanted.src_group),
    };
    for topic in &topics {
        if broker.topics.get(topic).is_none() {
            tracing::warn!(topic = &**topic, "offsets not copied: no such topic");
            continue;
        }
        // A group's retry topic is its own; so is how far it has come in it.
        let is_retry = names::is_retry_topic(topic);
        let online = broker.clients.subscription(wanted.src_group, topic);
        if !is_retry
            && !wanted.offline
            && online.is_none()
            && broker.clients.consumers(wanted.src_group).is_some_and(|group| group.has_subscriptions())
        {
            tracing::warn!(
                group = wanted.src_group,
                topic = &**topic,
                "offsets not copied: the group does not subscribe to the topic"
            );
            continue;
        }
        broker.offsets.copy(wanted.src_group, wanted.dest_group, topic);
    }
    session.durable_after(rows::put(&broker.store, &broker.offsets));
    reply_ok(request, out);
    Ok(())
}
