//! Topics: making, changing, deleting and looking at them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use env::counted;
use operator::topic::{TopicPlace, attributes};
use protocol::body::{TopicConfig, TopicConfigList};
use protocol::sys_flag::topic as topic_flag;
use serde::de::DeserializeOwned;

use super::output::{Cell, Facts, Table};
use super::session::Session;
use super::target::Target;
use super::truth;

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateTopic {
    #[command(flatten)]
    target: Target,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Attributes to set (+a=b), change (a=b) and remove (-a), separated by commas
    #[arg(short, long, allow_hyphen_values = true)]
    attributes: Option<String>,
    /// Queues to read
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(i32).range(0..))]
    read_queue_nums: i32,
    /// Queues to write
    #[arg(short, long, default_value_t = 8, value_parser = clap::value_parser!(i32).range(0..))]
    write_queue_nums: i32,
    /// 2 write, 4 read, 6 both, 0 neither; 1 more for a template that other topics inherit from
    #[arg(short, long, default_value_t = 6, value_parser = perm())]
    perm: i32,
    /// Whether its messages are ordered: true or false
    #[arg(short, long, value_parser = truth)]
    order: Option<bool>,
    /// Whether it belongs to a unit: true or false
    #[arg(short, long, value_parser = truth)]
    unit: Option<bool>,
    /// Whether a unit subscribes to it: true or false
    #[arg(short = 's', long, value_parser = truth)]
    has_unit_sub: Option<bool>,
}

/// The permissions that a topic can have: three bits, as Apache's `PermName.isValid` takes them.
fn perm() -> clap::builder::RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(0..=7)
}

impl UpdateTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let is_ordered = self.order.unwrap_or(false);
        let bit = |is_set: Option<bool>, bit: i32| if is_set.unwrap_or(false) { bit } else { 0 };
        let config = TopicConfig {
            topic_name: self.topic.trim().to_owned(),
            read_queue_nums: self.read_queue_nums,
            write_queue_nums: self.write_queue_nums,
            perm: self.perm,
            topic_sys_flag: bit(self.unit, topic_flag::UNIT) | bit(self.has_unit_sub, topic_flag::UNIT_SUB),
            order: is_ordered,
            attributes: self.attributes.as_deref().map(attributes).transpose()?.unwrap_or_default(),
            ..TopicConfig::default()
        };
        let masters = session.masters(&self.target).await?;
        for address in &masters {
            session.operator.create_topic(address, &config).await?;
            session.out.say(format!("create topic to {address} success."))?;
        }
        if is_ordered {
            let mut names = BTreeSet::new();
            for address in &masters {
                names.insert(session.operator.broker_name(address).await?);
            }
            let queues: Vec<String> = names.iter().map(|name| format!("{name}:{}", self.write_queue_nums)).collect();
            // A cluster sets the whole order; one broker keeps what the others have.
            let is_whole = self.target.cluster_name.is_some();
            let set = session.operator.set_order(&config.topic_name, &queues.join(";"), is_whole).await?;
            session.out.say(format!("set order configuration of {}: {set}", config.topic_name))?;
        }
        session.out.value("topic", &config)?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateTopicList {
    #[command(flatten)]
    target: Target,
    /// A JSON array of topics, as `topics.json` of a broker spells them
    #[arg(short, long)]
    filename: PathBuf,
}

impl UpdateTopicList {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let list = TopicConfigList { topic_config_list: read_list(&self.filename)? };
        for address in session.masters(&self.target).await? {
            session.operator.create_topics(&address, &list).await?;
            let topics = counted(list.topic_config_list.len(), "topic");
            session.out.say(format!("submit {topics} to {address} success."))?;
        }
        Ok(())
    }
}

/// Reads a file that holds a JSON array with something in it.
pub fn read_list<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let list: Vec<T> = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} does not hold the JSON array that is expected", path.display()))?;
    if list.is_empty() {
        bail!("{} holds an empty list", path.display());
    }
    Ok(list)
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct DeleteTopicCommand {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Its cluster
    #[arg(short, long)]
    cluster_name: String,
}

impl DeleteTopicCommand {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let (topic, cluster) = (self.topic.trim(), self.cluster_name.trim());
        if !session.operator.is_topic_known(topic, cluster).await? {
            bail!("no name server and no master of cluster {cluster} knows topic {topic}: nothing is deleted");
        }
        delete(session, topic, cluster).await
    }
}

