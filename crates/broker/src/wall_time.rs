//! Waiting for a time of the wall clock.

use std::time::Duration;

/// How long a sleep may be whose end is a time of the wall clock. The machine's sleeps go by a clock that does not step when the wall clock is
/// set, and that stands while the machine is suspended: so late may something be whose time such a step has passed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long to sleep for what is due then. It may be less than is left: who wakes looks at the clock, and sleeps again.
pub(crate) fn until(due: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or(0)).min(LOOK_AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_sleeps_for_long_without_a_look_at_the_clock() {
        assert_eq!(until(1_250, 1_000), Duration::from_millis(250));
        assert_eq!(until(1_000, 1_250), Duration::ZERO);
        assert_eq!(until(3_601_000, 1_000), LOOK_AGAIN);
        assert_eq!(until(i64::MAX, i64::MIN), LOOK_AGAIN);
    }
}
