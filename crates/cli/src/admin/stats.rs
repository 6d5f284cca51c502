//! Rates and backlog of all topics and groups.

use anyhow::{Result, bail};
use clap::Args;
use operator::progress::behind;
use operator::stats::{GROUP_GET_NUMS, TOPIC_PUT_NUMS};
use protocol::names::{is_dlq_topic, is_retry_topic};

use super::output::{Cell, Table};
use super::session::Session;

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
        let topics = session.operator.topics().await?;
        if let Some(topic) = only.filter(|only| !topics.iter().any(|topic| topic == only)) {
            bail!("the name server knows no topic {topic}");
        }
        for topic in topics {
            if is_retry_topic(&topic) || is_dlq_topic(&topic) || only.is_some_and(|only| only != topic) {
                continue;
            }
            // A topic that is just going, or that nobody sent to since the broker began, has nothing to show.
            let Ok(route) = session.operator.route(&topic).await else { continue };
            let came = session.operator.rate(&route, TOPIC_PUT_NUMS, &topic).await;
            let groups = session.operator.groups_of(&topic, &route).await.unwrap_or_default();
            if groups.is_empty() && (!self.active_topic || came.day > 0) {
                let none = || Cell::from(None::<i64>);
                table.row([(&topic).into(), "".into(), 0.into(), came.tps.into(), none(), came.day.into(), none()]);
            }
            for group in groups {
                let went = session.operator.rate(&route, GROUP_GET_NUMS, &format!("{topic}@{group}")).await;
                if self.active_topic && came.day == 0 && went.day == 0 {
                    continue;
                }
                let stats = session.consume_stats(&group, Some(&topic), None).await.unwrap_or_default();
                table.row([
                    (&topic).into(),
                    group.into(),
                    behind(&stats).max(0).into(),
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
