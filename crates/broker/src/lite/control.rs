//! Which clients want which lite topics: 200071, sent by Apache's proxy, which speaks for them, and
//! 200079.

use std::sync::Arc;

use config::BrokerSettings;
use net::{Outgoing, Request};
use protocol::body::{
    LiteOffset, LiteOffsetKind, LiteSubscription, LiteSubscriptionAction, LiteSubscriptions, SubscriptionGroupConfig,
};
use protocol::code::ResponseCode;
use protocol::names;
use protocol::request::{NotifyUnsubscribeLite, TriggerLiteDispatch};
use store::Store;

use super::offer::Offers;
use super::state::LiteGroup;
use super::state::subscriptions::{Excluded, LiteClient, Quota, QuotaError, wildcard};
use crate::answer::{body, reply_ok};
use crate::broker::Broker;
use crate::client_handle::{ClientHandle, ClientQuestion};
use crate::lite::Lite;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::state::clients::check_client_id;
use crate::state::groups::Groups;
use crate::state::offsets::Offsets;
use crate::wall_time::steady_ms;

/// Values of [`LiteOffsetKind::Policy`]: where the group has come, the beginning, the end.
const POLICY_MIN: i64 = 1;
const POLICY_MAX: i64 = 2;

/// 200071.
pub(crate) fn control(
    broker: &Broker,
    session: &mut Session,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let said: LiteSubscriptions = body(request).map_err(|refusal| illegal(refusal.remark))?;
    subscribe(broker, session.client(), &said.subscription_set)?;
    reply_ok(request, out);
    Ok(())
}

/// Makes changes. All are looked at before the first is made; a limit that is reached stops them
/// where it is. `connection` speaks for the clients that they name.
pub(crate) fn subscribe(
    broker: &Broker,
    connection: &ClientHandle,
    changes: &[LiteSubscription],
) -> Result<(), Refusal> {
    if changes.is_empty() {
        return Err(illegal("LiteSubscriptionCtlRequestBody is empty."));
    }
    let mut checked = Vec::with_capacity(changes.len());
    for change in changes {
        checked.push((check(&broker.groups, &broker.store, &broker.offsets, change)?, change));
    }
    let (offers, settings) = (Offers::of(broker), broker.settings.load());
    for ((config, queues), change) in checked {
        make(offers, &settings, connection, &config, &queues, change)?;
    }
    Ok(())
}

fn illegal(remark: impl Into<String>) -> Refusal {
    Refusal::new(ResponseCode::IllegalOperation, remark)
}

/// The configuration of a change's group, and the light queues that it is about.
fn check(
    groups: &Groups,
    store: &Store,
    offsets: &Offsets,
    change: &LiteSubscription,
) -> Result<(Arc<SubscriptionGroupConfig>, Vec<String>), Refusal> {
    for (field, text) in [("clientId", &change.client_id), ("group", &change.group), ("topic", &change.topic)] {
        if text.trim().is_empty() {
            return Err(illegal(format!("{field} is blank")));
        }
    }
    // Kept as long as the client repeats it.
    check_client_id(&change.client_id).map_err(|refusal| illegal(refusal.remark))?;
    let is_added = match change.action {
        LiteSubscriptionAction::PartialAdd | LiteSubscriptionAction::CompleteAdd => true,
        LiteSubscriptionAction::PartialRemove | LiteSubscriptionAction::CompleteRemove => false,
    };
    let config = if is_added {
        // Made, where groups are made on demand.
        let found = groups.find(&change.group);
        found
            .map_err(|refusal| illegal(format!("Consumer group is not allowed to consume. {}", refusal.remark)))?
            .config
            .load_full()
    } else {
        // Who goes may belong to a group that is gone.
        groups.get(&change.group).map_or_else(Arc::default, |group| group.config.load_full())
    };
    if is_added && !config.consume_enable {
        return Err(illegal("Consumer group is not allowed to consume."));
    }
    let is_wildcard = LiteGroup::of(&config).is_wildcard();
    if is_wildcard && change.action == LiteSubscriptionAction::PartialAdd {
        return Err(illegal("subscribe lite operation is not supported for this group"));
    }
    if is_wildcard && is_added {
        names::check_topic(&change.topic).map_err(|error| illegal(error.to_string()))?;
        return Ok((config, vec![wildcard(&change.topic, &change.group)]));
    }
    let mut queues = Vec::with_capacity(change.lite_topic_set.len());
    for lite_topic in &change.lite_topic_set {
        let queue = names::lite_queue(&change.topic, lite_topic);
        // Acknowledgements that name a blank one mean none.
        let is_blank = lite_topic.trim().is_empty();
        if is_blank || names::lite_parts(&queue).is_none() || protocol::light::check_name(&queue).is_err() {
            let shown: String = lite_topic.chars().take(80).collect();
            return Err(illegal(format!("\"{shown}\" of topic {} cannot be the name of a lite topic", change.topic)));
        }
        // An offset that is given stays when the subscription goes.
        if is_added && change.offset_option.is_some() && store.existing_queue(&queue, 0).is_none() {
            offsets.check_room_for(format_args!("lite topic {lite_topic}"))?;
        }
        queues.push(queue);
    }
    Ok((config, queues))
}

