//! Messages that were cut off a log, sent again.

use bytes::Bytes;
use protocol::code::{ResponseCode, request};
use protocol::names;
use protocol::properties::{PropertiesWriter, name};
use protocol::record::RecordView;
use protocol::request::SendMessage;
use protocol::sys_flag;

use crate::error::{OperatorError, Result};
use crate::handle::Operator;

/// The group that messages are sent as.
const GROUP: &str = "TOOLS_PRODUCER";
/// What a broker notes in a message that waits, and notes anew.
const OF_WAITING: [&str; 6] = [
    name::REAL_TOPIC,
    name::REAL_QID,
    name::TIMER_OUT_MS,
    name::TIMER_ENQUEUE_MS,
    name::TIMER_DEQUEUE_MS,
    name::TIMER_ROLL_TIMES,
];

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replayed {
    /// It is stored.
    Sent,
    /// It is not sent: why.
    Left(&'static str),
}

impl Operator {
    /// Sends the message of a record to a broker, with its properties and keys, to the queue that it was in. One that waited for its time waits anew.
    pub async fn replay(&self, address: &str, record: &RecordView<'_>) -> Result<Replayed> {
        let properties = record.properties();
        let waits = [names::SCHEDULE_TOPIC, names::TIMER_TOPIC].contains(&record.topic());
        let (topic, queue_id) = match waits {
            false => (record.topic(), record.queue_id()),
            true => {
                let queue_id = record.property(name::REAL_QID).and_then(|id| id.parse().ok());
                match record.property(name::REAL_TOPIC).zip(queue_id) {
                    Some(real) => real,
                    None => return Ok(Replayed::Left("wait for their time, without the topic that they are for")),
                }
            }
        };
        if names::is_lmq(topic) {
            return Ok(Replayed::Left("are of light queues"));
        }
        if topic == names::TRANS_HALF_TOPIC || topic == names::TRANS_OP_HALF_TOPIC {
            return Ok(Replayed::Left(
                "are halves of transactions, or their ends: the producer has to send them again",
            ));
        }
        if names::is_system_topic(topic) {
            return Ok(Replayed::Left("are of the broker itself"));
        }
        if record.sys_flag() & sys_flag::INNER_BATCH != 0 {
            return Ok(Replayed::Left("are batches that are stored as one"));
        }
        let mut kept = PropertiesWriter::new();
        kept.copy_except(&properties, |name| waits && OF_WAITING.contains(&name));
        let of_broker = sys_flag::TRANSACTION_MASK | sys_flag::BORN_HOST_V6 | sys_flag::STORE_HOST_V6;
        let fields = SendMessage {
            producer_group: GROUP,
            topic,
            default_topic: names::AUTO_CREATE_TOPIC,
            default_topic_queue_nums: queue_id.saturating_add(1).max(4),
            queue_id,
            sys_flag: record.sys_flag() & !of_broker,
            born_timestamp: record.born_timestamp(),
            flag: record.flag(),
            properties: Some(kept.as_str()),
            reconsume_times: Some(record.reconsume_times()),
            unit_mode: Some(false),
            max_reconsume_times: None,
            batch: Some(false),
            broker_name: None,
        };
        let body = Bytes::copy_from_slice(record.body());
        match self.admin.call(address, request::SEND_MESSAGE_V2, &fields, body).await.map_err(OperatorError::from) {
            Ok(_) => Ok(Replayed::Sent),
            // It is stored there, and not yet as safe as the broker is to make it.
            Err(error)
                if [
                    ResponseCode::FlushDiskTimeout,
                    ResponseCode::SlaveNotAvailable,
                    ResponseCode::FlushSlaveTimeout,
                ]
                .into_iter()
                .any(|code| error.says(code)) =>
            {
                Ok(Replayed::Sent)
            }
            Err(error) => Err(error),
        }
    }
}
