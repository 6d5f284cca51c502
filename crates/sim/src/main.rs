//! `sim`: plays seeds, and says which found something.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use sim::Twist;
use sim::log_run::Plan;
use sim::verdict::Report;

/// Plays seeds of simulated runs.
#[derive(Parser)]
struct Arguments {
    /// Play this one, and tell its story.
    #[arg(long, conflicts_with_all = ["seeds", "seconds"])]
    seed: Option<u64>,
    /// How many to play.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Play as many as there is time for, instead.
    #[arg(long)]
    seconds: Option<u64>,
    /// At a time; by default as many as there are processors.
    #[arg(long)]
    threads: Option<usize>,
    /// Play brokers, not stores alone.
    #[arg(long, conflicts_with_all = ["images", "for_apache"])]
    broker: bool,
    /// Play groups of consumers over a network.
    #[arg(long, conflicts_with_all = ["images", "for_apache", "broker"])]
    group: bool,
    /// Play a store and a copy of its log.
    #[arg(long, conflicts_with_all = ["images", "for_apache", "broker", "group", "retention", "fail", "damage"])]
    copy: bool,
    /// Play a master and its slaves.
    #[arg(long, conflicts_with_all = ["images", "for_apache", "broker", "group", "copy", "retention", "fail", "damage"])]
    cluster: bool,
    /// Play all kinds in turn, a seed of each: stores, brokers, groups, and stores with old files that go, failing calls, and both,
    /// copies of a log, and masters with slaves; each without and with rare branches.
    #[arg(long, conflicts_with_all = ["images", "for_apache", "broker", "group", "copy", "cluster", "seed", "rare"])]
    all: bool,
    /// Old files go meanwhile, by age and by need.
    #[arg(long, conflicts_with_all = ["for_apache", "broker", "group", "all"])]
    retention: bool,
    /// The device refuses calls meanwhile: it is full, or broken, or cannot keep what it was given.
    #[arg(long, conflicts_with_all = ["for_apache", "broker", "group", "all"])]
    fail: bool,
    /// Units of consume queues are damaged, and folders of them lost, while the store is closed.
    #[arg(long, conflicts_with_all = ["for_apache", "broker", "group", "all"])]
    damage: bool,
    /// Rare branches of store and broker are taken without need.
    #[arg(long)]
    rare: bool,
    /// Keep what each crash left below this folder: a folder each, and a file that says what has to be in it.
    #[arg(long)]
    images: Option<PathBuf>,
    /// Stories that Apache RocketMQ can go on with: no topic is deleted, and files are not as small as usual.
    #[arg(long)]
    for_apache: bool,
}

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Store(Plan),
    Broker(Twist),
    Group(Twist),
    Copy(Twist),
    Cluster(Twist),
}

impl Kind {
    /// The nth of those that are played in turn.
    fn in_turn(nth: u64) -> Kind {
        // Each of the eight without and with.
        let twist = Twist { is_rare: nth / 8 % 2 == 1, ..Twist::default() };
        let store = |ages, fails| Kind::Store(Plan { ages, fails, twist, ..Plan::default() });
        match nth % 8 {
            0 => store(false, false),
            1 => Kind::Broker(twist),
            2 => Kind::Group(twist),
            3 => store(true, false),
            4 => store(false, true),
            5 => store(true, true),
            6 => Kind::Copy(twist),
            _ => Kind::Cluster(twist),
        }
    }

    /// The options that play it again.
    fn options(self) -> String {
        let (twist, options) = match self {
            Kind::Store(plan) => {
                let options = [
                    (plan.is_for_apache, "--for-apache "),
                    (plan.ages, "--retention "),
                    (plan.fails, "--fail "),
                    (plan.damages, "--damage "),
                ];
                (plan.twist, options.into_iter().filter(|(is_so, _)| *is_so).map(|(_, option)| option).collect())
            }
            Kind::Broker(twist) => (twist, "--broker ".to_owned()),
            Kind::Group(twist) => (twist, "--group ".to_owned()),
            Kind::Copy(twist) => (twist, "--copy ".to_owned()),
            Kind::Cluster(twist) => (twist, "--cluster ".to_owned()),
        };
        if twist.is_rare { options + "--rare " } else { options }
    }
}

