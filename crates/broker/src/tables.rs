//! The tables that the broker keeps in `journal`. Numbers are on disk: never reuse one.

use std::sync::{Arc, Weak};

use journal::{Change, TableId};
use store::Store;

/// Topic name → its configuration as JSON.
pub(crate) const TOPICS: TableId = TableId(1);
/// Name of a table → its data version as JSON.
pub(crate) const VERSIONS: TableId = TableId(2);
/// Delay level → offset of the next message to deliver; see `delay/state.rs`.
pub(crate) const DELAYS: TableId = TableId(3);

/// Group name → its configuration as JSON.
pub(crate) const GROUPS: TableId = TableId(4);
/// `group@topic` → bits of what the group may not do, 4 bytes little-endian.
pub(crate) const FORBIDDEN: TableId = TableId(5);
/// `topic@group`, a zero byte, the queue id (4 bytes big-endian) → the committed offset and when it was committed, 8 bytes
/// little-endian each; some have no time.
pub(crate) const OFFSETS: TableId = TableId(6);
/// Name of a JSON file → hashes of what we last wrote there, as JSON.
pub(crate) const EXPORTS: TableId = TableId(7);
/// Name of a JSON file → members that another broker wrote and we do not know, as JSON.
pub(crate) const EXTRAS: TableId = TableId(8);
/// Offset of a half message (8 bytes big-endian) → how often its producer was asked, 4 bytes big-endian.
pub(crate) const CHECKS: TableId = TableId(9);
/// Where the log is read from after a crash, to find timer messages that were delivered (8 bytes big-endian), what the device did not give of
/// them, and what a master had done that this broker has followed; see `timer/mod.rs`, `timer/state/aside.rs` and `timer/state/master.rs`.
pub(crate) const TIMERS: TableId = TableId(12);

/// Number of a queue that a group pops (4 bytes big-endian) → queue id (4 bytes big-endian), `topic@group`.
pub(crate) const POP_QUEUES: TableId = TableId(20);
/// A lease → its messages; see `pop/state/ledger.rs`.
pub(crate) const POP_LEASES: TableId = TableId(21);
/// What a start has to know of pops, by name; see `pop/state.rs`.
pub(crate) const POP_STATE: TableId = TableId(22);
/// `topic@group`, a zero byte, the queue id (4 bytes big-endian) → the batch that is popped in order, as JSON.
pub(crate) const POP_ORDERS: TableId = TableId(23);
/// `topic@group` → how the group gets its messages, as JSON.
pub(crate) const REQUEST_MODES: TableId = TableId(24);

/// Name of a static topic → its mapping as JSON.
pub(crate) const MAPPINGS: TableId = TableId(30);

/// Group, a zero byte, topic → how the group filters the topic by a condition, as JSON.
pub(crate) const CONDITIONS: TableId = TableId(31);

/// What the last start made of this broker, and what switches of masters have made of it; see `state/switch.rs`.
pub(crate) const ROLE: TableId = TableId(32);
/// Topic name → where its queues ended when a slave became this master, 8 bytes little-endian each; see `state/offsets/ended.rs`.
pub(crate) const ENDS: TableId = TableId(33);
/// `topic@group`, a zero byte, the queue id (4 bytes big-endian) → an offset that the master of this slave is to have, 8 bytes little-endian.
pub(crate) const OWED: TableId = TableId(34);
/// Where a file of the log begins that a slave needs, 8 bytes big-endian; see `state/slave_places.rs`.
pub(crate) const SLAVE_PLACES: TableId = TableId(35);

/// Up to where this slave has the journal of its master, one row; see `state/master_journal.rs`.
pub(crate) const MASTER_JOURNAL: TableId = TableId(36);

/// Number of an epoch (8 bytes big-endian) → the log offset where it begins, 8 bytes big-endian. A slave has them from its master.
pub(crate) const EPOCHS: TableId = TableId(37);

/// Each of them, and whether slaves of ours get its rows (30002). The others speak of this node: its files, its role, its own master and slaves.
/// Timer messages have files of their own, so a slave asks how far they are delivered (60, 61).
const ALL: &[(TableId, bool)] = &[
    (TOPICS, true),
    (VERSIONS, true),
    (DELAYS, true),
    (GROUPS, true),
    (FORBIDDEN, true),
    (OFFSETS, true),
    (EXPORTS, false),
    (EXTRAS, false),
    (CHECKS, true),
    (TIMERS, false),
    (POP_QUEUES, true),
    (POP_LEASES, true),
    (POP_STATE, true),
    (POP_ORDERS, true),
    (REQUEST_MODES, true),
    (MAPPINGS, true),
    (CONDITIONS, true),
    (ROLE, false),
    (ENDS, false),
    (OWED, false),
    (SLAVE_PLACES, false),
    (MASTER_JOURNAL, false),
    (EPOCHS, false),
];

/// The tables whose rows slaves get.
pub(crate) fn copied() -> impl Iterator<Item = TableId> {
    ALL.iter().filter(|(_, is_copied)| *is_copied).map(|(table, _)| *table)
}

/// Whether slaves get the rows of a table. They get none of the store's own, nor of one that is not known here.
pub(crate) fn is_copied(table: TableId) -> bool {
    copied().any(|copied| copied == table)
}

/// Keys of [`VERSIONS`].
pub(crate) const TOPICS_VERSION: &[u8] = b"topics";
pub(crate) const MAPPINGS_VERSION: &[u8] = b"mappings";
pub(crate) const GROUPS_VERSION: &[u8] = b"groups";
pub(crate) const OFFSETS_VERSION: &[u8] = b"offsets";

/// The way to the store for those whose tables the journal asks for.
///
/// The journal holds them, so they must not hold the store: neither would ever be dropped. Without a store there is nothing left to
/// change, and every change counts as written.
pub(crate) struct Keeper(Weak<Store>);

impl Keeper {
    pub(crate) fn of(store: &Arc<Store>) -> Keeper {
        Keeper(Arc::downgrade(store))
    }

    /// As [`journal::Journal::put`].
    pub(crate) fn put(&self, table: TableId, key: &[u8], value: &[u8]) -> u64 {
        self.0.upgrade().map_or(0, |store| store.journal().put(table, key, value))
    }

    /// As [`journal::Journal::delete`].
    pub(crate) fn delete(&self, table: TableId, key: &[u8]) -> u64 {
        self.0.upgrade().map_or(0, |store| store.journal().delete(table, key))
    }

    /// As [`journal::Journal::put_together`].
    pub(crate) fn put_together(&self, changes: &[Change<'_>]) -> u64 {
        self.0.upgrade().map_or(0, |store| store.journal().put_together(changes))
    }

    /// How far the device has the journal.
    pub(crate) fn synced(&self) -> u64 {
        self.0.upgrade().map_or(u64::MAX, |store| store.journal().synced().get())
    }

    /// The store itself, for the length of a call.
    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        self.0.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn of_each_table_it_is_said_whether_slaves_get_it() {
        let source = include_str!("tables.rs").split("mod tests {").next().unwrap();
        let numbers = source.split("TableId = TableId(").skip(1).map(|rest| rest.split(')').next().unwrap());
        let declared: Vec<u8> = numbers.map(|number| number.parse().unwrap()).collect();
        let said: BTreeSet<u8> = ALL.iter().map(|(table, _)| table.0).collect();
        assert_eq!(said, declared.iter().copied().collect());
        assert_eq!((said.len(), declared.len()), (ALL.len(), ALL.len()), "two of one number");
        assert!(is_copied(TOPICS) && !is_copied(EXPORTS) && !is_copied(TableId(250)));
    }
}
