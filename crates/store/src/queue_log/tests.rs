use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disk::faults::{Call, Fault, FaultDisk, Files, How};
use disk::{DiskFile, OpenHow, RealDisk};
use proptest::prelude::*;

use super::*;

const UNITS_PER_FILE: u64 = 10;

fn options() -> QueueLogOptions {
    QueueLogOptions { file_bytes: UNITS_PER_FILE * 20, descriptors: 8, ..QueueLogOptions::default() }
}

fn open(dir: &Path) -> (QueueLogs, Loaded) {
    QueueLogs::open(dir, options(), Arc::new(RealDisk)).unwrap()
}

/// The unit of the `n`th record of 100 bytes.
fn unit(n: u64) -> Unit {
    Unit { at: LogOffset(n * 100), size: 100, tags: n as i64 - 3 }
}

fn units(queue: &ConsumeQueue, from: u64, max: usize) -> Vec<Unit> {
    let mut out = Vec::new();
    queue.read_units(from, max, true, &mut out).unwrap();
    out
}

fn numbers(range: std::ops::Range<u64>) -> Vec<Unit> {
    range.map(unit).collect()
}

#[test]
fn a_pushed_unit_is_readable_at_once_and_after_the_flush_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("orders", 3);
    for n in 0..25 {
        queue.push(unit(n));
    }
    assert_eq!(units(&queue, 0, 100), numbers(0..25));
    logs.flush_all().unwrap();
    queue.push(unit(25));
    assert_eq!(units(&queue, 7, 100), numbers(7..26));
    // At rest, nothing is left in memory.
    logs.sync_all().unwrap();
    logs.flush_all().unwrap();
    assert!(queue.tail.lock().is_none());
    assert_eq!(logs.pending_bytes(), 0);
    assert_eq!(units(&queue, 7, 12), numbers(7..19));
    assert_eq!(units(&queue, 26, 12), []);

    let (logs, loaded) = open(dir.path());
    assert!(loaded.findings.is_empty() && loaded.rebuild_from.is_none());
    let queue = logs.get("orders", 3).unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset(), logs.max_log_end()), (0, 26, LogOffset(2_600)));
    assert_eq!(units(&queue, 0, 100), numbers(0..26));
    let names: Vec<_> = std::fs::read_dir(queue.dir()).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(names.len(), 3);
    assert!(names.iter().all(|entry| entry.metadata().unwrap().len() == UNITS_PER_FILE * 20));
}

/// Units of a queue of usual file size, on a disk and in no memory; and the file that holds them.
fn on_disk(count: u64) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let (logs, _) = QueueLogs::open(dir.path(), QueueLogOptions::default(), Arc::new(RealDisk)).unwrap();
    let queue = logs.get_or_create("t", 0);
    (0..count).for_each(|n| queue.push(unit(n)));
    logs.sync_all().unwrap();
    let path = queue.dir().join("00000000000000000000");
    rustix::fs::fadvise(std::fs::File::open(&path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    (dir, path)
}

fn resident(path: &Path) -> u64 {
    disk::pages::resident(std::os::fd::AsFd::as_fd(&std::fs::File::open(path).unwrap()), 0, 1 << 30).unwrap().cached
}

#[test]
fn the_end_of_a_queue_is_found_wherever_it_is_and_two_pages_are_all_that_a_start_leaves_in_memory() {
    for count in [1, 203, 204, 205, 408, 409, 410, 5_000, 300_000] {
        let (dir, path) = on_disk(count);
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let pages = Arc::new(disk::FilePages::new(1 << 30, &disk));
        let disk = disk::governed(&disk, &pages);
        let (logs, loaded) = QueueLogs::open(dir.path(), QueueLogOptions::default(), disk).unwrap();
        assert!(resident(&path) <= 8192, "{count} units, {} bytes", resident(&path));
        let queue = logs.get("t", 0).unwrap();
        assert_eq!((queue.max_offset(), queue.log_end().0), (count, count * 100));
        let ends: Vec<_> = loaded.ends.iter().map(|(_, last)| last.unit).collect();
        assert_eq!(ends, [unit(count - 1)]);
    }
}

#[test]
fn the_end_of_a_queue_is_found_where_the_file_system_does_not_know_it() {
    let (dir, path) = on_disk(2_000);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let end = || {
        let (logs, _) = QueueLogs::open(dir.path(), QueueLogOptions::default(), Arc::new(RealDisk)).unwrap();
        logs.get("t", 0).unwrap().max_offset()
    };
    // A page that was lost before, and nobody missed.
    let lost = [0; 4096];
    let at = 5 * lost.len() as u64;
    DiskFile::punch(&*RealDisk.open(&path, OpenHow::Write).unwrap(), at, lost.len() as u64).unwrap();
    assert_eq!(end(), 2_000);
    // As RocketMQ makes its files when they are to be warm.
    std::os::unix::fs::FileExt::write_all_at(&file, &lost, at).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 6_000_000 - 40_000], 40_000).unwrap();
    assert_eq!(end(), 2_000);
}

