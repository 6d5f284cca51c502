//! [`Journal`] itself: what is put, and what its thread shares with those who put it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use disk::turns::Handle;
use disk::{Disk, Watermark};
use env::{Buggify, Clock};
use parking_lot::{Condvar, Mutex};

use crate::bundle;
use crate::change::{self, Change, Entries, Table, TableId};
use crate::error::JournalError;
use crate::options::JournalOptions;
use crate::pending::Pending;
use crate::stats::Gauges;
use crate::window::Window;

/// Capacity that the buffer of one call keeps.
const SCRATCH_BYTES: usize = 64 << 10;

/// The journal: an object to put changes into, and a thread that writes them.
pub struct Journal {
    pub(crate) shared: Arc<Shared>,
    pub(crate) thread: Mutex<Option<Handle>>,
    pub(crate) findings: Vec<String>,
}

pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Clock,
    /// Position up to which changes are in the kernel; in sync mode, on the device.
    pub(crate) written: Arc<Watermark>,
    /// Position up to which changes are on the device.
    pub(crate) synced: Arc<Watermark>,
    /// Guards what is put and not yet taken by the thread, and who owns which table. In the simulator `Sites.asked` is taken inside it,
    /// else nothing.
    pub(crate) inner: Mutex<Inner>,
    /// Rings when the thread has something to do.
    pub(crate) work: Condvar,
    /// Set once. Relaxed: `inner` is locked behind it by whoever must see it soon.
    pub(crate) is_closing: AtomicBool,
    pub(crate) gauges: Gauges,
    pub(crate) buggify: Buggify,
    /// Position at which it was opened.
    pub(crate) opened_at: u64,
    /// What the store writes beside, and what that was when it was told of.
    pub(crate) beside: OnceLock<(Box<dyn Fn() -> u64 + Send + Sync>, u64)>,
}

impl Shared {
    pub(crate) fn want_sync(&self) {
        let mut inner = self.inner.lock();
        inner.sync_wanted_to = inner.last;
        drop(inner);
        self.work.notify_one();
    }
}

pub(crate) struct Inner {
    pub(crate) options: JournalOptions,
    /// The end of the file, mapped; none while the thread writes the file itself.
    pub(crate) window: Option<Window>,
    /// The thread knows that there is something to sync.
    pub(crate) is_told: bool,
    /// The thread knows that the window has little room left.
    pub(crate) is_told_low: bool,
    /// Entries of one call, encoded; kept for its memory.
    pub(crate) scratch: Vec<u8>,
    /// What waits for the thread.
    pub(crate) pending: Pending,
    /// Position of the newest entry: their count since the journal began.
    pub(crate) last: u64,
    pub(crate) tables: BTreeMap<TableId, Owner>,
    pub(crate) snapshot_wanted: bool,
    /// Position up to which somebody wants the device to have everything: a wish is over when `synced` is there, and not before.
    pub(crate) sync_wanted_to: u64,
    /// The sync that runs beside is over, and the thread has not taken note.
    pub(crate) sync_done: bool,
    /// What the snapshot that runs beside ended with, until the thread takes it.
    pub(crate) snapshot_done: Option<Result<u64, JournalError>>,
}

/// Who has a table's state.
#[derive(Clone)]
pub(crate) enum Owner {
    /// We do, since nobody has come for it yet.
    Held(Arc<Entries>),
    Attached(Arc<dyn Table>),
}

impl Journal {
    /// Puts a change: `key` of `table` has `value` from now on. Returns its position: it is safe when
    /// [`written`](Journal::written) is there. Memory only.
    pub fn put(&self, table: TableId, key: &[u8], value: &[u8]) -> u64 {
        self.put_together(&[Change { table, key, value: Some(value) }])
    }

    /// Puts a change: `key` of `table` is gone. As [`put`](Journal::put).
    pub fn delete(&self, table: TableId, key: &[u8]) -> u64 {
        self.put_together(&[Change { table, key, value: None }])
    }

