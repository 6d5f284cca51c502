//! 200051, 200151 and 200053: a message that was popped is done with, or stays invisible for longer.
//!
//! Unlike in Apache an acknowledgement finds its lease or finds nothing: there is no record that could meet somebody else's. One that is
//! repeated succeeds again; one whose lease is over is told so (208), and the message comes again.

use net::{Outgoing, Request};
use protocol::body::{BatchAck, BatchAckBody};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeReply};

use super::claim::waits_for;
use super::state::handle::{Handle, ORDER_QUEUE, Origin};
use super::state::ledger::{Change, NoChange, QueueRef};
use super::state::order::OrderAck;
use super::state::{Acked, Held};
use super::take::{check_invisible, illegal_queue, too_many_leases};
use crate::answer::{body, reply_ok};
use crate::broker::Broker;
use crate::caller::Caller;
use crate::lite::{Offers, is_parent};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::groups::Groups;
use crate::state::offsets::rows;
use crate::state::stats::Stats;
use crate::state::topics::Topics;
use crate::waiting::hold::Hold;

/// Acknowledgements in one request: a batch names messages by bits, and no bit stands for nothing.
const BATCH_MESSAGES_MAX: usize = 65_536;

/// A popped message, as a client names it.
#[derive(Clone, Copy, Debug)]
pub struct Popped<'a> {
    /// The group that popped it.
    pub group: &'a str,
    /// The topic that it was popped from: a retry topic, if it came again.
    pub topic: &'a str,
    /// Of a lite topic: its name beside its parent's, which is `topic` then.
    pub lite_topic: Option<&'a str>,
    /// Of that topic.
    pub queue_id: i32,
    /// In that queue.
    pub offset: i64,
    /// What the client was given with it.
    pub receipt: &'a str,
}

impl<'a> Popped<'a> {
    fn decode(request: &Request<'a>) -> Result<Popped<'a>, Refusal> {
        let AckMessage { consumer_group: group, topic, queue_id, extra_info: receipt, offset, lite_topic } =
            AckMessage::decode(&request.header.fields)?;
        Ok(Popped { group, topic, lite_topic, queue_id, offset, receipt })
    }

    fn queue(&self) -> QueueRef<'_> {
        QueueRef { group: self.group, topic: self.topic, queue_id: self.queue_id }
    }
}

/// A message is done with.
#[derive(Clone, Copy, Debug)]
pub struct AckOrder<'a> {
    /// That one.
    pub popped: Popped<'a>,
}

/// A message stays invisible for so long from now on: its lease is renewed, or given up.
#[derive(Clone, Copy, Debug)]
pub struct ChangeOrder<'a> {
    /// That one.
    pub popped: Popped<'a>,
    /// From now on.
    pub invisible_ms: i64,
    /// It does not count as a try.
    pub is_suspended: bool,
}

/// What the new receipt is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// As if it had been popped then.
    pub pop_time: i64,
    /// For so long.
    pub invisible_ms: i64,
    /// With this revive queue.
    pub revive_qid: i32,
}

/// Several messages are done with.
struct AckBatchOrder {
    acks: Vec<BatchAck>,
}

/// The state that acknowledgements and changes of the invisible time read and change.
pub(super) struct Leases<'a> {
    /// Leases, offsets, and the clients of lite topics.
    pub(super) lite: Offers<'a>,
    pub(super) groups: &'a Groups,
    topics: &'a Topics,
    hold: &'a Hold,
    stats: &'a Stats,
}

/// 200051.
pub(crate) fn ack(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    AckOrder::decode(request)?.run(broker, session)?;
    reply_ok(request, out);
    Ok(())
}

/// 200151.
pub(crate) fn ack_batch(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    AckBatchOrder::decode(request)?.run(broker, session)?;
    reply_ok(request, out);
    Ok(())
}

/// 200053.
pub(crate) fn change(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    ChangeOrder::decode(request)?.run(broker, session)?.encode(request, out);
    Ok(())
}

