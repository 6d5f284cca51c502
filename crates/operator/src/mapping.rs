//! Where the logical queues of a static topic are to be: decisions, made without asking anybody.

use std::collections::{BTreeMap, BTreeSet};

use protocol::body::{
    ConsumeOffset, ConsumeStats, LogicQueueMappingItem, MessageQueue, TopicConfig, TopicConfigAndQueueMapping,
    TopicOffset, TopicQueueMappingDetail, TopicRemappingDetail, TopicStatsTable,
};
use protocol::names::{GLOBAL_SCOPE, logical_broker};

use crate::error::{OperatorError, Result, ensure};

/// A queue that moves goes on at a multiple of this, so that its offsets never meet those of its last place.
const BLOCK: i64 = 10_000;

/// A topic on each broker that has it.
pub type Brokers = BTreeMap<String, TopicConfigAndQueueMapping>;

/// The topic with more queues: each new one goes to the broker that has fewest.
pub fn grown(
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
    ensure!(total > count, Invalid, "the topic has {count} queues, and a static topic only grows");
    let mut load: BTreeMap<String, usize> = targets.iter().map(|broker| (broker.clone(), 0)).collect();
    for items in known.values() {
        let leader = items.last().map(|item| item.bname.clone()).unwrap_or_default();
        *load.entry(leader).or_default() += 1;
    }
    for id in (0..total).filter(|id| !known.contains_key(id)) {
        let least = load.iter_mut().min_by_key(|(_, count)| **count).ok_or_else(no_broker)?;
        *least.1 += 1;
        let broker = least.0.clone();
        let queue_id = add_queue(&mut brokers, topic, &broker, total, epoch);
        let item = item(&broker, queue_id, 0, 0);
        host(&mut brokers, &broker, id, &[item]);
    }
    Ok(finish(topic, "CREATE_OR_UPDATE", brokers, total, epoch))
}

