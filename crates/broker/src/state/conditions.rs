//! What is remembered of groups that filter by conditions: the rows of `consumerFilter.json`, of which 321 shows one.
//!
//! Nothing is decided by them here: conditions are those of the heartbeats. They are kept as Apache keeps them, so that it goes on with
//! them: since when a group filters so, and its places in the bitmaps that Apache may write beside its queues. Heartbeats bring rows;
//! housekeeping notes who has left, and forgets whoever has been away for `filterDataCleanTimeSpan`. Each change goes into the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use filter::Expression;
use filter::bloom::{BloomError, BloomFilter, BloomFilterData};
use journal::Table;
use parking_lot::Mutex;
use protocol::body::{BloomFilterPlaces, ConsumerFilterRow, ConsumerFilterTable, ConsumerFiltersOfTopic};
use store::Store;

use crate::state::clients::{ClientSubscription, Clients, ConsumerGroup};
use crate::state::message_filter::SQL92;
use crate::tables::{self, Keeper};

/// Rows of all groups. Those of further groups are not kept until some are forgotten, which nobody feels before Apache takes over.
const ROWS_MAX: usize = 10_000;
/// Bytes of their conditions.
const CONDITIONS_BYTES_MAX: usize = 32 << 20;
/// Bytes of a topic's or a group's name, its prefix included; RocketMQ's limits are shorter.
const NAME_MAX: usize = 512;

/// By group and topic.
type Rows = BTreeMap<(Box<str>, Box<str>), ConsumerFilterRow>;

/// How groups filter topics by conditions.
pub(crate) struct Conditions {
    bloom: BloomFilter,
    /// Guards the order of its journal puts too, which never wait.
    rows: Mutex<Rows>,
    /// Goes up with each change. Relaxed: it stands alone.
    changes: AtomicU64,
    /// Whether it was said that there are too many. Relaxed: it stands alone.
    has_complained: AtomicBool,
    keeper: Keeper,
}

impl Conditions {
    /// What the journal holds. Nobody is connected yet: whoever was has left by now.
    pub(crate) fn load(
        store: &Arc<Store>,
        error_percent: u32,
        consumers: u32,
        now: i64,
    ) -> Result<Conditions, BloomError> {
        let mut found = Vec::new();
        store.journal().load(tables::CONDITIONS, |_, value| match serde_json::from_slice::<ConsumerFilterRow>(value) {
            Ok(row) => found.push(row),
            Err(error) => tracing::error!(%error, "condition of a group in the journal not understood"),
        });
        let conditions = Conditions {
            bloom: BloomFilter::new(error_percent, consumers)?,
            rows: Mutex::default(),
            changes: AtomicU64::new(0),
            has_complained: AtomicBool::new(false),
            keeper: Keeper::of(store),
        };
        let mut rows = conditions.rows.lock();
        for row in found {
            if !conditions.is_of_use(&row) {
                // It was made with other settings.
                conditions.keeper.delete(tables::CONDITIONS, &row_key(&key(&row)));
            } else if row.dead {
                rows.insert(key(&row), row);
            } else {
                conditions.put(&mut rows, left(row, now));
            }
        }
        drop(rows);
        Ok(conditions)
    }

    /// A member of the group has sent a heartbeat, and this is the group after it.
    pub(crate) fn hear<C>(&self, group: &ConsumerGroup<C>, now: i64) {
        let mut by_condition = group.each_subscription().filter(|(_, said)| said.expression_type == SQL92).peekable();
        if by_condition.peek().is_none() || group.name.len() > NAME_MAX {
            return;
        }
        // Others get the lock in between.
        for (topic, said) in by_condition.filter(|(topic, _)| topic.len() <= NAME_MAX) {
            self.hear_one(&mut self.rows.lock(), &group.name, topic, said, now);
        }
    }

