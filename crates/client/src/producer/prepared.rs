//! What a message or a batch becomes before it is sent.

use bytes::Bytes;
use protocol::batch::{self, InnerMessage};
use protocol::code::request;
use protocol::compression::{Compression, compress};
use protocol::properties::name;

use crate::error::ClientError;
use crate::message::Message;
use crate::producer::whole::Whole;
use crate::unique_id::UniqueIds;

/// zlib's level in RocketMQ's clients.
const COMPRESSION_LEVEL: u32 = 5;

/// A message or a batch, ready for the wire.
pub(crate) struct Prepared {
    pub(crate) topic: String,
    pub(crate) body: Bytes,
    pub(crate) properties: String,
    pub(crate) flag: i32,
    pub(crate) sys_flag: i32,
    pub(crate) is_batch: bool,
    pub(crate) message_id: String,
    /// Of a batch that is compressed where it stays whole.
    pub(crate) whole: Option<Whole>,
    /// It may share a request with others.
    pub(crate) joins: bool,
}

impl Prepared {
    /// One message; a body over `compress_over_bytes` is compressed.
    pub(crate) fn message(
        message: Message,
        ids: &UniqueIds,
        compress_over_bytes: Option<usize>,
    ) -> Result<Prepared, ClientError> {
        check_topic(&message.topic)?;
        let message_id = message.id_or(|| ids.next());
        let properties = message.property_string(&message_id)?;
        let Message { topic, body, flag, .. } = message;
        let joins = false;
        let plain =
            Prepared { topic, body, properties, flag, sys_flag: 0, is_batch: false, message_id, whole: None, joins };
        plain.compressed(compress_over_bytes)
    }

    /// With its body compressed, if that has more bytes than this.
    pub(crate) fn compressed(self, over_bytes: Option<usize>) -> Result<Prepared, ClientError> {
        match over_bytes {
            Some(limit) if self.body.len() > limit => {
                let packed = compress(Compression::Zlib, &self.body, COMPRESSION_LEVEL)
                    .map_err(|error| ClientError::Invalid(error.to_string()))?;
                Ok(Prepared { body: packed.into(), sys_flag: self.sys_flag | Compression::Zlib.bits(), ..self })
            }
            Some(_) | None => Ok(self),
        }
    }

    /// The messages of one topic, as one.
    pub(crate) fn batch(messages: Vec<Message>, ids: &UniqueIds) -> Result<Prepared, ClientError> {
        let (topic, waits) = check_batch(&messages)?;
        let mut body = Vec::new();
        let mut message_id = String::new();
        for message in &messages {
            let id = message.id_or(|| ids.next());
            let properties = message.property_string(&id)?;
            batch::encode(
                &mut body,
                &InnerMessage { flag: message.flag, body: &message.body, properties: &properties },
            )
            .map_err(|error| ClientError::Invalid(error.to_string()))?;
            if !message_id.is_empty() {
                message_id.push(',');
            }
            message_id.push_str(&id);
        }
        // The batch as a whole has an id too, as with Java's client, and says whether its reply waits for the disk.
        let whole = Message::new(topic.as_str(), "").property(name::WAIT, waits.to_string());
        let properties = whole.property_string(&ids.next())?;
        let (body, joins) = (body.into(), false);
        Ok(Prepared { topic, body, properties, flag: 0, sys_flag: 0, is_batch: true, message_id, whole: None, joins })
    }

    /// The code of the request that sends it.
    pub(crate) fn code(&self) -> i32 {
        if self.is_batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 }
    }
}

pub(crate) fn check_topic(topic: &str) -> Result<(), ClientError> {
    protocol::names::check_topic(topic).map_err(|error| ClientError::Invalid(error.to_string()))
}

/// The topic of a batch, and whether its messages ask to wait for the disk. Refuses what the broker does for single messages only:
/// it looks at the properties of the batch, so those of a message inside would be lost without a word.
fn check_batch(messages: &[Message]) -> Result<(String, bool), ClientError> {
    let invalid = |text: &str| Err(ClientError::Invalid(text.to_owned()));
    let Some(first) = messages.first() else { return invalid("a batch of no messages") };
    check_topic(&first.topic)?;
    for message in messages {
        if message.topic != first.topic {
            return invalid("a batch has one topic");
        }
        if message.waits() != first.waits() {
            return invalid("the messages of a batch wait for the disk, or none of them does");
        }
        let delays = [name::DELAY, name::TIMER_DELAY_SEC, name::TIMER_DELAY_MS, name::TIMER_DELIVER_MS];
        if delays.iter().any(|delay| message.get(delay).is_some()) {
            return invalid("a message of a batch cannot be delayed");
        }
    }
    Ok((first.topic.clone(), first.waits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_waits_for_the_disk_if_its_messages_do_and_is_refused_where_they_differ_or_are_delayed() {
        let message = || Message::new("t", "body");
        let hurried = || message().property(name::WAIT, "false");
        assert_eq!(check_batch(&[message(), message()]).unwrap(), ("t".to_owned(), true));
        assert_eq!(check_batch(&[hurried(), hurried()]).unwrap(), ("t".to_owned(), false));
        let refused = [
            vec![],
            vec![message(), hurried()],
            vec![message(), Message::new("other", "body")],
            vec![message().delay_level(1)],
            vec![message().property(name::TIMER_DELAY_SEC, "1")],
            vec![message().property(name::TIMER_DELAY_MS, "1")],
            vec![message().property(name::TIMER_DELIVER_MS, "1")],
        ];
        for batch in refused {
            assert!(matches!(check_batch(&batch), Err(ClientError::Invalid(_))), "{batch:?}");
        }
    }
}
