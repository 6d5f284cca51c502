//! Requests for queue locks: which client of a group may consume a queue in order.

use net::{Outgoing, Request};
use protocol::body::{LockBatch, LockBatchReply, MessageQueue};
use protocol::code::ResponseCode;
use protocol::names;

use crate::answer::{body, reply_json, reply_ok};
use crate::refusal::Refusal;
use crate::state::clients;
use crate::state::order_locks::OrderLocks;

/// Longest name of a broker in a lock, in bytes.
const BROKER_NAME_MAX: usize = 255;

/// 41: locks queues for a client.
pub(crate) fn lock(order_locks: &OrderLocks, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let lock_ok_mq_set = lock_queues(order_locks, body(request)?)?;
    reply_json(request, out, &LockBatchReply { lock_ok_mq_set });
    Ok(())
}

/// Gives the queues that the client has locked now.
pub(crate) fn lock_queues(locks: &OrderLocks, order: LockBatch) -> Result<Vec<MessageQueue>, Refusal> {
    // Without replicas this broker's word is all there is, whatever the client says of other
    // brokers.
    let LockBatch { client_id, consumer_group, mq_set, only_this_broker: _ } = order;
    check_names(&consumer_group, &client_id, &mq_set)?;
    Ok(locks.lock(&consumer_group, &client_id, mq_set))
}

/// Locks are counted, so each must have a size: names as topics, groups and brokers may have them.
fn check_names(group: &str, client_id: &str, queues: &[MessageQueue]) -> Result<(), Refusal> {
    let invalid = |remark: String| Refusal::new(ResponseCode::InvalidParameter, remark);
    names::check_group(group).map_err(|error| invalid(error.to_string()))?;
    clients::check_client_id(client_id)?;
    for queue in queues {
        names::check_topic(&queue.topic).map_err(|error| invalid(error.to_string()))?;
        if queue.broker_name.len() > BROKER_NAME_MAX {
            let bytes = queue.broker_name.len();
            return Err(invalid(format!("a broker name has {bytes} bytes, the limit is {BROKER_NAME_MAX}")));
        }
    }
    Ok(())
}

/// 42: gives them up.
pub(crate) fn unlock(order_locks: &OrderLocks, request: &Request<'_>, out: &mut Outgoing) -> Result<(), Refusal> {
    let LockBatch { client_id, consumer_group, mq_set, only_this_broker: _ } = body(request)?;
    order_locks.unlock(&consumer_group, &client_id, &mq_set);
    reply_ok(request, out);
    Ok(())
}
