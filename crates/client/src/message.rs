//! Messages: to be sent, and received.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use protocol::batch;
use protocol::compression::{Compression, CompressionError, decompress};
use protocol::properties::{self, PropertiesWriter, name};
use protocol::record::{RecordView, Scanned, scan};
use protocol::sys_flag;

use crate::error::ClientError;

/// A compressed body that would grow beyond this stays closed.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Lengths and flags of a message in a batch, `WAIT`, and the id that we give it.
const OVERHEAD_BYTES: usize = 100;

/// A message to be sent.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// Where to.
    pub topic: String,
    /// What.
    pub body: Bytes,
    /// The user's own value.
    pub flag: i32,
    properties: Vec<(String, String)>,
}

impl Message {
    /// A message without properties.
    pub fn new(topic: impl Into<String>, body: impl Into<Bytes>) -> Message {
        Message { topic: topic.into(), body: body.into(), flag: 0, properties: Vec::new() }
    }

    /// What subscriptions filter by.
    pub fn tag(self, tag: impl Into<String>) -> Message {
        self.property(name::TAGS, tag)
    }

    /// What the message can be found by later. Several keys are separated by blanks.
    pub fn key(self, key: impl Into<String>) -> Message {
        self.property(name::KEYS, key)
    }

    /// Delivered later, by a level of the broker's table (1 is the shortest).
    pub fn delay_level(self, level: i32) -> Message {
        self.property(name::DELAY, level.to_string())
    }

    /// Any property; a second value for the same name replaces the first.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Message {
        let (name, value) = (name.into(), value.into());
        match self.properties.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.properties.push((name, value)),
        }
        self
    }

    /// The value of a property.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.properties.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The names of its properties.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.properties.iter().map(|(name, _)| name.as_str())
    }

    /// The id that it came with, if it is sent again under it; or else this one. As RocketMQ's client does.
    pub(crate) fn id_or(&self, fresh: impl FnOnce() -> String) -> String {
        self.get(name::UNIQ_KEY).map_or_else(fresh, str::to_owned)
    }

    /// The property string, with the message's id in it: its own if it has one.
    pub(crate) fn property_string(&self, unique_id: &str) -> Result<String, ClientError> {
        let mut writer = PropertiesWriter::new();
        self.put_properties(unique_id, &mut writer)?;
        Ok(writer.as_str().to_owned())
    }

    /// As [`Message::property_string`], into a writer that is used again and again.
    pub(crate) fn put_properties(&self, unique_id: &str, writer: &mut PropertiesWriter) -> Result<(), ClientError> {
        writer.clear();
        for (name, value) in &self.properties {
            if [name, value].iter().any(|text| text.contains(['\u{1}', '\u{2}'])) {
                return Err(ClientError::Invalid(format!(
                    "property {name:?} holds a character that separates properties"
                )));
            }
            writer.put(name, value);
        }
        if self.get(name::UNIQ_KEY).is_none() {
            writer.put(name::UNIQ_KEY, unique_id);
        }
        Ok(())
    }

    /// Whether the answer waits for the disk, where the broker's settings say so. Without the property it does; Java's client says so in
    /// each message, which are ten bytes of the log.
    pub(crate) fn waits(&self) -> bool {
        self.get(name::WAIT).is_none_or(|value| value.eq_ignore_ascii_case("true"))
    }

    /// What it takes in memory while it waits in a batch, about.
    pub(crate) fn held_bytes(&self) -> usize {
        let properties: usize = self.properties.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        OVERHEAD_BYTES + self.body.len() + properties
    }
}

/// A message that came from a broker.
#[derive(Clone, Debug)]
pub struct Received {
    /// The topic it was sent to, also when it comes again through the retry topic.
    pub topic: String,
    /// The broker that keeps it; of a static topic the name that stands for all of them.
    pub broker_name: Arc<str>,
    /// Its queue there.
    pub queue_id: i32,
    /// Its place in the queue; in a static topic's queue its logical one.
    pub queue_offset: i64,
    /// Its place in the broker's log.
    pub log_offset: i64,
    /// The id that its producer gave it, or else its place as an id.
    pub message_id: String,
    /// Its place as an id: address and log offset.
    pub offset_message_id: String,
    /// The body, decompressed; as it is stored when [`Received::unreadable`] says why that failed.
    pub body: Bytes,
    /// Why the body could not be decompressed. A producer may state a compression that the body does not have.
    pub unreadable: Option<String>,
    /// The property string.
    pub properties: String,
    /// The user's own value.
    pub flag: i32,
    /// See [`protocol::sys_flag`].
    pub sys_flag: i32,
    /// The producer's clock.
    pub born_timestamp: i64,
    /// The producer's address.
    pub born_host: SocketAddr,
    /// The broker's clock.
    pub store_timestamp: i64,
    /// The broker's address.
    pub store_host: SocketAddr,
    /// How often it was given back.
    pub reconsume_times: i32,
}

