//! Connected producers and consumers.

use client::ClientError;
use protocol::body::{Connection, ConsumerConnection, ProducerConnection, ProducerTable};
use protocol::code::request;
use protocol::names::retry_topic;
use protocol::request::{GetConsumerConnections, GetProducerConnections};

use crate::cluster::{masters_in, readable};
use crate::error::{OperatorError, Result};
use crate::handle::Operator;

impl Operator {
    /// The consumers of a group: as one broker tells them, or the first broker of the group that knows it.
    pub async fn consumers(&self, group: &str, broker: Option<&str>) -> Result<ConsumerConnection> {
        let fields = GetConsumerConnections { consumer_group: group };
        let addresses = match broker {
            Some(address) => vec![address.trim().to_owned()],
            None => self.brokers_of(group).await?,
        };
        let mut last = ClientError::NoRoute { topic: retry_topic(group) };
        for address in addresses {
            match self.admin.ask(&address, request::GET_CONSUMER_CONNECTION_LIST, &fields).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last.into())
    }

    /// Where the consumers of a group are: they make its retry topic. Without one, anywhere.
    async fn brokers_of(&self, group: &str) -> Result<Vec<String>, ClientError> {
        match self.admin.route(&retry_topic(group)).await {
            Ok(route) => Ok(readable(&route).map(|(_, address)| address).collect()),
            Err(ClientError::NoRoute { .. }) => Ok(masters_in(self.admin.cluster().await?)),
            Err(error) => Err(error),
        }
    }

    /// The producers of a group that are connected to a broker of the topic, each once.
    pub async fn producers(&self, group: &str, topic: &str) -> Result<Vec<Connection>> {
        let route = self.route(topic).await?;
        let mut found = Vec::new();
        let mut refusal = None;
        for (_, address) in readable(&route) {
            let fields = GetProducerConnections { producer_group: group };
            let code = request::GET_PRODUCER_CONNECTION_LIST;
            match self.admin.ask::<ProducerConnection>(&address, code, &fields).await {
                Ok(part) => found.extend(part.connection_set),
                // A producer need not be connected to every broker.
                Err(error) if error.code().is_some() => refusal = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        if let (true, Some(error)) = (found.is_empty(), refusal) {
            return Err(OperatorError::from(error).during(format!("no broker knows producer group {group}")));
        }
        found.sort_by(|a, b| (&a.client_id, &a.client_addr).cmp(&(&b.client_id, &b.client_addr)));
        found.dedup_by(|a, b| a.client_id == b.client_id && a.client_addr == b.client_addr);
        Ok(found)
    }

    /// All producers of a broker, by group.
    pub async fn producers_at(&self, address: &str) -> Result<ProducerTable> {
        Ok(self.admin.ask(address, request::GET_ALL_PRODUCER_INFO, &()).await?)
    }
}
