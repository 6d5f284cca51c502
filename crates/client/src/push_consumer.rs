//! The consumer that shares a topic's queues with its group: who gets which queue, again and again.

mod progress;
mod queue_task;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::body::{ConsumeFromWhere, ConsumeType, ConsumerData, MessageModel, MessageQueue, SubscriptionData};
use protocol::names::retry_topic;
use protocol::tags;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;

use crate::allocation::allocate;
use crate::error::ClientError;
use crate::member::Member;
use crate::message::Received;

/// What a handler made of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Consumed.
    Done,
    /// To be delivered again. 0 lets the broker choose the delay, which grows with each time; a positive level is one of its
    /// table; negative sends them to the dead letters. An orderly consumer tries them again itself.
    Again {
        /// See above.
        delay_level: i32,
    },
}

/// Consumes messages. Any `Fn(Arc<[Received]>) -> impl Future<Output = Outcome>` is one.
pub trait Handler: Send + Sync + 'static {
    /// Consumes messages of one queue. A panic counts as [`Outcome::Again`].
    fn handle(&self, messages: Arc<[Received]>) -> impl Future<Output = Outcome> + Send + 'static;
}

impl<F, T> Handler for F
where
    F: Fn(Arc<[Received]>) -> T + Send + Sync + 'static,
    T: Future<Output = Outcome> + Send + 'static,
{
    fn handle(&self, messages: Arc<[Received]>) -> impl Future<Output = Outcome> + Send + 'static {
        self(messages)
    }
}

/// How a push consumer consumes.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// Its group.
    pub group: String,
    /// Share the messages, or each get all.
    pub model: MessageModel,
    /// Where a new group begins.
    pub from: ConsumeFromWhere,
    /// The time to begin at with [`ConsumeFromWhere::ConsumeFromTimestamp`], in ms since 1970.
    pub from_timestamp: i64,
    /// One message of a queue after the other, each queue locked for one consumer.
    pub is_orderly: bool,
    /// Handlers that run at once.
    pub concurrency: usize,
    /// Messages that a handler gets at once, at most.
    pub batch: usize,
    /// Messages of one pull, at most.
    pub pull_batch: i32,
    /// How long the broker may hold a pull.
    pub pull_wait: Duration,
    /// Messages of one queue that are pulled and not finished, at most.
    pub queue_messages_max: usize,
    /// Bytes of their bodies, at most; the pull that reaches it is the last.
    pub queue_bytes_max: usize,
    /// After so many redeliveries a message goes to the dead letters. Negative: after 16; of an orderly consumer never, because
    /// those behind it would pass it.
    pub max_reconsume_times: i32,
    /// Between two commits.
    pub commit_every: Duration,
    /// Between two renewals of the lock on a queue (orderly). A lock lasts 60 s at the broker; by default it survives two failures.
    pub lock_every: Duration,
    /// Between two looks at the group, if nobody says that it changed.
    pub rebalance_every: Duration,
    /// How long handlers may take to finish when a queue is given up.
    pub stop_timeout: Duration,
    /// Tag expressions by topic; [`PushConfig::subscribe`] checks them.
    pub subscriptions: BTreeMap<String, String>,
}

impl PushConfig {
    /// The defaults of RocketMQ's clients, and no subscription.
    pub fn new(group: &str) -> PushConfig {
        PushConfig {
            group: group.to_owned(),
            model: MessageModel::Clustering,
            from: ConsumeFromWhere::ConsumeFromLastOffset,
            from_timestamp: 0,
            is_orderly: false,
            concurrency: 20,
            batch: 1,
            pull_batch: 32,
            pull_wait: Duration::from_secs(15),
            queue_messages_max: 1000,
            queue_bytes_max: 100 << 20,
            max_reconsume_times: -1,
            commit_every: Duration::from_secs(5),
            lock_every: Duration::from_secs(20),
            rebalance_every: Duration::from_secs(20),
            stop_timeout: Duration::from_secs(10),
            subscriptions: BTreeMap::new(),
        }
    }

