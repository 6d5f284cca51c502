//! A log whose files are spread over several folders.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{AppendError, LogDirs, NotWritable, RecordBatch, Retention, Store, StoreOptions};

use crate::support::*;

/// `one`, `two` … beside the store's root.
struct Disks(tempfile::TempDir);

impl Disks {
    fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn options(&self, taking: &[&str], read_only: &[&str]) -> StoreOptions {
        let dirs = |names: &[&str]| names.iter().map(|name| self.dir(name)).collect::<Vec<_>>();
        let log_dirs = LogDirs::new(&dirs(taking), &dirs(read_only)).unwrap();
        StoreOptions { log_dirs, ..options(&self.dir("root")) }
    }

    fn open(&self, taking: &[&str], read_only: &[&str]) -> Arc<Store> {
        try_open(self.options(taking, read_only)).unwrap().0
    }

    /// Numbers of the files of a folder: which of the log's files each of them is.
    fn files(&self, name: &str) -> Vec<u64> {
        let entries = std::fs::read_dir(self.dir(name)).unwrap();
        let base = |entry: std::fs::DirEntry| entry.file_name().to_str().unwrap().parse::<u64>().unwrap();
        let mut numbers: Vec<u64> = entries.map(|entry| base(entry.unwrap()) / SEGMENT).collect();
        numbers.sort_unstable();
        numbers
    }

    fn change(&self, from: &str, to: &str, number: u64) {
        let name = format!("{:020}", number * SEGMENT);
        std::fs::rename(self.dir(from).join(&name), self.dir(to).join(&name)).unwrap();
    }
}

fn disks() -> Disks {
    Disks(tempfile::tempdir().unwrap())
}

/// Appends numbered messages until the log's end lies in the last of so many files. Says how many messages it holds then.
fn fill(store: &Store, files: u64) -> u64 {
    let mut number = store.existing_queue(TOPIC, 0).map_or(0, |queue| queue.max_offset());
    while store.end().0 / SEGMENT + 1 < files {
        append_run(store, number..number + 1);
        number += 1;
    }
    number
}

#[test]
fn files_take_turns_in_the_folders_and_are_found_wherever_they_were_moved() {
    let disks = disks();
    let store = disks.open(&["one", "two"], &[]);
    let count = fill(&store, 5);
    store.close().unwrap();
    let (one, two) = (disks.files("one"), disks.files("two"));
    assert!(one.iter().all(|number| number % 2 == 0) && two.iter().all(|number| number % 2 == 1), "{one:?} {two:?}");
    assert!(one.len() >= 2 && two.len() >= 2, "{one:?} {two:?}");

    disks.change("one", "two", 0);
    disks.change("two", "one", 3);
    let store = disks.open(&["one", "two"], &[]);
    assert_run(&store, 0..count);
    let count = fill(&store, 8);
    assert_run(&store, 0..count);
    store.close().unwrap();
}

#[test]
fn a_folder_that_is_nearly_full_gets_no_file_while_another_has_room() {
    let disks = disks();
    let disk = fault_disk();
    disk.set(used(10), true);
    let mut options = disks.options(&["one", "two"], &[]);
    options.retention.disk_clean_forcibly_percent = 85;
    options.retention.disk_warning_percent = 90;
    options.clean_interval = std::time::Duration::from_millis(5);
    let (store, _) = open_on(&disk, options);
    fill(&store, 2);
    let before = disks.files("two");
    disk.set(full_dir(disks.dir("two")), true);
    let count = fill(&store, 7);
    assert_run(&store, 0..count);
    // What was made ahead before may be there.
    let after = disks.files("two");
    assert!(after.len() <= before.len() + 1, "{before:?} {after:?}");
    assert!(disks.files("one").len() as u64 >= 5, "{:?}", disks.files("one"));

    disk.set(used(95), true);
    eventually("a refusal, where all folders are full", || {
        matches!(store.writable(), Err(NotWritable::DiskFull { used_percent: 95, .. }))
    });
    store.close().unwrap();
}

#[test]
fn a_folder_that_takes_no_file_is_passed_over_and_gets_files_again_when_it_takes_them() {
    let faults: [fn(PathBuf) -> Fault; 2] = [read_only_dir, without_room];
    for fault in faults {
        let disks = disks();
        let disk = fault_disk();
        let (store, _) = open_on(&disk, disks.options(&["one", "two"], &[]));
        fill(&store, 2);
        disk.set(fault(disks.dir("two")), true);
        // One may be in the making.
        let most = disks.files("two").len() + 1;
        // Behind what is ready ahead.
        let count = fill(&store, store.end().0 / SEGMENT + 60);
        assert_run(&store, 0..count);
        assert!(disks.files("two").len() <= most, "{:?}", disks.files("two"));
        disk.set(fault(disks.dir("two")), false);
        let count = fill(&store, store.end().0 / SEGMENT + 60);
        assert!(disks.files("two").len() > most + 10, "{:?}", disks.files("two"));
        store.close().unwrap();
        // No file is there twice.
        drop(store);
        assert_run(&disks.open(&["one", "two"], &[]), 0..count);
    }
}

