//! Invariants that hold in release builds too: where one is broken, a wrong value would be written
//! or acknowledged. The process ends with what was expected and what was found, and the next start
//! goes on from the disk.

use std::fmt;

use tracing::error;

use crate::turns;

/// `found` is `expected`, or the process ends.
#[inline]
pub fn equal(what: &'static str, expected: u64, found: u64) {
    if found != expected {
        broken(what, format_args!("{expected}"), found);
    }
}

/// `found` is `least` or more, or the process ends.
#[inline]
pub fn not_below(what: &'static str, least: u64, found: u64) {
    if found < least {
        broken(what, format_args!("{least} or more"), found);
    }
}

/// `found` is `most` or less, or the process ends.
#[inline]
pub fn not_above(what: &'static str, most: u64, found: u64) {
    if found > most {
        broken(what, format_args!("{most} or less"), found);
    }
}

#[cold]
#[inline(never)]
fn broken(what: &'static str, expected: fmt::Arguments<'_>, found: u64) -> ! {
    error!(what, %expected, found, "an invariant is broken: ending the process");
    turns::end_process();
}

/// Ends the process if a panic drops it: what was under way may be half done, and others would go
/// on with it. Where turns are given, the simulator hears of the panic and ends by itself.
#[must_use = "it guards as long as it lives"]
pub struct Whole(pub &'static str);

impl Drop for Whole {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !turns::are_given() {
            error!(what = self.0, "a panic has left it half done: ending the process");
            turns::end_process();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::Command;

    use env::{Clock, Random, TimeMs};

    use super::*;
    use crate::turns::Turns;

    const CHILD: &str = "GANTRY_TEST_OF_INVARIANTS";
    const SIGABRT: i32 = 6;

    /// Whether this ends the process.
    fn ends(broken: impl FnOnce()) -> bool {
        let turns = Turns::new(Clock::manual(TimeMs(0)).0, Random::seeded(1));
        turns.begin_process(|| {});
        let _in_charge = turns.enter();
        let ended = catch_unwind(AssertUnwindSafe(broken));
        assert_eq!(ended.is_err(), turns.has_ended_process());
        turns.has_ended_process()
    }

    #[test]
    fn an_invariant_ends_the_process_only_when_it_is_broken() {
        assert!(!ends(|| equal("a number", 5, 5)));
        assert!(!ends(|| not_below("a number", 5, 5)));
        assert!(!ends(|| not_above("a number", 5, 5)));
        assert!(ends(|| equal("a number", 5, 4)));
        assert!(ends(|| not_below("a number", 5, 4)));
        assert!(ends(|| not_above("a number", 5, 6)));
    }

    /// Runs itself once more, in a process that may die.
    #[test]
    fn a_panic_in_the_middle_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let _ = catch_unwind(|| {
                let _whole = Whole("a change");
                panic!("as the test wants");
            });
            return;
        }
        let name = "invariant::tests::a_panic_in_the_middle_ends_the_process";
        let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "1").output();
        assert_eq!(child.unwrap().status.signal(), Some(SIGABRT));
    }
}
