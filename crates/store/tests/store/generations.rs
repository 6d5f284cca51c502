//! Topics that were deleted and made again: recovery finds messages of both lives in the log, and tells them apart.

use std::time::Duration;

use store::{Retention, Store, StoreOptions};

use crate::support::*;

/// Message `number` of the topic's life `life`.
fn of_life(life: u8, number: u64) -> Vec<u8> {
    let mut body = body(number);
    body[0] = life;
    body
}

fn append_life(store: &Store, life: u8, numbers: std::ops::Range<u64>) {
    for number in numbers {
        append(store, TOPIC, 0, &of_life(life, number));
    }
}

#[track_caller]
fn assert_life(store: &Store, life: u8, messages: u64) {
    let expected: Vec<_> = (0..messages).map(|number| (number, of_life(life, number))).collect();
    let found = read_all(store, TOPIC, 0);
    assert_eq!(found.len(), expected.len(), "{:?}", store.existing_queue(TOPIC, 0));
    assert!(found == expected, "offsets and bodies of life {life}");
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, messages));
}

/// Whether what is in `image` ends, whatever recovery still has of its queues, with the topic's last life.
fn assert_every_start(image: &std::path::Path, life: u8, messages: u64) {
    for lost in ["nothing", "check-point", "queues", "journal", "all but the log"] {
        let again = self::image(image);
        let gone = |name: &str| {
            let path = again.path().join(name);
            if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
        };
        match lost {
            "check-point" => gone("checkpoint"),
            "queues" => gone("consumequeue"),
            "journal" => gone("journal"),
            "nothing" => {}
            _all => ["checkpoint", "consumequeue", "journal"].into_iter().for_each(gone),
        }
        let (store, found) = open(again.path());
        assert!(!found.findings.iter().any(|line| line.contains("but the record")), "{lost}: {:#?}", found.findings);
        assert_life(&store, life, messages);
        assert_eq!(append(&store, TOPIC, 0, &of_life(life, messages)).queue_offset, messages, "{lost}");
        assert_life(&store, life, messages + 1);
        // And it is in the files.
        store.close().unwrap();
        drop(store);
        let (store, found) = open(again.path());
        assert_eq!((found.records_scanned, found.units_added), (0, 0), "{lost}");
        assert_life(&store, life, messages + 1);
    }
}

#[test]
fn after_a_crash_a_topic_has_the_messages_of_its_last_life_only() {
    // The second life is shorter than the first, as long, and longer.
    for second in [1, 150, 300, 450] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        append_life(&store, 1, 0..300);
        store.delete_topic(TOPIC);
        append_life(&store, 2, 0..second);
        assert_life(&store, 2, second);
        assert_every_start(image(dir.path()).path(), 2, second);
    }
}

#[test]
fn a_scan_that_begins_within_the_first_life_ends_with_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 1, 0..400);
    store.close().unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    append_life(&store, 1, 400..500);
    store.delete_topic(TOPIC);
    append_life(&store, 2, 0..50);
    store.delete_topic(TOPIC);
    append_life(&store, 3, 0..20);
    assert_every_start(image(dir.path()).path(), 3, 20);
}

#[test]
fn a_topic_stays_whole_if_what_its_deletion_depends_on_holds_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 1, 0..300);
    // Somebody looked when there were 299.
    let is_unchanged = |end| store.existing_queue(TOPIC, 0).is_none_or(|queue| queue.max_offset() <= end);
    let end = store.existing_queue(TOPIC, 0).unwrap().max_offset();
    assert!(!store.delete_topic_if(TOPIC, || is_unchanged(end - 1)));
    assert_life(&store, 1, 300);
    assert_every_start(image(dir.path()).path(), 1, 300);
    assert!(store.delete_topic_if(TOPIC, || is_unchanged(end)));
    assert!(store.existing_queue(TOPIC, 0).is_none());
    assert!(store.delete_topic_if(TOPIC, || false), "there is nothing");
}

#[test]
fn a_topic_that_was_deleted_stays_deleted_over_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 1, 0..300);
    append(&store, "other", 0, b"stays");
    store.delete_topic(TOPIC);
    append(&store, "other", 0, b"stays");
    let journal = store.journal();
    assert!(journal.written().wait_until(journal.position(), deadline()));
    let image = image(dir.path());
    let (store, found) = open(image.path());
    assert!(found.records_scanned > 300);
    assert!(store.existing_queue(TOPIC, 0).is_none());
    assert_eq!(read_all(&store, "other", 0).len(), 2);
    append_life(&store, 2, 0..10);
    assert_every_start(self::image(image.path()).path(), 2, 10);
}

