//! Brokers that stand by: another one with their name and id came later and has their place in the routes.
//!
//! That happens when a broker comes back elsewhere before its old connection ends, and when two brokers are configured alike by
//! mistake. The newest wins, as in Apache. Apache forgets the other one, and each registration of either takes the place again;
//! here a broker that stands by and registers again over the same connection goes on standing by, and has its place back at once
//! when the other one leaves.

use super::*;

/// More brokers of one name and id do not stand by: the oldest is forgotten, as if it had left.
const STANDBYS_MAX: usize = 4;

/// Brokers register every 10 to 60 s. One that has been silent for longer does not keep the place from one that is heard.
const HOLDS_WITHOUT_A_WORD: Duration = Duration::from_secs(75);

#[derive(Clone, Debug)]
pub(super) struct Standby {
    pub at: BrokerAddress,
    pub broker_id: i64,
    acting_master: bool,
    zone_name: Option<String>,
    /// What it serves when it is back; empty for one that brings no topics.
    topics: BTreeMap<String, QueueData>,
    mappings: BTreeMap<String, TopicQueueMappingInfo>,
}

impl RouteTable {
    /// Lets the broker stand by that has had a name and id until now, if it is alive: another one takes its place.
    pub(super) fn displace(&mut self, broker_name: &str, broker_id: i64, at: BrokerAddress) {
        let Some(broker) = self.brokers.get(broker_name) else { return };
        let brings_topics = broker.broker_addrs.keys().next() == Some(&broker_id);
        let (acting_master, zone_name) = (broker.enable_acting_master, broker.zone_name.clone());
        let (mut topics, mut mappings) = (BTreeMap::new(), BTreeMap::new());
        if brings_topics {
            let rows = self.topics.iter().filter_map(|(name, queues)| Some((name, queues.get(broker_name)?)));
            topics = rows.map(|(name, queues)| (name.clone(), queues.clone())).collect();
            let rows = self.mappings.iter().filter_map(|(name, brokers)| Some((name, brokers.get(broker_name)?)));
            mappings = rows.map(|(name, mapping)| (name.clone(), mapping.clone())).collect();
        }
        if self.routes + topics.len() > self.limits.routes {
            // Its next registration brings them.
            (topics, mappings) = (BTreeMap::new(), BTreeMap::new());
        }
        self.routes += topics.len();
        let standby = Standby { at, broker_id, acting_master, zone_name, topics, mappings };
        let standbys = self.standbys.entry(broker_name.to_owned()).or_default();
        standbys.push(standby);
        if standbys.len() > STANDBYS_MAX {
            let oldest = standbys.remove(0);
            self.routes -= oldest.topics.len();
            self.live.remove(&oldest.at);
        }
    }

    /// Where the broker of a registration stands by, if it goes on doing that. If it does not, it is not among those any more.
    pub(super) fn stands_by(&mut self, now: Duration, new: &Registration) -> Option<usize> {
        let standbys = self.standbys.get(&new.broker_name)?;
        let place = standbys.iter().position(|standby| standby.at == new.at)?;
        let goes_on = || {
            let holder = self.brokers.get(&new.broker_name)?.broker_addrs.get(&new.broker_id)?;
            let holder = self.live_at(&new.broker_name, &new.at.cluster, holder)?;
            let holder = self.live.get(&holder)?;
            let is_heard = now.saturating_sub(holder.last) <= HOLDS_WITHOUT_A_WORD;
            let is_newer = new.body.topics.data_version.state_version > holder.version.state_version;
            let is_same = standbys[place].broker_id == new.broker_id
                && self.live.get(&new.at).is_some_and(|live| live.connection == new.connection);
            (is_heard && !is_newer && is_same).then_some(place)
        };
        let goes_on = goes_on();
        if goes_on.is_none() {
            self.forget_standby(&new.broker_name, &new.at);
            // Its topics are looked at again.
            self.live.remove(&new.at);
        }
        goes_on
    }

