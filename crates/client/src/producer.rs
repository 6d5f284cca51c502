//! Sending.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::batch::{self, InnerMessage};
use protocol::body::MessageQueue;
use protocol::code::{ResponseCode, request};
use protocol::compression::{Compression, compress};
use protocol::properties::name;
use protocol::request::{SendMessage, SendReply};

use crate::broker::{broker_in, malformed, refused};
use crate::error::ClientError;
use crate::logical::{Tries, lo};
use crate::member::{Member, is_worth_another_try};
use crate::message::Message;
use crate::route::Route;

/// zlib's level in RocketMQ's clients.
const COMPRESSION_LEVEL: u32 = 5;

/// How a producer sends.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// Its group.
    pub group: String,
    /// How often a send that failed is tried on another broker.
    pub retries: usize,
    /// For each attempt.
    pub timeout: Duration,
    /// Larger bodies are compressed; `None`: never.
    pub compress_over_bytes: Option<usize>,
    /// Queues of a topic that this producer's first message makes.
    pub new_topic_queues: i32,
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
        }
    }
}

/// What the broker did with a message. In each case it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// All that was asked for.
    Ok,
    /// Not flushed in time.
    FlushDiskTimeout,
    /// Not replicated in time.
    FlushSlaveTimeout,
    /// There is no replica.
    SlaveNotAvailable,
}

/// Where a message is.
#[derive(Clone, Debug)]
pub struct SendResult {
    /// How safe it is.
    pub status: SendStatus,
    /// The id that this client gave it; of a batch, all of them, separated by commas.
    pub message_id: String,
    /// Its place as an id; of a batch, all of them, separated by commas.
    pub offset_message_id: String,
    /// The queue.
    pub queue: MessageQueue,
    /// The broker that stored it: the queue's own, or the one that leads it if it is a static topic's.
    pub broker_name: String,
    /// Its place in the queue; of a batch, the first one's. -1 while a static topic's queue moves.
    pub queue_offset: i64,
}

/// Sends messages. Clones share everything.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<Inner>,
}

struct Inner {
    member: Arc<Member>,
    config: ProducerConfig,
    // Relaxed: which queue comes next is a matter of taste.
    turn: AtomicUsize,
}

/// A message or a batch, ready for the wire.
struct Prepared {
    topic: String,
    body: Bytes,
    properties: String,
    flag: i32,
    sys_flag: i32,
    is_batch: bool,
    message_id: String,
}

impl Producer {
    pub(crate) fn new(member: Arc<Member>, config: ProducerConfig) -> Producer {
        member.join_producer(&config.group);
        let turn = AtomicUsize::new(member.config.random.below(1 << 16) as usize);
        Producer { inner: Arc::new(Inner { member, config, turn }) }
    }

    /// Sends to the next queue in turn; where a broker fails, to another one.
    ///
    /// A message whose answer was lost may be stored twice: it has the same `UNIQ_KEY` then.
    pub async fn send(&self, message: Message) -> Result<SendResult, ClientError> {
        self.deliver(&self.prepare(message)?).await
    }

    /// Sends to one queue, once. Where a static topic's queue has moved, the message follows it.
    pub async fn send_to(&self, queue: &MessageQueue, message: Message) -> Result<SendResult, ClientError> {
        self.send_once(queue, &self.prepare(message)?).await
    }

    /// Sends the messages of one topic as one: stored together or not at all.
    pub async fn send_batch(&self, messages: Vec<Message>) -> Result<SendResult, ClientError> {
        self.deliver(&self.prepare_batch(messages)?).await
    }

    /// Sends to the next queue in turn, and returns when the message is on its way. Nobody says whether it arrived.
    pub async fn send_oneway(&self, message: Message) -> Result<(), ClientError> {
        let prepared = self.prepare(message)?;
        let route = self.route(&prepared.topic).await?;
        let queue = self.next_queue(&route, &HashSet::new(), &prepared.topic)?;
        let (broker, address) = master_of(&route, queue)?;
        let fields = (self.fields(queue, broker, &prepared), lo(queue));
        let member = &self.inner.member;
        member.oneway(address, code_of(&prepared), &fields, prepared.body.clone()).await?;
        Ok(())
    }

