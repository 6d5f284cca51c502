//! What a connection has parked: requests that wait, each in the slot by which it is woken.

use std::any::Any;
use std::sync::Arc;

use net::ReplyTo;

use crate::refusal::Refusal;
use crate::state::groups::Group;
use crate::state::message_filter::MessageFilter;
use crate::state::topics::Topic;
use crate::waiting::hold::{Aside, Lane, Slot};

/// A request that waits.
pub(crate) enum Parked {
    /// A pull, and where its answer goes; none for a call in this process.
    Pull(CheckedPull, Option<ReplyTo>),
    /// A pop, or a question for something to pop, and where its answer goes: a `Waiting` of `pop`.
    Pop(Box<dyn Any + Send>, Option<ReplyTo>),
}

/// A pull that has passed its checks.
pub(crate) struct CheckedPull {
    pub(crate) group: Arc<Group>,
    pub(crate) topic: Arc<Topic>,
    /// The queue that it reads and waits for.
    pub(crate) lane: Arc<Lane>,
    /// The logical queue, of a static topic; everything else here is about the physical one.
    pub(crate) logical: Option<Box<Asked>>,
    /// Where the client wants to begin.
    pub(crate) asked: i64,
    /// Where to look next: beyond `asked` when what lay between did not match.
    pub(crate) offset: i64,
    pub(crate) count_max: i32,
    pub(crate) bytes_max: Option<i32>,
    /// `None`: everything.
    pub(crate) filter: Option<Arc<MessageFilter>>,
}

/// What a client asked for when it asked for a logical queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) queue_id: i32,
    pub(crate) offset: i64,
    /// Of the physical queue that is read for it.
    pub(crate) generation: i32,
    /// Where that ends for the logical queue, in its own offsets.
    pub(crate) end: i64,
    /// The logical offset that the pull commits.
    pub(crate) commit_offset: Option<i64>,
}

/// A question to the client of a connection, and the pulls that wait for what it says of its
/// subscriptions.
pub(crate) struct Question {
    pub(crate) group: Arc<str>,
    pub(crate) pulls: Vec<LatePull>,
}

/// A pull that knows a newer subscription than we do.
pub(crate) struct LatePull {
    pub(crate) reply_to: ReplyTo,
    pub(crate) topic: Box<str>,
    pub(crate) sub_version: i64,
    pub(crate) queue_offset: i64,
    /// What it hears when the client does not help.
    pub(crate) refusal: Refusal,
    /// That it waits is counted.
    pub(crate) _aside: Aside,
}

/// Places of a connection that are kept, whatever is free.
const PLACES_KEPT: usize = 64;

/// Things under numbers, which are used again. The limits on parked requests bound it.
pub(crate) struct Slots<T> {
    places: Vec<SlotState<T>>,
    /// The first of those that are free.
    free: Option<u32>,
    held: usize,
}

enum SlotState<T> {
    Held(T),
    /// And the next free one.
    Free(Option<u32>),
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Slots<T> {
        Slots { places: Vec::new(), free: None, held: 0 }
    }

    pub(crate) fn put(&mut self, thing: T) -> Slot {
        self.held += 1;
        let free = self.free.and_then(|number| Some((number, self.places.get_mut(number as usize)?)));
        if let Some((number, place)) = free {
            if let SlotState::Free(next) = std::mem::replace(place, SlotState::Held(thing)) {
                self.free = next;
            }
            return Slot(number);
        }
        if self.places.is_empty() {
            // Most connections wait for one thing.
            self.places.reserve_exact(1);
        }
        self.places.push(SlotState::Held(thing));
        Slot(self.places.len() as u32 - 1)
    }

    /// Takes what lies there, if anything does.
    pub(crate) fn take(&mut self, slot: Slot) -> Option<T> {
        let place = self.places.get_mut(slot.0 as usize).filter(|place| matches!(place, SlotState::Held(_)))?;
        let SlotState::Held(thing) = std::mem::replace(place, SlotState::Free(self.free)) else { return None };
        self.free = Some(slot.0);
        self.held -= 1;
        if self.held < self.places.len() / 4 && self.places.len() > PLACES_KEPT {
            self.shrink();
        }
        Some(thing)
    }

    /// Gives back the free places behind the last one that is held: one parked request need not
    /// keep the memory of a hundred thousand.
    fn shrink(&mut self) {
        let last = self.places.iter().rposition(|place| matches!(place, SlotState::Held(_)));
        let count = last.map_or(0, |last| last + 1);
        // A place that is held far behind keeps the others; it is looked for again once as many
        // more are free.
        if count > self.places.len() / 2 {
            return;
        }
        self.places.truncate(count);
        self.places.shrink_to_fit();
        self.free = None;
        for (number, place) in (0..).zip(&mut self.places) {
            if matches!(place, SlotState::Free(_)) {
                *place = SlotState::Free(self.free);
                self.free = Some(number);
            }
        }
    }

    /// Whether nothing is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Gives the memory back, if nothing is here.
    pub(crate) fn rest(&mut self) {
        if self.held == 0 {
            *self = Slots::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_once_it_is_free_and_not_before() {
        let mut slots = Slots::new();
        let (a, b) = (slots.put("a"), slots.put("b"));
        assert_ne!(a, b);
        assert_eq!((slots.take(a), slots.take(a)), (Some("a"), None));
        assert_eq!((slots.put("c"), slots.take(b)), (a, Some("b")));
        let (d, e) = (slots.put("d"), slots.put("e"));
        assert_eq!((d, slots.places.len()), (b, 3));
        slots.rest();
        assert_eq!((slots.take(a), slots.take(d), slots.take(e)), (Some("c"), Some("d"), Some("e")));
        assert_eq!(slots.take(Slot(7)), None);
        slots.rest();
        assert_eq!(slots.places.capacity(), 0);
    }

    #[test]
    fn one_that_stays_does_not_keep_the_places_of_all_that_were_there() {
        let mut slots = Slots::new();
        let all: Vec<Slot> = (0..10_000).map(|number| slots.put(number)).collect();
        let (first, middle) = (all[0], all[10]);
        for slot in all.iter().filter(|slot| **slot != first && **slot != middle) {
            assert_eq!(slots.take(*slot), Some(slot.0));
        }
        assert!(slots.places.capacity() <= 4 * PLACES_KEPT, "{}", slots.places.capacity());
        let more: Vec<Slot> = (0..500).map(|number| slots.put(20_000 + number)).collect();
        assert_eq!(more.iter().map(|slot| slot.0).collect::<std::collections::BTreeSet<_>>().len(), 500);
        assert!(!more.contains(&first) && !more.contains(&middle));
        assert_eq!((slots.take(first), slots.take(middle)), (Some(0), Some(10)));
        assert!(more.iter().zip(20_000..).all(|(slot, number)| slots.take(*slot) == Some(number)));
    }
}
