//! Appends: places, numbers, files and their ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use env::TimeMs;
use proptest::prelude::*;
use protocol::record::{self, Scanned};
use store::{AppendError, RecordBatch, Store, TagsCode};

use crate::support::*;

#[test]
fn what_is_appended_is_read_back_with_its_place_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found, Default::default());
    let first = append(&store, TOPIC, 3, b"one");
    let second = append_at(&store, 1_700_000_000_007, TOPIC, 3, b"two");
    assert_eq!((first.at.0, first.queue_offset, first.store_timestamp), (0, 0, 1_700_000_000_000));
    assert_eq!((second.at, second.queue_offset, second.store_timestamp), (first.end, 1, 1_700_000_000_007));
    assert_eq!(store.end(), second.end);
    assert_eq!(read_all(&store, TOPIC, 3), [(0, b"one".to_vec()), (1, b"two".to_vec())]);
    assert_eq!(store.queues_of(TOPIC).len(), 1);
    let slice = store.record_at(second.at).unwrap().unwrap();
    assert_eq!(slice.as_ref().len() as u64, second.end.0 - second.at.0);
    assert!(store.record_at(store.end()).unwrap().is_none());
    let inside = store.record_at_cold(protocol::LogOffset(1)).unwrap();
    assert!(matches!(inside, store::RecordAt::Gone), "nobody was promised a record there: {inside:?}");
    store.close().unwrap();
}

#[test]
fn a_full_file_ends_with_the_marker_that_apache_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let size = record_bytes(1000);
    let mut last = append(&store, TOPIC, 0, &[1; 1000]);
    while last.at.0 < SEGMENT {
        last = append(&store, TOPIC, 0, &[1; 1000]);
    }
    assert_eq!(last.at.0, SEGMENT, "the record that did not fit begins the next file");
    store.close().unwrap();
    let file = std::fs::read(segment_path(dir.path(), 0)).unwrap();
    let blank_at = SEGMENT / size * size;
    let left = SEGMENT - blank_at;
    assert_eq!(file.len() as u64, SEGMENT);
    assert_eq!(file[blank_at as usize..][..4], (left as u32).to_be_bytes());
    assert_eq!(file[blank_at as usize + 4..][..4], [0xCB, 0xD4, 0x31, 0x94]);
    assert!(file[blank_at as usize + 8..].iter().all(|byte| *byte == 0));
}

#[test]
fn eight_bytes_of_every_file_stay_free_for_the_marker() {
    let overhead = record_bytes(0);
    // One record of the second size would end 8, 7 and 0 bytes before the file's end.
    for (left, is_same_file) in [(8, true), (7, false), (0, false)] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        let first = append(&store, TOPIC, 0, &[1; 30_000]);
        let fits = SEGMENT - first.end.0 - left - overhead;
        let second = append(&store, TOPIC, 0, &vec![2; fits as usize]);
        assert_eq!(second.at == first.end, is_same_file, "{left} bytes left");
        assert_eq!(second.at.0 == SEGMENT, !is_same_file);
        let third = append(&store, TOPIC, 0, b"x");
        assert_eq!(third.at.0, if is_same_file { SEGMENT } else { second.end.0 });
        store.close().unwrap();
        let (store, found) = open(dir.path());
        assert_eq!(damage(&found), Vec::<String>::new());
        assert_eq!(read_all(&store, TOPIC, 0).len(), 3);
    }
}

#[test]
fn a_group_lies_in_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append(&store, TOPIC, 0, &[0; 40_000]);
    let mut batch = RecordBatch::new();
    batch.begin_group();
    for _ in 0..40 {
        push(&store, &mut batch, TOPIC, 0, &[1; 1000]);
    }
    batch.end_group();
    push(&store, &mut batch, TOPIC, 1, b"alone");
    append_batch(&store, &mut batch, TimeMs(1)).unwrap();
    let landed = batch.landed();
    assert!(batch.is_appended());
    assert_eq!(landed[0].at.0, SEGMENT);
    assert!(
        landed[..40]
            .windows(2)
            .all(|pair| pair[0].end == pair[1].at && pair[0].queue_offset + 1 == pair[1].queue_offset)
    );
    assert_eq!((landed[40].at, landed[40].queue_offset), (landed[39].end, 0));
}

