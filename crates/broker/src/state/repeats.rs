//! The window in which a message with a known `UNIQ_KEY` is not stored again. `repeats.rs` answers
//! what comes a second time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use env::Clock;
use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::LogOffset;
use store::Landed;

use crate::state::topics::Topic;

/// Longest key that is remembered, in bytes. Clients make them 32 long.
const KEY_MAX: usize = 128;

/// Where the first of several equal sends went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) at: LogOffset,
    pub(crate) end: LogOffset,
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: u64,
}

/// What a claim finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nobody sent it before: it is to be stored, under this name.
    New(Arc<str>),
    /// It is there.
    Stored(First),
    /// Another connection is about to store it.
    UnderWay,
}

#[derive(Debug)]
struct Sent<T> {
    claimed_at: Duration,
    topic: T,
    /// None until it is stored.
    first: Option<First>,
}

/// The sends of the last while. `T` is the topic's handle.
#[derive(Debug)]
struct RecentSends<T> {
    by_name: HashMap<Arc<str>, Sent<T>>,
    /// Oldest first. A name that was given up stays here until its time, and then removes nothing.
    in_order: VecDeque<(Duration, Arc<str>)>,
}

impl<T> RecentSends<T> {
    /// Forgets what is older than `window`, and the oldest if there would be more than `max`.
    fn claim(
        &mut self,
        name: &str,
        topic: T,
        is_gone: impl Fn(&T) -> bool,
        now: Duration,
        window: Duration,
        max: usize,
    ) -> Claim {
        while self.in_order.front().is_some_and(|(at, _)| now.saturating_sub(*at) >= window) {
            self.forget_oldest();
        }
        match self.by_name.get(name) {
            // What a deleted topic held is gone, and its name may belong to another one.
            Some(sent) if is_gone(&sent.topic) => {}
            Some(Sent { first: Some(first), .. }) => return Claim::Stored(*first),
            Some(Sent { first: None, .. }) => return Claim::UnderWay,
            None => {}
        }
        while self.in_order.len() >= max.max(1) {
            self.forget_oldest();
        }
        let name: Arc<str> = name.into();
        self.in_order.push_back((now, Arc::clone(&name)));
        self.by_name.insert(Arc::clone(&name), Sent { claimed_at: now, topic, first: None });
        Claim::New(name)
    }

    fn forget_oldest(&mut self) {
        if let Some((at, name)) = self.in_order.pop_front()
            && self.by_name.get(&name).is_some_and(|sent| sent.claimed_at == at)
        {
            self.by_name.remove(&name);
        }
    }

    fn settle(&mut self, name: &str, first: Option<First>) {
        match (self.by_name.get_mut(name), first) {
            (Some(sent), Some(_)) => sent.first = first,
            (Some(sent), None) if sent.first.is_none() => {
                self.by_name.remove(name);
            }
            (Some(_) | None, _) => {}
        }
    }
}

/// The window.
pub(crate) struct Repeats {
    /// Zero: off.
    window: Duration,
    max: usize,
    known: Mutex<RecentSends<Arc<Topic>>>,
}

impl Repeats {
    pub(crate) fn new(window_ms: u64, max: usize) -> Repeats {
        let known = RecentSends { by_name: HashMap::new(), in_order: VecDeque::new() };
        Repeats { window: Duration::from_millis(window_ms), max, known: Mutex::new(known) }
    }

    /// Looks whether this message was sent before, and notes it. None: it is left out.
    pub(crate) fn claim(&self, topic: &Arc<Topic>, uniq_key: &str, clock: &Clock) -> Option<Claim> {
        if self.window.is_zero()
            || uniq_key.is_empty()
            || uniq_key.len() > KEY_MAX
            || topic.is_retry()
            || topic.is_static()
        {
            return None;
        }
        let name = format!("{}\u{1}{uniq_key}", topic.name());
        Some(self.known.lock().claim(
            &name,
            Arc::clone(topic),
            |topic| topic.is_gone(),
            clock.elapsed(),
            self.window,
            self.max,
        ))
    }

    /// How many sends are remembered.
    pub(crate) fn count(&self) -> usize {
        self.known.lock().in_order.len()
    }

    /// What became of a claimed send: where it landed, or that it did not.
    pub(crate) fn settle(&self, name: &str, queue_id: i32, landed: Option<&Landed>) {
        let first =
            landed.map(|landed| First { at: landed.at, end: landed.end, queue_id, queue_offset: landed.queue_offset });
        self.known.lock().settle(name, first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);
    const FIRST: First = First { at: LogOffset(7), end: LogOffset(9), queue_id: 1, queue_offset: 5 };

    fn known() -> RecentSends<bool> {
        RecentSends { by_name: HashMap::new(), in_order: VecDeque::new() }
    }

    fn claim(known: &mut RecentSends<bool>, name: &str, seconds: u64) -> Claim {
        known.claim(name, false, |is_gone| *is_gone, Duration::from_secs(seconds), WINDOW, 3)
    }

    #[test]
    fn a_send_is_known_until_its_window_is_over() {
        let mut known = known();
        assert_eq!(claim(&mut known, "a", 0), Claim::New("a".into()));
        assert_eq!(claim(&mut known, "a", 1), Claim::UnderWay);
        known.settle("a", Some(FIRST));
        assert_eq!(claim(&mut known, "a", 9), Claim::Stored(FIRST));
        assert_eq!(claim(&mut known, "a", 10), Claim::New("a".into()));
    }

    #[test]
    fn a_send_that_was_not_stored_may_come_again() {
        let mut known = known();
        claim(&mut known, "a", 0);
        known.settle("a", None);
        assert_eq!(claim(&mut known, "a", 5), Claim::New("a".into()));
        known.settle("a", Some(FIRST));
        // The end of the first claim's time is not that of the second.
        assert_eq!(claim(&mut known, "a", 12), Claim::Stored(FIRST));
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered_and_the_oldest_goes_first() {
        let mut known = known();
        for name in ["a", "b", "c", "d"] {
            claim(&mut known, name, 0);
            known.settle(name, Some(FIRST));
        }
        assert_eq!((known.by_name.len(), known.in_order.len()), (3, 3));
        assert_eq!(claim(&mut known, "d", 1), Claim::Stored(FIRST));
        assert_eq!(claim(&mut known, "a", 1), Claim::New("a".into()));
        for _ in 0..10 {
            known.settle("a", None);
            claim(&mut known, "a", 1);
        }
        assert!(known.in_order.len() <= 3);
    }

    #[test]
    fn what_a_deleted_topic_held_does_not_count() {
        let mut known = known();
        known.claim("a", true, |is_gone| *is_gone, Duration::ZERO, WINDOW, 3);
        known.settle("a", Some(FIRST));
        assert_eq!(claim(&mut known, "a", 1), Claim::New("a".into()));
    }
}
