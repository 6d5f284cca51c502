//! Delayed messages: the 18 levels of `messageDelayLevel`, in Apache's form on disk.
//!
//! A delayed message lies in queue `level - 1` of `SCHEDULE_TOPIC_XXXX`; its unit carries the delivery time where others carry a tag
//! code. One task delivers for all levels. It sleeps until the next head is due, and without end when nothing waits.
//!
//! Exactly once over kill -9: a delivered record names the scheduled one in its prepared offset, as `!log_offset`, a negative number that
//! nobody else uses. The journal holds, for each level, the next offset to deliver, written only when what was delivered before is flushed,
//! and a place in the log behind which every delivery lies that the journal does not know of. A start reads the log from there and
//! skips what it finds delivered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashSet;
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::names;
use protocol::properties::name;
use protocol::record::{self, RecordView, Scanned};
use protocol::tags;
use store::journal::Table;
use store::{RecordBatch, Store, StoreError, TagsCode, Unit};
use tokio::sync::Notify;

use crate::append;
use crate::broker::Broker;
use crate::fetch;
use crate::hold::Lane;
use crate::schedule::{Schedule, Step};
use crate::tables;
use crate::topics::{Topic, Topics};

/// Messages delivered under one lock of the log.
const BATCH_MAX: usize = 64;
/// A batch is closed when it holds this much, whatever the size of one message.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// How far the log may grow before the place to read from after a crash moves up, though nothing was delivered.
const SCAN_BYTES_MAX: u64 = 64 << 20;
/// After a refusal of the store (disk full, no room) delivery tries again so much later.
const RETRY: Duration = Duration::from_secs(1);
/// The journal's key of the place to read from; levels are far smaller.
const SCAN_FROM: u32 = u32::MAX;

/// The delivery of delayed messages, as others see it.
pub(crate) struct Delay {
    topic: Arc<Topic>,
    bell: Arc<Notify>,
    /// By level - 1: the next offset to deliver, as far as the journal knows.
    next: Vec<AtomicU64>,
    /// Where the log is read from after a crash, as far as the journal knows.
    scan_from: AtomicU64,
    /// Taken by the task.
    loaded: Mutex<Option<Loaded>>,
    is_stopping: AtomicBool,
    has_stopped: Notify,
}

/// What a start finds.
struct Loaded {
    scan_from: LogOffset,
    /// Where the log ended.
    end: LogOffset,
    /// Log offsets of scheduled messages that were delivered and that the journal does not know of.
    delivered: HashSet<u64>,
}

impl Delay {
    /// Reads the journal and the tail of the log.
    pub(crate) fn load(store: &Store, topics: &Topics, levels: usize) -> Result<Delay, StoreError> {
        let topic = topics.schedule();
        let next: Vec<AtomicU64> = (0..levels).map(|_| AtomicU64::new(0)).collect();
        let mut scan_from = None;
        store.journal().load(tables::DELAYS, |key, value| {
            let (Ok(key), Ok(value)) =
                (key.try_into().map(u32::from_be_bytes), value.try_into().map(u64::from_be_bytes))
            else {
                return;
            };
            if key == SCAN_FROM {
                scan_from = Some(value);
            } else if let Some(next) = (key as usize).checked_sub(1).and_then(|index| next.get(index)) {
                next.store(value, Ordering::Relaxed);
            }
        });
        let end = store.end();
        // Without the entry nothing was ever delivered by us; a log that is shorter than it was has lost those deliveries.
        let scan_from = LogOffset(scan_from.unwrap_or(end.0).clamp(store.min_offset().0.min(end.0), end.0));
        let mut delivered = HashSet::new();
        let mut visit = |_: LogOffset, view: &RecordView<'_>| {
            let prepared = view.prepared_offset();
            if prepared < 0 {
                delivered.insert(!prepared as u64);
            }
        };
        if let Err(error) = store.scan(scan_from, &mut visit) {
            // Deliveries found twice are found once; reading everything costs time, believing too little costs double messages.
            tracing::warn!(%error, "the journal's place in the log is no record; looking for deliveries in the whole log");
            store.scan(store.min_offset(), &mut visit)?;
        }
        Ok(Delay {
            topic,
            bell: Arc::clone(topics.schedule_bell()),
            next,
            scan_from: AtomicU64::new(scan_from.0),
            loaded: Mutex::new(Some(Loaded { scan_from, end, delivered })),
            is_stopping: AtomicBool::new(false),
            has_stopped: Notify::new(),
        })
    }

    /// The topic where messages wait.
    pub(crate) fn topic(&self) -> &Arc<Topic> {
        &self.topic
    }

    /// The next offset to deliver, by level, for those that have one: `delayOffset.json`.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = (i32, i64)> {
        self.next
            .iter()
            .zip(1..)
            .map(|(next, level)| (level, next.load(Ordering::Relaxed) as i64))
            .filter(|(_, next)| *next > 0)
    }

    /// Takes over another broker's progress. Only before the task runs.
    pub(crate) fn import(&self, store: &Store, level: i32, offset: i64) {
        if let Some(next) = usize::try_from(level - 1).ok().and_then(|index| self.next.get(index)) {
            next.store(offset.max(0) as u64, Ordering::Relaxed);
            put(store, level as u32, offset.max(0) as u64);
        }
    }

    /// Lets the task finish its batch, and waits for it.
    pub(crate) async fn stop(&self) {
        let stopped = self.has_stopped.notified();
        if !self.is_stopping.swap(true, Ordering::AcqRel) {
            self.bell.notify_one();
            stopped.await;
        }
    }
}

