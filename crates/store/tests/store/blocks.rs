//! The log is read again by several threads, a block at a time: what comes of it is what one thread makes of it that goes from record to
//! record, to the byte.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use proptest::prelude::*;
use protocol::light;
use protocol::properties::{PropertiesWriter, name};
use protocol::record::{self, RecordDraft};
use protocol::sys_flag;
use store::{Recovered, RecoveryOptions, Store, StoreEnv, StoreError, StoreOptions};

use crate::support::*;

const TOPICS: [&str; 5] = [TOPIC, "batches", "found", "other", "SCHEDULE_TOPIC_XXXX"];
const TIME: i64 = 1_700_000_000_000;
const BLANK_MAGIC: u32 = 0xcbd4_3194;

/// A record of a log.
#[derive(Clone, Debug)]
struct Entry {
    topic: usize,
    queue_id: u32,
    body: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Message,
    /// With so many messages, whatever the topic.
    Batch(u16),
    /// In these light queues too.
    Light(Vec<u8>),
    /// Consumers do not see it.
    Half,
    /// Its queue's numbers go on so much higher.
    Gap(u64),
    /// The topic was deleted before it, and nobody wrote that down.
    NewLife,
    /// No folder can have its topic's name.
    Strange,
    /// Its body holds a record that says that it belongs where it stands.
    Decoy,
}

/// What happens to the bytes of the log.
#[derive(Clone, Debug)]
enum Damage {
    Flip(u8),
    /// These bytes, all over a stretch.
    Stretch(usize, u8),
    /// Zeros to the log's end.
    Cut,
    /// The file ends here, and the log with it.
    Truncate,
}

#[derive(Clone, Debug)]
struct Case {
    entries: Vec<Entry>,
    /// A store was open when the log had so many of its records, in thousandths; whether it then lost a topic, and was closed.
    earlier: Option<(usize, bool, bool)>,
    /// Where, in thousandths of the log.
    damage: Vec<(usize, Damage)>,
    /// What a check-point vouches for, in thousandths of the records.
    vouched: Option<usize>,
    is_abnormal: bool,
    has_lost_queues: bool,
    has_lost_journal: bool,
}

/// A log in files of [`SEGMENT`] bytes.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    /// Where its records begin.
    records: Vec<u64>,
    numbers: HashMap<(String, u32), u64>,
    segment: usize,
}

impl Log {
    fn new(segment: u64) -> Log {
        Log { segment: segment as usize, ..Log::default() }
    }

    fn take(&mut self, topic: &str, queue_id: u32, count: u64) -> u64 {
        let next = self.numbers.entry((topic.to_owned(), queue_id)).or_default();
        *next += count;
        *next - count
    }

    fn put(&mut self, entry: &Entry) {
        let topic = if let Kind::Strange = entry.kind { "a/b" } else { TOPICS[entry.topic] };
        let (mut properties, mut flag, mut count) = (PropertiesWriter::new(), 0, 1);
        properties.put(name::TAGS, "A");
        match &entry.kind {
            Kind::Message | Kind::Strange | Kind::Decoy => {}
            Kind::Batch(messages) => {
                properties.put(name::INNER_NUM, &messages.to_string());
                flag = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
                count = u64::from(*messages);
            }
            Kind::Light(queues) => {
                let names: Vec<_> = queues.iter().map(|queue| format!("%LMQ%q{queue}")).collect();
                let numbers: Vec<_> = names.iter().map(|name| self.take(name, 0, 1).to_string()).collect();
                properties
                    .put(name::INNER_MULTI_DISPATCH, &names.join(","))
                    .put(name::INNER_MULTI_QUEUE_OFFSET, &numbers.join(","));
            }
            Kind::Half => (flag, count) = (sys_flag::TRANSACTION_PREPARED, 0),
            Kind::Gap(messages) => _ = self.take(topic, entry.queue_id, *messages),
            Kind::NewLife => self.numbers.retain(|(of, _), _| of != topic),
        }
        if entry.topic == 4 {
            properties.put(name::DELAY, "3");
        }
        let number = self.take(topic, entry.queue_id, count);
        let encode = |topic: &str, body: &[u8], at: u64| {
            let draft = RecordDraft {
                queue_id: entry.queue_id as i32,
                sys_flag: flag,
                body,
                properties: properties.as_bytes(),
                ..RecordDraft::plain(topic, "127.0.0.1:10911".parse().unwrap())
            };
            let mut bytes = Vec::new();
            draft.encode(&mut bytes).unwrap();
            record::stamp(&mut bytes, number, at, TIME + self.records.len() as i64 * 100);
            bytes
        };
        let mut body = vec![entry.body as u8; entry.body];
        if let Kind::Decoy = entry.kind {
            body.extend(encode("decoy", &[], 0));
        }
        let bytes = encode(topic, &body, 0).len();
        let left = self.segment - self.bytes.len() % self.segment;
        let at = (self.bytes.len() + if bytes + 8 > left { left } else { 0 }) as u64;
        if let Kind::Decoy = entry.kind {
            body.truncate(entry.body);
            body.extend(encode("decoy", &[], at + (record::at::BODY + entry.body) as u64));
        }
        let bytes = encode(topic, &body, at);
        if at > self.bytes.len() as u64 {
            self.bytes.extend((left as u32).to_be_bytes());
            self.bytes.extend(BLANK_MAGIC.to_be_bytes());
            self.bytes.resize(at as usize, 0);
        }
        self.bytes.extend(bytes);
        self.records.push(at);
    }

