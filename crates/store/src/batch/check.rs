//! What an append tells queues and index of its records, held against what follows from them (`fold.rs`). Builds with debug
//! assertions do so at each append.

use std::sync::Arc;

use env::TimeMs;
use protocol::names::SCHEDULE_TOPIC;
use protocol::properties::name;

use super::{BatchEntry, Landed, RecordBatch, TagsCode};
use crate::fold::{Fold, Follower, IndexKey, KeyOf, QueuePlace, whole_at};
use crate::queue_log::{ConsumeQueue, Span, Unit};

impl RecordBatch {
    /// The first difference among the records from number `from` on that have landed. Allocates if there is one, and for
    /// a batch that is compressed.
    pub(crate) fn difference(&self, from: usize, fold: Fold<'_>) -> Option<String> {
        let mut landed = self.entries.iter().zip(&self.landed).skip(from);
        landed.find_map(|(entry, landed)| {
            let light = &self.light[entry.light.start as usize..entry.light.end as usize];
            let hashes = entry.keys.as_ref().map(|keys| &self.hashes[keys.start as usize..keys.end as usize]);
            let mut said =
                Said { entry, landed, light, hashes, states_delay: true, places: 0, keys: 0, difference: None };
            let Some(view) = whole_at(&self.bytes[entry.bytes.clone()], landed.at.0, false) else {
                return Some(format!("no record was put at {}", landed.at));
            };
            if view.topic() == SCHEDULE_TOPIC {
                let level = view.property(name::DELAY).and_then(|level| level.parse::<i32>().ok());
                said.states_delay = level == Some(view.queue_id().saturating_add(1));
            }
            fold.show(&view, &mut said);
            let (places, keys) = (said.places, said.keys);
            said.compare(1 + light.len(), places, "places");
            said.compare(hashes.map_or(keys, <[u32]>::len), keys, "keys");
            said.difference
        })
    }
}

/// What was said of one record, and how much of it has been compared.
struct Said<'b> {
    entry: &'b BatchEntry,
    landed: &'b Landed,
    light: &'b [Arc<ConsumeQueue>],
    /// Hashes of its keys, if they were said.
    hashes: Option<&'b [u32]>,
    /// Whether the level that a delayed message states is that of its queue. One that waits once more, for the broker that
    /// leads its own queue (static topics), states another one; recovery goes by what it states, as Apache does.
    states_delay: bool,
    places: usize,
    keys: usize,
    difference: Option<String>,
}

impl Said<'_> {
    fn compare<T: PartialEq + std::fmt::Debug>(&mut self, said: T, follows: T, what: &str) {
        if said != follows && self.difference.is_none() {
            let at = self.landed.at;
            self.difference = Some(format!("{what} of the record at {at}: {said:?} was said, and {follows:?} follows"));
        }
    }
}

impl Follower<'_> for Said<'_> {
    const TAKES_PLACES: bool = true;
    const TAKES_KEYS: bool = true;

    fn place(&mut self, place: QueuePlace<'_>) {
        let Said { entry, landed, light, .. } = *self;
        self.places += 1;
        let (queue, base, count, is_batch) = match self.places {
            1 => (&entry.queue, landed.queue_offset, entry.count(), entry.inner.is_some()),
            number => match light.get(number - 2) {
                // The number was taken from the queue under the log's lock, and stands nowhere but in the record.
                Some(queue) => (queue, place.offset.min(queue.next_offset().saturating_sub(1)), 1, false),
                None => return,
            },
        };
        let tags = match entry.tags {
            TagsCode::DeliverAfterMs(_) if !self.states_delay => place.unit.tags,
            // By the time in the record: the clock of the append may have been set back below it.
            tags @ (TagsCode::Code(_) | TagsCode::DeliverAfterMs(_)) => tags.at(TimeMs(landed.store_timestamp)),
        };
        let span = Span { unit: Unit { at: landed.at, size: (landed.end.0 - landed.at.0) as u32, tags }, base, count };
        let said = (queue.topic(), queue.id(), span, is_batch, landed.store_timestamp);
        // A batch that was popped and not acknowledged is one message of an ordinary queue, that of a retry topic.
        let is_batch = place.is_batch && queue.is_batch();
        let follows = (place.topic, place.queue_id, queue.span_of(&place), is_batch, place.store_time);
        self.compare(said, follows, "a place");
    }

