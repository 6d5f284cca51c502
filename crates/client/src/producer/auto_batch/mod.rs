//! AutoBatch: messages that are sent one by one leave in batches.
//!
//! A lone message leaves at once. While a batch is on its way, messages for the same queue (or for any queue, with the same topic, tag and
//! `WAIT`) gather, and leave together when they fill a batch, when the answer comes (unless they fill a batch that fast that it will be full
//! within 2.5 ms), or when they have waited for [`AutoBatch::batch_max_delay`]. So batches grow with the load, and a lone message waits for
//! no company that may not come.
//!
//! This file moves batches: a task each, which takes the next batch that may leave when it has its answer. What goes together and when is
//! decided in `accumulator`, under the one lock, [`Gathering::core`]; nothing is awaited, sent or woken under it.

mod accumulator;
#[cfg(test)]
mod any_order;
mod batch;
mod lanes;
mod pending;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};
use std::time::Duration;

use env::Clock;
use parking_lot::Mutex;
use protocol::body::MessageQueue;
use protocol::names::is_logical_broker;
use protocol::properties::name;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use self::accumulator::{Accumulator, Added, Limits, Room};
use self::batch::Batch;
use self::lanes::LaneId;
pub use self::pending::Pending;
use crate::error::ClientError;
use crate::message::Message;
use crate::producer::together::Left;
use crate::producer::{Inner, Producer, SendResult, with_room};

/// What a batch takes besides its messages while it waits, with a lane of its own, about: both, what finds the lane again, and who waits.
const BATCH_HELD_BYTES: usize = 1024;

/// For so much of the budget one batch may be on its way: its task alone has 4 KiB, which is not counted.
const BYTES_PER_FLIGHT: usize = 32 << 10;

/// Batches that may be on their way however small the budget is: as many as one lane may have.
const FLIGHTS_MIN: usize = 16;

/// Of the budget, for what lanes ask for ahead of messages that may come.
const RESERVE_SHARE: usize = 4;

/// How messages are gathered into batches; the defaults, names and limits are those of RocketMQ's Java client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoBatch {
    batch_max_bytes: usize,
    batch_max_delay: Duration,
    total_batch_max_bytes: usize,
    send_together: bool,
}

impl Default for AutoBatch {
    /// Batches of 32 KiB, a delay of 10 ms, 32 MiB in all; a request a batch.
    fn default() -> AutoBatch {
        AutoBatch {
            batch_max_bytes: 32 << 10,
            batch_max_delay: Duration::from_millis(10),
            total_batch_max_bytes: 32 << 20,
            send_together: false,
        }
    }
}

impl AutoBatch {
    /// A batch leaves when it has so many bytes, as it is sent: 1 to 2 MiB. A message that has more leaves by itself. No more than the
    /// broker's `maxMessageSize`: it refuses larger batches, though it would take each of their messages.
    pub fn batch_max_bytes(self, bytes: usize) -> Result<AutoBatch, ClientError> {
        let batch_max_bytes = within("batch_max_bytes", bytes as u128, 1, 2 << 20, "bytes")? as usize;
        Ok(AutoBatch { batch_max_bytes, ..self })
    }

    /// A message leaves after so long, although an earlier batch is not answered: 1 ms to 30 s. It waits longer for an answer where 16
    /// batches with its topic, tag and `WAIT`, or to its chosen queue, are on their way (one, to a queue of a static topic), or as many of
    /// all as [`total_batch_max_bytes`](AutoBatch::total_batch_max_bytes) allows; and for a chosen queue also until the batch before it is
    /// on its connection.
    pub fn batch_max_delay(self, delay: Duration) -> Result<AutoBatch, ClientError> {
        within("batch_max_delay", delay.as_micros(), 1_000, 30_000_000, "µs")?;
        Ok(AutoBatch { batch_max_delay: delay, ..self })
    }

