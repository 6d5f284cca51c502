//! A commit that goes to the journal at once, together with what must not be there without it: leases of pops.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use env::TimeMs;

use super::{Bundle, Change, GroupTopicRef, NONE, Offsets, Progress, index};

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

    /// Takes over a row of a master, which the caller puts: how far a group has come there, and when; none: it is gone. A commit that comes
    /// here meanwhile is carried behind it.
    pub(crate) fn take(&self, topic: &str, group: &str, queue_id: i32, row: Option<(i64, Option<TimeMs>)>) {
        let Some(queue) = index(queue_id) else { return };
        match row {
            Some((offset, committed_at)) => {
                let at = committed_at.unwrap_or_else(|| self.offsets.clock.now());
                self.offsets.restore(topic, group, queue_id, offset, at);
            }
            None => {
                let known = self.offsets.table.pin().get(&GroupTopicRef { group, topic }).cloned();
                if let Some(entry) = known {
                    let _ = entry.peek(queue, |slot| slot.committed.store(NONE, Ordering::Relaxed));
                    if !entry.has_committed() {
                        self.offsets.bury(&entry);
                    }
                }
            }
        }
        self.offsets.commits.fetch_add(1, Ordering::Relaxed);
    }
}

impl Offsets {
    /// For who commits and carries to the journal in one step. Take it before other locks that are held meanwhile.
    pub(crate) fn carry(&self) -> Carrier<'_> {
        Carrier { offsets: self, _bundle: self.bundle.lock() }
    }
}