#[test]
fn what_lies_behind_a_queue_s_end_is_not_the_queue_s_when_it_has_grown_as_far() {
    // The first unit of the last file never reached the device, or one in its middle.
    for lost in [20, 23] {
        let dir = tempfile::tempdir().unwrap();
        let (logs, _) = open(dir.path());
        let queue = logs.get_or_create("t", 0);
        (0..25).for_each(|n| queue.push(unit(n)));
        logs.sync_all().unwrap();
        let path = queue.dir().join("00000000000000000400");
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0; 20], (lost - 20) * 20).unwrap();

        let (logs, loaded) = open(dir.path());
        let queue = logs.get("t", 0).unwrap();
        assert_eq!((queue.max_offset(), loaded.with_remains.len()), (lost, 1));
        logs.clear_behind(&loaded.with_remains).unwrap();
        queue.push(unit(lost));
        logs.sync_all().unwrap();
        let (logs, loaded) = open(dir.path());
        assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 100), numbers(0..lost + 1));
        assert!(loaded.with_remains.is_empty());
    }
}

#[test]
fn what_is_cached_is_read_without_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    (0..15).for_each(|n| queue.push(unit(n)));
    logs.flush_all().unwrap();
    logs.flush_all().unwrap();
    let mut out = Vec::new();
    assert_eq!(queue.read_units(0, 15, false, &mut out).unwrap(), UnitsRead::Units(15));
    assert_eq!(out, numbers(0..15));
}

#[test]
fn a_queue_that_begins_late_is_filled_with_blanks_as_apache_does() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    assert_eq!(queue.push_at(34, unit(34)).unwrap(), PushedAt::Added);
    assert_eq!(queue.push_at(34, unit(34)).unwrap(), PushedAt::Already);
    assert_eq!(queue.push_at(35, unit(35)).unwrap(), PushedAt::Added);
    assert!(matches!(queue.push_at(37, unit(37)), Err(QueueError::Gap { next: 36, offset: 37, .. })));
    assert_eq!(queue.min_offset(), 34);
    logs.flush_all().unwrap();
    let bytes = std::fs::read(queue.dir().join("00000000000000000600")).unwrap();
    assert_eq!(bytes[..80], Unit::BLANK.encode().repeat(4));
    assert_eq!(bytes[80..100], unit(34).encode());

    let (logs, _) = open(dir.path());
    let queue = logs.get("t", 0).unwrap();
    logs.trim_below(LogOffset(0)).unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (34, 36));
}

