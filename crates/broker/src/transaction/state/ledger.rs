//! Which half messages are open, who is ending one, and when each is to be asked about: a state machine that knows no log, no client
//! and no clock.
//!
//! Half messages are known by their offset in the half queue. They are taken in in that order; an end that overtakes its half message's
//! being taken in is remembered until then.

use std::collections::{BTreeMap, BTreeSet};

use protocol::LogOffset;

use crate::wall_time;

/// Ends are counted in blocks of so many, so that what has to be remembered of millions of them fits a page.
const BLOCK: u64 = 1024;

/// An open half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// Its offset in the half queue.
    pub(crate) offset: u64,
    /// Its record.
    pub(crate) at: LogOffset,
    /// How often a producer was asked about it.
    pub(crate) checks: u32,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    at: LogOffset,
    checks: u32,
    due: i64,
    /// Somebody writes its end: nobody else may, and nobody is asked.
    is_ending: bool,
}

/// What stands in one block of the queue of ends.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    count: u64,
    highest: u64,
}

/// All half messages from the first open one on.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The next offset of the half queue to be taken in.
    next: u64,
    pending: BTreeMap<u64, Pending>,
    /// By time, those that nobody is ending.
    due: BTreeSet<(i64, u64)>,
    /// Ends of half messages at or above `next`: true once written.
    early: BTreeMap<u64, bool>,
    /// The queue of ends, by number of block, from the first block on that a start would have to read.
    blocks: BTreeMap<u64, Block>,
}

impl Ledger {
    /// A ledger that begins at these offsets of the half queue and of the queue of ends.
    pub(crate) fn new(half_offset: u64, op_offset: u64) -> Ledger {
        let begun = Block { count: op_offset % BLOCK, highest: 0 };
        Ledger { next: half_offset, blocks: BTreeMap::from([(op_offset / BLOCK, begun)]), ..Ledger::default() }
    }

