//! How the transactions of a topic ended, and how long they were open.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Upper bounds of RocketMQ's classes, in seconds, each included.
pub(crate) const AGES: [u64; 6] = [5, 60, 600, 3600, 12 * 3600, 24 * 3600];
const CLASSES: usize = AGES.len() + 1;

/// Relaxed, as all figures.
#[derive(Debug, Default)]
struct Counts {
    by_age: [AtomicU64; CLASSES],
    seconds: AtomicU64,
    rolled_back: AtomicU64,
}

/// Ends of transactions. Most topics have none, and no place for them.
#[derive(Debug, Default)]
pub(super) struct Ends(OnceLock<Box<Counts>>);

/// What was counted of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndsCounted {
    /// Committed ones by how old they were.
    pub(crate) by_age: [u64; CLASSES],
    /// How old all of these were together.
    pub(crate) seconds: u64,
    pub(crate) rolled_back: u64,
}

impl EndsCounted {
    pub(crate) fn committed(&self) -> u64 {
        self.by_age.iter().sum()
    }
}

impl Ends {
    /// One was committed, so long after its half message was sent.
    pub(super) fn committed(&self, age_ms: i64) {
        let counts = self.0.get_or_init(Box::default);
        let seconds = age_ms.max(0).unsigned_abs() / 1000;
        let class = AGES.partition_point(|bound| *bound < seconds);
        counts.by_age[class].fetch_add(1, Ordering::Relaxed);
        counts.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// One was rolled back.
    pub(super) fn rolled_back(&self) {
        self.0.get_or_init(Box::default).rolled_back.fetch_add(1, Ordering::Relaxed);
    }

    /// None if there never was one.
    pub(super) fn counted(&self) -> Option<EndsCounted> {
        let counts = self.0.get()?;
        Some(EndsCounted {
            by_age: std::array::from_fn(|class| counts.by_age[class].load(Ordering::Relaxed)),
            seconds: counts.seconds.load(Ordering::Relaxed),
            rolled_back: counts.rolled_back.load(Ordering::Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_counted_by_age_and_a_clock_that_was_set_back_makes_none_negative() {
        let ends = Ends::default();
        assert_eq!(ends.counted(), None);
        for age_ms in [-1, 5_999, 6_000, 60_000, 90_000_000] {
            ends.committed(age_ms);
        }
        ends.rolled_back();
        let counted = ends.counted().unwrap();
        assert_eq!(counted.by_age, [2, 2, 0, 0, 0, 0, 1]);
        assert_eq!((counted.committed(), counted.rolled_back, counted.seconds), (5, 1, 5 + 6 + 60 + 90_000));
    }
}
