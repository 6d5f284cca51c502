//! Pulls: 11 and 361. Checks in Apache's order, then a read, then slices of the log; or the pull is parked until there is something.
//!
//! A [`PullOrder`] that has passed its checks is a [`CheckedPull`]: handles and numbers, no borrowed text, so the same thing is read at once,
//! parked, woken, or carried to the cold-read threads and back (`step.rs`). It ends in a [`PullOutcome`].

mod elsewhere;
mod outcome;
mod step;
mod suggest;

use std::sync::Arc;
use std::time::Duration;

use config::BrokerSettings;
use filter::Expression;
use net::{Outgoing, ReplyTo, Request};
use protocol::code::{RequestCode, ResponseCode};
use protocol::request::{PullForbidden, PullMessage};
use protocol::sys_flag::{perm, pull as bits};
use protocol::{light, names};
use store::{Read, ReadStatus};

pub use self::outcome::{PullOutcome, PullStatus};

use self::elsewhere::PassedOn;
use self::step::{Patience, Step, back, look_on, step, step_after};
use crate::broker::Broker;
use crate::caller::{Caller, ended};
use crate::client::commit_at_slave;
use crate::client::late_subscription;
use crate::cold;
use crate::parked::{CheckedPull, Parked};
use crate::refusal::{Refusal, SEE_FAQ};
use crate::session::Session;
use crate::state::clients::is_tag;
use crate::state::message_filter::{MessageFilter, SQL92, check_property_filter};
use crate::state::offsets::OffsetClient;
use crate::static_topic::NamedQueue;
use crate::static_topic::pull::{OFFSET_RESET, PhysicalPull, ReadPlace, place};
use crate::static_topic::replies::{answer_later, wait_for};
use crate::waiting::hold::{Hold, Waiter, Wake};

/// Why a pull is forbidden; 5.x clients read it from the answer.
mod forbidden {
    pub(crate) const BROKER: i32 = 1;
    pub(crate) const GROUP: i32 = 2;
    pub(crate) const TOPIC: i32 = 3;
    pub(crate) const BROADCAST: i32 = 4;
    pub(crate) const SUBSCRIPTION: i32 = 5;
}

/// Why a pull is refused, and what the answer says beside it.
struct PullRefusal {
    refusal: Refusal,
    forbidden_type: Option<i32>,
}

impl From<Refusal> for PullRefusal {
    fn from(refusal: Refusal) -> PullRefusal {
        PullRefusal { refusal, forbidden_type: None }
    }
}

fn forbid(forbidden_type: i32, remark: String) -> PullRefusal {
    PullRefusal { refusal: Refusal::new(ResponseCode::NoPermission, remark), forbidden_type: Some(forbidden_type) }
}

/// A pull as a client asks for it.
#[derive(Clone, Copy, Debug)]
pub struct PullOrder<'a> {
    /// For this group.
    pub group: &'a str,
    /// Of this topic.
    pub topic: &'a str,
    /// Of this queue: a logical one if the topic is static.
    pub queue_id: i32,
    /// The queue is a physical one also if the topic is static: another broker asks.
    pub is_physical: bool,
    /// From here on.
    pub offset: i64,
    /// Messages at most.
    pub count_max: i32,
    /// Bytes at most, if the client says so.
    pub bytes_max: Option<i32>,
    /// It waits for a message for so long. None: it wants an answer at once.
    pub wait_ms: Option<i64>,
    /// The group has done with all before this offset.
    pub commit_offset: Option<i64>,
    /// Which messages. None: those that the group's heartbeats say.
    pub subscription: Option<PullSubscription<'a>>,
    /// The version of the heartbeat's subscription that the client knows.
    pub subscription_version: i64,
    /// A lite topic of `topic`.
    pub lite_topic: Option<&'a str>,
    /// A consumer asks that chooses its queues itself (361).
    pub is_lite_consumer: bool,
}

