//! Topics: making, changing, deleting and looking at them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use client::ClientError;
use env::counted;
use protocol::body::{MASTER_ID, QueueData, TopicConfig, TopicConfigList, TopicStatsTable};
use protocol::code::{ResponseCode, request};
use protocol::names::{dlq_topic, is_dlq_topic, is_retry_topic};
use protocol::request::{CreateTopic, DeleteTopic, DeleteTopicInNames, GetTopicConfig, GetTopicStats};
use protocol::sys_flag::topic as topic_flag;
use serde::de::DeserializeOwned;

use super::order::set_order;
use super::output::{Cell, Facts, Table};
use super::session::{Session, readable};
use super::static_topic::add_logical;
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
            create(session, address, &config).await?;
            session.out.say(format!("create topic to {address} success."))?;
        }
        if is_ordered {
            let mut names = BTreeSet::new();
            for address in &masters {
                names.insert(session.broker_name(address).await?);
            }
            let queues: Vec<String> = names.iter().map(|name| format!("{name}:{}", self.write_queue_nums)).collect();
            // A cluster sets the whole order; one broker keeps what the others have.
            let is_whole = self.target.cluster_name.is_some();
            let set = set_order(session, &config.topic_name, &queues.join(";"), is_whole).await?;
            session.out.say(format!("set order configuration of {}: {set}", config.topic_name))?;
        }
        session.out.value("topic", &config)?;
        Ok(())
    }
}

/// Makes or changes a topic on one broker.
pub async fn create(session: &Session, address: &str, config: &TopicConfig) -> Result<()> {
    let attributes: Vec<String> = config.attributes.iter().map(|(name, value)| attribute_text(name, value)).collect();
    let attributes = attributes.join(",");
    let fields = CreateTopic {
        topic: &config.topic_name,
        default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
        read_queue_nums: config.read_queue_nums,
        write_queue_nums: config.write_queue_nums,
        perm: config.perm,
        topic_filter_type: config.topic_filter_type.name(),
        topic_sys_flag: Some(config.topic_sys_flag),
        order: config.order,
        attributes: Some(&attributes),
        force: false,
    };
    session.admin.tell(address, request::UPDATE_AND_CREATE_TOPIC, &fields).await?;
    Ok(())
}

/// Reads `+a=b,c=d,-e`. The signs stay at the names: the broker acts on them.
pub fn attributes(text: &str) -> Result<BTreeMap<String, String>> {
    let mut read = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = match (part.starts_with('-'), part.split_once('=')) {
            (true, None) => (part, ""),
            (false, Some((name, value))) => (name, value),
            (true, Some(_)) | (false, None) => {
                bail!("\"{part}\" is no change of an attribute: +name=value, name=value or -name is expected")
            }
        };
        if read.insert(name.to_owned(), value.to_owned()).is_some() {
            bail!("attribute {name} is named twice");
        }
    }
    Ok(read)
}

fn attribute_text(name: &str, value: &str) -> String {
    if value.is_empty() { name.to_owned() } else { format!("{name}={value}") }
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
            session.admin.tell_json(&address, request::UPDATE_AND_CREATE_TOPIC_LIST, &(), &list).await?;
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
        if !is_known(session, topic, cluster).await? {
            bail!("no name server and no master of cluster {cluster} knows topic {topic}: nothing is deleted");
        }
        delete(session, topic, cluster).await
    }
}

