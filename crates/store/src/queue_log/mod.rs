//! Consume queues: for each queue of each topic, where its messages lie in the log, in RocketMQ's files.
//!
//! [`QueueLogs`] owns all of them. It has no thread: the store's thread `queues` calls [`QueueLogs::flush_all`], sooner than
//! its period when [`QueueLogs::wait_until_wanted`] says so. What all queues together cost is bounded: descriptors by a cache,
//! memory by the flush, the memory mappings by having none. Files are written, cut and removed under one maintenance lock,
//! which is held across system calls on purpose: nobody who serves a request takes it.

mod again;
mod batch;
#[cfg(test)]
mod batch_tests;
mod batch_unit;
mod by_time;
mod descriptors;
mod ends;
mod error;
mod flushing;
mod layout;
mod load;
mod mending;
mod options;
mod queue;
mod reading;
mod shared;
mod table;
mod tail;
#[cfg(test)]
mod tests;
mod trim;
mod unit;
mod unsynced;
mod writing;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use protocol::{LogOffset, names};

pub use batch::{Span, SpansRead};
pub use by_time::Boundary;
pub use error::QueueError;
pub use load::Loaded;
pub use options::QueueLogOptions;
pub use queue::{ConsumeQueue, PushedAt};
pub use reading::UnitsRead;
pub use unit::{UNIT_BYTES, Unit};

use descriptors::Descriptors;
use disk::Disk;
pub(crate) use ends::fnv;
pub use flushing::Flushed;
use layout::Layout;
use shared::{BeforeRemoval, Bell, DeletedTopic, Shared};
use table::Table;
pub(crate) use trim::Cut;
use unsynced::Unsynced;

/// A queue's recent window at most, in bytes of units.
const WINDOW_BYTES_MAX: usize = 1024 * UNIT_BYTES;

/// All consume queues of a store.
pub struct QueueLogs {
    shared: Arc<Shared>,
    /// Guards which queues exist. Taken for writing only when a queue appears or a topic goes; no other lock inside.
    topics: RwLock<Table>,
    /// Light queues among them. Changed under `topics`.
    light: AtomicUsize,
}

impl Drop for QueueLogs {
    /// A queue that is listed holds what all share, which holds the list: nothing of a closed store would be given back, its open files least of all.
    fn drop(&mut self) {
        self.shared.listed.lock().clear();
        self.shared.deleted.lock().clear();
    }
}

impl QueueLogs {
    /// Opens the queues under `dir` (`<root>/consumequeue`); says what was found and mended.
    ///
    /// Nothing of a queue is read but the end of its last file, and nothing stays open.
    pub fn open(dir: &Path, options: QueueLogOptions, disk: Arc<dyn Disk>) -> Result<(QueueLogs, Loaded), QueueError> {
        load::load(dir, options, disk)
    }

    fn new(simple: Layout, batch: Layout, options: QueueLogOptions, disk: Arc<dyn Disk>) -> QueueLogs {
        QueueLogs {
            shared: Arc::new(Shared {
                disk,
                simple,
                batch,
                descriptors: Descriptors::new(options.descriptors, options.buggify.clone()),
                ring_at: AtomicU64::new(options.buffered_bytes),
                options,
                next_number: AtomicU64::new(0),
                maintenance: Mutex::new(()),
                listed: Mutex::new(Vec::new()),
                deleted: Mutex::new(Vec::new()),
                journal_safe: AtomicU64::new(0),
                unsynced: Mutex::new(Unsynced::default()),
                pending_bytes: AtomicU64::new(0),
                is_rung: AtomicBool::new(false),
                bell: Bell::default(),
                counted_ends: AtomicU64::new(0),
                counted_below: AtomicU64::new(0),
                before_removal: BeforeRemoval::new(),
            }),
            topics: RwLock::default(),
            light: AtomicUsize::new(0),
        }
    }

