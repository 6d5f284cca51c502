//! Clients come, live and leave: 34, 35, 38, 46, closed connections, and silence.
//!
//! The rules are those of `clients.rs`; here they meet the connections. Members of a group are told of a change by request 40, which
//! nobody answers: who misses one asks again within 20 s anyway.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use config::BrokerSettings;
use filter::Expression;
use net::{Outgoing, Request};
use parking_lot::Mutex;
use protocol::body::{CheckClientConfig, ConsumeType, ConsumerData, ConsumerIdList, Heartbeat, SubscriptionData};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{GetConsumerList, HeartbeatReply, NotifyConsumerIdsChanged, UnregisterClient};
use protocol::sys_flag;
use protocol::tags::Subscription;
use store::Store;

use crate::answer::{body, reply_json, reply_ok};
use crate::broker::Broker;
use crate::client::multi_send;
use crate::client_handle::{ClientHandle, ClientQuestion};
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::{self, Beat, CONSUMES_MAX, Client, Clients, ConsumerGroup, Notice, is_tag};
use crate::state::conditions::Conditions;
use crate::state::message_filter::check_property_filter;
use crate::state::message_filter::{At, SQL92, TAGS_BYTES_MAX};
use crate::state::topics::Topics;

/// Groups that one client names at most.
const GROUPS_MAX: usize = 10_000;
/// Topics that it subscribes to in one of them, at most.
pub(crate) const SUBSCRIPTIONS_MAX: usize = GROUPS_MAX;
/// Bytes of conditions that are compiled on a network worker.
const CONDITIONS_ON_WORKER_MAX: usize = 16 << 10;

fn check_groups(said: &Heartbeat) -> Result<(), Refusal> {
    let topics = said.consumer_data_set.iter().map(|data| data.subscription_data_set.len());
    let most = topics.chain([said.consumer_data_set.len(), said.producer_data_set.len()]).max().unwrap_or(0);
    if most <= GROUPS_MAX {
        return Ok(());
    }
    let remark = format!(
        "a client names at most {GROUPS_MAX} groups, and as many topics for one of them; this one names {most}"
    );
    Err(Refusal::new(ResponseCode::InvalidParameter, remark))
}

/// The bytes of one subscription's texts. The longest conditions that are known have some dozen KiB.
const SUBSCRIPTION_BYTES_MAX: usize = 64 << 10;

