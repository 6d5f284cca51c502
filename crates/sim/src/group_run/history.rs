//! What was sent, consumed, given back and committed, and what of that a crash may take back.

use std::collections::{BTreeMap, BTreeSet};

use super::GROUPS;
use super::register::Register;
use crate::disk::Crash;
use crate::log_run::{End, body};

/// Times that a message of a group fails, at most.
const FAILS_MAX: u32 = 2;

/// Which topic of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// What producers send to.
    Main,
    /// What its members have given back.
    Retry,
}

/// A queue, as a group sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Queue {
    pub topic: Topic,
    pub id: i32,
}

/// A message.
#[derive(Clone, Debug)]
pub struct Sent {
    pub producer: u16,
    pub queue: i32,
    bytes: usize,
    /// Tries that were not answered: each may have stored it.
    pub unanswered: u32,
    /// Where the log ended when its producer heard that it is stored.
    pub end: Option<u64>,
    /// It is there, whatever happened until now.
    pub is_sure: bool,
    /// Its producer does not know.
    pub is_given_up: bool,
}

/// What a group has done with a message.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    is_consumed: bool,
    fails: u32,
    /// Where the log ended when the broker said that it keeps it for later.
    kept_at: Option<u64>,
    /// A crash may have taken what it kept.
    is_lost: bool,
}

/// Somebody is at a message of a queue, in order.
#[derive(Clone, Debug)]
struct AtWork {
    member: String,
    /// The life of the broker that gave the lock.
    life: u32,
}

/// A message that a member begins with, in order.
pub struct Begun {
    pub offset: i64,
    pub id: u64,
    /// It came before the broker started: it may be lost there, and its number another one's.
    pub is_old: bool,
}

/// See the module.
#[derive(Default)]
pub struct History {
    pub sent: BTreeMap<u64, Sent>,
    done: Vec<BTreeMap<u64, Done>>,
    registers: BTreeMap<(usize, Queue), Register>,
    at_work: BTreeMap<(usize, Queue), AtWork>,
    /// Of groups that consume in order: all below was consumed.
    in_order_to: BTreeMap<(usize, Queue), i64>,
    /// Queues may end before what clients have seen.
    may_be_ahead: bool,
    flushed: u64,
    last_id: u64,
    /// From now on.
    pub nobody_fails: bool,
}

impl History {
    pub fn new() -> History {
        History { done: vec![BTreeMap::new(); GROUPS.len()], ..History::default() }
    }

    /// A producer takes up a new message.
    pub fn begin(&mut self, producer: u16, queue: i32, bytes: usize) -> u64 {
        self.last_id += 1;
        let (end, is_sure, is_given_up) = (None, false, false);
        let sent = Sent { producer, queue, bytes, unanswered: 0, end, is_sure, is_given_up };
        self.sent.insert(self.last_id, sent);
        self.last_id
    }

    /// Its producer is told so, when the log ends at `end`.
    pub fn stored(&mut self, id: u64, end: u64) {
        if let Some(sent) = self.sent.get_mut(&id) {
            (sent.end, sent.is_sure) = (Some(end), true);
        }
    }

