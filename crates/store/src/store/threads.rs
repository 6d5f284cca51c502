//! The threads `queues` and `checkpoint`, and the end of all of them.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use disk::{turns, worker};
use journal::Journal;
use tracing::{error, info, warn};

use super::{DELETION_PATIENCE, Shared, Store};
use crate::checkpoint::Marks;
use crate::closed::{Closed, fingerprint};
use crate::deleted::Deleted;
use crate::error::StoreError;
use crate::fullness::with_remedy;
use crate::index::KeyIndex;
use crate::queue_log::{Flushed, QueueError};
use crate::resume::Mark;
use crate::{flush, governor, index, pool, prepare, retention};

/// How long the `queues` thread waits for a call when there is nothing to write.
const QUEUES_REST: Duration = Duration::from_secs(60);
/// Between two looks of the thread `checkpoint` for deletions that the device does not have yet.
const DELETION_LOOK: Duration = Duration::from_millis(10);
/// How often a close waits for them in vain, half a second each time.
const LAST_DELETION_WAITS: u32 = 20;
/// How often units go to their files and the check-point moves.
const QUEUES_INTERVAL: Duration = Duration::from_secs(1);
/// How long the check-point stays where it is after a sync of the whole file system: that writes the log's prepared pages too, and each of them
/// faults in the append that comes to it. A start after a crash reads so much more of the log.
const WHOLE_SYNC_REST: Duration = Duration::from_secs(10);

/// Waits a little until the device has the deletions of the journal. For the thread `checkpoint`, which does not hold the store meanwhile.
fn await_deletions_unless_stopped(shared: &Shared, journal: &Journal) {
    let Some(position) = shared.queues.deleted_up_to() else { return };
    let (safe, begin) = (journal.mark_of(position, true), shared.clock.elapsed());
    while safe.get() < position && !shared.is_stopping() && shared.clock.elapsed() - begin < DELETION_PATIENCE {
        shared.checkpoint_bell.rest(DELETION_LOOK);
    }
}

