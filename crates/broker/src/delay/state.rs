//! How far delayed messages are delivered, and what a start finds of that.

pub(super) mod aside;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashSet;
use journal::Table;
use parking_lot::Mutex;
use protocol::LogOffset;
use protocol::delay::LEVELS_MAX;
use protocol::names;
use protocol::record::RecordView;
use store::{Store, StoreError};
use tokio::sync::Notify;

use crate::state::topics::{Topic, Topics};
use crate::tables;
use aside::Rows;

/// The journal's key of the place to read from; levels are far smaller.
pub(super) const SCAN_FROM: u32 = u32::MAX;

/// The delivery of delayed messages, as others see it.
pub(crate) struct Delay {
    pub(super) topic: Arc<Topic>,
    pub(super) bell: Arc<Notify>,
    /// By level - 1: the next offset to deliver, as far as the journal knows. For all levels that a
    /// table can have: one that the table does not have now keeps its place for when it is there
    /// again.
    pub(super) next: Vec<AtomicU64>,
    /// How many levels `messageDelayLevel` has.
    pub(super) levels: usize,
    /// Where the log is read from after a crash, as far as the journal knows.
    pub(super) scan_from: AtomicU64,
    /// What the device did not give.
    pub(super) aside: Rows,
    /// Taken by the task.
    pub(super) loaded: Mutex<Option<Loaded>>,
}

/// What a start finds.
pub(super) struct Loaded {
    /// Where the log was read from.
    pub(super) scan_from: LogOffset,
    /// Where the log ended.
    pub(super) end: LogOffset,
    /// Log offsets of scheduled messages that were delivered, though the journal says that they are
    /// still to be.
    pub(super) delivered: HashSet<u64>,
}

