//! Consume queues: for each queue of each topic, where its messages lie in the log, in RocketMQ's files.
//!
//! [`QueueLogs`] owns all of them. It has no thread: the store's thread `queues` calls [`QueueLogs::flush_all`], sooner than
//! its period when [`QueueLogs::wait_until_wanted`] says so. What all queues together cost is bounded: descriptors by a cache,
//! memory by the flush, the memory mappings by having none. Files are written, cut and removed under one maintenance lock,
//! which is held across system calls on purpose: nobody who serves a request takes it.

mod by_time;
mod descriptors;
mod load;
mod queue;
#[cfg(test)]
mod tests;
mod trim;
mod unit;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex, RwLock};
use protocol::{LogOffset, names};

pub use by_time::Boundary;
pub use load::Loaded;
pub use queue::{ConsumeQueue, PushedAt, UnitsRead};
pub use unit::{UNIT_BYTES, Unit};

use crate::disk::{Disk, DiskFile};
use descriptors::Descriptors;

/// What consume queues may use.
#[derive(Clone, Debug)]
pub struct QueueLogOptions {
    /// Bytes of a file (`mappedFileSizeConsumeQueue`); rounded up to whole units.
    pub file_bytes: u64,
    /// Open files at most. The default leaves most of an `ulimit -n` of 1024 to sockets.
    pub descriptors: usize,
    /// Units waiting to be written, all queues together, in bytes, at which the flush is called early.
    pub buffered_bytes: u64,
    /// Written units kept in memory for consumers that are close behind, all queues together, in bytes.
    pub recent_bytes: u64,
}

impl Default for QueueLogOptions {
    fn default() -> Self {
        QueueLogOptions { file_bytes: 6_000_000, descriptors: 256, buffered_bytes: 4 << 20, recent_bytes: 8 << 20 }
    }
}

/// A queue's recent window at most, in units.
const WINDOW_UNITS_MAX: usize = 1024;

/// Files (and directories) that are made durable one by one; from here on, the file system is synced as a whole.
const SYNCED_SINGLY_MAX: usize = 64;

/// What can go wrong with consume queues.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
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
    /// A unit for an offset that is not the queue's next one.
    #[error(
        "consume queue {topic}/{queue_id} ends at offset {next}, but the record at {at} of the log has offset {offset}"
    )]
    Gap {
        /// The queue's topic.
        topic: String,
        /// The queue.
        queue_id: u32,
        /// The queue's next offset.
        next: u64,
        /// The unit's offset.
        offset: u64,
        /// Where its record lies.
        at: LogOffset,
    },
    /// A file of a length that no setting explains.
    #[error("{} has {bytes} bytes, other consume queue files have {expected}", path.display())]
    FileLength {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// What it should be.
        expected: u64,
    },
}

impl QueueError {
    fn disk(doing: &'static str, path: &Path, source: io::Error) -> QueueError {
        QueueError::Disk { doing, path: path.to_owned(), source }
    }

    fn is_missing_file(&self) -> bool {
        match self {
            QueueError::Disk { source, .. } => source.kind() == io::ErrorKind::NotFound,
            QueueError::Gap { .. } | QueueError::FileLength { .. } => false,
        }
    }
}

/// All consume queues of a store.
pub struct QueueLogs {
    shared: Arc<Shared>,
    /// Guards which queues exist. Taken for writing only when a queue appears or a topic goes; no other lock inside.
    topics: RwLock<HashMap<Arc<str>, TopicQueues, FixedState>>,
    /// Light queues among them. Changed under `topics`.
    light: AtomicUsize,
}

/// The queues of a topic, by id, ascending.
type TopicQueues = Vec<Arc<ConsumeQueue>>;

/// What each queue shares with the others.
struct Shared {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    file_bytes: u64,
    options: QueueLogOptions,
    descriptors: Descriptors,
    next_number: AtomicU64,
    /// Whoever changes files of queues holds it, across system calls: one at a time, and no request ever.
    maintenance: Mutex<()>,
    /// Guards the queues that the next flush visits: those with units to write or memory to give back. Innermost.
    listed: Mutex<Vec<Arc<ConsumeQueue>>>,
    /// Guards the topics that are deleted and whose files are still there. Innermost; changed under `topics`.
    deleted: Mutex<Vec<(String, TopicQueues)>>,
    /// Guards what a loss of power could still take. Innermost.
    unsynced: Mutex<Unsynced>,
    /// Units pushed and not yet written. Relaxed: a gauge and a trigger.
    pending_units: AtomicU64,
    /// Whether the bell was rung since the flush last began; spares push the bell's lock.
    is_rung: AtomicBool,
    bell: Bell,
}

