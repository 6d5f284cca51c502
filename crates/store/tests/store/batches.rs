//! Topics whose records hold batches of messages, through the store.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use env::TimeMs;
use protocol::record::{self, INNER_BASE_PLACE, Scanned};
use protocol::sys_flag;
use store::{Boundary, Landed, RecordBatch, Recovered, Store, StoreOptions, TagsCode};

use crate::support::*;

fn open_batches(root: &Path) -> (Arc<Store>, Recovered) {
    let batch_topics: fn(&journal::Journal) -> HashSet<String> = |_| HashSet::from([TOPIC.to_owned()]);
    try_open(StoreOptions { batch_queue_file_bytes: 46 * 20, batch_topics: Some(batch_topics), ..options(root) })
        .unwrap()
}

/// Messages in record `number` of the run; every third record is a message that was sent alone.
fn count_of(number: u64) -> u16 {
    (number % 3 * 4 + 1) as u16
}

fn base_of(number: u64) -> u64 {
    (0..number).map(|number| u64::from(count_of(number))).sum()
}

fn append_record(store: &Store, number: u64) -> Landed {
    let queue = store.batch_queue(TOPIC, 0).unwrap();
    let (mut batch, count) = (RecordBatch::new(), count_of(number));
    let properties = format!("INNER_NUM\u{1}{count}\u{2}{INNER_BASE_PLACE}");
    let body = body(number);
    if count == 1 {
        batch.push(&queue, TagsCode::Code(0), |out| encode(TOPIC, 0, &body, b"", out));
    } else {
        batch.push_inner_batch(&queue, TagsCode::Code(0), count, |out| {
            encode(TOPIC, 0, &body, properties.as_bytes(), out);
            let flag = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
            out[record::at::SYS_FLAG..][..4].copy_from_slice(&flag.to_be_bytes());
        });
    }
    append_batch(store, &mut batch, TimeMs(1_700_000_000_000 + number as i64)).unwrap();
    batch.landed()[0]
}

fn append_records(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        append_record(store, number);
    }
}

/// Whether the queue holds exactly the run of records `0..records`, from whatever offset it is read.
#[track_caller]
fn assert_records(store: &Store, records: u64) {
    let Some(queue) = store.existing_queue(TOPIC, 0) else {
        assert_eq!(records, 0);
        return;
    };
    assert!(queue.is_batch());
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, base_of(records)));
    let mut offset = 0;
    for number in 0..records {
        for _ in 0..count_of(number) {
            let mut out = Vec::new();
            let read = store.read(&queue, offset, &limits(1), &mut |_| true, &mut out);
            assert_eq!(read.count, usize::from(count_of(number)));
            assert_eq!(read.next as u64, base_of(number + 1));
            let Ok(Scanned::Record(view)) = record::scan(out[0].as_ref(), true) else { panic!("no record") };
            assert_eq!((view.queue_offset(), view.body()), (base_of(number), &body(number)[..]));
            if count_of(number) > 1 {
                assert_eq!(view.property("INNER_BASE").unwrap().parse(), Ok(base_of(number)));
            }
            offset += 1;
        }
    }
    // Many at once, which reads units in the order of their places.
    let (mut next, mut number) = (0, 0);
    while next < base_of(records) {
        let mut out = Vec::new();
        let read = store.read(&queue, next as i64, &limits(1000), &mut |_| true, &mut out);
        for slice in &out {
            let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), true) else { panic!("no record") };
            assert_eq!(view.queue_offset(), base_of(number));
            number += 1;
        }
        assert_eq!(read.next as u64, base_of(number));
        assert!(!out.is_empty());
        next = base_of(number);
    }
}

#[test]
fn offsets_advance_by_messages_and_a_read_anywhere_in_a_batch_finds_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_batches(dir.path());
    for number in 0..70 {
        assert_eq!(append_record(&store, number).queue_offset, base_of(number));
    }
    assert_records(&store, 70);
    store.close().unwrap();
    drop(store);
    let (store, found) = open_batches(dir.path());
    assert_eq!((found.was_abnormal, found.records_scanned, &found.findings[..]), (false, 0, &[][..]));
    assert_records(&store, 70);
    append_record(&store, 70);
    assert_records(&store, 71);
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    let by_time = |time: i64| store.offset_by_time(&queue, 1_700_000_000_000 + time, Boundary::Lower).unwrap();
    assert_eq!((by_time(-9), by_time(33), by_time(999)), (0, base_of(33), base_of(70)));
}

