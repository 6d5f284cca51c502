//! The table of keys: every one that RocketMQ's broker and name server know, and what becomes of it here.
//!
//! A file each for RocketMQ's configuration classes. A line reads: state, name, kind, default (`=` a value, `~` found out at
//! start), meaning. `docs/configuration.md` is printed from this table.

use crate::key::{Key, Role, Section};

mod broker;
mod controller;
mod journal;
mod jvm;
mod kinds;
mod later;
mod limits;
mod names;
mod net;
mod old;
mod reasons;
mod store;
mod table;

pub use old::RENAMED;

/// Every table, in the order of the documentation.
pub const TABLES: &[&[Key]] = &[
    broker::BROKER,
    store::STORE,
    net::SERVER_SIDE,
    net::CLIENT_SIDE,
    names::NAMES,
    jvm::JVM,
    limits::LIMITS,
    journal::JOURNAL,
    later::AUTH,
    controller::CONTROLLER,
    later::CONTAINER_KEYS,
    old::OLD,
];

/// The key called `name`, as `role` understands it: its own sections first, then the others.
pub fn find(role: Role, name: &str) -> Option<&'static Key> {
    of(role).find(|key| key.name == name)
}

/// All keys; of several with one name the one that a process of this role means is the first.
pub(crate) fn of(role: Role) -> impl Iterator<Item = &'static Key> {
    // A name server's `configStorePath` is not the controller's; in one process the broker's file decides what a name means.
    let first: &[&[Key]] = match role {
        Role::Server | Role::Broker => &[],
        Role::Names => &[names::NAMES, net::SERVER_SIDE],
        Role::Controller => &[controller::CONTROLLER, net::SERVER_SIDE],
    };
    first.iter().chain(TABLES).flat_map(|table| table.iter())
}

/// The name by which RocketMQ reads a key, if it does not read this spelling of it.
pub fn present_spelling(name: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(old, _)| *old == name).map(|(_, new)| *new)
}

/// The key that is written almost like `name`, for "did you mean".
pub fn nearest(role: Role, name: &str) -> Option<&'static Key> {
    let lower = name.to_ascii_lowercase();
    TABLES
        .iter()
        .flat_map(|table| table.iter())
        .filter(|key| role.reads(key.section) && key.section != Section::Old)
        .map(|key| (distance(&lower, &key.name.to_ascii_lowercase()), key))
        .filter(|(far, _)| *far <= 2)
        .min_by_key(|(far, _)| *far)
        .map(|(_, key)| key)
}

/// What a start says of a name that is no key.
pub(crate) fn says_unknown(role: Role, name: &str) -> String {
    match nearest(role, name) {
        Some(key) => format!("not a key of RocketMQ; ignored (did you mean {}?)", key.name),
        None => "not a key of RocketMQ; ignored".to_owned(),
    }
}

/// How many letters have to be put in, taken out or changed to get from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Default, State};

    #[test]
    fn no_section_has_a_name_twice() {
        let mut seen = std::collections::HashSet::new();
        for key in TABLES.iter().flat_map(|table| table.iter()) {
            assert!(seen.insert((format!("{:?}", key.section), key.name)), "{}", key.name);
        }
    }

    #[test]
    fn each_default_of_a_used_key_is_a_value_it_would_take() {
        for key in TABLES.iter().flat_map(|table| table.iter()) {
            if let (State::Used, Default::Value(value)) = (key.state, key.default) {
                assert_eq!(key.kind.objection(value), None, "{} = {value:?}", key.name);
            }
        }
    }

    #[test]
    fn a_renamed_key_leads_to_one_that_exists() {
        for (old, new) in RENAMED {
            assert!(find(Role::Broker, new).is_some(), "{old} -> {new}");
            assert!(find(Role::Broker, old).is_none(), "{old} is both");
        }
    }

    #[test]
    fn a_key_with_a_typing_error_is_recognised() {
        assert_eq!(nearest(Role::Broker, "brokerNam").map(|key| key.name), Some("brokerName"));
        assert_eq!(nearest(Role::Broker, "fileReservdTime").map(|key| key.name), Some("fileReservedTime"));
        assert!(nearest(Role::Broker, "somethingElseAltogether").is_none());
    }
}
