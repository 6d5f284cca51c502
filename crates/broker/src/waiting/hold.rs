//! Long polling: requests that wait on a queue until there is something for them or their time is
//! over.
//!
//! Nothing here knows what a request is. Its connection keeps it, under the number of a [`Slot`];
//! the [`Lane`] that it waits for holds that number and the connection's [`Waiter`]. An append
//! looks at one counter per queue that it touched; only if somebody waits there it takes the
//! numbers and lays them down for their connections, whose own tasks read and answer. That no
//! wake-up is lost is the doing of [`WaitList`] and [`Errands`]. Requests that wait for several
//! queues lie in `pop_waiters.rs`.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use config::BrokerSettings;
use disk::invariant;
use env::Clock;
use hashbrown::HashMap;
use parking_lot::Mutex;
use store::ConsumeQueue;
use tokio::sync::Notify;

use crate::client_handle::{ClientHandle, OwedAnswer};
use crate::tasks::Stop;
use crate::waiting::pop_waiters::{LaneWaiters, PopWaiterTable, PopWaiters};
use crate::waiting::wake_up::{Errands, List, Published, WaitList};

/// How exactly a parked pull expires. Clients add ten seconds to what they ask for before they give up themselves.
const TICK: Duration = Duration::from_millis(20);
/// The longest that anybody is parked, whatever he asks for: what waits longer is most likely forgotten.
const PARKED_TIME_MAX: Duration = Duration::from_secs(300);
/// Places of a connection that are gone are looked for from so many on.
const SWEPT_FROM: usize = 64;

/// The number under which a connection keeps a request that it has parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) u32);

/// One queue of a topic, with the pulls that wait for its next message.
pub(crate) struct Lane {
    /// The queue.
    pub(crate) queue: Arc<ConsumeQueue>,
    /// Rung when the queue grows: delayed messages have a task of their own that waits for them.
    bell: Option<Arc<Notify>>,
    parked: WaitList<Parked>,
    /// Pops that wait for it.
    pub(crate) pops: LaneWaiters,
}

#[derive(Default)]
struct Parked {
    pulls: Vec<ParkedPull>,
    /// The earliest tick at which the wheel visits this lane.
    visited_at: Option<u64>,
}

impl List for Parked {
    fn len(&self) -> usize {
        self.pulls.len()
    }
}

pub(crate) struct ParkedPull {
    ticket: u64,
    slot: Slot,
    /// The offset of the queue that it wants.
    offset: i64,
    /// Tick at which the wait is over.
    expires_at: u64,
    waiter: Arc<Waiter>,
}

impl Lane {
    pub(crate) fn new(queue: Arc<ConsumeQueue>, bell: Option<Arc<Notify>>) -> Lane {
        Lane { queue, bell, parked: WaitList::default(), pops: LaneWaiters::default() }
    }

    fn take_if(&self, hold: &Hold, wanted: impl Fn(&ParkedPull) -> bool, taken: &mut Vec<ParkedPull>) {
        let before = taken.len();
        self.parked.change(|parked| {
            taken.extend(parked.pulls.extract_if(.., |pull| wanted(pull)));
            if parked.pulls.is_empty() {
                // Most queues are rarely waited for; give the memory back.
                parked.pulls.shrink_to(4);
            }
        });
        leave(&hold.parked, taken.len() - before);
        for pull in &taken[before..] {
            leave(&pull.waiter.parked, 1);
        }
    }
}

/// Why a parked request comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Something has come. The tick is when its time will be over.
    Arrived {
        /// For parking it again.
        expires_at: u64,
    },
    /// Its time is over.
    Expired,
}

/// A pull that waits aside, not in a lane: it counts as a parked one as long as this lives.
pub(crate) struct Aside {
    hold: Arc<Hold>,
    waiter: Arc<Waiter>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        leave(&self.hold.parked, 1);
        leave(&self.waiter.parked, 1);
    }
}

/// Takes `count` parked pulls off the count. Below 0 it would refuse every pull.
fn leave(parked: &AtomicUsize, count: usize) {
    let before = parked.fetch_sub(count, Ordering::Relaxed);
    invariant::not_below("pulls that are counted as parked", count as u64, before as u64);
}

/// One connection, as those see it who wake what it has parked.
///
/// The connection's own inbox holds few notes that there is something here, so it cannot overflow, and many wake-ups of one batch
/// are one wake-up of the task.
pub(crate) struct Waiter {
    client: ClientHandle,
    woken: Errands<(Slot, Wake)>,
    /// Parked pulls of this connection, and those that wait aside.
    parked: AtomicUsize,
    /// Where pulls of this connection were parked, so that a lost connection does not stay there.
    lanes: Mutex<Visited<Lane>>,
    /// Where pops of this connection were parked.
    pops: Mutex<Visited<PopWaiters>>,
}

