//! Counts and latencies of what happens now, taken away once a second.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Longer ones count as this.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// Kinds of failures that are told apart.
const REASONS_MAX: usize = 32;

/// Counts, from many tasks at once.
pub struct Meter {
    /// A task always takes the same one. Each guards its counts; held for an addition, or to take them.
    shards: Vec<Mutex<Counts>>,
}

/// What happened in a while.
#[derive(Clone, Serialize, Deserialize)]
pub struct Counts {
    /// Messages.
    pub messages: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// What did not go well, by reason.
    pub failures: BTreeMap<String, u64>,
    /// What went well with a remark, by remark.
    pub remarks: BTreeMap<String, u64>,
    /// Latencies in microseconds.
    #[serde(with = "pairs")]
    pub latency: Histogram<u64>,
}

/// A histogram as pairs of a latency and how often it was measured. Both sides have the same bounds, so nothing gets lost.
mod pairs {
    use hdrhistogram::Histogram;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Counts;

    pub fn serialize<S: Serializer>(histogram: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        let recorded = histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()));
        recorded.collect::<Vec<(u64, u64)>>().serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Histogram<u64>, D::Error> {
        let mut histogram = Counts::default().latency;
        for (value, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            histogram.saturating_record_n(value, count);
        }
        Ok(histogram)
    }
}

impl Default for Counts {
    fn default() -> Counts {
        let max = u64::try_from(LATENCY_MAX.as_micros()).unwrap_or(u64::MAX);
        Counts {
            messages: 0,
            bytes: 0,
            failures: BTreeMap::new(),
            remarks: BTreeMap::new(),
            // Three digits from 1 µs on: the only way to fail is a bound that makes no sense.
            latency: Histogram::new_with_bounds(1, max, 3).unwrap_or_else(|_| unreachable!("the bounds are constants")),
        }
    }
}

impl Counts {
    /// Adds another while.
    pub fn add(&mut self, other: &Counts) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        other.failures.iter().for_each(|(reason, count)| count_reason(&mut self.failures, reason, *count));
        other.remarks.iter().for_each(|(remark, count)| count_reason(&mut self.remarks, remark, *count));
        // Both have the same bounds.
        let _ = self.latency.add(&other.latency);
    }

    /// All failures.
    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    fn is_empty(&self) -> bool {
        self.messages == 0 && self.failures.is_empty() && self.remarks.is_empty() && self.latency.is_empty()
    }

    fn clear(&mut self) {
        (self.messages, self.bytes) = (0, 0);
        self.failures.clear();
        self.remarks.clear();
        self.latency.reset();
    }
}

impl Meter {
    /// With so many shards.
    pub fn new(shards: usize) -> Meter {
        Meter { shards: (0..shards.max(1)).map(|_| Mutex::default()).collect() }
    }

    /// Messages that went well, with how long each of them took, if that says anything.
    pub fn done(&self, who: usize, messages: u64, bytes: u64, latency: Option<Duration>) {
        let mut counts = self.shard(who);
        counts.messages += messages;
        counts.bytes += bytes;
        if let Some(latency) = latency {
            counts.latency.saturating_record_n(micros(latency), messages);
        }
    }

    /// Several received together, each with a latency of its own.
    pub fn done_each(&self, who: usize, bytes: u64, messages: u64, latencies: impl Iterator<Item = Duration>) {
        let mut counts = self.shard(who);
        counts.messages += messages;
        counts.bytes += bytes;
        latencies.for_each(|latency| counts.latency.saturating_record(micros(latency)));
    }

    /// Messages that did not go well.
    pub fn failed(&self, who: usize, messages: u64, reason: &str) {
        count_reason(&mut self.shard(who).failures, reason, messages);
    }

    /// Messages that went well, but.
    pub fn remark(&self, who: usize, messages: u64, remark: &str) {
        count_reason(&mut self.shard(who).remarks, remark, messages);
    }