    /// Subscribes to the messages of a topic that match a tag expression: `"*"`, `"A || B"`.
    pub fn subscribe(mut self, topic: &str, expression: &str) -> Result<PushConfig, ClientError> {
        if tags::Subscription::parse(expression).is_none() {
            return Err(ClientError::Invalid(format!("{expression:?} names no tag")));
        }
        self.subscriptions.insert(topic.to_owned(), expression.to_owned());
        Ok(self)
    }

    /// Refuses what would panic, spin, or wait for ever.
    fn check(&self) -> Result<(), ClientError> {
        let invalid = |text: String| Err(ClientError::Invalid(text));
        protocol::names::check_group(&self.group).map_err(|error| ClientError::Invalid(error.to_string()))?;
        if self.subscriptions.is_empty() {
            return invalid("a consumer needs a subscription".to_owned());
        }
        for (topic, expression) in &self.subscriptions {
            protocol::names::check_topic(topic).map_err(|error| ClientError::Invalid(error.to_string()))?;
            if tags::Subscription::parse(expression).is_none() {
                return invalid(format!("{expression:?} names no tag"));
            }
        }
        let counts = [
            ("concurrency", self.concurrency, Semaphore::MAX_PERMITS),
            ("batch", self.batch, usize::MAX),
            ("pull_batch", usize::try_from(self.pull_batch).unwrap_or(0), usize::MAX),
            ("queue_messages_max", self.queue_messages_max, usize::MAX),
            ("queue_bytes_max", self.queue_bytes_max, usize::MAX),
        ];
        for (name, value, max) in counts {
            if value == 0 || value > max {
                return invalid(format!("{name} must be from 1 to {max}"));
            }
        }
        let spans = [
            ("commit_every", self.commit_every),
            ("lock_every", self.lock_every),
            ("rebalance_every", self.rebalance_every),
        ];
        for (name, value) in spans {
            if value.is_zero() {
                return invalid(format!("{name} must be longer than nothing"));
            }
        }
        Ok(())
    }

    /// [`PushConfig::max_reconsume_times`] as a number, as RocketMQ's client understands it.
    pub(crate) fn redeliveries_max(&self) -> i32 {
        match (self.max_reconsume_times, self.is_orderly) {
            (0.., _) => self.max_reconsume_times,
            (_, true) => i32::MAX,
            (_, false) => 16,
        }
    }

    /// Of a broadcast each consumer has its own copy of the order: nobody else reads its queues.
    pub(crate) fn needs_lock(&self) -> bool {
        self.is_orderly && self.model == MessageModel::Clustering
    }

    /// What the heartbeat says. The retry topic is subscribed to as well: there the group's failed messages come again.
    fn consumer_data(&self, now_ms: i64) -> ConsumerData {
        let retry = (retry_topic(&self.group), tags::ALL.to_owned());
        let is_shared = self.model == MessageModel::Clustering;
        let all = self.subscriptions.clone().into_iter().chain(is_shared.then_some(retry));
        ConsumerData {
            consume_from_where: self.from,
            consume_type: ConsumeType::ConsumePassively,
            group_name: self.group.clone(),
            message_model: self.model,
            subscription_data_set: all.map(|(topic, text)| subscription_data(topic, text, now_ms)).collect(),
            unit_mode: false,
        }
    }
}

fn subscription_data(topic: String, sub_string: String, sub_version: i64) -> SubscriptionData {
    let parsed = tags::Subscription::parse(&sub_string).unwrap_or_else(tags::Subscription::all);
    SubscriptionData {
        code_set: parsed.codes().to_vec(),
        tags_set: parsed.tags().to_vec(),
        sub_string,
        sub_version,
        topic,
        ..SubscriptionData::default()
    }
}

