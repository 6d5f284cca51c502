//! The thread `journal`: takes what was put, writes it as one bundle, syncs by policy, and calls for snapshots.
//!
//! What is copied into the window (`window.rs`) does not come by here; the thread makes the windows, and syncs what went through them.
//!
//! It clocks itself: while a bundle is on its way to the kernel or the device, the next one gathers. With nothing to do it
//! waits without a timer. Where changes are safe as soon as the kernel has them, nobody waits for the device: syncs run on a
//! thread of their own, one at a time, and bundles are written meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use disk::turns::{self, Handle};
use disk::{Disk, DiskFile, OpenHow, invariant, worker};
use tracing::{error, info, warn};

use crate::bundle::{self, BundleKind, HEADER_BYTES, Head};
use crate::error::JournalError;
use crate::files::journal_path;
use crate::journal::{Inner, Shared};
use crate::options::{JournalOptions, JournalSync, Since};
use crate::snapshot;
use crate::window::Window;

/// How long after a failed write the next attempt is made.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// The same of a snapshot, doubled with each that fails after it: where there is nearly no room, each fills what is left and gives it back.
const SNAPSHOT_AFTER: Duration = Duration::from_secs(10);
const SNAPSHOT_AFTER_MAX: Duration = Duration::from_secs(600);

/// How long after the file system refused to make room ahead it is asked again; changes are written by this thread meanwhile.
const WINDOW_AFTER: Duration = Duration::from_secs(10);

/// How often the thread looks whether somebody waits for a bundle that gathers, at least.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Capacity that the buffer keeps between bundles.
const BUFFER_BYTES: usize = 256 << 10;

/// Fewer bytes that came to the device are not worth a call to take them out of memory.
const FORGET_STEP: u64 = 256 << 10;

pub(super) struct Writer {
    shared: Arc<Shared>,
    file: Arc<dyn DiskFile>,
    /// The position with which the file begins.
    start: u64,
    /// The byte at which the next bundle goes.
    at: u64,
    /// Position of the newest entry in the file.
    position: u64,
    /// Position up to which the device has everything.
    synced: u64,
    /// Bytes of the file below this were taken out of memory.
    forgotten: u64,
    /// Up to this byte the device has the file.
    safe: u64,
    /// When, by the clock's `elapsed`, the last sync was, the last bundle was, and a failed snapshot may be tried again.
    synced_at: Duration,
    changed_at: Duration,
    snapshot_not_before: Duration,
    /// How long the next one waits if it fails.
    snapshot_after: Duration,
    /// Whether anything was put since start: an idle journal needs no window.
    has_changed: bool,
    window_not_before: Duration,
    /// The file may go on with zeros behind its end.
    has_room_ahead: bool,
    /// The last attempt to make a window failed, and that was said.
    is_without_window: bool,
    /// Bytes in earlier files that no snapshot covers yet.
    earlier_bytes: u64,
    /// Of the journal's bytes those that were there at start, until a snapshot covers them.
    found_bytes: u64,
    /// What users had written, since start, when the last snapshot began, and when that which runs beside did.
    snapshot_begun: u64,
    next_snapshot_begun: u64,
    /// When, by the clock's `elapsed`, that was.
    snapshot_since: Duration,
    /// The journal's bytes, since start, when the last sync ended.
    written_at_sync: u64,
    /// The bundle that is being written: header and entries.
    bundle: Vec<u8>,
    /// The position with which it ends; kept for another attempt while the disk refuses it.
    bundle_last: Option<u64>,
    snapshot: Option<Handle>,
    /// The sync that runs beside; the position up to which the device has everything when it is over, and the byte of the file.
    syncing: Option<(u64, u64, Handle)>,
}

