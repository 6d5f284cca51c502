//! What one try of a pop brings: from the retry topics and the topic's queues, each under its own turn.
//!
//! It runs on the connection's task, or on a cold-read thread when the bytes have to come from the device, or on the thread for filters when
//! there is much to pass over; so it holds handles only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use config::{BrokerSettings, StoreSettings};
use env::{Clock, Random};
use net::SharedSlice;
use store::{Copies, LogSlice, Read, ReadLimits, ReadStatus, Store, StoreError};

use super::claim::Claim;
use super::look::PeekOutcome;
use super::state::Pops;
use super::state::handle::{self, ORDER_QUEUE, Origin};
use super::state::ledger::{PopQueue, QueueRef};
use super::take::CheckedPop;
use crate::broker::Broker;
use crate::caller::Caller;
use crate::client_handle::ClientHandle;
use crate::cold;
use crate::lite::Lite;
use crate::state::groups::Group;
use crate::state::message_filter::{At, Effort, Reader};
use crate::state::offsets::{GroupTopicRef, Offsets, Progress};
use crate::state::topics::{Topic, Topics};
use crate::waiting::hold::{Hold, Lane};

/// Reads of one queue that may find nothing that is wanted before others get their turn.
const FRUITLESS_READS: usize = 8;

/// What a try needs of the broker.
pub(super) struct PopSources {
    pub(super) pops: Arc<Pops>,
    pub(super) hold: Arc<Hold>,
    pub(super) topics: Arc<Topics>,
    pub(super) offsets: Arc<Offsets>,
    pub(super) store: Arc<Store>,
    pub(super) lite: Arc<Lite<ClientHandle>>,
    pub(super) settings: Arc<BrokerSettings>,
    pub(super) store_settings: Arc<StoreSettings>,
    pub(super) clock: Clock,
    pub(super) random: Random,
    /// The caller's: what is copied from the device is counted there.
    copies: Copies,
}

/// What a try has brought.
pub(super) struct PopFound {
    pub(super) pop_time: i64,
    pub(super) revive_qid: i32,
    /// Records, in the order of the answer.
    pub(super) parts: Vec<SharedSlice>,
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) start_info: String,
    pub(super) offset_info: String,
    pub(super) count_info: String,
    /// What the queues still hold for the group.
    pub(super) rest: i64,
    /// Some of that is in its retry topics.
    pub(super) has_retry_rest: bool,
    /// By queue: its topic and id, messages and bytes.
    pub(super) got: Vec<(Arc<Topic>, i32, usize, usize)>,
    /// Where the journal knows of all this.
    pub(super) position: u64,
    /// Some bytes have to come from the device.
    pub(super) is_cold: bool,
    pub(super) is_ledger_full: bool,
    pub(super) failure: Option<String>,
    pub(super) may_fault: bool,
    /// What it may still spend on filters.
    effort: Effort,
    /// Messages were passed over that nobody wants, and there are more to look at.
    pub(super) is_undone: bool,
}

impl PopFound {
    /// Steps of filters that it took.
    pub(super) fn steps(&self) -> u64 {
        self.effort.spent()
    }
}

/// A queue that a pop looks into in its turn.
pub(super) struct Visit<'a> {
    pub(super) name: QueueRef<'a>,
    pub(super) topic: &'a Arc<Topic>,
    pub(super) lane: &'a Lane,
    /// The queue's number for the one whose turn it is. None for a lite topic, whose turn outlives its deletion.
    pub(super) turn: Option<PopQueue>,
    /// How far the group has come. Taken before it is seen that the queue's life is not over.
    pub(super) progress: Progress,
}

impl Visit<'_> {
    /// Whether what is found is of a life of the topic or of the group that is over.
    pub(super) fn is_gone(&self, pops: &Pops) -> bool {
        self.topic.is_gone()
            || self.lane.queue.is_deleted()
            || self.turn.is_some_and(|queue| pops.ledger.lock().name(queue).is_none())
    }
}

/// What there is for one who waits.
enum PopProspect {
    /// A try would find something, or the topic is gone.
    Something,
    /// Nothing. What comes wakes him, and so does whoever has the turn of a queue. `free_at`: when the first batch that is in his way is over.
    Nothing { free_at: Option<i64> },
}

