//! Turns: the threads below the broker, one at a time, in an order that a seed decides. For the
//! simulator.
//!
//! Otherwise the machine decides when a thread runs. Whoever [takes charge](Turns::enter) of its own thread decides it for all threads that this one
//! starts, and that those start: such a thread runs when it is given a turn, until it waits (for a call, for a time, for another thread, in a
//! [`pause`]), and nothing else runs meanwhile. Waits end by the clock that was given, not by the machine's. So the same seed brings the
//! same order, down to each call of the file system. Threads of a scope (those that read the log at a start) end within one turn and run freely.
//!
//! Nobody in charge: every function here says so after a look at a thread's own variable, and the caller waits as usual.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, TryRecvError};
use env::{Clock, Random};
use parking_lot::{Condvar, Mutex, MutexGuard};

/// Turns that whoever is in charge gives while it waits for something itself, at most: a wait that the threads cannot end is over then.
const TURNS_MAX: usize = 20_000;

/// Turns in which a thread that was told to end has ended.
const LAST_TURNS_MAX: usize = 100_000;

thread_local! {
    static PLACE: RefCell<Option<ThreadSeat>> = const { RefCell::new(None) };
}

#[derive(Clone)]
struct ThreadSeat {
    table: Arc<Table>,
    /// None: the thread in charge.
    seat: Option<Arc<Seat>>,
}

/// Who takes turns, and who is to come next.
struct Table {
    seats: Mutex<Vec<Arc<Seat>>>,
    clock: Clock,
    random: Random,
    panicked: Mutex<Option<String>>,
    process: Mutex<Process>,
}

/// What threads that take turns are part of.
#[derive(Default)]
struct Process {
    has_ended: bool,
    /// To be called when it ends.
    then: Option<Box<dyn FnOnce() + Send>>,
}

/// What unwinds a thread that has ended the process.
struct Ended;

/// A thread that takes turns.
struct Seat {
    name: String,
    turn: Mutex<SeatTurn>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SeatTurn {
    Waits,
    Runs,
    Over,
}

/// Gives turns. Cheap to clone; each clone gives to the same threads.
#[derive(Clone)]
pub struct Turns {
    table: Arc<Table>,
}

/// As long as this lives, its thread is in charge of those that it starts.
#[must_use = "the thread is in charge as long as this lives"]
pub struct InCharge {
    before: Option<ThreadSeat>,
}

impl Turns {
    /// Nobody takes turns yet. Waits end by `clock`; `random` decides whose turn is next.
    pub fn new(clock: Clock, random: Random) -> Turns {
        let (seats, panicked, process) = (Mutex::default(), Mutex::default(), Mutex::default());
        Turns { table: Arc::new(Table { seats, clock, random, panicked, process }) }
    }

    /// Another process begins. If it [ends itself](end_process), `then` is called at that moment.
    pub fn begin_process(&self, then: impl FnOnce() + Send + 'static) {
        *self.table.process.lock() = Process { has_ended: false, then: Some(Box::new(then)) };
    }

    /// Whether the process has ended itself. Its threads may still be there: what they do counts no more.
    pub fn has_ended_process(&self) -> bool {
        self.table.process.lock().has_ended
    }

    /// From now on threads that this thread starts take turns, until the result is dropped. They are to have ended by then: nobody else gives
    /// them a turn.
    pub fn enter(&self) -> InCharge {
        let place = ThreadSeat { table: Arc::clone(&self.table), seat: None };
        InCharge { before: PLACE.with_borrow_mut(|mine| mine.replace(place)) }
    }

    /// Lets one of the threads run until it waits. Says which; none if there is none.
    pub fn give(&self) -> Option<String> {
        self.table.give()
    }

    /// The names of those that take turns.
    pub fn names(&self) -> Vec<String> {
        self.table.seats.lock().iter().map(|seat| seat.name.clone()).collect()
    }

    /// Which thread panicked, and how; an assertion of the store does not hold.
    pub fn panicked(&self) -> Option<String> {
        self.table.panicked.lock().clone()
    }
}

impl Drop for InCharge {
    fn drop(&mut self) {
        PLACE.with_borrow_mut(|mine| *mine = self.before.take());
    }
}

impl Table {
    fn give(&self) -> Option<String> {
        let seat = {
            let mut seats = self.seats.lock();
            seats.retain(|seat| *seat.turn.lock() != SeatTurn::Over);
            let place = self.random.below(u32::try_from(seats.len()).unwrap_or(u32::MAX)) as usize;
            Arc::clone(seats.get(place)?)
        };
        let mut turn = seat.turn.lock();
        if *turn == SeatTurn::Waits {
            *turn = SeatTurn::Runs;
            seat.changed.notify_all();
            while *turn == SeatTurn::Runs {
                seat.changed.wait(&mut turn);
            }
        }
        Some(seat.name.clone())
    }
}

impl Seat {
    fn is_over(&self) -> bool {
        *self.turn.lock() == SeatTurn::Over
    }