#[test]
fn several_batches_of_one_append_follow_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_batches(dir.path());
    let queue = store.batch_queue(TOPIC, 0).unwrap();
    let mut batch = RecordBatch::new();
    batch.begin_group();
    for count in [3, 2, 7] {
        let properties = format!("INNER_NUM\u{1}{count}\u{2}{INNER_BASE_PLACE}");
        batch.push_inner_batch(&queue, TagsCode::Code(0), count, |out| {
            let start = out.len();
            encode(TOPIC, 0, b"x", properties.as_bytes(), out);
            out[start + record::at::SYS_FLAG..][..4].copy_from_slice(&sys_flag::INNER_BATCH.to_be_bytes());
        });
    }
    batch.end_group();
    append_batch(&store, &mut batch, TimeMs(1)).unwrap();
    let offsets: Vec<_> = batch.landed().iter().map(|landed| landed.queue_offset).collect();
    assert_eq!((offsets, queue.max_offset()), (vec![0, 3, 5], 12));
}

#[test]
fn a_read_brings_no_more_messages_than_asked_for_but_for_the_first_batch() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_batches(dir.path());
    append_records(&store, 0..9);
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    // Batches of 1, 5, 9, 1, 5, 9 and so on.
    for (from, asked, count) in [(0, 6, 6), (0, 14, 6), (0, 15, 15), (6, 1, 9), (14, 10, 10), (0, 30, 30), (0, 32, 31)]
    {
        let mut out = Vec::new();
        let read = store.read(&queue, from, &limits(asked), &mut |_| true, &mut out);
        assert_eq!(read.count, count, "{asked} messages from {from} on");
    }
}

#[test]
fn a_crash_at_any_byte_of_the_tail_leaves_whole_batches() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_batches(dir.path());
    let mut ends = vec![0];
    for number in 0..30 {
        ends.push(append_record(&store, number).end.0);
    }
    let image = image(dir.path());
    drop(store);
    let (from, to) = (ends[28], ends[30]);
    for cut in (from..=to).step_by(47).chain([from, from + 1, ends[29], ends[29] + 1, to]) {
        let torn = crate::support::image(image.path());
        overwrite(&segment_path(torn.path(), 0), cut, &vec![0; (to - cut) as usize]);
        let (store, _) = open_batches(torn.path());
        let left = ends.iter().filter(|end| **end <= cut).count() as u64 - 1;
        if store.end().0 > ends[left as usize] {
            // The body is whole, its properties are not, for which the log has no check sum. As in Apache, what does not say how many
            // messages it holds is one.
            assert_eq!(store.end().0, ends[left as usize + 1], "cut at {cut}");
            let queue = store.existing_queue(TOPIC, 0).unwrap();
            let next = queue.max_offset();
            assert!(next == base_of(left) + 1 || next == base_of(left + 1), "cut at {cut}: {next}");
            assert_eq!(append_record(&store, 90).queue_offset, next);
            assert_eq!(queue.unit_at(next).unwrap().map(|unit| unit.at.0), Some(ends[left as usize + 1]));
            continue;
        }
        let whole = left;
        assert_records(&store, whole);
        append_record(&store, whole);
        assert_records(&store, whole + 1);
        store.close().unwrap();
    }
}

#[test]
fn lost_queues_are_built_again_with_every_batch_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_batches(dir.path());
    append_records(&store, 0..70);
    store.close().unwrap();
    drop(store);
    let queue = dir.path().join("batchconsumequeue").join(TOPIC).join("0");
    assert!(queue.join(format!("{:020}", 46 * 60)).exists() && !dir.path().join("consumequeue").join(TOPIC).exists());
    let closed = image(dir.path());
    let losses =
        [("all", None), ("the front file", Some(0)), ("one in between", Some(20)), ("the last file", Some(60))];
    for (what, lost) in losses {
        for was_crash in [false, true] {
            let left = image(closed.path());
            let queues = left.path().join("batchconsumequeue");
            match lost {
                None => std::fs::remove_dir_all(queues).unwrap(),
                Some(unit) => std::fs::remove_file(queues.join(format!("{TOPIC}/0/{:020}", 46 * unit))).unwrap(),
            }
            if was_crash {
                std::fs::write(left.path().join("abort"), "1").unwrap();
                std::fs::remove_file(left.path().join("checkpoint")).unwrap();
            }
            let (store, found) = open_batches(left.path());
            assert!(found.units_added > 0, "{what}: {found:?}");
            assert_records(&store, 70);
            append_record(&store, 70);
            assert_records(&store, 71);
            store.close().unwrap();
        }
    }
}

