//! 222: sets where a group goes on, by time or to an offset.
//!
//! With `useServerSideResetOffset` the broker sets the offsets itself and tells the next pull of each queue (code 21); clients need not be
//! there. Without, it computes them and tells each client by request 220, which sets its own and commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use config::BrokerSettings;
use net::{Outgoing, ReplyTo, Request};
use protocol::body::{MessageQueue, QueueOffsetForC, ResetOffsetBody, ResetOffsetBodyForC};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::header::Language;
use protocol::names;
use protocol::request::ResetOffset;
use store::{Boundary, ConsumeQueue, Store};

use crate::broker::Broker;
use crate::client_handle::{ClientHandle, ClientQuestion};
use crate::lite;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::Clients;
use crate::state::offsets::{GroupTopicRef, Offsets, rows};
use crate::state::topics::queues::ends;
use crate::waiting::hold::Hold;

/// Clients before this (3.0.7) do not know request 220.
const VERSION_WITH_RESET: i32 = 28;
/// The timestamp that stands for the end of each queue.
const TO_THE_END: i64 = -1;

/// Seconds that were meant for milliseconds lie before this, the year 2000.
const EARLIEST: i64 = 946_684_800_000;

/// What is to be reset.
struct ResetOrder {
    topic: String,
    group: String,
    timestamp: i64,
    is_force: bool,
    is_for_cpp: bool,
    reply_to: ReplyTo,
    queues: Vec<(i32, Option<Arc<ConsumeQueue>>)>,
}