#[test]
fn a_queue_that_the_log_has_nothing_of_goes_on_at_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let log_min = LogOffset(5000);
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    assert!(queue.go_on_at(34, log_min).unwrap());
    assert_eq!((queue.min_offset(), queue.max_offset(), queue.log_end()), (34, 34, log_min));
    assert!(!queue.go_on_at(34, log_min).unwrap() && !queue.go_on_at(20, log_min).unwrap(), "it is that far");
    // What is in the log decides: a log that has all from its beginning on, and a queue that has messages.
    let others = logs.get_or_create("others", 0);
    assert!(!others.go_on_at(7, LogOffset(0)).unwrap() && !others.go_on_at(0, log_min).unwrap());
    assert!(!others.go_on_at(u64::MAX, log_min).unwrap());
    others.push(unit(60));
    assert!(!others.go_on_at(7, log_min).unwrap());
    logs.flush_all().unwrap();

    let (logs, _) = open(dir.path());
    let queue = logs.get("t", 0).unwrap();
    logs.trim_below(log_min).unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (34, 34));
    assert_eq!(queue.push_at(34, unit(60)).unwrap(), PushedAt::Added);
    assert_eq!((queue.min_offset(), queue.max_offset()), (34, 35));
}

#[test]
fn recovery_mends_a_unit_that_is_not_what_the_log_says() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    (0..5).for_each(|n| queue.push(unit(n)));
    queue.push(Unit { at: LogOffset(7), size: 7, tags: 7 });
    logs.flush_all().unwrap();
    logs.flush_all().unwrap();
    assert_eq!(queue.push_at(4, unit(4)).unwrap(), PushedAt::Already);
    assert_eq!(queue.push_at(5, unit(5)).unwrap(), PushedAt::Mended);
    assert_eq!(logs.max_log_end(), LogOffset(600));
    assert_eq!(units(&queue, 0, 9), numbers(0..6));
}

#[test]
fn a_damaged_unit_moves_the_lower_end_of_no_queue() {
    let damages: [fn(&mut [u8]); 4] =
        [|unit| unit.fill(0), |unit| unit[0] = 0x80, |unit| unit[2] = 1, |unit| unit[..8].fill(0)];
    for damage in damages {
        for damaged in 0..40 {
            let dir = tempfile::tempdir().unwrap();
            let (logs, _) = open(dir.path());
            (0..40).for_each(|n| logs.get_or_create("t", 0).push(unit(n + 1)));
            logs.sync_all().unwrap();
            logs.flush_all().unwrap();
            let queue = logs.get("t", 0).unwrap();
            let path = super::descriptors::file_path(&queue.dir(), damaged / UNITS_PER_FILE * UNITS_PER_FILE * 20);
            let mut file = std::fs::read(&path).unwrap();
            damage(&mut file[(damaged % UNITS_PER_FILE) as usize * 20..][..20]);
            std::fs::write(&path, file).unwrap();
            // None is gone, then those below 25.
            logs.trim_below(LogOffset(50)).unwrap();
            assert!(queue.min_offset() <= u64::from(damaged == 0), "{queue:?} with {damaged}");
            logs.trim_below(LogOffset(2_600)).unwrap();
            let near = if damaged == 24 || damaged == 25 { 24..=26 } else { 25..=25 };
            assert!(near.contains(&queue.min_offset()), "{queue:?} with {damaged}");
        }
    }
}

#[test]
fn trimming_follows_the_log_and_keeps_the_last_file() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    (0..35).for_each(|n| queue.push(unit(n)));
    logs.flush_all().unwrap();
    assert_eq!(logs.trim_below(LogOffset(2_250)).unwrap(), 2);
    assert_eq!(queue.min_offset(), 23);
    assert_eq!(units(&queue, 5, 3), []);
    assert_eq!(units(&queue, 23, 3), numbers(23..26));
    assert_eq!(logs.trim_below(LogOffset(9_000)).unwrap(), 1);
    assert_eq!((queue.min_offset(), queue.max_offset()), (35, 35));
    queue.push(unit(90));
    assert_eq!(units(&queue, 35, 3), [unit(90)]);

    logs.flush_all().unwrap();
    let (logs, _) = open(dir.path());
    logs.trim_below(LogOffset(9_000)).unwrap();
    let queue = logs.get("t", 0).unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (35, 36));
}