#[test]
fn what_a_deletion_left_behind_goes_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 1, 0..300);
    store.close().unwrap();
    drop(store);
    let files = image(&dir.path().join("consumequeue"));
    let (store, _) = open(dir.path());
    store.delete_topic(TOPIC);
    append(&store, "other", 0, b"x");
    store.close().unwrap();
    drop(store);
    // The removal was in memory only when the power went.
    std::fs::rename(files.path().join(TOPIC), dir.path().join("consumequeue").join(TOPIC)).unwrap();
    std::fs::write(dir.path().join("abort"), "1").unwrap();
    let (store, _) = open(dir.path());
    assert!(store.existing_queue(TOPIC, 0).is_none());
    append_life(&store, 2, 0..5);
    assert_life(&store, 2, 5);
}

#[test]
fn a_log_that_lost_its_end_takes_messages_of_the_new_life_where_the_old_one_was() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append(&store, "other", 0, b"x");
    store.close().unwrap();
    drop(store);
    let log = std::fs::read(segment_path(dir.path(), 0)).unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 1, 0..40);
    store.delete_topic(TOPIC);
    store.close().unwrap();
    drop(store);
    std::fs::write(segment_path(dir.path(), 0), log).unwrap();
    std::fs::write(dir.path().join("abort"), "1").unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 2, 0..10);
    assert_every_start(image(dir.path()).path(), 2, 10);
}

#[test]
fn empty_folders_of_queues_do_not_end_the_new_life_of_a_topic() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_life(&store, 1, 0..300);
    append(&store, TOPIC, 1, b"of the first life");
    store.close().unwrap();
    drop(store);
    let first_life = image(&dir.path().join("consumequeue").join(TOPIC).join("1"));
    let (store, _) = open(dir.path());
    store.delete_topic(TOPIC);
    append_life(&store, 2, 0..10);
    store.close().unwrap();
    drop(store);
    // As Apache's broker makes them ahead; and one that a loss of power brought back.
    let queues = dir.path().join("consumequeue").join(TOPIC);
    std::fs::create_dir(queues.join("7")).unwrap();
    std::fs::rename(first_life.path(), queues.join("1")).unwrap();
    let (store, _) = open(dir.path());
    assert_life(&store, 2, 10);
    assert!(read_all(&store, TOPIC, 1).is_empty());
    assert_eq!(append(&store, TOPIC, 1, b"of the second life").queue_offset, 0);
}

#[test]
fn the_mark_of_a_deleted_topic_goes_with_the_last_of_its_messages() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(used(10), true);
    let retention = Retention { delete_when: vec![], ..Retention::default() };
    let options = StoreOptions { retention, clean_interval: Duration::from_millis(5), ..options(dir.path()) };
    let (store, _) = open_on(&disk, options);
    let marks = || {
        let mut count = 0;
        store.journal().load(journal::TableId(251), |_, _| count += 1);
        count
    };
    let mut now = 1_700_000_000_000;
    let mut append_more = || {
        now += 1;
        append_at(&store, now, "other", 0, &[0; 1000]);
    };
    append_run(&store, 0..100);
    store.delete_topic(TOPIC);
    assert_eq!(marks(), 1);
    (0..200).for_each(|_| append_more());
    // Files go by force from here on.
    disk.set(CANNOT_SYNC_LOG_DIR, true);
    let first = segment_path(dir.path(), 0);
    disk.set(used(88), true);
    eventually("the file with its messages is removed", || !first.exists());
    let checkpoint = || std::fs::read(dir.path().join("checkpoint")).unwrap();
    let before = checkpoint();
    append_more();
    eventually("the check-point moves", || checkpoint() != before);
    assert_eq!(marks(), 1, "a loss of power may bring the file back");
    disk.set(CANNOT_SYNC_LOG_DIR, false);
    eventually("the mark is dropped", || {
        append_more();
        marks() == 0
    });
    store.close().unwrap();
}

