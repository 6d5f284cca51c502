//! Requests that look at what could be popped and change nothing: 200052, 200054, 200055. And 200056, which has nothing to do here.

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::code::ResponseCode;
use protocol::request::{Notification, NotificationReply, PeekMessage, PollingInfo, PollingInfoReply, PopReply};
use protocol::sys_flag::perm;

use super::collect::{PopSources, PopTarget};
use super::take::{check_group, check_readable, find_group, topic_anew};
use super::trying::{WaitingCaller, waiting};
use super::wait::{self, Waiting};
use crate::answer::reply_ok;
use crate::broker::Broker;
use crate::caller::{Caller, ended};
use crate::cold;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::groups::{Group, Groups};
use crate::state::message_filter::At;
use crate::state::offsets::GroupTopicRef;
use crate::state::topics::{Topic, Topics};
use crate::waiting::hold::Wake;

/// Messages of one look, at most.
const COUNT_MAX: i32 = 32;

/// A question that waits for its answer.
pub(crate) struct CheckedNotify {
    group: Arc<Group>,
    topic: Arc<Topic>,
    pub(super) queue_id: i32,
    attempt: Option<Option<Box<str>>>,
    tick: Option<u64>,
}

fn check(
    broker: &Broker,
    caller: &mut Caller,
    topic: &str,
    queue_id: i32,
    group: &str,
) -> Result<(Arc<Topic>, Arc<Group>), Refusal> {
    if !perm::is_readable(broker.settings.load().broker_permission) {
        let remark = format!("the broker[{}] peeking message is forbidden", broker.advertised.ip());
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    let topic = caller.topic(&broker.topics, topic).ok_or_else(|| Refusal::topic_not_exist(topic))?;
    check_readable(&topic, queue_id, caller)?;
    Ok((topic, find_group(&broker.groups, group)?))
}

/// A question whether there is anything to pop.
#[derive(Clone, Copy, Debug)]
pub struct NotifyOrder<'a> {
    /// For this group.
    pub group: &'a str,
    /// Of this topic, and of what the group has to get again.
    pub topic: &'a str,
    /// Negative: any.
    pub queue_id: i32,
    /// It waits for a message for so long.
    pub poll_ms: i64,
    /// Queues are popped in order.
    pub is_order: bool,
    /// The attempt that gets the same messages again, where they are popped in order.
    pub attempt_id: Option<&'a str>,
}

/// What is said to a question whether there is anything to pop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyOutcome {
    /// There is.
    Something,
    /// There was nothing within its time.
    Nothing,
    /// There is nothing, and too many wait already.
    Full,
}

/// 200054: is there anything to pop? Waits for it like a pop.
pub(crate) fn notify(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = NotifyOrder::decode(request)?.check(broker, session)?;
    if let Some(outcome) = run(broker, session, order) {
        outcome?.encode(request.reply_to(), out);
    }
    Ok(())
}

impl<'a> NotifyOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<NotifyOrder<'a>, Refusal> {
        let message = Notification::decode(&request.header.fields)?;
        Ok(NotifyOrder {
            group: message.consumer_group,
            topic: message.topic,
            queue_id: message.queue_id,
            poll_ms: message.poll_time,
            is_order: message.order,
            attempt_id: message.attempt_id,
        })
    }

    fn check(&self, broker: &Broker, caller: &mut Caller) -> Result<CheckedNotify, Refusal> {
        let (topic, group) = check(broker, caller, self.topic, self.queue_id, self.group)?;
        let attempt = self.is_order.then(|| self.attempt_id.filter(|id| !id.is_empty()).map(Box::from));
        let tick = broker.hold.pops.deadline(self.poll_ms);
        Ok(CheckedNotify { group, topic, queue_id: self.queue_id, attempt, tick })
    }

    /// Carries it out for a caller in this process. Dropped, it waits no more.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<NotifyOutcome, Refusal> {
        caller.begin();
        let order = self.check(broker, caller)?;
        let mut answered = run(broker, caller, order);
        let mut place: Option<WaitingCaller> = None;
        // Each round waits, and a wait is over some time.
        loop {
            if let Some(answer) = answered {
                if let Some(place) = place {
                    place.answered();
                }
                return answer;
            }
            place.get_or_insert_with(|| WaitingCaller::new(broker, caller));
            let woken = caller.woken().await.and_then(waiting);
            let Some((Waiting::Notify(order), wake)) = woken else { return Err(ended()) };
            answered = back(broker, caller, order, wake);
        }
    }
}

