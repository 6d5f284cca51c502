//! The units of a queue that are in memory: those not yet in a file, and a stretch before them for readers that are close behind.

use std::collections::VecDeque;

use super::unit::RAW_BYTES_MAX;

/// Whole units from the place `first` to the queue's end.
pub(super) struct Tail {
    recent: VecDeque<u8>,
    unit_bytes: usize,
    first: u64,
    /// Units below this are in the files. never below `first`.
    written: u64,
    /// Whether the queue stands in the list of those that the next flush visits.
    pub is_listed: bool,
    /// What flushes found in memory lately, in bytes.
    usual: usize,
}

impl Tail {
    /// Without a unit, at the end `next` of a queue whose units are all in files.
    pub fn at(next: u64, unit_bytes: usize) -> Tail {
        Tail { recent: VecDeque::new(), unit_bytes, first: next, written: next, is_listed: false, usual: 0 }
    }

    /// The first place in memory.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The first place that is not in the files.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes that are not in the files.
    pub fn pending_bytes(&self) -> u64 {
        self.recent.len() as u64 - (self.written - self.first) * self.unit_bytes as u64
    }

    #[inline]
    pub fn push<const N: usize>(&mut self, raw: &[u8; N]) {
        debug_assert_eq!(N, self.unit_bytes);
        self.recent.extend(raw);
    }

    /// Begins anew at `next`, without a unit.
    pub fn restart(&mut self, next: u64) {
        *self = Tail { is_listed: self.is_listed, ..Tail::at(next, self.unit_bytes) };
    }

    /// Forgets the units from place `next` on. Says how many bytes of them were not written.
    pub fn truncate(&mut self, next: u64) -> u64 {
        let pending = self.pending_bytes();
        self.first = self.first.min(next);
        self.recent.truncate((next - self.first) as usize * self.unit_bytes);
        self.written = self.written.min(next);
        pending - self.pending_bytes()
    }

    /// Replaces the unit at a place. Says whether the file has it too.
    pub fn mend(&mut self, place: u64, raw: &[u8]) -> bool {
        let start = (place - self.first) as usize * self.unit_bytes;
        for (old, new) in self.recent.range_mut(start..start + raw.len()).zip(raw) {
            *old = *new;
        }
        place < self.written
    }

    /// Shows up to `max` units from a place on, until `take` wants no more.
    pub fn each(&self, from: u64, max: usize, mut take: impl FnMut(&[u8]) -> bool) {
        let (front, back) = self.recent.as_slices();
        let start = (from - self.first) as usize * self.unit_bytes;
        for start in (start..self.recent.len()).step_by(self.unit_bytes).take(max) {
            let end = start + self.unit_bytes;
            let goes_on = if end <= front.len() {
                take(&front[start..end])
            } else if start >= front.len() {
                take(&back[start - front.len()..end - front.len()])
            } else {
                // The ring's end runs through this unit.
                let (head, rest) = (&front[start..], &back[..end - front.len()]);
                let mut raw = [0; RAW_BYTES_MAX];
                raw[..head.len()].copy_from_slice(head);
                raw[head.len()..self.unit_bytes].copy_from_slice(rest);
                take(&raw[..self.unit_bytes])
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Copies up to `max` units that are not in the files.
    pub fn copy_pending(&self, max: u64, out: &mut Vec<u8>) {
        let pending = (self.written - self.first) as usize * self.unit_bytes;
        let bytes = (max as usize).saturating_mul(self.unit_bytes);
        // In two pieces, as they lie: unit by unit would take several times as long.
        let (front, back) = self.recent.as_slices();
        let of_front = front.get(pending..).unwrap_or_default();
        let of_back = back.get(pending.saturating_sub(front.len())..).unwrap_or_default();
        let count = bytes.min(of_front.len());
        out.extend_from_slice(&of_front[..count]);
        out.extend_from_slice(&of_back[..(bytes - count).min(of_back.len())]);
    }

    /// So many bytes more are in the files.
    pub fn note_written(&mut self, bytes: usize) {
        self.written += (bytes / self.unit_bytes) as u64;
    }

    /// Drops written units from the front until at most `window` bytes are left, and memory that a past burst needed and a good many
    /// flushes since did not: what a busy queue gave back, its next push would have to get again under the log's lock.
    pub fn forget_all_but(&mut self, window: usize) {
        self.usual = self.recent.len().max(self.usual - self.usual.div_ceil(16));
        let beyond = self.recent.len().saturating_sub(window) / self.unit_bytes;
        let forgotten = beyond.min((self.written - self.first) as usize);
        self.recent.drain(..forgotten * self.unit_bytes);
        self.first += forgotten as u64;
        let capacity_wanted = (self.usual * 2).max(16 * self.unit_bytes);
        if self.recent.capacity() > capacity_wanted * 4 {
            self.recent.shrink_to(capacity_wanted);
        }
    }
}
