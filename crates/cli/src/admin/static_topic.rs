//! Static topics: a fixed number of logical queues over all brokers, which can move between brokers.
//!
//! The decision (what each broker is to have) is made without asking anybody: [`grown`] and [`moved`]. What was and what is to be are
//! written into files first, because a change that fails half-way is finished, or taken back, with `-mf FILE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use protocol::body::{
    LogicQueueMappingItem, MessageQueue, TopicConfig, TopicConfigAndQueueMapping, TopicQueueMappingDetail,
    TopicRemappingDetail,
};
use protocol::code::{ResponseCode, request};
use protocol::request::{CreateTopic, GetTopicConfig, GetTopicStats};

use super::output::{Facts, Table};
use super::session::Session;
use super::truth;

/// RocketMQ's one scope.
const SCOPE: &str = "__global__";
/// A queue that moves goes on at a multiple of this, so that its offsets never meet those of its last place.
const BLOCK: i64 = 10_000;

type Brokers = BTreeMap<String, TopicConfigAndQueueMapping>;

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
        let mut change = match self.place.file()? {
            Some(change) => change,
            None => {
                let targets = self.place.brokers(session).await?;
                note(session, &wrapped(topic, "CREATE_OR_UPDATE", &before), "before")?;
                let change = grown(topic, self.total_queue_num, &targets, before, session.now())?;
                note(session, &change, "after")?;
                change
            }
        };
        ensure!(change.topic == topic, "the file is about topic {}", change.topic);
        complete(session, &mut change).await?;
        let is_forced = self.force_replace.unwrap_or(false);
        for broker in change.broker_config_map.keys() {
            put(session, &change, broker, is_forced).await?;
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
        let mut change = match self.place.file()? {
            Some(change) => change,
            None => {
                let targets = self.place.brokers(session).await?;
                note(session, &wrapped(topic, "REMAPPING", &before), "before")?;
                let change = moved(topic, &targets, before, session.now())?;
                note(session, &change, "after")?;
                change
            }
        };
        ensure!(change.topic == topic, "the file is about topic {}", change.topic);
        complete(session, &mut change).await?;
        apply_move(session, &mut change, self.force_replace.unwrap_or(false)).await?;
        show(session, &change)
    }
}

/// In this order no message is lost: new places can be written, old ones no longer, then offsets are decided and told.
async fn apply_move(session: &Session, change: &mut TopicRemappingDetail, is_forced: bool) -> Result<()> {
    let (to, from) = (change.broker_to_map_in.clone(), change.broker_to_map_out.clone());
    for broker in to.iter().chain(&from) {
        put(session, change, broker, is_forced).await?;
    }
    for broker in &from {
        decide_offsets(session, change, broker).await?;
    }
    let others = change.broker_config_map.keys().filter(|broker| !to.contains(*broker) && !from.contains(*broker));
    let others: Vec<String> = others.cloned().collect();
    for broker in to.iter().chain(&others) {
        put(session, change, broker, is_forced).await?;
    }
    Ok(())
}

