//! 200050: checks in Apache's order, then a look into each queue that may have something, then the answer or a place to wait.
//!
//! A pop that has passed its checks is a [`PopOrder`], which is tried, parked and woken (`trying.rs`).

use std::sync::Arc;

use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::code::ResponseCode;
use protocol::request::{PopMessage, PopReply};
use protocol::sys_flag::perm;

use super::collect::{Basket, Shelf};
use super::trying::{Order, run};
use super::wait::{self, Waiting};
use crate::broker::Broker;
use crate::refusal::{Refusal, SEE_FAQ, SOON};
use crate::session::Session;
use crate::state::clients::is_tag;
use crate::state::groups::Group;
use crate::state::offsets::KeyRef;
use crate::state::topics::Topic;
use crate::state::want::{At, Want, check_property_filter};

/// Messages of one pop, at most.
const COUNT_MAX: i32 = 32;
/// A request that comes so long after its client has stopped waiting for it is not carried out, in milliseconds.
const TOO_LATE_MS: i64 = 500;
/// Longest invisible time, in milliseconds: Apache's `timerMaxDelaySec`, three days.
const INVISIBLE_MS_MAX: i64 = 259_200_000;
/// `initMode`: a group that is new begins with the first message.
const FROM_MIN: i32 = 0;
const FROM_MAX: i32 = 1;

/// A pop that has passed its checks.
pub(crate) struct PopOrder {
    pub(super) reply_to: ReplyTo,
    pub(super) group: Arc<Group>,
    pub(super) topic: Arc<Topic>,
    /// Negative: any.
    pub(super) queue_id: i32,
    pub(super) count_max: usize,
    pub(super) invisible_ms: i64,
    pub(super) is_from_min: bool,
    pub(super) is_order: bool,
    pub(super) attempt_id: Option<Box<str>>,
    /// `None`: everything.
    pub(super) want: Option<Arc<Want>>,
    /// When the wait is over; `None`: nobody waits.
    pub(super) tick: Option<u64>,
}

impl PopOrder {
    fn key(&self) -> KeyRef<'_> {
        KeyRef { group: &self.group.name, topic: self.topic.name() }
    }

    /// Its topic was deleted: it goes on in the one that has the name by now, if there is one.
    fn anew(mut self, broker: &Broker, session: &Session, out: &mut Outgoing) -> Option<PopOrder> {
        match topic_anew(broker, session, &self.topic, self.queue_id) {
            Ok(topic) => {
                self.topic = topic;
                Some(self)
            }
            Err(refusal) => {
                out.reply(self.reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
                None
            }
        }
    }
}

/// 200050.
pub(crate) fn pop(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let message = PopMessage::decode(&request.header.fields)?;
    session.took(message.exp.map_or(0, |text| text.len() as u64));
    let order = check(broker, session, request, &message)?;
    run(broker, session, order, out);
    Ok(())
}

/// A parked pop has come back.
pub(super) fn resume(broker: &Broker, session: &mut Session, mut order: PopOrder, is_over: bool, out: &mut Outgoing) {
    if is_over {
        order.tick = None;
    }
    let reply_to = order.reply_to;
    session.answering(broker, Some(reply_to), out, |session, out| match check_group(broker, &order.group) {
        Ok(()) => run(broker, session, order, out),
        Err(refusal) => out.reply(reply_to, refusal.code, Some(&refusal.remark), &(), &[]),
    });
}

impl Order for PopOrder {
    fn reply_to(&self) -> ReplyTo {
        self.reply_to
    }

    fn takes_long(&self) -> bool {
        self.want.as_ref().is_some_and(|want| want.takes_long())
    }

    fn fill(&self, shelf: &Shelf, at: At) -> Basket {
        shelf.fill(self, at)
    }

