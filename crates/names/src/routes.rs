//! The route table: brokers, their topics, and who is alive. Pure: no clock, no socket, no lock.
//!
//! Invariant: a broker name stands in `brokers` as long as one address of it is alive, and a topic stands in `topics` as long as
//! one broker name serves it. The rules of registration are Apache's (`RouteInfoManager`), because its brokers rely on them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use protocol::body::{
    BrokerData, BrokerMemberGroup, ClusterInfo, DataVersion, MASTER_ID, QueueData, RegisterBrokerBody, TopicConfig,
    TopicQueueMappingInfo, TopicRoute,
};
use protocol::sys_flag::perm;

/// How long a broker is believed alive that does not say how long.
const LIFE_MS_DEFAULT: i64 = 120_000;

/// One broker process: two clusters may hold the same address, as happens behind a proxy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerAddress {
    /// Its cluster.
    pub cluster: String,
    /// `host:port`, as it advertises itself.
    pub address: String,
}

/// What a broker says of itself when it registers.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Where it is.
    pub at: BrokerAddress,
    /// The name that it shares with its replicas.
    pub broker_name: String,
    /// 0 is the master.
    pub broker_id: i64,
    /// Where slaves copy from.
    pub ha_address: String,
    /// Its availability zone.
    pub zone_name: Option<String>,
    /// How long it may stay silent, in ms.
    pub life_ms: Option<i64>,
    /// None from brokers that do not know of acting masters (before 5.0).
    pub acting_master: Option<bool>,
    /// The connection that it came by: when that ends, so does the registration.
    pub connection: u64,
    /// Its topics.
    pub body: RegisterBrokerBody,
}

/// What a broker learns by registering.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// The master's replication address, told to slaves.
    pub ha_address: Option<String>,
    /// The master's address, told to slaves.
    pub master_address: Option<String>,
    /// Somebody else has the smallest id now.
    pub min_id_change: Option<MinBrokerIdChange>,
}

/// The smallest id among the replicas of a name is another one: the acting master changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinBrokerIdChange {
    /// Whose.
    pub broker_name: String,
    /// The id.
    pub min_broker_id: i64,
    /// Its address.
    pub min_broker_address: String,
    /// The address that went away, if one did.
    pub offline_address: Option<String>,
    /// The replication address of the one with the smallest id.
    pub ha_address: Option<String>,
    /// The brokers to tell.
    pub addresses: Vec<String>,
}

/// A broker that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unregistration {
    /// Where it is.
    pub at: BrokerAddress,
    /// Its name.
    pub broker_name: String,
    /// Its id.
    pub broker_id: i64,
}

#[derive(Clone, Debug)]
struct Live {
    /// As a time since the start, like all times here: whoever sets the machine's clock must not make everybody look silent, or nobody.
    last: Duration,
    life: Duration,
    version: DataVersion,
    connection: u64,
    ha_address: String,
}

impl Live {
    fn is_silent(&self, now: Duration) -> bool {
        now.saturating_sub(self.last) > self.life
    }
}

/// Who serves which topic.
#[derive(Debug, Default)]
pub struct RouteTable {
    /// Queues by topic and broker name.
    topics: BTreeMap<String, BTreeMap<String, QueueData>>,
    brokers: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    clusters: BTreeMap<String, BTreeSet<String>>,
    live: HashMap<BrokerAddress, Live>,
    /// Static topics by topic and broker name.
    mappings: BTreeMap<String, BTreeMap<String, TopicQueueMappingInfo>>,
    generation: u64,
}

impl RouteTable {
    /// Grows with every change that a route could show.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Settings that routes depend on have changed.
    pub fn look_again(&mut self) {
        self.generation += 1;
    }

