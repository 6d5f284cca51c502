//! `protocol.rs` on loom's primitives: a test runs once for every interleaving, and for every value that a load may return. Where that would
//! be millions, a thread is interrupted only so often in the midst of its work.

mod sync {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering, fence};

    pub(super) use super::super::Mutex;
}

#[path = "../protocol.rs"]
#[allow(dead_code, clippy::duplicate_mod, reason = "a second build of the same file")]
mod protocol;
#[path = "scenarios.rs"]
#[allow(clippy::duplicate_mod, reason = "scenarios of this build of the protocol")]
mod scenarios;

/// Every interleaving in which threads are interrupted twice at most: nearly all faults that there are show with that.
fn with_two_interruptions(scenario: fn()) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(scenario);
}

#[test]
fn no_pull_stays_parked_while_its_message_is_visible() {
    loom::model(scenarios::an_append_meets_a_pull_that_parks);
}

#[test]
fn a_pop_is_found_through_the_rooms_of_a_queue() {
    loom::model(scenarios::an_append_meets_a_pop_that_parks);
}

#[test]
fn a_pull_comes_back_exactly_once() {
    loom::model(scenarios::an_append_and_the_end_of_its_time_meet_a_parked_pull);
    with_two_interruptions(scenarios::two_appends_and_the_end_of_its_time_meet_a_parked_pull);
}

#[test]
fn no_errand_is_lost_or_done_twice() {
    with_two_interruptions(scenarios::two_threads_lay_errands_down_for_a_task);
}

#[test]
fn an_errand_that_is_put_back_is_done_in_its_turn() {
    loom::model(scenarios::a_task_puts_errands_back);
}
