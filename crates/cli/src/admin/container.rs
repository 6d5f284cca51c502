//! Containers: processes of Apache's that hold several brokers.

use anyhow::{Context, Result};
use clap::Args;

use super::session::Session;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct AddBroker {
    /// The container
    #[arg(short = 'c', long, value_name = "HOST:PORT")]
    broker_container_addr: String,
    /// The broker's property file, on the container's machine
    #[arg(short, long)]
    broker_config_path: String,
}

impl AddBroker {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let address = self.broker_container_addr.trim();
        session.operator.add_broker(address, self.broker_config_path.trim()).await?;
        session.out.say(format!("add broker to {address} success"))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct RemoveBroker {
    /// The container
    #[arg(short = 'c', long, value_name = "HOST:PORT")]
    broker_container_addr: String,
    /// The broker: cluster:name:id
    #[arg(short, long)]
    broker_identity: String,
}

impl RemoveBroker {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut parts = self.broker_identity.split(':').map(str::trim);
        let mut read = || -> Option<(&str, &str, i64)> {
            let (cluster, name) = (parts.next()?, parts.next()?);
            let id = parts.next()?.parse().ok().filter(|id| *id >= 0)?;
            parts.next().is_none().then_some((cluster, name, id))
        };
        let (cluster, name, id) =
            read().with_context(|| format!("\"{}\" is not cluster:name:id", self.broker_identity))?;
        let address = self.broker_container_addr.trim();
        session.operator.remove_broker(address, cluster, name, id).await?;
        session.out.say(format!("remove broker from {address} success"))?;
        Ok(())
    }
}