    fn key(&mut self, key: IndexKey, _: KeyOf) {
        if let Some(hash) = self.hashes.and_then(|hashes| hashes.get(self.keys)) {
            let said = IndexKey { hash: *hash, at: self.landed.at.0, store_timestamp: self.landed.store_timestamp };
            self.compare(said, key, "a key");
        }
        self.keys += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::{Duration, Instant};

    use protocol::batch::{self, InnerMessage};
    use protocol::properties::PropertiesWriter;
    use protocol::record::{self, INNER_BASE_PLACE, RecordDraft};
    use protocol::{light, sys_flag, tags};

    use super::*;
    use crate::fold::MessageKeys;
    use crate::index::IndexOptions;
    use crate::options::{StoreEnv, StoreOptions};
    use crate::{AppendError, Store};

    const BATCHES: &str = "batches";
    /// Properties of the messages in a batch.
    const INNER: [&str; 3] = ["UNIQ_KEY\u{1}in-1\u{2}KEYS\u{1}a b\u{2}", "UNIQ_KEY\u{1}in-2\u{2}", "TAGS\u{1}T\u{2}"];

    /// What an append could say that is not true.
    type Lie<'l> = (&'static str, &'l dyn Fn(&mut RecordBatch));

    /// A record as a broker would store it.
    struct Shape {
        name: &'static str,
        topic: &'static str,
        queue_id: u32,
        sys_flag: i32,
        properties: &'static str,
        tags: TagsCode,
        /// Names of light queues.
        light: &'static [&'static str],
        /// Messages in a record that is a batch.
        inner: Option<u16>,
    }

    impl Shape {
        fn tagged(name: &'static str, topic: &'static str, properties: &'static str, tag: &str) -> Shape {
            let tags = TagsCode::Code(tags::code(tag));
            Shape { name, topic, queue_id: 0, sys_flag: 0, properties, tags, light: &[], inner: None }
        }

        fn append(&self, store: &Store) -> RecordBatch {
            let mut properties = self.properties.as_bytes().to_vec();
            if !self.light.is_empty() {
                let names = self.light.join(",");
                properties.extend(PropertiesWriter::new().put(name::INNER_MULTI_DISPATCH, &names).as_bytes());
                light::put_room(&mut properties, self.light.len());
            }
            let mut body = Vec::new();
            if self.inner.is_some() {
                properties.extend(INNER_BASE_PLACE.as_bytes());
                for text in INNER {
                    batch::encode(&mut body, &InnerMessage { flag: 0, body: b"inner", properties: text }).unwrap();
                }
            }
            let draft = RecordDraft {
                queue_id: self.queue_id as i32,
                sys_flag: self.sys_flag,
                body: &body,
                properties: &properties,
                ..RecordDraft::plain(self.topic, "127.0.0.1:10911".parse().unwrap())
            };
            let encode = |out: &mut Vec<u8>| {
                draft.encode(out).unwrap();
            };
            let keys = |text: &'static str| {
                let get = |key| protocol::properties::get(text, key).unwrap_or_default();
                MessageKeys { uniq_key: get(name::UNIQ_KEY), keys: get(name::KEYS), tag: get(name::TAGS) }
            };
            let mut batch = RecordBatch::new();
            if let Some(count) = self.inner {
                let queue = store.batch_queue(self.topic, self.queue_id).unwrap();
                batch.begin_keys();
                batch.say_keys_of_next(&queue, &keys(self.properties));
                INNER.iter().for_each(|text| batch.say_keys_of_next(&queue, &keys(text)));
                batch.push_inner_batch_with_keys(&queue, self.tags, count, encode);
            } else if self.light.is_empty() {
                let queue = store.queue(self.topic, self.queue_id).unwrap();
                batch.push_with_keys(&queue, self.tags, &keys(self.properties), encode);
            } else {
                let queue = store.queue(self.topic, self.queue_id).unwrap();
                let mut queues = self.light.iter().map(|name| store.queue(name, 0).unwrap()).collect();
                batch.push_light(&queue, self.tags, &mut queues, properties.len(), encode);
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            while let Err(error) = store.append(&mut batch, TimeMs(1_700_000_000_000)) {
                let AppendError::NoRoomYet { needed } = error else { panic!("{}: {error}", self.name) };
                assert!(store.room().wait_until(needed, deadline));
            }
            batch
        }
    }