/// Where a pop looks, free of the pop.
pub(super) struct PopTarget {
    pub(super) group: Arc<Group>,
    pub(super) topic: Arc<Topic>,
    pub(super) queue_id: i32,
    /// The attempt, where the queues are popped in order.
    pub(super) attempt: Option<Option<Box<str>>>,
}

impl PopSources {
    /// For tries of this caller.
    pub(super) fn of(broker: &Broker, caller: &Caller) -> PopSources {
        PopSources {
            pops: Arc::clone(&broker.pops),
            hold: Arc::clone(&broker.hold),
            topics: Arc::clone(&broker.topics),
            offsets: Arc::clone(&broker.offsets),
            store: Arc::clone(&broker.store),
            lite: Arc::clone(&broker.lite),
            settings: broker.settings.load_full(),
            store_settings: broker.store_settings.load_full(),
            clock: broker.clock.clone(),
            random: broker.random.clone(),
            copies: caller.copies.clone(),
        }
    }

    /// An empty one.
    pub(super) fn basket(&self, is_order: bool, at: At) -> PopFound {
        let turn = self.pops.pops.fetch_add(1, Ordering::Relaxed);
        let pop_time = self.clock.now().0;
        self.pops.latest.fetch_max(pop_time, Ordering::Relaxed);
        let revive_queues = u64::try_from(self.settings.revive_queue_num).unwrap_or(1).max(1);
        PopFound {
            pop_time,
            revive_qid: if is_order { ORDER_QUEUE } else { (turn % revive_queues) as i32 },
            parts: Vec::new(),
            count: 0,
            bytes: 0,
            start_info: String::new(),
            offset_info: String::new(),
            count_info: String::new(),
            rest: 0,
            has_retry_rest: false,
            got: Vec::new(),
            position: 0,
            is_cold: false,
            is_ledger_full: false,
            failure: None,
            may_fault: at.may_fault(),
            effort: at.effort(),
            is_undone: false,
        }
    }

    /// One try.
    pub(super) fn fill(&self, order: &CheckedPop, at: At) -> PopFound {
        let mut basket = self.basket(order.is_order, at);
        if order.topic.is_gone() {
            return basket;
        }
        let has_retries = !order.is_order;
        let draw = self.random.below(100);
        let by_priority = draw < priority_percent(order);
        let settings = &self.settings;
        let retries_percent = match by_priority {
            true => settings.pop_from_retry_probability_for_priority,
            false => settings.pop_from_retry_probability,
        };
        let is_retry_first = has_retries && draw < retries_percent;
        if is_retry_first {
            self.retries(order, &mut basket);
        }
        if order.queue_id >= 0 {
            self.visit(order, &order.topic, order.queue_id, &mut basket);
        } else {
            let queues = order.topic.settings().read_queue_nums.max(0);
            let first = if queues > 0 && !by_priority { self.random.below(queues as u32) as i32 } else { 0 };
            for turn in 0..queues {
                // The number of a queue is the priority of its messages.
                let turn = if self.settings.priority_order_asc { queues - 1 - turn } else { turn };
                self.visit(order, &order.topic, (first + turn) % queues, &mut basket);
            }
        }
        if has_retries && !is_retry_first {
            self.retries(order, &mut basket);
        }
        basket
    }

    /// The retry topics of a group that exist.
    fn retry_topics(&self, topic: &str, group: &str) -> impl Iterator<Item = Arc<Topic>> {
        let is_v2 = self.settings.enable_retry_topic_v2;
        let is_v1 = !is_v2 || self.settings.retrieve_message_from_pop_retry_topic_v1;
        let mut origins = [is_v1.then_some(Origin::RetryV1), is_v2.then_some(Origin::RetryV2)];
        if is_v1 && is_v2 && self.random.below(2) == 0 {
            origins.reverse();
        }
        let names = origins.map(|origin| origin.map(|origin| handle::retry_topic(topic, group, origin)));
        names.into_iter().flatten().filter_map(|name| self.topics.get(&name))
    }

    fn retries(&self, order: &CheckedPop, basket: &mut PopFound) {
        let rest_before = basket.rest;
        for topic in self.retry_topics(order.topic.name(), &order.group.name) {
            for queue_id in 0..topic.settings().read_queue_nums.max(0) {
                self.visit(order, &topic, queue_id, basket);
            }
        }
        basket.has_retry_rest |= basket.rest > rest_before;
    }

