//! Reads: RocketMQ's statuses, limits, filters, and bytes that are not in memory.

use env::TimeMs;
use protocol::{LogOffset, tags};
use store::{Cold, Read, ReadLimits, ReadStatus, RecordAt, RecordBatch, RecordFilter, TagsCode};

use crate::support::*;

fn status(store: &store::Store, from: i64) -> (ReadStatus, i64) {
    let queue = store.queue(TOPIC, 0).unwrap();
    let read = store.read(&queue, from, &limits(32), &mut |_| true, &mut Vec::new());
    (read.status, read.next)
}

#[test]
fn a_read_outside_the_queue_is_corrected_as_rocketmq_does() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(status(&store, 0), (ReadStatus::NoMessageInQueue, 0));
    assert_eq!(status(&store, 7), (ReadStatus::NoMessageInQueue, 0));
    append_run(&store, 0..10);
    assert_eq!(status(&store, 10), (ReadStatus::OffsetOverflowOne, 10));
    assert_eq!(status(&store, 11), (ReadStatus::OffsetOverflowBadly, 10));
    assert_eq!(status(&store, i64::MAX), (ReadStatus::OffsetOverflowBadly, 10));
    assert_eq!(status(&store, -1), (ReadStatus::OffsetTooSmall, 0));
    assert_eq!(status(&store, i64::MIN), (ReadStatus::OffsetTooSmall, 0));
    assert_eq!(status(&store, 9), (ReadStatus::Found, 10));
    let (read, _) = read(&store, TOPIC, 0, 3, &limits(4));
    assert_eq!((read.min, read.max, read.next, read.count), (0, 10, 7, 4));
}

#[test]
fn each_limit_ends_a_read_and_the_first_message_always_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    for _ in 0..40 {
        append(&store, TOPIC, 0, &[1; 200]);
    }
    let one = record_bytes(200) as usize;
    let count = |limits: ReadLimits| read(&store, TOPIC, 0, 0, &limits).0.count;
    assert_eq!(count(limits(32)), 32);
    assert_eq!(count(limits(1)), 1);
    assert_eq!(count(ReadLimits { count_memory: 5, ..limits(32) }), 5);
    assert_eq!(count(ReadLimits { bytes_memory: one * 3, ..limits(32) }), 3);
    assert_eq!(count(ReadLimits { bytes_memory: one * 3 - 1, ..limits(32) }), 2);
    assert_eq!(count(ReadLimits { bytes_memory: 1, ..limits(32) }), 1);
    assert_eq!(count(ReadLimits { count_disk: 2, bytes_disk: 1, ..limits(32) }), 32, "it is in memory");
    assert_eq!(
        count(ReadLimits { scan_bytes: 0, ..limits(32) }),
        32,
        "a filter may pass over as many as are asked for"
    );
}

#[test]
fn a_filter_passes_over_what_it_does_not_want_up_to_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let queue = store.queue(TOPIC, 0).unwrap();
    let mut batch = RecordBatch::new();
    for number in 0..2000 {
        let tag = (number % 1000).to_string();
        let properties = format!("TAGS\u{1}{tag}\u{2}");
        let code = TagsCode::Code(tags::code(&tag));
        batch.push(&queue, code, |out| encode(TOPIC, 0, &body(number), properties.as_bytes(), out));
    }
    append_batch(&store, &mut batch, TimeMs(1)).unwrap();
    let read = |from: i64, tag: i64, max_count: usize| -> Read {
        let wanted = tags::code(&tag.to_string());
        store.read(&queue, from, &limits(max_count), &mut |tags| tags == wanted, &mut Vec::new())
    };
    let found = read(0, 5, 32);
    assert_eq!((found.status, found.count, found.next), (ReadStatus::Found, 1, 800));
    let nothing = read(6, 5, 32);
    assert_eq!((nothing.status, nothing.count, nothing.next), (ReadStatus::NoMatchedMessage, 0, 806));
    let one = read(0, 5, 1);
    assert_eq!((one.status, one.count), (ReadStatus::Found, 1));
    let last = read(1900, -1, 32);
    assert_eq!((last.status, last.next), (ReadStatus::NoMatchedMessage, 2000));
    let many = read(0, 5, 1000);
    assert_eq!((many.count, many.next), (1, 1000), "at least as many units as messages are asked for");
}