    fn shapes() -> Vec<Shape> {
        let delayed = "DELAY\u{1}3\u{2}REAL_TOPIC\u{1}orders\u{2}REAL_QID\u{1}1\u{2}TAGS\u{1}red\u{2}";
        let real = "REAL_TOPIC\u{1}orders\u{2}REAL_QID\u{1}1\u{2}TRAN_MSG\u{1}true\u{2}TAGS\u{1}red\u{2}";
        let flag = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
        vec![
            Shape::tagged("plain", "orders", "", ""),
            Shape::tagged("tagged", "orders", "TAGS\u{1}red\u{2}", "red"),
            Shape::tagged("keys", "orders", "KEYS\u{1}a  b\u{2}UNIQ_KEY\u{1}id\u{2}TAGS\u{1}ü𝄞\u{2}", "ü𝄞"),
            Shape {
                queue_id: 2,
                tags: TagsCode::DeliverAfterMs(10_000),
                ..Shape::tagged("delayed", SCHEDULE_TOPIC, delayed, "")
            },
            Shape::tagged("half", "RMQ_SYS_TRANS_HALF_TOPIC", real, "red"),
            Shape::tagged("end of a half message", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TAGS\u{1}d\u{2}", "d"),
            Shape {
                queue_id: 1,
                sys_flag: sys_flag::TRANSACTION_COMMIT,
                ..Shape::tagged("committed", "orders", real, "red")
            },
            Shape::tagged("waits for its time", "rmq_sys_wheel_timer", "TIMER_OUT_MS\u{1}1700000001000\u{2}", ""),
            Shape::tagged(
                "retry",
                "%RETRY%group",
                "DELAY\u{1}3\u{2}RETRY_TOPIC\u{1}orders\u{2}TAGS\u{1}red\u{2}",
                "red",
            ),
            Shape {
                sys_flag: flag,
                inner: Some(3),
                ..Shape::tagged("inner batch", BATCHES, "UNIQ_KEY\u{1}all\u{2}INNER_NUM\u{1}3\u{2}", "")
            },
            Shape::tagged("no batch, whatever it says", "orders", "INNER_NUM\u{1}3\u{2}", ""),
            Shape { light: &["%LMQ%one"], ..Shape::tagged("lite", "parent", "__LITE_TOPIC\u{1}one\u{2}", "") },
            Shape {
                light: &["%LMQ%two", "%LMQ%one", "%LMQ%three"],
                ..Shape::tagged("dispatched to several", "orders", "TAGS\u{1}red\u{2}KEYS\u{1}k\u{2}", "red")
            },
            Shape::tagged("sent to a light queue", "%LMQ%one", "TAGS\u{1}red\u{2}", "red"),
        ]
    }

    fn options(root: &std::path::Path) -> StoreOptions {
        StoreOptions {
            segment_bytes: 1 << 20,
            index: Some(IndexOptions { slots: 7, entries: 1000, ..IndexOptions::at(root.join("index")) }),
            light_queues_max: Some(100),
            batch_topics: Some(|_| HashSet::from([BATCHES.to_owned()])),
            ..StoreOptions::at(root)
        }
    }

    #[test]
    fn an_append_says_of_each_kind_of_record_what_follows_from_it() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(options(dir.path()), StoreEnv::real()).unwrap();
        let options = options(dir.path());
        let fold = options.fold();
        for shape in shapes().iter().chain(&shapes()) {
            let batch = shape.append(&store);
            assert_eq!(batch.difference(0, fold), None, "{}", shape.name);
            // And queues have it.
            let view = whole_at(&batch.bytes, batch.landed[0].at.0, true).unwrap();
            let places: Vec<_> = fold.places(&view).collect();
            assert_eq!(places.len(), 1 + shape.light.len(), "{}", shape.name);
            for place in places {
                let queue = store.existing_queue(place.topic, place.queue_id).unwrap();
                assert_eq!(queue.span_at(place.offset).unwrap(), Some(queue.span_of(&place)), "{}", shape.name);
            }
        }
        store.close().unwrap();
    }

    #[test]
    fn what_an_append_says_otherwise_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(options(dir.path()), StoreEnv::real()).unwrap();
        let options = options(dir.path());
        let other = store.queue("other", 0).unwrap();
        let lies: [Lie<'_>; 9] = [
            ("another tag", &|batch| batch.entries[0].tags = TagsCode::Code(77)),
            ("another delay", &|batch| batch.entries[0].tags = TagsCode::DeliverAfterMs(77)),
            ("another queue", &|batch| batch.entries[0].queue = Arc::clone(&other)),
            ("another number", &|batch| batch.landed[0].queue_offset += 1),
            ("another place", &|batch| batch.landed[0].at.0 -= 1),
            ("another time", &|batch| batch.landed[0].store_timestamp += 1),
            ("a batch of other length", &|batch| batch.entries[0].inner = Some(7)),
            ("one key more", &|batch| {
                let end = batch.hashes.len() as u32 + 1;
                batch.hashes.push(7);
                batch.entries[0].keys = Some(0..end);
            }),
            ("one light queue more", &|batch| {
                batch.light.push(Arc::clone(&other));
                batch.entries[0].light = 0..batch.light.len() as u32;
            }),
        ];
        // Something lies in front of the first record.
        shapes()[0].append(&store);
        for shape in shapes() {
            for (name, lie) in &lies {
                let mut batch = shape.append(&store);
                lie(&mut batch);
                assert!(batch.difference(0, options.fold()).is_some(), "{name}: {}", shape.name);
            }
        }
        let mut batch = shapes()[1].append(&store);
        for flag in [sys_flag::TRANSACTION_PREPARED, sys_flag::TRANSACTION_ROLLBACK] {
            batch.bytes[record::at::SYS_FLAG..][..4].copy_from_slice(&flag.to_be_bytes());
            assert!(batch.difference(0, options.fold()).is_some(), "no queue has records of flag {flag}");
        }
        store.close().unwrap();
    }
}
