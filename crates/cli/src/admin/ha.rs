//! How replication goes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use protocol::body::HaRuntimeInfo;

use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::target::Target;

/// Shows something once, or again and again.
macro_rules! repeated {
    ($command:expr, $session:expr) => {
        loop {
            $command.show($session).await?;
            let Some(seconds) = $command.interval else { return Ok(()) };
            $session.out.note("")?;
            if !$session.again_after(Duration::from_secs(seconds)).await? {
                return Ok(());
            }
        }
    };
}

#[derive(Debug, Args)]
pub struct HaStatus {
    #[command(flatten)]
    target: Target,
    /// Again and again, after so many seconds
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
}

impl HaStatus {
    pub async fn run(&self, session: &Session) -> Result<()> {
        repeated!(self, session)
    }

    async fn show(&self, session: &Session) -> Result<()> {
        let mut all = BTreeMap::new();
        for address in session.masters(&self.target).await? {
            let info = session.operator.ha_status(&address).await?;
            if !session.out.is_json() {
                print(session, &address, &info)?;
            }
            all.insert(address, info);
        }
        if session.out.is_json() {
            session.out.value("brokers", &all)?;
        }
        Ok(())
    }
}

fn print(session: &Session, address: &str, info: &HaRuntimeInfo) -> Result<()> {
    if info.master {
        let facts = Facts::new()
            .with("MasterAddr", address)
            .with("MasterCommitLogMaxOffset", info.master_commit_log_max_offset)
            .with("SlaveNum", info.ha_connection_info.len())
            .with("InSyncSlaveNum", info.in_sync_slave_nums);
        session.out.facts(&facts)?;
        let mut table = Table::new([
            "SlaveAddr",
            "SlaveAckOffset",
            "Diff",
            "TransferSpeed(KB/s)",
            "Status",
            "TransferFromWhere",
            "BrokerId",
            "SlaveFlushOffset",
        ]);
        for slave in &info.ha_connection_info {
            table.row([
                (&slave.addr).into(),
                slave.slave_ack_offset.into(),
                slave.diff.into(),
                (slave.transferred_byte_in_second as f64 / 1024.0).into(),
                (if slave.in_sync { "OK" } else { "Fall Behind" }).into(),
                slave.transfer_from_where.into(),
                slave.broker_id.into(),
                slave.slave_flush_offset.into(),
            ]);
        }
        // Only slaves of Gantry say it, to masters of Gantry.
        if info.ha_connection_info.iter().all(|slave| slave.broker_id.is_none()) {
            table = table.without("SlaveFlushOffset").without("BrokerId");
        }
        session.out.table("slaves", &table)?;
    } else if let Some(slave) = &info.ha_client_runtime_info {
        let mut facts = Facts::new()
            .with("MasterAddr", slave.master_addr.as_deref())
            .with("CommitLogMaxOffset", slave.max_offset)
            .with("TransferSpeed(KB/s)", slave.transferred_byte_in_second as f64 / 1024.0)
            .with("LastReadTime", Cell::time(slave.last_read_timestamp))
            .with("LastWriteTime", Cell::time(slave.last_write_timestamp))
            .with("MasterFlushOffset", slave.master_flush_offset);
        // Only slaves of Gantry say it.
        if let Some(why) = &slave.failure {
            facts = facts.with("Failure", why);
        }
        session.out.facts(&facts)?;
    }
    Ok(())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetSyncStateSet {
    /// A controller
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
    /// The brokers of this cluster
    #[arg(short, long, conflicts_with = "broker_name")]
    cluster_name: Option<String>,
    /// This broker, by name
    #[arg(short, long)]
    broker_name: Option<String>,
    /// Again and again, after so many seconds
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
}

impl GetSyncStateSet {
    pub async fn run(&self, session: &Session) -> Result<()> {
        repeated!(self, session)
    }

    async fn show(&self, session: &Session) -> Result<()> {
        let names: Vec<String> = match (&self.broker_name, &self.cluster_name) {
            (Some(name), _) => vec![name.trim().to_owned()],
            (None, Some(cluster)) => session.operator.names_in(cluster).await?,
            (None, None) => bail!("which brokers: -c CLUSTER or -b NAME"),
        };
        let info = session.operator.sync_states(&self.controller_address, &names).await?;
        if session.out.is_json() {
            session.out.value("brokers", &info.replicas_info_table)?;
            return Ok(());
        }
        for (name, replicas) in &info.replicas_info_table {
            let facts = Facts::new()
                .with("brokerName", name)
                .with("MasterBrokerId", replicas.master_broker_id)
                .with("MasterAddr", replicas.master_address.as_deref())
                .with("MasterEpoch", replicas.master_epoch)
                .with("SyncStateSetEpoch", replicas.sync_state_set_epoch)
                .with("SyncStateSetNums", replicas.in_sync_replicas.len());
            session.out.facts(&facts)?;
            let mut table = Table::new(["BrokerId", "BrokerAddress", "Alive", "InSync"]);
            let kept = replicas.in_sync_replicas.iter().map(|replica| (replica, true));
            for (replica, is_in_sync) in
                kept.chain(replicas.not_in_sync_replicas.iter().map(|replica| (replica, false)))
            {
                let address = replica.broker_address.as_deref();
                table.row([replica.broker_id.into(), address.into(), replica.alive.into(), is_in_sync.into()]);
            }
            session.out.table("replicas", &table)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
#[group(id = "whose", args = ["cluster_name", "broker_name"], required = true, multiple = false)]
pub struct GetBrokerEpoch {
    /// The brokers of this cluster
    #[arg(short, long)]
    cluster_name: Option<String>,
    /// The brokers of this name
    #[arg(short, long)]
    broker_name: Option<String>,
    /// Again and again, after so many seconds
    #[arg(short, long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
}

impl GetBrokerEpoch {
    pub async fn run(&self, session: &Session) -> Result<()> {
        repeated!(self, session)
    }

    async fn show(&self, session: &Session) -> Result<()> {
        let mut table = Table::new(["clusterName", "brokerName", "brokerAddr", "brokerId", "Epoch", "Start", "End"]);
        for address in self.addresses(session).await? {
            let cache = session.operator.epochs(&address).await?;
            for (at, entry) in cache.epoch_list.iter().enumerate() {
                // The last epoch goes on: its end is where the log ends now.
                let end = if at + 1 == cache.epoch_list.len() { cache.max_offset } else { entry.end_offset };
                table.row([
                    (&cache.cluster_name).into(),
                    (&cache.broker_name).into(),
                    (&address).into(),
                    cache.broker_id.into(),
                    entry.epoch.into(),
                    entry.start_offset.into(),
                    end.into(),
                ]);
            }
        }
        session.out.table("epochs", &table)?;
        Ok(())
    }

    async fn addresses(&self, session: &Session) -> Result<Vec<String>> {
        if let Some(cluster) = &self.cluster_name {
            let brokers = session.operator.brokers(cluster.trim()).await?;
            return Ok(brokers.into_iter().map(|broker| broker.address).collect());
        }
        let name = self.broker_name.as_deref().unwrap_or_default().trim();
        Ok(session.operator.replicas_of(name).await?)
    }
}