    /// Writes what lies below `end`, in files of their whole length.
    fn write(&self, root: &Path, end: usize) {
        fs::create_dir_all(root.join("commitlog")).unwrap();
        for (number, bytes) in self.bytes[..end].chunks(self.segment).enumerate() {
            let mut bytes = bytes.to_vec();
            bytes.resize(self.segment, 0);
            fs::write(segment_path(root, (number * self.segment) as u64), bytes).unwrap();
        }
    }
}

fn options_with(root: &Path, threads: usize, block_bytes: u64) -> StoreOptions {
    StoreOptions {
        recovery: RecoveryOptions { threads, block_bytes, ..RecoveryOptions::default() },
        light_queues_max: Some(1000),
        batch_queue_file_bytes: 46 * 20,
        batch_topics: Some(|_| HashSet::from(["batches".to_owned()])),
        ..options(root)
    }
}

/// Opens it on a device that nobody waits for.
fn open_with(options: StoreOptions) -> Result<(Arc<Store>, Recovered), StoreError> {
    let disk = fault_disk();
    disk.set(Fault::new(&[Call::Sync, Call::SyncDir], Files::All, How::Skipped), true);
    Store::open(options, StoreEnv { disk, ..StoreEnv::real() })
}

/// What a start found, and everything that it left: files by name, and what queues say of themselves.
#[derive(PartialEq)]
struct Outcome {
    said: Result<String, String>,
    files: BTreeMap<String, Vec<u8>>,
}

fn outcome(image_of: &Path, threads: usize, block_bytes: u64) -> Outcome {
    let dir = image(image_of);
    let said = match open_with(options_with(dir.path(), threads, block_bytes)) {
        Ok((store, found)) => {
            let said = format!("{found:#?}\nends at {}\n{:#?}", store.end().0, queues(&store));
            store.close().unwrap();
            Ok(said)
        }
        Err(error) => Err(error.to_string()),
    };
    let plain = |text: String| text.replace(dir.path().to_str().unwrap(), "");
    let mut files = BTreeMap::new();
    for part in ["commitlog", "consumequeue", "batchconsumequeue", "cut"] {
        collect(&dir.path().join(part), dir.path(), &mut files);
    }
    // How many files are made ahead is up to a thread.
    files.retain(|name, bytes| !name.starts_with("commitlog") || bytes.iter().any(|byte| *byte != 0));
    Outcome { said: said.map(plain).map_err(plain), files }
}

fn queues(store: &Store) -> Vec<String> {
    let mut topics = store.topics();
    topics.sort();
    let queues = topics.iter().flat_map(|topic| store.queues_of(topic));
    queues.map(|(_, queue)| format!("{queue:?} to {} batch {}", queue.log_end(), queue.is_batch())).collect()
}