#[test]
fn a_group_over_several_queues_is_numbered_in_each() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let mut batch = RecordBatch::new();
    batch.begin_group();
    for number in 0..30 {
        push(&store, &mut batch, TOPIC, number % 3, &[number as u8]);
    }
    batch.end_group();
    append_batch(&store, &mut batch, TimeMs(1)).unwrap();
    for queue in 0..3u64 {
        let expected: Vec<_> = (0..10).map(|offset| (offset, vec![(offset * 3 + queue) as u8])).collect();
        assert_eq!(read_all(&store, TOPIC, queue as u32), expected);
    }
}

#[test]
fn a_group_that_nearly_fills_a_file_finds_room() {
    let dir = tempfile::tempdir().unwrap();
    // Larger than the stretch that a log at rest has ready.
    let bytes = 4 << 20;
    let (store, _) = try_open(store::StoreOptions { segment_bytes: bytes, ..options(dir.path()) }).unwrap();
    append(&store, TOPIC, 0, &[0; 200_000]);
    let big = append(&store, TOPIC, 0, &vec![1; (bytes - 1000) as usize]);
    assert_eq!(big.at.0, bytes);
}

#[test]
fn what_no_file_can_hold_is_refused_and_what_came_before_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let mut batch = RecordBatch::new();
    push(&store, &mut batch, TOPIC, 0, b"small");
    push(&store, &mut batch, TOPIC, 0, &vec![1; SEGMENT as usize]);
    let refused = append_batch(&store, &mut batch, TimeMs(1));
    assert!(matches!(refused, Err(AppendError::TooLong { limit, .. }) if limit == SEGMENT - 8), "{refused:?}");
    assert_eq!(batch.landed().len(), 1);
    assert_eq!(append(&store, TOPIC, 0, b"next").queue_offset, 1);
}

#[test]
fn time_does_not_run_backwards_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_at(&store, 5000, TOPIC, 0, b"");
    assert_eq!(append_at(&store, 4000, TOPIC, 0, b"").store_timestamp, 5000);
    store.close().unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(append_at(&store, 4000, TOPIC, 0, b"").store_timestamp, 5000);
    assert_eq!(store.last_timestamp(), 5000);
}

#[test]
fn the_schedule_topic_keeps_the_time_of_delivery() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let queue = store.queue("SCHEDULE_TOPIC_XXXX", 2).unwrap();
    let mut batch = RecordBatch::new();
    batch.push(&queue, TagsCode::DeliverAfterMs(10_000), |out| {
        encode("SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\x02", out);
    });
    append_batch(&store, &mut batch, TimeMs(1_000_000)).unwrap();
    let unit = queue.unit_at(0).unwrap().unwrap();
    assert_eq!(unit.tags, 1_010_000);
    // Recovery says the same.
    let crashed = image(dir.path());
    std::fs::remove_dir_all(crashed.path().join("consumequeue")).unwrap();
    let (store, found) = open(crashed.path());
    assert_eq!(found.units_added, 1);
    assert_eq!(store.existing_queue("SCHEDULE_TOPIC_XXXX", 2).unwrap().unit_at(0).unwrap(), Some(unit));
}

#[test]
fn after_the_clock_was_set_back_nobody_waits_longer_than_the_delay() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let queue = store.queue("SCHEDULE_TOPIC_XXXX", 0).unwrap();
    for (now, due) in [(1_000_000, 1_010_000), (400_000, 410_000)] {
        let mut batch = RecordBatch::new();
        batch.push(&queue, TagsCode::DeliverAfterMs(10_000), |out| {
            encode("SCHEDULE_TOPIC_XXXX", 0, b"later", b"DELAY\x013\x02", out);
        });
        append_batch(&store, &mut batch, TimeMs(now)).unwrap();
        assert_eq!(queue.unit_at(queue.max_offset() - 1).unwrap().unwrap().tags, due);
        // Store times never go back: they are searched by halves.
        assert_eq!(batch.landed()[0].store_timestamp, 1_000_000);
    }
}