    fn conclude(self, broker: &Broker, session: &mut Session, basket: &Basket, out: &mut Outgoing) -> Option<PopOrder> {
        if basket.count > 0 {
            respond(broker, session, &self, basket, out);
            if self.is_order {
                // Who waits already looks no more before something comes, and if the batch is not acknowledged nothing does.
                let over_at = basket.pop_time.saturating_add(self.invisible_ms);
                broker.hold.rooms.wake_at(self.key(), over_at.saturating_sub(broker.clock.now().0));
            }
            if basket.rest > 0 {
                let is_of_queue = self.queue_id >= 0 && !basket.has_retry_rest;
                broker.hold.rooms.arrived_in(self.key(), is_of_queue.then_some(self.queue_id));
            }
            return None;
        }
        if let Some(error) = &basket.failure {
            broker.stats.missed();
            out.reply(self.reply_to, ResponseCode::SystemError, Some(error), &(), &[]);
            return None;
        }
        if self.topic.is_gone() {
            return self.anew(broker, session, out);
        }
        let settings = broker.settings.load();
        if basket.is_ledger_full {
            let refusal = too_many_leases(broker);
            out.reply(self.reply_to, refusal.code, Some(&refusal.remark), &(), &[]);
            return None;
        }
        let Some(tick) = self.tick else {
            broker.stats.missed();
            answer_empty(&self, basket, ResponseCode::PollingTimeout, "NO_MESSAGE_IN_QUEUE", out);
            return None;
        };
        let (group, topic) = (Arc::clone(&self.group), Arc::clone(&self.topic));
        let shelf = Shelf::of(broker);
        let lanes = match shelf.lanes(&self.topic, self.queue_id) {
            Ok(lanes) => lanes,
            Err(error) => {
                out.reply(self.reply_to, ResponseCode::SystemError, Some(&error.to_string()), &(), &[]);
                return None;
            }
        };
        let sought = shelf.sought(&self);
        let key = KeyRef { group: &group.name, topic: topic.name() };
        let ticket = match wait::park(broker, session, key, lanes.iter(), tick, Waiting::Pop(self), &settings) {
            Ok(ticket) => ticket,
            Err((waiting, why)) => {
                if let Some(Waiting::Pop(order)) = waiting.as_deref() {
                    answer_empty(order, basket, ResponseCode::PollingFull, &why.to_string(), out);
                }
                return None;
            }
        };
        // A message may have come between the look and the parking, or the topic may have gone, or whoever had the turn has ended it with a batch.
        if !shelf.has_any_since(&sought) {
            return None;
        }
        // Woken in between: it comes back by that.
        match *wait::take_back(broker, session, &ticket)? {
            Waiting::Pop(order) => Some(order),
            Waiting::Lite(_) | Waiting::Notify(_) => None,
        }
    }
}

fn respond(broker: &Broker, session: &mut Session, order: &PopOrder, basket: &Basket, out: &mut Outgoing) {
    // The lease and the offset behind it must survive whatever the client does with the messages.
    session.durable_after(basket.position);
    let fields = PopReply {
        pop_time: basket.pop_time,
        invisible_time: order.invisible_ms,
        revive_qid: basket.revive_qid,
        rest_num: basket.rest,
        start_offset_info: Some(&basket.start_info),
        msg_offset_info: Some(&basket.offset_info),
        order_count_info: order.is_order.then_some(&basket.count_info),
    };
    for (topic, queue_id, count, bytes) in &basket.got {
        broker.stats.got(&order.group.name, topic, *queue_id, *count, *bytes);
        if !order.is_order {
            broker.stats.leased(&order.group.name, topic.shared_name());
        }
    }
    let parts =
        basket.parts.iter().map(|part| SharedSlice { owner: Arc::clone(&part.owner), range: part.range.clone() });
    out.reply_shared(order.reply_to, ResponseCode::Success, Some("FOUND"), &fields, basket.bytes, parts);
}

fn answer_empty(order: &PopOrder, basket: &Basket, code: ResponseCode, remark: &str, out: &mut Outgoing) {
    let fields = PopReply {
        pop_time: basket.pop_time,
        invisible_time: order.invisible_ms,
        revive_qid: basket.revive_qid,
        rest_num: basket.rest,
        start_offset_info: Some(""),
        msg_offset_info: Some(""),
        order_count_info: order.is_order.then_some(""),
    };
    out.reply(order.reply_to, code, Some(remark), &fields, &[]);
}

fn check(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    message: &PopMessage<'_>,
) -> Result<PopOrder, Refusal> {
    check_numbers(
        broker,
        &Numbers {
            born_time: message.born_time,
            poll_time: message.poll_time,
            count: message.max_msg_nums,
            invisible_time: message.invisible_time,
        },
    )?;
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    if !matches!(message.init_mode, FROM_MIN | FROM_MAX) {
        let remark = format!("initMode is {}, it must be {FROM_MIN} (min) or {FROM_MAX} (max)", message.init_mode);
        return Err(invalid(remark));
    }
    let topic = session.topic(broker, message.topic).ok_or_else(|| Refusal::topic_not_exist(message.topic))?;
    let queue_id = message.queue_id;
    check_readable(&topic, queue_id, session)?;
    let group = find_group(broker, message.consumer_group)?;
    let want = want(broker, message.exp, message.exp_type)?;
    Ok(PopOrder {
        reply_to: request.reply_to(),
        group,
        topic,
        queue_id,
        count_max: message.max_msg_nums as usize,
        invisible_ms: message.invisible_time,
        is_from_min: message.init_mode == FROM_MIN,
        is_order: message.order,
        attempt_id: message.attempt_id.filter(|id| !id.is_empty()).map(Box::from),
        want,
        tick: broker.hold.rooms.deadline(message.poll_time),
    })
}

/// What every pop says, by number.
pub(super) struct Numbers {
    pub(super) born_time: i64,
    pub(super) poll_time: i64,
    pub(super) count: i32,
    pub(super) invisible_time: i64,
}

