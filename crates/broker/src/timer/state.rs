//! The timer messages that wait: their files, counts, and what a start finds of them.

pub(super) mod aside;
pub(super) mod master;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use config::StoreSettings;
use hashbrown::{HashMap, HashSet};
use journal::Table;
use parking_lot::Mutex;
use protocol::properties::name;
use protocol::record::RecordView;
use protocol::{LogOffset, java, names};
use store::{Store, StoreError, TimerFiles, TimerMarks, TimerOptions, TimerUnit, timer_magic};
use tokio::sync::Notify;

use super::agenda;
use crate::state::topics::{Topic, Topics};
use crate::tables;
use crate::wall_time::STEP_MS;
use aside::Rows;
use master::{DONE, DoneByMaster};

/// The journal's key of the place to read from. But for [`DONE`], others of [`tables::TIMERS`] are longer.
pub(super) const SCAN_FROM: &[u8] = b"scan";
/// Slots that the longest roll window leaves free, as Apache's.
const BLANK_SLOTS: i64 = 60;
/// Topics of which the messages that wait are counted; further ones are not told apart.
const COUNTED_TOPICS_MAX: usize = 10_000;

/// Timer messages, as others see them.
pub(crate) struct Timers {
    pub(super) topic: Arc<Topic>,
    pub(super) bell: Arc<Notify>,
    /// Held across reads and writes of files, by threads that may wait.
    pub(super) files: Arc<Mutex<TimerFiles>>,
    pub(super) precision: i64,
    pub(super) window: i64,
    pub(super) flush_interval_ms: u64,
    /// Where the log is read from after a crash, as far as the journal knows.
    pub(super) scan_from: AtomicU64,
    /// What the device did not give.
    pub(super) aside: Rows,
    /// What a master had done that this broker has followed, as the journal knows it. Guards itself only.
    done_by_master: Mutex<Option<DoneByMaster>>,
    pub(crate) figures: Figures,
    /// How many messages wait for each topic. Guards nothing else.
    counts: Mutex<HashMap<Box<str>, Count>>,
    /// Taken by the task.
    pub(super) loaded: Mutex<Option<Loaded>>,
}

/// What requests 28 and 60 show. Relaxed: each number stands alone.
pub(crate) struct Figures {
    /// Messages that wait.
    pub(crate) pending: AtomicI64,
    /// The first slot that is not done with, in ms.
    pub(crate) read_time: AtomicI64,
    /// The first message of the queue that is not taken in.
    pub(crate) next: AtomicU64,
}

/// Messages of one topic that wait.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    count: i64,
    changed_at: i64,
    /// Since the start.
    taken_in: u64,
    dealt_with: u64,
}

impl Count {
    fn change(&mut self, change: i64, now: i64) {
        (self.count, self.changed_at) = (self.count + change, now);
        let gauge = if change > 0 { &mut self.taken_in } else { &mut self.dealt_with };
        *gauge += change.unsigned_abs();
    }
}

/// What is counted of the timer messages of one topic.
pub(crate) struct TopicTimersCounted {
    pub(crate) topic: Box<str>,
    pub(crate) waiting: i64,
    /// Since the start.
    pub(crate) taken_in: u64,
    pub(crate) dealt_with: u64,
}

/// What a start finds.
pub(super) struct Loaded {
    /// Where the log was read from.
    pub(super) scan_from: LogOffset,
    /// The first message of the queue that is not taken in.
    pub(super) next: u64,
    /// Where the queue ended.
    pub(super) max: u64,
    /// The first slot that is not done with, in ms.
    pub(super) read: i64,
    /// Log offsets of messages that were delivered, or stored again, though the check-point may not
    /// know it.
    pub(super) delivered: HashSet<u64>,
    /// The latest time that the files know of, as far as the clock has not come so far, in ms.
    pub(super) latest: i64,
    /// By how much the clock was ahead of what it shows now when the files were written, in ms.
    pub(super) ahead_by: i64,
}

