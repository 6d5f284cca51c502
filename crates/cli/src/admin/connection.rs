//! Who is connected: producers and consumers.

use anyhow::{Context, Result};
use clap::Args;
use protocol::body::{Connection, ProducerTable};
use protocol::code::request;
use protocol::request::GetProducerConnections;
use protocol::version;

use super::consumer::nobody_online;
use super::output::{Cell, Facts, Table};
use super::session::{Session, is_offline, readable};

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ConsumerConnection {
    /// The group
    #[arg(short = 'g', long)]
    consumer_group: String,
    /// Ask this broker only
    #[arg(short, long)]
    broker_addr: Option<String>,
}

impl ConsumerConnection {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let group = self.consumer_group.trim();
        if self.broker_addr.is_none() {
            session.need_names()?;
        }
        let found = match session.consumers(group, self.broker_addr.as_deref()).await {
            // One broker that is asked alone needs no name server.
            Err(error) if is_offline(&error) && self.broker_addr.is_none() => {
                return Err(nobody_online(session, group).await?);
            }
            found => found.with_context(|| format!("cannot learn the consumers of group {group}"))?,
        };
        session.out.table("connections", &connections(&found.connection_set))?;
        session.out.note("\nBelow is subscription:")?;
        let mut table = Table::new(["Topic", "SubExpression"]);
        for subscription in found.subscription_table.values() {
            table.row([(&subscription.topic).into(), (&subscription.sub_string).into()]);
        }
        session.out.table("subscriptions", &table)?;
        session.out.note("")?;
        let name = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let facts = Facts::new()
            .with("ConsumeType", name(serde_json::to_value(found.consume_type)?))
            .with("MessageModel", name(serde_json::to_value(found.message_model)?))
            .with("ConsumeFromWhere", name(serde_json::to_value(found.consume_from_where)?));
        session.out.facts(&facts)?;
        Ok(())
    }
}

fn connections(connections: &[Connection]) -> Table {
    let mut table = Table::new(["ClientId", "ClientAddr", "Language", "Version"]);
    for one in connections {
        table.row([
            (&one.client_id).into(),
            (&one.client_addr).into(),
            (&one.language).into(),
            version::name(one.version).into(),
        ]);
    }
    table
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ProducerConnection {
    /// The group
    #[arg(short = 'g', long)]
    producer_group: String,
    /// A topic that it sends to
    #[arg(short, long)]
    topic: String,
}

impl ProducerConnection {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let group = self.producer_group.trim();
        let route = session.route(self.topic.trim()).await?;
        let mut found = Vec::new();
        let mut refusal = None;
        for (_, address) in readable(&route) {
            let fields = GetProducerConnections { producer_group: group };
            let code = request::GET_PRODUCER_CONNECTION_LIST;
            match session.admin.ask::<protocol::body::ProducerConnection>(&address, code, &fields).await {
                Ok(part) => found.extend(part.connection_set),
                // A producer need not be connected to every broker.
                Err(error) if error.code().is_some() => refusal = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        if let (true, Some(error)) = (found.is_empty(), refusal) {
            return Err(error).context(format!("no broker knows producer group {group}"));
        }
        found.sort_by(|a, b| (&a.client_id, &a.client_addr).cmp(&(&b.client_id, &b.client_addr)));
        found.dedup_by(|a, b| a.client_id == b.client_id && a.client_addr == b.client_addr);
        session.out.table("connections", &connections(&found))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct Producer {
    /// The broker
    #[arg(short, long, value_name = "HOST:PORT")]
    broker: String,
}

impl Producer {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let found: ProducerTable = session.admin.ask(self.broker.trim(), request::GET_ALL_PRODUCER_INFO, &()).await?;
        let mut table = Table::new(["Group", "ClientId", "RemoteIP", "Language", "Version", "LastUpdate"]);
        for (group, producers) in &found.data {
            for producer in producers {
                table.row([
                    group.into(),
                    (&producer.client_id).into(),
                    (&producer.remote_ip).into(),
                    (&producer.language).into(),
                    version::name(producer.version).into(),
                    Cell::time(producer.last_update_timestamp),
                ]);
            }
        }
        session.out.table("producers", &table)?;
        Ok(())
    }
}
