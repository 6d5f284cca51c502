//! Starts after a clean stop: nothing is read again, unless somebody was here meanwhile.

use crate::support::*;

/// A store that was closed after messages in two queues; queue 1's are the newest.
fn closed(messages: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..messages);
    append(&store, TOPIC, 1, b"the newest");
    store.close().unwrap();
    assert!(!dir.path().join("abort").exists());
    dir
}

#[test]
fn a_clean_start_reads_nothing_again() {
    let dir = closed(700);
    let (store, found) = open(dir.path());
    assert_eq!(found, Default::default());
    assert_run(&store, 0..700);
}

#[test]
fn garbage_behind_the_tail_is_zeroed_after_a_clean_stop_too() {
    let dir = closed(20);
    let end = open(image(dir.path()).path()).0.end().0;
    overwrite(&segment_path(dir.path(), 0), end, b"garbage garbage garbage");
    let (store, found) = open(dir.path());
    assert_eq!(store.end().0, end);
    assert!(found.findings.iter().any(|finding| finding.contains("zeroed")), "{:?}", found.findings);
    append_run(&store, 20..30);
    assert_run(&store, 0..30);
}

#[test]
fn a_queue_that_was_deleted_while_we_were_away_is_built_again() {
    let dir = closed(700);
    std::fs::remove_dir_all(dir.path().join("consumequeue").join(TOPIC).join("0")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!((found.records_scanned, found.units_added), (701, 700));
    assert!(found.findings.iter().any(|finding| finding.contains("consume queues")), "{:?}", found.findings);
    assert_run(&store, 0..700);
    store.close().unwrap();
    drop(store);
    assert_eq!(open(dir.path()).1, Default::default());
}

#[test]
fn a_queue_that_lost_units_while_we_were_away_gets_them_back() {
    for loss in ["last file", "units", "end of file"] {
        let dir = closed(750);
        // 100 units a file.
        let last = queue_file(dir.path(), TOPIC, 0, 700 * 20);
        match loss {
            "last file" => std::fs::remove_file(last).unwrap(),
            "units" => overwrite(&last, 30 * 20, &[0; 20 * 20]),
            _end => std::fs::OpenOptions::new().write(true).open(last).unwrap().set_len(110).unwrap(),
        }
        let (store, found) = open(dir.path());
        assert!(!found.findings.is_empty(), "{loss}");
        assert_run(&store, 0..750);
        assert_eq!(append(&store, TOPIC, 0, &body(750)).queue_offset, 750);
        assert_run(&store, 0..751);
    }
}

#[test]
fn a_store_without_consume_queues_builds_them_from_the_log() {
    let dir = closed(300);
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found.units_added, 301);
    assert_run(&store, 0..300);
}

#[test]
fn messages_that_another_broker_stored_meanwhile_raise_no_alarm() {
    let dir = closed(100);
    // Another broker does not know our journal: it finds it, and leaves it, as it is now.
    let journal = tempfile::tempdir().unwrap();
    let kept = journal.path().join("journal");
    std::fs::rename(dir.path().join("journal"), &kept).unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 100..200);
    store.close().unwrap();
    drop(store);
    std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
    std::fs::rename(&kept, dir.path().join("journal")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found.findings, Vec::<String>::new());
    assert_run(&store, 0..200);
}

#[test]
fn a_log_without_our_journal_is_served_as_it_is() {
    let dir = closed(100);
    std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found.findings, Vec::<String>::new());
    assert_run(&store, 0..100);
}

#[test]
fn a_deleted_topic_stays_deleted_over_a_clean_restart() {
    let dir = closed(100);
    let (store, _) = open(dir.path());
    append(&store, "other", 0, b"x");
    store.delete_topic("other");
    store.close().unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    assert!(store.existing_queue("other", 0).is_none());
    assert_run(&store, 0..100);
}

#[test]
fn no_file_of_the_log_at_all_leaves_an_empty_store() {
    let dir = closed(100);
    std::fs::remove_dir_all(dir.path().join("commitlog")).unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(store.end().0, 0);
    assert!(read_all(&store, TOPIC, 0).is_empty());
    append(&store, TOPIC, 0, b"anew");
    assert_eq!(read_all(&store, TOPIC, 0).len(), 1);
}

#[test]
fn a_queue_that_lost_its_first_files_is_built_again() {
    for lost in [1, 3, 7] {
        let dir = closed(750);
        for file in 0..lost {
            std::fs::remove_file(queue_file(dir.path(), TOPIC, 0, file * 2000)).unwrap();
        }
        let (store, found) = open(dir.path());
        assert!(found.findings.iter().any(|finding| finding.contains("consume queues")), "{:?}", found.findings);
        assert_run(&store, 0..750);
        assert_eq!(store.existing_queue(TOPIC, 0).unwrap().min_offset(), 0);
        append_run(&store, 750..760);
        store.close().unwrap();
        drop(store);
        let (store, found) = open(dir.path());
        assert_eq!(found, Default::default());
        assert_run(&store, 0..760);
    }
}

#[test]
fn what_a_start_built_again_is_on_the_device_before_anybody_relies_on_it() {
    let dir = closed(50);
    std::fs::remove_dir_all(dir.path().join("consumequeue").join(TOPIC).join("0")).unwrap();
    let disk = FaultyDisk::new();
    let (store, found) = open_on(&disk, options(dir.path()));
    assert_eq!(found.units_added, 50);
    assert!(
        disk.faults.synced_dirs.lock().iter().any(|dir| dir.ends_with("orders/0")),
        "the check-point vouches for it"
    );
    drop(store);
}
