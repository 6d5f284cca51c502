//! The task: takes in what is new in the queue, reads the slots whose time comes near, delivers what is due.
//!
//! It sleeps until the queue grows, something is due or something is flushed. Files are read and written on threads that may wait. What the
//! device did not give is set aside (`duty/aside.rs`).

mod aside;
mod back;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashSet;
use protocol::code::ResponseCode;
use protocol::properties::name;
use protocol::record::{self, PROPERTIES_MAX, RecordDraft, RecordView, Scanned};
use protocol::{LogOffset, java, names, tags};
use store::{LogSlice, RecordAt, RecordBatch, Store, StoreError, TagsCode, TimerFiles, TimerUnit, Unit, timer_magic};
use tokio::task::JoinHandle;

use super::agenda::{Agenda, AgendaEntry, Step, TimerAction};
use super::state::aside::Aside;
use super::state::master::DoneByMaster;
use super::state::{SCAN_FROM, Timers, deletes, due_ms, out_ms};
use crate::broker::Broker;
use crate::state::needs::Needs;
use crate::state::topics::mapping::Mapping;
use crate::static_topic::late::{self, Destination};
use crate::tasks::Stop;
use crate::unreadable::Tries;
use crate::waiting::fetch;
use crate::waiting::hold::Lane;
use crate::wall_time::{self, Steps};
use crate::write::{append, light, send_properties};
use crate::{blocking, tables};

/// Messages taken in with one write of the files.
const TAKE_IN_MAX: usize = 512;
/// Messages delivered under one lock of the log.
const BATCH_MAX: usize = 256;
/// A batch is closed when it holds this much, whatever the size of one message.
const BATCH_BYTES_MAX: usize = 4 << 20;
/// No further slot is read while so many messages are in memory: 3 MB.
const LOADED_MAX: usize = 1 << 16;
/// How far the log may grow before the place to read from after a crash moves up.
const SCAN_BYTES_MAX: u64 = 64 << 20;
/// Slots of which is known what was taken back, while one that cannot be read holds the first of them open.
const TAKEN_BACK_MAX: usize = 1024;
/// Messages of one look that the device may refuse: each may take its time.
const UNREAD_MAX: usize = 8;
/// After a failure of the store or of the files, so much later again.
const RETRY: Duration = Duration::from_secs(1);

/// Something that is done with as soon as the log is flushed up to `end`.
struct UnflushedTimers {
    end: LogOffset,
    done: Done,
}

enum Done {
    /// So many messages of a slot.
    Slot(i64, usize),
    /// A message that was aside, by its place in the log.
    Aside(u64),
}

/// A place in the log to read from after a crash: every delivery before it is of a slot up to `slot`, and of a message before `next` in the queue.
#[derive(Clone, Copy)]
struct ScanFrom {
    at: LogOffset,
    slot: i64,
    next: u64,
}

struct Task {
    broker: Arc<Broker>,
    stop: Stop,
    timers: Arc<Timers>,
    agenda: Agenda,
    /// The first message of the queue that is not taken in.
    next: u64,
    /// When the queue is taken in up to here, everything that was stored before the time is.
    goal: Option<(i64, u64)>,
    /// The slot that was read last in the files, or is the next to be.
    next_slot: Option<i64>,
    /// What the master had done that this broker has followed, if it has.
    done_before: DoneByMaster,
    /// What was taken back, by slot.
    taken_back: BTreeMap<i64, HashSet<Box<str>>>,
    /// What the device did not give.
    aside: Aside,
    /// Up to where the device has to have the journal before anything says that what is aside was passed, or is no check-point of a master that
    /// was followed.
    rows_put: u64,
    /// What it did not give when too many were aside, by slot and place in the log.
    held: Tries<(i64, u64)>,
    delivered: HashSet<u64>,
    /// When `read` and `next` have come this far, nothing that was delivered before the start is met again.
    started_at: (i64, u64),
    /// Where the log ended at the start: whatever is in `delivered` was delivered before.
    started_end: LogOffset,
    steps: Steps,
    /// By how much the clock was set back, in ms, as far as the files do not know it.
    back_by: i64,
    unflushed: VecDeque<UnflushedTimers>,
    /// The latest slot of which a message was dealt with.
    last_slot: i64,
    /// What the check-point says: the first slot that is not done with, the first message that is not taken in.
    noted: (i64, u64),
    noted_at: Duration,
    /// A check-point on its way to the device, and what it says.
    noting: Option<(JoinHandle<bool>, (i64, u64))>,
    scan_from: LogOffset,
    scan_from_next: Option<ScanFrom>,
    batch: RecordBatch,
    /// The mappings of static topics by which messages of the batch were given their queues.
    mappings: Vec<Arc<Mapping>>,
    properties: Vec<u8>,
}

