//! Sending: producers, and the tasks that send.

mod gathered;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use client::{CallError, ClientError, Message, MessageQueue, Pending, Producer, ProducerConfig, SendStatus};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::clients::Clients;
use crate::driver::{Driver, SendMode};
use crate::error::BenchError;
use crate::hands::Part;
use crate::pace::{Pacer, Schedule};
use crate::payload::Payloads;
use crate::scene::Scene;
use crate::stamp::Stamp;

/// After a failure: a target that refuses at once would else be asked a million times a second.
const PAUSE: Duration = Duration::from_millis(10);

/// Before a full buffer is tried again.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// After so many sends without a wait a task lets others run.
const YIELD_EVERY: u64 = 16;

/// All producers of a run.
pub struct Producers {
    all: Vec<Arc<One>>,
    clients: Clients,
    /// How many there are in all processes together.
    members: usize,
    payloads: Arc<Payloads>,
    driver: Driver,
    scene: Arc<Scene>,
}

struct One {
    index: u32,
    topic: String,
    producer: Producer,
    /// Those that its messages are for, one after the other; empty: the client chooses.
    queues: Vec<MessageQueue>,
    // Relaxed: numbers only have to differ.
    next: AtomicU64,
}

/// What the tasks of one phase share.
struct Phase {
    scene: Arc<Scene>,
    payloads: Arc<Payloads>,
    mode: SendMode,
    /// Messages are handed over to a client that makes batches of them.
    is_gathering: bool,
    in_flight: usize,
    batch: u64,
    send_timeout: Duration,
    // Relaxed: seen soon is soon enough.
    is_over: AtomicBool,
}

/// One producer in one phase.
struct Turn {
    one: Arc<One>,
    phase: Arc<Phase>,
    schedule: Option<Arc<Schedule>>,
    /// Numbers of this phase are from here on, and below `end`.
    begin: u64,
    end: u64,
}

/// Messages that one send takes.
struct Claim {
    first: u64,
    count: u64,
    /// When they were to be sent.
    due: Duration,
}

/// A phase that runs.
pub struct Load {
    tasks: JoinSet<()>,
    turns: Vec<Arc<Turn>>,
    phase: Arc<Phase>,
    /// Ends with the load.
    pacer: Option<Pacer>,
}

impl Producers {
    /// Nobody yet.
    pub fn none(scene: &Arc<Scene>, driver: &Driver, payloads: Payloads) -> Producers {
        Producers {
            all: Vec::new(),
            clients: Clients::none(scene, driver),
            members: 0,
            payloads: Arc::new(payloads),
            driver: driver.clone(),
            scene: Arc::clone(scene),
        }
    }

    /// Makes those of `each` producers for each topic that are this part's, and lets them learn their routes. After an error there are
    /// some.
    pub async fn start(&mut self, topics: &[String], each: u32, part: Part) -> Result<(), BenchError> {
        let driver = &self.driver;
        let auto_batch = driver.gathers()?;
        self.members = topics.len() * each as usize;
        for (number, (topic, first)) in topics.iter().zip((0..).step_by(each as usize)).enumerate() {
            for index in (first..first + each).filter(|index| part.has(*index as usize)) {
                let client = self.clients.of((index - first) as usize, number);
                let producer = client.producer_with(ProducerConfig {
                    retries: driver.retries,
                    timeout: Duration::from_millis(driver.send_timeout_millis),
                    compress_over_bytes: Some(driver.compress_over_bytes).filter(|bytes| *bytes > 0),
                    auto_batch,
                    ..ProducerConfig::new(&format!("{topic}-producer-{index}"))
                });
                let mut one =
                    One { index, topic: topic.clone(), producer, queues: Vec::new(), next: AtomicU64::new(0) };
                let route = client.route(topic).await;
                if driver.chosen_queues
                    && let Ok(route) = &route
                {
                    one.queues.clone_from(&route.writable);
                }
                self.all.push(Arc::new(one));
                route.map_err(BenchError::target(format!("the route of {topic}")))?;
            }
        }
        Ok(())
    }

