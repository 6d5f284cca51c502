//! Watching all groups: which fall behind, and which members fail.

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use super::output::{Cell, Table};
use super::session::Session;

/// As mqadmin: once a minute.
const EVERY: Duration = Duration::from_secs(60);
/// As mqadmin: so many messages behind in one queue are worth a line.
const BEHIND: i64 = 100_000;

#[derive(Debug, Args)]
pub struct StartMonitoring {}

impl StartMonitoring {
    pub async fn run(&self, session: &Session) -> Result<()> {
        // Ends with an interrupt, or when nobody reads on.
        loop {
            let started = session.operator.elapsed();
            round(session).await?;
            if !session.again_after(EVERY.saturating_sub(session.operator.elapsed().saturating_sub(started))).await? {
                return Ok(());
            }
        }
    }
}

/// Looks at every group once.
async fn round(session: &Session) -> Result<()> {
    let mut behind = Table::new(["Group", "Topic", "Diff", "Diff Max Queue", "Last Consumed"]);
    let mut failing = Table::new(["Group", "ClientId", "Topic", "Failed In Hour"]);
    for group in &session.operator.groups().await? {
        // A group that cannot be asked now is looked at again in the next round.
        let Ok(stats) = session.consume_stats(group, None, None).await else { continue };
        let mut topics: Vec<&str> = stats.offset_table.keys().map(|queue| queue.topic.as_str()).collect();
        topics.sort_unstable();
        topics.dedup();
        for topic in topics {
            let queues = stats.offset_table.iter().filter(|(queue, _)| queue.topic == topic);
            let diffs =
                queues.map(|(_, offset)| (offset.broker_offset - offset.consumer_offset, offset.last_timestamp));
            let (mut sum, mut max, mut oldest) = (0, 0, i64::MAX);
            for (diff, at) in diffs {
                sum += diff;
                max = max.max(diff);
                oldest = if diff > 0 && at > 0 { oldest.min(at) } else { oldest };
            }
            if max >= BEHIND {
                let oldest = if oldest == i64::MAX { 0 } else { oldest };
                behind.row([group.into(), topic.into(), sum.into(), max.into(), Cell::time(oldest)]);
            }
        }
        let Ok(members) = session.operator.consumers(group, None).await else { continue };
        for member in members.connection_set {
            let Ok(info) = session.operator.running_info(group, &member.client_id, false).await else { continue };
            for (topic, status) in info.status_table.iter().filter(|(_, status)| status.consume_failed_msgs > 0) {
                let (client, failed) = (&member.client_id, status.consume_failed_msgs);
                failing.row([group.into(), client.into(), topic.into(), failed.into()]);
            }
        }
    }
    if behind.len() == 0 && failing.len() == 0 {
        session.out.say(format!("{} all groups keep up", super::time::to_seconds(session.operator.now())))?;
    }
    if behind.len() > 0 {
        session.out.table("behind", &behind)?;
    }
    if failing.len() > 0 {
        session.out.table("failing", &failing)?;
    }
    Ok(())
}
