//! Finding messages by id, by key and by place, reading queues, and what became of a message in each group.

use client::{Message, PullStatus, Received, Route, SendResult};
use env::sentence;
use protocol::body::{ConsumeMessageDirectlyReply, ConsumeType, MessageModel, MessageQueue, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::message_id::parse_offset_message_id;
use protocol::names::is_logical_broker;
use protocol::properties::{self, name};
use protocol::request::{ConsumeMessageDirectly, GetMaxOffset, GetMinOffset, OffsetReply, QueryMessage, SearchOffset};

use crate::cluster::readable;
use crate::consumer::is_push;
use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;
use crate::static_topic::ByPhysicalQueue;

/// The group that tools read as; brokers make it at their start.
pub const TOOLS_GROUP: &str = "TOOLS_CONSUMER";
/// As mqadmin: messages that one query brings.
pub const FOUND_MAX: i32 = 64;
/// As mqadmin: messages that share a unique id.
const SAME_ID_MAX: i32 = 32;
/// Messages in one answer.
const PULL_MAX: i32 = 32;

/// What brokers and producers write themselves, and write again when a message is sent again.
const NOT_SENT_AGAIN: [&str; 7] =
    [name::UNIQ_KEY, name::WAIT, name::CLUSTER, name::MSG_REGION, name::TRACE_ON, name::MIN_OFFSET, name::MAX_OFFSET];

/// A look-up by key.
#[derive(Clone, Copy, Debug)]
pub struct KeyQuery<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The key.
    pub key: &'a str,
    /// `K` a key, `T` a tag.
    pub key_type: Option<&'a str>,
    /// Stored at this time or later, in milliseconds.
    pub begin: i64,
    /// Stored at this time or before, in milliseconds.
    pub end: i64,
    /// Messages at most, from each broker.
    pub max: i32,
    /// Goes on behind this entry of the index, as a query before it told.
    pub last_key: Option<&'a str>,
    /// As in [`Operator::route_by`].
    pub parent: Option<&'a str>,
}

impl<'a> KeyQuery<'a> {
    /// Of any time.
    pub fn of(topic: &'a str, key: &'a str) -> KeyQuery<'a> {
        KeyQuery { topic, key, key_type: None, begin: 0, end: i64::MAX, max: FOUND_MAX, last_key: None, parent: None }
    }
}

/// Where in a queue to read.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// From this time on.
    pub begin: Option<i64>,
    /// Up to the first message of this time.
    pub end: Option<i64>,
}

/// What became of a message in a group.
#[derive(Debug)]
pub enum Track {
    /// Consumed.
    Consumed,
    /// Passed over: the group wants other tags.
    Filtered,
    /// The group has not come so far.
    NotYet,
    /// The group pulls, and its offsets are its own business.
    Pull,
    /// Each member consumes for itself.
    Broadcasting,
    /// No consumer is online.
    NotOnline,
    /// Nobody could tell.
    Unknown(OperatorError),
}

/// What became of a message.
#[derive(Debug, Default)]
pub struct Tracks {
    /// In each group of its topic.
    pub groups: Vec<(String, Track)>,
    /// Groups whose progress was told by physical queue.
    pub by_physical_queue: Vec<ByPhysicalQueue>,
}

impl Operator {
    /// A message by its place in a log, or else by the id that its producer gave it.
    pub async fn message(&self, topic: &str, parent: Option<&str>, id: &str) -> Result<Received> {
        let mut said = String::new();
        if let Ok((host, at)) = parse_offset_message_id(id)
            && let Ok(at) = i64::try_from(at)
        {
            match self.admin.message_at(&host.to_string(), topic, at).await {
                Ok(message) => return Ok(message),
                // It may be an id of another kind that looks like a place.
                Err(error) => said = format!(", and not at {host}: {error}"),
            }
        }
        let found = self.messages_by_unique_key(&KeyQuery { parent, ..KeyQuery::of(topic, id) }).await?;
        let unknown = || OperatorError::NotFound(format!("no broker of topic {topic} has message {id}{said}"));
        found.into_iter().next().ok_or_else(unknown)
    }

    /// The messages that have an id which a producer gave.
    pub async fn messages_by_unique_key(&self, query: &KeyQuery<'_>) -> Result<Vec<Received>> {
        let mut found = self.query_all(&KeyQuery { max: SAME_ID_MAX, ..*query }, true).await?;
        // The index knows hashes: another message may have the same one.
        found.retain(|message| message.message_id == query.key);
        Ok(found)
    }

    /// The messages that have a key.
    pub async fn messages_by_key(&self, query: &KeyQuery<'_>) -> Result<Vec<Received>> {
        let mut found = self.query_all(query, false).await?;
        found.retain(|message| has_key(message, query.key, query.key_type));
        Ok(found)
    }

