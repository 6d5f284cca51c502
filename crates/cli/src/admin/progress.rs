//! How far groups are behind.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use operator::progress::{GroupSummary, behind};
use protocol::body::{ConsumeType, ConsumerConnection, MessageModel};
use protocol::version;

use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::time;
use super::truth;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ConsumerProgress {
    /// One group; without it, all groups are summed up
    #[arg(short, long)]
    group_name: Option<String>,
    /// One topic
    #[arg(short, long, requires = "group_name")]
    topic_name: Option<String>,
    /// Whether to show who consumes each queue: true or false
    #[arg(short, long = "showClientIP", value_parser = truth)]
    show_client_ip: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl ConsumerProgress {
    pub async fn run(&self, session: &Session) -> Result<()> {
        match &self.group_name {
            Some(group) => self.one(session, group.trim()).await,
            None => all(session).await,
        }
    }

    async fn one(&self, session: &Session, group: &str) -> Result<()> {
        let topic = self.topic_name.as_deref().map(str::trim);
        let stats = session.consume_stats(group, topic, self.cluster.as_deref()).await?;
        // Asked for one topic, a broker answers with zeros for a group that it has never heard of.
        if stats.offset_table.is_empty() || topic.is_some() {
            session.say_physical(&session.operator.need_group(group).await?.by_physical_queue)?;
        }
        let shows_owners = self.show_client_ip.unwrap_or(false);
        let owners = if shows_owners { session.operator.owners(group).await? } else { BTreeMap::new() };

        let (mut diffs, mut in_flight) = (0, 0);
        let mut table = Table::new([
            "Topic",
            "Broker Name",
            "QID",
            "Broker Offset",
            "Consumer Offset",
            "Client IP",
            "Diff",
            "Inflight",
            "LastTime",
        ]);
        let mut queues: Vec<_> = stats.offset_table.iter().collect();
        queues.sort_by_key(|(queue, _)| (&queue.topic, &queue.broker_name, queue.queue_id));
        for (queue, offset) in queues {
            let diff = offset.broker_offset - offset.consumer_offset;
            let flight = offset.pull_offset - offset.consumer_offset;
            diffs += diff;
            in_flight += flight;
            let last = match offset.last_timestamp {
                0 => Cell::of("N/A", 0),
                at => Cell::of(time::to_seconds(at), at),
            };
            table.row([
                (&queue.topic).into(),
                (&queue.broker_name).into(),
                queue.queue_id.into(),
                offset.broker_offset.into(),
                offset.consumer_offset.into(),
                owners.get(queue).map_or("N/A", String::as_str).into(),
                diff.into(),
                flight.into(),
                last,
            ]);
        }
        let table = if shows_owners { table } else { table.without("Client IP") };
        session.out.table("queues", &table)?;
        session.out.note("")?;
        let facts = Facts::new()
            .with("Consume TPS", stats.consume_tps)
            .with("Consume Diff Total", diffs)
            .with("Consume Inflight Total", in_flight);
        session.out.facts(&facts)?;
        Ok(())
    }
}

async fn all(session: &Session) -> Result<()> {
    let mut table = Table::new(["Group", "Count", "Version", "Type", "Model", "TPS", "Diff Total"]);
    for GroupSummary { group, progress, members } in session.operator.group_summaries().await? {
        session.say_physical(&progress.by_physical_queue)?;
        let (kind, model) = describe(&members);
        table.row([
            group.into(),
            members.connection_set.len().into(),
            oldest(&members).map_or_else(|| "OFFLINE".to_owned(), version::name).into(),
            kind.into(),
            model.into(),
            (progress.stats.consume_tps as i64).into(),
            behind(&progress.stats).into(),
        ]);
    }
    session.out.table("groups", &table)?;
    Ok(())
}

/// Whether a group pulls or is pushed to, and whether its members share.
fn describe(members: &ConsumerConnection) -> (&'static str, &'static str) {
    if members.connection_set.is_empty() {
        return ("", "");
    }
    let kind = match members.consume_type {
        ConsumeType::ConsumeActively => "PULL",
        ConsumeType::ConsumePassively => "PUSH",
        ConsumeType::ConsumePop => "POP",
    };
    let model = match (members.consume_type, members.message_model) {
        (ConsumeType::ConsumeActively, _) => "",
        (_, MessageModel::Broadcasting) => "BROADCASTING",
        (_, MessageModel::Clustering) => "CLUSTERING",
    };
    (kind, model)
}

/// The oldest version in a group.
fn oldest(members: &ConsumerConnection) -> Option<i32> {
    members.connection_set.iter().map(|member| member.version).min()
}
