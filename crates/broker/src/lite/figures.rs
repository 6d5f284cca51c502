//! What operators see of lite topics: 200074 to 200078.

use std::collections::BTreeSet;
use std::sync::Arc;

use net::{Outgoing, Request};
use protocol::body::{
    BrokerLiteInfo, ClientGroup, ConsumeOffset, LiteClientInfo, LiteGroupInfo, LiteLagInfo, LiteTopicInfo,
    ParentTopicInfo, SubscriptionGroupConfig, TopicConfig, TopicOffset,
};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{GetLiteClientInfo, GetLiteGroupInfo, GetLiteTopicInfo, GetParentTopicInfo};
use store::{ConsumeQueue, Store};

use super::state::subscriptions::wildcard;
use super::state::{LiteGroup, expiration_minutes, is_parent};
use super::{bound_groups, parents};
use crate::answer::reply_json;
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::lite::Lite;
use crate::refusal::Refusal;
use crate::state::groups::Groups;
use crate::state::offsets::Offsets;
use crate::state::topics::Topics;

/// Lite topics of one client, and lite topics with most to do, that are shown at most.
const SHOWN_MAX: usize = 10_000;
/// Lite topics that wait, of which it is looked up since when.
const LOOKED_UP_MAX: usize = 10_000;

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn wrong(remark: String) -> Refusal {
    Refusal::new(ResponseCode::InvalidParameter, remark)
}

/// A topic that holds lite topics, in Apache's words if it is none.
fn parent(topics: &Topics, name: &str) -> Result<Arc<TopicConfig>, Refusal> {
    let topic = topics.get(name);
    let topic = topic.ok_or_else(|| Refusal::new(ResponseCode::TopicNotExist, format!("Topic [{name}] not exist.")))?;
    let config = topic.config();
    if !is_parent(&config) {
        return Err(wrong(format!("Topic [{name}] type not match.")));
    }
    Ok(config)
}

fn group(groups: &Groups, name: &str) -> Result<Arc<SubscriptionGroupConfig>, Refusal> {
    let group = groups.get(name);
    let missing = || Refusal::new(ResponseCode::SubscriptionGroupNotExist, format!("Group [{name}] not exist."));
    Ok(group.ok_or_else(missing)?.config.load_full())
}

/// 200074.
pub(crate) fn of_broker(broker: &Broker, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let (subscriptions, told) = {
        let table = broker.lite.lock();
        (table.active(), table.told())
    };
    let info = BrokerLiteInfo {
        cq_table_size: count(broker.store.topics().len()),
        current_lmq_num: count(broker.store.light_queues()),
        event_map_size: count(told),
        order_info_count: count(broker.pops.orders.lite_count()),
        group_meta: bound_groups(&broker.groups),
        lite_subscription_count: count(subscriptions),
        max_lmq_num: count(broker.store_settings.load().max_lmq_consume_queue_num),
        offset_table_size: count(broker.offsets.len()),
        store_type: Some("default".to_owned()),
        topic_meta: parents(&broker.topics),
    };
    reply_json(request, out, &info);
    Ok(())
}

/// 200075.
pub(crate) fn of_parent_topic(
    topics: &Topics,
    store: &Store,
    groups: &Groups,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let name = GetParentTopicInfo::decode(&request.header.fields)?.topic;
    let config = parent(topics, name)?;
    let queues = store.light_queue_names();
    let of_topic = queues.iter().filter(|queue| names::lite_parts(queue).is_some_and(|(parent, _)| parent == name));
    let info = ParentTopicInfo {
        groups: bound_groups(groups).remove(name).unwrap_or_default(),
        lite_topic_count: count(of_topic.count()),
        lmq_num: count(store.light_queues()),
        topic: name.to_owned(),
        ttl: expiration_minutes(&config),
    };
    reply_json(request, out, &info);
    Ok(())
}