#[test]
fn what_points_above_the_log_is_cut_in_memory_and_on_disk() {
    for flushes in [0, 1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let (logs, _) = open(dir.path());
        let queue = logs.get_or_create("t", 0);
        (0..35).for_each(|n| queue.push(unit(n)));
        for _ in 0..flushes {
            logs.flush_all().unwrap();
        }
        assert_eq!(logs.truncate_above(LogOffset(1_300), &|_| 0).unwrap(), 22);
        assert_eq!((queue.max_offset(), queue.log_end()), (13, LogOffset(1_300)));
        logs.flush_all().unwrap();
        assert_eq!(logs.pending_bytes(), 0);
        let (logs, _) = open(dir.path());
        let queue = logs.get("t", 0).unwrap();
        assert_eq!((queue.max_offset(), queue.log_end()), (13, LogOffset(1_300)));
        queue.push(unit(13));
        assert_eq!(units(&queue, 0, 99), numbers(0..14));
        logs.truncate_above(LogOffset(0), &|_| 0).unwrap();
        assert_eq!((queue.max_offset(), logs.max_log_end()), (0, LogOffset(0)));
        queue.push(unit(0));
        assert_eq!(units(&queue, 0, 99), numbers(0..1));
    }
}

#[test]
fn a_file_that_lost_its_end_is_named_and_to_be_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    for id in 0..2 {
        let queue = logs.get_or_create("t", id);
        (0..15).for_each(|n| queue.push(unit(n)));
    }
    logs.flush_all().unwrap();
    let path = dir.path().join("t/1/00000000000000000200");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(50).unwrap();
    std::fs::write(dir.path().join("t/1/00000000000000000400"), b"").unwrap();
    let (logs, loaded) = open(dir.path());
    assert_eq!(loaded.findings.len(), 1, "{:?}", loaded.findings);
    assert_eq!(loaded.rebuild_from, Some(LogOffset(1_200)));
    assert_eq!(logs.get("t", 1).unwrap().max_offset(), 12);
    drop(logs);
    std::fs::OpenOptions::new()
        .write(true)
        .open(dir.path().join("t/1/00000000000000000000"))
        .unwrap()
        .set_len(50)
        .unwrap();
    let error = QueueLogs::open(dir.path(), options(), Arc::new(RealDisk)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("t/1/00000000000000000000 has 50 bytes"), "{error}");
}

#[test]
fn the_size_of_files_on_disk_wins_over_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    (0..15).for_each(|n| queue.push(unit(n)));
    logs.flush_all().unwrap();
    let other = QueueLogOptions { file_bytes: 400, ..options() };
    let (logs, loaded) = QueueLogs::open(dir.path(), other, Arc::new(RealDisk)).unwrap();
    assert_eq!((logs.file_bytes(), loaded.findings.len()), (200, 1));
    assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 99), numbers(0..15));
}

#[test]
fn a_deleted_topic_is_gone_and_may_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    (0..15).for_each(|n| queue.push(unit(n)));
    logs.flush_all().unwrap();
    logs.delete_topic("t", || Some(((), 0)));
    queue.push(unit(15));
    logs.flush_all().unwrap();
    assert!(logs.get("t", 0).is_none() && !dir.path().join("t").exists());
    let again = logs.get_or_create("t", 0);
    again.push(unit(20));
    logs.sync_all().unwrap();
    assert_eq!(units(&again, 0, 9), [unit(20)]);
    assert_eq!(logs.pending_bytes(), 0);
}

#[test]
fn a_topic_is_deleted_while_files_are_written_and_keeps_what_comes_after_under_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    (0..15).for_each(|n| queue.push(unit(n)));
    logs.flush_all().unwrap();
    (15..20).for_each(|n| queue.push(unit(n)));
    {
        let _writing = logs.shared.maintenance.lock();
        logs.delete_topic("t", || Some(((), 0)));
    }
    let again = logs.get_or_create("t", 0);
    (30..33).for_each(|n| again.push(unit(n)));
    logs.flush_all().unwrap();
    assert_eq!(logs.pending_bytes(), 0);
    logs.delete_topic("u", || Some(((), 0)));
    logs.remove_deleted().unwrap();
    drop(logs);
    let (logs, _) = open(dir.path());
    assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 99), numbers(30..33));
}