    /// Takes a registration. None when it is turned down: the caller answers with a failure.
    pub fn register(&mut self, now: Duration, new: Registration, forget_missing: bool) -> Option<Registered> {
        self.clusters.entry(new.at.cluster.clone()).or_default().insert(new.broker_name.clone());
        let mut is_first = !self.brokers.contains_key(&new.broker_name);
        let broker = self.brokers.entry(new.broker_name.clone()).or_insert_with(|| BrokerData {
            broker_name: new.broker_name.clone(),
            cluster: new.at.cluster.clone(),
            ..BrokerData::default()
        });
        let acting_master = new.acting_master.unwrap_or(false);
        if broker.enable_acting_master != acting_master || broker.zone_name != new.zone_name {
            self.generation += 1;
        }
        broker.enable_acting_master = acting_master;
        broker.zone_name = new.zone_name.clone();
        let is_min_id_changed = broker.broker_addrs.keys().next().is_none_or(|min| new.broker_id < *min);

        // A slave that became master comes with the same address under another id.
        let before = broker.broker_addrs.len();
        broker.broker_addrs.retain(|id, address| *id == new.broker_id || *address != new.at.address);
        if broker.broker_addrs.len() != before {
            self.generation += 1;
        }

        let version = new.body.topics.data_version;
        if let Some(held) = broker.broker_addrs.get(&new.broker_id)
            && *held != new.at.address
        {
            let held = BrokerAddress { cluster: new.at.cluster.clone(), address: held.clone() };
            // Two masters of one name race after a failover: the one of the older epoch loses.
            if self.live.get(&held).is_some_and(|held| held.version.state_version > version.state_version) {
                self.live.remove(&new.at);
                return Some(Registered::default());
            }
        }
        // A broker that has only just begun to create its topics would make all others vanish from its routes.
        if !broker.broker_addrs.contains_key(&new.broker_id) && new.body.topics.topic_config_table.len() == 1 {
            self.drop_empty(&new.broker_name);
            return None;
        }
        let replaced = broker.broker_addrs.insert(new.broker_id, new.at.address.clone());
        is_first |= replaced.is_none();
        if replaced.as_ref() != Some(&new.at.address) {
            self.generation += 1;
        }
        let is_master = new.broker_id == MASTER_ID;
        let is_prime_slave =
            new.acting_master.is_some() && !is_master && broker.broker_addrs.keys().next() == Some(&new.broker_id);
        if is_master || is_prime_slave {
            let is_read_only = is_prime_slave && acting_master;
            self.apply_topics(&new, is_first, is_read_only, forget_missing);
        }

        // An address that no broker has any more is not alive: should it come back, its topics are looked at again.
        let has_address =
            |broker: &BrokerData, old: &String| broker.broker_addrs.values().any(|address| address == old);
        if let Some(old) = replaced.filter(|old| !self.brokers.values().any(|broker| has_address(broker, old))) {
            self.live.remove(&BrokerAddress { cluster: new.at.cluster.clone(), address: old });
        }

        let broker = &self.brokers[&new.broker_name];
        let mut registered = Registered::default();
        if !is_master && let Some(master) = broker.broker_addrs.get(&MASTER_ID) {
            let at = BrokerAddress { cluster: new.at.cluster.clone(), address: master.clone() };
            if let Some(live) = self.live.get(&at) {
                registered.ha_address = Some(live.ha_address.clone());
                registered.master_address = Some(master.clone());
            }
        }
        let life = Duration::from_millis(u64::try_from(new.life_ms.unwrap_or(LIFE_MS_DEFAULT)).unwrap_or(0));
        let live = Live { last: now, life, version, connection: new.connection, ha_address: new.ha_address.clone() };
        self.live.insert(new.at.clone(), live);
        if is_min_id_changed && acting_master {
            registered.min_id_change = self.min_id_change(&new.broker_name, None);
        }
        Some(registered)
    }

    fn apply_topics(&mut self, new: &Registration, is_first: bool, is_read_only: bool, forget_missing: bool) {
        let table = &new.body.topics;
        let mappings = table.topic_queue_mapping_info_map.as_ref();
        let is_changed = is_first || self.is_changed(&new.at, &table.data_version);
        if forget_missing && mappings.is_none_or(BTreeMap::is_empty) {
            let topics = &table.topic_config_table;
            self.retain_queues(|topic, broker| broker != new.broker_name || topics.contains_key(topic));
        }
        for (name, topic) in &table.topic_config_table {
            let known = self.topics.get(name).and_then(|brokers| brokers.get(&new.broker_name));
            if known.is_some() && !is_changed {
                continue;
            }
            let queues = queues_of(&new.broker_name, topic, is_read_only);
            if known != Some(&queues) {
                self.topics.entry(name.clone()).or_default().insert(new.broker_name.clone(), queues);
                self.generation += 1;
            }
        }
        if is_changed {
            for (topic, mapping) in mappings.into_iter().flatten() {
                let brokers = self.mappings.entry(topic.clone()).or_default();
                if brokers.get(&mapping.bname) != Some(mapping) {
                    brokers.insert(mapping.bname.clone(), mapping.clone());
                    self.generation += 1;
                }
            }
        }
    }

    /// Whether what a broker holds now is not what we know of it.
    pub fn is_changed(&self, at: &BrokerAddress, version: &DataVersion) -> bool {
        self.live.get(at).is_none_or(|live| live.version != *version)
    }

    /// The version of the topics that a broker registered last.
    pub fn version(&self, at: &BrokerAddress) -> Option<DataVersion> {
        self.live.get(at).map(|live| live.version)
    }

    /// A broker gave a sign of life.
    pub fn touch(&mut self, at: &BrokerAddress, now: Duration) {
        if let Some(live) = self.live.get_mut(at) {
            live.last = now;
        }
    }

