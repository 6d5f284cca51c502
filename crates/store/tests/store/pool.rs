//! The write pool: what gathers is stored when it is written, in order, and nobody waits for the device but who asked for an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use env::TimeMs;
use protocol::light;
use protocol::properties::{PropertiesWriter, name};
use store::{
    AppendError, Boundary, FlushMode, IndexOptions, KeyKind, KeyQuery, MessageKeys, PoolOptions, ReadStatus,
    RecordBatch, Store, StoreOptions, TagsCode,
};

use crate::support::*;

fn pooled(buffers: usize, buffer_bytes: usize, options: StoreOptions) -> StoreOptions {
    StoreOptions { pool: Some(PoolOptions { buffers, buffer_bytes }), ..options }
}

/// Appends message number `number` of a run, and waits for nothing.
fn gather(store: &Store, number: u64) -> Result<u64, AppendError> {
    let mut batch = RecordBatch::new();
    push(store, &mut batch, TOPIC, 0, &body(number));
    store.append(&mut batch, TimeMs(1_700_000_000_000)).map(|()| batch.landed()[0].end.0)
}

#[track_caller]
fn wait_until_written(store: &Store) {
    let end = store.end().0;
    assert!(store.written().wait_until(end, deadline()), "{end} is not written: {:?}", store.written());
}

#[test]
fn what_gathers_is_in_the_files_in_its_order_also_after_a_stop_and_in_the_other_mode() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(pooled(3, 4000, options(dir.path()))).unwrap();
    append_run(&store, 0..5000);
    // Nobody waits for these.
    store.close().unwrap();
    assert_eq!(store.written().get(), store.end().0);
    drop(store);
    let (store, found) = try_open(options(dir.path())).unwrap();
    assert!(!found.was_abnormal && found.findings.is_empty(), "{found:?}");
    assert!(store.end().0 > 10 * SEGMENT);
    assert_run(&store, 0..5000);
    append_run(&store, 5000..5100);
    store.close().unwrap();
    drop(store);
    let (store, _) = try_open(pooled(1, 100, options(dir.path()))).unwrap();
    append_run(&store, 5100..6000);
    wait_until_written(&store);
    assert_run(&store, 0..6000);
}

#[test]
fn nothing_is_seen_before_it_is_written_and_a_standing_device_holds_up_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let index = Some(IndexOptions { slots: 7, entries: 100, ..IndexOptions::at(dir.path().join("index")) });
    let (store, _) = open_on(&disk, pooled(4, 64 << 10, StoreOptions { index, ..options(dir.path()) }));
    let first = append(&store, TOPIC, 0, b"one");
    wait_until_written(&store);
    let _resumes = until_dropped(&disk, LOG_WRITES_STALLED);
    let second = append(&store, TOPIC, 0, b"two");
    // On top of what the thread has in hand.
    append_run(&store, 2..9);
    assert_eq!((store.written().get(), store.confirmed().get()), (first.end.0, first.end.0));
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert_eq!((store.visible_end(&queue), queue.max_offset()), (1, 9));
    assert_eq!([0, 1, 8].map(|offset| store.is_visible(&queue, offset)), [true, false, false]);
    let (seen, _) = read(&store, TOPIC, 0, 0, &limits(32));
    assert_eq!((seen.status, seen.count, seen.max), (ReadStatus::Found, 1, 1));
    let (seen, _) = read(&store, TOPIC, 0, 1, &limits(32));
    assert_eq!((seen.status, seen.next), (ReadStatus::OffsetOverflowOne, 1));
    let (seen, _) = read(&store, TOPIC, 0, 50, &limits(32));
    assert_eq!((seen.status, seen.next), (ReadStatus::OffsetOverflowBadly, 1));
    assert!(store.record_at(second.at).unwrap().is_none());
    // A group that is put back in time finds the place, and does not pass over what is not written.
    assert_eq!(store.offset_by_time(&queue, 1_700_000_000_000, Boundary::Lower).unwrap(), 0);
    assert_eq!(store.offset_by_time(&queue, 1_700_000_000_001, Boundary::Lower).unwrap(), 1);
    // The journal, and questions by key, go on.
    let position = store.journal().put(journal::TableId(9), b"key", b"value");
    assert!(store.journal().written().wait_until(position, deadline()));
    let query = KeyQuery { topic: TOPIC.into(), key: "k".into(), kind: KeyKind::Key, max: 32, begin: 0, end: i64::MAX };
    assert!(store.query(&query).unwrap().found.is_empty());
    assert!(store.flushed().wait_until(first.end.0, deadline()));
    disk.set(LOG_WRITES_STALLED, false);
    assert!(store.confirmed().wait_until(store.end().0, deadline()));
    assert_eq!((store.visible_end(&queue), read_all(&store, TOPIC, 0).len()), (9, 9));
    assert!(store.flushed().wait_until(store.end().0, deadline()));
    store.close().unwrap();
}

