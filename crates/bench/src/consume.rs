//! Receiving: consumers, each with a connection of its own.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{
    Client, ClientError, ConsumeFromWhere, MessageQueue, Outcome, PullConsumer, PullStatus, PushConfig, PushConsumer,
    Received,
};
use protocol::compression::{Compression, decompress};
use protocol::record::{RecordView, Scanned, scan};
use protocol::{batch, sys_flag};
use tokio::task::JoinSet;

use crate::driver::{ConsumeMode, Driver};
use crate::error::BenchError;
use crate::pop;
use crate::produce::reason;
use crate::scene::Scene;
use crate::stamp::Stamp;

/// After a pull that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Before the next pull of a queue that had nothing, if the broker did not hold the pull.
const EMPTY_PAUSE: Duration = Duration::from_millis(5);

/// How long the members of a group may take to share out its queues.
const SHARING_OUT: Duration = Duration::from_secs(60);

/// A compressed body that would grow beyond this is not opened.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Pairs of a queue and a thread that sends to it whose order is looked at, all together; more take too much memory.
pub const ORDERED_PAIRS_MAX: u64 = 4_000_000;

/// What one consumer of a group is.
#[derive(Clone)]
pub struct Reader {
    /// The stage.
    pub scene: Arc<Scene>,
    /// Its group among those of its topic.
    pub group: usize,
    /// Its number among all consumers.
    pub who: usize,
    /// Whether latencies mean anything: those of a backlog do not.
    pub has_latency: bool,
}

/// All consumers of a run.
pub struct Consumers {
    clients: Vec<Client>,
    pushing: Vec<PushConsumer>,
    tasks: JoinSet<()>,
}

/// Who consumes what.
pub struct Groups<'a> {
    /// The topics.
    pub topics: &'a [String],
    /// The groups of each topic, by topic.
    pub groups: &'a [Vec<String>],
    /// Consumers of each group.
    pub members: usize,
    /// Whether latencies mean anything.
    pub has_latency: bool,
    /// Whether messages of one thread to one queue must come in their order.
    pub is_order_checked: bool,
}

impl Consumers {
    /// Nobody yet.
    pub fn none() -> Consumers {
        Consumers { clients: Vec::new(), pushing: Vec::new(), tasks: JoinSet::new() }
    }

    /// Starts them, and waits until each queue has somebody who will read it when the scene's gate opens. After an error there are some.
    pub async fn start(&mut self, scene: &Arc<Scene>, driver: &Driver, wanted: &Groups<'_>) -> Result<(), BenchError> {
        for (topic, groups) in wanted.topics.iter().zip(wanted.groups) {
            for (group, name) in groups.iter().enumerate() {
                let begun = self.pushing.len();
                let mut queues = 0;
                for member in 0..wanted.members {
                    let reader = Reader {
                        scene: Arc::clone(scene),
                        group,
                        who: self.clients.len(),
                        has_latency: wanted.has_latency,
                    };
                    let client = scene.client(driver);
                    self.clients.push(client.clone());
                    let route =
                        client.route(topic).await.map_err(BenchError::target(format!("the route of {topic}")))?;
                    queues = route.readable.len();
                    match driver.consume_mode {
                        ConsumeMode::Pull => {
                            let mine = route.readable.iter().skip(member).step_by(wanted.members);
                            for queue in mine {
                                let consumer = client.pull_consumer(name);
                                let order = wanted.is_order_checked.then(Order::default);
                                let (max, wait) = (driver.pull_batch, Duration::from_millis(driver.pull_wait_millis));
                                self.tasks.spawn(pull(reader.clone(), consumer, queue.clone(), max, wait, order));
                            }
                        }
                        ConsumeMode::Push => {
                            let consumer = push(reader, &client, driver, name, topic).await;
                            let failed = BenchError::target(format!("a consumer of {name}"));
                            self.pushing.push(consumer.map_err(failed)?);
                        }
                        ConsumeMode::Pop => pop::spawn(&mut self.tasks, &reader, &client, driver, name, &route),
                    }
                }
                if driver.consume_mode == ConsumeMode::Push {
                    shared_out(&self.pushing[begun..], topic, queues).await?;
                }
            }
        }
        Ok(())
    }

    /// Ends them.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        for consumer in self.pushing {
            consumer.stop().await;
        }
        for client in self.clients {
            client.stop().await;
        }
    }
}

