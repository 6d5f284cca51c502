//! Which messages go together, and when they leave: a state machine without a clock, a socket or a task.
//!
//! Messages gather in *lanes*: those to one chosen queue, or those of a topic with the same tag that may go to any queue. A lane with
//! nothing on its way lets its first batch go at once, full or not, so a lone message waits for nobody. While something is on its way the
//! next batch gathers; it leaves when it is full, when the last answer has come, or when it has waited for long enough.
//!
//! What holds: a lane in which a batch waits has one on its way, so somebody will come to let it go; batches of a chosen queue leave in the
//! order in which their messages came, one after the other.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use protocol::batch::{self, InnerMessage};
use protocol::body::MessageQueue;
use protocol::names::is_logical_broker;
use protocol::properties::{PropertiesWriter, name};

use super::batch::{Batch, Target};
use super::pending::Pending;
use crate::error::ClientError;
use crate::message::Message;

/// Batches of a lane that are on their way at once. More than two, so that the broker has the next one while answers travel; few, so
/// that a slow broker makes batches fuller and not more.
const IN_FLIGHT_MAX: usize = 16;

/// Lanes that stay although nothing is in them: their next message finds its place without being asked for memory.
const IDLE_LANES_MAX: usize = 1024;

/// Batches that are remembered as waiting, before those of them that have left are looked for.
const WAITING_MIN: usize = 64;

/// Which lane. A number is given again when its lane is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LaneId(usize);

/// When batches leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Of a batch as it is sent, unless one message alone has more.
    pub(crate) batch_bytes_max: usize,
    /// For which a message waits at most, as long as fewer batches of its lane are on their way than may be.
    pub(crate) delay: Duration,
    /// Larger bodies are compressed, which those in a batch cannot be.
    pub(crate) compress_over_bytes: Option<usize>,
}

/// See the module.
pub(crate) struct Accumulator {
    limits: Limits,
    lanes: Vec<Option<Lane>>,
    free: Vec<LaneId>,
    chosen: HashMap<MessageQueue, LaneId>,
    /// By topic, tag, and whether the answer waits for the disk.
    any: HashMap<String, HashMap<String, [Option<LaneId>; 2]>>,
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
    fn is_still(&self, lanes: &[Option<Lane>]) -> bool {
        let lane = lanes.get(self.lane.0).and_then(Option::as_ref);
        // Numbers grow: a lane that was made anew has none that is as old.
        lane.and_then(|lane| lane.batches.front()).is_some_and(|first| first.number <= self.number)
    }
}

struct Lane {
    target: Arc<Target>,
    /// Of a lane for any queue: what all its messages have in common.
    common: Option<(String, bool)>,
    batches: VecDeque<Batch>,
    in_flight: usize,
    /// The batch that is about to leave; it must be gone before the next one starts, where the order counts.
    leaving: Option<u64>,
    /// Up to this one batches have waited for long enough.
    overdue_to: u64,
    /// Bytes of the batch before: what the next one is likely to need.
    usual_bytes: usize,
}

impl Lane {
    fn in_flight_max(&self) -> usize {
        match &self.target.queue {
            // It may be refused because the queue has moved, and is sent again then: nothing may have overtaken it.
            Some(queue) if is_logical_broker(&queue.broker_name) => 1,
            Some(_) | None => IN_FLIGHT_MAX,
        }
    }
}

impl Accumulator {
    pub(crate) fn new(limits: Limits) -> Accumulator {
        Accumulator {
            limits,
            lanes: Vec::new(),
            free: Vec::new(),
            chosen: HashMap::new(),
            any: HashMap::new(),
            last_number: 0,
            waiting: VecDeque::new(),
            waiting_max: WAITING_MIN,
            properties: PropertiesWriter::new(),
        }
    }