impl Timers {
    /// Where the oldest message lies that waits. Called by a thread that may wait.
    pub(crate) fn needed_from(&self, store: &Store, needs: &Needs) -> Option<LogOffset> {
        // Before the files: what is taken in meanwhile is found in both places, and not in neither.
        let next = self.figures.next.load(Ordering::Relaxed);
        let oldest = match self.files.lock().needed_from() {
            Ok(oldest) => oldest,
            Err(error) => {
                tracing::error!(%error, "cannot tell which timer messages wait; nothing is removed from the log");
                return Some(store.min_offset());
            }
        };
        let first_new = needs.first_from(store, names::TIMER_TOPIC, 0, next);
        oldest.into_iter().chain(first_new).chain(self.aside.first()).min()
    }
}

/// Reads what the task needs, unless it is there since the start of the broker.
pub(crate) async fn load(broker: &Arc<Broker>) -> Result<(), StoreError> {
    let Some(timers) = broker.timers.clone().filter(|timers| !timers.is_loaded()) else { return Ok(()) };
    blocking::beside(broker, move |broker| timers.look_through(&broker.store, &broker.topics, broker.clock.now().0))
        .await
}

/// Takes in and delivers until it is told to end.
pub(crate) async fn deliver(broker: Arc<Broker>, stop: Stop) {
    let Some(timers) = broker.timers.clone() else { return };
    let Some(loaded) = timers.loaded.lock().take() else { return };
    let marks = timers.marks();
    let next_slot = timers.files.lock().next_slot(loaded.read);
    let (done_before, rows_put) = DoneByMaster::then(&timers, &broker.store, &marks);
    let mut task = Task {
        agenda: Agenda::new(timers.precision, timers.window, loaded.read, LOADED_MAX),
        next: loaded.next,
        goal: None,
        next_slot,
        done_before,
        taken_back: BTreeMap::new(),
        aside: Aside::default(),
        rows_put,
        held: Tries::default(),
        delivered: loaded.delivered,
        started_at: (broker.clock.now().0.max(loaded.read).max(loaded.latest), loaded.max),
        started_end: broker.store.end(),
        steps: Steps::new(&broker.clock),
        back_by: loaded.ahead_by,
        unflushed: VecDeque::new(),
        last_slot: i64::MIN,
        noted: (marks.read_time, u64::try_from(marks.queue_offset).unwrap_or(0)),
        noted_at: broker.clock.elapsed(),
        noting: None,
        scan_from: loaded.scan_from,
        scan_from_next: None,
        batch: RecordBatch::new(),
        mappings: Vec::new(),
        properties: Vec::new(),
        timers,
        broker,
        stop,
    };
    // Before the first delivery the journal must hold where to look for it.
    let journal = task.broker.store.journal();
    let position = journal.put(tables::TIMERS, SCAN_FROM, &loaded.scan_from.0.to_be_bytes());
    journal.written().reached(position).await;
    task.begin_aside();
    task.run().await;
}

