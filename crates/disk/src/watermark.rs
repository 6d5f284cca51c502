//! How far something has come: written, flushed, replicated, journalled.
//!
//! A [`Watermark`] is a number that only grows, and whoever needs it at some height waits for it: a task by `.await`, a thread
//! with a deadline. There is no thread of its own; whoever advances it wakes those whose height is reached. Advancing while
//! nobody waits costs one atomic operation and one load.
//!
//! The code is in `mark.rs` and takes its locks, atomics and threads from the `sync` module beside it, so that the tests can
//! build the same file a second time on shuttle's, which tries out the interleavings.

mod mark;
#[cfg(test)]
mod tests;

/// Where `mark.rs` takes its primitives from; under shuttle, `tests.rs` puts its own in this place.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    pub(super) use std::thread::{Thread, current, park_timeout};

    pub(super) use parking_lot::Mutex;

    pub(super) use crate::turns::wait_until as wait_in_turns;
}

pub use mark::{Reached, Watermark};
