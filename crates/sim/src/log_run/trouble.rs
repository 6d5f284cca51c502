//! The device refuses calls for a while: what the store says then, and that it goes on by itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use env::Random;
use store::{Recovered, Store, StoreEnv};

use super::Run;
use crate::disk::{Crash, Failure, Synced};
use crate::verdict::Verdict;

impl Run<'_> {
    /// Something begins to fail.
    fn fail(&mut self) {
        let how = [Failure::Full, Failure::Broken, Failure::Unsynced][self.dice.below(3) as usize];
        let one_in = [1, 3, 20][self.dice.below(3) as usize];
        self.report.tell(|| format!("one call in {one_in} fails: {how:?}"));
        self.world.disk.fail(how, one_in, Random::seeded(self.dice.next_u64()));
    }

    /// Opens the store on a device that may be in trouble. None: it does not open, and need not; or the process has ended itself.
    pub(super) fn open(&mut self, how: Crash) -> anyhow::Result<Option<(Arc<Store>, Recovered)>> {
        let env = StoreEnv {
            clock: self.world.clock.clone(),
            random: Random::seeded(self.world.dice.next_u64()),
            disk: Arc::new(self.world.disk.clone()),
            buggify: self.world.buggify.clone(),
        };
        let disk = self.world.disk.clone();
        self.world.turns.begin_process(move || {
            // What is done after it counts no more.
            let _ = disk.crash_now(how);
        });
        self.forgiven = 0;
        if self.plan.fails && self.dice.below(4) == 0 {
            self.fail();
        }
        let opened = catch_unwind(AssertUnwindSafe(|| Store::open(self.options.clone(), env)));
        let has_failed = self.world.disk.failures() > 0;
        match opened {
            Ok(Ok(opened)) => Ok(Some(opened)),
            Ok(Err(error)) if has_failed => {
                self.report.tell(|| format!("the store does not open: {error}"));
                self.world.disk.take_unsynced();
                Ok(None)
            }
            Ok(Err(error)) => {
                self.report.find(Verdict::Refused, format!("the store does not open: {error}"));
                Ok(None)
            }
            Err(_) if self.world.turns.has_ended_process() => Ok(None),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    pub(super) fn step_of_trouble(&mut self, store: &Arc<Store>) {
        let is_failing = self.is_troubled();
        match self.dice.below(30) {
            0..2 if !is_failing => self.fail(),
            0..5 if is_failing => self.works_again(store),
            _ => {}
        }
    }

    /// The device does, and so does the store, without being told.
    pub(super) fn works_again(&mut self, store: &Arc<Store>) {
        self.report.tell(|| "the device works again".to_owned());
        self.world.disk.work_again();
        let failures = self.world.disk.failures();
        for _ in 0..12 {
            self.pass(1_000);
            self.world.give(40);
        }
        self.see(store);
        self.check_ended(false);
        if self.world.disk.has_crashed() {
            return;
        }
        self.forgiven = failures;
        self.send(store);
        self.settle(store);
    }

    /// A failed sync of what counts ends the process. `is_closed`: the store was told to close.
    pub(super) fn check_ended(&mut self, is_closed: bool) {
        let Some((what, path)) = self.world.disk.take_unsynced() else { return };
        self.report.tell(|| format!("a sync of {} has failed: {what:?}", path.display()));
        if must_end(what, &path, is_closed) && !self.world.turns.has_ended_process() {
            let what = format!("a sync of {} has failed ({what:?}), and the process goes on", path.display());
            self.report.find(Verdict::WentOn, what);
        }
    }

    /// Whether the device has something to do with what is refused.
    pub(super) fn may_refuse(&self) -> bool {
        self.is_troubled() || self.world.disk.has_crashed() || self.ageing.is_nearly_full()
    }

    /// Something fails, or has failed a moment ago.
    pub(super) fn is_troubled(&self) -> bool {
        self.world.disk.failure().is_some() || self.world.disk.failures() > self.forgiven
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, ms: u64) {
        self.world.pass(ms);
        self.note_ageing(self.log_end);
    }
}

/// Folders of queues.
const QUEUES: [&str; 2] = ["consumequeue", "batchconsumequeue"];

/// Whether the process has to end when such a sync has failed. A start that fails with it has said so itself, and is not asked about.
fn must_end(what: Synced, path: &Path, is_closed: bool) -> bool {
    let is_below = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    let is_numbered =
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(|c: char| c.is_ascii_digit()));
    match what {
        Synced::File => match path.extension() {
            None => is_numbered && (is_below(&["commitlog"]) || is_below(&QUEUES)),
            // The last sync of a close brings a mark that shows later damage. Everything else is on the device by then, and a start does without.
            Some(extension) => is_numbered && extension == "journal" && is_below(&["journal"]) && !is_closed,
        },
        // Units of queues that the check-point is to vouch for.
        Synced::Everything => is_below(&QUEUES),
        // Names of a snapshot, of files that are made ahead, of what was removed: who needs them asks again.
        Synced::Folder => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_of_log_queues_and_journal_is_to_end_the_process() {
        let must = |what, path: &str| must_end(what, Path::new(path), false);
        for path in ["commitlog/00000000000000000000", "consumequeue/orders/0/00000000000000000000"] {
            assert!(must(Synced::File, path), "{path}");
        }
        assert!(must(Synced::File, "journal/00000000000000000017.journal"));
        assert!(must(Synced::Everything, "consumequeue"));
        for path in
            ["journal/00000000000000000017.snapshot", "checkpoint", "index/20270115080000000", "config/topics.json"]
        {
            assert!(!must(Synced::File, path), "{path}");
        }
        assert!(!must(Synced::Folder, "consumequeue/orders/0"));
    }

    #[test]
    fn the_mark_at_the_end_of_a_journal_that_is_closed_may_be_missing() {
        assert!(!must_end(Synced::File, Path::new("journal/00000000000000000017.journal"), true));
        assert!(must_end(Synced::File, Path::new("commitlog/00000000000000000000"), true));
    }
}
