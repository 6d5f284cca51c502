//! Sending.

mod auto_batch;
mod prepared;
mod sent;
mod together;
mod whole;

pub use auto_batch::{AutoBatch, Pending};
pub use sent::{SendResult, SendStatus};

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use net::CallError;
use protocol::body::MessageQueue;
use protocol::request::{SendMessage, SendReply};
use tokio::time::Instant;

use crate::broker::{broker_in, malformed};
use crate::error::ClientError;
use crate::logical::lo;
use crate::member::{Member, is_worth_another_try};
use crate::message::Message;
use crate::route::Route;
use crate::tries::Tries;

use auto_batch::Gathering;
use prepared::Prepared;
use together::{Answer, Arrival, Halls, Left};
use whole::{Whole, WholeTopics};

/// Before a connection that is full is tried again.
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// How a producer sends.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Its group.
    pub group: String,
    /// How often a send that failed is tried on another broker.
    pub retries: usize,
    /// For each attempt.
    pub timeout: Duration,
    /// Larger bodies are compressed; `None`: never. With [`ProducerConfig::auto_batch`] also larger batches, in BatchCQ topics.
    pub compress_over_bytes: Option<usize>,
    /// Queues of a topic that this producer's first message makes.
    pub new_topic_queues: i32,
    /// Gathers messages that are sent one by one into batches; `None`: does not.
    pub auto_batch: Option<AutoBatch>,
}

impl ProducerConfig {
    /// The defaults of RocketMQ's clients.
    pub fn new(group: &str) -> ProducerConfig {
        ProducerConfig {
            group: group.to_owned(),
            retries: 2,
            timeout: Duration::from_secs(3),
            compress_over_bytes: Some(4096),
            new_topic_queues: 4,
            auto_batch: None,
        }
    }
}

/// Sends messages. Clones share everything.
#[derive(Clone)]
pub struct Producer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) member: Arc<Member>,
    pub(crate) config: ProducerConfig,
    /// With [`ProducerConfig::auto_batch`].
    pub(crate) gathering: Option<Gathering>,
    /// Where batches stay whole.
    whole: WholeTopics,
    /// Where sends gather that travel together.
    pub(crate) halls: Halls,
    // Relaxed: which queue comes next is a matter of taste.
    turn: AtomicUsize,
}

impl Producer {
    pub(crate) fn new(member: Arc<Member>, config: ProducerConfig) -> Producer {
        member.join_producer(&config.group, config.auto_batch.is_some_and(|settings| settings.joins()));
        let turn = AtomicUsize::new(member.config.random.below(1 << 16) as usize);
        let clock = member.config.clock.clone();
        let gathering = config.auto_batch.map(|settings| Gathering::new(settings, clock, config.compress_over_bytes));
        let (whole, halls) = (WholeTopics::default(), Halls::default());
        Producer { inner: Arc::new(Inner { member, config, gathering, whole, halls, turn }) }
    }

    /// Sends to the next queue in turn; where a broker fails, to another one.
    ///
    /// A message whose answer was lost may be stored twice: it has the same `UNIQ_KEY` then.
    pub async fn send(&self, message: Message) -> Result<SendResult, ClientError> {
        if self.inner.gathering.is_some() {
            return self.hand_over(message).await?.await;
        }
        self.deliver(&self.prepared(message)?, Duration::ZERO).await
    }

    /// Sends to one queue: a broker that does not answer is not asked again.
    ///
    /// Where a static topic's queue has moved, the message follows it. Brokers that refuse it for that reason, and have stored nothing, are
    /// asked for up to [`ClientConfig::timeout`](crate::ClientConfig::timeout), and the last try may take
    /// [`ProducerConfig::timeout`] more. A queue that nobody leads by the route is looked for as long, and refused then.
    pub async fn send_to(&self, queue: &MessageQueue, message: Message) -> Result<SendResult, ClientError> {
        if self.inner.gathering.is_some() {
            return self.hand_over_to(queue, message).await?.await;
        }
        self.send_once(queue, &self.prepared(message)?).await
    }

    /// Sends the messages of one topic as one: stored together or not at all, and at once, also with [`ProducerConfig::auto_batch`].
    pub async fn send_batch(&self, messages: Vec<Message>) -> Result<SendResult, ClientError> {
        self.deliver(&Prepared::batch(messages, &self.inner.member.ids)?, Duration::ZERO).await
    }

    /// Sends to the next queue in turn, and returns when the message is on its way. Nobody says whether it arrived.
    ///
    /// With [`ProducerConfig::auto_batch`] it is on its way when it is handed over: it shares batches with messages that are answered,
    /// waits for room like them, and is sent again like them where a broker fails.
    pub async fn send_oneway(&self, message: Message) -> Result<(), ClientError> {
        if self.inner.gathering.is_some() {
            // It is sent whether or not somebody waits for it.
            drop(self.hand_over(message).await?);
            return Ok(());
        }
        let prepared = self.prepared(message)?;
        let route = self.route(&prepared.topic).await?;
        let queue = self.next_queue(&route, &HashSet::new(), &prepared.topic)?;
        let (broker, address) = master_of(&route, queue)?;
        let fields = (self.fields(queue, broker, &prepared), lo(queue));
        let member = &self.inner.member;
        member.oneway(address, prepared.code(), &fields, prepared.body.clone()).await?;
        Ok(())
    }

