//! Sending through a client that makes batches: one task of a producer hands its messages over, another one hears the answers.
//!
//! At a million messages a second each look at a clock, and each word from one task to the other, is a part of what is measured. So as long as
//! nothing has to be waited for, credits are taken and given back, and the clock is read, for several messages at once.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use client::Pending;
use env::Clock;
use tokio::sync::{Semaphore, mpsc};

use super::{Claim, PAUSE, Turn};

/// Credits that are taken together, if they are there, or given back.
const CREDITS_TOGETHER: usize = 64;

/// So many messages in a row, none of which had to wait, have one time: that of the first.
const SAME_TIME: u32 = 16;

/// The time, as it was read last.
#[derive(Default)]
struct Recent {
    at: Duration,
    /// For how many messages it holds.
    left: u32,
}

impl Recent {
    fn read(&mut self, clock: &Clock) -> Duration {
        if self.left == 0 {
            *self = Recent { at: clock.elapsed(), left: SAME_TIME };
        }
        self.left -= 1;
        self.at
    }

    /// Somebody has waited since.
    fn forget(&mut self) {
        self.left = 0;
    }
}

impl Turn {
    /// The task that sends for a whole producer: it waits for credits and for the client's room, and leaves the answers to
    /// [`Turn::hear`]. A task a message would take longer to wake than the message takes to send.
    pub(super) async fn hand_over(
        self: Arc<Self>,
        credits: Arc<Semaphore>,
        tell: mpsc::UnboundedSender<(Claim, Pending)>,
    ) {
        let clock = &self.phase.scene.clock;
        let (mut granted, mut recent) = (0, Recent::default());
        // Ends with the last message, or when nobody hears any more.
        loop {
            // First the credit: a message is due when it may be sent, as with a task of its own.
            if granted == 0 {
                granted = ready_or(take_some(&credits), || recent.forget()).await;
            }
            let Some(claim) = self.claim(|| recent.read(clock)).await else { return };
            self.phase.scene.ledger.send(self.one.index, claim.first, claim.count);
            let message = self.message(claim.first, claim.due, 0);
            match ready_or(self.one.hand_over(claim.first, message), || recent.forget()).await {
                Ok(pending) => {
                    granted -= 1;
                    if tell.send((claim, pending)).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    self.settle(&claim, Err(error), clock.elapsed());
                    tokio::time::sleep(PAUSE).await;
                    recent.forget();
                }
            }
        }
    }

    /// Waits for the answers in the order in which messages were handed over: one that overtakes others counts when they have come too.
    pub(super) async fn hear(
        self: Arc<Self>,
        credits: Arc<Semaphore>,
        mut told: mpsc::UnboundedReceiver<(Claim, Pending)>,
    ) {
        let clock = &self.phase.scene.clock;
        let (mut was_sent, mut freed, mut recent) = (true, 0, Recent::default());
        // Nobody waits for credits while this task waits for something else.
        let give_back = |freed: &mut usize, recent: &mut Recent| {
            credits.add_permits(std::mem::take(freed));
            recent.forget();
        };
        while let Some((claim, pending)) = ready_or(told.recv(), || give_back(&mut freed, &mut recent)).await {
            let answer = ready_or(pending.status(), || give_back(&mut freed, &mut recent)).await;
            let is_sent = self.settle(&claim, answer, recent.read(clock));
            // A batch fails as a whole; one pause for all of its messages.
            if was_sent && !is_sent {
                tokio::time::sleep(PAUSE).await;
                recent.forget();
            }
            was_sent = is_sent;
            freed += 1;
            if freed == CREDITS_TOGETHER {
                credits.add_permits(std::mem::take(&mut freed));
            }
        }
    }
}

/// Waits for a credit, and takes those along that are there.
async fn take_some(credits: &Semaphore) -> usize {
    // Never closed.
    let Ok(first) = credits.acquire().await else { return std::future::pending().await };
    first.forget();
    let more = credits.available_permits().min(CREDITS_TOGETHER - 1);
    // Nobody else takes any.
    match credits.try_acquire_many(more as u32) {
        Ok(permits) => {
            permits.forget();
            1 + more
        }
        Err(_) => 1,
    }
}

/// Waits for `next`; if it is not ready, `before_wait` is done first.
async fn ready_or<T>(next: impl Future<Output = T>, before_wait: impl FnOnce()) -> T {
    let mut next = pin!(next);
    let first = std::future::poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
    match first {
        Poll::Ready(ready) => ready,
        Poll::Pending => {
            before_wait();
            next.await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn credits_that_are_there_are_taken_along_and_none_is_waited_for() {
        let credits = Semaphore::new(CREDITS_TOGETHER + 3);
        assert_eq!(take_some(&credits).await, CREDITS_TOGETHER);
        assert_eq!(take_some(&credits).await, 3);
        assert_eq!(credits.available_permits(), 0);
        // The second one gives what the first one waits for.
        let (taken, ()) = tokio::join!(take_some(&credits), async { credits.add_permits(1) });
        assert_eq!((taken, credits.available_permits()), (1, 0));
    }

    #[tokio::test]
    async fn what_is_to_be_done_before_a_wait_is_done_before_it_and_only_then() {
        let credits = Semaphore::new(0);
        let ready = ready_or(async { 1 }, || unreachable!("nothing was waited for"));
        assert_eq!(ready.await, 1);
        drop(ready_or(credits.acquire(), || credits.add_permits(1)).await.unwrap());
    }

    #[test]
    fn a_time_holds_for_some_messages_and_not_over_a_wait() {
        let (clock, hand) = Clock::manual(env::TimeMs(0));
        let mut recent = Recent::default();
        let mut read_a_millisecond_later = |is_after_wait: bool| {
            hand.advance(Duration::from_millis(1));
            if is_after_wait {
                recent.forget();
            }
            recent.read(&clock).as_millis()
        };
        assert!((0..SAME_TIME).all(|_| read_a_millisecond_later(false) == 1));
        assert_eq!(read_a_millisecond_later(false), u128::from(SAME_TIME) + 1);
        assert_eq!(read_a_millisecond_later(true), u128::from(SAME_TIME) + 2);
    }
}
