//! How much memory the requests and replies of all connections together may hold.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use parking_lot::Mutex;

/// What a connection may hold anyway, of requests as of replies, of these in each place where they wait. Not counted.
pub(crate) const OWN_BYTES: usize = 64 << 10;

/// A bound on buffered bytes that connections share. What each may hold anyway (64 KiB) is not counted.
///
/// A connection takes what its buffer is about to grow by, which is no more than its peer has sent so far; whoever finds no
/// room waits in line. Those that hold some stand in front, because the others may be waiting for it, and one of them at a
/// time (it has the turn) is let in beyond the bound, because they may be waiting for each other: so there is always one that
/// can finish its frame. What requests take exceeds the bound by one frame at most.
///
/// Replies are counted too, and with them requests of our own to a peer, but never keep requests out altogether: peers that do not
/// read them hold up half of the bound at most. They are counted once they are there, and from then on bound themselves: while
/// they hold more than half, or all of it together with requests, whoever has his own share full of them gets no more until his
/// peer has taken some. Nobody waits for another one's peer: whoever reads goes on with his own share. What replies take exceeds
/// the bound by one answer of each that is being served, and by the last answer of each other.
#[derive(Debug)]
pub struct Budget {
    max_bytes: usize,
    /// How long peers did not take what was written to them. Relaxed: a gauge.
    unread_ns: AtomicU64,
    /// Whether replies hold more than they may. Written under `state`. Relaxed: nothing else is read by it, and who sees it late
    /// adds one answer more.
    replies_are_many: AtomicBool,
    /// Guards the count and who waits for it to fall; innermost, held for a few instructions.
    state: Mutex<BoundState>,
}

#[derive(Debug, Default)]
struct BoundState {
    /// What requests take.
    used_bytes: usize,
    /// What replies take.
    reply_bytes: usize,
    /// Those that hold something first; otherwise in the order in which they came.
    waiting: VecDeque<Waiting>,
    /// The connection that was let in beyond the bound and has not given back since.
    turn: Option<u64>,
}

#[derive(Debug)]
struct Waiting {
    connection: u64,
    holds_some: bool,
    waker: Waker,
}

/// What one buffer of replies holds beyond its connection's own. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Account {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Account {
    /// Nothing yet.
    pub(crate) fn new(budget: Arc<Budget>) -> Account {
        Account { budget, bytes: 0 }
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// It has come to so much. Costs a comparison while that does not change.
    pub(crate) fn is_now(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.budget.take_anyway(bytes - self.bytes);
        } else {
            self.budget.give(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// The buffer of another one, of the same budget, has come here.
    pub(crate) fn take_over(&mut self, other: &mut Account) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.is_now(0);
    }
}

/// Replies of one connection that are kept back before they come to its output, counted by whoever keeps them: they may hold as much as what lies
/// there. Given back when dropped.
#[derive(Debug)]
pub struct KeptBack {
    bytes: usize,
    /// From so many bytes on it is full.
    full_from: usize,
    /// And from so many on while replies of all connections hold more than they may.
    own_bytes: usize,
    account: Account,
}

impl KeptBack {
    /// Nothing yet.
    pub(crate) fn new(bytes_max: usize, own_bytes: usize, budget: Arc<Budget>) -> KeptBack {
        KeptBack { bytes: 0, full_from: bytes_max.max(1), own_bytes: own_bytes.max(1), account: Account::new(budget) }
    }

    /// So many bytes more are kept back.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.settle();
    }

    /// So many have come to the output, or were given up.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn remove(&mut self, bytes: usize) {
        assert!(self.bytes >= bytes, "more bytes of replies let go than were kept back");
        self.bytes -= bytes;
        self.settle();
    }

    /// Whether no more should be added before some are gone. Never while there are none. What others hold changes it at any time, so whoever
    /// stops because of it asks once and keeps the answer.
    pub fn is_full(&self) -> bool {
        self.bytes >= self.full_from || self.bytes >= self.own_bytes && self.account.budget().replies_are_many()
    }

    fn settle(&mut self) {
        self.account.is_now(self.bytes.saturating_sub(OWN_BYTES));
    }
}

/// Bytes that outlive the turn of the connection that brought them. Given back when dropped.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.change(|state| state.used_bytes -= self.bytes);
    }
}

impl BoundState {
    /// Whoever is first in line looks again whether it is let in.
    fn first(&self) -> Option<Waker> {
        self.waiting.front().map(|first| first.waker.clone())
    }

    /// What counts against the bound.
    fn counted_bytes(&self, max_bytes: usize) -> usize {
        self.used_bytes + self.reply_bytes.min(max_bytes / 2)
    }

