//! A store that copies the log of another one, block by block, and loses its end where the other
//! one does not have it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::turns::Turns;
use env::{Clock, Random, TimeMs};
use protocol::LogOffset;
use protocol::light;
use protocol::names::SCHEDULE_TOPIC;
use protocol::properties::{PropertiesWriter, name};
use protocol::record::{self, Corrupt, INNER_BASE_PLACE};
use protocol::sys_flag;
use store::{
    AppendError, Boundary, CopyError, CutError, CutOff, IndexOptions, KeyKind, KeyQuery, LogCopy, Misfit, PoolOptions,
    RecordBatch, Store, StoreEnv, StoreOptions, TagsCode, TopicsUnknown,
};

use crate::support::*;

const BATCHES: &str = "batches";
const LIGHT: &str = "%LMQ%light";
const NOW: i64 = 1_700_000_000_000;

fn copy_options(root: &Path) -> StoreOptions {
    StoreOptions {
        index: Some(IndexOptions { slots: 7, entries: 1000, ..IndexOptions::at(root.join("index")) }),
        light_queues_max: Some(1000),
        batch_queue_file_bytes: 46 * 20,
        batch_topics: Some(|_| HashSet::from([BATCHES.to_owned()])),
        ..options(root)
    }
}

fn open_copy(root: &Path) -> (Arc<Store>, store::Recovered) {
    open_as(&copy_options(root))
}

fn copy_into(store: &Arc<Store>) -> LogCopy {
    LogCopy::new(Arc::clone(store), Box::new(|_| Ok(HashSet::from([BATCHES.to_owned()]))))
}

/// Appends messages of each kind that a store tells apart.
fn fill(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (now, mut batch) = (NOW + number as i64 * 10, RecordBatch::new());
        let body = body(number);
        match number % 4 {
            0 => {
                let queue = store.batch_queue(BATCHES, 0).unwrap();
                let properties = format!("INNER_NUM\u{1}3\u{2}{INNER_BASE_PLACE}");
                batch.push_inner_batch(&queue, TagsCode::Code(0), 3, |out| {
                    encode(BATCHES, 0, &body, properties.as_bytes(), out);
                    let flag = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
                    out[record::at::SYS_FLAG..][..4].copy_from_slice(&flag.to_be_bytes());
                });
            }
            1 => {
                let properties = PropertiesWriter::new().put(name::INNER_MULTI_DISPATCH, LIGHT).as_bytes().to_vec();
                let mut properties = properties;
                light::put_room(&mut properties, 1);
                let mut queues = vec![store.queue(LIGHT, 0).unwrap()];
                let queue = store.queue(TOPIC, 1).unwrap();
                batch.push_light(&queue, TagsCode::Code(0), &mut queues, properties.len(), |out| {
                    encode(TOPIC, 1, &body, &properties, out);
                });
            }
            2 => {
                let queue = store.queue(SCHEDULE_TOPIC, 0).unwrap();
                batch.push(&queue, TagsCode::DeliverAfterMs(1000), |out| {
                    encode(SCHEDULE_TOPIC, 0, &body, b"DELAY\x011\x02", out);
                });
            }
            _ => {
                let queue = store.queue(TOPIC, 0).unwrap();
                let keys = format!("KEYS\u{1}key-{number}\u{2}");
                batch.push(&queue, TagsCode::Code(0), |out| encode(TOPIC, 0, &body, keys.as_bytes(), out));
            }
        }
        append_batch(store, &mut batch, TimeMs(now)).unwrap();
    }
}

/// Puts a block, as soon as there is room.
fn put(store: &Store, copy: &mut LogCopy, bytes: &[u8]) -> Result<(), CopyError> {
    let deadline = deadline();
    loop {
        match copy.append(copy.next(), bytes) {
            Err(CopyError::Append(AppendError::NoRoomYet { needed })) => {
                store.room().wait_until(needed, Instant::now() + Duration::from_millis(100));
                assert!(Instant::now() < deadline, "no room up to {needed}");
            }
            done => return done,
        }
    }
}