    fn hear_one(&self, rows: &mut Rows, group: &str, topic: &str, said: &ClientSubscription, now: i64) {
        let key = (group.into(), topic.into());
        let known = rows.get(&key);
        match known {
            None => {}
            Some(known) if known.client_version > said.version => return,
            Some(known) if known.expression == said.data.sub_string => {
                if known.dead || known.client_version < said.version {
                    let row =
                        ConsumerFilterRow { client_version: said.version, dead: false, dead_time: 0, ..known.clone() };
                    self.put(rows, row);
                }
                return;
            }
            // A client that changes its mind gives its subscription another version.
            Some(known) if known.client_version == said.version => return,
            Some(_) => {}
        }
        if said.sql().is_none() {
            // It cannot be compiled; the client's pulls say why.
            self.forget(rows, |row_key, _| *row_key == key);
            return;
        }
        self.forget(rows, |row_key, _| *row_key == key);
        if !has_room(rows, said.data.sub_string.len()) {
            if !self.has_complained.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    most = ROWS_MAX,
                    bytes = CONDITIONS_BYTES_MAX,
                    "consumerFilter.json will not name every group that filters by a condition"
                );
            }
            return;
        }
        let row = ConsumerFilterRow {
            bloom_filter_data: Some(self.places(group, topic)),
            born_time: now,
            client_version: said.version,
            consumer_group: group.to_owned(),
            dead: false,
            dead_time: 0,
            expression: said.data.sub_string.clone(),
            expression_type: SQL92.to_owned(),
            topic: topic.to_owned(),
        };
        self.put(rows, row);
    }

    /// Notes which groups have left, and forgets those that left `keep_ms` ago.
    pub(crate) fn tend<C: Clone>(&self, clients: &Clients<C>, now: i64, keep_ms: i64) {
        // A group that has gone over to tags does not filter by its condition any more.
        let is_there = |group: &str, topic: &str| {
            clients.subscription(group, topic).is_some_and(|said| said.expression_type == SQL92)
        };
        let mut known: Vec<_> =
            self.rows.lock().iter().filter(|(_, row)| !row.dead).map(|(key, _)| key.clone()).collect();
        // Without the lock, for which heartbeats wait.
        known.retain(|(group, topic)| !is_there(group, topic));
        let mut rows = self.rows.lock();
        for key in known {
            if let Some(row) = rows.get(&key).filter(|row| !row.dead && !is_there(&key.0, &key.1)).cloned() {
                self.put(&mut rows, left(row, now));
            }
        }
        self.forget(&mut rows, |_, row| row.dead && now.saturating_sub(row.dead_time) >= keep_ms);
    }

    /// How a group filters a topic, or did when it was last there.
    pub(crate) fn of(&self, group: &str, topic: &str) -> Option<ConsumerFilterRow> {
        self.rows.lock().get(&(group.into(), topic.into())).cloned()
    }

    /// Everything, as RocketMQ's JSON holds it.
    pub(crate) fn table(&self) -> ConsumerFilterTable {
        let mut table = ConsumerFilterTable::default();
        for row in self.rows.lock().values() {
            let of_topic = table.filter_data_by_topic.entry(row.topic.clone());
            let of_topic = of_topic.or_insert_with(|| ConsumerFiltersOfTopic {
                topic: row.topic.clone(),
                ..ConsumerFiltersOfTopic::default()
            });
            of_topic.group_filter_data.insert(row.consumer_group.clone(), row.clone());
        }
        table
    }

    /// Puts another table in the place of this one. Rows that were made for other sizes of bitmaps are left out, as in Apache.
    pub(crate) fn replace(&self, table: ConsumerFilterTable, now: i64) -> usize {
        let mut rows = self.rows.lock();
        self.forget(&mut rows, |_, _| true);
        for (topic, of_topic) in table.filter_data_by_topic {
            for (consumer_group, row) in of_topic.group_filter_data {
                let row = ConsumerFilterRow { topic: topic.clone(), consumer_group, ..row };
                if self.is_of_use(&row) && has_room(&rows, row.expression.len()) {
                    let is_dead = row.dead_time > 0 && row.dead_time >= row.born_time;
                    self.put(&mut rows, if is_dead { ConsumerFilterRow { dead: true, ..row } } else { left(row, now) });
                }
            }
        }
        rows.len()
    }

    /// Takes over a row of a master. False if it is not understood, or made for other settings, or one too many.
    pub(crate) fn take_row(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let mut rows = self.rows.lock();
        let Some(value) = value else {
            self.forget(&mut rows, |known, _| row_key(known) == key);
            return true;
        };
        let Ok(row) = serde_json::from_slice::<ConsumerFilterRow>(value) else { return false };
        if !self.is_of_use(&row) || !has_room(&rows, row.expression.len()) {
            return false;
        }
        self.put(&mut rows, row);
        true
    }

    /// Changes whenever the table does.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    fn is_of_use(&self, row: &ConsumerFilterRow) -> bool {
        let places = row
            .bloom_filter_data
            .as_ref()
            .map(|places| BloomFilterData { positions: places.bit_pos.clone(), bits: places.bit_num });
        row.topic.len() <= NAME_MAX
            && row.consumer_group.len() <= NAME_MAX
            && places.is_some_and(|places| self.bloom.is_valid(&places))
            && row.expression_type == SQL92
            && Expression::compile(&row.expression).is_ok()
    }

    fn places(&self, group: &str, topic: &str) -> BloomFilterPlaces {
        let places = self.bloom.data(&format!("{group}#{topic}"));
        BloomFilterPlaces { bit_num: places.bits, bit_pos: places.positions }
    }

    fn put(&self, rows: &mut Rows, row: ConsumerFilterRow) {
        let key = key(&row);
        self.keeper.put(tables::CONDITIONS, &row_key(&key), &serde_json::to_vec(&row).unwrap_or_default());
        rows.insert(key, row);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn forget(&self, rows: &mut Rows, is_gone: impl Fn(&(Box<str>, Box<str>), &ConsumerFilterRow) -> bool) {
        for (key, _) in rows.extract_if(.., |key, row| is_gone(key, row)) {
            self.keeper.delete(tables::CONDITIONS, &row_key(&key));
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// For the journal's snapshots.
impl Table for Conditions {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let rows = self.rows.lock().clone();
        for (key, row) in rows {
            f(&row_key(&key), &serde_json::to_vec(&row).unwrap_or_default());
        }
    }
}

fn has_room(rows: &Rows, bytes: usize) -> bool {
    let held: usize = rows.values().map(|row| row.expression.len()).sum();
    rows.len() < ROWS_MAX && held + bytes <= CONDITIONS_BYTES_MAX
}

/// The row of a group that has left. Apache takes it for dead if that was not before it was born.
fn left(row: ConsumerFilterRow, now: i64) -> ConsumerFilterRow {
    ConsumerFilterRow { dead: true, dead_time: now.max(row.born_time), ..row }
}

fn key(row: &ConsumerFilterRow) -> (Box<str>, Box<str>) {
    (row.consumer_group.as_str().into(), row.topic.as_str().into())
}

fn row_key((group, topic): &(Box<str>, Box<str>)) -> Vec<u8> {
    [group.as_bytes(), &[0], topic.as_bytes()].concat()
}

#[cfg(test)]
mod tests;
