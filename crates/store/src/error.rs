//! What can go wrong underneath the store, with the operation, the path and the limit inside.

use std::io;
use std::path::PathBuf;

use crate::queue_log::QueueError;

/// The store cannot be opened, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Disk {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The device does not give bytes of the log. It costs whoever asked for them; the rest of the store is as it was.
    #[error("cannot read {} at log offset {at}: {source}", .path.display())]
    Read {
        /// The file of the log.
        path: PathBuf,
        /// Where what was asked for begins.
        at: u64,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has the store open, or this one a second time.
    #[error("{} is locked: {} has this store open", .path.display(), name_of(*.holder))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that has it, where the system says so.
        holder: Option<i32>,
    },
    /// A database of Apache's, without which the store is not whole.
    #[error("{}: {why}", .path.display())]
    RocksDb {
        /// Its folder.
        path: PathBuf,
        /// What it holds, and what to do.
        why: String,
    },
    /// A file is not what it should be, and guessing would lose messages.
    #[error("{}: {why}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with value and expectation.
        why: String,
    },
    /// No queue can have this place. What is in the log need not have come through anybody's checks.
    #[error("there can be no queue {queue_id} of topic {topic:?}: ids go up to {}, and the name is that of a folder", crate::QUEUES_MAX - 1)]
    NoSuchQueue {
        /// The topic.
        topic: String,
        /// The queue.
        queue_id: u32,
    },
    /// Units of a consume queue are damaged, and a thread reads the log for them: of this queue, or of another one.
    #[error(
        "damaged units of consume queue {topic}/{queue_id} wait to be mended from the log; try again in a few seconds"
    )]
    Mending {
        /// The queue's topic.
        topic: String,
        /// The queue.
        queue_id: u32,
    },
    /// The device has no room for a first message.
    #[error(transparent)]
    NotWritable(#[from] NotWritable),
    /// A consume queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// One light queue too many. The first words are Apache's.
    #[error(
        "[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded. {topic} is not made: there are {count} light queues, the limit is \
         {limit} (maxLmqConsumeQueueNum)"
    )]
    TooManyLightQueues {
        /// The one that is not made.
        topic: String,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The journal.
    #[error(transparent)]
    Journal(#[from] journal::JournalError),
    /// A thread could not be started.
    #[error(transparent)]
    Thread(#[from] disk::worker::NotStarted),
}

fn name_of(holder: Option<i32>) -> String {
    match holder {
        Some(process) => format!("process {process} (another broker, or Apache's)"),
        None => "another broker (or Apache's)".to_owned(),
    }
}

/// An append that did not happen.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The next stretch of the log is not ready. Await `room` at `needed` and append the rest again.
    #[error("the log has no room up to {needed} yet")]
    NoRoomYet {
        /// The log offset up to which there must be room.
        needed: u64,
    },
    /// The write pool is full (`transientStorePoolEnable`). Await `written` beyond `from` and append the rest again.
    #[error(
        "{waiting} bytes wait to be written to the log, the pool has room for {limit} (transientStorePoolSize, memoryLimit)"
    )]
    PoolFull {
        /// Bytes that are gathered and not written.
        waiting: u64,
        /// How many there may be.
        limit: u64,
        /// The log offset up to which the log was written then.
        from: u64,
    },
    /// The store takes no messages.
    #[error(transparent)]
    NotWritable(#[from] NotWritable),
    /// One record is longer than a segment can hold.
    #[error("a record of {bytes} bytes does not fit a log file of {limit}")]
    TooLong {
        /// The record's.
        bytes: usize,
        /// The file's.
        limit: u64,
    },
}

/// Why the store takes no messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotWritable {
    /// The device is too full.
    #[error(
        "{} is {used_percent} % full, the limit is {limit_percent} % (diskSpaceWarningLevelRatio): free space, or keep less (fileReservedTime, commitLogBytesMax)",
        .path.display()
    )]
    DiskFull {
        /// Where.
        path: PathBuf,
        /// How full.
        used_percent: u8,
        /// How full it may be.
        limit_percent: u8,
    },
    /// The device refused room for the log or for consume queues.
    #[error("{}: no room for the next {bytes} bytes: {reason}; writing goes on by itself", .path.display())]
    NoRoom {
        /// The file that should grow.
        path: PathBuf,
        /// By how much.
        bytes: u64,
        /// What the system said, and what helps.
        reason: String,
    },
    /// Another broker is becoming the master ([`Store::hold_appends`](crate::Store::hold_appends)).
    #[error("the log is held while the master changes")]
    Held,
    /// It is being closed.
    #[error("the store is shutting down")]
    Closed,
}

/// Bytes are not in memory and the caller does not want to wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not in memory")]
pub struct Cold;
