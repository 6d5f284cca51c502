//! 200050: checks in Apache's order, then a look into each queue that may have something, then the answer or a place to wait.
//!
//! A [`PopOrder`] that has passed its checks is a [`CheckedPop`], which is tried, parked and woken (`trying.rs`), and ends in a
//! [`PopOutcome`].

use std::net::SocketAddr;
use std::sync::Arc;

use config::BrokerSettings;
use env::Clock;
use net::{Outgoing, ReplyTo, Request, SharedSlice};
use protocol::code::ResponseCode;
use protocol::request::{PopMessage, PopReply};
use protocol::sys_flag::perm;

use super::collect::{PopFound, PopSources};
use super::state::Pops;
use super::trying::{self, Concluded, Try};
use super::wait::{self, Waiting};
use crate::broker::Broker;
use crate::caller::{Caller, ended};
use crate::refusal::{Refusal, SEE_FAQ, SOON};
use crate::session::Session;
use crate::state::clients::is_tag;
use crate::state::filters::Filters;
use crate::state::groups::{Group, Groups};
use crate::state::message_filter::{At, MessageFilter, check_property_filter};
use crate::state::offsets::GroupTopicRef;
use crate::state::stats::Stats;
use crate::state::topics::{Topic, Topics};
use crate::waiting::hold::Wake;

/// Messages of one pop, at most.
const COUNT_MAX: i32 = 32;
/// A request that comes so long after its client has stopped waiting for it is not carried out, in milliseconds.
const TOO_LATE_MS: i64 = 500;
/// Longest invisible time, in milliseconds: Apache's `timerMaxDelaySec`, three days.
const INVISIBLE_MS_MAX: i64 = 259_200_000;
/// `initMode`: a group that is new begins with the first message.
const FROM_MIN: i32 = 0;
const FROM_MAX: i32 = 1;

/// A pop as a client asks for it.
#[derive(Clone, Debug)]
pub struct PopOrder<'a> {
    /// For this group.
    pub group: &'a str,
    /// Of this topic, and of what the group has to get again.
    pub topic: &'a str,
    /// Negative: any.
    pub queue_id: i32,
    /// Messages at most.
    pub count_max: i32,
    /// They are the group's for so long.
    pub invisible_ms: i64,
    /// It waits for a message for so long.
    pub poll_ms: i64,
    /// When the client asked, by its clock; 0 if it does not say.
    pub born_ms: i64,
    /// Where a new group begins: 0 with the first message, 1 with the last.
    pub init_mode: i32,
    /// Queues are popped in order: one open batch of each.
    pub is_order: bool,
    /// The same attempt gets the same messages of a queue that is popped in order.
    pub attempt_id: Option<&'a str>,
    /// `TAG` or `SQL92`.
    pub expression_type: Option<&'a str>,
    /// Which messages; all if there is none.
    pub expression: Option<&'a str>,
}

/// A pop that has passed its checks.
pub(crate) struct CheckedPop {
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
    pub(super) want: Option<Arc<MessageFilter>>,
    /// When the wait is over; `None`: nobody waits.
    pub(super) tick: Option<u64>,
}

/// What a pop brings.
pub struct PopOutcome {
    /// Whether there are messages, and why not.
    pub status: PopStatus,
    /// They are the group's for so long.
    pub invisible_ms: i64,
    /// They were popped in order.
    pub is_order: bool,
    pub(super) basket: PopFound,
}

/// How a pop has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PopStatus {
    /// With messages.
    Found,
    /// There was nothing within its time.
    Nothing,
    /// There is nothing, and too many wait already.
    Full(String),
}

impl PopStatus {
    /// Code and remark of the answer.
    pub(super) fn as_answer(&self) -> (ResponseCode, &str) {
        match self {
            PopStatus::Found => (ResponseCode::Success, "FOUND"),
            PopStatus::Nothing => (ResponseCode::PollingTimeout, "NO_MESSAGE_IN_QUEUE"),
            PopStatus::Full(why) => (ResponseCode::PollingFull, why),
        }
    }
}