impl Table for Delay {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        // The place to read from first: read after the levels, it could lie behind a delivery that they do not include.
        let scan_from = self.scan_from.load(Ordering::Acquire);
        for (next, level) in self.next.iter().zip(1u32..) {
            f(&level.to_be_bytes(), &next.load(Ordering::Acquire).to_be_bytes());
        }
        f(&SCAN_FROM.to_be_bytes(), &scan_from.to_be_bytes());
    }
}

fn put(store: &Store, key: u32, value: u64) -> u64 {
    store.journal().put(tables::DELAYS, &key.to_be_bytes(), &value.to_be_bytes())
}

/// A delivery that the journal is not told of before it is flushed.
struct Unflushed {
    end: LogOffset,
    level: usize,
    next: u64,
}

/// The task.
struct Delivery {
    broker: Arc<Broker>,
    schedule: Schedule,
    delivered: HashSet<u64>,
    loaded: (LogOffset, LogOffset),
    unflushed: VecDeque<Unflushed>,
    scan_from: LogOffset,
    /// The next place to read from, once the log is flushed up to it. The end of the log at some moment, so a record begins there.
    scan_from_next: Option<LogOffset>,
    batch: RecordBatch,
    units: Vec<Unit>,
}

/// Delivers until the broker stops.
pub(crate) async fn deliver(broker: Arc<Broker>) {
    let delay = Arc::clone(&broker.delay);
    let Some(loaded) = delay.loaded.lock().take() else { return };
    let delays_ms = (1..=delay.next.len()).map(|level| broker.delay_levels.delay_ms(level as i32));
    let next = delay.next.iter().map(|next| next.load(Ordering::Relaxed));
    let mut delivery = Delivery {
        schedule: Schedule::new(next.zip(delays_ms)),
        delivered: loaded.delivered,
        loaded: (loaded.scan_from, loaded.end),
        unflushed: VecDeque::new(),
        scan_from: loaded.scan_from,
        scan_from_next: None,
        batch: RecordBatch::new(),
        units: Vec::new(),
        broker,
    };
    // Before the first delivery the journal must hold where to look for it.
    let position = put(&delivery.broker.store, SCAN_FROM, loaded.scan_from.0);
    delivery.broker.store.journal().written().reached(position).await;
    delivery.run(&delay).await;
    delay.has_stopped.notify_waiters();
}

impl Delivery {
    async fn run(&mut self, delay: &Delay) {
        while !delay.is_stopping.load(Ordering::Acquire) {
            self.note_progress(delay);
            let now = self.broker.clock.now().0;
            match self.schedule.step(now) {
                Step::Look(level) => self.look(level, now).await,
                Step::Deliver(level) => {
                    if !self.deliver(level, now).await {
                        self.wait(delay, Some(RETRY)).await;
                    }
                }
                Step::WaitUntil(time) => {
                    let ms = u64::try_from(time - now).unwrap_or(0);
                    self.wait(delay, Some(Duration::from_millis(ms))).await;
                }
                Step::Idle => self.wait(delay, None).await,
            }
        }
        self.note_progress(delay);
    }

    /// Waits for a new message, the time, or a flush that lets the journal know of more.
    async fn wait(&mut self, delay: &Delay, limit: Option<Duration>) {
        let store = &self.broker.store;
        let flushed_to = match (self.unflushed.front(), self.scan_from_next) {
            (Some(first), _) => first.end.0,
            (None, Some(next)) => next.0,
            (None, None) => self.scan_from.0 + SCAN_BYTES_MAX,
        };
        tokio::select! {
            () = delay.bell.notified() => self.schedule.arrived(),
            () = store.flushed().reached(flushed_to) => {}
            () = sleep(limit) => {}
        }
    }

