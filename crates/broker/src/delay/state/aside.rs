//! The delayed messages that are set aside since the device did not give them. The task tries them
//! again (`delay/duty/aside.rs`).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;
use parking_lot::Mutex;
use protocol::LogOffset;
use store::Store;

use crate::unreadable::Tries;
use crate::{tables, wall_time};

/// A level, counted from 0, and the message's offset there.
pub(crate) type AsideKey = (u32, u64);

/// What the journal knows of.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Where each lies in the log. Guards itself only.
    by_key: Mutex<BTreeMap<AsideKey, u64>>,
    /// Those that the device gave, and that are not there. Guards itself only.
    nowhere: Mutex<BTreeSet<AsideKey>>,
}

fn row((level, offset): AsideKey) -> [u8; 12] {
    let mut row = [0; 12];
    row[..4].copy_from_slice(&level.to_be_bytes());
    row[4..].copy_from_slice(&offset.to_be_bytes());
    row
}

impl Rows {
    /// Takes a row of the journal, if it is one of these.
    pub(crate) fn load(&self, key: &[u8], value: &[u8]) -> bool {
        let Ok(row) = <&[u8; 12]>::try_from(key) else { return false };
        let (Some((level, offset)), Ok(at)) = (row.split_first_chunk::<4>(), value.try_into()) else { return true };
        if let Ok(offset) = offset.try_into() {
            let key = (u32::from_be_bytes(*level), u64::from_be_bytes(offset));
            self.by_key.lock().insert(key, u64::from_be_bytes(at));
        }
        true
    }

    /// Takes over a row of a master; none if it is not one of these, and false if it is not understood.
    pub(crate) fn take_row(&self, store: &Store, key: &[u8], value: Option<&[u8]>) -> Option<bool> {
        let (level, offset) = <&[u8; 12]>::try_from(key).ok()?.split_first_chunk::<4>()?;
        let key = (u32::from_be_bytes(*level), u64::from_be_bytes(offset.try_into().ok()?));
        match value.map(|value| value.try_into().map(u64::from_be_bytes)) {
            Some(Ok(at)) => self.add(store, key, at),
            Some(Err(_)) => return Some(false),
            None => self.forget(store, key),
        }
        Some(true)
    }

    /// Where they lie in the log.
    pub(crate) fn places(&self) -> HashSet<u64> {
        self.by_key.lock().values().copied().collect()
    }

    /// Where the first of them lies in the log. One that is not there is tried as long as the log
    /// has its place, and keeps nothing.
    pub(crate) fn first(&self) -> Option<LogOffset> {
        let nowhere = self.nowhere.lock().clone();
        let rows = self.by_key.lock();
        rows.iter().filter(|(key, _)| !nowhere.contains(key)).map(|(_, at)| LogOffset(*at)).min()
    }

    pub(crate) fn is_nowhere(&self, key: AsideKey) {
        self.nowhere.lock().insert(key);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.lock().len()
    }

    pub(crate) fn at(&self, key: AsideKey) -> Option<u64> {
        self.by_key.lock().get(&key).copied()
    }

    pub(crate) fn add(&self, store: &Store, key: AsideKey, at: u64) {
        self.by_key.lock().insert(key, at);
        store.journal().put(tables::DELAYS, &row(key), &at.to_be_bytes());
    }

    /// It is delivered, or never will be.
    pub(crate) fn forget(&self, store: &Store, key: AsideKey) {
        self.by_key.lock().remove(&key);
        self.nowhere.lock().remove(&key);
        store.journal().delete(tables::DELAYS, &row(key));
    }

    /// A level begins anew there.
    pub(crate) fn forget_from(&self, store: &Store, level: u32, offset: u64) {
        let keys: Vec<AsideKey> =
            self.by_key.lock().range((level, offset)..=(level, u64::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.forget(store, key));
    }

    pub(crate) fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let rows = self.by_key.lock().clone();
        for (key, at) in rows {
            f(&row(key), &at.to_be_bytes());
        }
    }
}

/// When each is tried again. One that is delivered and not flushed yet is in the journal and not
/// here.
#[derive(Debug, Default)]
pub(crate) struct Aside {
    due: BTreeSet<(i64, AsideKey)>,
    pub(crate) tries: Tries<AsideKey>,
}

impl Aside {
    /// With those that a start finds.
    pub(crate) fn new(rows: &Rows, now: i64) -> Aside {
        let mut aside = Aside::default();
        for key in rows.by_key.lock().keys() {
            aside.failed(*key, now);
        }
        aside
    }

    /// Whether it failed for the first time.
    pub(crate) fn failed(&mut self, key: AsideKey, now: i64) -> bool {
        let (is_first, pause) = self.tries.failed(key);
        self.due.insert((now.saturating_add(pause), key));
        is_first
    }

    /// The first that is due; it is not here any more.
    pub(crate) fn take_due(&mut self, now: i64) -> Option<AsideKey> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        self.due.pop_first().map(|(_, key)| key)
    }

    pub(crate) fn set_back(&mut self, by: i64, now: i64) {
        wall_time::set_back(&mut self.due, by, now);
    }

    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }
}
