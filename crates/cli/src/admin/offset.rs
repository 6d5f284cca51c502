//! Offsets of groups: copying them, and setting them back or forth.

use anyhow::Result;
use clap::Args;
use operator::offset::{Committed, Copied, Reset, ResetDone};

use super::output::Table;
use super::session::Session;
use super::time;
use super::truth;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CloneGroupOffset {
    /// The group whose offsets are copied
    #[arg(short, long)]
    src_group: String,
    /// The group that gets them
    #[arg(short, long)]
    dest_group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Accepted as by mqadmin, which does not look at it either
    #[arg(short, long, value_parser = truth)]
    offline: Option<bool>,
}

impl CloneGroupOffset {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (from, to, topic) = (self.src_group.trim(), self.dest_group.trim(), self.topic.trim());
        let Copied { seen, queues } = session.operator.copy_offsets(from, to, topic).await?;
        for progress in &seen {
            session.say_physical(&progress.by_physical_queue)?;
        }
        let mut table = Table::new(["Broker Name", "QID", "Offset"]);
        for (queue, offset) in &queues {
            table.row([(&queue.broker_name).into(), queue.queue_id.into(), (*offset).into()]);
        }
        session.out.table("queues", &table)?;
        let done = format!("clone group offset success. srcGroup[{from}], destGroup=[{to}], topic[{topic}]");
        session.out.say(done)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ResetOffsetByTime {
    /// The group
    #[arg(short, long)]
    group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// now, milliseconds, -1 for the end of the queues, or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short = 's', long, allow_negative_numbers = true)]
    timestamp: String,
    /// Whether offsets may also go forward: true (default) or false
    #[arg(short, long, value_parser = truth)]
    force: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
    /// One queue of this broker only
    #[arg(short, long, requires = "queue", value_name = "HOST:PORT")]
    broker: Option<String>,
    /// One queue only
    #[arg(short, long, requires = "broker", value_parser = clap::value_parser!(i32).range(0..))]
    queue: Option<i32>,
    /// For one queue: this offset instead of the one that the time names
    #[arg(short, long, requires = "queue", value_parser = clap::value_parser!(i64).range(0..))]
    offset: Option<i64>,
}

impl ResetOffsetByTime {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (group, topic) = (self.group.trim(), self.topic.trim());
        let timestamp = match self.timestamp.trim() {
            "now" => session.operator.now(),
            text => time::parse(text)?,
        };
        if let (Some(broker), Some(queue_id)) = (&self.broker, self.queue) {
            let address = broker.trim();
            let place = (address, queue_id);
            let offset = session.operator.reset_queue(group, topic, place, timestamp, self.offset).await?;
            session
                .out
                .say(format!("reset offset of group {group} in queue {queue_id} at {address} to {offset} success."))?;
            return Ok(());
        }
        let reset =
            Reset { group, topic, timestamp, is_forced: self.force.unwrap_or(true), parent: self.cluster.as_deref() };
        reset_all(session, &reset).await
    }
}

/// Sets all queues of a topic.
async fn reset_all(session: &Session, reset: &Reset<'_>) -> Result<()> {
    let queues = match session.operator.reset_offsets(reset).await? {
        ResetDone::ByBrokers(queues) => queues,
        ResetDone::ByCommits(queues) => return show_commits(session, &queues),
    };
    let mut table = Table::new(["brokerName", "queueId", "offset"]);
    for (queue, offset) in &queues {
        table.row([(&queue.broker_name).into(), queue.queue_id.into(), (*offset).into()]);
    }
    session.out.table("queues", &table)?;
    Ok(())
}

fn show_commits(session: &Session, queues: &[Committed]) -> Result<()> {
    let mut table =
        Table::new(["brokerName", "queueId", "brokerOffset", "consumerOffset", "timestampOffset", "rollbackOffset"]);
    for Committed { queue, end, before, wanted, now } in queues {
        table.row([
            (&queue.broker_name).into(),
            queue.queue_id.into(),
            (*end).into(),
            (*before).into(),
            (*wanted).into(),
            (*now).into(),
        ]);
    }
    session.out.table("queues", &table)?;
    Ok(())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ResetOffsetByTimeOld {
    /// The group
    #[arg(short, long)]
    group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Milliseconds, -1 for the end of the queues, or yyyy-MM-dd#HH:mm:ss:SSS
    #[arg(short = 's', long, allow_negative_numbers = true)]
    timestamp: String,
    /// Whether offsets may also go forward: true (default) or false
    #[arg(short, long, value_parser = truth)]
    force: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl ResetOffsetByTimeOld {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let reset = Reset {
            group: self.group.trim(),
            topic: self.topic.trim(),
            timestamp: time::parse(&self.timestamp)?,
            is_forced: self.force.unwrap_or(true),
            parent: self.cluster.as_deref(),
        };
        show_commits(session, &session.operator.commit_offsets(&reset).await?)
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SkipAccumulatedMessage {
    /// The group
    #[arg(short, long)]
    group: String,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Whether offsets may also go forward: true (default) or false
    #[arg(short, long, value_parser = truth)]
    force: Option<bool>,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl SkipAccumulatedMessage {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let reset = Reset {
            group: self.group.trim(),
            topic: self.topic.trim(),
            timestamp: -1,
            is_forced: self.force.unwrap_or(true),
            parent: self.cluster.as_deref(),
        };
        reset_all(session, &reset).await
    }
}
