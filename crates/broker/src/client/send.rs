//! Sends: 10, 310, 320, and the checks that replies (324, 325) share. Checks in Apache's order,
//! then the record, encoded once into a batch.
//!
//! A [`SendOrder`] borrows all that it says. [`SendOrder::run`] adds it to a batch of records and
//! stores nothing: `append` writes under one lock what a burst has gathered, and each receipt of
//! the batch says how, and at which stage, its send is answered. A call in this process has a batch
//! of its own. A refusal leaves no trace in the batch. Steady state allocates nothing: topic and
//! queue come as counted handles, everything else lives in buffers of the session.

mod batch;
pub(crate) mod order;
pub(crate) mod sending;
mod single;

use std::sync::Arc;

use config::BrokerSettings;
use net::{Outgoing, ReplyTo, Request};
use protocol::body::TopicFilterType;
use protocol::code::{ResponseCode, request};
use protocol::names;
use protocol::sys_flag::{self, perm};

use self::order::SendOrder;
use self::sending::{Gathered, Route, Sending};
use crate::answer::{recall_extra, reply_extra};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::refusal::Refusal;
use crate::sends::{SendOutcome, Sends};
use crate::session::Session;
use crate::state::topics::{Changed, Topic};
use crate::static_topic;
use crate::write::local::LocalSends;
use crate::write::repeats;

/// 10, 310, 320: adds a send to the session's batch.
pub(crate) fn send(broker: &Broker, session: &mut Session, request: &Request<'_>) -> Result<(), Refusal> {
    gather(broker, session, SendOrder::decode(request)?, request.reply_to())
}

/// Adds an order to the session's batch, whose receipt answers it.
pub(crate) fn gather(
    broker: &Broker,
    session: &mut Session,
    order: SendOrder<'_>,
    reply_to: ReplyTo,
) -> Result<(), Refusal> {
    let (caller, sends) = session.sending();
    match order.run(broker, caller, sends, reply_to)? {
        Gathered::InPlace | Gathered::Elsewhere => Ok(()),
        Gathered::Repeated(repeated) => repeats::answer(broker, session, reply_to, repeated),
    }
}

impl SendOrder<'_> {
    /// Checks it and adds what it asks for to a batch.
    pub(crate) fn run(
        mut self,
        broker: &Broker,
        caller: &mut Caller,
        sends: &mut Sends,
        reply_to: ReplyTo,
    ) -> Result<Gathered, Refusal> {
        let settings = &broker.settings.load();
        let topic = admit(broker, caller, settings, &self, reply_to)?;
        let logical = static_topic::send::place(broker, &topic, &mut self.queue_id, self.is_physical)?;
        let queue_id = queue_of(broker, &topic, &self)?;
        let first = sends.records();
        let sending = Sending { order: &self, settings, reply_to, born_host: caller.peer() };
        let gathered = if self.is_batch {
            batch::gather(broker, sends, sending, &topic, queue_id)?;
            Gathered::InPlace
        } else {
            let route = retarget(broker, caller, &self, topic, queue_id)?;
            single::gather(broker, sends, sending, &route)?
        };
        if let Some(logical) = logical.filter(|_| sends.records() > first) {
            let logical = if matches!(gathered, Gathered::Elsewhere) { logical.parked() } else { logical };
            sends.receipts.keep_logical(first, logical);
        }
        Ok(gathered)
    }

    /// Carries it out for a caller in this process, which hears where it is stored once it has come
    /// to its stage.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<SendOutcome, Refusal> {
        caller.begin();
        let mut local = LocalSends::new(broker);
        let gathered = self.run(broker, caller, local.sends(), ReplyTo::NOBODY)?;
        let durable_after = caller.take_durable_after();
        match gathered {
            Gathered::InPlace | Gathered::Elsewhere => local.outcome(durable_after).await,
            Gathered::Repeated(repeated) => Ok(repeated.outcome(broker, durable_after).await),
        }
    }
}

/// Writes a refusal with the fields that producers expect in every answer to a send.
pub(crate) fn refuse(broker: &Broker, request: &Request<'_>, refusal: &Refusal, out: &mut Outgoing) {
    if request.header.is_oneway() {
        broker.oneway_refusals.note(refusal, broker.clock.now().0);
    }
    let settings = broker.settings.load();
    let is_recall = request.header.code == request::RECALL_MESSAGE;
    let extra = if is_recall { recall_extra(&settings) } else { reply_extra(&settings) };
    out.reply(request.reply_to(), refusal.code, Some(&refusal.remark), &extra, &[]);
}