impl PopOutcome {
    /// The records, one behind the other, in pieces of any length.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.basket.parts.iter().map(SharedSlice::bytes)
    }

    /// When they were popped, by the broker's clock.
    pub fn pop_time(&self) -> i64 {
        self.basket.pop_time
    }

    /// The revive queue that stands in their handles.
    pub fn revive_qid(&self) -> i32 {
        self.basket.revive_qid
    }

    /// What the queues still hold for the group.
    pub fn rest(&self) -> i64 {
        self.basket.rest
    }

    /// The first offset of each queue that something was popped of, as in `startOffsetInfo` of 200050.
    pub fn start_info(&self) -> &str {
        &self.basket.start_info
    }

    fn encode(self, reply_to: ReplyTo, out: &mut Outgoing) {
        let basket = self.basket;
        let (starts, offsets, counts) = match self.status {
            PopStatus::Found => (&*basket.start_info, &*basket.offset_info, &*basket.count_info),
            PopStatus::Nothing | PopStatus::Full(_) => ("", "", ""),
        };
        let fields = PopReply {
            pop_time: basket.pop_time,
            invisible_time: self.invisible_ms,
            revive_qid: basket.revive_qid,
            rest_num: basket.rest,
            start_offset_info: Some(starts),
            msg_offset_info: Some(offsets),
            order_count_info: self.is_order.then_some(counts),
        };
        let (code, remark) = self.status.as_answer();
        out.reply_shared(reply_to, code, Some(remark), &fields, basket.bytes, basket.parts.into_iter());
    }
}

impl<'a> PopOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<PopOrder<'a>, Refusal> {
        let message = PopMessage::decode(&request.header.fields)?;
        Ok(PopOrder {
            group: message.consumer_group,
            topic: message.topic,
            queue_id: message.queue_id,
            count_max: message.max_msg_nums,
            invisible_ms: message.invisible_time,
            poll_ms: message.poll_time,
            born_ms: message.born_time,
            init_mode: message.init_mode,
            is_order: message.order,
            attempt_id: message.attempt_id,
            expression_type: message.exp_type,
            expression: message.exp,
        })
    }

    /// Carries it out for a caller in this process, which gets the messages, or hears after its time that there are none.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<PopOutcome, Refusal> {
        caller.begin();
        let order = check(broker, caller, self)?;
        trying::call(broker, caller, order).await
    }
}

/// 200050.
pub(crate) fn pop(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = check(broker, session, &PopOrder::decode(request)?)?;
    trying::run(broker, session, order, request.reply_to(), out);
    Ok(())
}

impl CheckedPop {
    fn key(&self) -> GroupTopicRef<'_> {
        GroupTopicRef { group: &self.group.name, topic: self.topic.name() }
    }

    fn outcome(&self, status: PopStatus, basket: PopFound) -> PopOutcome {
        PopOutcome { status, invisible_ms: self.invisible_ms, is_order: self.is_order, basket }
    }

    /// Its topic was deleted: it goes on in the one that has the name by now, if there is one.
    fn anew(self, topics: &Topics, caller: &Caller) -> Concluded<CheckedPop> {
        match topic_anew(topics, caller, &self.topic, self.queue_id) {
            Ok(topic) => Concluded::Again(CheckedPop { topic, ..self }),
            Err(refusal) => Concluded::Answered(Err(refusal)),
        }
    }

    /// It brings messages.
    fn found(&self, sources: &PopSources, stats: &Stats, caller: &mut Caller, basket: &PopFound) {
        // The lease and the offset behind it must survive whatever the client does with the messages.
        caller.durable_after(basket.position);
        for (topic, queue_id, count, bytes) in &basket.got {
            stats.got(&self.group.name, topic, *queue_id, *count, *bytes);
            if !self.is_order {
                stats.leased(&self.group.name, topic.shared_name());
            }
        }
        if self.is_order {
            // Who waits already looks no more before something comes, and if the batch is not acknowledged nothing does.
            let over_at = basket.pop_time.saturating_add(self.invisible_ms);
            sources.hold.pops.wake_at(self.key(), over_at.saturating_sub(sources.clock.now().0));
        }
        if basket.rest > 0 {
            let is_of_queue = self.queue_id >= 0 && !basket.has_retry_rest;
            sources.hold.pops.arrived_in(self.key(), is_of_queue.then_some(self.queue_id));
        }
    }
}

impl Try for CheckedPop {
    type Outcome = PopOutcome;

    fn takes_long(&self) -> bool {
        self.want.as_ref().is_some_and(|want| want.takes_long())
    }

    fn fill(&self, sources: &PopSources, at: At) -> PopFound {
        sources.fill(self, at)
    }

