//! Books of a process that knows only a part of a load: notes of what happened, which the process that began the load collects into the
//! one ledger.
//!
//! A message may be sent here and received there, so no process can tell alone what became of it. Notes are the same bits as in a ledger,
//! of the time since they were taken away last; each round takes them from every process.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::ledger::{Ledger, PAGE, Tally, WORDS, place};
use crate::stamp::Stamp;

/// Rows of bits: answered with success, failed; and received, for each group one more.
const ACKNOWLEDGED: u32 = 0;
const FAILED: u32 = 1;
const RECEIVED: u32 = 2;

/// What producers and consumers enter into.
pub enum Accounts {
    /// The whole of a load.
    Whole(Ledger),
    /// What one of several processes saw of it.
    Part(Notes),
}

impl Accounts {
    /// How many groups receive each message.
    pub fn groups(&self) -> usize {
        match self {
            Accounts::Whole(ledger) => ledger.groups(),
            Accounts::Part(notes) => notes.groups,
        }
    }

    /// `count` messages from `first` on are given to the client now.
    pub fn send(&self, producer: u32, first: u64, count: u64) {
        match self {
            Accounts::Whole(ledger) => ledger.send(producer, first, count),
            Accounts::Part(notes) => notes.send(producer, first, count),
        }
    }

    /// Their answer came: success, or not.
    pub fn settle(&self, producer: u32, first: u64, count: u64, is_acknowledged: bool) {
        match self {
            Accounts::Whole(ledger) => ledger.settle(producer, first, count, is_acknowledged),
            Accounts::Part(notes) => notes.settle(producer, first, count, is_acknowledged),
        }
    }

    /// A group received a message; true if it is its first time, as far as is known here.
    pub fn receive(&self, group: usize, stamp: &Stamp) -> bool {
        match self {
            Accounts::Whole(ledger) => ledger.receive(group, stamp),
            Accounts::Part(notes) => notes.receive(group, stamp),
        }
    }

    /// A group received what is no message of any run.
    pub fn foreign(&self) {
        match self {
            Accounts::Whole(ledger) => ledger.foreign(),
            Accounts::Part(notes) => notes.foreign(),
        }
    }

    /// What happened so far; of a part nothing is known.
    pub fn tally(&self) -> Tally {
        match self {
            Accounts::Whole(ledger) => ledger.tally(),
            Accounts::Part(_) => Tally::default(),
        }
    }

    /// Acknowledged messages times groups that have not received them yet; of a part nothing is known.
    pub fn outstanding(&self) -> u64 {
        match self {
            Accounts::Whole(ledger) => ledger.outstanding(),
            Accounts::Part(_) => 0,
        }
    }
}

/// What one process saw since the last round.
pub struct Notes {
    run: u64,
    groups: usize,
    /// By producer, of all processes. Each guards its notes; held for one message, or for all of a batch.
    noted: Vec<Mutex<Noted>>,
}

#[derive(Default)]
struct Noted {
    sent: u64,
    /// Behind the last message that was sent.
    end: u64,
    /// By row and page.
    bits: BTreeMap<(u32, u64), Box<[u64; WORDS]>>,
    duplicates: u64,
    foreign: u64,
}

/// What a process tells in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sheet {
    lines: Vec<Line>,
}

/// What happened to messages of one producer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    producer: u32,
    sent: u64,
    end: u64,
    /// Row, page, and the bits of the page.
    bits: Vec<(u32, u64, Vec<u64>)>,
    duplicates: u64,
    foreign: u64,
}

impl Notes {
    /// For so many producers, each of whose messages so many groups receive.
    pub fn new(run: u64, producers: usize, groups: usize) -> Notes {
        Notes { run, groups, noted: (0..producers).map(|_| Mutex::default()).collect() }
    }

    fn send(&self, producer: u32, first: u64, count: u64) {
        let Some(noted) = self.noted.get(producer as usize) else { return };
        let mut noted = noted.lock();
        noted.sent += count;
        noted.end = noted.end.max(first + count);
    }

    fn settle(&self, producer: u32, first: u64, count: u64, is_acknowledged: bool) {
        let Some(noted) = self.noted.get(producer as usize) else { return };
        let mut noted = noted.lock();
        let row = if is_acknowledged { ACKNOWLEDGED } else { FAILED };
        (first..first + count).for_each(|sequence| {
            noted.set(row, sequence);
        });
    }