impl Task {
    async fn run(&mut self) {
        let timers = Arc::clone(&self.timers);
        // A slot of which something was delivered is delivered to its end: the files cannot say that half of it is.
        while !self.stop.is_asked() || self.is_within_slot() {
            let is_stopping = self.stop.is_asked();
            if is_stopping {
                // Else the next slot would have begun before this one is flushed, and so on.
                self.agenda.leave_behind(self.last_slot);
            }
            if !self.goes_with_the_clock().await {
                if is_stopping {
                    // The next start does it.
                    return;
                }
                continue;
            }
            let next_slot = self.next_slot.filter(|_| !is_stopping);
            self.note_flushed();
            self.note_progress(false).await;
            let settings = self.broker.store_settings.load_full();
            let now = self.broker.clock.now().0;
            let is_behind = self.is_behind(now) && !settings.timer_stop_enqueue;
            if settings.timer_stop_enqueue {
                // What is left in the queue has no time yet, and nothing waits for it.
                self.agenda.caught_up(now);
            }
            match self.agenda.step(now, next_slot, is_behind) {
                Step::TakeIn => self.take_in(now).await,
                Step::Load(from, to) => self.load(from, to).await,
                Step::Deliver if settings.timer_stop_dequeue => self.wait(Some(RETRY)).await,
                Step::Deliver => {
                    if !self.deliver(now).await {
                        sleep(Some(RETRY)).await;
                    } else if is_behind {
                        // Neither side starves the other.
                        self.take_in(now).await;
                    }
                }
                Step::WaitUntil(_) | Step::Idle
                    if !is_stopping
                        && !settings.timer_stop_dequeue
                        && let Some(at) = self.aside.take_due(now) =>
                {
                    // One, so that a device that takes its time to fail does not hold up the others.
                    self.try_again(at, now).await;
                }
                Step::WaitUntil(time) => {
                    let left = wall_time::until(time, now).max(Duration::from_millis(1));
                    self.wait(Some(left)).await;
                }
                Step::Idle => self.wait(None).await,
            }
            if !is_stopping {
                let now = self.broker.clock.now().0;
                self.agenda.advance(now, self.next_slot);
            }
            timers.figures.read_time.store(self.agenda.read(), Ordering::Relaxed);
            timers.figures.next.store(self.next, Ordering::Relaxed);
        }
        self.agenda.pass(self.last_slot);
        self.note_progress(true).await;
    }

    /// Whether the queue holds what is not taken in; notes how far taking in has come in time.
    fn is_behind(&mut self, now: i64) -> bool {
        let max = match self.timers.topic.lane(&self.broker.store, 0) {
            Ok(lane) => lane.queue.max_offset(),
            Err(error) => {
                tracing::error!(%error, "queue of timer messages cannot be opened");
                return false;
            }
        };
        if let Some((time, goal)) = self.goal
            && self.next >= goal
        {
            self.agenda.caught_up(time);
            self.goal = None;
        }
        if self.next >= max {
            self.agenda.caught_up(now);
            return false;
        }
        self.goal.get_or_insert((now, max));
        true
    }

    fn is_within_slot(&self) -> bool {
        let held = |slot: i64| self.held.keys().filter(|(of, _)| *of == slot).count();
        !self.unflushed.is_empty() || self.agenda.has_open_up_to(self.last_slot, held)
    }

    /// Whether nothing is met any more that was delivered before the start.
    fn is_past_start(&self) -> bool {
        self.agenda.read() > self.started_at.0 && self.next >= self.started_at.1
    }

    /// Waits for a new message, the time, or a flush that lets the check-point move.
    async fn wait(&mut self, limit: Option<Duration>) {
        let store = &self.broker.store;
        let flushed_to = match (self.unflushed.front(), self.scan_from_next) {
            (Some(first), _) => first.end.0,
            (None, Some(next)) if store.flushed().get() < next.at.0 => next.at.0,
            // Though no timer message comes: what a start has to read grows with the log.
            (None, None) if self.delivered.is_empty() => self.scan_from.0 + SCAN_BYTES_MAX,
            (None, _) => u64::MAX,
        };
        let now = self.broker.clock.now().0;
        let until_next = self.aside.next_due().map(|due| wall_time::until(due, now));
        let limit = limit.into_iter().chain(until_next).min();
        let interval = Duration::from_millis(self.timers.flush_interval_ms);
        let limit = if self.is_dirty() { Some(limit.map_or(interval, |limit| limit.min(interval))) } else { limit };
        let is_stopping = self.stop.is_asked();
        tokio::select! {
            biased;
            () = self.stop.asked(), if !is_stopping => {}
            () = self.timers.bell.notified() => {}
            () = store.flushed().reached(flushed_to) => {}
            () = sleep(limit) => {}
        }
    }

