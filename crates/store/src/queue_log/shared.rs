//! State that all consume queues share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use disk::Disk;
use parking_lot::{Condvar, Mutex};

use super::descriptors::Descriptors;
use super::layout::Layout;
use super::options::QueueLogOptions;
use super::queue::ConsumeQueue;
use super::table::TopicQueues;
use super::unsynced::Unsynced;

/// What each queue shares with the others.
pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) simple: Layout,
    /// Of topics whose records hold batches of messages.
    pub(super) batch: Layout,
    pub(super) options: QueueLogOptions,
    pub(super) descriptors: Descriptors,
    pub(super) next_number: AtomicU64,
    /// A thread that changes files of queues holds it, across system calls. No request takes it.
    pub(super) maintenance: Mutex<()>,
    /// Guards the queues that the next flush visits: those with units to write or memory to give back. Innermost.
    pub(super) listed: Mutex<Vec<Arc<ConsumeQueue>>>,
    /// Guards the topics that are deleted and whose files are still there. Innermost; changed under `topics`.
    pub(super) deleted: Mutex<Vec<DeletedTopic>>,
    /// How far the device has the journal, as far as we were told.
    pub(super) journal_safe: AtomicU64,
    /// Guards what a loss of power could still take. Innermost.
    pub(super) unsynced: Mutex<Unsynced>,
    /// Bytes of units pushed and not yet written. Relaxed: a gauge and a trigger.
    pub(super) pending_bytes: AtomicU64,
    /// Whether the bell was rung since the flush last began; spares push the bell's lock.
    pub(super) is_rung: AtomicBool,
    /// So many bytes of units that are not written call for a flush. Relaxed: a hint.
    pub(super) ring_at: AtomicU64,
    pub(super) bell: Bell,
    /// See `ends.rs`. Relaxed: its readers have just flushed, under the maintenance lock.
    pub(super) counted_ends: AtomicU64,
    /// Below which log offset it counts.
    pub(super) counted_below: AtomicU64,
    pub(super) before_removal: BeforeRemoval,
}

/// A topic that is deleted, and whose files are still there.
pub(super) struct DeletedTopic {
    pub(super) name: String,
    pub(super) queues: TopicQueues,
    /// The journal's position of the deletion. Without its files and without its deletion, a topic would come back empty after a crash.
    pub(super) position: u64,
}

/// Called before files are removed.
pub(super) type BeforeRemoval = std::sync::OnceLock<Box<dyn Fn() + Send + Sync>>;

/// Calls the flush early.
#[derive(Default)]
pub(super) struct Bell {
    /// Whether a flush is wanted early.
    pub(super) wanted: Mutex<bool>,
    pub(super) rang: Condvar,
}

impl Shared {
    pub(super) fn count_pushed(&self, bytes: usize) {
        let pending = self.pending_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if pending >= self.ring_at.load(Ordering::Relaxed) && !self.is_rung.swap(true, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    pub(super) fn count_written(&self, bytes: u64) {
        self.pending_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.wanted.lock() = true;
        self.rang.notify_all();
    }
}