    /// A try was not answered.
    pub fn may_be_stored(&mut self, id: u64) {
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.unanswered += 1;
        }
    }

    pub fn given_up(&mut self, id: u64) {
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.is_given_up = true;
        }
    }

    /// What is wrong with a message that was read.
    pub fn is_foreign(&self, id: u64, found: &[u8]) -> Option<String> {
        match self.sent.get(&id) {
            None => Some(format!("message {id} was never sent")),
            Some(sent) if body(id, sent.bytes) != found => Some(format!("message {id} has another body")),
            Some(_) => None,
        }
    }

    /// The offsets of a group in a queue.
    pub fn register(&mut self, group: usize, queue: Queue) -> &mut Register {
        self.registers.entry((group, queue)).or_default()
    }

    pub fn consumed(&mut self, group: usize, id: u64) {
        self.done[group].entry(id).or_default().is_consumed = true;
    }

    /// Whether it may fail once more. Counts.
    pub fn may_fail(&mut self, group: usize, id: u64) -> bool {
        if self.nobody_fails {
            return false;
        }
        let done = self.done[group].entry(id).or_default();
        done.fails += 1;
        done.fails <= FAILS_MAX
    }

    /// The broker keeps it for later.
    pub fn given_back(&mut self, group: usize, id: u64, end: u64) {
        let done = self.done[group].entry(id).or_default();
        done.kept_at = done.kept_at.max(Some(end));
    }

    /// What a group has to have consumed, and has not.
    pub fn missing(&self, group: usize) -> impl Iterator<Item = (u64, &Sent)> + '_ {
        self.sent
            .iter()
            .filter(move |(id, sent)| {
                let done = self.done[group].get(id).copied().unwrap_or_default();
                sent.is_sure && !done.is_consumed && !done.is_lost
            })
            .map(|(id, sent)| (*id, sent))
    }

    /// Somebody begins with a message, under a lock from that life of the broker. Says what is wrong about it.
    pub fn begins_work(
        &mut self,
        group: usize,
        queue: Queue,
        member: &str,
        life: u32,
        begun: &Begun,
    ) -> Option<String> {
        let work = AtWork { member: member.to_owned(), life };
        let before = self.at_work.insert((group, queue), work);
        let done = self.in_order_to.entry((group, queue)).or_default();
        let offset = begun.offset;
        if offset > *done && !(begun.is_old && self.may_be_ahead) {
            return Some(format!("{offset} comes, and {done} was not consumed"));
        }
        // A broker that starts knows of no locks.
        let before = before.filter(|before| before.member != member && before.life == life)?;
        Some(format!("{member} begins at {offset} while {} is at it", before.member))
    }

    /// The message that a member was at is done, in order.
    pub fn consumed_in_order(&mut self, group: usize, queue: Queue, offset: i64) {
        let done = self.in_order_to.entry((group, queue)).or_default();
        // What lies further on may be of the time before a loss of power.
        if offset == *done {
            *done = offset + 1;
        }
    }

    pub fn stops_work(&mut self, group: usize, queue: Queue, member: &str) {
        if self.at_work.get(&(group, queue)).is_some_and(|work| work.member == member) {
            self.at_work.remove(&(group, queue));
        }
    }

    /// The device has the log so far.
    pub fn flushed_to(&mut self, flushed: u64) {
        self.flushed = self.flushed.max(flushed);
    }

    /// Forgets what such an end of the broker may have taken.
    pub fn end_of_life(&mut self, how: End, is_sync: bool, now: i64) {
        let keeps_answers = is_sync || !matches!(how, End::Crashed(Crash::Power));
        self.may_be_ahead |= !keeps_answers;
        for sent in self.sent.values_mut() {
            sent.is_sure &= keeps_answers || sent.end.is_some_and(|end| end <= self.flushed);
        }
        for done in self.done.iter_mut().flat_map(BTreeMap::values_mut) {
            done.is_lost |= !keeps_answers && done.kept_at.is_some_and(|end| end > self.flushed);
        }
        if !matches!(how, End::Closed) {
            self.registers.values_mut().for_each(|register| register.crashed(now, !keeps_answers));
        }
        // Ends of the log count from then on for what is there now.
        for sent in self.sent.values_mut().filter(|sent| sent.is_sure) {
            sent.end = Some(0);
        }
        for done in self.done.iter_mut().flat_map(BTreeMap::values_mut) {
            done.kept_at = done.kept_at.map(|_| 0);
        }
        self.flushed = 0;
    }

    /// A start has found queues that end there.
    pub fn queue_ends(&mut self, queue: Queue, end: i64, now: i64) {
        if !self.may_be_ahead {
            return;
        }
        for group in 0..GROUPS.len() {
            let register = self.register(group, queue);
            if register.most() > end {
                register.may_be_set(end, now);
            }
            if let Some(done) = self.in_order_to.get_mut(&(group, queue)) {
                *done = (*done).min(end);
            }
        }
    }

    /// Messages by producer and queue, of which the producer knows in which order they are.
    pub fn in_order(&self) -> BTreeMap<(u16, i32), BTreeSet<u64>> {
        let mut all: BTreeMap<(u16, i32), BTreeSet<u64>> = BTreeMap::new();
        for (id, sent) in self.sent.iter().filter(|(_, sent)| !sent.is_given_up) {
            all.entry((sent.producer, sent.queue)).or_default().insert(*id);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Queue = Queue { topic: Topic::Main, id: 0 };

    fn begins(history: &mut History, member: &str, life: u32, offset: i64) -> Option<String> {
        history.begins_work(1, QUEUE, member, life, &Begun { offset, id: 1, is_old: false })
    }

    #[test]
    fn a_message_that_was_stored_and_not_consumed_is_missing() {
        let mut history = History::new();
        let id = history.begin(0, 0, 8);
        assert_eq!(history.missing(0).count(), 0, "nobody knows that it is stored");
        history.stored(id, 100);
        history.consumed(1, id);
        assert_eq!((history.missing(0).count(), history.missing(1).count()), (1, 0));
        // A loss of power takes it where answers do not wait for the device.
        history.end_of_life(End::Crashed(Crash::Power), true, 0);
        assert_eq!(history.missing(0).count(), 1);
        history.flushed_to(0);
        history.stored(id, 100);
        history.end_of_life(End::Crashed(Crash::Power), false, 0);
        assert_eq!(history.missing(0).count(), 0);
    }

    #[test]
    fn in_order_nothing_is_passed_over() {
        let mut history = History::new();
        for offset in 0..2 {
            assert_eq!(begins(&mut history, "a", 0, offset), None);
            history.consumed_in_order(1, QUEUE, offset);
        }
        assert!(begins(&mut history, "a", 0, 3).unwrap().contains("2 was not consumed"));
        // Begun is not done: who comes after it begins there again.
        assert_eq!(begins(&mut history, "a", 0, 2), None);
        assert!(begins(&mut history, "a", 0, 3).unwrap().contains("2 was not consumed"));
    }

    #[test]
    fn in_order_one_member_is_at_a_queue_under_the_locks_of_one_life() {
        let mut history = History::new();
        assert_eq!(begins(&mut history, "a", 0, 0), None);
        assert!(begins(&mut history, "b", 0, 0).unwrap().contains("while a is at it"));
        let mut history = History::new();
        assert_eq!(begins(&mut history, "a", 0, 0), None);
        assert_eq!(begins(&mut history, "b", 1, 0), None, "a broker that starts knows of no locks");
        history.consumed_in_order(1, QUEUE, 0);
        history.stops_work(1, QUEUE, "b");
        assert_eq!(begins(&mut history, "a", 1, 1), None);
    }

    #[test]
    fn another_body_is_foreign_and_so_is_what_was_never_sent() {
        let mut history = History::new();
        let id = history.begin(0, 0, 60);
        assert_eq!(history.is_foreign(id, &body(id, 60)), None);
        assert!(history.is_foreign(id, &body(id, 61)).is_some());
        assert!(history.is_foreign(id + 1, &body(id + 1, 60)).is_some());
    }
}
