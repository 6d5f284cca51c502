//! Pops that wait until there is something to pop or their time is over. As in `hold.rs`, nothing
//! here knows more of one than its number.
//!
//! A pop waits for a topic as one group sees it, which may be many queues: it lies in a
//! [`PopWaiters`], a list of those of one group, and every queue of the topic knows the lists that
//! wait for it. An append wakes one pop of each list, the first that may take from the queue, since
//! it takes what there is; who leaves something behind wakes the next, and so does who had the turn
//! of a queue that another one passed by. As with parked pulls no wake-up is lost: whoever parks
//! looks at the queues once more afterwards, and a list is found through two [`WaitList`]s, the one
//! of the queue's lists and its own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use config::BrokerSettings;
use env::Clock;
use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::group_topic::{GroupTopic, GroupTopicRef};
use crate::tasks::Stop;
use crate::waiting::hold::{Lane, Slot, Waiter, Wake};
use crate::waiting::wake_up::{Published, WaitList};

/// The longest that anybody waits, whatever he asks for.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The tick of an alarm that is not set.
const NEVER: u64 = u64::MAX;
/// What a pop names that takes messages of any queue.
pub(crate) const ANY_QUEUE: i32 = -1;

/// What waking has to know of a request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PopWait {
    /// Where its connection keeps it.
    pub(crate) slot: Slot,
    /// When the wait is over.
    pub(crate) tick: u64,
    /// The queue that it names. Negative: any.
    pub(crate) queue_id: i32,
    /// It takes what there is, so that of several only one is woken.
    pub(crate) takes: bool,
}

struct Parked {
    ticket: u64,
    wait: PopWait,
    waiter: Arc<Waiter>,
}

impl Parked {
    fn wake(&self, is_over: bool) {
        let wake = if is_over { Wake::Expired } else { Wake::Arrived { expires_at: self.wait.tick } };
        self.waiter.wake(self.wait.slot, wake);
    }
}

/// Requests of one group that wait for one topic.
pub(crate) struct PopWaiters {
    /// Who waits here, in the order in which they came.
    parked: WaitList<VecDeque<Parked>>,
    /// Places of queues that know this list, by address.
    known_to: Mutex<HashMap<usize, Weak<Lane>>>,
    /// Its alarm's number in the wheel.
    number: u64,
    /// When its alarm rings: one, for everybody who waits here. Changes under `PopWaiterTable.wheel`.
    /// Relaxed: it is looked at there too.
    alarm_at: AtomicU64,
    /// When somebody came last, in milliseconds of the clock's elapsed time. Relaxed: a hint.
    used_at: AtomicU64,
}

/// The lists that wait for one queue.
#[derive(Default)]
pub(crate) struct LaneWaiters {
    lists: WaitList<Vec<Weak<PopWaiters>>>,
}

impl LaneWaiters {
    /// The queue, which has this id, has grown.
    pub(crate) fn arrived(&self, published: Published, queue_id: i32, table: &PopWaiterTable) {
        if !self.lists.has_any(published) {
            return;
        }
        let lists: Vec<Arc<PopWaiters>> = self.lists.change(|lists| {
            lists.retain(|waiters| waiters.strong_count() > 0);
            let waiting = lists.iter().filter_map(Weak::upgrade);
            waiting.filter(|waiters| waiters.parked.has_any(published)).collect()
        });
        for waiters in lists {
            table.wake(&waiters, published, Some(queue_id));
        }
    }

    /// Before somebody parks in the list.
    fn add(&self, waiters: &Arc<PopWaiters>) {
        self.lists.change(|lists| {
            if !lists.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(waiters))) {
                lists.push(Arc::downgrade(waiters));
            }
        });
    }
}

/// Why a request cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CannotWait {
    /// Nobody may any more.
    IsStopping,
    /// There are as many of something as there may be.
    Full {
        /// Follows the number.
        what: &'static str,
        value: usize,
        limit: usize,
        /// What sets the limit.
        setting: &'static str,
    },
}

impl Display for CannotWait {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            CannotWait::IsStopping => f.write_str("POLLING_FULL: the broker stops"),
            CannotWait::Full { what, value, limit, setting } => {
                write!(f, "POLLING_FULL: {value} {what} already, the limit is {limit} ({setting})")
            }
        }
    }
}

/// A request that waits and that nobody has woken yet.
#[derive(Clone)]
pub(crate) struct Ticket {
    waiters: Arc<PopWaiters>,
    number: u64,
}

/// By tick and number.
type Wheel = BTreeMap<(u64, u64), Weak<PopWaiters>>;

