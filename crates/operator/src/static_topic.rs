//! Static topics: a fixed number of logical queues over all brokers, which can move between brokers.
//!
//! [`crate::mapping`] decides what each broker is to have; here brokers are asked and told. Brokers take a change only of the mapping that it
//! was made of: of two operators at once, the first broker that has the topic, which both ask first, lets one go on. An Apache broker in
//! its place lets both.

use std::collections::{BTreeMap, BTreeSet};

use protocol::body::{
    ConsumeOffset, ConsumeStats, MessageQueue, TopicConfigAndQueueMapping, TopicRemappingDetail, TopicRoute,
    TopicStatsTable,
};
use protocol::code::{ResponseCode, request};
use protocol::names::is_logical_broker;
use protocol::request::{CreateTopic, ExpectedEpoch, GetConsumeStats, GetTopicConfig};

use crate::cluster::readable;
use crate::error::{OperatorError, Result, ensure};
use crate::handle::Operator;
use crate::mapping::{
    Brokers, details, empty, leaders, logical, logical_place, logical_progress, logical_queue, next_block,
};
use crate::topic::creation;

/// Of a broker without a mapping of the topic.
const NO_EPOCH: i64 = -1;

/// A static topic of which a group's progress is told by physical queue, because its logical ones are not known now.
#[derive(Debug)]
pub struct ByPhysicalQueue {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Why they are not known: a broker is down, or a queue is moving.
    pub cause: OperatorError,
}

impl Operator {
    /// These brokers, by name, and those of these clusters.
    pub async fn named_brokers(&self, brokers: &[String], clusters: &[String]) -> Result<BTreeSet<String>> {
        let info = self.cluster().await?;
        let mut found = BTreeSet::new();
        for name in brokers {
            let is_known = info.broker_addr_table.contains_key(name);
            ensure!(is_known, NotFound, "the name server knows no broker {name}");
            found.insert(name.clone());
        }
        for name in clusters {
            let unknown = || OperatorError::NotFound(format!("the name server knows no cluster {name}"));
            found.extend(info.cluster_addr_table.get(name).ok_or_else(unknown)?.iter().cloned());
        }
        Ok(found)
    }

    /// The topic on every broker that has it.
    pub async fn static_topic(&self, topic: &str) -> Result<Brokers> {
        let info = self.cluster().await?;
        let mut brokers = BTreeMap::new();
        for name in info.broker_addr_table.keys() {
            brokers.insert(name.clone(), self.master_of(name).await?);
        }
        self.mappings_on(topic, brokers).await
    }

    /// The same for a look: those that name servers know to have it are enough, and others may be down.
    async fn mappings_in(&self, topic: &str, route: &TopicRoute) -> Result<Brokers> {
        self.mappings_on(topic, readable(route)).await
    }

