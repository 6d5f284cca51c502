//! How many connections there may be, of a port and of a process; and who has to go when there are too many: whoever came first of those that
//! have never said anything.
//!
//! A connection is new until its first whole frame has come. New ones cost their peers nothing, so a port scanner, or a host that is half gone,
//! has as many as he likes: they make way for those that come after them, and nobody who has spoken ever does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Those that were told to go and are not gone yet, for each so many places: they hold a descriptor beside those that came for them.
const PLACES_PER_LEAVING: usize = 16;
/// And in all.
const LEAVING_MAX: usize = 64;

// Relaxed: numbers have to differ, and to grow on the whole.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A bound on connections that the listeners of a process share.
///
/// Each connection is a descriptor, and so is each file: without this bound, connections that nobody uses would take those with which a
/// store opens the next file of its log.
#[derive(Debug)]
pub struct ConnectionSlots {
    max: usize,
    /// Of one address, none if that is nobody's concern.
    per_address_max: Option<usize>,
    /// Guards itself only; taken when a connection comes, says its first word, and goes. A newcomer is told to go outside.
    state: Mutex<SlotTable>,
}

#[derive(Debug, Default)]
struct SlotTable {
    taken: usize,
    /// New ones in the order in which they came.
    new: BTreeMap<u64, Arc<Newcomer>>,
    /// Those that were told to go. Their places are taken by those that came for them.
    leaving: HashSet<u64>,
    by_address: HashMap<IpAddr, usize>,
    given_up: u64,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// All are taken, and nobody can be sent away.
    Full,
    /// The address has as many as it may have.
    OfAddress,
}

/// How places are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceFigures {
    /// Places that are taken.
    pub taken: usize,
    /// Of these, by connections that have said nothing yet.
    pub new: usize,
    /// Connections that had to make way since the start.
    pub given_up: u64,
}

impl ConnectionSlots {
    /// So many, all of them free.
    pub fn new(max: usize) -> ConnectionSlots {
        ConnectionSlots { max, per_address_max: None, state: Mutex::default() }
    }

    /// The same, of which one address may have so many; 0: any number.
    pub fn per_address(self, max: usize) -> ConnectionSlots {
        ConnectionSlots { per_address_max: Some(max).filter(|max| *max > 0), ..self }
    }

    /// How many there are.
    pub fn max(&self) -> usize {
        self.max
    }

    /// How they are used.
    pub fn figures(&self) -> PlaceFigures {
        let state = self.state.lock();
        PlaceFigures { taken: state.taken, new: state.new.len(), given_up: state.given_up }
    }

    /// Takes one for a newcomer, until what is returned is dropped. Where all are taken, the oldest that has said nothing is told to go.
    pub fn take(self: &Arc<Self>, newcomer: &Arc<Newcomer>) -> Result<ConnectionSlot, NoPlace> {
        let mut oldest = None;
        {
            let mut state = self.state.lock();
            let of_address = state.by_address.get(&newcomer.address).copied().unwrap_or(0);
            if self.per_address_max.is_some_and(|max| of_address >= max) {
                return Err(NoPlace::OfAddress);
            }
            if state.taken < self.max {
                state.taken += 1;
            } else {
                let leaving_max = (self.max / PLACES_PER_LEAVING).clamp(1, LEAVING_MAX);
                if state.leaving.len() >= leaving_max {
                    return Err(NoPlace::Full);
                }
                let Some((number, first)) = state.new.pop_first() else { return Err(NoPlace::Full) };
                state.leaving.insert(number);
                state.given_up += 1;
                oldest = Some(first);
            }
            if self.per_address_max.is_some() {
                *state.by_address.entry(newcomer.address).or_default() += 1;
            }
            state.new.insert(newcomer.number, Arc::clone(newcomer));
        }
        if let Some(oldest) = &oldest {
            oldest.tell_to_go();
        }
        let (number, address, cost_another) = (newcomer.number, newcomer.address, oldest.is_some());
        Ok(ConnectionSlot { places: Arc::clone(self), number, address, cost_another })
    }
}

