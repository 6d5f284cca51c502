//! Finding messages: by id, by key, by place.

use anyhow::{Context, Result, bail};
use clap::Args;
use client::{Message, Received, Route};
use protocol::body::{ConsumeMessageDirectlyReply, MessageQueue, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::message_id::parse_offset_message_id;
use protocol::names::is_logical_broker;
use protocol::properties::{self, name};
use protocol::request::{ConsumeMessageDirectly, QueryMessage};

use super::consumer::is_push;
use super::message_view::{Charset, ids, show};
use super::output::{Cell, Facts, Table};
use super::print::TOOLS_GROUP;
use super::progress::running_info;
use super::session::{Session, readable};
use super::truth;

/// As mqadmin: messages that one query brings.
const FOUND_MAX: i32 = 64;
/// As mqadmin: messages that share a unique id.
const SAME_ID_MAX: i32 = 32;

/// What brokers and producers write themselves, and write again when a message is sent again.
const NOT_SENT_AGAIN: [&str; 7] =
    [name::UNIQ_KEY, name::WAIT, name::CLUSTER, name::MSG_REGION, name::TRACE_ON, name::MIN_OFFSET, name::MAX_OFFSET];

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct QueryMsgById {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Ids, separated by commas: places in the log, or what producers gave
    #[arg(short = 'i', long)]
    msg_id: String,
    /// With -d: let this group's member consume the messages now
    #[arg(short = 'g', long, requires = "client_id")]
    consumer_group: Option<String>,
    /// The member
    #[arg(short = 'd', long, requires = "consumer_group")]
    client_id: Option<String>,
    /// Whether to send the messages again: true or false
    #[arg(short = 's', long, value_parser = truth)]
    send_message: Option<bool>,
    /// Accepted as by mqadmin; units have no meaning here
    #[arg(short, long)]
    unit_name: Option<String>,
    /// How to read the body: UTF-8, US-ASCII or ISO-8859-1
    #[arg(short = 'f', long, value_parser = Charset::named)]
    body_format: Option<Charset>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl QueryMsgById {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        for id in ids(&self.msg_id)? {
            let message = by_id(session, topic, self.cluster.as_deref(), id).await?;
            if let (Some(group), Some(client)) = (&self.consumer_group, &self.client_id) {
                push(session, &message, group.trim(), client.trim()).await?;
            } else if self.send_message == Some(true) {
                send_again(session, &message).await?;
            } else {
                show(session, &message, self.body_format).await?;
            }
        }
        Ok(())
    }
}

/// A message by its place in a log, or else by the id that its producer gave it.
async fn by_id(session: &Session, topic: &str, parent: Option<&str>, id: &str) -> Result<Received> {
    let mut said = String::new();
    if let Ok((host, at)) = parse_offset_message_id(id)
        && let Ok(at) = i64::try_from(at)
    {
        match session.admin.message_at(&host.to_string(), topic, at).await {
            Ok(message) => return Ok(message),
            // It may be an id of another kind that looks like a place.
            Err(error) => said = format!(", and not at {host}: {error}"),
        }
    }
    let found = by_unique_key(session, topic, parent, id, 0, i64::MAX).await?;
    found.into_iter().next().with_context(|| format!("no broker of topic {topic} has message {id}{said}"))
}

async fn by_unique_key(
    session: &Session,
    topic: &str,
    parent: Option<&str>,
    id: &str,
    begin: i64,
    end: i64,
) -> Result<Vec<Received>> {
    let query = QueryMessage {
        topic,
        key: id,
        max_num: SAME_ID_MAX,
        begin_timestamp: begin,
        end_timestamp: end,
        unique_key_query: Some(true),
        index_type: None,
        last_key: None,
    };
    let mut found = query_all(session, &query, parent).await?;
    // The index knows hashes: another message may have the same one.
    found.retain(|message| message.message_id == id);
    Ok(found)
}

/// Asks all brokers of the topic.
pub async fn query_all(session: &Session, query: &QueryMessage<'_>, parent: Option<&str>) -> Result<Vec<Received>> {
    let route = session.route_by(query.topic, parent).await?;
    let mut all = Vec::new();
    for (name, address) in readable(&route) {
        match session.admin.messages_by_key(&address, &name, query).await {
            Ok(found) => all.extend(found),
            Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => {}
            Err(error) => return Err(error.into()),
        }
    }
    all.sort_by_key(|message| message.store_timestamp);
    Ok(all)
}

/// Lets a consumer have a message now.
async fn push(session: &Session, message: &Received, group: &str, client_id: &str) -> Result<()> {
    if !is_push(&running_info(session, group, client_id, false).await?) {
        bail!("{client_id} is not a push consumer: it cannot be given a message");
    }
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
    let reply: ConsumeMessageDirectlyReply =
        session.admin.ask(&address, request::CONSUME_MESSAGE_DIRECTLY, &fields).await?;
    let facts = Facts::new()
        .with("MessageID", &message.message_id)
        .with("Consume Result", reply.consume_result)
        .with("Order", reply.order)
        .with("Auto Commit", reply.auto_commit)
        .with("Spent Time Mills", reply.spent_time_mills)
        .with("Remark", reply.remark);
    session.out.facts(&facts)?;
    Ok(())
}

async fn send_again(session: &Session, message: &Received) -> Result<()> {
    let pairs = properties::iter(&message.properties).filter(|(name, _)| !NOT_SENT_AGAIN.contains(name));
    let start = Message::new(message.topic.as_str(), message.body.clone());
    let mut again = pairs.fold(start, |again, (name, value)| again.property(name, value));
    again.flag = message.flag;
    let sent = session.client.producer("ReSendMsgById").send(again).await?;
    let facts = Facts::new()
        .with("Original MessageID", &message.message_id)
        .with("MessageID", sent.message_id)
        .with("Broker Name", sent.broker_name)
        .with("Queue ID", sent.queue.queue_id)
        .with("Queue Offset", sent.queue_offset);
    session.out.facts(&facts)?;
    Ok(())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct QueryMsgByKey {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The key
    #[arg(short = 'k', long)]
    msg_key: String,
    /// Stored at this time or later, in milliseconds
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    begin_timestamp: i64,
    /// Stored at this time or before, in milliseconds
    #[arg(short, long, default_value_t = i64::MAX, value_parser = clap::value_parser!(i64).range(0..))]
    end_timestamp: i64,
    /// Messages at most, from each broker
    #[arg(short, long, default_value_t = FOUND_MAX, value_parser = clap::value_parser!(i32).range(1..))]
    max_num: i32,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
    /// What the key is: K a key, T a tag
    #[arg(short = 'p', long)]
    key_type: Option<String>,
    /// Go on behind this entry of the index, as a query before it told
    #[arg(short, long)]
    last_key: Option<String>,
}

impl QueryMsgByKey {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let query = QueryMessage {
            topic: self.topic.trim(),
            key: self.msg_key.trim(),
            max_num: self.max_num,
            begin_timestamp: self.begin_timestamp,
            end_timestamp: self.end_timestamp,
            unique_key_query: None,
            index_type: self.key_type.as_deref(),
            last_key: self.last_key.as_deref(),
        };
        let mut found = query_all(session, &query, self.cluster.as_deref()).await?;
        found.retain(|message| has_key(message, query.key, query.index_type));
        let mut table = Table::new(["Message ID", "QID", "Offset", "Broker Name", "Stored"]);
        for message in &found {
            table.row([
                (&message.message_id).into(),
                message.queue_id.into(),
                message.queue_offset.into(),
                (&*message.broker_name).into(),
                Cell::time(message.store_timestamp),
            ]);
        }
        session.out.table("messages", &table)?;
        Ok(())
    }
}

/// The index knows hashes: another message may have the same one.
fn has_key(message: &Received, key: &str, kind: Option<&str>) -> bool {
    if kind == Some("T") {
        return message.tag() == Some(key);
    }
    message.property(name::KEYS).is_some_and(|keys| keys.split(' ').any(|known| known == key))
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct QueryMsgByUniqueKey {
    /// The id that the producer gave
    #[arg(short = 'i', long)]
    msg_id: String,
    /// With -d: let this group's member consume the message now
    #[arg(short = 'g', long, requires = "client_id")]
    consumer_group: Option<String>,
    /// The member
    #[arg(short = 'd', long, requires = "consumer_group")]
    client_id: Option<String>,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// All messages with this id, not only the first
    #[arg(short = 'a', long)]
    show_all: bool,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
    /// Stored at this time or later, in milliseconds
    #[arg(short = 's', long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    start_time: i64,
    /// Stored at this time or before, in milliseconds
    #[arg(short, long, default_value_t = i64::MAX, value_parser = clap::value_parser!(i64).range(0..))]
    end_time: i64,
}

impl QueryMsgByUniqueKey {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (id, topic) = (self.msg_id.trim(), self.topic.trim());
        let parent = self.cluster.as_deref();
        let found = by_unique_key(session, topic, parent, id, self.start_time, self.end_time).await?;
        if found.is_empty() {
            bail!("no broker of topic {topic} has message {id}");
        }
        if let (Some(group), Some(client)) = (&self.consumer_group, &self.client_id) {
            return push(session, &found[0], group.trim(), client.trim()).await;
        }
        let shown = if self.show_all { found.len() } else { 1 };
        for message in &found[..shown] {
            show(session, message, None).await?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct QueryMsgByOffset {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The broker's name
    #[arg(short, long)]
    broker_name: String,
    /// The queue
    #[arg(short = 'i', long, value_parser = clap::value_parser!(i32).range(0..))]
    queue_id: i32,
    /// The place in the queue
    #[arg(short, long, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
    /// How to read the body: UTF-8, US-ASCII or ISO-8859-1
    #[arg(short = 'f', long, value_parser = Charset::named)]
    body_format: Option<Charset>,
    /// Find the broker by the route of this topic
    #[arg(short, long)]
    route_topic: Option<String>,
}

impl QueryMsgByOffset {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let queue = MessageQueue {
            topic: self.topic.trim().to_owned(),
            broker_name: self.broker_name.trim().to_owned(),
            queue_id: self.queue_id,
        };
        let route = session.route(self.route_topic.as_deref().map_or(&queue.topic, str::trim)).await?;
        let address = address_of(&route, &queue)?;
        let pulled = session.admin.pull(&address, TOOLS_GROUP, &queue, self.offset, 1, "*").await?;
        let message = pulled.messages.into_iter().find(|message| message.queue_offset == self.offset);
        let message = message.with_context(|| {
            let (min, max) = (pulled.min_offset, pulled.max_offset);
            format!("no message is at offset {}: the queue reaches from {min} to before {max}", self.offset)
        })?;
        show(session, &message, self.body_format).await
    }
}

/// Where a queue can be read: at the broker in its name, or at the one that leads it if it is a static topic's.
pub fn address_of(route: &TopicRoute, queue: &MessageQueue) -> Result<String> {
    let leaders = is_logical_broker(&queue.broker_name).then(|| Route::new(&queue.topic, route.clone()));
    let broker = match &leaders {
        Some(known) => known
            .broker_of(queue)
            .with_context(|| format!("no broker leads queue {} of static topic {}", queue.queue_id, queue.topic))?,
        None => &queue.broker_name,
    };
    let found = readable(route).find(|(name, _)| name == broker).map(|(_, address)| address);
    found.with_context(|| format!("broker {broker} does not hold topic {}", queue.topic))
}
