//! The task that delivers delayed messages of all levels. It sleeps until the next head is due, and
//! without end when nothing waits.

mod aside;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use protocol::LogOffset;
use protocol::code::ResponseCode;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::tags;
use store::{LogSlice, RecordAt, RecordBatch, Store, StoreError, TagsCode, Unit};

use super::state::aside::{Aside, AsideKey};
use super::state::{Delay, SCAN_FROM, put};
use crate::blocking;
use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::schedule::{Schedule, Step};
use crate::state::needs::Needs;
use crate::state::topics::mapping::Mapping;
use crate::static_topic::late::{self, Destination, Led};
use crate::tasks::Stop;
use crate::unreadable::WaitsFor;
use crate::waiting::fetch;
use crate::waiting::hold::Lane;
use crate::wall_time::{self, Steps};
use crate::write::{append, light};
use aside::{NOT_THERE, UNREAD_MAX};

/// Messages delivered under one lock of the log.
const BATCH_MAX: usize = 64;
/// A batch is closed when it holds this much, whatever the size of one message.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How far the log may grow before the place to read from after a crash moves up, though nothing was delivered.
const SCAN_BYTES_MAX: u64 = 64 << 20;
/// After a refusal of the store (disk full, no room) delivery tries again so much later.
const RETRY: Duration = Duration::from_secs(1);
/// How long a stop waits for the device.
const LAST_FLUSH: Duration = Duration::from_secs(1);

/// A delivery that the journal is not told of before it is flushed.
struct UnflushedDelivery {
    end: LogOffset,
    done: Done,
}

/// What is done with a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// A level, up to its next offset.
    Level(usize, u64),
    /// A message that was aside.
    Aside(AsideKey),
}

/// The task.
struct Delivery {
    broker: Arc<Broker>,
    stop: Stop,
    schedule: Schedule,
    delivered: HashSet<u64>,
    /// Where the log ended at the start: whatever is in `delivered` was delivered before.
    loaded_end: LogOffset,
    unflushed: VecDeque<UnflushedDelivery>,
    scan_from: LogOffset,
    /// The next place to read from, once the log is flushed up to it. The end of the log at some moment, so a record begins there.
    scan_from_next: Option<LogOffset>,
    batch: RecordBatch,
    units: Vec<Unit>,
    /// The mappings by which messages of the batch were given their queues.
    mappings: Vec<Arc<Mapping>>,
    /// Leaders of static topics' queues that did not answer, and until when they are not asked again, by the clock's elapsed time.
    away: HashMap<String, Duration>,
    aside: Aside,
    steps: Steps,
}

/// What becomes of a message that is due.
enum Prepared {
    /// It is in the batch, for this queue.
    Added(Arc<Lane>),
    /// It goes nowhere.
    Dropped,
    /// Another broker leads its queue.
    Elsewhere(Led),
}

/// What a round has taken of a level.
#[derive(Default)]
struct Gathered {
    /// Queues that the batch touches.
    lanes: Vec<Arc<Lane>>,
    /// Offsets of the messages that the batch holds, in its order.
    pushed: Vec<u64>,
    /// Where the level goes on.
    next: u64,
    /// Some of them were delivered before the start.
    has_skipped: bool,
    /// Where the record of the message at `next` ends, if it is not confirmed.
    unconfirmed: Option<u64>,
    /// The message at `next` can neither be read nor set aside.
    is_unreadable: bool,
    /// The first one, if another broker leads its queue.
    to_send: Option<(LogSlice, LogOffset, Led)>,
}

impl Gathered {
    /// Notes that the message at `next` is in the batch, for this queue.
    fn add(&mut self, lane: Arc<Lane>) {
        self.pushed.push(self.next);
        if !self.lanes.iter().any(|known| Arc::ptr_eq(known, &lane)) {
            self.lanes.push(lane);
        }
    }
}

