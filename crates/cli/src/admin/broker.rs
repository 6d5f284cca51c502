//! A broker's figures, and what it can be told to clean up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use protocol::body::{BrokerConsumeStats as AllGroups, KvTable};
use protocol::code::request;
use protocol::request::{GetBrokerConsumeStats, ResetMasterFlushOffset as Reset, SwitchTimerEngine as Switch};

use super::output::{Cell, Facts, Table};
use super::session::{Session, brokers_in};
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
            let info = runtime_info(session, &address).await?;
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

/// All figures that a broker tells, as texts.
pub async fn runtime_info(session: &Session, address: &str) -> Result<BTreeMap<String, String>> {
    let table: KvTable = session.admin.ask(address, request::GET_BROKER_RUNTIME_INFO, &()).await?;
    Ok(table.table)
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
        let fields = GetBrokerConsumeStats { is_order: self.order.unwrap_or(false) };
        let admin = session.admin.within(Duration::from_millis(self.timeout_millis));
        let found: AllGroups = admin.ask(self.broker_addr.trim(), request::GET_BROKER_CONSUME_STATS, &fields).await?;
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
        clean(session, &self.target, request::CLEAN_EXPIRED_CONSUMEQUEUE, "clean expired consume queues").await
    }
}

#[derive(Debug, Args)]
pub struct CleanUnusedTopic {
    #[command(flatten)]
    target: AnyTarget,
}

impl CleanUnusedTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        clean(session, &self.target, request::CLEAN_UNUSED_TOPIC, "clean unused topics").await
    }
}

#[derive(Debug, Args)]
pub struct DeleteExpiredCommitLog {
    #[command(flatten)]
    target: AnyTarget,
}

impl DeleteExpiredCommitLog {
    pub async fn run(&self, session: &Session) -> Result<()> {
        clean(session, &self.target, request::DELETE_EXPIRED_COMMITLOG, "delete expired commit log files").await
    }
}

async fn clean(session: &Session, target: &AnyTarget, code: i32, what: &str) -> Result<()> {
    for address in addresses(session, target).await? {
        session.admin.tell(&address, code, &()).await?;
        session.out.say(format!("{what} in {address} success."))?;
    }
    Ok(())
}

async fn addresses(session: &Session, target: &AnyTarget) -> Result<Vec<String>> {
    if let Some(address) = &target.broker_addr {
        return Ok(vec![address.trim().to_owned()]);
    }
    let info = session.cluster().await?;
    let clusters: Vec<&str> = match target.cluster.as_deref() {
        Some(cluster) => vec![cluster.trim()],
        None => info.cluster_addr_table.keys().map(String::as_str).collect(),
    };
    let mut addresses = Vec::new();
    for cluster in clusters {
        addresses.extend(brokers_in(&info, cluster)?.into_iter().map(|broker| broker.address));
    }
    Ok(addresses)
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
        let fields = Reset { master_flush_offset: self.offset };
        session.admin.tell(self.broker_addr.trim(), request::RESET_MASTER_FLUSH_OFFSET, &fields).await?;
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
        let (engine_type, name) = match self.engine_type {
            Engine::Rocksdb => ("R", "ROCKSDB_TIMELINE"),
            Engine::File => ("F", "FILE_TIME_WHEEL"),
        };
        for address in session.masters(&self.target).await? {
            session.admin.tell(&address, request::SWITCH_TIMER_ENGINE, &Switch { engine_type }).await?;
            session.out.say(format!("switchTimerEngine to {name} success, {address}"))?;
        }
        Ok(())
    }
}
