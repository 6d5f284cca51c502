//! What the clients of a group do not know yet about a queue, until one of them pulls there.

use std::sync::atomic::{AtomicI64, Ordering};

/// The news for the next pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// Clients know where they are.
    None,
    /// Somebody has set where the group goes on. The next pull is told, wherever it asks, and no commit counts until then.
    Reset(i64),
    /// The queue ended there when this process began to serve it, and the one before had crashed. A client that is further has seen messages
    /// which are lost. It is told wherever it asks behind that end, and none of its commits behind it counts, until the group has pulled at the
    /// end or before it: whoever does that misses nothing.
    Ended(i64),
}

/// A [`Notice`] in one number: none is -1, a reset is its offset, and an end is counted down from -2. Relaxed, as the offsets beside it.
pub(super) struct Pending(AtomicI64);

impl Notice {
    fn decode(raw: i64) -> Notice {
        match raw {
            -1 => Notice::None,
            to if to >= 0 => Notice::Reset(to),
            end => Notice::Ended(-2 - end),
        }
    }

    fn encode(self) -> i64 {
        match self {
            Notice::None => -1,
            Notice::Reset(to) => to.max(0),
            Notice::Ended(end) => (-2i64).saturating_sub(end.max(0)),
        }
    }
}

impl Pending {
    pub(super) fn none() -> Pending {
        Pending(AtomicI64::new(Notice::None.encode()))
    }

    pub(super) fn get(&self) -> Notice {
        Notice::decode(self.0.load(Ordering::Relaxed))
    }

    pub(super) fn set(&self, notice: Notice) {
        self.0.store(notice.encode(), Ordering::Relaxed);
    }

    /// Whether a commit of this offset counts.
    pub(super) fn lets_commit(&self, offset: i64) -> bool {
        match self.get() {
            Notice::None => true,
            Notice::Reset(_) => false,
            Notice::Ended(end) => offset <= end,
        }
    }

    /// Where a pull at `asked` is to go on instead. A reset is told once; an end is forgotten with the first pull that is not behind it.
    pub(super) fn tell(&self, asked: i64) -> Option<i64> {
        // Nearly always there is nothing; a swap would make every pull write.
        let notice = self.get();
        match notice {
            Notice::None => None,
            Notice::Ended(end) if asked > end => Some(end),
            Notice::Reset(_) | Notice::Ended(_) => {
                let took = self.0.compare_exchange(
                    notice.encode(),
                    Notice::None.encode(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                match notice {
                    Notice::Reset(to) if took.is_ok() => Some(to),
                    Notice::None | Notice::Reset(_) | Notice::Ended(_) => None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_as_it_was_written() {
        let pending = Pending::none();
        assert_eq!(pending.get(), Notice::None);
        for notice in [0, 1, 2, i64::MAX - 2].into_iter().flat_map(|n| [Notice::Reset(n), Notice::Ended(n)]) {
            pending.set(notice);
            assert_eq!(pending.get(), notice);
        }
    }

    #[test]
    fn a_reset_is_told_to_one_pull_and_an_end_to_all_that_ask_behind_it_until_one_does_not() {
        let pending = Pending::none();
        pending.set(Notice::Reset(7));
        assert!(!pending.lets_commit(7));
        assert_eq!([pending.tell(7), pending.tell(7)], [Some(7), None]);
        pending.set(Notice::Ended(7));
        assert!(pending.lets_commit(7) && !pending.lets_commit(8));
        assert_eq!(
            [pending.tell(8), pending.tell(9), pending.tell(7), pending.tell(9)],
            [Some(7), Some(7), None, None]
        );
        assert!(pending.lets_commit(8));
    }
}
