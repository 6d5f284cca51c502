//! How a store ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use env::TimeMs;
use store::{AppendError, ColdReadRefused, NotWritable, RecordBatch};

use crate::support::*;

#[test]
fn a_store_closes_under_load_without_a_wait_for_its_timers_and_keeps_what_it_took() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3600);
    let (store, _) =
        try_open(store::StoreOptions { flush_interval: hour, clean_interval: hour, ..options(dir.path()) }).unwrap();
    let is_closing = AtomicBool::new(false);
    let mut taken = 0;
    std::thread::scope(|scope| {
        let appender = scope.spawn(|| {
            let mut taken = 0;
            loop {
                let mut batch = RecordBatch::new();
                push(&store, &mut batch, TOPIC, 0, &body(taken));
                match store.append(&mut batch, TimeMs(1)) {
                    Ok(()) => taken += 1,
                    // A closed store prepares no more room.
                    Err(AppendError::NoRoomYet { .. }) if is_closing.load(Ordering::SeqCst) => return taken,
                    Err(AppendError::NoRoomYet { needed }) => {
                        store.room().wait_until(needed, Instant::now() + Duration::from_millis(10));
                    }
                    Err(AppendError::NotWritable(NotWritable::Closed)) => return taken,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        eventually("load", || store.end().0 > 4 * SEGMENT);
        is_closing.store(true, Ordering::SeqCst);
        let deadline = deadline();
        store.close().unwrap();
        assert!(Instant::now() < deadline, "it waited for something");
        taken = appender.join().unwrap();
    });
    assert!(store.close().is_ok(), "a second close is nothing");
    drop(store);
    assert!(!dir.path().join("abort").exists());
    let (store, found) = open(dir.path());
    assert_eq!((found.was_abnormal, found.records_scanned), (false, 0));
    assert_run(&store, 0..taken);
}

#[test]
fn a_closed_store_takes_nothing_and_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..5);
    store.close().unwrap();
    let mut batch = RecordBatch::new();
    push(&store, &mut batch, TOPIC, 0, b"late");
    assert!(matches!(store.append(&mut batch, TimeMs(1)), Err(AppendError::NotWritable(NotWritable::Closed))));
    assert_run(&store, 0..5);
}

#[test]
fn a_store_that_is_dropped_without_close_leaves_its_mark() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    let said = std::fs::read_to_string(dir.path().join("abort")).unwrap();
    assert_eq!(said.lines().next(), Some(std::process::id().to_string().as_str()));
    drop(store);
    assert!(dir.path().join("abort").exists());
    let (store, found) = open(dir.path());
    assert!(found.was_abnormal);
    assert_run(&store, 0..50);
}

#[test]
fn closing_writes_what_apache_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_at(&store, 1_700_000_000_123, TOPIC, 0, b"x");
    let end = store.end().0;
    store.close().unwrap();
    let mark = std::fs::read(dir.path().join("checkpoint")).unwrap();
    assert_eq!(mark.len(), 4096);
    let field = |at: usize| i64::from_be_bytes(mark[at..at + 8].try_into().unwrap());
    assert_eq!((field(0), field(8), field(32)), (1_700_000_000_123, 1_700_000_000_123, end as i64));
    assert_eq!(std::fs::read(dir.path().join("lock")).unwrap(), b"lock");
    assert_eq!(std::fs::metadata(queue_file(dir.path(), TOPIC, 0, 0)).unwrap().len(), 2000);
}

#[test]
fn a_panic_in_a_cold_read_costs_that_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let options = store::StoreOptions { cold_read_threads: 1, ..options(dir.path()) };
    let (store, _) = try_open(options).unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    store.cold_read(Box::new(|| panic!("a bug in one read"))).unwrap();
    store.cold_read(Box::new(move || sender.send(1).unwrap())).unwrap();
    assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(1));
    store.close().unwrap();
}

#[test]
fn cold_reads_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let options = store::StoreOptions { cold_read_threads: 1, cold_reads_max: 1, ..options(dir.path()) };
    let (store, _) = try_open(options).unwrap();
    let (enter, entered) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    store
        .cold_read(Box::new(move || {
            enter.send(()).unwrap();
            left.recv().unwrap();
        }))
        .unwrap();
    entered.recv().unwrap();
    store.cold_read(Box::new(|| {})).unwrap();
    let full = store.cold_read(Box::new(|| {})).unwrap_err();
    assert_eq!(full, ColdReadRefused::Full { waiting: 1, limit: 1 });
    leave.send(()).unwrap();
    store.close().unwrap();
}

#[test]
fn a_store_that_nobody_had_closed_keeps_its_mark_where_it_is_closed_as_it_was_found() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    drop(store);
    for _ in 0..2 {
        let (store, found) = open(dir.path());
        assert!(found.was_abnormal);
        assert_run(&store, 0..50);
        store.close_as_found().unwrap();
        drop(store);
        assert!(dir.path().join("abort").exists());
    }
    open(dir.path()).0.close().unwrap();
    let (store, found) = open(dir.path());
    assert!(!found.was_abnormal);
    store.close_as_found().unwrap();
    assert!(!dir.path().join("abort").exists());
}
