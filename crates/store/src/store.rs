//! The store: the door to log, queues and journal. `opening.rs` recovers what is on disk, `appending.rs` appends, `threads.rs` begins and
//! ends the threads.
//!
//! Threads: `segments` (prepare.rs), `commit` (pool.rs, where there is a pool), `flush` (flush.rs), `queues` and `checkpoint` (threads.rs: write units, bring them to the device), `index`
//! (index/), `governor` (governor.rs), `retention` (retention.rs), `journal`, `cold-N`. Closing stops them in that order of need: nothing is flushed before it is written.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use disk::turns::Handle;
use disk::worker::Bell;
use disk::{Disk, DiskUse, Watermark};
use env::{Buggify, Clock};
use journal::{Journal, JournalOptions};
use parking_lot::{Mutex, RwLock};
use protocol::record::RecordView;
use protocol::{LogOffset, light, names};
use tracing::error;

use crate::checkpoint::Checkpoint;
use crate::cold::{ColdRead, ColdReadRefused, ColdReads};
use crate::commit_log::{BLANK_BYTES, CommitLog};
use crate::damaged::Damaged;
use crate::deleted::Deleted;
use crate::error::{NotWritable, StoreError};
use crate::fold::is_folder_name;
use crate::governor::{ColdPages, Governor, MemoryFigures};
use crate::index::KeyIndex;
use crate::lock::{AbortFile, StoreLock};
use crate::mending::Mending;
use crate::options::{FlushMode, Retention, StoreOptions};
use crate::pool::Pool;
use crate::queue_log::{ConsumeQueue, QueueLogs, UnitsRead};
use crate::resume::Resume;
use crate::segment::ReadMode;
use crate::stage::{Confirmed, Copied, DEVICE, REPLICAS, Stage, Stages};
use crate::timer::{self, LogState, TimerFiles, TimerOptions, TimerUnit};

mod appending;
mod opening;
mod threads;

/// Queues that one topic can have. A larger number is a mistake, or damage, that would cost memory.
pub const QUEUES_MAX: u32 = 65_536;

/// Between two looks for light queues that nobody uses, made when there are as many as there may be.
const LIGHT_QUEUES_LOOK_MS: u64 = 1000;
/// How long it is waited until the device has the journal with a deletion, before the files are left to others.
const DELETION_PATIENCE: Duration = Duration::from_millis(500);

/// Below which log offset nothing is needed any more by those whom retention protects; none: nobody.
pub type RetentionFloor = Box<dyn Fn() -> Option<LogOffset> + Send + Sync>;

/// What the store's threads share.
pub(crate) struct Shared {
    pub options: StoreOptions,
    pub clock: Clock,
    pub disk: Arc<dyn Disk>,
    /// The same for files that are neither the log's nor the journal's.
    pub files_disk: Arc<dyn Disk>,
    pub buggify: Buggify,
    pub log: CommitLog,
    pub queues: QueueLogs,
    pub index: Option<KeyIndex>,
    pub resume: Resume,
    pub cold_pages: Arc<ColdPages>,
    pub governor: Option<Governor>,
    /// Up to here the log is on the device.
    pub flushed: Watermark,
    /// What is asked for before a record counts as safe, and how far that holds.
    pub confirmed: Confirmed,
    /// What slaves have.
    pub copied: Copied,
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
    /// The flush is not to gather any longer. SeqCst, as the bells' flags.
    pub flush_wanted: AtomicBool,
    pub governor_bell: Arc<Bell>,
    /// The thread `segments` waits until memory is given back. SeqCst, as the bells' flags.
    pub is_room_held: AtomicBool,
    pub retention_bell: Bell,
    /// Why the next stretch of the log could not be prepared.
    pub no_room: Mutex<Option<NotWritable>>,
    /// Messages that were not what was stored.
    pub damaged: Damaged,
    pub mending: Mending,
    /// Why consume queues cannot be written, if the last attempt failed.
    pub unwritten_queues: Mutex<Option<String>>,
    /// Whether the device is fuller than it may be.
    pub disk_full: Mutex<Option<NotWritable>>,
    /// `disk_full` without the lock.
    pub is_writable: AtomicBool,
    /// Which old files go. Guards nothing else.
    pub retention: Mutex<Retention>,
    /// None: nobody needs anything.
    pub retention_floor: RwLock<Option<RetentionFloor>>,
    /// Somebody wants expired files to go whatever the hour. Relaxed: the bell's lock orders it.
    pub delete_expired: AtomicBool,
    pub checkpoint_bell: Bell,
    /// The check-point can move. SeqCst, as the bells' flags.
    pub checkpoint_wanted: AtomicBool,
    /// The `queues` thread has nothing to do. SeqCst, as the bells' flags.
    pub queues_rest: AtomicBool,
    /// Light queues at most. Relaxed: it stands alone.
    light_queues_max: AtomicUsize,
    /// When unused ones were last looked for, by the clock's elapsed time. Relaxed: two looks at once do no harm.
    light_queues_looked_ms: AtomicU64,
    stopping: AtomicBool,
}

