//! Replies to requests (`producer.request`): 324 and 325, pushed to the client that asked with 326.
//!
//! The client that asked is found by the property `REPLY_TO_CLIENT`, which its request carried, among the producers that have sent a
//! heartbeat. It may take seconds to say that it has the reply; so a task waits for it and hands the rest back to the connection that
//! replied: storing the reply in the topic for replies, unless that is switched off, and the answer. As in Apache the answer tells what
//! became of the push alone: a reply that cannot be stored has arrived all the same.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{Held, Outgoing, ReplyTo, Request};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::properties::{self, name};
use protocol::record::{PROPERTIES_MAX, RecordDraft};
use protocol::request::PushReply;
use protocol::{sys_flag, tags};
use store::{Store, TagsCode};

use crate::broker::Broker;
use crate::caller::Caller;
use crate::client::send::order::SendOrder;
use crate::client::send::{admit, queue_of};
use crate::client_handle::{ClientHandle, ClientQuestion};
use crate::inbox::Errand;
use crate::refusal::Refusal;
use crate::sends::{Counted, NOWHERE, Receipt, ReceiptKind, SendOutcome, Sends, nowhere, outcome};
use crate::session::Session;
use crate::state::clients::Clients;
use crate::state::stats::MessageType;
use crate::state::topics::Topic;
use crate::waiting::hold::Lane;
use crate::write::durability::OwnWords;
use crate::write::local::LocalSends;
use crate::write::{append, send_properties};

/// How long the client that asked has to take its reply.
const PUSH: Duration = Duration::from_secs(10);

/// A reply to a request. It outlives the burst that brought it.
struct Reply {
    reply_to: ReplyTo,
    /// The client that replies.
    born_host: SocketAddr,
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
    let order = SendOrder::decode(request)?;
    let reply = Reply::of(broker, session, &order, request.reply_to())?;
    let asker = match reply.asker(&broker.clients) {
        Ok(asker) => asker,
        Err(failure) => {
            finish(broker, session, &reply, &failure, out);
            return Ok(());
        }
    };
    let (store_host, pushed_at) = (broker.advertised.to_string(), broker.clock.now().0);
    let inbox = Arc::clone(&session.inbox);
    let debt = inbox.owe();
    tokio::spawn(async move {
        let failure = reply.push(&asker, &store_host, pushed_at).await;
        inbox.push(Errand::then_gather(Some(reply.reply_to), move |broker, session, out| {
            finish(broker, session, &reply, &failure, out);
        }));
        drop(debt);
    });
    Ok(())
}

impl SendOrder<'_> {
    /// Pushes it to the client that waits for this reply, and stores it, for a caller in this
    /// process. The outcome tells what became of the push.
    pub async fn call_as_reply(&self, broker: &Broker, caller: &mut Caller) -> Result<SendOutcome, Refusal> {
        caller.begin();
        let reply = Reply::of(broker, caller, self, ReplyTo::NOBODY)?;
        let (store_host, pushed_at) = (broker.advertised.to_string(), broker.clock.now().0);
        let failure = match reply.asker(&broker.clients) {
            Ok(asker) => reply.push(&asker, &store_host, pushed_at).await,
            Err(failure) => failure,
        };
        let mut local = LocalSends::new(broker);
        let stored = if reply.store(broker, &failure, local.sends()) {
            local.outcome(caller.take_durable_after()).await.ok()
        } else {
            None
        };
        Ok(stored.unwrap_or_else(|| {
            let (code, remark) = outcome(&failure);
            SendOutcome::of(&nowhere(reply.queue_id, code, remark), std::iter::empty())
        }))
    }
}

impl Reply {
    /// Of a reply that its topic admits.
    fn of(broker: &Broker, caller: &mut Caller, order: &SendOrder<'_>, reply_to: ReplyTo) -> Result<Reply, Refusal> {
        let topic = admit(broker, caller, &broker.settings.load(), order, reply_to)?;
        let held = broker.limits.hold(order.body.len() + order.properties.len())?;
        Ok(Reply {
            reply_to,
            born_host: caller.peer(),
            producer_group: order.group.to_owned(),
            queue_id: queue_of(broker, &topic, order)?,
            topic,
            default_topic: order.default_topic.to_owned(),
            default_topic_queue_nums: order.default_topic_queue_nums,
            sys_flag: order.sys_flag,
            born_timestamp: order.born_ms,
            flag: order.flag,
            properties: order.properties.to_owned(),
            reconsume_times: order.reconsume_times,
            unit_mode: order.unit_mode,
            body: Bytes::copy_from_slice(order.body),
            _held: held,
        })
    }

    /// The client that asked, or why it gets no reply.
    fn asker(&self, clients: &Clients<ClientHandle>) -> Result<ClientHandle, String> {
        let Some(id) = properties::get(&self.properties, name::REPLY_TO_CLIENT) else {
            return Err("reply message properties[REPLY_TO_CLIENT] is null".to_owned());
        };
        clients.producer(id).ok_or_else(|| format!("push reply message fail, channel of <{id}> not found."))
    }