/// What the thread found when it looked.
struct WriterTurn {
    options: JournalOptions,
    is_closing: bool,
    snapshot_wanted: bool,
    sync_wanted_to: u64,
    sync_done: bool,
    snapshot_done: Option<Result<u64, JournalError>>,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, file: Arc<dyn DiskFile>, start: u64, at: u64, position: u64) -> Writer {
        let now = shared.clock.elapsed();
        let found_bytes = shared.gauges.journal_bytes.load(Ordering::Relaxed);
        let earlier_bytes = found_bytes.saturating_sub(at);
        Writer {
            shared,
            file,
            start,
            at,
            position,
            synced: position,
            forgotten: 0,
            safe: 0,
            synced_at: now,
            changed_at: now,
            snapshot_not_before: Duration::ZERO,
            snapshot_after: SNAPSHOT_AFTER,
            has_changed: false,
            window_not_before: Duration::ZERO,
            has_room_ahead: false,
            is_without_window: false,
            earlier_bytes,
            found_bytes,
            snapshot_begun: 0,
            next_snapshot_begun: 0,
            snapshot_since: Duration::ZERO,
            written_at_sync: 0,
            bundle: Vec::new(),
            bundle_last: None,
            snapshot: None,
            syncing: None,
        }
    }

    pub(super) fn run(mut self) {
        // Ends when the journal is closed and what was put is written, or cannot be.
        loop {
            let mut turn = self.wait();
            self.write(&turn.options);
            if turn.sync_done {
                self.end_sync();
            }
            match turn.options.sync {
                JournalSync::Every(period) if !turn.is_closing => {
                    let is_due = self.shared.clock.elapsed().saturating_sub(self.synced_at) >= period;
                    let is_wanted = self.synced < turn.sync_wanted_to;
                    if self.syncing.is_none() && (is_due || is_wanted) {
                        self.begin_sync();
                    }
                }
                JournalSync::Always | JournalSync::Every(_) => self.sync(),
            }
            if let Some(done) = turn.snapshot_done.take() {
                self.end_snapshot(done);
            } else if self.snapshot.as_ref().is_some_and(Handle::is_finished) && !self.has_snapshot_result() {
                // Its owner's `for_each` panicked.
                self.join_snapshot();
                self.put_off_snapshot();
            }
            if turn.is_closing && (self.bundle_last.is_some() || self.shared.inner.lock().pending.is_empty()) {
                return self.close();
            }
            if self.snapshot.is_none() && self.bundle_last.is_none() && self.is_snapshot_due(&turn) {
                self.begin_snapshot();
            }
            let wants_window = self.wants_window(&self.shared.inner.lock(), turn.is_closing);
            if wants_window {
                self.make_window();
            }
        }
    }

    /// Takes note of what was copied into the window, and takes the file back if this thread has to write it.
    fn look(&mut self, inner: &mut Inner, is_closing: bool) {
        if let Some(window) = &inner.window {
            if window.at != self.at {
                let (at, position) = (window.at, window.position);
                self.written_to(at, position);
            }
            if is_closing || !inner.pending.is_empty() || !inner.options.may_copy() {
                inner.window = None;
            }
        }
        inner.is_told = self.synced < self.position;
    }

    /// The file ends at byte `at` now, with the entry `position`.
    fn written_to(&mut self, at: u64, position: u64) {
        invariant::not_below("the byte at which the journal ends", self.at, at);
        invariant::not_below("the journal's position", self.position, position);
        let gauges = &self.shared.gauges;
        gauges.written_bytes.fetch_add(at - self.at, Ordering::Relaxed);
        (self.at, self.position) = (at, position);
        self.changed_at = self.shared.clock.elapsed();
        gauges.journal_bytes.store(self.unsnapshotted_bytes(), Ordering::Relaxed);
    }

    fn wants_window(&self, inner: &Inner, is_closing: bool) -> bool {
        self.has_changed
            && !is_closing
            && self.bundle_last.is_none()
            && inner.options.may_copy()
            && inner.window.as_ref().is_none_or(Window::is_low)
            && self.shared.clock.elapsed() >= self.window_not_before
    }

    /// Makes the next stretch of the file ready for whoever puts changes. They go on in the one before, or wait for this thread.
    fn make_window(&mut self) {
        if self.shared.buggify.at("journal: no room ahead") {
            self.window_not_before = self.shared.clock.elapsed() + WINDOW_AFTER;
            return;
        }
        // What is refused may have made the file longer all the same.
        self.has_room_ahead = true;
        let bytes = {
            let inner = self.shared.inner.lock();
            // Never less than what is left of the one before, which others fill meanwhile.
            let left = inner.window.as_ref().map_or(0, |window| window.room() + (window.at - self.at));
            inner.options.room_bytes.max(left)
        };
        let mut window = match Window::open(&*self.file, self.at, self.position, bytes) {
            Ok(window) => window,
            Err(error) => {
                self.window_not_before = self.shared.clock.elapsed() + WINDOW_AFTER;
                let is_news = !std::mem::replace(&mut self.is_without_window, true);
                if is_news && error.kind() != std::io::ErrorKind::Unsupported {
                    let path = journal_path(&self.shared.dir, self.start);
                    warn!(path = %path.display(), %error, "no room can be made ahead of the journal; its thread writes each change");
                }
                return;
            }
        };
        self.is_without_window = false;
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        if let Some(before) = &inner.window {
            window.follow(before);
        }
        if !inner.options.may_copy() {
            return;
        }
        // What came meanwhile. If it does not fit, this thread writes it and tries again.
        if !inner.pending.is_empty() {
            let fits = inner.pending.only().is_some_and(|entries| window.append(entries, inner.last, self.synced));
            if !fits {
                return;
            }
            inner.pending.clear();
            self.shared.gauges.bundles.fetch_add(1, Ordering::Relaxed);
        }
        inner.is_told_low = false;
        let before = inner.window.replace(window);
        // All that was put is in the window now. Nobody waits for the lock while others are woken and the old mapping goes.
        let last = inner.last;
        drop(inner);
        shared.written.advance(last);
        drop(before);
        // What the old mapping kept, and the last sync may have been.
        self.forget();
    }

    /// Takes the file back, and cuts off the room that was made ahead.
    fn end_window(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        self.look(&mut inner, true);
        drop(inner);
        // Zeros that stay do no harm: whoever opens the journal passes them over.
        if std::mem::take(&mut self.has_room_ahead) && self.file.set_len(self.at).is_err() {
            warn!("the room made ahead of the journal could not be given back");
        }
    }

    /// Waits for something to do, and takes the entries that were put, unless the last bundle is still to be written.
    fn wait(&mut self) -> WriterTurn {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        let mut gathers_since = None;
        // Ends when there is work or a timer is due: each turn waits.
        loop {
            let is_closing = shared.is_closing.load(Ordering::Relaxed);
            self.look(&mut inner, is_closing);
            let has_work = !inner.pending.is_empty() && self.bundle_last.is_none();
            let may_snapshot = self.snapshot.is_none() && self.bundle_last.is_none();
            if has_work
                && !is_closing
                && !inner.pending.is_one_full()
                && let Some(wait) = self.wait_for_company(&inner.options, &mut gathers_since)
            {
                if !turns::wait(&mut inner, Some(wait), |_| true) {
                    shared.work.wait_for(&mut inner, wait);
                }
                continue;
            }
            let is_told = inner.sync_done || inner.snapshot_done.is_some();
            let is_sync_wanted = self.synced < inner.sync_wanted_to && self.may_sync();
            let is_asked = inner.snapshot_wanted && may_snapshot || is_sync_wanted;
            let is_for_us = is_asked || self.wants_window(&inner, is_closing);
            if has_work || is_closing || is_told || is_for_us {
                break;
            }
            match self.next_timer(&inner.options) {
                Some(Duration::ZERO) => break,
                wait if turns::wait(&mut inner, wait, |_| true) => {}
                Some(wait) => {
                    shared.work.wait_for(&mut inner, wait);
                }
                None => shared.work.wait(&mut inner),
            }
            if self.bundle_last.is_some() {
                break;
            }
        }
        // A wish for a snapshot is kept while one is running or the disk refuses a bundle.
        let may_snapshot = self.snapshot.is_none() && self.bundle_last.is_none();
        let snapshot_wanted = may_snapshot && std::mem::take(&mut inner.snapshot_wanted);
        if self.bundle_last.is_none() && !inner.pending.is_empty() {
            self.bundle.clear();
            self.bundle.shrink_to(BUFFER_BYTES);
            self.bundle.resize(HEADER_BYTES, 0);
            let last = inner.last;
            self.bundle_last = Some(inner.pending.take(last, &mut self.bundle));
            self.has_changed = true;
        }
        WriterTurn {
            options: inner.options.clone(),
            is_closing: shared.is_closing.load(Ordering::Relaxed),
            snapshot_wanted,
            sync_wanted_to: inner.sync_wanted_to,
            sync_done: std::mem::take(&mut inner.sync_done),
            snapshot_done: inner.snapshot_done.take(),
        }
    }

    /// A sync that begins now has all that was put until now, unless other bundles wait.
    fn may_sync(&self) -> bool {
        self.syncing.is_none() && self.bundle_last.is_none()
    }

    /// How long to wait before another look at whether the bundle that gathers since `since` is to be written; `None`: it is.
    fn wait_for_company(&self, options: &JournalOptions, since: &mut Option<Duration>) -> Option<Duration> {
        let (bundle, complete) = (options.bundle_delay, options.complete_delay);
        if bundle.is_zero() && complete.is_zero() {
            return None;
        }
        let now = self.shared.clock.elapsed();
        // Who waits for the device waits for this first.
        let is_awaited = self.shared.written.waiters() > 0 || self.shared.synced.waiters() > 0;
        let delay = if is_awaited { complete } else { bundle };
        let left = (*since.get_or_insert(now) + delay).saturating_sub(now);
        // Somebody may come to wait, who has a shorter delay and does not ring.
        let look = if is_awaited || complete >= bundle { left } else { left.min(complete.max(LOOK_AGAIN)) };
        (!left.is_zero()).then_some(look)
    }

    /// How long until something is due without anybody asking; `None` if nothing will be.
    fn next_timer(&self, options: &JournalOptions) -> Option<Duration> {
        if self.bundle_last.is_some() {
            return Some(RETRY_AFTER);
        }
        let now = self.shared.clock.elapsed();
        let sync = match options.sync {
            // What was written while it was `Every` is still to be brought to the device: nobody else would before the next change.
            JournalSync::Always => Duration::ZERO,
            JournalSync::Every(period) => (self.synced_at + period).saturating_sub(now),
        };
        let sync = (self.synced < self.position && self.syncing.is_none()).then_some(sync);
        let is_worth_it = self.snapshot.is_none() && options.is_snapshot_due(self.since_snapshot(), true);
        let at = (self.changed_at + options.idle_after).max(self.snapshot_not_before);
        let idle = is_worth_it.then(|| at.saturating_sub(now));
        [sync, idle].into_iter().flatten().min()
    }

    fn write(&mut self, options: &JournalOptions) {
        let Some(last) = self.bundle_last else { return };
        let head = Head { kind: BundleKind::Entries, previous: self.position, last, synced: self.synced };
        let header = bundle::seal(head, &self.bundle[HEADER_BYTES..]);
        self.bundle[..HEADER_BYTES].copy_from_slice(&header);
        let gauges = &self.shared.gauges;
        if let Err(source) = self.file.write_at(&self.bundle, self.at) {
            // Another attempt overwrites what this one may have left: same place, same bytes.
            if !gauges.is_failing.swap(true, Ordering::Relaxed) {
                let path = journal_path(&self.shared.dir, self.start);
                error!(path = %path.display(), error = %source, "cannot write the journal, changes wait in memory");
            }
            return;
        }
        if gauges.is_failing.swap(false, Ordering::Relaxed) {
            info!("the journal can be written again");
        }
        self.bundle_last = None;
        gauges.bundles.fetch_add(1, Ordering::Relaxed);
        self.written_to(self.at + self.bundle.len() as u64, last);
        match options.sync {
            JournalSync::Always => {}
            JournalSync::Every(_) => self.shared.written.advance(last),
        }
    }

    /// Has a thread of its own make everything so far safe.
    fn begin_sync(&mut self) {
        if self.synced == self.position {
            self.synced_at = self.shared.clock.elapsed();
            return;
        }
        let (shared, file, path) =
            (Arc::clone(&self.shared), Arc::clone(&self.file), journal_path(&self.shared.dir, self.start));
        let thread = worker::try_spawn("journal-sync", move || {
            or_die(file.sync_data().map_err(|source| JournalError::disk("sync", &path, source)));
            shared.gauges.syncs.fetch_add(1, Ordering::Relaxed);
            shared.inner.lock().sync_done = true;
            shared.work.notify_one();
        });
        match thread {
            Ok(thread) => self.syncing = Some((self.position, self.at, thread)),
            // Without a thread it costs the changes that come meanwhile a wait.
            Err(_) => self.sync(),
        }
    }

    fn end_sync(&mut self) {
        let Some((position, at, thread)) = self.syncing.take() else { return };
        if thread.join().is_err() {
            error!("the journal's sync panicked");
            return;
        }
        invariant::not_above("the journal's position on the device", self.position, position);
        self.synced = self.synced.max(position);
        self.safe = at;
        self.forget();
        self.shared.synced.advance(self.synced);
        self.synced_at = self.shared.clock.elapsed();
        let written = self.shared.gauges.written_bytes.load(Ordering::Relaxed);
        let recent = written - std::mem::replace(&mut self.written_at_sync, written);
        let ahead = self.shared.inner.lock().window.as_ref().map(|window| window.ahead(recent));
        if ahead.is_some_and(|ahead| ahead.touch().is_err()) {
            // What is in the window stays there, and the thread goes on behind it.
            let mut inner = self.shared.inner.lock();
            let window = inner.window.take();
            drop(inner);
            if let Some(window) = &window {
                self.written_to(window.at, window.position);
            }
            self.window_not_before = self.shared.clock.elapsed() + WINDOW_AFTER;
        }
    }

    /// Makes everything so far safe before it returns.
    fn sync(&mut self) {
        self.end_sync();
        if self.synced < self.position {
            let path = journal_path(&self.shared.dir, self.start);
            or_die(self.file.sync_data().map_err(|source| JournalError::disk("sync", &path, source)));
            self.shared.gauges.syncs.fetch_add(1, Ordering::Relaxed);
            self.synced = self.position;
            self.safe = self.at;
            self.forget();
        }
        self.synced_at = self.shared.clock.elapsed();
        self.shared.synced.advance(self.synced);
        self.shared.written.advance(self.synced);
    }

    /// Takes what the device has out of memory: nobody reads it before the next start. What is mapped stays.
    fn forget(&mut self) {
        let mapped_from = self.shared.inner.lock().window.as_ref().map_or(self.safe, |window| window.base);
        let to = self.safe.min(mapped_from);
        if to >= self.forgotten + FORGET_STEP {
            // A hint: what stays costs memory, not bytes. From the beginning, since the kernel keeps what somebody holds just then, its own threads among
            // them; of what is gone already it costs nothing.
            let _ = self.file.forget_cached(0, to);
            self.forgotten = to;
        }
    }

    fn unsnapshotted_bytes(&self) -> u64 {
        // A file that holds nothing but its head is nothing to snapshot.
        self.earlier_bytes + self.at.saturating_sub(HEADER_BYTES as u64)
    }

    fn since_snapshot(&self) -> Since {
        Since {
            journal: self.unsnapshotted_bytes(),
            foreground: (self.found_bytes + self.shared.foreground_bytes()).saturating_sub(self.snapshot_begun),
            snapshot: self.shared.gauges.snapshot_bytes.load(Ordering::Relaxed),
        }
    }

    fn is_snapshot_due(&self, turn: &WriterTurn) -> bool {
        let now = self.shared.clock.elapsed();
        let is_idle = now.saturating_sub(self.changed_at) >= turn.options.idle_after;
        let since = self.since_snapshot();
        let is_early = self.shared.buggify.at("journal: a snapshot before it is due");
        let is_asked = (turn.snapshot_wanted || is_early) && since.journal > 0;
        (is_asked || turn.options.is_snapshot_due(since, is_idle)) && now >= self.snapshot_not_before
    }

    /// Begins the journal anew at this position, and a snapshot of the state at it beside.
    fn begin_snapshot(&mut self) {
        self.end_window();
        self.sync();
        let position = self.position;
        if position > self.start {
            match begin_file(&*self.shared.disk, &self.shared.dir, position) {
                Ok(file) => {
                    self.shared.gauges.maintenance_bytes.fetch_add(HEADER_BYTES as u64, Ordering::Relaxed);
                    self.earlier_bytes += self.at;
                    self.file = file;
                    self.start = position;
                    self.at = HEADER_BYTES as u64;
                    self.forgotten = 0;
                    self.safe = 0;
                }
                Err(error) => return self.end_snapshot(Err(error)),
            }
        }
        self.next_snapshot_begun = self.shared.foreground_bytes();
        self.snapshot_since = self.shared.clock.elapsed();
        let shared = Arc::clone(&self.shared);
        let thread = worker::try_spawn("snapshot", move || {
            let done = snapshot::take(&shared, position);
            shared.inner.lock().snapshot_done = Some(done);
            shared.work.notify_one();
        });
        match thread {
            Ok(thread) => self.snapshot = Some(thread),
            Err(source) => self.end_snapshot(Err(JournalError::Thread(source))),
        }
    }

    fn end_snapshot(&mut self, done: Result<u64, JournalError>) {
        self.join_snapshot();
        match done {
            Ok(bytes) => {
                let gauges = &self.shared.gauges;
                (self.earlier_bytes, self.found_bytes) = (0, 0);
                self.snapshot_after = SNAPSHOT_AFTER;
                self.snapshot_begun = self.next_snapshot_begun;
                let took = self.shared.clock.elapsed().saturating_sub(self.snapshot_since);
                gauges.snapshot_micros.store(took.as_micros() as u64, Ordering::Relaxed);
                gauges.snapshot_bytes.store(bytes, Ordering::Relaxed);
                gauges.snapshots.fetch_add(1, Ordering::Relaxed);
                gauges.snapshot_at_ms.store(self.shared.clock.now().0, Ordering::Relaxed);
                gauges.journal_bytes.store(self.unsnapshotted_bytes(), Ordering::Relaxed);
            }
            Err(error) => {
                // Nothing is lost: the journal so far stays, and grows until a snapshot succeeds.
                let again_in = self.put_off_snapshot();
                warn!(%error, again_in_s = again_in.as_secs(), "cannot take a snapshot of the journal");
            }
        }
    }

    /// One has failed. Says when the next one may be tried.
    fn put_off_snapshot(&mut self) -> Duration {
        let pause = self.snapshot_after;
        self.snapshot_after = (pause * 2).min(SNAPSHOT_AFTER_MAX);
        self.snapshot_not_before = self.shared.clock.elapsed() + pause;
        self.shared.gauges.snapshots_failed.fetch_add(1, Ordering::Relaxed);
        pause
    }

    fn has_snapshot_result(&self) -> bool {
        self.shared.inner.lock().snapshot_done.is_some()
    }

    fn join_snapshot(&mut self) {
        if let Some(thread) = self.snapshot.take()
            && thread.join().is_err()
        {
            error!("the journal's snapshot panicked");
        }
    }

    /// Leaves behind a last bundle that says how far everything is on the device, so that damage shows later.
    fn close(&mut self) {
        self.join_snapshot();
        self.end_window();
        if self.bundle_last.is_some() {
            return;
        }
        // What others copied until now.
        self.sync();
        let head = Head { kind: BundleKind::End, previous: self.position, last: self.position, synced: self.synced };
        if self.file.write_at(&bundle::seal(head, &[]), self.at).and_then(|()| self.file.sync_data()).is_err() {
            warn!("the journal's end could not be marked");
        }
    }
}

