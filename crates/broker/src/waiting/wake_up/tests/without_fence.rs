//! The same without the fences, to see that the tests would see it: a pull stays parked although its message is there.

mod sync {
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};

    pub(super) use super::super::Mutex;

    pub(super) fn fence(_: Ordering) {}
}

#[path = "../protocol.rs"]
#[allow(dead_code, clippy::duplicate_mod, reason = "a third build of the same file")]
mod protocol;
#[path = "scenarios.rs"]
#[allow(dead_code, clippy::duplicate_mod, reason = "scenarios of this build of the protocol")]
mod scenarios;

#[test]
#[should_panic(expected = "is left parked")]
fn a_pull_that_parks_would_be_passed_over() {
    loom::model(scenarios::an_append_meets_a_pull_that_parks);
}

#[test]
#[should_panic(expected = "is left parked")]
fn a_pop_that_parks_would_be_passed_over() {
    loom::model(scenarios::an_append_meets_a_pop_that_parks);
}