    /// Takes brokers out. Says whose smallest id changed by it.
    pub fn unregister(&mut self, leaving: &[Unregistration]) -> Vec<MinBrokerIdChange> {
        let mut changes = Vec::new();
        for one in leaving {
            self.live.remove(&one.at);
            let Some(broker) = self.brokers.get_mut(&one.broker_name) else { continue };
            let min_before = broker.broker_addrs.keys().next().copied();
            let before = broker.broker_addrs.len();
            broker.broker_addrs.retain(|_, address| *address != one.at.address);
            if broker.broker_addrs.len() == before {
                continue;
            }
            self.generation += 1;
            let acts = broker.enable_acting_master;
            let has_master = broker.broker_addrs.contains_key(&MASTER_ID);
            let min_after = broker.broker_addrs.keys().next().copied();
            if min_after.is_none() {
                self.drop_empty(&one.broker_name);
                continue;
            }
            if acts && !has_master {
                self.for_queues_of(&one.broker_name, |queues| queues.perm &= !perm::WRITE);
            }
            if acts && min_after != min_before {
                changes.extend(self.min_id_change(&one.broker_name, Some(one.at.address.clone())));
            }
        }
        changes
    }

    /// The brokers that have been silent for longer than they may.
    pub fn expired(&self, now: Duration) -> Vec<Unregistration> {
        self.leaving(|live| live.is_silent(now))
    }

    /// Whether anybody has been silent for longer than he may.
    pub fn has_silent(&self, now: Duration) -> bool {
        self.live.values().any(|live| live.is_silent(now))
    }

    /// Forgets who is silent though he takes no broker out: one that has registered from the same address with the cluster of its broker since.
    pub fn forget_silent(&mut self, now: Duration) {
        self.live.retain(|_, live| !live.is_silent(now));
    }

    /// The brokers that registered through a connection which is gone.
    pub fn disconnected(&self, connection: u64) -> Vec<Unregistration> {
        self.leaving(|live| live.connection == connection)
    }

    fn leaving(&self, is_leaving: impl Fn(&Live) -> bool) -> Vec<Unregistration> {
        let mut leaving = Vec::new();
        for (at, _) in self.live.iter().filter(|(_, live)| is_leaving(live)) {
            for (name, broker) in &self.brokers {
                // A broker with the same address that is alive in its own cluster stays. One that is not has come with this cluster.
                let own = BrokerAddress { cluster: broker.cluster.clone(), address: at.address.clone() };
                if own != *at && self.live.contains_key(&own) {
                    continue;
                }
                for (id, _) in broker.broker_addrs.iter().filter(|(_, address)| **address == at.address) {
                    leaving.push(Unregistration { at: at.clone(), broker_name: name.clone(), broker_id: *id });
                }
            }
        }
        leaving
    }

    /// Where a topic is. With `support_acting_master`, the smallest id of a name without a master is shown as its master.
    pub fn route(&self, topic: &str, support_acting_master: bool) -> Option<TopicRoute> {
        let queues = self.topics.get(topic)?;
        let mut route = TopicRoute {
            queue_datas: queues.values().cloned().collect(),
            broker_datas: queues.keys().filter_map(|name| self.brokers.get(name)).cloned().collect(),
            topic_queue_mapping_by_broker: self.mappings.get(topic).cloned(),
            ..TopicRoute::default()
        };
        if route.broker_datas.is_empty() {
            return None;
        }
        if support_acting_master {
            for broker in route.broker_datas.iter_mut().filter(|broker| broker.enable_acting_master) {
                let is_writable = queues.get(&broker.broker_name).is_some_and(|queues| perm::is_writable(queues.perm));
                if !broker.broker_addrs.contains_key(&MASTER_ID)
                    && !is_writable
                    && let Some((_, address)) = broker.broker_addrs.pop_first()
                {
                    broker.broker_addrs.insert(MASTER_ID, address);
                }
            }
        }
        Some(route)
    }

    /// All brokers.
    pub fn cluster_info(&self) -> ClusterInfo {
        ClusterInfo { broker_addr_table: self.brokers.clone(), cluster_addr_table: self.clusters.clone() }
    }

    /// The replicas of a name, whichever cluster they came with and whichever is asked for, as Apache answers; none for a name that
    /// nobody has registered.
    pub fn members(&self, cluster: &str, broker_name: &str) -> BrokerMemberGroup {
        let broker = self.brokers.get(broker_name);
        BrokerMemberGroup {
            broker_addrs: broker.map(|broker| broker.broker_addrs.clone()).unwrap_or_default(),
            broker_name: broker_name.to_owned(),
            cluster: cluster.to_owned(),
        }
    }

