//! Store times that no clock said: nothing in a record vouches for them, and searches by time, retention and timers go by them.

/// Between two records that follow each other in the log; a clock that was set, or a broker that stood still, makes all that follows later or earlier.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// No broker stands still for so long.
const CENTURY_MS: i64 = 36_500 * DAY_MS;

/// The records that were seen last.
#[derive(Default)]
pub(super) struct Times {
    /// Log offset and store time.
    last: Option<(u64, i64)>,
    before: Option<i64>,
}

impl Times {
    /// Takes the next record of the log, and says where the one before lies if it alone is of another day than those on either side, and which
    /// time it says.
    pub fn next(&mut self, at: u64, time: i64) -> Option<(u64, i64)> {
        if self.last.is_some_and(|(last, _)| last == at) {
            // The same in another queue.
            return None;
        }
        let odd = self.last.filter(|(_, last)| {
            let (early, late) = (time.saturating_sub(*last) > DAY_MS, last.saturating_sub(time) > DAY_MS);
            match self.before {
                Some(before) => {
                    early && before.saturating_sub(*last) > DAY_MS || late && last.saturating_sub(before) > DAY_MS
                }
                // Of the log's first record, and it may be the second one that is odd.
                None => last.saturating_sub(time) > CENTURY_MS,
            }
        });
        // One that is odd says nothing of those beside it.
        if odd.is_none() {
            self.before = self.last.map(|(_, last)| last);
        }
        self.last = Some((at, time));
        odd
    }

    /// The last record of the log, if it is a century younger than the one before it.
    pub fn end(&self) -> Option<(u64, i64)> {
        self.last.filter(|(_, last)| self.before.is_some_and(|before| last.saturating_sub(before) > CENTURY_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn odd(times: &[i64]) -> Vec<u64> {
        let mut seen = Times::default();
        let found = times.iter().zip(0..).filter_map(|(time, at)| seen.next(at, *time)).collect::<Vec<_>>();
        found.into_iter().map(|(at, _)| at).chain(seen.end().map(|(at, _)| at)).collect()
    }

    #[test]
    fn one_record_of_another_day_is_odd_and_a_clock_that_was_set_is_not() {
        let day = |days: i64| days * DAY_MS;
        assert_eq!(odd(&[day(900), day(900), day(999)]), Vec::<u64>::new(), "a broker that stood still");
        assert_eq!(odd(&[day(900), day(902), day(902), day(900), day(900)]), Vec::<u64>::new(), "ahead for a while");
        assert_eq!(odd(&[day(900), day(1 << 30), day(900), day(901)]), [1]);
        assert_eq!(odd(&[day(900), 0, day(900)]), [1]);
        assert_eq!(odd(&[day(1 << 30), day(900), day(900)]), [0], "the first");
        assert_eq!(odd(&[day(900), day(900), day(1 << 30)]), [2], "the last");
        assert_eq!(odd(&[day(900), day(1 << 30), day(900), day(1 << 30), day(900)]), [1, 3]);
    }
}