#[test]
fn a_unit_that_changed_is_mended_from_the_log_with_all_that_follow() {
    for (unit, byte) in [(3, 7), (30, 35), (30, 37), (69, 11)] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open_batches(dir.path());
        append_records(&store, 0..70);
        store.close().unwrap();
        drop(store);
        let file = dir.path().join(format!("batchconsumequeue/{TOPIC}/0/{:020}", unit / 20 * 20 * 46));
        overwrite(&file, unit % 20 * 46 + byte, &[0x55]);
        std::fs::write(dir.path().join("abort"), "1").unwrap();
        std::fs::remove_file(dir.path().join("checkpoint")).unwrap();
        let (store, found) = open_batches(dir.path());
        assert!(found.units_added > 0, "unit {unit}, byte {byte}");
        assert_records(&store, 70);
    }
}

#[test]
fn a_damaged_unit_of_a_batch_hides_no_message_and_gives_no_other_one() {
    type Damage = fn(&mut [u8]);
    let damages: [(&str, Damage); 8] = [
        ("zeros", |unit| unit.fill(0)),
        ("beyond the log's end", |unit| unit[3] ^= 1),
        ("another place of the log", |unit| unit[6] ^= 0x10),
        ("a higher offset", |unit| unit[32] ^= 1),
        ("a somewhat higher offset", |unit| unit[35] ^= 0x80),
        ("a lower offset", |unit| unit[28..36].fill(0)),
        ("more messages", |unit| unit[36] ^= 1),
        ("no messages", |unit| unit[36..38].fill(0)),
    ];
    for (what, damage) in damages {
        for number in [1, 25, 29, 40] {
            let dir = tempfile::tempdir().unwrap();
            let (store, _) = open_batches(dir.path());
            append_records(&store, 0..70);
            store.close().unwrap();
            drop(store);
            // 20 units a file.
            let file = format!("batchconsumequeue/{TOPIC}/0/{:020}", number / 20 * 20 * 46);
            let (path, at) = (dir.path().join(file), number % 20 * 46);
            let before = std::fs::read(&path).unwrap();
            let mut unit = before[at..at + 46].to_vec();
            damage(&mut unit);
            overwrite(&path, at as u64, &unit);
            let (store, _) = open_batches(dir.path());
            assert_records(&store, 70);
            assert_eq!(store.damaged_units(), 1, "unit {number}: {what}");
            assert!(std::fs::read(&path).unwrap() == before, "unit {number}: {what}");
            store.close().unwrap();
        }
    }
}

#[test]
fn a_search_by_time_in_a_queue_of_batches_is_not_misled_by_a_unit_that_leads_nowhere() {
    type Damage = fn(&mut [u8]);
    let damages: [Damage; 3] = [|unit| unit.fill(0), |unit| unit[3] ^= 1, |unit| unit[..38].fill(0xff)];
    for damage in damages {
        for number in [10, 30, 39, 50] {
            let dir = tempfile::tempdir().unwrap();
            let (store, _) = open_batches(dir.path());
            append_records(&store, 0..70);
            store.close().unwrap();
            drop(store);
            let file = format!("batchconsumequeue/{TOPIC}/0/{:020}", number / 20 * 20 * 46);
            let (path, at) = (dir.path().join(file), number % 20 * 46);
            let mut unit = std::fs::read(&path).unwrap()[at..at + 46].to_vec();
            damage(&mut unit);
            overwrite(&path, at as u64, &unit);
            let (store, _) = open_batches(dir.path());
            let queue = store.existing_queue(TOPIC, 0).unwrap();
            for wanted in 0..70 {
                let found = store.offset_by_time(&queue, 1_700_000_000_000 + wanted as i64, Boundary::Lower).unwrap();
                assert_eq!(found, base_of(wanted), "unit {number}: from {wanted}");
            }
            assert_eq!(store.damaged_units(), 1, "unit {number}");
            store.close().unwrap();
        }
    }
}
