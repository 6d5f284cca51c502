//! Messages far behind the log's end, read together for one reader into memory of his own.
//!
//! Pages of the log that are read from the device have a share of memory, and the oldest make way. Whoever took slices of them would find
//! them gone again when his answer is written to a slow connection, and the thread that writes it would wait for the device. So they are copied as
//! soon as they are there. What all such copies hold has a limit too: beyond it messages are slices of the log after all.
//!
//! A copy is held until its reader has taken it. So that those who do not take theirs leave something to others, a reader who has one may have more
//! only up to a quarter of what nobody has: the more readers stand still, the less each of them has beside his first. Who has none gets one
//! as long as there is room at all.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StoreError;
use crate::segment::{LogSlice, Segment};

/// Messages that lie further apart are read one by one: what is between them would be read ahead for nothing.
const GAP_MAX: usize = 256 << 10;

/// Bytes of the log that belong to whoever reads them.
pub(crate) struct Copied {
    bytes: Vec<u8>,
    /// Held as long as the bytes are.
    _room: CopyRoom,
}

impl Copied {
    pub fn new(bytes: Vec<u8>, room: CopyRoom) -> Copied {
        Copied { bytes, _room: room }
    }
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What one reader has copied and not taken yet: a connection, as a rule. Clones are the same reader's.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    /// In bytes. Relaxed: a count that stands alone.
    held: Arc<AtomicU64>,
}

impl Copies {
    /// In bytes.
    pub fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Adds `bytes` if it is no more than `most` then; if there were none, than `first`.
    fn add(&self, bytes: u64, first: u64, most: u64) -> bool {
        let is_room = |now: u64| now.checked_add(bytes).filter(|then| *then <= if now == 0 { first } else { most });
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_room).is_ok()
    }

    fn give(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Room for a copy, given back when it is dropped.
pub(crate) struct CopyRoom {
    bytes: u64,
    held: Copies,
    /// Whose it is, if somebody's.
    of: Option<Copies>,
}

impl CopyRoom {
    /// Takes `bytes` of the `limit`, of which `held` are taken; none if there is not so much, or if the reader has some already and would have
    /// more than a quarter of what nobody has.
    pub fn take(held: &Copies, of: Option<&Copies>, bytes: u64, limit: u64) -> Option<CopyRoom> {
        let free = limit.saturating_sub(held.bytes());
        if of.is_some_and(|of| !of.add(bytes, free, free / 4)) {
            return None;
        }
        if !held.add(bytes, limit, limit) {
            of.inspect(|of| of.give(bytes));
            return None;
        }
        Some(CopyRoom { bytes, held: held.clone(), of: of.cloned() })
    }
}

impl Drop for CopyRoom {
    fn drop(&mut self) {
        self.held.give(self.bytes);
        if let Some(of) = &self.of {
            of.give(self.bytes);
        }
    }
}

/// Which bytes of a segment a reader wants next: messages that lie near each other, in their order.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    /// Places in the segment.
    parts: Vec<Range<usize>>,
    bytes: usize,
}

impl Wish {
    /// Adds a message. Says whether it was added: it is not where it lies too far from the others, or makes the stretch longer than `span_max`.
    pub fn add(&mut self, part: Range<usize>, span_max: usize) -> bool {
        if let (Some(first), Some(last)) = (self.parts.first(), self.parts.last()) {
            let is_near = part.start >= last.end && part.start - last.end <= GAP_MAX;
            if !is_near || part.end - first.start > span_max {
                return false;
            }
        }
        self.bytes += part.len();
        self.parts.push(part);
        true
    }