impl Arguments {
    /// What the nth of many is.
    fn kind(&self, nth: u64) -> Kind {
        let twist = Twist { is_rare: self.rare, ..Twist::default() };
        match () {
            () if self.broker => Kind::Broker(twist),
            () if self.group => Kind::Group(twist),
            () if self.copy => Kind::Copy(twist),
            () if self.cluster => Kind::Cluster(twist),
            () if self.all => Kind::in_turn(nth),
            () => {
                let Arguments { for_apache, retention, fail, damage, .. } = *self;
                Kind::Store(Plan { is_for_apache: for_apache, ages: retention, fails: fail, damages: damage, twist })
            }
        }
    }

    fn play(&self, kind: Kind, seed: u64, tells: bool) -> Report {
        let plan = match kind {
            Kind::Store(plan) => plan,
            Kind::Broker(twist) => return sim::play_broker(seed, twist, tells),
            Kind::Group(twist) => return sim::play_group(seed, twist, tells),
            Kind::Copy(twist) => return sim::play_copy(seed, twist, tells),
            Kind::Cluster(twist) => return sim::play_cluster(seed, twist, tells),
        };
        sim::play_and_keep(seed, plan, tells, &mut |left| {
            if let Some(images) = &self.images {
                left.write(&images.join(format!("{seed}-{}", left.life)))?;
            }
            Ok(())
        })
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    }
}

fn one(seed: u64, arguments: &Arguments) -> ExitCode {
    let kind = arguments.kind(0);
    let report = arguments.play(kind, seed, true);
    for line in &report.story {
        println!("{line}");
    }
    println!("{} crashes, {} messages, trace {:016x}", report.crashes, report.messages, report.trace);
    verdict(kind, seed, &report)
}

fn verdict(kind: Kind, seed: u64, report: &Report) -> ExitCode {
    for finding in &report.findings {
        println!("{}--seed {seed}: {finding}", kind.options());
    }
    if report.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn many(arguments: &Arguments) -> ExitCode {
    let begin = Instant::now();
    let deadline = arguments.seconds.map(|seconds| begin + Duration::from_secs(seconds));
    let last = if deadline.is_some() { u64::MAX } else { arguments.from.saturating_add(arguments.seeds) };
    let threads = arguments.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let next = AtomicU64::new(arguments.from);
    let (played, crashes, messages) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Ends with the seeds or the time.
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // Neighbours are of one kind each, and have a number each.
                    let kind = arguments.kind(seed);
                    if seed >= last || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return;
                    }
                    let report = arguments.play(kind, seed, false);
                    played.fetch_add(1, Ordering::Relaxed);
                    crashes.fetch_add(u64::from(report.crashes), Ordering::Relaxed);
                    messages.fetch_add(report.messages, Ordering::Relaxed);
                    if !report.is_well() {
                        let _ = verdict(kind, seed, &report);
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    println!(
        "{} seeds, {} crashes, {} messages in {:.1} s",
        played.into_inner(),
        crashes.into_inner(),
        messages.into_inner(),
        begin.elapsed().as_secs_f64()
    );
    let failed = failed.into_inner();
    if failed == 0 {
        return ExitCode::SUCCESS;
    }
    println!(
        "{failed} failed; each is told again by: cargo run --profile fast -p sim -- and what stands before its finding"
    );
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_a_finding_plays_the_same_again() {
        let for_apache = Plan { is_for_apache: true, ..Plan::default() };
        let kinds = (0..16).map(Kind::in_turn).chain([Kind::Store(for_apache)]);
        for kind in kinds {
            let hint = format!("sim {}--seed 7", kind.options());
            let arguments = Arguments::try_parse_from(hint.split(' ')).unwrap();
            assert_eq!((arguments.kind(7), arguments.seed), (kind, Some(7)), "{hint}");
        }
    }

    #[test]
    fn all_kinds_in_turn_are_sixteen() {
        let options: std::collections::BTreeSet<String> = (0..32).map(|nth| Kind::in_turn(nth).options()).collect();
        assert_eq!(options.len(), 16);
    }
}
