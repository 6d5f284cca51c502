//! How groups get the messages of a topic: they pull, or they pop. Kept in the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use config::{BrokerSettings, RequestMode};
use journal::Table;
use parking_lot::Mutex;
use protocol::body::{MessageRequestMode, MessageRequestModes, SetMessageRequestMode};
use protocol::names;
use store::Store;

use crate::state::offsets::SEPARATOR;
use crate::tables::{self, Keeper};

/// Pairs of topic and group that a mode is set for; `defaultMessageRequestMode` holds for all
/// others.
pub(in crate::pop) const MODES_MAX: usize = 100_000;

/// What was set.
pub(crate) struct Modes {
    /// By topic and group. Guards the order of its journal puts too, which never wait.
    table: Mutex<BTreeMap<(String, String), SetMessageRequestMode>>,
    /// Goes up with each change. Relaxed: it stands alone.
    changes: AtomicU64,
    keeper: Keeper,
}

impl Modes {
    /// What the journal holds.
    pub(in crate::pop) fn load(store: &Arc<Store>) -> Modes {
        let mut table = BTreeMap::new();
        store.journal().load(tables::REQUEST_MODES, |_, value| {
            match serde_json::from_slice::<SetMessageRequestMode>(value) {
                Ok(mode) => {
                    table.insert((mode.topic.clone(), mode.consumer_group.clone()), mode);
                }
                Err(error) => tracing::error!(%error, "request mode in the journal not understood"),
            }
        });
        Modes { table: Mutex::new(table), changes: AtomicU64::new(0), keeper: Keeper::of(store) }
    }

    pub(in crate::pop) fn set(&self, mode: SetMessageRequestMode) -> u64 {
        let mut table = self.table.lock();
        let value = serde_json::to_vec(&mode).unwrap_or_default();
        let position =
            self.keeper.put(tables::REQUEST_MODES, row_key(&mode.topic, &mode.consumer_group).as_bytes(), &value);
        table.insert((mode.topic.clone(), mode.consumer_group.clone()), mode);
        self.changes.fetch_add(1, Ordering::Relaxed);
        position
    }

    /// Whether there is room for one more, if this is one more.
    pub(in crate::pop) fn has_room_for(&self, topic: &str, group: &str) -> bool {
        let table = self.table.lock();
        table.len() < MODES_MAX || table.contains_key(&(topic.to_owned(), group.to_owned()))
    }

    /// How a group gets the messages of a topic, and how many members share a queue when it pops.
    pub(crate) fn of(&self, settings: &BrokerSettings, group: &str, topic: &str) -> (MessageRequestMode, i32) {
        let set =
            self.table.lock().get(&(topic.to_owned(), group.to_owned())).map(|set| (set.mode, set.pop_share_queue_num));
        if let Some(set) = set {
            return set;
        }
        match settings.default_message_request_mode {
            // What a group sent back has to be pulled.
            RequestMode::Pop if !names::is_retry_topic(topic) => {
                (MessageRequestMode::Pop, settings.default_pop_share_queue_num)
            }
            RequestMode::Pop | RequestMode::Pull => (MessageRequestMode::Pull, 0),
        }
    }

    /// Everything, as RocketMQ's JSON holds it.
    pub(crate) fn table(&self) -> MessageRequestModes {
        let mut modes = MessageRequestModes::default();
        for ((topic, group), mode) in &*self.table.lock() {
            let groups = modes.message_request_mode_map.entry(topic.clone()).or_default();
            groups.insert(group.clone(), mode.clone());
        }
        modes
    }

    /// Puts another table in the place of this one.
    pub(crate) fn replace(&self, modes: MessageRequestModes) -> usize {
        self.forget(&|_: &str, _: &str| true);
        let mut count = 0;
        for (topic, groups) in modes.message_request_mode_map {
            for (consumer_group, mode) in groups {
                self.set(SetMessageRequestMode { consumer_group, topic: topic.clone(), ..mode });
                count += 1;
            }
        }
        count
    }

    /// Takes over a row of a master. False if it is not understood.
    pub(crate) fn take_row(&self, key: &[u8], value: Option<&[u8]>) -> bool {
        let Some(value) = value else {
            self.forget(&|group: &str, topic: &str| row_key(topic, group).as_bytes() == key);
            return true;
        };
        let Ok(mode) = serde_json::from_slice::<SetMessageRequestMode>(value) else { return false };
        let is_known = self
            .table
            .lock()
            .get(&(mode.topic.clone(), mode.consumer_group.clone()))
            .is_some_and(|known| *known == mode);
        let is_taken = is_known || self.has_room_for(&mode.topic, &mode.consumer_group);
        if is_taken && !is_known {
            self.set(mode);
        }
        is_taken
    }

    /// Changes whenever the table does.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    pub(in crate::pop) fn forget(&self, is_gone: &impl Fn(&str, &str) -> bool) {
        let mut table = self.table.lock();
        for ((topic, group), _) in table.extract_if(.., |(topic, group), _| is_gone(group, topic)) {
            self.keeper.delete(tables::REQUEST_MODES, row_key(&topic, &group).as_bytes());
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn row_key(topic: &str, group: &str) -> String {
    format!("{topic}{SEPARATOR}{group}")
}

/// For the journal's snapshots.
impl Table for Modes {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        let rows = self.table.lock().clone();
        for ((topic, group), mode) in rows {
            f(row_key(&topic, &group).as_bytes(), &serde_json::to_vec(&mode).unwrap_or_default());
        }
    }
}
