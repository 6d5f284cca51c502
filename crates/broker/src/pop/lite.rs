//! 200070: a client pops what there is in the lite topics that it subscribes to. As in Apache each of these is popped in order: one open
//! batch for a group, and the next messages when all of that are acknowledged or its time is over. Acknowledgements (200051) and changes
//! of the invisible time (200053) name the lite topic beside its parent.

use std::fmt::Write;
use std::sync::Arc;

use hashbrown::HashSet;
use net::{Outgoing, ReplyTo, Request};
use protocol::code::ResponseCode;
use protocol::light;
use protocol::names;
use protocol::request::{PopLiteMessage, PopLiteReply};
use protocol::sys_flag::perm;
use store::Store;

use super::ack::{ChangeOrder, ChangeOutcome, Leases, Popped, is_over};
use super::collect::{PopFound, PopSources, Visit};
use super::state::handle::{Handle, ORDER_QUEUE};
use super::state::ledger::QueueRef;
use super::state::{Held, Pops};
use super::take::{CheckedPop, Numbers, PopStatus, check_invisible, check_numbers};
use super::trying::{self, Concluded, Try};
use super::wait::{self, Waiting};
use crate::broker::Broker;
use crate::caller::{Caller, ended};
use crate::lite::{self, LiteGroup};
use crate::refusal::{Refusal, SEE_FAQ};
use crate::session::Session;
use crate::state::groups::Groups;
use crate::state::message_filter::At;
use crate::state::offsets::{GroupTopicRef, Offsets, rows};
use crate::state::stats::Stats;
use crate::waiting::hold::Wake;

/// What the device did not give is tried again so much later.
const RETRY_MS: i64 = 1000;

/// A pop of lite topics as a client asks for it.
struct LitePopOrder<'a> {
    group: &'a str,
    /// The parent.
    topic: &'a str,
    client: &'a str,
    count_max: i32,
    invisible_ms: i64,
    poll_ms: i64,
    born_ms: i64,
    attempt_id: Option<&'a str>,
}

/// A pop of lite topics that has passed its checks.
pub(crate) struct CheckedLitePop {
    /// Of the parent topic.
    pub(super) pop: CheckedPop,
    client: Box<str>,
}

/// What it brings.
pub(super) struct LitePopOutcome {
    status: PopStatus,
    invisible_ms: i64,
    basket: PopFound,
}

impl<'a> LitePopOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<LitePopOrder<'a>, Refusal> {
        let message = PopLiteMessage::decode(&request.header.fields)?;
        Ok(LitePopOrder {
            group: message.consumer_group,
            topic: message.topic,
            client: message.client_id,
            count_max: message.max_msg_num,
            invisible_ms: message.invisible_time,
            poll_ms: message.poll_time,
            born_ms: message.born_time,
            attempt_id: message.attempt_id,
        })
    }
}

/// 200070.
pub(crate) fn pop_lite(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let order = check(broker, session, &LitePopOrder::decode(request)?)?;
    trying::run(broker, session, order, request.reply_to(), out);
    Ok(())
}

