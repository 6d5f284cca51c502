//! Lite topics: very many small topics within a topic of type LITE, each of them a light queue `%LMQ%$parent$lite`.
//!
//! A message names its lite topic in `__LITE_TOPIC`. Clients of a group that is bound to the parent topic say which lite topics they
//! want (`control.rs`, `subscriptions.rs`) and are told which of these have something (`dispatch.rs`), for their pops; operators look at
//! it (`figures.rs`); one that has been silent for the time that its parent states is removed (`life.rs`).

mod control;
mod dispatch;
mod events;
mod figures;
mod life;
mod subscriptions;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

use protocol::body::{SubscriptionGroupConfig, TopicConfig};
use protocol::code::ResponseCode;
use protocol::names;
use store::Store;

use crate::broker::Broker;
use crate::facts::Facts;
use crate::refusal::Refusal;

pub(crate) use control::control;
pub(crate) use dispatch::{Lite, dispatch, offer, room_of, trigger};
pub(crate) use figures::{of_broker, of_client, of_group, of_lite_topic, of_parent_topic};
pub(crate) use life::{forget_parent, keep};

/// The light queue of a lite message, if it is one. A topic that takes no light queues (a retry) holds it as any other.
pub(crate) fn queue_of(store: &Store, facts: &Facts<'_>, topic: &str) -> Result<Option<String>, Refusal> {
    let Some(lite_topic) = facts.lite_topic.filter(|_| names::takes_light_queues(topic)) else { return Ok(None) };
    let illegal = |remark: String| Err(Refusal::new(ResponseCode::MessageIllegal, remark));
    if !store.has_light_queues() {
        return illegal(format!(
            "__LITE_TOPIC is {lite_topic}: lite topics need enableLmq and enableMultiDispatch, and one of them is false"
        ));
    }
    let queue = names::lite_queue(topic, lite_topic);
    if names::lite_parts(&queue).is_none() {
        return illegal(format!(
            "__LITE_TOPIC is \"{lite_topic}\": a lite topic's name has no $, nor has that of its topic"
        ));
    }
    if facts.light.is_some_and(|list| list != queue) {
        return illegal(format!(
            "__LITE_TOPIC is {lite_topic}, so the message stands in {queue}; INNER_MULTI_DISPATCH names other light queues"
        ));
    }
    Ok(Some(queue))
}

/// Whether a topic holds lite topics.
pub(crate) fn is_parent(config: &TopicConfig) -> bool {
    config.attributes.get("message.type").is_some_and(|kind| kind == "LITE")
}

/// Minutes that a lite topic lives without a message; -1 for ever.
pub(crate) fn expiration_minutes(config: &TopicConfig) -> i32 {
    let minutes = config.attributes.get("lite.topic.expiration").and_then(|text| text.parse().ok());
    minutes.filter(|_| is_parent(config)).unwrap_or(-1)
}

/// What the attributes of a group say of lite topics.
pub(crate) struct LiteGroup<'a>(&'a SubscriptionGroupConfig);

impl<'a> LiteGroup<'a> {
    pub(crate) fn of(config: &'a SubscriptionGroupConfig) -> LiteGroup<'a> {
        LiteGroup(config)
    }

    fn attribute(&self, name: &str) -> Option<&'a str> {
        self.0.attributes.get(name).map(String::as_str)
    }

    /// The topic whose lite topics its clients subscribe to.
    pub(crate) fn parent(&self) -> Option<&'a str> {
        self.attribute("lite.bind.topic").filter(|topic| !topic.is_empty())
    }

    /// A lite topic has one subscriber in the group, the last one.
    fn is_exclusive(&self) -> bool {
        self.attribute("lite.sub.model") == Some("Exclusive")
    }

    /// Who takes a lite topic from another client begins at its beginning.
    fn resets_when_excluded(&self) -> bool {
        self.is_on("lite.sub.reset.offset.exclusive")
    }

    /// Whoever subscribes again begins at the beginning.
    fn resets_when_unsubscribed(&self) -> bool {
        self.is_on("lite.sub.reset.offset.unsubscribe")
    }

    /// Its clients get all lite topics and name none.
    fn is_wildcard(&self) -> bool {
        self.attribute("lite.sub.wildcard").is_some()
    }

    /// Lite topics that one client may subscribe to.
    fn client_quota(&self) -> usize {
        // Apache's default; below zero there is no limit.
        let quota = self.attribute("lite.sub.client.quota").and_then(|text| text.parse::<i64>().ok()).unwrap_or(2000);
        usize::try_from(quota).unwrap_or(usize::MAX)
    }

    /// Lite topics that one client is told of at once; none where the broker's setting counts.
    fn events_max(&self) -> Option<usize> {
        self.attribute("lite.sub.client.max.event.cnt").and_then(|text| text.parse().ok()).filter(|max| *max > 0)
    }

    fn is_on(&self, name: &str) -> bool {
        self.attribute(name).is_some_and(|text| text.eq_ignore_ascii_case("true"))
    }
}

/// The topics that hold lite topics, and how long each of these lives.
fn parents(broker: &Broker) -> BTreeMap<String, i32> {
    let topics = broker.topics.all();
    let configs = topics.iter().map(|topic| topic.config()).filter(|config| is_parent(config));
    configs.map(|config| (config.topic_name.clone(), expiration_minutes(&config))).collect()
}

/// The groups that are bound to each of these topics.
fn bound_groups(broker: &Broker) -> BTreeMap<String, BTreeSet<String>> {
    let mut bound = BTreeMap::<String, BTreeSet<String>>::new();
    for group in broker.groups.all() {
        if let Some(parent) = LiteGroup::of(&group.config.load()).parent() {
            bound.entry(parent.to_owned()).or_default().insert(group.name.to_string());
        }
    }
    bound
}