/// All requests that wait for something to pop.
pub(crate) struct PopWaiterTable {
    clock: Clock,
    /// By group and topic.
    table: Mutex<HashMap<GroupTopic, Arc<PopWaiters>>>,
    /// When waits are over, in milliseconds of the clock's elapsed time, by the number of the
    /// request; and alarms, by the number of the list.
    wheel: Mutex<Wheel>,
    /// The wheel's first entry came nearer.
    changed: Notify,
    is_stopped: AtomicBool,
    waiting: AtomicUsize,
    numbers: AtomicU64,
}

impl PopWaiterTable {
    pub(crate) fn new(clock: Clock) -> PopWaiterTable {
        PopWaiterTable {
            clock,
            table: Mutex::default(),
            wheel: Mutex::default(),
            changed: Notify::new(),
            is_stopped: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            numbers: AtomicU64::new(0),
        }
    }

    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The tick at which a wait that begins now is over. `None`: it is over.
    pub(crate) fn deadline(&self, wait_ms: i64) -> Option<u64> {
        let wait = u64::try_from(wait_ms).ok().filter(|wait| *wait > 0)?;
        // One more: the present millisecond has begun already.
        Some(self.now() + wait.min(WAIT_MAX.as_millis() as u64) + 1)
    }

    /// Parks a request, which lies in this slot. Look at the queues again afterwards, and
    /// [`PopWaiterTable::take_back`] it if there is something.
    pub(crate) fn park<'a>(
        &self,
        waiter: &Arc<Waiter>,
        wait: PopWait,
        key: GroupTopicRef<'_>,
        lanes: impl Iterator<Item = &'a Arc<Lane>>,
        settings: &BrokerSettings,
    ) -> Result<Ticket, Box<CannotWait>> {
        if self.is_stopped.load(Ordering::Acquire) {
            return Err(Box::new(CannotWait::IsStopping));
        }
        let (value, limit) = (self.waiting(), settings.max_pop_polling_size);
        if value >= limit {
            let what = "requests wait on this broker";
            return Err(Box::new(CannotWait::Full { what, value, limit, setting: "maxPopPollingSize" }));
        }
        let waiters = self.waiters_of(key, settings.pop_polling_map_size)?;
        {
            let mut known_to = waiters.known_to.lock();
            for lane in lanes {
                // By address: a queue that went and whose place was taken is not the one that knows
                // us.
                let place = Arc::as_ptr(lane) as usize;
                let is_known = known_to.get(&place).is_some_and(|known| known.strong_count() > 0);
                if !is_known {
                    known_to.insert(place, Arc::downgrade(lane));
                    lane.pops.add(&waiters);
                }
            }
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // Before: whoever wakes it subtracts it again.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let limit = settings.pop_polling_size;
        let refused = waiters.parked.park(|parked| {
            if parked.len() >= limit {
                return Some(parked.len());
            }
            parked.push_back(Parked { ticket: number, wait, waiter: Arc::clone(waiter) });
            None
        });
        if let Some(value) = refused {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let what = "requests of this group wait for this topic";
            return Err(Box::new(CannotWait::Full { what, value, limit, setting: "popPollingSize" }));
        }
        waiters.used_at.store(self.now(), Ordering::Relaxed);
        waiter.waits_in(&waiters);
        self.turn_at(self.wheel.lock(), wait.tick, number, &waiters);
        Ok(Ticket { waiters, number })
    }

    /// The list of a group and a topic, made if it is missing and there are less than `limit`.
    fn waiters_of(&self, key: GroupTopicRef<'_>, limit: usize) -> Result<Arc<PopWaiters>, Box<CannotWait>> {
        let mut table = self.table.lock();
        if let Some(waiters) = table.get(&key) {
            return Ok(Arc::clone(waiters));
        }
        let value = table.len();
        if value >= limit {
            let what = "pairs of a group and a topic are waited for";
            return Err(Box::new(CannotWait::Full { what, value, limit, setting: "popPollingMapSize" }));
        }
        let waiters = Arc::new(PopWaiters {
            parked: WaitList::default(),
            known_to: Mutex::default(),
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            alarm_at: AtomicU64::new(NEVER),
            used_at: AtomicU64::new(self.now()),
        });
        table.insert(GroupTopic { group: key.group.into(), topic: key.topic.into() }, Arc::clone(&waiters));
        Ok(waiters)
    }

    /// Takes a request back, and says in which slot it lies. None if it was woken in between.
    pub(crate) fn take_back(&self, ticket: &Ticket) -> Option<Slot> {
        self.take(&ticket.waiters, |parked| parked.ticket == ticket.number).first().map(|parked| parked.wait.slot)
    }

    /// Wakes the group at that time: a queue that is popped in order is free then. One alarm is
    /// enough for a list: it wakes everybody there, at the first time that was asked for, and who
    /// needs a later one asks again when he parks.
    pub(crate) fn wake_at(&self, key: GroupTopicRef<'_>, wait_ms: i64) {
        let Some(waiters) = self.table.lock().get(&key).cloned() else { return };
        let tick = self.now() + u64::try_from(wait_ms).unwrap_or(0);
        let mut wheel = self.wheel.lock();
        let before = waiters.alarm_at.load(Ordering::Relaxed);
        if before <= tick {
            return;
        }
        wheel.remove(&(before, waiters.number));
        waiters.alarm_at.store(tick, Ordering::Relaxed);
        self.turn_at(wheel, tick, waiters.number, &waiters);
    }

    /// There is something for this group, in any queue.
    pub(crate) fn arrived(&self, key: GroupTopicRef<'_>) {
        self.arrived_in(key, None);
    }

    /// The same in this queue, if it is known in which.
    pub(crate) fn arrived_in(&self, key: GroupTopicRef<'_>, queue_id: Option<i32>) {
        let published = Published::now();
        let waiters = self.table.lock().get(&key).cloned();
        if let Some(waiters) = waiters {
            self.wake(&waiters, published, queue_id);
        }
    }

    /// A topic was deleted: whoever waits for it looks again, and is told so.
    pub(crate) fn deleted(&self, topic: &str) {
        let lists: Vec<Arc<PopWaiters>> = {
            let table = self.table.lock();
            table.iter().filter(|(key, _)| *key.topic == *topic).map(|(_, waiters)| Arc::clone(waiters)).collect()
        };
        for waiters in lists {
            for parked in self.take(&waiters, |_| true) {
                parked.wake(false);
            }
        }
    }

    /// Requests of a group that wait for a queue of a topic, as they named it.
    pub(crate) fn count(&self, key: GroupTopicRef<'_>, queue_id: i32) -> usize {
        let Some(waiters) = self.table.lock().get(&key).cloned() else { return 0 };
        waiters.parked.look(|parked| parked.iter().filter(|parked| parked.wait.queue_id == queue_id).count())
    }

    /// Wakes the first pop that can use what came to a queue, and all who only ask for it. Where it
    /// is not known to which queue, the first pop of each that somebody names: one of another queue
    /// would find nothing, and wake nobody.
    fn wake(&self, waiters: &PopWaiters, published: Published, queue_id: Option<i32>) {
        if !waiters.parked.has_any(published) {
            return;
        }
        let mut served: Vec<i32> = Vec::new();
        let woken = self.take(waiters, |parked| {
            let asked = parked.wait.queue_id.max(ANY_QUEUE);
            if queue_id.is_some_and(|id| asked != ANY_QUEUE && asked != id) {
                return false;
            }
            if !parked.wait.takes {
                return true;
            }
            let queue_id = queue_id.unwrap_or(asked);
            let is_first = !served.contains(&queue_id);
            if is_first {
                served.push(queue_id);
            }
            is_first
        });
        for parked in woken {
            parked.wake(false);
        }
    }

    fn take(&self, waiters: &PopWaiters, mut is_wanted: impl FnMut(&Parked) -> bool) -> Vec<Parked> {
        let mut taken = Vec::new();
        waiters.parked.change(|parked| {
            let mut place = 0;
            while let Some(one) = parked.get(place) {
                if is_wanted(one) {
                    taken.extend(parked.remove(place));
                } else {
                    place += 1;
                }
            }
        });
        self.waiting.fetch_sub(taken.len(), Ordering::Relaxed);
        if !taken.is_empty() {
            let mut wheel = self.wheel.lock();
            for parked in &taken {
                wheel.remove(&(parked.wait.tick, parked.ticket));
            }
        }
        taken
    }

    /// Drops what a closed connection has parked, and wakes others in the place of what it was
    /// woken for and did not take.
    pub(crate) fn forget(&self, waiter: &Arc<Waiter>) {
        for waiters in waiter.take_pop_waiters() {
            drop(self.take(&waiters, |parked| Arc::ptr_eq(&parked.waiter, waiter)));
            self.wake(&waiters, Published::now(), None);
        }
    }

    /// Forgets lists that nobody has waited in for so long, with their alarms.
    pub(crate) fn sweep(&self, idle: Duration) {
        let now = self.now();
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut gone = Vec::new();
        // Whoever parks takes the list out of the table under this lock and holds it meanwhile.
        self.table.lock().retain(|_, waiters| {
            let stays = Arc::strong_count(waiters) > 1
                || waiters.parked.len() > 0
                || now.saturating_sub(waiters.used_at.load(Ordering::Relaxed)) < idle;
            if !stays {
                gone.push(Arc::clone(waiters));
            }
            stays
        });
        let mut wheel = self.wheel.lock();
        for waiters in &gone {
            wheel.remove(&(waiters.alarm_at.load(Ordering::Relaxed), waiters.number));
        }
    }

    fn turn_at(&self, mut wheel: MutexGuard<'_, Wheel>, tick: u64, number: u64, waiters: &Arc<PopWaiters>) {
        let is_first = wheel.first_key_value().is_none_or(|((first, _), _)| *first > tick);
        wheel.insert((tick, number), Arc::downgrade(waiters));
        drop(wheel);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// The task that ends waits. It sleeps until the next one is over, without end when nobody waits. When it is told to end, it answers everybody
    /// who waits, and nobody may wait until it is started again.
    pub(crate) async fn expire(self: Arc<PopWaiterTable>, mut stop: Stop) {
        self.is_stopped.store(false, Ordering::Release);
        while !stop.is_asked() {
            let first = self.wheel.lock().first_key_value().map(|((tick, _), _)| *tick);
            let now = self.now();
            match first {
                Some(tick) if tick <= now => self.turn(now),
                Some(tick) => {
                    tokio::select! {
                        biased;
                        () = stop.asked() => {}
                        () = tokio::time::sleep(Duration::from_millis(tick - now)) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => tokio::select! {
                    biased;
                    () = stop.asked() => {}
                    () = self.changed.notified() => {}
                },
            }
        }
        self.end_all();
    }

    /// Ends all waits, and lets nobody wait any more.
    pub(super) fn end_all(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.turn(u64::MAX);
    }

    fn turn(&self, now: u64) {
        // Ends when nothing is due.
        loop {
            let (number, waiters) = {
                let mut wheel = self.wheel.lock();
                let ((_, number), waiters) = match wheel.first_entry() {
                    Some(entry) if entry.key().0 <= now => entry.remove_entry(),
                    Some(_) | None => return,
                };
                let waiters = waiters.upgrade();
                if let Some(waiters) = waiters.as_ref().filter(|waiters| waiters.number == number) {
                    waiters.alarm_at.store(NEVER, Ordering::Relaxed);
                }
                (number, waiters)
            };
            let Some(waiters) = waiters else { continue };
            let is_alarm = waiters.number == number;
            let is_over = !is_alarm || self.is_stopped.load(Ordering::Acquire);
            for parked in self.take(&waiters, |parked| is_alarm || parked.ticket == number) {
                parked.wake(is_over);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use env::TimeMs;

    use super::*;

    fn alarms(table: &PopWaiterTable) -> Vec<u64> {
        table.wheel.lock().keys().map(|(tick, _)| *tick).collect()
    }

    #[test]
    fn a_room_has_one_alarm_at_the_first_time_that_was_asked_for() {
        let (clock, hand) = Clock::manual(TimeMs(1_000_000));
        let table = PopWaiterTable::new(clock);
        let key = || GroupTopicRef { group: "G", topic: "T" };
        table.wake_at(key(), 10);
        assert_eq!(alarms(&table), [0; 0], "nobody has ever waited there");
        let waiters = table.waiters_of(key(), 1).unwrap();
        let now = table.now();
        for wait_ms in (1..=1000).rev().map(|seconds| seconds * 1000) {
            table.wake_at(key(), wait_ms);
            table.wake_at(key(), 3_600_000);
        }
        assert_eq!(alarms(&table), [now + 1000]);
        hand.advance(Duration::from_secs(1));
        table.turn(table.now());
        assert_eq!(alarms(&table), [0; 0]);
        table.wake_at(key(), 3_600_000);
        assert_eq!(alarms(&table), [table.now() + 3_600_000], "the next one may be later");
        drop(waiters);
        table.sweep(Duration::ZERO);
        assert_eq!((alarms(&table), table.table.lock().len()), (vec![], 0));
    }

    #[test]
    fn who_cannot_wait_is_told_how_many_do_how_many_may_and_who_says_so() {
        let table = PopWaiterTable::new(Clock::manual(TimeMs(0)).0);
        assert!(table.waiters_of(GroupTopicRef { group: "G", topic: "T" }, 1).is_ok());
        assert!(table.waiters_of(GroupTopicRef { group: "G", topic: "T" }, 1).is_ok(), "it is there");
        let why = table.waiters_of(GroupTopicRef { group: "G", topic: "U" }, 1).err().unwrap();
        let words =
            "POLLING_FULL: 1 pairs of a group and a topic are waited for already, the limit is 1 (popPollingMapSize)";
        assert_eq!(why.to_string(), words);
    }
}
