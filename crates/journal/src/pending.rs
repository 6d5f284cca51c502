//! Changes that wait for the thread `journal`, as the bundles that it will write.
//!
//! All that is put together stays in one bundle, and so does what was folded: of a folded bundle no part is the state as of some position, so that
//! none may be left out for what a later bundle says of a key either. A bundle has an end all the same, since a start takes a longer one than
//! [`bundle::PAYLOAD_BYTES_MAX`] for damage. So what waits grows with the keys, not with the changes, as long as the newest of each key fits one.

use std::collections::VecDeque;

use crate::bundle;
use crate::options::JournalOptions;

/// What is full goes on being folded until it is so many times [`JournalOptions::bundle_bytes`]. By default that is all that a start takes.
const FULL_TIMES: usize = 4;

/// Capacity that the newest bundle keeps when it is taken.
const NEWEST_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Pending {
    /// Those that are full, the oldest first, each with the position of its last entry. All are older than `newest`.
    full: VecDeque<(Vec<u8>, u64)>,
    /// The one that gathers; encoded entries.
    newest: Vec<u8>,
    /// Above this many bytes it is worth folding; grows when folding did not help.
    fold_above: usize,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.newest.is_empty()
    }

    /// Whether a bundle waits for no more company.
    pub(super) fn is_one_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.full.iter().map(|(entries, _)| entries.len()).sum::<usize>() + self.newest.len()
    }

    /// Adds what was put together, of which `last` is the last. When the device stands still, the bundle must not grow with the number of
    /// changes: of each key the newest stays. That may be done early.
    pub(super) fn add(&mut self, entries: &[u8], last: u64, options: &JournalOptions, is_early: bool) {
        self.newest.extend_from_slice(entries);
        let is_large = self.newest.len() > self.fold_above.max(options.pending_bytes).min(options.bundle_bytes);
        if !is_large && !is_early {
            return;
        }
        self.newest = bundle::fold(&[self.newest.as_slice()]);
        // Twice what is left, so that folding costs each change a constant, even when no key repeats.
        self.fold_above = self.newest.len() * 2;
        if self.fold_above > options.bundle_bytes {
            self.fill(last, options.bundle_bytes.saturating_mul(FULL_TIMES).min(bundle::PAYLOAD_BYTES_MAX));
            self.fold_above = 0;
        }
    }

    /// Makes the newest bundle, which ends with the entry `last`, part of the last one that is full, unless that would be longer than
    /// `bytes_max`; then it is full itself.
    fn fill(&mut self, last: u64, bytes_max: usize) {
        let newest = std::mem::take(&mut self.newest);
        if let Some((before, last_before)) = self.full.back_mut() {
            let folded = bundle::fold(&[before.as_slice(), newest.as_slice()]);
            if folded.len() <= bytes_max {
                (*before, *last_before) = (folded, last);
                return;
            }
        }
        self.full.push_back((newest, last));
    }

    /// The newest bundle, if it is the only one.
    pub(super) fn only(&self) -> Option<&[u8]> {
        self.full.is_empty().then_some(&self.newest)
    }

    /// Adds the entries of the oldest bundle to `out`, and says with which position it ends; `last` is that of the newest entry of all.
    pub(super) fn take(&mut self, last: u64, out: &mut Vec<u8>) -> u64 {
        if let Some((entries, last)) = self.full.pop_front() {
            out.extend_from_slice(&entries);
            return last;
        }
        out.extend_from_slice(&self.newest);
        self.clear();
        last
    }

    /// Forgets all, which somebody has.
    pub(super) fn clear(&mut self) {
        self.full.clear();
        self.newest.clear();
        self.newest.shrink_to(NEWEST_BYTES);
        self.fold_above = 0;
    }
}
