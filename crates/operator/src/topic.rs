//! Topics: making, changing, deleting and looking at them.

use std::collections::BTreeMap;

use client::ClientError;
use protocol::body::{
    GroupList, MASTER_ID, QueueData, TopicConfig, TopicConfigAndQueueMapping, TopicConfigList, TopicList, TopicRoute,
    TopicStatsTable,
};
use protocol::code::{ResponseCode, request};
use protocol::names::{TIMER_TOPIC, dlq_topic, is_dlq_topic, is_lmq, is_retry_topic, is_system_topic, retry_topic};
use protocol::request::{
    CreateTopic, DeleteTopic, DeleteTopicInNames, GetTopicConfig, GetTopicStats, QueryTopicConsumeByWho,
};

use crate::cluster::readable;
use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;

/// A topic, where it is, and what consumes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPlace {
    /// The topic.
    pub topic: String,
    /// Its cluster; empty if no broker that has it is known.
    pub cluster: String,
    /// Its groups.
    pub groups: Vec<String>,
}

impl Operator {
    /// Where a topic is.
    pub async fn route(&self, topic: &str) -> Result<TopicRoute> {
        self.need_names()?;
        match self.admin.route(topic).await {
            Err(ClientError::NoRoute { topic }) => {
                Err(OperatorError::NotFound(format!("the name server knows no topic {topic}")))
            }
            other => Ok(other?),
        }
    }

    /// Where a topic is; the queues of light message queues and of the timer have no route of their own, so one gives the cluster's
    /// or the parent topic's name with them.
    pub async fn route_by(&self, topic: &str, parent: Option<&str>) -> Result<TopicRoute> {
        let by_parent = is_lmq(topic) || topic == TIMER_TOPIC;
        self.route(parent.filter(|parent| by_parent && !parent.is_empty()).unwrap_or(topic)).await
    }

    /// The topics that the name servers know.
    pub async fn topics(&self) -> Result<Vec<String>> {
        self.need_names()?;
        let list: TopicList = self.admin.ask_names(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &()).await?;
        let mut topics = list.topic_list;
        topics.sort();
        Ok(topics)
    }

    /// The same but for topics of groups, each with its cluster and groups.
    pub async fn topic_places(&self) -> Result<Vec<TopicPlace>> {
        let topics = self.topics().await?;
        let info = self.cluster().await?;
        let mut places = Vec::new();
        for topic in topics.into_iter().filter(|topic| !is_retry_topic(topic) && !is_dlq_topic(topic)) {
            // A topic that is just being deleted, or whose broker is away, is told all the same.
            let route = self.admin.route(&topic).await.unwrap_or_default();
            let broker = route.broker_datas.first().map(|broker| broker.broker_name.as_str()).unwrap_or_default();
            let cluster = info.cluster_addr_table.iter().find(|(_, names)| names.contains(broker));
            let cluster = cluster.map(|(name, _)| name.clone()).unwrap_or_default();
            let groups = self.groups_of(&topic, &route).await.unwrap_or_default();
            places.push(TopicPlace { topic, cluster, groups });
        }
        Ok(places)
    }

    /// The groups that consume a topic, by every broker of the topic.
    pub async fn groups_of(&self, topic: &str, route: &TopicRoute) -> Result<Vec<String>> {
        let mut groups = Vec::new();
        for (_, address) in readable(route) {
            let fields = QueryTopicConsumeByWho { topic };
            let list: GroupList = self.admin.ask(&address, request::QUERY_TOPIC_CONSUME_BY_WHO, &fields).await?;
            groups.extend(list.group_list);
        }
        groups.sort();
        groups.dedup();
        Ok(groups)
    }