/// Copies what is missing below `to`, in blocks of these sizes in turn.
fn feed_to(from: &Store, store: &Store, copy: &mut LogCopy, sizes: &[usize], to: u64) {
    for size in sizes.iter().cycle() {
        let at = copy.next();
        let max = (*size).min((to - at.0) as usize);
        let Some(block) = from.raw_bytes(at, max).unwrap() else { return };
        put(store, copy, block.as_ref()).unwrap();
    }
}

fn feed(from: &Store, store: &Store, copy: &mut LogCopy, sizes: &[usize]) {
    feed_to(from, store, copy, sizes, from.end().0);
}

fn files_below(dir: &Path, out: &mut BTreeMap<PathBuf, Vec<u8>>, root: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, out, root);
        } else {
            out.insert(path.strip_prefix(root).unwrap().to_owned(), std::fs::read(&path).unwrap());
        }
    }
}

fn queue_files(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for dir in ["consumequeue", "batchconsumequeue"] {
        files_below(&root.join(dir), &mut files, root);
    }
    files
}

fn log_of(store: &Store) -> Vec<u8> {
    let (mut log, mut at) = (Vec::new(), store.min_offset());
    while let Some(block) = store.raw_bytes(at, usize::MAX).unwrap() {
        log.extend_from_slice(block.as_ref());
        at.0 += block.as_ref().len() as u64;
    }
    log
}

