//! Queue locks: which client of a group may consume a queue in order.
//!
//! [`Locks`] is the state machine, a function of `now`, the time since the start; [`OrderLocks`] holds it behind one mutex and the clock. A lock that is not renewed
//! for `rocketmq.broker.rebalance.lockMaxLiveTime` (60 s) is free: a client renews every 20 s and treats its own as lost after 30 s, when it takes its next
//! batch. So when it leaves its group without a word, its locks hold for 45 s, and when it says that it leaves, they are free at once. In Apache they
//! hold for all of the 60 s, nobody consumes the queues meanwhile, and what the group sends back goes to dead letters.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use env::Clock;
use parking_lot::Mutex;
use protocol::body::MessageQueue;

/// Locks that a broker keeps. Clients name the queues, so without a bound a client that makes up names would fill the memory.
const LOCKS_MAX: usize = 1_000_000;

/// About so many locks are looked at before others get their turn.
const EXPIRED_AT_ONCE: usize = 1_000;

/// A client that nobody has set otherwise takes its own lock for lost when it was not renewed for so long.
const TAKEN_FOR_LOST: Duration = Duration::from_secs(30);

struct Lock {
    client: Box<str>,
    /// By the clock's `elapsed`: whoever sets the machine's clock must not free every lock.
    renewed_at: Duration,
    /// Its client has left the group since, without giving it up.
    is_left: bool,
}

impl Lock {
    fn is_held(&self, now: Duration, live: Duration) -> bool {
        // Whoever lets locks live longer has set that of the clients too: theirs is half of it, as by default. Of the other half a part has to pass too: a
        // client counts from when it hears of a renewal, and what it is consuming when it takes its lock for lost it consumes to the end.
        let live = if self.is_left { (live / 4 * 3).max(TAKEN_FOR_LOST).min(live) } else { live };
        now.saturating_sub(self.renewed_at) <= live
    }

    fn is_held_by_another(&self, client: &str, now: Duration, live: Duration) -> bool {
        &*self.client != client && self.is_held(now, live)
    }
}

/// The locks by group and queue.
struct Locks {
    /// How long a lock holds without being renewed.
    live: Duration,
    groups: BTreeMap<Box<str>, BTreeMap<MessageQueue, Lock>>,
    count: usize,
}

impl Locks {
    fn new(live: Duration) -> Locks {
        Locks { live, groups: BTreeMap::new(), count: 0 }
    }

    /// Locks or renews as many of the queues as it can, and says which.
    fn lock(&mut self, group: &str, client: &str, queues: Vec<MessageQueue>, now: Duration) -> Vec<MessageQueue> {
        if queues.is_empty() {
            return queues;
        }
        let held = self.groups.entry(group.into()).or_default();
        let mut locked = Vec::with_capacity(queues.len());
        for queue in queues {
            match held.get_mut(&queue) {
                Some(lock) if lock.is_held_by_another(client, now, self.live) => continue,
                Some(lock) => {
                    if &*lock.client != client {
                        lock.client = client.into();
                    }
                    lock.renewed_at = now;
                    lock.is_left = false;
                }
                None if self.count >= LOCKS_MAX => continue,
                None => {
                    held.insert(queue.clone(), Lock { client: client.into(), renewed_at: now, is_left: false });
                    self.count += 1;
                }
            }
            locked.push(queue);
        }
        if held.is_empty() {
            self.groups.remove(group);
        }
        locked
    }

    /// Gives up the queues that this client holds; those of others stay.
    fn unlock(&mut self, group: &str, client: &str, queues: &[MessageQueue]) {
        let Some(held) = self.groups.get_mut(group) else { return };
        for queue in queues {
            if held.get(queue).is_some_and(|lock| &*lock.client == client) {
                held.remove(queue);
                self.count -= 1;
            }
        }
        if held.is_empty() {
            self.groups.remove(group);
        }
    }

    /// A client has said that it leaves the group: it consumes nothing any more.
    fn free(&mut self, group: &str, client: &str) {
        let Some(held) = self.groups.get_mut(group) else { return };
        let before = held.len();
        held.retain(|_, lock| &*lock.client != client);
        self.count -= before - held.len();
        if held.is_empty() {
            self.groups.remove(group);
        }
    }

    /// A client is gone from the group, and may still consume.
    fn leave(&mut self, group: &str, client: &str) {
        let Some(held) = self.groups.get_mut(group) else { return };
        held.values_mut().filter(|lock| &*lock.client == client).for_each(|lock| lock.is_left = true);
    }

    /// A client that was gone from the group is there again.
    fn come_back(&mut self, group: &str, client: &str) {
        let Some(held) = self.groups.get_mut(group) else { return };
        held.values_mut().filter(|lock| &*lock.client == client).for_each(|lock| lock.is_left = false);
    }