/// The topic on other brokers, evenly, with as few moves as that takes. A broker gets queues or gives some away, never both.
pub fn moved(topic: &str, targets: &BTreeSet<String>, mut brokers: Brokers, now: i64) -> Result<TopicRemappingDetail> {
    let (old_epoch, total) = agreed(&brokers)?;
    let epoch = now.max(old_epoch + 1000);
    let known = leaders(&brokers)?;
    if targets.is_empty() {
        return Err(no_broker());
    }
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

/// Where each logical queue begins and ends, worked out from the offsets of its physical ones.
pub fn logical(
    topic: &str,
    leaders: &BTreeMap<i32, Vec<LogicQueueMappingItem>>,
    stats: &TopicStatsTable,
) -> Vec<(MessageQueue, TopicOffset)> {
    let offsets = |item: &LogicQueueMappingItem| {
        let broker_name = item.bname.clone();
        stats.offset_table.get(&MessageQueue { topic: topic.to_owned(), broker_name, queue_id: item.queue_id })
    };
    let queues = leaders.iter().filter_map(|(id, items)| {
        let mut decided = items.iter().filter(|item| item.logic_offset >= 0);
        let first = decided.next()?;
        let last = decided.next_back().unwrap_or(first);
        let (begin, end) = (offsets(first)?, offsets(last)?);
        let offset = TopicOffset {
            min_offset: logical_offset(first, begin.min_offset),
            max_offset: logical_offset(last, end.max_offset),
            last_update_timestamp: end.last_update_timestamp,
        };
        Some((logical_queue(topic, *id), offset))
    });
    queues.collect()
}

/// How far a group is in each logical queue, worked out from what it committed in the physical ones, and from their ends. Nothing is said
/// of a queue in which it has committed nothing.
pub fn logical_progress(
    topic: &str,
    leaders: &BTreeMap<i32, Vec<LogicQueueMappingItem>>,
    ends: &TopicStatsTable,
    stats: &ConsumeStats,
) -> Vec<(MessageQueue, ConsumeOffset)> {
    let of = |item: &LogicQueueMappingItem| {
        let (topic, broker_name) = (topic.to_owned(), item.bname.clone());
        stats.offset_table.get(&MessageQueue { topic, broker_name, queue_id: item.queue_id }).copied()
    };
    // A broker tells of a queue's end to a group only where that has an offset, so ends come from elsewhere.
    let progress = logical(topic, leaders, ends).into_iter().filter_map(|(queue, end)| {
        let items = leaders.get(&queue.queue_id)?;
        // As brokers do: what the youngest place says counts.
        let mut known =
            items.iter().rev().filter(|item| item.logic_offset >= 0).filter_map(|item| Some((item, of(item)?)));
        let (place, at) = known.find(|(_, offset)| offset.consumer_offset >= 0)?;
        let consumed = logical_offset(place, at.consumer_offset);
        let progress = ConsumeOffset {
            broker_offset: end.max_offset,
            consumer_offset: consumed,
            last_timestamp: at.last_timestamp,
            pull_offset: logical_offset(place, at.pull_offset).max(consumed),
        };
        Some((queue, progress))
    });
    progress.collect()
}

/// Where a message of a physical queue is in the logical one.
pub fn logical_place(
    leaders: &BTreeMap<i32, Vec<LogicQueueMappingItem>>,
    broker: &str,
    queue_id: i32,
    offset: i64,
) -> Option<(i32, i64)> {
    let mut places = leaders.iter().flat_map(|(id, items)| items.iter().map(move |item| (*id, item)));
    let (id, item) = places.find(|(_, item)| {
        item.bname == broker && item.queue_id == queue_id && item.start_offset <= offset && item.logic_offset >= 0
    })?;
    Some((id, logical_offset(item, offset)))
}

/// A logical queue, by the name that clients have for it.
pub fn logical_queue(topic: &str, queue_id: i32) -> MessageQueue {
    MessageQueue { topic: topic.to_owned(), broker_name: logical_broker(GLOBAL_SCOPE), queue_id }
}

/// The logical offset of a physical one; never beyond the end of its place.
fn logical_offset(item: &LogicQueueMappingItem, physical: i64) -> i64 {
    let last = if item.end_offset >= item.start_offset { physical.min(item.end_offset) } else { physical };
    item.logic_offset.saturating_add(last.saturating_sub(item.start_offset).max(0))
}

/// At least half a block behind an offset: messages that come in during the move stay below.
pub fn next_block(offset: i64) -> i64 {
    let blocks = if offset % BLOCK < BLOCK / 2 { 1 } else { 2 };
    (offset / BLOCK + blocks) * BLOCK
}

/// Each logical queue's places, as the broker tells that has it now.
pub fn leaders(brokers: &Brokers) -> Result<BTreeMap<i32, Vec<LogicQueueMappingItem>>> {
    let mut leaders = BTreeMap::new();
    for detail in details(brokers)? {
        for (id, items) in &detail.hosted_queues {
            if items.last().is_some_and(|last| last.bname == detail.bname) {
                let is_first = leaders.insert(*id, items.clone()).is_none();
                ensure!(is_first, Unfit, "queue {id} is on two brokers");
            }
        }
    }
    Ok(leaders)
}

/// The mappings of all brokers; a broker on which the topic is an ordinary one is an error.
pub fn details(brokers: &Brokers) -> Result<impl Iterator<Item = &TopicQueueMappingDetail>> {
    for (name, broker) in brokers {
        ensure!(broker.mapping_detail.is_some(), Unfit, "the topic exists on {name} and is not static");
    }
    Ok(brokers.values().filter_map(|broker| broker.mapping_detail.as_ref()))
}

/// Epoch and number of queues, on which all brokers must agree before anything is changed.
fn agreed(brokers: &Brokers) -> Result<(i64, i32)> {
    let mut all = details(brokers)?.map(|detail| (detail.epoch, detail.total_queues, detail.dirty));
    let first = all.next().ok_or_else(|| OperatorError::NotFound("no broker has the topic".to_owned()))?;
    let is_agreed = all.all(|other| other == first);
    ensure!(is_agreed, Unfit, "brokers disagree on the topic: finish the last change first, with -mf");
    ensure!(!first.2, Unfit, "the topic's mapping is not complete");
    Ok((first.0, first.1))
}

fn no_broker() -> OperatorError {
    OperatorError::Invalid("no broker is named".to_owned())
}

/// A broker that knows the topic and has no queue of it.
pub fn empty(topic: &str, broker: &str, total: i32, epoch: i64) -> TopicConfigAndQueueMapping {
    let config =
        TopicConfig { topic_name: topic.to_owned(), read_queue_nums: 0, write_queue_nums: 0, ..TopicConfig::default() };
    let detail = TopicQueueMappingDetail {
        bname: broker.to_owned(),
        topic: topic.to_owned(),
        scope: Some(GLOBAL_SCOPE.to_owned()),
        total_queues: total,
        epoch,
        ..TopicQueueMappingDetail::default()
    };
    TopicConfigAndQueueMapping { mapping_detail: Some(detail), ..config.into() }
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
    fn a_logical_queue_reaches_from_its_first_place_to_its_last() {
        let first = grown("t", 1, &names(&["a"]), Brokers::new(), 7000).unwrap();
        let mut change = moved("t", &names(&["b"]), first.broker_config_map, 7001).unwrap();
        let detail = change.broker_config_map.get_mut("b").unwrap().mapping_detail.as_mut().unwrap();
        detail.hosted_queues.get_mut(&0).unwrap()[1].logic_offset = 10_000;
        let offset = |min_offset, max_offset| TopicOffset { min_offset, max_offset, last_update_timestamp: max_offset };
        let queue = |broker: &str| MessageQueue { topic: "t".into(), broker_name: broker.into(), queue_id: 0 };
        let offset_table = [(queue("a"), offset(5, 40)), (queue("b"), offset(0, 7))].into_iter().collect();
        let stats = TopicStatsTable { offset_table, topic_put_tps: 0.0 };
        let logical = logical("t", &leaders(&change.broker_config_map).unwrap(), &stats);
        let expected = TopicOffset { min_offset: 5, max_offset: 10_007, last_update_timestamp: 7 };
        assert_eq!(logical, [(queue(&logical_broker(GLOBAL_SCOPE)), expected)]);
    }

    #[test]
    fn a_group_is_where_the_youngest_place_says_in_which_it_has_committed() {
        let first = grown("t", 1, &names(&["a"]), Brokers::new(), 7000).unwrap();
        let mut change = moved("t", &names(&["b"]), first.broker_config_map, 7001).unwrap();
        let detail = change.broker_config_map.get_mut("b").unwrap().mapping_detail.as_mut().unwrap();
        detail.hosted_queues.get_mut(&0).unwrap()[1].logic_offset = 10_000;
        let leaders = leaders(&change.broker_config_map).unwrap();
        let queue = |broker: &str| MessageQueue { topic: "t".into(), broker_name: broker.into(), queue_id: 0 };
        let offset = |broker_offset, consumer_offset| ConsumeOffset {
            broker_offset,
            consumer_offset,
            pull_offset: consumer_offset,
            last_timestamp: 0,
        };
        let end = |max_offset| TopicOffset { min_offset: 0, max_offset, last_update_timestamp: 0 };
        let ends = [(queue("a"), end(40)), (queue("b"), end(7))].into_iter().collect();
        let ends = TopicStatsTable { offset_table: ends, topic_put_tps: 0.0 };
        let seen = |in_a: i64, in_b: i64| {
            // A broker says nothing of a queue in which the group has no offset, unless it is asked about the topic.
            let all = [(queue("a"), offset(40, in_a)), (queue("b"), offset(7, in_b))].into_iter();
            let offset_table = all.filter(|(_, offset)| offset.consumer_offset >= 0).collect();
            let progress = logical_progress("t", &leaders, &ends, &ConsumeStats { consume_tps: 0.0, offset_table });
            progress.into_iter().map(|(_, offset)| (offset.broker_offset, offset.consumer_offset)).collect::<Vec<_>>()
        };
        assert_eq!((seen(38, -1), seen(38, 3), seen(-1, -1)), (vec![(10_007, 38)], vec![(10_007, 10_003)], vec![]));
        assert_eq!(logical_place(&leaders, "b", 0, 3), Some((0, 10_003)));
        assert_eq!(logical_place(&leaders, "b", 1, 3), None);
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
