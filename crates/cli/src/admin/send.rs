//! Sending a message.

use anyhow::Result;
use clap::Args;
use client::{Message, SendStatus};

use super::output::Table;
use super::session::Session;
use super::truth;

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
        let topic = self.topic.trim();
        let mut message = Message::new(topic, self.body.clone());
        if let Some(key) = &self.key {
            message = message.key(key.trim());
        }
        if let Some(tag) = &self.tags {
            message = message.tag(tag.trim());
        }
        let broker = self.broker.as_deref().map(|broker| (broker.trim(), self.qid));
        let sent = session.operator.send(&message, broker, self.msg_trace_enable == Some(true)).await?;
        let mut table = Table::new(["Broker Name", "QID", "Send Result", "MsgId", "Queue Offset"]);
        table.row([
            (&sent.broker_name).into(),
            sent.queue.queue_id.into(),
            status(sent.status).into(),
            (&sent.message_id).into(),
            sent.queue_offset.into(),
        ]);
        session.out.table("sent", &table)?;
        session.operator.stop().await;
        Ok(())
    }
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
