//! Messages that waited (for a delay, a time, the end of a transaction) while their queue moved: where they go now.
//!
//! Consumers that have moved on do not see what comes into the place that they have left. So a message goes into the place that takes the
//! queue's messages now. Where another broker leads the queue, it waits once more as a delayed message, and the one task that delivers those
//! sends it there: nothing else that delivers waits for another broker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::code::ResponseCode;
use protocol::names;
use protocol::properties::name;
use protocol::record::{RecordDraft, RecordView};
use protocol::request::SendMessage;
use protocol::sys_flag;
use store::TagsCode;

use crate::broker::Broker;
use crate::refusal::Refusal;
use crate::state::topics::mapping::Mapping;
use crate::static_topic::forward::{Forward, unexpected};
use crate::waiting::hold::Lane;
use crate::write::send_properties;

/// Who sends what others have sent; Apache's name for it.
const PRODUCER: &str = "CLIENT_INNER_PRODUCER";
/// The delay level of a message that is to be sent to another broker.
pub(crate) const SOON: usize = 1;
/// The same once that broker did not take it: half a minute in the usual table.
pub(crate) const LATER: usize = 4;
/// So long a broker that did not answer is not asked again.
pub(crate) const AWAY: Duration = Duration::from_secs(5);

/// Where a message goes that was sent to a physical queue.
pub(crate) enum Destination {
    /// To this queue of this broker. A mapping is to be held until the message is stored, as with sends.
    Here(u32, Option<Arc<Mapping>>),
    Elsewhere(Led),
}

/// A logical queue that another broker leads.
pub(crate) struct Led {
    pub(crate) leader: String,
    queue_id: i32,
}

/// Where a message goes that was sent to this queue of a topic.
pub(crate) fn destination(broker: &Broker, topic: &str, queue_id: u32) -> Destination {
    let Some(mapping) = broker.topics.with_static(topic, |topic| topic.mapping()) else {
        return Destination::Here(queue_id, None);
    };
    let Some((logical, leader)) = mapping.leader_behind(queue_id) else {
        return Destination::Here(queue_id, Some(mapping));
    };
    if !mapping.is_here(leader) && broker.delay.levels() > 0 {
        return Destination::Elsewhere(Led { leader: leader.bname.clone(), queue_id: logical });
    }
    let queue_id = if mapping.is_here(leader) { u32::try_from(leader.queue_id).unwrap_or(queue_id) } else { queue_id };
    Destination::Here(queue_id, Some(mapping))
}

/// Makes a delayed message of a draft whose properties say where it belongs. None if the broker has no levels to wait in.
pub(crate) fn waiting(broker: &Broker, draft: &mut RecordDraft<'_>, level: usize) -> Option<(Arc<Lane>, TagsCode)> {
    let level = u32::try_from(level.min(broker.delay.levels())).ok().filter(|level| *level > 0)?;
    let lane = broker.delay.topic().lane(&broker.store, level - 1);
    let lane =
        lane.inspect_err(|error| tracing::error!(level, %error, "queue of delayed messages cannot be opened")).ok()?;
    draft.topic = names::SCHEDULE_TOPIC;
    draft.queue_id = level as i32 - 1;
    Some((lane, TagsCode::DeliverAfterMs(broker.delay_levels.delay_ms(level as i32))))
}

/// Sends a stored message to the broker that leads its queue. Its properties lose what made it wait: it would wait again.
pub(crate) async fn send(forward: &Forward, topic: &str, stored: &RecordView<'_>, to: &Led) -> Result<(), Refusal> {
    let mut properties = Vec::new();
    send_properties::copy_except(&mut properties, &stored.properties(), |key| {
        matches!(
            key,
            name::DELAY
                | name::TIMER_DELAY_SEC
                | name::TIMER_DELAY_MS
                | name::TIMER_DELIVER_MS
                | name::TIMER_OUT_MS
                | name::TIMER_ENQUEUE_MS
                | name::TIMER_DEQUEUE_MS
                | name::TIMER_ROLL_TIMES
                | name::TIMER_DELAY_LEVEL
                | name::TRAN_MSG
                | name::TRANSACTION_CHECK_TIMES
                | name::CHECK_IMMUNITY_TIME_IN_SECONDS
                | name::INNER_MULTI_QUEUE_OFFSET
        )
    });
    let message = SendMessage {
        producer_group: PRODUCER,
        topic,
        default_topic: names::AUTO_CREATE_TOPIC,
        default_topic_queue_nums: 1,
        queue_id: to.queue_id,
        sys_flag: stored.sys_flag() & (sys_flag::COMPRESSED | sys_flag::COMPRESSION_MASK | sys_flag::MULTI_TAGS),
        born_timestamp: stored.born_timestamp(),
        flag: stored.flag(),
        properties: std::str::from_utf8(&properties).ok(),
        reconsume_times: Some(stored.reconsume_times()),
        ..SendMessage::default()
    };
    let answer = forward.send(&to.leader, &message, Bytes::copy_from_slice(stored.body())).await?;
    match ResponseCode::from_i32(answer.code) {
        // In each case it is stored.
        Some(
            ResponseCode::Success
            | ResponseCode::FlushDiskTimeout
            | ResponseCode::FlushSlaveTimeout
            | ResponseCode::SlaveNotAvailable,
        ) => Ok(()),
        Some(ResponseCode::MessageIllegal) => {
            Err(Refusal { code: ResponseCode::MessageIllegal, ..unexpected(&to.leader, &answer) })
        }
        Some(_) | None => Err(unexpected(&to.leader, &answer)),
    }
}
