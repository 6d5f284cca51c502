//! How much of the log stays in memory: the hot window, and how far the log may be made ready.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use disk::FilePages;

use super::figures::Counts;
use super::shares::GovernorOptions;

/// What the thread and those who ask share.
pub(crate) struct Governor {
    pub options: GovernorOptions,
    pub files: Arc<FilePages>,
    pub(super) counts: Counts,
    /// Where the next drop of the log begins: below, pages are gone or were left dirty. Written by the thread; Release, so that who
    /// sees it sees the room that it makes.
    pub(super) dropped_to: AtomicU64,
    /// How much less than its share the hot window is, since something else is too much. Written by the thread; Release, so that who sees the window
    /// grow again sees up to where the smaller one was dropped.
    pub(super) squeezed: AtomicU64,
    /// Bytes that were dropped since the start. Relaxed: a gauge.
    pub(super) dropped: AtomicU64,
}

impl Governor {
    /// One whose log has its pages from `kept_from` on.
    pub fn new(options: GovernorOptions, files: Arc<FilePages>, kept_from: u64) -> Governor {
        let counts = Counts::of_ours();
        let (dropped_to, squeezed, dropped) = (AtomicU64::new(kept_from), AtomicU64::new(0), AtomicU64::new(0));
        Governor { options, files, counts, dropped_to, squeezed, dropped }
    }

    /// The log may be made ready up to here. `end` is the log's end, `flushed` what is on the device, `needed` what somebody waits for.
    pub fn room_to(&self, end: u64, flushed: u64, needed: u64) -> u64 {
        let log = self.options.shares.log - self.squeezed.load(Ordering::Relaxed);
        let room = self.dropped_to.load(Ordering::Acquire).saturating_add(log);
        // A burst that is larger than all that moves goes when it is alone.
        if flushed >= end { room.max(needed) } else { room }
    }

    /// How far behind the end of the log pages are kept.
    pub fn hot(&self) -> u64 {
        self.options.shares.hot - self.squeezed.load(Ordering::Acquire)
    }

    /// The log offset below which pages were dropped, however large the hot window is by now: what a small one has dropped does not come back with it.
    /// To be asked after [`Governor::hot`].
    pub fn kept_from(&self) -> u64 {
        self.dropped_to.load(Ordering::Acquire)
    }

    /// Bytes dropped since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}
