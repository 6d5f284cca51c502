//! What became of each message: by its number, in memory that does not grow with the run.
//!
//! Each producer numbers its messages from 0. A page keeps three kinds of bits for 4096 of them: answered with success, failed, and,
//! for each group, received. A page of which nothing is open any more is dropped. What cannot be dropped is bounded too: the oldest pages
//! are given up then, and their open messages counted as untraced, never as delivered.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::stamp::Stamp;

/// Messages of a page.
pub const PAGE: u64 = 4096;
/// Words of its bits.
pub const WORDS: usize = (PAGE / 64) as usize;

/// What the pages of all producers may take, in bytes of bits.
pub const BYTES_MAX: usize = 128 << 20;

/// Pages that a producer needs at least: numbers of one are given away while answers to the one before are open.
const PAGES_MIN: usize = 2;

/// Producers times the rows of bits that each of their pages has: beyond it there is no room for the fewest pages that they need.
pub const ROWS_MAX: u64 = (BYTES_MAX / PAGES_MIN / (WORDS * 8)) as u64;

/// Rows of bits of a page: two, and one for each group.
pub const fn rows(groups: u64) -> u64 {
    2 + groups
}

/// What became of a producer's messages.
pub struct Ledger {
    run: u64,
    groups: usize,
    /// By producer. Each guards its pages; held for one message, or for all of a batch.
    accounts: Vec<Mutex<Account>>,
}

/// What happened to the messages of a run. Lost, duplicates and the like are counted once for each group that should have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tally {
    /// Given to the client to be sent.
    pub sent: u64,
    /// Answered with success; of oneway messages, handed over to the connection.
    pub acknowledged: u64,
    /// Not answered with success.
    pub failed: u64,
    /// Received, each once.
    pub received: u64,
    /// Received again.
    pub duplicates: u64,
    /// Acknowledged, and not received.
    pub lost: u64,
    /// Not answered with success, and received.
    pub failed_and_received: u64,
    /// Not followed to their end, because the time was over or to save memory.
    pub untraced: u64,
    /// Received, and not of this run.
    pub foreign: u64,
}

#[derive(Default)]
struct Account {
    /// By number of the page. Those below `opened` that are not here are complete, or given up.
    pages: BTreeMap<u64, Page>,
    /// Pages that were ever begun.
    opened: u64,
    /// Pages below were given up, or dropped before.
    given_up_below: u64,
    /// Acknowledged messages times groups that have not received them yet, of all pages: looked at too often to be added up then.
    outstanding: u64,
    /// Of dropped pages; of all, what needs no page.
    tally: Tally,
}

struct Page {
    acknowledged: [u64; WORDS],
    failed: [u64; WORDS],
    /// By group.
    received: Vec<[u64; WORDS]>,
    acknowledged_count: u64,
    failed_count: u64,
    /// By group: acknowledged and received.
    arrived: Vec<u64>,
}

impl Ledger {
    /// For so many producers, each of whose messages so many groups receive.
    pub fn new(run: u64, producers: usize, groups: usize) -> Ledger {
        Ledger { run, groups, accounts: (0..producers).map(|_| Mutex::default()).collect() }
    }

    /// How many groups receive each message.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// `count` messages from `first` on are given to the client now.
    pub fn send(&self, producer: u32, first: u64, count: u64) {
        let Some(account) = self.accounts.get(producer as usize) else { return };
        let mut account = account.lock();
        account.tally.sent += count;
        account.open(first + count, self.groups, self.pages_max());
    }

    /// Their answer came: success, or not.
    pub fn settle(&self, producer: u32, first: u64, count: u64, is_acknowledged: bool) {
        let Some(account) = self.accounts.get(producer as usize) else { return };
        let mut account = account.lock();
        for sequence in first..first + count {
            account.settle(sequence, is_acknowledged);
        }
    }

