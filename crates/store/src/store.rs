//! The store: opens what is on disk, owns the threads, and is the door to log, queues and journal.
//!
//! Threads: `segments` (prepare.rs), `flush` (flush.rs), `queues` (below: writes units, keeps the check-point), `retention`
//! (retention.rs), `journal`, `cold-N`. Closing stops them in that order of need: nothing is flushed before it is written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use env::{Clock, TimeMs};
use parking_lot::{Mutex, RwLock};
use protocol::LogOffset;
use tracing::{error, warn};

use crate::batch::RecordBatch;
use crate::checkpoint::{Checkpoint, Marks};
use crate::cold::{ColdQueueFull, ColdRead, ColdReads};
use crate::commit_log::CommitLog;
use crate::disk::Disk;
use crate::error::{AppendError, NotWritable, StoreError};
use crate::journal::{Journal, JournalOptions, JournalSync};
use crate::lock::{AbortFile, StoreLock};
use crate::options::{FlushMode, StoreEnv, StoreOptions};
use crate::queue_log::{ConsumeQueue, QueueLogOptions, QueueLogs};
use crate::recovery::{self, Recovered};
use crate::retention::DiskUse;
use crate::watermark::Watermark;
use crate::worker::{self, Bell};
use crate::{flush, prepare, retention};

/// How often units go to their files and the check-point moves.
const QUEUES_INTERVAL: Duration = Duration::from_secs(1);

/// Below which log offset nothing is needed any more by those whom retention protects; none: nobody.
pub type RetentionFloor = Box<dyn Fn() -> Option<LogOffset> + Send + Sync>;

/// What the store's threads share.
pub(crate) struct Shared {
    pub options: StoreOptions,
    pub clock: Clock,
    pub disk: Arc<dyn Disk>,
    pub log: CommitLog,
    pub queues: QueueLogs,
    /// Up to here the log is on the device.
    pub flushed: Watermark,
    /// Store time of the newest record appended. Release in `append`, after the log's end; Acquire in `flush`, before it.
    pub last_timestamp: AtomicI64,
    /// The same of the newest record on the device.
    pub flushed_timestamp: AtomicI64,
    /// Log offset up to which somebody waits for room.
    pub needed_room: AtomicU64,
    /// What this process wrote begins here.
    pub opened_at: u64,
    /// Set by reads, taken by the thread that lets pages go. Relaxed: a hint.
    pub had_reads: AtomicBool,
    pub segments_bell: Bell,
    pub flush_bell: Bell,
    pub retention_bell: Bell,
    /// Why the next stretch of the log could not be prepared.
    pub no_room: Mutex<Option<NotWritable>>,
    /// Whether the device is fuller than it may be.
    pub disk_full: Mutex<Option<NotWritable>>,
    /// `disk_full` without the lock.
    pub is_writable: AtomicBool,
    pub retention_floor: RwLock<Option<RetentionFloor>>,
    stopping: AtomicBool,
}

impl Shared {
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub fn is_sync_flush(&self) -> bool {
        self.options.flush == FlushMode::Sync
    }

    pub fn take_had_reads(&self) -> bool {
        self.had_reads.swap(false, Ordering::Relaxed)
    }

    /// The hour that `deleteWhen` is compared with, in UTC: we have no zone database, and a container has no zone either.
    pub fn hour_of_day(&self) -> u8 {
        u8::try_from(self.clock.now().0.div_euclid(3_600_000).rem_euclid(24)).unwrap_or(0)
    }
}

/// A store that is open.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    journal: Journal,
    cold: Arc<ColdReads>,
    checkpoint: Mutex<Checkpoint>,
    abort: AbortFile,
    /// Joined in this order when the store closes.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Given back when the store is closed, or dropped.
    lock: Mutex<Option<StoreLock>>,
}

