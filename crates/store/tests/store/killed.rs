//! Starts after a kill: the kernel has what the process had written, and the start need not read it again, nor wait for the device.

use std::path::Path;
use std::sync::Arc;

use disk::Disk;
use store::{Recovered, RecoveryOptions, Store, StoreOptions};

use crate::support::*;

/// Notes what the kernel has each 64 KiB of the log.
fn noting(root: &Path) -> StoreOptions {
    let options = options(root);
    StoreOptions { recovery: RecoveryOptions { note_bytes: 64 << 10, ..options.recovery }, ..options }
}

/// Opens it as soon as the threads of the store that was dropped have ended.
fn reopen(root: &Path) -> (Arc<Store>, Recovered) {
    reopen_after(root, &|| {})
}

/// The same, with something done before each try.
fn reopen_after(root: &Path, done_before: &dyn Fn()) -> (Arc<Store>, Recovered) {
    reopen_on(&fault_disk(), root, done_before)
}

fn reopen_on(disk: &Arc<FaultDisk>, root: &Path, done_before: &dyn Fn()) -> (Arc<Store>, Recovered) {
    reopen_as(&noting(root), &(Arc::clone(disk) as Arc<dyn Disk>), done_before)
}

/// What is noted: up to where the units of the log are in their files, and up to where it was on the device.
fn note_of(root: &Path) -> Option<(u64, u64)> {
    let note = std::fs::read_to_string(root.join("resume")).ok()?;
    let (written, flushed) = note.lines().nth(1)?.split_once(' ')?;
    Some((written.parse().unwrap(), flushed.parse().unwrap()))
}

/// Waits until it is noted that the kernel has all units of the log as it is now.
fn until_noted(store: &Store, root: &Path) {
    let end = store.end().0;
    eventually("a note", || note_of(root).is_some_and(|(written, _)| written == end));
}

/// Appends until it is noted that the kernel has what was appended before, and returns how many messages there are.
fn append_until_noted(store: &Store, root: &Path) -> u64 {
    append_run(store, 0..1000);
    until_noted(store, root);
    // So that units are only in memory.
    append_run(store, 1000..1010);
    1010
}

#[test]
fn a_start_after_a_kill_reads_on_where_the_kernel_has_all() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let messages = append_until_noted(&store, dir.path());
    drop(store);
    for life in 0..3 {
        let (store, found) = reopen(dir.path());
        assert!(found.was_abnormal);
        assert!(found.records_scanned < 1000, "{} in life {life}", found.records_scanned);
        assert_run(&store, 0..messages + life);
        append_run(&store, messages + life..messages + life + 1);
        drop(store);
    }
    let (store, _) = reopen(dir.path());
    store.close().unwrap();
    assert!(!dir.path().join("resume").exists(), "a store that was closed needs none");
}

#[test]
fn what_queues_have_written_is_noted_whether_a_note_is_due_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(options(dir.path())).unwrap();
    let messages = append_until_noted(&store, dir.path());
    drop(store);
    let (store, found) = reopen(dir.path());
    assert!(found.records_scanned < 1000, "{}", found.records_scanned);
    assert_run(&store, 0..messages);
}

/// A start after a kill reads the last 2000 records again, or all; the unit of one of the last is torn. Says what the start found, having looked
/// that the queue has that unit again.
fn mended(disk: &Arc<FaultDisk>, root: &Path, torn: u64) -> Recovered {
    let (store, _) = reopen(root);
    append_until_noted(&store, root);
    let note = std::fs::read(root.join("resume")).unwrap();
    append_run(&store, 1010..3000);
    // All of it is in the queue's file then.
    until_noted(&store, root);
    let unit = store.existing_queue(TOPIC, 0).unwrap().unit_at(torn).unwrap();
    drop(store);
    // As if the process had been killed in the middle of the write of those.
    let (store, found) = reopen_on(disk, root, &|| {
        std::fs::write(root.join("resume"), &note).unwrap();
        let _ = std::fs::remove_file(root.join("checkpoint"));
        overwrite(&queue_file(root, TOPIC, 0, torn / 100 * 100 * 20), torn % 100 * 20 + 12, &[0xff; 8]);
    });
    assert_eq!(store.existing_queue(TOPIC, 0).unwrap().unit_at(torn).unwrap(), unit);
    assert_run(&store, 0..3000);
    found
}

