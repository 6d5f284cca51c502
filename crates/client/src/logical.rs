//! The queues of static topics, which move between brokers: which broker leads each, and what a request says about them.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::body::{MessageQueue, TopicQueueMappingInfo};
use protocol::code::ResponseCode;
use protocol::names::{is_logical_broker, logical_broker};
use protocol::request::WhichQueue;

use crate::error::ClientError;

/// The queues of a static topic, and who leads each, as far as that is known. Nothing for other topics. `queues_max`: more are not
/// believed.
pub(crate) fn queues(
    topic: &str,
    infos: BTreeMap<String, TopicQueueMappingInfo>,
    queues_max: i32,
) -> BTreeMap<MessageQueue, Option<String>> {
    let mut by_scope: BTreeMap<String, Vec<TopicQueueMappingInfo>> = BTreeMap::new();
    for mut info in infos.into_values() {
        if let Some(scope) = info.scope.take() {
            by_scope.entry(scope).or_default().push(info);
        }
    }
    let mut queues = BTreeMap::new();
    for (scope, mut infos) in by_scope {
        // The newest says how many queues there are, and wins where two brokers say that they lead one.
        infos.sort_by_key(|info| (info.epoch, info.total_queues));
        let total = infos.last().map_or(0, |info| info.total_queues.min(queues_max));
        let broker_name = logical_broker(&scope);
        let named = |queue_id| {
            let (topic, broker_name) = (topic.to_owned(), broker_name.clone());
            MessageQueue { broker_name, queue_id, topic }
        };
        queues.extend((0..total).map(|queue_id| (named(queue_id), None)));
        for info in infos {
            for queue_id in info.curr_id_map.into_keys().filter(|id| (0..total).contains(id)) {
                queues.insert(named(queue_id), Some(info.bname.clone()));
            }
        }
    }
    queues
}

/// What a request adds that is about a queue of a static topic; nothing for other queues.
pub(crate) fn which(queue: &MessageQueue) -> Option<WhichQueue<'_>> {
    is_logical_broker(&queue.broker_name).then_some(WhichQueue { lo: true, broker_name: &queue.broker_name })
}

/// The same of a request that names the broker already.
pub(crate) fn lo(queue: &MessageQueue) -> Option<[(&'static str, &'static str); 1]> {
    is_logical_broker(&queue.broker_name).then_some([("lo", "true")])
}

/// Whether a broker refused because it does not lead the queue: nothing has been done.
pub(crate) fn is_elsewhere(error: &ClientError) -> bool {
    error.code() == Some(ResponseCode::NotLeaderForQueue as i32)
}

/// Between two looks for a queue's leader: name servers hear of a move at once, but brokers hear of it one after the other.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn info(bname: &str, epoch: i64, total_queues: i32, led: &[i32]) -> (String, TopicQueueMappingInfo) {
        let info = TopicQueueMappingInfo {
            bname: bname.to_owned(),
            curr_id_map: led.iter().map(|id| (*id, 0)).collect(),
            epoch,
            scope: Some("__global__".to_owned()),
            total_queues,
            ..TopicQueueMappingInfo::default()
        };
        (bname.to_owned(), info)
    }

    fn shown(infos: impl Into<BTreeMap<String, TopicQueueMappingInfo>>) -> Vec<(String, i32, Option<String>)> {
        let queues = queues("t", infos.into(), 8);
        queues.into_iter().map(|(queue, leader)| (queue.broker_name, queue.queue_id, leader)).collect()
    }

    #[test]
    fn a_queue_is_where_the_newest_mapping_says_and_there_even_when_nobody_leads_it() {
        let moved = shown([info("a", 1, 2, &[0, 1]), info("b", 2, 3, &[1])]);
        let (global, a, b) = ("__syslo__global__".to_owned(), Some("a".to_owned()), Some("b".to_owned()));
        assert_eq!(moved, [(global.clone(), 0, a), (global.clone(), 1, b), (global, 2, None)]);
    }

    #[test]
    fn queues_that_a_mapping_cannot_have_are_not_believed() {
        assert_eq!(shown([info("a", 1, i32::MAX, &[i32::MAX - 1, -1])]).len(), 8);
        assert_eq!(shown([info("a", 1, -1, &[0])]), []);
        let (name, no_scope) = info("a", 1, 2, &[0]);
        assert_eq!(shown([(name, TopicQueueMappingInfo { scope: None, ..no_scope })]), []);
    }
}