    /// Asks all brokers of the topic for messages whose key, or unique id, has the same hash.
    pub(crate) async fn query_all(&self, query: &KeyQuery<'_>, is_unique: bool) -> Result<Vec<Received>> {
        let fields = QueryMessage {
            topic: query.topic,
            key: query.key,
            max_num: query.max,
            begin_timestamp: query.begin,
            end_timestamp: query.end,
            unique_key_query: is_unique.then_some(true),
            index_type: query.key_type,
            last_key: query.last_key,
        };
        let route = self.route_by(query.topic, query.parent).await?;
        let mut all = Vec::new();
        for (name, address) in readable(&route) {
            match self.admin.messages_by_key(&address, &name, &fields).await {
                Ok(found) => all.extend(found),
                Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => {}
                Err(error) => return Err(error.into()),
            }
        }
        all.sort_by_key(|message| message.store_timestamp);
        Ok(all)
    }

    /// The message at a place of a queue; its broker is found by the route of `route_topic`.
    pub async fn message_at(&self, queue: &MessageQueue, offset: i64, route_topic: &str) -> Result<Received> {
        let route = self.route(route_topic).await?;
        let address = address_of(&route, queue)?;
        let pulled = self.admin.pull(&address, TOOLS_GROUP, queue, offset, 1, "*").await?;
        let message = pulled.messages.into_iter().find(|message| message.queue_offset == offset);
        message.ok_or_else(|| {
            let (min, max) = (pulled.min_offset, pulled.max_offset);
            OperatorError::NotFound(format!(
                "no message is at offset {offset}: the queue reaches from {min} to before {max}"
            ))
        })
    }

    /// Lets a consumer have a message now.
    pub async fn consume_directly(
        &self,
        message: &Received,
        group: &str,
        client_id: &str,
    ) -> Result<ConsumeMessageDirectlyReply> {
        let takes_messages = is_push(&self.running_info(group, client_id, false).await?);
        ensure!(takes_messages, Unfit, "{client_id} is not a push consumer: it cannot be given a message");
        let fields = ConsumeMessageDirectly {
            consumer_group: group,
            client_id: Some(client_id),
            msg_id: Some(&message.offset_message_id),
            broker_name: None,
            topic: Some(&message.topic),
            topic_sys_flag: None,
            group_sys_flag: None,
        };
        let address = message.store_host.to_string();
        Ok(self.admin.ask(&address, request::CONSUME_MESSAGE_DIRECTLY, &fields).await?)
    }

    /// Sends a message again, as a new one.
    pub async fn send_again(&self, message: &Received) -> Result<SendResult> {
        let pairs = properties::iter(&message.properties).filter(|(name, _)| !NOT_SENT_AGAIN.contains(name));
        let start = Message::new(message.topic.as_str(), message.body.clone());
        let mut again = pairs.fold(start, |again, (name, value)| again.property(name, value));
        again.flag = message.flag;
        Ok(self.client.producer("ReSendMsgById").send(again).await?)
    }

    /// The offsets of a span in a queue: from the first one to before the second one.
    pub async fn offsets_in(&self, span: Span, address: &str, queue: &MessageQueue) -> Result<(i64, i64)> {
        let (topic, queue_id) = (queue.topic.as_str(), queue.queue_id);
        let (min, max) = (GetMinOffset { topic, queue_id }, GetMaxOffset { topic, queue_id, committed: true });
        let min = offset(&self.admin.tell(address, request::GET_MIN_OFFSET, &min).await?)?;
        let max = offset(&self.admin.tell(address, request::GET_MAX_OFFSET, &max).await?)?;
        let by_time = async |timestamp: Option<i64>, otherwise: i64| -> Result<i64> {
            let Some(timestamp) = timestamp else { return Ok(otherwise) };
            let fields = SearchOffset { topic, queue_id, timestamp, boundary_type: None, lite_topic: None };
            offset(&self.admin.tell(address, request::SEARCH_OFFSET_BY_TIMESTAMP, &fields).await?)
        };
        Ok((by_time(span.begin, min).await?, by_time(span.end, max).await?))
    }

