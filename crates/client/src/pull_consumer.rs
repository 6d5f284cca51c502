//! The consumer that is asked for each step: which queues, what from where, and how far.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::body::MessageQueue;
use protocol::request::PullMessage;
use protocol::sys_flag::pull as flag;
use protocol::tags;

use crate::error::ClientError;
use crate::member::Member;
use crate::message::{Received, decode_from};
use crate::tries::Tries;

/// Beyond the time that the broker may hold a pull: the way there and back.
const WAY: Duration = Duration::from_secs(15);

/// What a pull brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullStatus {
    /// Messages.
    Found,
    /// Nothing yet.
    NothingNew,
    /// Messages that the filter did not let through; ask again at once.
    NothingMatched,
    /// The offset is not in the queue; `next_offset` is.
    OffsetOutOfRange,
}

/// The result of a pull.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// What it brought.
    pub status: PullStatus,
    /// The messages.
    pub messages: Vec<Received>,
    /// Where to go on.
    pub next_offset: i64,
    /// The first offset of the queue.
    pub min_offset: i64,
    /// One past the last offset of the queue.
    pub max_offset: i64,
}

/// The result of a pull, with the records as they are stored: for those who read millions and keep none.
#[derive(Clone, Debug)]
pub struct PulledRecords {
    /// What it brought.
    pub status: PullStatus,
    /// Records, one behind the other: [`protocol::record::scan`] reads them, [`crate::decode`] makes messages of them.
    pub records: Bytes,
    /// Where to go on.
    pub next_offset: i64,
    /// The first offset of the queue.
    pub min_offset: i64,
    /// One past the last offset of the queue.
    pub max_offset: i64,
    /// Of a logical queue: what is added to an offset in the records to get the queue's own.
    pub offset_delta: Option<i64>,
}

impl PulledRecords {
    /// The messages of `queue` from offset `from` on.
    pub(crate) fn messages(self, queue: &MessageQueue, from: i64) -> Result<Pulled, ClientError> {
        let PulledRecords { status, records, next_offset, min_offset, max_offset, offset_delta } = self;
        let delta = offset_delta.unwrap_or(0);
        let mut messages = decode_from(&records, &queue.broker_name.as_str().into(), from.saturating_sub(delta))?;
        if offset_delta.is_some() {
            for message in &mut messages {
                message.queue_id = queue.queue_id;
                message.queue_offset = message.queue_offset.saturating_add(delta);
            }
        }
        Ok(Pulled { status, messages, next_offset, min_offset, max_offset })
    }
}

/// A consumer that is asked for each step.
#[derive(Clone)]
pub struct PullConsumer {
    member: Arc<Member>,
    group: String,
}

impl PullConsumer {
    pub(crate) fn new(member: Arc<Member>, group: &str) -> PullConsumer {
        PullConsumer { member, group: group.to_owned() }
    }

    /// The queues of a topic that can be read.
    pub async fn queues(&self, topic: &str) -> Result<Vec<MessageQueue>, ClientError> {
        Ok(self.member.route(topic).await?.readable.clone())
    }

    /// Pulls up to `max` messages from `offset` on that match the tag expression (`*`: all). The broker may hold the pull for
    /// `wait` if there is nothing.
    pub async fn pull(
        &self,
        queue: &MessageQueue,
        offset: i64,
        max: i32,
        expression: &str,
        wait: Duration,
    ) -> Result<Pulled, ClientError> {
        let fields = self.fields(queue, offset, max, expression, wait);
        let mut pulled = self.pull_from_leader(queue, &fields, wait + WAY).await?.messages(queue, offset)?;
        if let Some(wanted) = tags::Subscription::parse(expression) {
            pulled.messages.retain(|message| is_wanted(&wanted, message));
        }
        Ok(pulled)
    }

    /// As [`PullConsumer::pull`] of all messages, without making messages of the records.
    pub async fn pull_records(
        &self,
        queue: &MessageQueue,
        offset: i64,
        max: i32,
        wait: Duration,
    ) -> Result<PulledRecords, ClientError> {
        let fields = self.fields(queue, offset, max, tags::ALL, wait);
        self.pull_from_leader(queue, &fields, wait + WAY).await
    }

    async fn pull_from_leader(
        &self,
        queue: &MessageQueue,
        fields: &PullMessage<'_>,
        timeout: Duration,
    ) -> Result<PulledRecords, ClientError> {
        let mut tries = Tries::new(&self.member, queue);
        loop {
            let answer = match self.member.address(queue).await {
                Ok(address) => self.member.pull_records(&address, fields, queue, timeout).await,
                Err(error) => Err(error),
            };
            if !tries.go_on(&answer).await {
                return answer;
            }
        }
    }

    fn fields<'a>(
        &'a self,
        queue: &'a MessageQueue,
        offset: i64,
        max: i32,
        expression: &'a str,
        wait: Duration,
    ) -> PullMessage<'a> {
        let suspend = if wait.is_zero() { 0 } else { flag::SUSPEND };
        PullMessage {
            sys_flag: flag::SUBSCRIPTION | suspend,
            ..pull_fields(&self.group, queue, offset, max, expression, wait)
        }
    }

    /// The committed offset, if there is one.
    pub async fn committed(&self, queue: &MessageQueue) -> Result<Option<i64>, ClientError> {
        self.member.committed(&self.group, queue, Some(false)).await
    }

    /// Commits an offset: the first one that is not consumed.
    pub async fn commit(&self, queue: &MessageQueue, offset: i64) -> Result<(), ClientError> {
        self.member.commit(&self.group, queue, offset, false).await
    }

    /// The first offset of a queue.
    pub async fn min_offset(&self, queue: &MessageQueue) -> Result<i64, ClientError> {
        self.member.min_offset(queue).await
    }

    /// One past the last offset of a queue.
    pub async fn max_offset(&self, queue: &MessageQueue) -> Result<i64, ClientError> {
        self.member.max_offset(queue).await
    }

    /// The first offset whose message was stored at `timestamp` or later.
    pub async fn offset_by_time(&self, queue: &MessageQueue, timestamp: i64) -> Result<i64, ClientError> {
        self.member.offset_by_time(queue, timestamp).await
    }
}

pub(crate) fn pull_fields<'a>(
    group: &'a str,
    queue: &'a MessageQueue,
    offset: i64,
    max: i32,
    expression: &'a str,
    wait: Duration,
) -> PullMessage<'a> {
    PullMessage {
        max_msg_nums: max,
        sys_flag: 0,
        suspend_timeout_millis: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
        subscription: Some(expression),
        expression_type: Some("TAG"),
        max_msg_bytes: Some(i32::MAX),
        broker_name: Some(&queue.broker_name),
        ..PullMessage::at(group, &queue.topic, queue.queue_id, offset)
    }
}

/// The broker filters by the hash of a tag; two tags may share one.
pub(crate) fn is_wanted(wanted: &tags::Subscription, message: &Received) -> bool {
    wanted.is_all() || message.tag().is_some_and(|tag| wanted.tags().iter().any(|known| known == tag))
}