/// Whether a name server or a master of the cluster has the topic. A broker that cannot be asked (before 5.0) may have it.
async fn is_known(session: &Session, topic: &str, cluster: &str) -> Result<bool> {
    match session.admin.route(topic).await {
        Ok(_) => return Ok(true),
        Err(ClientError::NoRoute { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    for broker in session.brokers(cluster).await?.iter().filter(|broker| broker.id == MASTER_ID) {
        let fields = GetTopicConfig { topic, lo: None };
        match session.admin.tell(&broker.address, request::GET_TOPIC_CONFIG, &fields).await {
            Err(error) if error.code() == Some(ResponseCode::TopicNotExist as i32) => {}
            Err(error) if error.code().is_none() => return Err(error.into()),
            Ok(_) | Err(_) => return Ok(true),
        }
    }
    Ok(false)
}

/// Deletes a topic on the masters of a cluster, and then in the name servers.
pub async fn delete(session: &Session, topic: &str, cluster: &str) -> Result<()> {
    let brokers = session.brokers(cluster).await?.into_iter();
    let masters: Vec<_> = brokers.filter(|broker| broker.id == MASTER_ID).collect();
    if masters.is_empty() {
        // A route that is deleted while the topic is not comes back with its broker.
        bail!("no master of cluster {cluster} is registered: the topic is not deleted");
    }
    for broker in masters {
        session.admin.tell(&broker.address, request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic }).await?;
    }
    session.out.say(format!("delete topic [{topic}] from cluster [{cluster}] success."))?;
    let fields = DeleteTopicInNames { topic, cluster_name: Some(cluster) };
    for address in session.admin.name_servers() {
        session.admin.tell(address, request::DELETE_TOPIC_IN_NAMESRV, &fields).await?;
    }
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
        let route = session.route(topic).await?;
        for address in session.masters(&self.target).await? {
            let broker = route.broker_datas.iter().find(|broker| broker.broker_addrs.get(&MASTER_ID) == Some(&address));
            let broker = broker.with_context(|| format!("{address} is not a master that holds topic {topic}"))?;
            let queues = route.queue_datas.iter().find(|queues| queues.broker_name == broker.broker_name);
            let queues =
                queues.with_context(|| format!("the route of {topic} does not tell its queues at {address}"))?;
            if queues.perm == self.perm {
                session.out.say(format!("topic {topic} has perm {} in {address} already.", self.perm))?;
                continue;
            }
            // Brokers before 5.0 do not tell a topic; its route knows all but whether it is ordered.
            let fields = GetTopicConfig { topic, lo: None };
            let config = match session.admin.ask::<TopicConfig>(&address, request::GET_TOPIC_CONFIG, &fields).await {
                Ok(config) => TopicConfig { perm: self.perm, attributes: BTreeMap::new(), ..config },
                Err(error) if error.code().is_some() => with_perm(topic, queues, self.perm),
                Err(error) => return Err(error.into()),
            };
            create(session, &address, &config).await?;
            let (old, new) = (queues.perm, self.perm);
            session.out.say(format!("update topic perm from {old} to {new} in {address} success."))?;
        }
        Ok(())
    }
}

fn with_perm(topic: &str, queues: &QueueData, perm: i32) -> TopicConfig {
    TopicConfig {
        topic_name: topic.to_owned(),
        read_queue_nums: queues.read_queue_nums,
        write_queue_nums: queues.write_queue_nums,
        topic_sys_flag: queues.topic_sys_flag,
        perm,
        ..TopicConfig::default()
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
        let mut route = session.route(self.topic.trim()).await?;
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
        let route = session.route(self.cluster.as_deref().map_or(topic, str::trim)).await?;
        let mut stats = stats(session, topic, &route).await?;
        if self.cluster.is_none() && route.topic_queue_mapping_by_broker.as_ref().is_some_and(|all| !all.is_empty()) {
            add_logical(session, topic, &route, &mut stats).await?;
        }
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

/// The queues of a topic on all its brokers.
pub async fn stats(session: &Session, topic: &str, route: &protocol::body::TopicRoute) -> Result<TopicStatsTable> {
    let mut all = TopicStatsTable::default();
    for (_, address) in readable(route) {
        let fields = GetTopicStats { topic };
        let part: TopicStatsTable = session.admin.ask(&address, request::GET_TOPIC_STATS_INFO, &fields).await?;
        all.offset_table.extend(part.offset_table.0);
        all.topic_put_tps += part.topic_put_tps;
    }
    Ok(all)
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
        let route = session.route(self.topic.trim()).await?;
        let info = session.cluster().await?;
        let is_there =
            |names: &BTreeSet<String>| route.broker_datas.iter().any(|broker| names.contains(&broker.broker_name));
        for (cluster, names) in &info.cluster_addr_table {
            if is_there(names) {
                session.out.say(cluster)?;
            }
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
        let topics = session.topics().await?;
        if !self.cluster_model {
            if session.out.is_json() {
                session.out.value("topics", &topics)?;
            }
            for topic in &topics {
                session.out.note(topic)?;
            }
            return Ok(());
        }
        let info = session.cluster().await?;
        let mut table = Table::new(["Cluster Name", "Topic", "Consumer Group"]);
        for topic in topics.iter().filter(|topic| !is_retry_topic(topic) && !is_dlq_topic(topic)) {
            // A topic that is just being deleted, or whose broker is away, is shown all the same.
            let route = session.admin.route(topic).await.unwrap_or_default();
            let broker = route.broker_datas.first().map(|broker| broker.broker_name.as_str()).unwrap_or_default();
            let cluster = info.cluster_addr_table.iter().find(|(_, names)| names.contains(broker));
            let cluster = cluster.map(|(name, _)| name.as_str()).unwrap_or_default();
            let mut groups = session.groups_of(topic, &route).await.unwrap_or_default();
            if groups.is_empty() {
                groups.push(String::new());
            }
            for group in &groups {
                table.row([cluster.into(), topic.into(), group.into()]);
            }
        }
        session.out.table("topics", &table)?;
        Ok(())
    }
}

/// The topics that a group's deletion takes along.
pub fn topics_of_group(group: &str) -> [String; 2] {
    [protocol::names::retry_topic(group), dlq_topic(group)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_attributes_keep_their_signs() {
        let read = attributes("+a=b, c=d,-e").unwrap();
        let read: Vec<_> = read.iter().map(|(name, value)| attribute_text(name, value)).collect();
        assert_eq!(read, ["+a=b", "-e", "c=d"]);
        for wrong in ["a", "-a=b", "a=1,a=2"] {
            assert!(attributes(wrong).is_err(), "{wrong}");
        }
    }
}