/// Appends messages with so many bytes until one is refused: what is said, and that message.
fn refused_in_time(store: &Store, bytes: usize) -> (String, RecordBatch) {
    let (mut said, mut batch) = (String::new(), RecordBatch::new());
    eventually("a refusal", || {
        batch.clear();
        push(store, &mut batch, TOPIC, 0, &vec![0; bytes]);
        let Err(refused) = append_batch(store, &mut batch, env::TimeMs(1)) else { return false };
        said = refused.to_string();
        true
    });
    (said, batch)
}

#[test]
fn a_log_without_any_folder_that_takes_a_file_names_them_all_with_what_helps() {
    let disks = disks();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, disks.options(&["one", "two"], &[]));
    disk.set(read_only_dir(disks.dir("one")), true);
    disk.set(without_room(disks.dir("two")), true);
    let (said, mut batch) = refused_in_time(&store, 1000);
    for part in ["/one/", "make the folder writable again", "/two/", "free space"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let taken = store.existing_queue(TOPIC, 0).unwrap().max_offset();
    disk.set(read_only_dir(disks.dir("one")), false);
    eventually("an append", || append_batch(&store, &mut batch, env::TimeMs(1)).is_ok());
    assert_eq!(read_all(&store, TOPIC, 0).len() as u64, taken + 1);
    store.close().unwrap();
}

#[test]
fn what_a_folder_has_refused_is_gone_from_its_device_before_another_one_gets_it() {
    let disks = disks();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, disks.options(&["one", "two"], &[]));
    let syncs = || disk.paths(&[Call::SyncDir]).iter().filter(|dir| **dir == disks.dir("two")).count() as u64;
    disk.set(without_room(disks.dir("two")), true);
    let before = syncs();
    fill(&store, 60);
    store.close().unwrap();
    let refused = disk.refused(&[Call::Allocate], &Files::All) as u64;
    assert!(refused >= 20 && syncs() - before >= refused, "{} syncs for {refused} files", syncs() - before);
}

#[test]
fn a_file_whose_name_may_come_back_in_one_folder_is_made_in_no_other_one() {
    let disks = disks();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, disks.options(&["one", "two"], &[]));
    disk.set(without_room(disks.dir("two")), true);
    disk.set(unsyncable_dir(disks.dir("two")), true);
    let (said, mut batch) = refused_in_time(&store, 8000);
    assert!(said.contains("/two/") && said.contains("for good") && !said.contains("/one/"), "{said}");
    assert!(disks.files("one").iter().all(|number| number % 2 == 0), "{:?}", disks.files("one"));
    // What has no name to lose is asked for elsewhere.
    disk.set(read_only_dir(disks.dir("two")), true);
    eventually("an append", || append_batch(&store, &mut batch, env::TimeMs(1)).is_ok());
    for fault in [read_only_dir, without_room, unsyncable_dir] {
        disk.set(fault(disks.dir("two")), false);
    }
    store.close().unwrap();
}

#[test]
fn folders_that_have_all_refused_a_file_are_not_asked_again_for_each_message() {
    let disks = disks();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, disks.options(&["one", "two"], &[]));
    disk.set(without_room(disks.0.path().to_owned()), true);
    let mut batch = RecordBatch::new();
    let mut is_refused = || {
        batch.clear();
        push(&store, &mut batch, TOPIC, 0, &[0; 8000]);
        matches!(store.append(&mut batch, env::TimeMs(1)), Err(AppendError::NotWritable(_)))
    };
    eventually("a refusal", &mut is_refused);
    let refused = || disk.refused(&[Call::Allocate], &Files::All) as u64;
    let (began, before) = (Instant::now(), refused());
    while began.elapsed() < Duration::from_millis(300) {
        assert!(is_refused());
        std::thread::yield_now();
    }
    // Both of them each second, and the journal.
    let most = 2 * (began.elapsed().as_secs() + 2) + 2;
    assert!(refused() - before <= most, "asked {} times in {:?}", refused() - before, began.elapsed());
    disk.set(without_room(disks.0.path().to_owned()), false);
    eventually("an append", || !is_refused());
    store.close().unwrap();
}