#[test]
fn descriptors_stay_few_and_the_bell_rings_when_much_is_unwritten() {
    let dir = tempfile::tempdir().unwrap();
    let limits = QueueLogOptions { buffered_bytes: 20 * 300, ..options() };
    let (logs, _) = QueueLogs::open(dir.path(), limits, Arc::new(RealDisk)).unwrap();
    for round in 0..3 {
        for id in 0..100 {
            logs.get_or_create("t", id).push(unit(round));
        }
    }
    assert!(logs.wait_until_wanted(Duration::ZERO));
    logs.sync_all().unwrap();
    assert!(!logs.wait_until_wanted(Duration::ZERO));
    assert!(logs.open_files() <= 8);
    assert!(logs.queues().iter().all(|queue| units(queue, 0, 9) == numbers(0..3)));
}

#[test]
fn a_queue_at_rest_needs_no_more_than_300_bytes() {
    // The queue behind its two counters, its place in the topic's list, and a share of the topic's name.
    assert!(size_of::<ConsumeQueue>() + 16 + 8 + 64 <= 300, "{}", size_of::<ConsumeQueue>());
}

fn by_time(queue: &ConsumeQueue, times: &[i64], timestamp: i64, boundary: Boundary) -> u64 {
    let read = |unit: &Unit| times.get((unit.at.0 / 100) as usize).copied();
    queue.offset_by_time(timestamp, boundary, LogOffset(0), |offset| queue.unit_at(offset), read).unwrap()
}

#[test]
fn search_by_time_answers_as_apache_does() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    assert_eq!(by_time(&queue, &[], 5, Boundary::Lower), 0);
    // The example of Apache's own comment: between t1 and t3, the lower boundary is above the upper one.
    let times = [10, 10, 10, 30, 30];
    (0..5).for_each(|n| queue.push(unit(n)));
    let both = |timestamp| {
        (by_time(&queue, &times, timestamp, Boundary::Lower), by_time(&queue, &times, timestamp, Boundary::Upper))
    };
    assert_eq!(both(20), (3, 2));
    assert_eq!(both(10), (0, 2));
    assert_eq!(both(30), (3, 4));
    assert_eq!(both(31), (5, 4));
    assert_eq!(both(9), (0, 0));
    let time = |unit: &Unit| match unit.at.0 {
        0 => Some(10),
        400 => Some(30),
        _inner => None,
    };
    let unit_at = |offset| queue.unit_at(offset);
    assert_eq!(queue.offset_by_time(20, Boundary::Lower, LogOffset(0), unit_at, time).unwrap(), 0);
}

proptest! {
    #[test]
    fn search_by_time_is_the_partition_point(steps in prop::collection::vec(0i64..3, 1..60), timestamp in 0i64..120) {
        let dir = tempfile::tempdir().unwrap();
        let (logs, _) = open(dir.path());
        let queue = logs.get_or_create("t", 0);
        let times: Vec<i64> = steps.iter().scan(10, |now, step| { *now += step; Some(*now) }).collect();
        (0..times.len() as u64).for_each(|n| queue.push(unit(n)));
        let lower = times.partition_point(|time| *time < timestamp) as u64;
        let upper = (times.partition_point(|time| *time <= timestamp) as u64).saturating_sub(1);
        prop_assert_eq!(by_time(&queue, &times, timestamp, Boundary::Lower), lower);
        prop_assert_eq!(by_time(&queue, &times, timestamp, Boundary::Upper), upper);
    }

    #[test]
    fn a_queue_is_the_list_of_what_was_pushed(steps in prop::collection::vec(0u8..8, 1..120)) {
        let dir = tempfile::tempdir().unwrap();
        let (mut logs, _) = open(dir.path());
        let (mut first, mut next) = (0u64, 0u64);
        for step in steps {
            let queue = logs.get_or_create("t", 0);
            match step {
                0..=3 => for _ in 0..=step * 2 { queue.push(unit(next)); next += 1; },
                4 => drop(logs.flush_all().unwrap()),
                5 => { first = first.max(next.saturating_sub(12)); logs.trim_below(LogOffset(first * 100)).unwrap(); }
                6 => { next = first.max(next.saturating_sub(7)); logs.truncate_above(LogOffset(next * 100), &|_| 0).unwrap(); }
                _reopen => {
                    logs.flush_all().unwrap();
                    logs = open(dir.path()).0;
                    logs.trim_below(LogOffset(first * 100)).unwrap();
                }
            }
            let queue = logs.get_or_create("t", 0);
            prop_assert_eq!(queue.max_offset(), next);
            prop_assert_eq!(queue.min_offset(), first);
            prop_assert_eq!(units(&queue, first, 1000), numbers(first..next));
        }
    }
}

