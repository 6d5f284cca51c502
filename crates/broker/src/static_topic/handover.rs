//! Where groups go on whose place in a logical queue goes: at the beginning of the next one.
//!
//! A group that was away while its place ran empty has its only offset there. Without it the group would begin wherever its clients begin
//! when they know nothing, which is the end of the queue by default.

use std::collections::BTreeSet;

use protocol::body::{ConsumerOffsets, LogicQueueMappingItem, TopicQueueMappingDetail};
use protocol::code::request;
use protocol::fastjson;

use super::offsets::{Commit, ask};
use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::offsets::split_key;

/// Gives each group whose youngest offset is in the oldest place one in the second.
pub(super) async fn hand_over(broker: &Broker, seen: &TopicQueueMappingDetail, queue_id: i32) -> Result<(), Refusal> {
    let Some([oldest, younger @ ..]) = seen.hosted_queues.get(&queue_id).map(Vec::as_slice) else { return Ok(()) };
    let Some(second) = younger.first() else { return Ok(()) };
    for group in groups_in(broker, seen, oldest).await? {
        // A commit that comes meanwhile waits, or is found when its turn is over.
        let number = broker.commits.join(&group, &seen.topic, queue_id)?;
        let _turn = number.turn().await;
        if has_one(broker, seen, &group, younger).await? {
            continue;
        }
        tracing::info!(topic = seen.topic, queue_id, group, "group goes on in the next place of a static topic");
        if second.bname == seen.bname {
            number.finish(|| broker.offsets.commit(&group, &seen.topic, second.queue_id, second.start_offset));
        } else if !number.is_overtaken() {
            Commit::new(&group, &seen.topic, second, second.start_offset).tell(&broker.forward).await?;
        }
        if number.is_overtaken() && !has_one(broker, seen, &group, younger).await? {
            // A commit that came meanwhile put the group into the oldest place again.
            return Err(Refusal::failed(format!("group {group} has gone back to it just now")));
        }
    }
    Ok(())
}

/// The groups with an offset in a place.
async fn groups_in(
    broker: &Broker,
    seen: &TopicQueueMappingDetail,
    item: &LogicQueueMappingItem,
) -> Result<BTreeSet<String>, Refusal> {
    if item.bname == seen.bname {
        let groups = broker.offsets.groups_of(&seen.topic).into_iter();
        let here = groups.filter(|group| broker.offsets.committed(group, &seen.topic, item.queue_id).is_some());
        return Ok(here.map(|group| (*group).to_owned()).collect());
    }
    let all = broker.forward.ask_for(&item.bname, request::GET_ALL_CONSUMER_OFFSET, &(), |answer| {
        fastjson::from_slice::<ConsumerOffsets>(&answer.body).map_err(|error| error.to_string())
    });
    Ok(groups_of(&all.await?, &seen.topic, item.queue_id))
}

/// Those with an offset in a queue, by the table of a broker.
fn groups_of(offsets: &ConsumerOffsets, topic: &str, queue_id: i32) -> BTreeSet<String> {
    let there = offsets.offset_table.iter().filter(|(_, queues)| queues.get(&queue_id).is_some_and(|at| *at >= 0));
    let groups = there.filter_map(|(key, _)| split_key(key).filter(|(of, _)| *of == topic));
    groups.map(|(_, group)| group.to_owned()).collect()
}

/// Whether a group has an offset in one of these places.
async fn has_one(
    broker: &Broker,
    seen: &TopicQueueMappingDetail,
    group: &str,
    places: &[LogicQueueMappingItem],
) -> Result<bool, Refusal> {
    for item in places.iter().rev() {
        let found = if item.bname == seen.bname {
            broker.offsets.committed(group, &seen.topic, item.queue_id)
        } else {
            ask(&broker.forward, group, &seen.topic, item).await?
        };
        if found.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_with_an_offset_in_that_queue_of_that_topic() {
        let table = |key: &str, queue, offset| (key.to_owned(), [(queue, offset)].into());
        let offset_table =
            [table("T@here", 1, 0), table("T@nowhere", 1, -1), table("T@there", 2, 5), table("U@here too", 1, 5)];
        let offsets = ConsumerOffsets { data_version: None, offset_table: offset_table.into() };
        assert_eq!(groups_of(&offsets, "T", 1), BTreeSet::from(["here".to_owned()]));
    }
}
