//! A send to a static topic: the logical queue becomes the physical one that takes its messages, and the answer speaks of the logical one.

use net::Request;
use protocol::code::ResponseCode;
use protocol::request::SendMessage;

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::topics::Topic;
use crate::state::topics::logical::Logical;
use crate::state::topics::mapping::Mapping;
use crate::static_topic::of_topic;

/// Puts the physical queue into a send, unless it names one already.
pub(crate) fn place(
    broker: &Broker,
    topic: &Topic,
    request: &Request<'_>,
    message: &mut SendMessage<'_>,
) -> Result<Option<Logical>, Refusal> {
    let Some(mapping) = of_topic(topic, request) else { return Ok(None) };
    let queue_id = if message.queue_id < 0 { any(broker, &mapping, message.queue_id)? } else { message.queue_id };
    let leader = mapping.led(queue_id)?.last().ok_or_else(|| mapping.not_led(queue_id))?;
    message.queue_id = leader.queue_id;
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