impl Store {
    /// Locks the store, recovers what is in it, and starts the threads. Says what was found and mended.
    pub fn open(options: StoreOptions, env: StoreEnv) -> Result<(Arc<Store>, Recovered), StoreError> {
        let StoreEnv { clock, disk, .. } = env;
        let root = options.root.clone();
        let make = |path: &std::path::Path| {
            disk.create_dir(path).map_err(|source| StoreError::Disk { doing: "make", path: path.to_owned(), source })
        };
        make(&root)?;
        make(&options.queue_dir)?;
        let lock = StoreLock::take(&root)?;
        let mut found = Recovered::default();
        let (abort, was_abnormal) = AbortFile::raise(&root)?;
        found.was_abnormal = was_abnormal;
        let (checkpoint, marks) = Checkpoint::open(&*disk, &root)?;
        let mut files = recovery::open_segments(&options, &*disk, &mut found)?;
        let queue_options = QueueLogOptions {
            file_bytes: options.queue_file_bytes,
            descriptors: options.queue_descriptors_max,
            ..QueueLogOptions::default()
        };
        let (queues, loaded) = QueueLogs::open(&options.queue_dir, queue_options, Arc::clone(&disk))?;
        found.findings.extend(loaded.findings);
        let rebuild_from = loaded.rebuild_from.map(|at| at.0);
        let end =
            recovery::recover(&mut files, &queues, rebuild_from, marks.as_ref(), &options, &*disk, &mut found)?;
        let sync = match options.flush {
            FlushMode::Sync => JournalSync::Always,
            FlushMode::Async => JournalSync::Every(options.flush_interval),
        };
        let journal_options = JournalOptions { sync, ..JournalOptions::default() };
        let journal = Journal::open(&root.join("journal"), journal_options, clock.clone(), Arc::clone(&disk))?;
        found.findings.extend(journal.findings().iter().cloned());

        let segment_bytes = files.segment_bytes;
        let log = CommitLog::new(files.segments, segment_bytes, end.at, end.last_timestamp).ok_or_else(|| {
            StoreError::Malformed { path: options.commit_log_dir.clone(), why: format!("no file holds the log's end {}", end.at) }
        })?;
        let shared = Arc::new(Shared {
            clock,
            disk,
            log,
            queues,
            flushed: Watermark::new(end.at),
            last_timestamp: AtomicI64::new(end.last_timestamp),
            flushed_timestamp: AtomicI64::new(end.last_timestamp),
            needed_room: AtomicU64::new(0),
            opened_at: end.at,
            had_reads: AtomicBool::new(false),
            segments_bell: Bell::default(),
            flush_bell: Bell::default(),
            retention_bell: Bell::default(),
            no_room: Mutex::new(None),
            disk_full: Mutex::new(None),
            is_writable: AtomicBool::new(true),
            retention_floor: RwLock::new(None),
            stopping: AtomicBool::new(false),
            options,
        });
        let (cold, cold_threads) = ColdReads::start(shared.options.cold_read_threads, shared.options.cold_reads_max)?;
        let store = Arc::new(Store {
            shared: Arc::clone(&shared),
            journal,
            cold,
            checkpoint: Mutex::new(checkpoint),
            abort,
            threads: Mutex::new(cold_threads),
            lock: Mutex::new(Some(lock)),
        });
        store.start_threads()?;
        Ok((store, found))
    }

    fn start_threads(self: &Arc<Store>) -> Result<(), StoreError> {
        let mut threads = self.threads.lock();
        for (name, run) in [
            ("segments", prepare::run as fn(&Shared)),
            ("flush", flush::run),
            ("retention", retention::run),
        ] {
            let shared = Arc::clone(&self.shared);
            threads.push(worker::spawn(name, move || run(&shared))?);
        }
        // The thread must not keep the store alive, or nobody could drop it.
        let store = Arc::downgrade(self);
        let shared = Arc::clone(&self.shared);
        threads.push(worker::spawn("queues", move || {
            while !shared.is_stopping() {
                shared.queues.wait_until_wanted(QUEUES_INTERVAL);
                match store.upgrade() {
                    Some(store) => store.write_queues(false),
                    None => return,
                }
            }
        })?);
        Ok(())
    }

    /// Writes the units that are only in memory, and moves the check-point as far as the device has both log and queues.
    fn write_queues(&self, is_last: bool) {
        let shared = &self.shared;
        let timestamp = shared.flushed_timestamp.load(Ordering::Acquire);
        let written = if is_last || timestamp > self.checkpointed() { shared.queues.sync_all() } else { shared.queues.flush_all() };
        if let Err(error) = written {
            // The units stay in memory and are tried again; the log has them in any case.
            warn!(%error, "consume queues cannot be written");
            return;
        }
        if timestamp <= self.checkpointed() && !is_last {
            return;
        }
        let confirmed = if is_last { i64::try_from(shared.log.end.get()).unwrap_or(i64::MAX) } else { 0 };
        let marks = Marks {
            log_timestamp: timestamp,
            queues_timestamp: timestamp,
            index_timestamp: timestamp,
            master_flushed: 0,
            confirmed,
        };
        if let Err(error) = self.checkpoint.lock().write(&marks) {
            warn!(%error, "the check-point cannot be written");
        }
    }

    fn checkpointed(&self) -> i64 {
        self.checkpoint.lock().last()
    }

    /// Appends what is not appended yet of the batch: one lock, no system call. See [`RecordBatch::landed`].
    ///
    /// On [`AppendError::NoRoomYet`] await [`Store::room`] and call it again: the rest of the batch is still in it.
    pub fn append(&self, batch: &mut RecordBatch, now: TimeMs) -> Result<(), AppendError> {
        self.writable()?;
        let shared = &self.shared;
        let appended = shared.log.append(batch, now);
        if let Some(last) = batch.landed().last() {
            shared.last_timestamp.fetch_max(last.store_timestamp, Ordering::Release);
        }
        if shared.is_sync_flush() {
            shared.flush_bell.call();
        }
        match appended {
            Ok(false) => Ok(()),
            Ok(true) => {
                shared.segments_bell.call();
                Ok(())
            }
            Err(AppendError::NoRoomYet { needed }) => {
                shared.needed_room.fetch_max(needed, Ordering::AcqRel);
                shared.segments_bell.call();
                if let Some(reason) = shared.no_room.lock().clone() {
                    return Err(AppendError::NotWritable(reason));
                }
                Err(AppendError::NoRoomYet { needed })
            }
            Err(error @ (AppendError::NotWritable(_) | AppendError::TooLong { .. })) => Err(error),
        }
    }

