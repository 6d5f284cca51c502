//! The handle of a member: producers, consumers and operators' requests are made from it.

use std::sync::Arc;

use crate::admin::Admin;
use crate::error::ClientError;
use crate::member::{ClientConfig, Member};
use crate::producer::{Producer, ProducerConfig};
use crate::pull_consumer::PullConsumer;
use crate::push_consumer::{Handler, PushConfig, PushConsumer};
use crate::route::Route;

/// A member of a cluster, from which producers and consumers are made. Clones are the same member.
#[derive(Clone)]
pub struct Client {
    pub(crate) member: Arc<Member>,
}

impl Client {
    /// Starts the member and its heartbeat; needs a tokio runtime. Nothing is connected before it is needed.
    pub fn start(config: ClientConfig) -> Client {
        Client { member: Member::start(config) }
    }

    /// This member's id, by which brokers and other members know it.
    pub fn id(&self) -> &str {
        &self.member.id
    }

    /// Where a topic's queues are.
    pub async fn route(&self, topic: &str) -> Result<Arc<Route>, ClientError> {
        self.member.route(topic).await
    }

    /// A producer with the usual settings.
    pub fn producer(&self, group: &str) -> Producer {
        self.producer_with(ProducerConfig::new(group))
    }

    /// A producer.
    pub fn producer_with(&self, config: ProducerConfig) -> Producer {
        Producer::new(Arc::clone(&self.member), config)
    }

    /// The requests of operators.
    pub fn admin(&self) -> Admin {
        Admin::new(Arc::clone(&self.member))
    }

    /// A consumer that is asked for each step.
    pub fn pull_consumer(&self, group: &str) -> PullConsumer {
        PullConsumer::new(Arc::clone(&self.member), group)
    }

    /// A consumer that shares the queues with its group and hands messages to `handler`.
    pub async fn push_consumer<H: Handler>(&self, config: PushConfig, handler: H) -> Result<PushConsumer, ClientError> {
        PushConsumer::start(Arc::clone(&self.member), config, handler).await
    }

    /// Takes leave of the brokers. Stop consumers first: they commit when they stop. Producers with
    /// [`auto_batch`](crate::ProducerConfig::auto_batch) may still have messages that nobody waits for, those sent oneway too:
    /// [`Producer::flush`](crate::Producer::flush) waits for them.
    pub async fn stop(&self) {
        self.member.stop().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_nobody_uses_any_more_is_gone_at_once() {
        let client = Client::start(ClientConfig::new("127.0.0.1:1"));
        let member = Arc::downgrade(&client.member);
        // The heartbeat begins to wait.
        tokio::task::yield_now().await;
        drop(client);
        assert!(member.upgrade().is_none());
    }
}
