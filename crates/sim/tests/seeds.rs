//! Seeds that are played with every change, and what the simulator promises of itself.

use parking_lot::Mutex;
use sim::log_run::Plan;
use sim::verdict::Report;

/// Each of these once found something that was wrong; docs/testing.md says what.
const FOUND_SOMETHING: [u64; 11] = [3, 48, 144, 283, 406, 425, 440, 476, 513, 659, 1603];

/// The same, of brokers.
const FOUND_SOMETHING_IN_BROKERS: [u64; 10] = [29, 57, 87, 100, 126, 279, 341, 357, 365, 475];

/// The same, of groups.
const FOUND_SOMETHING_IN_GROUPS: [u64; 4] = [8, 37, 86, 97];

/// The same, of stores whose old files go.
const FOUND_SOMETHING_IN_RETENTION: [u64; 2] = [190, 1235];

/// The same, of stores whose old files go while calls fail.
const FOUND_SOMETHING_IN_BOTH: [u64; 1] = [141];

const RETENTION: Plan = Plan { is_for_apache: false, ages: true, fails: false };
const FAILING: Plan = Plan { is_for_apache: false, ages: false, fails: true };
const BOTH: Plan = Plan { is_for_apache: false, ages: true, fails: true };

fn by(plan: Plan, tells: bool) -> impl Fn(u64) -> Report {
    move |seed| sim::play_and_keep(seed, plan, tells, &mut |_| Ok(()))
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
    let found = play(0..1000);
    assert!(found.is_empty(), "{}\ncargo run --profile fast -p sim -- --seed N tells its story", found.join("\n"));
}

#[test]
fn seeds_that_once_found_something_find_nothing() {
    assert_eq!(play(FOUND_SOMETHING.into_iter()), Vec::<String>::new());
}

#[test]
fn stores_whose_old_files_go_keep_what_is_not_old() {
    let found = play_by((0..80).chain(FOUND_SOMETHING_IN_RETENTION), by(RETENTION, false));
    assert!(found.is_empty(), "{}\ncargo run --profile fast -p sim -- --retention --seed N", found.join("\n"));
}

#[test]
fn stores_on_devices_that_fail_keep_what_they_promised() {
    let found = play_by(0..150, by(FAILING, false));
    assert!(found.is_empty(), "{}\ncargo run --profile fast -p sim -- --fail --seed N", found.join("\n"));
    let found = play_by((0..80).chain(FOUND_SOMETHING_IN_BOTH), by(BOTH, false));
    assert!(found.is_empty(), "{}\ncargo run --profile fast -p sim -- --retention --fail --seed N", found.join("\n"));
}

#[test]
fn brokers_of_many_seeds_keep_what_they_promised() {
    let found = play_by((0..30).chain(FOUND_SOMETHING_IN_BROKERS), |seed| sim::play_broker(seed, false));
    assert!(
        found.is_empty(),
        "{}\ncargo run --profile fast -p sim -- --broker --seed N tells its story",
        found.join("\n")
    );
}

#[test]
fn groups_of_many_seeds_get_what_was_sent() {
    let found = play_by((0..40).chain(FOUND_SOMETHING_IN_GROUPS), |seed| sim::play_group(seed, false));
    assert!(
        found.is_empty(),
        "{}\ncargo run --profile fast -p sim -- --group --seed N tells its story",
        found.join("\n")
    );
}

/// Plays each seed twice, and says how many crashes there were.
fn twice(seeds: impl Iterator<Item = u64>, play: impl Fn(u64) -> Report) -> u32 {
    let mut crashes = 0;
    for seed in seeds {
        let (once, twice) = (play(seed), play(seed));
        let differ = once.story.iter().zip(&twice.story).find(|(one, other)| one != other);
        // Folders have names of their own.
        let differ = differ.filter(|(one, other)| !one.contains("gantry-sim") && !other.contains("gantry-sim"));
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!((once.trace, once.messages), (twice.trace, twice.messages), "seed {seed}");
        crashes += once.crashes;
    }
    crashes
}

#[test]
fn a_seed_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5012, |seed| sim::play(seed, true));
    assert!(crashes >= 24, "seeds have two crashes at least");
}

#[test]
fn a_seed_of_retention_and_of_failing_calls_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5008, by(BOTH, true));
    assert!(crashes >= 16, "seeds have two crashes at least");
}

#[test]
fn a_seed_of_a_broker_played_twice_does_the_same_twice() {
    // With those that once did not.
    let crashes = twice((5000..5006).chain([5008, 5014]), |seed| sim::play_broker(seed, true));
    assert!(crashes >= 16, "seeds have two crashes at least");
}

#[test]
fn a_seed_of_groups_played_twice_does_the_same_twice() {
    let crashes = twice(5000..5010, |seed| sim::play_group(seed, true));
    assert!(crashes >= 10, "seeds have a crash at least");
}
