//! Whether something ends the process: a broken invariant, a sync that failed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use disk::turns::Turns;
use env::{Clock, Random, TimeMs};

/// Whether this ends the process. That of the test goes on; a panic in it stays one.
pub fn ends_process(act: impl FnOnce()) -> bool {
    let turns = Turns::new(Clock::manual(TimeMs(0)).0, Random::seeded(1));
    turns.begin_process(|| {});
    let _in_charge = turns.enter();
    match catch_unwind(AssertUnwindSafe(act)) {
        Err(panic) if !turns.has_ended_process() => resume_unwind(panic),
        Ok(()) | Err(_) => turns.has_ended_process(),
    }
}