    /// Reads a queue and hands out each message that matches the tag expression, as long as `see` says to go on. It is asked before
    /// each pull as well, without a message.
    pub async fn read<E: From<OperatorError>>(
        &self,
        address: &str,
        group: &str,
        queue: &MessageQueue,
        (begin, end): (i64, i64),
        expression: &str,
        mut see: impl FnMut(Option<&Received>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut at = begin;
        // Every round comes further: the broker names the offset to go on from, and a broker that names an old one ends it.
        while at < end && see(None)? {
            let max = i32::try_from(end - at).unwrap_or(PULL_MAX).clamp(1, PULL_MAX);
            let pulled = self.admin.pull(address, group, queue, at, max, expression).await;
            let pulled = pulled.map_err(OperatorError::from)?;
            match pulled.status {
                PullStatus::Found | PullStatus::NothingMatched => {}
                PullStatus::OffsetOutOfRange if pulled.next_offset > at => {}
                PullStatus::OffsetOutOfRange | PullStatus::NothingNew => return Ok(()),
            }
            for message in pulled.messages.iter().filter(|message| message.queue_offset < end) {
                if !see(Some(message))? {
                    return Ok(());
                }
            }
            if pulled.next_offset <= at {
                return Ok(());
            }
            at = pulled.next_offset;
        }
        Ok(())
    }

    /// What became of a message in each group of its topic.
    pub async fn tracks(&self, message: &Received) -> Result<Tracks> {
        let route = self.route(&message.topic).await?;
        let mut tracks = Tracks::default();
        for group in self.groups_of(&message.topic, &route).await? {
            let track = match self.track(message, &group, &mut tracks.by_physical_queue).await {
                Ok(track) => track,
                Err(error) if error.is_offline() => Track::NotOnline,
                Err(error) if error.says(ResponseCode::BroadcastConsumption) => Track::Broadcasting,
                Err(error) => Track::Unknown(error),
            };
            tracks.groups.push((group, track));
        }
        Ok(tracks)
    }

    async fn track(&self, message: &Received, group: &str, physical: &mut Vec<ByPhysicalQueue>) -> Result<Track> {
        let members = self.consumers(group, None).await?;
        if members.consume_type == ConsumeType::ConsumeActively {
            return Ok(Track::Pull);
        }
        if members.message_model == MessageModel::Broadcasting {
            return Ok(Track::Broadcasting);
        }
        // Past this, what a broker refuses is no word on the group.
        let progress = self.progress(group, Some(&message.topic), None).await.map_err(unknown)?;
        physical.extend(progress.by_physical_queue);
        let broker_name = self.broker_of(message).await.map_err(unknown)?;
        let queue = MessageQueue { topic: message.topic.clone(), broker_name, queue_id: message.queue_id };
        let (queue, at) = self.place_of(queue, message.queue_offset).await.map_err(unknown)?;
        if progress.stats.offset_table.get(&queue).is_none_or(|offset| offset.consumer_offset <= at) {
            return Ok(Track::NotYet);
        }
        let subscription = members.subscription_table.get(&message.topic);
        let is_wanted = subscription.is_none_or(|one| {
            let tags = &one.tags_set;
            tags.is_empty() || tags.iter().any(|tag| tag == "*" || message.tag() == Some(tag))
        });
        Ok(if is_wanted { Track::Consumed } else { Track::Filtered })
    }

    /// The broker that keeps a message. One that was asked for by its place does not say so itself.
    async fn broker_of(&self, message: &Received) -> Result<String> {
        if !message.broker_name.is_empty() {
            return Ok(message.broker_name.to_string());
        }
        self.broker_name(&message.store_host.to_string()).await
    }
}

/// Without its code, which would be taken for a word on the group.
fn unknown(error: OperatorError) -> OperatorError {
    OperatorError::Unfit(sentence(&error))
}

fn offset(response: &client::admin::Response) -> Result<i64> {
    Ok(OffsetReply::decode(&response.fields.as_fields())?.offset)
}

/// The index knows hashes: another message may have the same one.
fn has_key(message: &Received, key: &str, kind: Option<&str>) -> bool {
    if kind == Some("T") {
        return message.tag() == Some(key);
    }
    message.property(name::KEYS).is_some_and(|keys| keys.split(' ').any(|known| known == key))
}

/// The queues of a topic that can be read.
pub fn queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    Route::new(topic, route.clone()).readable
}

/// Where a queue can be read: at the broker in its name, or at the one that leads it if it is a static topic's.
pub fn address_of(route: &TopicRoute, queue: &MessageQueue) -> Result<String> {
    let leaders = is_logical_broker(&queue.broker_name).then(|| Route::new(&queue.topic, route.clone()));
    let (id, topic) = (queue.queue_id, &queue.topic);
    let broker = match &leaders {
        Some(known) => known
            .broker_of(queue)
            .ok_or_else(|| OperatorError::Unfit(format!("no broker leads queue {id} of static topic {topic}")))?,
        None => &queue.broker_name,
    };
    let found = readable(route).find(|(name, _)| name == broker).map(|(_, address)| address);
    found.ok_or_else(|| OperatorError::NotFound(format!("broker {broker} does not hold topic {topic}")))
}