#[test]
fn queues_stay_dense_under_several_appenders_and_readers() {
    const APPENDERS: u64 = 4;
    const EACH: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut appenders = Vec::new();
        for appender in 0..APPENDERS {
            let store = &store;
            appenders.push(scope.spawn(move || {
                let mut batch = RecordBatch::new();
                let mut number = 0;
                while number < EACH {
                    batch.clear();
                    for _ in 0..=number % 7 {
                        let mut body = appender.to_be_bytes().to_vec();
                        body.extend(number.to_be_bytes());
                        push(store, &mut batch, TOPIC, (number % 3) as u32, &body);
                        number += 1;
                    }
                    append_batch(store, &mut batch, TimeMs(1)).unwrap();
                }
            }));
        }
        for queue_id in 0..3 {
            let (store, is_done) = (&store, &is_done);
            scope.spawn(move || {
                let queue = store.queue(TOPIC, queue_id).unwrap();
                let mut next = 0;
                let mut seen = [None::<u64>; APPENDERS as usize];
                let mut out = Vec::new();
                loop {
                    let is_last = is_done.load(Ordering::SeqCst);
                    out.clear();
                    let read = store.read(&queue, next, &limits(32), &mut |_| true, &mut out);
                    for slice in &out {
                        let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), true) else {
                            panic!("torn record")
                        };
                        assert_eq!(view.queue_offset(), next as u64);
                        next += 1;
                        let (appender, number) = view.body().split_at(8);
                        let number = u64::from_be_bytes(number.try_into().unwrap());
                        let seen = &mut seen[u64::from_be_bytes(appender.try_into().unwrap()) as usize];
                        assert!(seen.is_none_or(|before| before < number), "an appender's order is kept");
                        *seen = Some(number);
                    }
                    assert_eq!(read.next, next);
                    if is_last && next == queue.max_offset() as i64 {
                        return;
                    }
                }
            });
        }
        for appender in appenders {
            appender.join().unwrap();
        }
        is_done.store(true, Ordering::SeqCst);
    });
    let count: usize = (0..3).map(|queue| read_all(&store, TOPIC, queue).len()).sum();
    assert!(count as u64 >= APPENDERS * EACH);
    store.close().unwrap();
}

#[test]
fn a_search_by_time_beside_appends_never_jumps_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_at(&store, 1_000, TOPIC, 0, b"old");
    append_at(&store, 2_000, TOPIC, 0, b"newer");
    let queue = store.queue(TOPIC, 0).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2_000 {
                append_at(&store, 3_000, TOPIC, 0, &[0; 30_000]);
            }
            is_done.store(true, Ordering::SeqCst);
        });
        while !is_done.load(Ordering::SeqCst) {
            assert_eq!(store.offset_by_time(&queue, 1_500, store::Boundary::Lower).unwrap(), 1);
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Append { queue: u32, bodies: Vec<usize>, is_group: bool },
    Reopen,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..3, prop::collection::vec(0usize..9000, 1..6), any::<bool>())
            .prop_map(|(queue, bodies, is_group)| Step::Append { queue, bodies, is_group }),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

fn assert_same(store: &Arc<Store>, expected: &[Vec<Vec<u8>>; 3]) {
    for (queue, bodies) in expected.iter().enumerate() {
        let numbered: Vec<_> = bodies.iter().cloned().enumerate().map(|(n, body)| (n as u64, body)).collect();
        assert!(read_all(store, TOPIC, queue as u32) == numbered, "queue {queue}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_appended_is_there_after_any_restart(steps in prop::collection::vec(step(), 1..25)) {
        let mut dir = tempfile::tempdir().unwrap();
        let (mut store, _) = open(dir.path());
        let mut expected: [Vec<Vec<u8>>; 3] = Default::default();
        for step in steps {
            match step {
                Step::Append { queue, bodies, is_group } => {
                    let mut batch = RecordBatch::new();
                    if is_group {
                        batch.begin_group();
                    }
                    for bytes in bodies {
                        let body = vec![expected[queue as usize].len() as u8; bytes];
                        push(&store, &mut batch, TOPIC, queue, &body);
                        expected[queue as usize].push(body);
                    }
                    append_batch(&store, &mut batch, TimeMs(1_700_000_000_000)).unwrap();
                }
                Step::Reopen => {
                    store.close().unwrap();
                    drop(store);
                    let (again, found) = open(dir.path());
                    prop_assert!(!found.was_abnormal && found.records_scanned == 0 && found.findings.is_empty(), "{found:?}");
                    store = again;
                    assert_same(&store, &expected);
                }
                Step::Crash => {
                    let crashed = image(dir.path());
                    store.close().unwrap();
                    drop(store);
                    dir = crashed;
                    let (again, found) = open(dir.path());
                    prop_assert!(found.was_abnormal && damage(&found).is_empty(), "{found:?}");
                    store = again;
                    assert_same(&store, &expected);
                }
            }
        }
        assert_same(&store, &expected);
        let end = store.end();
        store.close().unwrap();
        drop(store);
        let (store, found) = open(dir.path());
        prop_assert_eq!((store.end(), found.records_scanned), (end, 0));
        assert_same(&store, &expected);
    }
}
