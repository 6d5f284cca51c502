//! Receiving: consumers, each with a connection of its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use client::{
    Client, ClientError, ConsumeFromWhere, MessageQueue, Outcome, PullConsumer, PullStatus, PushConfig, PushConsumer,
    Received,
};
use tokio::task::JoinSet;

use crate::driver::{ConsumeMode, Driver};
use crate::error::BenchError;
use crate::pop;
use crate::produce::reason;
use crate::reader::{Order, Reader};
use crate::scene::Scene;

/// After a pull that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Before the next pull of a queue that had nothing, if the broker did not hold the pull.
const EMPTY_PAUSE: Duration = Duration::from_millis(5);

/// How long the members of a group may take to share out its queues.
const SHARING_OUT: Duration = Duration::from_secs(60);

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
}
