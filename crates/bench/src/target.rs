//! The cluster under load, as an operator sees it: topics and groups for the run, how much is stored, what is set.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use client::{Admin, Client, ClientError};
use protocol::body::{KvTable, MASTER_ID, SubscriptionGroupConfig, TopicStatsTable};
use protocol::code::request;
use protocol::names::{dlq_topic, retry_topic};
use protocol::request::{CreateTopic, DeleteGroup, DeleteTopic, DeleteTopicInNames, GetTopicStats};
use protocol::sys_flag::perm;

use crate::driver::Driver;
use crate::error::BenchError;
use crate::scene::Scene;

/// How long a new topic may take until the name server knows all its queues.
const REGISTERING: Duration = Duration::from_secs(60);

/// Topics of a hundred thousand queues take a while.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster.
pub struct Target {
    client: Client,
    admin: Admin,
    cluster: String,
    /// The addresses of masters.
    pub masters: Vec<String>,
}

impl Target {
    /// Asks the name server for the masters of the driver's cluster.
    pub async fn connect(scene: &Scene, driver: &Driver) -> Result<Target, BenchError> {
        let client = scene.client(driver);
        let admin = client.admin().within(PATIENCE);
        let info =
            admin.cluster().await.map_err(BenchError::target(format!("the cluster at {}", driver.namesrv_addr)))?;
        let known: Vec<String> = info.cluster_addr_table.keys().cloned().collect();
        let cluster = match known.as_slice() {
            [] => {
                let text = format!("the name server at {} knows no broker", driver.namesrv_addr);
                return Err(BenchError::Invalid(text));
            }
            _ if !driver.cluster_name.is_empty() => driver.cluster_name.clone(),
            [only] => only.clone(),
            several => {
                let text = format!("clusterName is not given, and there are {}", several.join(", "));
                return Err(BenchError::Invalid(text));
            }
        };
        let names = info.cluster_addr_table.get(&cluster).ok_or_else(|| {
            BenchError::Invalid(format!("clusterName is \"{cluster}\"; the name server knows {}", known.join(", ")))
        })?;
        let address = |name| info.broker_addr_table.get(name)?.broker_addrs.get(&MASTER_ID).cloned();
        let masters: Vec<String> = names.iter().filter_map(address).collect();
        if masters.is_empty() {
            return Err(BenchError::Invalid(format!("cluster {cluster} has no master")));
        }
        Ok(Target { client, admin, cluster, masters })
    }

    /// Makes a topic on each master. Its route follows: [`Target::await_topic`].
    pub async fn create_topic(
        &self,
        topic: &str,
        queues: u32,
        attributes: &BTreeMap<String, String>,
    ) -> Result<(), BenchError> {
        let attributes: Vec<String> = attributes.iter().map(|(name, value)| format!("+{name}={value}")).collect();
        let attributes = attributes.join(",");
        let count = i32::try_from(queues).unwrap_or(i32::MAX);
        let fields = CreateTopic {
            topic,
            default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
            read_queue_nums: count,
            write_queue_nums: count,
            perm: perm::READ | perm::WRITE,
            topic_filter_type: "SINGLE_TAG",
            topic_sys_flag: Some(0),
            order: false,
            attributes: Some(&attributes),
            force: false,
        };
        for address in &self.masters {
            let made = self.admin.tell(address, request::UPDATE_AND_CREATE_TOPIC, &fields).await;
            made.map_err(BenchError::target(format!("making topic {topic} at {address}")))?;
        }
        Ok(())
    }

