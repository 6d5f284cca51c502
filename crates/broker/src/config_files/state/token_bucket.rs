//! What a file of `config/` may be written without having been paid for, so that others find it as it is where hardly anything is written.
//!
//! It has bytes, which a write costs and which come back with time. So a change after a quiet time is written at once, none waits longer than the
//! time in which all bytes come back, and a file that changes all the time costs no more than these bytes in that time; a longer one, itself.

use std::time::Duration;

/// What there is at most. Longer files cost as much.
const FULL_BYTES: u64 = 16 << 10;

/// That of one file.
#[derive(Clone, Copy, Debug)]
pub(in crate::config_files) struct TokenBucket {
    bytes: u64,
    /// When it was that much, by the clock's elapsed time.
    at: Duration,
}

impl Default for TokenBucket {
    fn default() -> Self {
        TokenBucket { bytes: FULL_BYTES, at: Duration::ZERO }
    }
}

impl TokenBucket {
    /// Whether a file of this length may be written at `now`, where all comes back in `period`; never in a time of zero.
    pub(in crate::config_files) fn covers(&self, bytes: usize, now: Duration, period: Duration) -> bool {
        self.at(now, period) >= cost(bytes)
    }

    /// It was.
    pub(in crate::config_files) fn spend(&mut self, bytes: usize, now: Duration, period: Duration) {
        *self = TokenBucket { bytes: self.at(now, period).saturating_sub(cost(bytes)), at: now };
    }

    fn at(&self, now: Duration, period: Duration) -> u64 {
        let since = now.saturating_sub(self.at).as_millis();
        let back = (u128::from(FULL_BYTES) * since).checked_div(period.as_millis());
        back.map_or(0, |back| FULL_BYTES.min(self.bytes.saturating_add(u64::try_from(back).unwrap_or(u64::MAX))))
    }
}

fn cost(bytes: usize) -> u64 {
    (bytes as u64).min(FULL_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(600);

    /// Bytes that are written of a file that changes all the time and is looked at every 100 ms, for so long; and the longest pause.
    fn written(bytes: usize, time: Duration) -> (u64, Duration) {
        let (mut credit, mut written, mut pause, mut last) =
            (TokenBucket::default(), 0, Duration::ZERO, Duration::ZERO);
        for now in (0..time.as_millis() as u64).step_by(100).map(Duration::from_millis) {
            if credit.covers(bytes, now, PERIOD) {
                credit.spend(bytes, now, PERIOD);
                pause = pause.max(now - last);
                (written, last) = (written + bytes as u64, now);
            }
        }
        (written, pause)
    }

    #[test]
    fn a_file_that_changes_all_the_time_costs_the_same_however_short_it_is_and_is_never_late() {
        let day = Duration::from_secs(86_400);
        for bytes in [100, 3_000, 15_000, 16 << 10] {
            let (written, pause) = written(bytes, day);
            assert!(written <= FULL_BYTES * (144 + 1), "{written} of {bytes}");
            assert!(pause <= PERIOD + Duration::from_millis(100), "{pause:?} of {bytes}");
        }
        let (written, pause) = written(1 << 20, day);
        assert!(written <= 144 << 20 && pause <= PERIOD + Duration::from_millis(100), "{written}, {pause:?}");
    }

    #[test]
    fn a_change_after_a_quiet_time_is_written_at_once() {
        let mut credit = TokenBucket::default();
        let mut now = PERIOD;
        for _ in 0..10 {
            for _ in 0..3 {
                assert!(credit.covers(5_000, now, PERIOD));
                credit.spend(5_000, now, PERIOD);
            }
            assert!(!credit.covers(5_000, now, PERIOD));
            now += PERIOD;
        }
    }

    #[test]
    fn where_no_time_is_given_nothing_is_written_that_is_not_paid() {
        let credit = TokenBucket::default();
        assert!(!credit.covers(1, PERIOD, Duration::ZERO));
        assert!(credit.covers(1, PERIOD, Duration::from_millis(1)));
    }
}
