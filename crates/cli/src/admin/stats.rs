//! Rates and backlog of all topics and groups.

use anyhow::Result;
use clap::Args;
use operator::progress::behind;
use operator::stats::Traffic;

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
        for Traffic { topic, came, groups } in session.operator.traffic(only, self.active_topic).await? {
            if groups.is_empty() {
                let none = || Cell::from(None::<i64>);
                table.row([(&topic).into(), "".into(), 0.into(), came.tps.into(), none(), came.day.into(), none()]);
            }
            for (group, went, progress) in groups {
                session.say_physical(&progress.by_physical_queue)?;
                table.row([
                    (&topic).into(),
                    group.into(),
                    behind(&progress.stats).max(0).into(),
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