impl Shared {
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub fn is_sync_flush(&self) -> bool {
        self.confirmed.asks_for(DEVICE)
    }

    /// A stage is raised, or something else is asked for.
    pub fn confirm(&self) {
        self.confirmed.raise(&self.log.end, &self.flushed);
    }

    /// Ends the rest of the `queues` thread, if it rests.
    pub fn wake_queues(&self) {
        if self.queues_rest.swap(false, Ordering::SeqCst) {
            self.queues.ring();
        }
    }

    /// Lets what is written go to the device now.
    pub fn want_flush(&self) {
        if !self.flush_wanted.swap(true, Ordering::SeqCst) {
            self.flush_bell.ring();
        }
    }

    pub fn take_had_reads(&self) -> bool {
        self.had_reads.swap(false, Ordering::Relaxed)
    }
}

/// A store that is open.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    /// Shared with the thread `index`, which must not keep the store alive.
    journal: Arc<Journal>,
    cold: Arc<ColdReads>,
    /// Reads by conditions that take long: neither who serves sockets nor who waits for the device is held up by them.
    filters: Arc<ColdReads>,
    checkpoint: Mutex<Checkpoint>,
    /// The time in it. Relaxed: who asks wants to know whether it is time for the next one.
    checkpointed: AtomicI64,
    /// A process before us may have left units of queues in the kernel only. Relaxed: set once, cleared by whoever writes
    /// queues.
    has_unsure_queues: AtomicBool,
    /// Nobody closed the store before this start.
    was_abnormal: bool,
    was_copied: bool,
    /// And memory was not as that process left it.
    may_have_lost: bool,
    abort: AbortFile,
    /// Joined in this order when the store closes.
    threads: Mutex<Vec<Handle>>,
    /// Given back when the store is closed, or dropped.
    lock: Mutex<Option<StoreLock>>,
}

impl Store {
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

    /// Bytes of the longest record, or group of records, that a file of the log can hold.
    pub fn record_bytes_max(&self) -> u64 {
        self.shared.log.segment_bytes - BLANK_BYTES
    }

    /// Appends may go up to here without waiting.
    pub fn room(&self) -> &Watermark {
        &self.shared.log.room
    }

    /// The log's end, whether written or in the pool.
    pub fn end(&self) -> LogOffset {
        LogOffset(self.shared.log.appended())
    }

    /// The oldest byte of the log.
    pub fn min_offset(&self) -> LogOffset {
        LogOffset(self.shared.log.min())
    }

    /// What is in the kernel's hands: everything where appends go into shared mappings; with a pool what the thread `commit` has written.
    pub fn written(&self) -> &Watermark {
        &self.shared.log.end
    }

