//! Pops that wait until there is something to pop or their time is over.
//!
//! A pop waits for a topic as one group sees it, which may be many queues: it lies in a [`Room`], and every queue of the topic knows the
//! rooms that wait for it. An append wakes one pop of each room, since the first one takes what there is; who leaves something behind
//! wakes the next. As with parked pulls no wake-up is lost: whoever parks looks at the queues once more afterwards, and a room is found through
//! two [`WaitList`]s, the one of the queue's rooms and its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use config::BrokerSettings;
use env::Clock;
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lite::LiteOrder;
use super::look::NotifyOrder;
use super::take::PopOrder;
use crate::hold::{Errand, Inbox, Lane};
use crate::offsets::{Key, KeyRef};
use crate::wake_up::{Published, WaitList};

/// The longest that anybody waits, whatever he asks for.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// A request that waits.
pub(crate) enum Waiting {
    Pop(PopOrder),
    Lite(Box<LiteOrder>),
    Notify(NotifyOrder),
}

impl Waiting {
    fn queue_id(&self) -> i32 {
        match self {
            Waiting::Pop(order) => order.queue_id,
            // All of them.
            Waiting::Lite(_) => -1,
            Waiting::Notify(order) => order.queue_id,
        }
    }

    /// Whether its answer is that of a long poll.
    fn set_held(&mut self, is_held: bool) {
        let reply_to = match self {
            Waiting::Pop(order) => &mut order.reply_to,
            Waiting::Lite(order) => &mut order.pop.reply_to,
            Waiting::Notify(order) => &mut order.reply_to,
        };
        reply_to.is_held = is_held;
    }

    /// Lays it into its connection's inbox.
    fn wake(self, inbox: &Inbox, is_over: bool) {
        inbox.push(Errand::Then(Box::new(move |broker, session, out| match self {
            Waiting::Pop(order) => super::take::resume(broker, session, order, is_over, out),
            Waiting::Lite(order) => super::lite::resume(broker, session, *order, is_over, out),
            Waiting::Notify(order) => super::look::resume(broker, session, order, is_over, out),
        })));
    }
}

struct Parked {
    ticket: u64,
    tick: u64,
    waiting: Waiting,
    inbox: Arc<Inbox>,
}

/// Requests of one group that wait for one topic.
pub(crate) struct Room {
    /// Who waits here, in the order in which they came.
    parked: WaitList<VecDeque<Parked>>,
    /// Places of queues that know this room, by address.
    known_to: Mutex<HashMap<usize, Weak<Lane>>>,
    /// When somebody came last, in milliseconds of the clock's elapsed time. Relaxed: a hint.
    used_at: AtomicU64,
}

/// Rooms that wait for one queue.
#[derive(Default)]
pub(crate) struct LaneRooms {
    rooms: WaitList<Vec<Weak<Room>>>,
}

impl LaneRooms {
    /// The queue has grown.
    pub(crate) fn arrived(&self, published: Published, rooms_of_broker: &Rooms) {
        if !self.rooms.has_any(published) {
            return;
        }
        let rooms: Vec<Arc<Room>> = self.rooms.change(|rooms| {
            rooms.retain(|room| room.strong_count() > 0);
            let waiting = rooms.iter().filter_map(Weak::upgrade);
            waiting.filter(|room| room.parked.has_any(published)).collect()
        });
        for room in rooms {
            rooms_of_broker.wake(&room, published);
        }
    }

    /// Before somebody parks in the room.
    fn add(&self, room: &Arc<Room>) {
        self.rooms.change(|rooms| {
            if !rooms.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(room))) {
                rooms.push(Arc::downgrade(room));
            }
        });
    }
}

/// A request that waits and that nobody has woken yet.
#[derive(Clone)]
pub(crate) struct Ticket {
    room: Arc<Room>,
    number: u64,
}