    /// What is flushed is dealt with for good.
    fn note_flushed(&mut self) {
        let flushed = self.broker.store.flushed().get();
        while let Some(first) = self.unflushed.pop_front_if(|first| first.end.0 <= flushed) {
            match first.done {
                Done::Slot(slot, count) => self.agenda.done(slot, count),
                Done::Aside(at) => self.forget_aside(at),
            }
        }
        let read = self.agenda.read();
        self.taken_back = self.taken_back.split_off(&read);
        if self.held.len() > 0 && self.taken_back.len() > TAKEN_BACK_MAX {
            // The first slot stays open for long: what was taken back in those behind it that are done with concerns nobody.
            let current = self.last_slot;
            self.taken_back.retain(|slot, _| *slot >= current || self.agenda.is_open(*slot));
        }
        if !self.delivered.is_empty() && self.is_past_start() {
            self.delivered = HashSet::new();
        }
    }

    /// Whether the check-point is older than it should be.
    fn is_dirty(&self) -> bool {
        self.noted.1 != self.next || self.noted.0 <= self.last_slot
    }

    /// Writes the check-point, and then moves the place to read from after a crash.
    async fn note_progress(&mut self, is_last: bool) {
        let store = Arc::clone(&self.broker.store);
        if let Some((noting, state)) = self.noting.take_if(|(noting, _)| is_last || noting.is_finished())
            && noting.await.unwrap_or(false)
        {
            self.noted = state;
        }
        let now = self.broker.clock.elapsed();
        let state = (self.agenda.read(), self.next);
        let is_time = now.saturating_sub(self.noted_at) >= Duration::from_millis(self.timers.flush_interval_ms);
        if self.noting.is_none() && state != self.noted && (is_last || is_time && self.is_dirty()) {
            self.noted_at = now;
            let (files, time) = (Arc::clone(&self.timers.files), self.broker.clock.now().0);
            let write = move || {
                let checkpoint = files.lock().checkpoint(state.0, state.1, time);
                let written = checkpoint.write();
                if let Err(error) = &written {
                    tracing::error!(%error, "the check-point of timer messages cannot be written, trying again");
                } else {
                    files.lock().checkpointed(&checkpoint);
                }
                written.is_ok()
            };
            // What is aside is in the journal only.
            let noting = if store.journal().synced().get() >= self.rows_put {
                blocking::spawn(write)
            } else {
                let (store, rows_put) = (Arc::clone(&store), self.rows_put);
                store.journal().want_sync();
                tokio::spawn(async move {
                    let synced = store.journal().synced().reached(rows_put);
                    tokio::time::timeout(RETRY, synced).await.is_ok() && blocking::spawn(write).await.unwrap_or(false)
                })
            };
            self.noting = Some((noting, state));
        }
        if is_last
            && let Some((noting, state)) = self.noting.take()
            && noting.await.unwrap_or(false)
        {
            self.noted = state;
        }
        if self.done_before.is_over(self.noted.1) {
            self.timers.forget_master(store.journal());
        }
        let end = store.end();
        // Deliveries that the start has found stay behind it until they have been skipped.
        if self.scan_from_next.is_none() && self.delivered.is_empty() && end.0 >= self.scan_from.0 + SCAN_BYTES_MAX {
            self.scan_from_next = Some(ScanFrom { at: end, slot: self.last_slot, next: self.next });
        }
        let flushed = store.flushed().get();
        let is_noted = |next: &mut ScanFrom| {
            // The journal has heard of all messages before it that were aside.
            let is_known = self.unflushed.front().is_none_or(|first| first.end > next.at);
            self.noted.0 > next.slot && self.noted.1 >= next.next && flushed >= next.at.0 && is_known
        };
        if let Some(next) = self.scan_from_next.take_if(is_noted) {
            let (before, at) = (self.scan_from, next.at);
            assert!(at >= before, "timer messages are looked for from {at} on after a crash, and had come to {before}");
            self.scan_from = next.at;
            self.timers.scan_from.store(next.at.0, Ordering::Release);
            store.journal().put(tables::TIMERS, SCAN_FROM, &next.at.0.to_be_bytes());
        }
    }

