//! Messages that wait for something and whose pages the device does not give when their time has come.
//!
//! None of them is given up: a cable may be loose, and a copy of the disk may be put in its place. But none holds up another one: it waits aside and is
//! tried again, after a second at first and after ten minutes at last, and what was behind it goes on. It is named when it is set aside and when it
//! is there again; how many there are is a metric.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The first pause; each is twice the one before.
const PAUSE_MS_MIN: i64 = 1_000;
const PAUSE_MS_MAX: i64 = 600_000;

/// For what a message waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// Its delay level.
    Delay,
    /// Its time.
    Timer,
    /// The end of its transaction.
    Transaction,
    /// To be given to its group again.
    Lease,
}

/// How many there are of each kind. Relaxed: gauges.
#[derive(Debug, Default)]
pub(crate) struct Unreadable([AtomicUsize; 4]);

impl Unreadable {
    pub(crate) fn are(&self, waits: WaitsFor, count: usize) {
        self.0[waits as usize].store(count, Ordering::Relaxed);
    }

    /// By the names that the metric has.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, usize)> {
        let names = ["delay", "timer", "transaction", "lease"];
        names.into_iter().zip(&self.0).map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

/// When something is tried again that has failed so often.
pub(crate) fn pause_ms(tries: u32) -> i64 {
    (PAUSE_MS_MIN << tries.min(20)).min(PAUSE_MS_MAX)
}

/// How often each was tried.
#[derive(Debug)]
pub(crate) struct Tries<K>(HashMap<K, u32>);

impl<K> Default for Tries<K> {
    fn default() -> Self {
        Tries(HashMap::new())
    }
}

impl<K: Eq + Hash> Tries<K> {
    /// It failed once more. Whether for the first time, and after how long it is to be tried again.
    pub(crate) fn failed(&mut self, key: K) -> (bool, i64) {
        let tries = self.0.entry(key).or_default();
        let pause = pause_ms(*tries);
        *tries += 1;
        (*tries == 1, pause)
    }

    /// It is not to be tried any more. Whether it had failed.
    pub(crate) fn is_done(&mut self, key: &K) -> bool {
        !self.0.is_empty() && self.0.remove(key).is_some()
    }

    /// Keeps those that somebody still wants.
    pub(crate) fn retain(&mut self, mut is_wanted: impl FnMut(&K) -> bool) {
        self.0.retain(|key, _| is_wanted(key));
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.0.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_a_second_to_ten_minutes_and_begin_anew_when_it_was_there() {
        let mut tries = Tries::default();
        let pauses: Vec<i64> = (0..12).map(|_| tries.failed(7).1 / 1000).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!(pause_ms(u32::MAX), PAUSE_MS_MAX);
        assert_eq!(tries.failed(8), (true, 1_000), "each has its own");
        assert!(tries.is_done(&7) && !tries.is_done(&7));
        assert_eq!(tries.failed(7), (true, 1_000));
        assert_eq!(tries.len(), 2);
    }
}
