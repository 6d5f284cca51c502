//! Static topics: a fixed number of logical queues over all brokers, which can move between brokers.
//!
//! What each broker is to have is decided in [`super::mapping`]. What was and what is to be are written into files first, because a
//! change that fails half-way is finished with `-mf FILE`, or taken back with the file of before and `-fr true`. Brokers take a change only of
//! the mapping that it was made of: of two operators at once, the first broker that has the topic, whom both ask first, lets one go on.
//! An Apache broker in its place lets both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use env::sentence;
use protocol::body::{
    ConsumeOffset, ConsumeStats, MessageQueue, TopicConfigAndQueueMapping, TopicRemappingDetail, TopicRoute,
    TopicStatsTable,
};
use protocol::code::{ResponseCode, request};
use protocol::names::is_logical_broker;
use protocol::request::{CreateTopic, ExpectedEpoch, GetConsumeStats, GetTopicConfig, GetTopicStats};

use super::mapping::{
    Brokers, details, empty, grown, leaders, logical, logical_place, logical_progress, logical_queue, moved, next_block,
};
use super::output::{Facts, Table};
use super::session::{Session, readable};
use super::topic::stats;
use super::truth;

/// Of a broker without a mapping of the topic.
const NO_EPOCH: i64 = -1;

/// Which brokers a static topic is to be on.
#[derive(Debug, Args)]
#[group(id = "place", args = ["clusters", "brokers", "map_file"], required = true, multiple = false)]
struct Place {
    /// All brokers of these clusters, separated by commas
    #[arg(short, long)]
    clusters: Option<String>,
    /// These brokers, by name, separated by commas
    #[arg(short, long)]
    brokers: Option<String>,
    /// What this file says, as a change before wrote it
    #[arg(long = "mapFile", alias = "mf")]
    map_file: Option<PathBuf>,
}

impl Place {
    async fn brokers(&self, session: &Session) -> Result<BTreeSet<String>> {
        let info = session.cluster().await?;
        let names = |text: &str| text.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>();
        let mut found = BTreeSet::new();
        for name in self.brokers.iter().flat_map(|brokers| names(brokers)) {
            ensure!(info.broker_addr_table.contains_key(&name), "the name server knows no broker {name}");
            found.insert(name);
        }
        for name in self.clusters.iter().flat_map(|clusters| names(clusters)) {
            let brokers = info.cluster_addr_table.get(&name);
            found.extend(brokers.with_context(|| format!("the name server knows no cluster {name}"))?.iter().cloned());
        }
        Ok(found)
    }

    fn file(&self) -> Result<Option<TopicRemappingDetail>> {
        let Some(path) = &self.map_file else { return Ok(None) };
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let change = protocol::fastjson::from_slice(&bytes);
        Ok(Some(change.with_context(|| format!("{} holds no mapping of a static topic", path.display()))?))
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct UpdateStaticTopic {
    #[command(flatten)]
    place: Place,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Logical queues in all
    #[arg(long, alias = "qn", value_parser = clap::value_parser!(i32).range(1..))]
    total_queue_num: i32,
    /// Whether brokers take a mapping that is older than theirs: true or false
    #[arg(long, alias = "fr", value_parser = truth)]
    force_replace: Option<bool>,
}

impl UpdateStaticTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let before = known(session, topic).await?;
        let is_forced = self.force_replace.unwrap_or(false);
        let file = self.place.file()?;
        let is_new = file.is_none();
        let (mut change, mut writer) = match file {
            Some(change) => (change, Writer::without_a_look(session, is_forced)),
            None => {
                let targets = self.place.brokers(session).await?;
                note(session, &wrapped(topic, "CREATE_OR_UPDATE", &before), "before")?;
                let writer = Writer::of(session, &before, is_forced);
                let change = grown(topic, self.total_queue_num, &targets, before.clone(), session.now())?;
                note(session, &change, "after")?;
                (change, writer)
            }
        };
        ensure!(change.topic == topic, "the file is about topic {}", change.topic);
        complete(session, &mut change).await?;
        if is_new {
            claim(&mut writer, &change, &before).await?;
        }
        for (broker, config) in &change.broker_config_map {
            writer.put(&change.topic, broker, config).await?;
        }
        show(session, &change)
    }
}

