//! What a mapping no longer needs goes, every few minutes in the hours of `deleteWhen`, as in Apache.
//!
//! The oldest place of a logical queue goes when retention has taken all its messages, and groups that stood there have an offset in the
//! next one. A queue that this broker gave away goes from its mapping when its new leader has given it away in turn: nobody comes here
//! to ask about it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::body::{
    MessageQueue, TopicConfigAndQueueMapping, TopicOffset, TopicQueueMappingDetail, TopicQueueMappingInfo,
    TopicStatsTable,
};
use protocol::code::request;
use protocol::fastjson;
use protocol::request::{GetTopicConfig, GetTopicStats};

use crate::broker::Broker;
use crate::state::topics::Topic;
use crate::state::topics::mapping::{Mapping, is_decided};
use crate::state::topics::queues::ends;
use crate::static_topic::handover::hand_over;
use crate::tasks::Stop;
use crate::write::placement;

const PERIOD: Duration = Duration::from_secs(300);

/// Where physical queues begin and end.
type Ends = BTreeMap<MessageQueue, TopicOffset>;

/// The task.
pub(crate) async fn keep(broker: Arc<Broker>, mut stop: Stop) {
    while !stop.is_asked() {
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let retention = crate::retention(&broker.store_settings.load());
        if !retention.delete_when.contains(&retention.hour_of_day.at(broker.clock.now())) {
            continue;
        }
        tokio::select! {
            biased;
            () = stop.asked() => return,
            () = clean(&broker) => {}
        }
    }
}

async fn clean(broker: &Broker) {
    let topics: Vec<Arc<Topic>> = broker.topics.mappings().into_iter().map(|(topic, _)| topic).collect();
    for topic in topics {
        // Only what it says is kept: a change of the mapping waits until nobody holds it.
        let Some(seen) = topic.mapping().map(|mapping| mapping.detail().clone()) else { continue };
        let ends = ends_of_oldest(broker, &topic, &seen).await;
        let mut done = Vec::new();
        for id in with_empty_oldest(&seen, &ends) {
            match hand_over(broker, &seen, id).await {
                Ok(()) => done.push(id),
                Err(refusal) => {
                    tracing::warn!(topic = seen.topic, queue_id = id, remark = refusal.remark, "old place not cleaned")
                }
            }
        }
        amend(broker, &topic, &seen, without_oldest(&seen, &done), "places without messages left");
        let Some(seen) = topic.mapping().map(|mapping| mapping.detail().clone()) else { continue };
        let leaders = leaders_of_given_away(broker, &topic, &seen).await;
        amend(broker, &topic, &seen, without_gone(&seen, &leaders), "queues that moved on");
    }
}

fn amend(
    broker: &Broker,
    topic: &Topic,
    seen: &TopicQueueMappingDetail,
    new: Option<TopicQueueMappingDetail>,
    what: &'static str,
) {
    if new.is_some_and(|new| broker.topics.amend_mapping(topic, seen, new)) {
        tracing::info!(topic = topic.name(), what, "mapping of a static topic cleaned");
    }
}

/// The queues led here whose oldest places have no message any more.
fn with_empty_oldest(seen: &TopicQueueMappingDetail, ends: &Ends) -> Vec<i32> {
    let mut found = Vec::new();
    for (id, items) in &seen.hosted_queues {
        let [oldest, second, ..] = items.as_slice() else { continue };
        let is_led = items.last().is_some_and(|leader| leader.bname == seen.bname);
        let queue =
            MessageQueue { broker_name: oldest.bname.clone(), queue_id: oldest.queue_id, topic: seen.topic.clone() };
        let is_empty = ends.get(&queue).is_some_and(|ends| ends.max_offset == ends.min_offset || ends.max_offset == 0);
        if is_led && is_empty && is_decided(second) {
            found.push(*id);
        }
    }
    found
}

/// The mapping without the oldest places of these queues.
fn without_oldest(seen: &TopicQueueMappingDetail, queues: &[i32]) -> Option<TopicQueueMappingDetail> {
    let mut new = seen.clone();
    for id in queues {
        if let Some(items) = new.hosted_queues.get_mut(id) {
            items.remove(0);
        }
    }
    (!queues.is_empty()).then_some(new)
}

/// The mapping without the queues that were given to a broker which is not the leader any more. `leaders`: by queue, who says of itself
/// that it is.
fn without_gone(seen: &TopicQueueMappingDetail, leaders: &BTreeMap<i32, String>) -> Option<TopicQueueMappingDetail> {
    let mut new = seen.clone();
    new.hosted_queues.retain(|id, items| {
        let given_to = items.last().map(|leader| &leader.bname).filter(|leader| **leader != seen.bname);
        let Some((given_to, leader)) = given_to.zip(leaders.get(id)) else { return true };
        given_to == leader
    });
    (new != *seen).then_some(new)
}

