//! Starts after a clean stop: nothing is read again, unless somebody was here meanwhile.

use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use store::{Store, StoreEnv};

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
    forget_journal(dir.path());
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
fn no_file_of_the_log_at_all_is_a_refusal_that_leaves_the_queues_as_they_are() {
    for is_abnormal in [false, true] {
        let dir = closed(100);
        let (log, elsewhere) = (dir.path().join("commitlog"), dir.path().join("not mounted"));
        std::fs::rename(&log, &elsewhere).unwrap();
        if is_abnormal {
            std::fs::write(dir.path().join("abort"), "").unwrap();
        }
        // Each start says it, not the first one alone.
        for _ in 0..2 {
            let refused = try_open(options(dir.path())).map(|_| ()).unwrap_err().to_string();
            for part in [log.to_str().unwrap(), "mount it", "consumequeue", "journal away"] {
                assert!(refused.contains(part), "{part}: {refused}");
            }
        }
        std::fs::remove_dir(&log).unwrap();
        std::fs::rename(&elsewhere, &log).unwrap();
        assert_run(&open(dir.path()).0, 0..100);
    }
}

#[test]
fn a_log_that_is_gone_with_its_queues_is_missed_as_long_as_the_journal_knows_of_it() {
    let dir = closed(100);
    for part in ["commitlog", "consumequeue"] {
        std::fs::remove_dir_all(dir.path().join(part)).unwrap();
    }
    assert!(try_open(options(dir.path())).is_err());
    std::fs::remove_dir_all(dir.path().join("journal")).unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(store.end().0, 0);
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
    let disk = fault_disk();
    let (store, found) = open_on(&disk, options(dir.path()));
    assert_eq!(found.units_added, 50);
    assert!(disk.paths(&[Call::SyncDir]).iter().any(|dir| dir.ends_with("orders/0")), "the check-point vouches for it");
    drop(store);
}

/// As a broker of Apache's leaves it: without our journal, and with a check-point that does not say where the log ends.
fn left_by_apache(messages: u64) -> tempfile::TempDir {
    let dir = closed(messages);
    forget_journal(dir.path());
    overwrite(&dir.path().join("checkpoint"), 32, &[0; 8]);
    dir
}

/// What Apache's broker has of it: behind that it says that there is a journal.
fn checkpoint(root: &Path) -> Vec<u8> {
    std::fs::read(root.join("checkpoint")).unwrap()[..4088].to_vec()
}

#[test]
fn queues_that_a_start_left_half_built_are_built_whole_by_the_next_one() {
    let dir = left_by_apache(750);
    let (before, whole) = (checkpoint(dir.path()), image(dir.path()));
    let queues = dir.path().join("consumequeue");
    std::fs::remove_dir_all(&queues).unwrap();
    let disk = fault_disk();
    disk.set(QUEUES_FULL, true);
    let env = StoreEnv { disk: Arc::clone(&disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    assert!(Store::open(options(dir.path()), env).is_err(), "it cannot write them");
    // What Apache's broker looks at, too.
    assert!(dir.path().join("abort").exists());
    let now = checkpoint(dir.path());
    assert_eq!((&now[..8], &now[8..16], &now[16..]), (&before[..8], &[0; 8][..], &before[16..]));
    // The units of the newest message came to their file, and no others.
    std::fs::remove_dir_all(&queues).unwrap();
    std::fs::create_dir_all(queues.join(TOPIC).join("1")).unwrap();
    std::fs::copy(queue_file(whole.path(), TOPIC, 1, 0), queue_file(dir.path(), TOPIC, 1, 0)).unwrap();
    let (store, found) = open(dir.path());
    assert!(found.was_abnormal);
    assert_eq!((found.records_scanned, found.units_added), (751, 750));
    assert_run(&store, 0..750);
}

#[test]
fn a_start_that_has_built_queues_leaves_the_check_point_as_it_was() {
    let dir = left_by_apache(750);
    let before = checkpoint(dir.path());
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!((found.was_abnormal, found.units_added), (false, 751));
    assert_run(&store, 0..750);
    assert_eq!(checkpoint(dir.path()), before);
}

#[test]
fn records_for_which_their_queue_has_no_place_are_told_of_as_not_mended() {
    let dir = left_by_apache(750);
    // 100 units a file.
    for file in 3..8 {
        std::fs::remove_file(queue_file(dir.path(), TOPIC, 0, file * 2000)).unwrap();
    }
    let (store, found) = open(dir.path());
    assert_eq!(found.findings, Vec::<String>::new());
    assert!(found.not_mended[0].contains("orders/0 ends at offset 300"), "{:?}", found.not_mended);
    assert_run(&store, 0..300);
}
