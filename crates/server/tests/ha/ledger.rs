//! The ledger: each message that was sent, whether it was acknowledged and where, and whether a consumer saw it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::row::Outcome;
use crate::set::{QUEUES, TOPIC};
use crate::support::asking::Asking;

/// A message that no producer of a ledger sends.
pub const PROBE: &str = "probe";
const PRODUCERS: usize = 8;

/// A message: its producer, and how many that one had sent before.
type Name = (usize, u64);

fn name_of(body: &str) -> Option<Name> {
    let mut words = body.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// An answer of success.
struct Acknowledged {
    name: Name,
    queue: i32,
    offset: u64,
    /// The stage in which the send began.
    stage: u64,
}

/// What producers are told, and what they tell.
#[derive(Default)]
struct Shared {
    ends: AtomicBool,
    /// Which sends may be told apart later: those that began in one stage, and those in another.
    stage: AtomicU64,
    acknowledged: AtomicUsize,
    /// Answers with other codes, and their codes as they first came.
    refused: AtomicUsize,
    first_refusal: std::sync::Mutex<Option<String>>,
    /// Acknowledged in the stage in which they began, while that was one in which nothing may be.
    wrongly: AtomicUsize,
    forbidden: AtomicU64,
}

/// Producers that send one message at a time each, and consumers that read along, until they are told to end or the broker is gone.
pub struct Ledger {
    shared: Arc<Shared>,
    producers: Vec<JoinHandle<Vec<Acknowledged>>>,
    consumers: Vec<JoinHandle<BTreeMap<u64, Name>>>,
}

async fn produce(id: usize, asking: Asking, shared: Arc<Shared>) -> Vec<Acknowledged> {
    let mut acknowledged = Vec::new();
    let queue = id as i32 % QUEUES;
    let mut number = 0;
    while !shared.ends.load(Ordering::SeqCst) {
        let stage = shared.stage.load(Ordering::SeqCst);
        let length = (number as usize * 37 + id) % 1500;
        let sent = asking.send(TOPIC, queue, "", &format!("{id} {number} {}", "x".repeat(length))).await;
        // The broker is gone: nothing more is promised.
        let Ok(answer) = sent else { break };
        if answer.code == 0 {
            let offset = answer.fields.get("queueOffset").unwrap().parse().unwrap();
            acknowledged.push(Acknowledged { name: (id, number), queue, offset, stage });
            shared.acknowledged.fetch_add(1, Ordering::SeqCst);
            if stage > 0
                && shared.forbidden.load(Ordering::SeqCst) == stage
                && shared.stage.load(Ordering::SeqCst) == stage
            {
                shared.wrongly.fetch_add(1, Ordering::SeqCst);
            }
        } else {
            shared.refused.fetch_add(1, Ordering::SeqCst);
            let remark = answer.remark.as_deref().unwrap_or_default();
            shared.first_refusal.lock().unwrap().get_or_insert_with(|| format!("{} {remark}", answer.code));
        }
        number += 1;
    }
    acknowledged
}

async fn consume(queue: i32, asking: Asking, shared: Arc<Shared>) -> BTreeMap<u64, Name> {
    let (mut seen, mut offset) = (BTreeMap::new(), 0);
    while !shared.ends.load(Ordering::SeqCst) {
        let Ok((_, next, messages)) = asking.pull(TOPIC, queue, offset).await else { break };
        seen.extend(messages.iter().filter_map(|(offset, body)| Some((*offset, name_of(body)?))));
        if next <= offset {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        offset = next.max(offset);
    }
    seen
}

impl Ledger {
    pub fn begin(asking: &Asking) -> Ledger {
        let shared = Arc::new(Shared::default());
        let producers =
            (0..PRODUCERS).map(|id| tokio::spawn(produce(id, asking.clone(), Arc::clone(&shared)))).collect();
        let consumers =
            (0..QUEUES).map(|queue| tokio::spawn(consume(queue, asking.clone(), Arc::clone(&shared)))).collect();
        Ledger { shared, producers, consumers }
    }

    pub fn acknowledged(&self) -> usize {
        self.shared.acknowledged.load(Ordering::SeqCst)
    }

    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// The code and the remark of the first answer that was no success.
    pub fn first_refusal(&self) -> Option<String> {
        self.shared.first_refusal.lock().unwrap().clone()
    }

    /// Waits until so many more are acknowledged.
    pub async fn acknowledges(&self, more: usize) {
        let wanted = self.acknowledged() + more;
        crate::support::until("messages are acknowledged", async || self.acknowledged() >= wanted).await;
    }

    /// Waits until so many more are answered otherwise.
    pub async fn refuses(&self, more: usize) {
        let wanted = self.refused() + more;
        crate::support::until("sends are not acknowledged", async || self.refused() >= wanted).await;
    }

    /// Sends that begin from now on belong to the next stage.
    pub fn next_stage(&self) -> u64 {
        self.shared.stage.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// From now on, in a stage of its own, nothing may be acknowledged.
    pub fn forbid(&self) {
        self.shared.forbidden.store(self.next_stage(), Ordering::SeqCst);
    }

    /// Ends that stage. Says how many sends that began in it were acknowledged in it.
    pub fn allow(&self) -> usize {
        self.next_stage();
        self.shared.wrongly.load(Ordering::SeqCst)
    }

    /// Ends the load, and holds what was acknowledged in `stage` or later, and all that was seen, against what the broker has.
    pub async fn check(self, asking: &Asking, stage: u64) -> Outcome {
        let mut history = self.ended().await;
        let acknowledged = history.acknowledged.len();
        history.acknowledged.retain(|acknowledged| acknowledged.stage >= stage);
        Outcome { acknowledged, ..history.held_against(asking).await }
    }

    /// Ends the load while the broker is there, or after it.
    pub async fn ended(self) -> History {
        self.shared.ends.store(true, Ordering::SeqCst);
        let (mut acknowledged, mut seen) = (Vec::new(), Vec::new());
        for producer in self.producers {
            acknowledged.extend(producer.await.unwrap());
        }
        for consumer in self.consumers {
            seen.push(consumer.await.unwrap());
        }
        History { acknowledged, seen }
    }
}

/// A ledger whose load is over.
pub struct History {
    acknowledged: Vec<Acknowledged>,
    /// By queue and offset, what consumers saw.
    seen: Vec<BTreeMap<u64, Name>>,
}

impl History {
    /// Each producer's messages are in order, none is there twice; says how many that were acknowledged, or seen, are not where they were.
    pub async fn held_against(self, asking: &Asking) -> Outcome {
        let mut there = HashMap::new();
        for queue in 0..QUEUES {
            let mut last = HashMap::new();
            for (offset, body) in asking.all(TOPIC, queue).await {
                let Some(name) = name_of(&body) else { continue };
                let before = last.insert(name.0, name.1);
                assert!(before.is_none_or(|before| before < name.1), "queue {queue}: {name:?} after {before:?}");
                assert_eq!(there.insert(name, (queue, offset)), None, "{name:?} is there twice");
            }
        }
        let is_lost = |acknowledged: &&Acknowledged| {
            there.get(&acknowledged.name) != Some(&(acknowledged.queue, acknowledged.offset))
        };
        let lost = self.acknowledged.iter().filter(is_lost).count();
        let seen = (0..)
            .zip(&self.seen)
            .flat_map(|(queue, seen)| seen.iter().map(move |(offset, name)| (queue, *offset, *name)));
        let vanished = seen.filter(|(queue, offset, name)| there.get(name) != Some(&(*queue, *offset))).count();
        Outcome { acknowledged: self.acknowledged.len(), lost, vanished, time: Duration::ZERO }
    }
}
