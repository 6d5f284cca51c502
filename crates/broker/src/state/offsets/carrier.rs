//! A commit that goes to the journal at once, together with what must not be there without it: leases of pops.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::{Bundle, Change, NONE, Offsets, Progress, index};

/// While it lives, nobody else carries changes to the journal.
pub(crate) struct Carrier<'a> {
    offsets: &'a Offsets,
    _bundle: MutexGuard<'a, Bundle>,
}

impl Carrier<'_> {
    /// Notes how far a group has come, and lets `put` carry it to the journal at once, together with what must not be there without it.
    /// Returns the position that `put` gives.
    pub(crate) fn commit(
        &self,
        progress: &Progress,
        queue_id: i32,
        offset: i64,
        put: impl FnOnce(Change<'_>) -> u64,
    ) -> u64 {
        self.offsets.commit_in(progress, queue_id, offset);
        let Progress(entry) = progress;
        let committed = index(queue_id).map_or(NONE, |queue| {
            entry.with(queue, |slot| {
                // Unmarked before the number is read, as in `take_changes`.
                slot.is_marked.store(false, Ordering::SeqCst);
                slot.committed.load(Ordering::Relaxed)
            })
        });
        let position = if entry.is_gone.load(Ordering::Acquire) {
            // It must not come back into the journal. What came after it may be there already, and stays.
            let successor = self.offsets.table.pin().get(&entry.key).cloned();
            let after = successor.as_ref().and_then(|successor| successor.committed().remove(&queue_id));
            put(successor.as_ref().unwrap_or(entry).change(queue_id, after))
        } else {
            put(entry.change(queue_id, (committed >= 0).then_some(committed)))
        };
        entry.put_at.store(position, Ordering::Relaxed);
        self.offsets.commits.fetch_add(1, Ordering::Relaxed);
        position
    }
}

impl Offsets {
    /// For who commits and carries to the journal in one step. Take it before other locks that are held meanwhile.
    pub(crate) fn carry(&self) -> Carrier<'_> {
        Carrier { offsets: self, _bundle: self.bundle.lock() }
    }
}
