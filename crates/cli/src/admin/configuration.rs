//! The configuration of brokers, name servers and controllers: showing it, changing it, writing it into a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use operator::configuration::{Server, Setting, Settings};
use operator::controller::addresses;
use protocol::body::MASTER_ID;
use serde_json::json;

use super::export::{DEFAULT_FOLDER, write};
use super::output::Facts;
use super::session::Session;
use super::target::Target;

/// What an export of the configuration holds of each broker.
const EXPORTED: [&str; 16] = [
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "fileReservedTime",
    "filterServerNums",
    "flushDiskType",
    "maxMessageSize",
    "messageDelayLevel",
    "msgTraceTopicName",
    "slaveReadEnable",
    "traceOn",
    "traceTopicEnable",
    "useTLS",
    "autoCreateTopicEnable",
    "autoCreateSubscriptionGroup",
];

/// What a server says beside success, such as that a change has no effect, or will be forgotten.
fn note(session: &Session, remark: Option<String>) -> Result<()> {
    if let Some(remark) = remark {
        session.out.say(format!("note: {remark}"))?;
    }
    Ok(())
}

fn show(session: &Session, all: &BTreeMap<String, Settings>) -> Result<()> {
    if session.out.is_json() {
        session.out.value("configurations", all)?;
        return Ok(());
    }
    for (address, settings) in all {
        session.out.note(&format!("============{address}============"))?;
        let width = settings.keys().map(String::len).max().unwrap_or(0);
        for (key, value) in settings {
            session.out.note(&format!("{key:width$} = {value}"))?;
        }
    }
    Ok(())
}

#[derive(Debug, Args)]
pub struct GetBrokerConfig {
    #[command(flatten)]
    target: Target,
}

impl GetBrokerConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut all = BTreeMap::new();
        for address in session.replicas(&self.target).await? {
            let settings = session.operator.settings(Server::Broker, &address).await?;
            all.insert(address, settings);
        }
        show(session, &all)
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateBrokerConfig {
    #[command(flatten)]
    target: Target,
    /// With -c: slaves too; the value does not matter
    #[arg(short = 'a', long)]
    update_all_broker: Option<String>,
    /// The key
    #[arg(short, long)]
    key: String,
    /// Its new value
    #[arg(short, long, allow_hyphen_values = true)]
    value: String,
}

impl UpdateBrokerConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let setting = Setting::new(&self.key, &self.value)?;
        let with_slaves = self.update_all_broker.is_some();
        let addresses =
            if with_slaves { session.replicas(&self.target).await } else { session.masters(&self.target).await };
        for address in addresses? {
            let said = session.operator.set(Server::Broker, &address, &setting).await?;
            session.out.say(format!("update broker config success, {address}"))?;
            note(session, said)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct GetNamesrvConfig {}

impl GetNamesrvConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.need_names()?;
        let mut all = BTreeMap::new();
        for address in session.operator.name_servers() {
            all.insert(address.clone(), session.operator.settings(Server::NameServer, address).await?);
        }
        show(session, &all)
    }
}

#[derive(Debug, Args)]
pub struct UpdateNamesrvConfig {
    /// The key
    #[arg(short, long)]
    key: String,
    /// Its new value
    #[arg(short, long, allow_hyphen_values = true)]
    value: String,
}

impl UpdateNamesrvConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.operator.need_names()?;
        let setting = Setting::new(&self.key, &self.value)?;
        for address in session.operator.name_servers() {
            let said = session.operator.set(Server::NameServer, address, &setting).await?;
            session.out.say(format!("update name server config success, {address}"))?;
            note(session, said)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetControllerConfig {
    /// The controllers, separated by semicolons
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
}

impl GetControllerConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut all = BTreeMap::new();
        for address in addresses(&self.controller_address) {
            all.insert(address.to_owned(), session.operator.settings(Server::Controller, address).await?);
        }
        show(session, &all)
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateControllerConfig {
    /// The controllers, separated by semicolons
    #[arg(short = 'a', long, value_name = "HOST:PORT")]
    controller_address: String,
    /// The key
    #[arg(short, long)]
    key: String,
    /// Its new value
    #[arg(short, long, allow_hyphen_values = true)]
    value: String,
}

impl UpdateControllerConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let setting = Setting::new(&self.key, &self.value)?;
        for address in addresses(&self.controller_address) {
            session.operator.set(Server::Controller, address, &setting).await?;
            session.out.say(format!("update controller config success, {address}"))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct ExportConfigs {
    /// The cluster
    #[arg(short, long)]
    cluster_name: String,
    /// The folder to write configs.json into
    #[arg(short, long, default_value = DEFAULT_FOLDER)]
    file_path: PathBuf,
}

impl ExportConfigs {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let brokers = session.operator.brokers(self.cluster_name.trim()).await?;
        let (masters, slaves): (Vec<_>, Vec<_>) = brokers.into_iter().partition(|broker| broker.id == MASTER_ID);
        let mut configs = BTreeMap::new();
        for master in &masters {
            let mut settings = session.operator.settings(Server::Broker, &master.address).await?;
            settings.retain(|key, _| EXPORTED.contains(&key.as_str()));
            configs.insert(&master.name, settings);
        }
        let export = json!({
            "brokerConfigs": configs,
            "clusterScale": {
                "namesrvSize": session.operator.name_servers().len(),
                "masterBrokerSize": masters.len(),
                "slaveBrokerSize": slaves.len(),
            },
        });
        let path = write(&self.file_path, "configs.json", &export)?;
        session.out.facts(&Facts::new().with("export success", path.display().to_string()))?;
        Ok(())
    }
}