/// Whether both give the same answers.
#[track_caller]
fn assert_same_answers(one: &Store, other: &Store, keys: std::ops::Range<u64>) {
    assert_eq!((one.min_offset(), one.end()), (other.min_offset(), other.end()));
    assert!(log_of(one) == log_of(other));
    assert_eq!(one.last_timestamp(), other.last_timestamp());
    let names = |store: &Store| store.topics().into_iter().collect::<HashSet<_>>();
    assert_eq!(names(one), names(other));
    for topic in one.topics() {
        for (id, queue) in one.queues_of(&topic) {
            let copied = other.existing_queue(&topic, id).unwrap();
            assert_eq!(format!("{queue:?}"), format!("{copied:?}"));
            assert_eq!(queue.is_batch(), copied.is_batch());
            for offset in queue.min_offset()..queue.max_offset() {
                assert_eq!(queue.span_at(offset).unwrap(), copied.span_at(offset).unwrap(), "{queue:?} {offset}");
            }
            for time in (NOW - 5..NOW + 3000).step_by(35) {
                let find = |store: &Store, queue| store.offset_by_time(queue, time, Boundary::Lower).unwrap();
                assert_eq!(find(one, &queue), find(other, &copied), "{queue:?} at {time}");
            }
        }
    }
    for number in keys {
        let query = KeyQuery {
            topic: TOPIC.into(),
            key: format!("key-{number}"),
            kind: KeyKind::Key,
            max: 8,
            begin: 0,
            end: i64::MAX,
        };
        let found = |store: &Store| {
            let answer = store.query(&query).unwrap();
            answer.found.iter().map(|found| found.bytes().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(found(one), found(other), "key-{number}");
        assert_eq!(found(one).len(), usize::from(number % 4 == 3));
    }
}

#[test]
fn a_copy_in_blocks_of_any_size_has_the_same_files_and_gives_the_same_answers() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let (store, _) = open_copy(of_copy.path());
    let mut copy = copy_into(&store);
    fill(&main, 0..250);
    assert!(main.end().0 > 2 * SEGMENT, "several files");
    feed_to(&main, &store, &mut copy, &[1, 7, 5000, 13, 100_000, 8, 450], SEGMENT + 1001);
    assert_eq!(copy.next().0, SEGMENT + 1001);
    assert!(store.end().0 <= SEGMENT + 1001);
    drop(copy);
    drop(store);
    // A start in the middle of a record.
    let (store, found) = open_copy(of_copy.path());
    assert_eq!((found.not_mended.len(), found.cut_off), (0, None));
    let mut copy = copy_into(&store);
    assert_eq!(copy.next(), store.end());
    feed(&main, &store, &mut copy, &[1, 3, 900]);
    assert_same_answers(&main, &store, 0..250);
    assert!(store.flushed().wait_until(main.end().0, deadline()));
    drop(copy);
    main.close().unwrap();
    store.close().unwrap();
    assert!(queue_files(of_main.path()) == queue_files(of_copy.path()));
    for base in (0..main.end().0).step_by(SEGMENT as usize) {
        let file = |root: &Path| std::fs::read(segment_path(root, base)).unwrap();
        assert!(file(of_main.path()) == file(of_copy.path()), "the file at {base}");
    }
    let (store, found) = open_copy(of_copy.path());
    assert_eq!((damage(&found), found.records_scanned), (vec![], 0), "it was closed as any other store");
    append(&store, TOPIC, 0, b"of its own");
}

#[test]
fn a_copy_with_a_write_pool_takes_the_same() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let pool = Some(PoolOptions { buffers: 2, buffer_bytes: 4 << 10 });
    let (store, _) = open_as(&StoreOptions { pool, ..copy_options(of_copy.path()) });
    let mut copy = copy_into(&store);
    fill(&main, 0..200);
    let deadline = deadline();
    while let Some(block) = main.raw_bytes(copy.next(), 3001).unwrap() {
        match copy.append(copy.next(), block.as_ref()) {
            Ok(()) => {}
            Err(CopyError::Append(AppendError::PoolFull { .. } | AppendError::NoRoomYet { .. })) => {
                assert!(Instant::now() < deadline, "the pool stays full");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(store.written().wait_until(main.end().0, deadline));
    assert_same_answers(&main, &store, 0..200);
}

/// A log of some messages with their places, and a store with one small buffer that gets it. The
/// threads of the store run when they are given a turn.
fn with_one_buffer(test: impl FnOnce(&[u64], &[u8], &Turns, &Arc<Store>)) {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let places: Vec<u64> = (0..4).map(|number| append(&main, TOPIC, 0, &body(number + 1)).at.0).collect();
    let log = log_of(&main);
    let turns = Turns::new(Clock::manual(TimeMs(NOW)).0, Random::seeded(1));
    let _in_charge = turns.enter();
    let pool = Some(PoolOptions { buffers: 1, buffer_bytes: 1 });
    let (store, _) = open_as(&StoreOptions { pool, ..copy_options(of_copy.path()) });
    test(&places, &log, &turns, &store);
}

#[test]
fn the_end_of_a_record_comes_again_if_the_pool_had_no_room() {
    with_one_buffer(|places, log, turns, store| {
        let mut copy = copy_into(store);
        let block = |from: u64, to: u64| &log[from as usize..to as usize];
        copy.append(LogOffset(0), block(0, places[1])).unwrap();
        let inside = places[1] + 20;
        copy.append(LogOffset(places[1]), block(places[1], inside)).unwrap();
        for _ in 0..2 {
            let full = copy.append(LogOffset(inside), block(inside, places[2]));
            assert!(matches!(full, Err(CopyError::Append(AppendError::PoolFull { .. }))), "{full:?}");
            assert_eq!((copy.next().0, store.end().0), (inside, places[1]));
        }
        for _ in 0..1000 {
            turns.give();
        }
        assert_eq!(store.written().get(), places[1]);
        copy.append(LogOffset(inside), block(inside, places[2])).unwrap();
        assert_eq!((copy.next().0, store.end().0), (places[2], places[2]));
    });
}

#[test]
fn a_cut_waits_for_the_write_pool() {
    with_one_buffer(|places, log, _, store| {
        let mut copy = copy_into(store);
        copy.append(LogOffset(0), &log[..places[1] as usize]).unwrap();
        assert_eq!((store.written().get(), store.end().0), (0, places[1]));
        store.cut_on_reopen(LogOffset(places[1])).unwrap();
    });
}

#[track_caller]
fn refused(done: Result<(), CopyError>) -> (u64, Misfit) {
    match done {
        Err(CopyError::Refused { at, why }) => (at, why),
        other => panic!("it was not refused: {other:?}"),
    }
}

#[test]
fn nothing_is_taken_of_a_damaged_record_and_all_of_what_came_before_it() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let (store, _) = open_copy(of_copy.path());
    let places: Vec<u64> = (0..8).map(|number| append(&main, TOPIC, 0, &body(number + 1)).at.0).collect();
    let log = log_of(&main);
    let changed = |at: u64, bytes: &[u8]| {
        let mut log = log.clone();
        log[at as usize..][..bytes.len()].copy_from_slice(bytes);
        log
    };
    let body_at = places[3] + record::at::BODY as u64 + 5;
    for sizes in [[usize::MAX, usize::MAX], [11, 300]] {
        for (bytes, what) in [
            (changed(body_at, &[0xFF, 0xFE]), "crc"),
            (changed(places[3] + 4, &[1]), "magic"),
            (changed(places[3], &[0x7F]), "long"),
            (changed(places[3], &[0, 0, 0, 9]), "short"),
            (changed(places[3], &[0; 8]), "zeros"),
            (changed(places[3] + record::at::LOG_OFFSET as u64, &99u64.to_be_bytes()), "place"),
            (changed(places[3], &[0, 0, 1, 0, 0xCB, 0xD4, 0x31, 0x94]), "blank"),
        ] {
            let mut copy = copy_into(&store);
            let begin = copy.next().0;
            let (mut done, mut sizes) = (Ok(()), sizes.iter().cycle());
            while done.is_ok() {
                let at = copy.next().0 as usize;
                let end = bytes.len().min(at.saturating_add(*sizes.next().unwrap()));
                assert!(at < bytes.len(), "{what} was taken");
                done = put(&store, &mut copy, &bytes[at..end]);
            }
            let (at, why) = refused(done);
            let is_it = match what {
                "crc" => matches!(why, Misfit::Corrupt(Corrupt::Crc { .. })),
                "magic" => matches!(why, Misfit::Corrupt(Corrupt::Magic(_))),
                "short" => matches!(why, Misfit::Corrupt(Corrupt::Length { .. })),
                "long" => matches!(why, Misfit::TooLong { .. }),
                "zeros" => why == Misfit::Zeros,
                "place" => why == Misfit::Elsewhere { stated: 99 },
                _ => matches!(why, Misfit::OtherFileSize { stated: 256, .. }),
            };
            assert!(is_it, "{what}: {why:?}");
            assert_eq!((at, store.end().0, copy.next().0), (places[3], places[3], places[3]), "{what} from {begin}");
            assert_eq!(read_all(&store, TOPIC, 0).len(), 3);
        }
    }
    let mut copy = copy_into(&store);
    assert!(matches!(copy.append(LogOffset(0), &log), Err(CopyError::NotNext { at: 0, next }) if next == places[3]));
    let too_long = vec![0; SEGMENT as usize];
    let across = copy.append(copy.next(), &too_long);
    assert!(matches!(across, Err(CopyError::AcrossFiles { file_end: SEGMENT, .. })), "{across:?}");
    feed(&main, &store, &mut copy, &[500]);
    assert_same_answers(&main, &store, 0..0);
}

#[test]
fn a_topic_that_began_anew_there_begins_anew_here() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let (store, _) = open_copy(of_copy.path());
    let mut copy = copy_into(&store);
    append_run(&main, 0..5);
    main.delete_topic(TOPIC);
    append_run(&main, 0..3);
    feed(&main, &store, &mut copy, &[200]);
    assert_run(&store, 0..3);
}

#[test]
fn a_copy_begins_where_the_other_log_does() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    append_run(&main, 0..400);
    assert!(main.end().0 > 2 * SEGMENT);
    main.close().unwrap();
    drop(main);
    std::fs::remove_file(segment_path(of_main.path(), 0)).unwrap();
    let (main, _) = open_copy(of_main.path());
    let begin = main.min_offset();
    assert_eq!(begin.0, SEGMENT);

    // Used before, and empty.
    let options = copy_options(of_copy.path());
    let (store, _) = open_copy(of_copy.path());
    store.close().unwrap();
    drop(store);
    let env = StoreEnv::real();
    let inside = LogCopy::begin_at(&options, &env, LogOffset(begin.0 + 1));
    assert!(matches!(inside, Err(CopyError::NotAFile { .. })), "{inside:?}");
    for _ in 0..2 {
        LogCopy::begin_at(&options, &env, begin).unwrap();
    }
    let (store, found) = open_copy(of_copy.path());
    assert_eq!((store.min_offset(), store.end(), damage(&found)), (begin, begin, vec![]));
    let mut copy = copy_into(&store);
    feed(&main, &store, &mut copy, &[5000, 3]);
    assert_same_answers(&main, &store, 0..0);
    let first = store.existing_queue(TOPIC, 0).unwrap().min_offset();
    assert!(first > 0);
    assert_run(&store, first..400);
    drop(copy);
    store.close().unwrap();
    drop(store);
    let (store, found) = open_copy(of_copy.path());
    assert_eq!((store.min_offset(), damage(&found)), (begin, vec![]));
    assert_run(&store, first..400);
    store.close().unwrap();
    drop(store);
    let full = LogCopy::begin_at(&options, &env, begin);
    assert!(matches!(full, Err(CopyError::NotEmpty { .. })), "{full:?}");
}