    /// Sends to the next queue in turn, and where a broker fails to another one. Each attempt waits for so long where a connection has no
    /// room.
    pub(crate) async fn deliver(&self, prepared: &Prepared, wait: Duration) -> Result<SendResult, ClientError> {
        let attempts = self.inner.config.retries + 1;
        let mut failed: HashSet<String> = HashSet::new();
        let mut last = None;
        for _ in 0..attempts {
            let route = self.route(&prepared.topic).await?;
            let queue = self.next_queue(&route, &failed, &prepared.topic)?;
            match with_room(wait, || self.send_once(queue, prepared)).await {
                Ok(sent) => return Ok(sent),
                Err(error) if is_worth_another_try(&error) => {
                    // The broker may have moved, or given up the topic.
                    self.inner.member.doubt_route(&prepared.topic, &error);
                    failed.extend(route.broker_of(queue).map(str::to_owned));
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match last {
            Some(last) => Err(ClientError::Exhausted { attempts, last: Box::new(last) }),
            None => Err(ClientError::Invalid("no attempt is allowed".to_owned())),
        }
    }

    /// Sends to the broker that a queue is on. One that refuses because the queue has moved has not stored anything.
    pub(crate) async fn send_once(&self, queue: &MessageQueue, prepared: &Prepared) -> Result<SendResult, ClientError> {
        let mut tries = Tries::new(&self.inner.member, queue);
        loop {
            let route = self.route(&prepared.topic).await?;
            let was_refused = prepared.whole.as_ref().is_some_and(Whole::is_refused);
            let answer = self.send_by(&route, queue, prepared, None).await;
            if !was_refused && prepared.whole.as_ref().is_some_and(Whole::is_refused) {
                // Nothing is stored, and the second time it is plain.
                continue;
            }
            if !tries.go_on(&answer).await {
                return answer;
            }
        }
    }

    /// Sends once, where the route says that the queue is. `left` is told when the request lies on the connection, behind all that was laid
    /// there before, and not if it never does.
    pub(crate) async fn send_by(
        &self,
        route: &Route,
        queue: &MessageQueue,
        prepared: &Prepared,
        left: Option<Left>,
    ) -> Result<SendResult, ClientError> {
        let (broker, address) = master_of(route, queue)?;
        let packed = match &prepared.whole {
            // A static topic's queue may be of another kind on the broker that it moves to.
            Some(whole) if broker == queue.broker_name && self.inner.whole.are_at(broker, &prepared.topic) => {
                whole.packed(prepared)
            }
            Some(_) | None => None,
        };
        let answer = self.send_as(broker, address, queue, packed.unwrap_or(prepared), left).await;
        let ids = answer.as_ref().map(|sent| sent.offset_message_id.as_str());
        self.inner.whole.learn(broker, prepared, packed.is_some(), ids);
        answer
    }

    async fn send_as(
        &self,
        broker: &str,
        address: &str,
        queue: &MessageQueue,
        prepared: &Prepared,
        left: Option<Left>,
    ) -> Result<SendResult, ClientError> {
        let alone = match lo(queue) {
            None => self.join(address, prepared, queue.queue_id, left).await,
            // What these answer is for a queue that may be led elsewhere.
            Some(_) => Arrival::NotSent(left),
        };
        let answer = match alone {
            Arrival::Answered(answer) => answer?,
            Arrival::NotSent(left) => self.send_alone(broker, address, queue, prepared, left).await?,
        };
        let Answer { code, remark, queue_id, queue_offset, offset_message_id } = answer;
        let Some(status) = SendStatus::of(code) else {
            let remark = remark.unwrap_or_default();
            return Err(ClientError::Refused { address: address.to_owned(), code, remark });
        };
        Ok(SendResult {
            status,
            message_id: prepared.message_id.clone(),
            offset_message_id,
            queue: MessageQueue { queue_id, ..queue.clone() },
            broker_name: broker.to_owned(),
            queue_offset,
        })
    }

    /// Sends in a request of its own.
    async fn send_alone(
        &self,
        broker: &str,
        address: &str,
        queue: &MessageQueue,
        prepared: &Prepared,
        left: Option<Left>,
    ) -> Result<Answer, ClientError> {
        let fields = (self.fields(queue, broker, prepared), lo(queue));
        let (member, config) = (&self.inner.member, &self.inner.config);
        let call = member.begin(address, prepared.code(), &fields, &prepared.body, config.timeout).await?;
        if let Some(left) = left {
            left();
        }
        let response = call.response().await?;
        if SendStatus::of(response.code).is_none() {
            return Err(ClientError::refused(address, response));
        }
        let response_fields = response.fields.as_fields();
        let reply = SendReply::decode(&response_fields).map_err(malformed)?;
        Ok(Answer {
            code: response.code,
            remark: None,
            queue_id: reply.queue_id,
            queue_offset: reply.queue_offset,
            offset_message_id: reply.msg_id.to_owned(),
        })
    }

    pub(crate) async fn route(&self, topic: &str) -> Result<Arc<Route>, ClientError> {
        self.inner.member.route_to_write(topic, self.inner.config.new_topic_queues).await
    }

    /// The next queue in turn, of a broker that has not failed this message yet if there is one.
    fn next_queue<'a>(
        &self,
        route: &'a Route,
        failed: &HashSet<String>,
        topic: &str,
    ) -> Result<&'a MessageQueue, ClientError> {
        choose(route, failed, self.inner.turn.fetch_add(1, Ordering::Relaxed))
            .ok_or_else(|| ClientError::NoRoute { topic: topic.to_owned() })
    }

    fn prepared(&self, message: Message) -> Result<Prepared, ClientError> {
        Prepared::message(message, &self.inner.member.ids, self.inner.config.compress_over_bytes)
    }

    fn fields<'a>(&'a self, queue: &MessageQueue, broker: &'a str, prepared: &'a Prepared) -> SendMessage<'a> {
        SendMessage {
            producer_group: &self.inner.config.group,
            topic: &prepared.topic,
            default_topic: protocol::names::AUTO_CREATE_TOPIC,
            default_topic_queue_nums: self.inner.config.new_topic_queues,
            queue_id: queue.queue_id,
            sys_flag: prepared.sys_flag,
            born_timestamp: self.inner.member.config.clock.now().0,
            flag: prepared.flag,
            properties: Some(&prepared.properties),
            reconsume_times: Some(0),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(prepared.is_batch),
            broker_name: Some(broker),
        }
    }
}

