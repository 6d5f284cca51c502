//! Folders that were copied while somebody had the store open: each file is of another moment, and what can be built from the log is.

use std::path::Path;

use store::{IndexOptions, KeyKind, KeyQuery, RecordBatch, Store, StoreOptions, TagsCode};

use crate::support::*;

const NOW: i64 = 1_700_000_000_000;

fn indexed(root: &Path) -> StoreOptions {
    StoreOptions {
        index: Some(IndexOptions { slots: 7, entries: 40, ..IndexOptions::at(root.join("index")) }),
        ..options(root)
    }
}

/// Message `number` of the run, under a key of its own.
fn append_keyed(store: &Store, number: u64, now: i64) {
    let queue = store.queue(TOPIC, 0).unwrap();
    let properties = format!("KEYS\u{1}k{number}\u{2}");
    let mut batch = RecordBatch::new();
    batch.push(&queue, TagsCode::Code(0), |out| encode(TOPIC, 0, &body(number), properties.as_bytes(), out));
    append_batch(store, &mut batch, env::TimeMs(now)).unwrap();
}

fn found_by_key(store: &Store, number: u64) -> usize {
    let key = format!("k{number}");
    let query = KeyQuery { topic: TOPIC.into(), key, kind: KeyKind::Key, max: 8, begin: 0, end: i64::MAX };
    store.query(&query).unwrap().found.len()
}

fn checkpoint_of(root: &Path) -> i64 {
    let bytes = std::fs::read(root.join("checkpoint")).unwrap();
    i64::from_be_bytes(*bytes[8..].first_chunk().unwrap())
}

/// A copy of which one queue and the index were read first, another queue later, then the check-point, and the log last: `of` messages are in
/// the log, and the first queue has 50 of them. The last file of the log has none of its messages.
fn copied(dir: &Path, of: u64) -> tempfile::TempDir {
    let early = tempfile::tempdir().unwrap();
    let (store, _) = open_as(&indexed(dir));
    for number in 0..50 {
        append_keyed(&store, number, NOW);
    }
    store.close().unwrap();
    copy(dir, early.path());
    let (store, _) = open_as(&indexed(dir));
    for number in 50..of {
        append_keyed(&store, number, NOW + 1);
    }
    let later = NOW + 100_000;
    let end = store.end().0;
    while store.end().0 < end + 3 * SEGMENT {
        append_at(&store, later, TOPIC, 1, &[7; 900]);
    }
    // The check-point is believed up to some seconds before it.
    append_at(&store, later + 100_000, TOPIC, 1, b"last");
    eventually("the check-point", || checkpoint_of(dir) >= later + 100_000);
    let late = tempfile::tempdir().unwrap();
    copy(dir, late.path());
    for folder in ["consumequeue/orders/0", "index"] {
        std::fs::remove_dir_all(late.path().join(folder)).unwrap();
        std::fs::rename(early.path().join(folder), late.path().join(folder)).unwrap();
    }
    late
}

#[test]
fn what_queues_and_index_of_a_copy_lack_comes_from_the_log_whatever_the_check_point_says() {
    let dir = tempfile::tempdir().unwrap();
    let copy = copied(dir.path(), 100);
    let (store, found) = open_as(&indexed(copy.path()));
    assert_run(&store, 0..100);
    for number in 0..100 {
        eventually("the message by its key", || found_by_key(&store, number) == 1);
    }
    assert!(found.was_copied && store.was_copied());
    let said = &found.findings[0];
    for part in [
        copy.path().to_str().unwrap(),
        "was copied while a broker had it open",
        "stopped broker",
        "may come again, or be missing",
    ] {
        assert!(said.contains(part), "{said}");
    }
    // What has not served, as `gantry store repair`, leaves the rest to the next start.
    store.close_as_found().unwrap();
    let (store, found) = open_as(&indexed(copy.path()));
    assert!(found.was_copied, "{found:?}");
    // Its own from now on.
    append_keyed(&store, 100, NOW + 200_000);
    drop(store);
    let (store, found) = open_as(&indexed(copy.path()));
    assert!(!found.was_copied, "{found:?}");
    assert_run(&store, 0..101);
    store.close().unwrap();
}

#[test]
fn a_closed_store_may_be_copied_and_one_that_was_killed_is_no_copy() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    drop(store);
    let (store, found) = open(dir.path());
    assert!(found.was_abnormal && !found.was_copied, "{found:?}");
    store.close().unwrap();
    let to = tempfile::tempdir().unwrap();
    copy(dir.path(), to.path());
    let (store, found) = open(to.path());
    assert!(!found.was_abnormal && !found.was_copied && found.findings.is_empty(), "{found:?}");
    assert_run(&store, 0..50);
    store.close().unwrap();
}
