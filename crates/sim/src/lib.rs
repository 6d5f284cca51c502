//! Seeded runs of the store and the broker over a simulated clock and disk, and what they may never show.
//!
//! A seed decides everything: what is sent, when time passes, in which order the store's threads have their turns, when the power fails, and which
//! sectors and names the device had by then. The code is the one that serves; what it is given is simulated: the clock and, if asked for, which rare
//! branches are taken (`env`), the file system
//! ([`disk`]), and the order of threads (`disk::turns`). What must hold is in [`log_run`] and the
//! runs beside it, and what is wrong has a [`verdict`].

pub mod broker_run;
pub mod cluster_run;
pub mod copy_run;
pub mod disk;
pub mod group_run;
pub mod log_run;
pub mod network;
mod reading;
mod served;
mod side;
mod tables;
pub mod verdict;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cluster_run::Lie;
use log_run::{Left, Plan};
use verdict::{Report, Verdict};
pub use world::Twist;

/// Plays a seed. A panic is a finding like others.
pub fn play(seed: u64, tells: bool) -> Report {
    play_and_keep(seed, Plan::default(), tells, &mut |_| Ok(()))
}

/// The same by a plan, and shows what each crash left.
pub fn play_and_keep(
    seed: u64,
    plan: Plan,
    tells: bool,
    keep: &mut dyn FnMut(&Left<'_>) -> anyhow::Result<()>,
) -> Report {
    told(tells, |report| log_run::run(seed, plan, report, keep))
}

/// Plays a seed of a broker.
pub fn play_broker(seed: u64, twist: Twist, tells: bool) -> Report {
    told(tells, |report| broker_run::run(seed, twist, report))
}

/// Plays a seed of groups of consumers over a network.
pub fn play_group(seed: u64, twist: Twist, tells: bool) -> Report {
    told(tells, |report| group_run::run(seed, twist, report))
}

/// Plays a seed of a store and a copy of its log.
pub fn play_copy(seed: u64, twist: Twist, tells: bool) -> Report {
    told(tells, |report| copy_run::run(seed, twist, report))
}

/// Plays a seed of a master and its slaves.
pub fn play_cluster(seed: u64, twist: Twist, tells: bool) -> Report {
    told(tells, |report| cluster_run::run(seed, twist, None, report))
}

/// The same with something that is done wrong.
pub fn play_lying_cluster(seed: u64, lie: Lie, tells: bool) -> Report {
    told(tells, |report| cluster_run::run(seed, Twist::default(), Some(lie), report))
}

fn told(tells: bool, run: impl FnOnce(&mut Report) -> anyhow::Result<()>) -> Report {
    let mut report = Report::new(tells);
    let done = catch_unwind(AssertUnwindSafe(|| run(&mut report)));
    match done {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report.find(Verdict::Refused, format!("the run cannot go on: {error:#}")),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            report.find(Verdict::Panicked, said.unwrap_or_else(|| "without a word".to_owned()));
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_panics_or_cannot_go_on_has_found_something() {
        let stumbles = |_: &mut Report| -> anyhow::Result<()> { std::panic::resume_unwind(Box::new("an assertion")) };
        assert_eq!(told(false, stumbles).verdicts(), [Verdict::Panicked]);
        assert_eq!(told(false, |_| anyhow::bail!("no room")).verdicts(), [Verdict::Refused]);
        assert_eq!(told(false, |_| Ok(())).verdicts(), []);
    }
}
