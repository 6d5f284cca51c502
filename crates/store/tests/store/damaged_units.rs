//! Units of a consume queue turn into something else on the device, while the log is whole.

use std::path::Path;
use std::sync::Arc;

use store::look::{KnownTables, Look};
use store::queue_log::UnitsRead;
use store::{Boundary, ReadLimits, ReadStatus, Store};

use crate::support::*;

/// Bytes of the file of queue 0, of 100 units, that holds the unit of a message; and where that begins.
fn unit_bytes(root: &Path, message: u64) -> (std::path::PathBuf, u64) {
    (queue_file(root, TOPIC, 0, message / 100 * 2000), message % 100 * 20)
}

/// Changes the unit of a message of queue 0, as a device does that turns bits over.
fn change(root: &Path, message: u64, change: impl FnOnce(&mut [u8])) {
    let (path, at) = unit_bytes(root, message);
    let mut unit = std::fs::read(&path).unwrap()[at as usize..at as usize + 20].to_vec();
    change(&mut unit);
    overwrite(&path, at, &unit);
}

/// A store that was closed with 250 messages in queue 0 and as many in queue 1, in turn.
fn closed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    for number in 0..250 {
        append(&store, TOPIC, 0, &body(number));
        append(&store, TOPIC, 1, b"beside it");
    }
    store.close().unwrap();
    dir
}