impl Delay {
    /// Reads the journal, and the tail of the log for the task.
    pub(crate) fn load(store: &Store, topics: &Topics, levels: usize) -> Result<Delay, StoreError> {
        let topic = topics.schedule();
        let next: Vec<AtomicU64> = (0..LEVELS_MAX).map(|_| AtomicU64::new(0)).collect();
        let mut scan_from = None;
        let aside = Rows::default();
        store.journal().load(tables::DELAYS, |key, value| {
            if aside.load(key, value) {
                return;
            }
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
        let delay = Delay {
            topic,
            bell: Arc::clone(topics.schedule_bell()),
            next,
            levels,
            // Without the entry nothing was ever delivered by us.
            scan_from: AtomicU64::new(scan_from.unwrap_or(store.end().0)),
            aside,
            loaded: Mutex::default(),
        };
        delay.look_through(store)?;
        Ok(delay)
    }

    /// Whether a task that starts has what it needs. It takes it, so the next one needs another [`Delay::look_through`].
    pub(super) fn is_loaded(&self) -> bool {
        self.loaded.lock().is_some()
    }

    /// Reads the tail of the log for the task.
    pub(super) fn look_through(&self, store: &Store) -> Result<(), StoreError> {
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
        let set_aside = self.aside.places();
        let in_use = self.in_use();
        delivered.retain(|at| set_aside.contains(at) || is_still_to_deliver(store, LogOffset(*at), in_use));
        *self.loaded.lock() = Some(Loaded { scan_from, end, delivered });
        Ok(())
    }

    /// The topic where messages wait.
    pub(crate) fn topic(&self) -> &Arc<Topic> {
        &self.topic
    }

    /// How many levels there are.
    pub(crate) fn levels(&self) -> usize {
        self.levels
    }

    /// The next offset to deliver of each of them.
    pub(super) fn in_use(&self) -> &[AtomicU64] {
        &self.next[..self.levels]
    }

    /// The next offset to deliver, by level, for those that have one: `delayOffset.json`. Also of
    /// levels that the table does not have now, as Apache keeps them.
    pub(crate) fn offsets(&self) -> impl Iterator<Item = (i32, i64)> {
        self.next
            .iter()
            .zip(1..)
            .map(|(next, level)| (level, next.load(Ordering::Relaxed) as i64))
            .filter(|(_, next)| *next > 0)
    }

    /// Takes over a row of a master. Only while the task does not run. False if it is not understood.
    pub(crate) fn take_row(&self, store: &Store, key: &[u8], value: Option<&[u8]>) -> bool {
        if let Some(is_taken) = self.aside.take_row(store, key, value) {
            return is_taken;
        }
        let row = value.map(|value| value.try_into().map(u64::from_be_bytes));
        let (Ok(key), Ok(value)) = (key.try_into().map(u32::from_be_bytes), row.transpose()) else { return false };
        let level = (key as usize).checked_sub(1).and_then(|index| self.next.get(index));
        match (level, value) {
            (_, Some(place)) if key == SCAN_FROM => {
                self.scan_from.store(place, Ordering::Release);
                put(store, key, place);
            }
            (Some(next), Some(offset)) => {
                next.store(offset, Ordering::Release);
                put(store, key, offset);
            }
            (Some(next), None) => {
                next.store(0, Ordering::Release);
                store.journal().delete(tables::DELAYS, &key.to_be_bytes());
            }
            (None, _) => return key == SCAN_FROM,
        }
        // What was found in the log was found by rows before this one: a task that starts looks again.
        *self.loaded.lock() = None;
        true
    }

    /// Takes levels that have come further than their queue back to its end: messages that come now get the numbers of those that are gone. Only
    /// before the task runs. Says how many levels.
    pub(crate) fn cut(&self, store: &Store) -> usize {
        let mut cuts = 0;
        for (next, level) in self.next.iter().zip(0u32..) {
            let from = next.load(Ordering::Acquire);
            // What is not there is empty, and begins at 0.
            let end = || store.existing_queue(names::SCHEDULE_TOPIC, level).map_or(0, |queue| queue.max_offset());
            let Some(end) = (from > 0).then(end).filter(|end| from > *end) else { continue };
            next.store(end, Ordering::Release);
            put(store, level + 1, end);
            self.aside.forget_from(store, level, end);
            cuts += 1;
        }
        if cuts > 0 {
            // The log was shortened, and the place to read from with it, where the log is looked through.
            put(store, SCAN_FROM, self.scan_from.load(Ordering::Acquire));
            *self.loaded.lock() = None;
        }
        cuts
    }

    /// Takes over another broker's progress. Only before the task runs.
    pub(crate) fn import(&self, store: &Store, level: i32, offset: i64) {
        if let Some(next) = usize::try_from(level - 1).ok().and_then(|index| self.next.get(index)) {
            next.store(offset.max(0) as u64, Ordering::Relaxed);
            put(store, level as u32, offset.max(0) as u64);
            // The level comes to them again.
            self.aside.forget_from(store, level as u32 - 1, offset.max(0) as u64);
        }
        // What that broker has delivered on is never met again.
        if let Some(loaded) = &mut *self.loaded.lock() {
            let set_aside = self.aside.places();
            let in_use = self.in_use();
            let is_met = |at: &u64| set_aside.contains(at) || is_still_to_deliver(store, LogOffset(*at), in_use);
            loaded.delivered.retain(is_met);
        }
    }
}

/// Whether a scheduled message stands at or behind the next offset of its level. What stands before
/// it is done with, what the log has no more is never met again, and what is no record any more is
/// passed over when it is. Whether its body is sound is nobody's concern: it was delivered.
fn is_still_to_deliver(store: &Store, scheduled: LogOffset, next: &[AtomicU64]) -> bool {
    let is_ahead = |view: &RecordView<'_>| {
        let level = usize::try_from(view.queue_id()).ok().filter(|_| view.topic() == names::SCHEDULE_TOPIC);
        level.and_then(|level| next.get(level)).is_some_and(|next| view.queue_offset() >= next.load(Ordering::Relaxed))
    };
    // One that cannot be read now may be read when its turn comes: then it must be known that it
    // was delivered.
    let Ok(found) = store.about_record_cold(scheduled, is_ahead) else { return true };
    found.unwrap_or(false)
}

impl Table for Delay {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        // The place to read from first: read after the levels, it could lie behind a delivery that
        // they do not include.
        let scan_from = self.scan_from.load(Ordering::Acquire);
        for (next, level) in self.next.iter().zip(1u32..) {
            let next = next.load(Ordering::Acquire);
            if next > 0 {
                f(&level.to_be_bytes(), &next.to_be_bytes());
            }
        }
        // Behind the levels: what they have passed over was set aside before.
        self.aside.for_each(f);
        f(&SCAN_FROM.to_be_bytes(), &scan_from.to_be_bytes());
    }
}

