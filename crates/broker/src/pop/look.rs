//! Requests that look at what could be popped and change nothing: 200052, 200054, 200055. And 200056, which has nothing to do here.

use std::sync::Arc;

use env::Clock;
use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::code::ResponseCode;
use protocol::request::{Notification, NotificationReply, PeekMessage, PollingInfo, PollingInfoReply, PopReply};
use protocol::sys_flag::perm;

use super::collect::{PopSources, PopTarget};
use super::take::{check_group, check_readable, find_group, topic_anew};
use super::wait::{self, Waiting};
use crate::answer::reply_ok;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::cold;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::groups::{Group, Groups};
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

/// 200054: is there anything to pop? Waits for it like a pop.
pub(crate) fn notify(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let message = Notification::decode(&request.header.fields)?;
    let (topic, group) = check(broker, session, message.topic, message.queue_id, message.consumer_group)?;
    let attempt = message.order.then(|| message.attempt_id.filter(|id| !id.is_empty()).map(Box::from));
    let order = CheckedNotify {
        group,
        topic,
        queue_id: message.queue_id,
        attempt,
        tick: broker.hold.rooms.deadline(message.poll_time),
    };
    run(&PopSources::of(broker, session), session, order, request.reply_to(), out);
    Ok(())
}

/// A parked question has come back.
pub(super) fn resume(
    broker: &Broker,
    session: &mut Session,
    mut order: CheckedNotify,
    wake: Wake,
    reply_to: ReplyTo,
    out: &mut Outgoing,
) {
    if wake == Wake::Expired {
        order.tick = None;
    }
    match check_again(&broker.groups, &broker.topics, session, &mut order) {
        Ok(()) => run(&PopSources::of(broker, session), session, order, reply_to, out),
        Err(refusal) => out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
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

fn run(sources: &PopSources, caller: &mut Caller, order: CheckedNotify, reply_to: ReplyTo, out: &mut Outgoing) {
    let sought = PopTarget {
        group: Arc::clone(&order.group),
        topic: Arc::clone(&order.topic),
        queue_id: order.queue_id,
        attempt: order.attempt.clone(),
    };
    let answer = |has_msg: bool, polling_full: bool, out: &mut Outgoing| {
        out.reply(reply_to, ResponseCode::Success, None, &NotificationReply { has_msg, polling_full }, &[]);
    };
    if sources.has_any(&sought) {
        return answer(true, false, out);
    }
    let Some(tick) = order.tick else { return answer(false, false, out) };
    let lanes = match sources.lanes(&order.topic, order.queue_id) {
        Ok(lanes) => lanes,
        Err(error) => return out.reply(reply_to, ResponseCode::SystemError, Some(&error.to_string()), &(), &[]),
    };
    let key = GroupTopicRef { group: &sought.group.name, topic: sought.topic.name() };
    let parked = wait::park(sources, caller, key, lanes.iter(), tick, Waiting::Notify(order));
    let Ok(ticket) = parked else { return answer(false, true, out) };
    // A message may have come between the look and the parking.
    if sources.has_any_since(&sought) && wait::take_back(sources, caller, &ticket).is_some() {
        answer(true, false, out);
    }
}

/// 200055: how many requests wait?
pub(crate) fn polling_info(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let message = PollingInfo::decode(&request.header.fields)?;
    let (topic, group) = check(broker, session, message.topic, message.queue_id, message.consumer_group)?;
    let count = broker.hold.rooms.count(GroupTopicRef { group: &group.name, topic: topic.name() }, message.queue_id);
    let reply = PollingInfoReply { polling_num: i32::try_from(count).unwrap_or(i32::MAX) };
    out.reply(request.reply_to(), ResponseCode::Success, None, &reply, &[]);
    Ok(())
}

/// 200052: messages that a pop would bring now. What lies on the device is read on a cold-read thread.
pub(crate) fn peek(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let message = PeekMessage::decode(&request.header.fields)?;
    if !(1..=COUNT_MAX).contains(&message.max_msg_nums) {
        let remark = format!("maxMsgNums is {}, it must be from 1 to {COUNT_MAX}", message.max_msg_nums);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    let (topic, group) = check(broker, session, message.topic, message.queue_id, message.consumer_group)?;
    let (sources, reply_to) = (PopSources::of(broker, session), request.reply_to());
    let (queue_id, count_max) = (message.queue_id, message.max_msg_nums as usize);
    let seen = sources.peek(&group, &topic, queue_id, count_max, false);
    if !seen.is_cold {
        show(&broker.clock, reply_to, seen, out);
        return Ok(());
    }
    let look = move |_: &_| sources.peek(&group, &topic, queue_id, count_max, true);
    cold::read(&broker.store, session, look, move |broker, _, seen, out| show(&broker.clock, reply_to, seen, out))
}

/// What a look has found.
pub(super) struct Seen {
    pub(super) parts: Vec<SharedSlice>,
    pub(super) bytes: usize,
    pub(super) rest: i64,
    pub(super) is_cold: bool,
}

fn show(clock: &Clock, reply_to: ReplyTo, seen: Seen, out: &mut Outgoing) {
    let fields = PopReply {
        pop_time: clock.now().0,
        invisible_time: 0,
        revive_qid: 0,
        rest_num: seen.rest,
        start_offset_info: None,
        msg_offset_info: None,
        order_count_info: None,
    };
    let (code, remark) = match seen.parts.is_empty() {
        true => (ResponseCode::PullNotFound, "NO_MESSAGE_IN_QUEUE"),
        false => (ResponseCode::Success, "FOUND"),
    };
    out.reply_shared(reply_to, code, Some(remark), &fields, seen.bytes, seen.parts.into_iter());
}

/// 200056: brings leases that Apache keeps in RocksDB (`popConsumerKVServiceEnable`) back into its log. There are none, and a broker of
/// Apache's without that service says the same.
pub(crate) fn rollback(request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    reply_ok(request, out);
    Ok(())
}
