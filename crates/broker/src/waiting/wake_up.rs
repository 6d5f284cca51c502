//! The protocol by which no wake-up is lost, and nobody is woken twice.
//!
//! Whoever finds nothing lays what waits into a [`WaitList`] and looks again; whoever publishes something looks at the list's length
//! afterwards, which costs a load while nobody waits. What is taken off a list is laid into the [`Errands`] of a task, which is told when
//! they stop being empty. Parked pulls, waiting pops and the inboxes of connections all go through these two types.
//!
//! The code is in `protocol.rs` and takes its locks and atomics from the `sync` module beside it, so that the tests can build the same
//! file again on loom's, which tries out all interleavings and what each load may return under the memory model.

mod protocol;
#[cfg(test)]
mod tests;

/// Where `protocol.rs` takes its primitives from; under loom, the tests put their own in this place.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicUsize, Ordering, fence};

    pub(crate) use parking_lot::Mutex;
}

pub(crate) use protocol::{Errands, List, Published, WaitList};