/// Tells the journal of a level, or of the place to read from.
pub(super) fn put(store: &Store, key: u32, value: u64) -> u64 {
    store.journal().put(tables::DELAYS, &key.to_be_bytes(), &value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::RealDisk;
    use env::{Clock, Random, TimeMs};
    use protocol::record::RecordDraft;
    use store::{RecordBatch, StoreEnv, StoreOptions, TagsCode};

    fn store_at(dir: &std::path::Path) -> Arc<Store> {
        let (clock, _) = Clock::manual(TimeMs(1_000));
        let env = StoreEnv { clock, random: Random::seeded(1), disk: Arc::new(RealDisk), ..StoreEnv::real() };
        let options = StoreOptions { segment_bytes: 1 << 20, ..StoreOptions::at(dir) };
        Store::open(options, env).unwrap().0
    }

    fn append(store: &Store, topic: &str, prepared_offset: i64) -> LogOffset {
        let host = "127.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft { prepared_offset, body: b"x", ..RecordDraft::plain(topic, host) };
        let mut batch = RecordBatch::new();
        batch.push(&store.queue(topic, 0).unwrap(), TagsCode::Code(0), |out| {
            draft.encode(out).unwrap();
        });
        store.append(&mut batch, TimeMs(1_000)).unwrap();
        batch.landed()[0].at
    }

    #[test]
    fn a_start_remembers_only_deliveries_that_the_journal_does_not_know_of() {
        let dir = tempfile::tempdir().unwrap();
        let store = store_at(dir.path());
        let topics = Topics::load(&store, Clock::manual(TimeMs(1_000)).0);
        put(&store, SCAN_FROM, 0);
        let scheduled = [names::SCHEDULE_TOPIC; 2].map(|topic| append(&store, topic, 0));
        for at in scheduled {
            append(&store, "Orders", !(at.0 as i64));
        }
        put(&store, 1, 1);
        let delay = Delay::load(&store, &topics, 1).unwrap();
        let delivered = delay.loaded.lock().take().unwrap().delivered;
        assert_eq!(delivered.into_iter().collect::<Vec<_>>(), [scheduled[1].0]);

        // Known to be delivered both: a start has nothing to skip, and moves its place in the log
        // up as it goes.
        put(&store, 1, 2);
        let delay = Delay::load(&store, &topics, 1).unwrap();
        assert!(delay.loaded.lock().take().unwrap().delivered.is_empty());
        store.close().unwrap();
    }

    #[test]
    fn a_level_that_the_table_does_not_have_now_keeps_its_place() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, snapshot) = (store_at(dir.path()), store_at(other.path()));
        let topics = Topics::load(&store, Clock::manual(TimeMs(1_000)).0);
        put(&store, 3, 7);
        let delay = Delay::load(&store, &topics, 2).unwrap();
        assert_eq!((delay.levels(), delay.offsets().collect::<Vec<_>>()), (2, vec![(3, 7)]));
        delay.for_each(&mut |key, value| {
            snapshot.journal().put(tables::DELAYS, key, value);
        });
        let delay = Delay::load(&snapshot, &topics, 3).unwrap();
        assert_eq!((delay.levels(), delay.next[2].load(Ordering::Relaxed)), (3, 7));
        // Another broker's progress, too.
        let delay = Delay::load(&snapshot, &topics, 2).unwrap();
        delay.import(&snapshot, 3, 9);
        assert_eq!(delay.offsets().collect::<Vec<_>>(), [(3, 9)]);
        store.close().unwrap();
        snapshot.close().unwrap();
    }
}