    /// Sets or clears the right to write on all queues of a broker; says how many topics that touched.
    pub fn set_writable(&mut self, broker_name: &str, is_writable: bool) -> i32 {
        let mut touched = 0;
        self.for_queues_of(broker_name, |queues| {
            queues.perm = if is_writable { perm::READ | perm::WRITE } else { queues.perm & !perm::WRITE };
            touched += 1;
        });
        touched
    }

    /// Forgets a topic, on the brokers of one cluster or on all.
    pub fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        match cluster {
            None => {
                self.topics.remove(topic);
                self.mappings.remove(topic);
                self.generation += 1;
            }
            Some(cluster) => {
                let names = self.clusters.get(cluster).cloned().unwrap_or_default();
                self.retain_queues(|name, broker| name != topic || !names.contains(broker));
                // A topic that is made anew under this name need not be static.
                if let Some(brokers) = self.mappings.get_mut(topic) {
                    brokers.retain(|broker, _| !names.contains(broker));
                    if brokers.is_empty() {
                        self.mappings.remove(topic);
                    }
                }
            }
        }
    }

    /// Notes the queues of one topic on brokers that are registered already; others are passed over.
    pub fn register_topic(&mut self, topic: &str, queues: Vec<QueueData>) {
        for data in queues.into_iter().filter(|data| self.brokers.contains_key(&data.broker_name)) {
            self.topics.entry(topic.to_owned()).or_default().insert(data.broker_name.clone(), data);
            self.generation += 1;
        }
    }

    /// All topics and their `topicSysFlag`.
    pub fn topics(&self) -> impl Iterator<Item = (&str, i32)> {
        self.topics.iter().filter_map(|(name, queues)| Some((name.as_str(), queues.values().next()?.topic_sys_flag)))
    }

    /// How many topics there are.
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// Whether somebody serves a topic.
    pub fn has_topic(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// The topics that a cluster serves.
    pub fn topics_of(&self, cluster: &str) -> Vec<String> {
        let Some(names) = self.clusters.get(cluster) else { return Vec::new() };
        let serves = |queues: &BTreeMap<String, QueueData>| queues.keys().any(|name| names.contains(name));
        self.topics.iter().filter(|(_, queues)| serves(queues)).map(|(topic, _)| topic.clone()).collect()
    }

    fn min_id_change(&self, broker_name: &str, offline_address: Option<String>) -> Option<MinBrokerIdChange> {
        let broker = self.brokers.get(broker_name)?;
        let (id, address) = broker.broker_addrs.first_key_value()?;
        let live = |address: &String| {
            self.live.get(&BrokerAddress { cluster: broker.cluster.clone(), address: address.clone() })
        };
        Some(MinBrokerIdChange {
            broker_name: broker_name.to_owned(),
            min_broker_id: *id,
            min_broker_address: address.clone(),
            offline_address,
            ha_address: live(address).map(|live| live.ha_address.clone()),
            addresses: broker.broker_addrs.values().cloned().collect(),
        })
    }

    fn for_queues_of(&mut self, broker_name: &str, mut change: impl FnMut(&mut QueueData)) {
        for queues in self.topics.values_mut().filter_map(|queues| queues.get_mut(broker_name)) {
            change(queues);
        }
        self.generation += 1;
    }

    fn retain_queues(&mut self, mut keep: impl FnMut(&str, &str) -> bool) {
        let mut dropped = 0;
        self.topics.retain(|topic, queues| {
            let before = queues.len();
            queues.retain(|broker, _| keep(topic, broker));
            dropped += before - queues.len();
            !queues.is_empty()
        });
        self.generation += u64::from(dropped > 0);
    }

    /// Forgets a broker name without addresses, and what only it served.
    fn drop_empty(&mut self, broker_name: &str) {
        if self.brokers.get(broker_name).is_none_or(|broker| !broker.broker_addrs.is_empty()) {
            return;
        }
        // Its replicas may have come with different clusters.
        self.clusters.retain(|_, names| {
            names.remove(broker_name);
            !names.is_empty()
        });
        self.brokers.remove(broker_name);
        self.retain_queues(|_, broker| broker != broker_name);
        self.mappings.retain(|_, brokers| {
            brokers.remove(broker_name);
            !brokers.is_empty()
        });
    }
}

fn queues_of(broker_name: &str, topic: &TopicConfig, is_read_only: bool) -> QueueData {
    QueueData {
        broker_name: broker_name.to_owned(),
        perm: if is_read_only { topic.perm & !perm::WRITE } else { topic.perm },
        read_queue_nums: topic.read_queue_nums,
        topic_sys_flag: topic.topic_sys_flag,
        write_queue_nums: topic.write_queue_nums,
    }
}

#[cfg(test)]
mod tests;