    /// Begins to send: `rate` messages a second from a time of the run on, or as fast as answers come; `messages` of them, or until it
    /// is stopped. Both are those of all processes together.
    pub fn run(&self, begin_at: Duration, rate: Option<f64>, messages: Option<u64>) -> Result<Load, BenchError> {
        let batch = self.driver.batch_size as u64;
        let phase = Arc::new(Phase {
            scene: Arc::clone(&self.scene),
            payloads: Arc::clone(&self.payloads),
            mode: self.driver.send_mode,
            is_gathering: self.driver.auto_batch,
            in_flight: self.driver.in_flight,
            batch,
            send_timeout: Duration::from_millis(self.driver.send_timeout_millis),
            is_over: AtomicBool::new(false),
        });
        let mut turns = Vec::new();
        for one in &self.all {
            let (member, members) = (one.index as usize, self.members);
            let begin = one.next.load(Ordering::Relaxed);
            let share = messages.map(|all| share_of(all, member as u64, members as u64));
            let sends = share.map_or(u64::MAX, |share| share.div_ceil(batch));
            let schedule =
                rate.map(|rate| Arc::new(Schedule::shared(begin_at, rate / batch as f64, member, members, sends)));
            turns.push(Arc::new(Turn {
                one: Arc::clone(one),
                phase: Arc::clone(&phase),
                schedule,
                begin,
                end: share.map_or(u64::MAX, |share| begin + share),
            }));
        }
        let schedules: Vec<Arc<Schedule>> = turns.iter().filter_map(|turn| turn.schedule.clone()).collect();
        let pacer = match schedules.is_empty() {
            true => None,
            false => {
                let failed =
                    |cause| BenchError::Invalid(format!("the thread that keeps the rate cannot start: {cause}"));
                Some(Pacer::start(self.scene.clock.clone(), schedules).map_err(failed)?)
            }
        };
        let mut tasks = JoinSet::new();
        for turn in turns.iter().filter(|turn| turn.begin < turn.end) {
            if phase.is_gathering && phase.mode == SendMode::Async {
                let (tell, told) = mpsc::unbounded_channel();
                let credits = Arc::new(Semaphore::new(phase.in_flight));
                tasks.spawn(Arc::clone(turn).hand_over(Arc::clone(&credits), tell));
                tasks.spawn(Arc::clone(turn).hear(credits, told));
                continue;
            }
            for lane in 0..self.driver.in_flight {
                tasks.spawn(Arc::clone(turn).work(lane as u16));
            }
        }
        Ok(Load { tasks, turns, phase, pacer })
    }

    /// Takes leave.
    pub async fn stop(self) {
        for one in &self.all {
            // What is sent oneway may still be waiting for its batch.
            one.producer.flush().await;
        }
        self.clients.stop().await;
    }
}

impl Load {
    /// Ends when all messages are sent and answered.
    pub async fn finished(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Sends nothing more. Returns how many messages were due and never sent.
    pub fn close(&mut self) -> u64 {
        let now = self.phase.scene.clock.elapsed();
        self.phase.is_over.store(true, Ordering::Relaxed);
        drop(self.pacer.take());
        self.turns.iter().filter_map(|turn| turn.schedule.as_ref()).for_each(|schedule| schedule.permits.close());
        self.turns.iter().map(|turn| turn.unsent(now)).sum()
    }
}

impl One {
    /// Gives a message to a client that makes batches.
    async fn hand_over(&self, sequence: u64, message: Message) -> Result<Pending, ClientError> {
        if self.queues.is_empty() {
            return self.producer.hand_over(message).await;
        }
        let turn = usize::try_from(sequence % self.queues.len() as u64).unwrap_or(0);
        self.producer.hand_over_to(&self.queues[turn], message).await
    }
}

impl Turn {
    fn unsent(&self, now: Duration) -> u64 {
        let Some(schedule) = &self.schedule else { return 0 };
        let taken = self.one.next.load(Ordering::Relaxed) - self.begin;
        let due = schedule.due_by(now).saturating_mul(self.phase.batch).min(self.end - self.begin);
        due.saturating_sub(taken)
    }