    fn wait_for_turn(&self) {
        let mut turn = self.turn.lock();
        while *turn != SeatTurn::Runs {
            self.changed.wait(&mut turn);
        }
    }

    fn pass_on(&self, to: SeatTurn) {
        *self.turn.lock() = to;
        self.changed.notify_all();
    }
}

fn place() -> Option<ThreadSeat> {
    PLACE.with_borrow(Clone::clone)
}

/// Lets others run: a thread that takes turns waits for its next one, the thread in charge gives one. Says whether there are turns at all; if
/// not, it does nothing.
///
/// Not to be called under a lock that another thread takes.
pub fn pause() -> bool {
    let Some(place) = place() else { return false };
    match place.seat {
        Some(seat) => {
            seat.pass_on(SeatTurn::Waits);
            seat.wait_for_turn();
        }
        None => drop(place.table.give()),
    }
    true
}

/// Ends the process, since going on could acknowledge what is lost. Where turns are given it ends the thread that calls, and tells whoever is in
/// charge: the simulator outlives its processes.
pub fn end_process() -> ! {
    let Some(place) = place() else { std::process::abort() };
    let then = {
        let mut process = place.table.process.lock();
        process.has_ended = true;
        process.then.take()
    };
    if let Some(then) = then {
        then();
    }
    std::panic::resume_unwind(Box::new(Ended))
}

/// Whether this thread takes turns. The one that gives them does not.
pub fn is_taken() -> bool {
    PLACE.with_borrow(|place| place.as_ref().is_some_and(|place| place.seat.is_some()))
}

/// Whether there are turns at all: this thread takes them, or gives them.
pub fn are_given() -> bool {
    PLACE.with_borrow(Option::is_some)
}

/// Waits, with `guard` unlocked, until something `is_over` or `timeout` is. False: there are no turns, and the caller has to wait by itself.
pub fn wait<T>(guard: &mut MutexGuard<'_, T>, timeout: Option<Duration>, mut is_over: impl FnMut(&T) -> bool) -> bool {
    let Some(place) = place() else { return false };
    let end = timeout.map(|timeout| place.table.clock.elapsed() + timeout);
    for _ in 0..if place.seat.is_some() { usize::MAX } else { TURNS_MAX } {
        MutexGuard::unlocked(guard, pause);
        if is_over(guard) || end.is_some_and(|end| place.table.clock.elapsed() >= end) {
            break;
        }
    }
    true
}

/// Waits until something `is_so`, for `timeout` at most, and says whether it is. None: there are no turns.
pub(crate) fn wait_until(timeout: Duration, mut is_so: impl FnMut() -> bool) -> Option<bool> {
    let place = place()?;
    // The machine's clock was asked for it.
    let whole_ms = Duration::from_millis(timeout.as_micros().div_ceil(1000) as u64);
    let end = place.table.clock.elapsed() + whole_ms;
    for _ in 0..if place.seat.is_some() { usize::MAX } else { TURNS_MAX } {
        if is_so() || place.table.clock.elapsed() >= end {
            break;
        }
        pause();
    }
    Some(is_so())
}

/// The next of what was sent; none when nothing more will be.
pub fn receive<T>(receiver: &Receiver<T>) -> Option<T> {
    // Ends with something, or with the last sender; each round waits for a turn.
    loop {
        match receiver.try_recv() {
            Ok(received) => return Some(received),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => {}
        }
        if !pause() {
            return receiver.recv().ok();
        }
    }
}

/// What a new thread does before its work and after it.
pub(crate) struct Joins {
    seat: Option<(Arc<Table>, Arc<Seat>)>,
}

/// To be called by whoever starts a thread: the thread takes turns if the caller does, or gives them.
pub(crate) fn seat(name: &str) -> Joins {
    let seat = place().map(|place| {
        let seat = Arc::new(Seat { name: name.to_owned(), turn: Mutex::new(SeatTurn::Waits), changed: Condvar::new() });
        place.table.seats.lock().push(Arc::clone(&seat));
        (place.table, seat)
    });
    Joins { seat }
}

impl Joins {
    /// A started thread with it.
    pub fn handle(&self, thread: JoinHandle<()>) -> Handle {
        Handle { thread, seat: self.seat.as_ref().map(|(_, seat)| Arc::clone(seat)) }
    }

