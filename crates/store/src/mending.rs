//! Damaged units of consume queues, as far as the store knows them; `mend.rs` finds and mends them.

use std::ops::Range;

use parking_lot::Mutex;

/// What a store knows of damaged units.
#[derive(Default)]
pub(crate) struct Mending {
    /// Held while a stretch of the log is read for them, on a thread that may wait. Guards the queues' numbers and places whose records were not
    /// found. The maintenance lock of the queues is taken inside it.
    pub given_up: Mutex<Vec<(String, u32, Range<u64>)>>,
    /// Units found damaged, and lines about them.
    pub counts: Mutex<Counts>,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// Units that were found damaged.
    pub units: u64,
    /// Lines about them.
    pub named: u64,
}
