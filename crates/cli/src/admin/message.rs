//! Finding messages: by id, by key, by place.

use anyhow::{Result, bail};
use clap::Args;
use client::Received;
use operator::message::{FOUND_MAX, KeyQuery};
use protocol::body::MessageQueue;

use super::message_view::{Charset, ids, show};
use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::truth;

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
            let message = session.operator.message(topic, self.cluster.as_deref(), id).await?;
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

/// Lets a consumer have a message now.
async fn push(session: &Session, message: &Received, group: &str, client_id: &str) -> Result<()> {
    let reply = session.operator.consume_directly(message, group, client_id).await?;
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
    let sent = session.operator.send_again(message).await?;
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
        let query = KeyQuery {
            key_type: self.key_type.as_deref(),
            begin: self.begin_timestamp,
            end: self.end_timestamp,
            max: self.max_num,
            last_key: self.last_key.as_deref(),
            parent: self.cluster.as_deref(),
            ..KeyQuery::of(self.topic.trim(), self.msg_key.trim())
        };
        let found = session.operator.messages_by_key(&query).await?;
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
        let (begin, end, parent) = (self.start_time, self.end_time, self.cluster.as_deref());
        let query = KeyQuery { begin, end, parent, ..KeyQuery::of(topic, id) };
        let found = session.operator.messages_by_unique_key(&query).await?;
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
        let route_topic = self.route_topic.as_deref().map_or(queue.topic.as_str(), str::trim);
        let message = session.operator.message_at(&queue, self.offset, route_topic).await?;
        show(session, &message, self.body_format).await
    }
}