    fn replies_are_many(&self, max_bytes: usize) -> bool {
        self.reply_bytes > max_bytes / 2 || self.used_bytes.saturating_add(self.reply_bytes) > max_bytes
    }

    fn leave(&mut self, connection: u64) {
        if let Some(place) = self.waiting.iter().position(|waiting| waiting.connection == connection) {
            self.waiting.remove(place);
        }
    }
}

impl Budget {
    /// `max_bytes` for all connections that share it.
    pub fn new(max_bytes: usize) -> Budget {
        let (unread_ns, replies_are_many) = (AtomicU64::new(0), AtomicBool::new(false));
        Budget { max_bytes, unread_ns, replies_are_many, state: Mutex::default() }
    }

    /// How long peers have not taken what was written to them since the start, all connections together.
    pub fn unread(&self) -> Duration {
        Duration::from_nanos(self.unread_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn was_unread(&self, waited: Duration) {
        self.unread_ns.fetch_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// What is taken now.
    pub fn used_bytes(&self) -> usize {
        let state = self.state.lock();
        state.used_bytes + state.reply_bytes
    }

    /// What replies take of that.
    pub fn reply_bytes(&self) -> usize {
        self.state.lock().reply_bytes
    }

    /// The bound.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// While replies take more than that, whoever has his own share full of them gets no more until his peer has taken some.
    pub fn reply_bytes_max(&self) -> usize {
        self.max_bytes / 2
    }

    /// Takes `bytes` on top of the `own` that this connection holds, or puts it in line and remembers whom to wake.
    /// While no other request holds anything the first in line is let in, whatever it needs.
    pub(crate) fn take(&self, bytes: usize, own: usize, connection: u64, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        let holds_some = own > 0;
        let is_first =
            state.waiting.front().is_none_or(|first| first.connection == connection || holds_some && !first.holds_some);
        let fits = state.counted_bytes(self.max_bytes).saturating_add(bytes) <= self.max_bytes;
        let has_turn = state.turn == Some(connection);
        let gets_turn = is_first && holds_some && state.turn.is_none();
        if !(has_turn || gets_turn || is_first && (fits || state.used_bytes <= own)) {
            match state.waiting.iter_mut().find(|waiting| waiting.connection == connection) {
                Some(known) => known.waker.clone_from(waker),
                None => {
                    let place = if holds_some {
                        state.waiting.partition_point(|waiting| waiting.holds_some)
                    } else {
                        state.waiting.len()
                    };
                    state.waiting.insert(place, Waiting { connection, holds_some, waker: waker.clone() });
                }
            }
            return false;
        }
        if !fits && state.used_bytes > own {
            state.turn = Some(connection);
        }
        state.used_bytes += bytes;
        state.leave(connection);
        self.note_replies(&state);
        let next = state.first();
        drop(state);
        if let Some(waker) = next {
            waker.wake();
        }
        true
    }

    /// Takes `bytes` for as long as what is returned lives; none when there is no room for them now. Nobody waits for it.
    pub fn try_hold(self: &Arc<Self>, bytes: usize) -> Option<Held> {
        let mut state = self.state.lock();
        let used_bytes = state.used_bytes.checked_add(bytes).filter(|used| *used <= self.max_bytes)?;
        state.used_bytes = used_bytes;
        self.note_replies(&state);
        drop(state);
        Some(Held { budget: Arc::clone(self), bytes })
    }

    /// Whether it is time to give back at once what would otherwise be kept for the next large frame.
    pub(crate) fn is_tight(&self) -> bool {
        self.used_bytes() > self.max_bytes / 2
    }

    /// Whether somebody stands in line.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Whether replies hold so much that nobody should have more of them than his own.
    pub(crate) fn replies_are_many(&self) -> bool {
        self.replies_are_many.load(Ordering::Relaxed)
    }

    fn note_replies(&self, state: &BoundState) {
        let are_many = state.replies_are_many(self.max_bytes);
        if self.replies_are_many() != are_many {
            self.replies_are_many.store(are_many, Ordering::Relaxed);
        }
    }

    /// Takes `bytes` that are already there (replies): the next large frame waits for them.
    fn take_anyway(&self, bytes: usize) {
        let mut state = self.state.lock();
        state.reply_bytes += bytes;
        self.note_replies(&state);
    }

    /// Gives back `bytes` of replies.
    fn give(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.change(|state| {
            assert!(state.reply_bytes >= bytes, "more bytes of replies given back than taken");
            state.reply_bytes -= bytes;
        });
    }

    /// Gives back the `bytes` that a connection took, and the turn if it has it.
    pub(crate) fn give_back(&self, bytes: usize, connection: u64) {
        self.change(|state| {
            assert!(state.used_bytes >= bytes, "more bytes given back than taken");
            state.used_bytes -= bytes;
            state.turn = state.turn.filter(|holder| *holder != connection);
        });
    }

    /// A connection waits no longer.
    pub(crate) fn forget(&self, connection: u64) {
        self.change(|state| state.leave(connection));
    }

    fn change(&self, change: impl FnOnce(&mut BoundState)) {
        let next = {
            let mut state = self.state.lock();
            change(&mut state);
            self.note_replies(&state);
            state.first()
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAKER: &Waker = Waker::noop();

    #[test]
    fn whoever_waits_is_let_in_in_the_order_of_coming() {
        let budget = Budget::new(10);
        assert!(budget.take(10, 0, 1, WAKER));
        assert!(!budget.take(8, 0, 2, WAKER) && !budget.take(1, 0, 3, WAKER));
        budget.give_back(5, 1);
        assert!(!budget.take(1, 0, 3, WAKER), "it would fit, but another came first");
        budget.give_back(5, 1);
        assert!(budget.take(8, 0, 2, WAKER) && budget.take(1, 0, 3, WAKER));
    }

    #[test]
    fn what_is_held_counts_until_it_is_dropped_and_never_exceeds_the_bound() {
        let budget = Arc::new(Budget::new(10));
        let held = budget.try_hold(6).unwrap();
        assert!(budget.try_hold(5).is_none() && !budget.take(5, 0, 1, WAKER));
        drop(held);
        assert!(budget.take(5, 0, 1, WAKER) && budget.try_hold(5).is_some());
        assert_eq!(budget.used_bytes(), 5);
    }

    #[test]
    fn of_those_that_hold_some_while_they_wait_one_at_a_time_is_let_in_beyond_the_bound() {
        let budget = Budget::new(10);
        assert!(budget.take(5, 0, 1, WAKER) && budget.take(5, 0, 2, WAKER));
        assert!(!budget.take(4, 0, 3, WAKER));
        assert!(budget.take(3, 5, 1, WAKER), "it may be what the others wait for");
        assert!(!budget.take(3, 5, 2, WAKER), "the bound is exceeded by one only");
        budget.give_back(8, 1);
        assert!(!budget.take(4, 0, 3, WAKER), "one that holds some goes first");
        assert!(budget.take(3, 5, 2, WAKER));
        budget.give_back(8, 2);
        assert!(budget.take(4, 0, 3, WAKER));
        assert_eq!(budget.used_bytes(), 4);
    }

    #[test]
    fn replies_that_nobody_reads_leave_half_to_requests_and_one_of_any_size_is_let_in() {
        let budget = Budget::new(10);
        budget.take_anyway(100);
        assert!(budget.take(5, 0, 1, WAKER), "half is theirs");
        assert!(!budget.take(1, 0, 2, WAKER), "the other half counts");
        budget.give_back(5, 1);
        assert!(budget.take(9, 0, 2, WAKER), "no other request holds anything");
        budget.give_back(9, 2);
        assert_eq!(budget.used_bytes(), 100);
        budget.give(100);
        assert!(budget.take(10, 0, 3, WAKER));
    }

    #[test]
    fn replies_are_many_beyond_half_and_earlier_where_requests_have_the_rest() {
        let budget = Arc::new(Budget::new(10));
        let (mut first, mut second) = (Account::new(Arc::clone(&budget)), Account::new(Arc::clone(&budget)));
        first.is_now(5);
        assert!(!budget.replies_are_many());
        second.is_now(1);
        assert!(budget.replies_are_many());
        first.take_over(&mut second);
        drop(second);
        assert!(budget.replies_are_many(), "what was handed over is still there");
        first.is_now(4);
        assert!(!budget.replies_are_many());
        let held = budget.try_hold(7).unwrap();
        assert!(budget.replies_are_many(), "with requests it is more than all");
        drop(held);
        assert!(!budget.replies_are_many());
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn what_is_kept_back_counts_beyond_its_own_and_is_full_with_that_while_replies_are_many() {
        let budget = Arc::new(Budget::new(4 << 20));
        let mut kept = KeptBack::new(1 << 20, OWN_BYTES, Arc::clone(&budget));
        kept.add(OWN_BYTES);
        assert_eq!((kept.is_full(), budget.reply_bytes()), (false, 0));
        let mut others = Account::new(Arc::clone(&budget));
        others.is_now(budget.reply_bytes_max() + 1);
        assert!(kept.is_full(), "it has its own");
        kept.remove(1);
        assert!(!kept.is_full());
        others.is_now(0);
        kept.add(1 << 20);
        assert_eq!((kept.is_full(), budget.reply_bytes()), (true, (1 << 20) - 1));
        drop(kept);
        assert_eq!(budget.used_bytes(), 0);
    }
}
