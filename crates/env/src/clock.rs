//! The time, as one handle with two faces: the wall clock that messages carry, and a monotonic one for waiting.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01 UTC, as every RocketMQ timestamp counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeMs(pub i64);

impl TimeMs {
    /// How long `self` is after `earlier`, in milliseconds; negative if it is before.
    pub fn since(self, earlier: TimeMs) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<i64> for TimeMs {
    type Output = TimeMs;

    fn add(self, ms: i64) -> TimeMs {
        TimeMs(self.0.saturating_add(ms))
    }
}

impl Sub<i64> for TimeMs {
    type Output = TimeMs;

    fn sub(self, ms: i64) -> TimeMs {
        TimeMs(self.0.saturating_sub(ms))
    }
}

impl fmt::Display for TimeMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tells the time. Cheap to clone, and every clone tells the same time.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Machine { started: Instant },
    Manual(Arc<ManualTime>),
}

#[derive(Debug)]
struct ManualTime {
    started_ms: i64,
    // Relaxed everywhere: the values stand alone, nothing is published through them.
    now_ms: AtomicI64,
    /// By how much the wall clock was set.
    set_by_ms: AtomicI64,
}

/// The hand that moves a manual [`Clock`].
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualTime>);

impl Clock {
    /// The machine's own clocks.
    pub fn real() -> Clock {
        Clock(Source::Machine { started: Instant::now() })
    }

    /// The machine's own clocks, as if made that long ago: several processes that agree on when something began share its time.
    pub fn begun(ago: Duration) -> Clock {
        let now = Instant::now();
        // Longer ago than the machine can tell counts from now.
        Clock(Source::Machine { started: now.checked_sub(ago).unwrap_or(now) })
    }

    /// A clock that stands at `start` until its hand moves it.
    pub fn manual(start: TimeMs) -> (Clock, ManualClock) {
        let time =
            Arc::new(ManualTime { started_ms: start.0, now_ms: AtomicI64::new(start.0), set_by_ms: AtomicI64::new(0) });
        (Clock(Source::Manual(Arc::clone(&time))), ManualClock(time))
    }

    /// The wall clock. It may step back when the machine's clock is set.
    pub fn now(&self) -> TimeMs {
        match &self.0 {
            Source::Machine { .. } => machine_now(),
            Source::Manual(time) => {
                TimeMs(time.now_ms.load(Ordering::Relaxed)) + time.set_by_ms.load(Ordering::Relaxed)
            }
        }
    }

    /// Time since this clock was made. It never steps back; use it for time-outs.
    pub fn elapsed(&self) -> Duration {
        match &self.0 {
            Source::Machine { started } => started.elapsed(),
            Source::Manual(time) => {
                let ms = time.now_ms.load(Ordering::Relaxed).saturating_sub(time.started_ms);
                Duration::from_millis(u64::try_from(ms).unwrap_or(0))
            }
        }
    }
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.0.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Sets the wall clock forward or, by a negative number, back; no time passes.
    pub fn set_by(&self, ms: i64) {
        self.0.set_by_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

// The one place that may ask the machine: everything else receives a `Clock`.
#[allow(clippy::disallowed_methods)]
fn machine_now() -> TimeMs {
    // A machine whose clock stands before 1970 gets 1970.
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimeMs(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_its_hand_does() {
        let (clock, hand) = Clock::manual(TimeMs(1_000));
        assert_eq!(clock.now(), TimeMs(1_000));
        assert_eq!(clock.elapsed(), Duration::ZERO);
        hand.advance(Duration::from_millis(250));
        assert_eq!(clock.now(), TimeMs(1_250));
        assert_eq!(clock.clone().elapsed(), Duration::from_millis(250));
    }

    #[test]
    fn a_clock_that_was_begun_earlier_shows_more_time() {
        let clock = Clock::begun(Duration::from_millis(5));
        assert!(clock.elapsed() >= Duration::from_millis(5));
    }

    #[test]
    fn setting_the_wall_clock_lets_no_time_pass() {
        let (clock, hand) = Clock::manual(TimeMs(1_000));
        hand.set_by(-400);
        assert_eq!((clock.now(), clock.elapsed()), (TimeMs(600), Duration::ZERO));
    }
}