    /// The topics of a broker without those of RocketMQ itself, and of groups only if they are asked for.
    pub async fn user_topics_at(&self, address: &str, with_groups: bool) -> Result<BTreeMap<String, TopicConfig>> {
        let code = request::GET_SYSTEM_TOPIC_LIST_FROM_BROKER;
        let system: TopicList = self.admin.ask(address, code, &()).await.unwrap_or_default();
        let (_, mut topics) = self.topics_at::<TopicConfig>(address).await?;
        topics.retain(|name, _| {
            let is_groups = is_retry_topic(name) || is_dlq_topic(name);
            !is_system_topic(name) && !system.topic_list.contains(name) && (with_groups || !is_groups)
        });
        Ok(topics)
    }

    /// The clusters that hold a topic.
    pub async fn clusters_of(&self, topic: &str) -> Result<Vec<String>> {
        let route = self.route(topic).await?;
        let clusters = self.cluster().await?.cluster_addr_table.into_iter();
        let holding =
            clusters.filter(|(_, names)| route.broker_datas.iter().any(|broker| names.contains(&broker.broker_name)));
        Ok(holding.map(|(cluster, _)| cluster).collect())
    }

    /// Makes or changes a topic on one broker. Names of attributes have their signs.
    pub async fn create_topic(&self, address: &str, config: &TopicConfig) -> Result<()> {
        let attributes: Vec<String> =
            config.attributes.iter().map(|(name, value)| attribute_text(name, value)).collect();
        let attributes = attributes.join(",");
        let fields =
            CreateTopic { attributes: Some(&attributes), ..creation(&config.topic_name, &config.clone().into()) };
        self.admin.tell(address, request::UPDATE_AND_CREATE_TOPIC, &fields).await?;
        Ok(())
    }

    /// Makes or changes many topics on one broker.
    pub async fn create_topics(&self, address: &str, list: &TopicConfigList) -> Result<()> {
        self.admin.tell_json(address, request::UPDATE_AND_CREATE_TOPIC_LIST, &(), list).await?;
        Ok(())
    }

