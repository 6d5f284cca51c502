//! What a broker keeps in RocksDB. The files of RocksDB themselves are read by a broker only: this tool has no RocksDB inside.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::output::Table;
use super::session::Session;
use super::truth;

/// What brokers keep in RocksDB.
const TYPES: [&str; 3] = ["topics", "subscriptionGroups", "consumerOffsets"];
/// As mqadmin: the last month is compared.
const MONTH_MS: i64 = 30 * 24 * 3_600_000;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CheckRocksdbCqWriteProgress {
    /// The cluster
    #[arg(short, long)]
    cluster: String,
    /// The topic; without it, all
    #[arg(short, long)]
    topic: Option<String>,
    /// Messages stored at this time or later, in milliseconds; without it, those of the last 30 days
    #[arg(long, alias = "cf", value_parser = clap::value_parser!(i64).range(0..))]
    check_from: Option<i64>,
}

impl CheckRocksdbCqWriteProgress {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let from = self.check_from.unwrap_or_else(|| session.operator.now() - MONTH_MS);
        let mut table = Table::new(["Broker Name", "Status", "Result"]);
        for broker in session.operator.masters_of_cluster(self.cluster.trim()).await? {
            let topic = self.topic.as_deref().unwrap_or_default().trim();
            let result = session.operator.check_rocksdb_queues(&broker.address, topic, from).await?;
            let status = match result.check_status {
                0 => "OK",
                1 => "DIFFERENT",
                2 => "UNDER WAY: see the broker's log",
                _ => "ERROR: see the broker's log",
            };
            table.row([(&broker.name).into(), status.into(), result.check_result.into()]);
        }
        session.out.table("brokers", &table)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ExportMetadataInRocksDb {
    /// The folder of the RocksDB
    #[arg(short, long)]
    path: PathBuf,
    /// topics or subscriptionGroups
    #[arg(short = 't', long)]
    config_type: String,
    /// Whether to print JSON: true or false
    #[arg(short, long, value_parser = truth)]
    json_enable: Option<bool>,
}

impl ExportMetadataInRocksDb {
    pub async fn run(&self, _: &Session) -> Result<()> {
        bail!(
            "the RocksDB in {} cannot be read here: ask its broker, with rocksDBConfigToJson -b HOST:PORT -t {}",
            self.path.display(),
            self.config_type
        )
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct RocksDbConfigToJson {
    /// topics, subscriptionGroups or consumerOffsets, separated by semicolons; without it, all
    #[arg(short = 't', long)]
    config_type: Option<String>,
    /// A folder of RocksDB: not read here, ask its broker instead
    #[arg(short = 'p', long, conflicts_with_all = ["broker_addr", "cluster"])]
    config_path: Option<PathBuf>,
    /// With -p only
    #[arg(short, long, requires = "config_path")]
    export_file: Option<PathBuf>,
    /// With -p only
    #[arg(short, long, requires = "config_path", value_parser = truth)]
    json_enable: Option<bool>,
    /// The masters of this cluster
    #[arg(short, long)]
    cluster: Option<String>,
    /// This broker
    #[arg(short, long, value_name = "HOST:PORT")]
    broker_addr: Option<String>,
}

impl RocksDbConfigToJson {
    pub async fn run(&self, session: &Session) -> Result<()> {
        if let Some(path) = &self.config_path {
            bail!("the RocksDB in {} cannot be read here: ask its broker with -b or -c", path.display());
        }
        let types = match &self.config_type {
            None => TYPES.join(";"),
            Some(types) => {
                let is_known = |one: &str| TYPES.iter().any(|known| known.eq_ignore_ascii_case(one.trim()));
                if let Some(wrong) = types.split(';').find(|one| !is_known(one)) {
                    bail!("\"{wrong}\" is not kept in RocksDB: topics, subscriptionGroups and consumerOffsets are");
                }
                types.clone()
            }
        };
        let addresses = match (&self.cluster, &self.broker_addr) {
            (Some(cluster), _) => {
                let masters = session.operator.masters_of_cluster(cluster.trim()).await?.into_iter();
                masters.map(|broker| broker.address).collect()
            }
            (None, Some(address)) => vec![address.trim().to_owned()],
            (None, None) => bail!("which brokers: -c CLUSTER or -b HOST:PORT"),
        };
        for address in addresses {
            session.operator.export_rocksdb(&address, &types).await?;
            session.out.say(format!("export {types} in {address} success."))?;
        }
        Ok(())
    }
}
