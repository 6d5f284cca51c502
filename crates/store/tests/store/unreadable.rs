//! Files of the log that cannot be read: a file that lost its end raises the same signal in a mapping as a device that fails.
//! It must cost that read, not the process.

use store::{Boundary, GovernorOptions, LogSlice, ReadStatus, Store, StoreError, StoreOptions, Unit};

use crate::support::*;

/// A store with 700 messages, open since their writer closed it, whose second file is now cut at `bytes`. With a limit of memory messages
/// far behind the end are read together.
fn with_a_cut_file(bytes: u64, governor: Option<GovernorOptions>) -> (tempfile::TempDir, std::sync::Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..700);
    store.close().unwrap();
    drop(store);
    let (store, _) = try_open(StoreOptions { governor, ..options(dir.path()) }).unwrap();
    cut(dir.path(), bytes);
    (dir, store)
}

fn cut(dir: &std::path::Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(segment_path(dir, SEGMENT)).unwrap().set_len(bytes).unwrap();
}

/// The first message that lies wholly behind the cut.
fn first_lost(store: &Store, bytes: u64) -> (u64, Unit) {
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    let units = (0..700).map(|offset| (offset, queue.unit_at(offset).unwrap().unwrap()));
    units.into_iter().find(|(_, unit)| unit.at.0 >= SEGMENT + bytes).unwrap()
}

#[track_caller]
fn assert_names(error: &StoreError, dir: &std::path::Path, unit: Unit) {
    let StoreError::Read { path, at, .. } = error else { panic!("{error}") };
    assert_eq!((path.as_path(), *at), (&*segment_path(dir, SEGMENT), unit.at.0));
}

#[test]
fn a_pull_from_a_file_that_lost_its_end_is_told_so_and_others_go_on() {
    for governor in [None, Some(crate::governor::plenty())] {
        let (dir, store) = with_a_cut_file(8192, governor);
        let (lost, unit) = first_lost(&store, 8192);
        let (read, slices) = read(&store, TOPIC, 0, lost as i64, &limits(32));
        assert_eq!((read.status, read.next, slices.len()), (ReadStatus::Failed, lost as i64, 0));
        assert_names(read.failure.as_deref().unwrap(), dir.path(), unit);
        // What lies before it, and in other files, is served.
        let before = crate::support::read(&store, TOPIC, 0, 0, &limits(32)).0;
        assert_eq!((before.status, before.count), (ReadStatus::Found, 32));
        let behind = crate::support::read(&store, TOPIC, 0, 500, &limits(32)).0;
        assert_eq!((behind.status, behind.count), (ReadStatus::Found, 32));
        assert_eq!(append(&store, TOPIC, 0, &body(700)).queue_offset, 700);
        store.close().unwrap();
    }
}

#[test]
fn a_pull_up_to_the_lost_end_brings_what_is_there() {
    for governor in [None, Some(crate::governor::plenty())] {
        let (_dir, store) = with_a_cut_file(8192, governor);
        let (lost, _) = first_lost(&store, 8192);
        let (read, slices) = read(&store, TOPIC, 0, lost as i64 - 5, &limits(32));
        assert_eq!(read.status, ReadStatus::Found);
        assert!((1..=5).contains(&read.count) && read.failure.is_none(), "{read:?}");
        assert!(slices.iter().all(|slice: &LogSlice| slice.as_ref().len() > 90));
    }
}

#[test]
fn a_look_by_id_a_search_by_time_and_a_scan_are_told_so() {
    let (dir, store) = with_a_cut_file(0, None);
    let (_, unit) = first_lost(&store, 0);
    assert_names(&store.record_at_cold(unit.at).unwrap_err(), dir.path(), unit);
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert!(store.store_time_of(&unit).is_err());
    assert_eq!(store.store_time(&unit), None);
    // The first look is at the last message of the queue's first file, which lies there.
    let searched = store.offset_by_time(&queue, 1_700_000_000_000, Boundary::Lower);
    assert!(matches!(searched, Err(StoreError::Read { .. })), "{searched:?}");
    let scanned = store.scan(protocol::LogOffset(0), &mut |_, _| {}).unwrap_err();
    assert_names(&scanned, dir.path(), unit);
}

#[test]
fn a_start_that_cannot_read_the_log_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..700);
    let image = image(dir.path());
    std::fs::remove_file(image.path().join("checkpoint")).unwrap();
    // The file loses its end while it is being read: its length is asked for, and given, at first.
    let disk = fault_disk();
    disk.set(loses_its_end(segment_path(image.path(), SEGMENT)), true);
    let env = store::StoreEnv { disk: std::sync::Arc::clone(&disk) as _, ..store::StoreEnv::real() };
    let error = Store::open(options(image.path()), env).map(|_| ()).unwrap_err();
    let StoreError::Read { path, .. } = &error else { panic!("{error}") };
    assert_eq!(path, &segment_path(image.path(), SEGMENT));
}

#[test]
fn retention_survives_a_file_that_it_cannot_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(used(10), true);
    let options = store::StoreOptions {
        retention: store::Retention {
            disk_max_used_percent: 5,
            file_reserved: std::time::Duration::ZERO,
            ..store::Retention::default()
        },
        clean_interval: std::time::Duration::from_secs(3600),
        ..options(dir.path())
    };
    open(dir.path()).0.close().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..700);
    store.close().unwrap();
    drop(store);
    disk.set(loses_its_end(segment_path(dir.path(), SEGMENT)), true);
    // The first look asks the second file for the age of the first, and then the third one.
    let (store, _) = open_on(&disk, options);
    let last_file = store.end().0 / SEGMENT * SEGMENT;
    assert!(last_file >= 2 * SEGMENT, "{last_file}");
    eventually("all files but the last one go", || store.min_offset().0 == last_file);
    assert!(!disk.has(&loses_its_end(segment_path(dir.path(), SEGMENT))), "nobody has read the second one");
    assert_eq!(append(&store, TOPIC, 0, &body(700)).queue_offset, 700);
    store.close().unwrap();
}
