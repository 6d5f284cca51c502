//! Seeds that are played with every change, and what the simulator promises of itself.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeSet;
use std::ops::Range;

use parking_lot::Mutex;
use sim::Twist;
use sim::cluster_run::Lie;
use sim::log_run::Plan;
use sim::verdict::{Report, Verdict};

/// Each of these once found something that was wrong; docs/testing.md says what.
const FOUND_SOMETHING: [u64; 12] = [3, 48, 144, 283, 406, 425, 440, 476, 513, 659, 1603, 8273];

/// The same, of brokers.
const FOUND_SOMETHING_IN_BROKERS: [u64; 15] =
    [29, 57, 87, 100, 126, 223, 279, 314, 341, 344, 357, 365, 383, 475, 110_006];

/// The same, of groups.
const FOUND_SOMETHING_IN_GROUPS: [u64; 6] = [8, 37, 47, 86, 97, 100_026];

/// The same, of groups whose broker takes rare branches.
const FOUND_SOMETHING_IN_RARE_GROUPS: [u64; 2] = [8264, 200_028];

/// The same, of copies.
const FOUND_SOMETHING_IN_COPIES: [u64; 4] = [8, 13, 22, 1_790_000_000_606];

/// The same, of copies with rare branches.
const FOUND_SOMETHING_IN_RARE_COPIES: [u64; 3] = [1_790_000_000_361, 1_790_000_000_445, 1_790_000_001_201];

/// The same, of stores by other plans, with the options that play them.
const FOUND_SOMETHING_BY_PLANS: [(&str, Plan, &[u64]); 6] = [
    ("--retention", RETENTION, &[190, 1235, 50629, 1_800_000_001_215]),
    ("--fail", FAILING, &[1196, 1276, 1_790_000_001_066]),
    ("--rare", Plan { twist: RARE, ..STORES }, &[18, 50001]),
    ("--retention --fail", BOTH, &[141]),
    ("--retention --rare", Plan { twist: RARE, ..RETENTION }, &[30370, 30454]),
    ("--fail --rare", Plan { twist: RARE, ..FAILING }, &[30174]),
];

/// How many seeds of stores are played.
const STORES_PLAYED: u64 = 1000;

const USUAL: Twist = Twist { is_rare: false, lies: false };
const RARE: Twist = Twist { is_rare: true, lies: false };

const STORES: Plan = Plan { is_for_apache: false, ages: false, fails: false, damages: false, twist: USUAL };
const RETENTION: Plan = Plan { ages: true, ..STORES };
const FAILING: Plan = Plan { fails: true, ..STORES };
const DAMAGED: Plan = Plan { damages: true, ..STORES };
const BOTH: Plan = Plan { ages: true, fails: true, ..STORES };

fn by(plan: Plan, tells: bool) -> impl Fn(u64) -> Report {
    move |seed| sim::play_and_keep(seed, plan, tells, &mut |_| Ok(()))
}

/// So many seeds: the same ones each time, or those from `GANTRY_SEED` on.
fn some(count: u64) -> Range<u64> {
    let text = std::env::var("GANTRY_SEED").unwrap_or_default();
    let first = if text.is_empty() { 0 } else { text.parse().expect("GANTRY_SEED is a number") };
    first..first + count
}

/// Of seeds that once found something, those that are not among so many.
fn besides(found: &[u64], count: u64) -> impl Iterator<Item = u64> + Send {
    let among = some(count);
    found.iter().copied().filter(move |seed| !among.contains(seed))
}

/// Fails if something was found; `options` are those of `sim` that play such a seed.
fn assert_well(found: &[String], options: &str) {
    let again = format!("cargo run --profile fast -p sim -- {options}--seed N tells its story");
    assert!(found.is_empty(), "seeds from {}:\n{}\n{again}", some(0).start, found.join("\n"));
}

fn play(seeds: impl Iterator<Item = u64> + Send) -> Vec<String> {
    play_by(seeds, |seed| sim::play(seed, false))
}

fn play_by(seeds: impl Iterator<Item = u64> + Send, one: impl Fn(u64) -> Report + Sync) -> Vec<String> {
    let (seeds, found) = (Mutex::new(seeds), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    // Not held while it is played.
                    let next = seeds.lock().next();
                    let Some(seed) = next else { return };
                    let report = one(seed);
                    found.lock().extend(report.findings.iter().map(|finding| format!("seed {seed}: {finding}")));
                }
            });
        }
    });
    found.into_inner()
}

#[test]
fn a_thousand_seeds_find_nothing() {
    assert_well(&play(some(STORES_PLAYED)), "");
}

#[test]
fn seeds_that_once_found_something_find_nothing() {
    assert_well(&play(besides(&FOUND_SOMETHING, STORES_PLAYED)), "");
    for (options, plan, seeds) in FOUND_SOMETHING_BY_PLANS {
        assert_well(&play_by(seeds.iter().copied(), by(plan, false)), &format!("{options} "));
    }
}

#[test]
fn stores_whose_old_files_go_keep_what_is_not_old() {
    assert_well(&play_by(some(80), by(RETENTION, false)), "--retention ");
}