    /// What is on the device.
    pub fn flushed(&self) -> &Watermark {
        &self.shared.flushed
    }

    /// What enough replicas have; see [`Store::replicated_to`].
    pub fn replicated(&self) -> &Watermark {
        &self.shared.confirmed.replicated
    }

    /// What consumers may see: the least of what the mode asks for, so that no crash which the mode
    /// promises to survive takes it back. It never goes back, also when the mode changes.
    pub fn confirmed(&self) -> &Watermark {
        &self.shared.confirmed.mark
    }

    /// What an acknowledgement that asks for this stage waits for.
    pub fn mark(&self, stage: Stage) -> &Watermark {
        match stage {
            Stage::Written => self.written(),
            Stage::Flushed => self.flushed(),
            Stage::Confirmed => self.confirmed(),
            Stage::CopiedBySetting => &self.shared.copied.by_setting,
            Stage::CopiedByOne => &self.shared.copied.by_one,
            Stage::CopiedByAll => &self.shared.copied.by_all,
        }
    }

    /// The log has come to this stage up to `end`, by the word of slaves, or because no slave is
    /// waited for. Lower than before: changes nothing. Another stage than those of
    /// [`Stage::COPIED`] is not for anybody to say: nothing changes then either.
    pub fn copied_to(&self, stage: Stage, end: LogOffset) {
        if Stage::COPIED.contains(&stage) {
            self.mark(stage).advance(end.0.min(self.end().0));
        }
    }

    /// Enough replicas have the log up to `end`. Lower than before: changes nothing. A place that
    /// is not written yet is no replica's: nothing changes then either, and the error is the end of
    /// what is written.
    pub fn replicated_to(&self, end: LogOffset) -> Result<(), LogOffset> {
        let written = self.written().get();
        if end.0 > written {
            return Err(LogOffset(written));
        }
        self.shared.confirmed.replicated.advance(end.0);
        self.shared.confirm();
        Ok(())
    }

    /// From now on written records count as safe only when enough replicas have them, or whether
    /// they have them or not.
    pub fn wait_for_replicas(&self, is_asked: bool) {
        if self.shared.confirmed.ask(REPLICAS, is_asked) {
            self.shared.confirm();
        }
    }

    /// Buffers of the write pool in which nothing waits; none if there is no pool.
    pub fn free_buffers(&self) -> Option<usize> {
        self.shared.log.pool.as_ref().map(Pool::free)
    }

    /// Whether nobody closed the store before this start: the process was killed, or the machine lost its power.
    pub fn was_abnormal(&self) -> bool {
        self.was_abnormal
    }

    /// Whether its folder was copied while somebody had it open: its files are of different moments.
    pub fn was_copied(&self) -> bool {
        self.was_copied
    }

    /// Whether messages may be gone that readers had got: nobody closed the store, and it is not known that memory still had all that was written.
    pub fn may_have_lost(&self) -> bool {
        self.may_have_lost
    }

    /// Whether a send is acknowledged only when it is on the device, where nothing else is said of its topic or of itself.
    pub fn is_sync_flush(&self) -> bool {
        self.shared.is_sync_flush()
    }

    /// The stages that a send waits for on this machine, where nothing else is said of its topic or of
    /// itself.
    pub fn stages(&self) -> Stages {
        self.shared.confirmed.stages()
    }

    /// From now on written records, and changes of state, count as safe in this mode.
    pub fn set_flush(&self, mode: FlushMode) {
        if self.shared.confirmed.ask(DEVICE, mode == FlushMode::Sync) {
            self.shared.confirm();
            let sync = mode.journal_sync(self.shared.options.flush_interval);
            self.journal.configure(JournalOptions { sync, ..self.journal.options() });
            // What is flushed by this round may be shown; and nobody waits for the end of an interval.
            self.shared.want_flush();
        }
    }

