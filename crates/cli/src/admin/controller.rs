//! Controllers: who leads them, and what they can be told.

use anyhow::Result;
use clap::Args;
use operator::controller::Forgotten;

use super::output::{Facts, Table};
use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetControllerMetaData {
    /// A controller
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
}

impl GetControllerMetaData {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let found = session.operator.controllers(self.controller_address.trim()).await?;
        let facts = Facts::new()
            .with("ControllerGroup", found.group)
            .with("ControllerLeaderId", found.leader_id)
            .with("ControllerLeaderAddress", found.leader_address);
        session.out.facts(&facts)?;
        let mut table = Table::new(["Peer"]);
        found.peers.into_iter().for_each(|peer| table.row([peer.into()]));
        session.out.table("peers", &table)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ElectMaster {
    /// A controller
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
    /// The broker that is to be master, by its id
    #[arg(short, long, value_parser = clap::value_parser!(i64).range(0..))]
    broker_id: i64,
    /// Its name
    #[arg(long, alias = "bn")]
    broker_name: String,
    /// Its cluster
    #[arg(short, long)]
    cluster_name: String,
}

impl ElectMaster {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (cluster, name) = (self.cluster_name.trim(), self.broker_name.trim());
        let elected = session.operator.elect_master(&self.controller_address, cluster, name, self.broker_id).await?;
        let facts = Facts::new()
            .with("ClusterName", cluster)
            .with("BrokerName", name)
            .with("BrokerMasterAddr", elected.master_address)
            .with("MasterEpoch", elected.master_epoch)
            .with("SyncStateSetEpoch", elected.sync_state_set_epoch);
        session.out.facts(&facts)?;
        if let Some(body) = elected.replicas {
            let mut table = Table::new(["BrokerId", "Addr", "InSync"]);
            for (id, address) in body.broker_member_group.iter().flat_map(|group| &group.broker_addrs) {
                let is_in_sync = body.sync_state_set.as_ref().is_some_and(|set| set.contains(id));
                table.row([(*id).into(), address.into(), is_in_sync.into()]);
            }
            session.out.table("brokers", &table)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct CleanBrokerMetadata {
    /// A controller
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
    /// Ids of the brokers to forget, separated by semicolons; without it, all of the name
    #[arg(short = 'b', long)]
    broker_controller_ids_to_clean: Option<String>,
    /// Their name
    #[arg(long, alias = "bn")]
    broker_name: String,
    /// Their cluster
    #[arg(short, long, required_unless_present = "clean_living_broker")]
    cluster_name: Option<String>,
    /// Forget brokers that live, too
    #[arg(short = 'l', long)]
    clean_living_broker: bool,
}

impl CleanBrokerMetadata {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let forgotten = Forgotten {
            cluster: self.cluster_name.as_deref().map(str::trim),
            broker_name: self.broker_name.trim(),
            ids: self.broker_controller_ids_to_clean.as_deref(),
            with_living: self.clean_living_broker,
        };
        session.operator.forget_brokers(&self.controller_address, &forgotten).await?;
        session.out.say(format!("clear broker {} metadata from controller success!", forgotten.broker_name))?;
        Ok(())
    }
}