/// A place that is taken.
#[derive(Debug)]
pub struct ConnectionSlot {
    places: Arc<ConnectionSlots>,
    number: u64,
    address: IpAddr,
    /// Somebody had to make way.
    pub(crate) cost_another: bool,
}

impl ConnectionSlot {
    /// Its connection has said something, and is nobody's to send away any more.
    pub fn has_spoken(&self) {
        self.places.state.lock().new.remove(&self.number);
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut state = self.places.state.lock();
        state.new.remove(&self.number);
        if !state.leaving.remove(&self.number) {
            state.taken -= 1;
        }
        if self.places.per_address_max.is_some()
            && let Some(count) = state.by_address.get_mut(&self.address)
        {
            *count -= 1;
            if *count == 0 {
                state.by_address.remove(&self.address);
            }
        }
    }
}

/// A connection that has said nothing yet, and what it is told.
#[derive(Debug)]
pub struct Newcomer {
    number: u64,
    address: IpAddr,
    /// Guards itself only.
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    to_go: bool,
    waker: Option<Waker>,
}

impl Newcomer {
    /// From this address.
    pub fn new(address: IpAddr) -> Arc<Newcomer> {
        Arc::new(Newcomer { number: NEXT.fetch_add(1, Ordering::Relaxed), address, told: Mutex::default() })
    }

    fn tell_to_go(&self) {
        let waker = {
            let mut told = self.told.lock();
            told.to_go = true;
            told.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// For its task: ready when it is to make way.
    pub fn poll_told(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut told = self.told.lock();
        if told.to_go {
            return Poll::Ready(());
        }
        told.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one() -> Arc<Newcomer> {
        Newcomer::new(IpAddr::from([127, 0, 0, 1]))
    }

    fn is_told(newcomer: &Newcomer) -> bool {
        newcomer.poll_told(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_that_has_said_nothing_makes_way_and_nobody_else() {
        let places = Arc::new(ConnectionSlots::new(3));
        let all = [one(), one(), one(), one(), one()];
        let spoke = places.take(&all[0]).unwrap();
        spoke.has_spoken();
        let second = places.take(&all[1]).unwrap();
        let _third = places.take(&all[2]).unwrap();
        let _fourth = places.take(&all[3]).unwrap();
        assert_eq!(all.each_ref().map(|one| is_told(one)), [false, true, false, false, false]);
        assert_eq!(places.take(&all[4]).unwrap_err(), NoPlace::Full, "until that one is gone");
        assert_eq!(places.figures(), PlaceFigures { taken: 3, new: 2, given_up: 1 });
        drop(second);
        let _fifth = places.take(&all[4]).unwrap();
        assert!(is_told(&all[2]) && !is_told(&all[0]) && !is_told(&all[3]));
    }

    #[test]
    fn a_place_is_free_again_once_however_its_connection_went() {
        let places = Arc::new(ConnectionSlots::new(1));
        let (first, second) = (one(), one());
        let before = places.take(&first).unwrap();
        let after = places.take(&second).unwrap();
        drop((before, after));
        assert_eq!(places.figures(), PlaceFigures { taken: 0, new: 0, given_up: 1 });
        let spoke = places.take(&one()).unwrap();
        spoke.has_spoken();
        assert_eq!(places.take(&one()).unwrap_err(), NoPlace::Full, "who has spoken stays");
    }

    #[test]
    fn an_address_has_no_more_than_it_may() {
        let places = Arc::new(ConnectionSlots::new(10).per_address(2));
        let of = |last| places.take(&Newcomer::new(IpAddr::from([10, 0, 0, last])));
        let first = of(1).unwrap();
        let _others = (of(1).unwrap(), of(2).unwrap());
        assert_eq!(of(1).unwrap_err(), NoPlace::OfAddress);
        drop(first);
        assert!(of(1).is_ok());
    }
}