#[test]
fn what_is_cut_off_is_gone_from_all_that_follows_the_log_and_kept_beside_it() {
    for is_closed in [false, true] {
        let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (main, _) = open_copy(of_main.path());
        let (store, _) = open_copy(of_copy.path());
        let mut copy = copy_into(&store);
        fill(&main, 0..150);
        let common = main.end();
        feed(&main, &store, &mut copy, &[4000]);
        drop(copy);
        // What only the copy has, in this file and the next ones.
        fill(&store, 150..300);
        let end = store.end();
        assert!(end.0 / SEGMENT > common.0 / SEGMENT);
        assert!(matches!(store.cut_on_reopen(LogOffset(end.0 + 1)), Err(CutError::Outside { .. })));
        assert!(matches!(store.cut_on_reopen(LogOffset(common.0 + 8)), Err(CutError::NotARecord { .. })));
        store.cut_on_reopen(common).unwrap();
        assert_eq!(store.end(), end, "not before the next start");
        if is_closed {
            assert!(store.flushed().wait_until(end.0, deadline()));
            store.close().unwrap();
        }
        drop(store);
        let (store, found) = open_copy(of_copy.path());
        let CutOff { at, end: before, topics, kept_in } = found.cut_off.unwrap();
        assert_eq!((at, before, kept_in.clone()), (common, end, of_copy.path().join("cut")));
        assert_eq!(
            topics,
            BTreeMap::from([
                (BATCHES.to_owned(), 37 * 3),
                (SCHEDULE_TOPIC.to_owned(), 38),
                (TOPIC.to_owned(), 37 + 38),
            ])
        );
        let kept = std::fs::read(kept_in.join(format!("{:020}", common.0))).unwrap();
        assert!(
            matches!(record::scan(&kept, true), Ok(record::Scanned::Record(view)) if view.log_offset() == common.0)
        );
        assert!(store.was_abnormal() && store.may_have_lost());
        assert_same_answers(&main, &store, 0..150);

        // The new master goes on otherwise, and earlier than what was cut off.
        append_at(&main, NOW + 1501, TOPIC, 1, b"instead");
        fill(&main, 160..200);
        let mut copy = copy_into(&store);
        feed(&main, &store, &mut copy, &[777]);
        assert_same_answers(&main, &store, 0..150);
        drop(copy);
        drop(store);
        let (store, found) = open_copy(of_copy.path());
        assert_eq!((found.cut_off, found.not_mended), (None, vec![]));
        assert_same_answers(&main, &store, 0..150);
    }
}