    fn holds_any(&self, group: &str, now: Duration) -> bool {
        let holds = |lock: &Lock| !lock.is_left && lock.is_held(now, self.live);
        self.groups.get(group).is_some_and(|held| held.values().any(holds))
    }

    /// Forgets locks that nobody has renewed, of some groups behind this one. Returns the last of them, until there is none left.
    fn expire(&mut self, now: Duration, behind: Option<&str>) -> Option<Box<str>> {
        let (live, from) = (self.live, behind.map_or(Bound::Unbounded, Bound::Excluded));
        let (mut last, mut looked) = (None, 0);
        let (mut empty, mut gone) = (Vec::new(), 0);
        for (group, held) in self.groups.range_mut::<str, _>((from, Bound::Unbounded)) {
            if looked >= EXPIRED_AT_ONCE {
                break;
            }
            let before = held.len();
            held.retain(|_, lock| lock.is_held(now, live));
            gone += before - held.len();
            looked += before.max(1);
            if held.is_empty() {
                empty.push(group.clone());
            }
            last = Some(group.clone());
        }
        self.count -= gone;
        for group in empty {
            self.groups.remove(&group);
        }
        last
    }
}

/// The locks of this broker. The mutex guards nothing else, and nothing is done under it but looking and noting.
pub(crate) struct OrderLocks {
    locks: Mutex<Locks>,
    clock: Clock,
}

impl OrderLocks {
    pub(crate) fn new(live_ms: u64, clock: Clock) -> OrderLocks {
        OrderLocks { locks: Mutex::new(Locks::new(Duration::from_millis(live_ms))), clock }
    }

    /// Locks or renews as many of the queues as it can, and says which.
    pub(crate) fn lock(&self, group: &str, client: &str, queues: Vec<MessageQueue>) -> Vec<MessageQueue> {
        self.locks.lock().lock(group, client, queues, self.clock.elapsed())
    }

    /// Gives up the queues that this client holds; those of others stay.
    pub(crate) fn unlock(&self, group: &str, client: &str, queues: &[MessageQueue]) {
        self.locks.lock().unlock(group, client, queues);
    }

    /// A client has said that it leaves the group: its locks are free.
    pub(crate) fn free(&self, group: &str, client: &str) {
        self.locks.lock().free(group, client);
    }

    /// A client is gone from the group without a word: its locks hold as long as it may still consume by them.
    pub(crate) fn leave(&self, group: &str, client: &str) {
        self.locks.lock().leave(group, client);
    }

    /// A client that was gone is in the group again, and consumes by the locks that it has, which it renews later.
    pub(crate) fn come_back(&self, group: &str, client: &str) {
        self.locks.lock().come_back(group, client);
    }

    /// Whether some client of the group consumes in order at this moment. One that is gone from it does not.
    pub(crate) fn holds_any(&self, group: &str) -> bool {
        self.locks.lock().holds_any(group, self.clock.elapsed())
    }