#[test]
fn a_folder_that_does_not_say_how_full_it_is_leaves_the_limits_to_the_others() {
    for lost in ["one", "root"] {
        let disks = disks();
        let (store, disk) = beside_full_queues(&disks, |options| {
            options.retention.disk_warning_percent = 90;
            options.retention.disk_max_used_percent = 75;
            options.retention.file_reserved = std::time::Duration::ZERO;
        });
        fill(&store, 4);
        disk.set(unmeasurable(disks.dir(lost)), true);
        disk.set(used(95), true);
        let named = if lost == "one" { "two" } else { "one" };
        let full = NotWritable::DiskFull { path: disks.dir(named), used_percent: 95, limit_percent: 90 };
        eventually_refused(&store, &full);
        assert_eq!(store.disk_use().unwrap().used_percent(), 95);
        eventually("deletion", || store.min_offset().0 >= 3 * SEGMENT);
        disk.set(used(10), true);
        eventually("room", || store.writable().is_ok());
        store.close().unwrap();
    }
}

#[test]
fn a_log_that_is_too_long_gives_up_the_oldest_files_of_all_folders() {
    let disks = disks();
    let store = disks.open(&["old"], &[]);
    fill(&store, 3);
    store.close().unwrap();
    std::fs::create_dir_all(disks.dir("read")).unwrap();
    disks.change("old", "read", 0);
    let mut options = disks.options(&["old", "one"], &["read"]);
    options.clean_interval = std::time::Duration::from_millis(5);
    let retention = options.retention.clone();
    let (store, _) = try_open(options).unwrap();
    fill(&store, 9);
    store.retain(Retention { log_bytes_max: Some(3 * SEGMENT), ..retention });
    let min = (store.end().0 - 3 * SEGMENT).next_multiple_of(SEGMENT);
    eventually("deletion", || store.min_offset().0 == min);
    let newest = |name| disks.files(name).into_iter().filter(|number| number * SEGMENT < min).collect::<Vec<_>>();
    assert_eq!(["read", "old", "one"].map(newest), [const { Vec::<u64>::new() }; 3]);
    assert!(!disks.files("old").is_empty() && !disks.files("one").is_empty());
    store.close().unwrap();
}

#[test]
fn folders_that_a_start_makes_keep_their_names_wherever_they_are() {
    let disks = disks();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, disks.options(&["deep/one"], &[]));
    let synced = disk.paths(&[Call::SyncDir]);
    for parent in [disks.0.path(), &disks.dir("deep"), &disks.dir("root")] {
        assert!(synced.iter().any(|dir| dir == parent), "{} of {synced:?}", parent.display());
    }
    store.close().unwrap();
}

/// How many of these files of the log went from `one` and `two`. Each was gone for good before the next one went.
fn gone_for_good(disks: &Disks, disk: &FaultDisk, numbers: Range<u64>) -> usize {
    let changes = disk.paths(&[Call::Remove, Call::SyncDir]);
    let paths: Vec<PathBuf> = numbers
        .flat_map(|number| ["one", "two"].map(|dir| disks.dir(dir).join(format!("{:020}", number * SEGMENT))))
        .collect();
    let files: Vec<usize> = (0..changes.len()).filter(|place| paths.contains(&changes[*place])).collect();
    for pair in files.windows(2) {
        let dir = changes[pair[0]].parent().unwrap();
        assert!(changes[pair[0]..pair[1]].iter().any(|change| change == dir), "{changes:?}");
    }
    files.len()
}

#[test]
fn a_file_that_is_too_old_is_gone_for_good_before_the_next_one_in_another_folder_goes() {
    let disks = disks();
    let disk = fault_disk();
    let mut options = disks.options(&["one", "two"], &[]);
    options.clean_interval = Duration::from_millis(5);
    let retention = options.retention.clone();
    let (store, _) = open_on(&disk, options);
    fill(&store, 5);
    disk.set(unsyncable_dir(disks.dir("one")), true);
    store.retain(Retention { log_bytes_max: Some(2 * SEGMENT), ..retention });
    eventually("the first file is gone", || store.min_offset().0 == SEGMENT);
    let looks = disk.count(&[Call::Space], &Files::All);
    eventually("other looks", || disk.count(&[Call::Space], &Files::All) > looks + 50);
    assert_eq!(store.min_offset().0, SEGMENT, "nobody knows whether the first one comes back");
    disk.set(unsyncable_dir(disks.dir("one")), false);
    eventually("deletion", || store.min_offset().0 >= 3 * SEGMENT);
    assert_eq!(gone_for_good(&disks, &disk, 0..3), 3);
    store.close().unwrap();
}

