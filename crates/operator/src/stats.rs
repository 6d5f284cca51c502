//! Rates of topics and groups, as brokers count them.

use protocol::body::{BrokerStatsData, TopicRoute};
use protocol::code::request;
use protocol::request::ViewBrokerStats;

use crate::cluster::masters;
use crate::handle::Operator;

/// Messages that came into a topic; the key is the topic.
pub const TOPIC_PUT_NUMS: &str = "TOPIC_PUT_NUMS";
/// Messages that a group got; the key is topic@group.
pub const GROUP_GET_NUMS: &str = "GROUP_GET_NUMS";

/// How many messages came or went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// A second, in the last minute.
    pub tps: f64,
    /// Messages of the last day.
    pub day: i64,
}

impl Operator {
    /// Over all masters. A broker that has counted nothing refuses, and counts as nothing.
    pub async fn rate(&self, route: &TopicRoute, name: &str, key: &str) -> Rate {
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