    /// Waits until the route of a topic has its `queues` of each master.
    pub async fn await_topic(&self, topic: &str, queues: u32) -> Result<(), BenchError> {
        let deadline = tokio::time::Instant::now() + REGISTERING;
        let wanted = self.masters.len() * queues as usize;
        loop {
            let found = match self.admin.route(topic).await {
                Ok(route) => client::Route::new(topic, route).writable.len(),
                Err(ClientError::NoRoute { .. }) => 0,
                Err(error) => return Err(BenchError::target(format!("the route of {topic}"))(error)),
            };
            if found >= wanted {
                return Ok(());
            }
            if tokio::time::Instant::now() > deadline {
                let waited = REGISTERING.as_secs();
                let text = format!("after {waited} s the route of {topic} has {found} queues of {wanted}");
                return Err(BenchError::Invalid(text));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Makes a consumer group on each master.
    pub async fn create_group(&self, group: &str) -> Result<(), BenchError> {
        let config = SubscriptionGroupConfig { group_name: group.to_owned(), ..SubscriptionGroupConfig::default() };
        for address in &self.masters {
            let made = self.admin.tell_json(address, request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), &config).await;
            made.map_err(BenchError::target(format!("making group {group} at {address}")))?;
        }
        Ok(())
    }

    /// Removes topics and groups, with the topics that brokers make for groups. Returns what could not be removed, in words.
    ///
    /// Topics go first: a broker knows the retry topics of pops by the groups that have offsets in a topic.
    pub async fn clean(&self, topics: &[String], groups: &[Vec<String>]) -> Vec<String> {
        let mut left = Vec::new();
        let of_groups = groups.iter().flatten().flat_map(|group| [retry_topic(group), dlq_topic(group)]);
        let made: Vec<String> = of_groups.collect();
        for address in &self.masters {
            self.delete_topics(address, topics, &mut left).await;
            for group in groups.iter().flatten() {
                let fields = DeleteGroup { group_name: group, clean_offset: true };
                if let Err(error) = self.admin.tell(address, request::DELETE_SUBSCRIPTIONGROUP, &fields).await {
                    left.push(format!("group {group} at {address}: {error}"));
                }
            }
            self.delete_topics(address, &made, &mut left).await;
        }
        for topic in topics.iter().chain(&made) {
            let fields = DeleteTopicInNames { topic, cluster_name: Some(&self.cluster) };
            for address in self.admin.name_servers() {
                if let Err(error) = self.admin.tell(address, request::DELETE_TOPIC_IN_NAMESRV, &fields).await {
                    left.push(format!("topic {topic} at {address}: {error}"));
                }
            }
        }
        left
    }

    async fn delete_topics(&self, address: &str, topics: &[String], left: &mut Vec<String>) {
        for topic in topics {
            let told = self.admin.tell(address, request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic }).await;
            if let Err(error) = told {
                left.push(format!("topic {topic} at {address}: {error}"));
            }
        }
    }

    /// Messages that topics hold: what one-way sends came to is known from nothing else.
    pub async fn stored(&self, topics: &[String]) -> Result<u64, ClientError> {
        let mut stored: i64 = 0;
        for topic in topics {
            for address in &self.masters {
                let fields = GetTopicStats { topic };
                let stats: TopicStatsTable = self.admin.ask(address, request::GET_TOPIC_STATS_INFO, &fields).await?;
                stored += stats.offset_table.values().map(|queue| queue.max_offset).sum::<i64>();
            }
        }
        Ok(u64::try_from(stored).unwrap_or(0))
    }

    /// What the first master says of its version; empty if it does not say.
    pub async fn version(&self) -> String {
        let Some(address) = self.masters.first() else { return String::new() };
        let info: Result<KvTable, ClientError> = self.admin.ask(address, request::GET_BROKER_RUNTIME_INFO, &()).await;
        info.ok().and_then(|mut info| info.table.remove("brokerVersionDesc")).unwrap_or_default()
    }

    /// The value of a setting of each master. Nothing if it has none of that name.
    pub async fn setting(&self, address: &str, key: &str) -> Result<Option<String>, BenchError> {
        let failed = BenchError::target(format!("the settings of {address}"));
        let response = self.admin.tell(address, request::GET_BROKER_CONFIG, &()).await.map_err(failed)?;
        let text = String::from_utf8_lossy(&response.body).into_owned();
        let mut pairs = text.lines().filter_map(|line| line.split_once('='));
        Ok(pairs.rfind(|(known, _)| known.trim() == key).map(|(_, value)| value.to_owned()))
    }

    /// Changes a setting of a running broker.
    pub async fn set(&self, address: &str, key: &str, value: &str) -> Result<(), BenchError> {
        // Property files give backslashes a meaning.
        let line = Bytes::from(format!("{key}={}\n", value.replace('\\', "\\\\")));
        let told = self.admin.call(address, request::UPDATE_BROKER_CONFIG, &(), line).await;
        told.map_err(BenchError::target(format!("setting {key}={value} at {address}")))?;
        Ok(())
    }

    /// Takes leave.
    pub async fn stop(self) {
        self.client.stop().await;
    }
}