    fn receive(&self, group: usize, stamp: &Stamp) -> bool {
        let noted = self.noted.get(stamp.producer as usize).filter(|_| stamp.run == self.run && group < self.groups);
        let Some(noted) = noted else {
            self.foreign();
            return false;
        };
        let mut noted = noted.lock();
        let is_first = noted.set(RECEIVED + group as u32, stamp.sequence);
        noted.duplicates += u64::from(!is_first);
        is_first
    }

    fn foreign(&self) {
        // It has no producer; the first one counts it.
        if let Some(noted) = self.noted.first() {
            noted.lock().foreign += 1;
        }
    }

    /// Takes the notes away.
    pub fn take(&self) -> Sheet {
        let mut lines = Vec::new();
        for (producer, noted) in (0..).zip(&self.noted) {
            let Noted { sent, end, bits, duplicates, foreign } = std::mem::take(&mut *noted.lock());
            if sent > 0 || !bits.is_empty() || duplicates > 0 || foreign > 0 {
                let bits = bits.into_iter().map(|((row, page), words)| (row, page, words.to_vec())).collect();
                lines.push(Line { producer, sent, end, bits, duplicates, foreign });
            }
        }
        Sheet { lines }
    }
}

impl Noted {
    /// False if it was set already.
    fn set(&mut self, row: u32, sequence: u64) -> bool {
        let (word, bit) = place(sequence);
        let words = self.bits.entry((row, sequence / PAGE)).or_insert_with(|| Box::new([0; WORDS]));
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        is_new
    }
}

/// The notes of all processes, on their way into a ledger.
///
/// A message may be received in one process before the other one, which sent it, has told of it. What is received is therefore entered a
/// round later: each round begins when the one before has come from everywhere, so by then the send has been told.
#[derive(Default)]
pub struct Collected {
    received: Vec<Sheet>,
}

impl Collected {
    /// Enters the sheets of a round, one of each process. Returns how many messages were received again, and counted by their process as
    /// if it were the first time.
    pub fn enter(&mut self, ledger: &Ledger, run: u64, sheets: Vec<Sheet>) -> u64 {
        let lines = || sheets.iter().flat_map(|sheet| &sheet.lines);
        for line in lines() {
            ledger.send(line.producer, line.end.saturating_sub(line.sent), line.sent);
            let counted = Tally { duplicates: line.duplicates, foreign: line.foreign, ..Tally::default() };
            ledger.add(line.producer, &counted);
        }
        for line in lines() {
            for (row, page, words) in line.bits.iter().filter(|(row, ..)| *row < RECEIVED) {
                for sequence in set_bits(*page, words) {
                    ledger.settle(line.producer, sequence, 1, *row == ACKNOWLEDGED);
                }
            }
        }
        let mut repeated = 0;
        for line in self.received.iter().flat_map(|sheet| &sheet.lines) {
            for (row, page, words) in line.bits.iter().filter(|(row, ..)| *row >= RECEIVED) {
                for sequence in set_bits(*page, words) {
                    let stamp = Stamp { lane: 0, producer: line.producer, run, sequence, due_ns: 0 };
                    repeated += u64::from(!ledger.receive((row - RECEIVED) as usize, &stamp));
                }
            }
        }
        self.received = sheets;
        repeated
    }
}

