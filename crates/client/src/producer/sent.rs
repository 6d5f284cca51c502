//! The result of a send.

use protocol::body::MessageQueue;
use protocol::code::ResponseCode;

/// What the broker did with a message. In each case it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendStatus {
    /// All that was asked for.
    Ok,
    /// Not flushed in time.
    FlushDiskTimeout,
    /// Not replicated in time.
    FlushSlaveTimeout,
    /// There is no replica.
    SlaveNotAvailable,
}

impl SendStatus {
    /// What a response code says of a message; nothing if it is not stored.
    pub(super) fn of(code: i32) -> Option<SendStatus> {
        match ResponseCode::from_i32(code) {
            Some(ResponseCode::Success) => Some(SendStatus::Ok),
            Some(ResponseCode::FlushDiskTimeout) => Some(SendStatus::FlushDiskTimeout),
            Some(ResponseCode::FlushSlaveTimeout) => Some(SendStatus::FlushSlaveTimeout),
            Some(ResponseCode::SlaveNotAvailable) => Some(SendStatus::SlaveNotAvailable),
            Some(_) | None => None,
        }
    }
}

/// Where a message is.
#[derive(Clone, Debug)]
pub struct SendResult {
    /// How safe it is.
    pub status: SendStatus,
    /// The id that this client gave it; of a batch, all of them, separated by commas.
    pub message_id: String,
    /// Its place as an id; of a batch, all of them, separated by commas.
    pub offset_message_id: String,
    /// The queue.
    pub queue: MessageQueue,
    /// The broker that stored it: the queue's own, or the one that leads it if it is a static topic's.
    pub broker_name: String,
    /// Its place in the queue; of a batch, the first one's. -1 while a static topic's queue moves.
    pub queue_offset: i64,
}