#[test]
fn stores_whose_queues_are_damaged_lose_no_message() {
    assert_well(&play_by(some(80), by(DAMAGED, false)), "--damage ");
}

#[test]
fn stores_on_devices_that_fail_keep_what_they_promised() {
    assert_well(&play_by(some(150), by(FAILING, false)), "--fail ");
    assert_well(&play_by(some(80), by(BOTH, false)), "--retention --fail ");
}

#[test]
fn stores_that_take_rare_branches_keep_what_they_promised() {
    let rare = |plan: Plan| by(Plan { twist: RARE, ..plan }, false);
    assert_well(&play_by(some(150), rare(STORES)), "--rare ");
    assert_well(&play_by(some(40), rare(BOTH)), "--retention --fail --rare ");
}

#[test]
fn copies_of_a_log_are_the_same() {
    let copy = |twist| move |seed| sim::play_copy(seed, twist, false);
    assert_well(&play_by(some(150).chain(besides(&FOUND_SOMETHING_IN_COPIES, 150)), copy(USUAL)), "--copy ");
    assert_well(&play_by(some(50).chain(besides(&FOUND_SOMETHING_IN_RARE_COPIES, 50)), copy(RARE)), "--copy --rare ");
}

#[test]
fn a_disk_that_lies_is_found_out_by_copies_and_clusters_too() {
    let lies = Twist { lies: true, ..USUAL };
    let copies = noticed(|seed| sim::play_copy(seed, lies, false));
    let clusters = noticed(|seed| sim::play_cluster(seed, lies, false));
    assert!(copies >= 4 && clusters >= 4, "of 20 each: {copies} and {clusters}");
}

#[test]
fn slaves_have_what_they_reported_and_come_to_the_end_of_the_log() {
    let cluster = |twist| move |seed| sim::play_cluster(seed, twist, false);
    assert_well(&play_by(some(40), cluster(USUAL)), "--cluster ");
    assert_well(&play_by(some(15), cluster(RARE)), "--cluster --rare ");
}

/// What is done wrong, and what has to be found.
const LIES: [(Lie, Verdict); 7] = [
    (Lie::ReportsBeforeAppends, Verdict::Lost),
    (Lie::ReceivedIsFlushed, Verdict::Lost),
    (Lie::FramesAreNotChecked, Verdict::Differs),
    (Lie::ConnectionsAreCopies, Verdict::Lost),
    (Lie::IncompleteRecordsStay, Verdict::Foreign),
    (Lie::NobodyAsks, Verdict::Differs),
    (Lie::SilenceIsBorne, Verdict::Late),
];

#[test]
fn each_lie_of_a_cluster_is_found() {
    for (lie, verdict) in LIES {
        let is_found = |seed: u64| sim::play_lying_cluster(seed, lie, false).verdicts().contains(&verdict);
        assert!((0..200).any(is_found), "{lie:?} was never {verdict:?}");
    }
}

const BRANCHES: [&str; 8] = [
    "journal: a snapshot before it is due",
    "journal: changes that wait are folded early",
    "journal: no room ahead",
    "log: no room yet",
    "queues: a descriptor had to go",
    "queues: the whole file system is synced",
    "queues: units gather",
    "store: a check-point is left out",
];

#[test]
fn each_rare_branch_is_taken() {
    let plan = Plan { twist: RARE, ..Plan::default() };
    let mut taken = BTreeSet::new();
    for report in (0..30).map(by(plan, false)) {
        taken.extend(report.rare.into_iter().filter(|(_, count)| *count > 0).map(|(branch, _)| branch));
    }
    assert_eq!(taken, BTreeSet::from(BRANCHES));
    assert!(sim::play(0, false).rare.is_empty(), "others take none");
}

#[test]
fn brokers_of_many_seeds_keep_what_they_promised() {
    let broker = |twist| move |seed| sim::play_broker(seed, twist, false);
    assert_well(&play_by(some(110).chain(besides(&FOUND_SOMETHING_IN_BROKERS, 110)), broker(USUAL)), "--broker ");
    assert_well(&play_by(some(40), broker(RARE)), "--broker --rare ");
}

#[test]
fn groups_of_many_seeds_get_what_was_sent() {
    let group = |twist| move |seed| sim::play_group(seed, twist, false);
    assert_well(&play_by(some(110).chain(besides(&FOUND_SOMETHING_IN_GROUPS, 110)), group(USUAL)), "--group ");
    assert_well(&play_by(some(30).chain(FOUND_SOMETHING_IN_RARE_GROUPS), group(RARE)), "--group --rare ");
}

/// The seeds in the first column of a table of docs/testing.md, by the title or the sentence that it stands under, each with the options that stand
/// with it.
fn told_of(title: &str) -> BTreeSet<(String, u64)> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/testing.md")).unwrap();
    let (_, behind) = page.split_once(title).unwrap_or_else(|| panic!("testing.md has no \"{title}\""));
    let table = behind.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let seeds = table.skip(2).filter_map(|row| row.split('|').nth(1));
    let one_by_one = seeds.flat_map(|cell| cell.split(',')).map(|seed| seed.trim().trim_matches('`'));
    one_by_one
        .filter_map(|seed| {
            let number = seed.rsplit(' ').next()?.parse().ok()?;
            let options = seed.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end().trim_end_matches('`');
            Some((options.to_owned(), number))
        })
        .collect()
}