    /// One task: one send after the other.
    async fn work(self: Arc<Self>, lane: u16) {
        let mut turn = 0_u64;
        while let Some(claim) = self.claim(|| self.phase.scene.clock.elapsed()).await {
            turn += 1;
            let is_sent = self.send(&claim, lane).await;
            if !is_sent {
                tokio::time::sleep(PAUSE).await;
            } else if turn.is_multiple_of(YIELD_EVERY) && self.phase.mode == SendMode::Oneway {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The next send, when it is due; nothing when there is none any more. `now`: the time, where nothing else says when that was.
    async fn claim(&self, now: impl FnOnce() -> Duration) -> Option<Claim> {
        if let Some(schedule) = &self.schedule {
            // Closed when the load is stopped, and behind its last send.
            schedule.permits.acquire().await.ok()?.forget();
        }
        if self.phase.is_over.load(Ordering::Relaxed) {
            return None;
        }
        let first = self.one.next.fetch_add(self.phase.batch, Ordering::Relaxed);
        if first >= self.end {
            return None;
        }
        if let Some(schedule) = &self.schedule
            && first + self.phase.batch >= self.end
        {
            // There is no permit left to come, and each that came is taken: the other lanes would wait for ever.
            schedule.permits.close();
        }
        let due = match &self.schedule {
            Some(schedule) => schedule.due((first - self.begin) / self.phase.batch),
            None => now(),
        };
        Some(Claim { first, count: self.phase.batch.min(self.end - first), due })
    }

    fn message(&self, sequence: u64, due: Duration, lane: u16) -> Message {
        let Phase { scene, payloads, .. } = &*self.phase;
        let due_ns = u64::try_from(due.as_nanos()).unwrap_or(u64::MAX);
        let stamp = Stamp { lane, producer: self.one.index, run: scene.run, sequence, due_ns };
        let message = Message::new(self.one.topic.as_str(), payloads.body(&stamp));
        match payloads.key(&stamp) {
            Some(key) => message.key(key),
            None => message,
        }
    }

    /// Sends one message, or one batch. False: it failed.
    async fn send(&self, claim: &Claim, lane: u16) -> bool {
        let Phase { scene, .. } = &*self.phase;
        scene.ledger.send(self.one.index, claim.first, claim.count);
        let message = |sequence| self.message(sequence, claim.due, lane);
        let deadline = scene.clock.elapsed() + self.phase.send_timeout;
        // While the connection has no room this waits, as a socket would: what our own side has no room for is no failure of the target's.
        let sent = loop {
            let sent = self.attempt(claim.first, claim.count, message).await;
            if !sent.as_ref().is_err_and(is_full) || scene.clock.elapsed() >= deadline {
                break sent;
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        };
        self.settle(claim, sent, scene.clock.elapsed())
    }

    /// Takes note of how a send ended, and when. False: it failed.
    fn settle(&self, claim: &Claim, sent: Result<SendStatus, ClientError>, now: Duration) -> bool {
        let Claim { first, count, due } = *claim;
        let Phase { scene, .. } = &*self.phase;
        let (producer, who) = (self.one.index, self.one.index as usize);
        let took = now.saturating_sub(due);
        scene.ledger.settle(producer, first, count, sent.is_ok());
        match sent {
            Ok(status) => {
                scene.produced.done(who, count, count * scene.message_bytes, Some(took));
                match status {
                    SendStatus::Ok => {}
                    SendStatus::FlushDiskTimeout => scene.produced.remark(who, count, "FLUSH_DISK_TIMEOUT"),
                    SendStatus::FlushSlaveTimeout => scene.produced.remark(who, count, "FLUSH_SLAVE_TIMEOUT"),
                    SendStatus::SlaveNotAvailable => scene.produced.remark(who, count, "SLAVE_NOT_AVAILABLE"),
                }
                true
            }
            Err(error) => {
                scene.produced.failed(who, count, &reason(&error));
                false
            }
        }
    }

    async fn attempt(
        &self,
        first: u64,
        count: u64,
        message: impl Fn(u64) -> Message,
    ) -> Result<SendStatus, ClientError> {
        let producer = &self.one.producer;
        match self.phase.mode {
            SendMode::Oneway => producer.send_oneway(message(first)).await.map(|()| SendStatus::Ok),
            SendMode::Sync | SendMode::Async if self.phase.is_gathering => {
                self.one.hand_over(first, message(first)).await?.status().await
            }
            SendMode::Sync | SendMode::Async if self.phase.batch == 1 => {
                producer.send(message(first)).await.map(|sent| sent.status)
            }
            SendMode::Sync | SendMode::Async => {
                producer.send_batch((first..first + count).map(message).collect()).await.map(|sent| sent.status)
            }
        }
    }
}

/// Whether nothing was sent because the connection had no room. Of several attempts an earlier one may have got through.
fn is_full(error: &ClientError) -> bool {
    let last = if let ClientError::Exhausted { attempts: 1, last } = error { last } else { error };
    matches!(last, ClientError::Call(CallError::Busy { .. }))
}

/// How many of `all` messages one of `members` sends.
fn share_of(all: u64, member: u64, members: u64) -> u64 {
    all / members + u64::from(member < all % members)
}

/// An error in a few words that are the same for all errors of its kind.
pub fn reason(error: &ClientError) -> String {
    match error {
        ClientError::Exhausted { last, .. } => reason(last),
        ClientError::Refused { code, .. } => match protocol::code::ResponseCode::from_i32(*code) {
            Some(known) => format!("{} ({code})", known.name()),
            None => format!("code {code}"),
        },
        ClientError::Call(call) => match call {
            CallError::Timeout { .. } => "no answer in time",
            CallError::Closed { .. } => "connection closed",
            CallError::Busy { .. } => "connection full",
            CallError::Connect { .. } | CallError::BackingOff { .. } => "cannot connect",
            CallError::Resolve { .. } => "unknown host",
            CallError::Tls(_) => "TLS",
        }
        .to_owned(),
        ClientError::NoRoute { .. } => "no route".to_owned(),
        ClientError::NoLeader { .. } => "no leader".to_owned(),
        ClientError::NoAddress { .. } => "no address".to_owned(),
        ClientError::Malformed { what, .. } => format!("cannot read {what}"),
        ClientError::Invalid(text) => text.clone(),
        ClientError::GivenUp => "given up".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_make_up_the_whole() {
        assert_eq!((0..4).map(|member| share_of(10, member, 4)).collect::<Vec<_>>(), [3, 3, 2, 2]);
        assert_eq!((0..7).map(|member| share_of(1_000_003, member, 7)).sum::<u64>(), 1_000_003);
    }
}