    /// Takes a message: for `queue`, or for any. `room` is what it takes of the producer's budget; its batch keeps the sum. Whoever
    /// calls this asks [`Accumulator::next_to_leave`] afterwards. After an error nothing has changed.
    pub(crate) fn add(
        &mut self,
        now: Duration,
        queue: Option<&MessageQueue>,
        message: &Message,
        unique_id: &str,
        room: usize,
    ) -> Result<(LaneId, Pending), ClientError> {
        if queue.is_some_and(|queue| queue.topic != message.topic) {
            return Err(ClientError::Invalid("the queue is one of another topic than the message's".to_owned()));
        }
        message.put_properties(unique_id, &mut self.properties)?;
        let mut properties = std::mem::take(&mut self.properties);
        let inner = InnerMessage { flag: message.flag, body: &message.body, properties: properties.as_str() };
        let bytes = match batch::encoded_len(&inner) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.properties = properties;
                return Err(ClientError::Invalid(error.to_string()));
            }
        };
        let (tag, waits) = (message.get(name::TAGS).unwrap_or_default(), message.waits());
        let lane_id = match queue {
            Some(queue) => self.lane_of(queue),
            None => self.lane_of_any(&message.topic, tag, waits),
        };
        let is_alone = is_alone(message, self.limits.compress_over_bytes);
        let Limits { batch_bytes_max, .. } = self.limits;
        let Some(lane) = self.lanes.get_mut(lane_id.0).and_then(Option::as_mut) else {
            unreachable!("a lane that was just looked up is there")
        };
        let fits = |open: &Batch| !is_alone && open.takes(bytes, tag, waits, batch_bytes_max);
        if !lane.batches.back().is_some_and(fits) {
            if let Some(before) = lane.batches.back_mut() {
                before.is_closed = true;
            }
            self.last_number += 1;
            let number = self.last_number;
            let has_to_wait = lane.in_flight > 0 || !lane.batches.is_empty();
            let capacity =
                if has_to_wait && !is_alone { bytes.max(lane.usual_bytes.min(batch_bytes_max)) } else { bytes };
            lane.batches.push_back(Batch::new(lane_id, number, Arc::clone(&lane.target), (tag, waits), capacity));
            if has_to_wait {
                self.waiting.push_back(Waiting { since: now, lane: lane_id, number });
            }
        }
        let Some(open) = lane.batches.back_mut() else { unreachable!("a batch was begun, if there was none") };
        let id = message.get(name::UNIQ_KEY).unwrap_or(unique_id);
        let pending = open.push(&inner, id, room);
        // What would not take another one like this need not wait for it.
        open.is_closed |= is_alone || open.body_len() + bytes > batch_bytes_max || open.is_full();
        properties.clear();
        self.properties = properties;
        // Next time only when the number has doubled: little work for each batch, and at most about twice what waits.
        if self.waiting.len() >= self.waiting_max {
            self.waiting.retain(|waiting| waiting.is_still(&self.lanes));
            self.waiting_max = WAITING_MIN.max(2 * self.waiting.len());
        }
        Ok((lane_id, pending))
    }

    /// The lane's next batch, if it may leave now. It counts as on its way until [`Accumulator::answered`].
    pub(crate) fn next_to_leave(&mut self, lane: LaneId) -> Option<Batch> {
        let lane = self.lanes.get_mut(lane.0)?.as_mut()?;
        if lane.leaving.is_some() || lane.in_flight >= lane.in_flight_max() {
            return None;
        }
        let first = lane.batches.front()?;
        if lane.in_flight > 0 && !first.is_closed && first.number > lane.overdue_to {
            return None;
        }
        let first = lane.batches.pop_front()?;
        lane.in_flight += 1;
        lane.usual_bytes = first.body_len();
        if lane.target.queue.is_some() {
            lane.leaving = Some(first.number);
        }
        Some(first)
    }

    /// A batch of a chosen queue lies on the connection, so the one behind it may follow.
    pub(crate) fn left(&mut self, lane: LaneId, number: u64) {
        if let Some(lane) = self.lanes.get_mut(lane.0).and_then(Option::as_mut)
            && lane.leaving == Some(number)
        {
            lane.leaving = None;
        }
    }

    /// A batch is answered, or has failed for good.
    pub(crate) fn answered(&mut self, lane_id: LaneId, number: u64) {
        self.left(lane_id, number);
        let Some(place) = self.lanes.get_mut(lane_id.0) else { return };
        let Some(lane) = place else { return };
        assert!(lane.in_flight > 0, "more answers than batches");
        lane.in_flight -= 1;
        let is_idle = lane.in_flight == 0 && lane.batches.is_empty();
        if is_idle && self.lanes() > IDLE_LANES_MAX {
            self.remove(lane_id);
        }
    }

    /// A batch was given up, by whoever should have sent it: those behind it are given up too.
    pub(crate) fn abandon(&mut self, lane_id: LaneId, number: u64) -> VecDeque<Batch> {
        let lane = self.lanes.get_mut(lane_id.0).and_then(Option::as_mut);
        let behind = lane.map(|lane| std::mem::take(&mut lane.batches)).unwrap_or_default();
        self.answered(lane_id, number);
        behind
    }

    /// A lane whose first batch has waited for long enough. Called until there is none, each time with a look whether a batch of it may
    /// leave; one that may not, since too many are on their way, leaves after the next answer.
    pub(crate) fn next_overdue(&mut self, now: Duration) -> Option<LaneId> {
        if self.next_deadline()? > now {
            return None;
        }
        let Waiting { lane: lane_id, number, .. } = self.waiting.pop_front()?;
        let lane = self.lanes.get_mut(lane_id.0)?.as_mut()?;
        lane.overdue_to = number;
        Some(lane_id)
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

    fn lane_of(&mut self, queue: &MessageQueue) -> LaneId {
        if let Some(known) = self.chosen.get(queue) {
            return *known;
        }
        let lane = self.make(queue.topic.clone(), Some(queue.clone()), None);
        self.chosen.insert(queue.clone(), lane);
        lane
    }

    fn lane_of_any(&mut self, topic: &str, tag: &str, waits: bool) -> LaneId {
        let known = self.any.get(topic).and_then(|tags| tags.get(tag)).and_then(|pair| pair[usize::from(waits)]);
        if let Some(known) = known {
            return known;
        }
        let lane = self.make(topic.to_owned(), None, Some((tag.to_owned(), waits)));
        let tags = self.any.entry(topic.to_owned()).or_default();
        tags.entry(tag.to_owned()).or_default()[usize::from(waits)] = Some(lane);
        lane
    }

    fn make(&mut self, topic: String, queue: Option<MessageQueue>, common: Option<(String, bool)>) -> LaneId {
        let lane = Lane {
            target: Arc::new(Target { topic, queue }),
            common,
            batches: VecDeque::new(),
            in_flight: 0,
            leaving: None,
            overdue_to: 0,
            usual_bytes: 0,
        };
        match self.free.pop() {
            Some(id) => {
                self.lanes[id.0] = Some(lane);
                id
            }
            None => {
                self.lanes.push(Some(lane));
                LaneId(self.lanes.len() - 1)
            }
        }
    }

    fn remove(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(id.0).and_then(Option::take) else { return };
        self.free.push(id);
        if let Some(queue) = &lane.target.queue {
            self.chosen.remove(queue);
        }
        let Some((tag, waits)) = &lane.common else { return };
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

    /// How many batches are remembered as waiting.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many lanes there are.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len() - self.free.len()
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
