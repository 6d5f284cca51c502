//! State that is not in the log: topics, groups, offsets and whatever else is a table from keys to values.
//!
//! A [`Journal`] is an append-only file of small absolute changes and, now and then, a snapshot that lets it begin anew. The
//! state itself stays with its owners ([`Table`]); the journal keeps no copy, so its memory does not grow with its file.
//! Where the kernel's having a change is enough, whoever puts it copies it into the mapped end of the file ([`window`]). Else, and when
//! that has no room, changes gather in memory while the thread `journal` writes the bundle before, so the pace is the device's own.
//! Invariant: a change is in the kernel (in sync mode: on the device) before `written` reaches its position, and opening finds
//! the state as of some position at or above the last `written`, never half a bundle.

mod bundle;
mod files;
mod front;
mod open;
mod options;
mod pending;
mod snapshot;
mod stats;
#[cfg(test)]
mod tests;
mod window;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use disk::turns::Handle;
use disk::{Disk, Watermark};
use env::{Buggify, Clock};
use parking_lot::{Condvar, Mutex};

pub(crate) use files::resident;
pub use options::{JournalOptions, JournalSync};
pub use stats::JournalStats;

use pending::Pending;
use stats::Gauges;
use window::Window;

/// Names a table in the journal's files. A number once given is never given to another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u8);

/// What becomes of one key.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Of which table.
    pub table: TableId,
    /// Which one.
    pub key: &'a [u8],
    /// None: it is gone.
    pub value: Option<&'a [u8]>,
}

/// Whoever holds a table's state.
///
/// Two rules make a snapshot that is taken beside ongoing changes complete. The owner changes its state first and calls
/// [`Journal::put`] after that. And of two changes of one key, that which the state keeps is put last: change and put are one
/// step under whatever guards the key.
pub trait Table: Send + Sync {
    /// Shows each entry once; entries that change meanwhile, before or after. Each call of `show` may write to the device,
    /// so no lock that a request needs may be held across it.
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8]));
}

/// Capacity that the buffer of one call keeps.
const SCRATCH_BYTES: usize = 64 << 10;

/// What helps where a journal is not whole. Nothing is mended by itself then: to go on would be to forget what was acknowledged.
pub(crate) const REMEDY: &str = "put the folder journal back from a copy; or move it away, and a start takes config/*.json as they were last written";

/// Why a journal cannot be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Disk {
        /// What we wanted.
        doing: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A file was damaged after it was written: not a torn end, which is mended silently.
    #[error("{} is damaged at byte {at}: {what}; {}", path.display(), REMEDY)]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// How.
        what: &'static str,
    },
    /// A file that must be there is not.
    #[error("{}: {what}; {}", path.display(), REMEDY)]
    Missing {
        /// The directory.
        path: PathBuf,
        /// Which.
        what: String,
    },
    /// The system gave no thread.
    #[error("cannot start a thread for the journal: {0}")]
    Thread(io::Error),
}

impl JournalError {
    fn disk(doing: &'static str, path: &Path, source: io::Error) -> JournalError {
        JournalError::Disk { doing, path: path.to_owned(), source }
    }
}

/// What the files of a journal say, read without opening it.
#[derive(Debug)]
pub struct JournalLook {
    tables: BTreeMap<TableId, Entries>,
    /// What opening would mend, a sentence each.
    pub findings: Vec<String>,
    /// Changes since it began.
    pub changes: u64,
    /// Entries that there are now, of all tables.
    pub entries: usize,
    /// Bytes of the last snapshot and of what came after it.
    pub bytes: u64,
}

/// What follows where the folder of a journal is not there, though there was one.
pub(crate) const WITHOUT: &str = "topics, groups and offsets are taken from config/*.json as they were last written";

/// Looks for the journal of a store that is known to have had one, before it is opened. Says whether its folder is there; an error if
/// that has no file of it.
pub(crate) fn expect(dir: &Path, disk: &dyn Disk) -> Result<bool, JournalError> {
    open::expect(dir, disk)
}

impl JournalLook {
    /// Reads the journal in `dir` through a `disk` that changes nothing; none if there is none.
    pub(crate) fn read(dir: &Path, disk: &dyn Disk) -> Result<Option<JournalLook>, JournalError> {
        open::look(dir, disk)
    }

    /// Shows a table's entries, by key.
    pub fn load(&self, table: TableId, mut show: impl FnMut(&[u8], &[u8])) {
        for (key, value) in self.tables.get(&table).into_iter().flatten() {
            show(key, value);
        }
    }
}

/// The journal: an object to put changes into, and a thread that writes them.
pub struct Journal {
    shared: Arc<Shared>,
    thread: Mutex<Option<Handle>>,
    findings: Vec<String>,
}

struct Shared {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    clock: Clock,
    /// Position up to which changes are in the kernel; in sync mode, on the device.
    written: Arc<Watermark>,
    /// Position up to which changes are on the device.
    synced: Arc<Watermark>,
    /// Guards what is put and not yet taken by the thread, and who owns which table. In the simulator `Sites.asked` is taken inside it,
    /// else nothing.
    inner: Mutex<Inner>,
    /// Rings when the thread has something to do.
    work: Condvar,
    /// Set once. Relaxed: `inner` is locked behind it by whoever must see it soon.
    is_closing: AtomicBool,
    gauges: Gauges,
    buggify: Buggify,
    /// Position at which it was opened.
    opened_at: u64,
    /// What the store writes beside, and what that was when it was told of.
    beside: OnceLock<(Box<dyn Fn() -> u64 + Send + Sync>, u64)>,
}

impl Shared {
    fn want_sync(&self) {
        let mut inner = self.inner.lock();
        inner.sync_wanted_to = inner.last;
        drop(inner);
        self.work.notify_one();
    }
}

struct Inner {
    options: JournalOptions,
    /// The end of the file, mapped; none while the thread writes the file itself.
    window: Option<Window>,
    /// The thread knows that there is something to sync.
    is_told: bool,
    /// The thread knows that the window has little room left.
    is_told_low: bool,
    /// Entries of one call, encoded; kept for its memory.
    scratch: Vec<u8>,
    /// What waits for the thread.
    pending: Pending,
    /// Position of the newest entry: their count since the journal began.
    last: u64,
    tables: BTreeMap<TableId, Owner>,
    snapshot_wanted: bool,
    /// Position up to which somebody wants the device to have everything: a wish is over when `synced` is there, and not before.
    sync_wanted_to: u64,
    /// The sync that runs beside is over, and the thread has not taken note.
    sync_done: bool,
    /// What the snapshot that runs beside ended with, until the thread takes it.
    snapshot_done: Option<Result<u64, JournalError>>,
}

/// Who has a table's state.
#[derive(Clone)]
enum Owner {
    /// We do, since nobody has come for it yet.
    Held(Arc<Entries>),
    Attached(Arc<dyn Table>),
}

type Entries = BTreeMap<Box<[u8]>, Box<[u8]>>;

impl Journal {
    /// Opens the journal in `dir`, or begins one, and starts its thread.
    pub fn open(
        dir: &Path,
        options: JournalOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
    ) -> Result<Journal, JournalError> {
        Journal::open_with(dir, options, clock, disk, Buggify::never())
    }

    /// The same; `buggify` says which rare branches are taken without need.
    pub fn open_with(
        dir: &Path,
        options: JournalOptions,
        clock: Clock,
        disk: Arc<dyn Disk>,
        buggify: Buggify,
    ) -> Result<Journal, JournalError> {
        open::open(dir, options, clock, disk, buggify)
    }

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
                Owner::Held(entries) => open::apply(Arc::make_mut(entries), key, *value),
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
