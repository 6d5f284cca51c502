//! A send to a static topic: the logical queue becomes the physical one that takes its messages, and the answer speaks of the logical one.

use std::sync::Arc;

use net::Request;
use protocol::code::ResponseCode;
use protocol::request::SendMessage;

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::static_topic::of_topic;
use crate::topics::Topic;
use crate::topics::mapping::{Mapping, logical_or_unknown};

/// The logical queue that a gathered send is for.
///
/// It holds the mapping, so that a change of it can wait until everything that began under it is stored: what landed in a queue
/// after the queue has moved away would not be found by consumers that have moved on.
#[derive(Clone, Debug)]
pub(crate) struct Logical {
    mapping: Arc<Mapping>,
    queue_id: i32,
    /// The record waits elsewhere: its offset there is no offset of the logical queue.
    is_parked: bool,
}

impl Logical {
    /// For a message that waits elsewhere: for its time, or for the end of its transaction, which names it by its offset there.
    pub(crate) fn parked(self) -> Logical {
        Logical { is_parked: true, ..self }
    }

    /// What the answer names.
    pub(crate) fn queue_id(&self) -> i32 {
        self.queue_id
    }

    /// The logical offset of what landed at a physical one; -1 while the queue moves and its new offsets are not decided. What
    /// waits elsewhere keeps the offset that it has there.
    pub(crate) fn offset(&self, physical: i64) -> i64 {
        if self.is_parked {
            return physical;
        }
        self.mapping
            .led(self.queue_id)
            .ok()
            .and_then(<[_]>::last)
            .map_or(-1, |leader| logical_or_unknown(leader, physical))
    }
}

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
    Ok(Some(Logical { mapping, queue_id, is_parked: false }))
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
