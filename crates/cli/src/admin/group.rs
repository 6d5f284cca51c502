//! Subscription groups: making, changing, deleting and looking at them.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use env::counted;
use operator::topic::{attributes, topics_of_group};
use protocol::body::{
    GroupRetryPolicy, MASTER_ID, MessageRequestMode, SetMessageRequestMode, SubscriptionGroupConfig,
    SubscriptionGroupList,
};

use super::output::{Facts, Table};
use super::session::Session;
use super::target::Target;
use super::topic::{delete, read_list};
use super::truth;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateSubGroup {
    #[command(flatten)]
    target: Target,
    /// The group
    #[arg(short, long)]
    group_name: String,
    /// Whether it may consume: true or false
    #[arg(short = 's', long, value_parser = truth)]
    consume_enable: Option<bool>,
    /// Whether a new member may begin at the smallest offset: true or false
    #[arg(short = 'm', long, value_parser = truth)]
    consume_from_min_enable: Option<bool>,
    /// Whether it may consume in broadcast: true or false
    #[arg(short = 'd', long, value_parser = truth)]
    consume_broadcast_enable: Option<bool>,
    /// Whether it consumes in order: true or false
    #[arg(short = 'o', long, value_parser = truth)]
    consume_message_orderly: Option<bool>,
    /// Queues of its retry topic
    #[arg(short = 'q', long, value_parser = clap::value_parser!(i32).range(0..))]
    retry_queue_nums: Option<i32>,
    /// Tries before the dead-letter queue
    #[arg(short = 'r', long, value_parser = clap::value_parser!(i32).range(0..))]
    retry_max_times: Option<i32>,
    /// How long a message waits for its next try, as JSON:
    /// {"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":5000,"max":7200000,"multiplier":2}} or
    /// {"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000,10000]}}
    #[arg(short = 'p', long)]
    group_retry_policy: Option<String>,
    /// The replica to read from
    #[arg(short = 'i', long, value_parser = clap::value_parser!(i64).range(0..))]
    broker_id: Option<i64>,
    /// The replica to read from when it is far behind
    #[arg(short = 'w', long, value_parser = clap::value_parser!(i64).range(0..))]
    which_broker_when_consume_slowly: Option<i64>,
    /// Whether its members are told when one comes or goes: true or false
    #[arg(short = 'a', long, value_parser = truth)]
    notify_consumer_ids_changed: Option<bool>,
    /// Attributes to set (+a=b), change (a=b) and remove (-a), separated by commas
    #[arg(long, allow_hyphen_values = true)]
    attributes: Option<String>,
}