/// The numbers of the messages whose bits are set.
fn set_bits(page: u64, words: &[u64]) -> impl Iterator<Item = u64> + '_ {
    let numbers = words.iter().take(WORDS).zip(0_u64..).flat_map(|(word, index)| {
        let some = |bits: u64| (bits != 0).then_some(bits);
        let bits = std::iter::successors(some(*word), move |bits| some(bits & (bits - 1)));
        bits.map(move |bits| index * 64 + u64::from(bits.trailing_zeros()))
    });
    numbers.map(move |within| page.saturating_mul(PAGE).saturating_add(within))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const RUN: u64 = 5;

    fn stamp(sequence: u64) -> Stamp {
        Stamp { lane: 0, producer: 0, run: RUN, sequence, due_ns: 0 }
    }

    #[test]
    fn bits_stand_for_the_numbers_of_their_page() {
        let mut words = vec![0; WORDS];
        (words[0], words[1], words[WORDS - 1]) = (1 | 1 << 63, 0b110, 1 << 63);
        let numbers = [0, 63, 65, 66, PAGE - 1].map(|within| 3 * PAGE + within);
        assert_eq!(set_bits(3, &words).collect::<Vec<u64>>(), numbers);
        assert_eq!(set_bits(0, &[u64::MAX]).collect::<Vec<u64>>(), (0..64).collect::<Vec<u64>>());
    }

    #[test]
    fn what_is_received_before_its_send_was_told_is_neither_foreign_nor_lost() {
        let (ledger, mut collected) = (Ledger::new(RUN, 1, 1), Collected::default());
        let (sender, receiver) = (Notes::new(RUN, 1, 1), Notes::new(RUN, 1, 1));
        // The sender's sheet is taken, then a message is sent and received, then the receiver's sheet is taken.
        let sheets = vec![sender.take(), {
            sender.send(0, 0, 1);
            sender.settle(0, 0, 1, true);
            assert!(receiver.receive(0, &stamp(0)));
            receiver.take()
        }];
        assert_eq!(collected.enter(&ledger, RUN, sheets), 0);
        assert_eq!(ledger.tally(), Tally::default());
        assert_eq!(collected.enter(&ledger, RUN, vec![sender.take(), receiver.take()]), 0);
        assert_eq!(ledger.tally(), Tally { sent: 1, acknowledged: 1, received: 1, ..Tally::default() });
        assert_eq!(ledger.outstanding(), 0);
    }

    #[test]
    fn a_message_that_two_processes_receive_is_a_duplicate_and_one_of_another_run_is_foreign() {
        let (ledger, mut collected) = (Ledger::new(RUN, 2, 2), Collected::default());
        let both = [Notes::new(RUN, 2, 2), Notes::new(RUN, 2, 2)];
        both[0].send(0, 0, 3);
        both[0].settle(0, 0, 2, true);
        both[0].settle(0, 2, 1, false);
        assert!(both[0].receive(1, &stamp(0)) && both[1].receive(1, &stamp(0)) && !both[1].receive(1, &stamp(0)));
        assert!(!both[1].receive(0, &Stamp { run: 6, ..stamp(0) }));
        assert!(!both[1].receive(0, &Stamp { producer: 2, ..stamp(0) }));
        let mut round = || collected.enter(&ledger, RUN, both.iter().map(Notes::take).collect());
        assert_eq!((round(), round(), round()), (0, 1, 0));
        let tally = ledger.tally();
        assert_eq!((tally.sent, tally.acknowledged, tally.failed), (3, 2, 1));
        // Of two messages times two groups one was received.
        assert_eq!((tally.received, tally.duplicates, tally.foreign, tally.lost), (1, 2, 2, 3));
    }

    proptest! {
        /// Against one ledger that sees everything, whenever rounds are taken.
        #[test]
        fn several_processes_come_to_what_one_would_have_found(
            events in prop::collection::vec((0u8..4, 0u64..9000, 0usize..3), 1..400),
        ) {
            let (whole, merged) = (Ledger::new(RUN, 1, 1), Ledger::new(RUN, 1, 1));
            let parts: Vec<Notes> = (0..3).map(|_| Notes::new(RUN, 1, 1)).collect();
            let (mut collected, mut answered) = (Collected::default(), BTreeSet::new());
            // All are sent by the first process.
            whole.send(0, 0, 9000);
            parts[0].send(0, 0, 9000);
            for (what, sequence, process) in events {
                match what {
                    // Each message is answered once.
                    0 | 1 if answered.insert(sequence) => {
                        whole.settle(0, sequence, 1, what == 0);
                        parts[0].settle(0, sequence, 1, what == 0);
                    }
                    2 => {
                        whole.receive(0, &stamp(sequence));
                        parts[process].receive(0, &stamp(sequence));
                    }
                    _ => {
                        collected.enter(&merged, RUN, parts.iter().map(Notes::take).collect());
                    }
                }
            }
            for _ in 0..2 {
                collected.enter(&merged, RUN, parts.iter().map(Notes::take).collect());
            }
            prop_assert_eq!(merged.tally(), whole.tally());
            prop_assert_eq!(merged.outstanding(), whole.outstanding());
        }
    }
}
