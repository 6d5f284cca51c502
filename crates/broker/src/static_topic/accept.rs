//! Which mappings a broker takes: whole ones, that do not contradict themselves or what was before.
//!
//! The sentences are Apache's, followed by what was found. Apache's broker leaves some of them to assertions, which are off in production:
//! a mapping that moves what is written already would lose messages, so here it is refused.

use std::collections::HashMap;

use protocol::body::{LogicQueueMappingItem, TopicQueueMappingDetail};
use protocol::code::ResponseCode;
use protocol::names::GLOBAL_SCOPE;

use crate::refusal::Refusal;
use crate::state::topics::QUEUES_MAX;
use crate::state::topics::mapping::{Mapping, has_end, is_decided, known_end};

/// Places that one logical queue may have had and still have messages in.
const ITEMS_MAX: usize = 1_000;
/// Longest name of a broker in a mapping, in bytes.
const BROKER_NAME_MAX: usize = 255;

/// Checks a mapping by itself. `queues`: the physical queues that the topic has on this broker, to read and to write.
pub(crate) fn check(
    detail: &mut TopicQueueMappingDetail,
    broker: &str,
    topic: &str,
    queues: i32,
) -> Result<(), Refusal> {
    if detail.bname != broker {
        return Err(refuse(format!("The broker name is not equal {broker} != {}", detail.bname)));
    }
    if detail.topic != topic {
        return Err(refuse(format!("The topic name is inconsistent in broker  {broker}: {} != {topic}", detail.topic)));
    }
    let scope = detail.scope.get_or_insert_with(|| GLOBAL_SCOPE.to_owned());
    // Clients cut off its first two characters to make the name of a broker of it.
    if scope.len() > BROKER_NAME_MAX || scope.is_empty() {
        return Err(refuse(format!("The scope has {} bytes, it may have 1 to {BROKER_NAME_MAX}", scope.len())));
    }
    if !(0..=QUEUES_MAX).contains(&detail.total_queues) {
        let total = detail.total_queues;
        return Err(refuse(format!("The total queue number {total} is not between 0 and {QUEUES_MAX}")));
    }
    check_places(detail, queues)
}

/// Checks the places of all logical queues, of a mapping with the name of this broker.
pub(crate) fn check_places(detail: &TopicQueueMappingDetail, queues: i32) -> Result<(), Refusal> {
    let (broker, topic) = (&detail.bname, &detail.topic);
    let mut used = HashMap::new();
    for (id, items) in &detail.hosted_queues {
        if !(0..detail.total_queues).contains(id) {
            let total = detail.total_queues;
            return Err(refuse(format!("The queue number {id} is not one of {total} (totalQueues)")));
        }
        check_items(*id, items)?;
        for item in items {
            if let Some(other) = used.insert((item.bname.as_str(), item.queue_id), *id) {
                return Err(refuse(format!(
                    "Topic {topic} global queue id {id} and {other} shared the same physical queue {}-{}",
                    item.bname, item.queue_id
                )));
            }
            if item.bname == *broker && item.queue_id >= queues {
                return Err(refuse(format!(
                    "The physical queue id is overflow the write queues: queue {id} is {} of {queues}",
                    item.queue_id
                )));
            }
        }
    }
    Ok(())
}

/// Refuses to make a topic smaller than its mapping needs it. `queues`: the physical queues that it would have, to read and to write.
pub(crate) fn check_room(mapping: &Mapping, queues: i32) -> Result<(), Refusal> {
    let detail = mapping.detail();
    for (id, items) in &detail.hosted_queues {
        if let Some(item) = items.iter().find(|item| item.bname == detail.bname && item.queue_id >= queues) {
            let remark = format!(
                "static topic {} cannot have {queues} queues to read or to write: its logical queue {id} uses queue {}",
                detail.topic, item.queue_id
            );
            return Err(Refusal::new(ResponseCode::InvalidParameter, remark));
        }
    }
    Ok(())
}

/// Checks the places of one logical queue, the latest first.
fn check_items(id: i32, items: &[LogicQueueMappingItem]) -> Result<(), Refusal> {
    let wrong = |sentence: &str, item: &LogicQueueMappingItem| {
        refuse(format!("{sentence} (queue {id}, gen {}, {}-{})", item.generation, item.bname, item.queue_id))
    };
    if items.is_empty() || items.len() > ITEMS_MAX {
        return Err(refuse(format!("queue {id} has {} items, it may have 1 to {ITEMS_MAX}", items.len())));
    }
    let mut later: Option<&LogicQueueMappingItem> = None;
    for item in items.iter().rev() {
        if item.start_offset < 0 || item.generation < 0 || item.queue_id < 0 {
            return Err(wrong("The field is illegal, should not be negative", item));
        }
        if item.queue_id >= QUEUES_MAX || item.bname.is_empty() || item.bname.len() > BROKER_NAME_MAX {
            return Err(refuse(format!("queue {id} has an item on a queue or broker that cannot be")));
        }
        if item.end_offset != -1 && item.end_offset < item.start_offset {
            return Err(wrong("The endOffset is smaller than the start offset", item));
        }
        if later.is_none() && has_end(item) {
            return Err(wrong("The latest item has an end offset", item));
        }
        if let Some(later) = later {
            if !is_decided(item) {
                return Err(wrong("The non-latest item has negative logic offset", item));
            }
            if item.generation >= later.generation {
                return Err(wrong("The gen does not increase monotonically", item));
            }
            if is_decided(later) && item.logic_offset >= later.logic_offset {
                return Err(wrong("The base logic offset does not increase monotonically", item));
            }
            if is_decided(later) && known_end(item) >= later.logic_offset {
                return Err(wrong("The max logic offset does not increase monotonically", item));
            }
        }
        later = Some(item);
    }
    Ok(())
}

