//! Pages of the log that were read from the device: a bounded number of them, the oldest of which make way for those that are read now.
//!
//! Whoever reads far behind the end reads once, as a rule: what he read is dropped behind him. What belongs to the newest stretch of the
//! log, which the governor keeps for all consumers, is left alone here.
//!
//! Here is also decided how much is read ahead, by what of it somebody wanted lately, and how much of the log readers may have copied.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use disk::worker::Bell;
use foldhash::fast::FixedState;
use hashbrown::HashSet;
use parking_lot::Mutex;

use crate::segment::Segment;
use crate::stretch::{Copies, CopyRoom};

/// Pages come and go by this much.
const CHUNK: u64 = 64 << 10;
/// What is read comes with so much behind it at most, and messages that lie so near each other are read with what is between them.
const AHEAD_MAX: u64 = 256 << 10;
/// Less is not read ahead; the step from there goes to nothing, and back.
const AHEAD_MIN: u64 = 16 << 10;
/// After so many bytes from the device it is looked at how many of them somebody wanted.
const LOOK_BYTES: u64 = 4 << 20;

/// A chunk: the base of its segment, and its number in it.
type ChunkPlace = (u64, u64);

pub(crate) struct ColdPages {
    /// Bytes that may be here; none: they are the kernel's to keep.
    limit: Option<u64>,
    /// There is so little memory that each touch counts.
    is_exact: bool,
    /// Something was brought in since this was last asked, and who is called for it. SeqCst, as the bells' flags.
    was_noted: AtomicBool,
    bell: Arc<Bell>,
    /// Pages of the log from here on are not ours to drop: see `Governor`. Relaxed: a page more or less of a stretch that moves.
    kept_from: AtomicU64,
    /// How much is read ahead now. Relaxed, as the next two: hints.
    ahead: AtomicU64,
    /// Bytes that came from the device since it was last looked at that, and those that readers took meanwhile.
    brought: AtomicU64,
    used: AtomicU64,
    /// Bytes that readers have copied and not given back.
    copied: Copies,
    /// Reads that found no room for a copy. Relaxed: the number stands alone.
    uncopied: AtomicU64,
    /// Guards nothing else; nothing is taken inside it, and no call of the system made under it.
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    order: VecDeque<(Weak<Segment>, ChunkPlace)>,
    known: HashSet<ChunkPlace, FixedState>,
}

impl ColdPages {
    /// `bell` is called when something was brought in.
    pub fn new(limit: Option<u64>, is_exact: bool, bell: Arc<Bell>) -> ColdPages {
        ColdPages {
            limit,
            is_exact,
            was_noted: AtomicBool::new(false),
            bell,
            // Before the log's end is known everything that is read is to go.
            kept_from: AtomicU64::new(u64::MAX),
            ahead: AtomicU64::new(AHEAD_MAX),
            brought: AtomicU64::new(0),
            used: AtomicU64::new(0),
            copied: Copies::default(),
            uncopied: AtomicU64::new(0),
            read: Mutex::new(Read::default()),
        }
    }

    /// For logs whose pages are the kernel's to keep.
    pub fn unbounded() -> ColdPages {
        ColdPages::new(None, false, Arc::default())
    }

    /// Whether a touch of a page is to bring in that page and nothing around it.
    pub fn is_exact(&self) -> bool {
        self.is_exact
    }

    /// Whether something was brought in since this was taken.
    pub fn was_noted(&self) -> bool {
        self.was_noted.load(Ordering::SeqCst)
    }

    pub fn take_noted(&self) -> bool {
        self.was_noted.swap(false, Ordering::SeqCst)
    }

    /// Whether what is read once is dropped at all.
    pub fn is_bounded(&self) -> bool {
        self.limit.is_some()
    }

    /// The log offset from which on pages are kept for all consumers.
    pub fn kept_from(&self) -> u64 {
        self.kept_from.load(Ordering::Relaxed)
    }

    pub fn keep_from(&self, at: u64) {
        self.kept_from.store(at, Ordering::Relaxed);
    }

