//! Why a journal cannot be opened or closed.

use std::io;
use std::path::{Path, PathBuf};

/// What helps where a journal is not whole. Nothing is mended by itself then: to go on would be to
/// forget what was acknowledged.
pub const REMEDY: &str = "put the folder journal back from a copy; or move it away, and a start takes config/*.json as they were last written";

/// Why a journal cannot be opened or closed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
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
    /// A file was damaged after it was written: not a torn end, which is mended silently.
    #[error("{} is damaged at byte {at}: {what}; {}", path.display(), REMEDY)]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        at: u64,
        /// How.
        what: &'static str,
    },
    /// A file that must be there is not.
    #[error("{}: {what}; {}", path.display(), REMEDY)]
    Missing {
        /// The directory.
        path: PathBuf,
        /// Which.
        what: String,
    },
    /// The system gave no thread.
    #[error("cannot start a thread for the journal: {0}")]
    Thread(io::Error),
}

impl JournalError {
    pub(crate) fn disk(doing: &'static str, path: &Path, source: io::Error) -> JournalError {
        JournalError::Disk { doing, path: path.to_owned(), source }
    }
}

/// What follows where the folder of a journal is not there, though there was one.
pub const WITHOUT: &str = "topics, groups and offsets are taken from config/*.json as they were last written";
