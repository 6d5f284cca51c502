//! How long messages take to be stored: counted by length of time, read as RocketMQ's distribution and percentiles (28).
//!
//! Counting is one relaxed addition for a burst. The samples that bound the last minute are taken by the task that samples all
//! figures; only it and operators take the lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// Upper bounds in µs, each excluded. What takes longer than all of them has a place of its own at the end.
const BOUNDS_US: [u64; 29] = [
    100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 7_000, 10_000, 15_000, 20_000, 30_000, 40_000, 50_000, 75_000,
    100_000, 150_000, 200_000, 300_000, 400_000, 500_000, 750_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000,
    5_000_000, 10_000_000,
];
const PLACES: usize = BOUNDS_US.len() + 1;

/// Apache's classes: the name, and the bound in µs that it ends below. `0ms` is what takes less than one.
const CLASSES: [(&str, u64); 13] = [
    ("[<=0ms]", 1_000),
    ("[0~10ms]", 10_000),
    ("[10~50ms]", 50_000),
    ("[50~100ms]", 100_000),
    ("[100~200ms]", 200_000),
    ("[200~500ms]", 500_000),
    ("[500ms~1s]", 1_000_000),
    ("[1~2s]", 2_000_000),
    ("[2~3s]", 3_000_000),
    ("[3~4s]", 4_000_000),
    ("[4~5s]", 5_000_000),
    ("[5~10s]", 10_000_000),
    ("[10s~]", u64::MAX),
];

/// Samples that bound the last minute, one every ten seconds.
const SAMPLES: usize = 7;

type Counts = [u64; PLACES];

/// The times of all sends of this broker.
#[derive(Debug)]
pub(crate) struct PutTimes {
    /// Relaxed, as all figures: one may miss what happens this moment.
    counts: [AtomicU64; PLACES],
    longest_us: AtomicU64,
    /// Of all messages together.
    sum_us: AtomicU64,
    failed: AtomicU64,
    samples: Mutex<VecDeque<Counts>>,
}

impl PutTimes {
    pub(crate) fn new() -> PutTimes {
        PutTimes {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            longest_us: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            samples: Mutex::new(VecDeque::from([[0; PLACES]])),
        }
    }

    /// So many messages were stored together, after so long.
    pub(crate) fn stored(&self, messages: usize, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS_US.partition_point(|bound| *bound <= us);
        self.counts[place].fetch_add(messages as u64, Ordering::Relaxed);
        self.sum_us.fetch_add(us.saturating_mul(messages as u64), Ordering::Relaxed);
        if self.longest_us.load(Ordering::Relaxed) < us {
            self.longest_us.fetch_max(us, Ordering::Relaxed);
        }
    }

    /// So many messages could not be stored.
    pub(crate) fn failed(&self, messages: usize) {
        self.failed.fetch_add(messages as u64, Ordering::Relaxed);
    }

    /// Messages that could not be stored since the start.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// The longest time since the start, in ms.
    pub(crate) fn longest_ms(&self) -> u64 {
        self.longest_us.load(Ordering::Relaxed) / 1000
    }

    /// All since the start: the bounds of the classes in seconds, how many messages fell into each, and how long all took together.
    pub(crate) fn histogram(&self) -> (Vec<f64>, Vec<u64>, Duration) {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).collect();
        (bounds, self.now().to_vec(), Duration::from_micros(self.sum_us.load(Ordering::Relaxed)))
    }

    /// Called every ten seconds.
    pub(crate) fn sample(&self) {
        let now = self.now();
        let mut samples = self.samples.lock();
        if samples.len() >= SAMPLES {
            samples.pop_front();
        }
        samples.push_back(now);
    }

    /// How many messages of the last minute fell into each of Apache's classes, as it prints them.
    pub(crate) fn distribution(&self) -> String {
        let counts = self.last_minute();
        let mut text = String::new();
        let mut from = 0;
        for (name, below) in CLASSES {
            let to = BOUNDS_US.partition_point(|bound| *bound <= below).max(from);
            let to = if below == u64::MAX { PLACES } else { to };
            let sum: u64 = counts[from..to].iter().sum();
            text.push_str(&format!("{name}:{sum} "));
            from = to;
        }
        text
    }

    /// The time in ms that `share` of the messages of the last minute did not exceed, as far as the bounds tell.
    pub(crate) fn percentile_ms(&self, share: f64) -> f64 {
        let counts = self.last_minute();
        let all: u64 = counts.iter().sum();
        if all == 0 {
            return 0.0;
        }
        let wanted = all as f64 * share;
        let mut below = 0;
        for (place, count) in counts.into_iter().enumerate() {
            if count > 0 && (below + count) as f64 >= wanted {
                let low = if place == 0 { 0 } else { BOUNDS_US[place - 1] };
                let longest = self.longest_us.load(Ordering::Relaxed).max(low);
                let high = BOUNDS_US.get(place).copied().unwrap_or(longest).min(longest);
                let part = (wanted - below as f64) / count as f64;
                return (low as f64 + (high - low) as f64 * part.clamp(0.0, 1.0)) / 1000.0;
            }
            below += count;
        }
        self.longest_us.load(Ordering::Relaxed) as f64 / 1000.0
    }

    fn now(&self) -> Counts {
        std::array::from_fn(|place| self.counts[place].load(Ordering::Relaxed))
    }

    fn last_minute(&self) -> Counts {
        let now = self.now();
        let samples = self.samples.lock();
        let oldest = samples.front().copied().unwrap_or([0; PLACES]);
        std::array::from_fn(|place| now[place].saturating_sub(oldest[place]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_apaches_classes_and_leave_after_a_minute() {
        let times = PutTimes::new();
        for (messages, us) in [(5, 0), (1, 999), (2, 1_000), (3, 10_000), (1, 49_999), (4, 30_000_000)] {
            times.stored(messages, Duration::from_micros(us));
        }
        assert_eq!(
            times.distribution(),
            "[<=0ms]:6 [0~10ms]:2 [10~50ms]:4 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 [1~2s]:0 \
             [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:4 "
        );
        assert_eq!(times.longest_ms(), 30_000);
        (0..SAMPLES).for_each(|_| times.sample());
        assert!(times.distribution().starts_with("[<=0ms]:0 "));
        assert_eq!((times.percentile_ms(0.99), times.longest_ms()), (0.0, 30_000));
    }

    #[test]
    fn a_percentile_lies_between_the_bounds_of_its_place() {
        let times = PutTimes::new();
        assert_eq!(times.percentile_ms(0.99), 0.0);
        times.stored(990, Duration::from_micros(150));
        times.stored(10, Duration::from_millis(60));
        assert!(times.percentile_ms(0.5) <= 0.2);
        let late = times.percentile_ms(0.999);
        assert!((50.0..=60.0).contains(&late), "{late}");
        times.failed(3);
        assert_eq!(times.failures(), 3);
    }
}