impl Received {
    /// The value of a property.
    pub fn property(&self, name: &str) -> Option<&str> {
        properties::get(&self.properties, name)
    }

    /// Its tag.
    pub fn tag(&self) -> Option<&str> {
        self.property(name::TAGS)
    }
}

/// Reads the records that a pull brought. Each body has memory of its own, or most of that of `records`: a message that is kept
/// for long does not keep all those that came with it.
///
/// A body that cannot be decompressed is handed out as it is, with the reason beside it: one bad message must not keep those behind
/// it from their consumer. Records that do not fit together are an error: then nothing says where the next one begins.
///
/// A batch of a BatchCQ topic is taken apart; one that cannot be is handed out as one message, as it is.
pub fn decode(records: &Bytes, broker_name: &Arc<str>) -> Result<Vec<Received>, ClientError> {
    decode_from(records, broker_name, i64::MIN)
}

/// As [`decode`], for whoever asked for `first` and what follows it: of a batch, which comes as a whole, nothing before that.
pub(crate) fn decode_from(records: &Bytes, broker_name: &Arc<str>, first: i64) -> Result<Vec<Received>, ClientError> {
    let mut messages = Vec::new();
    let mut rest = &records[..];
    while !rest.is_empty() {
        let view = match scan(rest, false).map_err(|error| ClientError::malformed("a record", error))? {
            Scanned::Record(view) => view,
            Scanned::Blank { .. } | Scanned::Nothing => {
                return Err(ClientError::malformed("a record", "it ends before its length says"));
            }
        };
        let (body, unreadable) = match open(&view) {
            Ok(Some(opened)) => (opened.into(), None),
            Ok(None) => (kept(records, view.body()), None),
            Err(error) => (kept(records, view.body()), Some(error.to_string())),
        };
        let mut offset_message_id = String::new();
        protocol::message_id::offset_message_id(&mut offset_message_id, view.store_host(), view.log_offset());
        let topic = match view.property(name::RETRY_TOPIC) {
            Some(origin) if protocol::names::is_retry_topic(view.topic()) => origin,
            Some(_) | None => view.topic(),
        };
        let received = Received {
            topic: topic.to_owned(),
            broker_name: Arc::clone(broker_name),
            queue_id: view.queue_id(),
            queue_offset: view.queue_offset() as i64,
            log_offset: view.log_offset() as i64,
            message_id: view.property(name::UNIQ_KEY).map_or_else(|| offset_message_id.clone(), str::to_owned),
            offset_message_id,
            body,
            unreadable,
            properties: view.properties().into_owned(),
            flag: view.flag(),
            sys_flag: view.sys_flag(),
            born_timestamp: view.born_timestamp(),
            born_host: view.born_host(),
            store_timestamp: view.store_timestamp(),
            store_host: view.store_host(),
            reconsume_times: view.reconsume_times(),
        };
        take_apart(received, view.property(name::INNER_BASE), first, &mut messages);
        rest = &rest[view.total_size()..];
    }
    Ok(messages)
}