fn make(
    offers: Offers<'_>,
    settings: &BrokerSettings,
    connection: &ClientHandle,
    config: &SubscriptionGroupConfig,
    queues: &[String],
    change: &LiteSubscription,
) -> Result<(), Refusal> {
    let lite = LiteGroup::of(config);
    let client = LiteClient {
        id: &change.client_id,
        group: &change.group,
        now_ms: steady_ms(offers.clock),
        events_max: lite.events_max().unwrap_or(settings.max_client_event_count),
    };
    let quota = Quota { all: settings.max_lite_subscription_count, client: lite.client_quota() };
    let full = |error: QuotaError| Refusal::new(ResponseCode::LiteSubscriptionQuotaExceeded, error.to_string());
    let connection = connection.clone();
    let mut table = offers.lite.lock();
    if let Some(group) = table.group_of(&change.client_id).filter(|group| ***group != *change.group) {
        // Its pops in the name of the other group would find nothing, for ever.
        return Err(illegal(format!(
            "client {} subscribes to lite topics for group {group} already, not for {}",
            change.client_id, change.group
        )));
    }
    match change.action {
        LiteSubscriptionAction::PartialAdd => {
            let excluded = table.add(client, queues, lite.is_exclusive(), quota, connection).map_err(full)?;
            drop(table);
            for Excluded { client, queue, connection } in excluded {
                let lite_topic = names::lite_parts(&queue).map_or("", |(_, lite_topic)| lite_topic);
                let fields = NotifyUnsubscribeLite { lite_topic, consumer_group: &change.group, client_id: &client };
                // False when it has gone in this moment, or reads nothing.
                connection.tell(&ClientQuestion::LiteUnsubscribed(fields));
                tracing::info!(group = change.group, %queue, from = client, to = change.client_id, "lite topic taken over");
                if lite.resets_when_excluded() {
                    offers.offsets.reset(&change.group, &queue, 0, 0);
                }
            }
            if let Some(option) = &change.offset_option {
                queues.iter().for_each(|queue| reset(offers.store, offers.offsets, &change.group, queue, option));
            }
            queues.iter().for_each(|queue| offers.offer(&change.group, queue));
        }
        LiteSubscriptionAction::PartialRemove => {
            let gone = table.remove(client, queues);
            drop(table);
            if lite.resets_when_unsubscribed() {
                gone.iter().for_each(|queue| offers.offsets.reset(&change.group, queue, 0, 0));
            }
            gone.iter().for_each(|queue| offers.offer(&change.group, queue));
        }
        LiteSubscriptionAction::CompleteAdd => {
            let gone = table.replace(client, queues, quota, connection).map_err(full)?;
            drop(table);
            gone.iter().for_each(|queue| offers.offer(&change.group, queue));
            // Also what it had before: whoever repeats what he wants may have missed something.
            offers.lite.look_for_all(&change.group, Some(&change.client_id));
        }
        LiteSubscriptionAction::CompleteRemove => {
            let left = table.forget(&change.client_id);
            drop(table);
            if let Some(left) = left {
                offers.hand_on(&left);
            }
        }
    }
    Ok(())
}

/// Lets a group begin elsewhere in a lite topic. As in Apache, a time says nothing here: who wants one asks for its offset first (29).
fn reset(store: &Store, offsets: &Offsets, group: &str, queue: &str, option: &LiteOffset) {
    let current = offsets.committed(group, queue, 0);
    let end = || store.existing_queue(queue, 0).map_or(0, |queue| queue.max_offset() as i64);
    let target = match option.kind {
        LiteOffsetKind::Policy if option.value == POLICY_MIN => Some(0),
        LiteOffsetKind::Policy if option.value == POLICY_MAX => Some(end()),
        LiteOffsetKind::Policy | LiteOffsetKind::Timestamp => None,
        LiteOffsetKind::Offset => Some(option.value),
        LiteOffsetKind::TailN => current.map(|current| current.saturating_sub(option.value).max(0)),
    };
    if let Some(target) = target.filter(|target| Some(*target) != current) {
        offsets.reset(group, queue, 0, target);
    }
}

/// 200079: an operator wants clients to be told of everything once more.
pub(crate) fn trigger(
    groups: &Groups,
    lite: &Lite<ClientHandle>,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = TriggerLiteDispatch::decode(&request.header.fields)?;
    let missing = || {
        let remark = format!("Group [{}] not exist.", asked.group);
        Refusal::new(ResponseCode::SubscriptionGroupNotExist, remark)
    };
    let group = groups.get(asked.group).ok_or_else(missing)?;
    if LiteGroup::of(&group.config.load()).parent().is_none() {
        let remark = format!("Group [{}] is not a LITE group.", asked.group);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    lite.look_for_all(asked.group, asked.client_id.filter(|client| !client.is_empty()));
    reply_ok(request, out);
    Ok(())
}
