//! Starts after a crash: what is found, what is mended, and what is said about it.

use env::TimeMs;
use store::{FlushMode, RecordBatch, TagsCode};

use crate::support::*;

/// A store that crashed after a run of messages.
fn crashed(messages: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..messages);
    image(dir.path())
}

#[test]
fn a_crash_loses_nothing_and_mends_nothing() {
    let dir = crashed(700);
    let (store, found) = open(dir.path());
    assert!(found.was_abnormal);
    assert_eq!(damage(&found), Vec::<String>::new());
    assert_run(&store, 0..700);
    append_run(&store, 700..800);
    assert_run(&store, 0..800);
    store.close().unwrap();
    drop(store);
    let (store, found) = open(dir.path());
    assert!(!found.was_abnormal);
    assert_run(&store, 0..800);
}

#[test]
fn a_torn_record_at_the_end_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..20);
    let last = append(&store, TOPIC, 0, &[7; 3000]);
    let image = image(dir.path());
    // Half of it never reached the device.
    overwrite(&segment_path(image.path(), 0), last.at.0 + 1500, &[0; 2000]);
    let (store, found) = open(image.path());
    assert_eq!(store.end(), last.at);
    let says = found.findings.join("\n");
    assert!(says.contains(&format!("the log ends at {}", last.at.0)) && says.contains("zeroed"), "{says}");
    assert_run(&store, 0..20);
    append_run(&store, 20..40);
    assert_run(&store, 0..40);
    store.close().unwrap();
}

/// A record has a checksum of its body only.
#[test]
fn a_record_whose_properties_never_reached_the_device_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..20);
    let queue = store.queue(TOPIC, 0).unwrap();
    let send = |body: &[u8], properties: &[u8]| {
        let mut batch = RecordBatch::new();
        batch.push(&queue, TagsCode::Code(0), |out| encode(TOPIC, 0, body, properties, out));
        append_batch(&store, &mut batch, TimeMs(1_700_000_000_000)).unwrap();
        batch.landed()[0]
    };
    let properties = format!("KEYS\u{1}{}\u{2}CLUSTER\u{1}c\u{2}", "k".repeat(3000));
    let last = send(&[7; 300], properties.as_bytes());
    let end = store.end().0;
    let sector = |at: u64| at / 512 * 512;
    // One in the middle, and what there is in the last one.
    for (from, to) in [(sector(end) - 1024, sector(end) - 512), (sector(end - 1), end)] {
        let image = image(dir.path());
        overwrite(&segment_path(image.path(), 0), from, &vec![0; (to - from) as usize]);
        let (store, found) = open(image.path());
        assert_eq!(store.end(), last.at, "{from}..{to}");
        let says = found.findings.join("\n");
        assert!(says.contains("never came to the device") && says.contains("zeroed"), "{says}");
        assert_run(&store, 0..20);
        store.close().unwrap();
    }
    // A value of zeros that somebody sent is none of that.
    let zeros = format!("ZEROS\u{1}{}\u{2}CLUSTER\u{1}c\u{2}", "\0".repeat(400));
    send(&[7; 300], zeros.as_bytes());
    let end = store.end();
    let (store, _) = open(image(dir.path()).path());
    assert_eq!(store.end(), end);
}

/// The device wrote a later file of a queue and not the one before it, and the log ends in between.
#[test]
fn units_that_never_reached_the_device_in_front_of_units_beyond_the_log_cost_no_message() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let at: Vec<_> = (0..250).map(|number| append(&store, TOPIC, 0, &body(number)).at.0).collect();
    store.close().unwrap();
    let image = image(dir.path());
    std::fs::write(image.path().join("abort"), "").unwrap();
    std::fs::remove_file(image.path().join("checkpoint")).unwrap();
    forget_journal(image.path());
    overwrite(&segment_path(image.path(), at[150] / SEGMENT * SEGMENT), at[150] % SEGMENT, &[0; 100]);
    overwrite(&queue_file(image.path(), TOPIC, 0, 2000), 0, &[0; 2000]);
    let (store, _) = open(image.path());
    assert_eq!(store.end().0, at[150]);
    assert_run(&store, 0..150);
    append_run(&store, 150..160);
    assert_run(&store, 0..160);
}

