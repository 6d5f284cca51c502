//! Errors of consume queues.

use std::io;
use std::path::{Path, PathBuf};

use protocol::LogOffset;

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
    /// What was written may or may not be on the device, and a second try would not tell: the system says so once.
    #[error("cannot make what was written to {} durable: {source}", path.display())]
    Unsure {
        /// With which file or directory.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The files of a topic that was deleted are still there: it may come back, with units that are not in them; and nothing can be written for
    /// another one of its name.
    #[error("topic {topic} was deleted, and the device does not have that yet")]
    Waits {
        /// The topic.
        topic: String,
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
    pub(super) fn disk(doing: &'static str, path: &Path, source: io::Error) -> QueueError {
        QueueError::Disk { doing, path: path.to_owned(), source }
    }

    pub(super) fn is_missing_file(&self) -> bool {
        match self {
            QueueError::Disk { source, .. } => source.kind() == io::ErrorKind::NotFound,
            QueueError::Unsure { .. }
            | QueueError::Waits { .. }
            | QueueError::Gap { .. }
            | QueueError::FileLength { .. } => false,
        }
    }
}