/// May this producer send to this topic? Creates the topic if it may be created.
pub(crate) fn admit(
    broker: &Broker,
    caller: &mut Caller,
    settings: &BrokerSettings,
    order: &SendOrder<'_>,
    reply_to: ReplyTo,
) -> Result<Arc<Topic>, Refusal> {
    let now = broker.clock.now().0;
    if now < settings.start_accept_send_request_time_stamp {
        let until = settings.start_accept_send_request_time_stamp;
        return Err(Refusal::new(
            ResponseCode::SystemError,
            format!("broker unable to service, until {until} (startAcceptSendRequestTimeStamp; now is {now})"),
        ));
    }
    let found = caller.topic(&broker.topics, order.topic);
    if !perm::is_writable(settings.broker_permission) && found.as_ref().is_some_and(|topic| topic.settings().order) {
        return Err(Refusal::new(
            ResponseCode::NoPermission,
            format!("the broker[{}] sending message is forbidden", broker.advertised.ip()),
        ));
    }
    if let Some(topic) = &found
        && topic.is_sendable()
    {
        caller.durable_after(topic.unsynced_change(|| broker.store.journal().synced().get()));
        return Ok(Arc::clone(topic));
    }
    names::check_topic(order.topic).map_err(|error| Refusal::new(ResponseCode::InvalidParameter, error.to_string()))?;
    if names::is_not_sendable(order.topic) {
        return Err(Refusal::new(
            ResponseCode::NoPermission,
            format!("Sending message to topic[{}] is forbidden.", order.topic),
        ));
    }
    if let Some(topic) = found {
        return Ok(topic);
    }
    broker.topics.check_room()?;
    let Changed { topic, position } =
        create(broker, settings, order).ok_or_else(|| Refusal::topic_not_exist(order.topic))?;
    tracing::debug!(topic = order.topic, producer_group = order.group, opaque = reply_to.opaque, "topic on demand");
    caller.durable_after(position);
    Ok(topic)
}

fn create(broker: &Broker, settings: &BrokerSettings, order: &SendOrder<'_>) -> Option<Changed> {
    let is_retry = names::is_retry_topic(order.topic);
    let topic_sys_flag = match (order.unit_mode, is_retry) {
        (true, true) => sys_flag::topic::UNIT_SUB,
        (true, false) => sys_flag::topic::UNIT,
        (false, _) => 0,
    };
    let from_template = broker.topics.create_for_send(
        settings,
        order.topic,
        order.default_topic,
        order.default_topic_queue_nums,
        topic_sys_flag,
    );
    if from_template.is_none() && is_retry {
        // A retry topic without its group is refused all the same; do not leave one behind.
        broker.groups.find(names::group_of(order.topic)?).ok()?;
        return Some(broker.topics.create_for_group(order.topic, 1, topic_sys_flag));
    }
    if let Some(created) = &from_template
        && !is_retry
        && broker.registry.addresses().next().is_some()
    {
        broker.placement.add(created.topic.shared_name(), order.default_topic);
    }
    from_template
}

/// The queue that the producer names, or any.
pub(crate) fn queue_of(broker: &Broker, topic: &Topic, order: &SendOrder<'_>) -> Result<i32, Refusal> {
    let config = topic.settings();
    let queues = config.write_queue_nums.max(config.read_queue_nums);
    if order.queue_id >= queues {
        return Err(Refusal::new(
            ResponseCode::InvalidParameter,
            format!(
                "request queueId[{}] is illegal, topic[{}] has {} write and {} read queues, Producer: {}",
                order.queue_id, order.topic, config.write_queue_nums, config.read_queue_nums, order.group
            ),
        ));
    }
    if order.queue_id >= 0 {
        return Ok(order.queue_id);
    }
    match u32::try_from(config.write_queue_nums) {
        Ok(queues) if queues > 0 => Ok(broker.random.below(queues) as i32),
        Ok(_) | Err(_) => Err(Refusal::new(
            ResponseCode::InvalidParameter,
            format!("topic[{}] has no write queue (writeQueueNums is {})", order.topic, config.write_queue_nums),
        )),
    }
}

/// A retry that has been tried often enough, or that belongs to an orderly consumer, goes to the dead-letter topic.
fn retarget(
    broker: &Broker,
    caller: &mut Caller,
    order: &SendOrder<'_>,
    topic: Arc<Topic>,
    queue_id: i32,
) -> Result<Route, Refusal> {
    let mut sys_flag = order.sys_flag;
    if topic.settings().topic_filter_type == TopicFilterType::MultiTag {
        sys_flag |= sys_flag::MULTI_TAGS;
    }
    let mut route = Route { topic, queue_id, sys_flag, is_dead: false };
    if !route.topic.is_retry() {
        return Ok(route);
    }
    let group_name = names::group_of(order.topic).unwrap_or_default();
    let group = broker.groups.find(group_name).map_err(|_| Refusal::group_not_exist(group_name))?;
    let retry_max = order.retry_max.unwrap_or_else(|| group.config.load().retry_max_times);
    // An orderly consumer retries in place; what it sends here has used up its attempts.
    let is_dead = order.reconsume_times.unwrap_or(0) > retry_max || broker.order_locks.holds_any(group_name);
    if is_dead {
        let dead = broker.topics.create_for_group(&names::dlq_topic(group_name), 1, 0);
        caller.durable_after(dead.position);
        route = Route { topic: dead.topic, queue_id: 0, is_dead, ..route };
    }
    Ok(route)
}
