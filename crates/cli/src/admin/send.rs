//! Sending a message.

use anyhow::{Context, Result};
use clap::Args;
use client::{Message, SendResult, SendStatus};
use protocol::body::MessageQueue;
use protocol::names::TRACE_TOPIC;

use super::output::Table;
use super::session::Session;
use super::trace::published;
use super::truth;

/// The group that a message is sent as.
const GROUP: &str = "TOOLS_PRODUCER";

#[derive(Debug, Args)]
pub struct SendMessage {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// The body
    #[arg(short = 'p', long, allow_hyphen_values = true)]
    body: String,
    /// Keys, separated by blanks
    #[arg(short, long)]
    key: Option<String>,
    /// The tag
    #[arg(short = 'c', long)]
    tags: Option<String>,
    /// To this broker, by name
    #[arg(short, long)]
    broker: Option<String>,
    /// To this queue of the broker
    #[arg(short = 'i', long, requires = "broker", value_parser = clap::value_parser!(i32).range(0..))]
    qid: Option<i32>,
    /// Whether to write a trace of the message: true or false (default)
    #[arg(short = 'm', long = "msgTraceEnable", value_parser = truth)]
    msg_trace_enable: Option<bool>,
}

impl SendMessage {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.need_names()?;
        let topic = self.topic.trim();
        let mut message = Message::new(topic, self.body.clone());
        if let Some(key) = &self.key {
            message = message.key(key.trim());
        }
        if let Some(tag) = &self.tags {
            message = message.tag(tag.trim());
        }
        let producer = session.client.producer(GROUP);
        let (began, started) = (session.now(), session.clock.elapsed());
        let sent = match &self.broker {
            None => producer.send(message.clone()).await?,
            Some(broker) => producer.send_to(&self.queue(session, broker.trim()).await?, message.clone()).await?,
        };
        let cost = session.clock.elapsed().saturating_sub(started);

        if self.msg_trace_enable == Some(true) {
            let host = session.client.id().split('@').next().unwrap_or_default();
            let body = published(GROUP, &message, &sent, began, cost, host);
            let trace = Message::new(TRACE_TOPIC, body).key(trace_keys(&sent, self.key.as_deref()));
            producer.send(trace).await.context("the message is sent, but its trace is not")?;
        }
        let mut table = Table::new(["Broker Name", "QID", "Send Result", "MsgId", "Queue Offset"]);
        table.row([
            (&sent.broker_name).into(),
            sent.queue.queue_id.into(),
            status(sent.status).into(),
            (&sent.message_id).into(),
            sent.queue_offset.into(),
        ]);
        session.out.table("sent", &table)?;
        session.client.stop().await;
        Ok(())
    }

    /// The queue that is asked for, or the first one of the broker.
    async fn queue(&self, session: &Session, broker: &str) -> Result<MessageQueue> {
        let route = session.client.route(self.topic.trim()).await?;
        // A queue of a static topic is found by the broker that leads it, and by the name that stands for all of them.
        let is_there = |queue: &&MessageQueue| queue.broker_name == broker || route.broker_of(queue) == Some(broker);
        let mut queues = route.writable.iter().filter(is_there);
        let found = match self.qid {
            Some(queue_id) => queues.find(|queue| queue.queue_id == queue_id),
            None => queues.next(),
        };
        found
            .cloned()
            .with_context(|| format!("broker {broker} has no such queue of topic {} to write", self.topic.trim()))
    }
}

/// A trace is found by the id of its message and by its keys.
fn trace_keys(sent: &SendResult, keys: Option<&str>) -> String {
    [Some(sent.message_id.as_str()), keys.map(str::trim)].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// RocketMQ's name of what a broker did with a message.
pub fn status(status: SendStatus) -> &'static str {
    match status {
        SendStatus::Ok => "SEND_OK",
        SendStatus::FlushDiskTimeout => "FLUSH_DISK_TIMEOUT",
        SendStatus::FlushSlaveTimeout => "FLUSH_SLAVE_TIMEOUT",
        SendStatus::SlaveNotAvailable => "SLAVE_NOT_AVAILABLE",
    }
}