    /// A group received a message; true if it is its first time.
    pub fn receive(&self, group: usize, stamp: &Stamp) -> bool {
        let is_ours = stamp.run == self.run;
        match self.accounts.get(stamp.producer as usize) {
            Some(account) if is_ours => account.lock().receive(group, stamp.sequence),
            // No account is its own; the first one counts it.
            Some(_) | None => {
                self.foreign();
                false
            }
        }
    }

    /// A group received what is no message of any run.
    pub fn foreign(&self) {
        if let Some(account) = self.accounts.first() {
            account.lock().tally.foreign += 1;
        }
    }

    /// Adds what was counted elsewhere.
    pub fn add(&self, producer: u32, counted: &Tally) {
        if let Some(account) = self.accounts.get(producer as usize) {
            account.lock().tally.add(counted);
        }
    }

    /// What happened so far. What is acknowledged and not received counts as lost, so ask when nothing is on its way any more.
    pub fn tally(&self) -> Tally {
        let mut all = Tally::default();
        for account in &self.accounts {
            let account = account.lock();
            all.add(&account.tally);
            account.pages.values().for_each(|page| all.add(&page.tally()));
        }
        all
    }

    /// Acknowledged messages times groups that have not received them yet.
    pub fn outstanding(&self) -> u64 {
        self.accounts.iter().map(|account| account.lock().outstanding).sum()
    }

    /// Pages that one producer may keep.
    fn pages_max(&self) -> usize {
        let page_bytes = WORDS * 8 * (2 + self.groups);
        (BYTES_MAX / page_bytes / self.accounts.len().max(1)).max(PAGES_MIN)
    }
}

impl Tally {
    fn add(&mut self, other: &Tally) {
        self.sent += other.sent;
        self.acknowledged += other.acknowledged;
        self.failed += other.failed;
        self.received += other.received;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.failed_and_received += other.failed_and_received;
        self.untraced += other.untraced;
        self.foreign += other.foreign;
    }
}

impl Account {
    /// Begins the pages below `end`.
    fn open(&mut self, end: u64, groups: usize, pages_max: usize) {
        while self.opened * PAGE < end {
            self.pages.insert(self.opened, Page::new(groups));
            self.opened += 1;
            if self.pages.len() > pages_max
                && let Some((number, page)) = self.pages.pop_first()
            {
                self.given_up_below = number + 1;
                let mut tally = page.tally();
                self.outstanding -= tally.lost;
                let unsettled = PAGE - page.acknowledged_count - page.failed_count;
                tally.untraced = tally.lost + unsettled;
                tally.lost = 0;
                self.tally.add(&tally);
            }
        }
    }

    fn settle(&mut self, sequence: u64, is_acknowledged: bool) {
        let Some(page) = self.pages.get_mut(&(sequence / PAGE)) else { return };
        self.outstanding += page.settle(sequence, is_acknowledged);
        self.drop_if_complete(sequence / PAGE);
    }

    fn receive(&mut self, group: usize, sequence: u64) -> bool {
        let number = sequence / PAGE;
        if number >= self.opened {
            // It has our run's number, and was never sent.
            self.tally.foreign += 1;
            return false;
        }
        let Some(page) = self.pages.get_mut(&number) else {
            // Of a page given up nobody knows whether this is the first time; it was counted then. A complete one has had it.
            if number >= self.given_up_below {
                self.tally.duplicates += 1;
            }
            return number < self.given_up_below;
        };
        let Some(arrived) = page.receive(group, sequence) else {
            self.tally.duplicates += 1;
            return false;
        };
        self.outstanding -= arrived;
        self.drop_if_complete(number);
        true
    }

    fn drop_if_complete(&mut self, number: u64) {
        if self.pages.get(&number).is_some_and(Page::is_complete)
            && let Some(page) = self.pages.remove(&number)
        {
            self.tally.add(&page.tally());
        }
    }
}