/// The check-point vouches for the first messages only, so they are not read again; of what came later the device wrote the end first.
#[test]
fn units_that_never_reached_the_device_take_none_before_them_along() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let early = 1_700_000_000_000;
    for number in 0..370 {
        append_at(&store, if number < 130 { early } else { early + 100_000 }, TOPIC, 0, &body(number));
    }
    assert!(store.end().0 > 2 * SEGMENT, "the second file begins with an early message");
    store.close().unwrap();
    let image = image(dir.path());
    std::fs::write(image.path().join("abort"), "").unwrap();
    overwrite(&queue_file(image.path(), TOPIC, 0, 2000), 40 * 20, &[0; 60 * 20]);
    let (store, found) = open(image.path());
    assert!((200..370).contains(&found.records_scanned), "{} records were read again", found.records_scanned);
    assert_run(&store, 0..370);
}

/// Nobody wrote the queue after that, others went on, and the check-point is a second later than
/// its last message.
#[test]
fn a_quiet_queue_whose_last_units_never_reached_the_device_has_them_again() {
    for loss in ["units", "file"] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        let early = 1_700_000_000_000;
        for number in 0..200 {
            append_at(&store, early, TOPIC, 0, &body(number));
            append_at(&store, early, TOPIC, 1, &body(number));
        }
        assert!(store.end().0 > 2 * SEGMENT, "the third file begins with early messages");
        (200..220).for_each(|number| _ = append_at(&store, early + 100_000, TOPIC, 1, &body(number)));
        (200..250).for_each(|number| _ = append_at(&store, early + 101_000, TOPIC, 0, &body(number)));
        store.close().unwrap();
        let image = image(dir.path());
        std::fs::write(image.path().join("abort"), "").unwrap();
        // Nor does anybody say how the store was closed.
        forget_journal(image.path());
        let last = queue_file(image.path(), TOPIC, 1, 200 * 20);
        let lost = match loss {
            "units" => {
                overwrite(&last, 10 * 20, &[0; 10 * 20]);
                10
            }
            _file => {
                std::fs::remove_file(last).unwrap();
                20
            }
        };
        let (store, found) = open(image.path());
        assert_eq!(found.units_added, lost, "{loss}");
        assert!(found.records_scanned < 300, "{loss}: {} records were read again", found.records_scanned);
        let expected: Vec<_> = (0..220).map(|number| (number, body(number))).collect();
        assert!(read_all(&store, TOPIC, 1) == expected, "{loss}");
        assert_run(&store, 0..250);
    }
}

#[test]
fn garbage_behind_the_tail_is_zeroed() {
    for garbage in [
        &b"\x00\x00\x01\x00garbage garbage"[..],
        &[0xff; 64],
        &[0, 0, 0, 0, 0, 0, 0, 1],
        &[0x7f, 0xff, 0xff, 0xff, 0xda, 0xa3, 0x20, 0xa7],
    ] {
        let dir = crashed(10);
        let end = open(image(dir.path()).path()).0.end().0;
        overwrite(&segment_path(dir.path(), 0), end, garbage);
        let (store, found) = open(dir.path());
        assert_eq!(store.end().0, end);
        assert!(found.findings.iter().any(|finding| finding.contains("zeroed")), "{:?}", found.findings);
        let file = std::fs::read(segment_path(dir.path(), 0)).unwrap();
        assert!(file[end as usize..].iter().all(|byte| *byte == 0));
        append_run(&store, 10..12);
        assert_run(&store, 0..12);
    }
}

#[test]
fn a_record_whose_body_changed_ends_the_log_and_its_place_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..10);
    let bad = append(&store, TOPIC, 0, &body(10));
    append_run(&store, 11..20);
    let image = image(dir.path());
    overwrite(&segment_path(image.path(), 0), bad.at.0 + 90, &[0xAA]);
    let (store, found) = open(image.path());
    assert_eq!(store.end(), bad.at);
    let says = found.findings.join("\n");
    assert!(says.contains(&format!("the log ends at {}", bad.at.0)) && says.contains("CRC"), "{says}");
    assert_run(&store, 0..10);
}

#[test]
fn a_lost_folder_of_consume_queues_is_built_again_from_the_log() {
    let dir = crashed(500);
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!((found.records_scanned, found.units_added), (500, 500));
    assert_run(&store, 0..500);
}

#[test]
fn a_lost_check_point_costs_a_scan_and_nothing_else() {
    let dir = crashed(500);
    std::fs::remove_file(dir.path().join("checkpoint")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found.records_scanned, 500);
    assert_run(&store, 0..500);
}