impl Timers {
    /// Opens the files and reads the tail of the log.
    pub(crate) fn load(
        store: &Store,
        topics: &Topics,
        settings: &StoreSettings,
        now: i64,
    ) -> Result<Timers, StoreError> {
        let precision = settings.timer_precision_ms.max(1);
        let options = TimerOptions {
            root: store.options().root.clone(),
            log_file_bytes: settings.mapped_file_size_timer_log,
            precision_ms: precision,
            slots_ahead: store.options().timer_slots_ahead,
        };
        // Apache's units do not say when exactly a message is due.
        let is_due = |unit: &TimerUnit, view: &RecordView<'_>| {
            unit.due == 0 || out_ms(view).is_some_and(|out| unit.due == due_ms(view, out, precision, unit.written))
        };
        let is_whole = |unit: &TimerUnit, view: &RecordView<'_>| {
            view.topic() == names::TIMER_TOPIC
                && is_due(unit, view)
                && unit.topic_hash == java::string_hash(view.property(name::REAL_TOPIC).unwrap_or_default())
        };
        let mut files = store.open_timers(&options, is_whole)?;
        let topic = topics.timer();
        let (mut scan_from, mut done_by_master) = (None, None);
        let aside = Rows::default();
        store.journal().load(tables::TIMERS, |key, value| match (key, value.try_into()) {
            (SCAN_FROM, Ok(value)) => scan_from = Some(u64::from_be_bytes(value)),
            (DONE, _) => done_by_master = DoneByMaster::of_row(value),
            _ => aside.load(key, value),
        });
        let next = next_to_take_in(store, &topic, &files);
        let marks = files.marks();
        if u64::try_from(marks.queue_offset).is_ok_and(|noted| noted > next) {
            // A loss of power has taken messages that were taken in. Others get their places, and another start must not pass those over.
            let checkpoint = files.checkpoint(marks.read_time, next, now);
            checkpoint.write()?;
            files.checkpointed(&checkpoint);
        }
        let figures = Figures { pending: AtomicI64::new(0), read_time: AtomicI64::new(0), next: AtomicU64::new(next) };
        let timers = Timers {
            bell: Arc::clone(topics.timer_bell()),
            topic,
            files: Arc::new(Mutex::new(files)),
            precision,
            window: roll_window(settings.timer_roll_window_slot, store.options().timer_slots_ahead)
                .saturating_mul(precision),
            flush_interval_ms: settings.timer_flush_interval_ms,
            // Without the entry nothing was ever delivered by us.
            scan_from: AtomicU64::new(scan_from.unwrap_or(store.end().0)),
            aside,
            done_by_master: Mutex::new(done_by_master),
            figures,
            counts: Mutex::default(),
            loaded: Mutex::default(),
        };
        timers.look_through(store, topics, now)?;
        // The wheel counts no unit that was found damaged when the files were opened.
        let pending = timers.files.lock().pending().saturating_add(timers.aside.len() as u64);
        timers.figures.pending.store(i64::try_from(pending).unwrap_or(i64::MAX), Ordering::Relaxed);
        Ok(timers)
    }

    /// Whether a task that starts has what it needs. It takes it, so the next one needs another [`Timers::look_through`].
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.lock().is_some()
    }

    /// Reads the files and the tail of the log for the task.
    pub(super) fn look_through(&self, store: &Store, topics: &Topics, now: i64) -> Result<(), StoreError> {
        let end = store.end();
        // A log that is shorter than it was has lost deliveries.
        let scan_from = self.scan_from.load(Ordering::Acquire).clamp(store.min_offset().0.min(end.0), end.0);
        self.scan_from.store(scan_from, Ordering::Release);
        let scan_from = LogOffset(scan_from);
        let mut delivered = HashSet::new();
        let mut visit = |_: LogOffset, view: &RecordView<'_>| {
            let prepared = view.prepared_offset();
            if prepared < 0 {
                delivered.insert(!prepared as u64);
            }
        };
        if let Err(error) = store.scan(scan_from, &mut visit) {
            // Deliveries found twice are found once; reading everything costs time, believing too
            // little costs double messages.
            tracing::warn!(%error, "the journal's place in the log is no record; looking for deliveries in the whole log");
            store.scan(store.min_offset(), &mut visit)?;
        }
        let (marks, Waiting { by_hash, first, latest }) = {
            let files = self.files.lock();
            (files.marks(), waiting(&files, &delivered, now)?)
        };
        // What is delivered, or in memory, is so by the clock, and up to two seconds ahead of it.
        let is_ahead = latest > now.saturating_add(agenda::AHEAD_MS).saturating_add(self.precision);
        let ahead_by = if is_ahead { latest.max(marks.version[1]).max(marks.read_time).saturating_sub(now) } else { 0 };
        // Slots before the first that holds something are passed over, as far as their time has come: what is still to be sent may be due sooner.
        let read = marks.read_time.max(first.map_or(now, |first| first.min(now)));
        let max = store.existing_queue(self.topic.name(), 0).map_or(0, |queue| queue.max_offset());
        self.figures.read_time.store(read, Ordering::Relaxed);
        if !by_hash.is_empty() {
            let mut counts = self.counts.lock();
            for topic in topics.all().iter().filter(|topic| by_hash.contains_key(&java::string_hash(topic.name()))) {
                counts.entry(topic.name().into()).or_insert(Count { changed_at: now, ..Count::default() });
            }
        }
        self.count_anew(&by_hash);
        let next = self.figures.next.load(Ordering::Relaxed);
        *self.loaded.lock() = Some(Loaded { scan_from, next, max, read, delivered, latest, ahead_by });
        Ok(())
    }

    /// The topic where messages wait.
    pub(crate) fn topic(&self) -> &Arc<Topic> {
        &self.topic
    }

    /// The check-point as it is now (60).
    pub(crate) fn marks(&self) -> TimerMarks {
        self.files.lock().marks()
    }

    /// How many messages the queue holds that are not taken in.
    pub(crate) fn behind(&self, store: &Store) -> u64 {
        let max = store.existing_queue(names::TIMER_TOPIC, 0).map_or(0, |queue| queue.max_offset());
        max.saturating_sub(self.figures.next.load(Ordering::Relaxed))
    }

    /// Messages that wait, by topic: count and time of the last change.
    pub(crate) fn counts(&self) -> Vec<(Box<str>, i64, i64)> {
        let counts = self.counts.lock();
        counts.iter().map(|(topic, count)| (topic.clone(), count.count, count.changed_at)).collect()
    }

    /// The same for who counts what came and went himself.
    pub(crate) fn counted(&self) -> Vec<TopicTimersCounted> {
        let counts = self.counts.lock();
        let counted = counts.iter().map(|(topic, count)| TopicTimersCounted {
            topic: topic.clone(),
            waiting: count.count.max(0),
            taken_in: count.taken_in,
            dealt_with: count.dealt_with,
        });
        counted.collect()
    }

    pub(super) fn count(&self, topic: &str, change: i64, now: i64) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(topic) {
            count.change(change, now);
        } else if counts.len() < COUNTED_TOPICS_MAX {
            let mut count = Count::default();
            count.change(change, now);
            counts.insert(topic.into(), count);
        }
    }

    /// Counts the messages that wait by what the files say, by the hash of their topic, and what is
    /// aside.
    pub(super) fn count_anew(&self, waiting: &HashMap<i32, i64>) {
        let pending = waiting.values().sum::<i64>().saturating_add(self.aside.len() as i64);
        self.figures.pending.store(pending, Ordering::Relaxed);
        for (topic, count) in self.counts.lock().iter_mut() {
            count.count = waiting.get(&java::string_hash(topic)).copied().unwrap_or(0);
        }
    }

    /// Whether so many messages are due in a slot that one more is refused, as Apache: from `most`
    /// on by chance, from twice as many always.
    pub(super) fn is_crowded(&self, slot: i64, most: i64, chance: impl FnOnce() -> u32) -> Option<u64> {
        if most >= i64::from(i32::MAX) {
            return None;
        }
        // Whoever holds the files may be waiting for the device; a producer does not.
        let count = self.files.try_lock()?.count_of(slot);
        let most = u64::try_from(most).unwrap_or(0);
        let is_crowded = count > most
            && (count >= most.saturating_mul(2)
                || f64::from(chance()) <= 1000.0 * (count - most) as f64 / (most as f64 + 0.1));
        is_crowded.then_some(count)
    }
}