#[test]
fn with_sync_flush_it_is_shown_when_it_is_on_the_device() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, pooled(4, 4000, StoreOptions { flush: FlushMode::Sync, ..options(dir.path()) }));
    append_run(&store, 0..500);
    assert!(store.confirmed().wait_until(store.end().0, deadline()));
    let _resumes = until_dropped(&disk, STALLED);
    let landed = append(&store, TOPIC, 0, &body(500));
    assert!(store.written().wait_until(landed.end.0, deadline()));
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert_eq!((store.confirmed().get(), store.visible_end(&queue)), (landed.at.0, 500));
    disk.set(STALLED, false);
    assert!(store.confirmed().wait_until(landed.end.0, deadline()));
    assert_run(&store, 0..501);
}

#[test]
fn a_full_pool_says_so_takes_nothing_more_and_goes_on_when_the_device_does() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, pooled(4, 2000, StoreOptions { segment_bytes: 1 << 20, ..options(dir.path()) }));
    assert_eq!(store.free_buffers(), Some(4));
    let _resumes = until_dropped(&disk, LOG_WRITES_STALLED);
    let mut taken = 0;
    let refused = loop {
        match gather(&store, taken) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
        assert!(store.end().0 <= 8000, "the pool has no end");
    };
    let AppendError::PoolFull { waiting, limit, from } = refused else { panic!("{refused}") };
    assert_eq!((waiting, limit, from), (store.end().0, 8000, 0));
    assert!(refused.to_string().contains("8000 (transientStorePoolSize"), "{refused}");
    assert_eq!(store.free_buffers(), Some(0));
    // One that is larger than what is left is refused as a whole, and so is one that is larger than all.
    let mut large = RecordBatch::new();
    push(&store, &mut large, TOPIC, 0, &[7; 20_000]);
    assert!(
        matches!(store.append(&mut large, TimeMs(1)), Err(AppendError::PoolFull { .. })) && large.landed().is_empty()
    );
    disk.set(LOG_WRITES_STALLED, false);
    assert!(store.written().wait_until(from + 1, deadline()));
    append_batch(&store, &mut large, TimeMs(1)).unwrap();
    for number in taken + 1..taken + 200 {
        append(&store, TOPIC, 0, &body(number));
    }
    wait_until_written(&store);
    let found = read_all(&store, TOPIC, 0);
    assert_eq!(found.len() as u64, taken + 200);
    for (offset, bytes) in found {
        assert_eq!(bytes, if offset == taken { vec![7; 20_000] } else { body(offset) });
    }
    eventually("free buffers", || store.free_buffers() == Some(4));
}

#[test]
fn many_who_append_share_a_write_and_none_waits_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) =
        open_on(&disk, pooled(2, 16 << 10, StoreOptions { segment_bytes: 1 << 20, ..options(dir.path()) }));
    std::thread::scope(|scope| {
        for queue in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for number in 0..500 {
                    let landed = append(store, TOPIC, queue, &body(number));
                    // There is no timer behind it: a lost wake-up would wait for ever.
                    assert!(store.written().wait_until(landed.end.0, deadline()));
                }
            });
        }
    });
    for queue in 0..4 {
        let bodies: Vec<_> = read_all(&store, TOPIC, queue).into_iter().map(|(_, body)| body).collect();
        assert!(bodies == (0..500).map(body).collect::<Vec<_>>());
    }
    disk.forget_notes();
    let _resumes = until_dropped(&disk, LOG_WRITES_STALLED);
    for number in 0..40 {
        append(&store, TOPIC, 0, &body(number)[..8]);
    }
    disk.set(LOG_WRITES_STALLED, false);
    wait_until_written(&store);
    // What the thread had in hand, and all the rest.
    let writes = disk.count(&[Call::Write], &LOG);
    assert!(writes <= 3, "{writes}");
    store.close().unwrap();
}