#[test]
fn a_check_point_of_any_bytes_costs_no_message() {
    for bytes in [[0xff; 4096], [0; 4096], [0x7f; 4096]] {
        let dir = crashed(300);
        std::fs::write(dir.path().join("checkpoint"), bytes).unwrap();
        let (store, _) = open(dir.path());
        assert_run(&store, 0..300);
    }
    let dir = crashed(300);
    std::fs::write(dir.path().join("checkpoint"), [1; 7]).unwrap();
    let (store, _) = open(dir.path());
    assert_run(&store, 0..300);
    assert_eq!(std::fs::metadata(dir.path().join("checkpoint")).unwrap().len(), 4096);
}

#[test]
fn a_lost_journal_folder_costs_no_message() {
    let dir = crashed(100);
    forget_journal(dir.path());
    let (store, _) = open(dir.path());
    assert_run(&store, 0..100);
}

#[test]
fn the_next_file_that_was_made_ahead_is_no_part_of_the_log() {
    let dir = crashed(10);
    // The window reaches beyond the first small file.
    assert!(segment_path(dir.path(), SEGMENT).exists());
    let (store, found) = open(dir.path());
    assert_eq!(damage(&found), Vec::<String>::new());
    assert_run(&store, 0..10);
    append_run(&store, 10..500);
    assert_run(&store, 0..500);
}

#[test]
fn units_beyond_the_end_of_the_log_are_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..50);
    store.close().unwrap();
    let log = std::fs::read(segment_path(dir.path(), 0)).unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    append_run(&store, 50..60);
    store.close().unwrap();
    drop(store);
    // A loss of power took the log's end and left the queue's.
    std::fs::write(segment_path(dir.path(), 0), log).unwrap();
    std::fs::write(dir.path().join("abort"), "1").unwrap();
    let (store, found) = open(dir.path());
    assert!(found.findings.iter().any(|finding| finding.contains("10 units")), "{:?}", found.findings);
    assert_run(&store, 0..50);
    append_run(&store, 50..70);
    assert_run(&store, 0..70);
}

#[test]
fn a_crash_on_the_very_border_of_two_files_is_no_damage() {
    let overhead = record_bytes(0);
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    // Exactly full: only the marker is missing, and the next append writes it.
    append(&store, TOPIC, 0, &vec![1; (SEGMENT - 8 - overhead) as usize]);
    let before = image(dir.path());
    append(&store, TOPIC, 0, b"next");
    let behind = image(dir.path());
    for (image, messages) in [(before, 1), (behind, 2)] {
        let (store, found) = open(image.path());
        assert_eq!(damage(&found), Vec::<String>::new());
        assert_eq!(read_all(&store, TOPIC, 0).len(), messages);
        assert_eq!(append(&store, TOPIC, 0, b"x").queue_offset, messages as u64);
    }
}

#[test]
fn a_hostile_record_that_leaves_no_place_for_the_marker_is_survived() {
    let dir = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    encode(TOPIC, 0, &vec![1; (SEGMENT - record_bytes(0) - 4) as usize], b"", &mut file);
    protocol::record::stamp(&mut file, 0, 0, 1);
    file.resize(SEGMENT as usize, 0);
    std::fs::create_dir(dir.path().join("commitlog")).unwrap();
    std::fs::write(segment_path(dir.path(), 0), file).unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(append(&store, TOPIC, 0, b"next").at.0, SEGMENT);
    let image = image(dir.path());
    let (store, _) = open(image.path());
    assert_eq!(read_all(&store, TOPIC, 0).len(), 2);
}

#[test]
fn a_record_with_a_path_for_a_topic_makes_no_folder() {
    for topic in ["../../escaped", "a/b", ".", "..", "nul\0"] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let mut file = Vec::new();
        encode(topic, 0, b"x", b"", &mut file);
        protocol::record::stamp(&mut file, 0, 0, 1);
        let bytes = file.len() as u64;
        file.resize(SEGMENT as usize, 0);
        std::fs::create_dir_all(root.join("commitlog")).unwrap();
        std::fs::write(segment_path(&root, 0), file).unwrap();
        let (store, _) = open(&root);
        assert_eq!(store.end().0, bytes, "the record stays in the log");
        assert!(store.topics().is_empty(), "{topic:?}");
        append_run(&store, 0..5);
        store.close().unwrap();
        assert_run(&store, 0..5);
        assert!(!dir.path().join("escaped").exists() && !root.join("escaped").exists());
    }
}

