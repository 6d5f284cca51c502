//! What a store is opened with.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use env::{Clock, Random};
use protocol::delay::DelayLevels;

use crate::disk::{Disk, RealDisk};

/// When a written record counts as safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// In the kernel's hands: survives our own death. The device follows within the flush interval.
    Async,
    /// On the device.
    Sync,
}

/// Where a store is and how it behaves. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// `storePathRootDir`.
    pub root: PathBuf,
    /// `storePathCommitLog`.
    pub commit_log_dir: PathBuf,
    /// `<root>/consumequeue`.
    pub queue_dir: PathBuf,
    /// `mappedFileSizeCommitLog`; files on disk of another size win (R1.78).
    pub segment_bytes: u64,
    /// `mappedFileSizeConsumeQueue`, a multiple of 20; files on disk of another size win.
    pub queue_file_bytes: u64,
    /// `flushDiskType`.
    pub flush: FlushMode,
    /// `flushIntervalCommitLog`.
    pub flush_interval: Duration,
    /// `checkCRCOnRecover`.
    pub check_crc_on_recover: bool,
    /// `messageDelayLevel`: recovery needs it to rebuild the schedule topic's queues.
    pub delay_levels: DelayLevels,
    /// `fileReservedTime`.
    pub file_reserved: Duration,
    /// `deleteWhen`: hours of the day. In UTC, where Apache takes the machine's zone: a container has none.
    pub delete_when: Vec<u8>,
    /// `cleanResourceInterval`.
    pub clean_interval: Duration,
    /// `diskMaxUsedSpaceRatio`: above it expired files go at any hour.
    pub disk_max_used_percent: u8,
    /// `diskSpaceCleanForciblyRatio`: above it the oldest files go whatever their age.
    pub disk_clean_forcibly_percent: u8,
    /// `diskSpaceWarningLevelRatio`: above it nothing is taken any more.
    pub disk_warning_percent: u8,
    /// `cleanFileForciblyEnable`.
    pub clean_forcibly: bool,
    /// How far behind the end of the log bytes that this process wrote are taken to be in memory.
    pub hot_bytes: u64,
    /// Threads that read from the device.
    pub cold_read_threads: usize,
    /// Reads that may wait for those threads.
    pub cold_reads_max: usize,
    /// Files of consume queues that may be open at once.
    pub queue_descriptors_max: usize,
    /// Units of consume queues that wait to be written, in bytes, at which they are written early. If they cannot be, the
    /// store takes no more messages at eight times this.
    pub queue_buffered_bytes: u64,
}

impl StoreOptions {
    /// Apache's defaults, below `root`.
    pub fn at(root: &Path) -> StoreOptions {
        StoreOptions {
            root: root.to_owned(),
            commit_log_dir: root.join("commitlog"),
            queue_dir: root.join("consumequeue"),
            segment_bytes: 1 << 30,
            queue_file_bytes: 6_000_000,
            flush: FlushMode::Async,
            flush_interval: Duration::from_millis(500),
            check_crc_on_recover: true,
            delay_levels: DelayLevels::default(),
            file_reserved: Duration::from_secs(72 * 3600),
            delete_when: vec![4],
            clean_interval: Duration::from_secs(10),
            disk_max_used_percent: 75,
            disk_clean_forcibly_percent: 85,
            disk_warning_percent: 90,
            clean_forcibly: true,
            hot_bytes: 1 << 30,
            cold_read_threads: 2,
            cold_reads_max: 4096,
            queue_descriptors_max: 512,
            queue_buffered_bytes: 4 << 20,
        }
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
}

impl StoreEnv {
    /// The machine's own.
    pub fn real() -> StoreEnv {
        StoreEnv { clock: Clock::real(), random: Random::from_entropy(), disk: Arc::new(RealDisk) }
    }
}