/// Asks the holders of the oldest places of queues that are led here.
async fn ends_of_oldest(broker: &Broker, topic: &Topic, seen: &TopicQueueMappingDetail) -> Ends {
    let mut known = Ends::new();
    let led = seen.hosted_queues.values().filter(|items| items.last().is_some_and(|item| item.bname == seen.bname));
    let mut holders: Vec<&str> =
        led.filter(|items| items.len() > 1).filter_map(|items| Some(items.first()?.bname.as_str())).collect();
    holders.sort_unstable();
    holders.dedup();
    for holder in holders {
        if holder == seen.bname {
            known.extend(topic.queues(&broker.store).into_iter().map(|(queue_id, queue)| {
                let (min_offset, max_offset) = queue.as_ref().map_or((0, 0), |queue| ends(queue));
                let name = MessageQueue { broker_name: holder.to_owned(), queue_id, topic: seen.topic.clone() };
                (name, TopicOffset { last_update_timestamp: 0, max_offset, min_offset })
            }));
            continue;
        }
        let fields = GetTopicStats { topic: &seen.topic };
        let stats = broker.forward.ask_for(holder, request::GET_TOPIC_STATS_INFO, &fields, |answer| {
            fastjson::from_slice::<TopicStatsTable>(&answer.body).map_err(|error| error.to_string())
        });
        match stats.await {
            Ok(stats) => known.extend(stats.offset_table.iter().map(|(queue, ends)| (queue.clone(), *ends))),
            Err(refusal) => {
                tracing::warn!(topic = seen.topic, holder, remark = refusal.remark, "old places not cleaned")
            }
        }
    }
    known
}

/// By queue that was given away: who leads it by the routes, and says the same of itself, in a mapping as new as ours.
async fn leaders_of_given_away(
    broker: &Broker,
    topic: &Topic,
    seen: &TopicQueueMappingDetail,
) -> BTreeMap<i32, String> {
    let mut leaders = BTreeMap::new();
    let is_given = |id: &i32| {
        seen.hosted_queues.get(id).and_then(|items| items.last()).is_some_and(|leader| leader.bname != seen.bname)
    };
    if !seen.hosted_queues.keys().any(is_given) {
        return leaders;
    }
    let Ok(route) = placement::route_of(broker, topic.name()).await else { return leaders };
    let infos = route.topic_queue_mapping_by_broker.unwrap_or_default();
    for (leader, ids) in by_leader(&infos) {
        let ids: Vec<i32> = ids.into_iter().filter(is_given).collect();
        if ids.is_empty() || leader == seen.bname {
            continue;
        }
        let fields = GetTopicConfig { topic: topic.name(), lo: None };
        let Ok(remote) = mapping_of(broker, &leader, &fields).await else { continue };
        if (remote.detail().epoch, remote.detail().total_queues) != (seen.epoch, seen.total_queues) {
            continue;
        }
        leaders.extend(ids.into_iter().filter(|id| remote.led(*id).is_ok()).map(|id| (id, leader.clone())));
    }
    leaders
}

/// The queues of each leader, by the newest of what brokers said.
fn by_leader(infos: &BTreeMap<String, TopicQueueMappingInfo>) -> BTreeMap<String, Vec<i32>> {
    let mut newest: BTreeMap<i32, &TopicQueueMappingInfo> = BTreeMap::new();
    for info in infos.values() {
        for id in info.curr_id_map.keys() {
            let known = newest.entry(*id).or_insert(info);
            if known.epoch <= info.epoch {
                *known = info;
            }
        }
    }
    let mut leaders: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for (id, info) in newest {
        leaders.entry(info.bname.clone()).or_default().push(id);
    }
    leaders
}

