//! Which queues an ordered topic has, and which clients would get which.

use std::collections::BTreeMap;

use client::{Route, allocate};
use protocol::body::MessageQueue;

use crate::error::{Result, ensure};
use crate::handle::Operator;

/// Where name servers keep the order of topics.
const NAMESPACE: &str = "ORDER_TOPIC_CONFIG";

impl Operator {
    /// The order of a topic: `broker:queues`, separated by semicolons.
    pub async fn order(&self, topic: &str) -> Result<Option<String>> {
        self.kv(NAMESPACE, topic).await
    }

    /// Sets the order of a topic in all name servers: the whole of it, or the part of the brokers that it names. Returns what holds now.
    pub async fn set_order(&self, topic: &str, order_part: &str, is_whole: bool) -> Result<String> {
        let known = if is_whole { None } else { self.order(topic).await? };
        let parts = known.iter().flat_map(|known| known.split(';')).chain(order_part.split(';'));
        let by_broker: BTreeMap<&str, &str> = parts.filter_map(|part| Some((part.split_once(':')?.0, part))).collect();
        let whole = by_broker.into_values().collect::<Vec<_>>().join(";");
        let value = if is_whole { order_part } else { &whole };
        self.set_kv(NAMESPACE, topic, value).await?;
        Ok(value.to_owned())
    }

    /// Deletes the order of a topic in all name servers.
    pub async fn delete_order(&self, topic: &str) -> Result<()> {
        let is_known = self.order(topic).await?.is_some();
        ensure!(is_known, NotFound, "no name server has an order of topic {topic}: nothing is deleted");
        for address in self.name_servers() {
            self.delete_kv_at(address, NAMESPACE, topic).await?;
        }
        Ok(())
    }

    /// The queues of a topic that each of these clients would get.
    pub async fn shares(&self, topic: &str, clients: &[String]) -> Result<BTreeMap<String, Vec<MessageQueue>>> {
        let queues = Route::new(topic, self.route(topic).await?).readable;
        let shares = clients.iter().map(|client| (client.clone(), allocate(&queues, clients, client)));
        Ok(shares.collect())
    }
}