impl Delay {
    /// Where the oldest message lies whose delivery is not on the device yet. Called by a thread
    /// that may wait.
    pub(crate) fn needed_from(&self, store: &Store, needs: &Needs) -> Option<LogOffset> {
        let of_levels = self.in_use().iter().zip(0..).filter_map(|(next, level)| {
            needs.first_from(store, names::SCHEDULE_TOPIC, level, next.load(Ordering::Acquire))
        });
        // After the levels: what they have passed over was set aside before.
        of_levels.min().into_iter().chain(self.aside.first()).min()
    }
}

/// Reads what the task needs, unless it is there since the start of the broker.
pub(crate) async fn load(broker: &Arc<Broker>) -> Result<(), StoreError> {
    if broker.delay.is_loaded() {
        return Ok(());
    }
    blocking::beside(broker, |broker| broker.delay.look_through(&broker.store)).await
}

/// Delivers until it is told to end.
pub(crate) async fn deliver(broker: Arc<Broker>, stop: Stop) {
    let delay = Arc::clone(&broker.delay);
    let Some(loaded) = delay.loaded.lock().take() else { return };
    let delays_ms = (1..=delay.levels).map(|level| broker.delay_levels.delay_ms(level as i32));
    let next = delay.in_use().iter().map(|next| next.load(Ordering::Relaxed));
    let mut delivery = Delivery {
        schedule: Schedule::new(next.zip(delays_ms)),
        delivered: loaded.delivered,
        loaded_end: loaded.end,
        unflushed: VecDeque::new(),
        scan_from: loaded.scan_from,
        scan_from_next: None,
        batch: RecordBatch::new(),
        units: Vec::new(),
        mappings: Vec::new(),
        away: HashMap::new(),
        aside: Aside::new(&delay.aside, broker.clock.now().0),
        steps: Steps::new(&broker.clock),
        broker,
        stop,
    };
    delivery.count_aside();
    // Before the first delivery the journal must hold where to look for it.
    let position = put(&delivery.broker.store, SCAN_FROM, loaded.scan_from.0);
    delivery.broker.store.journal().written().reached(position).await;
    delivery.run(&delay).await;
}

impl Delivery {
    async fn run(&mut self, delay: &Delay) {
        while !self.stop.is_asked() {
            self.note_progress(delay);
            let now = self.broker.clock.now().0;
            if let Some(by) = self.steps.back() {
                self.aside.set_back(by, now);
            }
            if let Some(key) = self.aside.take_due(now) {
                // One, so that a device that takes its time to fail does not hold up the levels.
                self.try_again(key).await;
            }
            match self.schedule.step(now) {
                Step::Look(level) => self.look(level).await,
                Step::Deliver(level) => {
                    if !self.deliver(level).await {
                        self.wait(delay, Some(RETRY)).await;
                    }
                }
                Step::WaitUntil(time) => self.wait(delay, Some(wall_time::until(time, now))).await,
                Step::Idle => self.wait(delay, None).await,
            }
        }
        // Whoever goes on with the files may be Apache's broker, which knows what was delivered by these offsets alone.
        if let Some(last) = self.unflushed.back() {
            let (store, end) = (&self.broker.store, last.end.0);
            store.want_flush();
            tokio::select! {
                biased;
                () = store.flushed().reached(end) => {}
                () = sleep(Some(LAST_FLUSH)) => tracing::warn!("the device does not take the last deliveries; Apache's broker would repeat them"),
            }
        }
        self.note_progress(delay);
    }

    /// Waits for a new message, the time, or a flush that lets the journal know of more.
    async fn wait(&mut self, delay: &Delay, limit: Option<Duration>) {
        let store = &self.broker.store;
        let now = self.broker.clock.now().0;
        let until_next = self.aside.next_due().map(|due| wall_time::until(due, now));
        let limit = limit.into_iter().chain(until_next).min();
        let flushed_to = match (self.unflushed.front(), self.scan_from_next) {
            (Some(first), _) => first.end.0,
            // The place to read from stays, so nothing is to be noted.
            (None, _) if !self.delivered.is_empty() => u64::MAX,
            (None, Some(next)) => next.0,
            (None, None) => self.scan_from.0 + SCAN_BYTES_MAX,
        };
        tokio::select! {
            biased;
            () = self.stop.asked() => {}
            () = delay.bell.notified() => self.schedule.arrived(),
            () = store.flushed().reached(flushed_to) => {}
            () = sleep(limit) => {}
        }
    }