/// Makes the file of the changes after `position`, durable with its name.
pub(super) fn begin_file(disk: &dyn Disk, dir: &Path, position: u64) -> Result<Arc<dyn DiskFile>, JournalError> {
    let path = journal_path(dir, position);
    let file = disk.open(&path, OpenHow::Create).map_err(|source| JournalError::disk("make", &path, source))?;
    // The name before the head. A file without a head says nothing, should a loss of power bring it back after it was removed.
    match disk.sync_dir(dir) {
        Err(source) if !disk::was_begun(&source) => {
            disk.remove(&path).map_err(|source| JournalError::disk("remove", &path, source))?;
            return Err(JournalError::disk("sync", dir, source));
        }
        synced => or_die(synced.map_err(|source| JournalError::disk("sync", dir, source))),
    }
    let head = Head { kind: BundleKind::JournalHead, previous: position, last: position, synced: position };
    if let Err(source) = file.write_at(&bundle::seal(head, &[]), 0) {
        // Without its head the file says nothing, and must not be taken for the newest.
        disk.remove(&path).map_err(|source| JournalError::disk("remove", &path, source))?;
        return Err(JournalError::disk("write", &path, source));
    }
    or_die(file.sync_data().map_err(|source| JournalError::disk("sync", &path, source)));
    Ok(file)
}

/// After a failed sync nobody knows what is on the device: going on could acknowledge what is lost.
fn or_die(synced: Result<(), JournalError>) {
    if let Err(error) = synced {
        error!(%error, "ending the process: what is on the device is unknown after a failed sync");
        turns::end_process();
    }
}