impl Waiter {
    pub(crate) fn new(client: ClientHandle) -> Waiter {
        Waiter {
            client,
            woken: Errands::new(),
            parked: AtomicUsize::new(0),
            lanes: Mutex::default(),
            pops: Mutex::default(),
        }
    }

    /// The client itself.
    pub(crate) fn client(&self) -> &ClientHandle {
        &self.client
    }

    /// Notes where a pop of this connection is parked.
    pub(crate) fn waits_in(&self, waiters: &Arc<PopWaiters>) {
        self.pops.lock().note(waiters);
    }

    /// Where pops of this connection were parked, for the last time.
    pub(crate) fn take_pop_waiters(&self) -> Vec<Arc<PopWaiters>> {
        self.pops.lock().take()
    }

    /// How many pulls of this connection are parked, or wait aside.
    pub(crate) fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// Whether nobody takes an answer any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.client.is_over()
    }

    /// For an answer that will be pushed: until the debt is dropped, a connection that drains waits for it.
    pub(crate) fn owe(&self) -> OwedAnswer {
        self.client.owe()
    }

    /// Lays down that a parked request comes back.
    pub(crate) fn wake(&self, slot: Slot, wake: Wake) {
        self.woken.push((slot, wake), || self.note());
    }

    /// Puts the rest of what was taken back in front of what has come since, without a note.
    pub(crate) fn put_back(&self, rest: impl Iterator<Item = (Slot, Wake)>) {
        self.woken.put_back(rest);
    }

    /// Takes what was woken. `into` comes empty and stays here, so both vectors live on.
    pub(crate) fn take(&self, into: &mut Vec<(Slot, Wake)>) {
        self.woken.take(into);
    }

    /// Has the task look here once it may owe more.
    pub(crate) fn note(&self) {
        self.client.note();
    }
}

/// Places where something of one connection was parked, and perhaps is not any more.
struct Visited<T> {
    /// By address: whoever is known here keeps his.
    by_address: HashMap<usize, Weak<T>>,
    /// So many entries, and those of places that are gone are taken out: a light queue has a new lane whenever nobody used it for a moment.
    sweep_at: usize,
}

impl<T> Default for Visited<T> {
    fn default() -> Visited<T> {
        Visited { by_address: HashMap::new(), sweep_at: SWEPT_FROM }
    }
}

impl<T> Visited<T> {
    fn note(&mut self, place: &Arc<T>) {
        if self.by_address.len() >= self.sweep_at {
            self.by_address.retain(|_, place| place.strong_count() > 0);
            self.sweep_at = (self.by_address.len() * 2).max(SWEPT_FROM);
        }
        self.by_address.entry(Arc::as_ptr(place) as usize).or_insert_with(|| Arc::downgrade(place));
    }

    /// Those that are still there, for the last time.
    fn take(&mut self) -> Vec<Arc<T>> {
        self.by_address.drain().filter_map(|(_, place)| place.upgrade()).collect()
    }
}

/// Why a pull cannot be parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooManyParked {
    /// So many of one connection.
    OfConnection(usize),
    /// So many of the broker.
    OfBroker(usize),
}

impl Display for TooManyParked {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (limit, of, name) = match self {
            TooManyParked::OfConnection(limit) => (limit, "this connection", "parkedPullsPerConnectionMax"),
            TooManyParked::OfBroker(limit) => (limit, "this broker", "parkedPullsMax"),
        };
        write!(f, "{limit} pulls of {of} are waiting already, which is the limit ({name})")
    }
}

/// A parked pull that nobody has woken yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

/// A pull that is to be parked: where its connection keeps it, what it wants, and until which tick.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) slot: Slot,
    /// Of the lane's queue.
    pub(crate) offset: i64,
    pub(crate) expires_at: u64,
}

/// All parked pulls' time, and how many there are.
pub(crate) struct Hold {
    clock: Clock,
    /// Where pops wait.
    pub(crate) pops: Arc<PopWaiterTable>,
    /// Lanes by the tick at which one of their pulls may expire. An entry counts while the lane's `visited_at` says the same.
    wheel: Mutex<BTreeMap<u64, Vec<Arc<Lane>>>>,
    /// The wheel's first tick came nearer.
    changed: Notify,
    /// A pull waits where none did, or a lane is back in the wheel.
    began: Notify,
    /// Those that wait aside included.
    parked: AtomicUsize,
    tickets: AtomicU64,
}

impl Hold {
    pub(crate) fn new(clock: Clock) -> Hold {
        Hold {
            pops: Arc::new(PopWaiterTable::new(clock.clone())),
            clock,
            wheel: Mutex::default(),
            changed: Notify::new(),
            began: Notify::new(),
            parked: AtomicUsize::new(0),
            tickets: AtomicU64::new(0),
        }
    }