fn collect(dir: &Path, root: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, root, files);
        } else {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            files.insert(name, fs::read(&path).unwrap());
        }
    }
}

/// What a start finds of the case.
fn prepare(case: &Case) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::new(SEGMENT);
    case.entries.iter().for_each(|entry| log.put(entry));
    if let Some((records, is_deleted, is_closed)) = case.earlier {
        let records = log.records.len() * records / 1000;
        log.write(dir.path(), log.records.get(records).map_or(log.bytes.len(), |at| *at as usize));
        let (store, _) = open_with(options_with(dir.path(), 1, 1)).unwrap();
        if is_deleted {
            store.delete_topic(TOPIC);
            let journal = store.journal();
            assert!(journal.written().wait_until(journal.position(), deadline()));
        }
        if is_closed {
            store.close().unwrap();
        }
        let crashed = image(dir.path());
        drop(store);
        return finish(case, log, crashed);
    }
    finish(case, log, dir)
}

fn finish(case: &Case, mut log: Log, dir: tempfile::TempDir) -> tempfile::TempDir {
    let root = dir.path();
    let whole = log.bytes.len();
    let mut ends = None;
    for (place, damage) in &case.damage {
        let at = whole * place / 1000;
        match damage {
            Damage::Flip(bits) => log.bytes[at] ^= bits,
            Damage::Stretch(bytes, with) => log.bytes[at..whole.min(at + bytes)].fill(*with),
            Damage::Cut => log.bytes[at..].fill(0),
            Damage::Truncate => ends = ends.max(Some(at as u64)),
        }
    }
    log.write(root, whole);
    if let Some(end) = ends {
        for entry in fs::read_dir(root.join("commitlog")).unwrap() {
            let path = entry.unwrap().path();
            let base: u64 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
            if base >= end {
                fs::remove_file(path).unwrap();
            } else if base + SEGMENT > end {
                fs::OpenOptions::new().write(true).open(path).unwrap().set_len(end - base).unwrap();
            }
        }
    }
    let gone = |name: &str| match fs::remove_dir_all(root.join(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{name}: {error}"),
        _gone => {}
    };
    if case.has_lost_queues {
        gone("consumequeue");
        gone("batchconsumequeue");
    }
    if case.has_lost_journal {
        gone("journal");
    }
    if let Some(vouched) = case.vouched {
        // 3 s are taken off again: see `checkpoint.rs`.
        let timestamp = TIME + (log.records.len() * vouched / 1000) as i64 * 100 + 3000;
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(&timestamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&timestamp.to_be_bytes());
        fs::write(root.join("checkpoint"), bytes).unwrap();
    }
    match case.is_abnormal {
        true => fs::write(root.join("abort"), "1").unwrap(),
        false => _ = fs::remove_file(root.join("abort")),
    }
    dir
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop_oneof![
        8 => Just(Kind::Message),
        3 => (1u16..40).prop_map(Kind::Batch),
        3 => prop::collection::vec(0u8..6, 1..4).prop_map(Kind::Light),
        1 => Just(Kind::Half),
        1 => (1u64..5).prop_map(Kind::Gap),
        1 => Just(Kind::NewLife),
        1 => Just(Kind::Strange),
        2 => Just(Kind::Decoy),
    ];
    let body = prop_oneof![6 => 0usize..900, 1 => 900usize..9000];
    (0usize..TOPICS.len(), 0u32..3, body, kind).prop_map(|(topic, queue_id, body, kind)| Entry {
        topic,
        queue_id,
        body,
        kind,
    })
}

fn case() -> impl Strategy<Value = Case> {
    let damage = prop_oneof![
        4 => (1u8..=255).prop_map(Damage::Flip),
        2 => (1usize..5000, prop_oneof![Just(0u8), Just(0xffu8), any::<u8>()]).prop_map(|(bytes, with)| Damage::Stretch(bytes, with)),
        1 => Just(Damage::Cut),
        1 => Just(Damage::Truncate),
    ];
    (
        prop::collection::vec(entry(), 20..400),
        prop::option::of((0usize..1000, any::<bool>(), any::<bool>())),
        prop::collection::vec((0usize..1000, damage), 0..4),
        prop::option::of(0usize..1100),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(entries, earlier, damage, vouched, is_abnormal, has_lost_queues, has_lost_journal)| Case {
            entries,
            earlier,
            damage,
            vouched,
            is_abnormal,
            has_lost_queues,
            has_lost_journal,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn blocks_read_by_several_threads_make_what_one_thread_makes_record_by_record(case in case()) {
        let dir = prepare(&case);
        let one_by_one = outcome(dir.path(), 1, 1);
        for (threads, block_bytes) in [(1, 4 << 20), (2, 300), (4, 5000)] {
            let found = outcome(dir.path(), threads, block_bytes);
            prop_assert_eq!(&found.said, &one_by_one.said, "{} threads, blocks of {}", threads, block_bytes);
            for name in found.files.keys().chain(one_by_one.files.keys()) {
                let is_same = found.files.get(name) == one_by_one.files.get(name);
                prop_assert!(is_same, "{} with {} threads, blocks of {}", name, threads, block_bytes);
            }
        }
    }
}

/// A log of 12 MiB in one file, each of whose records stands in a thousand places.
#[test]
fn a_block_with_more_places_than_it_may_have_is_read_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::new(64 << 20);
    let names: Vec<_> = (0..light::QUEUES_PER_MESSAGE_MAX).map(|place| (place % 20) as u8).collect();
    while log.bytes.len() < 12 << 20 {
        log.put(&Entry { topic: 0, queue_id: 0, body: 10, kind: Kind::Light(names.clone()) });
    }
    log.write(dir.path(), log.bytes.len());
    fs::write(dir.path().join("abort"), "1").unwrap();
    let open = |threads, block_bytes| {
        let dir = image(dir.path());
        let options = StoreOptions {
            segment_bytes: 64 << 20,
            queue_file_bytes: 20 << 20,
            ..options_with(dir.path(), threads, block_bytes)
        };
        let (store, found) = open_with(options).unwrap();
        let said = (found.records_scanned, found.units_added, found.findings, queues(&store));
        store.close().unwrap();
        said
    };
    let records = log.records.len() as u64;
    let alone = open(1, 1);
    assert_eq!((alone.0, alone.1), (records, records * 1001));
    assert_eq!(open(3, 4 << 20), alone);
}

/// Blocks that begin inside of a body find what looks like a record there.
#[test]
fn what_looks_like_a_record_inside_of_a_body_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::new(SEGMENT);
    (0..200).for_each(|_| log.put(&Entry { topic: 0, queue_id: 0, body: 1500, kind: Kind::Decoy }));
    log.write(dir.path(), log.bytes.len());
    fs::write(dir.path().join("abort"), "1").unwrap();
    for block_bytes in [500, 1000, 3000, 10_000] {
        let dir = image(dir.path());
        let (store, found) = open_with(options_with(dir.path(), 3, block_bytes)).unwrap();
        assert_eq!((found.records_scanned, found.units_added, &found.findings[..]), (200, 200, &[][..]));
        assert_eq!((store.topics().len(), store.end().0), (1, log.bytes.len() as u64));
        store.close().unwrap();
    }
}

#[test]
fn a_start_that_cannot_apply_what_its_threads_read_fails_and_does_not_wait_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::new(4 << 20);
    (0..4000).for_each(|_| log.put(&Entry { topic: 0, queue_id: 0, body: 500, kind: Kind::Message }));
    log.write(dir.path(), log.bytes.len());
    fs::write(dir.path().join("abort"), "1").unwrap();
    let disk = fault_disk();
    disk.set(QUEUES_FULL, true);
    let options = StoreOptions { queue_buffered_bytes: 10_000, ..options_with(dir.path(), 3, 10_000) };
    let env = StoreEnv { disk: Arc::clone(&disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    let refused = Store::open(options.clone(), env.clone()).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("consumequeue"), "{refused}");
    disk.set(QUEUES_FULL, false);
    let (store, found) = Store::open(options, env).unwrap();
    assert_eq!((found.records_scanned, store.existing_queue(TOPIC, 0).unwrap().max_offset()), (4000, 4000));
}
