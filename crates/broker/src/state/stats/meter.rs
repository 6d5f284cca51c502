//! One figure over the last minute, hour and day, and a pair of them for each queue.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use env::TimeMs;
use parking_lot::Mutex;
use protocol::body::{BrokerStatsData, BrokerStatsItem};

use super::SAMPLE_MS;
use crate::per_queue::PerQueue;

const MINUTE_SAMPLES: usize = 7;
pub(super) const HOUR_EVERY_MS: i64 = 600_000;
const HOUR_SAMPLES: usize = 7;
pub(super) const DAY_EVERY_MS: i64 = 3_600_000;
const DAY_SAMPLES: usize = 25;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    at: TimeMs,
    sum: u64,
    times: u64,
}

/// Samples of the three spans, oldest first.
#[derive(Debug, Default)]
pub(super) struct Windows {
    minute: VecDeque<Sample>,
    hour: VecDeque<Sample>,
    day: VecDeque<Sample>,
}

/// One figure over time.
#[derive(Debug)]
pub(super) struct Meter {
    /// Relaxed: a figure may miss what happens this moment.
    sum: AtomicU64,
    times: AtomicU64,
    made_at: TimeMs,
    /// Made when the first sample is taken: most meters of a large broker have never counted anything.
    pub(super) windows: Mutex<Option<Box<Windows>>>,
}

impl Meter {
    pub(super) fn new(now: TimeMs) -> Meter {
        Meter { sum: AtomicU64::new(0), times: AtomicU64::new(0), made_at: now, windows: Mutex::new(None) }
    }

    #[inline]
    pub(super) fn add(&self, amount: u64) {
        self.sum.fetch_add(amount, Ordering::Relaxed);
        self.times.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn at(&self, now: TimeMs) -> Sample {
        Sample { at: now, sum: self.sum.load(Ordering::Relaxed), times: self.times.load(Ordering::Relaxed) }
    }

    /// Since it was made.
    pub(super) fn sum(&self) -> u64 {
        self.sum.load(Ordering::Relaxed)
    }

    pub(super) fn sample(&self, now: TimeMs) {
        let sample = self.at(now);
        let mut windows = self.windows.lock();
        if windows.is_none() && sample.times == 0 {
            return;
        }
        let start = Sample { at: self.made_at, sum: 0, times: 0 };
        let windows = windows.get_or_insert_default();
        for (samples, every, most) in [
            (&mut windows.minute, SAMPLE_MS, MINUTE_SAMPLES),
            (&mut windows.hour, HOUR_EVERY_MS, HOUR_SAMPLES),
            (&mut windows.day, DAY_EVERY_MS, DAY_SAMPLES),
        ] {
            if samples.is_empty() {
                samples.push_back(start);
            }
            // The task may come a little early or late; half a step decides.
            if samples.back().is_some_and(|last| now.since(last.at) < every - SAMPLE_MS / 2) {
                continue;
            }
            if samples.len() >= most {
                samples.pop_front();
            }
            samples.push_back(sample);
        }
    }

    pub(super) fn read(&self, now: TimeMs) -> BrokerStatsData {
        let present = self.at(now);
        let start = Sample { at: self.made_at, sum: 0, times: 0 };
        let windows = self.windows.lock();
        let span = |pick: fn(&Windows) -> &VecDeque<Sample>| {
            let oldest = windows.as_ref().and_then(|windows| pick(windows).front().copied());
            between(oldest.unwrap_or(start), present)
        };
        BrokerStatsData {
            stats_day: span(|windows| &windows.day),
            stats_hour: span(|windows| &windows.hour),
            stats_minute: span(|windows| &windows.minute),
        }
    }

    /// Nothing was ever counted.
    pub(super) fn is_unused(&self) -> bool {
        self.times.load(Ordering::Relaxed) == 0
    }

    /// Nothing was counted in a day.
    pub(super) fn is_idle(&self) -> bool {
        let windows = self.windows.lock();
        windows.as_ref().is_some_and(|windows| {
            windows.day.len() == DAY_SAMPLES
                && windows.day.front().is_some_and(|oldest| oldest.times == self.times.load(Ordering::Relaxed))
        })
    }
}

pub(super) fn between(from: Sample, to: Sample) -> BrokerStatsItem {
    let sum = to.sum.saturating_sub(from.sum);
    let times = to.times.saturating_sub(from.times);
    let ms = to.at.since(from.at);
    BrokerStatsItem {
        avgpt: if times > 0 { sum as f64 / times as f64 } else { 0.0 },
        sum: i64::try_from(sum).unwrap_or(i64::MAX),
        tps: if ms > 0 { sum as f64 * 1000.0 / ms as f64 } else { 0.0 },
    }
}

#[derive(Debug)]
pub(super) struct QueueMeters {
    pub(super) nums: Meter,
    pub(super) size: Meter,
}

/// Meters by queue id, made when a queue is first used.
#[derive(Default)]
pub(super) struct Queues(PerQueue<QueueMeters>);

impl Queues {
    pub(super) fn add(&self, queue_id: i32, messages: u64, bytes: u64, now: impl Fn() -> TimeMs) {
        let Ok(at) = usize::try_from(queue_id) else { return };
        let add = |meters: &Arc<QueueMeters>| {
            meters.nums.add(messages);
            meters.size.add(bytes);
        };
        if self.0.with(at, add).is_some() {
            return;
        }
        let make = || Ok(QueueMeters { nums: Meter::new(now()), size: Meter::new(now()) });
        let made: Result<_, Infallible> = self.0.get_or_make(at, make);
        let Ok(made) = made;
        add(&made);
    }

    pub(super) fn get(&self, queue_id: usize) -> Option<Arc<QueueMeters>> {
        self.0.get(queue_id)
    }

    pub(super) fn sample(&self, now: TimeMs) {
        self.0.each(|meters| {
            meters.nums.sample(now);
            meters.size.sample(now);
        });
    }
}