#[derive(Default)]
struct Bell {
    /// Whether a flush is wanted early.
    wanted: Mutex<bool>,
    rang: Condvar,
}

/// Files written and directories made since the last sync.
#[derive(Default)]
struct Unsynced {
    files: HashMap<descriptors::FileKey, Arc<dyn DiskFile>, FixedState>,
    dirs: Vec<PathBuf>,
    /// There were too many to remember each: the whole file system is due.
    is_everything: bool,
}

impl Unsynced {
    fn note(&mut self, queue: u64, file_start: u64, file: &Arc<dyn DiskFile>) {
        if self.is_everything {
            return;
        }
        self.files.insert((queue, file_start), Arc::clone(file));
        self.limit();
    }

    fn note_made(&mut self, dir: PathBuf) {
        if !self.is_everything {
            self.dirs.push(dir);
            self.limit();
        }
    }

    fn forget(&mut self, queue: u64, from: u64, to: u64) {
        self.files.retain(|key, _| key.0 != queue || !(from..to).contains(&key.1));
    }

    fn limit(&mut self) {
        if self.files.len() + self.dirs.len() > SYNCED_SINGLY_MAX {
            *self = Unsynced { is_everything: true, ..Unsynced::default() };
        }
    }
}

impl Shared {
    fn units_per_file(&self) -> u64 {
        self.file_bytes / UNIT_BYTES as u64
    }

    fn file_start(&self, offset: u64) -> u64 {
        offset - offset % self.units_per_file()
    }

    fn file_end(&self, offset: u64) -> u64 {
        self.file_start(offset) + self.units_per_file()
    }

    fn byte_in_file(&self, offset: u64) -> u64 {
        (offset % self.units_per_file()) * UNIT_BYTES as u64
    }

