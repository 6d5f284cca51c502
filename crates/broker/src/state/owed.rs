//! Offsets that clients have committed at this slave and that its master is still to have.
//!
//! Clients commit at a slave while their route names no master. Each such offset stays here, and in the journal, until the master has it or a
//! higher one (`slave/owed.rs`). A master owes nothing.

use std::sync::Arc;

use journal::{Journal, Table};
use parking_lot::Mutex;
use store::Store;

use crate::state::offsets::{OffsetTable, SEPARATOR};
use crate::tables::{self, Keeper};

/// Offsets that are kept. One more is not handed over to the master.
const ROWS_MAX: usize = 1_000_000;

#[derive(Default)]
struct Rows {
    /// By `topic@group` and queue.
    table: OffsetTable,
    len: usize,
}

impl Rows {
    /// Whether that is news. One row more than may be is not.
    fn put(&mut self, key: &str, queue_id: i32, offset: i64) -> bool {
        let known = self.table.get(key).and_then(|queues| queues.get(&queue_id));
        if known == Some(&offset) || known.is_none() && self.len >= ROWS_MAX {
            return false;
        }
        self.len += usize::from(known.is_none());
        self.table.entry(key.to_owned()).or_default().insert(queue_id, offset);
        true
    }

    /// Takes a row out, if it has this offset still.
    fn take(&mut self, key: &str, queue_id: i32, offset: i64) -> bool {
        let Some(queues) = self.table.get_mut(key).filter(|queues| queues.get(&queue_id) == Some(&offset)) else {
            return false;
        };
        queues.remove(&queue_id);
        if queues.is_empty() {
            self.table.remove(key);
        }
        self.len -= 1;
        true
    }
}

/// What is owed.
pub(crate) struct Owed {
    /// Guards itself only.
    rows: Mutex<Rows>,
    /// Makes a change and its row of the journal one step. Taken before `rows`; puts happen under it, which never wait.
    putting: Mutex<()>,
    keeper: Keeper,
}

impl Owed {
    /// What the journal holds. A broker that is no slave forgets it: what it has committed since counts more.
    pub(crate) fn load(store: &Arc<Store>, is_slave: bool) -> Owed {
        let mut rows = Rows::default();
        if is_slave {
            store.journal().load(tables::OWED, |key, value| match parse(key, value) {
                Some((key, queue_id, offset)) => _ = rows.put(key, queue_id, offset),
                None => {
                    let key = String::from_utf8_lossy(key);
                    tracing::error!(%key, "an offset for the master in the journal is not understood");
                }
            });
        } else {
            forget_all(store.journal());
        }
        Owed { rows: Mutex::new(rows), putting: Mutex::default(), keeper: Keeper::of(store) }
    }

    /// A client has committed this here.
    pub(crate) fn note(&self, group: &str, topic: &str, queue_id: i32, offset: i64) {
        let key = format!("{topic}{SEPARATOR}{group}");
        let _putting = self.putting.lock();
        if self.rows.lock().put(&key, queue_id, offset) {
            self.keeper.put(tables::OWED, &row_key(&key, queue_id), &offset.to_le_bytes());
        }
    }

    /// The master has this offset, or is not to have it. What was committed since stays.
    pub(crate) fn settle(&self, key: &str, queue_id: i32, offset: i64) {
        let _putting = self.putting.lock();
        if self.rows.lock().take(key, queue_id, offset) {
            self.keeper.delete(tables::OWED, &row_key(key, queue_id));
        }
    }

    /// What the master is to have of a queue.
    pub(crate) fn of(&self, key: &str, queue_id: i32) -> Option<i64> {
        self.rows.lock().table.get(key)?.get(&queue_id).copied()
    }

    /// All of it, by `topic@group` and queue.
    pub(crate) fn list(&self) -> OffsetTable {
        self.rows.lock().table.clone()
    }

    /// How many offsets there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.lock().len
    }
}

impl Table for Owed {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        for (key, queues) in &self.rows.lock().table {
            for (queue_id, offset) in queues {
                f(&row_key(key, *queue_id), &offset.to_le_bytes());
            }
        }
    }
}

fn forget_all(journal: &Journal) {
    let mut keys = Vec::new();
    journal.load(tables::OWED, |key, _| keys.push(key.to_vec()));
    keys.iter().for_each(|key| _ = journal.delete(tables::OWED, key));
}

fn row_key(key: &str, queue_id: i32) -> Vec<u8> {
    [key.as_bytes(), &[0], &queue_id.to_be_bytes()].concat()
}

fn parse<'a>(key: &'a [u8], value: &[u8]) -> Option<(&'a str, i32, i64)> {
    let (names, queue_id) = key.split_last_chunk::<4>()?;
    let names = std::str::from_utf8(names.strip_suffix(&[0])?).ok()?;
    Some((names, i32::from_be_bytes(*queue_id), i64::from_le_bytes(value.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use store::{StoreEnv, StoreOptions};

    use super::*;

    #[test]
    fn what_is_owed_outlives_a_restart_of_a_slave_and_a_master_forgets_it() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap().0;
        let store = open();
        let owed = Arc::new(Owed::load(&store, true));
        store.journal().attach(tables::OWED, Arc::clone(&owed) as Arc<dyn Table>);
        owed.note("G", "T", 0, 5);
        owed.note("G", "T", 0, 7);
        owed.note("G", "T", 258, 3);
        owed.note("H", "%RETRY%H", 0, 1);
        owed.settle("T@G", 0, 5);
        assert_eq!((owed.of("T@G", 0), owed.len()), (Some(7), 3), "another one was committed since");
        owed.settle("%RETRY%H@H", 0, 1);
        assert_eq!((owed.of("%RETRY%H@H", 0), owed.len()), (None, 2));
        store.close().unwrap();
        drop((owed, store));

        let kept = OffsetTable::from([("T@G".to_owned(), [(0, 7), (258, 3)].into())]);
        for (is_slave, found) in [(true, &kept), (false, &OffsetTable::new()), (true, &OffsetTable::new())] {
            let store = open();
            assert_eq!(Owed::load(&store, is_slave).list(), *found);
            store.close().unwrap();
        }
    }

    #[test]
    fn there_is_an_end_to_how_much_is_kept() {
        let mut rows = Rows { len: ROWS_MAX - 1, ..Rows::default() };
        assert!(rows.put("T@G", 0, 1));
        assert!(!rows.put("T@G", 1, 1));
        assert!(rows.put("T@G", 0, 2), "a row that is there changes");
        assert!(rows.take("T@G", 0, 2));
        assert!(rows.put("T@G", 1, 1));
    }
}