    /// Whether messages are taken, and why not.
    pub fn writable(&self) -> Result<(), NotWritable> {
        if self.shared.is_stopping() {
            return Err(NotWritable::Closed);
        }
        if self.shared.is_writable.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.disk_full.lock().clone().map_or(Ok(()), Err)
    }

    /// Appends may go up to here without waiting.
    pub fn room(&self) -> &Watermark {
        &self.shared.log.room
    }

    /// The log's end.
    pub fn end(&self) -> LogOffset {
        LogOffset(self.shared.log.end.get())
    }

    /// The oldest byte of the log.
    pub fn min_offset(&self) -> LogOffset {
        LogOffset(self.shared.log.min())
    }

    /// What is in the kernel's hands: everything, since appends go into shared mappings.
    pub fn written(&self) -> &Watermark {
        &self.shared.log.end
    }

    /// What is on the device.
    pub fn flushed(&self) -> &Watermark {
        &self.shared.flushed
    }

    /// What consumers may see: what a crash of the kind that the flush mode promises to survive cannot take back.
    pub fn confirmed(&self) -> &Watermark {
        if self.shared.is_sync_flush() { &self.shared.flushed } else { &self.shared.log.end }
    }

    /// Whether a send is acknowledged only when it is on the device.
    pub fn is_sync_flush(&self) -> bool {
        self.shared.is_sync_flush()
    }

    /// One more than the highest offset of the queue that consumers may read now; too large for a moment while a flush is
    /// under way, never too small.
    pub fn visible_end(&self, queue: &ConsumeQueue) -> i64 {
        i64::try_from(queue.max_offset()).unwrap_or(i64::MAX)
    }

    /// The queue; an empty one if there was none.
    pub fn queue(&self, topic: &str, queue_id: u32) -> Result<Arc<ConsumeQueue>, StoreError> {
        Ok(self.shared.queues.get_or_create(topic, queue_id))
    }

    /// The queue, if it exists.
    pub fn existing_queue(&self, topic: &str, queue_id: u32) -> Option<Arc<ConsumeQueue>> {
        self.shared.queues.get(topic, queue_id)
    }

    /// The queues of a topic, by id.
    pub fn queues_of(&self, topic: &str) -> Vec<(u32, Arc<ConsumeQueue>)> {
        self.shared.queues.queues_of(topic).into_iter().map(|queue| (queue.id(), queue)).collect()
    }

    /// The topics that have queues.
    pub fn topics(&self) -> Vec<Arc<str>> {
        self.shared.queues.topics()
    }

    /// Removes the queues of a topic, with their files. Its messages stay in the log until their file goes.
    pub fn delete_topic(&self, topic: &str) {
        if let Err(error) = self.shared.queues.delete_topic(topic) {
            error!(topic, %error, "the queues of a deleted topic cannot be removed");
        }
    }

    /// State that is not in the log.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Runs a read that may wait for the device, on a thread of its own.
    pub fn cold_read(&self, read: ColdRead) -> Result<(), ColdQueueFull> {
        self.cold.submit(read)
    }

    /// From now on retention asks `floor` how far back messages are still needed.
    pub fn protect(&self, floor: RetentionFloor) {
        *self.shared.retention_floor.write() = Some(floor);
    }

    /// How full the device of the log is.
    pub fn disk_use(&self) -> std::io::Result<DiskUse> {
        DiskUse::of(&self.shared.options.commit_log_dir)
    }

    /// What the store was opened with; file sizes as found on disk.
    pub fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    /// Store time of the newest record, in ms.
    pub fn last_timestamp(&self) -> i64 {
        self.shared.last_timestamp.load(Ordering::Acquire)
    }

    /// Stops the threads, brings everything to the device, and says so on disk.
    pub fn close(&self) -> Result<(), StoreError> {
        if !self.stop_threads() {
            return Ok(());
        }
        flush::flush(&self.shared);
        self.write_queues(true);
        let closed = if self.journal.close() { self.abort.lower() } else { Ok(()) };
        self.lock.lock().take();
        closed
    }

    /// Says whether they were running.
    fn stop_threads(&self) -> bool {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.cold.stop();
        for bell in [&self.shared.segments_bell, &self.shared.flush_bell, &self.shared.retention_bell] {
            bell.ring();
        }
        self.shared.queues.ring();
        let current = std::thread::current().id();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // The `queues` thread may be the last to hold the store, and cannot wait for itself.
            if thread.thread().id() != current && thread.join().is_err() {
                error!("a thread of the store panicked");
            }
        }
        true
    }
}

impl Drop for Store {
    /// Stops the threads. Unlike [`Store::close`], the next start will find that nobody closed the store.
    fn drop(&mut self) {
        self.stop_threads();
    }
}
