//! Delayed messages that the device did not give when they were due: set aside, so that their level goes on, and tried again with growing pauses.
//!
//! The journal has a row for each, written before its level's progress passes it, and gone when its delivery is on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashSet;
use parking_lot::Mutex;
use protocol::LogOffset;
use store::{RecordAt, Store};

use super::{Delivery, Done, Prepared, Unflushed};
use crate::append;
use crate::fetch;
use crate::hold::Lane;
use crate::static_topic::late;
use crate::tables;
use crate::unreadable::{Tries, WaitsFor};
use crate::wall_time;

/// So many are set aside, a row of the journal each. With more of them a level waits for its head.
const ASIDE_MAX: usize = 10_000;
/// Messages of one look at a level that the device may refuse.
pub(super) const UNREAD_MAX: usize = 8;
/// Why a message that the log should have is not there.
pub(super) const NOT_THERE: &str = "it is not where its queue says";

/// A level, counted from 0, and the message's offset there.
pub(super) type Key = (u32, u64);

/// What the journal knows of.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Where each lies in the log. Guards itself only.
    by_key: Mutex<BTreeMap<Key, u64>>,
    /// Those that the device gave, and that are not there. Guards itself only.
    nowhere: Mutex<BTreeSet<Key>>,
}

fn row((level, offset): Key) -> [u8; 12] {
    let mut row = [0; 12];
    row[..4].copy_from_slice(&level.to_be_bytes());
    row[4..].copy_from_slice(&offset.to_be_bytes());
    row
}

impl Rows {
    /// Takes a row of the journal, if it is one of these.
    pub(super) fn load(&self, key: &[u8], value: &[u8]) -> bool {
        let Ok(row) = <&[u8; 12]>::try_from(key) else { return false };
        let (Some((level, offset)), Ok(at)) = (row.split_first_chunk::<4>(), value.try_into()) else { return true };
        if let Ok(offset) = offset.try_into() {
            let key = (u32::from_be_bytes(*level), u64::from_be_bytes(offset));
            self.by_key.lock().insert(key, u64::from_be_bytes(at));
        }
        true
    }

    /// Where they lie in the log.
    pub(super) fn places(&self) -> HashSet<u64> {
        self.by_key.lock().values().copied().collect()
    }

    /// Where the first of them lies in the log. One that is not there is tried as long as the log has its place, and keeps nothing.
    pub(super) fn first(&self) -> Option<LogOffset> {
        let nowhere = self.nowhere.lock().clone();
        let rows = self.by_key.lock();
        rows.iter().filter(|(key, _)| !nowhere.contains(key)).map(|(_, at)| LogOffset(*at)).min()
    }

    fn is_nowhere(&self, key: Key) {
        self.nowhere.lock().insert(key);
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.lock().len()
    }

    fn at(&self, key: Key) -> Option<u64> {
        self.by_key.lock().get(&key).copied()
    }

    fn add(&self, store: &Store, key: Key, at: u64) {
        self.by_key.lock().insert(key, at);
        store.journal().put(tables::DELAYS, &row(key), &at.to_be_bytes());
    }

    /// It is delivered, or never will be.
    pub(super) fn forget(&self, store: &Store, key: Key) {
        self.by_key.lock().remove(&key);
        self.nowhere.lock().remove(&key);
        store.journal().delete(tables::DELAYS, &row(key));
    }

    /// A level begins anew there.
    pub(super) fn forget_from(&self, store: &Store, level: u32, offset: u64) {
        let keys: Vec<Key> =
            self.by_key.lock().range((level, offset)..=(level, u64::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(store, key));
    }

    pub(super) fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let rows = self.by_key.lock().clone();
        for (key, at) in rows {
            f(&row(key), &at.to_be_bytes());
        }
    }
}

/// When each is tried again. One that is delivered and not flushed yet is in the journal and not here.
#[derive(Debug, Default)]
pub(super) struct Aside {
    due: BTreeSet<(i64, Key)>,
    tries: Tries<Key>,
}

impl Aside {
    /// With those that a start finds.
    pub(super) fn new(rows: &Rows, now: i64) -> Aside {
        let mut aside = Aside::default();
        for key in rows.by_key.lock().keys() {
            aside.failed(*key, now);
        }
        aside
    }

    /// Whether it failed for the first time.
    fn failed(&mut self, key: Key, now: i64) -> bool {
        let (is_first, pause) = self.tries.failed(key);
        self.due.insert((now.saturating_add(pause), key));
        is_first
    }