    /// The queues that a request waits for.
    pub(super) fn lanes(&self, topic: &Topic, queue_id: i32) -> Result<Vec<Arc<Lane>>, StoreError> {
        let queues = topic.settings().read_queue_nums.max(0);
        let ids = if queue_id >= 0 { queue_id..queue_id + 1 } else { 0..queues };
        ids.map(|id| topic.lane(&self.store, id as u32)).collect()
    }

    pub(super) fn sought(&self, order: &CheckedPop) -> PopTarget {
        PopTarget {
            group: Arc::clone(&order.group),
            topic: Arc::clone(&order.topic),
            queue_id: order.queue_id,
            attempt: order.is_order.then(|| order.attempt_id.clone()),
        }
    }

    /// Whether a try would find something, or that the topic is gone. Queues that somebody else has the turn of do not count: he wakes whoever waits.
    pub(super) fn has_any(&self, sought: &PopTarget) -> bool {
        matches!(self.outlook(sought), PopProspect::Something)
    }

    /// The same for one who has parked. That a batch is over which is in his way nobody says when it is, so he is woken at that time.
    pub(super) fn has_any_since(&self, sought: &PopTarget) -> bool {
        let PopProspect::Nothing { free_at } = self.outlook(sought) else { return true };
        if let Some(free_at) = free_at {
            let key = GroupTopicRef { group: &sought.group.name, topic: sought.topic.name() };
            self.hold.pops.wake_at(key, free_at.saturating_sub(self.clock.now().0));
        }
        false
    }

    fn outlook(&self, sought: &PopTarget) -> PopProspect {
        let topic = &sought.topic;
        if topic.is_gone() {
            return PopProspect::Something;
        }
        let mut first = None;
        let mut is_something = |topic: &Topic, queue_id| match self.outlook_of(sought, topic, queue_id) {
            PopProspect::Something => true,
            PopProspect::Nothing { free_at } => {
                first = [first, free_at].into_iter().flatten().min();
                false
            }
        };
        let queues = topic.settings().read_queue_nums.max(0);
        let mut ids = if sought.queue_id >= 0 { sought.queue_id..sought.queue_id + 1 } else { 0..queues };
        let has_any = ids.any(|id| is_something(topic, id))
            || sought.attempt.is_none()
                && self
                    .retry_topics(topic.name(), &sought.group.name)
                    .any(|topic| (0..topic.settings().read_queue_nums.max(0)).any(|id| is_something(&topic, id)));
        if has_any { PopProspect::Something } else { PopProspect::Nothing { free_at: first } }
    }

    /// What there is in one queue, by one look at who has it: whoever takes it later wakes who waits, or is seen here.
    fn outlook_of(&self, sought: &PopTarget, topic: &Topic, queue_id: i32) -> PopProspect {
        let nothing = PopProspect::Nothing { free_at: None };
        let Ok(lane) = topic.lane(&self.store, queue_id as u32) else { return nothing };
        let name = QueueRef { group: &sought.group.name, topic: topic.name(), queue_id };
        let from = match self.offsets.committed(name.group, name.topic, queue_id) {
            Some(offset) => offset as u64,
            None => lane.queue.min_offset(),
        };
        let (min, max) = (lane.queue.min_offset(), lane.queue.max_offset());
        if max == 0 || from == max {
            return nothing;
        }
        let is_there = from < min || from > max || self.store.is_visible(&lane.queue, from);
        // Whether somebody has the turn is asked before the rest of it: by the time it ends, it may be blocked, which whoever waits has to hear of.
        if !is_there || self.is_over_threshold(name) || self.pops.is_missed(name) {
            return nothing;
        }
        let now = self.clock.now().0;
        let attempt = sought.attempt.as_ref();
        let blocked_until = attempt.and_then(|id| self.pops.orders.blocked_until(name, id.as_deref(), now));
        blocked_until.map_or(PopProspect::Something, |until| PopProspect::Nothing { free_at: Some(until) })
    }

    fn is_over_threshold(&self, name: QueueRef<'_>) -> bool {
        self.settings.enable_pop_message_threshold
            && self.pops.open_messages(name.group, name.topic, name.queue_id)
                >= self.settings.pop_inflight_message_threshold
    }

