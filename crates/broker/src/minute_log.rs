//! What passed in the last minute, for the log: the rates that request 28 shows, where Apache writes them into `store.log`.

use crate::state::stats::{SAMPLE_MS, Stats, Totals};

/// Samples of a minute.
const LOOKS: i64 = 60_000 / SAMPLE_MS;

/// A minute in which something passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Minute {
    /// Messages a second that were stored, and that consumers got.
    pub(crate) put_tps: f64,
    pub(crate) transferred_tps: f64,
    /// Pulls a second that found something, and that did not.
    pub(crate) found_tps: f64,
    pub(crate) missed_tps: f64,
    /// Messages and bytes that were stored, and messages that could not be.
    pub(crate) put_messages: u64,
    pub(crate) put_bytes: u64,
    pub(crate) failed: u64,
    /// What 99 of 100 messages took at most to be stored.
    pub(crate) p99_ms: f64,
}

/// Remembers when a minute is over, and what was counted then.
#[derive(Debug, Default)]
pub(crate) struct MinuteLog {
    looks: i64,
    before: Totals,
    failed_before: u64,
}

impl MinuteLog {
    /// Called after each sample. Says of a minute when it is over, unless nothing was stored, consumed or refused in it.
    pub(crate) fn look(&mut self, stats: &Stats) -> Option<Minute> {
        self.looks += 1;
        if self.looks < LOOKS {
            return None;
        }
        self.looks = 0;
        let (now, failed) = (stats.totals(), stats.put_times.failures());
        let before = std::mem::replace(&mut self.before, now);
        let failed_before = std::mem::replace(&mut self.failed_before, failed);
        let passed = |totals: &Totals| (totals.put_messages, totals.got_messages);
        if passed(&now) == passed(&before) && failed == failed_before {
            return None;
        }
        let tps = |pick: fn(&Totals) -> u64| {
            let [_, minute, _] = stats.rates(pick);
            (minute * 10.0).round() / 10.0
        };
        Some(Minute {
            put_tps: tps(|totals| totals.put_messages),
            transferred_tps: tps(|totals| totals.got_messages),
            found_tps: tps(|totals| totals.pulls_found),
            missed_tps: tps(|totals| totals.pulls_missed),
            put_messages: now.put_messages.saturating_sub(before.put_messages),
            put_bytes: now.put_bytes.saturating_sub(before.put_bytes),
            failed: failed.saturating_sub(failed_before),
            p99_ms: (stats.put_times.percentile_ms(0.99) * 100.0).round() / 100.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use env::{Clock, TimeMs};
    use store::{Store, StoreEnv, StoreOptions};

    use super::*;
    use crate::state::stats::MessageType;
    use crate::state::topics::Topics;

    #[test]
    fn a_minute_in_which_something_passed_is_told_once_with_the_rates_of_request_28() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreOptions::at(dir.path()), StoreEnv::real()).unwrap();
        let topics = Topics::load(&store, Clock::real());
        let topic = topics.create_for_group("T", 1, 0).topic;
        let (clock, hand) = Clock::manual(TimeMs(1_800_000_000_000));
        let (stats, mut minutes) = (Stats::new(clock, false), MinuteLog::default());
        let mut minute = |stats: &Stats, each: &dyn Fn()| {
            let told: Vec<_> = (0..LOOKS)
                .filter_map(|_| {
                    each();
                    hand.advance(Duration::from_millis(SAMPLE_MS as u64));
                    stats.sample();
                    minutes.look(stats)
                })
                .collect();
            assert!(told.len() <= 1);
            told.first().copied()
        };
        assert_eq!(minute(&stats, &|| stats.missed()), None, "pulls that find nothing are no news");
        let told = minute(&stats, &|| {
            stats.sent(&topic, 0, MessageType::Normal, 20, 2000);
            stats.put_times.stored(20, Duration::from_micros(150));
            stats.got(&Arc::from("G"), &topic, 0, 10, 1000);
        });
        let Minute { put_tps, transferred_tps, found_tps, missed_tps, put_messages, put_bytes, failed, p99_ms } =
            told.unwrap();
        assert_eq!((put_tps, transferred_tps, found_tps, missed_tps), (2.0, 1.0, 0.1, 0.0));
        assert_eq!((put_messages, put_bytes, failed), (120, 12_000, 0));
        assert!(p99_ms > 0.0 && p99_ms <= 0.2, "{p99_ms}");
        assert_eq!(minute(&stats, &|| {}), None);
        stats.put_times.failed(3);
        assert_eq!(minute(&stats, &|| {}).map(|minute| minute.failed), Some(3));
    }
}