    /// How many pulls are parked, or wait aside.
    pub(crate) fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// The tick at which a wait that begins now is over.
    pub(crate) fn deadline(&self, wait: Duration) -> u64 {
        // One tick more: the present one has begun already, and nobody is to wait less than he asked for.
        ticks(self.clock.elapsed() + wait.min(PARKED_TIME_MAX)) + 1
    }

    /// Parks a pull, which lies in this slot, until the lane grows or the tick comes. Look at the
    /// queue again afterwards, and `take_back` if it has grown.
    pub(crate) fn park(
        &self,
        waiter: &Arc<Waiter>,
        lane: &Arc<Lane>,
        Wanted { slot, offset, expires_at }: Wanted,
        settings: &BrokerSettings,
    ) -> Result<Ticket, TooManyParked> {
        self.check_room(waiter, settings)?;
        waiter.lanes.lock().note(lane);
        waiter.parked.fetch_add(1, Ordering::Relaxed);
        self.enter();

        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let must_visit = lane.parked.park(|parked| {
            parked.pulls.push(ParkedPull { ticket, slot, offset, expires_at, waiter: Arc::clone(waiter) });
            let must_visit = parked.visited_at.is_none_or(|tick| tick > expires_at);
            if must_visit {
                parked.visited_at = Some(expires_at);
            }
            must_visit
        });
        if must_visit {
            self.visit(Arc::clone(lane), expires_at);
        }
        Ok(Ticket(ticket))
    }

    /// Counts a pull that waits for something else than its lane, within the same limits.
    pub(crate) fn aside(
        self: &Arc<Hold>,
        waiter: &Arc<Waiter>,
        settings: &BrokerSettings,
    ) -> Result<Aside, TooManyParked> {
        self.check_room(waiter, settings)?;
        waiter.parked.fetch_add(1, Ordering::Relaxed);
        self.enter();
        Ok(Aside { hold: Arc::clone(self), waiter: Arc::clone(waiter) })
    }

    /// Counts one more, before it lies in a lane: a task that begins to look then sees it, or the
    /// second look of who parks sees what that task saw.
    fn enter(&self) {
        if self.parked.fetch_add(1, Ordering::Relaxed) == 0 {
            self.began.notify_one();
        }
    }

    /// May one more pull of this connection wait?
    fn check_room(&self, waiter: &Waiter, settings: &BrokerSettings) -> Result<(), TooManyParked> {
        let limit = settings.parked_pulls_per_connection_max;
        if waiter.parked() >= limit {
            return Err(TooManyParked::OfConnection(limit));
        }
        let limit = settings.parked_pulls_max;
        if self.parked() >= limit {
            return Err(TooManyParked::OfBroker(limit));
        }
        Ok(())
    }

    /// Takes a parked pull back, and says in which slot it lies. None if it was woken in between.
    pub(crate) fn take_back(&self, lane: &Lane, ticket: Ticket) -> Option<Slot> {
        let mut taken = Vec::new();
        lane.take_if(self, |pull| pull.ticket == ticket.0, &mut taken);
        taken.first().map(|pull| pull.slot)
    }