/// The same of what stands here.
fn known<'a>(seeds: impl IntoIterator<Item = (&'a str, &'a [u64])>) -> BTreeSet<(String, u64)> {
    let of = |(options, seeds): (&'a str, &'a [u64])| seeds.iter().map(move |seed| (options.to_owned(), *seed));
    seeds.into_iter().flat_map(of).collect()
}

#[test]
fn the_page_tells_of_each_seed_that_found_something_and_each_is_played() {
    let by_plans = FOUND_SOMETHING_BY_PLANS.map(|(options, _, seeds)| (options, seeds));
    let stores = [("", FOUND_SOMETHING.as_slice())].into_iter().chain(by_plans);
    assert_eq!(told_of("### What seeds have found"), known(stores));
    assert_eq!(told_of("Of brokers, all with tests beside"), known([("", FOUND_SOMETHING_IN_BROKERS.as_slice())]));
    let groups = [("", FOUND_SOMETHING_IN_GROUPS.as_slice()), ("--rare", FOUND_SOMETHING_IN_RARE_GROUPS.as_slice())];
    assert_eq!(told_of("Of groups:"), known(groups));
    let copies = [("", FOUND_SOMETHING_IN_COPIES.as_slice()), ("--rare", FOUND_SOMETHING_IN_RARE_COPIES.as_slice())];
    assert_eq!(told_of("Of copies:"), known(copies));
}

/// Whether a run by a disk that lies finds that what was promised is gone, or that it went back.
fn is_noticed(report: &Report) -> bool {
    report.findings.iter().any(|finding| matches!(finding.verdict, Verdict::Lost | Verdict::WentBack))
}

/// How many of twenty such runs find it.
fn noticed(play: impl Fn(u64) -> Report) -> usize {
    (0..20).map(play).filter(is_noticed).count()
}

#[test]
fn a_disk_that_lies_is_found_out_by_each_kind_of_run() {
    let lies = Twist { lies: true, ..USUAL };
    let store = by(Plan { twist: lies, ..Plan::default() }, false);
    // Some lose no power, or nothing that counts.
    let stores = noticed(store);
    let brokers = noticed(|seed| sim::play_broker(seed, lies, false));
    let groups = noticed(|seed| sim::play_group(seed, lies, false));
    assert!(stores >= 4 && brokers >= 3 && groups >= 2, "of 20 each: {stores}, {brokers} and {groups}");
}

/// Plays each seed twice, and says how many crashes there were.
fn twice(seeds: impl Iterator<Item = u64>, play: impl Fn(u64) -> Report) -> u32 {
    let mut crashes = 0;
    for seed in seeds {
        let (once, twice) = (play(seed), play(seed));
        // Folders have names of their own.
        let names_folder = |line: &str| line.contains("gantry-sim");
        let differ = once
            .story
            .iter()
            .zip(&twice.story)
            .find(|(one, other)| one != other && !(names_folder(one) && names_folder(other)));
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(once.story.len(), twice.story.len(), "seed {seed}: one story goes on");
        assert_eq!((once.trace, once.messages), (twice.trace, twice.messages), "seed {seed}");
        crashes += once.crashes;
    }
    crashes
}

#[test]
fn a_seed_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5013, |seed| sim::play(seed, true));
    assert!(crashes >= 24, "seeds have two crashes at least");
}

#[test]
fn a_seed_of_retention_and_of_failing_calls_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5008, by(BOTH, true));
    assert!(crashes >= 16, "seeds have two crashes at least");
}

#[test]
fn a_seed_with_rare_branches_played_twice_does_the_same_twice() {
    twice(5000..5008, by(Plan { twist: RARE, ..Plan::default() }, true));
    twice(5004..5008, |seed| sim::play_broker(seed, RARE, true));
    twice(5000..5004, |seed| sim::play_group(seed, RARE, true));
}

#[test]
fn a_seed_of_a_broker_played_twice_does_the_same_twice() {
    // With those that once did not. In 5003 it is as in 5005 of stores.
    let crashes =
        twice([5000, 5001, 5002, 5004, 5005, 5008, 5012, 5014].into_iter(), |seed| sim::play_broker(seed, USUAL, true));
    assert!(crashes >= 16, "seeds have two crashes at least");
}

#[test]
fn a_seed_of_groups_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5010, |seed| sim::play_group(seed, USUAL, true));
    assert!(crashes >= 10, "seeds have a crash at least");
}

#[test]
fn a_seed_of_a_cluster_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5004, |seed| sim::play_cluster(seed, USUAL, true));
    assert!(crashes >= 12, "all stop twice at the end");
    twice(5000..5002, |seed| sim::play_cluster(seed, RARE, true));
}