    /// Messages that wait or are on their way take about so much memory at most, 1 byte to 4 GiB - 1: with more, sends wait for room. A
    /// message that needs more than that waits until it has all of it.
    ///
    /// Counted are messages, and a KiB for each batch. Memory grows in steps, so it may be up to twice as much. What is answered counts no
    /// more, also where its [`Pending`] is kept.
    ///
    /// For each 32 KiB of it one batch may be on its way, and 16 at least. With more tags or chosen queues than that those that come later
    /// gather until one is answered. A batch that finds the connection full waits for it, in each attempt for up to
    /// [`ProducerConfig::timeout`](crate::ProducerConfig::timeout), and fails then.
    pub fn total_batch_max_bytes(self, bytes: usize) -> Result<AutoBatch, ClientError> {
        within("total_batch_max_bytes", bytes as u128, 1, u128::from(u32::MAX), "bytes")?;
        Ok(AutoBatch { total_batch_max_bytes: bytes, ..self })
    }

    /// Whether small batches, of whatever topics and queues, that leave for one broker at about the same time share a request: not unless
    /// asked for here, and then with brokers that say that they take that, which Gantry does and RocketMQ does not. While such a request is not answered, for up to
    /// 2.5 ms, others gather behind it. Each batch is still checked, stored, answered, and sent again for itself.
    pub fn send_together(self, is_wanted: bool) -> AutoBatch {
        AutoBatch { send_together: is_wanted, ..self }
    }

    /// Whether batches travel together where they may.
    pub(crate) fn joins(&self) -> bool {
        self.send_together
    }

    /// [`total_batch_max_bytes`](AutoBatch::total_batch_max_bytes), which was checked.
    fn total(&self) -> u32 {
        u32::try_from(self.total_batch_max_bytes).unwrap_or(u32::MAX)
    }
}

fn within(field: &str, value: u128, min: u128, max: u128, unit: &str) -> Result<u128, ClientError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(ClientError::Invalid(format!("{field} is {value} {unit}; {min} to {max} are allowed")))
}

/// What gathers at one producer.
pub(crate) struct Gathering {
    settings: AutoBatch,
    clock: Clock,
    /// A permit a byte. Given back when a batch is answered.
    room: Semaphore,
    /// Guards what waits.
    core: Mutex<Core>,
    /// For the task that looks at the time.
    bell: Arc<Notify>,
}

struct Core {
    accumulator: Accumulator,
    /// The id of the message that is being added.
    unique_id: String,
    /// When the task looks again that looks for batches that have waited for long enough. `None`: there is none.
    ticks_at: Option<Duration>,
}

/// Whether somebody comes when the next batch has waited for long enough.
enum Ticks {
    InTime,
    TooLate,
    Never,
}

impl Core {
    /// To be asked under the same lock after whatever may let a batch wait. The caller does what is missing.
    fn sees_to_the_time(&mut self) -> Ticks {
        let Some(deadline) = self.accumulator.next_deadline() else { return Ticks::InTime };
        match self.ticks_at {
            Some(at) if at <= deadline => Ticks::InTime,
            before => {
                self.ticks_at = Some(deadline);
                if before.is_some() { Ticks::TooLate } else { Ticks::Never }
            }
        }
    }
}

impl Gathering {
    pub(crate) fn new(settings: AutoBatch, clock: Clock, compress_over_bytes: Option<usize>) -> Gathering {
        let total = settings.total_batch_max_bytes;
        let limits = Limits {
            batch_bytes_max: settings.batch_max_bytes,
            delay: settings.batch_max_delay,
            compress_over_bytes,
            in_flight_max: FLIGHTS_MIN.max(total / BYTES_PER_FLIGHT),
            reserve_bytes: total / RESERVE_SHARE,
        };
        let accumulator = Accumulator::new(limits);
        Gathering {
            settings,
            clock,
            room: Semaphore::new(settings.total() as usize),
            core: Mutex::new(Core { accumulator, unique_id: String::new(), ticks_at: None }),
            bell: Arc::default(),
        }
    }

    /// Tells everybody what became of their messages, and then gives back their room.
    fn settle(&self, batch: Batch, outcome: Result<SendResult, ClientError>) {
        let _back = RoomBack { room: &self.room, bytes: batch.room() };
        batch.settle(outcome);
    }
}

/// Gives room back when it is dropped, also where somebody who was woken panics.
struct RoomBack<'a> {
    room: &'a Semaphore,
    bytes: usize,
}

impl Drop for RoomBack<'_> {
    fn drop(&mut self) {
        self.room.add_permits(self.bytes);
    }
}

