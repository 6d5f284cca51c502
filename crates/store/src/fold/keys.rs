//! What a record can be found by: its own keys, and those of the messages in it if it is a batch.

use std::borrow::Cow;

use protocol::batch::{self, InnerMessage};
use protocol::compression::{self, Compression};
use protocol::properties::{self, name};
use protocol::record::{RecordDraft, RecordView};
use protocol::sys_flag;

use super::is_rolled_back;

/// A batch that unpacks to more is not looked into: a consumer could hardly take it.
const UNPACKED_BYTES_MAX: usize = 16 << 20;
/// Nor one that unpacks to so many times its bytes: what looks at it costs is to be in proportion to what was sent.
const UNPACKED_TIMES_MAX: usize = 100;
/// Keys of one record that are put into the index; three for each message of the largest batch are 98,301.
pub(crate) const KEYS_OF_RECORD_MAX: usize = 100_000;
/// What a message does not have any more when it has been taken out of its batch.
const OF_BATCH: i32 = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP | sys_flag::COMPRESSED | sys_flag::COMPRESSION_MASK;

/// What a message is looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// One of its keys, or its unique id.
    Key,
    /// Its tag, which Apache's brokers index from 5.4 on.
    Tag,
}

/// What a record that is one message is found by, as its properties say. Each may be empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageKeys<'a> {
    /// `UNIQ_KEY`.
    pub uniq_key: &'a str,
    /// `KEYS`: words with blanks between them.
    pub keys: &'a str,
    /// `TAGS`.
    pub tag: &'a str,
}

/// A key of a record on its way into the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexKey {
    pub hash: u32,
    pub at: u64,
    pub store_timestamp: i64,
}

/// What a key is of. Brokers differ in which they put into the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOf {
    /// The record: its keys, or its unique id. All brokers put it.
    Record,
    /// The record: its tag. Apache's put it from 5.4 on.
    Tag,
    /// A message in a record that is a batch. Only Gantry puts it.
    Inner,
}

/// Shows the entries of a record in the key index: those of its own keys, then those of its inner messages.
pub(super) fn entries_of(record: &RecordView<'_>, mut visit: impl FnMut(IndexKey, KeyOf)) {
    if is_rolled_back(record) {
        return;
    }
    let (topic, at, store_timestamp) = (TopicHash::of(record.topic()), record.log_offset(), record.store_timestamp());
    let mut left = KEYS_OF_RECORD_MAX;
    let mut visit = |kind: KeyKind, key: &str, of: KeyOf| {
        if left > 0 {
            left -= 1;
            visit(IndexKey { hash: topic.of_key(kind, key), at, store_timestamp }, of);
        }
    };
    own(record.properties_bytes(), &mut |kind, key| {
        visit(kind, key, if kind == KeyKind::Tag { KeyOf::Tag } else { KeyOf::Record });
    });
    let Some(body) = unpacked(record) else { return };
    for inner in inner(record, &body) {
        own(inner.properties.as_bytes(), &mut |kind, key| visit(kind, key, KeyOf::Inner));
    }
}

/// Whether the record itself has this key.
pub(crate) fn has_own(record: &RecordView<'_>, kind: KeyKind, key: &str) -> bool {
    !is_rolled_back(record) && has(record.properties_bytes(), kind, key)
}

/// The first `max` inner messages with this key, each as a record of its own: with its own offset in the queue, where the batch lies in
/// the log.
pub(crate) fn inner_with(record: &RecordView<'_>, kind: KeyKind, key: &str, max: usize) -> Vec<Vec<u8>> {
    let Some(body) = unpacked(record) else { return Vec::new() };
    let inner = (0u64..).zip(inner(record, &body));
    let found = inner.filter(|(_, inner)| has(inner.properties.as_bytes(), kind, key));
    found.filter_map(|(index, inner)| as_record(record, index, &inner)).take(max).collect()
}

/// As many as the record says it holds: what is beyond has no offset in the queue.
fn inner<'a>(record: &RecordView<'_>, body: &'a [u8]) -> impl Iterator<Item = InnerMessage<'a>> {
    batch::iter(body).map_while(Result::ok).take(usize::from(record.message_count()))
}

/// The keys in a property string.
fn own(properties: &[u8], visit: &mut dyn FnMut(KeyKind, &str)) {
    let [id, keys, tag] = properties::select(properties, [name::UNIQ_KEY, name::KEYS, name::TAGS]);
    each(&MessageKeys { uniq_key: text(id), keys: text(keys), tag: text(tag) }, visit);
}