/// Wants every fifth record of those that it looks at, and looks at so many.
struct Looks(usize, usize);

impl RecordFilter for Looks {
    fn wants_unit(&mut self, _: i64) -> bool {
        true
    }

    fn wants_record(&mut self, _: &[u8]) -> Option<bool> {
        let Looks(left, seen) = self;
        *left = left.checked_sub(1)?;
        *seen += 1;
        Some(seen.is_multiple_of(5))
    }
}

#[test]
fn a_read_ends_before_the_record_that_its_reader_does_not_look_at_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..20);
    let queue = store.queue(TOPIC, 0).unwrap();
    let read = |from: i64, looks: usize| {
        let mut slices = Vec::new();
        let read = store.read(&queue, from, &limits(32), &mut Looks(looks, 0), &mut slices);
        (read.status, read.next, read.count, slices.len())
    };
    assert_eq!(read(3, 0), (ReadStatus::Undecided, 3, 0, 0), "it knows of nothing");
    assert_eq!(read(3, 1), (ReadStatus::NoMatchedMessage, 4, 0, 0));
    assert_eq!(read(3, 4), (ReadStatus::NoMatchedMessage, 7, 0, 0));
    assert_eq!(read(3, 5), (ReadStatus::Found, 8, 1, 1));
    assert_eq!(read(3, 12), (ReadStatus::Found, 15, 2, 2));
    assert_eq!(read(0, 100), (ReadStatus::Found, 20, 4, 4));
}

#[test]
fn after_a_restart_bytes_are_cold_until_somebody_waits_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    store.close().unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    let landed = append(&store, TOPIC, 0, &body(50));
    let impatient = ReadLimits { may_fault: false, ..limits(100) };
    let (cold, _) = read(&store, TOPIC, 0, 0, &impatient);
    assert_eq!((cold.status, cold.next, cold.count), (ReadStatus::Cold, 0, 0));
    assert_eq!(store.record_at(LogOffset(0)).unwrap_err(), Cold);
    assert!(matches!(store.record_at_cold(LogOffset(0)).unwrap(), RecordAt::Record(_)));
    assert!(store.record_at(landed.at).unwrap().is_some(), "what this process wrote is in memory");
    let (patient, _) = read(&store, TOPIC, 0, 0, &limits(100));
    assert_eq!((patient.status, patient.count), (ReadStatus::Found, 51));
    let (sender, receiver) = std::sync::mpsc::channel();
    let again = std::sync::Arc::clone(&store);
    store.cold_read(Box::new(move || sender.send(read_all(&again, TOPIC, 0).len()).unwrap())).unwrap();
    assert_eq!(receiver.recv().unwrap(), 51);
}

#[test]
fn far_bytes_come_in_the_portions_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(store::StoreOptions { hot_bytes: 4096, ..options(dir.path()) }).unwrap();
    for _ in 0..100 {
        append(&store, TOPIC, 0, &[1; 1000]);
    }
    let size = record_bytes(1000) as usize;
    let (far, _) = read(&store, TOPIC, 0, 0, &ReadLimits { count_disk: 4, ..limits(32) });
    assert_eq!(far.count, 4);
    let (far, _) = read(&store, TOPIC, 0, 0, &ReadLimits { bytes_disk: size * 2, ..limits(32) });
    assert_eq!(far.count, 2);
    let (near, _) = read(&store, TOPIC, 0, 98, &ReadLimits { count_disk: 1, ..limits(32) });
    assert_eq!(near.count, 2);
}

