//! What every command begins with: the client, the way out, and the questions that many of them ask first.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Admin, Client, ClientConfig, ClientError, Credentials};
use env::{Clock, Stdout};
use protocol::body::{BrokerData, ClusterInfo, ConsumerConnection, GroupList, MASTER_ID, TopicList, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::names::{is_lmq, retry_topic};
use protocol::request::{GetConsumerConnections, QueryTopicConsumeByWho};

use super::output::Output;
use super::target::Target;

/// As `mqadmin` waits for each answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// One run of a command.
pub struct Session {
    /// For messages.
    pub client: Client,
    /// For everything else.
    pub admin: Admin,
    /// Where answers are shown.
    pub out: Output,
    /// The time.
    pub clock: Clock,
}

/// One broker of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// The cluster.
    pub cluster: String,
    /// The broker's name.
    pub name: String,
    /// Its id: 0 is a master.
    pub id: i64,
    /// Where it is.
    pub address: String,
}

impl Session {
    /// Begins. Nothing is connected before it is needed.
    pub fn start(name_servers: &str, credentials: Option<Credentials>, out: Output) -> Session {
        let clock = Clock::real();
        let config = ClientConfig {
            timeout: TIMEOUT,
            credentials,
            clock: clock.clone(),
            ..ClientConfig::new(name_servers.trim_matches('"'))
        };
        let client = Client::start(config);
        Session { admin: client.admin(), client, out, clock }
    }

    /// Between two rounds of a command that shows something again and again: hands out what was said, and waits. Whether there is
    /// another round: not if nobody reads on.
    pub async fn again_after(&self, pause: Duration) -> Result<bool> {
        self.out.flush()?;
        if Stdout::is_closed() {
            return Ok(false);
        }
        tokio::time::sleep(pause).await;
        Ok(true)
    }

    /// Milliseconds since 1970.
    pub fn now(&self) -> i64 {
        self.clock.now().0
    }

    /// Fails with a sentence that helps if no name server is given.
    pub fn need_names(&self) -> Result<()> {
        if self.admin.name_servers().is_empty() {
            bail!("no name server is given: use -n HOST:PORT or set NAMESRV_ADDR");
        }
        Ok(())
    }

    /// The clusters and their brokers.
    pub async fn cluster(&self) -> Result<ClusterInfo> {
        self.need_names()?;
        self.admin.cluster().await.context("cannot learn the clusters from the name server")
    }

    /// Where a topic is.
    pub async fn route(&self, topic: &str) -> Result<TopicRoute> {
        self.need_names()?;
        match self.admin.route(topic).await {
            Err(ClientError::NoRoute { topic }) => bail!("the name server knows no topic {topic}"),
            other => Ok(other?),
        }
    }