/// The keys of a message, in the order in which RocketMQ puts them into the index.
pub(crate) fn each(message: &MessageKeys<'_>, visit: &mut (impl FnMut(KeyKind, &str) + ?Sized)) {
    if !message.uniq_key.is_empty() {
        visit(KeyKind::Key, message.uniq_key);
    }
    message.keys.split(' ').filter(|key| !key.is_empty()).for_each(|key| visit(KeyKind::Key, key));
    if !message.tag.is_empty() {
        visit(KeyKind::Tag, message.tag);
    }
}

/// Nothing of what is not text.
fn text(value: Option<&[u8]>) -> &str {
    value.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or_default()
}

fn has(properties: &[u8], wanted: KeyKind, key: &str) -> bool {
    let mut has = false;
    own(properties, &mut |kind, found| has |= kind == wanted && found == key);
    has
}

/// The messages of a batch; none of what is not one, of what its producer alone can unpack, and of what is damaged.
fn unpacked<'a>(record: &RecordView<'a>) -> Option<Cow<'a, [u8]>> {
    let wanted = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    if record.sys_flag() & wanted != wanted {
        return None;
    }
    match Compression::of(record.sys_flag()).ok()? {
        None => Some(Cow::Borrowed(record.body())),
        Some(kind) => {
            let max = record.body().len().saturating_mul(UNPACKED_TIMES_MAX).min(UNPACKED_BYTES_MAX);
            compression::decompress(kind, record.body(), max).ok().map(Cow::Owned)
        }
    }
}

fn as_record(batch: &RecordView<'_>, index: u64, inner: &InnerMessage<'_>) -> Option<Vec<u8>> {
    let draft = RecordDraft {
        flag: inner.flag,
        sys_flag: batch.sys_flag() & !OF_BATCH,
        body: inner.body,
        properties: inner.properties.as_bytes(),
        ..batch.to_draft()
    };
    let mut record = Vec::with_capacity(draft.encoded_bytes());
    // A message that is too long for a record of its own would be news: the batch held it.
    draft.encode(&mut record).ok()?;
    protocol::record::stamp(&mut record, batch.queue_offset() + index, batch.log_offset(), batch.store_timestamp());
    Some(record)
}

/// RocketMQ's hash of a key in a topic.
pub(crate) fn hash_of(topic: &str, kind: KeyKind, key: &str) -> u32 {
    TopicHash::of(topic).of_key(kind, key)
}

/// The part of the hash that all keys of a topic share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopicHash(i32);

impl TopicHash {
    pub fn of(topic: &str) -> TopicHash {
        TopicHash(java_hash(0, topic))
    }

    pub fn of_key(self, kind: KeyKind, key: &str) -> u32 {
        let between = match kind {
            KeyKind::Key => "#",
            KeyKind::Tag => "#T#",
        };
        let hash = java_hash(java_hash(self.0, between), key);
        hash.checked_abs().unwrap_or(0).unsigned_abs()
    }
}

/// Goes on with Java's `String.hashCode`.
fn java_hash(hash: i32, text: &str) -> i32 {
    const P: [i32; 5] = [1, 31, 31 * 31, 31 * 31 * 31, 31 * 31 * 31 * 31];
    if !text.is_ascii() {
        return text.encode_utf16().fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    }
    // Four at a time, so that not every step waits for the multiplication of the one before.
    let (fours, rest) = text.as_bytes().as_chunks::<4>();
    let hash = fours.iter().fold(hash, |hash, four| {
        let [a, b, c, d] = four.map(i32::from);
        hash.wrapping_mul(P[4]).wrapping_add(a * P[3] + b * P[2] + c * P[1] + d)
    });
    rest.iter().fold(hash, |hash, byte| hash.wrapping_mul(31).wrapping_add(i32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_javas() {
        let by_steps =
            |text: &str| text.encode_utf16().fold(0i32, |h, u| h.wrapping_mul(31).wrapping_add(i32::from(u)));
        // "hello".hashCode() in Java.
        assert_eq!(java_hash(0, "hello"), 99_162_322);
        for length in 0..40 {
            let text: String = ('!'..).take(length).collect();
            assert_eq!(java_hash(0, &text), by_steps(&text));
            assert_eq!(java_hash(java_hash(0, "topic"), &text), by_steps(&format!("topic{text}")));
            let wide = format!("{text}ü𝄞");
            assert_eq!(java_hash(java_hash(0, "topic"), &wide), by_steps(&format!("topic{wide}")));
        }
        assert_eq!(hash_of("topic", KeyKind::Tag, "a"), by_steps("topic#T#a").unsigned_abs());
        assert_eq!(hash_of("topic", KeyKind::Key, "a"), by_steps("topic#a").unsigned_abs());
    }
}
