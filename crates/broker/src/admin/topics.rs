//! Topics, as operators see and change them: 17, 18, 21, 202, 215, 300, 305, 351.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use config::BrokerSettings;
use net::{Outgoing, Request};
use protocol::body::{
    GroupList, MessageQueue, QueueMap, TopicConfig, TopicConfigAndQueueMapping, TopicConfigList, TopicConfigTable,
    TopicFilterType, TopicList, TopicOffset, TopicStatsTable,
};
use protocol::code::ResponseCode;
use protocol::fastjson::{self, Dialect};
use protocol::names;
use protocol::request::{
    CreateTopic, DeleteTopic, GetAllTopicConfig, GetAllTopicConfigReply, GetTopicConfig, GetTopicStats,
    QueryTopicConsumeByWho,
};
use protocol::sys_flag::perm;
use store::Store;

use crate::admin::progress::store_time;
use crate::admin::{attributes, piece};
use crate::answer::{body, reply_json, reply_ok};
use crate::broker::Broker;
use crate::client_handle::ClientHandle;
use crate::lite;
use crate::pop::{Origin, Pops, retry_topic};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::Clients;
use crate::state::offsets::{Offsets, rows};
use crate::state::stats::{Stat, Stats};
use crate::state::topics::queues::ends;
use crate::state::topics::{Changed, QUEUES_MAX, Topic, Topics};
use crate::static_topic::accept;
use crate::waiting::hold::Hold;

/// All that a topic can permit, as Apache's `PermName.isValid` has it. Apache's broker does not ask that, and keeps any number.
const PERM_MAX: i32 = perm::READ | perm::WRITE | perm::INHERIT;

/// The topic that 17 or 513 asks for.
pub(crate) fn wanted_config(wanted: &CreateTopic<'_>) -> Result<TopicConfig, Refusal> {
    Ok(TopicConfig {
        attributes: attributes::parse(wanted.attributes.unwrap_or_default())?,
        order: wanted.order,
        perm: wanted.perm,
        read_queue_nums: wanted.read_queue_nums,
        topic_filter_type: TopicFilterType::from_name(wanted.topic_filter_type).unwrap_or_default(),
        topic_name: wanted.topic.to_owned(),
        topic_sys_flag: wanted.topic_sys_flag.unwrap_or(0),
        write_queue_nums: wanted.write_queue_nums,
    })
}

/// 17: make or change a topic.
pub(crate) fn create(
    settings: &BrokerSettings,
    topics: &Topics,
    store: &Store,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted = CreateTopic::decode(&request.header.fields)?;
    let config = checked_to_put(settings, topics, store, wanted_config(&wanted)?)?;
    put(topics, store, session, config);
    reply_ok(request, out);
    Ok(())
}

/// 18: the same for several, all or none.
pub(crate) fn create_all(
    settings: &BrokerSettings,
    topics: &Topics,
    store: &Store,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let wanted: TopicConfigList = body(request)?;
    let mut checked_all = Vec::with_capacity(wanted.topic_config_list.len());
    for config in wanted.topic_config_list {
        checked_all.push(checked_to_put(settings, topics, store, config)?);
    }
    let new: BTreeSet<&str> =
        checked_all.iter().map(|config| config.topic_name.as_str()).filter(|name| topics.get(name).is_none()).collect();
    topics.check_room_for(new.len())?;
    for config in checked_all {
        put(topics, store, session, config);
    }
    reply_ok(request, out);
    Ok(())
}

