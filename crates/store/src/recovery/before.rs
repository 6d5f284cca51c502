//! What a start knows before it looks at the log.

use std::collections::HashSet;
use std::sync::Arc;

use super::unfinished::Unfinished;
use crate::checkpoint::Marks;
use crate::closed::Closed;
use crate::deleted::Deleted;
use crate::queue_log::{ConsumeQueue, Span};
use crate::resume::Mark;

/// What was known before the log is looked at.
#[derive(Clone, Copy)]
pub(crate) struct Before<'a> {
    /// A consume queue lost units of records from here on.
    pub rebuild_from: Option<u64>,
    /// The last units of consume queues.
    pub queue_ends: &'a [(Arc<ConsumeQueue>, Span)],
    /// The check-point.
    pub marks: Option<&'a Marks>,
    /// Which topics were deleted, and where.
    pub deleted: &'a Deleted,
    /// The topics whose records may hold batches, as far as the journal knows.
    pub batch_topics: &'a HashSet<String>,
    /// How we closed the store, if it was us and it was the last time that somebody did.
    pub closed: Option<Closed>,
    /// What the process before us, which was killed, had handed to the kernel, if the kernel has it still: it has all else that was handed over, too.
    pub noted: Option<Mark>,
    /// Where the next start is told that this one has not come to its end.
    pub unfinished: Unfinished<'a>,
    /// A sync of a process before us has failed: what no check-point vouches for is written again before it counts.
    pub has_failed_sync: bool,
}