    fn conclude(
        self,
        sources: &PopSources,
        stats: &Stats,
        caller: &mut Caller,
        mut basket: PopFound,
    ) -> Concluded<CheckedPop> {
        if basket.count > 0 {
            self.found(sources, stats, caller, &basket);
            return Concluded::Answered(Ok(self.outcome(PopStatus::Found, basket)));
        }
        if let Some(error) = basket.failure.take() {
            stats.missed();
            return Concluded::Answered(Err(Refusal::failed(error)));
        }
        if self.topic.is_gone() {
            return self.anew(&sources.topics, caller);
        }
        if basket.is_ledger_full {
            return Concluded::Answered(Err(too_many_leases(&sources.pops, &sources.settings, &sources.clock)));
        }
        let Some(tick) = self.tick else {
            stats.missed();
            return Concluded::Answered(Ok(self.outcome(PopStatus::Nothing, basket)));
        };
        let (group, topic) = (Arc::clone(&self.group), Arc::clone(&self.topic));
        let lanes = match sources.lanes(&self.topic, self.queue_id) {
            Ok(lanes) => lanes,
            Err(error) => return Concluded::Answered(Err(Refusal::failed(error))),
        };
        let sought = sources.sought(&self);
        let key = GroupTopicRef { group: &group.name, topic: topic.name() };
        let ticket = match wait::park(sources, caller, key, lanes.iter(), tick, Waiting::Pop(self)) {
            Ok(ticket) => ticket,
            Err((waiting, why)) => {
                return Concluded::Answered(match waiting.map(|waiting| *waiting) {
                    Some(Waiting::Pop(order)) => Ok(order.outcome(PopStatus::Full(why.to_string()), basket)),
                    Some(Waiting::Lite(_) | Waiting::Notify(_)) | None => Err(ended()),
                });
            }
        };
        // A message may have come between the look and the parking, or the topic may have gone, or whoever had the turn has ended it with a batch.
        if !sources.has_any_since(&sought) {
            return Concluded::Parked;
        }
        // Woken in between: it comes back by that.
        match wait::take_back(sources, caller, &ticket).map(|waiting| *waiting) {
            Some(Waiting::Pop(order)) => Concluded::Again(order),
            Some(Waiting::Lite(_) | Waiting::Notify(_)) | None => Concluded::Parked,
        }
    }

    fn back(groups: &Groups, waiting: Waiting, wake: Wake) -> Result<CheckedPop, Refusal> {
        let Waiting::Pop(mut order) = waiting else { return Err(ended()) };
        check_group(groups, &order.group)?;
        if wake == Wake::Expired {
            order.tick = None;
        }
        Ok(order)
    }

    fn encode(outcome: PopOutcome, reply_to: ReplyTo, out: &mut Outgoing) {
        outcome.encode(reply_to, out);
    }
}

fn check(broker: &Broker, caller: &mut Caller, order: &PopOrder<'_>) -> Result<CheckedPop, Refusal> {
    caller.took(order.expression.map_or(0, |text| text.len() as u64));
    let PopOrder { born_ms, poll_ms, count_max, invisible_ms, init_mode, queue_id, .. } = *order;
    let numbers = Numbers { born_ms, poll_ms, count_max, invisible_ms };
    let settings = broker.settings.load();
    check_numbers(&settings, broker.advertised, &broker.clock, &numbers)?;
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    if !matches!(init_mode, FROM_MIN | FROM_MAX) {
        let remark = format!("initMode is {init_mode}, it must be {FROM_MIN} (min) or {FROM_MAX} (max)");
        return Err(invalid(remark));
    }
    let topic = caller.topic(&broker.topics, order.topic).ok_or_else(|| Refusal::topic_not_exist(order.topic))?;
    check_readable(&topic, queue_id, caller)?;
    let group = find_group(&broker.groups, order.group)?;
    let want = want(&broker.filters, &settings, order.expression, order.expression_type)?;
    Ok(CheckedPop {
        group,
        topic,
        queue_id,
        count_max: count_max as usize,
        invisible_ms,
        is_from_min: init_mode == FROM_MIN,
        is_order: order.is_order,
        attempt_id: order.attempt_id.filter(|id| !id.is_empty()).map(Box::from),
        want,
        tick: broker.hold.pops.deadline(poll_ms),
    })
}

