//! Waiting for a time of the wall clock.

use std::collections::BTreeSet;
use std::time::Duration;

use env::Clock;

/// A clock that is kept in time is set back by less than this, in ms.
pub(crate) const STEP_MS: i64 = 1_000;
/// A look that the machine interrupted for longer says nothing of either clock.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// How long a sleep may be whose end is a time of the wall clock. The machine's sleeps go by a clock that does not step when the wall clock is
/// set, and that stands while the machine is suspended: so late may something be whose time such a step has passed.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How long to sleep for what is due then. It may be less than is left: who wakes looks at the clock, and sleeps again.
pub(crate) fn until(due: i64, now: i64) -> Duration {
    Duration::from_millis(u64::try_from(due.saturating_sub(now)).unwrap_or(0)).min(LOOK_AGAIN)
}

/// Compares the wall clock with the one that does not step: one for each that keeps times of the wall clock, so that it can move them.
pub(crate) struct Steps {
    clock: Clock,
    /// What both showed at the last look.
    seen: (i64, Duration),
}

impl Steps {
    pub(crate) fn new(clock: &Clock) -> Steps {
        Steps { clock: clock.clone(), seen: (clock.now().0, clock.elapsed()) }
    }

    /// By how many ms the wall clock was set since the last look: negative is back. Small steps gather until they are worth a word.
    pub(crate) fn look(&mut self) -> Option<i64> {
        let (before, now, elapsed) = (self.clock.elapsed(), self.clock.now().0, self.clock.elapsed());
        if elapsed.saturating_sub(before) > LOOK_MAX {
            return None;
        }
        let passed = i64::try_from(elapsed.saturating_sub(self.seen.1).as_millis()).unwrap_or(i64::MAX);
        let step = now.saturating_sub(self.seen.0).saturating_sub(passed);
        if step.abs() < STEP_MS {
            return None;
        }
        self.seen = (now, elapsed);
        Some(step)
    }

    /// By how many ms it was set back.
    pub(crate) fn back(&mut self) -> Option<i64> {
        self.look().filter(|step| *step < 0).map(i64::saturating_neg)
    }
}

/// Moves times at which something is due: by as much as the clock was set back, if they were named by the clock as it was. What was named before and is
/// due later than that clock showed comes too early, and nothing too late.
pub(crate) fn set_back<K: Ord>(due: &mut BTreeSet<(i64, K)>, by: i64, now: i64) {
    let mut later: Vec<(i64, K)> = Vec::new();
    while due.last().is_some_and(|(at, _)| *at > now.saturating_add(by).saturating_sub(STEP_MS)) {
        later.extend(due.pop_last());
    }
    due.extend(later.into_iter().map(|(at, key)| (at.saturating_sub(by), key)));
}

/// Milliseconds of the clock that does not step, for what is only compared with itself: whoever sets the machine's clock must end nothing early.
pub(crate) fn steady_ms(clock: &Clock) -> i64 {
    i64::try_from(clock.elapsed().as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use env::TimeMs;

    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_is_seen_once_and_time_that_passes_is_none() {
        let (clock, hand) = Clock::manual(TimeMs(1_000_000));
        let mut steps = Steps::new(&clock);
        hand.advance(Duration::from_secs(3_600));
        assert_eq!(steps.look(), None);
        hand.set_by(-600);
        assert_eq!(steps.look(), None);
        hand.set_by(-600);
        assert_eq!((steps.back(), steps.back()), (Some(1_200), None));
        hand.set_by(86_400_000);
        assert_eq!((steps.look(), steps.look()), (Some(86_400_000), None));
    }

    #[test]
    fn what_a_clock_named_that_was_ahead_is_due_as_much_earlier() {
        let (now, by) = (1_000_000, 86_400_000);
        let mut due = BTreeSet::from([(now + 5_000, 'a'), (now + by + 30_000, 'b'), (now + by + 60_000, 'c')]);
        set_back(&mut due, by, now);
        assert!(due.into_iter().eq([(now + 5_000, 'a'), (now + 30_000, 'b'), (now + 60_000, 'c')]));
    }

    #[test]
    fn nobody_sleeps_for_long_without_a_look_at_the_clock() {
        assert_eq!(until(1_250, 1_000), Duration::from_millis(250));
        assert_eq!(until(1_000, 1_250), Duration::ZERO);
        assert_eq!(until(3_601_000, 1_000), LOOK_AGAIN);
        assert_eq!(until(i64::MAX, i64::MIN), LOOK_AGAIN);
    }
}