/// The queues that left a broker begin anew behind the offset at which they ended there.
async fn decide_offsets(session: &Session, change: &mut TopicRemappingDetail, broker: &str) -> Result<()> {
    let address = session.master_of(broker).await?;
    let fields = GetTopicStats { topic: &change.topic };
    let stats: protocol::body::TopicStatsTable =
        session.admin.ask(&address, request::GET_TOPIC_STATS_INFO, &fields).await?;
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

/// At least half a block behind an offset: messages that come in during the move stay below.
fn next_block(offset: i64) -> i64 {
    let blocks = if offset % BLOCK < BLOCK / 2 { 1 } else { 2 };
    (offset / BLOCK + blocks) * BLOCK
}

/// The topic on every broker that has it.
async fn known(session: &Session, topic: &str) -> Result<Brokers> {
    let info = session.cluster().await?;
    let mut known = Brokers::new();
    for name in info.broker_addr_table.keys() {
        let address = session.master_of(name).await?;
        let fields = GetTopicConfig { topic, lo: None };
        match session.admin.ask(&address, request::GET_TOPIC_CONFIG, &fields).await {
            Ok(config) => {
                known.insert(name.clone(), config);
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

async fn put(session: &Session, change: &TopicRemappingDetail, broker: &str, is_forced: bool) -> Result<()> {
    let address = session.master_of(broker).await?;
    let config = change.broker_config_map.get(broker).with_context(|| format!("no mapping is known for {broker}"))?;
    let fields = CreateTopic {
        topic: &change.topic,
        default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
        read_queue_nums: config.read_queue_nums,
        write_queue_nums: config.write_queue_nums,
        perm: config.perm,
        topic_filter_type: config.topic_filter_type.name(),
        topic_sys_flag: Some(config.topic_sys_flag),
        order: config.order,
        attributes: None,
        force: is_forced,
    };
    let told =
        session.admin.tell_json(&address, request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, &config.mapping_detail);
    told.await.with_context(|| format!("broker {broker} does not take the mapping"))?;
    Ok(())
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

fn empty(topic: &str, broker: &str, total: i32, epoch: i64) -> TopicConfigAndQueueMapping {
    let config =
        TopicConfig { topic_name: topic.to_owned(), read_queue_nums: 0, write_queue_nums: 0, ..TopicConfig::default() };
    let detail = TopicQueueMappingDetail {
        bname: broker.to_owned(),
        topic: topic.to_owned(),
        scope: Some(SCOPE.to_owned()),
        total_queues: total,
        epoch,
        ..TopicQueueMappingDetail::default()
    };
    TopicConfigAndQueueMapping { mapping_detail: Some(detail), ..config.into() }
}

fn details(brokers: &Brokers) -> Result<impl Iterator<Item = &TopicQueueMappingDetail>> {
    for (name, broker) in brokers {
        ensure!(broker.mapping_detail.is_some(), "the topic exists on {name} and is not static");
    }
    Ok(brokers.values().filter_map(|broker| broker.mapping_detail.as_ref()))
}

/// Epoch and number of queues, on which all brokers must agree before anything is changed.
fn agreed(brokers: &Brokers) -> Result<(i64, i32)> {
    let mut all = details(brokers)?.map(|detail| (detail.epoch, detail.total_queues, detail.dirty));
    let first = all.next().context("no broker has the topic")?;
    ensure!(all.all(|other| other == first), "brokers disagree on the topic: finish the last change first, with -mf");
    ensure!(!first.2, "the topic's mapping is not complete");
    Ok((first.0, first.1))
}

/// Each logical queue's places, as the broker tells that has it now.
fn leaders(brokers: &Brokers) -> Result<BTreeMap<i32, Vec<LogicQueueMappingItem>>> {
    let mut leaders = BTreeMap::new();
    for detail in details(brokers)? {
        for (id, items) in &detail.hosted_queues {
            if items.last().is_some_and(|last| last.bname == detail.bname)
                && leaders.insert(*id, items.clone()).is_some()
            {
                bail!("queue {id} is on two brokers");
            }
        }
    }
    Ok(leaders)
}

/// Adds one physical queue to a broker, made known to the topic if it is not, and returns its number.
fn add_queue(brokers: &mut Brokers, topic: &str, broker: &str, total: i32, epoch: i64) -> i32 {
    let config = brokers.entry(broker.to_owned()).or_insert_with(|| empty(topic, broker, total, epoch));
    config.write_queue_nums += 1;
    config.read_queue_nums += 1;
    config.write_queue_nums - 1
}

fn host(brokers: &mut Brokers, broker: &str, id: i32, items: &[LogicQueueMappingItem]) {
    if let Some(detail) = brokers.get_mut(broker).and_then(|config| config.mapping_detail.as_mut()) {
        detail.hosted_queues.insert(id, items.to_vec());
    }
}

fn finish(topic: &str, kind: &str, mut brokers: Brokers, total: i32, epoch: i64) -> TopicRemappingDetail {
    for detail in brokers.values_mut().filter_map(|config| config.mapping_detail.as_mut()) {
        detail.epoch = epoch;
        detail.total_queues = total;
    }
    TopicRemappingDetail {
        topic: topic.to_owned(),
        kind: kind.to_owned(),
        epoch,
        broker_config_map: brokers,
        ..TopicRemappingDetail::default()
    }
}

/// The topic with more queues: each new one goes to the broker that has fewest.
fn grown(
    topic: &str,
    total: i32,
    targets: &BTreeSet<String>,
    mut brokers: Brokers,
    now: i64,
) -> Result<TopicRemappingDetail> {
    let (old_epoch, _) = if brokers.is_empty() { (0, 0) } else { agreed(&brokers)? };
    let epoch = now.max(old_epoch + 1000);
    let known = leaders(&brokers)?;
    let count = i32::try_from(known.len()).unwrap_or(i32::MAX);
    ensure!(total > count, "the topic has {count} queues, and a static topic only grows");
    let mut load: BTreeMap<String, usize> = targets.iter().map(|broker| (broker.clone(), 0)).collect();
    for items in known.values() {
        let leader = items.last().map(|item| item.bname.clone()).unwrap_or_default();
        *load.entry(leader).or_default() += 1;
    }
    for id in (0..total).filter(|id| !known.contains_key(id)) {
        let least = load.iter_mut().min_by_key(|(_, count)| **count).context("no broker is named")?;
        *least.1 += 1;
        let broker = least.0.clone();
        let queue_id = add_queue(&mut brokers, topic, &broker, total, epoch);
        let item = item(&broker, queue_id, 0, 0);
        host(&mut brokers, &broker, id, &[item]);
    }
    Ok(finish(topic, "CREATE_OR_UPDATE", brokers, total, epoch))
}

fn item(broker: &str, queue_id: i32, generation: i32, logic_offset: i64) -> LogicQueueMappingItem {
    LogicQueueMappingItem {
        bname: broker.to_owned(),
        queue_id,
        generation,
        logic_offset,
        start_offset: 0,
        end_offset: -1,
        time_of_start: -1,
        time_of_end: -1,
    }
}

/// The topic on other brokers, evenly, with as few moves as that takes. A broker gets queues or gives some away, never both.
fn moved(topic: &str, targets: &BTreeSet<String>, mut brokers: Brokers, now: i64) -> Result<TopicRemappingDetail> {
    let (old_epoch, total) = agreed(&brokers)?;
    let epoch = now.max(old_epoch + 1000);
    let known = leaders(&brokers)?;
    ensure!(!targets.is_empty(), "no broker is named");
    let mut room = shares(&known, targets);

    let mut homeless = Vec::new();
    for (id, items) in &known {
        let here = items.last().map(|item| item.bname.as_str()).unwrap_or_default();
        match room.get_mut(here) {
            Some(left) if *left > 0 => *left -= 1,
            Some(_) | None => homeless.push(*id),
        }
    }
    let mut homes = room.into_iter().flat_map(|(broker, left)| std::iter::repeat_n(broker, left));
    let (mut to, mut from) = (BTreeSet::new(), BTreeSet::new());
    for id in homeless {
        let (Some(new), Some(mut items)) = (homes.next(), known.get(&id).cloned()) else { continue };
        let Some(last) = items.last().cloned() else { continue };
        let queue_id = add_queue(&mut brokers, topic, &new, total, epoch);
        items.push(item(&new, queue_id, last.generation + 1, -1));
        host(&mut brokers, &new, id, &items);
        host(&mut brokers, &last.bname, id, &items);
        to.insert(new);
        from.insert(last.bname);
    }
    let change = finish(topic, "REMAPPING", brokers, total, epoch);
    Ok(TopicRemappingDetail { broker_to_map_in: to, broker_to_map_out: from, ..change })
}

/// How many queues each target is to have: those that have most now get the odd ones, so that they need not move.
fn shares(known: &BTreeMap<i32, Vec<LogicQueueMappingItem>>, targets: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let has =
        |broker: &str| known.values().filter(|items| items.last().is_some_and(|item| item.bname == broker)).count();
    let (each, odd) = (known.len() / targets.len(), known.len() % targets.len());
    let mut by_load: Vec<&String> = targets.iter().collect();
    by_load.sort_by_key(|broker| std::cmp::Reverse(has(broker)));
    by_load.into_iter().enumerate().map(|(at, broker)| (broker.clone(), each + usize::from(at < odd))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn places(change: &TopicRemappingDetail) -> Vec<(i32, String, i32)> {
        let leaders = leaders(&change.broker_config_map).unwrap();
        leaders
            .into_iter()
            .map(|(id, items)| (id, items.last().unwrap().bname.clone(), items.last().unwrap().queue_id))
            .collect()
    }

    fn per_broker(change: &TopicRemappingDetail) -> BTreeMap<String, usize> {
        let mut count = BTreeMap::new();
        places(change).into_iter().for_each(|(_, broker, _)| *count.entry(broker).or_default() += 1);
        count
    }

    #[test]
    fn a_new_topic_is_spread_evenly_and_every_physical_queue_is_used_once() {
        let change = grown("t", 5, &names(&["a", "b"]), Brokers::new(), 7000).unwrap();
        assert_eq!(per_broker(&change), [("a".to_owned(), 3), ("b".to_owned(), 2)].into());
        let physical: BTreeSet<_> = places(&change).into_iter().map(|(_, broker, queue)| (broker, queue)).collect();
        assert_eq!(physical.len(), 5);
        assert_eq!(change.broker_config_map["a"].write_queue_nums, 3);
        assert!(change.broker_config_map.values().all(|config| config.mapping_detail.as_ref().unwrap().epoch == 7000));
    }

    #[test]
    fn a_topic_grows_and_never_shrinks() {
        let first = grown("t", 3, &names(&["a"]), Brokers::new(), 7000).unwrap();
        let before = places(&first);
        let more = grown("t", 5, &names(&["a", "b"]), first.broker_config_map.clone(), 7001).unwrap();
        assert_eq!(places(&more)[..3], before);
        assert_eq!(per_broker(&more), [("a".to_owned(), 3), ("b".to_owned(), 2)].into());
        assert!(more.epoch >= 8000);
        assert!(grown("t", 3, &names(&["a"]), first.broker_config_map, 7001).is_err());
    }

    #[test]
    fn queues_move_no_more_than_they_must() {
        let first = grown("t", 4, &names(&["a", "b"]), Brokers::new(), 7000).unwrap();
        let change = moved("t", &names(&["b", "c"]), first.broker_config_map.clone(), 7001).unwrap();
        assert_eq!(per_broker(&change), [("b".to_owned(), 2), ("c".to_owned(), 2)].into());
        assert_eq!((change.broker_to_map_in.clone(), change.broker_to_map_out.clone()), (names(&["c"]), names(&["a"])));
        for (id, broker, _) in places(&change).iter().filter(|(_, broker, _)| broker == "c") {
            let items = &change.broker_config_map[broker].mapping_detail.as_ref().unwrap().hosted_queues[id];
            let (old, new) = (&items[items.len() - 2], &items[items.len() - 1]);
            assert_eq!((new.generation, new.logic_offset, &*old.bname), (old.generation + 1, -1, "a"));
        }
        let same = moved("t", &names(&["a", "b"]), first.broker_config_map, 7001).unwrap();
        assert!(same.broker_to_map_in.is_empty() && same.broker_to_map_out.is_empty());
    }

    #[test]
    fn offsets_of_a_moved_queue_leave_room_for_late_messages() {
        assert_eq!(
            (next_block(0), next_block(4999), next_block(5000), next_block(12_345)),
            (10_000, 10_000, 20_000, 20_000)
        );
    }

    #[test]
    fn a_topic_that_is_not_static_is_left_alone() {
        let plain = Brokers::from([("a".to_owned(), TopicConfigAndQueueMapping::default())]);
        assert!(grown("t", 4, &names(&["a"]), plain, 7001).is_err());
    }
}