#[test]
fn the_last_unit_of_a_queue_is_compared_with_its_record_since_a_kill_may_have_torn_it() {
    let dir = tempfile::tempdir().unwrap();
    let found = mended(&fault_disk(), dir.path(), 2999);
    assert!((1990..3000).contains(&found.records_scanned), "{}", found.records_scanned);
    assert_eq!(found.units_added, 1);
}

#[test]
fn units_of_lost_records_behind_a_queue_s_end_are_not_taken_for_its_own_when_it_has_grown_as_far() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let at: Vec<u64> = (0..100).map(|_| append(&store, TOPIC, 0, &[1; 1000]).at.0).collect();
    store.close().unwrap();
    drop(store);
    // A loss of power takes records, and units in front of units that stay.
    let image = image(dir.path());
    let root = image.path();
    std::fs::write(root.join("abort"), "").unwrap();
    std::fs::remove_file(root.join("checkpoint")).unwrap();
    overwrite(&segment_path(root, at[30] / SEGMENT * SEGMENT), at[30] % SEGMENT, &[0; 100]);
    overwrite(&queue_file(root, TOPIC, 0, 0), 26 * 20, &[0; 26 * 20]);
    let (store, _) = reopen(root);
    assert_eq!(store.existing_queue(TOPIC, 0).unwrap().max_offset(), 30);
    (30..60).for_each(|_| _ = append(&store, TOPIC, 0, &[2; 100]));
    until_noted(&store, root);
    (60..65).for_each(|_| _ = append(&store, TOPIC, 0, &[3; 100]));
    drop(store);
    let (store, _) = reopen(root);
    assert_eq!(store.existing_queue(TOPIC, 0).unwrap().max_offset(), 65);
    let numbers: Vec<u64> = read_all(&store, TOPIC, 0).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, (0..65).collect::<Vec<_>>());
}

#[test]
fn nothing_noted_is_relied_on_where_queues_have_a_volume_of_their_own_that_may_be_one_of_earlier() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(own_device(dir.path().join("consumequeue")), true);
    let found = mended(&disk, dir.path(), 500);
    assert_eq!((found.records_scanned, found.units_added), (3000, 1));
}

/// Waits until the note says that the log is on the device as far as it is noted.
fn until_noted_as_flushed(root: &Path) {
    eventually("a note of the flush", || {
        note_of(root).is_some_and(|(written, flushed)| written > 0 && written <= flushed)
    });
}

/// Has the kernel let go of a file's pages.
fn let_go(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[test]
fn a_log_that_memory_has_let_go_of_since_it_was_flushed_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let messages = append_until_noted(&store, dir.path());
    until_noted_as_flushed(dir.path());
    drop(store);
    // As a governor with a small limit does.
    let let_go_of_log = || {
        let files = std::fs::read_dir(dir.path().join("commitlog")).unwrap();
        files.for_each(|file| let_go(&file.unwrap().path()));
    };
    let (store, found) = reopen_after(dir.path(), &let_go_of_log);
    assert!(found.records_scanned < 1000, "{}", found.records_scanned);
    assert_run(&store, 0..messages);
}

#[test]
fn a_volume_that_was_taken_away_and_put_back_is_looked_at_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let messages = append_until_noted(&store, dir.path());
    until_noted_as_flushed(dir.path());
    drop(store);
    std::fs::remove_file(dir.path().join("checkpoint")).unwrap();
    // Its pages went with it, those of the note as well.
    let_go(&dir.path().join("resume"));
    let (store, found) = reopen(dir.path());
    assert_eq!(found.records_scanned, messages);
    assert_run(&store, 0..messages);
}

#[test]
fn queues_that_somebody_has_removed_since_are_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let messages = append_until_noted(&store, dir.path());
    drop(store);
    let (store, _) = reopen_after(dir.path(), &|| {
        let _ = std::fs::remove_dir_all(dir.path().join("consumequeue"));
    });
    assert_run(&store, 0..messages);
}

#[test]
fn another_machine_s_memory_is_not_relied_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let messages = append_until_noted(&store, dir.path());
    drop(store);
    let copy = image(dir.path());
    assert!(copy.path().join("resume").exists());
    // As a loss of power leaves it.
    std::fs::remove_dir_all(copy.path().join("consumequeue")).unwrap();
    std::fs::remove_file(copy.path().join("checkpoint")).unwrap();
    let (store, found) = reopen(copy.path());
    assert_eq!(found.records_scanned, messages);
    assert_run(&store, 0..messages);
}

