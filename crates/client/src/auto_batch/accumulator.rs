//! Which messages go together, and when they leave: a state machine without a clock, a socket or a task.
//!
//! Messages gather in *lanes*: those to one chosen queue, or those of a topic with the same tag that may go to any queue. A lane with
//! nothing on its way lets its first batch go at once, full or not, so a lone message waits for nobody. While something is on its way the
//! next batch gathers; it leaves when it is full, when the last answer has come, or when it has waited for long enough. Lanes whose first
//! batch may leave stand in one line, `ready`: only so many batches of all lanes are on their way at once.
//!
//! What holds: a lane in which a batch waits has one on its way or stands in the line, and while a lane stands there something is on its
//! way, so somebody will come to let it go; batches of a chosen queue leave in the order in which their messages came, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use protocol::batch::{self, InnerMessage};
use protocol::body::MessageQueue;
use protocol::properties::{PropertiesWriter, name};

use super::batch::Batch;
use super::lanes::{LaneId, Lanes};
use super::pending::Pending;
use crate::error::ClientError;
use crate::message::Message;

/// Lanes that stay although nothing is in them: their next message finds its place without being asked for memory.
const IDLE_LANES_MAX: usize = 1024;

/// Batches that an idle lane keeps memory for.
const IDLE_BATCHES_MAX: usize = 4;

/// Batches that are remembered as waiting, before those of them that have left are looked for.
const WAITING_MIN: usize = 64;

/// Above this the memory in which property strings are written is given back: a few were unusually long.
const PROPERTIES_KEPT_MAX: usize = 4096;

/// When batches leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of a batch as it is sent, unless one message alone has more.
    pub(crate) batch_bytes_max: usize,
    /// For which a message waits at most, as long as fewer batches are on their way than may be, of its lane and of all.
    pub(crate) delay: Duration,
    /// Larger bodies are compressed, which those in a batch cannot be by themselves.
    pub(crate) compress_over_bytes: Option<usize>,
    /// Batches of all lanes that are on their way at once, one at least.
    pub(crate) in_flight_max: usize,
    /// What all lanes together ask for ahead of the messages that may come.
    pub(crate) reserve_bytes: usize,
}

/// What a message takes of the producer's budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// By itself.
    pub(crate) message: usize,
    /// With the batch that it begins.
    pub(crate) with_batch: usize,
}

/// A message that was taken.
pub(crate) struct Added {
    pub(crate) pending: Pending,
    /// What its batch will give back for it.
    pub(crate) room: usize,
}

/// See the module.
pub(crate) struct Accumulator {
    limits: Limits,
    lanes: Lanes,
    /// Lanes whose first batch may leave, in the order in which it could.
    ready: VecDeque<LaneId>,
    /// Batches of all lanes that are on their way.
    in_flight: usize,
    /// Batches count from 1, in the order in which they were begun.
    last_number: u64,
    /// Batches that had to wait when they were begun, oldest first. Some have left by now.
    waiting: VecDeque<Waiting>,
    /// With so many of them those that have left are taken out.
    waiting_max: usize,
    properties: PropertiesWriter,
}

struct Waiting {
    since: Duration,
    lane: LaneId,
    number: u64,
}

impl Waiting {
    /// Whether it has not left yet.
    fn is_still(&self, lanes: &Lanes) -> bool {
        // Numbers grow: a lane that was made anew has none that is as old.
        lanes.get(self.lane).and_then(|lane| lane.batches.front()).is_some_and(|first| first.number <= self.number)
    }
}

impl Accumulator {
    pub(crate) fn new(limits: Limits) -> Accumulator {
        Accumulator {
            limits,
            lanes: Lanes::default(),
            ready: VecDeque::new(),
            in_flight: 0,
            last_number: 0,
            waiting: VecDeque::new(),
            waiting_max: WAITING_MIN,
            properties: PropertiesWriter::new(),
        }
    }

    /// Takes a message: for `queue`, or for any. Its batch keeps the sum of what was taken of the budget. Whoever calls this asks
    /// [`Accumulator::next_to_leave`] before anybody else does anything. After an error no message has changed its place.
    pub(crate) fn add(
        &mut self,
        now: Duration,
        queue: Option<&MessageQueue>,
        message: &Message,
        unique_id: &str,
        room: Room,
    ) -> Result<Added, ClientError> {
        if queue.is_some_and(|queue| queue.topic != message.topic) {
            return Err(ClientError::Invalid("the queue is one of another topic than the message's".to_owned()));
        }
        let mut properties = std::mem::take(&mut self.properties);
        let added = match message.put_properties(unique_id, &mut properties) {
            Ok(()) => self.put(now, queue, message, properties.as_str(), unique_id, room),
            Err(error) => Err(error),
        };
        if properties.as_bytes().len() <= PROPERTIES_KEPT_MAX {
            self.properties = properties;
        }
        added
    }