    /// What a pop would bring, without a lease.
    pub(super) fn peek(
        &self,
        group: &Group,
        topic: &Arc<Topic>,
        queue_id: i32,
        count_max: usize,
        may_fault: bool,
    ) -> PeekOutcome {
        let mut seen = PeekOutcome { parts: Vec::new(), bytes: 0, rest: 0, is_cold: false };
        let retries: Vec<Arc<Topic>> = self.retry_topics(topic.name(), &group.name).collect();
        let queues = topic.settings().read_queue_nums.max(0);
        let ids = if queue_id >= 0 { queue_id..queue_id + 1 } else { 0..queues };
        let all = ids.map(|id| (topic, id)).chain(retries.iter().map(|retry| (retry, 0)));
        for (topic, queue_id) in all {
            let Ok(lane) = topic.lane(&self.store, queue_id as u32) else { continue };
            let committed = self.offsets.committed(&group.name, topic.name(), queue_id);
            let from = committed.unwrap_or(0).max(lane.queue.min_offset() as i64);
            let room = self.store_settings.max_transfer_bytes_on_message_in_memory.saturating_sub(seen.bytes);
            let count = count_max - seen.parts.len();
            let mut slices = Vec::new();
            if count > 0 && room > 0 {
                let limits = self.limits(count, room, may_fault);
                let effort = At::Worker.effort();
                let mut reader = Reader { want: None, effort: &effort, copies: Some(&self.copies) };
                let read = self.store.read(&lane.queue, from, &limits, &mut reader, &mut slices);
                if read.status == ReadStatus::Cold {
                    seen.is_cold = true;
                    return seen;
                }
            }
            for slice in slices {
                let (owner, range) = slice.into_parts();
                seen.bytes += range.len();
                seen.parts.push(SharedSlice { owner, range });
            }
            // With those that are shown, as Apache counts.
            seen.rest += (lane.queue.max_offset() as i64).saturating_sub(from).max(0);
        }
        seen
    }

    fn visit(&self, order: &CheckedPop, topic: &Arc<Topic>, queue_id: i32, basket: &mut PopFound) {
        let lane = match topic.lane(&self.store, queue_id as u32) {
            Ok(lane) => lane,
            Err(error) => {
                basket.failure = Some(error.to_string());
                return;
            }
        };
        let name = QueueRef { group: &order.group.name, topic: topic.name(), queue_id };
        let max = lane.queue.max_offset() as i64;
        let committed = self.offsets.committed(name.group, name.topic, queue_id);
        // Nearly every queue of a look at all of them, without taking its turn.
        if committed == Some(max) && !self.offsets.is_reset_pending(name.group, name.topic, queue_id) {
            return;
        }
        let lag = max.saturating_sub(committed.unwrap_or(0)).max(0);
        if basket.effort.is_spent() {
            basket.is_undone = true;
        }
        if basket.count >= order.count_max
            || basket.is_ledger_full
            || basket.effort.is_spent()
            || self.room(basket) == 0
        {
            basket.rest += lag;
            return;
        }
        let Some(claim) = Claim::of(&self.pops, &self.hold, name) else {
            basket.rest += lag;
            return;
        };
        let progress = self.offsets.progress(name.group, name.topic);
        let visit = Visit { name, topic, lane: &lane, turn: Some(claim.queue), progress };
        // Behind the claim, and with the progress in hand: a deletion that is not seen here takes away the claim's queue later, with what it would
        // lease, and this progress. So nothing that is noted of this life reaches the next one, which others may pop before this look ends.
        if visit.is_gone(&self.pops) {
            return;
        }
        if self.is_over_threshold(name) {
            basket.rest += lag;
            return;
        }
        self.take_from(order, &visit, &claim, basket);
    }

    /// The rest of a visit, for whoever has the turn.
    fn take_from(&self, order: &CheckedPop, visit: &Visit<'_>, claim: &Claim, basket: &mut PopFound) {
        let from = self.begin(order, visit, basket.may_fault);
        if order.is_order && self.pops.orders.is_blocked(visit.name, order.attempt_id.as_deref(), basket.pop_time) {
            return;
        }
        let mut slices = Vec::new();
        let Some((from, read)) = self.read(order, visit, from, basket, &mut slices) else { return };
        basket.rest += read.max.saturating_sub(read.next).max(0);
        let given = match order.is_order {
            true => self.hand_out(order, visit, from, &read, &mut slices, basket),
            false => self.lease(order, visit, claim, from, &read, &slices, basket),
        };
        if let Some(offsets) = given {
            self.lay(order, visit, from, &offsets, slices, basket);
        }
    }

    /// Bytes that the basket may still take.
    pub(super) fn room(&self, basket: &PopFound) -> usize {
        self.store_settings.max_transfer_bytes_on_message_in_memory.max(1).saturating_sub(basket.bytes)
    }

