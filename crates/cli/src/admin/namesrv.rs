//! What name servers keep: keys, and whether a broker may be written to.

use anyhow::Result;
use clap::Args;

use super::output::Table;
use super::session::Session;

#[derive(Debug, Args)]
pub struct UpdateKvConfig {
    /// The namespace
    #[arg(short = 's', long)]
    namespace: String,
    /// The key
    #[arg(short, long)]
    key: String,
    /// Its new value
    #[arg(short, long, allow_hyphen_values = true)]
    value: String,
}

impl UpdateKvConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.set_kv(self.namespace.trim(), self.key.trim(), self.value.trim()).await?;
        session.out.say("create or update kv config to namespace success.")?;
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct DeleteKvConfig {
    /// The namespace
    #[arg(short = 's', long)]
    namespace: String,
    /// The key
    #[arg(short, long)]
    key: String,
}

impl DeleteKvConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.delete_kv(self.namespace.trim(), self.key.trim()).await?;
        session.out.say("delete kv config from namespace success.")?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct WipeWritePerm {
    /// The broker's name
    #[arg(short, long)]
    broker_name: String,
}

impl WipeWritePerm {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let broker_name = self.broker_name.trim();
        show(session, broker_name, session.operator.wipe_write_perm(broker_name).await?)
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct AddWritePerm {
    /// The broker's name
    #[arg(short, long)]
    broker_name: String,
}

impl AddWritePerm {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let broker_name = self.broker_name.trim();
        show(session, broker_name, session.operator.add_write_perm(broker_name).await?)
    }
}

fn show(session: &Session, broker_name: &str, counts: Vec<(String, i32)>) -> Result<()> {
    let mut table = Table::new(["Name Server", "Broker Name", "Topics"]);
    for (address, topics) in counts {
        table.row([address.into(), broker_name.into(), topics.into()]);
    }
    session.out.table("nameServers", &table)?;
    Ok(())
}
