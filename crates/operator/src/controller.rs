//! Controllers: which one leads, and what they can be told.

use protocol::body::ElectMasterReplyBody;
use protocol::code::request;
use protocol::request::{CleanBrokerData, ElectMaster, ElectMasterReply, GetControllerMetadataReply};

use crate::error::{OperatorError, Result};
use crate::handle::Operator;

/// What a controller says of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controllers {
    /// Their group.
    pub group: Option<String>,
    /// The id of the one that leads.
    pub leader_id: Option<String>,
    /// Its address.
    pub leader_address: Option<String>,
    /// All of them.
    pub peers: Vec<String>,
}

/// A master that was elected.
#[derive(Clone, Debug)]
pub struct Election {
    /// Its address.
    pub master_address: Option<String>,
    /// Its epoch.
    pub master_epoch: Option<i32>,
    /// The epoch of the set of replicas that keep up.
    pub sync_state_set_epoch: Option<i32>,
    /// The replicas, if the controller tells them.
    pub replicas: Option<ElectMasterReplyBody>,
}

/// Which brokers controllers are to forget.
#[derive(Clone, Copy, Debug)]
pub struct Forgotten<'a> {
    /// Their cluster.
    pub cluster: Option<&'a str>,
    /// Their name.
    pub broker_name: &'a str,
    /// Their ids, separated by semicolons; without it, all of the name.
    pub ids: Option<&'a str>,
    /// Those that live, too.
    pub with_living: bool,
}

impl Operator {
    /// Where the leader of the controllers is, as the first one of `controllers` that answers tells. Semicolons separate them.
    pub async fn leading_controller(&self, controllers: &str) -> Result<String> {
        let mut last = OperatorError::Invalid("no controller is given".to_owned());
        for address in addresses(controllers) {
            match self.controllers(address).await {
                Ok(found) => {
                    let leader = found.leader_address.filter(|leader| !leader.is_empty());
                    let none = || OperatorError::Unfit("the controllers have no leader at the moment".to_owned());
                    return leader.ok_or_else(none);
                }
                Err(error @ OperatorError::Fields(_)) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// What a controller says of all of them.
    pub async fn controllers(&self, address: &str) -> Result<Controllers> {
        let response = self.admin.tell(address, request::CONTROLLER_GET_METADATA_INFO, &()).await?;
        let fields = response.fields.as_fields();
        let reply = GetControllerMetadataReply::decode(&fields)?;
        Ok(Controllers {
            group: reply.group.map(str::to_owned),
            leader_id: reply.controller_leader_id.map(str::to_owned),
            leader_address: reply.controller_leader_address.map(str::to_owned),
            peers: addresses(reply.peers.unwrap_or_default()).map(str::to_owned).collect(),
        })
    }

    /// Makes a broker the master.
    pub async fn elect_master(
        &self,
        controllers: &str,
        cluster_name: &str,
        broker_name: &str,
        broker_id: i64,
    ) -> Result<Election> {
        let leader = self.leading_controller(controllers).await?;
        let invoke_time = Some(self.now());
        let fields = ElectMaster { cluster_name, broker_name, broker_id, designate_elect: true, invoke_time };
        let response = self.admin.tell(&leader, request::CONTROLLER_ELECT_MASTER, &fields).await?;
        let fields = response.fields.as_fields();
        let reply = ElectMasterReply::decode(&fields)?;
        Ok(Election {
            master_address: reply.master_address.map(str::to_owned),
            master_epoch: reply.master_epoch,
            sync_state_set_epoch: reply.sync_state_set_epoch,
            replicas: if response.body.is_empty() { None } else { Some(client::admin::read(&response)?) },
        })
    }

    /// Lets the controllers forget brokers.
    pub async fn forget_brokers(&self, controllers: &str, forgotten: &Forgotten<'_>) -> Result<()> {
        if let Some(wrong) = forgotten.ids.and_then(|ids| ids.split(';').find(|id| id.trim().parse::<i64>().is_err())) {
            return Err(OperatorError::Invalid(format!("\"{wrong}\" is not the id of a broker")));
        }
        let leader = self.leading_controller(controllers).await?;
        let fields = CleanBrokerData {
            cluster_name: forgotten.cluster,
            broker_name: forgotten.broker_name,
            broker_controller_ids_to_clean: forgotten.ids,
            is_clean_living_broker: forgotten.with_living,
            invoke_time: Some(self.now()),
        };
        self.admin.tell(&leader, request::CLEAN_BROKER_DATA, &fields).await?;
        Ok(())
    }
}

/// Addresses that are separated by semicolons.
pub fn addresses(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|one| !one.is_empty())
}