impl Reader {
    /// Counts messages that came together.
    pub fn take<'a>(&self, bodies: impl Iterator<Item = &'a [u8]>, mut order: Option<&mut Order>) {
        let Scene { clock, ledger, consumed, .. } = &*self.scene;
        let now = clock.elapsed();
        let (mut messages, mut bytes, mut latencies) = (0, 0, Vec::new());
        for body in bodies {
            let Some(stamp) = Stamp::read(body) else {
                ledger.foreign();
                continue;
            };
            if !ledger.receive(self.group, &stamp) {
                continue;
            }
            messages += 1;
            bytes += body.len() as u64;
            if self.has_latency {
                latencies.push(now.saturating_sub(Duration::from_nanos(stamp.due_ns)));
            }
            if order.as_deref_mut().is_some_and(|order| !order.comes(&stamp)) {
                self.scene.note_disordered();
            }
        }
        consumed.done_each(self.who, bytes, messages, latencies.into_iter());
    }

    /// Counts the messages of stored records, from a queue offset on. Returns an error in words if they cannot be read.
    pub fn take_records(&self, records: &Bytes, from: i64, mut order: Option<&mut Order>) -> Result<(), String> {
        let mut rest = &records[..];
        // Each turn takes at least a record's length off.
        while !rest.is_empty() {
            let view = match scan(rest, false) {
                Ok(Scanned::Record(view)) => view,
                Ok(Scanned::Blank { .. } | Scanned::Nothing) => {
                    return Err("records end before their length says".to_owned());
                }
                Err(error) => return Err(format!("a record cannot be read: {error}")),
            };
            self.take_record(&view, from, order.as_deref_mut());
            rest = &rest[view.total_size()..];
        }
        Ok(())
    }

    fn take_record(&self, view: &RecordView<'_>, from: i64, order: Option<&mut Order>) {
        let opened;
        let body = match Compression::of(view.sys_flag()) {
            Ok(None) => view.body(),
            Ok(Some(kind)) => match decompress(kind, view.body(), BODY_BYTES_MAX) {
                Ok(body) => {
                    opened = body;
                    &opened[..]
                }
                Err(_) => return self.scene.ledger.foreign(),
            },
            Err(_) => return self.scene.ledger.foreign(),
        };
        if view.sys_flag() & sys_flag::INNER_BATCH == 0 {
            return self.take(std::iter::once(body), order);
        }
        let base = view.property(protocol::properties::name::INNER_BASE).and_then(|base| base.parse::<i64>().ok());
        let first = base.unwrap_or_else(|| view.queue_offset() as i64);
        // What lies before the offset that was asked for came with an earlier pull.
        let skipped = usize::try_from(from.saturating_sub(first)).unwrap_or(0);
        // A message that cannot be read ends the batch, and has no stamp.
        self.take(batch::iter(body).skip(skipped).map(|inner| inner.map_or(&[][..], |inner| inner.body)), order);
    }
}

/// What came last to one queue, by who sent it.
#[derive(Default)]
pub struct Order {
    last: HashMap<(u32, u16), u64>,
}

impl Order {
    /// Whether a message, not seen before, is later than all others of its sender.
    pub fn comes(&mut self, stamp: &Stamp) -> bool {
        let last = self.last.entry((stamp.producer, stamp.lane)).or_insert(stamp.sequence);
        let is_later = *last <= stamp.sequence;
        *last = (*last).max(stamp.sequence);
        is_later
    }
}