    fn count_pushed(&self) {
        let pending = self.pending_units.fetch_add(1, Ordering::Relaxed) + 1;
        if pending * UNIT_BYTES as u64 >= self.options.buffered_bytes && !self.is_rung.swap(true, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    fn count_written(&self, units: u64) {
        self.pending_units.fetch_sub(units, Ordering::Relaxed);
    }
}

impl Bell {
    fn ring(&self) {
        *self.wanted.lock() = true;
        self.rang.notify_all();
    }
}

impl QueueLogs {
    /// Opens the queues under `dir` (`<root>/consumequeue`); says what was found and mended.
    ///
    /// Nothing of a queue is read but the end of its last file, and nothing stays open.
    pub fn open(dir: &Path, options: QueueLogOptions, disk: Arc<dyn Disk>) -> Result<(QueueLogs, Loaded), QueueError> {
        load::load(dir, options, disk)
    }

    fn new(dir: &Path, file_bytes: u64, options: QueueLogOptions, disk: Arc<dyn Disk>) -> QueueLogs {
        QueueLogs {
            shared: Arc::new(Shared {
                disk,
                dir: dir.to_owned(),
                file_bytes,
                descriptors: Descriptors::new(options.descriptors),
                options,
                next_number: AtomicU64::new(0),
                maintenance: Mutex::new(()),
                listed: Mutex::new(Vec::new()),
                deleted: Mutex::new(Vec::new()),
                unsynced: Mutex::new(Unsynced::default()),
                pending_units: AtomicU64::new(0),
                is_rung: AtomicBool::new(false),
                bell: Bell::default(),
            }),
            topics: RwLock::new(HashMap::default()),
            light: AtomicUsize::new(0),
        }
    }

    /// The queue, if it exists.
    pub fn get(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue>> {
        let topics = self.topics.read();
        let queues = topics.get(topic)?;
        let place = queues.binary_search_by_key(&queue_id, |queue| queue.id()).ok()?;
        Some(Arc::clone(&queues[place]))
    }

    /// The queue; an empty one if there was none. Touches no file: the first unit makes the directory.
    pub fn get_or_create(&self, topic: &str, queue_id: u32) -> Arc<ConsumeQueue> {
        if let Some(queue) = self.get(topic, queue_id) {
            return queue;
        }
        let mut topics = self.topics.write();
        let known = topics.get_key_value(topic).map(|(name, _)| Arc::clone(name));
        if known.is_none() && names::is_lmq(topic) {
            self.light.fetch_add(1, Ordering::Relaxed);
        }
        let name = known.unwrap_or_else(|| Arc::from(topic));
        // A light queue is the only one of its topic, and there are very many of them.
        let usual = if names::is_lmq(topic) { 1 } else { 0 };
        let queues = topics.entry(Arc::clone(&name)).or_insert_with(|| Vec::with_capacity(usual));
        match queues.binary_search_by_key(&queue_id, |queue| queue.id()) {
            Ok(place) => Arc::clone(&queues[place]),
            Err(place) => {
                let queue = Arc::new(ConsumeQueue::new(Arc::clone(&self.shared), name, queue_id));
                queues.insert(place, Arc::clone(&queue));
                queue
            }
        }
    }

    /// How many light queues there are.
    pub fn light_queues(&self) -> usize {
        self.light.load(Ordering::Relaxed)
    }

    /// Forgets the light queues that never had a message and that nobody holds: somebody asked for them once.
    pub fn forget_unused_light_queues(&self) {
        let mut topics = self.topics.write();
        let before = topics.len();
        // Nobody can come to hold one meanwhile, since that takes the lock.
        let is_unused = |queue: &Arc<ConsumeQueue>| queue.max_offset() == 0 && Arc::strong_count(queue) == 1;
        topics.retain(|name, queues| !names::is_lmq(name) || !queues.iter().all(is_unused));
        self.light.fetch_sub(before - topics.len(), Ordering::Relaxed);
    }

    /// The topics that have queues.
    pub fn topics(&self) -> Vec<Arc<str>> {
        self.topics.read().keys().cloned().collect()
    }

    /// The queues of a topic, by id.
    pub fn queues_of(&self, topic: &str) -> Vec<Arc<ConsumeQueue>> {
        self.topics.read().get(topic).cloned().unwrap_or_default()
    }

    /// Every queue.
    pub fn queues(&self) -> Vec<Arc<ConsumeQueue>> {
        self.topics.read().values().flatten().cloned().collect()
    }

    /// Removes the queues of a topic. Whoever holds one still may push; it goes nowhere. Touches no file: those go with
    /// [`remove_deleted`](Self::remove_deleted) or the next flush, before anything of a topic that comes again can be written.
    ///
    /// `hold_log` lets nobody push as long as what it returns lives: in that moment one life of the topic ends, and another may
    /// begin. It is not called if the topic has no queue.
    pub fn delete_topic<G>(&self, topic: &str, hold_log: impl FnOnce() -> G) {
        if !self.topics.read().contains_key(topic) {
            return;
        }
        let held = hold_log();
        let queues = {
            let mut topics = self.topics.write();
            let Some(queues) = topics.remove(topic) else { return };
            if names::is_lmq(topic) {
                self.light.fetch_sub(1, Ordering::Relaxed);
            }
            // Noted before a queue of the same name can be made.
            self.shared.deleted.lock().push((topic.to_owned(), queues.clone()));
            queues
        };
        for queue in &queues {
            let mut tail = queue.tail.lock();
            queue.is_deleted.store(true, Ordering::Release);
            if let Some(tail) = tail.take() {
                self.shared.count_written(tail.first + tail.recent.len() as u64 - tail.written);
            }
        }
        drop(held);
    }

    /// Removes the files of deleted topics.
    pub fn remove_deleted(&self) -> Result<(), QueueError> {
        let _files = self.shared.maintenance.lock();
        self.remove_deleted_files()
    }

    /// Under the maintenance lock. A topic whose files cannot be removed does not stop the others; the first error is returned.
    fn remove_deleted_files(&self) -> Result<(), QueueError> {
        let deleted = std::mem::take(&mut *self.shared.deleted.lock());
        if deleted.is_empty() {
            return Ok(());
        }
        let mut first_error = None;
        self.shared.listed.lock().retain(|queue| !queue.is_deleted());
        for (topic, queues) in deleted {
            for queue in queues {
                self.shared.descriptors.forget(queue.number, 0, u64::MAX);
                self.shared.unsynced.lock().forget(queue.number, 0, u64::MAX);
            }
            let dir = self.shared.dir.join(topic);
            let removed = self.shared.disk.remove_tree(&dir).and_then(|()| self.shared.disk.sync_dir(&self.shared.dir));
            if let Err(source) = removed {
                first_error.get_or_insert(QueueError::disk("remove", &dir, source));
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Hands all units that are only in memory to the kernel, and takes memory back from queues that are at rest.
    ///
    /// A queue that cannot be written keeps its units for the next call and does not stop the others; the first error is
    /// returned.
    pub fn flush_all(&self) -> Result<(), QueueError> {
        let _files = self.shared.maintenance.lock();
        self.shared.is_rung.store(false, Ordering::Relaxed);
        *self.shared.bell.wanted.lock() = false;
        let mut listed = std::mem::take(&mut *self.shared.listed.lock());
        let share = self.shared.options.recent_bytes as usize / UNIT_BYTES / listed.len().max(1);
        let window = share.min(WINDOW_UNITS_MAX);
        let mut scratch = Vec::new();
        // After the list was taken: whatever stands in it under a deleted name was made after that was noted.
        let mut first_error = self.remove_deleted_files().err();
        listed.retain(|queue| match queue.flush(window, &mut scratch) {
            Ok(was_active) => was_active,
            Err(error) => {
                first_error.get_or_insert(error);
                true
            }
        });
        self.shared.listed.lock().append(&mut listed);
        first_error.map_or(Ok(()), Err)
    }

    /// Flushes, and makes what was pushed before this call survive a loss of power.
    pub fn sync_all(&self) -> Result<(), QueueError> {
        self.flush_all()?;
        let _files = self.shared.maintenance.lock();
        let unsynced = std::mem::take(&mut *self.shared.unsynced.lock());
        let synced = self.sync(&unsynced);
        if synced.is_err() {
            // The names of the files are lost with `unsynced`, so that the next attempt must cover everything.
            *self.shared.unsynced.lock() = Unsynced { is_everything: true, ..Unsynced::default() };
        }
        synced
    }

    fn sync(&self, unsynced: &Unsynced) -> Result<(), QueueError> {
        let Shared { disk, dir: root, .. } = &*self.shared;
        if unsynced.is_everything {
            return disk.sync_file_system(root).map_err(|source| QueueError::disk("sync", root, source));
        }
        for file in unsynced.files.values() {
            file.sync_data().map_err(|source| QueueError::disk("sync a file of", root, source))?;
        }
        for dir in &unsynced.dirs {
            // The file's name is in the queue's directory, that one's name in the topic's, and so on up to ours.
            for dir in dir.ancestors().take_while(|dir| dir.starts_with(root)) {
                disk.sync_dir(dir).map_err(|source| QueueError::disk("sync", dir, source))?;
            }
        }
        Ok(())
    }

    /// Blocks until a flush is wanted early (true), or `timeout` has passed (false).
    pub fn wait_until_wanted(&self, timeout: Duration) -> bool {
        let mut wanted = self.shared.bell.wanted.lock();
        if !*wanted {
            self.shared.bell.rang.wait_for(&mut wanted, timeout);
        }
        std::mem::take(&mut *wanted)
    }

    /// Ends a `wait_until_wanted` now: something is to be done, or the store closes.
    pub fn ring(&self) {
        self.shared.bell.ring();
    }

    /// Where the record of the newest unit of all queues ends: what the log has beyond is in no queue.
    pub fn max_log_end(&self) -> LogOffset {
        let topics = self.topics.read();
        topics.values().flatten().map(|queue| queue.log_end()).max().unwrap_or_default()
    }

    /// Bytes of units that are not yet written.
    pub fn pending_bytes(&self) -> u64 {
        self.shared.pending_units.load(Ordering::Relaxed) * UNIT_BYTES as u64
    }

    /// Whether so much is unwritten (the disk is full or stands still) that the log should take no more for now.
    pub fn is_backlogged(&self) -> bool {
        self.pending_bytes() >= self.shared.options.buffered_bytes.saturating_mul(8)
    }

    /// Files that are open.
    pub fn open_files(&self) -> usize {
        self.shared.descriptors.count()
    }

    /// Queues that exist.
    pub fn count(&self) -> usize {
        self.topics.read().values().map(Vec::len).sum()
    }

    /// Bytes of a file, as found on disk or as configured.
    pub fn file_bytes(&self) -> u64 {
        self.shared.file_bytes
    }
}