/// Adds a message, or those from `first` on in it if it is a batch. `base` is the queue offset of the batch's first one.
fn take_apart(mut whole: Received, base: Option<&str>, first: i64, messages: &mut Vec<Received>) {
    const BATCH: i32 = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    if whole.sys_flag & BATCH != BATCH || whole.unreadable.is_some() {
        messages.push(whole);
        return;
    }
    let inner: Result<Vec<_>, _> = batch::iter(&whole.body).collect();
    let base = base.and_then(|base| base.parse::<i64>().ok()).unwrap_or(whole.queue_offset);
    match inner {
        Ok(inner) => {
            // The base is whatever the record says; a range from it on would overflow.
            let offsets = (0_i64..).map(|distance| base.saturating_add(distance));
            let wanted = inner.iter().zip(offsets).filter(|(_, queue_offset)| *queue_offset >= first);
            messages.extend(wanted.map(|(message, queue_offset)| {
                Received {
                    queue_offset,
                    message_id: properties::get(message.properties, name::UNIQ_KEY)
                        .map_or_else(|| whole.offset_message_id.clone(), str::to_owned),
                    body: kept(&whole.body, message.body),
                    properties: message.properties.to_owned(),
                    flag: message.flag,
                    sys_flag: whole.sys_flag & !(BATCH | sys_flag::COMPRESSED | sys_flag::COMPRESSION_MASK),
                    ..whole.clone()
                }
            }));
        }
        Err(error) => {
            whole.unreadable = Some(error.to_string());
            messages.push(whole);
        }
    }
}

/// A part of `records`, to be kept: shared if it is the better part, and else copied.
fn kept(records: &Bytes, part: &[u8]) -> Bytes {
    if part.len() >= records.len() / 2 { records.slice_ref(part) } else { Bytes::copy_from_slice(part) }
}