impl NotifyOutcome {
    fn encode(self, reply_to: ReplyTo, out: &mut Outgoing) {
        let (has_msg, polling_full) = (self == NotifyOutcome::Something, self == NotifyOutcome::Full);
        out.reply(reply_to, ResponseCode::Success, None, &NotificationReply { has_msg, polling_full }, &[]);
    }
}

/// A question that a remoting connection has parked comes back.
pub(super) fn resume(
    broker: &Broker,
    session: &mut Session,
    order: CheckedNotify,
    wake: Wake,
    reply_to: ReplyTo,
    out: &mut Outgoing,
) {
    match back(broker, session, order, wake) {
        Some(Ok(outcome)) => outcome.encode(reply_to, out),
        Some(Err(refusal)) => out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
        None => {}
    }
}

/// Goes on with one that was parked. `None`: it is parked again.
fn back(
    broker: &Broker,
    caller: &mut Caller,
    mut order: CheckedNotify,
    wake: Wake,
) -> Option<Result<NotifyOutcome, Refusal>> {
    if wake == Wake::Expired {
        order.tick = None;
    }
    match check_again(&broker.groups, &broker.topics, caller, &mut order) {
        Ok(()) => run(broker, caller, order),
        Err(refusal) => Some(Err(refusal)),
    }
}

/// What may have gone while the question waited.
fn check_again(groups: &Groups, topics: &Topics, caller: &Caller, order: &mut CheckedNotify) -> Result<(), Refusal> {
    check_group(groups, &order.group)?;
    if order.topic.is_gone() {
        order.topic = topic_anew(topics, caller, &order.topic, order.queue_id)?;
    }
    Ok(())
}

/// Looks, and parks the question if there is nothing. `None`: it is parked, or comes back by a wake-up already.
fn run(broker: &Broker, caller: &mut Caller, order: CheckedNotify) -> Option<Result<NotifyOutcome, Refusal>> {
    let sources = PopSources::of(broker, caller);
    let sought = PopTarget {
        group: Arc::clone(&order.group),
        topic: Arc::clone(&order.topic),
        queue_id: order.queue_id,
        attempt: order.attempt.clone(),
    };
    if sources.has_any(&sought) {
        return Some(Ok(NotifyOutcome::Something));
    }
    let Some(tick) = order.tick else { return Some(Ok(NotifyOutcome::Nothing)) };
    let lanes = match sources.lanes(&order.topic, order.queue_id) {
        Ok(lanes) => lanes,
        Err(error) => return Some(Err(Refusal::failed(error))),
    };
    let key = GroupTopicRef { group: &sought.group.name, topic: sought.topic.name() };
    let parked = wait::park(&sources, caller, key, lanes.iter(), tick, Waiting::Notify(order));
    let Ok(ticket) = parked else { return Some(Ok(NotifyOutcome::Full)) };
    // A message may have come between the look and the parking.
    if sources.has_any_since(&sought) && wait::take_back(&sources, caller, &ticket).is_some() {
        return Some(Ok(NotifyOutcome::Something));
    }
    None
}

/// A question how many requests wait for something to pop.
#[derive(Clone, Copy, Debug)]
pub struct PollingOrder<'a> {
    /// Of this group.
    pub group: &'a str,
    /// Of this topic.
    pub topic: &'a str,
    /// Of this queue.
    pub queue_id: i32,
}

/// 200055: how many requests wait?
pub(crate) fn polling_info(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let message = PollingInfo::decode(&request.header.fields)?;
    let order = PollingOrder { group: message.consumer_group, topic: message.topic, queue_id: message.queue_id };
    let reply = PollingInfoReply { polling_num: i32::try_from(order.run(broker, session)?).unwrap_or(i32::MAX) };
    out.reply(request.reply_to(), ResponseCode::Success, None, &reply, &[]);
    Ok(())
}

