//! Static topics: a fixed number of logical queues over several brokers, which can move between brokers.
//!
//! A logical queue is a row of physical ones, oldest first, perhaps on different brokers; whoever holds the last one is its leader and answers
//! all requests about it, asking the holders of older ones where it has to. Clients see logical queues and offsets only; everything in the
//! store, committed offsets included, is physical. A request with `lo=false` means a physical queue: it comes from another leader.

pub(crate) mod accept;
pub(crate) mod clean;
pub(crate) mod forward;
mod handover;
pub(crate) mod late;
pub(crate) mod offsets;
pub(crate) mod order;
pub(crate) mod progress;
pub(crate) mod pull;
pub(crate) mod replies;
pub(crate) mod send;

use std::sync::Arc;

use net::Request;

use crate::broker::Broker;
use crate::state::topics::Topic;
use crate::state::topics::mapping::Mapping;

/// The mapping that a request about a topic goes through; none if the topic is like others, or the request is about a physical queue.
pub(crate) fn of_topic(topic: &Topic, request: &Request<'_>) -> Option<Arc<Mapping>> {
    if !topic.is_static() {
        return None;
    }
    let is_physical = request.header.fields.get("lo").is_some_and(|lo| !lo.eq_ignore_ascii_case("true"));
    if is_physical { None } else { topic.mapping() }
}

/// The same by name.
pub(crate) fn of(broker: &Broker, topic: &str, request: &Request<'_>) -> Option<Arc<Mapping>> {
    broker.topics.with_static(topic, |topic| of_topic(topic, request))
}

#[cfg(test)]
mod tests;
