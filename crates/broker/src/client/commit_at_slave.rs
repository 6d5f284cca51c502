//! Commits of clients at a slave, which its master is still to have (`slave/owed.rs` hands them over).

use crate::broker::Broker;
use crate::state::offsets::OffsetClient;

/// Notes that a group has come this far, as a client says it to a slave.
pub(crate) fn commit(broker: &Broker, client: &OffsetClient<'_>, group: &str, topic: &str, queue_id: i32, offset: i64) {
    // The client may have seen more at the master. If this becomes a master, other messages get those places.
    let offset = offset.min(end(broker, topic, queue_id));
    let committed = || broker.offsets.committed(group, topic, queue_id);
    let before = committed();
    broker.offsets.commit_by(client, group, topic, queue_id, offset);
    // Clients repeat their commits. A master that is away may come back with less than it had.
    let is_news = before != Some(offset) || !broker.following.is_connected();
    if is_news && committed() == Some(offset) && is_kept_by_queue(broker, topic) {
        broker.owed.note(group, topic, queue_id, offset);
    }
}

/// Whether the topic is there, and not static: offsets of a static topic are those of logical queues, which may lie on other brokers.
pub(crate) fn is_kept_by_queue(broker: &Broker, topic: &str) -> bool {
    broker.topics.get(topic).is_some_and(|topic| !topic.is_static())
}

/// Where a queue ends here. One that is not there is empty.
pub(crate) fn end(broker: &Broker, topic: &str, queue_id: i32) -> i64 {
    let queue = u32::try_from(queue_id).ok().and_then(|id| broker.store.existing_queue(topic, id));
    queue.map_or(0, |queue| i64::try_from(queue.max_offset()).unwrap_or(i64::MAX))
}
