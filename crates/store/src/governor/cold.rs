//! Pages of the log that were read from the device: a bounded number of them, the oldest of which make way for those that are read now.
//!
//! Whoever reads far behind the end reads once, as a rule: what he read is dropped behind him. What belongs to the newest stretch of the
//! log, which the governor keeps for all consumers, is left alone here.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use parking_lot::Mutex;

use crate::segment::Segment;
use crate::worker::Bell;

/// Pages come and go by this much: more than the kernel reads ahead by itself.
const CHUNK: u64 = 256 << 10;

/// A chunk: the base of its segment, and its number in it.
type Place = (u64, u64);

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
    /// Guards nothing else; nothing is taken inside it, and no call of the system made under it.
    read: Mutex<Read>,
}

#[derive(Default)]
struct Read {
    order: VecDeque<(Weak<Segment>, Place)>,
    known: HashSet<Place, FixedState>,
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

    /// Bytes that are here, at most.
    pub fn bytes(&self) -> u64 {
        self.read.lock().known.len() as u64 * CHUNK
    }

    /// These bytes of the segment were brought in. Others go for them.
    pub fn note(&self, segment: &Segment, range: &Range<usize>) {
        let Some(limit) = self.limit else { return };
        let places = range.start as u64 / CHUNK..(range.end as u64).div_ceil(CHUNK);
        let kept_from = self.kept_from();
        let mut gone = Vec::new();
        {
            let mut read = self.read.lock();
            for number in places {
                let place = (segment.base(), number);
                if segment.base() + (number + 1) * CHUNK <= kept_from && read.known.insert(place) {
                    read.order.push_back((segment.myself(), place));
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
    }

    fn drop_all(&self, gone: &[(Weak<Segment>, Place)]) {
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