    /// The next half message to take in.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Whether one is taken in and not ended.
    pub(crate) fn is_open(&self, offset: u64) -> bool {
        self.pending.contains_key(&offset)
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether the next half message was ended already, so that nobody need look at it.
    pub(crate) fn is_next_ended(&self) -> bool {
        self.early.get(&self.next) == Some(&true)
    }

    /// Takes in the next half message, to be asked about at `due`.
    pub(crate) fn take_in(&mut self, at: LogOffset, checks: u32, due: i64) {
        let offset = self.next;
        self.next += 1;
        let is_ending = match self.early.remove(&offset) {
            Some(true) => return,
            Some(false) => true,
            None => false,
        };
        self.pending.insert(offset, Pending { at, checks, due, is_ending });
        if !is_ending {
            self.due.insert((due, offset));
        }
    }

    /// Goes on behind the next half message, which needs no end: it was ended before, or its record is gone.
    pub(crate) fn skip(&mut self) {
        self.early.remove(&self.next);
        self.next += 1;
    }

    /// Begins to end a half message. False when it was ended, or when somebody is ending it: one of two ends counts.
    pub(crate) fn claim(&mut self, offset: u64) -> bool {
        if offset >= self.next {
            let is_new = !self.early.contains_key(&offset);
            self.early.entry(offset).or_insert(false);
            return is_new;
        }
        match self.pending.get_mut(&offset) {
            Some(pending) if !pending.is_ending => {
                pending.is_ending = true;
                self.due.remove(&(pending.due, offset));
                true
            }
            Some(_) | None => false,
        }
    }

    /// The end could not be written: the half message is open again.
    pub(crate) fn release(&mut self, offset: u64) {
        if self.early.remove(&offset).is_some() {
            return;
        }
        if let Some(pending) = self.pending.get_mut(&offset) {
            pending.is_ending = false;
            self.due.insert((pending.due, offset));
        }
    }

    /// The end is written, at this offset of the queue of ends. How often the half message was asked about.
    pub(crate) fn ended(&mut self, offset: u64, op_offset: u64) -> u32 {
        self.note_end(op_offset, offset);
        if let Some(is_written) = self.early.get_mut(&offset) {
            *is_written = true;
            return 0;
        }
        self.pending.remove(&offset).map_or(0, |pending| {
            self.due.remove(&(pending.due, offset));
            pending.checks
        })
    }

    /// One message of the queue of ends names `highest` as the last of its half messages.
    pub(crate) fn note_end(&mut self, op_offset: u64, highest: u64) {
        let block = self.blocks.entry(op_offset / BLOCK).or_default();
        block.count += 1;
        block.highest = block.highest.max(highest);
    }

    /// A half message whose record is gone: there is nothing left to end.
    pub(crate) fn forget(&mut self, offset: u64) {
        if let Some(pending) = self.pending.remove(&offset) {
            self.due.remove(&(pending.due, offset));
        }
    }

    /// The earliest that is due at this time.
    pub(crate) fn due(&self, now: i64) -> Option<Open> {
        let (_, offset) = self.due.first().filter(|(due, _)| *due <= now)?;
        self.pending.get(offset).map(|pending| Open { offset: *offset, at: pending.at, checks: pending.checks })
    }

    /// Asks about a half message later, and counts the question if one was put.
    pub(crate) fn postpone(&mut self, offset: u64, checks: u32, due: i64) {
        if let Some(pending) = self.pending.get_mut(&offset).filter(|pending| !pending.is_ending) {
            self.due.remove(&(pending.due, offset));
            pending.due = due;
            pending.checks = checks;
            self.due.insert((due, offset));
        }
    }

    /// The clock was set back.
    pub(crate) fn set_back(&mut self, by: i64, now: i64) {
        wall_time::set_back(&mut self.due, by, now);
        for (due, offset) in &self.due {
            if let Some(pending) = self.pending.get_mut(offset) {
                pending.due = *due;
            }
        }
    }

    /// When somebody has to be asked next.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Everything below this offset of the half queue is ended.
    pub(crate) fn half_base(&self) -> u64 {
        self.pending.first_key_value().map_or(self.next, |(first, _)| *first)
    }

    /// No end of a half message at or above [`Ledger::half_base`] stands below this offset of the queue of ends.
    pub(crate) fn op_base(&mut self) -> u64 {
        let half_base = self.half_base();
        while let Some(first) = self.blocks.first_entry() {
            let (number, block) = (*first.key(), *first.get());
            if block.count < BLOCK || block.highest >= half_base {
                return number * BLOCK;
            }
            first.remove();
            self.blocks.entry(number + 1).or_default();
        }
        0
    }

    /// Every open half message, in the order of the queue.
    pub(crate) fn open(&self) -> impl Iterator<Item = Open> + '_ {
        self.pending.iter().map(|(offset, pending)| Open { offset: *offset, at: pending.at, checks: pending.checks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_three_open() -> Ledger {
        let mut ledger = Ledger::new(0, 0);
        for place in 0..3 {
            ledger.take_in(LogOffset(place * 100), 0, 10 + place as i64);
        }
        ledger
    }

    #[test]
    fn only_the_first_of_two_ends_counts() {
        let mut ledger = with_three_open();
        assert!(ledger.claim(1));
        assert!(!ledger.claim(1), "while it is being written");
        ledger.ended(1, 0);
        assert!(!ledger.claim(1), "once it is written");
        assert_eq!(ledger.len(), 2);
    }

    #[test]
    fn an_end_that_could_not_be_written_leaves_the_message_open_and_due() {
        let mut ledger = with_three_open();
        assert!(ledger.claim(0));
        assert_eq!(ledger.due(10), None, "nobody is asked while somebody ends it");
        ledger.release(0);
        assert_eq!(ledger.due(10).map(|open| open.offset), Some(0));
        assert!(ledger.claim(0));
    }

    #[test]
    fn an_end_may_overtake_its_message() {
        let mut ledger = with_three_open();
        assert!(ledger.claim(3) && ledger.claim(4) && !ledger.claim(3));
        ledger.ended(3, 0);
        assert!(ledger.is_next_ended());
        ledger.skip();
        ledger.take_in(LogOffset(400), 0, 5);
        assert_eq!(ledger.due(5), None, "4 is being ended");
        ledger.release(4);
        assert_eq!(ledger.due(5).map(|open| open.offset), Some(4));
    }

    #[test]
    fn the_base_is_the_first_open_message() {
        let mut ledger = with_three_open();
        assert_eq!(ledger.half_base(), 0);
        for offset in [1, 0] {
            assert!(ledger.claim(offset));
            ledger.ended(offset, 1 - offset);
        }
        assert_eq!(ledger.half_base(), 2);
        assert!(ledger.claim(2));
        ledger.ended(2, 2);
        assert_eq!(ledger.half_base(), 3);
    }

    #[test]
    fn ends_are_forgotten_by_blocks_once_no_open_message_needs_them() {
        let mut ledger = Ledger::new(0, 1000);
        for offset in 0..100 {
            ledger.take_in(LogOffset(offset), 0, 0);
        }
        // The first block is full with 24 ends; 50 to 99 stay open.
        for offset in 0..50 {
            assert!(ledger.claim(offset));
            ledger.ended(offset, 1000 + offset);
        }
        assert_eq!(ledger.op_base(), BLOCK);
        assert_eq!(ledger.half_base(), 50);
    }

    #[test]
    fn a_question_that_was_put_is_counted_and_comes_again_later() {
        let mut ledger = with_three_open();
        ledger.postpone(0, 1, 50);
        assert_eq!(ledger.next_due(), Some(11));
        assert_eq!(ledger.due(10), None);
        assert_eq!(ledger.open().next(), Some(Open { offset: 0, at: LogOffset(0), checks: 1 }));
    }

    #[derive(Clone, Debug)]
    enum Move {
        TakeIn,
        Claim(u64),
        Release(u64),
        End(u64),
        Ask(i64),
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            3 => Just(Move::TakeIn),
            2 => (0u64..24).prop_map(Move::Claim),
            1 => (0u64..24).prop_map(Move::Release),
            2 => (0u64..24).prop_map(Move::End),
            1 => (0i64..40).prop_map(Move::Ask),
        ];
        prop::collection::vec(one, 0..120)
    }

    proptest! {
        /// Whatever happens in whatever order: an end is claimed by one at a time, an ended message is never open again, and what is
        /// open is what was taken in and not ended.
        #[test]
        fn each_message_is_ended_once_and_none_is_forgotten(moves in moves()) {
            let mut ledger = Ledger::new(0, 0);
            let (mut claimed, mut ended) = (BTreeSet::new(), BTreeSet::new());
            let (mut taken, mut ops) = (0u64, 0u64);
            for step in moves {
                match step {
                    Move::TakeIn => {
                        prop_assert_eq!(ledger.next(), taken);
                        prop_assert_eq!(ledger.is_next_ended(), ended.contains(&taken));
                        ledger.take_in(LogOffset(taken * 10), 0, taken as i64);
                        taken += 1;
                    }
                    Move::Claim(offset) => {
                        let is_free = !claimed.contains(&offset) && !ended.contains(&offset);
                        prop_assert_eq!(ledger.claim(offset), is_free);
                        claimed.extend(is_free.then_some(offset));
                    }
                    Move::Release(offset) => if claimed.remove(&offset) {
                        ledger.release(offset);
                    },
                    Move::End(offset) => if claimed.remove(&offset) {
                        ledger.ended(offset, ops);
                        ops += 1;
                        ended.insert(offset);
                    },
                    Move::Ask(now) => {
                        if let Some(open) = ledger.due(now) {
                            prop_assert!(!claimed.contains(&open.offset) && !ended.contains(&open.offset));
                            ledger.postpone(open.offset, open.checks + 1, now + 5);
                        }
                    }
                }
                let open: Vec<u64> = ledger.open().map(|open| open.offset).collect();
                let expected: Vec<u64> = (0..taken).filter(|offset| !ended.contains(offset)).collect();
                prop_assert_eq!(open.first().copied().unwrap_or(taken), ledger.half_base());
                prop_assert_eq!(open, expected);
                prop_assert!(ledger.op_base() <= ops);
            }
        }
    }
}
