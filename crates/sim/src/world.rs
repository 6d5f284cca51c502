//! What is around the store in a run: the time, the dice, a disk that loses power, and the turns of threads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use disk::turns::Turns;
use env::{Buggify, Clock, ManualClock, Random, TimeMs};
use tempfile::TempDir;

use crate::disk::{Crash, CrashDisk, Image, Names, Rules};
use crate::verdict::{Report, Verdict};

/// When a run begins, by the simulated clock.
pub const BEGIN_MS: i64 = 1_800_000_000_000;
/// When a run begins of which a broker with a real clock is to open what is left: long ago. Records behind the log's end that such a broker
/// has cut off stay in its file, and are told from the log by their store time, which is older than that of what is stored then.
pub const BEGIN_LONG_AGO_MS: i64 = 1_600_000_000_000;
/// Turns in which every thread of a store that is stopped comes to its end.
const LAST_TURNS_MAX: usize = 200_000;

/// Other dice than those of the run, for what is rare.
const RARE: u64 = 0x0DD5_0F01_5EED_D1CE;

/// What a run has besides what its seed says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Twist {
    /// Rare branches of store and broker are taken without need (`env::Buggify`).
    pub is_rare: bool,
    /// The disk lies, see [`Rules::lies`]: a run that finds nothing then would find nothing ever.
    pub lies: bool,
}

/// See the module's head.
pub struct World {
    /// Decides what the workload does.
    pub dice: Random,
    /// Tells the simulated time.
    pub clock: Clock,
    /// Moves it.
    pub hand: ManualClock,
    /// Whose turn it is.
    pub turns: Turns,
    /// The disk of the life under way.
    pub disk: CrashDisk,
    /// Which rare branches are taken.
    pub buggify: Buggify,
    rules: Rules,
    dir: TempDir,
    life: u32,
}

/// Memory if the machine has such a folder: nothing here has to survive the machine.
fn temporary() -> std::io::Result<TempDir> {
    let memory = Path::new("/dev/shm");
    let named = |dir: &Path| tempfile::Builder::new().prefix("gantry-sim").tempdir_in(dir);
    if memory.is_dir() { named(memory).or_else(|_| named(&std::env::temp_dir())) } else { named(&std::env::temp_dir()) }
}

impl World {
    /// A world that a seed decides, with an empty disk.
    pub fn new(seed: u64, twist: Twist) -> std::io::Result<World> {
        World::beginning(TimeMs(BEGIN_MS), seed, twist)
    }

    /// The same, at another time.
    pub fn beginning(at: TimeMs, seed: u64, twist: Twist) -> std::io::Result<World> {
        let dice = Random::seeded(seed);
        let (clock, hand) = Clock::manual(at);
        let turns = Turns::new(clock.clone(), Random::seeded(dice.next_u64()));
        let names = if dice.below(2) == 0 { Names::InOrder } else { Names::ByFolder };
        let sync_turns_max = [0, 3, 30][dice.below(3) as usize];
        // No seed with rare branches has a story that is to stay.
        let rules = Rules { names, sync_turns_max, boot: 0, counts_reading: !twist.is_rare, lies: twist.lies };
        let buggify = if twist.is_rare { Buggify::seeded(seed ^ RARE) } else { Buggify::never() };
        let dir = temporary()?;
        std::fs::create_dir(dir.path().join("0"))?;
        let disk = CrashDisk::new(&dir.path().join("0"), rules, Random::seeded(dice.next_u64()))?;
        Ok(World { dice, clock, hand, turns, disk, buggify, rules, dir, life: 0 })
    }

    /// That a file is opened to read is no call in which a crash may come. To be said before the first life.
    pub fn counts_no_reading(&mut self) {
        self.rules.counts_reading = false;
        self.disk.counts_no_reading();
    }

    /// Where the store of this life is.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join(self.life.to_string())
    }

    /// Whether chance says so, one in so many times.
    pub fn one_in(&self, many: u32) -> bool {
        self.dice.below(many) == 0
    }

    /// One of them.
    pub fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.dice.below(from.len() as u32) as usize]
    }

    /// Lets threads have so many turns.
    pub fn give(&self, turns: u32) {
        for _ in 0..turns {
            self.turns.give();
        }
    }

    /// Lets time pass, and no thread run meanwhile.
    pub fn pass(&self, ms: u64) {
        self.hand.advance(Duration::from_millis(ms));
    }

    /// How the next crash is.
    pub fn crash(&self) -> Crash {
        if self.one_in(3) { Crash::Killed } else { Crash::Power }
    }

    /// After the store was closed or dropped: lets its threads end, takes the image of the crash (that of `how`, if there was none before), and
    /// goes on with a disk that holds it.
    pub fn next_life(&mut self, how: Crash, report: &mut Report) -> std::io::Result<Image> {
        let mut left = LAST_TURNS_MAX;
        while self.turns.give().is_some() && left > 0 {
            left -= 1;
            if left.is_multiple_of(100) && self.turns.has_ended_process() {
                // Somebody may wait for a thread that is no more, and look now and then.
                self.pass(100);
            }
        }
        if left == 0 {
            report.find(Verdict::Late, format!("threads do not end: {:?}", self.turns.names()));
        }
        if let Some(panicked) = self.turns.panicked() {
            report.find(Verdict::Panicked, panicked);
        }
        report.rare = self.buggify.taken();
        report.mix(self.disk.trace());
        self.disk.crash_now(how)?;
        let image = self.disk.take_image().unwrap_or_default();
        let before = self.root();
        if how == Crash::Power {
            self.rules.boot += 1;
        }
        self.life += 1;
        let root = self.root();
        std::fs::create_dir(&root)?;
        image.write(&root)?;
        std::fs::remove_dir_all(before)?;
        self.disk = CrashDisk::new(&root, self.rules, Random::seeded(self.dice.next_u64()))?;
        self.disk.go_on(&image);
        Ok(image)
    }

    /// The files are on the device as somebody else has left them, between two lives.
    pub fn take_files(&mut self) -> std::io::Result<()> {
        self.disk = CrashDisk::new(&self.root(), self.rules, Random::seeded(self.dice.next_u64()))?;
        Ok(())
    }
}