    /// Notes what a broker that stands by says.
    pub(super) fn hear_standby(&mut self, place: usize, now: Duration, new: Registration) -> Registered {
        let holder = self.brokers.get(&new.broker_name).and_then(|broker| broker.broker_addrs.get(&new.broker_id));
        let mut registered = Registered { stands_by_for: holder.cloned(), ..Registered::default() };
        let limits = self.limits;
        let is_changed = self.is_changed(&new.at, &new.body.topics.data_version);
        let brings_topics = new.broker_id == MASTER_ID;
        let Some(standby) = self.standbys.get_mut(&new.broker_name).and_then(|all| all.get_mut(place)) else {
            return registered;
        };
        (standby.acting_master, standby.zone_name) = (new.acting_master.unwrap_or(false), new.zone_name.clone());
        if brings_topics && is_changed {
            for (name, topic) in &new.body.topics.topic_config_table {
                if let Err(unfit) = limits.topic(name, topic) {
                    registered.left_out.note(name, unfit);
                    continue;
                }
                if !standby.topics.contains_key(name) {
                    if self.routes >= limits.routes {
                        let unfit = Unfit::full("topicName", name, "topicRoutesMax", limits.routes);
                        registered.left_out.note(name, unfit);
                        continue;
                    }
                    self.routes += 1;
                }
                standby.topics.insert(name.clone(), queues_of(&new.broker_name, topic, false));
            }
            for (name, mapping) in new.body.topics.topic_queue_mapping_info_map.iter().flatten() {
                if standby.topics.contains_key(name) && limits.mapping(&new.broker_name, name, mapping).is_ok() {
                    standby.mappings.insert(name.clone(), mapping.clone());
                }
            }
        }
        self.hear(now, &new);
        registered
    }

    /// A broker that stands by has gone.
    pub(super) fn forget_standby(&mut self, broker_name: &str, at: &BrokerAddress) {
        let Some(standbys) = self.standbys.get_mut(broker_name) else { return };
        let mut rows = 0;
        standbys.retain(|standby| {
            let stays = standby.at != *at;
            rows += if stays { 0 } else { standby.topics.len() };
            stays
        });
        if standbys.is_empty() {
            self.standbys.remove(broker_name);
        }
        self.routes -= rows;
    }

    /// Gives the place of a name and id, which is free now, back to the broker that had it last and is still alive.
    pub(super) fn take_back(&mut self, broker_name: &str, broker_id: i64) -> Option<Unregistration> {
        let standbys = self.standbys.get_mut(broker_name)?;
        let place = standbys.iter().rposition(|standby| standby.broker_id == broker_id)?;
        let Standby { at, acting_master, zone_name, topics, mappings, .. } = standbys.remove(place);
        if standbys.is_empty() {
            self.standbys.remove(broker_name);
        }
        self.routes -= topics.len();
        let broker = self.brokers.get_mut(broker_name)?;
        broker.broker_addrs.insert(broker_id, at.address.clone());
        (broker.enable_acting_master, broker.zone_name) = (acting_master, zone_name);
        if !topics.is_empty() {
            self.retain_queues(|_, broker| broker != broker_name);
            self.routes += topics.len();
            for (name, queues) in topics {
                self.topics.entry(name).or_default().insert(broker_name.to_owned(), queues);
            }
            for (name, mapping) in mappings {
                self.mappings.entry(name).or_default().insert(broker_name.to_owned(), mapping);
            }
        }
        self.generation += 1;
        Some(Unregistration { at, broker_name: broker_name.to_owned(), broker_id })
    }

    /// Under which cluster the broker of a name at an address is alive, if it is: its own, or the one that a registration names.
    pub(super) fn live_at(&self, broker_name: &str, cluster: &str, address: &str) -> Option<BrokerAddress> {
        let own = self.brokers.get(broker_name)?.cluster.as_str();
        let at = |cluster: &str| BrokerAddress { cluster: cluster.to_owned(), address: address.to_owned() };
        [at(own), at(cluster)].into_iter().find(|at| self.live.contains_key(at))
    }
}