/// What every pop says, by number.
pub(super) struct Numbers {
    pub(super) born_ms: i64,
    pub(super) poll_ms: i64,
    pub(super) count_max: i32,
    pub(super) invisible_ms: i64,
}

/// The first checks of a pop, in Apache's order.
pub(super) fn check_numbers(
    settings: &BrokerSettings,
    advertised: SocketAddr,
    clock: &Clock,
    numbers: &Numbers,
) -> Result<(), Refusal> {
    let Numbers { born_ms, poll_ms, count_max, invisible_ms } = *numbers;
    let ip = advertised.ip();
    let waited = clock.now().0.saturating_sub(born_ms);
    if born_ms > 0 && waited > poll_ms.saturating_add(TOO_LATE_MS) {
        let remark = format!(
            "the broker[{ip}] pop message is timeout too much: born {waited} ms ago (bornTime {born_ms}), pollTime is \
             {poll_ms} ms"
        );
        return Err(Refusal::new(ResponseCode::PollingTimeout, remark));
    }
    if !perm::is_readable(settings.broker_permission) {
        return Err(Refusal::new(ResponseCode::NoPermission, format!("the broker[{ip}] pop message is forbidden")));
    }
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    if count_max > COUNT_MAX {
        return Err(invalid(format!(
            "the broker[{ip}] pop message's num is greater than {COUNT_MAX}: maxMsgNums is {count_max}"
        )));
    }
    if count_max < 1 {
        return Err(invalid(format!("maxMsgNums is {count_max}, it must be from 1 to {COUNT_MAX}")));
    }
    check_invisible(invisible_ms, ResponseCode::InvalidParameter)
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
pub(super) fn check_readable(topic: &Topic, queue_id: i32, caller: &Caller) -> Result<(), Refusal> {
    let config = topic.settings();
    if !perm::is_readable(config.perm) {
        let remark = format!("the topic[{}] peeking message is forbidden", topic.name());
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    if queue_id >= config.read_queue_nums {
        let remark = illegal_queue(queue_id, topic.name(), config.read_queue_nums, caller);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    Ok(())
}

/// Apache's sentence.
pub(super) fn illegal_queue(queue_id: i32, topic: &str, queues: i32, caller: &Caller) -> String {
    format!(
        "queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{queues}] consumer:[{}]",
        caller.peer()
    )
}

/// The topic that has the name of a deleted one by now.
pub(super) fn topic_anew(topics: &Topics, caller: &Caller, gone: &Topic, queue_id: i32) -> Result<Arc<Topic>, Refusal> {
    let topic = topics.get(gone.name()).ok_or_else(|| Refusal::topic_not_exist(gone.name()))?;
    check_readable(&topic, queue_id, caller)?;
    Ok(topic)
}

/// There are as many leases as there may be.
pub(super) fn too_many_leases(pops: &Pops, settings: &BrokerSettings, clock: &Clock) -> Refusal {
    let (leases, max) = (pops.leases(), settings.pop_leases_max);
    let what = format_args!(
        "[GANTRY]system busy, start flow control for a while: {leases} pops are neither acknowledged nor over, the limit is {max} (popLeasesMax)"
    );
    Refusal::busy(what, pops.next_over(clock.now().0).max(SOON))
}

fn no_group(name: &str) -> Refusal {
    let remark = format!("subscription group [{name}] does not exist, {SEE_FAQ}");
    Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
}

/// Whether the group of a request that has waited is still there: what is noted of one that was deleted would be there when it comes again.
pub(super) fn check_group(groups: &Groups, group: &Group) -> Result<(), Refusal> {
    groups.get(&group.name).map(drop).ok_or_else(|| no_group(&group.name))
}

pub(super) fn find_group(groups: &Groups, name: &str) -> Result<Arc<Group>, Refusal> {
    let group = groups.find(name).map_err(|refusal| {
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
pub(super) fn want(
    filters: &Filters,
    settings: &BrokerSettings,
    exp: Option<&str>,
    exp_type: Option<&str>,
) -> Result<Option<Arc<MessageFilter>>, Refusal> {
    let Some(exp) = exp.filter(|exp| !exp.is_empty()) else { return Ok(None) };
    let kind = exp_type.unwrap_or_default();
    if is_tag(kind) {
        return filters.tags(exp).map_err(|why| Refusal::unparsed(&why));
    }
    check_property_filter(settings, kind)?;
    filters.condition(exp).map(Some).map_err(|why| Refusal::unparsed(&why))
}