#[test]
fn a_cut_at_the_log_s_end_and_one_at_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..200);
    let end = store.end();
    store.cut_on_reopen(LogOffset(0)).unwrap();
    // The last word counts.
    store.cut_on_reopen(end).unwrap();
    store.close().unwrap();
    drop(store);
    let (store, found) = open(dir.path());
    assert_eq!(found.cut_off.unwrap().topics, BTreeMap::new());
    assert_run(&store, 0..200);
    store.cut_on_reopen(LogOffset(0)).unwrap();
    drop(store);
    let (store, found) = open(dir.path());
    assert_eq!(found.cut_off.unwrap().topics, BTreeMap::from([(TOPIC.to_owned(), 200)]));
    assert_eq!((store.end(), read_all(&store, TOPIC, 0).len()), (LogOffset(0), 0));
    append_run(&store, 0..3);
    assert_run(&store, 0..3);
}

#[test]
fn the_last_record_is_found_by_its_queue_and_without_queues() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let (store, _) = open_copy(of_copy.path());
    assert_eq!(main.last_record(usize::MAX).unwrap(), None);
    let is_record = |store: &Store, (at, bytes): (LogOffset, usize)| {
        let raw = store.raw_bytes(at, bytes).unwrap().unwrap();
        let Ok(record::Scanned::Record(view)) = record::scan(raw.as_ref(), true) else { panic!("no record at {at}") };
        assert_eq!((view.log_offset(), view.total_size()), (at.0, bytes));
    };
    let mut number = 0;
    while main.end().0 < SEGMENT + 5000 {
        fill(&main, number..number + 1);
        number += 1;
        let (at, bytes) = main.last_record(usize::MAX).unwrap().unwrap();
        assert_eq!(at.0 + bytes as u64, main.end().0);
        is_record(&main, (at, bytes));
    }
    let last = main.last_record(usize::MAX).unwrap();
    for topic in main.topics() {
        main.delete_topic(&topic);
    }
    assert_eq!(main.last_record(usize::MAX).unwrap(), last);
    // One that is too long for whoever asks is passed over.
    let (_, bytes) = last.unwrap();
    let shorter = main.last_record(bytes - 1).unwrap().unwrap();
    assert!(shorter.1 < bytes && shorter.0 < last.unwrap().0);
    is_record(&main, shorter);
    assert_eq!(main.last_record(10).unwrap(), None);
    // Behind the last record of a file is its blank end.
    feed_to(&main, &store, &mut copy_into(&store), &[5000], SEGMENT);
    assert_eq!(store.end().0, SEGMENT);
    let (at, bytes) = store.last_record(usize::MAX).unwrap().unwrap();
    assert!(at.0 + (bytes as u64) < SEGMENT);
    is_record(&store, (at, bytes));
}