impl<'a> AckOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<AckOrder<'a>, Refusal> {
        Ok(AckOrder { popped: Popped::decode(request)? })
    }

    fn run(&self, broker: &Broker, caller: &mut Caller) -> Result<(), Refusal> {
        let (name, leases) = (self.popped.queue(), Leases::of(broker));
        leases.check_queue(caller, name)?;
        if let Some(acked) = leases.ack_lite(caller, &self.popped) {
            return acked;
        }
        let handle = Handle::parse(self.popped.receipt)?;
        let offset = leases.offset(name, self.popped.offset)?;
        if handle.is_order() {
            return leases.finish_in_order(caller, Held { name, handle, offset });
        }
        leases.finish(caller, name, handle, std::iter::once(offset))
    }

    /// Carries it out for a caller in this process.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<(), Refusal> {
        caller.begin();
        let acked = self.run(broker, caller);
        caller.settled(&broker.store).await?;
        acked
    }
}

impl<'a> ChangeOrder<'a> {
    fn decode(request: &Request<'a>) -> Result<ChangeOrder<'a>, Refusal> {
        // Its first fields are those of an acknowledgement.
        let popped = Popped::decode(request)?;
        let ChangeInvisibleTime { invisible_time, suspend, .. } = ChangeInvisibleTime::decode(&request.header.fields)?;
        Ok(ChangeOrder { popped, invisible_ms: invisible_time, is_suspended: suspend })
    }

    fn run(&self, broker: &Broker, caller: &mut Caller) -> Result<ChangeOutcome, Refusal> {
        let (name, invisible_ms, leases) = (self.popped.queue(), self.invisible_ms, Leases::of(broker));
        leases.check_queue(caller, name)?;
        if let Some(changed) = leases.change_lite(caller, self) {
            return changed;
        }
        let handle = Handle::parse(self.popped.receipt)?;
        check_invisible(invisible_ms, ResponseCode::MessageIllegal)?;
        let offset = leases.offset(name, self.popped.offset)?;
        let now = broker.clock.now().0;
        let held = Held { name, handle, offset };
        let visible_at = now.saturating_add(invisible_ms);
        let (pop_time, position) = if handle.is_order() {
            let position = broker.pops.orders.change(name, handle.pop_time, offset, visible_at);
            let position = position.ok_or_else(|| is_over(handle, offset))?;
            broker.hold.pops.wake_at(waits_for(name).0, invisible_ms);
            (handle.pop_time, position)
        } else {
            let change = Change { now, invisible_ms, is_suspended: self.is_suspended };
            let settings = broker.settings.load();
            let changed = broker.pops.change(held, &change, settings.pop_leases_max);
            changed.map_err(|why| match why {
                NoChange::Unknown => is_over(handle, offset),
                NoChange::Full => too_many_leases(&broker.pops, &settings, &broker.clock),
            })?
        };
        caller.durable_after(position);
        // What the handle says of the end must be the lease's: it begins later than now where the clock was set back.
        let invisible_ms = visible_at.saturating_sub(pop_time);
        Ok(ChangeOutcome { pop_time, invisible_ms, revive_qid: handle.revive_qid })
    }

    /// Carries it out for a caller in this process.
    pub async fn call(&self, broker: &Broker, caller: &mut Caller) -> Result<ChangeOutcome, Refusal> {
        caller.begin();
        let changed = self.run(broker, caller);
        caller.settled(&broker.store).await?;
        changed
    }
}

impl ChangeOutcome {
    fn encode(self, request: &Request<'_>, out: &mut Outgoing) {
        let ChangeOutcome { pop_time, invisible_ms, revive_qid } = self;
        let reply = ChangeInvisibleTimeReply { pop_time, invisible_time: invisible_ms, revive_qid };
        out.reply(request.reply_to(), ResponseCode::Success, None, &reply, &[]);
    }
}

impl AckBatchOrder {
    fn decode(request: &Request<'_>) -> Result<AckBatchOrder, Refusal> {
        check_length(request.body)?;
        let batch: BatchAckBody = body(request)?;
        Ok(AckBatchOrder { acks: batch.acks })
    }