#[test]
fn a_read_says_where_its_last_message_lies_and_whether_the_device_is_slow_there() {
    let dir = tempfile::tempdir().unwrap();
    let crowd = store::StoreOptions { hot_bytes: 4096, cold_read_threads: 1, cold_reads_max: 4, ..options(dir.path()) };
    let (store, _) = try_open(crowd).unwrap();
    for _ in 0..20 {
        append(&store, TOPIC, 0, &[1; 1000]);
    }
    let last = |from, count| read(&store, TOPIC, 0, from, &limits(count)).0.at;
    assert_eq!(last(0, 3), Some(LogOffset(2 * record_bytes(1000))));
    assert_eq!(last(20, 3), None);

    assert!(!store.is_slow_at(LogOffset(0)), "nobody waits");
    let (let_go, waits) = std::sync::mpsc::channel::<()>();
    let (begins, begun) = std::sync::mpsc::channel();
    store
        .cold_read(Box::new(move || {
            begins.send(()).unwrap();
            let _ = waits.recv();
        }))
        .unwrap();
    begun.recv().unwrap();
    assert!(!store.is_slow_at(LogOffset(0)), "one is read, and none waits");
    store.cold_read(Box::new(|| ())).unwrap();
    assert!(store.is_slow_at(LogOffset(0)));
    assert!(!store.is_slow_at(store.end()), "in memory");
    drop(let_go);
}

#[test]
fn a_wanted_message_whose_file_is_gone_is_being_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..10);
    let queue = store.queue(TOPIC, 0).unwrap();
    store.close().unwrap();
    drop((queue, store));
    // Units of records that the log does not have any more; the last one, which a start looks at, is as it was.
    let units = std::fs::read(queue_file(dir.path(), TOPIC, 0, 0)).unwrap();
    for at in 0..9 {
        let record = u64::from_be_bytes(*units[at as usize * 20..].first_chunk().unwrap());
        overwrite(&segment_path(dir.path(), 0), record, &[0; 80]);
        overwrite(&queue_file(dir.path(), TOPIC, 0, 0), at * 20 + 8, &(70_000u32).to_be_bytes());
    }
    let (store, _) = open(dir.path());
    append(&store, TOPIC, 1, &[0; 60_000]);
    append(&store, TOPIC, 1, &[0; 60_000]);
    let (read, _) = read(&store, TOPIC, 0, 0, &limits(32));
    assert_eq!((read.status, read.count, read.next), (ReadStatus::Found, 1, 10));
    let queue = store.queue(TOPIC, 0).unwrap();
    let read = store.read(&queue, 0, &ReadLimits { scan_bytes: 100, ..limits(5) }, &mut |_| true, &mut Vec::new());
    assert_eq!((read.status, read.count, read.next), (ReadStatus::MessageWasRemoving, 0, 5));
}

#[test]
fn a_scan_shows_every_record_in_order_over_files() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..500);
    let mut seen = Vec::new();
    store
        .scan(LogOffset(0), &mut |at, record| {
            assert_eq!(at.0, record.log_offset());
            seen.push(record.body().to_vec());
        })
        .unwrap();
    assert!(seen.into_iter().eq((0..500).map(body)));
    let mut seen = 0;
    store.scan(store.end(), &mut |_, _| seen += 1).unwrap();
    assert_eq!(seen, 0);
    assert!(store.scan(LogOffset(1), &mut |_, _| {}).is_err());
}

#[test]
fn a_slice_outlives_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..3);
    let (_, slices) = read(&store, TOPIC, 0, 0, &limits(32));
    store.close().unwrap();
    drop(store);
    std::fs::remove_file(segment_path(dir.path(), 0)).unwrap();
    assert!(slices[2].as_ref().windows(8).any(|bytes| bytes == 2u64.to_be_bytes()));
    let (owner, range) = slices[1].clone().into_parts();
    assert_eq!((*owner).as_ref()[range], *slices[1].as_ref());
}

/// A client may ask for as many messages as it likes; what a filter passes over for it is bounded by what a reply can hold.
#[test]
fn asking_for_everything_does_not_have_everything_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..1000);
    let queue = store.queue(TOPIC, 0).unwrap();
    let greedy = ReadLimits { max_count: i32::MAX as usize, count_memory: 32, scan_bytes: 20 * 50, ..limits(32) };
    let mut looked_at = 0;
    let mut wants_none = |_| {
        looked_at += 1;
        false
    };
    let found = store.read(&queue, 0, &greedy, &mut wants_none, &mut Vec::new());
    assert_eq!((found.status, found.next, looked_at), (ReadStatus::NoMatchedMessage, 50, 50));
}