async fn mapping_of(broker: &Broker, holder: &str, fields: &GetTopicConfig<'_>) -> Result<Mapping, crate::Refusal> {
    let detail = broker.forward.ask_about_logical(holder, request::GET_TOPIC_CONFIG, fields, |answer| {
        let config = fastjson::from_slice::<TopicConfigAndQueueMapping>(&answer.body);
        let detail = config.map_err(|error| error.to_string())?.mapping_detail;
        detail.filter(|detail| detail.bname == holder).ok_or_else(|| "it has no mapping of its own".to_owned())
    });
    detail.await.map(Mapping::new)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::task::Poll;

    use protocol::body::LogicQueueMappingItem;
    use protocol::sys_flag::perm;

    use super::*;
    use crate::started;
    use crate::state::topics::plain;

    fn item(generation: i32, bname: &str, logic_offset: i64) -> LogicQueueMappingItem {
        let bname = bname.to_owned();
        LogicQueueMappingItem { bname, end_offset: -1, generation, logic_offset, ..LogicQueueMappingItem::default() }
    }

    fn seen(items: Vec<LogicQueueMappingItem>) -> TopicQueueMappingDetail {
        TopicQueueMappingDetail {
            bname: "a".to_owned(),
            topic: "T".to_owned(),
            hosted_queues: [(0, items)].into(),
            total_queues: 1,
            ..TopicQueueMappingDetail::default()
        }
    }

    fn ends(min_offset: i64, max_offset: i64) -> Ends {
        let queue = MessageQueue { broker_name: "b".to_owned(), queue_id: 0, topic: "T".to_owned() };
        [(queue, TopicOffset { last_update_timestamp: 0, max_offset, min_offset })].into()
    }

    fn without_empty(seen: &TopicQueueMappingDetail, ends: &Ends) -> Option<TopicQueueMappingDetail> {
        without_oldest(seen, &with_empty_oldest(seen, ends))
    }

    #[test]
    fn the_oldest_place_goes_when_it_is_empty_and_this_broker_leads() {
        let led = seen(vec![item(0, "b", 0), item(1, "a", 10_000)]);
        let cleaned = without_empty(&led, &ends(7, 7)).unwrap();
        assert_eq!(cleaned.hosted_queues[&0], [item(1, "a", 10_000)]);
        assert!(without_empty(&led, &ends(0, 0)).is_some());
        assert!(without_empty(&led, &ends(6, 7)).is_none(), "it still has a message");
        assert!(without_empty(&led, &Ends::new()).is_none(), "nobody knows");
        assert!(without_empty(&cleaned, &ends(7, 7)).is_none(), "the place that takes messages stays");
        let moving = seen(vec![item(0, "b", 0), item(1, "a", -1)]);
        assert!(without_empty(&moving, &ends(7, 7)).is_none(), "the next place has no offsets yet");
        let given_away = seen(vec![item(0, "b", 0), item(1, "c", 10_000)]);
        assert!(without_empty(&given_away, &ends(7, 7)).is_none());
    }

    #[test]
    fn a_queue_goes_when_whoever_got_it_has_given_it_away() {
        let given = seen(vec![item(0, "a", 0), item(1, "b", 10_000)]);
        let leader = |name: &str| BTreeMap::from([(0, name.to_owned())]);
        assert!(without_gone(&given, &leader("c")).unwrap().hosted_queues.is_empty());
        assert!(without_gone(&given, &leader("b")).is_none());
        assert!(without_gone(&given, &BTreeMap::new()).is_none(), "nobody knows");
        assert!(without_gone(&seen(vec![item(0, "a", 0)]), &leader("c")).is_none(), "it is ours");
    }

    #[test]
    fn of_two_brokers_that_claim_a_queue_the_one_with_the_newer_mapping_leads_it() {
        let info = |bname: &str, epoch| TopicQueueMappingInfo {
            bname: bname.to_owned(),
            epoch,
            curr_id_map: [(0, 0)].into(),
            ..TopicQueueMappingInfo::default()
        };
        let infos = [info("a", 2), info("b", 1)].map(|info| (info.bname.clone(), info)).into();
        assert_eq!(by_leader(&infos), [("a".to_owned(), vec![0])].into());
    }

    #[tokio::test]
    async fn while_a_cleaning_waits_for_others_every_mapping_can_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        // Whoever connects to it hears nothing.
        let name_server = TcpListener::bind("127.0.0.1:0").unwrap();
        let name_servers = vec![name_server.local_addr().unwrap().to_string()];
        let (store, broker) = started::at(dir.path(), name_servers).await;
        // Says how many of the mappings before are still held.
        let remap = |topic: &str, epoch| {
            let mapped = seen(vec![item(0, "b", 0), item(1, "a", 10_000)]);
            let mapped = TopicQueueMappingDetail { topic: topic.to_owned(), epoch, ..mapped };
            let config = plain(topic, 1, perm::READ | perm::WRITE);
            broker.topics.remap(config, |_| Ok(mapped)).unwrap().held.len()
        };
        let topics = ["T", "U", "V"];
        for topic in topics {
            remap(topic, 1);
        }
        {
            let mut cleaning = std::pin::pin!(clean(&broker));
            let waits = std::future::poll_fn(|cx| Poll::Ready(cleaning.as_mut().poll(cx).is_pending())).await;
            assert!(waits, "the name server says where the other broker is");
            assert_eq!(topics.map(|topic| remap(topic, 2)), [0, 0, 0]);
        }
        drop(name_server);
        broker.stop().await.unwrap();
        store.close().unwrap();
    }
}
