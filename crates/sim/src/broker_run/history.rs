//! What the broker was asked, what it answered, and what of that a crash may take back.

use std::collections::BTreeMap;

use super::QUEUES;
use super::pops::Lease;
use crate::disk::Crash;
use crate::log_run::{End, body};
use crate::reading::Seen;
use crate::verdict::Verdict;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For whoever reads its topic.
    Now,
    /// The same, at a time.
    Later { due: i64 },
    /// The same, if it is committed. None: its place was not told.
    Half(Option<Half>),
    /// To be popped.
    Task,
}

impl Kind {
    /// It stands in its queue where its producer was told, and behind all that was sent there before it.
    pub fn has_place(self) -> bool {
        match self {
            Kind::Now | Kind::Task => true,
            Kind::Later { .. } | Kind::Half(_) => false,
        }
    }
}

/// A half message that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// Its log offset, and its place in the half queue.
    pub at: i64,
    pub queue_offset: i64,
    pub ended: Ended,
}

/// What became of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Open,
    /// It was asked for, and what the broker made of it is not known.
    Perhaps,
    /// The broker said so, when the log ended there. What a loss of power takes of it is asked for again.
    Surely {
        is_commit: bool,
        end: u64,
    },
}

/// A message that was sent.
#[derive(Clone, Debug)]
pub struct Sent {
    pub topic: &'static str,
    pub kind: Kind,
    pub bytes: usize,
    /// Which one it was sent to.
    pub queue: i32,
    /// Its number there, as it was acknowledged; only where that is its place.
    pub offset: Option<i64>,
    /// Where the log ended when it was acknowledged; 0 once a crash has left it.
    pub end: Option<u64>,
    /// It is there, whatever happened until now.
    pub is_sure: bool,
}

/// Offsets of a group in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    /// The largest that was asked for.
    pub most: i64,
    /// The last one that was acknowledged, until a crash.
    pub last: Option<i64>,
    /// What was told, and survives what is to come.
    least: i64,
}

impl Default for Offsets {
    fn default() -> Offsets {
        Offsets { most: -1, last: None, least: -1 }
    }
}

impl Offsets {
    /// The broker has taken that one.
    pub fn committed(&mut self, offset: i64) {
        self.last = Some(offset);
    }

    /// The broker says so; what is wrong about it.
    pub fn told(&mut self, told: i64) -> Option<(Verdict, String)> {
        let least = self.last.unwrap_or(self.least).max(self.least);
        let wrong = match told {
            _ if told < least => (Verdict::WentBack, format!("offset {told}, where {least} was promised")),
            _ if told > self.most => (Verdict::Foreign, format!("offset {told}, of {} that were committed", self.most)),
            _ => {
                self.least = told;
                return None;
            }
        };
        Some(wrong)
    }
}

/// See the module.
#[derive(Default)]
pub struct History {
    pub sent: BTreeMap<u64, Sent>,
    pub offsets: [Offsets; QUEUES as usize],
    /// Of tasks that were popped.
    pub leases: BTreeMap<u64, Lease>,
    /// Messages from here on were sent to the broker that runs.
    pub first_of_life: u64,
    /// What was sent to be delivered later may be delivered twice, before this one: the journal has lost how far delivery had come.
    pub once_from: u64,
    last_id: u64,
    flushed: u64,
    /// Messages whose answer waited for the device.
    safe: std::collections::BTreeSet<u64>,
}

impl History {
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// The device has the log so far.
    pub fn flushed_to(&mut self, flushed: u64) {
        self.flushed = self.flushed.max(flushed);
    }

    pub fn is_safe(&mut self, id: u64) {
        self.safe.insert(id);
    }

    /// Whether an answer to a send to this topic waited for the device.
    pub fn has_safe_of(&self, topic: &str) -> bool {
        self.safe.iter().any(|id| self.sent.get(id).is_some_and(|sent| sent.topic == topic))
    }

    /// What is wrong with a message that was read in a topic.
    pub fn is_foreign(&self, id: u64, topic: &str, found: &[u8]) -> Option<String> {
        match self.sent.get(&id) {
            None => Some(format!("message {id} was never sent")),
            Some(sent) if sent.topic != topic || body(id, sent.bytes) != found => {
                Some(format!("message {id} is another one"))
            }
            Some(_) => None,
        }
    }

