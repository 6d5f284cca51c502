//! A send as a producer asks for it, whatever has brought it.

use std::net::SocketAddr;

use net::Request;
use protocol::code::request;
use protocol::record::RecordDraft;
use protocol::request::{FieldError, SendMessage};
use protocol::sys_flag;

use crate::client::retry::VERSION_OF_MAX_RECONSUME_TIMES;
use crate::refusal::Refusal;
use crate::static_topic::is_physical;

/// A message, or a batch of messages, for one topic.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOrder<'a> {
    /// The producer's group.
    pub group: &'a str,
    /// Where to.
    pub topic: &'a str,
    /// A topic that is made for this send inherits permissions and queues of this one.
    pub default_topic: &'a str,
    /// Queues of a topic that is made for this send, at most.
    pub default_topic_queue_nums: i32,
    /// Negative: any.
    pub queue_id: i32,
    /// It is a physical queue even if the topic is static: another leader sends.
    pub is_physical: bool,
    /// See [`protocol::sys_flag`].
    pub sys_flag: i32,
    /// By the producer's clock.
    pub born_ms: i64,
    /// The user's own value.
    pub flag: i32,
    /// See [`protocol::properties`]. They also say whether it is delayed, a half message, or a retry.
    pub properties: &'a str,
    /// How often it was consumed, if a consumer sends it to its retry topic.
    pub reconsume_times: Option<i32>,
    /// In the place of the group's `retryMaxTimes`.
    pub retry_max: Option<i32>,
    /// A topic that is made for this send belongs to a unit.
    pub unit_mode: bool,
    /// The body is a batch, see [`protocol::batch`].
    pub is_batch: bool,
    /// The message's, or the batch.
    pub body: &'a [u8],
}

impl<'a> SendOrder<'a> {
    /// Reads 10, 310, 320, and the replies 324 and 325.
    pub(crate) fn decode(request: &Request<'a>) -> Result<SendOrder<'a>, FieldError> {
        let (code, fields) = (request.header.code, &request.header.fields);
        let message = if matches!(code, request::SEND_MESSAGE | request::SEND_REPLY_MESSAGE) {
            SendMessage::decode_v1(fields)?
        } else {
            SendMessage::decode_v2(fields)?
        };
        let may_say_max = request.header.version >= VERSION_OF_MAX_RECONSUME_TIMES;
        Ok(SendOrder {
            group: message.producer_group,
            topic: message.topic,
            default_topic: message.default_topic,
            default_topic_queue_nums: message.default_topic_queue_nums,
            queue_id: message.queue_id,
            is_physical: is_physical(request),
            sys_flag: message.sys_flag,
            born_ms: message.born_timestamp,
            flag: message.flag,
            properties: message.properties.unwrap_or_default(),
            reconsume_times: message.reconsume_times,
            retry_max: message.max_reconsume_times.filter(|_| may_say_max),
            unit_mode: message.unit_mode == Some(true),
            is_batch: code == request::SEND_BATCH_MESSAGE || message.batch == Some(true),
            body: request.body,
        })
    }

    /// A record of it, as far as the order says what stands there.
    pub(crate) fn draft(&self, born_host: SocketAddr, store_host: SocketAddr) -> RecordDraft<'a> {
        RecordDraft {
            topic: self.topic,
            queue_id: self.queue_id,
            flag: self.flag,
            sys_flag: self.sys_flag,
            born_timestamp: self.born_ms,
            born_host,
            store_host,
            reconsume_times: self.reconsume_times.unwrap_or(0),
            prepared_offset: 0,
            body: self.body,
            properties: self.properties.as_bytes(),
        }
    }

    /// Whether this bit of its `sysFlag` is set.
    pub(crate) fn has_flag(&self, bit: i32) -> bool {
        self.sys_flag & bit != 0
    }

    /// Whether its `sysFlag` says that it is a half message.
    pub(crate) fn says_half(&self) -> bool {
        sys_flag::transaction(self.sys_flag) == sys_flag::TRANSACTION_PREPARED
    }

    /// No queue leads to a record that says that it was rolled back: only the end of a transaction
    /// writes it.
    pub(crate) fn check_not_rolled_back(&self) -> Result<(), Refusal> {
        if sys_flag::transaction(self.sys_flag) == sys_flag::TRANSACTION_ROLLBACK {
            return Err(Refusal::illegal(
                "sysFlag says that this message is rolled back (12), which a producer cannot",
            ));
        }
        Ok(())
    }
}
