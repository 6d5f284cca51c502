//! Subscription groups, as operators see and change them: 200, 201, 207, 225, 343, 345, 352, 353.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use net::{Outgoing, Request};
use protocol::body::{
    GroupForbidden, QuerySubscriptionReply, SubscriptionGroupConfig, SubscriptionGroupList, SubscriptionGroupTable,
    TopicConfig, TopicList,
};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::names;
use protocol::request::{
    DeleteGroup, GetAllGroups, GetAllGroupsReply, GetGroupConfig, QuerySubscriptionByConsumer, QueryTopicsByConsumer,
    UpdateGroupForbidden,
};
use store::Store;

use crate::admin::{attributes, piece};
use crate::answer::{body, reply_json, reply_ok};
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::Clients;
use crate::state::groups::Groups;
use crate::state::offsets::{Offsets, rows};
use crate::state::topics::Topics;

/// Bytes of a group's configuration as JSON: subscriptions, intervals of retries and attributes have any number of entries in it.
const CONFIG_BYTES_MAX: usize = 64 << 10;
/// More queues of a retry topic, or more retries, are a mistake.
const RETRIES_MAX: i32 = 65_536;

/// 200: make or change a group.
pub(crate) fn create(
    groups: &Groups,
    topics: &Topics,
    store: &Store,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let config = checked(groups, body(request)?)?;
    check_room(groups, std::slice::from_ref(&config))?;
    put(groups, topics, store, session, config);
    reply_ok(request, out);
    Ok(())
}

/// 225: the same for several, all or none.
pub(crate) fn create_all(
    groups: &Groups,
    topics: &Topics,
    store: &Store,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted: SubscriptionGroupList = body(request)?;
    let mut checked_all = Vec::with_capacity(wanted.group_config_list.len());
    for config in wanted.group_config_list {
        checked_all.push(checked(groups, config)?);
    }
    check_room(groups, &checked_all)?;
    for config in checked_all {
        put(groups, topics, store, session, config);
    }
    reply_ok(request, out);
    Ok(())
}

/// Refuses new groups beyond what a broker keeps.
fn check_room(groups: &Groups, configs: &[SubscriptionGroupConfig]) -> Result<(), Refusal> {
    let names: BTreeSet<&str> = configs.iter().map(|config| config.group_name.as_str()).collect();
    groups.check_room_for(names.into_iter().filter(|name| groups.get(name).is_none()).count())
}

/// The configuration as it will be. On the way in, attributes are changes; on the way out, they are what is left.
fn checked(groups: &Groups, config: SubscriptionGroupConfig) -> Result<SubscriptionGroupConfig, Refusal> {
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    names::check_group(&config.group_name).map_err(|error| invalid(error.to_string()))?;
    for (field, number) in [("retryQueueNums", config.retry_queue_nums), ("retryMaxTimes", config.retry_max_times)] {
        if number > RETRIES_MAX {
            return Err(invalid(format!("{field}={number} of group {} is more than {RETRIES_MAX}", config.group_name)));
        }
    }
    let bytes = serde_json::to_vec(&config).map_or(0, |text| text.len());
    if bytes > CONFIG_BYTES_MAX {
        let name = &config.group_name;
        return Err(invalid(format!(
            "the configuration of group {name} has {bytes} bytes, the limit is {CONFIG_BYTES_MAX}"
        )));
    }
    let before = groups.get(&config.group_name).map(|group| group.config.load_full());
    if groups.is_light(&config.group_name) && before.as_deref() != Some(&config) {
        let name = &config.group_name;
        return Err(invalid(format!(
            "group {name} is that of a light queue, which has Apache's defaults and no configuration"
        )));
    }
    let current = before.as_ref().map(|config| &config.attributes);
    let attributes = attributes::alter(
        attributes::OF_GROUPS,
        before.is_none(),
        current.unwrap_or(&BTreeMap::new()),
        &config.attributes,
    )?;
    Ok(SubscriptionGroupConfig { attributes, ..config })
}

fn put(groups: &Groups, topics: &Topics, store: &Store, session: &mut Session, config: SubscriptionGroupConfig) {
    if groups.get(&config.group_name).is_some_and(|group| **group.config.load() == config) {
        // Who asks again after a refusal wants to know that it is written down by now.
        session.copied_after(store.journal().position());
        return;
    }
    tracing::info!(group = config.group_name, peer = %session.connection.peer(), "group created or changed by request");
    widen_retry_topic(topics, session, &config);
    session.copied_after(groups.put(config));
}