    /// Adds what was counted elsewhere.
    pub fn absorb(&self, counts: &Counts) {
        self.shard(0).add(counts);
    }

    /// Takes what was counted since the last time.
    pub fn take(&self) -> Counts {
        let mut all = Counts::default();
        for shard in &self.shards {
            let mut counts = shard.lock();
            // A histogram is long, and most of the time most tasks rest.
            if !counts.is_empty() {
                all.add(&counts);
                counts.clear();
            }
        }
        all
    }

    fn shard(&self, who: usize) -> parking_lot::MutexGuard<'_, Counts> {
        self.shards[who % self.shards.len()].lock()
    }
}

fn count_reason(reasons: &mut BTreeMap<String, u64>, reason: &str, count: u64) {
    if let Some(known) = reasons.get_mut(reason) {
        *known += count;
    } else {
        let reason = if reasons.len() < REASONS_MAX { reason } else { "another reason" };
        *reasons.entry(reason.to_owned()).or_default() += count;
    }
}

fn micros(latency: Duration) -> u64 {
    u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A distribution of latencies, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Latency {
    /// How many were measured.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// Half took no longer.
    pub p50: f64,
    /// 75 percent took no longer.
    pub p75: f64,
    /// 90 percent took no longer.
    pub p90: f64,
    /// 95 percent took no longer.
    pub p95: f64,
    /// 99 percent took no longer.
    pub p99: f64,
    /// 99.9 percent.
    pub p999: f64,
    /// 99.99 percent.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram in microseconds; nothing if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Latency> {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        (!histogram.is_empty()).then(|| Latency {
            count: histogram.len(),
            mean: histogram.mean() / 1000.0,
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: histogram.max() as f64 / 1000.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_counted_once_whichever_shard_it_is_in() {
        let meter = Meter::new(3);
        for who in 0..10 {
            meter.done(who, 2, 200, Some(Duration::from_millis(who as u64 + 1)));
        }
        meter.failed(4, 1, "code 2");
        meter.failed(5, 2, "code 2");
        let counts = meter.take();
        assert_eq!((counts.messages, counts.bytes, counts.failed()), (20, 2000, 3));
        let latency = Latency::of(&counts.latency).unwrap();
        assert_eq!(latency.count, 20);
        assert!((latency.p50 - 5.0).abs() < 0.02 && (latency.max - 10.0).abs() < 0.02, "{latency:?}");
        let after = meter.take();
        assert_eq!((after.messages, after.failed(), Latency::of(&after.latency)), (0, 0, None));
    }

    #[test]
    fn latencies_survive_the_way_to_another_process_to_the_last_digit() {
        let mut sent = Counts { messages: 5, bytes: 500, ..Counts::default() };
        sent.failures.insert("code 2".to_owned(), 3);
        for micros in [1, 17, 999, 1000, 1001, 123_456, 599_999_999, 700_000_000] {
            sent.latency.saturating_record_n(micros, micros % 7 + 1);
        }
        let text = serde_json::to_string(&sent).unwrap();
        let come: Counts = serde_json::from_str(&text).unwrap();
        assert_eq!((come.messages, come.bytes, come.failed()), (5, 500, 3));
        assert_eq!(come.latency, sent.latency);
        assert_eq!(Latency::of(&come.latency), Latency::of(&sent.latency));
        let meter = Meter::new(2);
        meter.absorb(&come);
        meter.absorb(&sent);
        let both = meter.take();
        assert_eq!((both.messages, both.latency.len()), (10, 2 * sent.latency.len()));
    }

    #[test]
    fn reasons_are_bounded() {
        let meter = Meter::new(1);
        (0..1000).for_each(|reason| meter.failed(0, 1, &format!("reason {reason}")));
        let counts = meter.take();
        assert!(counts.failures.len() <= REASONS_MAX + 1);
        assert_eq!(counts.failed(), 1000);
    }
}