/// A subscription that a pull brings along.
#[derive(Clone, Copy, Debug)]
pub struct PullSubscription<'a> {
    /// Tags, or a condition.
    pub expression: &'a str,
    /// `TAG` or `SQL92`; without it, tags.
    pub expression_type: Option<&'a str>,
}

/// Where a pull that has passed its checks is read.
enum Checked {
    Here(CheckedPull),
    Elsewhere(Box<PassedOn>),
}

/// How far an order has come.
enum Begun {
    Here(Step),
    /// Another broker is to be asked in place of this one, and its answer is the answer.
    Elsewhere(Box<PassedOn>),
}

/// 11 and 361.
pub(crate) fn pull(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = PullOrder::decode(request)?;
    let reply_to = request.reply_to();
    session.asked = Some(reply_to);
    let begun = order.run(broker, session);
    let answered = match begun {
        Ok(Begun::Here(step)) => {
            go_on(broker, session, step, reply_to, out);
            Ok(())
        }
        Ok(Begun::Elsewhere(passed_on)) => {
            let forward = Arc::clone(&broker.forward);
            answer_later(broker, session, request, async move {
                let outcome = passed_on.ask(&forward).await?;
                let mut out = Outgoing::new();
                outcome.encode(reply_to, &mut out, &mut Vec::new());
                Ok(out)
            })
        }
        Err(PullRefusal { refusal, forbidden_type: Some(forbidden_type) }) => {
            let fields = PullForbidden { forbidden_type };
            out.reply(reply_to, refusal.code, Some(&refusal.remark), &fields, &[]);
            Ok(())
        }
        Err(PullRefusal { refusal, forbidden_type: None }) if refusal.code == ResponseCode::SubscriptionNotLatest => {
            late_subscription::ask(broker, session, request, &order, refusal)
        }
        Err(PullRefusal { refusal, forbidden_type: None }) if refusal.code == ResponseCode::SubscriptionNotExist => {
            late_subscription::wait_for_heartbeat(broker, session, request, &order, refusal)
        }
        Err(PullRefusal { refusal, forbidden_type: None }) => Err(refusal),
    };
    session.asked = None;
    answered
}

/// A pull that a remoting connection has parked comes back.
pub(crate) fn resume(
    broker: &Broker,
    session: &mut Session,
    order: CheckedPull,
    reply_to: Option<ReplyTo>,
    wake: Wake,
    out: &mut Outgoing,
) {
    let Some(reply_to) = reply_to else { return };
    session.asked = Some(reply_to);
    let step = back(broker, session, order, wake);
    go_on(broker, session, step, reply_to, out);
    session.asked = None;
}

/// Answers a pull of a remoting connection, or reads on another thread, whose answer comes back through the inbox.
fn go_on(broker: &Broker, session: &mut Session, step: Step, reply_to: ReplyTo, out: &mut Outgoing) {
    let refused = match step {
        Step::Parked => return,
        Step::Answered(Ok(outcome)) => return outcome.encode(reply_to, out, &mut session.slices),
        Step::Answered(Err(refusal)) => Err(refusal),
        Step::Elsewhere(order, patience, at) => {
            let look = look_on(broker, session, order, at);
            cold::read_at(at, &broker.store, session, look, move |broker, session, (order, found, slices), out| {
                let step = step_after(broker, session, order, patience, &found, slices);
                go_on(broker, session, step, reply_to, out);
            })
        }
    };
    if let Err(refusal) = refused {
        out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
    }
}

