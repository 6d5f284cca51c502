//! What operators and tools ask for, a file for each subject.
//!
//! What they read are snapshots. A change goes to the journal first, and its answer leaves when the journal is written. Those whose work
//! grows with a table run beside the network workers (`beside`).

pub(crate) mod access;
pub(crate) mod attributes;
pub(crate) mod cleaning;
pub(crate) mod cold_data;
pub(crate) mod configuration;
pub(crate) mod connections;
pub(crate) mod groups;
pub(crate) mod progress;
pub(crate) mod queues;
pub(crate) mod relay;
pub(crate) mod replicas;
pub(crate) mod reset;
pub(crate) mod rocksdb;
pub(crate) mod runtime;
pub(crate) mod static_topics;
pub(crate) mod timers;
pub(crate) mod topics;

use std::collections::BTreeMap;

/// Entries that 21 and 201 send in one piece to who asks for pieces without saying how large.
const PIECE: i32 = 2000;

/// The part of a table that was asked for: everything, or `count` entries from the `first` on, in the order of their names.
pub(crate) fn piece<T>(table: BTreeMap<String, T>, first: Option<i32>, count: Option<i32>) -> BTreeMap<String, T> {
    let Some(first) = first else { return table };
    let count = count.filter(|count| *count > 0).unwrap_or(PIECE);
    table.into_iter().skip(first.max(0) as usize).take(count as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_sent_whole_or_in_the_piece_that_was_asked_for() {
        let table: BTreeMap<String, usize> = (0..5_000).map(|at| (format!("{at:04}"), at)).collect();
        let of = |first, count| piece(table.clone(), first, count).into_values().collect::<Vec<_>>();
        assert_eq!(of(None, Some(1)).len(), 5_000);
        assert_eq!(of(Some(3), Some(2)), [3, 4]);
        assert_eq!(of(Some(-1), Some(1)), [0]);
        assert_eq!(of(Some(1_000), None), (1_000..3_000).collect::<Vec<_>>());
        assert_eq!(of(Some(0), Some(-5)).len(), 2_000);
        assert!(of(Some(5_000), Some(1)).is_empty());
    }
}
