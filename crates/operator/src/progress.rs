//! How far groups are behind.

use std::collections::{BTreeMap, BTreeSet};

use client::ClientError;
use protocol::body::{ConsumeStats, ConsumerConnection, MessageQueue};
use protocol::code::request;
use protocol::names::{group_of, is_retry_topic, is_system_group, retry_topic};
use protocol::request::GetConsumeStats;
use serde::de::IgnoredAny;

use crate::cluster::readable;
use crate::error::{Result, ensure};
use crate::handle::Operator;
use crate::static_topic::ByPhysicalQueue;

/// How far a group is behind.
#[derive(Debug, Default)]
pub struct Progress {
    /// By queue; in static topics by logical queue.
    pub stats: ConsumeStats,
    /// Except for these topics.
    pub by_physical_queue: Vec<ByPhysicalQueue>,
}

/// A group at a glance.
#[derive(Debug)]
pub struct GroupSummary {
    /// The group.
    pub group: String,
    /// How far it is behind; nothing if that is not known.
    pub progress: Progress,
    /// Its members; none if it is offline, or nothing is known.
    pub members: ConsumerConnection,
}

/// Messages that are not consumed.
pub fn behind(stats: &ConsumeStats) -> i64 {
    stats.offset_table.values().map(|offset| offset.broker_offset - offset.consumer_offset).sum()
}

impl Operator {
    /// The groups of all brokers, but for RocketMQ's own.
    ///
    /// A retry topic is made by consumers that are pushed to. Pull consumers and tools commit offsets without one, so brokers are asked for
    /// their groups as well; what a broker does not tell is left out.
    pub async fn groups(&self) -> Result<BTreeSet<String>> {
        let topics = self.topics().await?;
        let mut groups: BTreeSet<String> = topics
            .iter()
            .filter(|topic| is_retry_topic(topic))
            .filter_map(|topic| group_of(topic))
            .map(str::to_owned)
            .collect();
        for address in self.all_masters().await? {
            let Ok(told) = self.groups_at::<IgnoredAny>(&address).await else { continue };
            groups.extend(told.table.into_keys());
        }
        groups.retain(|group| !is_system_group(group));
        Ok(groups)
    }

    /// The same, each with its progress and members.
    pub async fn group_summaries(&self) -> Result<Vec<GroupSummary>> {
        let mut summaries = Vec::new();
        for group in self.groups().await? {
            let progress = self.progress(&group, None, None).await.unwrap_or_default();
            let members = self.consumers(&group, None).await.unwrap_or_default();
            summaries.push(GroupSummary { group, progress, members });
        }
        Ok(summaries)
    }

    /// Fails if nothing is known of a group. Returns what a look at its progress brought, if one was needed.
    pub async fn need_group(&self, group: &str) -> Result<Progress> {
        if self.is_group_known(group).await? {
            return Ok(Progress::default());
        }
        let progress = self.progress(group, None, None).await?;
        let is_known = !progress.stats.offset_table.is_empty();
        ensure!(
            is_known,
            NotFound,
            "nothing is known of group {group}: no broker has its configuration, its retry topic or an offset of it"
        );
        Ok(progress)
    }

    /// Whether a broker has the configuration of a group, or a name server its retry topic.
    pub async fn is_group_known(&self, group: &str) -> Result<bool> {
        match self.admin.route(&retry_topic(group)).await {
            Ok(_) => return Ok(true),
            Err(ClientError::NoRoute { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        for address in self.all_masters().await? {
            if self.has_group(&address, group).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a broker has the configuration of a group.
    pub async fn has_group(&self, address: &str, group: &str) -> Result<bool> {
        Ok(self.groups_at::<IgnoredAny>(address).await?.table.contains_key(group))
    }

    /// How far a group is behind in all its topics, or in one, on all brokers. `parent` is as in [`Operator::route_by`].
    pub async fn progress(&self, group: &str, topic: Option<&str>, parent: Option<&str>) -> Result<Progress> {
        self.need_names()?;
        let addresses: Vec<String> = match self.admin.route(&retry_topic(group)).await {
            Ok(route) => readable(&route).map(|(_, address)| address).collect(),
            // Every broker on which a group's consumers have been has its retry topic. Offsets may be elsewhere too: pull consumers
            // commit without one, and tools copy offsets.
            Err(ClientError::NoRoute { .. }) => match topic {
                Some(topic) => readable(&self.route_by(topic, parent).await?).map(|(_, address)| address).collect(),
                None => self.all_masters().await?,
            },
            Err(error) => return Err(error.into()),
        };
        let mut stats = ConsumeStats::default();
        for address in addresses {
            let fields = GetConsumeStats { consumer_group: group, topic, topic_list: None };
            let part: ConsumeStats = self.admin.ask(&address, request::GET_CONSUME_STATS, &fields).await?;
            stats.offset_table.extend(part.offset_table.0);
            stats.consume_tps += part.consume_tps;
        }
        let by_physical_queue = self.as_clients_see(group, topic, &mut stats).await;
        Ok(Progress { stats, by_physical_queue })
    }

    /// The address of the member that consumes each queue. A member that does not answer is left out: its queues are then nobody's.
    pub async fn owners(&self, group: &str) -> Result<BTreeMap<MessageQueue, String>> {
        let mut owners = BTreeMap::new();
        let members = match self.consumers(group, None).await {
            Ok(members) => members.connection_set,
            Err(error) if error.is_offline() => return Ok(owners),
            Err(error) => return Err(error),
        };
        for member in members {
            let Ok(info) = self.running_info(group, &member.client_id, false).await else { continue };
            let address = member.client_id.split('@').next().unwrap_or_default();
            let queues = info.mq_table.0.into_keys().chain(info.mq_pop_table.0.into_keys());
            owners.extend(queues.map(|queue| (queue, address.to_owned())));
        }
        Ok(owners)
    }
}