    /// Room for what a reader copies, half as much as pages may take for all of them together. None if it is used up, if the reader has not
    /// taken what he has, or if pages are the kernel's to keep.
    pub fn room_for_copy(&self, bytes: u64, of: Option<&Copies>) -> Option<CopyRoom> {
        let room = CopyRoom::take(&self.copied, of, bytes, self.limit? / 2);
        if room.is_none() {
            self.uncopied.fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    /// Bytes that readers have copied and not taken.
    pub fn copied(&self) -> u64 {
        self.copied.bytes()
    }

    /// Reads since the start that found no room for a copy.
    pub fn uncopied(&self) -> u64 {
        self.uncopied.load(Ordering::Relaxed)
    }

    /// How long a stretch of the log may be that is read at once: others are to find theirs in memory too, who read the same of other queues.
    pub fn span_max(&self) -> usize {
        self.limit.map_or(usize::MAX, |limit| usize::try_from(limit / 4).unwrap_or(usize::MAX))
    }

    /// Bytes that are here, at most.
    pub fn bytes(&self) -> u64 {
        self.read.lock().known.len() as u64 * CHUNK
    }

    /// How many bytes are to be read ahead of what is asked for.
    ///
    /// Consumers of several queues that lie mixed in the log find there what others have read, if they are about as far. If they are not,
    /// what is read ahead is dropped before somebody wants it.
    pub fn ahead(&self) -> usize {
        self.ahead.load(Ordering::Relaxed) as usize
    }

    /// Readers took so many bytes, for which these of the segment were brought in. Others go for them.
    pub fn note_used(&self, used: usize, segment: &Segment, ranges: &[Range<usize>]) {
        let brought: u64 = ranges.iter().map(|range| self.note(segment, range)).sum();
        let brought = self.brought.fetch_add(brought, Ordering::Relaxed) + brought;
        let used = self.used.fetch_add(used as u64, Ordering::Relaxed) + used as u64;
        if brought >= LOOK_BYTES {
            self.brought.store(0, Ordering::Relaxed);
            self.used.store(0, Ordering::Relaxed);
            self.ahead.store(ahead_after(self.ahead.load(Ordering::Relaxed), brought, used), Ordering::Relaxed);
        }
    }

    /// These bytes of the segment were brought in. Others go for them. Says how many of them were not there.
    pub fn note(&self, segment: &Segment, range: &Range<usize>) -> u64 {
        let Some(limit) = self.limit else { return 0 };
        let places = range.start as u64 / CHUNK..(range.end as u64).div_ceil(CHUNK);
        let kept_from = self.kept_from();
        let mut gone = Vec::new();
        let mut brought = 0;
        {
            let mut read = self.read.lock();
            for number in places {
                let place = (segment.base(), number);
                if segment.base() + (number + 1) * CHUNK <= kept_from && read.known.insert(place) {
                    read.order.push_back((segment.myself(), place));
                    brought += (range.end as u64).min((number + 1) * CHUNK) - (range.start as u64).max(number * CHUNK);
                }
            }
            // Ends with the last chunk, if not before.
            while read.known.len() as u64 * CHUNK > limit.max(CHUNK) {
                let Some((segment, place)) = read.order.pop_front() else { break };
                read.known.remove(&place);
                gone.push((segment, place));
            }
        }
        self.drop_all(&gone);
        if !self.was_noted() {
            self.was_noted.store(true, Ordering::SeqCst);
            self.bell.call();
        }
        brought
    }

    fn drop_all(&self, gone: &[(Weak<Segment>, ChunkPlace)]) {
        for (segment, (base, number)) in gone {
            // Retention was faster.
            let Some(segment) = segment.upgrade() else { continue };
            let from = base + number * CHUNK;
            segment.forget_cached(from, (from + CHUNK).min(self.kept_from()));
        }
    }

    /// Drops all that is here.
    pub fn clear(&self) {
        let mut read = self.read.lock();
        read.known.clear();
        let gone: Vec<_> = std::mem::take(&mut read.order).into();
        drop(read);
        self.drop_all(&gone);
    }
}

/// How much is to be read ahead from now on, if `used` of the bytes that were `brought` were wanted.
fn ahead_after(ahead: u64, brought: u64, used: u64) -> u64 {
    match used * 10 / brought.max(1) {
        0..=5 if ahead <= AHEAD_MIN => 0,
        0..=5 => ahead / 2,
        6..=8 => ahead,
        _ => (ahead * 2).clamp(AHEAD_MIN, AHEAD_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_read_ahead_as_somebody_wants() {
        let mib = 1 << 20;
        let mut ahead = AHEAD_MAX;
        for expected in [128 << 10, 64 << 10, 32 << 10, 16 << 10, 0, 0] {
            ahead = ahead_after(ahead, 4 * mib, mib);
            assert_eq!(ahead, expected);
        }
        assert_eq!(ahead_after(64 << 10, 4 * mib, 3 * mib), 64 << 10);
        for expected in [16 << 10, 32 << 10, 64 << 10, 128 << 10, AHEAD_MAX, AHEAD_MAX] {
            // Several readers want the same.
            ahead = ahead_after(ahead, 4 * mib, 9 * mib);
            assert_eq!(ahead, expected);
        }
        assert_eq!(ahead_after(0, 0, 0), 0);
    }
}