/// How many slots ahead a message may wait before it is stored once more. A setting that the wheel
/// has no room for means as far as it has, as in Apache.
fn roll_window(slots: i64, slots_ahead: i64) -> i64 {
    let most = slots_ahead - BLANK_SLOTS;
    if (2..=most).contains(&slots) { slots } else { most }
}

/// The check-point may be older than the units: messages that have one are taken in. Beyond the
/// queue there is nothing.
fn next_to_take_in(store: &Store, topic: &Topic, files: &TimerFiles) -> u64 {
    let noted = u64::try_from(files.marks().queue_offset).unwrap_or(0);
    let behind_last = files.last().and_then(|unit| {
        // Damaged or not, it is taken in.
        let next = |view: &RecordView<'_>| (view.topic() == topic.name()).then(|| view.queue_offset() + 1);
        store.about_record_cold(unit.at, next).ok()??
    });
    let max = store.existing_queue(topic.name(), 0).map_or(0, |queue| queue.max_offset());
    // In a copy of an open store the check-point may be newer than the units: messages of which it lacks some are taken in again.
    let noted = if store.was_copied() && files.has_less_than_noted() { 0 } else { noted };
    noted.max(behind_last.unwrap_or(0)).min(max)
}

/// What the files say of the messages that wait.
struct Waiting {
    /// How many there are, by the hash of their topic's name.
    by_hash: HashMap<i32, i64>,
    /// The first slot that holds one, in ms.
    first: Option<i64>,
    /// The latest time that the files know of.
    latest: i64,
}