    /// Lets what is appended go to the device now, also with ASYNC_FLUSH.
    pub fn want_flush(&self) {
        self.shared.want_flush();
    }

    /// Whether consumers may read this offset of the queue: it is there, and its record is below [`Store::confirmed`]. Does not wait.
    pub fn is_visible(&self, queue: &ConsumeQueue, offset: u64) -> bool {
        if offset >= queue.max_offset() {
            return false;
        }
        let mut unit = Vec::with_capacity(1);
        match queue.read_units(offset, 1, false, &mut unit) {
            // Not in memory any more, or not to be read: a read will say which, and will not say that nothing is there.
            Ok(UnitsRead::Cold(_)) | Err(_) => true,
            Ok(UnitsRead::Units(_)) => unit.first().is_none_or(|unit| unit.end().0 <= self.confirmed().get()),
        }
    }

    /// The queue; an empty one if there was none. An error if it would be one light queue too many.
    pub fn queue(&self, topic: &str, queue_id: u32) -> Result<Arc<ConsumeQueue>, StoreError> {
        if queue_id >= QUEUES_MAX || !is_folder_name(topic) {
            return Err(StoreError::NoSuchQueue { topic: topic.to_owned(), queue_id });
        }
        let queues = &self.shared.queues;
        if names::is_lmq(topic) && self.has_light_queues() {
            if let Some(queue) = queues.get(topic, queue_id) {
                return Ok(queue);
            }
            self.check_light_queues(topic)?;
        }
        Ok(queues.get_or_create(topic, queue_id))
    }

    /// Lets a queue of which the log has no message go on at the number `next`, and says whether it does now. For whoever mends a store:
    /// nothing is appended meanwhile.
    pub fn keep_number(&self, topic: &str, queue_id: u32, next: u64) -> Result<bool, StoreError> {
        Ok(self.queue(topic, queue_id)?.go_on_at(next, self.min_offset())?)
    }

    /// The light queue of a message that was taken before; it is made whatever the limit.
    pub fn light_queue(&self, topic: &str) -> Arc<ConsumeQueue> {
        self.shared.queues.get_or_create(topic, light::QUEUE_ID)
    }

    /// Whether there are such things as light queues.
    pub fn has_light_queues(&self) -> bool {
        self.shared.options.light_queues_max.is_some()
    }

    /// How many light queues there are.
    pub fn light_queues(&self) -> usize {
        self.shared.queues.light_queues()
    }

    /// The names of light queues.
    pub fn light_queue_names(&self) -> Vec<Arc<str>> {
        let mut names = self.shared.queues.topics();
        names.retain(|topic| names::is_lmq(topic));
        names
    }

    /// From now on there may be so many light queues. Those that there are stay.
    pub fn limit_light_queues(&self, max: usize) {
        self.shared.light_queues_max.store(max, Ordering::Relaxed);
    }

    fn check_light_queues(&self, topic: &str) -> Result<(), StoreError> {
        let Shared { queues, light_queues_max, light_queues_looked_ms, clock, .. } = &*self.shared;
        let limit = light_queues_max.load(Ordering::Relaxed);
        if queues.light_queues() < limit {
            return Ok(());
        }
        // A look at all queues, so not for each message that is refused.
        let now_ms = clock.elapsed().as_millis() as u64;
        let looked_ms = light_queues_looked_ms.load(Ordering::Relaxed);
        if now_ms >= looked_ms + LIGHT_QUEUES_LOOK_MS {
            light_queues_looked_ms.store(now_ms, Ordering::Relaxed);
            queues.forget_unused_light_queues();
        }
        let count = queues.light_queues();
        if count < limit {
            return Ok(());
        }
        Err(StoreError::TooManyLightQueues { topic: topic.to_owned(), count, limit })
    }