    /// Runs something on the files, on a thread that may wait. What fails is said, and tried again by whoever asked.
    async fn with_files<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut TimerFiles) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let files = Arc::clone(&self.timers.files);
        let done = blocking::spawn(move || act(&mut files.lock())).await;
        match done {
            Ok(Ok(done)) => Some(done),
            Ok(Err(error)) => {
                tracing::error!(%error, "the files of timer messages cannot be used, trying again");
                None
            }
            // The task cannot be cancelled here, and a panic in it would be ours.
            Err(_) => None,
        }
    }

    /// Takes in a batch from the queue.
    async fn take_in(&mut self, now: i64) {
        let store = Arc::clone(&self.broker.store);
        let Ok(lane) = self.timers.topic.lane(&store, 0) else { return sleep(Some(RETRY)).await };
        let min = lane.queue.min_offset();
        if self.next < min {
            tracing::warn!(from = self.next, to = min, "timer messages were deleted before they were taken in");
            self.next = min;
        }
        let mut read: Vec<Unit> = Vec::new();
        if let Err(error) = fetch::units(&store, &lane.queue, self.next, TAKE_IN_MAX, &mut read).await {
            tracing::error!(%error, "queue of timer messages cannot be read");
            return sleep(Some(RETRY)).await;
        }
        let confirmed = store.confirmed().get();
        if let Some(first) = read.first().filter(|first| first.end().0 > confirmed) {
            // Not on the device yet: a power loss could leave the delivery and not the message.
            let _ = tokio::time::timeout(RETRY, store.confirmed().reached(first.end().0)).await;
            return;
        }
        // With the offset in the queue and the topic of each.
        let mut taken: Vec<(u64, TimerUnit, Arc<str>)> = Vec::with_capacity(read.len());
        let mut offset = self.next;
        let mut has_failed = false;
        let mut unread = 0;
        for unit in read.iter().take_while(|unit| unit.end().0 <= confirmed) {
            if !unit.is_message() {
                offset += 1;
                continue;
            }
            let was_delivered = self.delivered.contains(&unit.at.0);
            if was_delivered || self.timers.aside.has(unit.at.0) {
                // A crash was between that and the check-point, which may pass it only when the device has what says so.
                has_failed = !self.has_all_rows().await || was_delivered && !self.has_start_flushed().await;
                if has_failed {
                    break;
                }
                offset += 1;
                continue;
            }
            match fetch::record(&store, unit.at).await {
                Ok(RecordAt::Record(slice)) => {
                    if let Some(view) = view_of(&slice)
                        && !self.done_before.has(offset, &view)
                        && let Some(unit) = self.unit_of(&view, unit, now)
                    {
                        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
                        // Neighbours are often of one topic.
                        let before = taken.last().map(|(_, _, before)| before).filter(|before| ***before == *topic);
                        let topic = before.map_or_else(|| Arc::from(topic), Arc::clone);
                        taken.push((offset, unit, topic));
                    }
                }
                Ok(RecordAt::Gone) if unit.at < store.min_offset() => {
                    tracing::warn!(at = unit.at.0, "timer message is no longer in the log");
                }
                Ok(RecordAt::Damaged) => {
                    tracing::error!(
                        at = unit.at.0,
                        "timer message is damaged; it is not taken in, and those behind it are"
                    );
                }
                // What stands before it is taken in first, and then others have their turn.
                _ if !taken.is_empty() || unread == UNREAD_MAX => break,
                missing => {
                    let error = missing.err().map(|error| error.to_string());
                    if !self.set_aside_in_queue(offset, unit.at, error, now).await {
                        has_failed = true;
                        break;
                    }
                    unread += 1;
                }
            }
            offset += 1;
        }
        let units: Vec<TimerUnit> = taken.iter().map(|(_, unit, _)| *unit).collect();
        let read_time = self.agenda.read();
        let loaded_to = self.agenda.loaded_to();
        let added = if units.is_empty() {
            Some((0, self.next_slot))
        } else {
            let act = move |files: &mut TimerFiles| {
                let added = files.append(&units, read_time)?;
                Ok((added, files.next_slot(loaded_to)))
            };
            self.with_files(act).await
        };
        let Some((added, next_slot)) = added else { return sleep(Some(RETRY)).await };
        self.next_slot = next_slot;
        let mut messages = 0;
        for (_, unit, topic) in &taken[..added] {
            if unit.magic & timer_magic::DELETE == 0 {
                self.timers.count(topic, 1, now);
            }
            let entry = entry_of(unit, self.timers.precision);
            messages += i64::from(entry.kind != TimerAction::Delete);
            self.agenda.added(entry);
        }
        // A slot of two weeks ago that is not done with yet holds up those that need its place.
        has_failed |= added < taken.len();
        self.next = taken.get(added).map_or(offset, |(offset, ..)| *offset);
        self.timers.figures.pending.fetch_add(messages, Ordering::Relaxed);
        self.broker.stats.timers_taken_in(added);
        if has_failed {
            sleep(Some(RETRY)).await;
        }
    }

    /// Waits until what the start found in the log is on the device. False when that takes its time, and the caller has to come again.
    async fn has_start_flushed(&self) -> bool {
        let flushed = self.broker.store.flushed().reached(self.started_end.0);
        tokio::time::timeout(RETRY, flushed).await.is_ok()
    }

    /// What the files keep of a message. None for what is no timer message.
    fn unit_of(&self, view: &RecordView<'_>, unit: &Unit, now: i64) -> Option<TimerUnit> {
        let Some(out) = out_ms(view) else {
            tracing::warn!(at = unit.at.0, "a message of the timer topic names no time; it is passed over");
            return None;
        };
        let place = self.agenda.place(now, out);
        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
        let is_delete = deletes(view).is_some();
        let mut magic = timer_magic::DEFAULT;
        magic |= if place.is_rolled { timer_magic::ROLL } else { 0 };
        magic |= if is_delete { timer_magic::DELETE } else { 0 };
        Some(TimerUnit {
            slot: place.slot,
            due: due_ms(view, out, self.timers.precision, now),
            written: now,
            at: unit.at,
            size: unit.size,
            magic,
            topic_hash: java::string_hash(topic),
        })
    }

    /// Reads slots whose time comes near.
    async fn load(&mut self, from: i64, to: i64) {
        let act = move |files: &mut TimerFiles| {
            let mut units = Vec::new();
            let to = files.read(from, to, LOADED_MAX, &mut units)?;
            Ok((to, units, files.next_slot(to)))
        };
        let Some((to, units, next_slot)) = self.with_files(act).await else { return sleep(Some(RETRY)).await };
        let precision = self.timers.precision;
        self.agenda.loaded(to, units.iter().map(|unit| entry_of(unit, precision)));
        self.next_slot = next_slot;
    }

    /// Deals with what is due. False when the store refused, and nothing can be done but wait.
    async fn deliver(&mut self, now: i64) -> bool {
        let store = Arc::clone(&self.broker.store);
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        // The messages that the batch holds, in its order.
        let mut pushed: Vec<AgendaEntry> = Vec::new();
        let mut unread = 0;
        self.batch.clear();
        self.mappings.clear();
        while self.batch.len() < BATCH_MAX
            && self.batch.bytes() < BATCH_BYTES_MAX
            && unread < UNREAD_MAX
            && let Some(entry) = self.agenda.next_due(now)
        {
            self.last_slot = self.last_slot.max(entry.slot);
            if entry.kind == TimerAction::Roll {
                self.goal = None;
            }
            if self.delivered.remove(&entry.at) {
                self.finish(entry);
                continue;
            }
            if self.is_aside(&entry) {
                continue;
            }
            let slice = match fetch::record(&store, LogOffset(entry.at)).await {
                Ok(RecordAt::Record(slice)) => {
                    self.is_readable(&entry);
                    slice
                }
                Ok(RecordAt::Damaged) => {
                    self.is_readable(&entry);
                    tracing::error!(
                        at = entry.at,
                        due = entry.due,
                        is_recall = entry.kind == TimerAction::Delete,
                        "timer message is damaged; it is not delivered, and those behind it are"
                    );
                    self.finish(entry);
                    continue;
                }
                Ok(RecordAt::Gone) if entry.at < store.min_offset().0 => {
                    self.is_readable(&entry);
                    tracing::warn!(at = entry.at, "timer message is no longer in the log");
                    self.finish(entry);
                    continue;
                }
                missing => {
                    self.set_aside(entry, missing.err().map(|error| error.to_string()), now);
                    unread += 1;
                    continue;
                }
            };
            match self.deal_with(&entry, &slice, now) {
                Some(lane) => {
                    pushed.push(entry);
                    if !lanes.iter().any(|known| Arc::ptr_eq(known, &lane)) {
                        lanes.push(lane);
                    }
                }
                None => self.finish(entry),
            }
        }
        let refused = if self.batch.is_empty() { None } else { self.broker.append(&mut self.batch).await.err() };
        self.mappings.clear();
        let landed = self.batch.landed().len();
        for (entry, landed) in pushed.iter().zip(self.batch.landed()) {
            self.unflushed.push_back(UnflushedTimers { end: landed.end, done: Done::Slot(entry.slot, 1) });
        }
        self.leave(&pushed[..landed]);
        let mut rest = pushed[landed..].iter();
        if let Some(refusal) = &refused {
            tracing::warn!(remark = refusal.remark, "timer messages wait for the store");
            if refusal.code == ResponseCode::MessageIllegal
                && let Some(hopeless) = rest.next()
            {
                // What no log can ever take would hold up the others for ever.
                self.finish(*hopeless);
            }
        }
        for entry in rest {
            self.agenda.postpone(*entry, entry.due);
        }
        if let Some(last) = self.batch.landed().last() {
            self.broker.wake(lanes, self.batch.light_queues(), last.end);
        }
        refused.is_none()
    }

    fn is_readable(&mut self, entry: &AgendaEntry) {
        if self.held.is_done(&(entry.slot, entry.at)) {
            tracing::info!(at = entry.at, "timer message can be read again");
            self.count_unreadable();
        }
    }

    /// Nothing of this message is to be written.
    fn finish(&mut self, entry: AgendaEntry) {
        let end = self.broker.store.end();
        self.leave(&[entry]);
        match self.unflushed.back_mut() {
            Some(UnflushedTimers { end: last, done: Done::Slot(slot, count) })
                if *last == end && *slot == entry.slot =>
            {
                *count += 1;
            }
            // In the order of the others, which note ends of the log too.
            _ => self.unflushed.push_back(UnflushedTimers { end, done: Done::Slot(entry.slot, 1) }),
        }
    }

    /// These wait no longer.
    fn leave(&self, entries: &[AgendaEntry]) {
        let messages = entries.iter().filter(|entry| entry.kind != TimerAction::Delete).count();
        self.timers.figures.pending.fetch_sub(messages as i64, Ordering::Relaxed);
        self.broker.stats.timers_dealt_with(entries.len());
    }

    /// Adds to the batch what becomes of a message: itself, in its own queue or once more in the timer topic. None if nothing does.
    fn deal_with(&mut self, entry: &AgendaEntry, slice: &LogSlice, now: i64) -> Option<Arc<Lane>> {
        let Some(view) = view_of(slice).filter(|view| view.topic() == names::TIMER_TOPIC) else {
            tracing::error!(at = entry.at, "what waits at this place is no timer message; it is passed over");
            return None;
        };
        let topic = view.property(name::REAL_TOPIC).unwrap_or_default();
        if entry.kind == TimerAction::Delete {
            let key = deletes(&view).unwrap_or_default();
            self.taken_back.entry(entry.slot).or_default().insert(key.into());
            self.keep_recall(entry.slot, key);
            return None;
        }
        if deletes(&view).is_none() {
            self.timers.count(topic, -1, now);
        }
        if entry.kind == TimerAction::Deliver && self.is_taken_back(entry.slot, topic, &view) {
            return None;
        }
        let mut draft = append::again(&view);
        draft.prepared_offset = !(entry.at as i64);
        let lane = if entry.kind == TimerAction::Roll {
            self.timers.topic.lane(&self.broker.store, 0)
        } else {
            let queue_id = view.property(name::REAL_QID).and_then(|text| text.parse::<u32>().ok());
            let Some(queue_id) = queue_id.filter(|_| !topic.is_empty() && topic != names::TRANS_HALF_TOPIC) else {
                tracing::warn!(at = entry.at, topic, "timer message has no queue to go to");
                return None;
            };
            light::make_room(&self.broker.store, topic);
            let queue_id = match late::destination(&self.broker, topic, queue_id) {
                Destination::Here(queue_id, mapping) => {
                    self.mappings.extend(mapping);
                    queue_id
                }
                Destination::Elsewhere(_) => return self.hand_on(&mut draft, &view, entry, now),
            };
            draft.topic = topic;
            draft.queue_id = queue_id as i32;
            // A topic that was deleted meanwhile gets its message all the same, as in Apache.
            match self.broker.topics.get(topic) {
                Some(topic) => topic.lane(&self.broker.store, queue_id),
                None => self.broker.store.queue(topic, queue_id).map(|queue| Arc::new(Lane::new(queue, None))),
            }
        };
        let lane = lane.inspect_err(|error| tracing::error!(topic, %error, "queue cannot be opened")).ok()?;
        write_properties(&mut self.properties, &view, entry, now);
        if self.properties.len() <= PROPERTIES_MAX {
            draft.properties = &self.properties;
        }
        let code = tags::code(view.property(name::TAGS).unwrap_or_default());
        light::push_again(&self.broker.store, &mut self.batch, &lane, TagsCode::Code(code), &draft);
        Some(lane)
    }

    /// Adds a message whose queue another broker leads to those that are sent there.
    fn hand_on(
        &mut self,
        draft: &mut RecordDraft<'_>,
        view: &RecordView<'_>,
        entry: &AgendaEntry,
        now: i64,
    ) -> Option<Arc<Lane>> {
        let (lane, tags) = late::waiting(&self.broker, draft, late::SOON)?;
        write_properties(&mut self.properties, view, entry, now);
        let properties = if self.properties.len() <= PROPERTIES_MAX { &self.properties[..] } else { draft.properties };
        append::push(&mut self.batch, &lane, tags, &RecordDraft { properties, ..*draft });
        Some(lane)
    }

    fn is_taken_back(&self, slot: i64, topic: &str, view: &RecordView<'_>) -> bool {
        let Some(keys) = self.taken_back.get(&slot) else { return false };
        let Some(uniq_key) = view.property(name::UNIQ_KEY) else { return false };
        keys.contains(uniq_key) || keys.contains(format!("{topic}+{uniq_key}").as_str())
    }
}

