//! Containers: processes of Apache's that hold several brokers.

use protocol::code::request;
use protocol::request::{AddBroker, RemoveBroker};

use crate::error::Result;
use crate::handle::Operator;

impl Operator {
    /// Starts a broker in a container, with a property file on the container's machine.
    pub async fn add_broker(&self, container: &str, config_path: &str) -> Result<()> {
        self.admin.tell(container, request::ADD_BROKER, &AddBroker { config_path }).await?;
        Ok(())
    }

    /// Stops a broker in a container.
    pub async fn remove_broker(&self, container: &str, cluster: &str, name: &str, id: i64) -> Result<()> {
        let fields = RemoveBroker { broker_name: name, broker_cluster_name: cluster, broker_id: id };
        self.admin.tell(container, request::REMOVE_BROKER, &fields).await?;
        Ok(())
    }
}
