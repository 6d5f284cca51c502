//! `sim`: plays seeds, and says which found something.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
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
    /// Play all kinds in turn, a seed of each: stores, brokers, groups, and stores with old files that go, failing calls, and both.
    #[arg(long, conflicts_with_all = ["images", "for_apache", "broker", "group", "seed"])]
    all: bool,
    /// Old files go meanwhile, by age and by need.
    #[arg(long, conflicts_with_all = ["for_apache", "broker", "group", "all"])]
    retention: bool,
    /// The device refuses calls meanwhile: it is full, or broken, or cannot keep what it was given.
    #[arg(long, conflicts_with_all = ["for_apache", "broker", "group", "all"])]
    fail: bool,
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
    Store { ages: bool, fails: bool },
    Broker,
    Group,
}

/// Those that are played in turn.
const ALL: [Kind; 6] = [
    Kind::Store { ages: false, fails: false },
    Kind::Broker,
    Kind::Group,
    Kind::Store { ages: true, fails: false },
    Kind::Store { ages: false, fails: true },
    Kind::Store { ages: true, fails: true },
];

impl Kind {
    /// The option that plays it again.
    fn option(self) -> &'static str {
        match self {
            Kind::Store { ages: false, fails: false } => "",
            Kind::Store { ages: true, fails: false } => "--retention ",
            Kind::Store { ages: false, fails: true } => "--fail ",
            Kind::Store { ages: true, fails: true } => "--retention --fail ",
            Kind::Broker => "--broker ",
            Kind::Group => "--group ",
        }
    }
}

impl Arguments {
    /// What the nth of many is.
    fn kind(&self, nth: u64) -> Kind {
        match () {
            () if self.broker => Kind::Broker,
            () if self.group => Kind::Group,
            () if self.all => ALL[(nth % ALL.len() as u64) as usize],
            () => Kind::Store { ages: self.retention, fails: self.fail },
        }
    }

    fn play(&self, kind: Kind, seed: u64, tells: bool) -> Report {
        let (ages, fails) = match kind {
            Kind::Store { ages, fails } => (ages, fails),
            Kind::Broker => return sim::play_broker(seed, tells),
            Kind::Group => return sim::play_group(seed, tells),
        };
        let plan = Plan { is_for_apache: self.for_apache, ages, fails };
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
        println!("{}--seed {seed}: {finding}", kind.option());
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