impl<'a> PullOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<PullOrder<'a>, Refusal> {
        let message = PullMessage::decode(&request.header.fields)?;
        let has = |bit: i32| message.sys_flag & bit != 0;
        let subscription = PullSubscription {
            expression: message.subscription.unwrap_or_default(),
            expression_type: message.expression_type,
        };
        Ok(PullOrder {
            group: message.consumer_group,
            topic: message.topic,
            queue_id: message.queue_id,
            is_physical: NamedQueue::of(request, message.topic, message.queue_id).is_physical,
            offset: message.queue_offset,
            count_max: message.max_msg_nums,
            bytes_max: message.max_msg_bytes,
            wait_ms: has(bits::SUSPEND).then_some(message.suspend_timeout_millis),
            commit_offset: has(bits::COMMIT_OFFSET).then_some(message.commit_offset),
            subscription: has(bits::SUBSCRIPTION).then_some(subscription),
            subscription_version: message.sub_version,
            lite_topic: message.lite_topic,
            is_lite_consumer: request.header.code == RequestCode::LITE_PULL_MESSAGE.number(),
        })
    }

    /// Checks it, notes what it commits, and reads.
    fn run(&self, broker: &Broker, caller: &mut Caller) -> Result<Begun, PullRefusal> {
        // Made ready, or looked for among those that are.
        caller.took(self.subscription.map_or(0, |subscription| subscription.expression.len() as u64));
        let order = match self.check(broker, caller)? {
            Checked::Here(order) => order,
            Checked::Elsewhere(passed_on) => return Ok(Begun::Elsewhere(passed_on)),
        };
        let (group, topic, queue_id) = (&order.group.name, order.topic.name(), order.queue_id());
        // Before its heartbeat: who says with each pull what it subscribes to, reads by itself.
        let asks_first = || broker.clients.asks_first(group).unwrap_or(self.subscription.is_none());
        let client = OffsetClient { connection: caller.client().id(), asks_first: &asks_first };
        match (&order.logical, self.commit_offset) {
            (Some(logical), _) => {
                if let Some(commit) = logical.commit(broker, group, &order.topic) {
                    commit.note();
                }
            }
            (None, Some(offset)) if broker.standing.is_slave() => {
                commit_at_slave::commit(broker, &client, group, topic, queue_id, offset);
            }
            (None, Some(offset)) => broker.offsets.commit_by(&client, group, topic, queue_id, offset),
            (None, None) => {}
        }
        if let Some(to) = broker.offsets.tell(&client, group, topic, queue_id, order.offset) {
            tracing::info!(%group, topic, queue_id, asked = order.offset, to, "a pull is told where its group goes on");
            let (min, max) = order.bounds();
            let read = Read::nothing(ReadStatus::OffsetReset, to, min, max);
            let outcome =
                PullOutcome::without_messages(broker, &order, &read, ResponseCode::PullOffsetMoved, OFFSET_RESET);
            return Ok(Begun::Here(Step::Answered(Ok(outcome))));
        }
        let patience = Patience::Fresh(self.wait_ms.map_or(Duration::ZERO, |wait_ms| {
            let settings = broker.settings.load();
            Duration::from_millis(if settings.long_polling_enable {
                u64::try_from(wait_ms).unwrap_or(0)
            } else {
                settings.short_polling_time_mills
            })
        }));
        Ok(Begun::Here(step(broker, caller, order, patience)))
    }

    /// Carries it out for a caller in this process, which gets the messages, or hears after its time that there are none. Dropped, it waits
    /// no more.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<PullOutcome, Refusal> {
        caller.begin();
        let mut next = match self.run(broker, caller).map_err(|refused| refused.refusal)? {
            Begun::Here(step) => step,
            Begun::Elsewhere(passed_on) => return wait_for(&broker.forward, passed_on.ask(&broker.forward)).await,
        };
        let _place = WaitingCaller { hold: Arc::clone(&broker.hold), waiter: Arc::clone(&caller.waiter) };
        // Each round ends as a read does: with an answer, with a wait, which is over some time, or on another thread.
        loop {
            caller.give_way().await;
            next = match next {
                Step::Answered(answer) => return answer,
                Step::Elsewhere(order, patience, at) => {
                    let (store, look) = (Arc::clone(&broker.store), look_on(broker, caller, order, at));
                    let (order, found, slices) = cold::done_at(at, &broker.store, move || look(&store)).await?;
                    step_after(broker, caller, order, patience, &found, slices)
                }
                Step::Parked => {
                    let woken = caller.woken().await;
                    let Some((Parked::Pull(order, _), wake)) = woken else { return Err(ended()) };
                    back(broker, caller, order, wake)
                }
            };
        }
    }

    fn check(&self, broker: &Broker, caller: &mut Caller) -> Result<Checked, PullRefusal> {
        let settings = broker.settings.load();
        if !perm::is_readable(settings.broker_permission) {
            let ip = broker.advertised.ip();
            return Err(forbid(forbidden::BROKER, format!("the broker[{ip}] pulling message is forbidden")));
        }
        if self.is_lite_consumer && !settings.lite_pull_message_enable {
            let ip = broker.advertised.ip();
            return Err(forbid(
                forbidden::BROKER,
                format!("the broker[{ip}] for lite pull consumer is forbidden (litePullMessageEnable is false)"),
            ));
        }
        let group = broker.groups.find(self.group).map_err(|_| {
            let remark = format!("subscription group [{}] does not exist, {SEE_FAQ}", self.group);
            Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
        })?;
        let group_config = group.config.load();
        if !group_config.consume_enable {
            return Err(forbid(forbidden::GROUP, format!("subscription group no permission, {}", self.group)));
        }
        let topic = caller.topic(&broker.topics, self.topic).ok_or_else(|| {
            let remark = format!("topic[{}] not exist, apply first please! {SEE_FAQ}", self.topic);
            Refusal::new(ResponseCode::TopicNotExist, remark)
        })?;
        let config = topic.settings();
        if !perm::is_readable(config.perm) {
            return Err(forbid(forbidden::TOPIC, format!("the topic[{}] pulling message is forbidden", self.topic)));
        }
        let mapping = if self.is_physical { None } else { topic.mapping() };
        let (queue_id, offset, count_max, logical) = match mapping {
            None => (self.queue_id, self.offset, self.count_max, None),
            Some(mapping) => match place(&mapping, self.queue_id, self.offset, self.count_max, self.commit_offset)? {
                ReadPlace::Here(PhysicalPull { queue_id, offset, count_max, asked }) => {
                    (queue_id, offset, count_max, Some(Box::new(asked)))
                }
                ReadPlace::Elsewhere(held) => {
                    return Ok(Checked::Elsewhere(Box::new(PassedOn::new(self, held))));
                }
            },
        };
        let queue = self.check_queue(caller, queue_id, config.read_queue_nums)?;
        drop(config);
        let filter = self.filter(broker, caller, &settings, group_config.consume_broadcast_enable)?;
        if settings.reject_pull_consumer_enable {
            let consumers = broker.clients.consumers(self.group);
            if consumers.is_none_or(|consumers| consumers.is_active_pull()) {
                let remark = format!(
                    "the consumer's group info not exist: group {} pulls actively (rejectPullConsumerEnable is true){SEE_FAQ}",
                    self.group
                );
                return Err(Refusal::new(ResponseCode::SubscriptionNotExist, remark).into());
            }
        }
        let lite_queue = self.lite_topic.filter(|name| !name.trim().is_empty() && broker.store.has_light_queues());
        let lite_queue = lite_queue.map(|lite_topic| names::lite_queue(self.topic, lite_topic));
        let topic = match &lite_queue {
            Some(queue) => broker.topics.get(queue).ok_or_else(|| Refusal::topic_not_exist(queue))?,
            None => topic,
        };
        if lite_queue.is_some() && queue != light::QUEUE_ID {
            let remark = format!("queueId[{queue}] is illegal, a lite topic has queue {} only", light::QUEUE_ID);
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark).into());
        }
        let lane = topic.lane(&broker.store, queue).map_err(Refusal::failed)?;
        Ok(Checked::Here(CheckedPull {
            lane,
            logical,
            asked: offset,
            offset,
            count_max,
            bytes_max: self.bytes_max,
            filter,
            topic,
            group: Arc::clone(&group),
        }))
    }

    /// A queue that the topic has.
    fn check_queue(&self, caller: &Caller, queue_id: i32, queues: i32) -> Result<u32, Refusal> {
        match u32::try_from(queue_id) {
            Ok(queue) if queue_id < queues => Ok(queue),
            Ok(_) | Err(_) => {
                let remark = format!(
                    "queueId[{queue_id}] is illegal, topic:[{}] topicConfig.readQueueNums:[{queues}] consumer:[{}]",
                    self.topic,
                    caller.peer()
                );
                Err(Refusal::new(ResponseCode::InvalidParameter, remark))
            }
        }
    }

    /// Its filter: from the order itself, or as the group's heartbeats have it.
    fn filter(
        &self,
        broker: &Broker,
        caller: &mut Caller,
        settings: &BrokerSettings,
        may_broadcast: bool,
    ) -> Result<Option<Arc<MessageFilter>>, PullRefusal> {
        if let Some(PullSubscription { expression, expression_type }) = self.subscription {
            let kind = expression_type.unwrap_or_default();
            if !is_tag(kind) {
                check_property_filter(settings, kind)?;
                return broker.filters.condition(expression).map(Some).map_err(|why| Refusal::unparsed(&why).into());
            }
            return broker.filters.tags(expression).map_err(|why| Refusal::unparsed(&why).into());
        }
        let Some(consumers) = broker.clients.consumers(self.group) else {
            let remark = format!("the consumer's group info not exist{SEE_FAQ}");
            return Err(Refusal::new(ResponseCode::SubscriptionNotExist, remark).into());
        };
        if !may_broadcast && consumers.is_broadcasting() {
            let remark = format!("the consumer group[{}] can not consume by broadcast way", self.group);
            return Err(forbid(forbidden::BROADCAST, remark));
        }
        if broker.groups.is_read_forbidden(self.group, self.topic) {
            let remark = format!("the consumer group[{}] is forbidden for topic[{}]", self.group, self.topic);
            return Err(forbid(forbidden::SUBSCRIPTION, remark));
        }
        let Some(subscription) = consumers.subscription(self.topic) else {
            let remark = format!("the consumer's subscription not exist{SEE_FAQ}");
            return Err(Refusal::new(ResponseCode::SubscriptionNotExist, remark).into());
        };
        if subscription.version < self.subscription_version {
            let remark = format!(
                "the consumer's subscription not latest: the group's heartbeat has version {}, the pull {}",
                subscription.version, self.subscription_version
            );
            return Err(Refusal::new(ResponseCode::SubscriptionNotLatest, remark).into());
        }
        if !subscription.is_compiled() {
            caller.took(subscription.data.sub_string.len() as u64);
        }
        if !is_tag(&subscription.expression_type) {
            if subscription.want().is_none() {
                caller.took(subscription.data.sub_string.len() as u64);
                let why = Expression::compile(&subscription.data.sub_string).err();
                let why = why.filter(|_| subscription.expression_type == SQL92).map(|error| error.remark());
                let remark = format!(
                    "The broker's consumer filter data is not exist!Your expression may be wrong! {}",
                    why.unwrap_or_else(|| format!("There is no expression type \"{}\"", subscription.expression_type))
                );
                return Err(Refusal::new(ResponseCode::FilterDataNotExist, remark).into());
            }
            check_property_filter(settings, &subscription.expression_type)?;
            return Ok(subscription.want().cloned());
        }
        if settings.filter_support_retry && names::is_retry_topic(self.topic) {
            return Ok(Some(Arc::new(MessageFilter::Retries(consumers))));
        }
        Ok(subscription.want().cloned())
    }
}

/// A caller in this process that may have parked a pull. Dropped, it waits no more.
struct WaitingCaller {
    hold: Arc<Hold>,
    waiter: Arc<Waiter>,
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        self.hold.forget(&self.waiter);
    }
}