    /// Forgets what nobody renews; called by the housekeeping task.
    pub(crate) fn expire(&self) {
        let now = self.clock.elapsed();
        let mut last = None;
        // Ends with the last group. Clients that lock queues come in between.
        loop {
            last = self.locks.lock().expire(now, last.as_deref());
            if last.is_none() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::TimeMs;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn queues(ids: &[i32]) -> Vec<MessageQueue> {
        ids.iter()
            .map(|id| MessageQueue { broker_name: "b".to_owned(), queue_id: *id, topic: "T".to_owned() })
            .collect()
    }

    #[test]
    fn a_queue_has_one_owner_at_a_time() {
        let mut locks = Locks::new(at(60_000));
        assert_eq!(locks.lock("G", "a", queues(&[0, 1]), at(0)), queues(&[0, 1]));
        assert_eq!(locks.lock("G", "b", queues(&[1, 2]), at(1)), queues(&[2]));
        assert_eq!(locks.lock("H", "b", queues(&[1]), at(1)), queues(&[1]), "another group is another matter");
    }

    #[test]
    fn a_lock_that_is_renewed_holds_and_one_that_is_not_falls_to_another() {
        let mut locks = Locks::new(at(60_000));
        locks.lock("G", "a", queues(&[0, 1]), at(0));
        locks.lock("G", "a", queues(&[0]), at(40_000));
        assert_eq!(locks.lock("G", "b", queues(&[0, 1]), at(60_001)), queues(&[1]));
        assert!(locks.holds_any("G", at(120_001)));
        assert!(!locks.holds_any("G", at(120_002)));
    }

    #[test]
    fn a_client_that_leaves_gives_its_queues_up_at_once_and_one_that_is_gone_when_it_knows_of_it() {
        let mut locks = Locks::new(at(60_000));
        locks.lock("G", "a", queues(&[0, 1]), at(0));
        locks.lock("G", "b", queues(&[2]), at(0));
        locks.leave("G", "a");
        assert!(locks.holds_any("G", at(1)), "b is there");
        assert_eq!(locks.lock("G", "b", queues(&[0, 2]), at(45_000)), queues(&[2]));
        assert_eq!(locks.lock("G", "a", queues(&[1]), at(45_000)), queues(&[1]), "it has come back");
        assert_eq!(locks.lock("G", "b", queues(&[0, 1]), at(45_001)), queues(&[0]));
        locks.free("G", "b");
        assert_eq!((locks.count, locks.holds_any("G", at(45_002))), (1, true));
        locks.leave("G", "a");
        assert!(!locks.holds_any("G", at(45_002)));
        assert!(locks.lock("G", "c", queues(&[1]), at(90_000)).is_empty());
        locks.expire(at(90_001), None);
        assert_eq!((locks.count, locks.groups.len()), (0, 0));
    }

    #[test]
    fn a_client_that_comes_back_holds_what_it_had_as_before_it_was_gone() {
        let mut locks = Locks::new(at(60_000));
        locks.lock("G", "a", queues(&[0]), at(0));
        locks.lock("G", "b", queues(&[1]), at(0));
        locks.leave("G", "a");
        locks.leave("G", "b");
        locks.come_back("H", "a");
        assert!(!locks.holds_any("G", at(1)), "another group is another matter");
        locks.come_back("G", "a");
        assert!(locks.holds_any("G", at(1)));
        assert_eq!(locks.lock("G", "c", queues(&[0, 1]), at(45_001)), queues(&[1]), "b has not come back");
        assert_eq!(locks.lock("G", "c", queues(&[0]), at(60_001)), queues(&[0]));
    }

    #[test]
    fn a_lock_whose_client_is_gone_holds_for_three_quarters_of_the_time_and_as_long_as_its_client_believes_in_it() {
        for (live, left) in [(120_000, 90_000), (60_000, 45_000), (36_000, 30_000), (10_000, 10_000)] {
            let mut locks = Locks::new(at(live));
            locks.lock("G", "a", queues(&[0]), at(0));
            locks.leave("G", "a");
            assert!(locks.lock("G", "b", queues(&[0]), at(left)).is_empty(), "{live}");
            assert_eq!(locks.lock("G", "b", queues(&[0]), at(left + 1)), queues(&[0]), "{live}");
        }
    }

    #[test]
    fn setting_the_machines_clock_frees_no_lock_and_keeps_none() {
        let (clock, hand) = Clock::manual(TimeMs(1_700_000_000_000));
        let locks = OrderLocks::new(60_000, clock);
        locks.lock("G", "a", queues(&[0]));
        hand.set_by(3_600_000);
        locks.expire();
        assert!(locks.lock("G", "b", queues(&[0])).is_empty());
        hand.set_by(-7_200_000);
        hand.advance(at(60_001));
        assert_eq!(locks.lock("G", "b", queues(&[0])), queues(&[0]));
    }

    #[test]
    fn nobody_unlocks_what_another_holds() {
        let mut locks = Locks::new(at(60_000));
        locks.lock("G", "a", queues(&[0]), at(0));
        locks.unlock("G", "b", &queues(&[0]));
        assert!(locks.lock("G", "b", queues(&[0]), at(1)).is_empty());
        locks.unlock("G", "a", &queues(&[0]));
        assert_eq!(locks.lock("G", "b", queues(&[0]), at(2)), queues(&[0]));
    }

    #[test]
    fn locks_of_many_groups_expire_in_pieces_and_those_that_are_renewed_stay() {
        let (clock, hand) = Clock::manual(TimeMs(0));
        let locks = OrderLocks::new(60_000, clock);
        let groups = EXPIRED_AT_ONCE * 3 / 2;
        for group in 0..groups {
            locks.lock(&format!("G{group}"), "a", queues(&[0, 1]));
        }
        hand.advance(at(50_000));
        locks.lock("G7", "a", queues(&[1]));
        hand.advance(at(10_001));
        assert!(locks.locks.lock().expire(at(0), None).is_some(), "a piece is not all");
        locks.expire();
        let left = locks.locks.lock();
        assert_eq!((left.count, left.groups.len()), (1, 1));
    }

    #[test]
    fn what_has_expired_leaves_nothing_behind() {
        let mut locks = Locks::new(at(60_000));
        locks.lock("G", "a", queues(&[0, 1]), at(0));
        locks.expire(at(60_001), None);
        assert_eq!(locks.count, 0);
        assert!(locks.groups.is_empty());
    }
}
