//! From which broker of its set a group reads next (`suggestWhichBrokerId`).
//!
//! With `slaveReadEnable` a master sends a reader of old messages to a slave (`whichBrokerWhenConsumeSlowly` of the group), as Apache's does: one
//! that is behind by more than `accessMessageInMemoryMaxRatio` percent of the memory; and one whose messages come from a device for which many
//! reads wait. Apache's master names a slave whether there is one or not. Ours names one while a slave is connected that has what the reader
//! has read.
//!
//! A slave keeps such a reader, as Apache's does, and every reader while its master is away. It sends others back to the master, and all of them
//! where the master is there and the slave does not follow it: the logs may differ, and what is new does not come to the slave.

use protocol::LogOffset;
use protocol::body::MASTER_ID;
use store::Read;

use crate::broker::Broker;
use crate::parked::CheckedPull;

/// The broker that is named in the answer to a pull.
pub(super) fn broker_id(broker: &Broker, order: &CheckedPull, found: &Read) -> i64 {
    if broker.standing.is_slave() {
        return if keeps_readers(broker, found) { broker.standing.broker_id } else { MASTER_ID };
    }
    if !broker.settings.load().slave_read_enable {
        return MASTER_ID;
    }
    let group = order.group.config.load();
    let is_better_off_elsewhere = is_far(broker, found) || found.at.is_some_and(|at| broker.store.is_slow_at(at));
    let wanted = if is_better_off_elsewhere { group.which_broker_when_consume_slowly } else { group.broker_id };
    if wanted == MASTER_ID || has_slave(broker, wanted, found) { wanted } else { MASTER_ID }
}

/// Whether this slave serves a reader that has found this, and does not send it to the master.
pub(super) fn keeps_readers(broker: &Broker, found: &Read) -> bool {
    let following = &broker.following;
    if following.is_connected() { is_far(broker, found) } else { !following.is_master_there() }
}

/// Whether the last message that was looked at lies farther from the end of the log than messages that count as in memory.
fn is_far(broker: &Broker, found: &Read) -> bool {
    found.at.is_some_and(|at| broker.store.end().0.saturating_sub(at.0) > memory_share(broker))
}

/// What counts as in memory, in bytes from the end of the log.
fn memory_share(broker: &Broker) -> u64 {
    let options = broker.store.options();
    // Without a governor the kernel keeps the pages; half of the memory limit is what messages in memory have with one.
    let limit = options.governor.as_ref().map_or(options.hot_bytes.saturating_mul(2), |governor| governor.limit);
    limit / 100 * broker.store_settings.load().access_message_in_memory_max_ratio
}

/// Whether a slave is there that may be the broker of this id, and has what the reader looked at last.
fn has_slave(broker: &Broker, id: i64, found: &Read) -> bool {
    let segment_bytes = broker.store.options().segment_bytes.max(1);
    broker.slaves.any(|slave| {
        // One that began with a file of ours has nothing before it. Any other has come with a log of its own, or gets all.
        let has_from = if slave.began.0.is_multiple_of(segment_bytes) { slave.began.0 } else { 0 };
        let has = |at: LogOffset| (has_from..slave.acknowledged.0).contains(&at.0);
        // On the plain stream a slave does not say who it is.
        let is_named =
            slave.peer.broker_id.map_or_else(|| broker.members.may_be(id, slave.peer.address.ip()), |of| of == id);
        is_named && found.at.is_none_or(has)
    })
}
