//! Where topics are, as the name servers say: needed when this broker divides the queues of a topic that other brokers hold too.
//!
//! Routes are asked for when somebody needs them, kept for half a minute, and used a while longer when no name server answers. Each topic
//! is asked for once at a time; whoever needs it meanwhile waits for that answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::TimeMs;
use hashbrown::HashMap;
use parking_lot::Mutex;
use protocol::body::{MessageQueue, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::names::logical_broker;
use protocol::request::GetRouteInfo;
use protocol::sys_flag::perm;

use crate::state::registry::Registry;
use crate::state::topics::QUEUES_MAX;

/// A route is asked for again after this (`loadBalancePollNameServerInterval` of Apache).
const FRESH_MS: i64 = 30_000;
/// A route that nobody needs is dropped after this.
const KEPT_MS: i64 = 600_000;
/// Topics whose routes are kept; clients name them.
const ROUTES_MAX: usize = 100_000;
/// Topics that are asked for at one time.
const LOOK_UPS_MAX: usize = 64;
/// Requests that wait for their answers.
const WAITING_MAX: usize = 10_000;
const TIMEOUT: Duration = Duration::from_secs(3);

struct Route {
    queues: Arc<Vec<MessageQueue>>,
    found_at: TimeMs,
}

/// Told what is known of a topic once its name servers have been asked.
pub(crate) type Waiter = Box<dyn FnOnce(Option<Arc<Vec<MessageQueue>>>) + Send>;

/// The name servers are asked for so much already that one more would wait for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many {what} wait for routes from name servers, the limit is {limit}")]
pub(crate) struct TooManyLookUps {
    what: &'static str,
    limit: usize,
}

#[derive(Default)]
struct RouteLookUps {
    known: HashMap<Box<str>, Route>,
    /// Who waits, by topic that is being asked for.
    asking: HashMap<Box<str>, Vec<Waiter>>,
    waiting: usize,
}

/// The routes that were asked for. The mutex guards nothing else, and no waiter is told under it.
#[derive(Default)]
pub(crate) struct Routes(Mutex<RouteLookUps>);

/// A look-up under way. However it ends, those who wait for it are told.
struct LookUp {
    routes: Arc<Routes>,
    topic: String,
    found: Option<Arc<Vec<MessageQueue>>>,
}

impl Drop for LookUp {
    fn drop(&mut self) {
        for waiter in self.routes.leave(&self.topic) {
            waiter(self.found.clone());
        }
    }
}

impl Routes {
    /// The readable queues of a topic on all brokers, sorted, if they are known well enough.
    pub(crate) fn fresh(&self, topic: &str, now: TimeMs) -> Option<Arc<Vec<MessageQueue>>> {
        let state = self.0.lock();
        let known = state.known.get(topic).filter(|route| now.since(route.found_at) < FRESH_MS);
        known.map(|route| Arc::clone(&route.queues))
    }

    /// Waits for a topic's route. Whether the caller has to [`ask`](Routes::ask) for it: nobody does so yet.
    pub(crate) fn join(&self, topic: &str, waiter: Waiter) -> Result<bool, TooManyLookUps> {
        let mut state = self.0.lock();
        let is_first = !state.asking.contains_key(topic);
        if is_first && state.asking.len() >= LOOK_UPS_MAX {
            return Err(TooManyLookUps { what: "topics", limit: LOOK_UPS_MAX });
        }
        if state.waiting >= WAITING_MAX {
            return Err(TooManyLookUps { what: "requests", limit: WAITING_MAX });
        }
        state.waiting += 1;
        state.asking.entry(topic.into()).or_default().push(waiter);
        Ok(is_first)
    }

    fn leave(&self, topic: &str) -> Vec<Waiter> {
        let mut state = self.0.lock();
        let waiters = state.asking.remove(topic).unwrap_or_default();
        state.waiting -= waiters.len();
        waiters
    }

    /// Asks the name servers, and tells those who wait.
    pub(crate) async fn ask(self: Arc<Routes>, registry: Arc<Registry>, topic: String, now: TimeMs) {
        let mut look_up = LookUp { routes: Arc::clone(&self), topic, found: None };
        look_up.found = self.find(&registry, &look_up.topic, now).await;
    }

    /// Asks the name servers, one after the other, until one knows. When none does, what was known before.
    async fn find(&self, registry: &Registry, topic: &str, now: TimeMs) -> Option<Arc<Vec<MessageQueue>>> {
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
            let known = &mut self.0.lock().known;
            if known.len() < ROUTES_MAX || known.contains_key(topic) {
                known.insert(topic.into(), Route { queues: Arc::clone(&queues), found_at: now });
            }
            return Some(queues);
        }
        self.0.lock().known.get(topic).map(|route| Arc::clone(&route.queues))
    }

    /// Drops what nobody has needed for long.
    pub(crate) fn expire(&self, now: TimeMs) {
        self.0.lock().known.retain(|_, route| now.since(route.found_at) < KEPT_MS);
    }
}

