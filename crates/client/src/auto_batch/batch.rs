//! Messages that leave together.

use std::sync::Arc;

use bytes::Bytes;
use protocol::batch::{self, InnerMessage};
use protocol::body::MessageQueue;
use protocol::properties::{PropertiesWriter, name};

use super::accumulator::LaneId;
use super::pending::{Ids, Pending, Results};
use crate::error::ClientError;
use crate::prepared::Prepared;
use crate::producer::SendResult;

/// What a unit of a BatchCQ queue can state.
const MESSAGES_MAX: usize = i16::MAX as usize;

/// Where a batch goes.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) topic: String,
    /// `None`: to the next queue in turn.
    pub(crate) queue: Option<MessageQueue>,
}

/// Messages that leave together, as they will be sent. One that is dropped tells all who wait for it that it was given up.
pub(crate) struct Batch {
    pub(crate) lane: LaneId,
    /// Batches that were begun later have a larger one.
    pub(crate) number: u64,
    pub(crate) target: Arc<Target>,
    /// Nothing is added any more, so it need not wait.
    pub(crate) is_closed: bool,
    /// The tag of each of its messages: in a BatchCQ topic the batch has one.
    tag: String,
    /// Whether its answer waits for the disk.
    waits: bool,
    body: Vec<u8>,
    ids: Ids,
    /// What its messages take of the producer's budget.
    room: usize,
    results: Arc<Results>,
}

impl Batch {
    /// Without a message yet; `capacity` bytes are expected.
    pub(crate) fn new(
        lane: LaneId,
        number: u64,
        target: Arc<Target>,
        (tag, waits): (&str, bool),
        capacity: usize,
    ) -> Batch {
        Batch {
            lane,
            number,
            target,
            is_closed: false,
            tag: tag.to_owned(),
            waits,
            body: Vec::with_capacity(capacity),
            ids: Ids::default(),
            room: 0,
            results: Arc::default(),
        }
    }

    /// Whether a message of so many bytes may be added.
    pub(crate) fn takes(&self, bytes: usize, tag: &str, waits: bool, bytes_max: usize) -> bool {
        !self.is_closed
            && self.body.len() + bytes <= bytes_max
            && !self.is_full()
            && self.tag == tag
            && self.waits == waits
    }

    /// Adds a message, whose size was checked.
    pub(crate) fn push(&mut self, inner: &InnerMessage<'_>, id: &str, room: usize) -> Pending {
        let encoded = batch::encode(&mut self.body, inner);
        assert!(encoded.is_ok(), "a checked message cannot be encoded: {encoded:?}");
        self.room += room;
        let place = self.ids.push(id);
        Pending::new(Arc::clone(&self.results), place)
    }

    /// Whether no further message can be counted.
    pub(crate) fn is_full(&self) -> bool {
        self.ids.len() >= MESSAGES_MAX
    }

    /// Bytes as they are sent.
    pub(crate) fn body_len(&self) -> usize {
        self.body.len()
    }

    /// As it is sent. A message alone is no batch, and compressed if it is large. `unique_id` is for the batch as a whole.
    ///
    /// A batch is not compressed, as with Java's client: whether the broker takes it apart, and needs it plain, only the broker knows.
    pub(crate) fn prepare(
        &mut self,
        unique_id: impl FnOnce() -> String,
        compress_over_bytes: Option<usize>,
    ) -> Result<Prepared, ClientError> {
        let (topic, body) = (self.target.topic.clone(), Bytes::from(std::mem::take(&mut self.body)));
        if self.ids.len() > 1 {
            let properties = self.properties(&unique_id());
            let message_id = String::new();
            return Ok(Prepared { topic, body, properties, flag: 0, sys_flag: 0, is_batch: true, message_id });
        }
        let single = batch::iter(&body).next().and_then(Result::ok);
        let Some(InnerMessage { flag, body: inner, properties }) = single else {
            unreachable!("what was encoded can be taken apart")
        };
        let (message_id, properties) = (self.ids.get(0).to_owned(), properties.to_owned());
        let body = body.slice_ref(inner);
        Prepared { topic, body, properties, flag, sys_flag: 0, is_batch: false, message_id }
            .compressed(compress_over_bytes)
    }

    /// Of the batch as a whole: its broker takes them for all of its messages where it stores it as one record, and looks at `WAIT`. No
    /// `KEYS`, which Java's client puts together here: by a key of the batch one finds the batch, and not the message.
    fn properties(&self, unique_id: &str) -> String {
        let mut writer = PropertiesWriter::new();
        writer.put(name::UNIQ_KEY, unique_id).put(name::WAIT, if self.waits { "true" } else { "false" });
        writer.put(name::TAGS, &self.tag);
        writer.as_str().to_owned()
    }

    /// What its messages take of the producer's budget.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Tells everybody what became of their messages.
    pub(crate) fn settle(mut self, outcome: Result<SendResult, ClientError>) {
        let ids = std::mem::take(&mut self.ids);
        self.results.settle(outcome.and_then(|sent| ids.answer(sent)));
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Nothing, if it is settled.
        self.results.settle(Err(ClientError::GivenUp));
    }
}

#[cfg(test)]
impl Batch {
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }
}