    /// Where a topic is; the queues of light message queues and of the timer have no route of their own, so one gives the cluster's
    /// or the parent topic's name with them.
    pub async fn route_by(&self, topic: &str, parent: Option<&str>) -> Result<TopicRoute> {
        let by_parent = is_lmq(topic) || topic == protocol::names::TIMER_TOPIC;
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

    /// All brokers of a cluster, by name and id.
    pub async fn brokers(&self, cluster: &str) -> Result<Vec<Broker>> {
        brokers_in(&self.cluster().await?, cluster)
    }

    /// The masters that a command is for.
    pub async fn masters(&self, target: &Target) -> Result<Vec<String>> {
        self.addresses(target, |broker| broker.id == MASTER_ID).await
    }

    /// The brokers that a command is for, slaves included.
    pub async fn replicas(&self, target: &Target) -> Result<Vec<String>> {
        self.addresses(target, |_| true).await
    }

    async fn addresses(&self, target: &Target, is_meant: impl Fn(&Broker) -> bool) -> Result<Vec<String>> {
        if let Some(address) = &target.broker_addr {
            return Ok(vec![address.trim().to_owned()]);
        }
        let cluster = target.cluster_name.as_deref().unwrap_or_default().trim();
        let brokers = self.brokers(cluster).await?;
        let addresses: Vec<String> = brokers.into_iter().filter(is_meant).map(|broker| broker.address).collect();
        if addresses.is_empty() {
            bail!("cluster {cluster} has no broker for this at the moment");
        }
        Ok(addresses)
    }

    /// The masters of all clusters.
    pub async fn all_masters(&self) -> Result<Vec<String>> {
        Ok(masters_in(self.cluster().await?))
    }

    /// Where the consumers of a group are: they make its retry topic. Without one, anywhere.
    async fn brokers_of(&self, group: &str) -> Result<Vec<String>, ClientError> {
        match self.admin.route(&retry_topic(group)).await {
            Ok(route) => Ok(readable(&route).map(|(_, address)| address).collect()),
            Err(ClientError::NoRoute { .. }) => Ok(masters_in(self.admin.cluster().await?)),
            Err(error) => Err(error),
        }
    }

    /// Where the master of a broker name is.
    pub async fn master_of(&self, broker_name: &str) -> Result<String> {
        let cluster = self.cluster().await?;
        let broker = cluster.broker_addr_table.get(broker_name);
        let master = broker.and_then(|broker| broker.broker_addrs.get(&MASTER_ID)).cloned();
        master.with_context(|| format!("the name server knows no master of broker {broker_name}"))
    }

    /// The name of the broker at an address.
    pub async fn broker_name(&self, address: &str) -> Result<String> {
        let cluster = self.cluster().await?;
        let found = cluster.broker_addr_table.iter().find(|(_, broker)| has_address(broker, address));
        let name = found.map(|(name, _)| name.clone());
        name.with_context(|| format!("the name server knows no broker at {address}"))
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

    /// Who consumes in a group: as one broker tells it, or the first broker of the group that knows it.
    pub async fn consumers(&self, group: &str, broker: Option<&str>) -> Result<ConsumerConnection, ClientError> {
        let fields = GetConsumerConnections { consumer_group: group };
        let code = request::GET_CONSUMER_CONNECTION_LIST;
        let addresses = match broker {
            Some(address) => vec![address.trim().to_owned()],
            None => self.brokers_of(group).await?,
        };
        let mut last = ClientError::NoRoute { topic: retry_topic(group) };
        for address in addresses {
            match self.admin.ask(&address, code, &fields).await {
                Ok(connection) => return Ok(connection),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn has_address(broker: &BrokerData, address: &str) -> bool {
    broker.broker_addrs.values().any(|known| known == address)
}

fn masters_in(info: ClusterInfo) -> Vec<String> {
    let brokers = info.broker_addr_table.into_values();
    brokers.filter_map(|mut broker| broker.broker_addrs.remove(&MASTER_ID)).collect()
}

/// Whether somebody said that nobody of a group is there.
pub fn is_offline(error: &ClientError) -> bool {
    error.code() == Some(ResponseCode::ConsumerNotOnline as i32)
}

/// The brokers of a route by name: the master, or else any replica.
pub fn readable(route: &TopicRoute) -> impl Iterator<Item = (String, String)> {
    let brokers: BTreeMap<String, String> = route
        .broker_datas
        .iter()
        .filter_map(|broker| {
            let addresses = &broker.broker_addrs;
            let address = addresses.get(&MASTER_ID).or_else(|| addresses.values().next())?;
            Some((broker.broker_name.clone(), address.clone()))
        })
        .collect();
    brokers.into_iter()
}

/// The masters of a route by name.
pub fn masters(route: &TopicRoute) -> impl Iterator<Item = (&str, &str)> {
    let brokers: BTreeMap<&str, &str> = route
        .broker_datas
        .iter()
        .filter_map(|broker| Some((broker.broker_name.as_str(), broker.broker_addrs.get(&MASTER_ID)?.as_str())))
        .collect();
    brokers.into_iter()
}

/// All brokers of a cluster, by name and id.
pub fn brokers_in(info: &ClusterInfo, cluster: &str) -> Result<Vec<Broker>> {
    let Some(names) = info.cluster_addr_table.get(cluster) else {
        let known: Vec<&str> = info.cluster_addr_table.keys().map(String::as_str).collect();
        bail!("the name server knows no cluster {cluster}: it knows {}", or_none(&known.join(", ")));
    };
    let mut brokers = Vec::new();
    for name in names {
        let Some(data) = info.broker_addr_table.get(name) else { continue };
        brokers.extend(data.broker_addrs.iter().map(|(id, address)| Broker {
            cluster: cluster.to_owned(),
            name: name.clone(),
            id: *id,
            address: address.clone(),
        }));
    }
    Ok(brokers)
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