    /// Where the group goes on in a queue.
    pub(super) fn begin(&self, order: &CheckedPop, visit: &Visit<'_>, may_fault: bool) -> i64 {
        let QueueRef { group, topic, queue_id } = visit.name;
        let (lane, progress) = (visit.lane, &visit.progress);
        let committed = progress.committed(queue_id);
        // What a crash left behind it needs no word to clients who ask us where to begin: what is committed is not behind the queue's end.
        if let Some(to) = progress.take_reset(queue_id) {
            self.pops.orders.clear_if(group, topic, queue_id, || !visit.is_gone(&self.pops));
            self.offsets.commit_in(progress, queue_id, to);
            return to;
        }
        if let Some(committed) = committed {
            return committed;
        }
        let (min, max) = (lane.queue.min_offset() as i64, lane.queue.max_offset() as i64);
        if order.is_from_min || Origin::of(topic) != Origin::Topic {
            return min;
        }
        let is_in_memory = || {
            let limits = self.limits(1, usize::MAX, may_fault);
            let effort = At::Worker.effort();
            let mut reader = Reader { want: None, effort: &effort, copies: None };
            let first = self.store.read(&lane.queue, 0, &limits, &mut reader, &mut Vec::new());
            first.status == ReadStatus::Found
        };
        let is_small = self.settings.init_pop_offset_by_check_msg_in_mem && min == 0 && is_in_memory();
        // Apache's new groups get the last message.
        let from = if is_small { 0 } else { (max - 1).max(0) };
        self.offsets.commit_in(progress, queue_id, from);
        from
    }

    fn limits(&self, count: usize, bytes: usize, may_fault: bool) -> ReadLimits {
        cold::limits(&self.store_settings, count, bytes, may_fault)
    }

    /// Reads on until something is found that is wanted. What is passed over is behind the group.
    pub(super) fn read(
        &self,
        order: &CheckedPop,
        visit: &Visit<'_>,
        mut from: i64,
        basket: &mut PopFound,
        slices: &mut Vec<LogSlice>,
    ) -> Option<(i64, Read)> {
        let QueueRef { group, topic, queue_id } = visit.name;
        let (lane, progress) = (visit.lane, &visit.progress);
        let limits = self.limits(order.count_max - basket.count, self.room(basket), basket.may_fault);
        for _ in 0..FRUITLESS_READS {
            let (want, effort) = (order.want.as_deref(), &basket.effort);
            let mut reader = Reader { want, effort, copies: Some(&self.copies) };
            let read = self.store.read(&lane.queue, from, &limits, &mut reader, slices);
            match read.status {
                ReadStatus::Found => return Some((from, read)),
                ReadStatus::Cold => {
                    basket.is_cold = true;
                    return None;
                }
                ReadStatus::Failed => {
                    basket.failure = read.failure.map(|error| error.to_string());
                    return None;
                }
                ReadStatus::Undecided => break,
                ReadStatus::OffsetOverflowOne | ReadStatus::NoMatchedLogicQueue | ReadStatus::OffsetReset => {
                    return None;
                }
                ReadStatus::NoMessageInQueue if from == 0 => return None,
                ReadStatus::NoMatchedMessage
                | ReadStatus::MessageWasRemoving
                | ReadStatus::OffsetFoundNull
                | ReadStatus::OffsetOverflowBadly
                | ReadStatus::OffsetTooSmall
                | ReadStatus::NoMessageInQueue => {
                    if read.next == from {
                        return None;
                    }
                    self.offsets.moved(group, topic, queue_id, from, &read);
                    from = read.next;
                    self.offsets.commit_in(progress, queue_id, from);
                }
            }
        }
        basket.is_undone = true;
        basket.rest += (lane.queue.max_offset() as i64).saturating_sub(from).max(0);
        None
    }
}

/// How many of a hundred pops look into the queues of a topic by their priority: those that do not let low priorities have a turn.
fn priority_percent(order: &CheckedPop) -> u32 {
    let is_priority =
        |topic: &Topic| topic.settings().attributes.get("message.type").is_some_and(|kind| kind == "PRIORITY");
    if order.is_order || !is_priority(&order.topic) {
        return 0;
    }
    let group = order.group.config.load();
    group.attributes.get("priority.factor").and_then(|text| text.parse().ok()).unwrap_or(100)
}