    /// Gives the client that asked its reply, with the time in it, and says why it did not get
    /// there; nothing if it did.
    async fn push(&self, asker: &ClientHandle, store_host: &str, pushed_at: i64) -> String {
        let mut properties = Vec::with_capacity(self.properties.len() + 32);
        send_properties::copy_except(&mut properties, &self.properties, |key| key == name::PUSH_REPLY_TIME);
        send_properties::put(&mut properties, name::PUSH_REPLY_TIME, &pushed_at.to_string());
        let fields = PushReply {
            producer_group: &self.producer_group,
            topic: self.topic.name(),
            default_topic: &self.default_topic,
            default_topic_queue_nums: self.default_topic_queue_nums,
            queue_id: self.queue_id,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_timestamp,
            flag: self.flag,
            properties: Some(&String::from_utf8_lossy(&properties)),
            reconsume_times: self.reconsume_times,
            unit_mode: self.unit_mode,
            born_host: &self.born_host.to_string(),
            store_host,
            store_timestamp: pushed_at,
        };
        match asker.ask(ClientQuestion::Reply(fields, self.body.clone()), PUSH).await {
            Ok(answer) if answer.code == ResponseCode::Success as i32 => String::new(),
            // Apache's words, without a blank before "fail".
            Ok(_) | Err(_) => {
                let id = properties::get(&self.properties, name::REPLY_TO_CLIENT).unwrap_or_default();
                format!("push reply message to {id}fail.")
            }
        }
    }
}

/// Stores the reply and answers the replier; an empty `failure` says that the reply got there.
fn finish(broker: &Broker, session: &mut Session, reply: &Reply, failure: &str, out: &mut Outgoing) {
    if !reply.store(broker, failure, &mut session.sends) {
        let (code, remark) = outcome(failure);
        nowhere(reply.queue_id, code, remark).encode(reply.reply_to, NOWHERE, false, &broker.settings.load(), out);
    }
}

impl Reply {
    /// Adds it to a batch, if replies are stored and this one can be.
    fn store(&self, broker: &Broker, failure: &str, sends: &mut Sends) -> bool {
        if !broker.settings.load().store_reply_message_enable {
            return false;
        }
        let gathered = self.gather(broker, failure, sends);
        if let Err(refusal) = &gathered {
            tracing::warn!(topic = self.topic.name(), why = refusal.remark, "a reply is not stored");
        }
        gathered.is_ok()
    }

    /// Adds the reply to a batch.
    fn gather(&self, broker: &Broker, failure: &str, sends: &mut Sends) -> Result<(), Refusal> {
        let topic = self.topic.name();
        let body_bytes_max = broker.store_settings.load().max_message_size;
        if self.body.is_empty() || self.body.len() > body_bytes_max || topic.len() > names::TOPIC_MAX {
            return Err(Refusal::new(
                ResponseCode::MessageIllegal,
                format!("its body has {} bytes, the limit is {body_bytes_max}", self.body.len()),
            ));
        }
        let lane = self.lane(&broker.store)?;
        sends.properties.clear();
        // An acknowledgement handle is not a client's to make, nor are numbers in light queues.
        send_properties::copy_except(&mut sends.properties, &self.properties, |key| {
            matches!(key, name::POP_CK | name::INNER_MULTI_QUEUE_OFFSET)
        });
        if sends.properties.len() > PROPERTIES_MAX {
            return Err(Refusal::new(
                ResponseCode::MessageIllegal,
                format!("its properties have {} bytes, the limit is {PROPERTIES_MAX}", sends.properties.len()),
            ));
        }
        let stages = broker.stages_of(&self.topic, OwnWords::default())?;
        let draft = RecordDraft {
            topic,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: sys_flag::with_transaction(self.sys_flag, 0) & !sys_flag::INNER_BATCH,
            born_timestamp: self.born_timestamp,
            born_host: self.born_host,
            store_host: broker.advertised,
            reconsume_times: self.reconsume_times.unwrap_or(0),
            prepared_offset: 0,
            body: &self.body,
            properties: &sends.properties,
        };
        let (first, gathered) = (sends.records(), sends.batch.bytes());
        let code = tags::code(properties::get(&self.properties, name::TAGS).unwrap_or_default());
        append::push(&mut sends.batch, &lane, TagsCode::Code(code), &draft);
        append::check_fits(broker, &mut sends.batch, first, gathered)?;
        let text = sends.receipts.keep(failure);
        sends.receipts.push(Receipt {
            reply_to: self.reply_to,
            kind: ReceiptKind::Reply,
            queue_id: self.queue_id,
            records: first..first + 1,
            text,
            stages,
            claim: None,
            part: None,
        });
        sends.touch(lane);
        let (topic, queue_id, bytes) = (Arc::clone(&self.topic), self.queue_id, self.body.len());
        sends.count(Counted::Sent { topic, queue_id, message_type: MessageType::Normal, messages: 1, bytes });
        Ok(())
    }

    fn lane(&self, store: &Store) -> Result<Arc<Lane>, Refusal> {
        if self.topic.is_gone() {
            return Err(Refusal::topic_not_exist(self.topic.name()));
        }
        self.topic.lane(store, self.queue_id as u32).map_err(Refusal::failed)
    }
}
