//! A commit that goes to the journal at once, together with what must not be there without it: leases of pops.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::{Bundle, Change, KeyRef, NONE, Offsets, index};

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
        key: KeyRef<'_>,
        queue_id: i32,
        offset: i64,
        put: impl FnOnce(Change<'_>) -> u64,
    ) -> u64 {
        let KeyRef { group, topic } = key;
        self.offsets.commit(group, topic, queue_id, offset);
        let entry = self.offsets.entry(group, topic);
        let committed = index(queue_id).map_or(NONE, |queue| {
            entry.with(queue, |slot| {
                // Unmarked before the number is read, as in `take_changes`.
                slot.is_marked.store(false, Ordering::SeqCst);
                slot.committed.load(Ordering::Relaxed)
            })
        });
        let position = put(entry.change(queue_id, (committed >= 0).then_some(committed)));
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