    /// The queue, if it exists.
    pub fn get(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue>> {
        self.topics.read().get(topic, queue_id).cloned()
    }

    /// Whether the topic has a queue.
    pub(crate) fn has_topic(&self, topic: &str) -> bool {
        !self.topics.read().of(topic).is_empty()
    }

    /// The folder of an ordinary queue, there or not.
    pub(crate) fn dir_of(&self, topic: &str, queue_id: u32) -> PathBuf {
        self.shared.simple.dir.join(topic).join(queue_id.to_string())
    }

    /// The queue; an empty one if there was none, of the kind of the topic's others, else an ordinary one. Touches no file: the first
    /// unit makes the directory.
    pub fn get_or_create(&self, topic: &str, queue_id: u32) -> Arc<ConsumeQueue> {
        self.get_or_create_as(topic, queue_id, false)
    }

    /// As [`get_or_create`](Self::get_or_create), but that a topic without queues gets one for batches.
    pub fn get_or_create_batch(&self, topic: &str, queue_id: u32) -> Arc<ConsumeQueue> {
        self.get_or_create_as(topic, queue_id, true)
    }

    fn get_or_create_as(&self, topic: &str, queue_id: u32, is_batch: bool) -> Arc<ConsumeQueue> {
        if let Some(queue) = self.get(topic, queue_id) {
            return queue;
        }
        let mut topics = self.topics.write();
        if let Some(queue) = topics.get(topic, queue_id) {
            return Arc::clone(queue);
        }
        let (name, is_batch) = match topics.of(topic).first() {
            Some(sibling) => (Arc::clone(sibling.shared_topic()), sibling.is_batch()),
            None => {
                if names::is_lmq(topic) {
                    self.light.fetch_add(1, Ordering::Relaxed);
                }
                (Arc::from(topic), is_batch)
            }
        };
        let queue = Arc::new(ConsumeQueue::new(Arc::clone(&self.shared), name, queue_id, is_batch));
        topics.insert(Arc::clone(&queue));
        queue
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
        self.topics.read().iter().flat_map(<[_]>::first).map(|queue| Arc::clone(queue.shared_topic())).collect()
    }

    /// The queues of a topic, by id.
    pub fn queues_of(&self, topic: &str) -> Vec<Arc<ConsumeQueue>> {
        self.topics.read().of(topic).to_vec()
    }

    /// Every queue.
    pub fn queues(&self) -> Vec<Arc<ConsumeQueue>> {
        self.topics.read().iter().flatten().cloned().collect()
    }

    /// Removes the queues of a topic. Whoever holds one still may push; it goes nowhere. Touches no file: those go with
    /// [`remove_deleted`](Self::remove_deleted) or the next flush, before anything of a topic that comes again can be written.
    ///
    /// `hold_log` lets nobody push as long as what it returns lives: in that moment one life of the topic ends, and another may
    /// begin. It is not called if the topic has no queue; where it gives nothing, the topic stays. With it comes the journal's position that the device has to have before files go; see
    /// [`journal_is_safe`](Self::journal_is_safe). Says whether the topic is gone.
    pub fn delete_topic<G>(&self, topic: &str, hold_log: impl FnOnce() -> Option<(G, u64)>) -> bool {
        if self.topics.read().of(topic).is_empty() {
            return true;
        }
        let Some((held, position)) = hold_log() else { return false };
        let queues = {
            let mut topics = self.topics.write();
            let Some(queues) = topics.remove(topic) else { return true };
            if names::is_lmq(topic) {
                self.light.fetch_sub(1, Ordering::Relaxed);
            }
            // Noted before a queue of the same name can be made.
            let deleted = DeletedTopic { name: topic.to_owned(), queues: queues.clone(), position };
            self.shared.deleted.lock().push(deleted);
            queues
        };
        for queue in queues.all() {
            let mut tail = queue.tail.lock();
            queue.is_deleted.store(true, Ordering::Release);
            queue.forget_end();
            if let Some(tail) = tail.take() {
                self.shared.count_written(tail.pending_bytes());
            }
        }
        drop(held);
        true
    }

    /// The device has the journal up to this position: files of topics whose deletion is in it may go. Were they gone and the deletion not there
    /// after a loss of power, half of such a topic would be back.
    pub fn journal_is_safe(&self, position: u64) {
        self.shared.journal_safe.fetch_max(position, Ordering::Relaxed);
    }

    /// Up to which position the device has to have the journal so that all files of deleted topics may go; none if there are none.
    pub fn deleted_up_to(&self) -> Option<u64> {
        self.shared.deleted.lock().iter().map(|deleted| deleted.position).max()
    }

    /// The topics that are deleted and whose files are still there.
    pub fn still_to_remove(&self) -> HashSet<String> {
        // Not while files are being removed: a topic whose files stay comes back into the list.
        let _files = self.shared.maintenance.lock();
        self.shared.deleted.lock().iter().map(|topic| topic.name.clone()).collect()
    }

    /// Removes the files of deleted topics, of those that may go.
    pub fn remove_deleted(&self) -> Result<(), QueueError> {
        let _files = self.shared.maintenance.lock();
        self.remove_deleted_files()
    }

    /// Under the maintenance lock. A topic whose files cannot be removed stays deleted and does not stop the others; the first error is
    /// returned.
    fn remove_deleted_files(&self) -> Result<(), QueueError> {
        let safe = self.shared.journal_safe.load(Ordering::Relaxed);
        let deleted: Vec<DeletedTopic> =
            self.shared.deleted.lock().extract_if(.., |topic| topic.position <= safe).collect();
        if deleted.is_empty() {
            return Ok(());
        }
        let mut first_error = None;
        if let Some(call) = self.shared.before_removal.get() {
            call();
        }
        self.shared.listed.lock().retain(|queue| !queue.is_deleted());
        for topic in deleted {
            let queues = topic.queues.all();
            let is_batch = queues.first().is_some_and(|queue| queue.is_batch());
            for queue in queues {
                self.shared.descriptors.forget(queue.number, 0, u64::MAX);
                self.shared.unsynced.lock().forget(queue.number, 0, u64::MAX);
            }
            let root = if is_batch { &self.shared.batch.dir } else { &self.shared.simple.dir };
            let dir = root.join(&topic.name);
            self.shared.unsynced.lock().forget_below(&dir);
            let disk = &self.shared.disk;
            // The folder for batches may never have been made.
            let removed =
                disk.remove_tree(&dir).and_then(|()| disk.create_dir(root)).and_then(|()| disk.sync_dir(root));
            if let Err(source) = removed {
                first_error.get_or_insert(QueueError::disk("remove", &dir, source));
                self.shared.deleted.lock().push(topic);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Where the record of the newest unit of all queues ends: what the log has beyond is in no queue.
    pub fn max_log_end(&self) -> LogOffset {
        let topics = self.topics.read();
        topics.iter().flatten().map(|queue| queue.log_end()).max().unwrap_or_default()
    }

    /// Bytes of units that are not yet written.
    pub fn pending_bytes(&self) -> u64 {
        self.shared.pending_bytes.load(Ordering::Relaxed)
    }

    /// Whether so much is unwritten (the disk is full or stands still) that the log should take no more for now.
    pub fn is_backlogged(&self) -> bool {
        self.pending_bytes() >= self.shared.options.buffered_bytes.saturating_mul(8)
    }

    /// Whether so much is unwritten that the log takes no more, whatever the reason: units are memory.
    pub fn is_full(&self) -> bool {
        self.pending_bytes() >= self.shared.options.buffered_bytes.saturating_mul(32)
    }

    /// Files that are open.
    pub fn open_files(&self) -> usize {
        self.shared.descriptors.count()
    }

    /// Queues that exist.
    pub fn count(&self) -> usize {
        self.topics.read().iter().map(<[_]>::len).sum()
    }

    /// Bytes of a file of ordinary queues, as found on disk or as configured.
    pub fn file_bytes(&self) -> u64 {
        self.shared.simple.file_bytes
    }
}
