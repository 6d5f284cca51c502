//! The lanes in which messages gather, and which one a message belongs to.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use protocol::body::MessageQueue;
use protocol::names::is_logical_broker;

use super::batch::{Batch, Target, is_same_tag};
use crate::error::ClientError;
use crate::producer::prepared::check_topic;

/// Batches of a lane that are on their way at once. More than two, so that the broker has the next one while answers travel; few, so
/// that a slow broker makes batches fuller and not more.
const IN_FLIGHT_MAX: usize = 16;

/// After a batch that was waited for in vain, the next one that is comes with so many last answers, at first and at most.
const SKIPS_MIN: u32 = 16;
const SKIPS_MAX: u32 = 4096;

/// Whether the batches of a lane are waited for until they are full, though nothing of it is on its way. Whoever sends a few messages and
/// goes on with their answers looks for a moment as if more were to come: he is to lose that time seldom.
#[derive(Default)]
pub(crate) struct Patience {
    skips: u32,
    after_next: u32,
}

impl Patience {
    /// The last answer has come.
    fn answered(&mut self) {
        self.skips = self.skips.saturating_sub(1);
    }

    /// A batch was waited for and is full.
    pub(crate) fn paid(&mut self) {
        self.after_next = 0;
    }

    /// A batch was waited for in vain.
    pub(crate) fn lost(&mut self) {
        self.after_next = (2 * self.after_next).clamp(SKIPS_MIN, SKIPS_MAX);
        self.skips = self.after_next;
    }
}

/// Which lane. A number is given again when its lane is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneId(usize);

/// A tag, and whether the answer waits for the disk.
struct Common {
    tag: String,
    waits: bool,
}

/// What a lane's first batch may do.
pub(crate) enum Next {
    /// There is none, or an answer is waited for.
    Nothing,
    /// Leave. Nothing but its leaving makes that untrue again.
    Leaves,
    /// This one is waited for until it is full.
    Fills(u64),
}

pub(crate) struct Lane {
    pub(crate) target: Arc<Target>,
    /// Of a lane for any queue: what all its messages have in common.
    common: Option<Common>,
    pub(crate) batches: VecDeque<Batch>,
    pub(crate) in_flight: usize,
    pub(crate) patience: Patience,
    /// The batch that is about to leave; it must be gone before the next one starts, where the order counts.
    pub(crate) leaving: Option<u64>,
    /// Up to this one batches have waited for long enough, or need not.
    pub(crate) overdue_to: u64,
    /// The last one that was waited for until it would be full.
    pub(crate) filling: u64,
    /// It stands in the line of those whose first batch may leave.
    pub(crate) is_ready: bool,
    /// Bytes of the batch before: what the next one is likely to need.
    pub(crate) usual_bytes: usize,
}

impl Lane {
    /// What its first batch may do, as far as this lane is concerned. `is_filling`: it will soon be full.
    pub(crate) fn next(&self, is_filling: impl FnOnce(&Batch) -> bool) -> Next {
        let Some(first) = self.batches.front() else { return Next::Nothing };
        if self.leaving.is_some() || self.in_flight >= self.in_flight_max() {
            return Next::Nothing;
        }
        if first.is_closed() || first.number <= self.overdue_to {
            return Next::Leaves;
        }
        match self.in_flight {
            0 if self.patience.skips == 0 && is_filling(first) => Next::Fills(first.number),
            0 => Next::Leaves,
            _ => Next::Nothing,
        }
    }

    /// One of its batches is not on its way any more, if one was.
    pub(crate) fn arrived(&mut self, number: u64) -> bool {
        // No assertion: it may be called while a panic unwinds.
        let Some(in_flight) = self.in_flight.checked_sub(1) else { return false };
        self.in_flight = in_flight;
        if self.leaving == Some(number) {
            self.leaving = None;
        }
        if in_flight == 0 {
            self.patience.answered();
        }
        true
    }

    fn in_flight_max(&self) -> usize {
        match &self.target.queue {
            // It may be refused because the queue has moved, and is sent again then: nothing may have overtaken it.
            Some(queue) if is_logical_broker(&queue.broker_name) => 1,
            Some(_) | None => IN_FLIGHT_MAX,
        }
    }

    /// Whether nothing is in it and nothing of it on its way.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.batches.is_empty()
    }
}