/// The first checks of a pop, in Apache's order.
pub(super) fn check_numbers(broker: &Broker, numbers: &Numbers) -> Result<(), Refusal> {
    let Numbers { born_time, poll_time, count, invisible_time } = *numbers;
    let ip = broker.advertised.ip();
    let waited = broker.clock.now().0.saturating_sub(born_time);
    if born_time > 0 && waited > poll_time.saturating_add(TOO_LATE_MS) {
        let remark = format!(
            "the broker[{ip}] pop message is timeout too much: born {waited} ms ago (bornTime {born_time}), pollTime is \
             {poll_time} ms"
        );
        return Err(Refusal::new(ResponseCode::PollingTimeout, remark));
    }
    if !perm::is_readable(broker.settings.load().broker_permission) {
        return Err(Refusal::new(ResponseCode::NoPermission, format!("the broker[{ip}] pop message is forbidden")));
    }
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    if count > COUNT_MAX {
        return Err(invalid(format!(
            "the broker[{ip}] pop message's num is greater than {COUNT_MAX}: maxMsgNums is {count}"
        )));
    }
    if count < 1 {
        return Err(invalid(format!("maxMsgNums is {count}, it must be from 1 to {COUNT_MAX}")));
    }
    check_invisible(invisible_time, ResponseCode::InvalidParameter)
}

/// An invisible time that the broker can keep.
pub(super) fn check_invisible(invisible_ms: i64, code: ResponseCode) -> Result<(), Refusal> {
    if (0..=INVISIBLE_MS_MAX).contains(&invisible_ms) {
        return Ok(());
    }
    let remark = format!("invisibleTime is {invisible_ms} ms, it must be from 0 to {INVISIBLE_MS_MAX}");
    Err(Refusal::new(code, remark))
}

/// A topic and a queue that may be read; a negative queue means all.
pub(super) fn check_readable(topic: &Topic, queue_id: i32, session: &Session) -> Result<(), Refusal> {
    let config = topic.settings();
    if !perm::is_readable(config.perm) {
        let remark = format!("the topic[{}] peeking message is forbidden", topic.name());
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    if queue_id >= config.read_queue_nums {
        let remark = illegal_queue(queue_id, topic.name(), config.read_queue_nums, session);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    Ok(())
}

/// Apache's sentence.
pub(super) fn illegal_queue(queue_id: i32, topic: &str, queues: i32, session: &Session) -> String {
    format!(
        "queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{queues}] consumer:[{}]",
        session.connection.peer()
    )
}

/// The topic that has the name of a deleted one by now.
pub(super) fn topic_anew(
    broker: &Broker,
    session: &Session,
    gone: &Topic,
    queue_id: i32,
) -> Result<Arc<Topic>, Refusal> {
    let topic = broker.topics.get(gone.name()).ok_or_else(|| Refusal::topic_not_exist(gone.name()))?;
    check_readable(&topic, queue_id, session)?;
    Ok(topic)
}

/// There are as many leases as there may be.
pub(super) fn too_many_leases(broker: &Broker) -> Refusal {
    let (leases, max) = (broker.pops.leases(), broker.settings.load().pop_leases_max);
    let what = format_args!(
        "[GANTRY]system busy, start flow control for a while: {leases} pops are neither acknowledged nor over, the limit is {max} (popLeasesMax)"
    );
    Refusal::busy(what, broker.pops.next_over(broker.clock.now().0).max(SOON))
}

fn no_group(name: &str) -> Refusal {
    let remark = format!("subscription group [{name}] does not exist, {SEE_FAQ}");
    Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
}

/// Whether the group of a request that has waited is still there: what is noted of one that was deleted would be there when it comes again.
pub(super) fn check_group(broker: &Broker, group: &Group) -> Result<(), Refusal> {
    broker.groups.get(&group.name).map(drop).ok_or_else(|| no_group(&group.name))
}

pub(super) fn find_group(broker: &Broker, name: &str) -> Result<Arc<Group>, Refusal> {
    let group = broker.groups.find(name).map_err(|refusal| {
        if refusal.code != ResponseCode::SubscriptionGroupNotExist {
            return refusal;
        }
        no_group(name)
    })?;
    if !group.config.load().consume_enable {
        let remark = format!("subscription group no permission, {name}");
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    Ok(group)
}

/// What a pop wants, by its own expression.
pub(super) fn want(broker: &Broker, exp: Option<&str>, exp_type: Option<&str>) -> Result<Option<Arc<Want>>, Refusal> {
    let Some(exp) = exp.filter(|exp| !exp.is_empty()) else { return Ok(None) };
    let kind = exp_type.unwrap_or_default();
    if is_tag(kind) {
        return broker.filters.tags(exp).map_err(|why| Refusal::unparsed(&why));
    }
    check_property_filter(&broker.settings.load(), kind)?;
    broker.filters.condition(exp).map(Some).map_err(|why| Refusal::unparsed(&why))
}