/// When a message of a queue was stored; 0 if there is none, or none any more.
fn store_time(store: &Store, queue: &ConsumeQueue, offset: u64) -> i64 {
    let unit = queue.unit_at(offset).ok().flatten();
    unit.and_then(|unit| store.store_time_of(&unit).ok().flatten()).unwrap_or(0)
}

/// 200076.
pub(crate) fn of_lite_topic(
    topics: &Topics,
    store: &Store,
    groups: &Groups,
    lite: &Lite<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetLiteTopicInfo::decode(&request.header.fields)?;
    let (parent_topic, lite_topic) = (asked.parent_topic.unwrap_or_default(), asked.lite_topic.unwrap_or_default());
    parent(topics, parent_topic)?;
    let name = names::lite_queue(parent_topic, lite_topic);
    let queue = store.existing_queue(&name, 0);
    let mut info = LiteTopicInfo {
        lite_topic: lite_topic.to_owned(),
        parent_topic: parent_topic.to_owned(),
        // Every broker takes what is sent to it.
        sharding_to_broker: true,
        subscriber: Some(subscribers(groups, lite, parent_topic, &name)),
        topic_offset: None,
    };
    info.topic_offset = Some(queue.map_or_else(TopicOffset::default, |queue| {
        let max = queue.max_offset();
        let last = max.checked_sub(1).map_or(0, |last| store_time(store, &queue, last));
        TopicOffset { last_update_timestamp: last, max_offset: max as i64, min_offset: queue.min_offset() as i64 }
    }));
    reply_json(request, out, &info);
    Ok(())
}

/// Who subscribes to a lite topic; a group that gets all of them stands there as `*`.
fn subscribers(groups: &Groups, lite: &Lite<ClientHandle>, parent: &str, queue: &str) -> Vec<ClientGroup> {
    let groups = bound_groups(groups).remove(parent).unwrap_or_default();
    let table = lite.lock();
    let clients = table.subscribers(queue).into_iter();
    let mut found: Vec<ClientGroup> =
        clients.map(|(client_id, group)| ClientGroup { client_id, group: group.to_string() }).collect();
    let all = groups.into_iter().filter(|group| !table.subscribers(&wildcard(parent, group)).is_empty());
    found.extend(all.map(|group| ClientGroup { client_id: "*".to_owned(), group }));
    found
}

/// 200077.
pub(crate) fn of_client(
    topics: &Topics,
    groups: &Groups,
    lite: &Lite<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetLiteClientInfo::decode(&request.header.fields)?;
    let (parent_topic, group_name) = (asked.parent_topic.unwrap_or_default(), asked.group.unwrap_or_default());
    let client_id = asked.client_id.unwrap_or_default();
    parent(topics, parent_topic)?;
    if LiteGroup::of(&*group(groups, group_name)?).parent() != Some(parent_topic) {
        return Err(wrong(format!("Subscription [{group_name}]-[{parent_topic}] not match.")));
    }
    let max = usize::try_from(asked.max_count).unwrap_or(0).min(SHOWN_MAX);
    let seen = lite.lock().of(client_id, max);
    let lite_topic = |queue: &str| names::lite_parts(queue).map_or(queue, |(_, lite_topic)| lite_topic).to_owned();
    let info = LiteClientInfo {
        client_id: client_id.to_owned(),
        group: group_name.to_owned(),
        last_access_time: seen.as_ref().and_then(|seen| seen.popped_ms).unwrap_or(-1),
        last_consume_time: 0,
        // -1 stands for a client that nobody knows.
        lite_topic_count: seen.as_ref().map_or(-1, |seen| count(seen.count)),
        lite_topic_set: seen.map(|seen| seen.queues.iter().map(|queue| lite_topic(queue)).collect::<BTreeSet<_>>()),
        parent_topic: parent_topic.to_owned(),
    };
    reply_json(request, out, &info);
    Ok(())
}