#[derive(Debug, Args)]
#[command(rename_all = "camelCase")]
pub struct RemappingStaticTopic {
    #[command(flatten)]
    place: Place,
    /// The topic
    #[arg(short, long)]
    topic: String,
    /// Whether brokers take a mapping that is older than theirs: true or false
    #[arg(long, alias = "fr", value_parser = truth)]
    force_replace: Option<bool>,
}

impl RemappingStaticTopic {
    pub async fn run(&self, session: &Session) -> Result<()> {
        let topic = self.topic.trim();
        let before = known(session, topic).await?;
        ensure!(!before.is_empty(), "no broker has topic {topic}");
        let is_forced = self.force_replace.unwrap_or(false);
        let file = self.place.file()?;
        let is_new = file.is_none();
        let (mut change, mut writer) = match file {
            Some(change) => (change, Writer::without_a_look(session, is_forced)),
            None => {
                let targets = self.place.brokers(session).await?;
                note(session, &wrapped(topic, "REMAPPING", &before), "before")?;
                let change = moved(topic, &targets, before.clone(), session.now())?;
                note(session, &change, "after")?;
                (change, Writer::of(session, &before, is_forced))
            }
        };
        ensure!(change.topic == topic, "the file is about topic {}", change.topic);
        complete(session, &mut change).await?;
        if is_new && !change.broker_to_map_in.is_empty() {
            claim(&mut writer, &change, &before).await?;
        }
        apply_move(session, &mut change, &mut writer).await?;
        show(session, &change)
    }
}

/// Gives the first broker that has the topic what it has, under an epoch between the old one and that of the change: whoever else has looked
/// at the old mapping asks the same broker first, and is refused before he has changed anything. A new topic has no such broker; two who
/// make it at once meet at the first that both name.
async fn claim(writer: &mut Writer<'_>, change: &TopicRemappingDetail, before: &Brokers) -> Result<()> {
    let Some((first, config)) = before.first_key_value() else { return Ok(()) };
    let mut config = config.clone();
    if let Some(detail) = &mut config.mapping_detail {
        detail.epoch = change.epoch - 1;
    }
    writer.put(&change.topic, first, &config).await
}

/// In this order no message is lost: new places can be written, old ones no longer, then offsets are decided and told.
async fn apply_move(session: &Session, change: &mut TopicRemappingDetail, writer: &mut Writer<'_>) -> Result<()> {
    let (to, from) = (change.broker_to_map_in.clone(), change.broker_to_map_out.clone());
    for broker in to.iter().chain(&from) {
        writer.put_of(change, broker).await?;
    }
    for broker in &from {
        decide_offsets(session, change, broker).await?;
    }
    let others = change.broker_config_map.keys().filter(|broker| !to.contains(*broker) && !from.contains(*broker));
    let others: Vec<String> = others.cloned().collect();
    for broker in to.iter().chain(&others) {
        writer.put_of(change, broker).await?;
    }
    Ok(())
}

