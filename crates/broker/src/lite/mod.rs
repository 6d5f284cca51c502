//! Lite topics: very many small topics within a topic of type LITE, each of them a light queue
//! `%LMQ%$parent$lite`.
//!
//! A message names its lite topic in `__LITE_TOPIC`. Clients of a group that is bound to the parent
//! topic say which lite topics they want (`control.rs`, `state.rs`) and are told which of these
//! have something (`offer.rs`, `duty.rs`), for their pops; operators look at it (`figures.rs`); one
//! that has been silent for the time that its parent states is removed (`duty/life.rs`).

mod control;
mod duty;
mod figures;
mod offer;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use protocol::code::ResponseCode;
use protocol::names;
use store::Store;

use crate::refusal::Refusal;
use crate::state::groups::Groups;
use crate::state::topics::Topics;
use crate::write::send_properties::SendProperties;

pub(crate) use control::{control, trigger};
pub(crate) use duty::{dispatch, forget_parent, keep};
pub(crate) use figures::{of_broker, of_client, of_group, of_lite_topic, of_parent_topic};
pub(crate) use offer::Offers;
pub(crate) use state::{Lite, LiteGroup, expiration_minutes, is_parent, waiting_name};

/// The light queue of a lite message, if it is one. A topic that takes no light queues (a retry) holds it as any other.
pub(crate) fn queue_of(store: &Store, facts: &SendProperties<'_>, topic: &str) -> Result<Option<String>, Refusal> {
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

/// The topics that hold lite topics, and how long each of these lives.
fn parents(topics: &Topics) -> BTreeMap<String, i32> {
    let topics = topics.all();
    let configs = topics.iter().map(|topic| topic.config()).filter(|config| is_parent(config));
    configs.map(|config| (config.topic_name.clone(), expiration_minutes(&config))).collect()
}

/// The groups that are bound to each of these topics.
fn bound_groups(groups: &Groups) -> BTreeMap<String, BTreeSet<String>> {
    let mut bound = BTreeMap::<String, BTreeSet<String>>::new();
    for group in groups.all() {
        if let Some(parent) = LiteGroup::of(&group.config.load()).parent() {
            bound.entry(parent.to_owned()).or_default().insert(group.name.to_string());
        }
    }
    bound
}