impl UpdateSubGroup {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let config = self.config()?;
        for address in session.masters(&self.target).await? {
            session.operator.create_group(&address, &config).await?;
            session.out.say(format!("create subscription group to {address} success."))?;
        }
        session.out.value("group", &config)?;
        Ok(())
    }

    /// What is not given is as `mqadmin` has it: in two cases not what a broker itself would take for a new group.
    fn config(&self) -> Result<SubscriptionGroupConfig> {
        let usual = SubscriptionGroupConfig::default();
        let policy = match &self.group_retry_policy {
            Some(json) => serde_json::from_str(json).context("the retry policy is not the JSON that is expected")?,
            None => GroupRetryPolicy::default(),
        };
        Ok(SubscriptionGroupConfig {
            group_name: self.group_name.trim().to_owned(),
            consume_enable: self.consume_enable.unwrap_or(usual.consume_enable),
            consume_from_min_enable: self.consume_from_min_enable.unwrap_or(false),
            consume_broadcast_enable: self.consume_broadcast_enable.unwrap_or(false),
            consume_message_orderly: self.consume_message_orderly.unwrap_or(usual.consume_message_orderly),
            retry_queue_nums: self.retry_queue_nums.unwrap_or(usual.retry_queue_nums),
            retry_max_times: self.retry_max_times.unwrap_or(usual.retry_max_times),
            group_retry_policy: policy,
            broker_id: self.broker_id.unwrap_or(usual.broker_id),
            which_broker_when_consume_slowly: self
                .which_broker_when_consume_slowly
                .unwrap_or(usual.which_broker_when_consume_slowly),
            notify_consumer_ids_changed_enable: self
                .notify_consumer_ids_changed
                .unwrap_or(usual.notify_consumer_ids_changed_enable),
            attributes: self.attributes.as_deref().map(attributes).transpose()?.unwrap_or_default(),
            ..usual
        })
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateSubGroupList {
    #[command(flatten)]
    target: Target,
    /// A JSON array of groups, as `subscriptionGroup.json` of a broker spells them
    #[arg(short, long)]
    filename: PathBuf,
}

impl UpdateSubGroupList {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let list = SubscriptionGroupList { group_config_list: read_list(&self.filename)? };
        for address in session.masters(&self.target).await? {
            session.operator.create_groups(&address, &list).await?;
            let groups = counted(list.group_config_list.len(), "group");
            session.out.say(format!("submit {groups} to {address} success."))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct DeleteSubGroup {
    #[command(flatten)]
    target: Target,
    /// The group
    #[arg(short, long)]
    group_name: String,
    /// Whether its offsets go too: true or false
    #[arg(short, long, value_parser = truth)]
    remove_offset: Option<bool>,
}

impl DeleteSubGroup {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let group = self.group_name.trim();
        let masters = session.masters(&self.target).await?;
        // Offsets may be left of a group that was deleted before.
        let mut is_known = self.remove_offset == Some(true);
        for address in &masters {
            is_known = is_known || session.operator.has_group(address, group).await?;
        }
        if !is_known {
            bail!("no group {group} at {}: nothing is deleted", masters.join(", "));
        }
        for address in masters {
            session.operator.delete_group(&address, group, self.remove_offset.unwrap_or(false)).await?;
            session.out.say(format!("delete subscription group [{group}] from broker [{address}] success."))?;
        }
        // One broker keeps the topics: other brokers may still have the group.
        if let Some(cluster) = &self.target.cluster_name {
            for topic in topics_of_group(group) {
                delete(session, &topic, cluster.trim()).await?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    #[value(name = "PULL", alias = "pull")]
    Pull,
    #[value(name = "POP", alias = "pop")]
    Pop,
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct SetConsumeMode {
    #[command(flatten)]
    target: Target,
    /// The topic
    #[arg(short, long)]
    topic_name: String,
    /// The group
    #[arg(short, long)]
    group_name: String,
    /// How the group gets the topic's messages
    #[arg(short, long, value_enum)]
    mode: Mode,
    /// How many members share a queue when they pop; 0: all
    #[arg(short = 'q', long, default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    pop_share_queue_num: i32,
}

impl SetConsumeMode {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let body = SetMessageRequestMode {
            topic: self.topic_name.trim().to_owned(),
            consumer_group: self.group_name.trim().to_owned(),
            mode: match self.mode {
                Mode::Pull => MessageRequestMode::Pull,
                Mode::Pop => MessageRequestMode::Pop,
            },
            pop_share_queue_num: self.pop_share_queue_num,
        };
        for address in session.masters(&self.target).await? {
            session.operator.set_consume_mode(&address, &body).await?;
            session.out.say(format!("set consume mode to {address} success."))?;
        }
        session.out.value("mode", &body)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct GetConsumerConfig {
    /// The group
    #[arg(short, long)]
    group_name: String,
}

impl GetConsumerConfig {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let group = self.group_name.trim();
        let info = session.operator.cluster().await?;
        let mut table = Table::new(["Cluster Name", "Broker Name", "Key", "Value"]);
        let mut refusal = None;
        for (name, broker) in &info.broker_addr_table {
            let addresses = &broker.broker_addrs;
            let Some(address) = addresses.get(&MASTER_ID).or_else(|| addresses.values().next()) else { continue };
            let config = match session.operator.group_at(address, group).await {
                Ok(config) => config,
                // One broker may have the group while another has not.
                Err(error) if error.code().is_some() => {
                    refusal = Some(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let serde_json::Value::Object(members) = serde_json::to_value(&config)? else { continue };
            if !session.out.is_json() {
                session.out.note(&format!("============{}:{name}============", broker.cluster))?;
                let facts = members.iter().fold(Facts::new(), |facts, (key, value)| facts.with(key, text(value)));
                session.out.facts(&facts)?;
            }
            for (key, value) in members {
                let (cluster, text) = (broker.cluster.as_str(), text(&value));
                table.row([cluster.into(), name.into(), key.into(), super::output::Cell::of(text, value)]);
            }
        }
        if table.len() == 0 {
            match refusal {
                Some(error) => return Err(error).context(format!("no broker knows group {group}")),
                None => bail!("no broker is there to ask about group {group}"),
            }
        }
        if session.out.is_json() {
            session.out.table("settings", &table)?;
        }
        Ok(())
    }
}

fn text(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => String::new(),
        other @ (serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_)) => other.to_string(),
    }
}