#[test]
fn a_kill_leaves_what_was_written_and_the_queues_end_there() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) =
        open_on(&disk, pooled(4, 64 << 10, StoreOptions { queue_buffered_bytes: 20 * 100, ..options(dir.path()) }));
    append_run(&store, 0..200);
    wait_until_written(&store);
    let _resumes = until_dropped(&disk, LOG_WRITES_STALLED);
    append_run(&store, 200..230);
    // The queue's file is ahead of the log.
    let queue = queue_file(dir.path(), TOPIC, 0, 2 * 2000);
    let has_unit = |number: usize| {
        // It may be there, and have no length yet.
        let units = std::fs::read(&queue).unwrap_or_default();
        units.chunks(20).nth(number % 100).is_some_and(|unit| unit.iter().any(|byte| *byte != 0))
    };
    eventually("units in the queue's file", || has_unit(229));
    let killed = image(dir.path());
    disk.set(LOG_WRITES_STALLED, false);
    drop(store);
    let (store, found) = try_open(pooled(4, 64 << 10, options(killed.path()))).unwrap();
    assert!(found.was_abnormal);
    assert_run(&store, 0..200);
    append_run(&store, 200..300);
    wait_until_written(&store);
    assert_run(&store, 0..300);
    store.close().unwrap();
    drop(store);
    let (store, _) = open(killed.path());
    assert_run(&store, 0..300);
}

#[test]
fn the_check_point_vouches_for_nothing_that_waits_in_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, pooled(4, 64 << 10, options(dir.path())));
    let put = |at: i64, number: u64| append_at(&store, at, TOPIC, 0, &body(number)).end.0;
    assert!(store.flushed().wait_until(put(1_000, 0), deadline()));
    let _resumes = until_dropped(&disk, LOG_WRITES_STALLED);
    put(2_000_000, 1);
    // The check-point moves to the first.
    let marks = || std::fs::read(dir.path().join("checkpoint")).unwrap();
    let log_time = |marks: &[u8]| i64::from_be_bytes(marks[..8].try_into().unwrap());
    eventually("the check-point", || log_time(&marks()) >= 1_000);
    assert_eq!(log_time(&marks()), 1_000);
    assert_eq!(store.last_timestamp(), 1_000);
    disk.set(LOG_WRITES_STALLED, false);
    eventually("the check-point", || log_time(&marks()) == 2_000_000);
}

#[test]
fn groups_of_records_light_queues_and_keys_come_through_a_pool_as_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let index = Some(IndexOptions { slots: 100, entries: 10_000, ..IndexOptions::at(dir.path().join("index")) });
    let options = StoreOptions { index, light_queues_max: Some(100), ..options(dir.path()) };
    let (store, _) = try_open(pooled(2, 3000, options)).unwrap();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Somebody asks all the time, so that the index follows at the log's heels.
        scope.spawn(|| {
            while !has_ended.load(Ordering::SeqCst) {
                find(&store, "key-0");
            }
        });
        for number in 0..300_u64 {
            append_several(&store, number);
        }
        wait_until_written(&store);
        has_ended.store(true, Ordering::SeqCst);
    });
    assert_eq!(read_all(&store, TOPIC, 0).len(), 600);
    assert_eq!(read_all(&store, TOPIC, 1).len(), 300);
    let light_queue = store.existing_queue("%LMQ%one", 0).unwrap();
    assert_eq!(light_queue.max_offset(), 300);
    for number in 0..300 {
        assert_eq!(find(&store, &format!("key-{number}")), 1, "{number}");
    }
    store.close().unwrap();
}

/// A record in a light queue, and a group of two with a key.
fn append_several(store: &Arc<Store>, number: u64) {
    let mut batch = RecordBatch::new();
    let mut properties = PropertiesWriter::new().put(name::INNER_MULTI_DISPATCH, "%LMQ%one").as_bytes().to_vec();
    light::put_room(&mut properties, 1);
    let mut queues = vec![store.queue("%LMQ%one", 0).unwrap()];
    let queue = store.queue(TOPIC, 0).unwrap();
    batch.push_light(&queue, TagsCode::Code(0), &mut queues, properties.len(), |out| {
        encode(TOPIC, 0, &body(number), &properties, out);
    });
    let key = format!("key-{number}");
    let keys = MessageKeys { keys: &key, ..MessageKeys::default() };
    let text = format!("KEYS\u{1}{key}\u{2}");
    batch.push_with_keys(&queue, TagsCode::Code(0), &keys, |out| encode(TOPIC, 0, &body(number), text.as_bytes(), out));
    push(store, &mut batch, TOPIC, 1, &body(number));
    append_batch(store, &mut batch, TimeMs(1_700_000_000_000)).unwrap();
}

fn find(store: &Store, key: &str) -> usize {
    let query = KeyQuery { topic: TOPIC.into(), key: key.into(), kind: KeyKind::Key, max: 32, begin: 0, end: i64::MAX };
    store.query(&query).unwrap().found.len()
}

#[test]
fn a_pool_at_rest_takes_messages_at_once_and_after_a_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(pooled(2, 4 << 20, options(dir.path()))).unwrap();
    for number in 0..20 {
        let end = gather(&store, number).unwrap();
        let soon = std::time::Instant::now() + Duration::from_secs(3);
        assert!(store.written().wait_until(end, soon), "no period, no least size: {number}");
    }
}