    /// Whether a name server or a master of the cluster has the topic. A broker that cannot be asked (before 5.0) may have it.
    pub async fn is_topic_known(&self, topic: &str, cluster: &str) -> Result<bool> {
        match self.admin.route(topic).await {
            Ok(_) => return Ok(true),
            Err(ClientError::NoRoute { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        for broker in self.masters_of_cluster(cluster).await? {
            let fields = GetTopicConfig { topic, lo: None };
            match self.admin.tell(&broker.address, request::GET_TOPIC_CONFIG, &fields).await {
                Err(error) if error.code() == Some(ResponseCode::TopicNotExist as i32) => {}
                Err(error) if error.code().is_none() => return Err(error.into()),
                Ok(_) | Err(_) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Deletes a topic on the masters of a cluster. [`Operator::delete_topic_in_names`] comes after it.
    pub async fn delete_topic(&self, topic: &str, cluster: &str) -> Result<()> {
        let masters = self.masters_of_cluster(cluster).await?;
        // A route that is deleted while the topic is not comes back with its broker.
        ensure!(!masters.is_empty(), Unfit, "no master of cluster {cluster} is registered: the topic is not deleted");
        for broker in masters {
            self.admin.tell(&broker.address, request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic }).await?;
        }
        Ok(())
    }

    /// Lets all name servers forget a topic of a cluster.
    pub async fn delete_topic_in_names(&self, topic: &str, cluster: &str) -> Result<()> {
        let fields = DeleteTopicInNames { topic, cluster_name: Some(cluster) };
        for address in self.name_servers() {
            self.admin.tell(address, request::DELETE_TOPIC_IN_NAMESRV, &fields).await?;
        }
        Ok(())
    }

    /// Changes the permission of a topic on the master at `address`, unless it is that already. Returns the old one.
    pub async fn set_topic_perm(&self, address: &str, route: &TopicRoute, topic: &str, perm: i32) -> Result<i32> {
        let has_master = |addresses: &BTreeMap<i64, String>| addresses.get(&MASTER_ID).is_some_and(|at| at == address);
        let queues = match route.broker_datas.iter().find(|broker| has_master(&broker.broker_addrs)) {
            Some(broker) => route.queue_datas.iter().find(|queues| queues.broker_name == broker.broker_name),
            None => {
                let text = format!("{address} is not a master that holds topic {topic}");
                return Err(OperatorError::NotFound(text));
            }
        };
        let unknown = || OperatorError::NotFound(format!("the route of {topic} does not tell its queues at {address}"));
        let queues = queues.ok_or_else(unknown)?;
        if queues.perm == perm {
            return Ok(perm);
        }
        // Brokers before 5.0 do not tell a topic; its route knows all but whether it is ordered.
        let fields = GetTopicConfig { topic, lo: None };
        let config = match self.admin.ask::<TopicConfig>(address, request::GET_TOPIC_CONFIG, &fields).await {
            Ok(config) => TopicConfig { perm, attributes: BTreeMap::new(), ..config },
            Err(error) if error.code().is_some() => with_perm(topic, queues, perm),
            Err(error) => return Err(error.into()),
        };
        self.create_topic(address, &config).await?;
        Ok(queues.perm)
    }

    /// The queues of a topic on all brokers of its route.
    pub async fn topic_stats(&self, topic: &str, route: &TopicRoute) -> Result<TopicStatsTable> {
        let mut all = TopicStatsTable::default();
        for (_, address) in readable(route) {
            let part = self.topic_stats_at(&address, topic).await?;
            all.offset_table.extend(part.offset_table.0);
            all.topic_put_tps += part.topic_put_tps;
        }
        Ok(all)
    }

    /// The queues of a topic on one broker.
    pub async fn topic_stats_at(&self, address: &str, topic: &str) -> Result<TopicStatsTable> {
        Ok(self.admin.ask(address, request::GET_TOPIC_STATS_INFO, &GetTopicStats { topic }).await?)
    }

    /// The queues of a topic on all its brokers, which may be those of a parent topic; of a static topic also the logical ones.
    pub async fn topic_status(&self, topic: &str, parent: Option<&str>) -> Result<TopicStatsTable> {
        let route = self.route(parent.unwrap_or(topic)).await?;
        let mut stats = self.topic_stats(topic, &route).await?;
        if parent.is_none() && route.topic_queue_mapping_by_broker.as_ref().is_some_and(|all| !all.is_empty()) {
            self.add_logical(topic, &route, &mut stats).await?;
        }
        Ok(stats)
    }
}

/// The request that makes a topic, without its attributes.
pub(crate) fn creation<'a>(topic: &'a str, config: &TopicConfigAndQueueMapping) -> CreateTopic<'a> {
    CreateTopic {
        topic,
        default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
        read_queue_nums: config.read_queue_nums,
        write_queue_nums: config.write_queue_nums,
        perm: config.perm,
        topic_filter_type: config.topic_filter_type.name(),
        topic_sys_flag: Some(config.topic_sys_flag),
        order: config.order,
        attributes: None,
        force: false,
    }
}

/// Reads `+a=b,c=d,-e`. The signs stay at the names: the broker acts on them.
pub fn attributes(text: &str) -> Result<BTreeMap<String, String>> {
    let mut read = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = match (part.starts_with('-'), part.split_once('=')) {
            (true, None) => (part, ""),
            (false, Some((name, value))) => (name, value),
            (true, Some(_)) | (false, None) => {
                return Err(OperatorError::Invalid(format!(
                    "\"{part}\" is no change of an attribute: +name=value, name=value or -name is expected"
                )));
            }
        };
        let is_new = read.insert(name.to_owned(), value.to_owned()).is_none();
        ensure!(is_new, Invalid, "attribute {name} is named twice");
    }
    Ok(read)
}

fn attribute_text(name: &str, value: &str) -> String {
    if value.is_empty() { name.to_owned() } else { format!("{name}={value}") }
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

/// The topics that a group's deletion takes along.
pub fn topics_of_group(group: &str) -> [String; 2] {
    [retry_topic(group), dlq_topic(group)]
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
