//! Bits of a record turn over on the device.

use protocol::LogOffset;
use protocol::record::{RecordView, at};
use store::look::{KnownTables, Look, Part};
use store::{ReadStatus, RecordAt, RecordFilter, Store, StoreOptions};

use crate::support::*;

/// A store that was closed with 50 messages, and where one of them lies, of which a bit of the byte `place` has turned over since.
fn closed_with_a_flip(message: u64, place: usize) -> (tempfile::TempDir, LogOffset) {
    closed_with_a_bit_flipped(message, place, 1)
}

fn closed_with_a_bit_flipped(message: u64, place: usize, bit: u8) -> (tempfile::TempDir, LogOffset) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    let damaged = store.existing_queue(TOPIC, 0).unwrap().unit_at(message).unwrap().unwrap().at;
    store.close().unwrap();
    drop(store);
    let path = segment_path(dir.path(), 0);
    let flipped = damaged.0 as usize + place;
    let was = std::fs::read(&path).unwrap()[flipped];
    overwrite(&path, flipped as u64, &[was ^ bit]);
    (dir, damaged)
}

/// The same of message 23, opened again.
fn with_a_flip_at(place: usize, is_checked: bool) -> (tempfile::TempDir, std::sync::Arc<Store>, LogOffset) {
    let (dir, damaged) = closed_with_a_flip(23, place);
    let (store, _) = try_open(StoreOptions { check_crc_on_read: is_checked, ..options(dir.path()) }).unwrap();
    (dir, store, damaged)
}

fn stored_at(view: &RecordView<'_>) -> i64 {
    view.store_timestamp()
}

#[test]
fn a_record_with_another_body_is_damaged_for_whoever_asks_for_it() {
    let (_dir, store, at) = with_a_flip_at(at::BODY, true);
    assert!(matches!(store.record_at_cold(at).unwrap(), RecordAt::Damaged));
    assert!(matches!(store.stored_record_cold(at).unwrap(), RecordAt::Damaged));
    assert_eq!(store.damaged_messages(), 2, "each time that somebody would have got it");
    assert_eq!(store.about_record_cold(at, stored_at).unwrap(), Some(1_700_000_000_000));
    assert_eq!(store.damaged_messages(), 2, "its body is nobody's concern");
    let pulled: Vec<u64> = read_all(&store, TOPIC, 0).into_iter().map(|(offset, _)| offset).collect();
    assert_eq!(pulled, (0..50).filter(|offset| *offset != 23).collect::<Vec<_>>());
    store.close().unwrap();
}

#[test]
fn whoever_looks_at_the_log_is_told_that_a_body_is_damaged_also_at_its_end() {
    for (message, is_followed) in [(23, true), (49, false)] {
        let (dir, at) = closed_with_a_flip(message, at::BODY);
        let (mut whole, mut damages) = (0, Vec::new());
        let look = Look::stopped(options(dir.path())).unwrap();
        let looked = look.records(|part| {
            match part {
                Part::Record(_) => whole += 1,
                Part::Bruised(view, why) => damages.push((view.log_offset(), true, why)),
                Part::Lost(lost) => damages.push((lost.from, false, lost.why)),
            }
            true
        });
        looked.unwrap();
        assert_eq!((whole, damages[0].0, damages[0].1), (49, at.0, is_followed), "{damages:?}");
        assert!(damages[0].2.starts_with("body CRC"), "{damages:?}");
    }
}

#[test]
fn where_no_record_begins_one_is_damaged_only_if_the_store_says_that_it_is_there() {
    // The last makes it longer than a segment.
    for place in [at::MAGIC_CODE, at::LOG_OFFSET + 7, at::TOTAL_SIZE + 3, at::TOTAL_SIZE] {
        for is_checked in [true, false] {
            let (_dir, store, at) = with_a_flip_at(place, is_checked);
            assert!(matches!(store.record_at_cold(at).unwrap(), RecordAt::Gone), "{place}");
            assert_eq!((store.damaged_messages(), store.about_record_cold(at, stored_at).unwrap()), (0, None));
            assert!(matches!(store.stored_record_cold(at).unwrap(), RecordAt::Damaged), "{place}");
            assert_eq!(store.damaged_messages(), 1);
            assert!(matches!(store.stored_record_cold(store.end()).unwrap(), RecordAt::Gone));
            store.close().unwrap();
        }
    }
}

#[test]
fn a_scan_passes_over_what_is_no_record_and_shows_all_others() {
    for place in [at::MAGIC_CODE, at::TOTAL_SIZE + 3, at::TOTAL_SIZE] {
        let (_dir, store, at) = with_a_flip_at(place, true);
        let mut seen = Vec::new();
        store.scan(LogOffset(0), &mut |_, record| seen.push(record.queue_offset())).unwrap();
        assert_eq!(seen, (0..50).filter(|offset| *offset != 23).collect::<Vec<_>>(), "{place}");
        assert!(store.scan(at, &mut |_, _| {}).is_err(), "nobody can tell whether a record ever began there");
        store.close().unwrap();
    }
}

#[test]
fn who_would_rather_have_it_gets_it() {
    let (_dir, store, at) = with_a_flip_at(at::BODY, false);
    assert!(matches!(store.stored_record_cold(at).unwrap(), RecordAt::Record(_)));
    let (read, _) = read(&store, TOPIC, 0, 0, &limits(100));
    assert_eq!((read.count, store.damaged_messages()), (50, 0));
    store.close().unwrap();
}

#[test]
fn a_file_whose_name_is_gone_is_read_where_it_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..200);
    store.close().unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    // Retention takes the name first, and the file from the list a moment later.
    std::fs::remove_file(segment_path(dir.path(), 0)).unwrap();
    assert!(matches!(store.stored_record_cold(LogOffset(0)).unwrap(), RecordAt::Record(_)));
    let (read, _) = read(&store, TOPIC, 0, 0, &limits(10));
    assert_eq!((read.count, store.damaged_messages()), (10, 0));
}

/// Wants everything; and while it is asked, the file of the log is lost, as pages are that make way for another reader and that a failing device does
/// not give again.
struct LosesTheFile<'a>(&'a std::path::Path);

impl RecordFilter for LosesTheFile<'_> {
    fn wants_unit(&mut self, _: i64) -> bool {
        true
    }

    fn wants_record(&mut self, _: &[u8]) -> Option<bool> {
        std::fs::OpenOptions::new().write(true).open(self.0).unwrap().set_len(0).unwrap();
        Some(true)
    }
}

#[test]
fn pages_that_are_lost_while_a_body_is_checked_do_not_end_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    store.close().unwrap();
    drop(store);
    // Not a store that has room for copies: what is read is lent from the mapping.
    let (store, _) = open(dir.path());
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    let path = segment_path(dir.path(), 0);
    let mut slices = Vec::new();
    let read = store.read(&queue, 0, &limits(1), &mut LosesTheFile(&path), &mut slices);
    assert_eq!((read.status, read.count, store.damaged_messages()), (ReadStatus::Found, 1, 0));
}

#[test]
fn a_store_time_of_another_age_is_no_sound_record() {
    for message in [0, 23, 49] {
        // Of 2023, and of some 200,000 years later.
        let (dir, at) = closed_with_a_bit_flipped(message, at::STORE_TIMESTAMP + 1, 0x10);
        let mut findings = Vec::new();
        let look = Look::stopped(options(dir.path())).unwrap();
        look.verify(&KnownTables::default(), &mut |finding| findings.push(finding), &mut |_, _| {}).unwrap();
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].what.contains(&format!("log offset {at} says that it was stored at")), "{findings:?}");
    }
}