/// The properties of a message that is delivered, or stored once more, as Apache's: `REAL_TOPIC` and `REAL_QID` stay.
fn write_properties(out: &mut Vec<u8>, view: &RecordView<'_>, entry: &AgendaEntry, now: i64) {
    let is_rolled = entry.kind == TimerAction::Roll;
    out.clear();
    send_properties::copy_except(out, &view.properties(), |key| match key {
        name::TIMER_ENQUEUE_MS | name::TIMER_DEQUEUE_MS => true,
        name::TIMER_ROLL_TIMES => is_rolled,
        _ => false,
    });
    send_properties::put(out, name::TIMER_ENQUEUE_MS, &entry.taken_in.to_string());
    if is_rolled {
        let before = view.property(name::TIMER_ROLL_TIMES).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
        send_properties::put(out, name::TIMER_ROLL_TIMES, &before.saturating_add(1).to_string());
    }
    send_properties::put(out, name::TIMER_DEQUEUE_MS, &now.to_string());
}

/// A unit in memory. Apache's units do not say when exactly a message is due: at the end of its slot, as there.
fn entry_of(unit: &TimerUnit, precision: i64) -> AgendaEntry {
    let kind = if unit.magic & timer_magic::ROLL != 0 {
        TimerAction::Roll
    } else if unit.magic & timer_magic::DELETE != 0 {
        TimerAction::Delete
    } else {
        TimerAction::Deliver
    };
    let due = match kind {
        TimerAction::Delete | TimerAction::Roll => unit.slot,
        TimerAction::Deliver if unit.due == 0 => unit.slot + precision,
        TimerAction::Deliver => unit.due.max(unit.slot + 1),
    };
    AgendaEntry { due, at: unit.at.0, kind, slot: unit.slot, taken_in: unit.written }
}

fn view_of(slice: &LogSlice) -> Option<RecordView<'_>> {
    match record::scan(slice.as_ref(), false) {
        Ok(Scanned::Record(view)) => Some(view),
        Ok(_) | Err(_) => None,
    }
}

async fn sleep(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}
