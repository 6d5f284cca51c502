//! Why throughput fell: what senders and readers waited for, by cause, and a look at it every `throughputWindowMillis`.
//!
//! A window in which fewer messages were stored than nine tenths of what is usual (the median of the thirty before, of five minutes as it is set) is a fall if
//! somebody waited for something for longer than usual: that is its cause. If nobody did, less was sent, and that is no fall.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// SYNC_FLUSH: the device had not confirmed yet what was written. With a write pool: it was not written yet.
    Flush,
    /// SYNC_MASTER: not enough slaves had what was written.
    Replica,
    /// The log had no room because memory had to be given back first.
    Reclaim,
    /// Somebody else held the end of the log.
    Lock,
    /// A peer did not take its replies.
    Network,
    /// The log had no room because the device had not made it yet.
    Disk,
}

impl Cause {
    pub(crate) const ALL: [Cause; 6] =
        [Cause::Flush, Cause::Replica, Cause::Reclaim, Cause::Lock, Cause::Network, Cause::Disk];

    /// As it stands in metrics and in the log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Cause::Flush => "flush",
            Cause::Replica => "replica",
            Cause::Reclaim => "reclaim",
            Cause::Lock => "lock",
            Cause::Network => "network",
            Cause::Disk => "disk",
        }
    }
}

/// How long was waited since the start, by [`Cause::ALL`]: of all who waited together, so that a second may have many.
pub(crate) type Waited = [Duration; Cause::ALL.len()];

/// What the broker itself sees waiting; the store and the connections know the rest. Relaxed: gauges.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    flush_ns: AtomicU64,
    replica_ns: AtomicU64,
    reclaim_ns: AtomicU64,
    disk_ns: AtomicU64,
}

impl Waits {
    pub(crate) fn add(&self, cause: Cause, waited: Duration) {
        let gauge = match cause {
            Cause::Flush => &self.flush_ns,
            Cause::Replica => &self.replica_ns,
            Cause::Reclaim => &self.reclaim_ns,
            Cause::Disk => &self.disk_ns,
            // Counted where it happens.
            Cause::Lock | Cause::Network => return,
        };
        gauge.fetch_add(u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// With what others saw.
    pub(crate) fn all(&self, lock: Duration, network: Duration) -> Waited {
        let of = |gauge: &AtomicU64| Duration::from_nanos(gauge.load(Ordering::Relaxed));
        [of(&self.flush_ns), of(&self.replica_ns), of(&self.reclaim_ns), lock, network, of(&self.disk_ns)]
    }
}

/// Windows that say what is usual: five minutes of them, if nobody sets another length.
const WINDOWS: usize = 30;
/// Fewer say nothing.
const WINDOWS_MIN: usize = 6;
/// So few messages in a window come and go by themselves.
const MESSAGES_MIN: u64 = 1000;
/// What somebody has to have waited for longer than usual, of a window, in percent.
const WAITED_PERCENT: u32 = 5;

/// What happened in one window.
#[derive(Clone, Copy, Debug)]
struct Window {
    messages: u64,
    waited: Waited,
}

/// A window in which throughput fell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fall {
    /// Messages of the window.
    pub(crate) messages: u64,
    /// Those of a usual one.
    pub(crate) usual: u64,
    pub(crate) cause: Cause,
    /// How long was waited for it in the window, by all who did.
    pub(crate) waited: Duration,
}

/// Remembers the last windows. A state machine without a clock: whoever looks says what it is now.
#[derive(Debug, Default)]
pub(crate) struct Falls {
    /// The counts at the last look.
    before: Option<(u64, Waited)>,
    windows: VecDeque<Window>,
    has_fallen: bool,
}

impl Falls {
    /// Ends a window, which was `took` long, with all that was counted since the start. Says of a fall once, until it is over.
    pub(crate) fn look(&mut self, messages: u64, waited: Waited, took: Duration) -> Option<Fall> {
        let (messages_before, waited_before) = self.before.replace((messages, waited))?;
        let mut since = waited;
        for (now, before) in since.iter_mut().zip(waited_before) {
            *now = now.saturating_sub(before);
        }
        let window = Window { messages: messages.saturating_sub(messages_before), waited: since };
        let fall = self.fall(&window, took);
        if self.windows.len() >= WINDOWS {
            self.windows.pop_front();
        }
        self.windows.push_back(window);
        let is_new = fall.is_some() && !self.has_fallen;
        self.has_fallen = fall.is_some();
        fall.filter(|_| is_new)
    }

