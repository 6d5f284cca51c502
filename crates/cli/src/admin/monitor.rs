//! Watching all groups: which fall behind, and which members fail.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use operator::monitor::{Behind, Failing};

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
    let look = session.operator.look(BEHIND).await?;
    session.say_physical(&look.by_physical_queue)?;
    for Behind { group, topic, sum, max, oldest } in look.behind {
        behind.row([group.into(), topic.into(), sum.into(), max.into(), Cell::time(oldest)]);
    }
    for Failing { group, client_id, topic, in_hour } in look.failing {
        failing.row([group.into(), client_id.into(), topic.into(), in_hour.into()]);
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