/// With [`ProducerConfig::auto_batch`](crate::ProducerConfig::auto_batch).
impl Producer {
    /// Gives a message to the producer: waits for room, not for the answer. What one task hands over, one after the other, is gathered in that
    /// order; to keep it up to the broker, see [`Producer::hand_over_to`].
    ///
    /// Where this is dropped before it is ready nothing is sent. An error means that nothing is sent either.
    pub async fn hand_over(&self, message: Message) -> Result<Pending, ClientError> {
        self.gather(None, message).await
    }

    /// As [`Producer::hand_over`], for one queue. What one task hands over stays in its order, as long as nothing fails and the broker takes
    /// the requests of a connection in their order, as Gantry does; RocketMQ's gives them to several threads. A batch that fails is not
    /// sent again, but those behind it may be on their way already.
    ///
    /// Where a static topic's queue has moved, messages follow it, in their order, as with [`Producer::send_to`].
    pub async fn hand_over_to(&self, queue: &MessageQueue, message: Message) -> Result<Pending, ClientError> {
        self.gather(Some(queue), message).await
    }

    /// Waits until all that was handed over is answered, or has failed. What is handed over meanwhile waits behind it.
    pub async fn flush(&self) {
        if let Some(gathering) = &self.inner.gathering {
            // All of the room is nobody's room. It is never closed.
            drop(gathering.room.acquire_many(gathering.settings.total()).await);
        }
    }

    async fn gather(&self, queue: Option<&MessageQueue>, message: Message) -> Result<Pending, ClientError> {
        let Some(gathering) = &self.inner.gathering else {
            return Err(ClientError::Invalid(
                "auto_batch is not set, and only with it messages are handed over".to_owned(),
            ));
        };
        let held = message.held_bytes();
        let wanted = u32::try_from(held + BATCH_HELD_BYTES).unwrap_or(u32::MAX).min(gathering.settings.total());
        let room = gathering.room.acquire_many(wanted);
        tokio::pin!(room);
        let room = tokio::select! {
            biased;
            room = &mut room => room,
            () = std::future::ready(()) => {
                // What waits for more messages may have the room that those need.
                gathering.core.lock().accumulator.stop_filling();
                self.let_more_go(gathering);
                room.await
            }
        };
        let mut room = room.map_err(|_| ClientError::GivenUp)?;
        let (pending, leaving, ticking) = {
            let mut core = gathering.core.lock();
            let Core { accumulator, unique_id, .. } = &mut *core;
            let now = gathering.clock.elapsed();
            unique_id.clear();
            if message.get(name::UNIQ_KEY).is_none() {
                self.inner.member.ids.put(unique_id, now);
            }
            let wanted = Room { message: held.min(wanted as usize), with_batch: wanted as usize };
            let Added { pending, room: taken } = accumulator.add(now, queue, &message, unique_id, wanted)?;
            // From here on its batch gives that back.
            if let Some(taken) = room.split(taken) {
                taken.forget();
            }
            (pending, accumulator.next_to_leave(), core.sees_to_the_time())
        };
        // What it did not need after all, in a batch that was begun before.
        drop(room);
        if let Some(batch) = leaving {
            self.let_go(batch);
            self.let_more_go(gathering);
        }
        self.look_at_the_time(gathering, ticking);
        Ok(pending)
    }

    /// Lets somebody come in time for what waits now.
    fn look_at_the_time(&self, gathering: &Gathering, how: Ticks) {
        match how {
            Ticks::InTime => {}
            Ticks::TooLate => gathering.bell.notify_one(),
            Ticks::Never => {
                let bell = Arc::clone(&gathering.bell);
                tokio::spawn(tick(Ticking { producer: Arc::downgrade(&self.inner), bell }));
            }
        }
    }

    fn let_go(&self, batch: Batch) {
        let flight = Flight { producer: self.clone(), lane: batch.lane, number: batch.number, batch: Some(batch) };
        tokio::spawn(flight.run());
    }

    /// A batch lies on the connection, and the next one for its queue may be laid behind it.
    fn left(&self, lane: LaneId, number: u64) {
        let Some(gathering) = &self.inner.gathering else { return };
        gathering.core.lock().accumulator.left(lane, number);
        self.let_more_go(gathering);
    }

    /// Lets all batches go that may.
    fn let_more_go(&self, gathering: &Gathering) {
        loop {
            let next = gathering.core.lock().accumulator.next_to_leave();
            let Some(batch) = next else { return };
            self.let_go(batch);
        }
    }
}