/// Makes an attempt, again and again for up to `wait` while the connection has no room: nothing was sent then, so it is still the same
/// attempt.
pub(crate) async fn with_room<F>(wait: Duration, attempt: impl Fn() -> F) -> Result<SendResult, ClientError>
where
    F: Future<Output = Result<SendResult, ClientError>>,
{
    let begun = Instant::now();
    loop {
        let sent = attempt().await;
        if !matches!(sent, Err(ClientError::Call(CallError::Busy { .. }))) || begun.elapsed() >= wait {
            return sent;
        }
        tokio::time::sleep(ROOM_PAUSE).await;
    }
}

/// The broker that a queue is on, and its master's address.
fn master_of<'a>(route: &'a Route, queue: &'a MessageQueue) -> Result<(&'a str, &'a str), ClientError> {
    let broker = broker_in(route, queue)?;
    let address = route.master(broker).ok_or_else(|| ClientError::NoAddress { broker: broker.to_owned() })?;
    Ok((broker, address))
}

fn choose<'a>(route: &'a Route, failed: &HashSet<String>, turn: usize) -> Option<&'a MessageQueue> {
    let queues = &route.writable;
    if queues.is_empty() {
        return None;
    }
    let start = turn % queues.len();
    let mut in_turn = queues[start..].iter().chain(&queues[..start]);
    let is_worth_a_try = |queue: &&MessageQueue| route.broker_of(queue).is_some_and(|broker| !failed.contains(broker));
    in_turn.find(is_worth_a_try).or_else(|| queues.get(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_come_in_turn_and_a_broker_that_failed_is_passed_over_while_there_is_another() {
        let queue = |broker: &str, queue_id| MessageQueue { broker_name: broker.into(), queue_id, topic: "t".into() };
        let route = |writable: &[MessageQueue]| {
            let mut route = Route::default();
            route.writable = writable.to_vec();
            route
        };
        let queues = route(&[queue("a", 0), queue("a", 1), queue("b", 0)]);
        let none = HashSet::new();
        let names = |failed: &HashSet<String>| -> Vec<(String, i32)> {
            (0..4)
                .map(|turn| choose(&queues, failed, turn).unwrap())
                .map(|q| (q.broker_name.clone(), q.queue_id))
                .collect()
        };
        assert_eq!(names(&none), [("a".into(), 0), ("a".into(), 1), ("b".into(), 0), ("a".into(), 0)]);
        let a: HashSet<String> = ["a".to_owned()].into();
        assert!(names(&a).iter().all(|(broker, _)| broker == "b"));
        let both: HashSet<String> = ["a".to_owned(), "b".to_owned()].into();
        assert_eq!(names(&both), names(&none));
        assert_eq!(choose(&route(&[]), &none, 3), None);
    }
}
