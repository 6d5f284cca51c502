//! Bursts on their way to the task that acknowledges them.
//!
//! The task sleeps until the log has come to the first place that one of its bursts waits for, stage by stage. A burst that comes meanwhile is no
//! reason to wake it, as a rule: it waits for the same stages as those before it, and lies behind them. One that the sleep does not cover wakes it:
//! nobody would see it come to its stage otherwise.

use parking_lot::Mutex;
use protocol::LogOffset;
use store::{Stage, Stages};
use tokio::sync::Notify;

/// What a burst waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// What its answers wait for.
    pub(super) answers: Stages,
    /// Consumers are woken when it is confirmed.
    pub(super) has_consumers: bool,
    /// Where it ends.
    pub(super) end: LogOffset,
}

/// Something that waits for stages.
pub(super) trait Wishes {
    /// What for.
    fn wish(&self) -> Wish;
}

/// What the task waits for while it sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sleep {
    /// By stage, the first place that is waited for; [`u64::MAX`]: none.
    first: [u64; Stage::ALL.len()],
    /// What is flushed is confirmed.
    is_confirmed_by_flush: bool,
}

impl Sleep {
    /// Until one of these has come to a stage that it waits for.
    pub(super) fn until(wishes: impl Iterator<Item = Wish>, is_confirmed_by_flush: bool) -> Sleep {
        let mut sleep = Sleep { first: [u64::MAX; Stage::ALL.len()], is_confirmed_by_flush };
        for wish in wishes {
            for stage in sleep.stages_of(wish).each() {
                let first = &mut sleep.first[stage as usize];
                *first = wish.end.0.min(*first);
            }
        }
        sleep
    }

    /// The first place of this stage that is waited for.
    pub(super) fn first(&self, stage: Stage) -> Option<u64> {
        Some(self.first[stage as usize]).filter(|first| *first != u64::MAX)
    }

    /// The stages that show that a wish comes true. Where answers wait for the flush, and what is flushed is confirmed, one mark is enough: the store
    /// raises what is confirmed before it.
    fn stages_of(&self, wish: Wish) -> Stages {
        let are_consumers_told = wish.answers.has(Stage::Flushed) && self.is_confirmed_by_flush;
        let waits_for_confirmed = wish.has_consumers && !are_consumers_told;
        if waits_for_confirmed { wish.answers.with(Stage::Confirmed) } else { wish.answers }
    }

    /// Whether the sleep is over when the wish comes true. Not of one that waits for nothing.
    fn covers(&self, wish: Wish) -> bool {
        let stages = self.stages_of(wish);
        !stages.is_empty() && stages.each().all(|stage| self.first[stage as usize] <= wish.end.0)
    }
}

/// What has come since the task looked last.
struct State<T> {
    bursts: Vec<T>,
    /// What the task sleeps for; none while it does not.
    sleep: Option<Sleep>,
}

/// Bursts, and the bell that wakes the task.
pub(super) struct Came<T> {
    /// Guards nothing else.
    state: Mutex<State<T>>,
    bell: Notify,
}

impl<T> Default for Came<T> {
    fn default() -> Came<T> {
        Came { state: Mutex::new(State { bursts: Vec::new(), sleep: None }), bell: Notify::new() }
    }
}

impl<T: Wishes> Came<T> {
    /// Adds one, and wakes the task if its sleep does not cover it.
    pub(super) fn push(&self, burst: T) {
        let wish = burst.wish();
        let mut state = self.state.lock();
        state.bursts.push(burst);
        let wakes = state.sleep.is_some_and(|sleep| !sleep.covers(wish));
        if wakes {
            state.sleep = None;
        }
        drop(state);
        if wakes {
            self.bell.notify_one();
        }
    }

    /// Takes what has come. The task is awake.
    pub(super) fn take(&self, into: &mut Vec<T>) {
        let mut state = self.state.lock();
        state.sleep = None;
        into.append(&mut state.bursts);
    }

    /// Whether the task may sleep: nothing has come that its sleep does not cover. From then on such a burst wakes it.
    pub(super) fn may_sleep(&self, sleep: Sleep) -> bool {
        let mut state = self.state.lock();
        let may = state.bursts.iter().all(|burst| sleep.covers(burst.wish()));
        state.sleep = may.then_some(sleep);
        may
    }

    /// Ready when the task is to look what has come.
    pub(super) async fn rung(&self) {
        self.bell.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    impl Wishes for Wish {
        fn wish(&self) -> Wish {
            *self
        }
    }

    fn wish(stages: &[Stage], end: u64) -> Wish {
        let answers = stages.iter().fold(Stages::NONE, |all, stage| all.with(*stage));
        Wish { answers, has_consumers: false, end: LogOffset(end) }
    }

    /// Whether the task that sleeps until `waiting` have come is woken by `coming`.
    async fn wakes(waiting: &[Wish], is_confirmed_by_flush: bool, coming: Wish) -> bool {
        let came = Came::default();
        assert!(came.may_sleep(Sleep::until(waiting.iter().copied(), is_confirmed_by_flush)));
        came.push(coming);
        // A permit is there already, or never comes.
        timeout(std::time::Duration::ZERO, came.rung()).await.is_ok()
    }

    #[tokio::test]
    async fn a_burst_wakes_the_task_if_nothing_else_would_when_it_has_come_to_its_stage() {
        let on_slaves = [wish(&[Stage::CopiedBySetting], 100)];
        assert!(!wakes(&on_slaves, true, wish(&[Stage::CopiedBySetting], 200)).await);
        assert!(wakes(&on_slaves, true, wish(&[Stage::Flushed], 200)).await, "the device is not looked at");
        assert!(wakes(&on_slaves, true, wish(&[Stage::CopiedBySetting, Stage::Flushed], 200)).await);
        assert!(wakes(&on_slaves, true, wish(&[Stage::CopiedByOne], 200)).await);
        assert!(wakes(&on_slaves, true, wish(&[Stage::CopiedBySetting], 50)).await, "it is there sooner");
        assert!(wakes(&on_slaves, true, wish(&[], 200)).await, "it waits for nothing");
        assert!(wakes(&[], true, wish(&[Stage::Flushed], 200)).await, "the task sleeps without end");
    }

    #[tokio::test]
    async fn consumers_are_told_by_the_flush_that_answers_wait_for_or_else_by_what_is_confirmed() {
        let on_device = [wish(&[Stage::Flushed], 100)];
        let consumed = |stages: &[Stage]| Wish { has_consumers: true, ..wish(stages, 200) };
        assert!(!wakes(&on_device, true, consumed(&[Stage::Flushed])).await);
        assert!(wakes(&on_device, false, consumed(&[Stage::Flushed])).await);
        assert!(wakes(&on_device, true, consumed(&[])).await);
    }

    #[test]
    fn the_task_looks_again_at_what_came_before_it_sleeps() {
        let came = Came::default();
        let sleep = Sleep::until([wish(&[Stage::CopiedBySetting], 100)].into_iter(), true);
        came.push(wish(&[Stage::CopiedBySetting], 200));
        assert!(came.may_sleep(sleep));
        let mut taken = Vec::new();
        came.take(&mut taken);
        assert_eq!(taken.len(), 1);
        came.push(wish(&[Stage::Flushed], 300));
        assert!(!came.may_sleep(sleep));
    }
}
