//! The newest counts of memory.

use std::sync::atomic::AtomicU64;

use super::program::Program;

/// What the store's memory consists of, in bytes, as it was counted last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    /// `memoryLimit`, or what was found for it.
    pub limit: u64,
    /// The share of the log, and of that what consumers are to find in memory.
    pub log_share: u64,
    /// See [`super::Shares::hot`].
    pub hot_share: u64,
    /// The share of what is read from the device.
    pub cold_share: u64,
    /// The share of consume queues, key index and timer messages.
    pub files_share: u64,
    /// Heap and stacks of the process.
    pub heap: u64,
    /// Pages of the program.
    pub program: u64,
    /// Files in its page table, the program among them.
    pub mapped: u64,
    /// Pages of the log that are in memory.
    pub log: u64,
    /// Bytes of it that were read from the device, at most.
    pub cold: u64,
    /// Copies of messages that their readers have not taken yet.
    pub copied: u64,
    /// What such copies may hold together.
    pub copied_max: u64,
    /// Reads since the start that found no room for a copy.
    pub uncopied: u64,
    /// Pages of other files that are in memory, as far as they passed lately.
    pub files: u64,
    /// Pages of the journal that are in memory.
    pub journal: u64,
    /// Changed pages of the log that are not on the device: those made ready ahead among them. None where the kernel does not say.
    pub dirty: Option<u64>,
    /// Pages of the log on their way to the device. None where the kernel does not say.
    pub writeback: Option<u64>,
    /// Bytes appended that are not on the device.
    pub write_back_lag: u64,
    /// Bytes of the log that were dropped from memory since the start.
    pub dropped: u64,
}

impl MemoryFigures {
    /// All of it: heap and program, and the pages of our files, in our page table or not.
    pub fn occupied(&self) -> u64 {
        self.heap + self.program + self.log + self.files + self.journal
    }
}

/// What the kernel did not say.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// The newest counts. Relaxed: gauges, each of which stands alone.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(super) log: AtomicU64,
    /// [`UNKNOWN`] at times, as the next one.
    pub(super) dirty: AtomicU64,
    pub(super) writeback: AtomicU64,
    pub(super) heap: AtomicU64,
    pub(super) program: AtomicU64,
    pub(super) mapped: AtomicU64,
    pub(super) journal: AtomicU64,
    pub(super) file: Program,
}

impl Counts {
    /// Of this process, with nothing counted yet.
    pub fn of_ours() -> Counts {
        Counts { file: Program::ours(), ..Counts::default() }
    }
}