    /// For the thread that was not started.
    pub fn give_up(&self) {
        if let Some((_, seat)) = &self.seat {
            seat.pass_on(SeatTurn::Over);
        }
    }

    /// Another that shares the seat: one for the thread, one for who starts it.
    pub fn share(&self) -> Joins {
        Joins { seat: self.seat.clone() }
    }

    /// In the thread: waits for its first turn.
    pub fn sit_down(&self) {
        if let Some((table, seat)) = &self.seat {
            PLACE.set(Some(ThreadSeat { table: Arc::clone(table), seat: Some(Arc::clone(seat)) }));
            seat.wait_for_turn();
        }
    }

    /// In the thread: its work is over. Says whether somebody else takes note of a panic.
    pub fn get_up(&self, has_panicked: bool) -> bool {
        let Some((table, seat)) = &self.seat else { return false };
        // Not where the process has ended: it is all over for its threads.
        if has_panicked && !table.process.lock().has_ended {
            table.panicked.lock().get_or_insert_with(|| format!("the thread {} panicked", seat.name));
        }
        PLACE.set(None);
        seat.pass_on(SeatTurn::Over);
        true
    }
}

/// A thread that [`worker`](crate::worker) started. As a `JoinHandle`, but whoever joins it lets
/// others have their turns.
pub struct Handle {
    thread: JoinHandle<()>,
    seat: Option<Arc<Seat>>,
}

impl Handle {
    /// Waits for its end.
    pub fn join(self) -> std::thread::Result<()> {
        if let Some(seat) = &self.seat {
            let mut turns = 0;
            // Without turns the thread would not end.
            while !seat.is_over() && pause() {
                turns += 1;
                assert!(is_taken() || turns < LAST_TURNS_MAX, "the thread {} does not end", seat.name);
            }
        }
        self.thread.join()
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.seat.as_ref().map_or_else(|| self.thread.is_finished(), |seat| seat.is_over())
    }

    /// Whether it is the thread that asks.
    pub fn is_current(&self) -> bool {
        self.thread.thread().id() == std::thread::current().id()
    }
}

#[cfg(test)]
mod tests {
    use env::TimeMs;

    use super::*;
    use crate::worker::{self, Bell};

    /// What three threads say in turn, each with a rest between its words.
    fn told(seed: u64) -> Vec<String> {
        let (clock, hand) = Clock::manual(TimeMs(0));
        let turns = Turns::new(clock, Random::seeded(seed));
        let _in_charge = turns.enter();
        let said = Arc::new(Mutex::new(Vec::new()));
        let handles: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let said = Arc::clone(&said);
                worker::try_spawn(name, move || {
                    for word in 0..5 {
                        said.lock().push(format!("{name}{word}"));
                        Bell::default().rest(Duration::from_millis(2));
                    }
                })
                .unwrap()
            })
            .into();
        for _ in 0..200 {
            turns.give();
            hand.advance(Duration::from_millis(1));
        }
        for handle in handles {
            handle.join().unwrap();
        }
        assert_eq!(turns.give(), None);
        Arc::into_inner(said).unwrap().into_inner()
    }

    #[test]
    fn a_seed_decides_the_order_of_threads() {
        let orders: Vec<_> = (0..8).map(told).collect();
        assert!(orders.iter().all(|order| order.len() == 15));
        assert!(orders.iter().any(|order| *order != orders[0]), "all seeds gave one order");
        assert_eq!(orders, (0..8).map(told).collect::<Vec<_>>());
    }

    #[test]
    fn a_rest_ends_by_the_clock_that_was_given() {
        let (clock, hand) = Clock::manual(TimeMs(0));
        let turns = Turns::new(clock, Random::seeded(1));
        let _in_charge = turns.enter();
        let bell = Arc::new(Bell::default());
        let rests = Arc::clone(&bell);
        let handle = worker::try_spawn("rests", move || assert!(!rests.rest(Duration::from_secs(3600)))).unwrap();
        for _ in 0..20 {
            turns.give();
        }
        assert!(!handle.is_finished());
        hand.advance(Duration::from_secs(3600));
        handle.join().unwrap();
    }

    #[test]
    fn a_panic_in_a_thread_is_told_and_ends_no_process() {
        let turns = Turns::new(Clock::manual(TimeMs(0)).0, Random::seeded(1));
        let _in_charge = turns.enter();
        let handle = worker::try_spawn("fails", || panic!("as the test wants")).unwrap();
        assert!(handle.join().is_err());
        assert_eq!(turns.panicked().as_deref(), Some("the thread fails panicked"));
    }
}