    /// The same of one that stands in a queue, behind message `last` of those that have a place.
    pub fn wrong(&self, topic: &str, queue: i32, seen: &Seen, last: u64) -> Option<(Verdict, String)> {
        let Seen { id, offset, .. } = *seen;
        if let Some(what) = self.is_foreign(id, topic, &seen.body) {
            return Some((Verdict::Foreign, what));
        }
        let sent = self.sent.get(&id)?;
        if sent.queue != queue || sent.offset.is_some_and(|told| told != offset as i64) {
            return Some((Verdict::Unordered, format!("message {id} was stored as {sent:?}")));
        }
        let is_behind = sent.kind.has_place() && id < last;
        is_behind.then(|| (Verdict::Unordered, format!("message {id} stands behind {last}")))
    }

    /// Half messages whose places are known, and are no others' by now.
    pub fn halves(&self) -> impl Iterator<Item = u64> + '_ {
        self.sent.iter().filter(|(_, sent)| sent.is_sure && matches!(sent.kind, Kind::Half(Some(_)))).map(|(id, _)| *id)
    }

    pub fn end_half(&mut self, id: u64, ended: Ended) {
        if let Some(Sent { kind: Kind::Half(Some(half)), .. }) = self.sent.get_mut(&id) {
            half.ended = ended;
        }
    }

    /// Forgets what such an end of a process may have taken. `is_sync`: answers waited for the device, but for those to messages and topics that
    /// said otherwise. Of these nothing was shown to anybody before the device had it.
    pub fn end_of_life(&mut self, how: End, is_sync: bool) {
        let is_power = matches!(how, End::Crashed(Crash::Power));
        let keeps_answers = is_sync || !is_power;
        for (id, sent) in &mut self.sent {
            sent.is_sure &= !is_power || self.safe.contains(id) || sent.end.is_some_and(|end| end <= self.flushed);
            // Ends of the log count from then on for what is there now.
            if sent.is_sure {
                sent.end = Some(0);
            }
            if let Kind::Half(Some(half)) = &mut sent.kind
                && let Ended::Surely { is_commit, end } = half.ended
            {
                let is_lost = is_power && end > self.flushed;
                half.ended = if is_lost { Ended::Perhaps } else { Ended::Surely { is_commit, end: 0 } };
            }
        }
        for offsets in &mut self.offsets {
            if !matches!(how, End::Closed) {
                // An answered commit is carried to the journal a little later.
                offsets.last = None;
            }
            if !keeps_answers {
                offsets.least = -1;
            }
        }
        if !keeps_answers {
            self.once_from = self.last_id + 1;
            self.leases.values_mut().for_each(Lease::may_be_lost);
        }
        self.flushed = 0;
        self.first_of_life = self.last_id + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::NOW;
    use super::*;

    #[test]
    fn an_offset_below_one_that_was_promised_went_back() {
        let mut offsets = Offsets { most: 7, ..Offsets::default() };
        offsets.committed(5);
        assert_eq!(offsets.told(5), None);
        assert_eq!(offsets.told(4).unwrap().0, Verdict::WentBack);
        assert_eq!(offsets.told(8).unwrap().0, Verdict::Foreign);
    }

    fn sent(kind: Kind) -> Sent {
        Sent { topic: NOW, kind, bytes: 8, queue: 0, offset: None, end: Some(100), is_sure: true }
    }

    #[test]
    fn what_a_crash_has_left_is_there_wherever_the_log_ends_then() {
        let mut history = History::default();
        let half = Half { at: 0, queue_offset: 0, ended: Ended::Surely { is_commit: true, end: 110 } };
        for kind in [Kind::Now, Kind::Half(Some(half))] {
            let id = history.next_id();
            history.sent.insert(id, sent(kind));
        }
        history.end_of_life(End::Crashed(Crash::Killed), false);
        assert!(history.sent.values().all(|sent| sent.is_sure && sent.end == Some(0)));
        let Kind::Half(Some(half)) = history.sent[&2].kind else { panic!("it was one") };
        assert_eq!(half.ended, Ended::Surely { is_commit: true, end: 0 });
    }

    #[test]
    fn a_loss_of_power_takes_what_did_not_wait_for_the_device_and_nothing_else() {
        let sure = |how: End, is_sync: bool, is_safe: bool, flushed: u64| {
            let mut history = History::default();
            let id = history.next_id();
            history.sent.insert(id, sent(Kind::Now));
            if is_safe {
                history.is_safe(id);
            }
            history.flushed_to(flushed);
            history.end_of_life(how, is_sync);
            history.sent[&id].is_sure
        };
        let power = End::Crashed(Crash::Power);
        for is_sync in [false, true] {
            assert!(sure(power, is_sync, true, 0), "its answer waited for the device");
            assert!(sure(power, is_sync, false, 100), "the device has it");
            assert!(!sure(power, is_sync, false, 99), "nobody waited for the device");
            assert!(sure(End::Crashed(Crash::Killed), is_sync, false, 0));
        }
    }
}