#[test]
fn whoever_had_the_store_in_between_makes_the_start_look_at_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let messages = append_until_noted(&store, dir.path());
    drop(store);
    // Another broker, say Apache's, started, and was killed too.
    std::fs::write(dir.path().join("abort"), "4711").unwrap();
    std::fs::remove_file(queue_file(dir.path(), TOPIC, 0, 0)).unwrap();
    std::fs::remove_file(dir.path().join("checkpoint")).unwrap();
    let (store, found) = reopen(dir.path());
    assert_eq!(found.records_scanned, messages);
    assert_run(&store, 0..messages);
}

#[test]
fn a_start_after_a_kill_leaves_the_log_to_the_flush() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let end = {
        let (store, _) = open_on(&disk, options(dir.path()));
        disk.set(STALLED, true);
        append_run(&store, 0..100);
        let end = store.end().0;
        // The flush that waits comes to nothing.
        let image = image(dir.path());
        disk.set(STALLED, false);
        // So that nothing is made there while it is removed. What the image has nobody closed.
        store.close().unwrap();
        drop(store);
        std::fs::remove_dir_all(dir.path()).unwrap();
        std::fs::rename(image.path(), dir.path()).unwrap();
        end
    };
    disk.forget_notes();
    let (store, found) = open_on(&disk, options(dir.path()));
    assert!(found.was_abnormal);
    assert!(store.flushed().wait_until(end, deadline()), "the flush brings it to the device");
    let page = end as usize / 4096 * 4096;
    let syncs = disk.stretches(&[Call::SyncMapped]);
    assert!(syncs[0].start >= page, "the first sync is of what was cut off behind the end: {syncs:?}");
    assert!(syncs[1..].iter().any(|range| range.start == 0 && range.end >= end as usize), "{syncs:?}");
    assert_run(&store, 0..100);
}

/// A store that was killed with messages in two queues; only the first one was written lately. Before the next start something is done.
fn with_a_quiet_queue(done_before: &dyn Fn(&Path)) -> (tempfile::TempDir, Arc<Store>, Recovered) {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    for number in 0..250 {
        append(&store, TOPIC, 1, &body(number));
    }
    append(&store, "gone", 0, b"x");
    until_noted(&store, dir.path());
    store.delete_topic("gone");
    append_until_noted(&store, dir.path());
    drop(store);
    let (store, found) = reopen_after(dir.path(), &|| done_before(dir.path()));
    (dir, store, found)
}

#[test]
fn a_queue_that_lost_files_or_units_while_nobody_wrote_it_is_built_again_after_a_kill() {
    let folder = |root: &Path| root.join("consumequeue").join(TOPIC).join("1");
    let whole = |_: &Path| {};
    let without_folder = |root: &Path| _ = std::fs::remove_dir_all(folder(root));
    let without_last_file = |root: &Path| _ = std::fs::remove_file(queue_file(root, TOPIC, 1, 200 * 20));
    let without_last_units = |root: &Path| overwrite(&queue_file(root, TOPIC, 1, 200 * 20), 40 * 20, &[0; 200]);
    type Damage<'a> = (bool, &'a dyn Fn(&Path));
    let damages: [Damage<'_>; 4] =
        [(false, &whole), (true, &without_folder), (true, &without_last_file), (true, &without_last_units)];
    for (number, (is_damage, damage)) in damages.into_iter().enumerate() {
        let (_dir, store, found) = with_a_quiet_queue(damage);
        let is_said = found.findings.iter().any(|finding| finding.contains("consume queues are not what they were"));
        assert_eq!((is_said, found.records_scanned > 1000), (is_damage, is_damage), "{number}: {found:?}");
        assert_eq!(read_all(&store, TOPIC, 1).len(), 250, "{number}");
        assert_run(&store, 0..1010);
        assert!(store.existing_queue("gone", 0).is_none());
    }
}

#[test]
fn a_queue_without_a_file_of_which_records_come_is_built_from_the_log_s_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    for number in 0..2000 {
        append_at(&store, 1_700_000_000_000 + number as i64 * 1000, TOPIC, 0, &body(number));
    }
    store.close().unwrap();
    drop(store);
    // As a loss of power leaves it, of which the check-point says that the queue is on the device.
    std::fs::write(dir.path().join("abort"), "").unwrap();
    std::fs::remove_dir_all(dir.path().join("consumequeue").join(TOPIC)).unwrap();
    let (store, _) = reopen(dir.path());
    assert_run(&store, 0..2000);
}