/// The retry topic's queues grow with the group's setting. They never become fewer: messages may wait in them.
fn widen_retry_topic(topics: &Topics, session: &mut Session, group: &SubscriptionGroupConfig) {
    let Some(topic) = topics.get(&names::retry_topic(&group.group_name)) else { return };
    let before = topic.config();
    let read_queue_nums = before.read_queue_nums.max(group.retry_queue_nums);
    let write_queue_nums = before.write_queue_nums.max(group.retry_queue_nums);
    if (read_queue_nums, write_queue_nums) == (before.read_queue_nums, before.write_queue_nums) {
        return;
    }
    let wider = TopicConfig { read_queue_nums, write_queue_nums, ..TopicConfig::clone(&before) };
    session.copied_after(topics.create(wider).position);
}

/// 207: delete a group; with its offsets if wanted.
pub(crate) fn delete(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = DeleteGroup::decode(&request.header.fields)?;
    tracing::info!(group = wanted.group_name, peer = %session.connection.peer(), "group deleted by request");
    if let Some(position) = broker.groups.delete(wanted.group_name) {
        session.copied_after(position);
    }
    broker.stats.forget_group(wanted.group_name);
    broker.pops.forget(|group, _| group == wanted.group_name);
    if wanted.clean_offset {
        broker.offsets.forget_group(wanted.group_name);
        // Or a group made anew under its name would go on where this one was, after a crash.
        session.copied_after(rows::put(&broker.store, &broker.offsets));
    }
    reply_ok(request, out);
    Ok(())
}

/// 201: all groups; in pieces for who says which.
pub(crate) fn all(groups: &Groups, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let asked = GetAllGroups::decode(&request.header.fields)?;
    let mut table = table(groups);
    let total = i32::try_from(table.subscription_group_table.len()).unwrap_or(i32::MAX);
    let groups = std::mem::take(&mut table.subscription_group_table);
    table.subscription_group_table = piece(groups, asked.group_seq, asked.max_group_num);
    let fields = GetAllGroupsReply { total_group_num: Some(total) };
    let body = fastjson::to_vec(&table, Dialect::FastJson);
    out.reply_owned(request.reply_to(), ResponseCode::Success, None, &fields, body);
    Ok(())
}

/// All groups, as 201 and `subscriptionGroup.json` show them.
pub(crate) fn table(groups: &Groups) -> SubscriptionGroupTable {
    SubscriptionGroupTable {
        data_version: groups.version(),
        forbidden_table: groups.forbidden(),
        subscription_group_table: groups
            .all()
            .iter()
            .map(|group| (group.name.to_string(), SubscriptionGroupConfig::clone(&group.config.load())))
            .collect(),
    }
}

/// 352: one group.
pub(crate) fn one(groups: &Groups, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let name = GetGroupConfig::decode(&request.header.fields)?.group;
    // As in Apache, asking for a group makes it where groups are made by themselves.
    let group = groups
        .find(name)
        .map_err(|_| Refusal::new(ResponseCode::SubscriptionGroupNotExist, "No group in this broker"))?;
    reply_json(request, out, &**group.config.load());
    Ok(())
}

/// 343: the topics that a group has come some way in.
pub(crate) fn topics(
    offsets: &Offsets,
    advertised: SocketAddr,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let group = QueryTopicsByConsumer::decode(&request.header.fields)?.group;
    let topics: BTreeSet<_> = offsets.topics_of(group);
    let list = TopicList {
        broker_addr: Some(advertised.to_string()),
        topic_list: topics.iter().map(|topic| topic.to_string()).collect(),
    };
    reply_json(request, out, &list);
    Ok(())
}

/// 345: what a group subscribes to in a topic, if it is connected.
pub(crate) fn subscription(
    clients: &Clients<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = QuerySubscriptionByConsumer::decode(&request.header.fields)?;
    let topic = asked.topic.unwrap_or_default();
    let found = clients.subscription(asked.group, topic);
    let reply = QuerySubscriptionReply {
        group: asked.group.to_owned(),
        subscription_data: found.map(|subscription| subscription.data.clone()),
        topic: topic.to_owned(),
    };
    reply_json(request, out, &reply);
    Ok(())
}

/// 353: may this group read that topic? Without a value: tells only.
pub(crate) fn forbid(
    groups: &Groups,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = UpdateGroupForbidden::decode(&request.header.fields)?;
    if let Some(is_readable) = wanted.readable {
        let bad = |error: names::NameError| Refusal::new(ResponseCode::InvalidParameter, error.to_string());
        names::check_group(wanted.group).map_err(bad)?;
        names::check_topic(wanted.topic).map_err(bad)?;
        session.copied_after(groups.set_readable(wanted.group, wanted.topic, is_readable)?);
    }
    let reply = GroupForbidden {
        group: wanted.group.to_owned(),
        readable: !groups.is_read_forbidden(wanted.group, wanted.topic),
        topic: wanted.topic.to_owned(),
    };
    reply_json(request, out, &reply);
    Ok(())
}