    fn fall(&self, window: &Window, took: Duration) -> Option<Fall> {
        if self.windows.len() < WINDOWS_MIN {
            return None;
        }
        let usual = median(self.windows.iter().map(|window| window.messages))?;
        if usual < MESSAGES_MIN || window.messages.saturating_mul(10) >= usual.saturating_mul(9) {
            return None;
        }
        let longer = |place: usize| {
            let usual = median(self.windows.iter().map(|window| window.waited[place])).unwrap_or_default();
            window.waited[place].saturating_sub(usual)
        };
        let place = (0..Cause::ALL.len()).max_by_key(|place| longer(*place))?;
        let is_cause = longer(place) * 100 >= took * WAITED_PERCENT;
        let (cause, waited) = (Cause::ALL[place], window.waited[place]);
        is_cause.then_some(Fall { messages: window.messages, usual, cause, waited })
    }
}

fn median<T: Ord>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut all: Vec<T> = all.collect();
    all.sort_unstable();
    let middle = all.len() / 2;
    (middle < all.len()).then(|| all.swap_remove(middle))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    /// Windows one after the other: messages, and ms waited by cause.
    struct Play {
        falls: Falls,
        messages: u64,
        waited: Waited,
    }

    impl Play {
        fn steady() -> Play {
            let mut play = Play { falls: Falls::default(), messages: 0, waited: Waited::default() };
            assert_eq!(play.falls.look(0, play.waited, TEN), None);
            for _ in 0..WINDOWS_MIN {
                assert_eq!(play.window(10_000, [100, 0, 0, 20, 3000, 0]), None);
            }
            play
        }

        fn window(&mut self, messages: u64, waited_ms: [u64; 6]) -> Option<Fall> {
            self.messages += messages;
            for (sum, ms) in self.waited.iter_mut().zip(waited_ms) {
                *sum += Duration::from_millis(ms);
            }
            self.falls.look(self.messages, self.waited, TEN)
        }
    }

    #[test]
    fn a_fall_is_put_down_to_what_was_waited_for_longer_than_usual() {
        for (place, cause) in Cause::ALL.into_iter().enumerate() {
            let mut play = Play::steady();
            let mut waited = [100, 0, 0, 20, 3000, 0];
            waited[place] += 4000;
            let fall = play.window(8_000, waited).unwrap();
            let expected = Duration::from_millis(waited[place]);
            assert_eq!(fall, Fall { messages: 8_000, usual: 10_000, cause, waited: expected });
        }
    }

    #[test]
    fn less_that_is_sent_is_no_fall_and_neither_is_a_tenth() {
        let mut play = Play::steady();
        assert_eq!(play.window(0, [0; 6]), None);
        assert_eq!(play.window(9_000, [9000; 6]), None);
        assert_eq!(play.window(8_000, [300, 0, 0, 20, 3000, 0]), None, "hardly longer than usual");
    }

    #[test]
    fn a_fall_is_told_once_and_again_when_it_was_over() {
        let mut play = Play::steady();
        assert!(play.window(5_000, [9000, 0, 0, 20, 3000, 0]).is_some());
        assert_eq!(play.window(5_000, [9000, 0, 0, 20, 3000, 0]), None);
        assert_eq!(play.window(10_000, [100, 0, 0, 20, 3000, 0]), None);
        assert!(play.window(5_000, [9000, 0, 0, 20, 3000, 0]).is_some());
    }

    #[test]
    fn nothing_is_said_before_it_is_known_what_is_usual() {
        let mut falls = Falls::default();
        for number in 0..WINDOWS_MIN as u64 {
            let waited = [Duration::from_secs(number * number * 100); 6];
            assert_eq!(falls.look(20_000 - number.pow(2) * 100 + number * 5000, waited, TEN), None);
        }
    }
}