#[test]
fn a_deleted_topic_whose_files_cannot_be_removed_stays_deleted_when_its_messages_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(used(10), true);
    let retention = Retention { delete_when: vec![], ..Retention::default() };
    let options = StoreOptions { retention, clean_interval: Duration::from_millis(5), ..options(dir.path()) };
    let (store, _) = open_on(&disk, options);
    append_run(&store, 0..100);
    append_at(&store, 1_700_000_000_000, "payments", 0, b"x");
    eventually("units in files", || queue_file(dir.path(), TOPIC, 0, 0).exists());
    let stuck = Fault::new(&[Call::RemoveTree], Files::Under(TOPIC), How::Breaks);
    disk.set(stuck.clone(), true);
    store.delete_topic(TOPIC);
    store.delete_topic("payments");
    let mut now = 1_700_000_000_000;
    let mut append_more = || {
        now += 1;
        append_at(&store, now, "other", 0, &[0; 1000]);
    };
    (0..200).for_each(|_| append_more());
    eventually("a try to remove its files", || disk.refused(&[Call::RemoveTree], &Files::Under(TOPIC)) > 0);
    // Files go by force from here on.
    disk.set(used(88), true);
    let tail = store.end().0 / SEGMENT * SEGMENT;
    eventually("its messages are gone", || store.min_offset().0 == tail);
    disk.set(used(10), true);
    let marks = || {
        let mut count = 0;
        store.journal().load(journal::TableId(251), |_, _| count += 1);
        count
    };
    eventually("the mark of the other topic is dropped", || {
        append_more();
        marks() < 2
    });
    assert_eq!(marks(), 1);
    let image = image(dir.path());
    let (killed, _) = open(image.path());
    assert!(killed.existing_queue(TOPIC, 0).is_none(), "{:?}", killed.existing_queue(TOPIC, 0));
    drop(killed);
    disk.set(stuck, false);
    eventually("its files are gone, and the mark", || {
        append_more();
        !queue_file(dir.path(), TOPIC, 0, 0).exists() && marks() == 0
    });
    store.close().unwrap();
}

/// A loss of power took the deletion of a topic back, and the log ends before the records of its new life, though the device has them.
#[test]
fn records_beyond_the_log_s_end_do_not_speak_for_a_newer_life() {
    for newer in [3, 6, 20] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        append_life(&store, 1, 0..10);
        let torn = append(&store, "payments", 0, &[7; 300]).at.0;
        store.delete_topic(TOPIC);
        append_life(&store, 2, 0..newer);
        store.close().unwrap();
        let image = image(dir.path());
        std::fs::write(image.path().join("abort"), "").unwrap();
        std::fs::remove_file(image.path().join("checkpoint")).unwrap();
        forget_journal(image.path());
        overwrite(&segment_path(image.path(), 0), torn + 100, &[0; 200]);
        let (store, _) = open(image.path());
        assert_eq!(store.end().0, torn);
        assert_life(&store, 1, 10);
        append_life(&store, 1, 10..12);
        assert_life(&store, 1, 12);
        store.close().unwrap();
        drop(store);
        let (store, found) = open(image.path());
        assert_eq!((found.records_scanned, found.units_added), (0, 0));
        assert_life(&store, 1, 12);
    }
}

/// A loss of power took the deletion of a topic back, and the queue is of the new life. The next one takes that one's end from the log, and leaves
/// its units: where they stood, the old life has numbers too.
#[test]
fn units_beyond_the_log_s_end_make_no_room_for_the_life_before() {
    const LATER: i64 = 1_700_000_000_000 + 60_000;
    for (kept, lost) in [(1, 2), (1, 9), (4, 4), (1, 150)] {
        for (scans_all, are_zeros) in [(true, true), (true, false), (false, true), (false, false)] {
            let dir = tempfile::tempdir().unwrap();
            let (store, _) = open(dir.path());
            append_at(&store, LATER - 60_000, TOPIC, 0, &of_life(1, 0));
            store.close().unwrap();
            drop(store);
            let checkpoint = std::fs::read(dir.path().join("checkpoint")).unwrap();
            let (store, _) = open(dir.path());
            for number in 1..10 {
                append_at(&store, LATER, TOPIC, 0, &of_life(1, number));
            }
            store.delete_topic(TOPIC);
            append_life(&store, 2, 0..kept);
            let torn = append(&store, "payments", 0, &[7; 300]).at.0;
            append_life(&store, 2, kept..kept + lost);
            store.close().unwrap();
            let image = image(dir.path());
            std::fs::write(image.path().join("abort"), "").unwrap();
            forget_journal(image.path());
            if scans_all {
                std::fs::remove_file(image.path().join("checkpoint")).unwrap();
            } else {
                std::fs::write(image.path().join("checkpoint"), &checkpoint).unwrap();
            }
            let hole = if are_zeros { SEGMENT - torn } else { 300 } - 100;
            overwrite(&segment_path(image.path(), 0), torn + 100, &vec![0; hole as usize]);
            let (store, _) = open(image.path());
            assert_eq!(store.end().0, torn);
            assert_life(&store, 2, kept);
            append_life(&store, 2, kept..kept + 2);
            assert_life(&store, 2, kept + 2);
            store.close().unwrap();
        }
    }
}
