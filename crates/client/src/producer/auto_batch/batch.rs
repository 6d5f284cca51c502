//! Messages that leave together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::batch::{self, InnerMessage};
use protocol::body::MessageQueue;
use protocol::properties::{PropertiesWriter, name};

use super::lanes::LaneId;
use super::pending::{Ids, Pending, Results};
use crate::error::ClientError;
use crate::message::Message;
use crate::producer::prepared::Prepared;
use crate::producer::sent::SendResult;
use crate::producer::whole::Whole;

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
    /// When it was begun.
    pub(crate) since: Duration,
    pub(crate) target: Arc<Target>,
    is_closed: bool,
    /// The tag of each of its messages: in a BatchCQ topic the batch has one.
    tag: String,
    /// Whether its answer waits for the disk.
    waits: bool,
    held: Held,
    /// As a batch is sent, also of one message.
    body_bytes: usize,
    ids: Ids,
    /// What its messages take of the producer's budget.
    room: usize,
    results: Arc<Results>,
}

/// What is to be sent.
enum Held {
    /// One message, as it came: copied only where others join it.
    One { flag: i32, body: Bytes, properties: String },
    /// Several, encoded.
    Many(Vec<u8>),
}

impl Batch {
    /// With a first message and its properties, which is to be noted.
    pub(crate) fn new(
        lane: LaneId,
        (number, since): (u64, Duration),
        target: Arc<Target>,
        (tag, waits): (&str, bool),
        (first, properties): (&Message, &str),
    ) -> Batch {
        let held = Held::One { flag: first.flag, body: first.body.clone(), properties: properties.to_owned() };
        Batch {
            lane,
            number,
            since,
            target,
            is_closed: false,
            tag: tag.to_owned(),
            waits,
            held,
            body_bytes: 0,
            ids: Ids::default(),
            room: 0,
            results: Arc::default(),
        }
    }

    /// Whether a message of so many bytes may be added.
    pub(crate) fn takes(&self, bytes: usize, tag: &str, waits: bool, bytes_max: usize) -> bool {
        !self.is_closed
            && self.body_bytes + bytes <= bytes_max
            && !self.is_full()
            && self.waits == waits
            && is_same_tag(&self.tag, tag)
    }

    /// Adds a message. `expected` bytes are asked for, as the whole batch may have them. After an error nothing has changed.
    pub(crate) fn push(
        &mut self,
        inner: &InnerMessage<'_>,
        id: &str,
        room: usize,
        expected: usize,
    ) -> Result<Pending, ClientError> {
        let bytes = match &mut self.held {
            Held::One { flag, body, properties } => {
                let first = InnerMessage { flag: *flag, body, properties };
                let mut encoded = Vec::with_capacity(expected);
                put(&mut encoded, &first)?;
                put(&mut encoded, inner)?;
                let bytes = encoded.len();
                self.held = Held::Many(encoded);
                bytes - self.body_bytes
            }
            Held::Many(encoded) => {
                put(encoded, inner)?;
                encoded.len() - self.body_bytes
            }
        };
        Ok(self.note(bytes, id, room))
    }

    /// Takes note of a message that it holds, which has so many bytes in a batch.
    pub(crate) fn note(&mut self, bytes: usize, id: &str, room: usize) -> Pending {
        self.body_bytes += bytes;
        self.room += room;
        let place = self.ids.push(id);
        Pending::new(Arc::clone(&self.results), place)
    }

    /// Lets nothing be added any more, so that it need not wait.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        if let Held::Many(encoded) = &mut self.held
            && encoded.capacity() > 2 * encoded.len()
        {
            encoded.shrink_to_fit();
        }
    }

    /// Whether nothing is added any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Whether no further message can be counted.
    pub(crate) fn is_full(&self) -> bool {
        self.ids.len() >= MESSAGES_MAX
    }

    /// Bytes as a batch is sent.
    pub(crate) fn body_len(&self) -> usize {
        self.body_bytes
    }

    /// As it is sent. A message alone is no batch, and compressed if it is large. `unique_id` is for the batch as a whole.
    ///
    /// A batch is plain, as with Java's client; a large one may be compressed where the broker is known not to take it apart. `joins`: it may
    /// share a request with others.
    pub(crate) fn prepare(
        &mut self,
        unique_id: impl FnOnce() -> String,
        compress_over_bytes: Option<usize>,
        joins: bool,
    ) -> Result<Prepared, ClientError> {
        let topic = self.target.topic.clone();
        match std::mem::replace(&mut self.held, Held::Many(Vec::new())) {
            Held::Many(encoded) => {
                let (properties, message_id) = (self.properties(&unique_id()), String::new());
                let is_large = compress_over_bytes.is_some_and(|limit| encoded.len() > limit);
                let whole = is_large.then(|| Whole::of(self.ids.len()));
                let body = encoded.into();
                Ok(Prepared { topic, body, properties, flag: 0, sys_flag: 0, is_batch: true, message_id, whole, joins })
            }
            Held::One { flag, body, properties } => {
                let message_id = self.ids.get(0).to_owned();
                Prepared { topic, body, properties, flag, sys_flag: 0, is_batch: false, message_id, whole: None, joins }
                    .compressed(compress_over_bytes)
            }
        }
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

/// Whether two tags are the same. Most are empty, and an empty string need not lie anywhere: that it does not is what glibc's `memcmp` for
/// AVX-512 takes a trap in the processor for, some 80 ns.
pub(crate) fn is_same_tag(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

fn put(out: &mut Vec<u8>, message: &InnerMessage<'_>) -> Result<(), ClientError> {
    batch::encode(out, message).map_err(|error| ClientError::Invalid(error.to_string()))
}

#[cfg(test)]
impl Batch {
    /// Its messages, each as a batch of one.
    pub(crate) fn messages(&self) -> Vec<(Bytes, String)> {
        match &self.held {
            Held::One { body, properties, .. } => vec![(body.clone(), properties.clone())],
            Held::Many(encoded) => batch::iter(encoded)
                .map(Result::unwrap)
                .map(|inner| (Bytes::copy_from_slice(inner.body), inner.properties.to_owned()))
                .collect(),
        }
    }

    /// Bytes that it has asked for beyond those that it needs.
    pub(crate) fn spare_bytes(&self) -> usize {
        match &self.held {
            Held::One { .. } => 0,
            Held::Many(encoded) => encoded.capacity() - encoded.len(),
        }
    }
}