    /// Tells the journal what is flushed. Levels first: an older place to read from costs time, a newer one would cost messages.
    fn note_progress(&mut self, delay: &Delay) {
        let store = &self.broker.store;
        let flushed = store.flushed().get();
        while let Some(first) = self.unflushed.pop_front_if(|first| first.end.0 <= flushed) {
            match first.done {
                Done::Level(level, next) => {
                    delay.next[level].store(next, Ordering::Release);
                    put(store, level as u32 + 1, next);
                }
                Done::Aside(key) => {
                    delay.aside.forget(store, key);
                    self.broker.unreadable.are(WaitsFor::Delay, delay.aside.len());
                }
            }
        }
        // Deliveries that the start has found stay in front of it until they have been skipped.
        if !self.unflushed.is_empty() || !self.delivered.is_empty() {
            return;
        }
        match self.scan_from_next {
            Some(next) if next.0 <= flushed => {
                let before = self.scan_from;
                assert!(
                    next >= before,
                    "delayed messages are looked for from {next} on after a crash, and had come to {before}"
                );
                self.scan_from_next = None;
                self.scan_from = next;
                delay.scan_from.store(next.0, Ordering::Release);
                put(store, SCAN_FROM, next.0);
            }
            Some(_) => {}
            None => {
                let end = store.end();
                self.scan_from_next = (end.0 >= self.scan_from.0 + SCAN_BYTES_MAX).then_some(end);
            }
        }
    }

    fn lane(&self, level: usize) -> Option<Arc<Lane>> {
        let lane = self.broker.delay.topic.lane(&self.broker.store, level as u32);
        lane.inspect_err(|error| tracing::error!(level, %error, "queue of delayed messages cannot be opened")).ok()
    }

    /// Finds out when the head of a level is due.
    async fn look(&mut self, level: usize) {
        let Some(lane) = self.lane(level) else {
            return self.look_later(level);
        };
        let min = lane.queue.min_offset();
        if self.schedule.next(level) < min {
            tracing::warn!(
                level,
                from = self.schedule.next(level),
                to = min,
                "delayed messages were deleted before their time"
            );
            self.schedule.skip_to(level, min);
            let oldest = self.broker.store.min_offset().0;
            self.delivered.retain(|at| *at >= oldest);
        }
        let next = self.schedule.next(level);
        match fetch::units(&self.broker.store, &lane.queue, next, 1, &mut self.units).await {
            Ok(()) => {
                let head = match self.units.first().copied() {
                    Some(unit) => Some(self.due(level, &unit).await),
                    None => None,
                };
                self.schedule.saw(level, head, self.broker.clock.now().0);
            }
            Err(error) => {
                tracing::error!(level, %error, "queue of delayed messages cannot be read");
                self.look_later(level);
            }
        }
    }

    /// When a unit of a level is due. Where Apache's consume queues had extensions, its unit says where one lies; then its message's time of storing
    /// counts, as in Apache when an extension is gone. One that cannot be read now is due, and dealt with as any that cannot.
    async fn due(&self, level: usize, unit: &Unit) -> i64 {
        if !tags::is_extension_address(unit.tags) {
            return unit.tags;
        }
        match fetch::record(&self.broker.store, unit.at).await {
            Ok(RecordAt::Record(slice)) => view_of(slice.as_ref()).map_or(unit.tags, |view| {
                view.store_timestamp().saturating_add(self.broker.delay_levels.delay_ms(level as i32 + 1))
            }),
            Ok(RecordAt::Gone | RecordAt::Damaged) | Err(_) => unit.tags,
        }
    }

    fn look_later(&mut self, level: usize) {
        let now = self.broker.clock.now().0;
        self.schedule.saw(level, Some(now + RETRY.as_millis() as i64), now);
    }

