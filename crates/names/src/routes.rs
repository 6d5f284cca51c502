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

use crate::limits::{Limits, Unfit};

mod standby;

use standby::Standby;

/// One name stands in no more clusters.
const CLUSTERS_OF_NAME_MAX: usize = 16;

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
    /// The broker whose place in the routes it took: the same name and id at another address, still alive.
    pub displaced: Option<BrokerAddress>,
    /// The address that has its place in the routes, if one does.
    pub stands_by_for: Option<String>,
    /// Topics that were not taken.
    pub left_out: LeftOut,
}

/// Topics of a registration that are not in the routes because something of them is not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// How many.
    pub count: usize,
    /// The first one and why.
    pub first: Option<(String, Unfit)>,
}

impl LeftOut {
    pub(crate) fn note(&mut self, topic: &str, why: Unfit) {
        self.count += 1;
        self.first.get_or_insert_with(|| (topic.to_owned(), why));
    }
}

/// How registrations are taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// A topic that a broker does not name any more is gone from it.
    pub forget_missing: bool,
    /// How much there may be.
    pub limits: Limits,
}

/// Why a registration is turned down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TurnedDown {
    /// A new broker with one topic only, as in Apache: it has just begun to make them.
    #[error("register broker failed")]
    OneTopic,
    /// There are as many brokers as there may be.
    #[error(transparent)]
    Full(#[from] Unfit),
}

/// How much a route table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Addresses, or names if there are more of those.
    pub brokers: usize,
    /// Names of topics.
    pub topics: usize,
    /// Pairs of a topic and a broker name, those of brokers that stand by too.
    pub routes: usize,
}