    async fn deliver(&self, prepared: &Prepared) -> Result<SendResult, ClientError> {
        let attempts = self.inner.config.retries + 1;
        let mut failed: HashSet<String> = HashSet::new();
        let mut last = None;
        for _ in 0..attempts {
            let route = self.route(&prepared.topic).await?;
            let queue = self.next_queue(&route, &failed, &prepared.topic)?;
            match self.send_once(queue, prepared).await {
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
    async fn send_once(&self, queue: &MessageQueue, prepared: &Prepared) -> Result<SendResult, ClientError> {
        let mut tries = Tries::new(&self.inner.member, queue);
        loop {
            let route = self.route(&prepared.topic).await?;
            let answer = self.send_by(&route, queue, prepared).await;
            if !tries.go_on(&answer).await {
                return answer;
            }
        }
    }

    async fn send_by(
        &self,
        route: &Route,
        queue: &MessageQueue,
        prepared: &Prepared,
    ) -> Result<SendResult, ClientError> {
        let (broker, address) = master_of(route, queue)?;
        let fields = (self.fields(queue, broker, prepared), lo(queue));
        let (member, config) = (&self.inner.member, &self.inner.config);
        let response =
            member.exchange(address, code_of(prepared), &fields, prepared.body.clone(), config.timeout).await?;
        let status = match ResponseCode::from_i32(response.code) {
            Some(ResponseCode::Success) => SendStatus::Ok,
            Some(ResponseCode::FlushDiskTimeout) => SendStatus::FlushDiskTimeout,
            Some(ResponseCode::FlushSlaveTimeout) => SendStatus::FlushSlaveTimeout,
            Some(ResponseCode::SlaveNotAvailable) => SendStatus::SlaveNotAvailable,
            _ => return Err(refused(address, response)),
        };
        let response_fields = response.fields.as_fields();
        let reply = SendReply::decode(&response_fields).map_err(malformed)?;
        Ok(SendResult {
            status,
            message_id: prepared.message_id.clone(),
            offset_message_id: reply.msg_id.to_owned(),
            queue: MessageQueue { queue_id: reply.queue_id, ..queue.clone() },
            broker_name: broker.to_owned(),
            queue_offset: reply.queue_offset,
        })
    }

    async fn route(&self, topic: &str) -> Result<Arc<Route>, ClientError> {
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

    fn prepare(&self, message: Message) -> Result<Prepared, ClientError> {
        check_topic(&message.topic)?;
        let message_id = message.id_or(|| self.inner.member.ids.next());
        let properties = message.property_string(&message_id)?;
        let Message { topic, body, flag, .. } = message;
        let (body, sys_flag) = match self.inner.config.compress_over_bytes {
            Some(limit) if body.len() > limit => {
                let packed = compress(Compression::Zlib, &body, COMPRESSION_LEVEL)
                    .map_err(|error| ClientError::Invalid(error.to_string()))?;
                (packed.into(), Compression::Zlib.bits())
            }
            Some(_) | None => (body, 0),
        };
        Ok(Prepared { topic, body, properties, flag, sys_flag, is_batch: false, message_id })
    }

    fn prepare_batch(&self, messages: Vec<Message>) -> Result<Prepared, ClientError> {
        let (topic, waits) = check_batch(&messages)?;
        let mut body = Vec::new();
        let mut message_id = String::new();
        for message in &messages {
            let id = message.id_or(|| self.inner.member.ids.next());
            let properties = message.property_string(&id)?;
            batch::encode(
                &mut body,
                &InnerMessage { flag: message.flag, body: &message.body, properties: &properties },
            )
            .map_err(|error| ClientError::Invalid(error.to_string()))?;
            if !message_id.is_empty() {
                message_id.push(',');
            }
            message_id.push_str(&id);
        }
        // The batch as a whole has an id too, as with Java's client, and says whether its reply waits for the disk.
        let whole = Message::new(topic.as_str(), "").property(name::WAIT, waits.to_string());
        let properties = whole.property_string(&self.inner.member.ids.next())?;
        Ok(Prepared { topic, body: body.into(), properties, flag: 0, sys_flag: 0, is_batch: true, message_id })
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

fn check_topic(topic: &str) -> Result<(), ClientError> {
    protocol::names::check_topic(topic).map_err(|error| ClientError::Invalid(error.to_string()))
}

/// The topic of a batch, and whether its messages ask to wait for the disk. Refuses what the broker does for single messages only:
/// it looks at the properties of the batch, so those of a message inside would be lost without a word.
fn check_batch(messages: &[Message]) -> Result<(String, bool), ClientError> {
    let invalid = |text: &str| Err(ClientError::Invalid(text.to_owned()));
    // As Java's client: what it sends without the property waits.
    let waits = |message: &Message| message.get(name::WAIT).is_none_or(|value| value.eq_ignore_ascii_case("true"));
    let Some(first) = messages.first() else { return invalid("a batch of no messages") };
    check_topic(&first.topic)?;
    for message in messages {
        if message.topic != first.topic {
            return invalid("a batch has one topic");
        }
        if waits(message) != waits(first) {
            return invalid("the messages of a batch wait for the disk, or none of them does");
        }
        let delays = [name::DELAY, name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS, name::TIMER_DELIVER_MS];
        if delays.iter().any(|delay| message.get(delay).is_some()) {
            return invalid("a message of a batch cannot be delayed");
        }
    }
    Ok((first.topic.clone(), waits(first)))
}

fn code_of(prepared: &Prepared) -> i32 {
    if prepared.is_batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 }
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

    #[test]
    fn a_batch_waits_for_the_disk_if_its_messages_do_and_is_refused_where_they_differ_or_are_delayed() {
        let message = || Message::new("t", "body");
        let hurried = || message().property(name::WAIT, "false");
        assert_eq!(check_batch(&[message(), message()]).unwrap(), ("t".to_owned(), true));
        assert_eq!(check_batch(&[hurried(), hurried()]).unwrap(), ("t".to_owned(), false));
        let refused = [
            vec![],
            vec![message(), hurried()],
            vec![message(), Message::new("other", "body")],
            vec![message().delay_level(1)],
            vec![message().property(name::TIMER_DELAY_SEC, "1")],
            vec![message().property(name::TIMER_DELAY_MS, "1")],
            vec![message().property(name::TIMER_DELIVER_MS, "1")],
        ];
        for batch in refused {
            assert!(matches!(check_batch(&batch), Err(ClientError::Invalid(_))), "{batch:?}");
        }
    }
}