#[test]
fn the_first_record_of_a_topic_waits_until_its_queues_are_known() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let (store, _) = open_copy(of_copy.path());
    fill(&main, 0..8);
    let unknown = TopicsUnknown("nobody answers".to_owned());
    let answers = std::sync::Mutex::new(vec![Ok(HashSet::from([BATCHES.to_owned()])), Err(unknown)]);
    let kinds = move |_: &[&str]| {
        let mut answers = answers.lock().unwrap();
        if answers.len() > 1 { answers.pop().unwrap() } else { answers[0].clone() }
    };
    let mut copy = LogCopy::new(Arc::clone(&store), Box::new(kinds));
    let log = log_of(&main);
    assert!(matches!(put(&store, &mut copy, &log), Err(CopyError::Topics(_))));
    assert_eq!((copy.next(), store.end(), store.topics().len()), (LogOffset(0), LogOffset(0), 0));
    put(&store, &mut copy, &log).unwrap();
    assert!(store.existing_queue(BATCHES, 0).unwrap().is_batch());
    assert!(log_of(&store) == log);
}

#[test]
fn what_may_not_wait_leaves_new_topics_to_a_thread_that_may() {
    let (of_main, of_copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (main, _) = open_copy(of_main.path());
    let (store, _) = open_copy(of_copy.path());
    fill(&main, 0..8);
    let (mut copy, log) = (copy_into(&store), log_of(&main));
    // In parts as well: the rest of the record comes again.
    for bytes in [&log[..], &log[..100]] {
        let taken = copy.append_at_once(copy.next(), bytes);
        assert!(bytes.len() == 100 && taken.is_ok() || matches!(taken, Err(CopyError::NotAtOnce)), "{taken:?}");
        assert_eq!((store.end(), store.topics().len()), (LogOffset(0), 0));
    }
    let next = copy.next();
    assert!(matches!(copy.append_at_once(next, &log[100..]), Err(CopyError::NotAtOnce)));
    assert_eq!(copy.next(), next);
    put(&store, &mut copy, &log[100..]).unwrap();
    // Topics that are known take no thread.
    fill(&main, 8..40);
    let log = log_of(&main);
    copy.append_at_once(copy.next(), &log[copy.next().0 as usize..]).unwrap();
    assert!(log_of(&store) == log);
    assert_same_answers(&main, &store, 0..40);
}
