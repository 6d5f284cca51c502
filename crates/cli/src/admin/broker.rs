//! A broker's figures, and what it can be told to clean up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use operator::broker::{Cleaning, TimerEngine};

use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::target::{AnyTarget, Target};
use super::time;
use super::truth;

#[derive(Debug, Args)]
pub struct BrokerStatus {
    #[command(flatten)]
    target: Target,
}

impl BrokerStatus {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut all = BTreeMap::new();
        for address in session.replicas(&self.target).await? {
            let info = session.operator.runtime_info(&address).await?;
            if self.target.cluster_name.is_some() {
                session.out.note(&format!("============{address}============"))?;
            }
            if !session.out.is_json() {
                let facts = info.iter().fold(Facts::new(), |facts, (name, value)| facts.with(name, value));
                session.out.facts(&facts)?;
            }
            all.insert(address, info);
        }
        if session.out.is_json() {
            session.out.value("brokers", &all)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct BrokerConsumeStats {
    /// The broker
    #[arg(short, long, value_name = "HOST:PORT")]
    broker_addr: String,
    /// How long to wait for the answer, in milliseconds
    #[arg(short, long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    timeout_millis: u64,
    /// Only queues that are at least so many messages behind
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    level: i64,
    /// Whether only ordered topics are meant: true or false
    #[arg(short, long, value_parser = truth)]
    order: Option<bool>,
}

impl BrokerConsumeStats {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (address, timeout) = (self.broker_addr.trim(), Duration::from_millis(self.timeout_millis));
        let found = session.operator.broker_consume_stats(address, self.order.unwrap_or(false), timeout).await?;
        let mut table = Table::new([
            "Topic",
            "Group",
            "Broker Name",
            "QID",
            "Broker Offset",
            "Consumer Offset",
            "Diff",
            "LastTime",
        ]);
        for (group, parts) in found.consume_stats_list.iter().flatten() {
            for (queue, offset) in parts.iter().flat_map(|part| part.offset_table.iter()) {
                let diff = offset.broker_offset - offset.consumer_offset;
                // A queue of which nothing was consumed yet has no time, and counts in the total if it has messages.
                let has_nothing = diff == 0 && offset.last_timestamp <= 0;
                if diff < self.level || has_nothing {
                    continue;
                }
                let last = match offset.last_timestamp {
                    ..=0 => Cell::of("N/A", 0),
                    at => Cell::of(time::to_seconds(at), at),
                };
                table.row([
                    (&queue.topic).into(),
                    group.into(),
                    (&queue.broker_name).into(),
                    queue.queue_id.into(),
                    offset.broker_offset.into(),
                    offset.consumer_offset.into(),
                    diff.into(),
                    last,
                ]);
            }
        }
        session.out.table("queues", &table)?;
        session.out.note("")?;
        let facts = Facts::new().with("Diff Total", found.total_diff).with("Inflight Total", found.total_inflight_diff);
        session.out.facts(&facts)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct CleanExpiredCQ {
    #[command(flatten)]
    target: AnyTarget,
}

impl CleanExpiredCQ {
    pub async fn run(&self, session: &Session) -> Result<()> {
        clean(session, &self.target, Cleaning::ConsumeQueues, "clean expired consume queues").await
    }
}

#[derive(Debug, Args)]
pub struct CleanUnusedTopic {
    #[command(flatten)]
    target: AnyTarget,
}

impl CleanUnusedTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        clean(session, &self.target, Cleaning::UnusedTopics, "clean unused topics").await
    }
}

#[derive(Debug, Args)]
pub struct DeleteExpiredCommitLog {
    #[command(flatten)]
    target: AnyTarget,
}

impl DeleteExpiredCommitLog {
    pub async fn run(&self, session: &Session) -> Result<()> {
        clean(session, &self.target, Cleaning::CommitLog, "delete expired commit log files").await
    }
}

async fn clean(session: &Session, target: &AnyTarget, cleaning: Cleaning, what: &str) -> Result<()> {
    for address in addresses(session, target).await? {
        session.operator.clean(&address, cleaning).await?;
        session.out.say(format!("{what} in {address} success."))?;
    }
    Ok(())
}

async fn addresses(session: &Session, target: &AnyTarget) -> Result<Vec<String>> {
    if let Some(address) = &target.broker_addr {
        return Ok(vec![address.trim().to_owned()]);
    }
    let brokers = session.operator.registered(target.meant()).await?;
    Ok(brokers.into_iter().map(|broker| broker.address).collect())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ResetMasterFlushOffset {
    /// The slave
    #[arg(short, long, value_name = "HOST:PORT")]
    broker_addr: String,
    /// How far its master has flushed, as a place in the log
    #[arg(short, long, value_parser = clap::value_parser!(i64).range(0..))]
    offset: i64,
}

impl ResetMasterFlushOffset {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.reset_master_flush_offset(self.broker_addr.trim(), self.offset).await?;
        session.out.say(format!("reset master flush offset to {} success", self.offset))?;
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    /// A time line in RocksDB
    #[value(name = "R")]
    Rocksdb,
    /// The time wheel in files
    #[value(name = "F")]
    File,
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SwitchTimerEngine {
    #[command(flatten)]
    target: Target,
    /// Which engine
    #[arg(short, long, value_enum)]
    engine_type: Engine,
}

impl SwitchTimerEngine {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (engine, name) = match self.engine_type {
            Engine::Rocksdb => (TimerEngine::RocksDb, "ROCKSDB_TIMELINE"),
            Engine::File => (TimerEngine::File, "FILE_TIME_WHEEL"),
        };
        for address in session.masters(&self.target).await? {
            session.operator.switch_timer_engine(&address, engine).await?;
            session.out.say(format!("switchTimerEngine to {name} success, {address}"))?;
        }
        Ok(())
    }
}