fn waiting(files: &TimerFiles, delivered: &HashSet<u64>, now: i64) -> Result<Waiting, StoreError> {
    let (mut by_hash, mut first, mut latest) = (HashMap::new(), None, 0);
    files.for_each(&mut |unit| {
        latest = latest.max(latest_of(unit, delivered, now).unwrap_or(0));
        first = Some(first.map_or(unit.slot, |first: i64| first.min(unit.slot)));
        if unit.magic & timer_magic::DELETE == 0 {
            *by_hash.entry(unit.topic_hash).or_default() += 1;
        }
    })?;
    Ok(Waiting { by_hash, first, latest })
}

/// The latest time that the files know of, by which a start sees that the clock was ahead: of units
/// that were written, and of those that were delivered.
fn latest_of(unit: &TimerUnit, delivered: &HashSet<u64>, now: i64) -> Option<i64> {
    if delivered.contains(&unit.at.0) && unit.magic & timer_magic::DELETE == 0 {
        return Some(unit.slot);
    }
    is_of_later(unit, now).then_some(unit.written)
}

/// Whether a unit was written by a clock that was ahead of the one of now. One whose message waits
/// for long says its slot there.
pub(super) fn is_of_later(unit: &TimerUnit, now: i64) -> bool {
    unit.written > now.saturating_add(STEP_MS) && unit.written != unit.slot
}

impl Table for Timers {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        // The place to read from first: read behind the rows, it could lie behind what became of
        // one that is still there.
        let scan_from = self.scan_from.load(Ordering::Acquire);
        self.aside.for_each(f);
        let done_by_master = *self.done_by_master.lock();
        if let Some(done) = done_by_master {
            f(DONE, &done.to_row());
        }
        f(SCAN_FROM, &scan_from.to_be_bytes());
    }
}

/// The slot that a record of the timer topic is due behind; none if it says no time.
pub(super) fn out_ms(view: &RecordView<'_>) -> Option<i64> {
    view.property(name::TIMER_OUT_MS)?.parse().ok().filter(|out| *out >= 0)
}

/// Whether a record takes another one back, and which: `UNIQ_KEY`, with or without `topic+` before
/// it.
pub(super) fn deletes<'a>(view: &RecordView<'a>) -> Option<&'a str> {
    view.property(name::TIMER_DEL_UNIQKEY)
}

/// When exactly a stored message is due, in ms: when its producer said, as far as that is in the
/// slot behind `out`.
pub(super) fn due_ms(view: &RecordView<'_>, out: i64, precision: i64, now: i64) -> i64 {
    let number = |name| view.property(name).and_then(|text| text.parse::<i64>().ok());
    // The log's times never go back: after the clock stood ahead, they are ahead of it.
    let stored = view.store_timestamp().min(now);
    let due = number(name::TIMER_DELAY_SEC)
        .map(|seconds| stored.saturating_add(seconds.saturating_mul(1000)))
        .or_else(|| number(name::TIMER_DELAY_MS).map(|ms| stored.saturating_add(ms)))
        .or_else(|| number(name::TIMER_DELIVER_MS))
        .unwrap_or(i64::MAX);
    due.clamp(out.saturating_add(1), out.saturating_add(precision))
}

#[cfg(test)]
mod tests {
    use store::TIMER_SLOTS_AHEAD;

    use super::*;

    #[test]
    fn a_roll_window_that_the_wheel_has_no_room_for_is_apaches_longest() {
        for slots in [2, 172_800, 604_740] {
            assert_eq!(roll_window(slots, TIMER_SLOTS_AHEAD), slots);
        }
        for slots in [i64::MIN, 0, 1, 604_741, i64::MAX] {
            assert_eq!(roll_window(slots, TIMER_SLOTS_AHEAD), 604_740);
        }
    }
}
