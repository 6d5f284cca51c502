//! How far groups are behind: 208, 303, 317.
//!
//! Offsets are in memory; the times of messages may lie on the disk. All three run beside the network workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use net::{Outgoing, Request};
use protocol::body::{
    BrokerConsumeStats, ConsumeOffset, ConsumeStats, ConsumeTimeSpans, MessageQueue, QueueMap, QueueTimeSpan,
};
use protocol::code::ResponseCode;
use protocol::request::{GetBrokerConsumeStats, GetConsumeStats, QueryConsumeTimeSpan};
use store::{ConsumeQueue, Store};

use crate::answer::reply_json;
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::pop::origin_topic;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::Clients;
use crate::state::topics::queues::ends;

/// One queue that a group consumes, before the time is known.
struct Progress {
    message_queue: MessageQueue,
    queue: Option<Arc<ConsumeQueue>>,
    offset: ConsumeOffset,
}

/// 208: how far a group is behind.
pub(crate) fn of_group(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetConsumeStats::decode(&request.header.fields)?;
    let group = asked.consumer_group;
    let listed = asked
        .topic_list
        .map(|list| list.split(';').filter(|topic| !topic.is_empty()).map(Arc::from).collect::<BTreeSet<_>>());
    let topics = match (listed, asked.topic.filter(|topic| !topic.is_empty())) {
        (Some(topics), _) if !topics.is_empty() => topics,
        (_, Some(topic)) => subscribed(&broker.clients, group, BTreeSet::from([Arc::from(topic)])),
        (_, None) => subscribed(&broker.clients, group, broker.offsets.topics_of(group)),
    };
    let consume_tps = topics.iter().map(|topic| broker.stats.consume_tps(group, topic)).sum();
    let mut offset_table = BTreeMap::new();
    for topic in &topics {
        offset_table
            .extend(progress(broker, session, group, topic)?.into_iter().map(|queue| timed(&broker.store, queue)));
    }
    reply_json(request, out, &ConsumeStats { consume_tps, offset_table: QueueMap(offset_table) });
    Ok(())
}

/// Of a group that is connected, only what it subscribes to counts.
fn subscribed(clients: &Clients<ClientHandle>, group: &str, topics: BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
    match clients.consumers(group).filter(|consumers| consumers.has_subscriptions()) {
        Some(consumers) => {
            topics.into_iter().filter(|topic| consumers.subscription(origin_topic(topic, group)).is_some()).collect()
        }
        None => topics,
    }
}

/// Of each queue of a topic that a group reads.
fn progress(broker: &Broker, session: &Session, group: &str, topic: &str) -> Result<Vec<Progress>, Refusal> {
    session.check_wanted()?;
    let Some(found) = broker.topics.get(topic) else { return Ok(Vec::new()) };
    let broker_name = broker.settings.load().broker_name.clone();
    let read_queues = found.config().read_queue_nums;
    // Of a static topic a group may have its offset in another physical queue of the same logical one, perhaps on another broker.
    let nowhere = if found.is_static() { -1 } else { 0 };
    let progress =
        found.queues(&broker.store).into_iter().take_while(|(id, _)| *id < read_queues).map(|(queue_id, queue)| {
            let broker_offset = queue.as_ref().map_or(0, |queue| ends(queue).1);
            let consumer_offset = broker.offsets.committed(group, topic, queue_id).unwrap_or(nowhere);
            let pulled = broker.offsets.last_pulled(group, topic, queue_id).unwrap_or(nowhere);
            let pull_offset = consumer_offset.max(pulled);
            let offset = ConsumeOffset { broker_offset, consumer_offset, last_timestamp: 0, pull_offset };
            Progress {
                message_queue: MessageQueue { broker_name: broker_name.clone(), queue_id, topic: topic.to_owned() },
                queue,
                offset,
            }
        });
    Ok(progress.collect())
}

/// Adds when the last consumed message was stored.
fn timed(store: &Store, progress: Progress) -> (MessageQueue, ConsumeOffset) {
    let Progress { message_queue, queue, mut offset } = progress;
    if let Some(queue) = queue {
        offset.last_timestamp = store_time(store, &queue, offset.consumer_offset - 1);
    }
    (message_queue, offset)
}

/// When the message at an offset was stored; 0 when there is none. May read the disk.
pub(crate) fn store_time(store: &Store, queue: &ConsumeQueue, offset: i64) -> i64 {
    let found = || {
        let unit = queue.unit_at(u64::try_from(offset).ok()?).ok()??;
        store.store_time(&unit)
    };
    found().unwrap_or(0)
}

/// 317: the same for all groups of this broker.
pub(crate) fn of_all(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetBrokerConsumeStats::decode(&request.header.fields)?;
    let mut stats = BrokerConsumeStats { broker_addr: broker.advertised.to_string(), ..BrokerConsumeStats::default() };
    // One look through the offsets for all groups: a look for each would be the square of their number.
    let mut topics_of = broker.offsets.topics_by_group();
    for group in broker.groups.all() {
        session.check_wanted()?;
        let mut of_topics = Vec::new();
        for topic in subscribed(&broker.clients, &group.name, topics_of.remove(&group.name).unwrap_or_default()) {
            let Some(found) = broker.topics.get(&topic) else { continue };
            if asked.is_order && !found.config().order {
                continue;
            }
            let consume_tps = broker.stats.consume_tps(&group.name, &topic);
            let progress = progress(broker, session, &group.name, &topic)?;
            if !progress.is_empty() {
                let offset_table = progress.into_iter().map(|queue| timed(&broker.store, queue)).collect();
                of_topics.push(ConsumeStats { consume_tps, offset_table });
            }
        }
        for offset in of_topics.iter().flat_map(|stats: &ConsumeStats| stats.offset_table.values()) {
            stats.total_diff += offset.broker_offset - offset.consumer_offset;
            stats.total_inflight_diff += offset.pull_offset - offset.consumer_offset;
        }
        stats.consume_stats_list.push(BTreeMap::from([(group.name.to_string(), of_topics)]));
    }
    session.check_wanted()?;
    reply_json(request, out, &stats);
    Ok(())
}

/// 303: from when the messages are that a group has consumed, and that it has not.
pub(crate) fn time_spans(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = QueryConsumeTimeSpan::decode(&request.header.fields)?;
    if broker.topics.get(asked.topic).is_none() {
        return Err(Refusal::new(ResponseCode::TopicNotExist, format!("topic[{}] not exist", asked.topic)));
    }
    let now = broker.clock.now();
    let mut consume_time_span_set = Vec::new();
    for Progress { message_queue, queue, offset } in progress(broker, session, asked.group, asked.topic)? {
        session.check_wanted()?;
        let time = |at: i64| queue.as_ref().map_or(0, |queue| store_time(&broker.store, queue, at));
        let (min, max) = queue.as_ref().map_or((0, 0), |queue| ends(queue));
        let min_time_stamp = time(min);
        let max_time_stamp = time(max - 1);
        let consumed = offset.consumer_offset;
        let consume_time_stamp = if consumed > 0 { time(consumed - 1) } else { min_time_stamp };
        // Behind by the age of the next message, if there is one.
        let delay_time = if consumed < max { now.0 - time(consumed) } else { 0 };
        consume_time_span_set.push(QueueTimeSpan {
            consume_time_stamp,
            delay_time,
            max_time_stamp,
            message_queue,
            min_time_stamp,
        });
    }
    reply_json(request, out, &ConsumeTimeSpans { consume_time_span_set });
    Ok(())
}