    /// Delivers what is due at the head of a level. False when the store refused, and nothing can be done but wait.
    async fn deliver(&mut self, level: usize) -> bool {
        let Some(lane) = self.lane(level) else { return false };
        let store = Arc::clone(&self.broker.store);
        let first = self.schedule.next(level);
        if let Err(error) = fetch::units(&store, &lane.queue, first, BATCH_MAX, &mut self.units).await {
            tracing::error!(level, %error, "queue of delayed messages cannot be read");
            // Other levels may be readable.
            self.look_later(level);
            return true;
        }
        let units = std::mem::take(&mut self.units);
        let mut gathered = self.gather(level, first, &units).await;
        self.units = units;
        if let Some((slice, at, led)) = gathered.to_send.take() {
            return self.send(level, slice.as_ref(), at, &led).await;
        }
        if gathered.next == first {
            if let Some(end) = gathered.unconfirmed {
                // A device that stalls must not keep a broker from stopping.
                let _ = tokio::time::timeout(RETRY, store.confirmed().reached(end)).await;
            }
            return !gathered.is_unreadable;
        }
        let refused = if self.batch.is_empty() { None } else { self.broker.append(&mut self.batch).await.err() };
        self.mappings.clear();
        self.note_delivered(level, first, gathered, refused.as_ref());
        refused.is_none()
    }

    /// Takes those of a level's units from `first` on that are due, and puts their messages into the batch.
    async fn gather(&mut self, level: usize, first: u64, units: &[Unit]) -> Gathered {
        let store = Arc::clone(&self.broker.store);
        // After the read: a message that came meanwhile must not look as if it were due later than its level allows.
        let now = self.broker.clock.now().0;
        let confirmed = store.confirmed().get();
        let mut gathered = Gathered { next: first, ..Gathered::default() };
        let mut unread = 0;
        self.batch.clear();
        self.mappings.clear();
        for unit in units {
            if self.batch.bytes() >= BATCH_BYTES_MAX
                || unit.is_message() && !self.schedule.is_due(level, self.due(level, unit).await, now)
            {
                break;
            }
            if !unit.is_message() {
                gathered.next += 1;
                continue;
            }
            if unit.end().0 > confirmed {
                // Due before it is on the device: a power loss could leave the delivery and not the message.
                gathered.unconfirmed = Some(unit.end().0);
                break;
            }
            if self.delivered.contains(&unit.at.0) {
                gathered.has_skipped = true;
                gathered.next += 1;
                continue;
            }
            match fetch::record(&store, unit.at).await {
                Ok(RecordAt::Record(slice)) => match self.prepare(slice.as_ref(), unit.at) {
                    Prepared::Added(target) => gathered.add(target),
                    Prepared::Dropped => {}
                    Prepared::Elsewhere(led) => {
                        // By itself, when its turn comes: the level's progress is noted with it.
                        gathered.to_send = (gathered.next == first).then_some((slice, unit.at, led));
                        break;
                    }
                },
                Ok(RecordAt::Damaged) => {
                    tracing::error!(
                        level,
                        at = unit.at.0,
                        "delayed message is damaged; it is not delivered, and its level goes on"
                    );
                }
                Ok(RecordAt::Gone) if unit.at < store.min_offset() => {
                    tracing::warn!(level, at = unit.at.0, "delayed message is no longer in the log");
                }
                missing => {
                    // It is still to be delivered; what stands before and behind it is not kept waiting.
                    let why = missing.err().map_or_else(|| NOT_THERE.to_owned(), |error| error.to_string());
                    if !self.set_aside(level, gathered.next, unit.at, &why) {
                        gathered.is_unreadable = true;
                        break;
                    }
                    unread += 1;
                    if unread >= UNREAD_MAX {
                        // Each may have taken its time: other levels have their turn.
                        gathered.next += 1;
                        break;
                    }
                }
            }
            gathered.next += 1;
        }
        gathered
    }

