//! Damaged messages: how often one was read, and which of them were named in the log output.

use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashSet;
use parking_lot::Mutex;

/// Damaged messages that are named in the log output; more are counted only.
const NAMED_MAX: usize = 1000;

/// Damaged messages that were read.
#[derive(Default)]
pub(crate) struct Damaged {
    /// Reads that met one. Relaxed: the number stands alone.
    met: AtomicU64,
    /// Log offsets of those that were named. Guards nothing else; nothing is taken inside it.
    named: Mutex<HashSet<u64>>,
}

impl Damaged {
    /// Counts one, and says whether it is still to be named.
    pub fn count(&self, at: u64) -> bool {
        self.met.fetch_add(1, Ordering::Relaxed);
        let mut named = self.named.lock();
        named.len() < NAMED_MAX && named.insert(at)
    }

    /// Reads that met one.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_message_counts_each_time_and_is_to_be_named_once() {
        let damaged = Damaged::default();
        assert_eq!([7, 7, 9, 7].map(|at| damaged.count(at)), [true, false, true, false]);
        assert_eq!(damaged.met(), 4);
        let named = (100..100 + 2 * NAMED_MAX as u64).filter(|at| damaged.count(*at)).count();
        assert_eq!(named, NAMED_MAX - 2, "and no log output is filled with them");
    }
}
