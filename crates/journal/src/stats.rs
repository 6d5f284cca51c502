//! The journal in numbers.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use env::TimeMs;

use crate::journal::{Journal, Shared};
use crate::window::Window;

/// What the metrics show. Relaxed: each number stands alone.
#[derive(Default)]
pub(super) struct Gauges {
    pub journal_bytes: AtomicU64,
    pub snapshot_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub maintenance_bytes: AtomicU64,
    pub bundles: AtomicU64,
    pub syncs: AtomicU64,
    pub snapshots: AtomicU64,
    pub snapshots_failed: AtomicU64,
    pub snapshot_micros: AtomicU64,
    pub snapshot_at_ms: AtomicI64,
    pub is_failing: AtomicBool,
}

/// The journal in numbers. What the thread has to look at for may be as old as the last sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalStats {
    /// Changes put since the journal began, over all restarts.
    pub entries: u64,
    /// Changes put since start.
    pub entries_since_start: u64,
    /// Bytes written since the last snapshot.
    pub journal_bytes: u64,
    /// Bytes of the last snapshot.
    pub snapshot_bytes: u64,
    /// Bytes that wait to be written.
    pub pending_bytes: u64,
    /// Bytes of the file that are ready for changes now.
    pub room_bytes: u64,
    /// Bytes of changes written since start.
    pub written_bytes: u64,
    /// Bytes written since start that carry no change: snapshots, also those given up, and heads of files.
    pub maintenance_bytes: u64,
    /// Bytes that users had written since start: changes, and what is counted beside.
    pub foreground_bytes: u64,
    /// Bundles written since start; a change that is copied into the mapped end is one.
    pub bundles: u64,
    /// Times the device was asked to make them durable since start.
    pub syncs: u64,
    /// Snapshots taken since start.
    pub snapshots: u64,
    /// Attempts since start that failed.
    pub snapshots_failed: u64,
    /// How long the last of them took.
    pub snapshot_took: Duration,
    /// When it was complete.
    pub snapshot_at: Option<TimeMs>,
    /// Whether the last attempt to write failed; it is repeated.
    pub is_failing: bool,
}

impl Journal {
    /// The journal in numbers.
    pub fn stats(&self) -> JournalStats {
        let Shared { gauges, opened_at, .. } = &*self.shared;
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let foreground_bytes = self.shared.foreground_bytes();
        let inner = self.shared.inner.lock();
        let snapshot_at = TimeMs(gauges.snapshot_at_ms.load(Ordering::Relaxed));
        JournalStats {
            entries: inner.last,
            entries_since_start: inner.last - opened_at,
            journal_bytes: read(&gauges.journal_bytes),
            snapshot_bytes: read(&gauges.snapshot_bytes),
            pending_bytes: inner.pending.bytes() as u64,
            room_bytes: inner.window.as_ref().map_or(0, Window::room),
            written_bytes: read(&gauges.written_bytes),
            maintenance_bytes: read(&gauges.maintenance_bytes),
            foreground_bytes,
            bundles: read(&gauges.bundles),
            syncs: read(&gauges.syncs),
            snapshots: read(&gauges.snapshots),
            snapshots_failed: read(&gauges.snapshots_failed),
            snapshot_took: Duration::from_micros(read(&gauges.snapshot_micros)),
            snapshot_at: (snapshot_at.0 != 0).then_some(snapshot_at),
            is_failing: gauges.is_failing.load(Ordering::Relaxed),
        }
    }

    /// Whether the last attempt to write failed.
    pub fn is_failing(&self) -> bool {
        self.shared.gauges.is_failing.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Bytes that users had written since start.
    pub(super) fn foreground_bytes(&self) -> u64 {
        let beside = self.beside.get().map_or(0, |(bytes, before)| bytes().saturating_sub(*before));
        self.gauges.written_bytes.load(Ordering::Relaxed) + beside
    }
}