/// What changed when brokers left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departure {
    /// Whose smallest id changed.
    pub min_id_changes: Vec<MinBrokerIdChange>,
    /// Those that stood by and have their places back.
    pub back: Vec<Unregistration>,
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
    /// Static topics by topic and broker name. Each pair stands in `topics` too.
    mappings: BTreeMap<String, BTreeMap<String, TopicQueueMappingInfo>>,
    /// By broker name, the latest last. Each is in `live`, and its place is taken.
    standbys: BTreeMap<String, Vec<Standby>>,
    /// Pairs of topic and broker name in `topics` and in `standbys`.
    routes: usize,
    /// As the last registration found them.
    limits: Limits,
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

    /// Takes a registration, unless it is turned down.
    pub fn register(&mut self, now: Duration, new: Registration, rules: &Rules) -> Result<Registered, TurnedDown> {
        self.limits = rules.limits;
        self.has_room_for(&new)?;
        if let Some(place) = self.stands_by(now, &new) {
            return Ok(self.hear_standby(place, now, new));
        }
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
        let is_min_id_changed = broker.broker_addrs.keys().next().is_none_or(|min| new.broker_id < *min);

        // A slave that became master comes with the same address under another id.
        let before = broker.broker_addrs.len();
        broker.broker_addrs.retain(|id, address| *id == new.broker_id || *address != new.at.address);
        if broker.broker_addrs.len() != before {
            self.generation += 1;
        }

        let version = new.body.topics.data_version;
        let held = broker.broker_addrs.get(&new.broker_id).filter(|held| **held != new.at.address).cloned();
        // A broker that has only just begun to create its topics would make all others vanish from its routes.
        let is_turned_down =
            !broker.broker_addrs.contains_key(&new.broker_id) && new.body.topics.topic_config_table.len() == 1;
        let mut displaced = None;
        if let Some(held) = &held {
            let at = self.live_at(&new.broker_name, &new.at.cluster, held);
            let known = at.and_then(|at| Some((self.live.get(&at)?.version.state_version, at)));
            if let Some((epoch, at)) = known {
                // Two masters of one name race after a failover: the one of the older epoch loses.
                if epoch > version.state_version {
                    self.live.remove(&new.at);
                    return Ok(Registered::default());
                }
                // After a failover the former master comes back under another id: it does not stand by.
                let is_mistaken = epoch == version.state_version && !self.has_other(&new.broker_name, held);
                displaced = is_mistaken.then_some(at);
            }
        }
        if is_turned_down {
            self.drop_empty(&BTreeSet::from([new.broker_name.clone()]));
            return Err(TurnedDown::OneTopic);
        }
        if let Some(at) = &displaced {
            self.displace(&new.broker_name, new.broker_id, at.clone());
        }
        self.clusters.entry(new.at.cluster.clone()).or_default().insert(new.broker_name.clone());
        let broker = self.brokers.entry(new.broker_name.clone()).or_default();
        (broker.enable_acting_master, broker.zone_name) = (acting_master, new.zone_name.clone());
        let replaced = broker.broker_addrs.insert(new.broker_id, new.at.address.clone());
        is_first |= replaced.is_none();
        if replaced.as_ref() != Some(&new.at.address) {
            self.generation += 1;
        }
        let is_master = new.broker_id == MASTER_ID;
        let is_prime_slave =
            new.acting_master.is_some() && !is_master && broker.broker_addrs.keys().next() == Some(&new.broker_id);
        let mut registered = Registered { displaced: displaced.clone(), ..Registered::default() };
        if is_master || is_prime_slave {
            let is_read_only = is_prime_slave && acting_master;
            registered.left_out = self.apply_topics(&new, is_first, is_read_only, rules.forget_missing);
        }

        // An address that no broker has any more is not alive: should it come back, its topics are looked at again.
        if let Some(old) = held.filter(|old| displaced.is_none() && !self.has_other("", old)) {
            self.live.remove(&BrokerAddress { cluster: new.at.cluster.clone(), address: old });
        }

        let broker = &self.brokers[&new.broker_name];
        if !is_master && let Some(master) = broker.broker_addrs.get(&MASTER_ID) {
            let at = BrokerAddress { cluster: new.at.cluster.clone(), address: master.clone() };
            if let Some(live) = self.live.get(&at) {
                registered.ha_address = Some(live.ha_address.clone());
                registered.master_address = Some(master.clone());
            }
        }
        self.hear(now, &new);
        if is_min_id_changed && acting_master {
            registered.min_id_change = self.min_id_change(&new.broker_name, None);
        }
        Ok(registered)
    }

    /// Whether another broker than that of a name has an address.
    fn has_other(&self, broker_name: &str, address: &str) -> bool {
        let has = |broker: &BrokerData| broker.broker_addrs.values().any(|known| known == address);
        self.brokers.iter().any(|(name, broker)| name != broker_name && has(broker))
    }

    /// Whether one more broker may be registered, if it is one more.
    fn has_room_for(&self, new: &Registration) -> Result<(), Unfit> {
        let max = self.limits.brokers;
        let full = |field, value: &str| Unfit::full(field, &value, "brokersMax", max);
        if self.live.len() >= max && !self.live.contains_key(&new.at) {
            return Err(full("brokerAddr", &new.at.address));
        }
        if self.brokers.len() >= max && !self.brokers.contains_key(&new.broker_name) {
            return Err(full("brokerName", &new.broker_name));
        }
        match self.clusters.get(&new.at.cluster) {
            Some(names) if names.contains(&new.broker_name) => return Ok(()),
            None if self.clusters.len() >= max => return Err(full("clusterName", &new.at.cluster)),
            Some(_) | None => {}
        }
        if self.clusters.values().filter(|names| names.contains(&new.broker_name)).count() >= CLUSTERS_OF_NAME_MAX {
            let limit = format!("brokerName {} stands in {CLUSTERS_OF_NAME_MAX} clusters already", new.broker_name);
            return Err(Unfit::new("clusterName", &new.at.cluster, limit));
        }
        Ok(())
    }

    /// Notes that a broker is alive, and what it said of itself.
    fn hear(&mut self, now: Duration, new: &Registration) {
        let life = Duration::from_millis(u64::try_from(new.life_ms.unwrap_or(LIFE_MS_DEFAULT)).unwrap_or(0));
        let live = Live {
            last: now,
            life,
            version: new.body.topics.data_version,
            connection: new.connection,
            ha_address: new.ha_address.clone(),
        };
        self.live.insert(new.at.clone(), live);
    }

    fn apply_topics(
        &mut self,
        new: &Registration,
        is_first: bool,
        is_read_only: bool,
        forget_missing: bool,
    ) -> LeftOut {
        let table = &new.body.topics;
        let mappings = table.topic_queue_mapping_info_map.as_ref();
        let is_changed = is_first || self.is_changed(&new.at, &table.data_version);
        let mut left_out = LeftOut::default();
        if forget_missing && mappings.is_none_or(BTreeMap::is_empty) {
            let topics = &table.topic_config_table;
            self.retain_queues(|topic, broker| broker != new.broker_name || topics.contains_key(topic));
        }
        for (name, topic) in &table.topic_config_table {
            let is_known = self.topics.get(name).is_some_and(|brokers| brokers.contains_key(&new.broker_name));
            if is_known && !is_changed {
                continue;
            }
            let taken = self.limits.topic(name, topic);
            let taken = taken.and_then(|()| self.put_queues(name, queues_of(&new.broker_name, topic, is_read_only)));
            if let Err(unfit) = taken {
                left_out.note(name, unfit);
            }
        }
        if is_changed {
            for (topic, mapping) in mappings.into_iter().flatten() {
                // One of a topic that is left out would stay without it.
                if !self.topics.get(topic).is_some_and(|brokers| brokers.contains_key(&new.broker_name)) {
                    continue;
                }
                if let Err(unfit) = self.limits.mapping(&new.broker_name, topic, mapping) {
                    left_out.note(topic, unfit);
                    continue;
                }
                let brokers = self.mappings.entry(topic.clone()).or_default();
                if brokers.get(&mapping.bname) != Some(mapping) {
                    brokers.insert(mapping.bname.clone(), mapping.clone());
                    self.generation += 1;
                }
            }
        }
        left_out
    }

    /// Notes the queues of a topic at a broker, if there is room for one more.
    fn put_queues(&mut self, topic: &str, queues: QueueData) -> Result<(), Unfit> {
        let Limits { topics: topics_max, routes: routes_max, .. } = self.limits;
        let known = self.topics.get_mut(topic);
        if let Some(known) = known.as_ref().and_then(|brokers| brokers.get(&queues.broker_name)) {
            if *known == queues {
                return Ok(());
            }
        } else {
            if self.routes >= routes_max {
                return Err(Unfit::full("topicName", &topic, "topicRoutesMax", routes_max));
            }
            if known.is_none() && self.topics.len() >= topics_max {
                return Err(Unfit::full("topicName", &topic, "topicsMax", topics_max));
            }
            self.routes += 1;
        }
        self.topics.entry(topic.to_owned()).or_default().insert(queues.broker_name.clone(), queues);
        self.generation += 1;
        Ok(())
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

    /// Takes brokers out.
    pub fn unregister(&mut self, leaving: &[Unregistration]) -> Departure {
        let mut departure = Departure::default();
        let mut empty = BTreeSet::new();
        for one in leaving {
            self.live.remove(&one.at);
            self.forget_standby(&one.broker_name, &one.at);
            let Some(broker) = self.brokers.get_mut(&one.broker_name) else { continue };
            let min_before = broker.broker_addrs.keys().next().copied();
            let mut free = Vec::new();
            broker.broker_addrs.retain(|id, address| {
                let stays = *address != one.at.address;
                if !stays {
                    free.push(*id);
                }
                stays
            });
            if free.is_empty() {
                continue;
            }
            self.generation += 1;
            let back: Vec<_> = free.iter().filter_map(|id| self.take_back(&one.broker_name, *id)).collect();
            let has_come_back = !back.is_empty();
            departure.back.extend(back);
            let broker = &self.brokers[&one.broker_name];
            let acts = broker.enable_acting_master;
            let has_master = broker.broker_addrs.contains_key(&MASTER_ID);
            let min_after = broker.broker_addrs.keys().next().copied();
            if min_after.is_none() {
                empty.insert(one.broker_name.clone());
                continue;
            }
            if acts && !has_master {
                self.for_queues_of(&one.broker_name, |queues| queues.perm &= !perm::WRITE);
            }
            if acts && (min_after != min_before || has_come_back) {
                let change = self.min_id_change(&one.broker_name, Some(one.at.address.clone()));
                departure.min_id_changes.extend(change);
            }
        }
        self.drop_empty(&empty);
        departure
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

    /// Forgets who registered through a connection that is gone, though he takes no broker out: see [`RouteTable::forget_silent`].
    pub fn forget_disconnected(&mut self, connection: u64) {
        self.live.retain(|_, live| live.connection != connection);
    }

    fn leaving(&self, is_leaving: impl Fn(&Live) -> bool) -> Vec<Unregistration> {
        let gone: Vec<&BrokerAddress> =
            self.live.iter().filter(|(_, live)| is_leaving(live)).map(|(at, _)| at).collect();
        if gone.is_empty() {
            return Vec::new();
        }
        // Names and ids by address, once for all that leave: after a pause of ours these may be all that there are.
        let mut known: HashMap<&str, Vec<(&str, i64)>> = HashMap::new();
        for (name, broker) in &self.brokers {
            for (id, address) in &broker.broker_addrs {
                known.entry(address).or_default().push((name, *id));
            }
        }
        let mut leaving = Vec::new();
        for at in gone {
            for (name, id) in known.get(at.address.as_str()).into_iter().flatten() {
                // A broker with the same address that is alive in its own cluster stays. One that is not has come with this cluster.
                let own = BrokerAddress { cluster: self.brokers[*name].cluster.clone(), address: at.address.clone() };
                if own != *at && self.live.contains_key(&own) {
                    continue;
                }
                leaving.push(Unregistration { at: at.clone(), broker_name: (*name).to_owned(), broker_id: *id });
            }
        }
        for (name, standbys) in &self.standbys {
            for standby in standbys.iter().filter(|standby| self.live.get(&standby.at).is_none_or(&is_leaving)) {
                let (at, broker_name, broker_id) = (standby.at.clone(), name.clone(), standby.broker_id);
                leaving.push(Unregistration { at, broker_name, broker_id });
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
                self.routes -= self.topics.remove(topic).map_or(0, |queues| queues.len());
                self.mappings.remove(topic);
                self.generation += 1;
            }
            Some(cluster) => {
                let names = self.clusters.get(cluster).cloned().unwrap_or_default();
                self.retain_queues(|name, broker| name != topic || !names.contains(broker));
            }
        }
    }

    /// Notes the queues of one topic on brokers that are registered already; others are passed over.
    pub fn register_topic(&mut self, topic: &str, queues: Vec<QueueData>, limits: Limits) -> Result<(), Unfit> {
        self.limits = limits;
        limits.name("topic", topic)?;
        for data in &queues {
            limits.queues(data.perm, data.read_queue_nums, data.write_queue_nums)?;
        }
        for data in queues {
            if self.brokers.contains_key(&data.broker_name) {
                self.put_queues(topic, data)?;
            }
        }
        Ok(())
    }

    /// How much there is: what [`Limits`] bound.
    pub fn size(&self) -> TableSize {
        TableSize { brokers: self.live.len().max(self.brokers.len()), topics: self.topics.len(), routes: self.routes }
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
        self.routes -= dropped;
        self.generation += u64::from(dropped > 0);
        // A topic that is made anew under this name need not be static.
        self.mappings.retain(|topic, brokers| {
            brokers.retain(|broker, _| keep(topic, broker));
            !brokers.is_empty()
        });
    }

    /// Forgets those of these broker names that have no address, and what only they served.
    fn drop_empty(&mut self, broker_names: &BTreeSet<String>) {
        let is_empty = |name: &&String| self.brokers.get(*name).is_some_and(|broker| broker.broker_addrs.is_empty());
        let empty: BTreeSet<String> = broker_names.iter().filter(is_empty).cloned().collect();
        if empty.is_empty() {
            return;
        }
        // Their replicas may have come with different clusters.
        self.clusters.retain(|_, names| {
            names.retain(|name| !empty.contains(name));
            !names.is_empty()
        });
        self.brokers.retain(|name, _| !empty.contains(name));
        self.retain_queues(|_, broker| !empty.contains(broker));
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
