//! Offsets that clients have committed here, on their way to the master.
//!
//! Clients commit at a slave while their route names no master. When the master is there again, it gets those that are higher than its own, before
//! the slave takes offsets over from it. The table of the master (43) shows which these are. The master is asked for each of them once more (14)
//! right before it gets it (15): a client that is back there may have committed more since. None goes to a group or topic that the master does not
//! have, and none lies behind the end of its queue, since the log here is a part of the master's. A slave that follows the master's journal asks for no
//! table: each of its few offsets is asked for by itself.
//!
//! Apache's slave keeps such offsets to itself, and takes the master's lower ones over them.

use protocol::body::ConsumerOffsets;
use protocol::code::ResponseCode;

use super::check::check_master;
use super::master::{Master, MasterError};
use crate::broker::Broker;
use crate::client::commit_at_slave::{end, is_kept_by_queue};
use crate::state::offsets::split_key;

/// Offsets that go to the master before its other tables are asked for.
const ROUND_MAX: usize = 256;

/// How a round has ended.
#[derive(Debug, Default)]
pub(super) struct Handed {
    /// There are more than one round hands over.
    pub(super) has_more: bool,
    /// The master's table does not say any more what it has.
    pub(super) is_old: bool,
    /// Some were given up, though the master has lower ones.
    pub(super) has_dropped: bool,
    /// What the master has of those that it was asked about.
    pub(super) master_has: ConsumerOffsets,
    /// Why the master does not take them, if it does not.
    pub(super) refusal: Option<MasterError>,
}

/// Hands over what the master is to have and `told`, its own table, does not show. An error if the master does not answer.
pub(super) async fn hand_over(
    broker: &Broker,
    master: &Master<'_>,
    told: &ConsumerOffsets,
) -> Result<Handed, MasterError> {
    let (mut asked, mut handed) = (0, Handed::default());
    for (key, queues) in broker.owed.list() {
        let settle = |queue_id: i32, offset: i64| broker.owed.settle(&key, queue_id, offset);
        let Some((topic, group)) = split_key(&key).filter(|(topic, _)| is_kept_by_queue(broker, topic)) else {
            queues.into_iter().for_each(|(queue_id, offset)| settle(queue_id, offset));
            handed.has_dropped = true;
            continue;
        };
        // The master makes the group when its consumers come back, and gets the offsets then.
        if broker.groups.get(group).is_none() {
            continue;
        }
        let known = told.offset_table.get(&key);
        for (queue_id, offset) in queues {
            let is_less = offset <= known.and_then(|known| known.get(&queue_id)).copied().unwrap_or(-1);
            // Another topic of this name has begun.
            let is_behind_end = offset > end(broker, topic, queue_id);
            if is_less || is_behind_end {
                settle(queue_id, offset);
                handed.has_dropped |= !is_less;
                continue;
            }
            if asked == ROUND_MAX {
                return Ok(Handed { has_more: true, ..handed });
            }
            asked += 1;
            match give(broker, master, (group, topic, queue_id), offset).await {
                Ok(has) => {
                    handed.is_old = true;
                    handed.master_has.offset_table.entry(key.clone()).or_default().insert(queue_id, has);
                    settle(queue_id, offset);
                }
                // The master has lost the group or the topic since it told its tables. The next round knows.
                Err(MasterError::Refused { code, .. }) if is_missing(code) => {}
                // The topic has fewer queues by now: there is nothing to go on with.
                Err(MasterError::Refused { code, .. }) if code == ResponseCode::MessageIllegal as i32 => {
                    settle(queue_id, offset);
                    handed.has_dropped = true;
                }
                Err(refusal @ MasterError::Refused { .. }) => {
                    return Ok(Handed { refusal: Some(refusal), ..handed });
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(handed)
}

/// Gives the master one offset, unless it has a higher one by now. Says what it has then.
async fn give(
    broker: &Broker,
    master: &Master<'_>,
    (group, topic, queue_id): (&str, &str, i32),
    offset: i64,
) -> Result<i64, MasterError> {
    let has = master.committed(group, topic, queue_id).await?;
    check_master(broker, master.address)?;
    if let Some(has) = has.filter(|has| *has >= offset) {
        return Ok(has);
    }
    master.commit(group, topic, queue_id, offset).await?;
    Ok(offset)
}

fn is_missing(code: i32) -> bool {
    code == ResponseCode::SubscriptionGroupNotExist as i32 || code == ResponseCode::TopicNotExist as i32
}