/// Reads one queue from its beginning, until it is stopped.
async fn pull(
    reader: Reader,
    consumer: PullConsumer,
    queue: MessageQueue,
    max: i32,
    wait: Duration,
    mut order: Option<Order>,
) {
    let mut offset = 0;
    reader.scene.gate().await;
    loop {
        let asked = reader.scene.clock.elapsed();
        match consumer.pull_records(&queue, offset, max, wait).await {
            Ok(pulled) => {
                if pulled.status == PullStatus::Found
                    && let Err(error) = reader.take_records(&pulled.records, offset, order.as_mut())
                {
                    reader.scene.consumed.failed(reader.who, 1, &error);
                }
                let is_stuck = pulled.next_offset == offset;
                offset = pulled.next_offset;
                if is_stuck && reader.scene.clock.elapsed() - asked < EMPTY_PAUSE {
                    tokio::time::sleep(EMPTY_PAUSE).await;
                }
            }
            Err(error) => {
                reader.scene.consumed.failed(reader.who, 1, &reason(&error));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn push(
    reader: Reader,
    client: &Client,
    driver: &Driver,
    group: &str,
    topic: &str,
) -> Result<PushConsumer, ClientError> {
    let config = PushConfig {
        from: ConsumeFromWhere::ConsumeFromFirstOffset,
        concurrency: driver.consume_threads,
        batch: usize::try_from(driver.pull_batch).unwrap_or(1),
        pull_batch: driver.pull_batch,
        pull_wait: Duration::from_millis(driver.pull_wait_millis.max(1)),
        queue_messages_max: 10_000,
        rebalance_every: Duration::from_secs(1),
        ..PushConfig::new(group)
    };
    let handler = move |messages: Arc<[Received]>| {
        let reader = reader.clone();
        async move {
            reader.scene.gate().await;
            reader.take(messages.iter().map(|message| &message.body[..]), None);
            Outcome::Done
        }
    };
    client.push_consumer(config.subscribe(topic, "*")?, handler).await
}

/// Waits until the members of a group have shared out all queues of its topic. While one still has what is another's already,
/// messages come to both.
async fn shared_out(members: &[PushConsumer], topic: &str, queues: usize) -> Result<(), BenchError> {
    let deadline = tokio::time::Instant::now() + SHARING_OUT;
    loop {
        let of_topic = |member: &PushConsumer| -> Vec<MessageQueue> {
            member.assigned().into_iter().filter(|queue| queue.topic == topic).collect()
        };
        let shares: Vec<Vec<MessageQueue>> = members.iter().map(of_topic).collect();
        if is_fair(&shares, queues) {
            return Ok(());
        }
        if tokio::time::Instant::now() > deadline {
            let (waited, counts) = (SHARING_OUT.as_secs(), shares.iter().map(Vec::len).collect::<Vec<_>>());
            let text = format!(
                "after {waited} s consumers of {topic} have {counts:?} queues, and not equal shares of {queues}"
            );
            return Err(BenchError::Invalid(text));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether each queue has one member, and each member its share.
fn is_fair(shares: &[Vec<MessageQueue>], queues: usize) -> bool {
    let different: HashSet<&MessageQueue> = shares.iter().flatten().collect();
    let counts = || shares.iter().map(Vec::len);
    let spread = counts().max().unwrap_or(0) - counts().min().unwrap_or(0);
    different.len() == queues && counts().sum::<usize>() == queues && spread <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::record::{RecordDraft, stamp as place};

    fn record(body: &[u8], sys_flag: i32, properties: &str) -> Vec<u8> {
        let host = "10.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft {
            topic: "t",
            queue_id: 0,
            flag: 0,
            sys_flag,
            born_timestamp: 0,
            born_host: host,
            store_host: host,
            reconsume_times: 0,
            prepared_offset: 0,
            body,
            properties: properties.as_bytes(),
        };
        let mut out = Vec::new();
        draft.encode(&mut out).unwrap();
        place(&mut out, 40, 4096, 6);
        out
    }

    fn body(scene: &Scene, sequence: u64, lane: u16) -> Vec<u8> {
        let mut body = vec![0; 40];
        Stamp { lane, producer: 0, run: scene.run, sequence, due_ns: 0 }.write(&mut body);
        body
    }

    fn reader() -> Reader {
        let scene = Arc::new(Scene::new(1, 1, 40));
        scene.ledger.send(0, 0, 100);
        Reader { scene, group: 0, who: 0, has_latency: true }
    }

    #[test]
    fn queues_are_shared_out_when_each_has_one_member_and_each_member_as_many() {
        let share = |ids: &[i32]| -> Vec<MessageQueue> {
            let queue = |id: &i32| MessageQueue { topic: "t".into(), broker_name: "b".into(), queue_id: *id };
            ids.iter().map(queue).collect()
        };
        assert!(is_fair(&[share(&[0, 1]), share(&[2])], 3));
        assert!(is_fair(&[share(&[0]), share(&[]), share(&[1])], 2));
        // The first has all, before the second has come; both have one; one has none.
        assert!(!is_fair(&[share(&[0, 1, 2]), share(&[])], 3));
        assert!(!is_fair(&[share(&[0, 1]), share(&[1, 2])], 3));
        assert!(!is_fair(&[share(&[0]), share(&[1])], 3));
    }

    #[test]
    fn messages_are_counted_out_of_records_batches_and_compressed_bodies() {
        let reader = reader();
        let scene = &reader.scene;
        let mut inner = Vec::new();
        for sequence in 1..4 {
            let body = body(scene, sequence, 0);
            batch::encode(&mut inner, &batch::InnerMessage { flag: 0, body: &body, properties: "" }).unwrap();
        }
        let packed = protocol::compression::compress(Compression::Lz4, &body(scene, 4, 0), 5).unwrap();
        let mut all = record(&body(scene, 0, 0), 0, "");
        all.extend(record(
            &inner,
            sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP,
            "INNER_NUM\u{1}3\u{2}INNER_BASE\u{1}40\u{2}",
        ));
        all.extend(record(&packed, Compression::Lz4.bits(), ""));
        all.extend(record(b"of somebody else", 0, ""));
        // From the second message of the batch on.
        reader.take_records(&all.into(), 41, None).unwrap();
        let (tally, counts) = (scene.ledger.tally(), scene.consumed.take());
        assert_eq!((tally.received, tally.duplicates, tally.foreign), (4, 0, 1));
        assert_eq!((counts.messages, counts.bytes, counts.latency.len()), (4, 160, 4));
        assert!(reader.take_records(&vec![1; 200].into(), 0, None).is_err());
    }

    #[test]
    fn what_comes_before_an_earlier_one_of_its_sender_is_disordered_and_what_comes_twice_is_not() {
        let reader = reader();
        let bodies: Vec<Vec<u8>> = [(0, 0), (3, 0), (1, 1), (2, 0), (2, 0), (4, 0), (5, 1)]
            .map(|(sequence, lane)| body(&reader.scene, sequence, lane))
            .into();
        reader.take(bodies.iter().map(|body| &body[..]), Some(&mut Order::default()));
        assert_eq!((reader.scene.disordered(), reader.scene.ledger.tally().duplicates), (1, 1));
    }
}