    fn put(
        &mut self,
        now: Duration,
        queue: Option<&MessageQueue>,
        message: &Message,
        properties: &str,
        unique_id: &str,
        room: Room,
    ) -> Result<Added, ClientError> {
        let inner = InnerMessage { flag: message.flag, body: &message.body, properties };
        let bytes = batch::encoded_len(&inner).map_err(|error| ClientError::Invalid(error.to_string()))?;
        let (tag, waits) = (message.get(name::TAGS).unwrap_or_default(), message.waits());
        let lane_id = match queue {
            Some(queue) => self.lanes.of(queue),
            None => self.lanes.of_any(&message.topic, tag, waits),
        };
        let Limits { batch_bytes_max, reserve_bytes, compress_over_bytes, .. } = self.limits;
        let reserved_max = reserve_bytes / self.lanes.len().max(1);
        let is_alone = is_alone(message, compress_over_bytes);
        let Some(lane) = self.lanes.get_mut(lane_id) else { unreachable!("a lane that was just looked up is there") };
        let id = message.get(name::UNIQ_KEY).unwrap_or(unique_id);
        let fits = |open: &&mut Batch| !is_alone && open.takes(bytes, tag, waits, batch_bytes_max);
        let (pending, room) = if let Some(open) = lane.batches.back_mut().filter(fits) {
            let pending = open.push(&inner, id, room.message, lane.usual_bytes.min(reserved_max))?;
            // What would not take another one like this need not wait for it.
            if open.body_len() + bytes > batch_bytes_max || open.is_full() {
                open.close();
            }
            (pending, room.message)
        } else {
            if let Some(before) = lane.batches.back_mut() {
                before.close();
            }
            self.last_number += 1;
            let number = self.last_number;
            if !lane.is_idle() {
                self.waiting.push_back(Waiting { since: now, lane: lane_id, number });
            }
            let mut batch = Batch::new(lane_id, number, Arc::clone(&lane.target), (tag, waits), (message, properties));
            let pending = batch.note(bytes, id, room.with_batch);
            if is_alone || 2 * bytes > batch_bytes_max {
                batch.close();
            }
            lane.batches.push_back(batch);
            (pending, room.with_batch)
        };
        self.put_in_line(lane_id);
        // Next time only when the number has doubled: little work for each batch, and at most about twice what waits.
        if self.waiting.len() >= self.waiting_max {
            self.waiting.retain(|waiting| waiting.is_still(&self.lanes));
            self.waiting_max = WAITING_MIN.max(2 * self.waiting.len());
        }
        Ok(Added { pending, room })
    }

    /// Lets a lane stand in line, at the end, if its first batch may leave.
    fn put_in_line(&mut self, lane_id: LaneId) {
        let Some(lane) = self.lanes.get_mut(lane_id) else { return };
        if !lane.is_ready && lane.may_let_go() {
            lane.is_ready = true;
            self.ready.push_back(lane_id);
        }
    }

    /// A batch that may leave now: of the lane that has stood in line for the longest. It counts as on its way until
    /// [`Accumulator::answered`] or [`Accumulator::abandon`]. Whoever has changed anything calls this until there is none.
    pub(crate) fn next_to_leave(&mut self) -> Option<Batch> {
        if self.in_flight >= self.limits.in_flight_max {
            return None;
        }
        let lane_id = self.ready.pop_front()?;
        let lane = self.lanes.get_mut(lane_id)?;
        lane.is_ready = false;
        let first = lane.batches.pop_front()?;
        lane.in_flight += 1;
        lane.usual_bytes = first.body_len();
        if lane.target.queue.is_some() {
            lane.leaving = Some(first.number);
        }
        self.in_flight += 1;
        self.put_in_line(lane_id);
        Some(first)
    }

    /// A batch of a chosen queue lies on the connection, so the one behind it may follow.
    pub(crate) fn left(&mut self, lane_id: LaneId, number: u64) {
        if let Some(lane) = self.lanes.get_mut(lane_id)
            && lane.leaving == Some(number)
        {
            lane.leaving = None;
            self.put_in_line(lane_id);
        }
    }

