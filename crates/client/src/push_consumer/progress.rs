//! How far the consumption of one queue has come.

use std::collections::BTreeMap;

/// The offsets of a queue that were pulled and are not finished.
///
/// Messages finish in any order; what may be committed is only what has nothing unfinished before it, so a crash repeats
/// messages and never skips one.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The bytes of each one's body by offset.
    unfinished: BTreeMap<i64, usize>,
    unfinished_bytes: usize,
    /// Everything below was pulled, or filtered out by the broker.
    pulled_to: i64,
}

impl Progress {
    pub(crate) fn new(from: i64) -> Progress {
        Progress { unfinished: BTreeMap::new(), unfinished_bytes: 0, pulled_to: from }
    }

    /// A message was pulled whose body has `bytes`.
    pub(crate) fn begin(&mut self, offset: i64, bytes: usize) {
        self.finish(offset);
        self.unfinished.insert(offset, bytes);
        self.unfinished_bytes += bytes;
        self.pulled_to = self.pulled_to.max(offset + 1);
    }

    /// The broker says that the next pull begins here.
    pub(crate) fn advance(&mut self, next: i64) {
        self.pulled_to = self.pulled_to.max(next);
    }

    /// A message is done with, one way or the other.
    pub(crate) fn finish(&mut self, offset: i64) {
        if let Some(bytes) = self.unfinished.remove(&offset) {
            self.unfinished_bytes -= bytes;
        }
    }

    /// What may be committed: everything below is finished.
    pub(crate) fn committable(&self) -> i64 {
        self.unfinished.first_key_value().map_or(self.pulled_to, |(offset, _)| *offset)
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Of the bodies of what is unfinished.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.unfinished_bytes
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
            progress.begin(offset, 100);
        }
        progress.advance(15);
        progress.finish(11);
        assert_eq!((progress.committable(), progress.unfinished(), progress.span()), (10, 2, 5));
        progress.finish(10);
        assert_eq!(progress.committable(), 13);
        assert_eq!(progress.unfinished_bytes(), 100);
        progress.finish(13);
        progress.finish(13);
        assert_eq!(progress.unfinished_bytes(), 0);
        assert_eq!((progress.committable(), progress.span()), (15, 0));
    }

    proptest! {
        #[test]
        fn in_whatever_order_messages_finish_the_commit_never_passes_one_that_has_not(
            order in Just((0..50i64).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let mut progress = Progress::new(0);
            (0..50).for_each(|offset| progress.begin(offset, 1));
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
