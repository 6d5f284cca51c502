//! Finds where a rate falls: a stretch of ten seconds below 90 % of the median of all such stretches.

use serde::{Deserialize, Serialize};

/// Seconds of a stretch.
pub const STRETCH: usize = 10;

/// Below this share of the median a stretch is a drop.
pub const SHARE_MIN: f64 = 0.9;

/// What the detector found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Steadiness {
    /// The median of the rates of all stretches, a second.
    pub median: f64,
    /// The rate of the slowest stretch, as a share of the median.
    pub slowest_share: f64,
    /// Where the rate was too low.
    pub drops: Vec<Drop>,
}

/// A time in which every second belongs to a stretch that is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drop {
    /// Index of its first second.
    pub from: usize,
    /// Index behind its last second.
    pub to: usize,
    /// The rate of its slowest stretch, a second.
    pub rate: f64,
}

/// The rates of whole seconds, of counts over times that follow each other and need not be seconds. What is left of a second at the end
/// is left out.
pub fn by_second(counts: impl Iterator<Item = (f64, u64)>) -> Vec<f64> {
    let (mut rates, mut filled, mut sum) = (Vec::new(), 0.0, 0.0);
    for (mut seconds, count) in counts.filter(|(seconds, _)| *seconds > 0.0) {
        let rate = count as f64 / seconds;
        // Each turn ends a second, and takes what was missing of it off.
        while filled + seconds >= 1.0 {
            let missing = 1.0 - filled;
            rates.push(sum + rate * missing);
            (filled, sum) = (0.0, 0.0);
            seconds -= missing;
        }
        filled += seconds;
        sum += rate * seconds;
    }
    rates
}

/// Looks at the rates of seconds that follow each other. Nothing can be said of less than two stretches.
pub fn find(rates: &[f64]) -> Option<Steadiness> {
    if rates.len() < 2 * STRETCH {
        return None;
    }
    let stretches: Vec<f64> = rates.windows(STRETCH).map(|rates| rates.iter().sum::<f64>() / STRETCH as f64).collect();
    let mut sorted = stretches.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    if sorted.last().is_none_or(|fastest| *fastest <= 0.0) {
        return None;
    }
    // Where nothing happens for most of the time the median says nothing, and each stretch of nothing is a drop.
    let is_slow = |rate: f64| if median > 0.0 { rate < median * SHARE_MIN } else { rate <= 0.0 };
    let mut drops: Vec<Drop> = Vec::new();
    for (from, rate) in stretches.iter().copied().enumerate().filter(|(_, rate)| is_slow(*rate)) {
        let to = from + STRETCH;
        match drops.last_mut() {
            Some(last) if last.to >= from => (last.to, last.rate) = (to, last.rate.min(rate)),
            Some(_) | None => drops.push(Drop { from, to, rate }),
        }
    }
    let slowest_share = if median > 0.0 { sorted[0] / median } else { 0.0 };
    Some(Steadiness { median, slowest_share, drops })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_has_no_drop_and_a_short_run_says_nothing() {
        let steady: Vec<f64> = (0..60).map(|second| 1000.0 + f64::from(second % 7) * 20.0).collect();
        let found = find(&steady).unwrap();
        assert!(found.drops.is_empty() && found.slowest_share > 0.95, "{found:?}");
        assert_eq!(find(&steady[..19]), None);
        assert_eq!(find(&[0.0; 60]), None);
    }

    #[test]
    fn one_second_of_silence_is_no_drop_and_two_are_one_that_is_told_with_its_place() {
        let mut rates = vec![1000.0; 60];
        rates[30] = 100.0;
        assert!(find(&rates).unwrap().drops.is_empty());
        rates[31] = 0.0;
        let found = find(&rates).unwrap();
        assert_eq!(found.drops, [Drop { from: 22, to: 40, rate: 810.0 }]);
        assert!((found.slowest_share - 0.81).abs() < 1e-9);
    }

    #[test]
    fn a_rate_that_is_nothing_for_most_of_the_time_is_a_drop() {
        let mut rates = vec![0.0; 60];
        rates[..20].fill(1000.0);
        assert_eq!(find(&rates).unwrap().drops, [Drop { from: 20, to: 60, rate: 0.0 }]);
    }

    #[test]
    fn counts_over_any_times_become_rates_of_seconds() {
        let counts = [(1.0, 10), (2.5, 50), (0.5, 5), (0.9, 9)];
        let rates: Vec<u64> = by_second(counts.into_iter()).iter().map(|rate| rate.round() as u64).collect();
        assert_eq!(rates, [10, 20, 20, 15]);
    }

    #[test]
    fn drops_that_come_again_are_told_apart() {
        let mut rates = vec![1000.0; 120];
        for second in [20, 21, 22, 80, 81, 82] {
            rates[second] = 0.0;
        }
        let found = find(&rates).unwrap();
        assert_eq!(found.drops.iter().map(|drop| (drop.from, drop.to)).collect::<Vec<_>>(), [(12, 31), (72, 91)]);
    }
}