fn check(broker: &Broker, caller: &mut Caller, order: &LitePopOrder<'_>) -> Result<CheckedLitePop, Refusal> {
    let LitePopOrder { born_ms, poll_ms, count_max, invisible_ms, .. } = *order;
    let numbers = Numbers { born_ms, poll_ms, count_max, invisible_ms };
    check_numbers(&broker.settings.load(), broker.advertised, &broker.clock, &numbers)?;
    let name = order.topic;
    let topic = caller.topic(&broker.topics, name).ok_or_else(|| Refusal::topic_not_exist(name))?;
    if !perm::is_readable(topic.settings().perm) {
        let remark = format!("the topic [{name}] peeking message is forbidden");
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    if !lite::is_parent(&topic.config()) {
        return Err(invalid(format!("the topic [{name}] message type not match")));
    }
    let group = broker.groups.find(order.group).map_err(|refusal| {
        if refusal.code != ResponseCode::SubscriptionGroupNotExist {
            return refusal;
        }
        let remark = format!("subscription group [{}] not exist, {SEE_FAQ}", order.group);
        Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
    })?;
    let config = group.config.load_full();
    if !config.consume_enable {
        let remark = format!("subscription group no permission, {}", order.group);
        return Err(Refusal::new(ResponseCode::NoPermission, remark));
    }
    if LiteGroup::of(&config).parent() != Some(name) {
        return Err(invalid(format!("subscription bind topic not match, {}", order.group)));
    }
    Ok(CheckedLitePop {
        pop: CheckedPop {
            group,
            topic,
            queue_id: -1,
            count_max: count_max as usize,
            invisible_ms,
            is_from_min: false,
            is_order: true,
            attempt_id: order.attempt_id.filter(|id| !id.is_empty()).map(Box::from),
            want: None,
            tick: broker.hold.pops.deadline(poll_ms),
        },
        client: order.client.into(),
    })
}

impl CheckedLitePop {
    fn outcome(&self, status: PopStatus, basket: PopFound) -> LitePopOutcome {
        LitePopOutcome { status, invisible_ms: self.pop.invisible_ms, basket }
    }
}

impl Try for CheckedLitePop {
    type Outcome = LitePopOutcome;

    fn takes_long(&self) -> bool {
        false
    }

    fn fill(&self, sources: &PopSources, at: At) -> PopFound {
        sources.fill_lite(self, at)
    }

    fn conclude(
        self,
        sources: &PopSources,
        stats: &Stats,
        caller: &mut Caller,
        mut basket: PopFound,
    ) -> Concluded<CheckedLitePop> {
        let (client, group) = (self.client.clone(), Arc::clone(&self.pop.group));
        let has_event = || sources.lite.lock().has_event(&client, &group.name);
        if basket.count > 0 {
            // The batch must survive whatever the client does with its messages.
            caller.durable_after(basket.position);
            for (_, _, count, bytes) in &basket.got {
                // As in Apache, the parent's: there may be very many lite topics.
                stats.got(&group.name, &self.pop.topic, light::QUEUE_ID as i32, *count, *bytes);
            }
            if has_event() {
                sources.lite.wake_next(&client, &group.name);
            }
            return Concluded::Answered(Ok(self.outcome(PopStatus::Found, basket)));
        }
        if let Some(error) = basket.failure.take() {
            stats.missed();
            return Concluded::Answered(Err(Refusal::failed(error)));
        }
        let Some(tick) = self.pop.tick else {
            stats.missed();
            return Concluded::Answered(Ok(self.outcome(PopStatus::Nothing, basket)));
        };
        let name = lite::waiting_name(&client);
        let key = GroupTopicRef { group: &group.name, topic: &name };
        let nowhere = std::iter::empty();
        let ticket = match wait::park(sources, caller, key, nowhere, tick, Waiting::Lite(self)) {
            Ok(ticket) => ticket,
            Err((waiting, why)) => {
                return Concluded::Answered(match waiting.map(|waiting| *waiting) {
                    Some(Waiting::Lite(order)) => Ok(order.outcome(PopStatus::Full(why.to_string()), basket)),
                    Some(Waiting::Pop(_) | Waiting::Notify(_)) | None => Err(ended()),
                });
            }
        };
        // The client may have been told of something between the look and the parking.
        if !has_event() {
            return Concluded::Parked;
        }
        // Woken in between: it comes back by that.
        match wait::take_back(sources, caller, &ticket).map(|waiting| *waiting) {
            Some(Waiting::Lite(order)) => Concluded::Again(order),
            Some(Waiting::Pop(_) | Waiting::Notify(_)) | None => Concluded::Parked,
        }
    }

    fn back(_: &Groups, waiting: Waiting, wake: Wake) -> Result<CheckedLitePop, Refusal> {
        let Waiting::Lite(mut order) = waiting else { return Err(ended()) };
        if wake == Wake::Expired {
            order.pop.tick = None;
        }
        Ok(order)
    }

    /// Clients make handles of this, with the number that a message has in its lite topic.
    fn encode(outcome: LitePopOutcome, reply_to: ReplyTo, out: &mut Outgoing) {
        let LitePopOutcome { status, invisible_ms, basket } = outcome;
        let fields = PopLiteReply {
            pop_time: basket.pop_time,
            invisible_time: invisible_ms,
            revive_qid: ORDER_QUEUE,
            order_count_info: &basket.count_info,
        };
        let (code, remark) = status.as_answer();
        out.reply_shared(reply_to, code, Some(remark), &fields, basket.bytes, basket.parts.into_iter());
    }
}

impl PopSources {
    /// One try: what the client is told of, in that order.
    fn fill_lite(&self, order: &CheckedLitePop, at: At) -> PopFound {
        let CheckedLitePop { pop, client } = order;
        let lite = &self.lite;
        let mut basket = self.basket(true, at);
        let mut seen: HashSet<Arc<str>> = HashSet::new();
        while basket.count < pop.count_max && self.room(&basket) > 0 {
            let Some(queue) = lite.next(client, &pop.group.name) else { break };
            // What comes to a lite topic that was looked into waits for the next pop, or a busy one would keep this one here.
            if !seen.insert(Arc::clone(&queue)) {
                lite.put_back(client, &pop.group.name, queue);
                break;
            }
            if !self.visit_lite(pop, &queue, &mut basket) {
                lite.put_back(client, &pop.group.name, queue);
                basket.is_cold = true;
                break;
            }
        }
        basket
    }

    /// One look into a light queue for the pop of a client that subscribes to it. False when its bytes have to come from the device.
    fn visit_lite(&self, order: &CheckedPop, queue: &Arc<str>, basket: &mut PopFound) -> bool {
        let lite = &self.lite;
        let name = QueueRef { group: &order.group.name, topic: queue, queue_id: light::QUEUE_ID as i32 };
        // The task that has the turn tells the group again.
        let Some(_turn) = lite.claim(name.group, queue) else { return true };
        // Not made by being looked at.
        if self.store.existing_queue(queue, light::QUEUE_ID).is_none() {
            return true;
        }
        let Some(topic) = self.topics.get(queue) else { return true };
        let lane = match topic.lane(&self.store, light::QUEUE_ID) {
            Ok(lane) => lane,
            Err(error) => {
                basket.failure = Some(error.to_string());
                lite.look_at(name.group, queue, basket.pop_time.saturating_add(RETRY_MS));
                return true;
            }
        };
        let progress = self.offsets.progress(name.group, name.topic);
        let is_warm = self.look_into(order, &Visit { name, topic: &topic, lane: &lane, turn: None, progress }, basket);
        if lane.queue.is_deleted() {
            // Whoever deleted it did not know of what this pop has noted since, and its next life begins without.
            self.pops.orders.clear(name.group, name.topic, name.queue_id);
            self.offsets.forget_one(name.group, name.topic);
            lite.is_done(name.group, name.topic);
        }
        is_warm
    }

    /// The look itself, for whoever has the turn.
    fn look_into(&self, order: &CheckedPop, visit: &Visit<'_>, basket: &mut PopFound) -> bool {
        let lite = &self.lite;
        let name = visit.name;
        let queue = name.topic;
        // Before the offset is looked at: what is acknowledged later is still known when the messages are handed out.
        tidy(&self.store, &self.offsets, &self.pops, name);
        let from = self.begin(order, visit, basket.may_fault);
        if self.pops.orders.is_blocked(name, order.attempt_id.as_deref(), basket.pop_time) {
            if let Some(free_at) = self.pops.orders.free_at(name) {
                lite.look_at(name.group, queue, free_at);
            }
            return true;
        }
        let mut slices = Vec::new();
        let rest_before = basket.rest;
        let Some((from, read)) = self.read(order, visit, from, basket, &mut slices) else {
            if basket.failure.is_some() || basket.rest > rest_before {
                // Nobody would be told of what could not be read.
                lite.look_at(name.group, queue, basket.pop_time.saturating_add(RETRY_MS));
            }
            return !std::mem::take(&mut basket.is_cold);
        };
        let counts_before = std::mem::take(&mut basket.count_info);
        let given = self.hand_out(order, visit, from, &read, &mut slices, basket);
        basket.count_info = counts_before;
        if let Some(offsets) = given {
            for times in self.pops.orders.times(name, &offsets) {
                let between = if basket.count_info.is_empty() { "" } else { ";" };
                // Writing to memory cannot fail.
                let _ = write!(basket.count_info, "{between}{times}");
            }
            self.lay(order, visit, from, &offsets, slices, basket);
            if let Some(free_at) = self.pops.orders.free_at(name) {
                lite.look_at(name.group, queue, free_at);
            }
        } else {
            // All that was read is acknowledged; there may be more behind it.
            lite.look_at(name.group, queue, basket.pop_time);
        }
        true
    }
}

/// The light queue that an acknowledgement means, if it means one.
fn queue_of(store: &Store, topic: &str, lite_topic: Option<&str>) -> Option<String> {
    let lite_topic = lite_topic.filter(|name| !name.trim().is_empty() && store.has_light_queues())?;
    Some(names::lite_queue(topic, lite_topic))
}

/// What a client has, or had, of a lite topic, by its handle.
fn held<'a>(store: &Store, queue: &'a str, popped: &Popped<'a>) -> Result<Held<'a>, Refusal> {
    let Popped { group, queue_id, receipt, offset, .. } = *popped;
    let name = QueueRef { group, topic: queue, queue_id: light::QUEUE_ID as i32 };
    let max = store.existing_queue(name.topic, light::QUEUE_ID).map_or(0, |queue| queue.max_offset());
    let illegal = || {
        let remark = format!("ack offset illegal. {}: offset {offset}, store:0~{max}", name.topic);
        Refusal::new(ResponseCode::NoMessage, remark)
    };
    let number = u64::try_from(offset).ok().filter(|offset| *offset <= max).ok_or_else(illegal)?;
    let handle = Handle::parse(receipt)?;
    if queue_id != light::QUEUE_ID as i32 || !handle.is_order() {
        let remark =
            format!("ack queue illegal. A lite topic has queue {} only, and is popped in order", light::QUEUE_ID);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    Ok(Held { name, handle, offset: number })
}

impl Leases<'_> {
    /// Of a lite message. None: it is none.
    pub(super) fn ack_lite(&self, caller: &mut Caller, popped: &Popped<'_>) -> Option<Result<(), Refusal>> {
        let queue = queue_of(self.lite.store, popped.topic, popped.lite_topic)?;
        let config = self.groups.get(popped.group).map(|group| group.config.load_full());
        if config.is_none_or(|config| LiteGroup::of(&config).parent() != Some(popped.topic)) {
            let remark = "group type or bind topic not match.";
            return Some(Err(Refusal::new(ResponseCode::InvalidParameter, remark)));
        }
        let held = held(self.lite.store, &queue, popped);
        Some(held.and_then(|held| self.finish_in_order(caller, held)))
    }

    /// After an acknowledgement: the group goes on in the lite topic when nobody has anything of it.
    pub(super) fn go_on_in_lite(&self, name: QueueRef<'_>) {
        // The task that has the turn may have read before this acknowledgement. It tells the group again.
        if let Some(_turn) = self.lite.lite.claim(name.group, &Arc::from(name.topic))
            && tidy(self.lite.store, self.lite.offsets, self.lite.pops, name)
        {
            self.lite.lite.is_done(name.group, name.topic);
        }
        self.lite.offer(name.group, name.topic);
    }

    /// Of a lite message. None: it is none.
    pub(super) fn change_lite(
        &self,
        caller: &mut Caller,
        order: &ChangeOrder<'_>,
    ) -> Option<Result<ChangeOutcome, Refusal>> {
        let queue = queue_of(self.lite.store, order.popped.topic, order.popped.lite_topic)?;
        Some(self.change_in(caller, order, &queue))
    }

    fn change_in(&self, caller: &mut Caller, order: &ChangeOrder<'_>, queue: &str) -> Result<ChangeOutcome, Refusal> {
        check_invisible(order.invisible_ms, ResponseCode::MessageIllegal)?;
        let Held { name, handle, offset } = held(self.lite.store, queue, &order.popped)?;
        let committed = self.lite.offsets.committed(name.group, name.topic, name.queue_id).unwrap_or(0);
        if order.popped.offset < committed {
            self.done_before(caller);
            return Ok(ChangeOutcome { pop_time: 0, invisible_ms: 0, revive_qid: 0 });
        }
        let orders = &self.lite.pops.orders;
        let visible_at = self.lite.clock.now().0.saturating_add(order.invisible_ms);
        let position = match order.is_suspended {
            true => orders.suspend(name, handle.pop_time, visible_at),
            false => orders.change(name, handle.pop_time, offset, visible_at),
        };
        caller.durable_after(position.ok_or_else(|| is_over(handle, offset))?);
        if let Some(free_at) = orders.free_at(name) {
            self.lite.lite.look_at(name.group, name.topic, free_at);
        }
        let invisible_ms = visible_at.saturating_sub(handle.pop_time);
        Ok(ChangeOutcome { pop_time: handle.pop_time, invisible_ms, revive_qid: handle.revive_qid })
    }
}

/// Forgets a batch of which nothing is open, for there may be very many lite topics. Only for whoever has the turn. False if there is none.
fn tidy(store: &Store, offsets: &Offsets, pops: &Pops, name: QueueRef<'_>) -> bool {
    let is_finished = pops.orders.is_finished(name);
    if is_finished {
        // The journal is to know how far the group has come before it forgets what is acknowledged.
        rows::put(store, offsets);
        pops.orders.clear_finished(name);
    }
    is_finished
}
