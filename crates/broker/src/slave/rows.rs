//! Rows of the master's journal become those of the tables here, by their owners: each changes its state and puts the row as if it were its own.
//!
//! A broker that is started as a master on this store finds them as the master would have found its own. A row that is not understood is left out
//! and logged, as at a start: it is of a master that knows more.

use std::collections::BTreeMap;

use journal::{Change, EntriesError, TableId, read_changes};
use protocol::body::{DataVersion, SubscriptionGroupConfig, TopicConfig, TopicQueueMappingDetail};
use protocol::names;

use super::copy::{Rows, Step};
use super::tables::{is_sound, take_topic};
use crate::broker::Broker;
use crate::state::groups::Groups;
use crate::state::offsets::SEPARATOR;
use crate::tables;

/// Bytes of keys and values that are taken over in one go.
const TOGETHER_BYTES: usize = 256 << 10;

/// In which order tables are taken over: what belongs to something comes behind it, and the versions, which each change advances, are last.
/// Those of one line are taken over together.
const ORDER: &[&[TableId]] = &[
    &[tables::TOPICS],
    &[tables::MAPPINGS],
    &[tables::GROUPS],
    &[tables::FORBIDDEN],
    &[tables::REQUEST_MODES],
    &[tables::CONDITIONS],
    &[tables::DELAYS],
    &[tables::CHECKS],
    &[tables::POP_STATE],
    &[tables::POP_ORDERS],
    &[tables::POP_QUEUES, tables::POP_LEASES, tables::OFFSETS],
    &[tables::VERSIONS],
];

/// Does what a piece of the journal asks for. May take a while.
pub(super) fn take(broker: &Broker, step: Step) -> Result<(), EntriesError> {
    match step {
        Step::Nothing => {}
        Step::Change(entries, place) => {
            change(broker, &read_changes(&entries)?);
            place.into_iter().for_each(|place| broker.master_journal.reach(place));
        }
        Step::Replace(rows, place) => {
            replace(broker, rows);
            broker.master_journal.reach(place);
            tracing::info!(position = place.position, "the tables are those of the master's journal, and follow it");
        }
    }
    Ok(())
}

/// Puts these rows in the place of all that are here.
fn replace(broker: &Broker, mut rows: Rows) {
    let mut gone: Vec<(TableId, Box<[u8]>)> = Vec::new();
    for table in tables::copied() {
        broker.store.journal().show(table, &mut |key, value| {
            let row = (table, Box::from(key));
            match rows.get(&row) {
                Some(told) if **told == *value => _ = rows.remove(&row),
                Some(_) => {}
                None => gone.push(row),
            }
        });
    }
    let gone = gone.iter().map(|(table, key)| Change { table: *table, key, value: None });
    let told = rows.iter().map(|((table, key), value)| Change { table: *table, key, value: Some(value) });
    let mut told: Vec<Change<'_>> = told.collect();
    // Behind the leases: if this broker becomes a master between the two, messages come again, and none is passed over.
    told.sort_by_key(|row| row.table == tables::OFFSETS);
    // In pieces: what a crash leaves of them is replaced once more, since the place comes behind all.
    let all: Vec<Change<'_>> = gone.chain(told).collect();
    for group in ORDER {
        let (mut some, mut bytes) = (Vec::new(), 0);
        for row in all.iter().filter(|row| group.contains(&row.table)) {
            some.push(*row);
            bytes += row.key.len() + row.value.map_or(0, <[u8]>::len);
            if bytes >= TOGETHER_BYTES {
                change(broker, &some);
                (some, bytes) = (Vec::new(), 0);
            }
        }
        change(broker, &some);
    }
}

