//! What a store is opened with.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use disk::{Disk, RealDisk};
use env::{Buggify, Clock, Random, TimeMs};
use journal::{Journal, JournalOptions, JournalSync};
use protocol::delay::DelayLevels;

use crate::fold::Fold;
use crate::governor::GovernorOptions;
use crate::index::IndexOptions;
use crate::log_dirs::LogDirs;
use crate::pool::PoolOptions;
use crate::stage::{Stage, Stages};

/// Files of consume queues that may be open at once, unless told otherwise.
pub const QUEUE_DESCRIPTORS: usize = 512;

/// Descriptors of a process with a store, beside its connections: [`QUEUE_DESCRIPTORS`], files of the log that are written or made ahead,
/// of the journal and the index, and what the process itself has open.
pub const DESCRIPTORS: usize = QUEUE_DESCRIPTORS + 88;

/// When a written record counts as safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// In the kernel's hands: survives our own death. The device follows within the flush interval.
    Async,
    /// On the device.
    Sync,
}

impl FlushMode {
    /// The stages that it asks for.
    pub fn stages(self) -> Stages {
        match self {
            FlushMode::Async => Stages::WRITTEN,
            FlushMode::Sync => Stages::WRITTEN.with(Stage::Flushed),
        }
    }

    /// How a journal beside the log is synced; `interval` is for ASYNC_FLUSH.
    pub(crate) fn journal_sync(self, interval: Duration) -> JournalSync {
        match self {
            FlushMode::Sync => JournalSync::Always,
            FlushMode::Async => JournalSync::Every(interval),
        }
    }
}

/// Where a store is and how it behaves. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `storePathCommitLog`, `readOnlyCommitLogStorePaths`.
    pub log_dirs: LogDirs,
    /// `<root>/consumequeue`.
    pub queue_dir: PathBuf,
    /// `mappedFileSizeCommitLog`; files on disk of another size win (R1.78).
    pub segment_bytes: u64,
    /// `mappedFileSizeConsumeQueue`, a multiple of 20; files on disk of another size win.
    pub queue_file_bytes: u64,
    /// `mapperFileSizeBatchConsumeQueue`, a multiple of 46; files on disk of another size win. Below `<root>/batchconsumequeue`.
    pub batch_queue_file_bytes: u64,
    /// Reads from the journal which topics are BatchCQ topics. A start that finds no queue of such a topic on disk makes the
    /// right kind with it.
    pub batch_topics: Option<fn(&Journal) -> HashSet<String>>,
    /// How many ticks ahead have slots of their own in the wheel of timer messages: [`crate::TIMER_SLOTS_AHEAD`], for which Apache's broker
    /// takes the file. The simulator, which copies files, has fewer.
    pub timer_slots_ahead: i64,
    /// `flushDiskType` at the start; see [`crate::Store::set_flush`].
    pub flush: FlushMode,
    /// `flushIntervalCommitLog`.
    pub flush_interval: Duration,
    /// Where records gather before they are written (`transientStorePoolEnable`); none: appends copy into mapped files.
    pub pool: Option<PoolOptions>,
    /// `checkCRCOnRecover`.
    pub check_crc_on_recover: bool,
    /// `checkCRCOnRead`: bodies that come from the device are checked before anybody gets them.
    pub check_crc_on_read: bool,
    /// `messageDelayLevel`: recovery needs it to rebuild the schedule topic's queues.
    pub delay_levels: DelayLevels,
    /// `cleanResourceInterval`.
    pub clean_interval: Duration,
    /// Which old files go, and when.
    pub retention: Retention,
    /// Somebody says by [`Store::protect`](crate::Store::protect) what is still needed, and until then all is, below the forced level.
    pub is_protected: bool,
    /// How far behind the end of the log bytes that this process wrote are taken to be in memory.
    pub hot_bytes: u64,
    /// Threads that read from the device.
    pub cold_read_threads: usize,
    /// Reads that may wait for those threads; and as many that take the processor's time may wait for theirs.
    pub cold_reads_max: usize,
    /// Files of consume queues that may be open at once.
    pub queue_descriptors_max: usize,
    /// Units of consume queues that wait to be written, in bytes, at which they are written early. If they cannot be, the
    /// store takes no more messages at eight times this.
    pub queue_buffered_bytes: u64,
    /// How many light queues there may be (`maxLmqConsumeQueueNum`); none if there are no such things (`enableLmq`,
    /// `enableMultiDispatch`), and `%LMQ%…` is a name like others.
    pub light_queues_max: Option<usize>,
    /// The key index; none (`messageIndexEnable=false`) for a store that is not asked by key.
    pub index: Option<IndexOptions>,
    /// How much memory the store's files may occupy; none: as much as the kernel lets them.
    pub governor: Option<GovernorOptions>,
    /// How a start reads the log again.
    pub recovery: RecoveryOptions,
    /// How the journal is kept; its `sync` is what `flush` and `flush_interval` say.
    pub journal: JournalOptions,
}

impl StoreOptions {
    /// Apache's defaults, below `root`, without a key index.
    pub fn at(root: &Path) -> StoreOptions {
        StoreOptions {
            root: root.to_owned(),
            log_dirs: LogDirs::one(root.join("commitlog")),
            queue_dir: root.join("consumequeue"),
            segment_bytes: 1 << 30,
            queue_file_bytes: 6_000_000,
            batch_queue_file_bytes: 13_800_000,
            batch_topics: None,
            timer_slots_ahead: crate::TIMER_SLOTS_AHEAD,
            flush: FlushMode::Async,
            flush_interval: Duration::from_millis(500),
            pool: None,
            check_crc_on_recover: true,
            check_crc_on_read: true,
            delay_levels: DelayLevels::default(),
            clean_interval: Duration::from_secs(10),
            retention: Retention::default(),
            is_protected: false,
            hot_bytes: 1 << 30,
            cold_read_threads: 2,
            cold_reads_max: 4096,
            queue_descriptors_max: QUEUE_DESCRIPTORS,
            queue_buffered_bytes: 4 << 20,
            light_queues_max: None,
            index: None,
            governor: None,
            recovery: RecoveryOptions::default(),
            journal: JournalOptions::default(),
        }
    }