    /// Wakes who waits for one of these lanes. Call it once a batch, after the batch became visible. `woken` is a buffer to work with.
    pub(crate) fn arrived<'a>(&self, lanes: impl Iterator<Item = &'a Arc<Lane>>, woken: &mut Vec<ParkedPull>) {
        let published = Published::now();
        for lane in lanes {
            if let Some(bell) = &lane.bell {
                bell.notify_one();
            }
            lane.pops.arrived(published, lane.queue.id() as i32, &self.pops);
            if !lane.parked.has_any(published) {
                continue;
            }
            lane.take_if(self, |_| true, woken);
            for pull in woken.drain(..) {
                pull.waiter.wake(pull.slot, Wake::Arrived { expires_at: pull.expires_at });
            }
        }
    }

    /// Waits until a pull waits where none did, or until [`Hold::wake_if`] may have missed one. For
    /// one task.
    pub(crate) async fn began(&self) {
        self.began.notified().await;
    }

    /// Wakes the pulls whose queue has the offset that they want, and says how many lanes it looked
    /// at: those that somebody waits for. This is for a log that grows by copying, which does not
    /// tell which queues have grown. Call it after what came is visible.
    pub(crate) fn wake_if(&self, is_there: impl Fn(&ConsumeQueue, i64) -> bool) -> usize {
        let published = Published::now();
        let lanes: Vec<Arc<Lane>> = {
            let wheel = self.wheel.lock();
            wheel.values().flatten().filter(|lane| lane.parked.has_any(published)).map(Arc::clone).collect()
        };
        let mut woken = Vec::new();
        for lane in &lanes {
            lane.take_if(self, |pull| is_there(&lane.queue, pull.offset), &mut woken);
            for pull in woken.drain(..) {
                pull.waiter.wake(pull.slot, Wake::Arrived { expires_at: pull.expires_at });
            }
        }
        lanes.len()
    }

    /// Forgets the pulls that a closed connection has parked.
    pub(crate) fn forget(&self, waiter: &Arc<Waiter>) {
        let mut gone = Vec::new();
        let lanes = waiter.lanes.lock().take();
        for lane in lanes {
            lane.take_if(self, |pull| Arc::ptr_eq(&pull.waiter, waiter), &mut gone);
        }
    }

    fn visit(&self, lane: Arc<Lane>, tick: u64) {
        let mut wheel = self.wheel.lock();
        let is_first = wheel.first_key_value().is_none_or(|(first, _)| *first > tick);
        wheel.entry(tick).or_default().push(lane);
        drop(wheel);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// The task that ends waits. It sleeps until the next one is over, without end when nobody waits. When it is told to end, all waits are over.
    pub(crate) async fn expire(self: Arc<Hold>, mut stop: Stop) {
        while !stop.is_asked() {
            let first = self.wheel.lock().first_key_value().map(|(tick, _)| *tick);
            let now = self.clock.elapsed();
            match first {
                Some(tick) if tick <= ticks(now) => self.turn(ticks(now)),
                Some(tick) => {
                    let wait = TICK.saturating_mul(u32::try_from(tick).unwrap_or(u32::MAX)).saturating_sub(now);
                    tokio::select! {
                        biased;
                        () = stop.asked() => {}
                        () = tokio::time::sleep(wait) => {}
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
        self.turn(u64::MAX);
    }

    /// Ends all waits that there are now: clients ask elsewhere. Pops cannot wait here any more; pulls of clients that ask once more here may.
    pub(crate) fn end_all(&self) {
        let (all, mut over) = (std::mem::take(&mut *self.wheel.lock()), Vec::new());
        for (due, lanes) in all {
            for lane in lanes {
                self.turn_lane(lane, due, u64::MAX, &mut over);
            }
        }
        self.pops.end_all();
    }

    /// Ends every wait that is over at `tick`.
    fn turn(&self, tick: u64) {
        let mut over = Vec::new();
        loop {
            let (due, lanes) = {
                let mut wheel = self.wheel.lock();
                match wheel.first_entry() {
                    Some(entry) if *entry.key() <= tick => entry.remove_entry(),
                    Some(_) | None => return,
                }
            };
            for lane in lanes {
                self.turn_lane(lane, due, tick, &mut over);
            }
        }
    }

    /// The same of a lane that was to be visited at `due`. `over` is a buffer to work with.
    fn turn_lane(&self, lane: Arc<Lane>, due: u64, tick: u64, over: &mut Vec<ParkedPull>) {
        // An earlier deadline has moved this lane's visit; this entry is what it left behind.
        if lane.parked.look(|parked| parked.visited_at) != Some(due) {
            return;
        }
        lane.take_if(self, |pull| pull.expires_at <= tick, over);
        for pull in over.drain(..) {
            pull.waiter.wake(pull.slot, Wake::Expired);
        }
        let next = lane.parked.change(|parked| {
            parked.visited_at = parked.pulls.iter().map(|pull| pull.expires_at).min();
            parked.visited_at
        });
        if let Some(next) = next {
            self.visit(lane, next);
            // It was not in the wheel meanwhile.
            self.began.notify_one();
        }
    }
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / TICK.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use testing::ending::ends_process;

    use super::*;

    #[test]
    fn a_count_of_parked_pulls_below_0_ends_the_process() {
        let parked = AtomicUsize::new(3);
        assert!(!ends_process(|| leave(&parked, 3)));
        assert!(ends_process(|| leave(&parked, 1)));
    }

    #[test]
    fn places_that_are_gone_are_forgotten_and_those_that_are_there_are_not() {
        let mut visited = Visited::default();
        let there = Arc::new(0);
        visited.note(&there);
        for number in 1..=500 {
            visited.note(&Arc::new(number));
            visited.note(&there);
            assert!(visited.by_address.len() <= SWEPT_FROM);
        }
        assert_eq!(visited.take(), [there]);
        // Those of a connection that waits in many at once stay, and are not looked through for each one that comes.
        let many: Vec<Arc<i32>> = (0..1000).map(Arc::new).collect();
        many.iter().for_each(|place| visited.note(place));
        assert_eq!(visited.by_address.len(), 1000);
        assert!(visited.sweep_at > 1000);
    }
}
