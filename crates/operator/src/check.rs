//! Measuring sends.

use std::time::Duration;

use client::{Message, Producer, SendResult};
use protocol::body::MessageQueue;

use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;

/// Sends messages of a size, and measures each.
pub struct Probe<'a> {
    operator: &'a Operator,
    producer: Producer,
}

impl Operator {
    /// Begins to measure, as this group.
    pub fn probe(&self, group: &str) -> Probe<'_> {
        Probe { operator: self, producer: self.client.producer(group) }
    }

    /// The queues of a topic that take messages, at least one.
    pub async fn writable(&self, topic: &str) -> Result<Vec<MessageQueue>> {
        self.need_names()?;
        let queues = self.client.route(topic).await?.writable.clone();
        ensure!(!queues.is_empty(), Unfit, "topic {topic} has no queue to write");
        Ok(queues)
    }
}

impl Probe<'_> {
    /// Sends to a topic.
    pub async fn send(&self, topic: &str, bytes: u32) -> (Duration, Result<SendResult>) {
        let message = Message::new(topic, body(bytes));
        let started = self.operator.elapsed();
        let sent = self.producer.send(message).await;
        (self.operator.elapsed() - started, sent.map_err(OperatorError::from))
    }

    /// Sends to a queue.
    pub async fn send_to(&self, queue: &MessageQueue, bytes: u32) -> (Duration, Result<SendResult>) {
        let message = Message::new(queue.topic.as_str(), body(bytes));
        let started = self.operator.elapsed();
        let sent = self.producer.send_to(queue, message).await;
        (self.operator.elapsed() - started, sent.map_err(OperatorError::from))
    }
}

fn body(bytes: u32) -> Vec<u8> {
    vec![b'a'; bytes as usize]
}