/// What the tasks of one consumer share.
pub(crate) struct Group<H> {
    pub(crate) member: Arc<Member>,
    pub(crate) config: PushConfig,
    pub(crate) handler: H,
    pub(crate) running: Arc<Semaphore>,
    subscriptions: BTreeMap<String, SubscriptionData>,
    assigned: Arc<Mutex<Vec<MessageQueue>>>,
}

/// A running consumer. Dropping it stops it without waiting.
pub struct PushConsumer {
    stopping: watch::Sender<bool>,
    task: JoinHandle<()>,
    assigned: Arc<Mutex<Vec<MessageQueue>>>,
}

impl PushConsumer {
    pub(crate) async fn start<H: Handler>(
        member: Arc<Member>,
        config: PushConfig,
        handler: H,
    ) -> Result<PushConsumer, ClientError> {
        config.check()?;
        let data = config.consumer_data(member.config.clock.now().0);
        for topic in config.subscriptions.keys() {
            // So that the heartbeat knows whom to tell; a topic that is not there yet is looked for at each rebalance.
            match member.route(topic).await {
                Ok(_) | Err(ClientError::NoRoute { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let subscriptions = data.subscription_data_set.iter().map(|one| (one.topic.clone(), one.clone())).collect();
        let wake = member.join_consumer(data).await?;
        let assigned = Arc::new(Mutex::new(Vec::new()));
        let group = Arc::new(Group {
            running: Arc::new(Semaphore::new(config.concurrency)),
            member,
            config,
            handler,
            subscriptions,
            assigned: Arc::clone(&assigned),
        });
        let (stopping, stop) = watch::channel(false);
        let task = tokio::spawn(rebalance(group, wake, stop));
        Ok(PushConsumer { stopping, task, assigned })
    }

    /// The queues that this consumer reads now.
    pub fn assigned(&self) -> Vec<MessageQueue> {
        self.assigned.lock().clone()
    }

    /// Stops: lets handlers finish, commits, and tells the group.
    pub async fn stop(self) {
        self.stopping.send_replace(true);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the consumer did not stop in order");
        }
    }
}

/// A queue that is being read.
struct Reading {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

/// Looks at the group at its interval and whenever a broker says that it changed; ends when told to.
async fn rebalance<H: Handler>(group: Arc<Group<H>>, wake: Arc<Notify>, mut stop: watch::Receiver<bool>) {
    let mut reading: HashMap<MessageQueue, Reading> = HashMap::new();
    loop {
        for (topic, subscription) in &group.subscriptions {
            match mine(&group, topic).await {
                Ok(Some(queues)) => assign(&group, subscription, queues, &mut reading).await,
                // Nobody knows us yet, or the topic is not there yet: what we have, we keep.
                Ok(None) | Err(ClientError::NoRoute { .. }) => {}
                Err(error) => tracing::warn!(topic, %error, "cannot see who is in the group"),
            }
        }
        let mut queues: Vec<MessageQueue> = reading.keys().cloned().collect();
        queues.sort();
        *group.assigned.lock() = queues;
        tokio::select! {
            () = queue_task::told_to_stop(&mut stop) => break,
            () = wake.notified() => {}
            () = tokio::time::sleep(group.config.rebalance_every) => {}
        }
    }
    end(reading.into_values()).await;
    group.assigned.lock().clear();
    group.member.leave(None, Some(&group.config.group)).await;
}

/// The queues of a topic that are ours; `None` when the group does not know us.
async fn mine<H: Handler>(group: &Group<H>, topic: &str) -> Result<Option<Vec<MessageQueue>>, ClientError> {
    let route = group.member.route(topic).await?;
    if group.config.model == MessageModel::Broadcasting {
        return Ok(Some(route.readable.clone()));
    }
    let mut last = None;
    for queue in &route.readable {
        let Some(address) = route.broker_of(queue).and_then(|broker| route.any(broker)) else { continue };
        match group.member.members(address, &group.config.group).await {
            Ok(members) if members.contains(&group.member.id) => {
                return Ok(Some(allocate(&route.readable, &members, &group.member.id)));
            }
            Ok(_) => return Ok(None),
            Err(error) => last = Some(error),
        }
    }
    last.map_or(Ok(None), Err)
}

async fn assign<H: Handler>(
    group: &Arc<Group<H>>,
    subscription: &SubscriptionData,
    queues: Vec<MessageQueue>,
    reading: &mut HashMap<MessageQueue, Reading>,
) {
    let is_lost = |queue: &MessageQueue| queue.topic == subscription.topic && !queues.contains(queue);
    let lost: Vec<MessageQueue> = reading.keys().filter(|queue| is_lost(queue)).cloned().collect();
    // Given up before new ones are taken, and committed, so that the next owner goes on where we stopped.
    end(lost.iter().filter_map(|queue| reading.remove(queue))).await;
    for queue in queues {
        if reading.get(&queue).is_some_and(|known| !known.task.is_finished()) {
            continue;
        }
        let (stop, stopping) = watch::channel(false);
        let task = queue_task::consume(Arc::clone(group), queue.clone(), subscription.clone(), stopping);
        reading.insert(queue, Reading { stop, task: tokio::spawn(task) });
    }
}

async fn end(reading: impl Iterator<Item = Reading>) {
    let tasks: Vec<_> = reading
        .map(|one| {
            one.stop.send_replace(true);
            one.task
        })
        .collect();
    for task in tasks {
        if let Err(error) = task.await {
            tracing::error!(%error, "a queue's task did not stop in order");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heartbeat_names_tags_and_their_java_hashes_and_the_retry_topic() {
        let config = PushConfig::new("g").subscribe("t", "TagA || TagB").unwrap();
        let data = config.consumer_data(5);
        let topics: Vec<&str> = data.subscription_data_set.iter().map(|one| one.topic.as_str()).collect();
        assert_eq!(topics, ["t", "%RETRY%g"]);
        let first = &data.subscription_data_set[0];
        assert_eq!((&first.code_set[..], first.sub_version), (&[2_598_919, 2_598_920][..], 5));
        assert_eq!(first.tags_set, ["TagA", "TagB"]);
        assert!(PushConfig::new("g").subscribe("t", "||").is_err());
        let alone = PushConfig { model: MessageModel::Broadcasting, ..config };
        assert_eq!(alone.consumer_data(5).subscription_data_set.len(), 1);
    }

    #[test]
    fn a_configuration_under_which_nothing_could_be_consumed_is_refused() {
        let config = PushConfig::new("g").subscribe("t", "*").unwrap();
        assert!(config.check().is_ok());
        let no_tag = BTreeMap::from([("t".to_owned(), "||".to_owned())]);
        let bad = [
            PushConfig { subscriptions: BTreeMap::new(), ..config.clone() },
            PushConfig { subscriptions: no_tag, ..config.clone() },
            PushConfig { concurrency: 0, ..config.clone() },
            PushConfig { concurrency: usize::MAX, ..config.clone() },
            PushConfig { batch: 0, ..config.clone() },
            PushConfig { pull_batch: 0, ..config.clone() },
            PushConfig { queue_messages_max: 0, ..config.clone() },
            PushConfig { commit_every: Duration::ZERO, ..config.clone() },
            PushConfig { rebalance_every: Duration::ZERO, ..config },
        ];
        for config in bad {
            assert!(matches!(config.check(), Err(ClientError::Invalid(_))), "{config:?}");
        }
    }

    #[test]
    fn a_message_in_order_is_tried_without_end_and_any_other_sixteen_times_unless_told_otherwise() {
        let config = PushConfig::new("g");
        assert_eq!(config.redeliveries_max(), 16);
        let orderly = PushConfig { is_orderly: true, ..config };
        assert_eq!(orderly.redeliveries_max(), i32::MAX);
        assert_eq!(PushConfig { max_reconsume_times: 3, ..orderly }.redeliveries_max(), 3);
    }
}