impl PollingOrder<'_> {
    /// How many there are.
    pub fn run(&self, broker: &Broker, caller: &mut Caller) -> Result<usize, Refusal> {
        let (topic, group) = check(broker, caller, self.topic, self.queue_id, self.group)?;
        let key = GroupTopicRef { group: &group.name, topic: topic.name() };
        Ok(broker.hold.pops.count(key, self.queue_id))
    }
}

/// A look at messages that a pop would bring now.
#[derive(Clone, Copy, Debug)]
pub struct PeekOrder<'a> {
    /// To this group.
    pub group: &'a str,
    /// Of this topic, and of what the group has to get again.
    pub topic: &'a str,
    /// Negative: any.
    pub queue_id: i32,
    /// Messages at most.
    pub count_max: i32,
}

/// A look that has passed its checks.
struct CheckedPeek {
    sources: PopSources,
    group: Arc<Group>,
    topic: Arc<Topic>,
    queue_id: i32,
    count_max: usize,
}

/// What a look has found.
pub struct PeekOutcome {
    pub(super) parts: Vec<SharedSlice>,
    pub(super) bytes: usize,
    pub(super) rest: i64,
    pub(super) is_cold: bool,
}

/// 200052: messages that a pop would bring now. What lies on the device is read on a cold-read thread.
pub(crate) fn peek(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = PeekOrder::decode(request)?.check(broker, session)?;
    let reply_to = request.reply_to();
    let seen = order.look(false);
    if !seen.is_cold {
        seen.encode(broker, reply_to, out);
        return Ok(());
    }
    let look = move |_: &_| order.look(true);
    cold::read(&broker.store, session, look, move |broker, _, seen, out| seen.encode(broker, reply_to, out))
}

impl<'a> PeekOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<PeekOrder<'a>, Refusal> {
        let message = PeekMessage::decode(&request.header.fields)?;
        let (group, topic) = (message.consumer_group, message.topic);
        Ok(PeekOrder { group, topic, queue_id: message.queue_id, count_max: message.max_msg_nums })
    }

    fn check(&self, broker: &Broker, caller: &mut Caller) -> Result<CheckedPeek, Refusal> {
        if !(1..=COUNT_MAX).contains(&self.count_max) {
            let remark = format!("maxMsgNums is {}, it must be from 1 to {COUNT_MAX}", self.count_max);
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
        let (topic, group) = check(broker, caller, self.topic, self.queue_id, self.group)?;
        let sources = PopSources::of(broker, caller);
        Ok(CheckedPeek { sources, group, topic, queue_id: self.queue_id, count_max: self.count_max as usize })
    }

    /// Carries it out for a caller in this process.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<PeekOutcome, Refusal> {
        caller.begin();
        let order = self.check(broker, caller)?;
        let seen = order.look(false);
        if !seen.is_cold {
            return Ok(seen);
        }
        cold::done_at(At::Cold, &broker.store, move || order.look(true)).await
    }
}

impl CheckedPeek {
    /// `may_fault`: it may wait for the device.
    fn look(&self, may_fault: bool) -> PeekOutcome {
        self.sources.peek(&self.group, &self.topic, self.queue_id, self.count_max, may_fault)
    }
}

impl PeekOutcome {
    /// The records, one behind the other, in pieces of any length.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(SharedSlice::bytes)
    }

    /// What the queues hold for the group, those that are shown included.
    pub fn rest(&self) -> i64 {
        self.rest
    }

    fn encode(self, broker: &Broker, reply_to: ReplyTo, out: &mut Outgoing) {
        let fields = PopReply {
            pop_time: broker.clock.now().0,
            invisible_time: 0,
            revive_qid: 0,
            rest_num: self.rest,
            start_offset_info: None,
            msg_offset_info: None,
            order_count_info: None,
        };
        let (code, remark) = match self.parts.is_empty() {
            true => (ResponseCode::PullNotFound, "NO_MESSAGE_IN_QUEUE"),
            false => (ResponseCode::Success, "FOUND"),
        };
        out.reply_shared(reply_to, code, Some(remark), &fields, self.bytes, self.parts.into_iter());
    }
}

/// 200056: brings leases that Apache keeps in RocksDB (`popConsumerKVServiceEnable`) back into its log. There are none, and a broker of
/// Apache's without that service says the same.
pub(crate) fn rollback(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    reply_ok(request, out);
    Ok(())
}