/// Refuses a change of a mapping that somebody else has changed since it was looked at. `expected`: the epoch that was seen, -1 for no
/// mapping. The same change may come twice: its answer may have been lost.
pub(crate) fn check_expected(
    old: Option<&TopicQueueMappingDetail>,
    new: &TopicQueueMappingDetail,
    expected: Option<i64>,
) -> Result<(), Refusal> {
    let epoch = old.map_or(NO_EPOCH, |old| old.epoch);
    let mut queues = new.hosted_queues.iter();
    let is_there = old.is_some_and(|old| {
        (old.epoch, old.total_queues) == (new.epoch, new.total_queues)
            && queues.all(|(id, items)| old.hosted_queues.get(id) == Some(items))
    });
    match expected.filter(|expected| *expected != epoch && !is_there) {
        None => Ok(()),
        Some(expected) => Err(refuse(format!(
            "The mapping has changed meanwhile: expectedEpoch is {expected}, and topic {} has epoch {epoch}",
            new.topic
        ))),
    }
}

/// Of a topic without a mapping.
const NO_EPOCH: i64 = -1;

/// What becomes of a checked mapping where there is one already. `is_forced`: the operator says that the old one is wrong.
pub(crate) fn succeed(
    old: Option<&TopicQueueMappingDetail>,
    mut new: TopicQueueMappingDetail,
    is_forced: bool,
) -> Result<TopicQueueMappingDetail, Refusal> {
    let Some(old) = old else { return Ok(new) };
    if !is_forced {
        if new.epoch < old.epoch {
            return Err(refuse(format!("Can't accept data with small epoch {} < {}", new.epoch, old.epoch)));
        }
        if new.scope != old.scope {
            let (new, old) = (new.scope.unwrap_or_default(), old.scope.as_deref().unwrap_or_default());
            return Err(refuse(format!("Can't accept data with unmatched scope {new} != {old}")));
        }
        let is_same_epoch = new.epoch == old.epoch;
        for (id, old_items) in &old.hosted_queues {
            match new.hosted_queues.get(id) {
                None if is_same_epoch => {
                    return Err(refuse(format!("Cannot accept equal epoch with null data (queue {id})")));
                }
                None => {}
                Some(new_items) => check_kept(*id, old_items, new_items, is_same_epoch)?,
            }
        }
    }
    for (id, items) in &old.hosted_queues {
        new.hosted_queues.entry(*id).or_insert_with(|| items.clone());
    }
    // A queue that is kept from before may be beyond what the new mapping counts.
    let last = new.hosted_queues.last_key_value().map_or(-1, |(id, _)| *id);
    if last >= new.total_queues {
        return Err(refuse(format!("Cannot decrease the queue num for static topic {} <= {last}", new.total_queues)));
    }
    Ok(new)
}

/// Places that are in both say the same: messages may be there already.
fn check_kept(
    id: i32,
    old: &[LogicQueueMappingItem],
    new: &[LogicQueueMappingItem],
    is_same_epoch: bool,
) -> Result<(), Refusal> {
    for was in old {
        // The oldest ones go when they are empty.
        let Some(is) = new.iter().find(|is| is.generation == was.generation) else { continue };
        let is_same_place = (&is.bname, is.queue_id, is.start_offset) == (&was.bname, was.queue_id, was.start_offset);
        if !is_same_place || (is_decided(was) && is.logic_offset != was.logic_offset) {
            return Err(refuse(format!(
                "The item of gen {} of queue {id} is different: {}-{} from {} at {}, it was {}-{} from {} at {}",
                is.generation,
                is.bname,
                is.queue_id,
                is.start_offset,
                is.logic_offset,
                was.bname,
                was.queue_id,
                was.start_offset,
                was.logic_offset
            )));
        }
    }
    let (Some(was), Some(is)) = (old.last(), new.last()) else { return Ok(()) };
    if is.generation < was.generation {
        return Err(refuse(format!(
            "The gen of the leader goes back from {} to {} (queue {id})",
            was.generation, is.generation
        )));
    }
    if is_same_epoch && is.generation != was.generation {
        return Err(refuse(format!("The new leader is different but epoch equal (queue {id})")));
    }
    Ok(())
}

fn refuse(remark: String) -> Refusal {
    Refusal::new(ResponseCode::SystemError, remark)
}