#[test]
fn readers_beside_a_writer_and_a_flusher_see_a_dense_queue() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let queue = logs.get_or_create("t", 0);
    let total = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| (0..total).for_each(|n| queue.push(unit(n))));
        scope.spawn(|| {
            while queue.max_offset() < total {
                logs.flush_all().unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let (mut from, mut out) = (0, Vec::new());
                while from < total {
                    out.clear();
                    queue.read_units(from, 32, true, &mut out).unwrap();
                    assert_eq!(out, numbers(from..from + out.len() as u64));
                    from += out.len() as u64;
                }
            });
        }
    });
}

#[test]
fn a_topic_that_is_made_and_deleted_before_a_sync_leaves_nothing_to_sync() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    logs.get_or_create("t", 0).push(unit(0));
    logs.flush_all().unwrap();
    logs.delete_topic("t", || Some(((), 0)));
    logs.sync_all().unwrap();
    assert!(!dir.path().join("t").exists());
}

#[test]
fn files_of_a_deleted_topic_stay_until_the_journal_holds_the_deletion_and_nobody_else_writes_into_them() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    (0..15).for_each(|n| logs.get_or_create("t", 0).push(unit(n)));
    logs.flush_all().unwrap();
    logs.delete_topic("t", || Some(((), 7)));
    let again = logs.get_or_create("t", 0);
    again.push(unit(20));
    logs.journal_is_safe(6);
    logs.remove_deleted().unwrap();
    logs.flush_all().unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("t/0")).unwrap().count(), 2);
    assert_eq!(units(&again, 0, 10), [unit(20)]);
    assert!(matches!(logs.sync_all(), Err(QueueError::Waits { topic }) if topic == "t"));
    logs.journal_is_safe(7);
    logs.sync_all().unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("t/0")).unwrap().count(), 1);
    let (logs, _) = open(dir.path());
    assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 10), [unit(20)]);
}

const CANNOT_REMOVE: Fault = Fault::new(&[Call::RemoveTree], Files::All, How::Fails(ErrorKind::Other));
const CANNOT_SYNC: Fault = Fault::new(&[Call::SyncDir], Files::All, How::Fails(ErrorKind::Other));
const CANNOT_OPEN: Fault = Fault::new(&[Call::SyncFileSystem], Files::All, How::NotBegun);

#[test]
fn a_topic_whose_files_cannot_be_removed_stays_deleted_until_they_can() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultDisk::default());
    let (logs, _) = QueueLogs::open(dir.path(), options(), Arc::new(disk.clone())).unwrap();
    (0..5).for_each(|n| logs.get_or_create("t", 0).push(unit(n)));
    logs.flush_all().unwrap();
    disk.set(CANNOT_REMOVE, true);
    logs.delete_topic("t", || Some(((), 0)));
    logs.get_or_create("t", 0).push(unit(20));
    assert!(logs.remove_deleted().is_err() && logs.flush_all().is_err());
    disk.set(CANNOT_REMOVE, false);
    logs.sync_all().unwrap();
    let (logs, _) = open(dir.path());
    assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 10), [unit(20)]);
}