/// No text of a subscription is as long as it likes.
pub(crate) fn check_subscription(group: &str, data: &SubscriptionData) -> Result<(), Refusal> {
    let tags = data.tags_set.iter().map(String::len).sum();
    let codes = data.code_set.len() * size_of::<i32>();
    let topic_max = names::DERIVED_TOPIC_MAX;
    let texts = [
        ("topic", data.topic.len(), topic_max),
        ("expressionType", data.expression_type.len(), 64),
        ("subString", data.sub_string.len(), SUBSCRIPTION_BYTES_MAX),
        ("tagsSet", tags, SUBSCRIPTION_BYTES_MAX),
        ("codeSet", codes, SUBSCRIPTION_BYTES_MAX),
    ];
    for (field, bytes, max) in texts {
        if bytes > max {
            let remark = format!("{field} of a subscription of group {group} has {bytes} bytes, the limit is {max}");
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
    }
    Ok(())
}

/// 34: a client lives, and says what it produces and consumes.
pub(crate) fn beat(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let offer = multi_send::offer(session, &broker.settings.load(), request)?;
    // A long one is carried out beside (`beside`), where reading it holds up nobody.
    let said: Heartbeat = body(request)?;
    let connection = &session.connection;
    let client = Client {
        connection: session.client().clone(),
        connection_id: connection.id(),
        peer: connection.peer(),
        client_id: said.client_id.as_str().into(),
        language: request.header.language.name(),
        version: request.header.version,
    };
    let is_sub_change = hear(broker, &client, &said, |position| session.durable_after(position))?;
    let fields = HeartbeatReply { is_support_heart_beat_v2: true, is_sub_change };
    out.reply(request.reply_to(), ResponseCode::Success, None, &(fields, offer), &[]);
    Ok(())
}

/// Takes a heartbeat. The outcome says whether the client is to send its subscriptions in full.
/// `made` gets the place in the journal of each topic that is made: an answer waits until that is
/// written, a refusal too.
pub(crate) fn hear(
    broker: &Broker,
    client: &Client<ClientHandle>,
    said: &Heartbeat,
    mut made: impl FnMut(u64),
) -> Result<bool, Refusal> {
    clients::check_client_id(&said.client_id)?;
    check_groups(said)?;
    for data in &said.consumer_data_set {
        data.subscription_data_set.iter().try_for_each(|one| check_subscription(&data.group_name, one))?;
    }
    let settings = broker.settings.load();
    let now = broker.clock.elapsed();
    // To a client of v1 Apache says that something has changed, whatever has; it does not look.
    let mut is_sub_change = said.heartbeat_fingerprint == 0;
    for data in &said.consumer_data_set {
        if settings.reject_pull_consumer_enable && data.consume_type == ConsumeType::ConsumeActively {
            continue;
        }
        // A group that may not be made is skipped, not refused: its other groups, and its pulls, will say what is wrong.
        let Ok(group) = broker.groups.find(&data.group_name) else { continue };
        let (may_notify, retry_queues) = {
            let config = group.config.load();
            (config.notify_consumer_ids_changed_enable, config.retry_queue_nums)
        };
        made(make_retry_topic(&broker.topics, data, retry_queues));
        let beat = Beat { data, fingerprint: said.heartbeat_fingerprint, without_sub: said.without_sub, may_notify };
        let beaten = broker.clients.consume(client, &beat, now);
        if let Some(group) = broker.clients.consumers(&data.group_name) {
            hear_conditions(&broker.conditions, &broker.store, group, broker.clock.now().0);
        }
        if beaten.is_full {
            let remark = format!(
                "group {} is not taken: a connection consumes in {CONSUMES_MAX} groups at most, and all subscriptions take {} of {} bytes",
                data.group_name,
                broker.clients.subscription_bytes(),
                clients::SUBSCRIPTION_BYTES_MAX
            );
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
        is_sub_change |= beaten.must_resend;
        if beaten.is_news {
            broker.order_locks.come_back(&data.group_name, &said.client_id);
            tracing::info!(group = data.group_name, client = said.client_id, peer = %client.peer, "consumers of a group changed");
        }
        if let Some(notice) = beaten.notice {
            tell(&broker.settings.load(), &broker.untold, notice);
        }
    }
    if settings.enable_register_producer {
        // As with consumers: a name that nobody may have is skipped, and its sends will say what is wrong.
        for data in said.producer_data_set.iter().filter(|data| names::check_group(&data.group_name).is_ok()) {
            broker.clients.produce(client, &data.group_name, now);
        }
    }
    Ok(is_sub_change)
}

/// Notes by which conditions a group filters. Long ones are compiled for that on another thread.
fn hear_conditions(conditions: &Arc<Conditions>, store: &Store, group: Arc<ConsumerGroup<ClientHandle>>, now: i64) {
    let of_conditions = group.each_subscription().filter(|(_, said)| said.expression_type == SQL92);
    if of_conditions.map(|(_, said)| said.data.sub_string.len()).sum::<usize>() <= CONDITIONS_ON_WORKER_MAX {
        return conditions.hear(&group, now);
    }
    let conditions = Arc::clone(conditions);
    // One that finds no room is not noted; the next heartbeat says the same.
    let _ = At::Filter.submit(store, Box::new(move || conditions.hear(&group, now)));
}

/// `%RETRY%group` exists from the first heartbeat on, because consumers subscribe to it.
fn make_retry_topic(topics: &Topics, data: &ConsumerData, queues: i32) -> u64 {
    if queues <= 0 {
        return 0;
    }
    let flag = if data.unit_mode { sys_flag::topic::UNIT_SUB } else { 0 };
    topics.create_for_group(&names::retry_topic(&data.group_name), queues, flag).position
}

/// 35: a client leaves a group.
pub(crate) fn unregister(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let said = UnregisterClient::decode(&request.header.fields)?;
    leave(broker, session.connection.id(), said.producer_group, said.consumer_group);
    reply_ok(request, out);
    Ok(())
}

/// Takes the client of a connection out of these groups.
pub(crate) fn leave(broker: &Broker, connection: u64, producers: Option<&str>, consumers: Option<&str>) {
    let may_notify = consumers
        .and_then(|name| broker.groups.get(name))
        .is_none_or(|group| group.config.load().notify_consumer_ids_changed_enable);
    let client_id = consumers.and_then(|name| broker.clients.consumers(name)).and_then(|group| {
        let member = group.at(connection)?;
        Some(Arc::clone(&member.client.client_id))
    });
    let notice = broker.clients.leave(connection, producers, consumers, may_notify);
    // Before the others are told: they try to lock what it had.
    if let (Some(group), Some(client_id)) = (consumers, client_id)
        && !is_member(&broker.clients, group, &client_id)
    {
        broker.order_locks.free(group, &client_id);
    }
    if let Some(notice) = notice {
        tell(&broker.settings.load(), &broker.untold, notice);
    }
}

/// 38: who consumes in this group?
pub(crate) fn consumer_ids(
    clients: &Clients<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let name = GetConsumerList::decode(&request.header.fields)?.consumer_group;
    let consumer_id_list = clients.consumers(name).map(|group| group.client_ids()).unwrap_or_default();
    if consumer_id_list.is_empty() {
        return Err(Refusal::new(ResponseCode::SystemError, format!("no consumer for this group, {name}")));
    }
    reply_json(request, out, &ConsumerIdList { consumer_id_list });
    Ok(())
}

/// 46: would this subscription do? Clients ask before they start with anything but tags.
pub(crate) fn check(settings: &BrokerSettings, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let asked: Option<CheckClientConfig> = body(request).ok();
    if let Some(subscription) = asked.and_then(|asked| asked.subscription_data) {
        if !is_tag(&subscription.expression_type) {
            check_property_filter(settings, &subscription.expression_type)?;
            Expression::compile(&subscription.sub_string)
                .map_err(|error| Refusal::new(ResponseCode::SubscriptionParseFailed, error.remark()))?;
        } else if subscription.sub_string.len() > TAGS_BYTES_MAX {
            let remark = format!(
                "the tags of the subscription to {} have {} bytes, the limit is {TAGS_BYTES_MAX}",
                subscription.topic,
                subscription.sub_string.len()
            );
            return Err(Refusal::new(ResponseCode::SubscriptionParseFailed, remark));
        } else if Subscription::is_refused(&subscription.sub_string) {
            let remark = format!("subscription \"{}\" to {} has no tags", subscription.sub_string, subscription.topic);
            return Err(Refusal::new(ResponseCode::SubscriptionParseFailed, remark));
        }
    }
    reply_ok(request, out);
    Ok(())
}

/// A connection is gone: its client leaves all its groups.
pub(crate) fn closed(broker: &Broker, connection_id: u64) {
    let left = broker.clients.memberships(connection_id);
    let notices = broker.clients.closed(connection_id);
    for (group, client_id) in left {
        if !is_member(&broker.clients, &group, &client_id) {
            broker.order_locks.leave(&group, &client_id);
            // It may have come back in this moment, and said so before it was noted that it is gone.
            if is_member(&broker.clients, &group, &client_id) {
                broker.order_locks.come_back(&group, &client_id);
            }
        }
    }
    for notice in notices {
        tell(&broker.settings.load(), &broker.untold, notice);
    }
}

/// Whether a client of that name is in the group, on whatever connection: it may have come back before the old one was found to be gone.
fn is_member(clients: &Clients<ClientHandle>, group: &str, client_id: &str) -> bool {
    clients.consumers(group).is_some_and(|group| group.member(client_id).is_some())
}

/// Closes the connections of clients that have been silent for longer than `channelExpiredTimeout`. The end of a connection does the
/// rest; a client of this process has none.
pub(crate) fn close_silent(broker: &Broker) {
    let longest = Duration::from_millis(broker.settings.load().channel_expired_timeout);
    for client in broker.clients.silent(broker.clock.elapsed(), longest) {
        tracing::info!(peer = %client.peer(), "connection closed: no heartbeat in time");
        client.close();
        if let ClientHandle::Local(_) = client {
            closed(broker, client.id());
        }
    }
}

/// Tells the members of a group that it has changed: at once, or with the next housekeeping if so configured.
fn tell(settings: &BrokerSettings, untold: &Mutex<BTreeSet<Arc<str>>>, notice: Notice<ClientHandle>) {
    if !settings.notify_consumer_ids_changed_enable {
        return;
    }
    if !settings.real_time_notify_consumer_change {
        untold.lock().insert(notice.group);
        return;
    }
    tell_now(&notice);
}

fn tell_now(notice: &Notice<ClientHandle>) {
    let question = ClientQuestion::GroupChanged(NotifyConsumerIdsChanged { consumer_group: &notice.group });
    for member in &notice.members {
        // False when it has gone in this moment, or reads nothing: the first needs no notice, the second will not see it.
        member.client.connection.tell(&question);
    }
}

/// Tells the groups that were not told at once (`realTimeNotifyConsumerChange=false`).
pub(crate) fn tell_late(clients: &Clients<ClientHandle>, groups: BTreeSet<Arc<str>>) {
    for name in groups {
        if let Some(group) = clients.consumers(&name) {
            tell_now(&Notice { group: Arc::clone(&name), members: group.members().to_vec() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_subscription_is_as_long_as_it_likes() {
        let said = |data: SubscriptionData| check_subscription("G", &data).map_err(|refusal| refusal.remark);
        let short = SubscriptionData { topic: "T".to_owned(), sub_string: "*".to_owned(), ..Default::default() };
        assert_eq!(said(short.clone()), Ok(()));
        let long = "x".repeat(SUBSCRIPTION_BYTES_MAX + 1);
        assert_eq!(
            said(SubscriptionData { sub_string: long.clone(), ..short.clone() }),
            Err("subString of a subscription of group G has 65537 bytes, the limit is 65536".to_owned())
        );
        for odd in [
            SubscriptionData { topic: "t".repeat(256), ..short.clone() },
            SubscriptionData { expression_type: "e".repeat(65), ..short.clone() },
            SubscriptionData { tags_set: [long].into_iter().collect(), ..short.clone() },
            SubscriptionData { code_set: vec![0; 16_385], ..short },
        ] {
            assert!(said(odd).is_err());
        }
    }
}