#[test]
fn what_was_found_after_a_crash_is_on_the_device_before_it_counts_as_flushed() {
    let dir = crashed(700);
    let disk = fault_disk();
    let (store, _) = open_on(&disk, store::StoreOptions { flush: FlushMode::Sync, ..options(dir.path()) });
    assert_eq!(store.flushed().get(), store.end().0);
    let files = store.end().0 / SEGMENT + 1;
    assert!(disk.count(SYNCS, &Files::All) as u64 >= files, "every file that was read again is synced");
    // The units that the last process wrote may be in the kernel only, too: the check-point may not say more.
    eventually("a check-point", || {
        let mark = std::fs::read(dir.path().join("checkpoint")).unwrap();
        i64::from_be_bytes(mark[..8].try_into().unwrap()) >= 1_700_000_000_000
    });
    assert!(!disk.paths(&[Call::SyncFileSystem]).is_empty());
}

#[test]
fn the_names_of_the_first_files_survive_a_loss_of_power() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let root = dir.path().join("store");
    let (store, _) = open_on(&disk, store::StoreOptions { segment_bytes: 4 << 20, ..options(&root) });
    let synced = disk.paths(&[Call::SyncDir]);
    for needed in [dir.path(), &*root, &*root.join("commitlog")] {
        assert!(synced.iter().any(|dir| dir == needed), "{} of {synced:?}", needed.display());
    }
    drop(store);
}

#[test]
fn a_start_touches_no_memory_behind_the_end_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(store::StoreOptions { segment_bytes: 1 << 30, ..options(dir.path()) }).unwrap();
    append_run(&store, 0..10);
    store.close().unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    // Of the file that is mapped: what is ready for appends, not what was looked at for remains.
    let name = segment_path(dir.path(), 0);
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mapping = &maps[maps.find(name.to_str().unwrap()).unwrap()..];
    let resident = mapping.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib <= 2 << 10, "{kib} KiB");
    drop(store);
}

#[test]
fn a_unit_that_changed_is_mended_from_the_log() {
    let dir = crashed(500);
    // The units are in their files, since a start wrote them there.
    open(dir.path()).0.close().unwrap();
    std::fs::write(dir.path().join("abort"), "1").unwrap();
    for (unit, byte) in [(3, 7), (250, 11), (251, 19)] {
        overwrite(&queue_file(dir.path(), TOPIC, 0, unit / 100 * 2000), unit % 100 * 20 + byte, &[0x55]);
    }
    // The check-point vouches for them otherwise.
    std::fs::remove_file(dir.path().join("checkpoint")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!((found.records_scanned, found.units_added), (500, 3));
    assert_run(&store, 0..500);
}

#[test]
fn a_loss_of_power_right_after_a_start_does_not_look_like_a_clean_stop() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).0.close().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, options(dir.path()));
    assert!(dir.path().join("abort").exists());
    assert!(disk.paths(&[Call::SyncDir]).iter().any(|synced| synced == dir.path()), "the name of the file `abort`");
    drop(store);
}

#[test]
fn a_last_file_of_the_log_that_was_cut_short_costs_what_was_cut_off() {
    for messages in [40, 300] {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = open(dir.path());
        let ends: Vec<u64> = (0..messages).map(|number| append(&store, TOPIC, 0, &body(number)).end.0).collect();
        eventually("units in their files", || queue_file(dir.path(), TOPIC, 0, 0).exists());
        let last = (ends[ends.len() - 1] - 1) / SEGMENT * SEGMENT;
        for bytes in [0, 1, 50, 4096, 5000, 12_001] {
            let image = image(dir.path());
            let file = std::fs::OpenOptions::new().write(true).open(segment_path(image.path(), last)).unwrap();
            file.set_len(bytes).unwrap();
            let kept = ends.iter().filter(|end| **end <= last + bytes).count() as u64;
            let (store, found) = open(image.path());
            assert_run(&store, 0..kept);
            assert!(kept == messages || !found.findings.is_empty());
            append_run(&store, kept..kept + 10);
            assert_run(&store, 0..kept + 10);
            store.close().unwrap();
        }
    }
}