fn readable_queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    let logical = logical_queues(topic, route);
    if !logical.is_empty() {
        return logical;
    }
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

/// The queues of a static topic, in the names that clients have for them. They are all there, also one whose leader is not known.
fn logical_queues(topic: &str, route: &TopicRoute) -> Vec<MessageQueue> {
    let mut totals: BTreeMap<&str, (i64, i32)> = BTreeMap::new();
    for info in route.topic_queue_mapping_by_broker.iter().flatten().map(|(_, info)| info) {
        let Some(scope) = info.scope.as_deref() else { continue };
        let known = totals.entry(scope).or_insert((i64::MIN, 0));
        *known = (*known).max((info.epoch, info.total_queues));
    }
    let mut queues: Vec<MessageQueue> = totals
        .into_iter()
        .flat_map(|(scope, (_, total))| {
            let broker_name = logical_broker(scope);
            (0..total.min(QUEUES_MAX)).map(move |queue_id| MessageQueue {
                broker_name: broker_name.clone(),
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
    use protocol::body::{QueueData, TopicQueueMappingInfo};
    use protocol::names::GLOBAL_SCOPE;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_topic_is_asked_for_once_at_a_time_and_everybody_who_waits_is_told() {
        let (routes, told) = (Arc::new(Routes::default()), Arc::new(AtomicUsize::new(0)));
        let waiter = || -> Waiter {
            let told = Arc::clone(&told);
            Box::new(move |_| {
                told.fetch_add(1, Ordering::Relaxed);
            })
        };
        assert_eq!(routes.join("T", waiter()), Ok(true));
        assert_eq!(routes.join("T", waiter()), Ok(false));
        assert_eq!(routes.join("U", waiter()), Ok(true));
        drop(LookUp { routes: Arc::clone(&routes), topic: "T".to_owned(), found: None });
        assert_eq!(told.load(Ordering::Relaxed), 2);
        assert_eq!(routes.join("T", waiter()), Ok(true), "the next one asks again");
    }

    #[test]
    fn there_is_an_end_to_how_much_is_asked_for() {
        let routes = Routes::default();
        for topic in 0..LOOK_UPS_MAX {
            assert_eq!(routes.join(&topic.to_string(), Box::new(|_| ())), Ok(true));
        }
        assert!(routes.join("one more", Box::new(|_| ())).is_err());
        for _ in LOOK_UPS_MAX..WAITING_MAX {
            assert_eq!(routes.join("0", Box::new(|_| ())), Ok(false));
        }
        assert!(routes.join("0", Box::new(|_| ())).is_err());
        assert_eq!(routes.leave("0").len(), WAITING_MAX - LOOK_UPS_MAX + 1);
        assert!(routes.join("one more", Box::new(|_| ())).is_ok());
    }

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

    #[test]
    fn a_static_topic_has_the_logical_queues_of_its_newest_mapping() {
        let info = |bname: &str, epoch, total_queues| TopicQueueMappingInfo {
            bname: bname.to_owned(),
            epoch,
            total_queues,
            scope: Some(GLOBAL_SCOPE.to_owned()),
            ..TopicQueueMappingInfo::default()
        };
        let infos = [info("a", 1, 9), info("b", 2, 2)].map(|info| (info.bname.clone(), info));
        let data = QueueData { broker_name: "a".to_owned(), perm: 6, read_queue_nums: 4, ..QueueData::default() };
        let route = TopicRoute {
            queue_datas: vec![data],
            topic_queue_mapping_by_broker: Some(infos.into()),
            ..TopicRoute::default()
        };
        let queues = readable_queues("T", &route);
        let shown: Vec<_> = queues.iter().map(|queue| (queue.broker_name.as_str(), queue.queue_id)).collect();
        assert_eq!(shown, [("__syslo__global__", 0), ("__syslo__global__", 1)]);
    }
}