/// The queues that left a broker begin anew behind the offset at which they ended there.
async fn decide_offsets(session: &Session, change: &mut TopicRemappingDetail, broker: &str) -> Result<()> {
    let address = session.master_of(broker).await?;
    let fields = GetTopicStats { topic: &change.topic };
    let stats: TopicStatsTable = session.admin.ask(&address, request::GET_TOPIC_STATS_INFO, &fields).await?;
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
        let end =
            offsets.with_context(|| format!("{broker} does not tell where queue {} ends", old.queue_id))?.max_offset;
        ensure!(end >= old.start_offset, "queue {} of {broker} ends at {end}, before its start", old.queue_id);
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

/// The topic on every broker that has it.
async fn known(session: &Session, topic: &str) -> Result<Brokers> {
    let info = session.cluster().await?;
    let mut brokers = BTreeMap::new();
    for name in info.broker_addr_table.keys() {
        brokers.insert(name.clone(), session.master_of(name).await?);
    }
    on(session, topic, brokers).await
}

/// The same for a look: those that name servers know to have it are enough, and others may be down.
async fn seen(session: &Session, topic: &str, route: &TopicRoute) -> Result<Brokers> {
    on(session, topic, readable(route)).await
}

/// The topic on those of these brokers that have it.
async fn on(session: &Session, topic: &str, brokers: impl IntoIterator<Item = (String, String)>) -> Result<Brokers> {
    let mut known = Brokers::new();
    for (name, address) in brokers {
        // Without this the mapping is left out.
        let fields = GetTopicConfig { topic, lo: Some(true) };
        match session.admin.ask(&address, request::GET_TOPIC_CONFIG, &fields).await {
            Ok(config) => {
                known.insert(name, config);
            }
            Err(error) if error.code() == Some(ResponseCode::TopicNotExist as i32) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(known)
}

fn wrapped(topic: &str, kind: &str, brokers: &Brokers) -> TopicRemappingDetail {
    let details = brokers.values().filter_map(|broker| broker.mapping_detail.as_ref());
    TopicRemappingDetail {
        topic: topic.to_owned(),
        kind: kind.to_owned(),
        epoch: details.map(|detail| detail.epoch).max().unwrap_or(0),
        broker_config_map: brokers.clone(),
        ..TopicRemappingDetail::default()
    }
}

/// Writes a mapping into a file of the system's folder for such, and tells its name.
fn note(session: &Session, change: &TopicRemappingDetail, suffix: &str) -> Result<()> {
    let path = std::env::temp_dir().join(format!("{}-{}.{suffix}", change.topic, change.epoch));
    fs::write(&path, serde_json::to_vec_pretty(change)?).with_context(|| format!("cannot write {}", path.display()))?;
    session.out.say(format!("the mapping {suffix} the change is in {}", path.display()))?;
    Ok(())
}

/// Every other broker of the clusters learns the topic too, without queues, so that it can tell clients where they are.
async fn complete(session: &Session, change: &mut TopicRemappingDetail) -> Result<()> {
    let info = session.cluster().await?;
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

/// Gives brokers their mappings.
struct Writer<'a> {
    session: &'a Session,
    /// Brokers take a mapping that is older than theirs, too.
    is_forced: bool,
    /// The epoch that each broker has, as far as it has the topic. `None`: a change before is finished, whatever came of it.
    seen: Option<BTreeMap<String, i64>>,
}

impl<'a> Writer<'a> {
    /// For a change of what was seen before.
    fn of(session: &'a Session, before: &Brokers, is_forced: bool) -> Writer<'a> {
        let epochs = before.iter().map(|(broker, config)| {
            let epoch = config.mapping_detail.as_ref().map_or(NO_EPOCH, |detail| detail.epoch);
            (broker.clone(), epoch)
        });
        Writer { session, is_forced, seen: Some(epochs.collect()) }
    }

    fn without_a_look(session: &'a Session, is_forced: bool) -> Writer<'a> {
        Writer { session, is_forced, seen: None }
    }

    async fn put_of(&mut self, change: &TopicRemappingDetail, broker: &str) -> Result<()> {
        let config = change.broker_config_map.get(broker);
        self.put(&change.topic, broker, config.with_context(|| format!("no mapping is known for {broker}"))?).await
    }

    async fn put(&mut self, topic: &str, broker: &str, config: &TopicConfigAndQueueMapping) -> Result<()> {
        let address = self.session.master_of(broker).await?;
        let fields = CreateTopic {
            topic,
            default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
            read_queue_nums: config.read_queue_nums,
            write_queue_nums: config.write_queue_nums,
            perm: config.perm,
            topic_filter_type: config.topic_filter_type.name(),
            topic_sys_flag: Some(config.topic_sys_flag),
            order: config.order,
            attributes: None,
            force: self.is_forced,
        };
        let expected_epoch = self.seen.as_ref().map(|seen| seen.get(broker).copied().unwrap_or(NO_EPOCH));
        let fields = (fields, ExpectedEpoch { expected_epoch });
        let code = request::UPDATE_AND_CREATE_STATIC_TOPIC;
        let told = self.session.admin.tell_json(&address, code, &fields, &config.mapping_detail);
        told.await.with_context(|| format!("broker {broker} does not take the mapping"))?;
        if let (Some(seen), Some(detail)) = (&mut self.seen, &config.mapping_detail) {
            seen.insert(broker.to_owned(), detail.epoch);
        }
        Ok(())
    }
}

fn show(session: &Session, change: &TopicRemappingDetail) -> Result<()> {
    let mut table = Table::new(["Queue", "Broker Name", "Physical Queue", "Logic Offset"]);
    for (id, items) in leaders(&change.broker_config_map)? {
        if let Some(leader) = items.last() {
            table.row([id.into(), (&leader.bname).into(), leader.queue_id.into(), leader.logic_offset.into()]);
        }
    }
    session.out.facts(&Facts::new().with("Topic", &change.topic).with("Epoch", change.epoch))?;
    session.out.table("queues", &table)?;
    Ok(())
}

/// Whether clients see logical queues of a topic. One of which nothing is known is an ordinary one.
async fn is_static(session: &Session, topic: &str) -> bool {
    let route = session.client.route(topic).await;
    route.is_ok_and(|route| route.readable.first().is_some_and(|queue| is_logical_broker(&queue.broker_name)))
}

/// Puts logical queues in the place of the physical ones of static topics. Where that cannot be worked out at the moment, because a broker
/// is down or a queue is moving, they stay as brokers tell them, and the reason is told.
///
/// `asked`: the topic that is asked about, of which the brokers that told may know nothing.
pub async fn as_clients_see(
    session: &Session,
    group: &str,
    asked: Option<&str>,
    stats: &mut ConsumeStats,
) -> Result<()> {
    let topics = stats.offset_table.keys().map(|queue| queue.topic.as_str()).chain(asked);
    let topics: BTreeSet<String> = topics.map(str::to_owned).collect();
    for topic in topics {
        if !is_static(session, &topic).await {
            continue;
        }
        match progress_in(session, group, &topic).await {
            Ok(progress) => {
                stats.offset_table.0.retain(|queue, _| queue.topic != topic);
                stats.offset_table.extend(progress);
            }
            Err(error) => session.out.say(format!(
                "group {group} is shown by physical queue in static topic {topic}, whose queues are not known now: {}",
                sentence(error.as_ref())
            ))?,
        }
    }
    Ok(())
}

/// How far a group is in the logical queues of a topic. All brokers of it are asked: the group's offset may be on one on which its
/// consumers have never been.
async fn progress_in(session: &Session, group: &str, topic: &str) -> Result<Vec<(MessageQueue, ConsumeOffset)>> {
    let route = session.route(topic).await?;
    let leaders = leaders(&seen(session, topic, &route).await?)?;
    let ends = stats(session, topic, &route).await?;
    let mut there = ConsumeStats::default();
    for (_, address) in readable(&route) {
        let fields = GetConsumeStats { consumer_group: group, topic: Some(topic), topic_list: None };
        match session.admin.ask::<ConsumeStats>(&address, request::GET_CONSUME_STATS, &fields).await {
            Ok(part) => there.offset_table.extend(part.offset_table.0),
            Err(error) if error.code() == Some(ResponseCode::SubscriptionGroupNotExist as i32) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(logical_progress(topic, &leaders, &ends, &there))
}

/// The queue and the offset by which clients know a message of a physical queue; these themselves unless the topic is static.
pub async fn place_of(session: &Session, queue: MessageQueue, offset: i64) -> Result<(MessageQueue, i64)> {
    if !is_static(session, &queue.topic).await {
        return Ok((queue, offset));
    }
    let route = session.route(&queue.topic).await?;
    let leaders = leaders(&seen(session, &queue.topic, &route).await?)?;
    let place = logical_place(&leaders, &queue.broker_name, queue.queue_id, offset);
    Ok(place.map_or((queue.clone(), offset), |(id, offset)| (logical_queue(&queue.topic, id), offset)))
}

/// Adds the logical queues of a static topic to the offsets of its physical ones, as clients see them.
pub async fn add_logical(
    session: &Session,
    topic: &str,
    route: &TopicRoute,
    stats: &mut TopicStatsTable,
) -> Result<()> {
    let logical = logical(topic, &leaders(&seen(session, topic, route).await?)?, stats);
    stats.offset_table.extend(logical);
    Ok(())
}
