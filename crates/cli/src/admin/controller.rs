//! Controllers: who leads them, and what they can be told.

use anyhow::{Context, Result, bail};
use clap::Args;
use protocol::body::ElectMasterReplyBody;
use protocol::code::request;
use protocol::request::{CleanBrokerData, ElectMaster as Elect, ElectMasterReply, GetControllerMetadataReply};

use super::configuration::addresses;
use super::output::{Facts, Table};
use super::session::Session;

/// Where the leader of the controllers is, as the first one that answers tells.
pub async fn leader(session: &Session, controllers: &str) -> Result<String> {
    let mut last = None;
    for address in addresses(controllers) {
        match session.admin.tell(address, request::CONTROLLER_GET_METADATA_INFO, &()).await {
            Ok(response) => {
                let reply = GetControllerMetadataReply::decode(&response.fields.as_fields())?;
                let leader = reply.controller_leader_address.filter(|leader| !leader.is_empty());
                return leader.map(str::to_owned).context("the controllers have no leader at the moment");
            }
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => bail!("no controller is given"),
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetControllerMetaData {
    /// A controller
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
}

impl GetControllerMetaData {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let address = self.controller_address.trim();
        let response = session.admin.tell(address, request::CONTROLLER_GET_METADATA_INFO, &()).await?;
        let reply = GetControllerMetadataReply::decode(&response.fields.as_fields())?;
        let facts = Facts::new()
            .with("ControllerGroup", reply.group)
            .with("ControllerLeaderId", reply.controller_leader_id)
            .with("ControllerLeaderAddress", reply.controller_leader_address);
        session.out.facts(&facts)?;
        let mut table = Table::new(["Peer"]);
        addresses(reply.peers.unwrap_or_default()).for_each(|peer| table.row([peer.into()]));
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
        let leader = leader(session, &self.controller_address).await?;
        let fields = Elect {
            cluster_name: self.cluster_name.trim(),
            broker_name: self.broker_name.trim(),
            broker_id: self.broker_id,
            designate_elect: true,
            invoke_time: Some(session.now()),
        };
        let response = session.admin.tell(&leader, request::CONTROLLER_ELECT_MASTER, &fields).await?;
        let reply = ElectMasterReply::decode(&response.fields.as_fields())?;
        let facts = Facts::new()
            .with("ClusterName", fields.cluster_name)
            .with("BrokerName", fields.broker_name)
            .with("BrokerMasterAddr", reply.master_address)
            .with("MasterEpoch", reply.master_epoch)
            .with("SyncStateSetEpoch", reply.sync_state_set_epoch);
        session.out.facts(&facts)?;
        if !response.body.is_empty() {
            let body: ElectMasterReplyBody = client::admin::read(&response)?;
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
        if let Some(ids) = &self.broker_controller_ids_to_clean
            && let Some(wrong) = ids.split(';').find(|id| id.trim().parse::<i64>().is_err())
        {
            bail!("\"{wrong}\" is not the id of a broker");
        }
        let leader = leader(session, &self.controller_address).await?;
        let fields = CleanBrokerData {
            cluster_name: self.cluster_name.as_deref().map(str::trim),
            broker_name: self.broker_name.trim(),
            broker_controller_ids_to_clean: self.broker_controller_ids_to_clean.as_deref(),
            is_clean_living_broker: self.clean_living_broker,
            invoke_time: Some(session.now()),
        };
        session.admin.tell(&leader, request::CLEAN_BROKER_DATA, &fields).await?;
        session.out.say(format!("clear broker {} metadata from controller success!", fields.broker_name))?;
        Ok(())
    }
}