/// All lanes of a producer.
#[derive(Default)]
pub(crate) struct Lanes {
    places: Vec<Option<Lane>>,
    free: Vec<LaneId>,
    chosen: HashMap<MessageQueue, LaneId>,
    /// By topic, tag, and whether the answer waits for the disk.
    any: HashMap<String, HashMap<String, [Option<LaneId>; 2]>>,
    /// The one that was asked for last. It may be gone.
    last_any: Option<LaneId>,
}

impl Lanes {
    pub(crate) fn get(&self, id: LaneId) -> Option<&Lane> {
        self.places.get(id.0).and_then(Option::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: LaneId) -> Option<&mut Lane> {
        self.places.get_mut(id.0).and_then(Option::as_mut)
    }

    /// All of them, and some that are gone.
    pub(crate) fn ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.places.len()).map(LaneId)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The lane of a chosen queue. An error if no topic may have such a name.
    pub(crate) fn of(&mut self, queue: &MessageQueue) -> Result<LaneId, ClientError> {
        if let Some(known) = self.chosen.get(queue) {
            return Ok(*known);
        }
        let lane = self.make(queue.topic.clone(), Some(queue.clone()), None)?;
        self.chosen.insert(queue.clone(), lane);
        Ok(lane)
    }

    /// The lane of those that may go to any queue. An error if no topic may have such a name.
    pub(crate) fn of_any(&mut self, topic: &str, tag: &str, waits: bool) -> Result<LaneId, ClientError> {
        // Most messages are like the one before.
        let is_like = |lane: &&Lane| {
            let is_common = |common: &Common| common.waits == waits && is_same_tag(&common.tag, tag);
            lane.common.as_ref().is_some_and(is_common) && lane.target.topic == topic
        };
        if let Some(last) = self.last_any.filter(|last| self.get(*last).as_ref().is_some_and(is_like)) {
            return Ok(last);
        }
        let lane = self.find_any(topic, tag, waits)?;
        self.last_any = Some(lane);
        Ok(lane)
    }

    fn find_any(&mut self, topic: &str, tag: &str, waits: bool) -> Result<LaneId, ClientError> {
        let known = self.any.get(topic).and_then(|tags| tags.get(tag)).and_then(|pair| pair[usize::from(waits)]);
        if let Some(known) = known {
            return Ok(known);
        }
        let lane = self.make(topic.to_owned(), None, Some(Common { tag: tag.to_owned(), waits }))?;
        let tags = self.any.entry(topic.to_owned()).or_default();
        tags.entry(tag.to_owned()).or_default()[usize::from(waits)] = Some(lane);
        Ok(lane)
    }

    fn make(
        &mut self,
        topic: String,
        queue: Option<MessageQueue>,
        common: Option<Common>,
    ) -> Result<LaneId, ClientError> {
        // Here and not for each message: a lane has one topic.
        check_topic(&topic)?;
        let lane = Lane {
            target: Arc::new(Target { topic, queue }),
            common,
            // Most have no more than one, and there may be many of them.
            batches: VecDeque::with_capacity(1),
            in_flight: 0,
            patience: Patience::default(),
            leaving: None,
            overdue_to: 0,
            filling: 0,
            is_ready: false,
            usual_bytes: 0,
        };
        Ok(match self.free.pop() {
            Some(id) => {
                self.places[id.0] = Some(lane);
                id
            }
            None => {
                self.places.push(Some(lane));
                LaneId(self.places.len() - 1)
            }
        })
    }

    /// Forgets one that is idle.
    pub(crate) fn remove(&mut self, id: LaneId) {
        let Some(lane) = self.places.get_mut(id.0).and_then(Option::take) else { return };
        self.free.push(id);
        if let Some(queue) = &lane.target.queue {
            self.chosen.remove(queue);
        }
        let Some(Common { tag, waits }) = &lane.common else { return };
        let Some(tags) = self.any.get_mut(&lane.target.topic) else { return };
        if let Some(pair) = tags.get_mut(tag) {
            pair[usize::from(*waits)] = None;
            if pair.iter().all(Option::is_none) {
                tags.remove(tag);
            }
        }
        if tags.is_empty() {
            self.any.remove(&lane.target.topic);
        }
    }
}
