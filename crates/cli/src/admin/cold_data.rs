//! How much old data groups may read, and how the log is read ahead.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::{Args, ValueEnum};
use operator::configuration::Setting;
use serde_json::Value;

use super::session::Session;
use super::target::Target;
use super::time;

#[derive(Debug, Args)]
pub struct GetColdDataFlowCtrInfo {
    #[command(flatten)]
    target: Target,
}

impl GetColdDataFlowCtrInfo {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut all = BTreeMap::new();
        for address in session.replicas(&self.target).await? {
            let mut info = session.operator.cold_data(&address).await?;
            if let Some(groups) = info.get_mut("runtimeTable").and_then(Value::as_object_mut) {
                groups.values_mut().for_each(spell_out_times);
            }
            all.insert(address, info);
        }
        session.out.value("brokers", &all)?;
        Ok(())
    }
}

/// As mqadmin: `lastColdReadTimeMills` and `createTimeMills` become dates.
fn spell_out_times(group: &mut Value) {
    let Some(members) = group.as_object_mut() else { return };
    for (number, text) in [("lastColdReadTimeMills", "lastColdReadTimeFormat"), ("createTimeMills", "createTimeFormat")]
    {
        if let Some(ms) = members.remove(number).and_then(|ms| ms.as_i64()) {
            members.insert(text.to_owned(), Value::String(time::to_seconds(ms)));
        }
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateColdDataFlowCtrGroupConfig {
    #[command(flatten)]
    target: Target,
    /// The group
    #[arg(short = 'g', long)]
    consumer_group: String,
    /// Bytes of old data that it may read in a span of the broker
    #[arg(short = 'v', long, value_parser = clap::value_parser!(i64).range(0..))]
    threshold: i64,
}

impl UpdateColdDataFlowCtrGroupConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let threshold = Setting::new(&self.consumer_group, &self.threshold.to_string())?;
        for address in session.masters(&self.target).await? {
            session.operator.set_cold_data(&address, &threshold).await?;
            session.out.say(format!("updateColdDataFlowCtrGroupConfig success, {address}"))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct RemoveColdDataFlowCtrGroupConfig {
    #[command(flatten)]
    target: Target,
    /// The group
    #[arg(short = 'g', long)]
    consumer_group: String,
}

impl RemoveColdDataFlowCtrGroupConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        for address in session.masters(&self.target).await? {
            session.operator.remove_cold_data(&address, self.consumer_group.trim()).await?;
            session.out.say(format!("remove broker cold read threshold success, {address}"))?;
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReadAhead {
    /// As the kernel does by default
    #[value(name = "0")]
    Normal,
    /// Not at all, for random reads
    #[value(name = "1")]
    Random,
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SetCommitLogReadAheadMode {
    #[command(flatten)]
    target: Target,
    /// How the log's files are read ahead
    #[arg(short = 'm', long, value_enum)]
    commit_log_read_ahead_mode: ReadAhead,
}

impl SetCommitLogReadAheadMode {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let read_ahead_mode = match self.commit_log_read_ahead_mode {
            ReadAhead::Normal => "0",
            ReadAhead::Random => "1",
        };
        for address in session.replicas(&self.target).await? {
            let said = session.operator.set_read_ahead(&address, read_ahead_mode).await?;
            session
                .out
                .say(format!("set read ahead mode {read_ahead_mode} in {address} success. {said}").trim_end())?;
        }
        Ok(())
    }
}