/// 200078: of one lite topic, or of all that a group has ever consumed.
pub(crate) fn of_group(
    groups: &Groups,
    offsets: &Offsets,
    store: &Store,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = GetLiteGroupInfo::decode(&request.header.fields)?;
    let config = group(groups, asked.group)?;
    let Some(parent) = LiteGroup::of(&config).parent() else {
        return Err(wrong(format!("Group [{}] is not a LITE group.", asked.group)));
    };
    let lite_topic = asked.lite_topic.filter(|lite_topic| !lite_topic.is_empty());
    let info = LiteGroupInfo {
        group: asked.group.to_owned(),
        parent_topic: Some(parent.to_owned()),
        lite_topic: asked.lite_topic.map(str::to_owned),
        ..LiteGroupInfo::default()
    };
    let committed = |queue: &str| offsets.committed(asked.group, queue, 0);
    if let Some(lite_topic) = lite_topic {
        let name = names::lite_queue(parent, lite_topic);
        let found = store.existing_queue(&name, 0).map(|queue| (queue, committed(&name)));
        reply_json(request, out, &one_lite_topic(store, found, info));
        return Ok(());
    }
    let topics = offsets.topics_of(asked.group).into_iter();
    let of_parent = topics.filter(|queue| names::lite_parts(queue).is_some_and(|(of, _)| of == parent));
    let behind: Vec<_> = of_parent
        .filter_map(|queue| Some((store.existing_queue(&queue, 0)?, committed(&queue)?)))
        .filter(|(queue, committed)| queue.max_offset() as i64 > *committed)
        .collect();
    let top = usize::try_from(asked.top_k).unwrap_or(0).min(SHOWN_MAX);
    reply_json(request, out, &most_behind(store, behind, top, info));
    Ok(())
}

fn one_lite_topic(
    store: &Store,
    found: Option<(Arc<ConsumeQueue>, Option<i64>)>,
    mut info: LiteGroupInfo,
) -> LiteGroupInfo {
    let Some((queue, committed)) = found.filter(|(queue, _)| queue.max_offset() > 0) else {
        info.total_lag_count = -1;
        info.earliest_unconsumed_timestamp = -1;
        return info;
    };
    // Nothing committed: no figures either, as in Apache.
    let Some(committed) = committed else { return info };
    let max = queue.max_offset() as i64;
    let at = |offset: i64| u64::try_from(offset).map_or(0, |offset| store_time(store, &queue, offset));
    info.total_lag_count = max - committed;
    info.earliest_unconsumed_timestamp = at(committed);
    info.lite_topic_offset_wrapper = Some(ConsumeOffset {
        broker_offset: max,
        consumer_offset: committed,
        last_timestamp: at(committed - 1),
        ..ConsumeOffset::default()
    });
    info
}

fn most_behind(
    store: &Store,
    mut behind: Vec<(Arc<ConsumeQueue>, i64)>,
    top: usize,
    mut info: LiteGroupInfo,
) -> LiteGroupInfo {
    let lag = |queue: &ConsumeQueue, committed: i64| queue.max_offset() as i64 - committed;
    info.total_lag_count = behind.iter().map(|(queue, committed)| lag(queue, *committed)).sum();
    behind.sort_by_key(|(queue, committed)| std::cmp::Reverse(lag(queue, *committed)));
    behind.truncate(LOOKED_UP_MAX);
    let mut lags: Vec<LiteLagInfo> = behind
        .iter()
        .map(|(queue, committed)| LiteLagInfo {
            earliest_unconsumed_timestamp: store_time(store, queue, (*committed).max(queue.min_offset() as i64) as u64),
            lag_count: lag(queue, *committed),
            lite_topic: names::lite_parts(queue.topic()).map_or("", |(_, lite_topic)| lite_topic).to_owned(),
        })
        .collect();
    info.lag_count_top_k = Some(lags.iter().take(top).cloned().collect());
    lags.sort_by_key(|lag| lag.earliest_unconsumed_timestamp);
    info.earliest_unconsumed_timestamp = lags.first().map_or(0, |lag| lag.earliest_unconsumed_timestamp);
    lags.truncate(top);
    info.lag_timestamp_top_k = Some(lags);
    info
}
