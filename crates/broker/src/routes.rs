//! Where topics are, as the name servers say: needed when this broker divides the queues of a topic that other brokers hold too.
//!
//! Routes are asked for when somebody needs them, kept for half a minute, and used a while longer when no name server answers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::TimeMs;
use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::body::{MessageQueue, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::request::GetRouteInfo;
use protocol::sys_flag::perm;

use crate::register::Registry;
use crate::topics::QUEUES_MAX;

/// A route is asked for again after this (`loadBalancePollNameServerInterval` of Apache).
const FRESH_MS: i64 = 30_000;
/// A route that nobody needs is dropped after this.
const KEPT_MS: i64 = 600_000;
/// Topics whose routes are kept; clients name them.
const ROUTES_MAX: usize = 100_000;
const TIMEOUT: Duration = Duration::from_secs(3);

struct Route {
    queues: Arc<Vec<MessageQueue>>,
    found_at: TimeMs,
}

/// The routes that were asked for. The mutex guards nothing else.
#[derive(Default)]
pub(crate) struct Routes(Mutex<HashMap<Box<str>, Route>>);

impl Routes {
    /// The readable queues of a topic on all brokers, sorted, if they are known well enough.
    pub(crate) fn fresh(&self, topic: &str, now: TimeMs) -> Option<Arc<Vec<MessageQueue>>> {
        let routes = self.0.lock();
        routes.get(topic).filter(|route| now.since(route.found_at) < FRESH_MS).map(|route| Arc::clone(&route.queues))
    }

    /// Asks the name servers, one after the other, until one knows. When none does, what was known before.
    pub(crate) async fn find(&self, registry: &Registry, topic: &str, now: TimeMs) -> Option<Arc<Vec<MessageQueue>>> {
        for address in registry.addresses() {
            let fields =
                GetRouteInfo { topic, accept_standard_json_only: Some(true), zone_mode: None, zone_name: None };
            let answer =
                registry.client.call(address, request::GET_ROUTEINFO_BY_TOPIC, &fields, Bytes::new(), TIMEOUT).await;
            let Ok(answer) = answer else { continue };
            if answer.code != ResponseCode::Success as i32 {
                continue;
            }
            let Ok(route) = fastjson::from_slice::<TopicRoute>(&answer.body) else { continue };
            let queues = Arc::new(readable_queues(topic, &route));
            let mut routes = self.0.lock();
            if routes.len() < ROUTES_MAX || routes.contains_key(topic) {
                routes.insert(topic.into(), Route { queues: Arc::clone(&queues), found_at: now });
            }
            return Some(queues);
        }
        self.0.lock().get(topic).map(|route| Arc::clone(&route.queues))
    }

    /// Drops what nobody has needed for long.
    pub(crate) fn expire(&self, now: TimeMs) {
        self.0.lock().retain(|_, route| now.since(route.found_at) < KEPT_MS);
    }
}

fn readable_queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    let readable = route.queue_datas.iter().filter(|data| perm::is_readable(data.perm));
    let mut queues: Vec<MessageQueue> = readable
        .flat_map(|data| {
            (0..data.read_queue_nums.min(QUEUES_MAX)).map(|queue_id| MessageQueue {
                broker_name: data.broker_name.clone(),
                queue_id,
                topic: topic.to_owned(),
            })
        })
        .collect();
    queues.sort();
    queues
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::QueueData;

    #[test]
    fn queues_of_all_brokers_that_can_be_read_are_in_the_order_of_the_clients() {
        let data = |name: &str, perm, read_queue_nums| QueueData {
            broker_name: name.to_owned(),
            perm,
            read_queue_nums,
            ..QueueData::default()
        };
        let route = TopicRoute {
            queue_datas: vec![data("b", 6, 2), data("a", 4, 1), data("c", 2, 9)],
            ..TopicRoute::default()
        };
        let queues = readable_queues("T", &route);
        let shown: Vec<_> = queues.iter().map(|queue| (queue.broker_name.as_str(), queue.queue_id)).collect();
        assert_eq!(shown, [("a", 0), ("b", 0), ("b", 1)]);
    }
}