/// All requests that wait for something to pop.
pub(crate) struct Rooms {
    clock: Clock,
    /// By group and topic.
    table: Mutex<HashMap<Key, Arc<Room>>>,
    /// When waits are over, in milliseconds of the clock's elapsed time. A number that nobody in the room has is an alarm.
    wheel: Mutex<BTreeMap<(u64, u64), Weak<Room>>>,
    /// The wheel's first entry came nearer, or we stop.
    changed: Notify,
    is_stopped: AtomicBool,
    waiting: AtomicUsize,
    numbers: AtomicU64,
}

impl Rooms {
    pub(crate) fn new(clock: Clock) -> Rooms {
        Rooms {
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
    pub(super) fn deadline(&self, wait_ms: i64) -> Option<u64> {
        let wait = u64::try_from(wait_ms).ok().filter(|wait| *wait > 0)?;
        // One more: the present millisecond has begun already.
        Some(self.now() + wait.min(WAIT_MAX.as_millis() as u64) + 1)
    }

    /// Parks a request. Look at the queues again afterwards, and [`Rooms::take_back`] it if there is something. Gives the request back with
    /// the setting that is exhausted.
    pub(super) fn park<'a>(
        &self,
        inbox: &Arc<Inbox>,
        key: KeyRef<'_>,
        lanes: impl Iterator<Item = &'a Arc<Lane>>,
        tick: u64,
        mut waiting: Waiting,
        settings: &BrokerSettings,
    ) -> Result<Ticket, (Waiting, &'static str)> {
        if self.is_stopped.load(Ordering::Acquire) || self.waiting() >= settings.max_pop_polling_size {
            return Err((waiting, "maxPopPollingSize"));
        }
        let found = {
            let mut table = self.table.lock();
            let is_full = table.len() >= settings.pop_polling_map_size;
            match table.get(&key) {
                Some(room) => Ok(Arc::clone(room)),
                None if is_full => Err("popPollingMapSize"),
                None => {
                    let room = Arc::new(Room {
                        parked: WaitList::default(),
                        known_to: Mutex::default(),
                        used_at: AtomicU64::new(self.now()),
                    });
                    table.insert(Key { group: key.group.into(), topic: key.topic.into() }, Arc::clone(&room));
                    Ok(room)
                }
            }
        };
        let room = match found {
            Ok(room) => room,
            Err(limit) => return Err((waiting, limit)),
        };
        {
            let mut known_to = room.known_to.lock();
            for lane in lanes {
                // By address: a queue that went and whose place was taken is not the one that knows us.
                let place = Arc::as_ptr(lane) as usize;
                let is_known = known_to.get(&place).is_some_and(|known| known.strong_count() > 0);
                if !is_known {
                    known_to.insert(place, Arc::downgrade(lane));
                    lane.rooms.add(&room);
                }
            }
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        // Before: whoever wakes it subtracts it again.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let refused = room.parked.park(|parked| {
            if parked.len() >= settings.pop_polling_size {
                return Some(waiting);
            }
            waiting.set_held(true);
            parked.push_back(Parked { ticket: number, tick, waiting, inbox: Arc::clone(inbox) });
            None
        });
        if let Some(waiting) = refused {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err((waiting, "popPollingSize"));
        }
        room.used_at.store(self.now(), Ordering::Relaxed);
        inbox.waits_in(&room);
        self.turn_at(tick, number, &room);
        Ok(Ticket { room, number })
    }

    /// Takes a request back, unless it was woken in between.
    pub(super) fn take_back(&self, ticket: &Ticket) -> Option<Waiting> {
        let taken = self.take(&ticket.room, |parked| parked.ticket == ticket.number);
        let mut waiting = taken.into_iter().next()?.waiting;
        waiting.set_held(false);
        Some(waiting)
    }

    /// Wakes the group at that time: a queue that is popped in order is free then.
    pub(super) fn wake_at(&self, key: KeyRef<'_>, wait_ms: i64) {
        let Some(room) = self.table.lock().get(&key).cloned() else { return };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.turn_at(self.now() + u64::try_from(wait_ms).unwrap_or(0), number, &room);
    }