    /// A batch is answered, or has failed for good. Its place is the next one's.
    pub(crate) fn answered(&mut self, lane_id: LaneId, number: u64) -> Option<Batch> {
        self.arrived(lane_id, number);
        self.next_to_leave()
    }

    /// A batch was given up, by whoever should have sent it. Where nothing else is on its way nobody will come for those that wait: they
    /// are given up too.
    pub(crate) fn abandon(&mut self, lane_id: LaneId, number: u64) -> Vec<Batch> {
        self.arrived(lane_id, number);
        let mut left_behind = Vec::new();
        if self.in_flight > 0 {
            return left_behind;
        }
        while let Some(lane_id) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(lane_id) else { continue };
            lane.is_ready = false;
            left_behind.extend(lane.batches.drain(..));
            self.tidy(lane_id);
        }
        left_behind
    }

    fn arrived(&mut self, lane_id: LaneId, number: u64) {
        let Some(lane) = self.lanes.get_mut(lane_id) else { return };
        // No assertion: it may be called while a panic unwinds.
        let (Some(of_lane), Some(of_all)) = (lane.in_flight.checked_sub(1), self.in_flight.checked_sub(1)) else {
            return;
        };
        lane.in_flight = of_lane;
        self.in_flight = of_all;
        if lane.leaving == Some(number) {
            lane.leaving = None;
        }
        self.put_in_line(lane_id);
        self.tidy(lane_id);
    }

    /// Keeps of an idle lane what its next messages will need, if there are not many others.
    fn tidy(&mut self, lane_id: LaneId) {
        let is_one_of_many = self.lanes.len() > IDLE_LANES_MAX;
        let Some(lane) = self.lanes.get_mut(lane_id).filter(|lane| lane.is_idle()) else { return };
        if is_one_of_many {
            self.lanes.remove(lane_id);
        } else if lane.batches.capacity() > IDLE_BATCHES_MAX {
            lane.batches.shrink_to(IDLE_BATCHES_MAX);
        }
    }

    /// Lets a lane stand in line whose first batch has waited for long enough; one of which too many are on their way stands there after
    /// the next answer. Called until it says that there is none.
    pub(crate) fn next_overdue(&mut self, now: Duration) -> bool {
        if self.next_deadline().is_none_or(|deadline| deadline > now) {
            return false;
        }
        let Some(Waiting { lane: lane_id, number, .. }) = self.waiting.pop_front() else { return false };
        if let Some(lane) = self.lanes.get_mut(lane_id) {
            lane.overdue_to = number;
            self.put_in_line(lane_id);
        }
        true
    }

    /// When the oldest batch that waits will have waited for long enough.
    pub(crate) fn next_deadline(&mut self) -> Option<Duration> {
        while let Some(waiting) = self.waiting.front() {
            if waiting.is_still(&self.lanes) {
                return Some(waiting.since + self.limits.delay);
            }
            self.waiting.pop_front();
        }
        None
    }
}

#[cfg(test)]
impl Accumulator {
    /// How many batches are remembered as waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// How many lanes stand in line.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }
}

/// Whether a message goes by itself: what the broker does for single messages only (it looks at the properties of a batch, not at those of the
/// messages in it), as with Java's client, and what is to be compressed. Without a body it is refused, which a broker does to single messages
/// only. A word after `WAIT` that is neither true nor false is one that clients and brokers read differently.
fn is_alone(message: &Message, compress_over_bytes: Option<usize>) -> bool {
    const ALONE: [&str; 11] = [
        name::DELAY,
        name::TIMER_DELAY_SEC,
        name::TIMER_DELAY_MS,
        name::TIMER_DELIVER_MS,
        name::TIMER_DEL_UNIQKEY,
        name::PGROUP,
        name::TRAN_MSG,
        name::INNER_NUM,
        name::INNER_MULTI_DISPATCH,
        name::LITE_TOPIC,
        name::PRIORITY,
    ];
    let is_word = |word: &str| ["true", "false"].iter().any(|known| word.eq_ignore_ascii_case(known));
    message.body.is_empty()
        || compress_over_bytes.is_some_and(|limit| message.body.len() > limit)
        || message.topic.starts_with(protocol::names::RETRY_PREFIX)
        || message.names().any(|name| ALONE.contains(&name))
        || message.get(name::WAIT).is_some_and(|word| !is_word(word))
}
