//! Settings of consume queues.

use std::path::PathBuf;

use env::Buggify;

/// What consume queues may use.
#[derive(Clone, Debug)]
pub struct QueueLogOptions {
    /// Bytes of a file (`mappedFileSizeConsumeQueue`); rounded up to whole units.
    pub file_bytes: u64,
    /// Where queues of BatchCQ topics are; none: `batchconsumequeue` beside the ordinary ones, as in RocketMQ.
    pub batch_dir: Option<PathBuf>,
    /// Bytes of a file of those (`mapperFileSizeBatchConsumeQueue`); rounded up to whole units.
    pub batch_file_bytes: u64,
    /// Open files at most. The default leaves most of an `ulimit -n` of 1024 to sockets.
    pub descriptors: usize,
    /// Units waiting to be written, all queues together, in bytes, at which the flush is called early.
    pub buffered_bytes: u64,
    /// Written units kept in memory for consumers that are close behind, all queues together, in bytes.
    pub recent_bytes: u64,
    /// Which rare branches are taken without need.
    pub buggify: Buggify,
}

impl Default for QueueLogOptions {
    fn default() -> Self {
        QueueLogOptions {
            file_bytes: 6_000_000,
            batch_dir: None,
            batch_file_bytes: 13_800_000,
            descriptors: 256,
            buffered_bytes: 4 << 20,
            recent_bytes: 8 << 20,
            buggify: Buggify::never(),
        }
    }
}