type Damage = (&'static str, fn(&mut [u8]));

/// What one flipped bit, or a lost sector, makes of a unit: log offset (8 bytes), size (4), tag (8).
const DAMAGES: &[Damage] = &[
    ("leads beyond the log's end", |unit| unit[3] ^= 1),
    ("leads below the log's beginning", |unit| unit[0] ^= 0x80),
    ("leads to another place of the log", |unit| unit[6] ^= 0x40),
    ("leads into its own record", |unit| unit[7] ^= 1),
    ("is longer than the log", |unit| unit[8] ^= 0x40),
    ("is longer than its record", |unit| unit[11] ^= 1),
    ("has no length", |unit| unit[8..12].fill(0)),
    ("is zeros", |unit| unit.fill(0)),
    ("is ones", |unit| unit.fill(0xff)),
];

#[test]
fn a_damaged_unit_hides_no_message_and_is_mended_once() {
    for (what, damage) in DAMAGES {
        for message in [0, 10, 99, 100, 199] {
            let dir = closed();
            let files = || [0, 100, 200].map(|first| std::fs::read(unit_bytes(dir.path(), first).0).unwrap());
            let before = files();
            change(dir.path(), message, damage);
            let (store, _) = open(dir.path());
            let found: Vec<u64> = read_all(&store, TOPIC, 0).into_iter().map(|(number, _)| number).collect();
            assert_eq!(found, (0..250).collect::<Vec<_>>(), "unit {message} {what}");
            assert_eq!(read_all(&store, TOPIC, 1).len(), 250, "{what}: queue 1");
            assert_eq!(store.damaged_units(), 1, "unit {message} {what}");
            assert!(files() == before, "unit {message} {what}: the file is as it was");
            assert_run(&store, 0..250);
            assert_eq!(store.damaged_units(), 1, "it is not found again");
            store.close().unwrap();
        }
    }
}

#[test]
fn a_unit_that_leads_to_the_record_of_another_message_is_mended() {
    let dir = closed();
    let of_another = |path: &Path, at: usize| std::fs::read(path).unwrap()[at..at + 20].to_vec();
    let (path, _) = unit_bytes(dir.path(), 0);
    let beside = of_another(&queue_file(dir.path(), TOPIC, 1, 0), 20 * 20);
    let later = of_another(&path, 30 * 20);
    change(dir.path(), 20, |unit| unit.copy_from_slice(&beside));
    change(dir.path(), 40, |unit| unit.copy_from_slice(&later));
    let (store, _) = open(dir.path());
    assert_run(&store, 0..250);
    assert_eq!(store.damaged_units(), 2);
}

#[test]
fn a_unit_that_leads_to_what_was_just_written_gives_nobody_a_piece_of_that() {
    let dir = closed();
    let (store, _) = open(dir.path());
    let end = store.end().0;
    append_run(&store, 250..300);
    change(dir.path(), 10, |unit| unit[..8].copy_from_slice(&(end + 40).to_be_bytes()));
    assert_run(&store, 0..300);
    assert_eq!(store.damaged_units(), 1);
}

#[test]
fn a_run_of_damaged_units_is_mended_in_one_go() {
    let dir = closed();
    for message in 30..130 {
        change(dir.path(), message, |unit| unit.fill(0));
    }
    change(dir.path(), 130, |unit| unit[4] ^= 0x10);
    let (store, _) = open(dir.path());
    assert_run(&store, 0..250);
    assert_eq!(store.damaged_units(), 101);
}

#[test]
fn a_reader_that_may_not_wait_is_sent_to_a_thread_that_may() {
    for (what, damage) in DAMAGES {
        let dir = closed();
        change(dir.path(), 10, damage);
        let (store, _) = open(dir.path());
        let hasty = ReadLimits { may_fault: false, ..limits(32) };
        assert_eq!(read(&store, TOPIC, 0, 10, &hasty).0.status, ReadStatus::Cold, "{what}");
        let before = read(&store, TOPIC, 0, 5, &limits(32)).0;
        assert_eq!((before.status, before.next), (ReadStatus::Found, 10), "{what}: what comes before it");
        assert_eq!(store.damaged_units(), 0);
    }
}

/// Where all messages of queue 0 lie, and how the last read ended.
fn units(store: &Arc<Store>, may_wait: bool) -> (UnitsRead, Vec<u64>) {
    let mut units = Vec::new();
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    // Ends where a read gives nothing.
    loop {
        let from = units.len();
        let read = store.units(&queue, from as u64, 1000, may_wait, &mut units).unwrap();
        if units.len() == from {
            return (read, units.iter().map(|unit| unit.at.0).collect());
        }
    }
}

#[test]
fn whoever_reads_units_alone_gets_them_mended() {
    let dir = closed();
    let (store, _) = open(dir.path());
    let whole = units(&store, true).1;
    assert_eq!(whole.len(), 250);
    store.close().unwrap();
    drop(store);
    for (what, damage) in DAMAGES {
        change(dir.path(), 10, damage);
        let (store, _) = open(dir.path());
        assert_eq!(units(&store, false), (UnitsRead::Cold(0), Vec::new()), "{what}");
        assert_eq!(units(&store, true).1, whole, "{what}");
        assert_eq!(store.damaged_units(), 1, "{what}");
        store.close().unwrap();
    }
}

#[test]
fn where_the_log_has_lost_the_record_too_the_rest_is_served_and_it_is_looked_for_once() {
    for (what, damage) in DAMAGES {
        let dir = closed();
        let (path, place) = unit_bytes(dir.path(), 10);
        let unit = std::fs::read(path).unwrap()[place as usize..][..8].try_into().unwrap();
        let at = u64::from_be_bytes(unit);
        // No record begins there any more.
        overwrite(&segment_path(dir.path(), at / SEGMENT * SEGMENT), at % SEGMENT + 4, &[7; 4]);
        change(dir.path(), 10, damage);
        let (store, _) = open(dir.path());
        for _ in 0..2 {
            let numbers: Vec<u64> = read_all(&store, TOPIC, 0).into_iter().map(|(number, _)| number).collect();
            assert_eq!(numbers, (0..250).filter(|number| *number != 10).collect::<Vec<_>>(), "{what}");
        }
        assert_eq!(store.damaged_units(), 1, "{what}");
    }
}

/// When message 0 was stored; each one came a second after the one before.
const FIRST_AT: i64 = 1_700_000_000_000;

/// As `closed`, with a second between messages.
fn closed_with_times() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    for number in 0..250 {
        let now = FIRST_AT + number as i64 * 1000;
        append_at(&store, now, TOPIC, 0, &body(number));
        append_at(&store, now, TOPIC, 1, b"beside it");
    }
    store.close().unwrap();
    dir
}

