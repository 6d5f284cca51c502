//! How replication goes.

use protocol::body::{BrokerReplicasInfo, EpochEntryCache, HaRuntimeInfo};
use protocol::code::request;

use crate::error::Result;
use crate::handle::Operator;

impl Operator {
    /// How replication goes, as a master or a slave knows it.
    pub async fn ha_status(&self, address: &str) -> Result<HaRuntimeInfo> {
        Ok(self.admin.ask(address, request::GET_BROKER_HA_STATUS, &()).await?)
    }

    /// Which replicas of these broker names keep up, as the leader of the controllers knows it.
    pub async fn sync_states(&self, controllers: &str, names: &[String]) -> Result<BrokerReplicasInfo> {
        let leader = self.leading_controller(controllers).await?;
        let response = self.admin.tell_json(&leader, request::CONTROLLER_GET_SYNC_STATE_DATA, &(), &names).await?;
        Ok(client::admin::read(&response)?)
    }

    /// The epochs of a broker's log.
    pub async fn epochs(&self, address: &str) -> Result<EpochEntryCache> {
        Ok(self.admin.ask(address, request::GET_BROKER_EPOCH_CACHE, &()).await?)
    }
}
