//! When which delay level delivers: a state machine that knows no log, no task and no clock.

/// A clock that is kept in time is set back by no more than this.
const STEP_MS_MAX: i64 = 10_000;

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Find out what stands at the head of this level, and tell by [`Schedule::saw`].
    Look(usize),
    /// The head of this level is due: deliver, and tell by [`Schedule::skip_to`].
    Deliver(usize),
    /// Nothing is due before this time.
    WaitUntil(i64),
    /// No level holds anything.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Head {
    Unknown,
    Empty,
    Due(i64),
}

struct Level {
    next: u64,
    head: Head,
    delay_ms: i64,
}

/// All levels, from 0.
pub(crate) struct Schedule {
    levels: Vec<Level>,
    /// Who is asked first: no level starves the others.
    turn: usize,
}

impl Schedule {
    /// By level: the next offset to deliver, and how long a message waits.
    pub(crate) fn new(levels: impl Iterator<Item = (u64, i64)>) -> Schedule {
        let levels = levels.map(|(next, delay_ms)| Level { next, head: Head::Unknown, delay_ms }).collect();
        Schedule { levels, turn: 0 }
    }

    /// The next offset that a level delivers.
    pub(crate) fn next(&self, level: usize) -> u64 {
        self.levels[level].next
    }

    /// A level goes on at this offset.
    pub(crate) fn skip_to(&mut self, level: usize, next: u64) {
        let before = self.levels[level].next;
        // The task is critical: this ends the process, before the journal hears of it.
        assert!(next >= before, "delay level {level} goes on at {next}, and had come to {before}");
        self.levels[level].next = next;
        self.levels[level].head = Head::Unknown;
    }

    /// There are new messages, we do not know in which level. A head that is known stays the head.
    pub(crate) fn arrived(&mut self) {
        for level in self.levels.iter_mut().filter(|level| level.head == Head::Empty) {
            level.head = Head::Unknown;
        }
    }

    /// What stands at the head of a level.
    pub(crate) fn saw(&mut self, level: usize, deliver_at: Option<i64>, now: i64) {
        let head = deliver_at.map_or(Head::Empty, |at| Head::Due(self.corrected(level, at, now)));
        self.levels[level].head = head;
    }

    /// Whether a message of this level with this delivery time is due.
    pub(crate) fn is_due(&self, level: usize, deliver_at: i64, now: i64) -> bool {
        self.corrected(level, deliver_at, now) <= now
    }

    /// A time further away than the level's delay comes from a clock that was set back, or from a table that was changed: now, as in
    /// Apache. Not so for the small steps that keep a clock in time.
    fn corrected(&self, level: usize, deliver_at: i64, now: i64) -> i64 {
        let latest = now.saturating_add(self.levels[level].delay_ms).saturating_add(STEP_MS_MAX);
        if deliver_at > latest { now } else { deliver_at }
    }

    /// What to do at this time.
    pub(crate) fn step(&mut self, now: i64) -> Step {
        if let Some(level) = self.levels.iter().position(|level| level.head == Head::Unknown) {
            return Step::Look(level);
        }
        let count = self.levels.len();
        let mut first = i64::MAX;
        for place in 0..count {
            let level = (self.turn + place) % count;
            let Head::Due(at) = self.levels[level].head else { continue };
            // The clock may have been set back since the head was seen.
            let at = self.corrected(level, at, now);
            if at <= now {
                self.turn = level + 1;
                return Step::Deliver(level);
            }
            first = first.min(at);
        }
        if first == i64::MAX { Step::Idle } else { Step::WaitUntil(first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_levels() -> Schedule {
        Schedule::new([(0, 1_000), (5, 10_000)].into_iter())
    }

    #[test]
    #[should_panic(expected = "delay level 1 goes on at 4, and had come to 5")]
    fn a_level_does_not_go_back() {
        let mut schedule = two_levels();
        schedule.skip_to(1, 5);
        schedule.skip_to(1, 4);
    }

    /// Answers looks from the given heads until there is something else to do.
    fn settle(schedule: &mut Schedule, now: i64, heads: [Option<i64>; 2]) -> Step {
        loop {
            match schedule.step(now) {
                Step::Look(level) => schedule.saw(level, heads[level], now),
                step @ (Step::Deliver(_) | Step::WaitUntil(_) | Step::Idle) => return step,
            }
        }
    }

    #[test]
    fn an_empty_schedule_is_idle_until_something_arrives() {
        let mut schedule = two_levels();
        assert_eq!(settle(&mut schedule, 0, [None, None]), Step::Idle);
        schedule.arrived();
        assert_eq!(settle(&mut schedule, 0, [None, Some(10_000)]), Step::WaitUntil(10_000));
    }

    #[test]
    fn the_earliest_head_decides_how_long_to_wait() {
        let mut schedule = two_levels();
        assert_eq!(settle(&mut schedule, 0, [Some(900), Some(400)]), Step::WaitUntil(400));
        assert_eq!(schedule.step(400), Step::Deliver(1));
        schedule.skip_to(1, 6);
        assert_eq!(schedule.next(1), 6);
        assert_eq!(settle(&mut schedule, 400, [None, None]), Step::WaitUntil(900));
    }

    #[test]
    fn levels_take_turns() {
        let mut schedule = two_levels();
        let due = [Some(1), Some(1)];
        let mut order = Vec::new();
        for _ in 0..4 {
            let Step::Deliver(level) = settle(&mut schedule, 5, due) else { panic!("something is due") };
            order.push(level);
            schedule.skip_to(level, schedule.next(level) + 1);
        }
        assert_eq!(order, [0, 1, 0, 1]);
    }

    #[test]
    fn a_time_far_beyond_the_levels_delay_is_taken_for_now() {
        let mut schedule = two_levels();
        assert_eq!(settle(&mut schedule, 100, [Some(1_101 + STEP_MS_MAX), None]), Step::Deliver(0));
        assert!(!schedule.is_due(0, 1_100, 100));
    }

    #[test]
    fn a_clock_that_is_set_back_holds_up_no_head_that_is_known() {
        let mut schedule = two_levels();
        assert_eq!(settle(&mut schedule, 0, [Some(1_000), None]), Step::WaitUntil(1_000));
        assert_eq!(schedule.step(-3_600_000), Step::Deliver(0));
    }

    #[test]
    fn a_clock_that_steps_back_a_little_makes_nothing_due_early() {
        let mut schedule = two_levels();
        // Stored at 100, looked at when the clock says 95.
        assert_eq!(settle(&mut schedule, 95, [Some(1_100), None]), Step::WaitUntil(1_100));
    }
}
