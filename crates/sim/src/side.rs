//! A store of a run that has several: with a disk, threads and a clock of its own, and what it has promised.
//!
//! A life goes from a start to a stop or a crash. What was seen to be on the device, and in the kernel's hands, has to be there after a crash.

use std::sync::Arc;

use env::Random;
use store::{Store, StoreEnv, StoreOptions};

use crate::disk::Crash;
use crate::log_run::{move_to, options, pool};
use crate::verdict::{Report, Verdict};
use crate::world::{Twist, World};

/// Starts that a crash may interrupt, one after the other.
pub(crate) const STARTS_MAX: u32 = 20;

/// See the module's head.
pub(crate) struct Side {
    pub name: &'static str,
    pub world: World,
    pub options: StoreOptions,
    /// None: between two lives.
    pub store: Option<Arc<Store>>,
    /// How this life ends, if not by a stop.
    pub how: Crash,
    /// How far the log was seen to be on the device, and in the kernel's hands.
    pub flushed: u64,
    pub written: u64,
    /// No crash is to come by itself.
    pub is_calm: bool,
}

impl Side {
    /// With an empty store, which the seed decides.
    pub fn new(name: &'static str, seed: u64, twist: Twist) -> std::io::Result<Side> {
        let world = World::new(seed, twist)?;
        let options = StoreOptions { pool: pool(seed), ..options(&world) };
        Ok(Side { name, world, options, store: None, how: Crash::Killed, flushed: 0, written: 0, is_calm: false })
    }

    /// The store of this life.
    pub fn store(&self) -> anyhow::Result<&Arc<Store>> {
        self.store.as_ref().ok_or_else(|| anyhow::anyhow!("the {} is not open", self.name))
    }

    /// Whether the crash of this life has come: what the store does now leaves nothing.
    pub fn has_crashed(&self) -> bool {
        self.world.disk.has_crashed()
    }

    /// What surrounds its store.
    pub fn env(&self) -> StoreEnv {
        StoreEnv {
            clock: self.world.clock.clone(),
            random: Random::seeded(self.world.dice.next_u64()),
            disk: Arc::new(self.world.disk.clone()),
            buggify: self.world.buggify.clone(),
        }
    }

    /// Opens it, with a crash to come perhaps. The start counts if there was none meanwhile.
    fn open(&mut self, report: &mut Report) {
        let _in_charge = self.world.turns.enter();
        move_to(&mut self.options, &self.world.root());
        self.how = self.world.crash();
        let calls = match self.world.dice.below(4) {
            0 => Some(60),
            1 => Some(600),
            _ => None,
        };
        if let Some(calls) = calls.filter(|_| !self.is_calm) {
            self.world.disk.crash_in(1 + u64::from(self.world.dice.below(calls)), self.how);
        }
        let env = self.env();
        let (disk, how) = (self.world.disk.clone(), self.how);
        self.world.turns.begin_process(move || {
            let _ = disk.crash_now(how);
        });
        match Store::open(self.options.clone(), env) {
            Ok((store, found)) => {
                report.tell(|| {
                    format!("the {} opens: its log ends at {}, {:?}", self.name, store.end().0, found.findings)
                });
                self.store = Some(store);
            }
            Err(error) => report.find(Verdict::Refused, format!("the {} does not open: {error}", self.name)),
        }
    }

    /// Opens it, until no crash comes in between.
    pub fn start(&mut self, report: &mut Report) -> anyhow::Result<()> {
        for _ in 0..STARTS_MAX {
            self.open(report);
            if !report.is_well() {
                return Ok(());
            }
            if !self.has_crashed() {
                let end = self.store()?.end().0;
                self.check_end(end, report);
                return Ok(());
            }
            self.end(false, report)?;
        }
        report.find(Verdict::Late, format!("the {} does not come to the end of a start", self.name));
        Ok(())
    }

    /// Ends its life: by a stop, by the crash that has come, or by one that comes now.
    pub fn end(&mut self, closes: bool, report: &mut Report) -> anyhow::Result<()> {
        let turns = self.world.turns.clone();
        let _in_charge = turns.enter();
        self.see();
        if closes
            && let Some(store) = &self.store
            && let Err(error) = store.close()
        {
            report.find(Verdict::Refused, format!("the {} does not close: {error}", self.name));
        }
        self.see();
        report
            .tell(|| format!("the {} ends by {:?}, closed {closes}, flushed to {}", self.name, self.how, self.flushed));
        self.world.disk.crash_now(self.how)?;
        if self.how == Crash::Power {
            self.written = self.flushed;
        }
        self.store = None;
        report.crashes += 1;
        self.world.next_life(self.how, report)?;
        Ok(())
    }

    /// Takes note of what is promised.
    pub fn see(&mut self) {
        let Some(store) = &self.store else { return };
        let (flushed, written) = (store.flushed().get(), store.written().get());
        if !self.has_crashed() {
            (self.flushed, self.written) = (self.flushed.max(flushed), self.written.max(written));
        }
    }

    /// Holds the log's end after a start against what was promised, and goes on with it.
    pub fn check_end(&mut self, end: u64, report: &mut Report) {
        let promised = self.written;
        if end < promised {
            report.find(Verdict::Lost, format!("the log of the {} ends at {end}, {promised} was promised", self.name));
        }
        report.mix(end);
        (self.flushed, self.written) = (self.flushed.min(end), end);
    }

    /// The promise of all that lies above is taken back.
    pub fn promise_no_more_than(&mut self, end: u64) {
        (self.flushed, self.written) = (self.flushed.min(end), self.written.min(end));
    }

    /// Lets its threads have so many turns.
    pub fn give(&self, turns: u32) {
        let _in_charge = self.world.turns.enter();
        self.world.give(turns);
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Also where a run cannot go on: the store's threads end only while this one is in charge.
        let _in_charge = self.world.turns.enter();
        self.store = None;
    }
}