    /// The topic on those of these brokers that have it.
    async fn mappings_on(&self, topic: &str, brokers: impl IntoIterator<Item = (String, String)>) -> Result<Brokers> {
        let mut known = Brokers::new();
        for (name, address) in brokers {
            // Without this the mapping is left out.
            let fields = GetTopicConfig { topic, lo: Some(true) };
            match self.admin.ask(&address, request::GET_TOPIC_CONFIG, &fields).await {
                Ok(config) => {
                    known.insert(name, config);
                }
                Err(error) if error.code() == Some(ResponseCode::TopicNotExist as i32) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(known)
    }

    /// Gives brokers the mapping of a topic with more queues. `before` is what it was made of; without it a change before is finished,
    /// whatever came of it.
    pub async fn grow_static_topic(
        &self,
        change: &mut TopicRemappingDetail,
        before: Option<&Brokers>,
        is_forced: bool,
    ) -> Result<()> {
        let mut writer = Writer::new(self, before, is_forced);
        self.complete(change).await?;
        if let Some(before) = before {
            claim(&mut writer, change, before).await?;
        }
        for (broker, config) in &change.broker_config_map {
            writer.put(&change.topic, broker, config).await?;
        }
        Ok(())
    }

    /// Moves queues of a topic, and decides where they go on. `before` is as in [`Operator::grow_static_topic`].
    pub async fn move_static_topic(
        &self,
        change: &mut TopicRemappingDetail,
        before: Option<&Brokers>,
        is_forced: bool,
    ) -> Result<()> {
        let mut writer = Writer::new(self, before, is_forced);
        self.complete(change).await?;
        if let Some(before) = before
            && !change.broker_to_map_in.is_empty()
        {
            claim(&mut writer, change, before).await?;
        }
        apply_move(self, change, &mut writer).await
    }

    /// Every other broker of the clusters learns the topic too, without queues, so that it can tell clients where they are.
    async fn complete(&self, change: &mut TopicRemappingDetail) -> Result<()> {
        let info = self.cluster().await?;
        let total = details(&change.broker_config_map)?.map(|detail| detail.total_queues).max().unwrap_or(0);
        let has_one = |names: &&BTreeSet<String>| names.iter().any(|name| change.broker_config_map.contains_key(name));
        let all: BTreeSet<String> = info.cluster_addr_table.values().filter(has_one).flatten().cloned().collect();
        for name in all {
            let (topic, epoch) = (change.topic.clone(), change.epoch);
            let fresh = || empty(&topic, &name, total, epoch);
            change.broker_config_map.entry(name.clone()).or_insert_with(fresh);
        }
        Ok(())
    }

    /// Whether clients see logical queues of a topic. One of which nothing is known is an ordinary one.
    async fn is_static(&self, topic: &str) -> bool {
        let route = self.client.route(topic).await;
        route.is_ok_and(|route| route.readable.first().is_some_and(|queue| is_logical_broker(&queue.broker_name)))
    }

    /// Puts logical queues in the place of the physical ones of static topics. Where that cannot be worked out at the moment they stay as
    /// brokers tell them; these topics are returned.
    ///
    /// `asked`: the topic that is asked about, of which the brokers that told may know nothing.
    pub(crate) async fn as_clients_see(
        &self,
        group: &str,
        asked: Option<&str>,
        stats: &mut ConsumeStats,
    ) -> Vec<ByPhysicalQueue> {
        let topics = stats.offset_table.keys().map(|queue| queue.topic.as_str()).chain(asked);
        let topics: BTreeSet<String> = topics.map(str::to_owned).collect();
        let mut physical = Vec::new();
        for topic in topics {
            if !self.is_static(&topic).await {
                continue;
            }
            match self.progress_in(group, &topic).await {
                Ok(progress) => {
                    stats.offset_table.0.retain(|queue, _| queue.topic != topic);
                    stats.offset_table.extend(progress);
                }
                Err(cause) => physical.push(ByPhysicalQueue { group: group.to_owned(), topic, cause }),
            }
        }
        physical
    }

    /// How far a group is in the logical queues of a topic. All brokers of it are asked: the group's offset may be on one on which its
    /// consumers have never been.
    async fn progress_in(&self, group: &str, topic: &str) -> Result<Vec<(MessageQueue, ConsumeOffset)>> {
        let route = self.route(topic).await?;
        let leaders = leaders(&self.mappings_in(topic, &route).await?)?;
        let ends = self.topic_stats(topic, &route).await?;
        let mut there = ConsumeStats::default();
        for (_, address) in readable(&route) {
            let fields = GetConsumeStats { consumer_group: group, topic: Some(topic), topic_list: None };
            match self.admin.ask::<ConsumeStats>(&address, request::GET_CONSUME_STATS, &fields).await {
                Ok(part) => there.offset_table.extend(part.offset_table.0),
                Err(error) if error.code() == Some(ResponseCode::SubscriptionGroupNotExist as i32) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(logical_progress(topic, &leaders, &ends, &there))
    }

    /// The queue and the offset by which clients know a message of a physical queue; these themselves unless the topic is static.
    pub(crate) async fn place_of(&self, queue: MessageQueue, offset: i64) -> Result<(MessageQueue, i64)> {
        if !self.is_static(&queue.topic).await {
            return Ok((queue, offset));
        }
        let route = self.route(&queue.topic).await?;
        let leaders = leaders(&self.mappings_in(&queue.topic, &route).await?)?;
        let place = logical_place(&leaders, &queue.broker_name, queue.queue_id, offset);
        Ok(place.map_or((queue.clone(), offset), |(id, offset)| (logical_queue(&queue.topic, id), offset)))
    }

    /// Adds the logical queues of a static topic to the offsets of its physical ones, as clients see them.
    pub(crate) async fn add_logical(&self, topic: &str, route: &TopicRoute, stats: &mut TopicStatsTable) -> Result<()> {
        let logical = logical(topic, &leaders(&self.mappings_in(topic, route).await?)?, stats);
        stats.offset_table.extend(logical);
        Ok(())
    }
}

/// Gives the first broker that has the topic what it has, under an epoch between the old one and that of the change: another operator that
/// has looked at the old mapping asks the same broker first, and is refused before it has changed anything. A new topic has no such
/// broker; two operators that make it at once meet at the first that both name.
async fn claim(writer: &mut Writer<'_>, change: &TopicRemappingDetail, before: &Brokers) -> Result<()> {
    let Some((first, config)) = before.first_key_value() else { return Ok(()) };
    let mut config = config.clone();
    if let Some(detail) = &mut config.mapping_detail {
        detail.epoch = change.epoch - 1;
    }
    writer.put(&change.topic, first, &config).await
}

/// In this order no message is lost: new places can be written, old ones no longer, then offsets are decided and told.
async fn apply_move(operator: &Operator, change: &mut TopicRemappingDetail, writer: &mut Writer<'_>) -> Result<()> {
    let (to, from) = (change.broker_to_map_in.clone(), change.broker_to_map_out.clone());
    for broker in to.iter().chain(&from) {
        writer.put_of(change, broker).await?;
    }
    for broker in &from {
        decide_offsets(operator, change, broker).await?;
    }
    let others = change.broker_config_map.keys().filter(|broker| !to.contains(*broker) && !from.contains(*broker));
    let others: Vec<String> = others.cloned().collect();
    for broker in to.iter().chain(&others) {
        writer.put_of(change, broker).await?;
    }
    Ok(())
}

/// The queues that left a broker begin anew behind the offset at which they ended there.
async fn decide_offsets(operator: &Operator, change: &mut TopicRemappingDetail, broker: &str) -> Result<()> {
    let address = operator.master_of(broker).await?;
    let stats = operator.topic_stats_at(&address, &change.topic).await?;
    let config = change.broker_config_map.get(broker).and_then(|config| config.mapping_detail.clone());
    for (id, mut items) in config.map(|detail| detail.hosted_queues).unwrap_or_default() {
        let count = items.len();
        let (Some(old), Some(new)) = (count.checked_sub(2).map(|at| items[at].clone()), items.last_mut()) else {
            continue;
        };
        if new.logic_offset > 0 {
            continue;
        }
        let queue =
            MessageQueue { topic: change.topic.clone(), broker_name: old.bname.clone(), queue_id: old.queue_id };
        let offsets = stats.offset_table.get(&queue);
        let untold = || OperatorError::Unfit(format!("{broker} does not tell where queue {} ends", old.queue_id));
        let end = offsets.ok_or_else(untold)?.max_offset;
        ensure!(end >= old.start_offset, Unfit, "queue {} of {broker} ends at {end}, before its start", old.queue_id);
        new.logic_offset = next_block(old.logic_offset + end - old.start_offset);
        let leader = new.bname.clone();
        for holder in [leader.as_str(), broker] {
            let holder = change.broker_config_map.get_mut(holder).and_then(|config| config.mapping_detail.as_mut());
            if let Some(detail) = holder {
                detail.hosted_queues.insert(id, items.clone());
            }
        }
    }
    Ok(())
}

/// The topic as it is, in the shape of a change.
pub fn wrapped(topic: &str, kind: &str, brokers: &Brokers) -> TopicRemappingDetail {
    let details = brokers.values().filter_map(|broker| broker.mapping_detail.as_ref());
    TopicRemappingDetail {
        topic: topic.to_owned(),
        kind: kind.to_owned(),
        epoch: details.map(|detail| detail.epoch).max().unwrap_or(0),
        broker_config_map: brokers.clone(),
        ..TopicRemappingDetail::default()
    }
}

/// Gives brokers their mappings.
struct Writer<'a> {
    operator: &'a Operator,
    /// Brokers take a mapping that is older than theirs, too.
    is_forced: bool,
    /// The epoch that each broker has, as far as it has the topic. `None`: a change before is finished, whatever came of it.
    seen: Option<BTreeMap<String, i64>>,
}

impl<'a> Writer<'a> {
    /// For a change of what was seen before, or of what nobody has looked at.
    fn new(operator: &'a Operator, before: Option<&Brokers>, is_forced: bool) -> Writer<'a> {
        let epoch = |config: &TopicConfigAndQueueMapping| {
            config.mapping_detail.as_ref().map_or(NO_EPOCH, |detail| detail.epoch)
        };
        let seen = before.map(|all| all.iter().map(|(broker, config)| (broker.clone(), epoch(config))).collect());
        Writer { operator, is_forced, seen }
    }

    async fn put_of(&mut self, change: &TopicRemappingDetail, broker: &str) -> Result<()> {
        let config = change.broker_config_map.get(broker);
        let unknown = || OperatorError::NotFound(format!("no mapping is known for {broker}"));
        self.put(&change.topic, broker, config.ok_or_else(unknown)?).await
    }

    async fn put(&mut self, topic: &str, broker: &str, config: &TopicConfigAndQueueMapping) -> Result<()> {
        let address = self.operator.master_of(broker).await?;
        let fields = CreateTopic { force: self.is_forced, ..creation(topic, config) };
        let expected_epoch = self.seen.as_ref().map(|seen| seen.get(broker).copied().unwrap_or(NO_EPOCH));
        let fields = (fields, ExpectedEpoch { expected_epoch });
        let code = request::UPDATE_AND_CREATE_STATIC_TOPIC;
        let told = self.operator.admin.tell_json(&address, code, &fields, &config.mapping_detail);
        let not_taken = |error| OperatorError::from(error).during(format!("broker {broker} does not take the mapping"));
        told.await.map_err(not_taken)?;
        if let (Some(seen), Some(detail)) = (&mut self.seen, &config.mapping_detail) {
            seen.insert(broker.to_owned(), detail.epoch);
        }
        Ok(())
    }
}