pub(crate) fn reset(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = ResetOffset::decode(&request.header.fields)?;
    tracing::info!(
        topic = wanted.topic, group = wanted.group, timestamp = wanted.timestamp, queue = wanted.queue_id,
        peer = %session.connection.peer(), "offset reset by request"
    );
    let is_on_server = broker.settings.load().use_server_side_reset_offset;
    let Some(topic) = broker.topics.get(wanted.topic) else {
        let remark = if is_on_server {
            format!("Topic {} does not exist", wanted.topic)
        } else {
            format!("topic {} not exist", wanted.topic)
        };
        return Err(Refusal::new(ResponseCode::TopicNotExist, remark));
    };
    let is_by_time = !is_on_server || wanted.offset.is_none_or(|offset| offset < 0);
    if is_by_time && (1..EARLIEST).contains(&wanted.timestamp) {
        let remark = format!(
            "timestamp is {} ms, which is before the year 2000 ({EARLIEST}); it counts milliseconds, not seconds (0 is the first message, {TO_THE_END} \
             the end)",
            wanted.timestamp
        );
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    let config = topic.config();
    let mut order = ResetOrder {
        topic: wanted.topic.to_owned(),
        group: wanted.group.to_owned(),
        timestamp: wanted.timestamp,
        is_force: wanted.is_force,
        is_for_cpp: request.header.language == Language::Cpp,
        reply_to: request.reply_to(),
        queues: Vec::new(),
    };
    let all = topic.queues(&broker.store);
    if !is_on_server {
        order.queues = all.into_iter().take_while(|(id, _)| *id < config.write_queue_nums).collect();
        let targets = by_time(&broker.store, session, &order)?;
        on_clients(&broker.offsets, &broker.clients, &broker.settings.load(), &order, targets, out);
        return Ok(());
    }
    if broker.groups.get(wanted.group).is_none() {
        return Err(Refusal::new(
            ResponseCode::SubscriptionGroupNotExist,
            format!("Group {} does not exist", wanted.group),
        ));
    }
    let is_meant = |id: i32| id < config.read_queue_nums && (wanted.queue_id < 0 || id == wanted.queue_id);
    order.queues = all.into_iter().filter(|(id, _)| is_meant(*id)).collect();
    if order.queues.is_empty() {
        return Err(Refusal::new(ResponseCode::SystemError, "No queues to reset."));
    }
    let targets = match wanted.offset.filter(|offset| *offset >= 0) {
        Some(offset) => {
            for (_, queue) in &order.queues {
                let (min, max) = queue.as_ref().map_or((0, 0), |queue| ends(queue));
                if !(min..=max.saturating_add(1)).contains(&offset) {
                    let remark = format!("Target offset {offset} not in consume queue range [{min}-{max}]");
                    return Err(Refusal::new(ResponseCode::SystemError, remark));
                }
            }
            order.queues.iter().map(|(id, _)| (*id, offset)).collect()
        }
        None => by_time(&broker.store, session, &order)?,
    };
    let offers = lite::Offers::of(broker);
    on_server(offers, &broker.hold, &broker.settings.load(), session, &order, &targets, out);
    Ok(())
}

/// Where each queue stood at the time that is asked for.
fn by_time(store: &Store, session: &Session, order: &ResetOrder) -> Result<BTreeMap<i32, i64>, Refusal> {
    let mut targets = BTreeMap::new();
    for (id, queue) in &order.queues {
        session.check_wanted()?;
        let target = match queue {
            None => 0,
            Some(queue) if order.timestamp == TO_THE_END => store.visible_end(queue) as i64,
            Some(queue) => match store.offset_by_time(queue, order.timestamp, Boundary::Lower) {
                Ok(offset) => i64::try_from(offset).unwrap_or(i64::MAX),
                Err(error) => {
                    tracing::warn!(topic = order.topic, queue = id, %error, "offset by time not found, queue not reset");
                    continue;
                }
            },
        };
        targets.insert(*id, target);
    }
    Ok(targets)
}

fn on_server(
    offers: lite::Offers<'_>,
    hold: &Hold,
    settings: &BrokerSettings,
    session: &mut Session,
    order: &ResetOrder,
    targets: &BTreeMap<i32, i64>,
    out: &mut Outgoing,
) {
    for (queue_id, offset) in targets {
        offers.offsets.reset(&order.group, &order.topic, *queue_id, *offset);
    }
    rows::put(offers.store, offers.offsets);
    session.copied_after(offers.offsets.put_at(&order.group, &order.topic));
    // Who waits to pop may have something now; who pulls asks again by himself.
    hold.pops.arrived(GroupTopicRef { group: &order.group, topic: &order.topic });
    if names::lite_parts(&order.topic).is_some() {
        offers.offer(&order.group, &order.topic);
    }
    reply(settings, order, targets, out);
}

fn on_clients(
    offsets: &Offsets,
    clients: &Clients<ClientHandle>,
    settings: &BrokerSettings,
    order: &ResetOrder,
    targets: BTreeMap<i32, i64>,
    out: &mut Outgoing,
) {
    let ResetOrder { topic, group, .. } = order;
    let mut chosen = BTreeMap::new();
    for (queue_id, target) in targets {
        let Some(committed) = offsets.committed(group, topic, queue_id) else {
            let remark = format!("THe consumer group <{group}> not exist");
            return refuse(order, ResponseCode::SystemError, &remark, out);
        };
        chosen.insert(queue_id, if order.is_force { target } else { target.min(committed) });
    }
    let Some(consumers) = clients.consumers(group) else {
        let timestamp = order.timestamp;
        let remark = format!(
            "Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: {timestamp}"
        );
        return refuse(order, ResponseCode::ConsumerNotOnline, &remark, out);
    };
    if let Some(old) = consumers.members().iter().find(|member| member.client.version < VERSION_WITH_RESET) {
        let remark = format!("the client does not support this feature. version={}", old.client.version);
        return refuse(order, ResponseCode::SystemError, &remark, out);
    }
    // What clients commit then is wanted, also behind the end that a crash left.
    chosen.keys().for_each(|queue_id| offsets.forget_end(group, topic, *queue_id));
    for member in consumers.members() {
        tell(settings, order, &chosen, &member.client.connection);
    }
    reply(settings, order, &chosen, out);
}

fn tell(settings: &BrokerSettings, order: &ResetOrder, offsets: &BTreeMap<i32, i64>, client: &ClientHandle) {
    let fields = ResetOffset {
        group: &order.group,
        topic: &order.topic,
        queue_id: -1,
        offset: None,
        timestamp: order.timestamp,
        is_force: order.is_force,
    };
    // False when it has gone in this moment: then there is nobody to tell.
    client.tell(&ClientQuestion::ResetOffsets(fields, Bytes::from(body(settings, order, offsets))));
}

fn body(settings: &BrokerSettings, order: &ResetOrder, offsets: &BTreeMap<i32, i64>) -> Vec<u8> {
    let broker_name = &settings.broker_name;
    if order.is_for_cpp {
        let offset_table = offsets.iter().map(|(queue_id, offset)| QueueOffsetForC {
            broker_name: broker_name.clone(),
            offset: *offset,
            queue_id: *queue_id,
            topic: order.topic.clone(),
        });
        return fastjson::to_vec(&ResetOffsetBodyForC { offset_table: offset_table.collect() }, Dialect::FastJson);
    }
    let offset_table = offsets.iter().map(|(queue_id, offset)| {
        (MessageQueue { broker_name: broker_name.clone(), queue_id: *queue_id, topic: order.topic.clone() }, *offset)
    });
    fastjson::to_vec(&ResetOffsetBody { offset_table: offset_table.collect() }, Dialect::FastJson)
}

fn reply(settings: &BrokerSettings, order: &ResetOrder, offsets: &BTreeMap<i32, i64>, out: &mut Outgoing) {
    out.reply(order.reply_to, ResponseCode::Success, None, &(), &body(settings, order, offsets));
}

fn refuse(order: &ResetOrder, code: ResponseCode, remark: &str, out: &mut Outgoing) {
    out.reply(order.reply_to, code, Some(remark), &(), &[]);
}