/// Deletes a topic on the masters of a cluster, and then in the name servers.
pub async fn delete(session: &Session, topic: &str, cluster: &str) -> Result<()> {
    session.operator.delete_topic(topic, cluster).await?;
    session.out.say(format!("delete topic [{topic}] from cluster [{cluster}] success."))?;
    session.operator.delete_topic_in_names(topic, cluster).await?;
    session.out.say(format!("delete topic [{topic}] from NameServer success."))?;
    Ok(())
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateTopicPerm {
    #[command(flatten)]
    target: Target,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// 2 write, 4 read, 6 both, 0 neither; 1 more for a template that other topics inherit from
    #[arg(short, long, value_parser = perm())]
    perm: i32,
}

impl UpdateTopicPerm {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let route = session.operator.route(topic).await?;
        for address in session.masters(&self.target).await? {
            let (old, new) = (session.operator.set_topic_perm(&address, &route, topic, self.perm).await?, self.perm);
            if old == new {
                session.out.say(format!("topic {topic} has perm {new} in {address} already."))?;
                continue;
            }
            session.out.say(format!("update topic perm from {old} to {new} in {address} success."))?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct TopicRoute {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// As a table
    #[arg(short, long)]
    list: bool,
}

impl TopicRoute {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let mut route = session.operator.route(self.topic.trim()).await?;
        if !self.list {
            session.out.value("route", &route)?;
            return Ok(());
        }
        route.broker_datas.sort_by(|a, b| a.broker_name.cmp(&b.broker_name));
        let mut table = Table::new(["ClusterName", "BrokerName", "BrokerAddrs", "ReadQueue", "WriteQueue", "Perm"]);
        let (mut read, mut write) = (0, 0);
        for broker in &route.broker_datas {
            let Some(queues) = route.queue_datas.iter().find(|queues| queues.broker_name == broker.broker_name) else {
                continue;
            };
            read += queues.read_queue_nums;
            write += queues.write_queue_nums;
            table.row([
                (&broker.cluster).into(),
                (&broker.broker_name).into(),
                Cell::list(broker.broker_addrs.iter().map(|(id, address)| format!("{id}={address}"))),
                queues.read_queue_nums.into(),
                queues.write_queue_nums.into(),
                queues.perm.into(),
            ]);
        }
        session.out.table("brokers", &table)?;
        session.out.note("")?;
        session.out.facts(&Facts::new().with("Read Queues", read).with("Write Queues", write))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct TopicStatus {
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// For a light message queue: the cluster or the parent topic, by which its brokers are found
    #[arg(short, long)]
    cluster: Option<String>,
}

impl TopicStatus {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let stats = session.operator.topic_status(topic, self.cluster.as_deref().map(str::trim)).await?;
        let mut table = Table::new(["Broker Name", "QID", "Min Offset", "Max Offset", "Last Updated"]);
        for (queue, offset) in stats.offset_table.iter() {
            table.row([
                (&queue.broker_name).into(),
                queue.queue_id.into(),
                offset.min_offset.into(),
                offset.max_offset.into(),
                Cell::time(offset.last_update_timestamp),
            ]);
        }
        session.out.table("queues", &table)?;
        session.out.note("")?;
        session.out.facts(&Facts::new().with("Topic Put TPS", stats.topic_put_tps))?;
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct TopicClusterList {
    /// The topic
    #[arg(short, long)]
    topic: String,
}

impl TopicClusterList {
    pub async fn run(&self, session: &Session) -> Result<()> {
        for cluster in session.operator.clusters_of(self.topic.trim()).await? {
            session.out.say(cluster)?;
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct TopicList {
    /// With the cluster and the groups of each topic
    #[arg(short, long)]
    cluster_model: bool,
}

impl TopicList {
    pub async fn run(&self, session: &Session) -> Result<()> {
        if !self.cluster_model {
            let topics = session.operator.topics().await?;
            if session.out.is_json() {
                session.out.value("topics", &topics)?;
            }
            for topic in &topics {
                session.out.note(topic)?;
            }
            return Ok(());
        }
        let mut table = Table::new(["Cluster Name", "Topic", "Consumer Group"]);
        for TopicPlace { topic, cluster, mut groups } in session.operator.topic_places().await? {
            if groups.is_empty() {
                groups.push(String::new());
            }
            for group in groups {
                table.row([(&cluster).into(), (&topic).into(), group.into()]);
            }
        }
        session.out.table("topics", &table)?;
        Ok(())
    }
}
