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

use crate::state::topics::mapping::Mapping;
use crate::state::topics::{Topic, Topics};

/// Whether a request means a physical queue whatever its topic is.
pub(crate) fn is_physical(request: &Request<'_>) -> bool {
    request.header.fields.get("lo").is_some_and(|lo| !lo.eq_ignore_ascii_case("true"))
}

/// A queue that an order names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedQueue<'a> {
    pub(crate) topic: &'a str,
    pub(crate) queue_id: i32,
    /// It is a physical queue even if the topic is static: another leader asks.
    pub(crate) is_physical: bool,
}

impl<'a> NamedQueue<'a> {
    pub(crate) fn of(request: &Request<'_>, topic: &'a str, queue_id: i32) -> NamedQueue<'a> {
        NamedQueue { topic, queue_id, is_physical: is_physical(request) }
    }

    /// The mapping that the queue is found by; `None` if it is a physical one.
    pub(crate) fn mapping(&self, topics: &Topics) -> Option<Arc<Mapping>> {
        if self.is_physical { None } else { topics.with_static(self.topic, Topic::mapping) }
    }
}

#[cfg(test)]
mod tests;
