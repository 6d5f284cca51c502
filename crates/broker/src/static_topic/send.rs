//! A send to a static topic: the logical queue becomes the physical one that takes its messages, and the answer speaks of the logical one.

use protocol::code::ResponseCode;

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::topics::Topic;
use crate::state::topics::logical::Logical;
use crate::state::topics::mapping::Mapping;

/// Puts the physical queue in the place of the one that a send names, unless it is one already.
pub(crate) fn place(
    broker: &Broker,
    topic: &Topic,
    named: &mut i32,
    is_physical: bool,
) -> Result<Option<Logical>, Refusal> {
    if !topic.is_static() || is_physical {
        return Ok(None);
    }
    let Some(mapping) = topic.mapping() else { return Ok(None) };
    let queue_id = if *named < 0 { any(broker, &mapping, *named)? } else { *named };
    let leader = mapping.led(queue_id)?.last().ok_or_else(|| mapping.not_led(queue_id))?;
    *named = leader.queue_id;
    Ok(Some(Logical::new(mapping, queue_id)))
}

/// Any queue that this broker leads.
fn any(broker: &Broker, mapping: &Mapping, asked: i32) -> Result<i32, Refusal> {
    let count = u32::try_from(mapping.led_queues().count()).unwrap_or(u32::MAX);
    let place = if count == 0 { 0 } else { broker.random.below(count) as usize };
    let mut led = mapping.led_queues();
    led.nth(place).map(|(id, _)| id).ok_or_else(|| mapping.not_led(asked))
}

/// A priority is the number of a queue, which in a static topic says nothing to whoever chose it.
pub(crate) fn check_priority(topic: &Topic, priority: Option<i32>) -> Result<(), Refusal> {
    match priority.filter(|_| topic.is_static()) {
        Some(priority) => Err(Refusal::new(
            ResponseCode::MessageIllegal,
            format!("a message to the static topic {} cannot have a priority, it has {priority}", topic.name()),
        )),
        None => Ok(()),
    }
}
