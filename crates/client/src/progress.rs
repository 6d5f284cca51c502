//! How far the consumption of one queue has come.

use std::collections::BTreeSet;

/// The offsets of a queue that were pulled and are not finished.
///
/// Messages finish in any order; what may be committed is only what has nothing unfinished before it, so a crash repeats
/// messages and never skips one.
#[derive(Debug)]
pub(crate) struct Progress {
    unfinished: BTreeSet<i64>,
    /// Everything below was pulled, or filtered out by the broker.
    pulled_to: i64,
}

impl Progress {
    pub(crate) fn new(from: i64) -> Progress {
        Progress { unfinished: BTreeSet::new(), pulled_to: from }
    }

    /// A message was pulled.
    pub(crate) fn begin(&mut self, offset: i64) {
        self.unfinished.insert(offset);
        self.pulled_to = self.pulled_to.max(offset + 1);
    }

    /// The broker says that the next pull begins here.
    pub(crate) fn advance(&mut self, next: i64) {
        self.pulled_to = self.pulled_to.max(next);
    }

    /// A message is done with, one way or the other.
    pub(crate) fn finish(&mut self, offset: i64) {
        self.unfinished.remove(&offset);
    }

    /// What may be committed: everything below is finished.
    pub(crate) fn committable(&self) -> i64 {
        self.unfinished.first().copied().unwrap_or(self.pulled_to)
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// From the first unfinished to the last pulled: a single message that hangs must not let this grow without end.
    pub(crate) fn span(&self) -> i64 {
        self.pulled_to - self.committable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_lowest_unfinished_offset_is_committed() {
        let mut progress = Progress::new(10);
        assert_eq!(progress.committable(), 10);
        for offset in [10, 11, 13] {
            progress.begin(offset);
        }
        progress.advance(15);
        progress.finish(11);
        assert_eq!((progress.committable(), progress.unfinished(), progress.span()), (10, 2, 5));
        progress.finish(10);
        assert_eq!(progress.committable(), 13);
        progress.finish(13);
        assert_eq!((progress.committable(), progress.span()), (15, 0));
    }

    proptest! {
        #[test]
        fn in_whatever_order_messages_finish_the_commit_never_passes_one_that_has_not(
            order in Just((0..50i64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut progress = Progress::new(0);
            (0..50).for_each(|offset| progress.begin(offset));
            let mut finished = std::collections::HashSet::new();
            for offset in order {
                progress.finish(offset);
                finished.insert(offset);
                let committed = progress.committable();
                prop_assert!((0..committed).all(|below| finished.contains(&below)));
                prop_assert!(committed == 50 || !finished.contains(&committed));
            }
            prop_assert_eq!(progress.committable(), 50);
        }
    }
}
