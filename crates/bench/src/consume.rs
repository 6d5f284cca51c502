//! Receiving: consumers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::{
    Client, ClientError, ConsumeFromWhere, MessageQueue, Outcome, PullConsumer, PullStatus, PushConfig, PushConsumer,
    Received,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::clients::Clients;
use crate::driver::{ConsumeMode, Driver};
use crate::error::BenchError;
use crate::hands::Part;
use crate::pop;
use crate::produce::reason;
use crate::reader::{Order, Reader};
use crate::scene::Scene;

/// After a pull that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Before the next pull of a queue that had nothing, if the broker did not hold the pull.
const EMPTY_PAUSE: Duration = Duration::from_millis(5);

/// The consumers of a process.
pub struct Consumers {
    clients: Clients,
    pushing: Vec<Pushing>,
    tasks: JoinSet<()>,
}

/// A push consumer, with the indices of its topic and, among the topic's, of its group.
struct Pushing {
    topic: usize,
    group: usize,
    consumer: PushConsumer,
}

/// Who consumes what.
pub struct Groups<'a> {
    /// The topics.
    pub topics: &'a [String],
    /// The groups of each topic, by topic.
    pub groups: &'a [Vec<String>],
    /// Consumers of each group.
    pub members: usize,
    /// Which of them are this process's.
    pub part: Part,
    /// Whether latencies mean anything.
    pub has_latency: bool,
    /// Whether messages of one thread to one queue must come in their order.
    pub is_order_checked: bool,
}

/// The queues that one member of a group has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Index of the topic.
    pub topic: usize,
    /// Index of the group among the topic's.
    pub group: usize,
    /// Brokers and numbers of its queues.
    pub queues: Vec<(String, i32)>,
}

impl Consumers {
    /// Nobody yet.
    pub fn none(scene: &Arc<Scene>, driver: &Driver) -> Consumers {
        Consumers { clients: Clients::none(scene, driver), pushing: Vec::new(), tasks: JoinSet::new() }
    }

    /// Starts those that are this process's; they read when the scene's gate opens. After an error there are some.
    pub async fn start(&mut self, scene: &Arc<Scene>, driver: &Driver, wanted: &Groups<'_>) -> Result<(), BenchError> {
        let mut who = 0;
        for (topic, (topic_name, groups)) in wanted.topics.iter().zip(wanted.groups).enumerate() {
            for (group, name) in groups.iter().enumerate() {
                for member in 0..wanted.members {
                    let reader = Reader { scene: Arc::clone(scene), group, who, has_latency: wanted.has_latency };
                    who += 1;
                    if !wanted.part.has(reader.who) {
                        continue;
                    }
                    let client = self.clients.of(group * wanted.members + member, topic);
                    let failed = BenchError::target(format!("the route of {topic_name}"));
                    let route = client.route(topic_name).await.map_err(failed)?;
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
                            let consumer = push(reader, &client, driver, name, topic_name).await;
                            let failed = BenchError::target(format!("a consumer of {name}"));
                            self.pushing.push(Pushing { topic, group, consumer: consumer.map_err(failed)? });
                        }
                        ConsumeMode::Pop => pop::spawn(&mut self.tasks, &reader, &client, driver, name, &route),
                    }
                }
            }
        }
        Ok(())
    }

    /// What each push consumer has of its topic's queues.
    pub fn shares(&self, topics: &[String]) -> Vec<Share> {
        let share = |Pushing { topic, group, consumer }: &Pushing| {
            let of_topic = |queue: &MessageQueue| topics.get(*topic).is_some_and(|name| *name == queue.topic);
            let assigned = consumer.assigned().into_iter().filter(of_topic);
            let queues = assigned.map(|queue| (queue.broker_name, queue.queue_id)).collect();
            Share { topic: *topic, group: *group, queues }
        };
        self.pushing.iter().map(share).collect()
    }

    /// Ends them.
    pub async fn stop(mut self) {
        self.tasks.shutdown().await;
        for pushing in self.pushing {
            pushing.consumer.stop().await;
        }
        self.clients.stop().await;
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

/// A group whose members have not shared out the queues of its topic, as its indices and how many queues each member has; none: all
/// groups have. While two members have the same queue, messages come to both.
pub fn not_shared_out(shares: &[Share], queues: usize) -> Option<(usize, usize, Vec<usize>)> {
    let mut groups: BTreeMap<(usize, usize), Vec<&Share>> = BTreeMap::new();
    for share in shares {
        groups.entry((share.topic, share.group)).or_default().push(share);
    }
    let unfair = groups.into_iter().find(|(_, members)| !is_fair(members, queues));
    unfair.map(|((topic, group), members)| (topic, group, members.iter().map(|share| share.queues.len()).collect()))
}

/// Whether each queue has one member, and each member its share.
fn is_fair(shares: &[&Share], queues: usize) -> bool {
    let different: HashSet<&(String, i32)> = shares.iter().flat_map(|share| &share.queues).collect();
    let counts = || shares.iter().map(|share| share.queues.len());
    let spread = counts().max().unwrap_or(0) - counts().min().unwrap_or(0);
    different.len() == queues && counts().sum::<usize>() == queues && spread <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_shared_out_when_each_has_one_member_and_each_member_as_many() {
        let shares = |groups: &[&[&[i32]]]| -> Vec<Share> {
            let of_group = |(group, members): (usize, &&[&[i32]])| {
                let share = |ids: &&[i32]| Share {
                    topic: 0,
                    group,
                    queues: ids.iter().map(|id| ("b".to_owned(), *id)).collect(),
                };
                members.iter().map(share).collect::<Vec<_>>()
            };
            groups.iter().enumerate().flat_map(of_group).collect()
        };
        assert_eq!(not_shared_out(&shares(&[&[&[0, 1], &[2]]]), 3), None);
        assert_eq!(not_shared_out(&shares(&[&[&[0], &[], &[1]]]), 2), None);
        // The first has all, before the second has come; both have one; one has none.
        assert_eq!(not_shared_out(&shares(&[&[&[0, 1, 2], &[]]]), 3), Some((0, 0, vec![3, 0])));
        assert_eq!(not_shared_out(&shares(&[&[&[0, 1], &[1, 2]]]), 3), Some((0, 0, vec![2, 2])));
        assert_eq!(not_shared_out(&shares(&[&[&[0], &[1]]]), 3), Some((0, 0, vec![1, 1])));
        // Each group for itself.
        assert_eq!(not_shared_out(&shares(&[&[&[0], &[1]], &[&[0, 1], &[]]]), 2), Some((0, 1, vec![2, 0])));
    }
}
