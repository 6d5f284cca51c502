//! Which messages go together, and when they leave: a state machine without a clock, a socket or a task.
//!
//! Messages gather in *lanes*: those to one chosen queue, or those of a topic with the same tag that may go to any queue. A lane with
//! nothing on its way lets its first batch go at once, full or not, so a lone message waits for nobody. While something is on its way the
//! next batch gathers; it leaves when it is full, when the last answer has come, or when it has waited for long enough. When the last answer
//! comes and the batch has filled so fast that it will soon be full it goes on gathering: under load batches are to be full, however fast the
//! broker answers. Lanes whose first batch may leave stand in one line, `ready`: only so many batches of all lanes are on their way at once.
//!
//! What holds: a lane in which a batch waits has one on its way, stands in the line, or has a deadline, and while a lane stands in line
//! something is on its way, so somebody will come to let it go; batches of a chosen queue leave in the order in which their messages came,
//! one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use protocol::batch::{self, InnerMessage};
use protocol::body::MessageQueue;
use protocol::properties::{PropertiesWriter, name};

use super::batch::Batch;
use super::lanes::{LaneId, Lanes, Next};
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

/// A batch is not waited for that has not gathered so great a share of what it may have: it says too little of how fast it fills.
const FILLING_SHARE: usize = 8;

/// Within this a batch has to become full to be waited for, and so long it is waited for. Less where [`Limits::delay`] is short.
const FILLING_TIME: Duration = Duration::from_micros(2_500);

/// Such a share of [`Limits::delay`].
const FILLING_DELAY_SHARE: u32 = 4;

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
    /// The time, as it was told last.
    now: Duration,
    lanes: Lanes,
    /// Lanes whose first batch may leave, in the order in which it could.
    ready: VecDeque<LaneId>,
    /// Batches of all lanes that are on their way.
    in_flight: usize,
    /// Batches count from 1, in the order in which they were begun.
    last_number: u64,
    /// Batches that had to wait when they were begun, oldest first. Some have left by now.
    waiting: VecDeque<Waiting>,
    /// Batches that are waited for until they are full, in the order in which that began. Some have left by now.
    filling: VecDeque<Waiting>,
    /// With so many of them those that have left are taken out.
    waiting_max: usize,
    properties: PropertiesWriter,
}

struct Waiting {
    since: Duration,
    lane: LaneId,
    number: u64,
}

impl Limits {
    fn filling_time(&self) -> Duration {
        FILLING_TIME.min(self.delay / FILLING_DELAY_SHARE)
    }