    /// Tells the journal what is flushed. Levels first: an older place to read from costs time, a newer one would cost messages.
    fn note_progress(&mut self, delay: &Delay) {
        let store = &self.broker.store;
        let flushed = store.flushed().get();
        while let Some(first) = self.unflushed.front().filter(|first| first.end.0 <= flushed) {
            delay.next[first.level].store(first.next, Ordering::Release);
            put(store, first.level as u32 + 1, first.next);
            self.unflushed.pop_front();
        }
        // Deliveries that the start has found stay in front of it until they have been skipped.
        if !self.unflushed.is_empty() || !self.delivered.is_empty() {
            return;
        }
        match self.scan_from_next {
            Some(next) if next.0 <= flushed => {
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
    async fn look(&mut self, level: usize, now: i64) {
        let Some(lane) = self.lane(level) else {
            return self.schedule.saw(level, None, now);
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
        }
        let head =
            match fetch::units(&self.broker.store, &lane.queue, self.schedule.next(level), 1, &mut self.units).await {
                Ok(()) => self.units.first().map(|unit| unit.tags),
                Err(error) => {
                    tracing::error!(level, %error, "queue of delayed messages cannot be read");
                    Some(now + RETRY.as_millis() as i64)
                }
            };
        self.schedule.saw(level, head, now);
    }

    /// Delivers what is due at the head of a level. False when the store refused.
    async fn deliver(&mut self, level: usize, now: i64) -> bool {
        let Some(lane) = self.lane(level) else { return false };
        let first = self.schedule.next(level);
        if let Err(error) = fetch::units(&self.broker.store, &lane.queue, first, BATCH_MAX, &mut self.units).await {
            tracing::error!(level, %error, "queue of delayed messages cannot be read");
            return false;
        }
        let units = std::mem::take(&mut self.units);
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        let mut next = first;
        let mut has_skipped = false;
        self.batch.clear();
        for unit in &units {
            if self.batch.bytes() >= BATCH_BYTES_MAX || !self.schedule.is_due(level, unit.tags, now) {
                break;
            }
            next += 1;
            if self.delivered.remove(&unit.at.0) {
                has_skipped = true;
                continue;
            }
            let Some(slice) = fetch::record(&self.broker.store, unit.at).await else {
                tracing::warn!(level, at = unit.at.0, "delayed message is no longer in the log");
                continue;
            };
            if let Some(target) = self.prepare(slice.as_ref(), unit.at)
                && !lanes.iter().any(|known| Arc::ptr_eq(known, &target))
            {
                lanes.push(target);
            }
        }
        self.units = units;
        // Whatever this level had delivered before the start lies in front of the first offset that was not.
        let mut end = if has_skipped { self.loaded.1 } else { self.broker.store.end() };
        if !self.batch.is_empty() {
            if let Err(refusal) = self.broker.append(&mut self.batch).await {
                tracing::warn!(level, remark = refusal.remark, "delayed messages wait for the store");
                // Some may have landed: find them as after a crash, by what they name.
                let landed: Vec<LogOffset> = self.batch.landed().iter().map(|landed| landed.at).collect();
                for at in landed {
                    self.note_landed(at).await;
                }
                return false;
            }
            if let Some(last) = self.batch.landed().last() {
                end = last.end;
            }
            self.wake(lanes, end);
        }
        self.schedule.skip_to(level, next);
        self.unflushed.push_back(Unflushed { end, level, next });
        true
    }

    async fn note_landed(&mut self, at: LogOffset) {
        if let Some(slice) = fetch::record(&self.broker.store, at).await
            && let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), false)
            && view.prepared_offset() < 0
        {
            self.delivered.insert(!view.prepared_offset() as u64);
        }
    }

    /// Adds the message to the batch as it will be in its own queue.
    fn prepare(&mut self, scheduled: &[u8], at: LogOffset) -> Option<Arc<Lane>> {
        let Ok(Scanned::Record(view)) = record::scan(scheduled, false) else {
            tracing::error!(at = at.0, "delayed message cannot be read");
            return None;
        };
        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
        let queue_id = view.property(name::REAL_QID).and_then(|text| text.parse::<u32>().ok());
        let Some(queue_id) = queue_id.filter(|_| !topic.is_empty() && topic != names::TRANS_HALF_TOPIC) else {
            tracing::warn!(at = at.0, topic, "delayed message has no queue to go to");
            return None;
        };
        // A topic that was deleted meanwhile gets its message all the same, as in Apache.
        let lane = match self.broker.topics.get(topic) {
            Some(topic) => topic.lane(&self.broker.store, queue_id),
            None => self.broker.store.queue(topic, queue_id).map(|queue| Arc::new(Lane::new(queue, None))),
        };
        let lane = lane.inspect_err(|error| tracing::error!(topic, queue_id, %error, "queue cannot be opened")).ok()?;
        // The properties stay as they are, DELAY and REAL_TOPIC included: consumers of Apache see them too.
        let mut draft = view.to_draft();
        draft.topic = topic;
        draft.queue_id = queue_id as i32;
        draft.prepared_offset = !(at.0 as i64);
        let code = tags::code(view.property(name::TAGS).unwrap_or_default());
        append::push(&mut self.batch, &lane, TagsCode::Code(code), &draft);
        Some(lane)
    }

    fn wake(&self, lanes: Vec<Arc<Lane>>, end: LogOffset) {
        if !self.broker.is_sync_flush() {
            self.broker.hold.arrived(lanes.iter());
            return;
        }
        let (store, hold) = (Arc::clone(&self.broker.store), Arc::clone(&self.broker.hold));
        tokio::spawn(async move {
            store.confirmed().reached(end.0).await;
            hold.arrived(lanes.iter());
        });
    }
}

async fn sleep(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
