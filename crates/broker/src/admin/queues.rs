//! What lies in consume queues (321), and how far groups may be taken back (308).

use std::collections::BTreeMap;
use std::sync::Arc;

use net::{Outgoing, Request};
use protocol::body::{ConsumeQueueUnit, CorrectionOffsets, QueryConsumeQueueReply};
use protocol::code::ResponseCode;
use protocol::request::{FieldError, QueryConsumeQueue, QueryCorrectionOffset};
use protocol::tags;
use store::{ConsumeQueue, QueueError, Store, Unit};

use crate::answer::reply_json;
use crate::client_handle::ClientHandle;
use crate::refusal::Refusal;
use crate::state::clients::{ClientSubscription, Clients};
use crate::state::conditions::Conditions;
use crate::state::message_filter::SQL92;
use crate::state::offsets::Offsets;
use crate::state::topics::Topics;
use crate::state::topics::queues::ends;

/// Units in one answer: some 4 MB of JSON, a quarter of what a frame holds.
const UNITS_MAX: i32 = 32_768;
/// Bytes of a topic's or a group's name, its prefix included; RocketMQ's limits are shorter.
const NAME_MAX: usize = 512;
/// A name that is short enough to be one, and to be quoted in an answer.
pub(crate) fn name<'a>(field: &str, text: &'a str) -> Result<&'a str, Refusal> {
    if text.len() > NAME_MAX {
        let remark = format!("field {field} has {} bytes, more than {NAME_MAX}", text.len());
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    Ok(text)
}

/// 321: units of a consume queue, and how a group filters them.
///
/// An index outside the queue is a success without a body, as in Apache, whose tools look at the remark then.
pub(crate) fn units(
    store: &Store,
    topics: &Topics,
    clients: &Clients<ClientHandle>,
    conditions: &Conditions,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = QueryConsumeQueue::decode(&request.header.fields)?;
    let topic = name("topic", asked.topic.ok_or(FieldError::Missing { name: "topic" })?)?;
    let group = asked.consumer_group.map(|group| name("consumerGroup", group)).transpose()?;
    if asked.count > UNITS_MAX {
        let remark = format!("field count: {} is more than {UNITS_MAX}, the limit of one answer", asked.count);
        return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
    }
    let queue = u32::try_from(asked.queue_id).ok().and_then(|id| store.existing_queue(topic, id));
    let (queue, (min, max)) = match queue {
        Some(queue) => (Some(Arc::clone(&queue)), ends(&queue)),
        // Queues that nothing was written to have no files; in Apache they come into being by being asked for.
        None if topics.get(topic).is_some_and(|topic| topic.has_queue(asked.queue_id)) => (None, (0, 0)),
        None => {
            return Err(Refusal::new(ResponseCode::SystemError, format!("{}@{topic} is not exist!", asked.queue_id)));
        }
    };
    let reply_to = request.reply_to();
    let Some(queue) = queue.filter(|_| (min..max).contains(&asked.index)) else {
        let remark = format!("Index {} of {}@{topic} is not exist!", asked.index, asked.queue_id);
        out.reply(reply_to, ResponseCode::Success, Some(&remark), &(), &[]);
        return Ok(());
    };
    let (subscription, filter_data) = match group {
        None => (None, None),
        Some(group) => match clients.subscription(group, topic) {
            None => (None, Some(format!("{group}@{topic} is not online!"))),
            Some(found) => (Some(found.data.clone()), Some(filter_data(conditions, group, topic, &found))),
        },
    };
    let mut reply = QueryConsumeQueueReply {
        filter_data,
        max_queue_index: max,
        min_queue_index: min,
        queue_data: Vec::new(),
        subscription_data: subscription,
    };
    let (from, count) = (asked.index.unsigned_abs(), usize::try_from(asked.count).unwrap_or(0));
    reply.queue_data = read(&queue, from, count).map_err(Refusal::failed)?.iter().map(shown).collect();
    reply_json(request, out, &reply);
    Ok(())
}

fn read(queue: &Arc<ConsumeQueue>, from: u64, count: usize) -> Result<Vec<Unit>, QueueError> {
    let mut units = Vec::new();
    queue.read_units(from, count, true, &mut units)?;
    Ok(units)
}

/// As Apache without extension files: `eval` speaks of bitmaps only, so it stays false.
fn shown(unit: &Unit) -> ConsumeQueueUnit {
    ConsumeQueueUnit {
        physic_offset: i64::try_from(unit.at.0).unwrap_or(i64::MAX),
        physic_size: i32::try_from(unit.size).unwrap_or(i32::MAX),
        tags_code: unit.tags,
        msg: tags::is_extension_address(unit.tags).then(|| format!("Cq extend not exist!addr:{}", unit.tags)),
        ..ConsumeQueueUnit::default()
    }
}

/// The row of `consumerFilter.json` of a group that filters by a condition; of others, also of those that did so once, there is nothing
/// to show (`null`).
fn filter_data(conditions: &Conditions, group: &str, topic: &str, said: &ClientSubscription) -> String {
    let row = conditions.of(group, topic).filter(|_| said.expression_type == SQL92);
    serde_json::to_string(&row).unwrap_or_default()
}

/// 308: for each queue the smallest offset that a group has committed in a topic; without the groups that are left out.
///
/// A queue in which the compared group is behind that gets the largest number. Apache also deletes the offsets of the groups that are left
/// out, for good, which no question should; here they stay.
pub(crate) fn corrections(
    offsets: &Offsets,
    store: &Store,
    request: &Request<'_>,
    out: &mut Outgoing,
) -> Result<(), Refusal> {
    let asked = QueryCorrectionOffset::decode(&request.header.fields)?;
    let is_left_out = |group: &str| asked.filter_groups.is_some_and(|list| list.split(',').any(|one| one == group));
    let mut smallest: BTreeMap<i32, i64> = BTreeMap::new();
    for group in offsets.groups_of(asked.topic) {
        if is_left_out(&group) {
            continue;
        }
        for (queue_id, offset) in offsets.of(&group, asked.topic) {
            let queue = u32::try_from(queue_id).ok().and_then(|id| store.existing_queue(asked.topic, id));
            let begin = queue.map_or(0, |queue| ends(&queue).0);
            // Who stands before the queue's begin goes on from there, and holds nobody back.
            if offset >= begin {
                smallest.entry(queue_id).and_modify(|least| *least = offset.min(*least)).or_insert(offset);
            }
        }
    }
    for (queue_id, compared) in offsets.of(asked.compare_group, asked.topic) {
        if let Some(least) = smallest.get_mut(&queue_id)
            && *least > compared
        {
            *least = i64::MAX;
        }
    }
    reply_json(request, out, &CorrectionOffsets { correction_offsets: smallest });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_that_points_into_an_extension_file_says_so() {
        let unit = |tags| shown(&Unit { at: protocol::LogOffset(1), size: 2, tags }).msg;
        assert_eq!(unit(i64::from(i32::MIN)), None);
        assert_eq!(unit(i64::from(i32::MIN) - 1).as_deref(), Some("Cq extend not exist!addr:-2147483649"));
    }
}