    /// Whether a batch, as fast as it has filled so far, will soon be full.
    fn is_filling(&self, batch: &Batch, now: Duration) -> bool {
        let (has, needs) = (batch.body_len(), self.batch_bytes_max.saturating_sub(batch.body_len()));
        let (age, soon) = (now.saturating_sub(batch.since).as_nanos(), self.filling_time().as_nanos());
        // Bytes a time: has / age >= needs / soon.
        age > 0 && has >= self.batch_bytes_max / FILLING_SHARE && soon * has as u128 >= age * needs as u128
    }
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
            now: Duration::ZERO,
            lanes: Lanes::default(),
            ready: VecDeque::new(),
            in_flight: 0,
            last_number: 0,
            waiting: VecDeque::new(),
            filling: VecDeque::new(),
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
        self.now = now;
        let inner = InnerMessage { flag: message.flag, body: &message.body, properties };
        let bytes = batch::encoded_len(&inner).map_err(|error| ClientError::Invalid(error.to_string()))?;
        let (tag, waits) = (message.get(name::TAGS).unwrap_or_default(), message.waits());
        let lane_id = match queue {
            Some(queue) => self.lanes.of(queue)?,
            None => self.lanes.of_any(&message.topic, tag, waits)?,
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
                if lane.in_flight == 0 {
                    lane.patience.paid();
                }
            }
            (pending, room.message)
        } else {
            if let Some(before) = lane.batches.back_mut() {
                before.close();
            }
            self.last_number += 1;
            let number = self.last_number;
            if lane.is_idle() {
                lane.overdue_to = number;
            } else {
                self.waiting.push_back(Waiting { since: now, lane: lane_id, number });
            }
            let mut batch =
                Batch::new(lane_id, (number, now), Arc::clone(&lane.target), (tag, waits), (message, properties));
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
            self.filling.retain(|waiting| waiting.is_still(&self.lanes));
            self.waiting_max = WAITING_MIN.max(2 * self.waiting.len());
        }
        Ok(Added { pending, room })
    }

    /// Lets a lane stand in line, at the end, if its first batch may leave.
    fn put_in_line(&mut self, lane_id: LaneId) {
        let Some(lane) = self.lanes.get_mut(lane_id).filter(|lane| !lane.is_ready) else { return };
        match lane.next(|first| self.limits.is_filling(first, self.now)) {
            Next::Nothing => {}
            Next::Leaves => {
                lane.is_ready = true;
                self.ready.push_back(lane_id);
            }
            Next::Fills(number) => {
                if std::mem::replace(&mut lane.filling, number) != number {
                    self.filling.push_back(Waiting { since: self.now, lane: lane_id, number });
                }
            }
        }
    }

    /// There is no room for more messages. If nothing is on its way none will be given back: lets all lanes stand in line in which a batch
    /// waits to be full.
    pub(crate) fn stop_filling(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        for lane_id in self.lanes.ids() {
            let Some(lane) = self.lanes.get_mut(lane_id).filter(|lane| !lane.is_ready) else { continue };
            if let Some(first) = lane.batches.front() {
                lane.overdue_to = first.number;
                self.put_in_line(lane_id);
            }
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
    pub(crate) fn answered(&mut self, now: Duration, lane_id: LaneId, number: u64) -> Option<Batch> {
        self.now = now;
        self.arrived(lane_id, number);
        self.next_to_leave()
    }

    /// A batch was given up, by whoever should have sent it. Those that wait for nobody now are given up too.
    pub(crate) fn abandon(&mut self, lane_id: LaneId, number: u64) -> Vec<Batch> {
        self.arrived(lane_id, number);
        self.give_up()
    }

    /// Somebody who would have come for those that wait does not. Where nothing is on its way nobody will, and they are given up.
    pub(crate) fn give_up(&mut self) -> Vec<Batch> {
        let mut left_behind = Vec::new();
        if self.in_flight > 0 {
            return left_behind;
        }
        self.ready.clear();
        for lane_id in self.lanes.ids() {
            let Some(lane) = self.lanes.get_mut(lane_id).filter(|lane| !lane.batches.is_empty()) else { continue };
            lane.is_ready = false;
            left_behind.extend(lane.batches.drain(..));
            self.tidy(lane_id);
        }
        left_behind
    }

    fn arrived(&mut self, lane_id: LaneId, number: u64) {
        let Some(lane) = self.lanes.get_mut(lane_id) else { return };
        let Some(in_flight) = self.in_flight.checked_sub(1).filter(|_| lane.arrived(number)) else { return };
        self.in_flight = in_flight;
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
        self.now = now;
        let is_due = |deadline: Option<Duration>| deadline.is_some_and(|deadline| deadline <= now);
        let overdue = if is_due(self.filling_deadline()) {
            self.filling.pop_front()
        } else if is_due(self.waiting_deadline()) {
            self.waiting.pop_front()
        } else {
            return false;
        };
        let Some(Waiting { lane: lane_id, number, .. }) = overdue else { return false };
        if let Some(lane) = self.lanes.get_mut(lane_id) {
            lane.overdue_to = number;
            if lane.in_flight == 0 && !lane.is_ready {
                lane.patience.lost();
            }
            self.put_in_line(lane_id);
        }
        true
    }

    /// When the next batch that waits will have waited for long enough.
    pub(crate) fn next_deadline(&mut self) -> Option<Duration> {
        [self.filling_deadline(), self.waiting_deadline()].into_iter().flatten().min()
    }

    fn filling_deadline(&mut self) -> Option<Duration> {
        oldest(&mut self.filling, &self.lanes).map(|since| since + self.limits.filling_time())
    }

    fn waiting_deadline(&mut self) -> Option<Duration> {
        oldest(&mut self.waiting, &self.lanes).map(|since| since + self.limits.delay)
    }
}

/// Since when the first has waited of those that have not left.
fn oldest(waiting: &mut VecDeque<Waiting>, lanes: &Lanes) -> Option<Duration> {
    while let Some(first) = waiting.front() {
        if first.is_still(lanes) {
            return Some(first.since);
        }
        waiting.pop_front();
    }
    None
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
