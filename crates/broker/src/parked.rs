//! What a connection has parked: requests that wait, each in the slot by which it is woken.

use std::any::Any;
use std::sync::Arc;

use net::ReplyTo;

use crate::refusal::Refusal;
use crate::state::groups::Group;
use crate::state::topics::Topic;
use crate::state::want::Want;
use crate::waiting::hold::{Aside, Lane, Slot};

/// A request that waits.
pub(crate) enum Parked {
    Pull(PullOrder),
    /// A pop, or a question for something to pop: a `Waiting` of `pop`.
    Pop(Box<dyn Any + Send>),
}

/// A pull that has passed its checks.
pub(crate) struct PullOrder {
    pub(crate) reply_to: ReplyTo,
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
    pub(crate) filter: Option<Arc<Want>>,
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

/// A question to the client of a connection, and the pulls that wait for what it says of its subscriptions.
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

/// Things under numbers, which are used again. The limits on parked requests bound it.
pub(crate) struct Slots<T> {
    places: Vec<Place<T>>,
    /// The first of those that are free.
    free: Option<u32>,
    held: usize,
}

enum Place<T> {
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
            if let Place::Free(next) = std::mem::replace(place, Place::Held(thing)) {
                self.free = next;
            }
            return Slot(number);
        }
        if self.places.is_empty() {
            // Most connections wait for one thing.
            self.places.reserve_exact(1);
        }
        self.places.push(Place::Held(thing));
        Slot(self.places.len() as u32 - 1)
    }

    /// Takes what lies there, if anything does.
    pub(crate) fn take(&mut self, slot: Slot) -> Option<T> {
        let place = self.places.get_mut(slot.0 as usize).filter(|place| matches!(place, Place::Held(_)))?;
        let Place::Held(thing) = std::mem::replace(place, Place::Free(self.free)) else { return None };
        self.free = Some(slot.0);
        self.held -= 1;
        Some(thing)
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
}