    /// Messages in it.
    pub fn count(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Messages that were read together.
pub(crate) struct Stretch {
    copied: Arc<Copied>,
    base: u64,
    /// Where a message began in the segment, and where its bytes are now. In order.
    parts: VecDeque<(usize, Range<usize>)>,
}

impl Stretch {
    /// Reads them for somebody; waits for the device. None where there is no room for a copy, or pages are the kernel's to keep.
    pub fn read(segment: &Segment, wish: &Wish, of: Option<&Copies>) -> Result<Option<Stretch>, StoreError> {
        let Some(room) = segment.cold_pages().room_for_copy(wish.bytes() as u64, of) else { return Ok(None) };
        let bytes = segment.read_parts(&wish.parts)?;
        let mut parts = VecDeque::with_capacity(wish.parts.len());
        let mut at = 0;
        for part in &wish.parts {
            parts.push_back((part.start, at..at + part.len()));
            at += part.len();
        }
        Ok(Some(Stretch { copied: Arc::new(Copied { bytes, _room: room }), base: segment.base(), parts }))
    }

    /// The message that lies at a log offset, if it is here. Those before it are not asked for any more.
    pub fn take(&mut self, at: u64, bytes: usize) -> Option<LogSlice> {
        let place = usize::try_from(at.checked_sub(self.base)?).ok()?;
        while let Some((start, range)) = self.parts.pop_front() {
            if start == place && range.len() == bytes {
                return Some(LogSlice::of_copy(&self.copied, at, range));
            }
            if start > place {
                self.parts.push_front((start, range));
                return None;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_holds_what_lies_near_each_other_within_its_span() {
        let mut wish = Wish::default();
        assert!(wish.add(100..(2 << 20), 1 << 20), "the first whatever its size");
        let mut wish = Wish::default();
        assert!(wish.add(100..200, 1 << 20));
        assert!(wish.add(200..300, 1 << 20));
        assert!(wish.add(300 + GAP_MAX..400 + GAP_MAX, 1 << 20));
        assert!(!wish.add(401 + 2 * GAP_MAX..500 + 2 * GAP_MAX, 1 << 20), "too far");
        assert!(!wish.add(250..260, 1 << 20), "backwards");
        assert!(!wish.add(400 + GAP_MAX..500 + GAP_MAX, 300), "too long");
        assert_eq!((wish.count(), wish.bytes()), (3, 300));
    }

    #[test]
    fn copies_hold_no_more_than_their_limit_and_give_it_back() {
        let held = Copies::default();
        let first = CopyRoom::take(&held, None, 60, 100).unwrap();
        assert!(CopyRoom::take(&held, None, 41, 100).is_none());
        assert!(CopyRoom::take(&held, None, u64::MAX, 100).is_none());
        let second = CopyRoom::take(&held, None, 40, 100).unwrap();
        drop(first);
        assert_eq!(held.bytes(), 40);
        drop(second);
        assert_eq!(held.bytes(), 0);
    }

    #[test]
    fn readers_that_take_nothing_leave_room_for_one_more_and_get_theirs_back_with_it() {
        const LIMIT: u64 = 1 << 20;
        let held = Copies::default();
        let mut kept = Vec::new();
        for number in 1..=20 {
            let stuck = Copies::default();
            // Ends where it may have no more.
            while let Some(room) = CopyRoom::take(&held, Some(&stuck), 1 << 10, LIMIT) {
                kept.push(room);
            }
            assert!(stuck.bytes() > 0, "reader {number} has nothing");
            assert!(held.bytes() < LIMIT);
        }
        let first = Copies::default();
        assert!(CopyRoom::take(&held, Some(&first), LIMIT, LIMIT).is_none());
        assert_eq!(first.bytes(), 0, "what was not there counts for nobody");
        let rest = LIMIT - held.bytes();
        let one =
            CopyRoom::take(&held, Some(&first), rest - (1 << 10), LIMIT).expect("who has none gets what there is");
        assert!(CopyRoom::take(&held, Some(&first), 1 << 10, LIMIT).is_none(), "and no more before he has taken it");
        drop(one);
        kept.clear();
        assert_eq!(held.bytes(), 0);
        assert!(CopyRoom::take(&held, Some(&first), LIMIT / 2, LIMIT).is_some());
        assert_eq!(first.bytes(), 0);
    }
}