    /// The first that is due; it is not here any more.
    pub(super) fn take_due(&mut self, now: i64) -> Option<Key> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first().map(|(_, key)| key)
    }

    pub(super) fn set_back(&mut self, by: i64, now: i64) {
        wall_time::set_back(&mut self.due, by, now);
    }

    pub(super) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }
}

impl Delivery {
    /// Sets a message aside that cannot be read, so that its level can pass it. False when there are too many already.
    pub(super) fn set_aside(&mut self, level: usize, offset: u64, at: LogOffset, why: &str) -> bool {
        let (broker, key) = (Arc::clone(&self.broker), (level as u32, offset));
        let rows = &broker.delay.aside;
        if rows.at(key).is_none() && rows.len() >= ASIDE_MAX {
            let most = ASIDE_MAX;
            tracing::error!(
                level,
                offset,
                at = at.0,
                why,
                most,
                "too many delayed messages cannot be read; their level waits"
            );
            return false;
        }
        rows.add(&broker.store, key, at.0);
        if self.aside.failed(key, broker.clock.now().0) {
            let what = "delayed message cannot be read; its level goes on, and it is tried again with growing pauses";
            tracing::error!(level, offset, at = at.0, why, "{what}");
        }
        self.count_aside();
        true
    }

    pub(super) fn count_aside(&self) {
        self.broker.unreadable.are(WaitsFor::Delay, self.broker.delay.aside.len());
    }

    /// Tries one again that was set aside.
    pub(super) async fn try_again(&mut self, key: Key) {
        let broker = Arc::clone(&self.broker);
        let (store, rows) = (&broker.store, &broker.delay.aside);
        let Some(at) = rows.at(key) else { return };
        let (level, offset) = key;
        if self.delivered.remove(&at) {
            // Before a crash.
            return self.give_up(key);
        }
        let slice = match fetch::record(store, LogOffset(at)).await {
            Ok(RecordAt::Record(slice)) => slice,
            Ok(RecordAt::Damaged) => {
                tracing::error!(level, at, "delayed message is damaged; it is not delivered, and its level goes on");
                return self.give_up(key);
            }
            Ok(RecordAt::Gone) if at < store.min_offset().0 => {
                tracing::error!(level, offset, at, "delayed message could not be read until the log had it no more");
                return self.give_up(key);
            }
            found @ (Ok(RecordAt::Gone) | Err(_)) => {
                if found.is_ok() {
                    rows.is_nowhere(key);
                }
                self.aside.failed(key, broker.clock.now().0);
                return;
            }
        };
        self.batch.clear();
        self.mappings.clear();
        let lane = match self.prepare(slice.as_ref(), LogOffset(at)) {
            Prepared::Added(lane) => lane,
            Prepared::Dropped => return self.give_up(key),
            Prepared::Elsewhere(_) => match self.hand_on(slice.as_ref(), LogOffset(at)) {
                Some(lane) => lane,
                None => return self.give_up(key),
            },
        };
        let refused = broker.append(&mut self.batch).await.err();
        self.mappings.clear();
        let Some(end) = self.batch.landed().last().map(|landed| landed.end) else {
            tracing::warn!(remark = refused.map(|refusal| refusal.remark), "delayed messages wait for the store");
            self.aside.failed(key, broker.clock.now().0);
            return;
        };
        tracing::info!(level, offset, at, "delayed message can be read again, and is delivered");
        self.aside.tries.is_done(&key);
        broker.wake(vec![lane], self.batch.light_queues(), end);
        self.unflushed.push_back(Unflushed { end, done: Done::Aside(key) });
    }

    fn give_up(&mut self, key: Key) {
        self.aside.tries.is_done(&key);
        self.broker.delay.aside.forget(&self.broker.store, key);
        self.count_aside();
    }

    /// Adds a message whose queue another broker leads to those that are sent there.
    fn hand_on(&mut self, scheduled: &[u8], at: LogOffset) -> Option<Arc<Lane>> {
        let view = super::view_of(scheduled)?;
        let mut draft = view.to_draft();
        draft.prepared_offset = !(at.0 as i64);
        let (lane, tags) = late::waiting(&self.broker, &mut draft, late::SOON)?;
        append::push(&mut self.batch, &lane, tags, &draft);
        Some(lane)
    }
}
