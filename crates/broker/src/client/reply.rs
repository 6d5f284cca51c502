//! Replies to requests (`producer.request`): 324 and 325, pushed to the client that asked with 326.
//!
//! The client that asked is found by the property `REPLY_TO_CLIENT`, which its request carried, among the producers that have sent a
//! heartbeat. It may take seconds to say that it has the reply; so a task waits for it and hands the rest back to the connection that
//! replied: storing the reply in the topic for replies, unless that is switched off, and the answer. As in Apache the answer tells what
//! became of the push alone: a reply that cannot be stored has arrived all the same.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{CallError, Held, Outgoing, ReplyTo, Request};
use protocol::code::{ResponseCode, request};
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use protocol::request::{PushReply, SendMessage};
use protocol::sys_flag;
use store::TagsCode;

use crate::answer::reply_extra;
use crate::broker::Broker;
use crate::client::send::{admit, queue_of};
use crate::client_handle::{ClientAnswer, ClientHandle, ClientQuestion};
use crate::inbox::Errand;
use crate::refusal::Refusal;
use crate::sends::{Counted, Kind, Receipt, nowhere, outcome};
use crate::session::Session;
use crate::state::stats::MessageType;
use crate::state::topics::Topic;
use crate::waiting::hold::Lane;
use crate::write::{append, facts};

/// How long the client that asked has to take its reply.
const PUSH: Duration = Duration::from_secs(10);

/// A reply to a request. It outlives the burst that brought it.
struct Reply {
    reply_to: ReplyTo,
    producer_group: String,
    topic: Arc<Topic>,
    default_topic: String,
    default_topic_queue_nums: i32,
    queue_id: i32,
    sys_flag: i32,
    born_timestamp: i64,
    flag: i32,
    properties: String,
    reconsume_times: Option<i32>,
    unit_mode: bool,
    body: Bytes,
    /// Its bytes, in what requests may hold together.
    _held: Option<Held>,
}

/// 324, 325: pushes a reply to whom it is for, stores it, and tells the replier whether it got there.
pub(crate) fn reply(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let message = if request.header.code == request::SEND_REPLY_MESSAGE {
        SendMessage::decode_v1(&request.header.fields)?
    } else {
        SendMessage::decode_v2(&request.header.fields)?
    };
    let topic = admit(broker, session, &broker.settings.load(), &message, request)?;
    let held = broker.limits.hold(request.body.len() + message.properties.map_or(0, str::len))?;
    let reply = Reply {
        reply_to: request.reply_to(),
        producer_group: message.producer_group.to_owned(),
        queue_id: queue_of(broker, &topic, &message)?,
        topic,
        default_topic: message.default_topic.to_owned(),
        default_topic_queue_nums: message.default_topic_queue_nums,
        sys_flag: message.sys_flag,
        born_timestamp: message.born_timestamp,
        flag: message.flag,
        properties: message.properties.unwrap_or_default().to_owned(),
        reconsume_times: message.reconsume_times,
        unit_mode: message.unit_mode.unwrap_or(false),
        body: Bytes::copy_from_slice(request.body),
        _held: held,
    };
    let Some(asker_id) = properties::get(&reply.properties, name::REPLY_TO_CLIENT).map(str::to_owned) else {
        finish(broker, session, &reply, "reply message properties[REPLY_TO_CLIENT] is null", out);
        return Ok(());
    };
    let Some(asker) = broker.clients.producer(&asker_id) else {
        let failure = format!("push reply message fail, channel of <{asker_id}> not found.");
        finish(broker, session, &reply, &failure, out);
        return Ok(());
    };
    let (born_host, store_host) = (session.connection.peer().to_string(), broker.advertised.to_string());
    let pushed_at = broker.clock.now().0;
    let inbox = Arc::clone(&session.inbox);
    let debt = inbox.owe();
    tokio::spawn(async move {
        let failure = match push(&asker, &reply, &born_host, &store_host, pushed_at).await {
            Ok(answer) if answer.code == ResponseCode::Success as i32 => String::new(),
            // Apache's words, without a blank before "fail".
            Ok(_) | Err(_) => format!("push reply message to {asker_id}fail."),
        };
        inbox.push(Errand::then_gather(Some(reply.reply_to), move |broker, session, out| {
            finish(broker, session, &reply, &failure, out);
        }));
        drop(debt);
    });
    Ok(())
}