#[test]
fn a_start_removes_a_file_behind_the_log_s_end_for_good_before_the_one_before_it_goes() {
    let disks = disks();
    let store = disks.open(&["one", "two"], &[]);
    let count = fill(&store, 3);
    drop(store);
    let disk = fault_disk();
    let (store, found) = open_on(&disk, disks.options(&["one", "two"], &[]));
    assert!(found.was_abnormal);
    assert!(gone_for_good(&disks, &disk, 0..60) >= 4, "what was made ahead");
    assert_run(&store, 0..count);
    store.close().unwrap();
}

/// Its queues lie on a device that is full, its log does not.
fn beside_full_queues(disks: &Disks, change: impl FnOnce(&mut StoreOptions)) -> (Arc<Store>, Arc<FaultDisk>) {
    let disk = fault_disk();
    disk.set(used(10), true);
    let mut options = disks.options(&["one", "two"], &[]);
    options.clean_interval = std::time::Duration::from_millis(5);
    change(&mut options);
    (open_on(&disk, options).0, disk)
}

#[test]
fn a_full_device_of_the_queues_is_named_and_messages_are_taken_again_when_it_has_room() {
    let disks = disks();
    let (store, disk) = beside_full_queues(&disks, |options| {
        options.retention.disk_clean_forcibly_percent = 85;
        options.retention.disk_warning_percent = 90;
    });
    fill(&store, 2);
    disk.set(full_dir(disks.dir("root")), true);
    let full = NotWritable::DiskFull { path: disks.dir("root"), used_percent: 99, limit_percent: 90 };
    eventually_refused(&store, &full);
    disk.set(full_dir(disks.dir("root")), false);
    eventually("room", || store.writable().is_ok());
    fill(&store, 3);
    // So it is with queues that have a device of their own.
    disk.set(full_dir(disks.dir("root").join("consumequeue")), true);
    let full =
        NotWritable::DiskFull { path: disks.dir("root").join("consumequeue"), used_percent: 99, limit_percent: 90 };
    eventually_refused(&store, &full);
    assert!(full.to_string().contains("root/consumequeue is 99 % full, the limit is 90 %"), "{full}");
    disk.set(full_dir(disks.dir("root").join("consumequeue")), false);
    eventually("room", || store.writable().is_ok());
    store.close().unwrap();
}

#[test]
fn expired_files_go_at_any_hour_when_the_device_of_the_queues_is_above_its_ratio() {
    let disks = disks();
    let (store, disk) = beside_full_queues(&disks, |options| {
        options.retention.disk_max_used_percent = 75;
        options.retention.file_reserved = std::time::Duration::ZERO;
    });
    fill(&store, 4);
    assert_eq!(store.min_offset().0, 0);
    disk.set(full_dir(disks.dir("root")), true);
    eventually("deletion", || store.min_offset().0 >= 3 * SEGMENT);
    store.close().unwrap();
}

#[test]
fn a_full_device_of_the_queues_takes_messages_that_are_not_expired_only_if_that_makes_room_there() {
    let disks = disks();
    let (store, disk) = beside_full_queues(&disks, |options| {
        options.retention.disk_clean_forcibly_percent = 85;
        options.retention.disk_warning_percent = 90;
    });
    // A file of the queue holds a hundred entries.
    for _ in 0..90 {
        append(&store, TOPIC, 0, &[0; 3000]);
    }
    assert!(store.end().0 > 3 * SEGMENT);
    disk.set(full_dir(disks.dir("root")), true);
    eventually("a refusal", || store.writable().is_err());
    let until = std::time::Instant::now() + std::time::Duration::from_millis(200);
    while std::time::Instant::now() < until {
        assert_eq!(store.min_offset().0, 0, "a queue keeps its last file: nothing is won");
        std::thread::yield_now();
    }
    disk.set(full_dir(disks.dir("root")), false);
    eventually("room", || store.writable().is_ok());
    let landed: Vec<_> = (90..150).map(|_| append(&store, TOPIC, 0, &[0; 3000])).collect();
    let last_of_file = landed.iter().find(|landed| landed.queue_offset == 99).unwrap().at.0;
    let first = queue_file(&disks.dir("root"), TOPIC, 0, 0);
    eventually("the queue's file", || first.exists() && queue_file(&disks.dir("root"), TOPIC, 0, 2000).exists());
    disk.set(full_dir(disks.dir("root")), true);
    eventually("deletion", || !first.exists());
    // With the file of the log that its last entry points into, and no more.
    assert_eq!(store.min_offset().0, last_of_file.next_multiple_of(SEGMENT));
    store.close().unwrap();
}

