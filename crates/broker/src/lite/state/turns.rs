//! Whose turn it is to pop a lite topic, and when one that is popped in order is free again: without a clock.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;

/// A group and a light queue.
pub(crate) type LiteKey = (Arc<str>, Arc<str>);

/// Turns and alarms.
#[derive(Default)]
pub(in crate::lite) struct Turns {
    /// Light queues that are being popped, and whether somebody else came in the meantime.
    taken: HashMap<LiteKey, bool>,
    /// When a light queue may be free: one alarm each, the one that was set last.
    alarms: HashMap<LiteKey, i64>,
    due: BTreeSet<(i64, LiteKey)>,
}

impl Turns {
    /// False when somebody else has the turn.
    pub(super) fn take(&mut self, key: &LiteKey) -> bool {
        if let Some(has_missed) = self.taken.get_mut(key) {
            *has_missed = true;
            return false;
        }
        self.taken.insert(key.clone(), false);
        true
    }

    /// Ends a turn. True when somebody came in the meantime.
    pub(super) fn release(&mut self, key: &LiteKey) -> bool {
        self.taken.remove(key).unwrap_or(false)
    }

    /// Sets the alarm of a light queue, in place of the one before. True when it is the first one now.
    pub(super) fn set(&mut self, key: LiteKey, at_ms: i64) -> bool {
        self.clear(&key);
        let is_first = self.next().is_none_or(|first| at_ms < first);
        self.alarms.insert(key.clone(), at_ms);
        self.due.insert((at_ms, key));
        is_first
    }

    pub(super) fn clear(&mut self, key: &LiteKey) {
        if let Some(at_ms) = self.alarms.remove(key) {
            self.due.remove(&(at_ms, key.clone()));
        }
    }

    /// Lets all alarms ring now.
    pub(super) fn ring_all(&mut self) {
        let due = std::mem::take(&mut self.due);
        self.due.extend(due.into_iter().map(|(_, key)| (i64::MIN, key)));
        self.alarms.values_mut().for_each(|at_ms| *at_ms = i64::MIN);
    }

    /// When the next alarm rings.
    pub(in crate::lite) fn next(&self) -> Option<i64> {
        self.due.first().map(|(at_ms, _)| *at_ms)
    }

    /// Alarms that ring now.
    pub(in crate::lite) fn take_due(&mut self, now_ms: i64) -> Vec<LiteKey> {
        let mut keys = Vec::new();
        while self.next().is_some_and(|at_ms| at_ms <= now_ms) {
            let Some((_, key)) = self.due.pop_first() else { break };
            self.alarms.remove(&key);
            keys.push(key);
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(queue: &str) -> LiteKey {
        (Arc::from("G"), Arc::from(queue))
    }

    #[test]
    fn who_comes_while_another_has_the_turn_is_not_forgotten() {
        let mut turns = Turns::default();
        assert!(turns.take(&key("a")) && turns.take(&key("b")));
        assert!(!turns.take(&key("a")));
        assert!(turns.release(&key("a")) && !turns.release(&key("b")));
        assert!(turns.take(&key("a")), "the turn is free again");
    }

    #[test]
    fn a_queue_has_the_alarm_that_was_set_last() {
        let mut turns = Turns::default();
        assert!(turns.set(key("a"), 10) && !turns.set(key("b"), 20));
        assert!(!turns.set(key("a"), 30));
        assert_eq!((turns.take_due(15), turns.next()), (vec![], Some(20)));
        assert_eq!(turns.take_due(30), [key("b"), key("a")]);
        turns.set(key("a"), 40);
        turns.clear(&key("a"));
        assert_eq!((turns.next(), turns.alarms.len()), (None, 0));
    }
}
