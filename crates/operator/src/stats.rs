//! Rates of topics and groups, as brokers count them.

use protocol::body::{BrokerStatsData, TopicRoute};
use protocol::code::request;
use protocol::names::{is_dlq_topic, is_retry_topic};
use protocol::request::ViewBrokerStats;

use crate::cluster::masters;
use crate::error::{Result, ensure};
use crate::handle::Operator;
use crate::progress::Progress;

/// Messages that came into a topic; the key is the topic.
pub const TOPIC_PUT_NUMS: &str = "TOPIC_PUT_NUMS";
/// Messages that a group got; the key is topic@group.
const GROUP_GET_NUMS: &str = "GROUP_GET_NUMS";

/// How many messages came or went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// A second, in the last minute.
    pub tps: f64,
    /// Messages of the last day.
    pub day: i64,
}

/// What comes into a topic, and what its groups get of it.
#[derive(Debug)]
pub struct Traffic {
    /// The topic.
    pub topic: String,
    /// What came.
    pub came: Rate,
    /// What went to each group, and how far it is behind.
    pub groups: Vec<(String, Rate, Progress)>,
}

impl Operator {
    /// Of all topics but those of groups, or of one; with `is_active` only topics and groups with messages in the last day.
    pub async fn traffic(&self, only: Option<&str>, is_active: bool) -> Result<Vec<Traffic>> {
        let topics = self.topics().await?;
        if let Some(only) = only {
            ensure!(topics.iter().any(|topic| topic == only), NotFound, "the name server knows no topic {only}");
        }
        let mut all = Vec::new();
        for topic in topics {
            if is_retry_topic(&topic) || is_dlq_topic(&topic) || only.is_some_and(|only| only != topic) {
                continue;
            }
            // A topic that is just going, or that nobody sent to since the broker began, has nothing to tell.
            let Ok(route) = self.admin.route(&topic).await else { continue };
            let came = self.rate(&route, TOPIC_PUT_NUMS, &topic).await;
            let mut groups = Vec::new();
            for group in self.groups_of(&topic, &route).await.unwrap_or_default() {
                let went = self.rate(&route, GROUP_GET_NUMS, &format!("{topic}@{group}")).await;
                if is_active && came.day == 0 && went.day == 0 {
                    continue;
                }
                let progress = self.progress(&group, Some(&topic), None).await.unwrap_or_default();
                groups.push((group, went, progress));
            }
            if !is_active || came.day > 0 || !groups.is_empty() {
                all.push(Traffic { topic, came, groups });
            }
        }
        Ok(all)
    }

    /// Over all masters. A broker that has counted nothing refuses, and counts as nothing.
    async fn rate(&self, route: &TopicRoute, name: &str, key: &str) -> Rate {
        let mut rate = Rate::default();
        for (_, address) in masters(route) {
            if let Some(stats) = self.broker_stats(address, name, key).await {
                rate.tps += stats.stats_minute.tps;
                rate.day += day(&stats);
            }
        }
        rate
    }

    /// One figure of a broker, if it has counted anything.
    pub async fn broker_stats(&self, address: &str, name: &str, key: &str) -> Option<BrokerStatsData> {
        let fields = ViewBrokerStats { stats_name: name, stats_key: key };
        self.admin.ask(address, request::VIEW_BROKER_STATS_DATA, &fields).await.ok()
    }
}

/// The messages of the longest span that has any: a broker that began an hour ago has no day yet.
pub fn day(stats: &BrokerStatsData) -> i64 {
    let spans = [stats.stats_day.sum, stats.stats_hour.sum, stats.stats_minute.sum];
    spans.into_iter().find(|sum| *sum != 0).unwrap_or(0)
}
