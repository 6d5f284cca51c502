//! Who is connected: producers and consumers.

use anyhow::{Context, Result};
use clap::Args;
use protocol::body::Connection;
use protocol::version;

use super::consumer::nobody_online;
use super::output::{Cell, Facts, Table};
use super::session::Session;

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
            session.operator.need_names()?;
        }
        let found = match session.operator.consumers(group, self.broker_addr.as_deref()).await {
            // One broker that is asked alone needs no name server.
            Err(error) if error.is_offline() && self.broker_addr.is_none() => {
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
        let found = session.operator.producers(self.producer_group.trim(), self.topic.trim()).await?;
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
        let found = session.operator.producers_at(self.broker.trim()).await?;
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