    /// There is something for this group.
    pub(crate) fn arrived(&self, key: KeyRef<'_>) {
        let published = Published::now();
        let room = self.table.lock().get(&key).cloned();
        if let Some(room) = room {
            self.wake(&room, published);
        }
    }

    /// Requests of a group that wait for a queue of a topic, as they named it.
    pub(super) fn count(&self, key: KeyRef<'_>, queue_id: i32) -> usize {
        let Some(room) = self.table.lock().get(&key).cloned() else { return 0 };
        room.parked.look(|parked| parked.iter().filter(|parked| parked.waiting.queue_id() == queue_id).count())
    }

    /// Wakes the first pop, and all who only ask.
    fn wake(&self, room: &Room, published: Published) {
        if !room.parked.has_any(published) {
            return;
        }
        let mut has_pop = false;
        let woken = self.take(room, |parked| match parked.waiting {
            Waiting::Pop(_) | Waiting::Lite(_) => !std::mem::replace(&mut has_pop, true),
            Waiting::Notify(_) => true,
        });
        for parked in woken {
            parked.waiting.wake(&parked.inbox, false);
        }
    }

    fn take(&self, room: &Room, mut is_wanted: impl FnMut(&Parked) -> bool) -> Vec<Parked> {
        let mut taken = Vec::new();
        room.parked.change(|parked| {
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
                wheel.remove(&(parked.tick, parked.ticket));
            }
        }
        taken
    }

    /// Drops what a closed connection has parked, and wakes others in the place of what it was woken for and did not take.
    pub(crate) fn forget(&self, inbox: &Arc<Inbox>) {
        for room in inbox.take_rooms() {
            drop(self.take(&room, |parked| Arc::ptr_eq(&parked.inbox, inbox)));
            self.wake(&room, Published::now());
        }
    }

    /// Forgets rooms that nobody has waited in for so long.
    pub(crate) fn sweep(&self, idle: Duration) {
        let now = self.now();
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        // Whoever parks takes the room out of the table under this lock and holds it while he does.
        self.table.lock().retain(|_, room| {
            Arc::strong_count(room) > 1
                || room.parked.len() > 0
                || now.saturating_sub(room.used_at.load(Ordering::Relaxed)) < idle
        });
    }

    fn turn_at(&self, tick: u64, number: u64, room: &Arc<Room>) {
        let mut wheel = self.wheel.lock();
        let is_first = wheel.first_key_value().is_none_or(|((first, _), _)| *first > tick);
        wheel.insert((tick, number), Arc::downgrade(room));
        drop(wheel);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Answers everybody who waits, and ends the task.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.turn(u64::MAX);
        self.changed.notify_one();
    }

    /// The task that ends waits. It sleeps until the next one is over, without end when nobody waits.
    pub(crate) async fn expire(self: Arc<Rooms>) {
        while !self.is_stopped.load(Ordering::Acquire) {
            let first = self.wheel.lock().first_key_value().map(|((tick, _), _)| *tick);
            let now = self.now();
            match first {
                Some(tick) if tick <= now => self.turn(now),
                Some(tick) => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(Duration::from_millis(tick - now)) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn turn(&self, now: u64) {
        // Ends when nothing is due.
        loop {
            let ((_, number), room) = {
                let mut wheel = self.wheel.lock();
                match wheel.first_entry() {
                    Some(entry) if entry.key().0 <= now => entry.remove_entry(),
                    Some(_) | None => return,
                }
            };
            let Some(room) = room.upgrade() else { continue };
            let over = self.take(&room, |parked| parked.ticket == number);
            if over.is_empty() {
                self.wake(&room, Published::now());
            }
            for parked in over {
                parked.waiting.wake(&parked.inbox, true);
            }
        }
    }
}