/// The body of a record decompressed, or `None` if it is not compressed.
fn open(record: &RecordView<'_>) -> Result<Option<Vec<u8>>, CompressionError> {
    let Some(kind) = Compression::of(record.sys_flag())? else { return Ok(None) };
    decompress(kind, record.body(), BODY_BYTES_MAX).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::compression::compress;
    use protocol::record::{RecordDraft, stamp};

    #[test]
    fn a_message_that_is_sent_again_keeps_its_id() {
        let message = Message::new("t", "").property(name::UNIQ_KEY, "ITS-OWN");
        let id = message.id_or(|| "FRESH".to_owned());
        let text = message.property_string(&id).unwrap();
        assert_eq!((id.as_str(), text.matches(name::UNIQ_KEY).count()), ("ITS-OWN", 1));
        assert_eq!(properties::get(&text, name::UNIQ_KEY), Some("ITS-OWN"));
        let fresh = Message::new("t", "");
        let id = fresh.id_or(|| "FRESH".to_owned());
        assert_eq!(properties::get(&fresh.property_string(&id).unwrap(), name::UNIQ_KEY), Some("FRESH"));
    }

    fn record(topic: &str, body: &[u8], sys_flag: i32, properties: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let host = "10.0.0.1:10911".parse().unwrap();
        let draft = RecordDraft {
            topic,
            queue_id: 3,
            flag: 7,
            sys_flag,
            born_timestamp: 5,
            born_host: host,
            store_host: host,
            reconsume_times: 2,
            prepared_offset: 0,
            body,
            properties: properties.as_bytes(),
        };
        draft.encode(&mut out).unwrap();
        stamp(&mut out, 11, 4096, 6);
        out
    }

    #[test]
    fn records_of_a_pull_become_messages_and_compressed_bodies_are_opened() {
        let text = vec![b'x'; 10_000];
        let mut all = record("t", b"plain", 0, "UNIQ_KEY\u{1}id-1\u{2}TAGS\u{1}A\u{2}");
        for kind in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
            all.extend(record("t", &compress(kind, &text, 5).unwrap(), kind.bits(), ""));
        }
        all.extend(record("%RETRY%g", b"again", 0, "RETRY_TOPIC\u{1}origin\u{2}"));
        let messages = decode(&all.into(), &"b".into()).unwrap();
        let first = &messages[0];
        assert_eq!((&*first.message_id, first.tag(), &first.body[..]), ("id-1", Some("A"), &b"plain"[..]));
        assert_eq!((first.queue_id, first.queue_offset, first.log_offset, first.reconsume_times), (3, 11, 4096, 2));
        assert!(messages[1..4].iter().all(|message| message.body == text));
        assert_eq!(messages[1].message_id, "0A00000100002A9F0000000000001000");
        assert_eq!(messages[4].topic, "origin");
    }

    #[test]
    fn a_batch_that_is_one_record_becomes_its_messages_with_their_own_offsets_and_ids() {
        let mut body = Vec::new();
        for (text, id) in [("one", "ID-1"), ("two", "ID-2")] {
            let properties = format!("UNIQ_KEY\u{1}{id}\u{2}TAGS\u{1}A\u{2}");
            batch::encode(&mut body, &batch::InnerMessage { flag: 4, body: text.as_bytes(), properties: &properties })
                .unwrap();
        }
        let bits = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
        let properties = "INNER_NUM\u{1}2\u{2}INNER_BASE\u{1}40\u{2}";
        let mut all = record("t", &body, bits, properties);
        let packed = compress(Compression::Lz4, &body, 5).unwrap();
        all.extend(record("t", &packed, bits | Compression::Lz4.bits(), properties));
        all.extend(record("t", b"no batch", bits, properties));
        let last = format!("INNER_BASE\u{1}{}\u{2}", i64::MAX);
        let far = decode(&record("t", &body, bits, &last).into(), &"b".into()).unwrap();
        assert!(far.iter().all(|message| message.queue_offset == i64::MAX) && far.len() == 2);
        let all: Bytes = all.into();
        let rest: Vec<i64> =
            decode_from(&all, &"b".into(), 41).unwrap().iter().map(|message| message.queue_offset).collect();
        assert_eq!(rest, [41, 41, 11]);
        let messages = decode(&all, &"b".into()).unwrap();
        assert_eq!(messages.len(), 5);
        for pair in [&messages[..2], &messages[2..4]] {
            for (message, (offset, text, id)) in pair.iter().zip([(40, "one", "ID-1"), (41, "two", "ID-2")]) {
                assert_eq!(
                    (message.queue_offset, &message.body[..], &*message.message_id),
                    (offset, text.as_bytes(), id)
                );
                assert_eq!((message.tag(), message.flag, message.sys_flag), (Some("A"), 4, 0));
            }
        }
        assert!(messages[4].unreadable.is_some() && messages[4].body == "no batch");
    }

    #[test]
    fn a_small_body_does_not_keep_the_memory_of_a_whole_pull() {
        let (small, large) = (record("t", b"small", 0, ""), record("t", &[7; 10_000], 0, ""));
        let all: Bytes = [small, large].concat().into();
        let messages = decode(&all, &"b".into()).unwrap();
        let within = |body: &Bytes| all.as_ptr_range().contains(&body.as_ptr());
        assert_eq!((within(&messages[0].body), within(&messages[1].body)), (false, true));
        assert_eq!((&messages[0].body[..], messages[1].body.len()), (&b"small"[..], 10_000));
    }

    #[test]
    fn a_torn_or_foreign_record_is_an_error() {
        let whole = record("t", b"body", 0, "");
        for end in 1..whole.len() {
            assert!(decode(&whole[..end].to_vec().into(), &"b".into()).is_err(), "{end} bytes");
        }
        assert!(decode(&vec![7; 200].into(), &"b".into()).is_err());
    }

    #[test]
    fn a_body_that_cannot_be_decompressed_is_handed_out_as_it_is_and_those_behind_it_too() {
        let bomb = compress(Compression::Zlib, &vec![0; BODY_BYTES_MAX + 1], 9).unwrap();
        let bad =
            [(&b"not zlib"[..], Compression::Zlib.bits()), (b"of no kind", 0x401), (&bomb, Compression::Zlib.bits())];
        let mut all: Vec<u8> = bad.iter().flat_map(|(body, sys_flag)| record("t", body, *sys_flag, "")).collect();
        all.extend(record("t", b"good", 0, ""));
        let messages = decode(&all.into(), &"b".into()).unwrap();
        assert_eq!(messages.len(), 4);
        for (message, (body, _)) in messages.iter().zip(bad) {
            assert!(message.body == body && message.unreadable.is_some(), "{:?}", message.unreadable);
        }
        assert!(messages[3].body == "good" && messages[3].unreadable.is_none());
    }

    #[test]
    fn properties_keep_their_order_and_may_not_hold_separators() {
        let message = Message::new("t", "b").tag("A").key("k").property("n", "1").property("n", "2");
        let text = message.property_string("id").unwrap();
        assert_eq!(text, "TAGS\u{1}A\u{2}KEYS\u{1}k\u{2}n\u{1}2\u{2}UNIQ_KEY\u{1}id\u{2}");
        assert!(Message::new("t", "b").property("n", "a\u{1}b").property_string("id").is_err());
    }
}