    /// Every acknowledgement stands for itself: what is wrong with one does not keep the others from counting.
    fn run(&self, broker: &Broker, caller: &mut Caller) -> Result<(), Refusal> {
        if self.acks.is_empty() {
            return Err(Refusal::new(ResponseCode::NoMessage, "the batch acknowledges nothing"));
        }
        // Nothing in a batch names a lite topic, so what was popped of one cannot be acknowledged by it.
        let is_of_lite = |acks: &&BatchAck| {
            let is_parent = || broker.topics.get(&acks.topic).is_some_and(|topic| is_parent(&topic.config()));
            acks.revive_queue_id == ORDER_QUEUE && is_parent()
        };
        if let Some(acks) = self.acks.iter().find(is_of_lite) {
            let remark = format!("messages of lite topics of {} are acknowledged one by one (200051)", acks.topic);
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
        let leases = Leases::of(broker);
        let mut left = BATCH_MESSAGES_MAX;
        for acks in &self.acks {
            let topic = Origin::topic(&acks.retry, &acks.topic, &acks.consumer_group);
            let name = QueueRef { group: &acks.consumer_group, topic: &topic, queue_id: acks.queue_id };
            if leases.check_queue(caller, name).is_err() {
                continue;
            }
            let Ok(start) = u64::try_from(acks.start_offset) else { continue };
            let handle = Handle {
                start,
                pop_time: acks.pop_time,
                invisible_ms: acks.invisible_time,
                revive_qid: acks.revive_queue_id,
            };
            let distances = places(acks).take(left + 1);
            let offsets: Vec<u64> = distances.map(|distance| start.saturating_add(distance)).collect();
            left = left.checked_sub(offsets.len()).ok_or_else(|| {
                let remark =
                    format!("the batch acknowledges more than {BATCH_MESSAGES_MAX} messages, which is the limit");
                Refusal::new(ResponseCode::MessageIllegal, remark)
            })?;
            // A lease that is over says nothing of the others.
            if handle.is_order() {
                for offset in offsets {
                    let _ = leases.finish_in_order(caller, Held { name, handle, offset });
                }
            } else {
                let _ = leases.finish(caller, name, handle, offsets.into_iter());
            }
        }
        Ok(())
    }
}

/// Each pop of a batch is an object of its body, and takes far more memory than the two bytes that name an empty one.
fn check_length(body: &[u8]) -> Result<(), Refusal> {
    // One object is the body itself.
    let pops = body.iter().filter(|byte| **byte == b'{').count().saturating_sub(1);
    if pops <= BATCH_MESSAGES_MAX {
        return Ok(());
    }
    let remark = format!("acks of the batch names {pops} pops, the limit is {BATCH_MESSAGES_MAX}");
    Err(Refusal::new(ResponseCode::MessageIllegal, remark))
}

/// Distances from the start offset: the bits of a Java `BitSet`.
fn places(acks: &BatchAck) -> impl Iterator<Item = u64> {
    let bytes = acks.bit_set.iter().zip(0u64..);
    bytes.flat_map(|(byte, at)| (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit))
}

impl<'a> Leases<'a> {
    fn of(broker: &'a Broker) -> Leases<'a> {
        let Broker { groups, topics, hold, stats, .. } = broker;
        Leases { lite: Offers::of(broker), groups, topics, hold, stats }
    }

    /// Messages that one handle gave out are done with.
    fn finish(
        &self,
        caller: &mut Caller,
        name: QueueRef<'_>,
        handle: Handle,
        mut offsets: impl Iterator<Item = u64> + Clone,
    ) -> Result<(), Refusal> {
        let acked = self.lite.pops.ack(name, handle, offsets.clone());
        if let Some(Acked { counts, position }) = acked {
            caller.durable_after(position);
            self.stats.acked(name.group, name.topic, counts.acked as u64);
        }
        if acked.is_none_or(|acked| acked.counts.unknown > 0) {
            if handle.until() <= self.lite.clock.now().0 {
                return Err(is_over(handle, offsets.next().unwrap_or(handle.start)));
            }
            self.done_before(caller);
        }
        Ok(())
    }

    /// It was acknowledged before, and the answer to that got lost, or is still to come: this one is not to be sooner than the journal either.
    pub(super) fn done_before(&self, caller: &mut Caller) {
        caller.durable_after(self.lite.store.journal().position());
    }

    pub(super) fn finish_in_order(&self, caller: &mut Caller, held: Held<'_>) -> Result<(), Refusal> {
        let Held { name, handle, offset } = held;
        let QueueRef { group, topic, queue_id } = name;
        let committed = self.lite.offsets.committed(group, topic, queue_id).unwrap_or(0);
        if i64::try_from(offset).is_ok_and(|offset| offset < committed) {
            self.done_before(caller);
            return Ok(());
        }
        let commit = |next: u64| self.lite.offsets.commit(group, topic, queue_id, next as i64);
        let (acked, position) = self.lite.pops.orders.ack(name, handle.pop_time, offset, commit);
        match acked {
            OrderAck::Next => {
                caller.durable_after(position);
                self.stats.acked(group, names::lite_parts(topic).map_or(topic, |(parent, _)| parent), 1);
                caller.durable_after(rows::put(self.lite.store, self.lite.offsets));
                if names::lite_parts(topic).is_some() {
                    self.go_on_in_lite(name);
                }
                if !self.lite.pops.orders.is_blocked(name, None, self.lite.clock.now().0) {
                    let (key, queue_id) = waits_for(name);
                    self.hold.pops.arrived_in(key, queue_id);
                }
                Ok(())
            }
            OrderAck::Late => {
                self.done_before(caller);
                Ok(())
            }
            OrderAck::Unknown => {
                let remark = format!(
                    "offset is illegal, key:{topic}@{group}@{queue_id}, old:{committed}, commit:{offset}: it is not in the \
                 batch that was popped at {}",
                    handle.pop_time
                );
                Err(Refusal::new(ResponseCode::MessageIllegal, remark))
            }
        }
    }

    /// The topic, and a queue of it.
    fn check_queue(&self, caller: &mut Caller, name: QueueRef<'_>) -> Result<(), Refusal> {
        let topic = caller.topic(self.topics, name.topic).ok_or_else(|| Refusal::topic_not_exist(name.topic))?;
        let queues = topic.settings().read_queue_nums;
        if (0..queues).contains(&name.queue_id) {
            return Ok(());
        }
        let remark = illegal_queue(name.queue_id, name.topic, queues, caller);
        Err(Refusal::new(ResponseCode::MessageIllegal, remark))
    }

    /// An offset that the queue has, or had: retention may have been faster than the consumer.
    fn offset(&self, name: QueueRef<'_>, offset: i64) -> Result<u64, Refusal> {
        let topic = self.topics.get(name.topic).ok_or_else(|| Refusal::topic_not_exist(name.topic))?;
        let lane = topic.lane(self.lite.store, name.queue_id.max(0) as u32).map_err(Refusal::failed)?;
        let (min, max) = (lane.queue.min_offset(), lane.queue.max_offset());
        u64::try_from(offset).ok().filter(|offset| *offset <= max).ok_or_else(|| {
            let remark =
                format!("offset is illegal, key:{}@{}, commit:{offset}, store:{min}~{max}", name.topic, name.queue_id);
            Refusal::new(ResponseCode::NoMessage, remark)
        })
    }
}

pub(super) fn is_over(handle: Handle, offset: u64) -> Refusal {
    let remark = format!(
        "nobody has offset {offset} by this handle any more: it was popped at {} for {} ms",
        handle.pop_time, handle.invisible_ms
    );
    Refusal::new(ResponseCode::NoMessage, remark)
}