/// Whoever has this looks for batches that have waited for long enough. Cut off, by the end of the runtime, it lets the next message
/// make another one, and gives up what waits for nobody else.
struct Ticking {
    /// Of nobody, when there is nothing to look for any more.
    producer: Weak<Inner>,
    bell: Arc<Notify>,
}

impl Drop for Ticking {
    fn drop(&mut self) {
        let inner = self.producer.upgrade();
        let Some(gathering) = inner.as_ref().and_then(|inner| inner.gathering.as_ref()) else { return };
        let left_behind = {
            let mut core = gathering.core.lock();
            core.ticks_at = None;
            core.accumulator.give_up()
        };
        for batch in left_behind {
            gathering.settle(batch, Err(ClientError::GivenUp));
        }
    }
}

/// Lets batches go that have waited for long enough, until none waits. A producer that nobody has any more is not kept for it.
async fn tick(mut ticking: Ticking) {
    let mut pause = Duration::ZERO;
    loop {
        // Woken too early it looks once too often.
        let _ = timeout(pause, ticking.bell.notified()).await;
        let Some(inner) = ticking.producer.upgrade() else { return };
        let producer = Producer { inner };
        let Some(gathering) = &producer.inner.gathering else { return };
        while gathering.core.lock().accumulator.next_overdue(gathering.clock.elapsed()) {
            producer.let_more_go(gathering);
        }
        let mut core = gathering.core.lock();
        core.ticks_at = core.accumulator.next_deadline();
        let Some(deadline) = core.ticks_at else {
            // Under the same lock: the next batch that waits makes another one of this.
            ticking.producer = Weak::new();
            return;
        };
        pause = deadline.saturating_sub(gathering.clock.elapsed());
    }
}

/// A batch on its way, and then the next that may leave. Cut off, by the end of the runtime or a bug, it gives up also what waits, if
/// nothing else is on its way: nobody would let it go.
struct Flight {
    producer: Producer,
    lane: LaneId,
    number: u64,
    batch: Option<Batch>,
}

impl Flight {
    async fn run(mut self) {
        loop {
            let outcome = self.send().await;
            let (Some(batch), Some(gathering)) = (self.batch.take(), &self.producer.inner.gathering) else { return };
            let (next, ticking) = {
                let mut core = gathering.core.lock();
                let next = core.accumulator.answered(gathering.clock.elapsed(), self.lane, self.number);
                (next, core.sees_to_the_time())
            };
            // Before anybody is woken: a waker may panic.
            if let Some(next) = next {
                (self.lane, self.number) = (next.lane, next.number);
                self.batch = Some(next);
            }
            self.producer.look_at_the_time(gathering, ticking);
            gathering.settle(batch, outcome);
            if self.batch.is_none() {
                return;
            }
            self.producer.let_more_go(gathering);
        }
    }

    /// Sends the batch, as what it holds would be sent alone.
    async fn send(&mut self) -> Result<SendResult, ClientError> {
        let Some(batch) = &mut self.batch else { return Err(ClientError::GivenUp) };
        let (producer, target) = (&self.producer, Arc::clone(&batch.target));
        let (member, config) = (&producer.inner.member, &producer.inner.config);
        let joins = config.auto_batch.is_some_and(|settings| settings.joins());
        let prepared = batch.prepare(|| member.ids.next(), config.compress_over_bytes, joins)?;
        // A connection that has no room for it is waited for, as a message waits for room here.
        let wait = config.timeout;
        match &target.queue {
            None => producer.deliver(&prepared, wait).await,
            Some(queue) if is_logical_broker(&queue.broker_name) => {
                with_room(wait, || producer.send_once(queue, &prepared)).await
            }
            Some(queue) => {
                let (lane, number) = (self.lane, self.number);
                with_room(wait, || async {
                    let route = producer.route(&prepared.topic).await?;
                    let sender = producer.clone();
                    let left: Left = Box::new(move || sender.left(lane, number));
                    producer.send_by(&route, queue, &prepared, Some(left)).await
                })
                .await
            }
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let (Some(batch), Some(gathering)) = (self.batch.take(), &self.producer.inner.gathering) else { return };
        let left_behind = gathering.core.lock().accumulator.abandon(self.lane, self.number);
        for batch in std::iter::once(batch).chain(left_behind) {
            gathering.settle(batch, Err(ClientError::GivenUp));
        }
    }
}
