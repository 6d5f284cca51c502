//! What opening a store found: what was mended, what is still wrong, and what was cut off.

use std::collections::BTreeMap;
use std::path::PathBuf;

use protocol::LogOffset;

/// What opening a store found and mended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The last process did not close it.
    pub was_abnormal: bool,
    /// Nor before its folder was copied to here.
    pub was_copied: bool,
    /// Records read again.
    pub records_scanned: u64,
    /// Units that the consume queues lacked.
    pub units_added: u64,
    /// What was mended or looks strange, a sentence each.
    pub findings: Vec<String>,
    /// What is wrong still, a sentence each.
    pub not_mended: Vec<String>,
    /// What was cut off, if the last process asked for that.
    pub cut_off: Option<CutOff>,
}

/// Messages that were cut off the log's end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CutOff {
    /// Where the log ends since.
    pub at: LogOffset,
    /// Where it ended before.
    pub end: LogOffset,
    /// How many messages were cut off, by topic.
    pub topics: BTreeMap<String, u64>,
    /// The folder with a copy of them, in files that are named by the log offset of their first
    /// byte.
    pub kept_in: PathBuf,
}