/// The thread `queues`: writes units to their files, and calls for the check-point.
fn run_queues(shared: &Shared, store: &Weak<Store>) {
    let (mut is_idle, mut pending_before) = (false, 0);
    while !shared.is_stopping() {
        shared.queues_rest.store(is_idle, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        // Whoever appends calls `flush`, which calls us.
        let is_resting = is_idle && shared.queues.pending_bytes() == 0;
        shared.queues.wait_until_wanted(if is_resting { QUEUES_REST } else { QUEUES_INTERVAL });
        let Some(store) = store.upgrade() else { return };
        let had_work = shared.queues.pending_bytes() > 0
            || shared.queues.deleted_up_to().is_some()
            || store.checkpointed() < store.last_timestamp();
        store.await_deletions(Duration::ZERO);
        let failed = store.write_units(&mut pending_before).err();
        say_unwritten(shared, failed.as_ref());
        if shared.flushed_timestamp.load(Ordering::Acquire) > store.checkpointed() {
            shared.checkpoint_wanted.store(true, Ordering::SeqCst);
            shared.checkpoint_bell.call();
        }
        // The second time without work, queues have given their memory back.
        is_idle = !had_work;
    }
}

/// Keeps why units cannot be written, for appends and operators, and says when that begins and ends.
fn say_unwritten(shared: &Shared, error: Option<&QueueError>) {
    let failed = error.map(|error| with_remedy(&*shared.disk, &shared.options.queue_dir, error));
    let before = std::mem::replace(&mut *shared.unwritten_queues.lock(), failed.clone());
    match (before, failed) {
        // The units stay in memory and are tried again; the log has them in any case.
        (None, Some(error)) => warn!(error, "consume queues cannot be written"),
        (Some(_), None) => info!("consume queues are written again"),
        (None, None) | (Some(_), Some(_)) => {}
    }
}

/// The thread `checkpoint`: brings the queues to the device, and moves the check-point.
fn run_checkpoint(shared: &Shared, store: &Weak<Store>, journal: &Weak<Journal>) {
    let (mut has_failed, mut keeps_marks, mut trimmed_to) = (false, false, shared.log.min());
    while !shared.is_stopping() {
        shared
            .checkpoint_bell
            .wait(None, || shared.is_stopping() || shared.checkpoint_wanted.swap(false, Ordering::SeqCst));
        if let Some(journal) = journal.upgrade() {
            await_deletions_unless_stopped(shared, &journal);
        }
        let Some(store) = store.upgrade() else { return };
        store.trim_deletions(&mut trimmed_to, &mut keeps_marks);
        let moved = store.move_checkpoint(false);
        drop(store);
        // The ring of a stop may have been answered before the move.
        if let Ok(true) = moved
            && !shared.is_stopping()
        {
            shared.checkpoint_bell.rest(WHOLE_SYNC_REST);
        }
        if let Err(error) = &moved
            && !has_failed
        {
            warn!(%error, "the check-point cannot move: a start after a crash will read more of the log");
        }
        has_failed = moved.is_err();
    }
}

impl Store {
    pub(super) fn start_threads(self: &Arc<Store>) -> Result<(), StoreError> {
        let mut threads = self.threads.lock();
        for (name, run) in
            [("segments", prepare::run as fn(&Shared)), ("flush", flush::run), ("retention", retention::run)]
        {
            let shared = Arc::clone(&self.shared);
            threads.push(worker::spawn(name, move || run(&shared))?);
        }
        if self.shared.log.pool.is_some() {
            let shared = Arc::clone(&self.shared);
            threads.push(worker::spawn("commit", move || pool::run(&shared))?);
        }
        if self.shared.governor.is_some() {
            let shared = Arc::clone(&self.shared);
            threads.push(worker::spawn("governor", move || governor::run(&shared))?);
        }
        if self.shared.index.is_some() {
            let (shared, journal) = (Arc::clone(&self.shared), Arc::clone(&self.journal));
            threads.push(worker::spawn("index", move || {
                if let Some(index) = &shared.index {
                    index::run(&shared, index, &journal);
                }
            })?);
        }
        // The thread must not keep the store alive, or nobody could drop it.
        let (shared, store) = (Arc::clone(&self.shared), Arc::downgrade(self));
        threads.push(worker::spawn("queues", move || run_queues(&shared, &store))?);
        // Not held while there is nothing to do, so that it is closed before whoever drops the store gives its lock back.
        let (shared, store) = (Arc::clone(&self.shared), Arc::downgrade(self));
        let journal = Arc::downgrade(&self.journal);
        threads.push(worker::spawn("checkpoint", move || run_checkpoint(&shared, &store, &journal))?);
        Ok(())
    }

    /// Writes units that are only in memory to their files: all of them if no more have come since `pending_before`, bytes, or a note of how far
    /// the queues are is due; otherwise those that have gathered.
    fn write_units(&self, pending_before: &mut u64) -> Result<Flushed, QueueError> {
        let Shared { queues, resume, options, log, flushed: on_device, .. } = &*self.shared;
        let mark = Mark { written: log.end.get(), flushed: on_device.get(), ends: None };
        queues.count_ends_below(mark.written);
        let is_note_due = mark.written - resume.noted() >= options.recovery.note_bytes;
        // Queues at rest are written to the end.
        let is_all = queues.pending_bytes() <= *pending_before || is_note_due;
        let flushed = if is_all { queues.flush_all() } else { queues.flush_gathered() };
        *pending_before = queues.pending_bytes();
        match flushed {
            // Due or not: that queues are written costs much more than the note.
            Ok(Flushed::All) if mark.written > resume.noted() => {
                // The log may have come further on the device while queues were written.
                let ends = Some(queues.counted_ends());
                resume.note(Mark { flushed: on_device.get(), ends, ..mark });
            }
            Ok(_) | Err(_) => resume.flushed_to(mark.flushed, 1),
        }
        flushed
    }

    /// Drops the marks of deleted topics below the log's beginning, if that has moved since `trimmed_to`. What fails is tried again each time, and
    /// said once: `has_failed`.
    fn trim_deletions(&self, trimmed_to: &mut u64, has_failed: &mut bool) {
        let min = self.shared.log.min();
        if min <= *trimmed_to {
            return;
        }
        let forgotten = self.forget_deletions(min);
        match &forgotten {
            Ok(true) => *trimmed_to = min,
            Ok(false) => {}
            Err(_) if *has_failed => {}
            Err(error) => warn!(%error, "where deleted topics ended is kept for longer than it is needed"),
        }
        *has_failed = forgotten.is_err();
    }

    /// Drops the marks of deleted topics that the log, from `min` on, has nothing of any more. As long as a loss of power may bring a file back that
    /// retention has removed, its messages need theirs. So do files of queues that are still to go: the next start would take them for the topic's.
    /// Says whether none is left.
    fn forget_deletions(&self, min: u64) -> Result<bool, StoreError> {
        if Deleted::recall(&self.journal).iter().all(|(_, mark)| mark > min) {
            return Ok(true);
        }
        let Shared { options, disk, log, queues, .. } = &*self.shared;
        options.log_dirs.sync(&**disk)?;
        let kept = queues.still_to_remove();
        // As they are now: a topic may have been deleted again, and is not while nothing can be appended.
        let _held = log.hold();
        Ok(Deleted::recall(&self.journal).forget_below(&self.journal, min, &kept))
    }

    /// Brings the key index to the device.
    fn sync_index(&self) -> Result<(), StoreError> {
        self.shared.index.as_ref().map_or(Ok(()), |index| index.sync(&self.journal))
    }

    /// Writes the units that are only in memory, brings them to the device, and moves the check-point as far as that has both log and queues.
    /// May take minutes where the file system is synced as a whole; says whether it was.
    fn move_checkpoint(&self, is_last: bool) -> Result<bool, StoreError> {
        let shared = &self.shared;
        if !is_last && shared.buggify.at("store: a check-point is left out") {
            return Ok(false);
        }
        self.await_deletions(Duration::ZERO);
        let timestamp = shared.flushed_timestamp.load(Ordering::Acquire);
        if timestamp <= self.checkpointed() && !is_last {
            return Ok(false);
        }
        let was_whole = match self.sync_queues() {
            // Soon.
            Err(QueueError::Waits { .. }) if !is_last && !self.journal.is_failing() => return Ok(false),
            Err(unsure @ QueueError::Unsure { .. }) => {
                // As with the log: the check-point must not move, and the next start reads the log from there.
                shared.resume.forget();
                error!(error = %unsure, "ending the process");
                turns::end_process();
            }
            synced => synced?,
        };
        let confirmed = if is_last { i64::try_from(shared.log.end.get()).unwrap_or(i64::MAX) } else { 0 };
        let marks = Marks {
            log_timestamp: timestamp,
            queues_timestamp: timestamp,
            // Apache's broker removes files of the index that go beyond this.
            index_timestamp: shared.index.as_ref().map_or(0, KeyIndex::synced_timestamp),
            master_flushed: 0,
            confirmed,
        };
        self.checkpoint.lock().write(&marks)?;
        self.checkpointed.store(timestamp, Ordering::Relaxed);
        Ok(was_whole)
    }

    /// Brings the queues to the device. Says whether that took a sync of whole file systems, because of what we wrote ourselves.
    fn sync_queues(&self) -> Result<bool, QueueError> {
        let was_whole = self.shared.queues.sync_all()?;
        if self.has_unsure_queues.load(Ordering::Relaxed) {
            // What the process before us had written, and did not bring to the device: nobody knows which files that were.
            self.shared.queues.sync_file_systems()?;
            self.has_unsure_queues.store(false, Ordering::Relaxed);
        }
        Ok(was_whole)
    }

    fn checkpointed(&self) -> i64 {
        self.checkpointed.load(Ordering::Relaxed)
    }

    /// Stops the threads, brings everything to the device, and says so on disk.
    pub fn close(&self) -> Result<(), StoreError> {
        self.close_keeping(false)
    }

    /// The same for whoever has served nobody. If nobody had closed the store before, it still counts as not closed: what a broker looks at after
    /// a crash beside the log (timers, offsets behind the end of their queue) the next start has still to look at.
    pub fn close_as_found(&self) -> Result<(), StoreError> {
        self.close_keeping(self.was_abnormal)
    }

    fn close_keeping(&self, keeps_abort: bool) -> Result<(), StoreError> {
        if !self.stop_threads() {
            return Ok(());
        }
        self.shared.resume.forget();
        let closed = self.write_all();
        let is_journal_safe = self.journal.close();
        // Whatever is not on disk as it should be, the next start finds out if it is told to look.
        let closed = closed.and_then(|()| match is_journal_safe {
            true if !keeps_abort => self.abort.lower(),
            true if self.was_copied => self.abort.stay_copied(),
            true | false => Ok(()),
        });
        self.lock.lock().take();
        closed
    }

    fn write_all(&self) -> Result<(), StoreError> {
        let Shared { log, queues, .. } = &*self.shared;
        log.seal();
        pool::commit(&self.shared);
        flush::flush(&self.shared);
        if let Some(index) = &self.shared.index
            && let Err(error) = index::finish(&self.shared, index)
        {
            warn!(%error, "the key index ends before the log does; the next start goes on with it");
        }
        self.sync_index()?;
        // Its own close waits for the device as well. One that cannot be written keeps the next start from relying on this stop.
        for _ in 0..LAST_DELETION_WAITS {
            let is_safe = |position| self.journal.synced().get() >= position;
            if queues.deleted_up_to().is_none_or(is_safe) || self.journal.is_failing() {
                break;
            }
            self.await_deletions(DELETION_PATIENCE);
        }
        self.move_checkpoint(true)?;
        let min = log.min();
        let last_timestamp = self.last_timestamp();
        Closed { min, end: log.end.get(), last_timestamp, queues: fingerprint(queues, min) }.remember(&self.journal);
        Ok(())
    }

    /// Says whether they were running.
    pub(super) fn stop_threads(&self) -> bool {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.cold.stop();
        self.filters.stop();
        let Shared { segments_bell, flush_bell, governor_bell, retention_bell, checkpoint_bell, .. } = &*self.shared;
        for bell in [segments_bell, flush_bell, governor_bell, retention_bell, checkpoint_bell] {
            bell.ring();
        }
        if let Some(pool) = &self.shared.log.pool {
            pool.bell.ring();
        }
        if let Some(index) = &self.shared.index {
            index.bell.ring();
        }
        self.shared.queues.ring();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // The `queues` thread may be the last to hold the store, and cannot wait for itself.
            if !thread.is_current() && thread.join().is_err() {
                error!("a thread of the store panicked");
            }
        }
        true
    }
}
