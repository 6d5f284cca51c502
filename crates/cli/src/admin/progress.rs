//! How far groups are behind.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;
use client::ClientError;
use protocol::body::{ConsumeStats, ConsumeType, ConsumerConnection, ConsumerRunningInfo, MessageModel, MessageQueue};
use protocol::code::request;
use protocol::names::{group_of, is_retry_topic, is_system_group, retry_topic};
use protocol::request::{GetConsumeStats, GetConsumerRunningInfo};
use protocol::version;
use serde::de::IgnoredAny;

use super::output::{Cell, Facts, Table};
use super::pieces;
use super::session::{Session, is_offline, readable};
use super::static_topic::as_clients_see;
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
        let stats = consume_stats(session, group, topic, self.cluster.as_deref()).await?;
        // Asked for one topic, a broker answers with zeros for a group that it has never heard of.
        if stats.offset_table.is_empty() || topic.is_some() {
            need_known(session, group).await?;
        }
        let shows_owners = self.show_client_ip.unwrap_or(false);
        let owners = if shows_owners { owners(session, group).await? } else { BTreeMap::new() };

        let (mut behind, mut in_flight) = (0, 0);
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
            behind += diff;
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
            .with("Consume Diff Total", behind)
            .with("Consume Inflight Total", in_flight);
        session.out.facts(&facts)?;
        Ok(())
    }
}

/// The groups of all brokers, but for RocketMQ's own.
///
/// A retry topic is made by consumers that are pushed to. Pull consumers and tools commit offsets without one, so brokers are asked for their
/// groups as well; what a broker does not tell is left out.
pub async fn groups(session: &Session) -> Result<BTreeSet<String>> {
    let topics = session.topics().await?;
    let mut groups: BTreeSet<String> = topics
        .iter()
        .filter(|topic| is_retry_topic(topic))
        .filter_map(|topic| group_of(topic))
        .map(str::to_owned)
        .collect();
    for address in session.all_masters().await? {
        let Ok(told) = pieces::groups::<IgnoredAny>(&session.admin, &address).await else { continue };
        groups.extend(told.table.into_keys());
    }
    groups.retain(|group| !is_system_group(group));
    Ok(groups)
}

/// Fails if nothing is known of a group.
pub async fn need_known(session: &Session, group: &str) -> Result<()> {
    if !is_known(session, group).await? && consume_stats(session, group, None, None).await?.offset_table.is_empty() {
        bail!("nothing is known of group {group}: no broker has its configuration, its retry topic or an offset of it");
    }
    Ok(())
}

/// Whether a broker has the configuration of a group, or a name server its retry topic.
pub async fn is_known(session: &Session, group: &str) -> Result<bool> {
    match session.admin.route(&retry_topic(group)).await {
        Ok(_) => return Ok(true),
        Err(ClientError::NoRoute { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    for address in session.all_masters().await? {
        if pieces::groups::<IgnoredAny>(&session.admin, &address).await?.table.contains_key(group) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn all(session: &Session) -> Result<()> {
    let mut table = Table::new(["Group", "Count", "Version", "Type", "Model", "TPS", "Diff Total"]);
    for group in &groups(session).await? {
        // A group of which nothing is known is shown all the same, as offline.
        let stats = consume_stats(session, group, None, None).await.unwrap_or_default();
        let members = session.consumers(group, None).await.unwrap_or_default();
        let (kind, model) = describe(&members);
        table.row([
            group.into(),
            members.connection_set.len().into(),
            oldest(&members).map_or_else(|| "OFFLINE".to_owned(), version::name).into(),
            kind.into(),
            model.into(),
            (stats.consume_tps as i64).into(),
            diff(&stats).into(),
        ]);
    }
    session.out.table("groups", &table)?;
    Ok(())
}

/// Whether a group pulls or is pushed to, and whether its members share.
pub fn describe(members: &ConsumerConnection) -> (&'static str, &'static str) {
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
pub fn oldest(members: &ConsumerConnection) -> Option<i32> {
    members.connection_set.iter().map(|member| member.version).min()
}

/// Messages that are not consumed.
pub fn diff(stats: &ConsumeStats) -> i64 {
    stats.offset_table.values().map(|offset| offset.broker_offset - offset.consumer_offset).sum()
}

/// How far a group is behind in all its topics, or in one, on all brokers; in static topics by logical queue.
pub async fn consume_stats(
    session: &Session,
    group: &str,
    topic: Option<&str>,
    parent: Option<&str>,
) -> Result<ConsumeStats> {
    session.need_names()?;
    let addresses: Vec<String> = match session.admin.route(&retry_topic(group)).await {
        Ok(route) => readable(&route).map(|(_, address)| address).collect(),
        // Every broker on which a group's consumers have been has its retry topic. Offsets may be elsewhere too: pull consumers
        // commit without one, and tools copy offsets.
        Err(ClientError::NoRoute { .. }) => match topic {
            Some(topic) => readable(&session.route_by(topic, parent).await?).map(|(_, address)| address).collect(),
            None => session.all_masters().await?,
        },
        Err(error) => return Err(error.into()),
    };
    let mut all = ConsumeStats::default();
    for address in addresses {
        let fields = GetConsumeStats { consumer_group: group, topic, topic_list: None };
        let part: ConsumeStats = session.admin.ask(&address, request::GET_CONSUME_STATS, &fields).await?;
        all.offset_table.extend(part.offset_table.0);
        all.consume_tps += part.consume_tps;
    }
    as_clients_see(session, group, topic, &mut all).await?;
    Ok(all)
}

/// Asks one member of a group, through the first broker that reaches it.
pub async fn running_info(
    session: &Session,
    group: &str,
    client_id: &str,
    with_stacks: bool,
) -> Result<ConsumerRunningInfo, ClientError> {
    let fields = GetConsumerRunningInfo { consumer_group: group, client_id, jstack_enable: with_stacks };
    let route = session.admin.route(&retry_topic(group)).await?;
    let mut last = ClientError::NoRoute { topic: retry_topic(group) };
    for (_, address) in readable(&route) {
        match session.admin.ask(&address, request::GET_CONSUMER_RUNNING_INFO, &fields).await {
            Ok(info) => return Ok(info),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Who consumes each queue. A member that does not answer is left out: its queues are then nobody's.
async fn owners(session: &Session, group: &str) -> Result<BTreeMap<MessageQueue, String>> {
    let mut owners = BTreeMap::new();
    let members = match session.consumers(group, None).await {
        Ok(members) => members.connection_set,
        Err(error) if is_offline(&error) => return Ok(owners),
        Err(error) => return Err(error.into()),
    };
    for member in members {
        let Ok(info) = running_info(session, group, &member.client_id, false).await else { continue };
        let address = member.client_id.split('@').next().unwrap_or_default();
        let queues = info.mq_table.0.into_keys().chain(info.mq_pop_table.0.into_keys());
        owners.extend(queues.map(|queue| (queue, address.to_owned())));
    }
    Ok(owners)
}