/// The configuration as it will be. On the way in, attributes are changes; on the way out, they are what is left.
pub(crate) fn checked(
    settings: &BrokerSettings,
    topics: &Topics,
    store: &Store,
    config: TopicConfig,
) -> Result<TopicConfig, Refusal> {
    let name = config.topic_name.as_str();
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    names::check_topic(name).map_err(|error| invalid(error.to_string()))?;
    if settings.validate_system_topic_when_update_topic && is_system_topic(settings, name) {
        return Err(invalid(format!("The topic[{name}] is conflict with system topic.")));
    }
    for (field, queues) in [("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)] {
        if !(0..=QUEUES_MAX).contains(&queues) {
            return Err(invalid(format!("{field}={queues} of topic {name} is not between 0 and {QUEUES_MAX}")));
        }
    }
    if !(0..=PERM_MAX).contains(&config.perm) {
        return Err(invalid(format!("perm={} of topic {name} is not between 0 and {PERM_MAX}", config.perm)));
    }
    if config.attributes.get("+message.type").is_some_and(|kind| kind == "LITE") && !store.has_light_queues() {
        return Err(invalid(
            "LITE message type is not supported: it needs enableLmq and enableMultiDispatch, and one of them is false"
                .to_owned(),
        ));
    }
    if config.attributes.get("+message.type").is_some_and(|kind| kind == "MIXED") && !settings.enable_mixed_message_type
    {
        return Err(invalid("MIXED message type is not supported.".to_owned()));
    }
    let before = topics.get(name).map(|topic| topic.config());
    if topics.is_light(name) && before.as_deref() != Some(&config) {
        return Err(invalid(format!(
            "topic {name} is a light queue, which has one queue that is read and written, and no configuration"
        )));
    }
    if before.is_none() {
        topics.check_room()?;
    }
    let current = before.as_ref().map(|config| &config.attributes);
    let attributes = attributes::alter(
        attributes::OF_TOPICS,
        before.is_none(),
        current.unwrap_or(&BTreeMap::new()),
        &config.attributes,
    )?;
    Ok(TopicConfig { attributes, ..config })
}

/// The same where the topic keeps its mapping, if it has one.
fn checked_to_put(
    settings: &BrokerSettings,
    topics: &Topics,
    store: &Store,
    config: TopicConfig,
) -> Result<TopicConfig, Refusal> {
    let config = checked(settings, topics, store, config)?;
    if let Some(mapping) = topics.with_static(&config.topic_name, Topic::mapping) {
        accept::check_room(&mapping, config.read_queue_nums.min(config.write_queue_nums))?;
    }
    Ok(config)
}

/// Nothing is written, and nobody told, when nothing changes.
fn put(topics: &Topics, store: &Store, session: &mut Session, config: TopicConfig) {
    if let Some(topic) = topics.get(&config.topic_name).filter(|topic| *topic.config() == config) {
        // Who asks again after a refusal wants to know that it is written down by now.
        wait_for(session, &topic, topic.unsynced_change(|| store.journal().synced().get()));
        return;
    }
    tracing::info!(topic = config.topic_name, peer = %session.connection.peer(), "topic created or changed by request");
    let Changed { topic, position } = topics.create(config);
    wait_for(session, &topic, position);
}

/// Keeps the reply back until the change of a topic is as safe as its messages will be: if power takes back what it says of the device, its
/// producers go on, and are promised less than they were told.
pub(crate) fn wait_for(session: &mut Session, topic: &Topic, position: u64) {
    session.copied_after(position);
    if topic.flush.asks_for_device() {
        session.on_device_after(position);
    }
}

/// Apache counts the topics of the cluster's and the broker's own name too.
fn is_system_topic(settings: &BrokerSettings, name: &str) -> bool {
    names::is_system_topic(name) || own_topics(settings).iter().any(|own| own == name)
}

fn own_topics(settings: &BrokerSettings) -> [String; 3] {
    let cluster = &settings.broker_cluster_name;
    [cluster.clone(), settings.broker_name.clone(), format!("{cluster}{}", names::REPLY_TOPIC_SUFFIX)]
}

/// 215: delete a topic. Its messages stay in the log until that is deleted.
pub(crate) fn delete(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let topic = DeleteTopic::decode(&request.header.fields)?.topic;
    if topic.trim().is_empty() {
        return Err(Refusal::new(ResponseCode::InvalidParameter, "The specified topic is blank."));
    }
    let settings = broker.settings.load();
    if settings.validate_system_topic_when_update_topic && is_system_topic(&settings, topic) {
        let remark = format!("The topic[{topic}] is conflict with system topic.");
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    tracing::info!(topic, peer = %session.connection.peer(), "topic deleted by request");
    if broker.topics.get(topic).is_some_and(|topic| lite::is_parent(&topic.settings())) {
        lite::forget_parent(lite::Offers::of(broker), &broker.topics, &broker.groups, topic);
    }
    let Broker { topics, pops, offsets, stats, hold, .. } = broker;
    let tables = TopicTables { topics, pops, offsets, stats, hold };
    if settings.clear_retry_topic_when_delete_topic {
        tables.forget_retries(topic);
    }
    let is_deleted = tables.forget(topic).is_some();
    // With the offsets, also those that a crash left behind when it was deleted before: what is made anew under its name is read from its begin.
    let position = rows::put(&broker.store, &broker.offsets);
    if !is_deleted {
        session.copied_after(position);
        reply_ok(request, out);
        return Ok(());
    }
    broker.store.remove_deleted();
    session.copied_after(position);
    reply_ok(request, out);
    Ok(())
}

/// The tables that know of a topic.
struct TopicTables<'a> {
    topics: &'a Topics,
    pops: &'a Pops,
    offsets: &'a Offsets,
    stats: &'a Stats,
    hold: &'a Hold,
}

impl TopicTables<'_> {
    /// Deletes a topic with all that is known of it.
    fn forget(&self, topic: &str) -> Option<u64> {
        let deleted = self.topics.delete(topic);
        self.pops.forget(|_, other| other == topic);
        self.offsets.forget_topic(topic);
        self.stats.forget_topic(topic);
        self.hold.pops.deleted(topic);
        deleted
    }

    /// Deletes the topics where messages of a topic come again for the groups that pop it.
    fn forget_retries(&self, topic: &str) {
        for group in self.offsets.groups_of(topic) {
            for origin in [Origin::RetryV1, Origin::RetryV2] {
                let retry = retry_topic(topic, &group, origin);
                if self.topics.get(&retry).is_some() {
                    self.forget(&retry);
                }
            }
        }
    }
}