    /// Lets a level go on behind what has landed of the batch, and wakes who waits for it.
    fn note_delivered(&mut self, level: usize, first: u64, gathered: Gathered, refused: Option<&Refusal>) {
        let Gathered { lanes, pushed, mut next, has_skipped, .. } = gathered;
        let landed = self.batch.landed();
        // Whatever this level had delivered before the start lies in front of the first offset that was not.
        let before = if has_skipped { self.loaded_end } else { self.broker.store.end() };
        let end = landed.last().map_or(before, |last| last.end);
        if let Some(refusal) = refused {
            tracing::warn!(level, remark = refusal.remark, "delayed messages wait for the store");
            let is_hopeless = refusal.code == ResponseCode::MessageIllegal;
            next = first_not_delivered(&pushed, landed.len(), is_hopeless, next);
        }
        if has_skipped {
            // Those that the level comes back to must still be known.
            for unit in self.units.iter().take((next - first) as usize) {
                self.delivered.remove(&unit.at.0);
            }
        }
        if !landed.is_empty() {
            self.broker.wake(lanes, self.batch.light_queues(), end);
        }
        self.schedule.skip_to(level, next);
        if next > first {
            self.unflushed.push_back(UnflushedDelivery { end, done: Done::Level(level, next) });
        }
    }

    /// Adds the message to the batch as it will be in its own queue.
    fn prepare(&mut self, scheduled: &[u8], at: LogOffset) -> Prepared {
        let Ok(Scanned::Record(view)) = record::scan(scheduled, false) else {
            tracing::error!(at = at.0, "delayed message cannot be read");
            return Prepared::Dropped;
        };
        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
        let queue_id = view.property(name::REAL_QID).and_then(|text| text.parse::<u32>().ok());
        let Some(queue_id) = queue_id.filter(|_| !topic.is_empty() && topic != names::TRANS_HALF_TOPIC) else {
            tracing::warn!(at = at.0, topic, "delayed message has no queue to go to");
            return Prepared::Dropped;
        };
        let queue_id = match late::destination(&self.broker, topic, queue_id) {
            Destination::Here(queue_id, mapping) => {
                self.mappings.extend(mapping);
                queue_id
            }
            Destination::Elsewhere(led) => return Prepared::Elsewhere(led),
        };
        match self.push(&view, at, topic, queue_id) {
            Some(lane) => Prepared::Added(lane),
            None => Prepared::Dropped,
        }
    }

    fn push(&mut self, view: &RecordView<'_>, at: LogOffset, topic: &str, queue_id: u32) -> Option<Arc<Lane>> {
        light::make_room(&self.broker.store, topic);
        // A topic that was deleted meanwhile gets its message all the same, as in Apache.
        let lane = match self.broker.topics.get(topic) {
            Some(topic) => topic.lane(&self.broker.store, queue_id),
            None => self.broker.store.queue(topic, queue_id).map(|queue| Arc::new(Lane::new(queue, None))),
        };
        let lane = lane.inspect_err(|error| tracing::error!(topic, queue_id, %error, "queue cannot be opened")).ok()?;
        // The properties stay as they are, DELAY and REAL_TOPIC included: consumers of Apache see them too.
        let mut draft = append::again(view);
        draft.topic = topic;
        draft.queue_id = queue_id as i32;
        draft.prepared_offset = !(at.0 as i64);
        let code = tags::code(view.property(name::TAGS).unwrap_or_default());
        light::push_again(&self.broker.store, &mut self.batch, &lane, TagsCode::Code(code), &draft);
        Some(lane)
    }

    /// Up to where the log has to be flushed before the journal knows of all that a level has delivered. None: it knows.
    fn unflushed_with(&self, level: usize) -> Option<u64> {
        let is_of = |one: &UnflushedDelivery| matches!(one.done, Done::Level(of, _) if of == level);
        let last = self.unflushed.iter().rposition(is_of)?;
        // They are noted in their order, which need not be that of their ends.
        self.unflushed.iter().take(last + 1).map(|one| one.end.0).max()
    }

