//! Batches that stay whole, in topics with `queue.type=BatchCQ`: only such a batch may be compressed, since no broker takes it apart.
//!
//! It is sent as one message that is marked as a batch, with the number of its messages: of a batch request that is compressed
//! RocketMQ's brokers cannot count them, and refuse it. No route says which topics are of this kind, but an answer does: one id for a batch
//! of several messages. A broker where the topic is of the other kind refuses the mark, and stores nothing; it is not tried again there.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use protocol::code::ResponseCode;
use protocol::properties::{PropertiesWriter, name};
use protocol::sys_flag;

use crate::error::ClientError;
use crate::producer::prepared::Prepared;

/// With more topics all are forgotten: what is known comes again with the next answers.
const TOPICS_MAX: usize = 4096;

/// Which brokers keep batches of which topics whole.
#[derive(Default)]
pub(crate) struct WholeTopics {
    /// Guards the brokers by topic, and whether they take marked batches of it; held for a look or a change.
    brokers: Mutex<HashMap<String, HashMap<String, bool>>>,
}

impl WholeTopics {
    pub(crate) fn are_at(&self, broker: &str, topic: &str) -> bool {
        self.brokers.lock().get(topic).and_then(|brokers| brokers.get(broker)).is_some_and(|takes| *takes)
    }

    fn note(&self, broker: &str, topic: &str, takes: bool) {
        let mut brokers = self.brokers.lock();
        if brokers.len() >= TOPICS_MAX && !brokers.contains_key(topic) {
            brokers.clear();
        }
        let of_topic = brokers.entry(topic.to_owned()).or_default();
        // Who has refused it may do so again: each time costs a request, or the messages that were for a chosen queue.
        *of_topic.entry(broker.to_owned()).or_insert(takes) &= takes;
    }

    /// Learns from what a broker says about a batch. `was_packed`: as one message. `ids`: what it answered, if it stored it.
    pub(crate) fn learn(
        &self,
        broker: &str,
        prepared: &Prepared,
        was_packed: bool,
        answer: Result<&str, &ClientError>,
    ) {
        let Some(whole) = &prepared.whole else { return };
        match answer {
            Ok(ids) if !was_packed && !ids.contains(',') => self.note(broker, &prepared.topic, true),
            Err(error) if was_packed && error.code() == Some(ResponseCode::MessageIllegal as i32) => {
                self.note(broker, &prepared.topic, false);
                whole.is_refused.store(true, Ordering::Relaxed);
            }
            Ok(_) | Err(_) => {}
        }
    }
}

/// How a batch is sent to a broker that keeps it whole.
pub(crate) struct Whole {
    messages: usize,
    /// Made when it is first needed; `None`: it would not be smaller.
    packed: OnceLock<Option<Box<Prepared>>>,
    // Relaxed: whoever sets it looks at it himself.
    is_refused: AtomicBool,
}

impl Whole {
    /// Of a batch with so many messages.
    pub(crate) fn of(messages: usize) -> Whole {
        Whole { messages, packed: OnceLock::new(), is_refused: AtomicBool::new(false) }
    }

    /// Whether it was refused as one message: it may be taken as it is.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// The batch as one message, compressed and marked, unless it was refused so.
    pub(crate) fn packed(&self, plain: &Prepared) -> Option<&Prepared> {
        if self.is_refused() {
            return None;
        }
        self.packed.get_or_init(|| pack(plain, self.messages).map(Box::new)).as_deref()
    }
}

fn pack(plain: &Prepared, messages: usize) -> Option<Prepared> {
    let mut properties = PropertiesWriter::new();
    properties.copy_except(&plain.properties, |_| false).put(name::INNER_NUM, &messages.to_string());
    let marked = Prepared {
        topic: plain.topic.clone(),
        body: plain.body.clone(),
        properties: properties.as_str().to_owned(),
        flag: plain.flag,
        sys_flag: plain.sys_flag | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP,
        is_batch: false,
        message_id: plain.message_id.clone(),
        whole: None,
        joins: plain.joins,
    };
    marked.compressed(Some(0)).ok().filter(|packed| packed.body.len() < plain.body.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::compression::{Compression, decompress};
    use protocol::properties;

    fn batch(body: Vec<u8>) -> Prepared {
        Prepared {
            topic: "t".to_owned(),
            body: body.into(),
            properties: "UNIQ_KEY\u{1}B\u{2}TAGS\u{1}A\u{2}".to_owned(),
            flag: 0,
            sys_flag: 0,
            is_batch: true,
            message_id: String::new(),
            whole: Some(Whole::of(7)),
            joins: false,
        }
    }

    #[test]
    fn a_packed_batch_is_one_message_that_says_what_it_is() {
        let plain = batch(vec![b'x'; 10_000]);
        let packed = plain.whole.as_ref().unwrap().packed(&plain).unwrap();
        assert_eq!(packed.code(), protocol::code::request::SEND_MESSAGE_V2);
        assert_eq!(packed.sys_flag, Compression::Zlib.bits() | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP);
        let property = |name| properties::get(&packed.properties, name);
        assert_eq!((property("UNIQ_KEY"), property("TAGS"), property("INNER_NUM")), (Some("B"), Some("A"), Some("7")));
        assert_eq!(decompress(Compression::Zlib, &packed.body, 10_000).unwrap(), plain.body);
        let random = (0..10_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (at >> 5) as u8);
        let dense: Vec<u8> =
            protocol::compression::compress(Compression::Zlib, &random.collect::<Vec<_>>(), 9).unwrap();
        let dense = batch(dense);
        assert!(dense.whole.as_ref().unwrap().packed(&dense).is_none(), "it grows");
    }

    #[test]
    fn one_id_for_a_batch_is_learned_by_broker_until_it_refuses_the_mark() {
        let (known, batch) = (WholeTopics::default(), batch(vec![b'x'; 100]));
        known.learn("a", &batch, false, Ok("ID1,ID2"));
        assert!(!known.are_at("a", "t"));
        known.learn("a", &batch, false, Ok("ID1"));
        assert!(known.are_at("a", "t") && !known.are_at("b", "t") && !known.are_at("a", "other"));
        let refused = |code: ResponseCode| ClientError::Refused {
            address: "a:1".to_owned(),
            code: code as i32,
            remark: String::new(),
        };
        known.learn("a", &batch, true, Err(&refused(ResponseCode::SystemBusy)));
        known.learn("a", &batch, false, Err(&refused(ResponseCode::MessageIllegal)));
        assert!(known.are_at("a", "t") && !batch.whole.as_ref().unwrap().is_refused());
        known.learn("a", &batch, true, Err(&refused(ResponseCode::MessageIllegal)));
        known.learn("a", &batch, false, Ok("ID1"));
        let whole = batch.whole.as_ref().unwrap();
        assert!(!known.are_at("a", "t") && whole.is_refused() && whole.packed(&batch).is_none());
    }

    #[test]
    fn what_is_known_is_bounded() {
        let (known, mut batch) = (WholeTopics::default(), batch(Vec::new()));
        for topic in 0..3 * TOPICS_MAX {
            batch.topic = topic.to_string();
            known.learn("a", &batch, false, Ok("ID"));
        }
        assert!(known.brokers.lock().len() <= TOPICS_MAX && known.are_at("a", &batch.topic));
    }
}