impl Page {
    fn new(groups: usize) -> Page {
        Page {
            acknowledged: [0; WORDS],
            failed: [0; WORDS],
            received: vec![[0; WORDS]; groups],
            acknowledged_count: 0,
            failed_count: 0,
            arrived: vec![0; groups],
        }
    }

    /// Returns for how many groups this begins to be outstanding.
    fn settle(&mut self, sequence: u64, is_acknowledged: bool) -> u64 {
        let (word, bit) = place(sequence);
        if (self.acknowledged[word] | self.failed[word]) & bit != 0 {
            return 0;
        }
        if !is_acknowledged {
            self.failed[word] |= bit;
            self.failed_count += 1;
            return 0;
        }
        self.acknowledged[word] |= bit;
        self.acknowledged_count += 1;
        let mut missing = 0;
        for (received, arrived) in self.received.iter().zip(&mut self.arrived) {
            let has_come = u64::from(received[word] & bit != 0);
            *arrived += has_come;
            missing += 1 - has_come;
        }
        missing
    }

    /// How many were outstanding and are no more: one, or none before the answer. Nothing if the group has it already.
    fn receive(&mut self, group: usize, sequence: u64) -> Option<u64> {
        let (word, bit) = place(sequence);
        let received = self.received.get_mut(group)?;
        if received[word] & bit != 0 {
            return None;
        }
        received[word] |= bit;
        let was_outstanding = u64::from(self.acknowledged[word] & bit != 0);
        self.arrived[group] += was_outstanding;
        Some(was_outstanding)
    }

    /// Nothing is open, and nothing failed: a failed message may be stored all the same, and come later.
    fn is_complete(&self) -> bool {
        self.acknowledged_count == PAGE && self.arrived.iter().all(|arrived| *arrived == PAGE)
    }

    fn tally(&self) -> Tally {
        let ones = |words: &[u64; WORDS]| words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let received: u64 = self.received.iter().map(ones).sum();
        let failed = |received: &[u64; WORDS]| {
            received
                .iter()
                .zip(&self.failed)
                .map(|(received, failed)| u64::from((received & failed).count_ones()))
                .sum::<u64>()
        };
        Tally {
            acknowledged: self.acknowledged_count,
            failed: self.failed_count,
            received,
            lost: self.arrived.iter().map(|arrived| self.acknowledged_count - arrived).sum(),
            failed_and_received: self.received.iter().map(failed).sum(),
            ..Tally::default()
        }
    }
}

