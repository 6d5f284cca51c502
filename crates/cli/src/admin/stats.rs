//! Rates and backlog of all topics and groups.

use anyhow::{Result, bail};
use clap::Args;
use protocol::body::BrokerStatsData;
use protocol::code::request;
use protocol::names::{is_dlq_topic, is_retry_topic};
use protocol::request::ViewBrokerStats;

use super::output::{Cell, Table};
use super::progress::{consume_stats, diff};
use super::session::{Session, masters};

/// Messages that came into a topic; the key is the topic.
pub const TOPIC_PUT_NUMS: &str = "TOPIC_PUT_NUMS";
/// Messages that a group got; the key is topic@group.
const GROUP_GET_NUMS: &str = "GROUP_GET_NUMS";

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct StatsAll {
    /// Only topics with messages in the last day
    #[arg(short, long)]
    active_topic: bool,
    /// Only this topic
    #[arg(short, long)]
    topic: Option<String>,
}

impl StatsAll {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut table =
            Table::new(["Topic", "Consumer Group", "Accumulation", "InTPS", "OutTPS", "InMsg24Hour", "OutMsg24Hour"]);
        let only = self.topic.as_deref().map(str::trim).filter(|only| !only.is_empty());
        let topics = session.topics().await?;
        if let Some(topic) = only.filter(|only| !topics.iter().any(|topic| topic == only)) {
            bail!("the name server knows no topic {topic}");
        }
        for topic in topics {
            if is_retry_topic(&topic) || is_dlq_topic(&topic) || only.is_some_and(|only| only != topic) {
                continue;
            }
            // A topic that is just going, or that nobody sent to since the broker began, has nothing to show.
            let Ok(route) = session.admin.route(&topic).await else { continue };
            let came = rate(session, &route, TOPIC_PUT_NUMS, &topic).await;
            let groups = session.groups_of(&topic, &route).await.unwrap_or_default();
            if groups.is_empty() && (!self.active_topic || came.day > 0) {
                let none = || Cell::from(None::<i64>);
                table.row([(&topic).into(), "".into(), 0.into(), came.tps.into(), none(), came.day.into(), none()]);
            }
            for group in groups {
                let went = rate(session, &route, GROUP_GET_NUMS, &format!("{topic}@{group}")).await;
                if self.active_topic && came.day == 0 && went.day == 0 {
                    continue;
                }
                let stats = consume_stats(session, &group, Some(&topic), None).await.unwrap_or_default();
                table.row([
                    (&topic).into(),
                    group.into(),
                    diff(&stats).max(0).into(),
                    came.tps.into(),
                    went.tps.into(),
                    came.day.into(),
                    went.day.into(),
                ]);
            }
        }
        session.out.table("topics", &table)?;
        Ok(())
    }
}

#[derive(Default)]
struct Rate {
    /// A second, in the last minute.
    tps: f64,
    /// Messages of the last day.
    day: i64,
}

/// Over all masters. A broker that has counted nothing refuses, and counts as nothing.
async fn rate(session: &Session, route: &protocol::body::TopicRoute, name: &str, key: &str) -> Rate {
    let mut rate = Rate::default();
    for (_, address) in masters(route) {
        if let Some(stats) = view(session, address, name, key).await {
            rate.tps += stats.stats_minute.tps;
            rate.day += day(&stats);
        }
    }
    rate
}

/// One figure of a broker, if it has counted anything.
pub async fn view(session: &Session, address: &str, name: &str, key: &str) -> Option<BrokerStatsData> {
    let fields = ViewBrokerStats { stats_name: name, stats_key: key };
    session.admin.ask(address, request::VIEW_BROKER_STATS_DATA, &fields).await.ok()
}

/// The messages of the longest span that has any: a broker that began an hour ago has no day yet.
pub fn day(stats: &BrokerStatsData) -> i64 {
    let spans = [stats.stats_day.sum, stats.stats_hour.sum, stats.stats_minute.sum];
    spans.into_iter().find(|sum| *sum != 0).unwrap_or(0)
}