/// Takes over changes.
fn change(broker: &Broker, changes: &[Change<'_>]) {
    for group in ORDER {
        let some: Vec<Change<'_>> = changes.iter().filter(|change| group.contains(&change.table)).copied().collect();
        if !some.is_empty() {
            change_together(broker, group, &some);
        }
    }
}

fn change_together(broker: &Broker, group: &[TableId], changes: &[Change<'_>]) {
    let strange = match group {
        [tables::MAPPINGS] => take_mappings(broker, changes),
        [tables::POP_QUEUES, ..] => {
            // More was committed here, which the master is still to have.
            let counts = |topic: &str, group: &str, queue_id: i32, offset: i64| {
                let owed = || broker.owed.of(&format!("{topic}{SEPARATOR}{group}"), queue_id);
                broker.owed.len() == 0 || owed().is_none_or(|owed| owed <= offset)
            };
            broker.pops.take_rows(&broker.offsets, &counts, changes)
        }
        _ => changes.iter().filter(|change| !take_one(broker, change)).count(),
    };
    if strange > 0 {
        let tables: Vec<u8> = group.iter().map(|table| table.0).collect();
        tracing::error!(
            rows = strange,
            ?tables,
            "rows of the master's journal are not understood, or too many, and left out"
        );
    }
}

/// Takes over one row. False if it is not understood.
fn take_one(broker: &Broker, change: &Change<'_>) -> bool {
    let Change { table, key, value } = *change;
    match table {
        tables::TOPICS => take_topic_row(broker, key, value),
        tables::GROUPS => take_group(&broker.groups, key, value),
        tables::FORBIDDEN => broker.groups.take_forbidden(key, value),
        tables::REQUEST_MODES => broker.pops.modes.take_row(key, value),
        tables::CONDITIONS => broker.conditions.take_row(key, value),
        tables::DELAYS => broker.delay.take_row(&broker.store, key, value),
        tables::CHECKS => broker.transactions.take_row(broker.store.journal(), key, value),
        tables::POP_STATE => broker.pops.take_state(key, value),
        tables::POP_ORDERS => broker.pops.orders.take_row(key, value),
        tables::VERSIONS => take_version(broker, key, value),
        _ => false,
    }
}

fn take_topic_row(broker: &Broker, key: &[u8], value: Option<&[u8]>) -> bool {
    let Ok(name) = std::str::from_utf8(key) else { return false };
    let Some(value) = value else {
        // Its queues end with the log that they lead to; the log says when another topic of this name begins.
        if !names::is_system_topic(name) {
            broker.topics.forget(name);
        }
        return true;
    };
    let config = serde_json::from_slice::<TopicConfig>(value).ok().filter(|config| config.topic_name == name);
    let has_room = || broker.topics.get(name).is_some() || broker.topics.check_room().is_ok();
    let Some(config) = config.filter(|_| has_room()) else { return false };
    take_topic(broker, config);
    true
}

fn take_group(groups: &Groups, key: &[u8], value: Option<&[u8]>) -> bool {
    let Ok(name) = std::str::from_utf8(key) else { return false };
    let Some(value) = value else {
        if !names::PREDEFINED_GROUPS.contains(&name) {
            groups.delete(name);
        }
        return true;
    };
    let known = groups.get(name);
    let has_room = || known.is_some() || groups.check_room_for(1).is_ok();
    let config = serde_json::from_slice::<SubscriptionGroupConfig>(value);
    let config = config.ok().filter(|config| config.group_name == name);
    let Some(config) = config.filter(|_| has_room()) else { return false };
    if known.is_none_or(|known| **known.config.load() != config) {
        groups.put(config);
    }
    true
}

/// Takes over mappings of static topics, of which there are few. Says how many are not understood.
fn take_mappings(broker: &Broker, changes: &[Change<'_>]) -> usize {
    let known = broker.topics.mappings().into_iter();
    let mut mappings: BTreeMap<String, TopicQueueMappingDetail> =
        known.map(|(topic, mapping)| (topic.name().to_owned(), mapping.detail().clone())).collect();
    let mut strange = 0;
    for change in changes {
        let detail = change.value.map(serde_json::from_slice::<TopicQueueMappingDetail>).transpose();
        match (std::str::from_utf8(change.key), detail) {
            (Ok(topic), Ok(Some(mut detail))) => {
                if is_sound(topic, &mut detail) {
                    mappings.insert(topic.to_owned(), detail);
                }
            }
            (Ok(topic), Ok(None)) => _ = mappings.remove(topic),
            (Err(_), _) | (_, Err(_)) => strange += 1,
        }
    }
    broker.topics.replace_mappings(mappings);
    strange
}

fn take_version(broker: &Broker, key: &[u8], value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return true };
    let Ok(version) = serde_json::from_slice::<DataVersion>(value) else { return false };
    match key {
        tables::TOPICS_VERSION => _ = broker.topics.set_version(version),
        tables::MAPPINGS_VERSION => _ = broker.topics.set_mapping_version(version),
        tables::GROUPS_VERSION => broker.groups.set_version(version),
        tables::OFFSETS_VERSION => {
            broker.offsets.set_version(version);
            broker.store.journal().put(tables::VERSIONS, key, value);
        }
        _ => return false,
    }
    true
}