/// 21: all topics; in pieces for who says which.
pub(crate) fn all(topics: &Topics, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let asked = GetAllTopicConfig::decode(&request.header.fields)?;
    let table: BTreeMap<String, TopicConfig> =
        topics.all().iter().map(|topic| (topic.name().to_owned(), TopicConfig::clone(&topic.config()))).collect();
    let total = i32::try_from(table.len()).unwrap_or(i32::MAX);
    let topic_config_table = piece(table, asked.topic_seq, asked.max_topic_num);
    let mappings = topics.mappings_of(topic_config_table.keys()).into_iter();
    let body = TopicConfigTable {
        data_version: topics.version(),
        mapping_data_version: Some(topics.mapping_version()),
        topic_queue_mapping_detail_map: Some(
            mappings.map(|(topic, mapping)| (topic, mapping.detail().clone())).collect(),
        ),
        topic_queue_mapping_info_map: Some(BTreeMap::new()),
        topic_config_table,
    };
    let fields = GetAllTopicConfigReply { total_topic_num: Some(total) };
    let body = fastjson::to_vec(&body, Dialect::FastJson);
    out.reply_owned(request.reply_to(), ResponseCode::Success, None, &fields, body);
    Ok(())
}

/// 351: one topic, with its mapping for who asks for it.
pub(crate) fn one(topics: &Topics, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let GetTopicConfig { topic, lo } = GetTopicConfig::decode(&request.header.fields)?;
    let Some(found) = topics.get(topic) else {
        return Err(Refusal::new(ResponseCode::TopicNotExist, format!("No topic in this broker. topic: {topic}")));
    };
    let mapping = found.mapping().filter(|_| lo == Some(true));
    let config = TopicConfigAndQueueMapping {
        mapping_detail: mapping.map(|mapping| mapping.detail().clone()),
        ..TopicConfig::clone(&found.config()).into()
    };
    reply_json(request, out, &config);
    Ok(())
}

/// 202: offsets and times of the queues of a topic.
pub(crate) fn stats(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let topic = GetTopicStats::decode(&request.header.fields)?.topic;
    let Some(found) = broker.topics.get(topic) else {
        return Err(Refusal::new(ResponseCode::TopicNotExist, format!("topic[{topic}] not exist")));
    };
    let broker_name = broker.settings.load().broker_name.clone();
    let topic_put_tps = broker.stats.window(Stat::TopicPutNums, topic).map_or(0.0, |windows| windows.stats_minute.tps);
    let mut offset_table = BTreeMap::new();
    for (queue_id, queue) in found.queues(&broker.store) {
        session.check_wanted()?;
        let (min, max) = queue.as_ref().map_or((0, 0), |queue| ends(queue));
        let last_update_timestamp = queue.as_ref().map_or(0, |queue| store_time(&broker.store, queue, max - 1));
        let offset = TopicOffset { last_update_timestamp, max_offset: max, min_offset: min };
        let queue = MessageQueue { broker_name: broker_name.clone(), queue_id, topic: found.name().to_owned() };
        offset_table.insert(queue, offset);
    }
    reply_json(request, out, &TopicStatsTable { offset_table: QueueMap(offset_table), topic_put_tps });
    Ok(())
}

/// 300: which groups consume a topic: those that subscribe now, and those that have come some way in it.
pub(crate) fn consumed_by(
    clients: &Clients<ClientHandle>,
    offsets: &Offsets,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let topic = QueryTopicConsumeByWho::decode(&request.header.fields)?.topic;
    let mut groups: BTreeSet<Arc<str>> = clients.groups_of(topic);
    groups.extend(offsets.groups_of(topic));
    reply_json(request, out, &GroupList { group_list: groups.iter().map(|group| group.to_string()).collect() });
    Ok(())
}

/// 305: the topics that are not the users'.
pub(crate) fn system(
    topics: &Topics,
    settings: &BrokerSettings,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let mut system: BTreeSet<String> = own_topics(settings).into_iter().collect();
    system.extend(names::SYSTEM_TOPICS.iter().map(|name| (*name).to_owned()));
    system.extend(topics.all().iter().map(|topic| topic.name().to_owned()).filter(|name| names::is_system_topic(name)));
    reply_json(request, out, &TopicList { broker_addr: None, topic_list: system.into_iter().collect() });
    Ok(())
}
