//! [`Watermark`] itself.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use super::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, Thread, current, park_timeout, wait_in_turns};

/// How far the log has come in one respect: written, flushed, or replicated.
///
/// It only grows. Everything below it holds; nothing at or above it is promised.
pub struct Watermark {
    reached: AtomicU64,
    /// How many entries `parked` has, so that `advance` need not take the lock to learn that it is empty.
    waiting: AtomicUsize,
    /// Guards the waiters, nothing else. No other lock is taken while it is held, and nobody is woken under it.
    parked: Mutex<Parked>,
}

/// Waiters by height and ticket: those that an advance has reached are a prefix.
#[derive(Default)]
struct Parked {
    next_ticket: u64,
    wakers: BTreeMap<(u64, u64), Waker>,
}

impl Watermark {
    /// A watermark that stands at `start`.
    pub fn new(start: u64) -> Watermark {
        Watermark {
            reached: AtomicU64::new(start),
            waiting: AtomicUsize::new(0),
            parked: Mutex::new(Parked::default()),
        }
    }

    /// Where it stands.
    pub fn get(&self) -> u64 {
        // Acquire pairs with the SeqCst (hence Release) in `advance`: seeing the value is seeing what it stands for.
        self.reached.load(Ordering::Acquire)
    }

    /// Raises it to `to` and wakes everybody whose height is reached by that. Lower than now: does nothing.
    pub fn advance(&self, to: u64) {
        // SeqCst, like the pair in `park`: of this write and the waiter's announcement one comes first in the single order,
        // so either we see the waiter, or the waiter sees the value. With anything weaker both could miss each other.
        if self.reached.fetch_max(to, Ordering::SeqCst) >= to || self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.wake_reached(to);
    }

    /// A future that ends when the watermark stands at `height` or above. Dropping it leaves nothing behind.
    pub fn reached(&self, height: u64) -> Reached<'_> {
        Reached { mark: self, height, ticket: None }
    }

    /// Blocks this thread until the watermark stands at `height` (true) or `deadline` has passed (false).
    pub fn wait_until(&self, height: u64, deadline: Instant) -> bool {
        if self.get() >= height {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if let Some(is_reached) = wait_in_turns(left, || self.get() >= height) {
            return is_reached;
        }
        let waker = Waker::from(std::sync::Arc::new(Unpark(current())));
        let mut ticket = None;
        // Ends when the height is reached or the deadline has passed; an early or stale unpark only goes round once more.
        loop {
            if self.park(height, &mut ticket, &waker) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.leave(height, ticket);
                // It may have been reached while we left.
                return self.get() >= height;
            }
            park_timeout(left);
        }
    }

    /// How many wait at this moment.
    pub fn waiters(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Registers (or renews) a waiter, unless its height is reached: then says true, and the waiter is not registered.
    fn park(&self, height: u64, ticket: &mut Option<u64>, waker: &Waker) -> bool {
        if self.get() >= height {
            self.leave(height, ticket.take());
            return true;
        }
        let mut parked = self.parked.lock();
        let number = *ticket.get_or_insert_with(|| {
            parked.next_ticket += 1;
            parked.next_ticket
        });
        parked.wakers.insert((height, number), waker.clone());
        self.waiting.store(parked.wakers.len(), Ordering::SeqCst);
        // The second look, after the announcement: see `advance`.
        if self.reached.load(Ordering::SeqCst) < height {
            return false;
        }
        parked.wakers.remove(&(height, number));
        self.waiting.store(parked.wakers.len(), Ordering::SeqCst);
        *ticket = None;
        true
    }

    fn leave(&self, height: u64, ticket: Option<u64>) {
        let Some(ticket) = ticket else { return };
        let mut parked = self.parked.lock();
        // An advance may have taken it out already.
        let waker = parked.wakers.remove(&(height, ticket));
        self.waiting.store(parked.wakers.len(), Ordering::SeqCst);
        drop(parked);
        // A waker's drop is somebody else's code: not under our lock.
        drop(waker);
    }

    #[cold]
    fn wake_reached(&self, to: u64) {
        let reached = {
            let mut parked = self.parked.lock();
            // A concurrent advance may have gone further; waking up to `to` is our part, the rest is its.
            let Some(first_beyond) = to.checked_add(1) else {
                self.waiting.store(0, Ordering::SeqCst);
                return wake_all(std::mem::take(&mut parked.wakers));
            };
            let beyond = parked.wakers.split_off(&(first_beyond, 0));
            let reached = std::mem::replace(&mut parked.wakers, beyond);
            self.waiting.store(parked.wakers.len(), Ordering::SeqCst);
            reached
        };
        wake_all(reached);
    }
}

fn wake_all(wakers: BTreeMap<(u64, u64), Waker>) {
    for waker in wakers.into_values() {
        waker.wake();
    }
}

/// Waits for a [`Watermark`] to stand at a height.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Reached<'a> {
    mark: &'a Watermark,
    height: u64,
    /// Set while we are registered, as far as we know: an advance takes us out without telling us here.
    ticket: Option<u64>,
}

impl Future for Reached<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.mark.park(this.height, &mut this.ticket, cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Reached<'_> {
    fn drop(&mut self) {
        self.mark.leave(self.height, self.ticket.take());
    }
}

/// Wakes a thread that is parked in `wait_until`.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

impl std::fmt::Debug for Watermark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watermark({} reached, {} waiting)", self.get(), self.waiters())
    }
}
