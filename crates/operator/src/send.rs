//! Sending a message.

use client::{Message, SendResult};
use protocol::body::MessageQueue;
use protocol::names::TRACE_TOPIC;
use protocol::properties::name;

use crate::error::{OperatorError, Result};
use crate::handle::Operator;
use crate::trace::published;

/// The group that a message is sent as.
const GROUP: &str = "TOOLS_PRODUCER";

impl Operator {
    /// Sends a message: to a broker by name, there to a queue, if these are given; with a trace of it if that is said.
    pub async fn send(
        &self,
        message: &Message,
        broker: Option<(&str, Option<i32>)>,
        with_trace: bool,
    ) -> Result<SendResult> {
        self.need_names()?;
        let producer = self.client.producer(GROUP);
        let (began, started) = (self.now(), self.elapsed());
        let sent = match broker {
            None => producer.send(message.clone()).await?,
            Some((broker, queue_id)) => {
                let queue = self.queue_on(&message.topic, broker, queue_id).await?;
                producer.send_to(&queue, message.clone()).await?
            }
        };
        let cost = self.elapsed().saturating_sub(started);
        if with_trace {
            let host = self.client.id().split('@').next().unwrap_or_default();
            let body = published(GROUP, message, &sent, began, cost, host);
            let trace = Message::new(TRACE_TOPIC, body).key(trace_keys(&sent, message.get(name::KEYS)));
            let untraced = |error| OperatorError::from(error).during("the message is sent, but its trace is not");
            producer.send(trace).await.map_err(untraced)?;
        }
        Ok(sent)
    }

    /// The queue that is asked for, or the first one of the broker.
    async fn queue_on(&self, topic: &str, broker: &str, queue_id: Option<i32>) -> Result<MessageQueue> {
        let route = self.client.route(topic).await?;
        // A queue of a static topic is found by the broker that leads it, and by the name that stands for all of them.
        let is_there = |queue: &&MessageQueue| queue.broker_name == broker || route.broker_of(queue) == Some(broker);
        let mut queues = route.writable.iter().filter(is_there);
        let found = match queue_id {
            Some(queue_id) => queues.find(|queue| queue.queue_id == queue_id),
            None => queues.next(),
        };
        let unknown =
            || OperatorError::NotFound(format!("broker {broker} has no such queue of topic {topic} to write"));
        found.cloned().ok_or_else(unknown)
    }
}

/// A trace is found by the id of its message and by its keys.
fn trace_keys(sent: &SendResult, keys: Option<&str>) -> String {
    [Some(sent.message_id.as_str()), keys].into_iter().flatten().collect::<Vec<_>>().join(" ")
}