    /// Sends a message to the broker that leads its queue; when that cannot take it now, it waits once more. False when nothing can be
    /// done but wait.
    ///
    /// The journal hears of it at once, which it may when nothing before it in the level is still to be flushed: only a crash between the
    /// other broker's answer and that makes the message come twice.
    async fn send(&mut self, level: usize, scheduled: &[u8], at: LogOffset, led: &Led) -> bool {
        let (broker, delay) = (Arc::clone(&self.broker), Arc::clone(&self.broker.delay));
        if let Some(end) = self.unflushed_with(level) {
            let _ = tokio::time::timeout(RETRY, broker.store.flushed().reached(end)).await;
            self.note_progress(&delay);
            if self.unflushed_with(level).is_some() {
                return true;
            }
        }
        let next = self.schedule.next(level) + 1;
        let Ok(Scanned::Record(view)) = record::scan(scheduled, false) else { return false };
        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
        self.away.retain(|_, until| *until > broker.clock.elapsed());
        let is_away = self.away.contains_key(&led.leader);
        let sent = match is_away {
            true => Err(Refusal::failed("it did not answer a moment ago")),
            false => late::send(&broker.forward, topic, &view, led).await,
        };
        let Err(refusal) = sent else {
            self.schedule.skip_to(level, next);
            delay.next[level].store(next, Ordering::Release);
            put(&broker.store, level as u32 + 1, next);
            return true;
        };
        if !is_away {
            let (leader, remark) = (&led.leader, &refusal.remark);
            tracing::warn!(topic, leader, remark, "delayed message not sent to its queue's leader");
        }
        let is_hopeless = refusal.code == ResponseCode::MessageIllegal;
        let lane = if is_hopeless {
            // Where it was sent to it is of more use than nowhere.
            let queue_id = view.property(name::REAL_QID).and_then(|text| text.parse().ok()).unwrap_or(0);
            self.push(&view, at, topic, queue_id)
        } else {
            // Once: each message that waits meanwhile would make it longer.
            let until = broker.clock.elapsed().saturating_add(late::AWAY);
            self.away.entry(led.leader.clone()).or_insert(until);
            let mut draft = append::again(&view);
            draft.prepared_offset = !(at.0 as i64);
            late::waiting(&broker, &mut draft, late::LATER).map(|(lane, tags)| {
                append::push(&mut self.batch, &lane, tags, &draft);
                lane
            })
        };
        let Some(lane) = lane else { return false };
        if let Err(refusal) = broker.append(&mut self.batch).await {
            tracing::warn!(level, remark = refusal.remark, "delayed messages wait for the store");
            return false;
        }
        let Some(end) = self.batch.landed().last().map(|landed| landed.end) else { return false };
        broker.wake(vec![lane], self.batch.light_queues(), end);
        self.schedule.skip_to(level, next);
        self.unflushed.push_back(UnflushedDelivery { end, done: Done::Level(level, next) });
        true
    }
}

fn view_of(record: &[u8]) -> Option<RecordView<'_>> {
    match record::scan(record, false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(Scanned::Blank { .. } | Scanned::Nothing) | Err(_) => None,
    }
}

async fn sleep(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

/// Where a level goes on when the store took only the first `landed` messages of a batch that holds those at the offsets `pushed`. One that
/// no log can ever take is passed over: it would hold up its level for ever.
fn first_not_delivered(pushed: &[u64], landed: usize, is_hopeless: bool, next: u64) -> u64 {
    pushed.get(landed).map_or(next, |offset| offset + u64::from(is_hopeless))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_goes_on_behind_what_landed() {
        // Offsets 5 and 7 were left out of the batch: they had been delivered before.
        let pushed = [4, 6, 8];
        assert_eq!(first_not_delivered(&pushed, 0, false, 9), 4);
        assert_eq!(first_not_delivered(&pushed, 2, false, 9), 8);
        assert_eq!(first_not_delivered(&pushed, 3, false, 9), 9);
        assert_eq!(first_not_delivered(&pushed, 1, true, 9), 7, "what can never land is passed over");
    }
}
