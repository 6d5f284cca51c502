//! What name servers keep: keys, and whether a broker may be written to.

use anyhow::{Result, bail};
use clap::Args;
use protocol::code::{ResponseCode, request};
use protocol::request::{
    AddWritePerm as Add, AddWritePermReply, DeleteKv, GetKv, PutKv, WipeWritePerm as Wipe, WipeWritePermReply,
};

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
        session.need_names()?;
        for address in session.admin.name_servers() {
            let fields = PutKv { namespace: self.namespace.trim(), key: self.key.trim(), value: self.value.trim() };
            session.admin.tell(address, request::PUT_KV_CONFIG, &fields).await?;
        }
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
        session.need_names()?;
        let mut is_known = false;
        for address in session.admin.name_servers() {
            let (namespace, key) = (self.namespace.trim(), self.key.trim());
            match session.admin.tell(address, request::GET_KV_CONFIG, &GetKv { namespace, key }).await {
                Err(error) if error.code() == Some(ResponseCode::QueryNotFound as i32) => continue,
                known => known.map(|_| is_known = true)?,
            }
            session.admin.tell(address, request::DELETE_KV_CONFIG, &DeleteKv { namespace, key }).await?;
        }
        if !is_known {
            bail!(
                "no name server has key {} of namespace {}: nothing is deleted",
                self.key.trim(),
                self.namespace.trim()
            );
        }
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
        session.need_names()?;
        let broker_name = self.broker_name.trim();
        need_broker(session, broker_name).await?;
        let mut table = Table::new(["Name Server", "Broker Name", "Topics"]);
        for address in session.admin.name_servers() {
            let code = request::WIPE_WRITE_PERM_OF_BROKER;
            let response = session.admin.tell(address, code, &Wipe { broker_name }).await?;
            let reply = WipeWritePermReply::decode(&response.fields.as_fields())?;
            table.row([address.into(), broker_name.into(), reply.wipe_topic_count.into()]);
        }
        session.out.table("nameServers", &table)?;
        Ok(())
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
        session.need_names()?;
        let broker_name = self.broker_name.trim();
        need_broker(session, broker_name).await?;
        let mut table = Table::new(["Name Server", "Broker Name", "Topics"]);
        for address in session.admin.name_servers() {
            let code = request::ADD_WRITE_PERM_OF_BROKER;
            let response = session.admin.tell(address, code, &Add { broker_name }).await?;
            let reply = AddWritePermReply::decode(&response.fields.as_fields())?;
            table.row([address.into(), broker_name.into(), reply.add_topic_count.into()]);
        }
        session.out.table("nameServers", &table)?;
        Ok(())
    }
}

/// Fails if no broker of that name is registered: name servers answer that no topic changed, and call it a success.
async fn need_broker(session: &Session, name: &str) -> Result<()> {
    let cluster = session.cluster().await?;
    if !cluster.broker_addr_table.contains_key(name) {
        let known: Vec<&str> = cluster.broker_addr_table.keys().map(String::as_str).collect();
        bail!("the name server knows no broker {name}: it knows {}", known.join(", "));
    }
    Ok(())
}