    /// One more than the highest offset of the queue that consumers may read. Does not wait.
    pub fn visible_end(&self, queue: &ConsumeQueue) -> u64 {
        let (min, max) = (queue.min_offset(), queue.max_offset());
        if queue.log_end().0 <= self.confirmed().get() {
            return max;
        }
        // What is not confirmed stands at the end, and in memory.
        let (mut low, mut high, mut step) = (max, max, 1);
        while low > min && !self.is_visible(queue, low - 1) {
            high = low - 1;
            low = low.saturating_sub(step).max(min);
            step *= 2;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_visible(queue, middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        high.max(min)
    }

    /// The queue of a topic with `queue.type=BatchCQ`; an empty one if there was none. A topic that has ordinary queues already keeps
    /// them: see [`ConsumeQueue::is_batch`].
    pub fn batch_queue(&self, topic: &str, queue_id: u32) -> Result<Arc<ConsumeQueue>, StoreError> {
        Ok(self.shared.queues.get_or_create_batch(topic, queue_id))
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

    /// Removes the queues of a topic; their files go with [`remove_deleted`](Self::remove_deleted), or soon by themselves. Its messages
    /// stay in the log until their file goes. Memory only.
    pub fn delete_topic(&self, topic: &str) {
        self.delete_topic_if(topic, || true);
    }

    /// The same, if `may_go` holds in the moment in which nothing can be appended. Says whether it is done.
    pub fn delete_topic_if(&self, topic: &str, may_go: impl FnOnce() -> bool) -> bool {
        let hold_log = || {
            let (held, end) = self.shared.log.hold();
            if !may_go() {
                return None;
            }
            Deleted::remember(&self.journal, topic, end);
            Some((held, self.journal.position()))
        };
        self.shared.queues.delete_topic(topic, hold_log)
    }

    /// Removes the files of deleted topics. Waits for the device, and a little for the journal: where the device does not have a deletion yet,
    /// the files go later.
    pub fn remove_deleted(&self) {
        self.await_deletions(DELETION_PATIENCE);
        if let Err(error) = self.shared.queues.remove_deleted() {
            error!(%error, "the queues of a deleted topic cannot be removed");
        }
    }

    /// Has the device take the deletions of the journal, and tells the queues how far it has.
    fn await_deletions(&self, patience: Duration) {
        let Some(position) = self.shared.queues.deleted_up_to() else { return };
        let safe = self.journal.mark_of(position, true);
        safe.wait_until(position, std::time::Instant::now() + patience);
        self.shared.queues.journal_is_safe(safe.get());
    }

    /// State that is not in the log.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Opens what Apache's timer store keeps beside the log. Once, by whoever delivers timer messages. `is_whole`: whether a unit says of a
    /// message what the message says, but for its slot.
    pub fn open_timers(
        &self,
        options: &TimerOptions,
        is_whole: impl Fn(&TimerUnit, &RecordView<'_>) -> bool,
    ) -> Result<TimerFiles, StoreError> {
        let is_whole = |unit: &TimerUnit| {
            let about = |view: &RecordView<'_>| {
                view.total_size() as u64 == u64::from(unit.size)
                    && timer::is_in_its_slot(unit, view, options.precision_ms)
                    && is_whole(unit, view)
            };
            // What cannot be read now may be there, and be whole.
            self.about_record_cold(unit.at, about).map_or(true, |is_whole| is_whole == Some(true))
        };
        let state = LogState { end: LogOffset(self.shared.opened_at), was_abnormal: self.was_abnormal };
        TimerFiles::open(&self.shared.files_disk, options, state, &is_whole)
    }

    /// Runs a read that may wait for the device, on a thread of its own.
    pub fn cold_read(&self, read: ColdRead) -> Result<(), ColdReadRefused> {
        self.cold.submit(read)
    }

    /// The same for what takes the processor's time, not the device's: it is to look at what is in memory only.
    pub fn filter_read(&self, read: ColdRead) -> Result<(), ColdReadRefused> {
        self.filters.submit(read)
    }

    /// Whether the device is slow with messages from here on: they are not in memory, and many reads wait for it.
    pub fn is_slow_at(&self, at: LogOffset) -> bool {
        self.cold.is_crowded() && at.0 < self.hot_from()
    }

    /// From now on retention asks `floor` how far back messages are still needed.
    pub fn protect(&self, floor: RetentionFloor) {
        *self.shared.retention_floor.write() = Some(floor);
        self.shared.retention_bell.ring();
    }

    /// From now on old files go by these rules.
    pub fn retain(&self, retention: Retention) {
        *self.shared.retention.lock() = retention;
        self.shared.retention_bell.ring();
    }

    /// Changes how the journal is kept. When its changes are synced stays as it is: that is what the store's flush mode says.
    pub fn tune_journal(&self, options: JournalOptions) {
        let sync = self.journal.options().sync;
        self.journal.configure(JournalOptions { sync, ..options });
    }

    /// Expired files go soon, whatever the hour; what is not expired stays.
    pub fn delete_expired(&self) {
        self.shared.delete_expired.store(true, Ordering::Relaxed);
        self.shared.retention_bell.ring();
    }

    /// From now on the kernel reads pages of the log that are not in memory in this way, until the store is closed.
    pub fn set_read_mode(&self, mode: ReadMode) -> Result<(), StoreError> {
        self.shared.log.set_read_mode(mode)
    }

    /// How full the device of the log is; of several, the emptiest of those that say it.
    pub fn disk_use(&self) -> Result<DiskUse, StoreError> {
        let mut unmeasured = Vec::new();
        let emptiest = self.shared.options.log_dirs.emptiest(&*self.shared.disk, &mut unmeasured);
        emptiest.map_or_else(|| Err(unmeasured.swap_remove(0).into()), |(_, space)| Ok(space))
    }

    /// Bytes of the log, from its oldest file to its end.
    pub fn log_bytes(&self) -> u64 {
        let min = self.shared.log.min();
        self.shared.log.end.get().saturating_sub(min)
    }

    /// How full the device of a folder is.
    pub fn disk_use_of(&self, dir: &Path) -> std::io::Result<DiskUse> {
        self.shared.disk.space(dir)
    }

    /// The same of the consume queues' device.
    pub fn queue_disk_use(&self) -> std::io::Result<DiskUse> {
        self.shared.disk.space(&self.shared.options.queue_dir)
    }

    /// Whether messages can be looked up by key.
    pub fn has_key_index(&self) -> bool {
        self.shared.index.is_some()
    }

    /// Bytes of the log that are not in the key index yet; 0 without one.
    pub fn index_behind(&self) -> u64 {
        let end = self.shared.log.end.get();
        self.shared.index.as_ref().map_or(0, |index| end.saturating_sub(index.indexed.get()))
    }

    /// What the store's memory consists of, as it was counted last; none if nobody keeps it within a limit.
    pub fn memory(&self) -> Option<MemoryFigures> {
        self.shared.governor.as_ref().map(|governor| governor.figures(&self.shared))
    }

    /// How long appends have waited for each other since the start, all together.
    pub fn lock_waited(&self) -> Duration {
        self.shared.log.lock_waited()
    }

    /// Whether the log gets no more room until memory is given back.
    pub fn waits_for_memory(&self) -> bool {
        self.shared.is_room_held.load(Ordering::Relaxed)
    }

    /// What the store was opened with; file sizes as found on disk.
    pub fn options(&self) -> &StoreOptions {
        &self.shared.options
    }

    /// Store time of the newest record, in ms.
    pub fn last_timestamp(&self) -> i64 {
        self.shared.last_timestamp.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({} {}..{})", self.shared.options.root.display(), self.min_offset().0, self.end().0)
    }
}

impl Drop for Store {
    /// Stops the threads. Unlike [`Store::close`], the next start will find that nobody closed the store.
    fn drop(&mut self) {
        self.stop_threads();
    }
}