#[test]
fn a_sync_that_failed_is_not_tried_again_but_told() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultDisk::default());
    let (logs, _) = QueueLogs::open(dir.path(), options(), Arc::new(disk.clone())).unwrap();
    logs.get_or_create("t", 0).push(unit(0));
    disk.set(CANNOT_SYNC, true);
    let failed = logs.sync_all().unwrap_err();
    assert!(matches!(failed, QueueError::Unsure { .. }), "{failed}");
}

#[test]
fn a_sync_that_was_not_begun_is_tried_again_for_all_that_it_was_for() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultDisk::default());
    let (logs, _) = QueueLogs::open(dir.path(), options(), Arc::new(disk.clone())).unwrap();
    (0..256).for_each(|id| logs.get_or_create("t", id).push(unit(u64::from(id))));
    disk.set(CANNOT_OPEN, true);
    for _ in 0..2 {
        let failed = logs.sync_all().unwrap_err();
        assert!(matches!(failed, QueueError::Disk { doing: "open", .. }), "{failed}");
    }
    disk.set(CANNOT_OPEN, false);
    assert!(logs.sync_all().unwrap(), "the whole file system is still due");
    assert!(!logs.sync_all().unwrap(), "nothing is left");
}

#[test]
fn only_very_many_files_are_synced_with_the_whole_file_system() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultDisk::default());
    let (logs, _) = QueueLogs::open(dir.path(), options(), Arc::new(disk.clone())).unwrap();
    let push = |queues: u32| (0..queues).for_each(|id| logs.get_or_create("t", id).push(unit(u64::from(id))));
    // Each has a file and a folder that are new.
    push(128);
    assert!(!logs.sync_all().unwrap());
    push(256);
    assert!(logs.sync_all().unwrap());
    push(256);
    assert!(!logs.sync_all().unwrap(), "their folders are there");
    assert!(!logs.sync_all().unwrap(), "nothing is left");
}

#[test]
fn very_many_queues_gather_units_and_keep_them_readable() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    let push = |queues: u32, n: u64| (0..queues).for_each(|id| logs.get_or_create("t", id).push(unit(n)));
    push(200, 0);
    logs.flush_gathered().unwrap();
    assert_eq!(logs.pending_bytes(), 0, "each queue is worth a write where there are few");
    push(1000, 1);
    (2..=100).for_each(|n| push(1, n));
    logs.flush_gathered().unwrap();
    assert_eq!(logs.pending_bytes(), 999 * UNIT_BYTES as u64, "one has gathered enough");
    assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 200).len(), 101);
    assert_eq!(units(&logs.get("t", 999).unwrap(), 0, 200), [unit(1)]);
    logs.sync_all().unwrap();
    assert_eq!(logs.pending_bytes(), 0, "a check-point stands for all of them");
    drop(logs);
    let (logs, _) = open(dir.path());
    assert_eq!(units(&logs.get("t", 0).unwrap(), 0, 200).len(), 101);
    assert_eq!(units(&logs.get("t", 999).unwrap(), 0, 200), [unit(1)]);
}

#[test]
fn a_flush_by_another_thread_takes_no_call_from_the_one_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = open(dir.path());
    logs.ring();
    logs.sync_all().unwrap();
    assert!(logs.wait_until_wanted(Duration::from_millis(1)), "the call is gone");
    assert!(!logs.wait_until_wanted(Duration::from_millis(1)));
}

#[test]
fn queues_that_are_dropped_give_their_disk_back() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (logs, _) = QueueLogs::open(dir.path(), options(), Arc::clone(&disk)).unwrap();
    logs.get_or_create("orders", 0).push(unit(0));
    logs.flush_all().unwrap();
    drop(logs);
    assert_eq!(Arc::strong_count(&disk), 1);
}