/// Where a search by the time of a message leads: the first one that is not older, and the last one
/// that is not younger.
fn found_by_time_of(store: &Store, message: u64) -> [u64; 2] {
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    [Boundary::Lower, Boundary::Upper]
        .map(|boundary| store.offset_by_time(&queue, FIRST_AT + message as i64 * 1000, boundary).unwrap())
}

/// Messages, some of which a search by time looks at on its way to others: the ends of files, and
/// what halves them.
const ON_THE_WAY: [u64; 9] = [0, 49, 50, 99, 100, 149, 150, 199, 225];

#[test]
fn a_search_by_time_is_not_misled_by_a_damaged_unit() {
    for (what, damage) in DAMAGES {
        for message in ON_THE_WAY {
            let dir = closed_with_times();
            change(dir.path(), message, damage);
            let (store, _) = open(dir.path());
            for wanted in ON_THE_WAY.into_iter().chain([30, 130, 210, 249]) {
                assert_eq!(found_by_time_of(&store, wanted), [wanted; 2], "unit {message} {what}: from {wanted}");
            }
            assert!(store.damaged_units() <= 1, "unit {message} {what}");
            store.close().unwrap();
        }
    }
}

#[test]
fn a_search_by_time_is_not_misled_by_units_that_lead_to_older_or_younger_records() {
    let dir = closed_with_times();
    let unit_of = |queue: u32, message: u64| {
        let bytes = std::fs::read(queue_file(dir.path(), TOPIC, queue, message / 100 * 2000)).unwrap();
        bytes[message as usize % 100 * 20..][..20].to_vec()
    };
    for (message, other) in [(50, unit_of(0, 3)), (150, unit_of(1, 249)), (199, unit_of(0, 4)), (225, unit_of(1, 5))] {
        change(dir.path(), message, |unit| unit.copy_from_slice(&other));
    }
    let (store, _) = open(dir.path());
    for wanted in 0..250 {
        assert_eq!(found_by_time_of(&store, wanted), [wanted; 2]);
    }
    assert_eq!(store.damaged_units(), 4);
    assert_eq!(read_all(&store, TOPIC, 0).len(), 250);
}

#[test]
fn where_the_log_has_lost_the_record_too_a_search_by_time_goes_by_the_messages_beside_it() {
    for (what, damage) in DAMAGES {
        for message in [1, 50, 99, 150] {
            let dir = closed_with_times();
            let (path, place) = unit_bytes(dir.path(), message);
            let unit = std::fs::read(path).unwrap()[place as usize..][..8].try_into().unwrap();
            let at = u64::from_be_bytes(unit);
            overwrite(&segment_path(dir.path(), at / SEGMENT * SEGMENT), at % SEGMENT + 4, &[7; 4]);
            change(dir.path(), message, damage);
            let (store, _) = open(dir.path());
            for wanted in (1..250).step_by(7).filter(|wanted| !(message..=message + 1).contains(wanted)) {
                assert_eq!(found_by_time_of(&store, wanted), [wanted; 2], "unit {message} {what}: from {wanted}");
            }
        }
    }
}

#[test]
fn a_tag_that_changed_in_a_unit_is_found_by_verify() {
    let dir = closed();
    let findings = || {
        let mut findings = Vec::new();
        let look = Look::stopped(options(dir.path())).unwrap();
        look.verify(&KnownTables::default(), &mut |finding| findings.push(finding.what), &mut |_, _| {}).unwrap();
        findings
    };
    assert_eq!(findings(), [""; 0]);
    for byte in 12..20 {
        change(dir.path(), 10, |unit| unit[byte] ^= 0x10);
        let found = findings();
        assert_eq!(found.len(), 1, "byte {byte}: {found:?}");
        assert!(found[0].starts_with("unit 10 of orders/0") && found[0].contains("tag hash"), "{found:?}");
        change(dir.path(), 10, |unit| unit[byte] ^= 0x10);
    }
}