/// The word and the bit of a message in its page.
pub fn place(sequence: u64) -> (usize, u64) {
    let within = sequence % PAGE;
    ((within / 64) as usize, 1 << (within % 64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RUN: u64 = 5;

    fn stamp(producer: u32, sequence: u64) -> Stamp {
        Stamp { lane: 0, producer, run: RUN, sequence, due_ns: 0 }
    }

    #[test]
    fn what_comes_once_is_neither_lost_nor_duplicate_and_leaves_no_page_behind() {
        let ledger = Ledger::new(RUN, 2, 2);
        for sequence in 0..2 * PAGE {
            ledger.send(1, sequence, 1);
            // Some are received before their answer is.
            let is_early = sequence % 3 == 0;
            if !is_early {
                ledger.settle(1, sequence, 1, true);
            }
            assert!((0..2).all(|group| ledger.receive(group, &stamp(1, sequence))));
            if is_early {
                ledger.settle(1, sequence, 1, true);
            }
        }
        let n = 2 * PAGE;
        let expected = Tally { sent: n, acknowledged: n, received: 2 * n, ..Tally::default() };
        assert_eq!((ledger.tally(), ledger.outstanding()), (expected, 0));
        assert!(ledger.accounts[1].lock().pages.is_empty());
        // Whoever is complete is known to have been received.
        assert!(!ledger.receive(0, &stamp(1, 17)));
        assert_eq!(ledger.tally().duplicates, 1);
    }

    #[test]
    fn losses_duplicates_and_failures_that_were_stored_are_told_apart() {
        let ledger = Ledger::new(RUN, 1, 1);
        ledger.send(0, 0, 10);
        ledger.settle(0, 0, 8, true);
        ledger.settle(0, 8, 2, false);
        for sequence in [0, 1, 2, 3, 4, 5, 5, 5, 9] {
            ledger.receive(0, &stamp(0, sequence));
        }
        let tally = ledger.tally();
        assert_eq!((tally.sent, tally.acknowledged, tally.failed), (10, 8, 2));
        assert_eq!((tally.received, tally.duplicates, tally.lost, tally.failed_and_received), (7, 2, 2, 1));
        assert_eq!(ledger.outstanding(), 2);
    }

    #[test]
    fn what_is_not_of_this_run_counts_as_foreign() {
        let ledger = Ledger::new(RUN, 1, 1);
        ledger.send(0, 0, 1);
        assert!(!ledger.receive(0, &Stamp { run: 6, ..stamp(0, 0) }));
        assert!(!ledger.receive(0, &stamp(9, 0)));
        assert!(!ledger.receive(0, &stamp(0, PAGE)));
        ledger.foreign();
        assert_eq!(ledger.tally(), Tally { sent: 1, foreign: 4, ..Tally::default() });
    }

    #[test]
    fn memory_is_bounded_and_what_is_given_up_is_never_called_delivered() {
        let ledger = Ledger::new(RUN, 1000, 1);
        let pages_max = ledger.pages_max() as u64;
        let sent = (pages_max + 3) * PAGE;
        ledger.send(0, 0, sent);
        assert_eq!(ledger.accounts[0].lock().pages.len() as u64, pages_max);
        let tally = ledger.tally();
        assert_eq!((tally.untraced, tally.received, tally.lost), (3 * PAGE, 0, 0));
        ledger.settle(0, 3 * PAGE, 1, true);
        assert_eq!(ledger.outstanding(), 1);
        ledger.send(0, sent, PAGE);
        assert_eq!((ledger.outstanding(), ledger.tally().untraced), (0, 4 * PAGE));
        let tally = ledger.tally();
        // It comes all the same: not a duplicate, and not counted twice.
        ledger.receive(0, &stamp(0, 1));
        assert_eq!(ledger.tally(), tally);
    }

    proptest! {
        /// Against a plain model: each message with its answer and how often it came.
        #[test]
        fn the_tally_is_what_counting_one_by_one_gives(
            messages in prop::collection::vec((any::<bool>(), 0u8..4), 1..9000),
            answers_first in any::<bool>(),
        ) {
            let ledger = Ledger::new(RUN, 1, 1);
            ledger.send(0, 0, messages.len() as u64);
            for (sequence, (is_acknowledged, times)) in messages.iter().enumerate() {
                let sequence = sequence as u64;
                let settle = || ledger.settle(0, sequence, 1, *is_acknowledged);
                if answers_first { settle(); }
                for _ in 0..*times {
                    ledger.receive(0, &stamp(0, sequence));
                }
                if !answers_first { settle(); }
            }
            let count = |is: &dyn Fn(bool, u64) -> u64| messages.iter().map(|(ok, times)| is(*ok, u64::from(*times))).sum::<u64>();
            let expected = Tally {
                sent: messages.len() as u64,
                acknowledged: count(&|ok, _| u64::from(ok)),
                failed: count(&|ok, _| u64::from(!ok)),
                received: count(&|_, times| times.min(1)),
                duplicates: count(&|_, times| times.saturating_sub(1)),
                lost: count(&|ok, times| u64::from(ok && times == 0)),
                failed_and_received: count(&|ok, times| u64::from(!ok && times > 0)),
                untraced: 0,
                foreign: 0,
            };
            prop_assert_eq!(ledger.tally(), expected);
            prop_assert_eq!(ledger.outstanding(), expected.lost);
        }
    }
}