#[test]
fn of_several_full_folders_the_emptiest_is_named_with_its_own_figure() {
    let disks = disks();
    let (store, disk) = beside_full_queues(&disks, |options| options.retention.disk_warning_percent = 90);
    disk.set(full_dir(disks.dir("one")), true);
    disk.set(used(95), true);
    let full = NotWritable::DiskFull { path: disks.dir("two"), used_percent: 95, limit_percent: 90 };
    eventually_refused(&store, &full);
    store.close().unwrap();
}

#[test]
fn what_lies_in_a_read_only_folder_is_read_and_nothing_is_made_there() {
    let disks = disks();
    let store = disks.open(&["one"], &[]);
    let count = fill(&store, 3);
    store.close().unwrap();
    let tail = *disks.files("one").last().unwrap();
    std::fs::create_dir(disks.dir("old")).unwrap();
    (0..2).for_each(|number| disks.change("one", "old", number));
    let sealed = contents(&disks.dir("old"));

    let disk = fault_disk();
    disk.set(read_only_dir(disks.dir("old")), true);
    let (store, _) = open_on(&disk, disks.options(&["one"], &["old"]));
    assert_run(&store, 0..count);
    let count = fill(&store, tail + 3);
    assert_run(&store, 0..count);
    store.close().unwrap();
    assert_eq!(contents(&disks.dir("old")), sealed);
    assert_eq!(disks.files("old"), [0, 1]);
}

#[test]
fn a_log_that_cannot_go_on_or_is_not_all_there_is_refused_by_name() {
    let disks = disks();
    let store = disks.open(&["one"], &[]);
    fill(&store, 3);
    store.close().unwrap();
    let refusal = |options: StoreOptions, disk: &Arc<FaultDisk>| {
        let env = store::StoreEnv { disk: Arc::clone(disk) as Arc<dyn disk::Disk>, ..store::StoreEnv::real() };
        Store::open(options, env).map(|_| ()).unwrap_err().to_string()
    };

    let said = refusal(disks.options(&["one"], &["gone"]), &fault_disk());
    assert!(said.contains("gone"), "{said}");

    std::fs::rename(disks.dir("one"), disks.dir("old")).unwrap();
    let disk = fault_disk();
    disk.set(read_only_dir(disks.dir("old")), true);
    let said = refusal(disks.options(&["new"], &["old"]), &disk);
    assert!(said.contains("old") && said.contains("read-only"), "{said}");

    std::fs::create_dir_all(disks.dir("new")).unwrap();
    let first = format!("{:020}", 0);
    std::fs::copy(disks.dir("old").join(&first), disks.dir("new").join(&first)).unwrap();
    let said = refusal(disks.options(&["new", "old"], &[]), &fault_disk());
    assert!(said.contains("is there twice") && said.contains(&first), "{said}");
}

#[test]
fn a_log_whose_newest_files_are_in_a_folder_that_is_not_mounted_does_not_end_before_them() {
    let disks = disks();
    let store = disks.open(&["one", "two"], &[]);
    let count = fill(&store, 4);
    let newest = store.end().0 / SEGMENT;
    store.close().unwrap();
    drop(store);
    // The newest, and those made ahead, lie in the one that goes.
    let unmount = || {
        let older = disks.files("two").into_iter().filter(|number| *number < newest);
        older.for_each(|number| disks.change("two", "one", number));
        let newer = disks.files("one").into_iter().filter(|number| *number >= newest);
        newer.for_each(|number| disks.change("one", "two", number));
        std::fs::rename(disks.dir("two"), disks.dir("away")).unwrap();
    };
    unmount();
    let refused = try_open(disks.options(&["one", "two"], &[])).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("a folder is not mounted"), "{refused}");

    std::fs::remove_dir(disks.dir("two")).unwrap();
    std::fs::rename(disks.dir("away"), disks.dir("two")).unwrap();
    let store = disks.open(&["one", "two"], &[]);
    assert_run(&store, 0..count);
    store.close().unwrap();
    drop(store);

    // What is lost for good is given up as it is said there.
    unmount();
    std::fs::write(disks.dir("root").join("abort"), "").unwrap();
    let store = open_as(&disks.options(&["one", "two"], &[])).0;
    assert_eq!(store.end().0, newest * SEGMENT);
    assert_run(&store, 0..store.existing_queue(TOPIC, 0).unwrap().max_offset());
    store.close().unwrap();
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}