    /// Puts changes of which a crash leaves all or none. As [`put`](Journal::put).
    pub fn put_together(&self, changes: &[Change<'_>]) -> u64 {
        let mut guard = self.shared.inner.lock();
        let inner = &mut *guard;
        if changes.is_empty() {
            return inner.last;
        }
        inner.scratch.clear();
        inner.scratch.shrink_to(SCRATCH_BYTES);
        for Change { table, key, value } in changes {
            bundle::put_entry(&mut inner.scratch, *table, key, *value);
            inner.last += 1;
            match inner.tables.entry(*table).or_insert_with(|| Owner::Held(Arc::default())) {
                Owner::Held(entries) => change::apply(Arc::make_mut(entries), key, *value),
                Owner::Attached(_) => {}
            }
        }
        let position = inner.last;
        if inner.copy_scratch(self.shared.synced.get()) {
            self.shared.gauges.bundles.fetch_add(1, Ordering::Relaxed);
            let is_low = inner.window.as_ref().is_some_and(Window::is_low);
            let is_news = !inner.is_told || (is_low && !inner.is_told_low);
            (inner.is_told, inner.is_told_low) = (true, is_low);
            drop(guard);
            // Who is woken may want the lock.
            self.shared.written.advance(position);
            if is_news {
                self.shared.work.notify_one();
            }
            return position;
        }
        let is_first = inner.pending.is_empty();
        let is_early = self.shared.buggify.at("journal: changes that wait are folded early");
        inner.pending.add(&inner.scratch, position, &inner.options, is_early);
        if is_first {
            self.shared.work.notify_one();
        }
        position
    }

    /// Position of the newest change that was put.
    pub fn position(&self) -> u64 {
        self.shared.inner.lock().last
    }

    /// How far changes are safe, in the sense of [`JournalOptions::sync`].
    pub fn written(&self) -> &Arc<Watermark> {
        &self.shared.written
    }

    /// How far the device has changes.
    pub fn synced(&self) -> &Arc<Watermark> {
        &self.shared.synced
    }

    /// Asks for a sync of all that was put until now, without waiting for it.
    pub fn want_sync(&self) {
        self.shared.want_sync();
    }

    /// What has come to `position` when the change there is safe: the device if `is_on_device`, which is asked for a sync where it is behind; else
    /// [`written`](Journal::written).
    pub fn mark_of(&self, position: u64, is_on_device: bool) -> &Arc<Watermark> {
        if !is_on_device {
            return self.written();
        }
        if self.synced().get() < position {
            self.want_sync();
        }
        self.synced()
    }

    /// Shows a table's entries as found at start, by key. To be called before [`attach`](Journal::attach).
    pub fn load(&self, table: TableId, mut show: impl FnMut(&[u8], &[u8])) {
        let found = match self.shared.inner.lock().tables.get(&table) {
            Some(Owner::Held(entries)) => Arc::clone(entries),
            Some(Owner::Attached(_)) | None => return,
        };
        for (key, value) in found.iter() {
            show(key, value);
        }
    }

    /// Shows a table's entries as they are now, by whoever has them. Those that change meanwhile are shown before or after.
    pub fn show(&self, table: TableId, show: &mut dyn FnMut(&[u8], &[u8])) {
        let owner = self.shared.inner.lock().tables.get(&table).cloned();
        match owner {
            Some(Owner::Held(entries)) => entries.iter().for_each(|(key, value)| show(key, value)),
            Some(Owner::Attached(owner)) => owner.for_each(show),
            None => {}
        }
    }

    /// From now on `owner` has the table's state: snapshots ask it, and the journal forgets what it had loaded.
    pub fn attach(&self, table: TableId, owner: Arc<dyn Table>) {
        let before = self.shared.inner.lock().tables.insert(table, Owner::Attached(owner));
        drop(before);
    }

    /// Changes what may be tuned.
    pub fn configure(&self, options: JournalOptions) {
        self.shared.inner.lock().options = options;
        self.shared.work.notify_one();
    }

    /// What may be tuned, as it is now.
    pub fn options(&self) -> JournalOptions {
        self.shared.inner.lock().options.clone()
    }

    /// Tells of what is written beside the journal on behalf of users, in bytes that only grow: snapshots are measured against that too
    /// ([`JournalOptions::maintenance_percent`]). Counts from now on; a second call changes nothing.
    pub fn count_beside(&self, bytes: Box<dyn Fn() -> u64 + Send + Sync>) {
        let now = bytes();
        let _ = self.shared.beside.set((bytes, now));
    }

    /// Asks for a snapshot now, whatever the sizes.
    pub fn snapshot(&self) {
        self.shared.inner.lock().snapshot_wanted = true;
        self.shared.work.notify_one();
    }

    /// What opening mended, a sentence each.
    pub fn findings(&self) -> &[String] {
        &self.findings
    }

    /// Writes and syncs all that was put, and ends the thread. Dropping does the same. Says whether everything is safe.
    pub fn close(&self) -> bool {
        self.shared.is_closing.store(true, Ordering::Relaxed);
        // Through the lock, so that the thread is either before its look at the flag or already waiting.
        drop(self.shared.inner.lock());
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            return false;
        }
        self.shared.inner.lock().pending.is_empty() && !self.shared.gauges.is_failing.load(Ordering::Relaxed)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    /// Copies what was just encoded into the window, as a bundle that ends with `last`. False if the thread has to write it.
    fn copy_scratch(&mut self, synced: u64) -> bool {
        let may_copy = self.options.may_copy() && self.pending.is_empty();
        self.window.as_mut().is_some_and(|window| may_copy && window.append(&self.scratch, self.last, synced))
    }
}