    /// What follows from the records of a store with these settings.
    pub(crate) fn fold(&self) -> Fold<'_> {
        Fold { delays: &self.delay_levels, has_light_queues: self.light_queues_max.is_some() }
    }
}

/// How a start reads the log again, after a crash or where consume queues are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryOptions {
    /// Threads that check and parse records, the one that opens the store among them. Alone, it reads and applies by turns.
    pub threads: usize,
    /// Bytes of the log that a thread takes at once, and some more to where the last record in them ends.
    pub block_bytes: u64,
    /// After so many bytes of the log, what the kernel has is noted: no more than that is read again after a kill, more or less. For that the units of all
    /// queues go to their files; when they do so anyway, it is noted too.
    pub note_bytes: u64,
}

/// Threads that read the log again: each holds up to two blocks, with 4.5 MiB of places at most. One alone applies what all of them find.
const RECOVERY_THREADS_MAX: usize = 4;

/// Fewer bytes cost more for the places where blocks meet than threads save.
const BLOCK_BYTES_MIN: u64 = 256 << 10;

impl RecoveryOptions {
    /// As by default, but with blocks so small that those which are read at a time fit into `bytes`.
    pub fn within(bytes: u64) -> RecoveryOptions {
        let RecoveryOptions { threads, block_bytes, note_bytes } = RecoveryOptions::default();
        // Two for each thread, and what is read ahead of them.
        let fits = bytes / (3 * threads.max(1) as u64);
        RecoveryOptions { threads, block_bytes: block_bytes.min(fits).max(BLOCK_BYTES_MIN), note_bytes }
    }
}

impl Default for RecoveryOptions {
    /// A thread for each processor, up to four, blocks of 4 MiB, and a note each 512 MiB: a second's reading.
    fn default() -> RecoveryOptions {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        RecoveryOptions { threads: processors.min(RECOVERY_THREADS_MAX), block_bytes: 4 << 20, note_bytes: 512 << 20 }
    }
}

/// Which old files go, and when. May be changed while the store is open: [`crate::Store::retain`].
#[derive(Clone, Debug)]
pub struct Retention {
    /// `fileReservedTime`.
    pub file_reserved: Duration,
    /// `deleteWhen`: hours of the day.
    pub delete_when: Vec<u8>,
    /// What hour it is.
    pub hour_of_day: HourOfDay,
    /// `deleteFileBatchMax`: files of the log that go in one look at most; 0 means 1, as in Apache.
    pub delete_batch_max: usize,
    /// `diskMaxUsedSpaceRatio`: above it expired files go at any hour.
    pub disk_max_used_percent: u8,
    /// `diskSpaceCleanForciblyRatio`: above it the oldest files go whatever their age.
    pub disk_clean_forcibly_percent: u8,
    /// `diskSpaceWarningLevelRatio`: above it nothing is taken any more.
    pub disk_warning_percent: u8,
    /// `cleanFileForciblyEnable`.
    pub clean_forcibly: bool,
    /// `commitLogBytesMax`: what goes beyond it is expired, and goes at any hour; none: however long the log is.
    pub log_bytes_max: Option<u64>,
}

impl Default for Retention {
    /// Apache's defaults, with the hours of UTC.
    fn default() -> Retention {
        Retention {
            file_reserved: Duration::from_secs(72 * 3600),
            delete_when: vec![4],
            hour_of_day: HourOfDay::utc(),
            delete_batch_max: 10,
            disk_max_used_percent: 75,
            disk_clean_forcibly_percent: 85,
            disk_warning_percent: 90,
            clean_forcibly: true,
            log_bytes_max: None,
        }
    }
}

/// From a time to the hour of the day, 0 to 23, in whatever zone the machine is: the store knows no zones.
#[derive(Clone)]
pub struct HourOfDay(Arc<dyn Fn(TimeMs) -> u8 + Send + Sync>);

impl HourOfDay {
    /// As `hour` says.
    pub fn new(hour: impl Fn(TimeMs) -> u8 + Send + Sync + 'static) -> HourOfDay {
        HourOfDay(Arc::new(hour))
    }

    /// That of UTC.
    pub fn utc() -> HourOfDay {
        HourOfDay::new(|now| u8::try_from(now.0.div_euclid(3_600_000).rem_euclid(24)).unwrap_or(0))
    }

    /// The hour at a time.
    pub fn at(&self, now: TimeMs) -> u8 {
        (self.0)(now)
    }
}

impl std::fmt::Debug for HourOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HourOfDay")
    }
}

/// What the outside world decides.
#[derive(Clone, Debug)]
pub struct StoreEnv {
    /// The time.
    pub clock: Clock,
    /// Chance.
    pub random: Random,
    /// The file system.
    pub disk: Arc<dyn Disk>,
    /// Which rare branches are taken without need.
    pub buggify: Buggify,
}

impl StoreEnv {
    /// The machine's own.
    pub fn real() -> StoreEnv {
        StoreEnv {
            clock: Clock::real(),
            random: Random::from_entropy(),
            disk: Arc::new(RealDisk),
            buggify: Buggify::never(),
        }
    }
}