/// Gives the client that asked its reply, with the time in it.
async fn push(
    asker: &ClientHandle,
    reply: &Reply,
    born_host: &str,
    store_host: &str,
    pushed_at: i64,
) -> Result<ClientAnswer, CallError> {
    let mut properties = Vec::with_capacity(reply.properties.len() + 32);
    facts::copy_except(&mut properties, &reply.properties, |key| key == name::PUSH_REPLY_TIME);
    facts::put(&mut properties, name::PUSH_REPLY_TIME, &pushed_at.to_string());
    let fields = PushReply {
        producer_group: &reply.producer_group,
        topic: reply.topic.name(),
        default_topic: &reply.default_topic,
        default_topic_queue_nums: reply.default_topic_queue_nums,
        queue_id: reply.queue_id,
        sys_flag: reply.sys_flag,
        born_timestamp: reply.born_timestamp,
        flag: reply.flag,
        properties: Some(&String::from_utf8_lossy(&properties)),
        reconsume_times: reply.reconsume_times,
        unit_mode: reply.unit_mode,
        born_host,
        store_host,
        store_timestamp: pushed_at,
    };
    asker.ask(ClientQuestion::Reply(fields, reply.body.clone()), PUSH).await
}

/// Stores the reply and answers the replier; an empty `failure` says that the reply got there.
fn finish(broker: &Broker, session: &mut Session, reply: &Reply, failure: &str, out: &mut Outgoing) {
    let settings = broker.settings.load();
    if settings.store_reply_message_enable {
        match gather(broker, session, reply, failure) {
            Ok(()) => return,
            Err(refusal) => {
                tracing::warn!(topic = reply.topic.name(), why = refusal.remark, "a reply is not stored");
            }
        }
    }
    let (code, remark) = outcome(failure);
    out.reply(reply.reply_to, code, remark, &(nowhere(reply.queue_id), reply_extra(&settings)), &[]);
}

/// Adds the reply to the session's batch.
fn gather(broker: &Broker, session: &mut Session, reply: &Reply, failure: &str) -> Result<(), Refusal> {
    let topic = reply.topic.name();
    let body_bytes_max = broker.store_settings.load().max_message_size;
    if reply.body.is_empty() || reply.body.len() > body_bytes_max || topic.len() > names::TOPIC_MAX {
        return Err(Refusal::new(
            ResponseCode::MessageIllegal,
            format!("its body has {} bytes, the limit is {body_bytes_max}", reply.body.len()),
        ));
    }
    let lane = lane_of(broker, reply)?;
    let sends = &mut session.sends;
    sends.properties.clear();
    // An acknowledgement handle is not a client's to make, nor are numbers in light queues.
    facts::copy_except(&mut sends.properties, &reply.properties, |key| {
        matches!(key, name::POP_CK | name::INNER_MULTI_QUEUE_OFFSET)
    });
    if sends.properties.len() > PROPERTIES_MAX {
        return Err(Refusal::new(
            ResponseCode::MessageIllegal,
            format!("its properties have {} bytes, the limit is {PROPERTIES_MAX}", sends.properties.len()),
        ));
    }
    let draft = RecordDraft {
        topic,
        queue_id: reply.queue_id,
        flag: reply.flag,
        sys_flag: sys_flag::with_transaction(reply.sys_flag, 0) & !sys_flag::INNER_BATCH,
        born_timestamp: reply.born_timestamp,
        born_host: session.connection.peer(),
        store_host: broker.advertised,
        reconsume_times: reply.reconsume_times.unwrap_or(0),
        prepared_offset: 0,
        body: &reply.body,
        properties: &sends.properties,
    };
    let (first, gathered) = (sends.records(), sends.batch.bytes());
    append::push(&mut sends.batch, &lane, TagsCode::Code(0), &draft);
    append::check_fits(broker, &mut sends.batch, first, gathered)?;
    let text = sends.receipts.keep(failure);
    sends.receipts.push(Receipt {
        reply_to: reply.reply_to,
        kind: Kind::Reply,
        queue_id: reply.queue_id,
        records: first..first + 1,
        text,
        stage: broker.stage_of(&reply.topic, None),
        claim: None,
        part: None,
    });
    sends.touch(lane);
    let (topic, queue_id, bytes) = (Arc::clone(&reply.topic), reply.queue_id, reply.body.len());
    sends.count(Counted::Sent { topic, queue_id, message_type: MessageType::Normal, messages: 1, bytes });
    Ok(())
}

fn lane_of(broker: &Broker, reply: &Reply) -> Result<Arc<Lane>, Refusal> {
    if reply.topic.is_gone() {
        return Err(Refusal::topic_not_exist(reply.topic.name()));
    }
    reply.topic.lane(&broker.store, reply.queue_id as u32).map_err(Refusal::failed)
}
