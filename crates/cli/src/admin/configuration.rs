//! The configuration of brokers, name servers and controllers: showing it, changing it, writing it into a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
use bytes::Bytes;
use clap::Args;
use protocol::body::MASTER_ID;
use protocol::code::request;
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

/// Keys and values of a property file.
pub type Settings = BTreeMap<String, String>;

/// Asks for a configuration, which comes as a property file.
async fn settings(session: &Session, address: &str, code: i32) -> Result<Settings> {
    let response = session.admin.tell(address, code, &()).await?;
    Ok(read(&String::from_utf8_lossy(&response.body)))
}

/// The configuration of a broker.
pub async fn broker_settings(session: &Session, address: &str) -> Result<Settings> {
    settings(session, address, request::GET_BROKER_CONFIG).await
}

fn read(text: &str) -> Settings {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect()
}

/// One line of a property file. Backslashes are doubled, because property files give them a meaning.
pub fn line(key: &str, value: &str) -> Result<Bytes> {
    let (key, value) = (key.trim(), value.trim());
    if key.is_empty() || key.contains(['\n', '=', ':']) || value.contains('\n') {
        bail!("\"{key}\" and \"{value}\" do not make a line of a property file");
    }
    Ok(format!("{key}={}\n", value.replace('\\', "\\\\")).into())
}

/// What a server says beside success, such as that a change has no effect, or will be forgotten.
fn note(session: &Session, remark: Option<&str>) -> Result<()> {
    if let Some(remark) = remark.filter(|remark| !remark.is_empty()) {
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
            let settings = broker_settings(session, &address).await?;
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
        let body = line(&self.key, &self.value)?;
        let with_slaves = self.update_all_broker.is_some();
        let addresses =
            if with_slaves { session.replicas(&self.target).await } else { session.masters(&self.target).await };
        for address in addresses? {
            let answer = session.admin.call(&address, request::UPDATE_BROKER_CONFIG, &(), body.clone()).await?;
            session.out.say(format!("update broker config success, {address}"))?;
            note(session, answer.remark.as_deref())?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub struct GetNamesrvConfig {}

impl GetNamesrvConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        session.need_names()?;
        let mut all = BTreeMap::new();
        for address in session.admin.name_servers() {
            all.insert(address.clone(), settings(session, address, request::GET_NAMESRV_CONFIG).await?);
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
        session.need_names()?;
        let body = line(&self.key, &self.value)?;
        for address in session.admin.name_servers() {
            let answer = session.admin.call(address, request::UPDATE_NAMESRV_CONFIG, &(), body.clone()).await?;
            session.out.say(format!("update name server config success, {address}"))?;
            note(session, answer.remark.as_deref())?;
        }
        Ok(())
    }
}

/// Addresses that are separated by semicolons.
pub fn addresses(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').map(str::trim).filter(|one| !one.is_empty())
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
            all.insert(address.to_owned(), settings(session, address, request::GET_CONTROLLER_CONFIG).await?);
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
        let body = line(&self.key, &self.value)?;
        for address in addresses(&self.controller_address) {
            session.admin.call(address, request::UPDATE_CONTROLLER_CONFIG, &(), body.clone()).await?;
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
        let brokers = session.brokers(self.cluster_name.trim()).await?;
        let (masters, slaves): (Vec<_>, Vec<_>) = brokers.into_iter().partition(|broker| broker.id == MASTER_ID);
        let mut configs = BTreeMap::new();
        for master in &masters {
            let mut settings = broker_settings(session, &master.address).await?;
            settings.retain(|key, _| EXPORTED.contains(&key.as_str()));
            configs.insert(&master.name, settings);
        }
        let export = json!({
            "brokerConfigs": configs,
            "clusterScale": {
                "namesrvSize": session.admin.name_servers().len(),
                "masterBrokerSize": masters.len(),
                "slaveBrokerSize": slaves.len(),
            },
        });
        let path = write(&self.file_path, "configs.json", &export)?;
        session.out.facts(&Facts::new().with("export success", path.display().to_string()))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_keeps_its_value_through_a_property_file() {
        assert_eq!(line(" k ", r"C:\store").unwrap(), "k=C:\\\\store\n");
        assert!(line("a=b", "c").is_err() && line("", "c").is_err() && line("a", "b\nc=d").is_err());
    }

    #[test]
    fn a_configuration_is_read_line_by_line() {
        let settings = read("# comment\nbrokerName=a\nnamesrvAddr=h:1;i:2\nempty=\nrocketmqHome = /x=y\n");
        assert_eq!(settings.get("rocketmqHome").map(String::as_str), Some("/x=y"));
        assert_eq!(settings.len(), 4);
    }
}
