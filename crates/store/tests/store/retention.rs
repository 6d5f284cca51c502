//! Old files go: by age, by hour, by need; and not while they are needed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use disk::Disk;
use env::{Clock, ManualClock, Random, TimeMs};
use protocol::LogOffset;
use store::{AppendError, HourOfDay, NotWritable, ReadStatus, RecordBatch, Retention, Store, StoreEnv, StoreOptions};

use crate::support::*;

/// 1970-01-02, five minutes past midnight.
const MIDNIGHT: i64 = 86_400_000 + 300_000;
const HOUR: i64 = 3_600_000;

struct Kept {
    store: Arc<Store>,
    hand: ManualClock,
    disk: Arc<FaultDisk>,
    /// Dropped last.
    dir: tempfile::TempDir,
}

fn kept(change: impl FnOnce(&mut Retention)) -> Kept {
    kept_of(change, |_| {})
}

fn kept_of(change: impl FnOnce(&mut Retention), adjust: impl FnOnce(&mut StoreOptions)) -> Kept {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(used(10), true);
    let (clock, hand) = Clock::manual(TimeMs(MIDNIGHT));
    let mut retention = Retention { file_reserved: Duration::from_secs(3600), ..Retention::default() };
    change(&mut retention);
    let mut options = StoreOptions { retention, clean_interval: Duration::from_millis(5), ..options(dir.path()) };
    adjust(&mut options);
    let random = Random::seeded(1);
    let env = StoreEnv { clock, random, disk: Arc::clone(&disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    let (store, _) = Store::open(options, env).unwrap();
    for _ in 0..300 {
        append_at(&store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    Kept { store, hand, disk, dir }
}

impl Kept {
    /// How many files the log's tail has before it.
    fn old_files(&self) -> u64 {
        self.store.end().0 / SEGMENT
    }

    fn is_untouched_for_a_while(&self) {
        // The thread looks every 5 ms.
        let until = std::time::Instant::now() + Duration::from_millis(100);
        while std::time::Instant::now() < until {
            assert_eq!(self.store.min_offset().0, 0);
            std::thread::yield_now();
        }
    }

    fn advance(&self, ms: i64) {
        self.hand.advance(Duration::from_millis(ms as u64));
    }
}

#[test]
fn expired_files_go_at_their_hour_and_the_queues_follow() {
    let kept = kept(|_| {});
    let old_end = kept.old_files() * SEGMENT;
    // Those that wait for a file keep it.
    eventually("units in files", || queue_file(kept.dir.path(), TOPIC, 0, 4000).exists());
    kept.advance(2 * HOUR);
    kept.is_untouched_for_a_while();
    kept.advance(2 * HOUR);
    // The last full file's age is known by its successor's first record.
    eventually("deletion", || kept.store.min_offset().0 == old_end);
    assert!(!segment_path(kept.dir.path(), 0).exists());
    let queue = kept.store.queue(TOPIC, 0).unwrap();
    eventually("the queue's lower end", || queue.unit_at(queue.min_offset()).unwrap().unwrap().at.0 == old_end);
    let (read, _) = read(&kept.store, TOPIC, 0, 0, &limits(10));
    assert_eq!((read.status, read.next), (ReadStatus::OffsetTooSmall, queue.min_offset() as i64));
    // Readers are told of the lower end before the file goes.
    eventually("the queue's first file is gone", || !queue_file(kept.dir.path(), TOPIC, 0, 0).exists());
    assert_eq!(read_all(&kept.store, TOPIC, 0).last().unwrap().0, 299);
    // And so it is at the next start.
    let min = queue.min_offset();
    kept.store.close().unwrap();
    let (store, found) = open(kept.dir.path());
    assert_eq!(found.findings, Vec::<String>::new());
    assert_eq!(store.queue(TOPIC, 0).unwrap().min_offset(), min);
}

/// Done to the bytes of a unit.
type Damage = fn(&mut [u8]);

/// What becomes of the unit of the first message that retention has left, while nobody has the
/// store open.
const DAMAGES: &[(&str, Damage)] = &[
    ("leads beyond the log's end", |unit| unit[3] ^= 1),
    ("leads to what retention took", |unit| unit[..8].fill(0)),
    ("is longer than the log", |unit| unit[8] ^= 0x40),
    ("is zeros", |unit| unit.fill(0)),
];

#[test]
fn the_first_message_that_retention_has_left_is_found_though_its_unit_is_damaged() {
    for (what, damage) in DAMAGES {
        // Consumers read messages, and tasks of the broker units.
        for by_units in [false, true] {
            let kept = kept(|_| {});
            let old_end = kept.old_files() * SEGMENT;
            eventually("units in files", || queue_file(kept.dir.path(), TOPIC, 0, 4000).exists());
            kept.advance(4 * HOUR);
            eventually("deletion", || kept.store.min_offset().0 == old_end);
            let queue = kept.store.queue(TOPIC, 0).unwrap();
            eventually("the queue's lower end", || queue.unit_at(queue.min_offset()).unwrap().unwrap().at.0 == old_end);
            let (min, whole) = (queue.min_offset(), read_all(&kept.store, TOPIC, 0));
            assert!(!min.is_multiple_of(100), "units of messages that are gone stand before it");
            kept.store.close().unwrap();
            let (path, at) = (queue_file(kept.dir.path(), TOPIC, 0, min / 100 * 2000), min % 100 * 20);
            let mut unit = std::fs::read(&path).unwrap()[at as usize..at as usize + 20].to_vec();
            damage(&mut unit);
            overwrite(&path, at, &unit);
            let (store, _) = open(kept.dir.path());
            let queue = store.queue(TOPIC, 0).unwrap();
            assert_eq!(queue.min_offset(), min, "{what}");
            if by_units {
                let mut units = Vec::new();
                store.units(&queue, min, 1, true, &mut units).unwrap();
                assert_eq!(units.first().map(|unit| unit.at.0), Some(old_end), "{what}");
            }
            assert!(read_all(&store, TOPIC, 0) == whole, "{what}");
        }
    }
}

#[test]
fn a_disk_above_its_ratio_lets_expired_files_go_at_any_hour() {
    let kept = kept(|_| {});
    kept.disk.set(used(80), true);
    kept.is_untouched_for_a_while();
    kept.advance(2 * HOUR);
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn what_a_group_has_not_consumed_stays_until_the_disk_comes_first() {
    let kept = kept(|_| {});
    let floor = Arc::new(AtomicU64::new(0));
    let asked = Arc::clone(&floor);
    kept.store.protect(Box::new(move || Some(LogOffset(asked.load(Ordering::SeqCst)))));
    kept.advance(4 * HOUR);
    kept.is_untouched_for_a_while();
    floor.store(2 * SEGMENT + 5, Ordering::SeqCst);
    eventually("deletion", || kept.store.min_offset().0 == 2 * SEGMENT);
    kept.disk.set(used(86), true);
    eventually("forced deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
    append_at(&kept.store, MIDNIGHT, TOPIC, 0, b"the tail stays");
}

#[test]
fn expired_files_go_when_asked_for_whatever_the_hour_and_others_stay() {
    let kept = kept(|_| {});
    kept.store.delete_expired();
    kept.is_untouched_for_a_while();
    kept.advance(2 * HOUR);
    kept.is_untouched_for_a_while();
    kept.store.delete_expired();
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn a_file_that_is_not_on_the_device_stays() {
    let kept = kept(|_| {});
    eventually("a flush", || kept.store.flushed().get() == kept.store.end().0);
    kept.disk.set(STALLED, true);
    for _ in 0..300 {
        append_at(&kept.store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    // Its name may come back with a loss of power, without what was in it; and the log would end there.
    kept.disk.set(used(86), true);
    let flushed = kept.store.flushed().get();
    assert!(flushed < kept.old_files() * SEGMENT);
    eventually("forced deletion", || kept.store.min_offset().0 == flushed / SEGMENT * SEGMENT);
    let looks = kept.disk.count(&[Call::Space], &Files::All);
    eventually("further looks", || kept.disk.count(&[Call::Space], &Files::All) > looks + 5);
    assert!(kept.store.min_offset().0 <= flushed);
    kept.disk.set(STALLED, false);
    eventually("the rest", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn nothing_is_forced_where_that_is_forbidden() {
    let kept = kept(|retention| retention.clean_forcibly = false);
    kept.disk.set(used(88), true);
    kept.is_untouched_for_a_while();
}

#[test]
fn a_disk_above_the_warning_level_takes_no_messages_until_there_is_room() {
    let kept = kept(|retention| retention.clean_forcibly = false);
    kept.disk.set(used(95), true);
    let path = kept.dir.path().join("commitlog");
    let full = NotWritable::DiskFull { path, used_percent: 95, limit_percent: 90 };
    eventually_refused(&kept.store, &full);
    let mut batch = RecordBatch::new();
    push(&kept.store, &mut batch, TOPIC, 0, b"x");
    let refused = kept.store.append(&mut batch, TimeMs(1)).unwrap_err();
    assert!(matches!(&refused, AppendError::NotWritable(reason) if *reason == full), "{refused}");
    assert_eq!(kept.store.disk_use().unwrap().used_percent(), 95);
    kept.disk.set(used(50), true);
    eventually("room", || kept.store.writable().is_ok());
    append_at(&kept.store, MIDNIGHT, TOPIC, 0, b"x");
}

#[test]
fn a_file_that_cannot_be_removed_stays_part_of_the_log() {
    let kept = kept(|_| {});
    kept.disk.set(CANNOT_REMOVE, true);
    kept.advance(4 * HOUR);
    kept.is_untouched_for_a_while();
    kept.disk.set(CANNOT_REMOVE, false);
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn a_queue_whose_file_cannot_be_removed_keeps_no_other_from_following_and_no_gap_behind_it() {
    let kept = kept(|_| {});
    let stuck = queue_file(kept.dir.path(), TOPIC, 0, 2000);
    kept.disk.set(unremovable(&stuck), true);
    let others = ["a", "m", "z"];
    for topic in others {
        append_at(&kept.store, MIDNIGHT, topic, 0, &[0; 1000]);
    }
    for _ in 0..300 {
        append_at(&kept.store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    eventually("units in files", || queue_file(kept.dir.path(), TOPIC, 0, 10_000).exists());
    kept.advance(4 * HOUR);
    let old_end = kept.old_files() * SEGMENT;
    eventually("deletion", || kept.store.min_offset().0 == old_end);
    for topic in others.into_iter().chain([TOPIC]) {
        let queue = kept.store.queue(topic, 0).unwrap();
        let first = || queue.unit_at(queue.min_offset()).unwrap();
        eventually("the queue's lower end", || first().is_none_or(|unit| unit.at.0 >= old_end));
    }
    assert!(stuck.exists());
    kept.store.close().unwrap();
    kept.disk.set(unremovable(&stuck), false);
    let (store, found) = open(kept.dir.path());
    assert_eq!(found.findings, Vec::<String>::new());
    drop(store);
    assert!(!stuck.exists());
}

/// Files of queues have fewer messages than those of the log.
fn small_queues(root: &Path) -> StoreOptions {
    StoreOptions { queue_file_bytes: 20 * 20, ..options(root) }
}

/// A store whose first file of the log is removed, though the device does not know that, and what
/// was in that file.
fn with_a_file_that_may_come_back() -> (Kept, Vec<u8>) {
    let kept = kept_of(|_| {}, |options| options.queue_file_bytes = 20 * 20);
    let last = || queue_file(kept.dir.path(), TOPIC, 0, 14 * 400);
    eventually("units in files", || last().exists());
    let first = segment_path(kept.dir.path(), 0);
    let contents = std::fs::read(&first).unwrap();
    kept.disk.set(CANNOT_SYNC_LOG_DIR, true);
    kept.advance(4 * HOUR);
    eventually("the file is removed", || !first.exists());
    let looks = || kept.disk.count(&[Call::Space], &Files::All);
    let before = looks();
    eventually("further looks", || looks() > before + 10);
    (kept, contents)
}

#[test]
fn what_leads_into_a_removed_file_stays_until_a_loss_of_power_cannot_bring_the_file_back() {
    let (kept, contents) = with_a_file_that_may_come_back();
    let (root, queue) = (kept.dir.path(), kept.store.queue(TOPIC, 0).unwrap());
    assert_eq!(kept.store.min_offset().0, SEGMENT, "no other file goes meanwhile");
    let (_, found) = read(&kept.store, TOPIC, 0, 0, &limits(10));
    assert_eq!(found.first().map(|slice| slice.at().0), Some(SEGMENT), "consumers go on behind it");
    assert_eq!(read_all(&kept.store, TOPIC, 0).last().unwrap().0, 299);
    // The power goes.
    let image = image(root);
    std::fs::write(segment_path(image.path(), 0), &contents).unwrap();
    let (store, _) = open_as(&small_queues(image.path()));
    let numbers: Vec<u64> = read_all(&store, TOPIC, 0).into_iter().map(|(number, _)| number).collect();
    assert!(numbers.iter().copied().eq(0..300), "{numbers:?}");
    drop(store);
    // Or it does not, and the device knows.
    kept.disk.set(CANNOT_SYNC_LOG_DIR, false);
    let old_end = kept.old_files() * SEGMENT;
    eventually("the rest goes", || kept.store.min_offset().0 == old_end);
    eventually("the queue follows", || queue.unit_at(queue.min_offset()).unwrap().unwrap().at.0 == old_end);
    eventually("the queue's first file is gone", || !queue_file(root, TOPIC, 0, 0).exists());
}

#[test]
fn a_start_lets_queues_follow_the_log_when_the_device_knows_where_it_begins() {
    let (kept, contents) = with_a_file_that_may_come_back();
    // The process is killed, and the next start does not get far.
    let killed = image(kept.dir.path());
    kept.disk.forget_notes();
    let env = StoreEnv { disk: Arc::clone(&kept.disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    Store::open(small_queues(killed.path()), env).unwrap_err();
    assert!(kept.disk.refused(&[Call::SyncDir], &Files::In(killed.path().join("commitlog"))) > 0);
    assert!(queue_file(killed.path(), TOPIC, 0, 0).exists());
    // The power goes.
    let lost = image(killed.path());
    std::fs::write(segment_path(lost.path(), 0), &contents).unwrap();
    let (store, _) = open_as(&small_queues(lost.path()));
    assert_eq!(read_all(&store, TOPIC, 0)[0].0, 0);
    drop(store);
    // Or it does not.
    let (store, _) = open_as(&small_queues(killed.path()));
    let queue = store.queue(TOPIC, 0).unwrap();
    assert_eq!(queue.unit_at(queue.min_offset()).unwrap().unwrap().at.0, SEGMENT);
    assert!(!queue_file(killed.path(), TOPIC, 0, 0).exists());
}

#[test]
fn units_that_wait_for_a_file_keep_it_though_there_is_one_ahead() {
    let kept = kept(|_| {});
    let next = kept.store.queue(TOPIC, 0).unwrap().max_offset();
    assert_eq!(next, 300);
    for _ in 0..50 {
        append_at(&kept.store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    kept.store.close().unwrap();
    // A loss of power leaves such: made, and nothing of what was written there, or before it.
    std::fs::write(queue_file(kept.dir.path(), TOPIC, 0, 8000), [0; 2000]).unwrap();
    let options = StoreOptions { clean_interval: Duration::from_millis(5), ..options(kept.dir.path()) };
    let retention = Retention { file_reserved: Duration::ZERO, ..Retention::default() };
    let (store, _) = open_on(&kept.disk, StoreOptions { retention, ..options });
    kept.disk.set(QUEUES_FULL, true);
    for _ in 0..200 {
        append_at(&store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    kept.disk.set(used(86), true);
    eventually("forced deletion", || store.min_offset().0 == store.end().0 / SEGMENT * SEGMENT);
    let queue = store.queue(TOPIC, 0).unwrap();
    eventually("the queue's lower end", || queue.min_offset() > 400);
    kept.disk.set(QUEUES_FULL, false);
    store.close().unwrap();
}

#[test]
fn readers_beside_retention_get_whole_records_or_are_sent_on() {
    let kept = kept(|retention| retention.file_reserved = Duration::ZERO);
    kept.disk.set(used(80), true);
    let store = &kept.store;
    std::thread::scope(|scope| {
        let appender = scope.spawn(|| {
            for round in 0..1500 {
                append_at(store, MIDNIGHT + round, TOPIC, 0, &[0; 1000]);
                kept.hand.advance(Duration::from_millis(2));
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let queue = store.queue(TOPIC, 0).unwrap();
                let mut next = 0;
                while next < 1800 {
                    let mut out = Vec::new();
                    let read = store.read(&queue, next, &limits(32), &mut |_| true, &mut out);
                    for slice in &out {
                        let scanned = protocol::record::scan(slice.as_ref(), true);
                        let Ok(protocol::record::Scanned::Record(view)) = scanned else { panic!("{scanned:?}") };
                        assert!(view.queue_offset() as i64 >= next);
                    }
                    assert!(read.next >= next, "{read:?}");
                    next = read.next;
                }
            });
        }
        appender.join().unwrap();
    });
    eventually("deletion", || kept.store.min_offset().0 > 0);
}

#[test]
fn the_hour_is_that_of_the_zone_that_the_store_is_told() {
    // Five minutes past midnight in UTC is five past four four hours to the east.
    let kept = kept(|retention| {
        retention.file_reserved = Duration::ZERO;
        retention.hour_of_day = HourOfDay::new(|now| HourOfDay::utc().at(TimeMs(now.0 + 4 * HOUR)));
    });
    kept.advance(1);
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn one_look_removes_no_more_files_than_the_batch_allows() {
    let three = Retention { delete_batch_max: 3, ..Retention::default() };
    let rules = [
        ("expired", Retention { file_reserved: Duration::ZERO, disk_max_used_percent: 5, ..three.clone() }),
        ("too long", Retention { log_bytes_max: Some(1), ..three }),
    ];
    for (what, retention) in rules {
        let kept = kept(|_| {});
        assert!(kept.old_files() > 3);
        kept.store.close().unwrap();
        // One look at the start, and none after it.
        let options = StoreOptions { retention, clean_interval: Duration::from_secs(3600), ..options(kept.dir.path()) };
        let (store, _) = open_on(&kept.disk, options);
        eventually(what, || store.min_offset().0 == 3 * SEGMENT);
        let until = std::time::Instant::now() + Duration::from_millis(300);
        while std::time::Instant::now() < until {
            assert_eq!(store.min_offset().0, 3 * SEGMENT, "{what}");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_log_that_is_longer_than_it_may_be_loses_its_oldest_files_at_any_hour() {
    let kept = kept(|retention| retention.log_bytes_max = Some(2 * SEGMENT));
    let end = kept.store.end().0;
    // The smallest number of files that brings it there, and no more of them: nothing is old enough to go by its age.
    let min = (end - 2 * SEGMENT).next_multiple_of(SEGMENT);
    assert!(min >= 2 * SEGMENT);
    eventually("deletion", || kept.store.min_offset().0 >= min);
    assert_eq!(kept.store.min_offset().0, min);
    assert!(!segment_path(kept.dir.path(), 0).exists());
    let queue = kept.store.queue(TOPIC, 0).unwrap();
    eventually("the queue's lower end", || queue.unit_at(queue.min_offset()).unwrap().unwrap().at.0 >= min);
    // And so on as it grows.
    for _ in 0..200 {
        append_at(&kept.store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    let end = kept.store.end().0;
    eventually("deletion", || kept.store.min_offset().0 == (end - 2 * SEGMENT).next_multiple_of(SEGMENT));
}

#[test]
fn the_file_that_is_written_stays_however_little_is_allowed() {
    let kept = kept(|retention| retention.log_bytes_max = Some(1));
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
    append_at(&kept.store, MIDNIGHT, TOPIC, 0, b"the tail stays");
    assert_eq!(read_all(&kept.store, TOPIC, 0).last().unwrap().1, b"the tail stays");
}

#[test]
fn a_log_that_is_too_long_keeps_what_a_group_has_not_consumed_until_the_disk_comes_first() {
    let kept = kept(|_| {});
    let floor = Arc::new(AtomicU64::new(0));
    let asked = Arc::clone(&floor);
    kept.store.protect(Box::new(move || Some(LogOffset(asked.load(Ordering::SeqCst)))));
    kept.store.retain(Retention { log_bytes_max: Some(SEGMENT), ..Retention::default() });
    kept.is_untouched_for_a_while();
    floor.store(2 * SEGMENT + 5, Ordering::SeqCst);
    eventually("deletion", || kept.store.min_offset().0 == 2 * SEGMENT);
    kept.disk.set(used(86), true);
    eventually("forced deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn until_somebody_says_what_is_needed_all_is_unless_the_disk_comes_first() {
    let protected =
        || kept_of(|retention| retention.log_bytes_max = Some(SEGMENT), |options| options.is_protected = true);
    let kept = protected();
    kept.is_untouched_for_a_while();
    kept.store.protect(Box::new(|| None));
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);

    let kept = protected();
    kept.disk.set(used(86), true);
    eventually("forced deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn a_limit_of_bytes_may_come_and_go_while_the_store_is_open() {
    let kept = kept(|_| {});
    let end = kept.store.end().0;
    kept.store.retain(Retention { log_bytes_max: Some(end), ..Retention::default() });
    kept.is_untouched_for_a_while();
    kept.store.retain(Retention { log_bytes_max: Some(end - 1), ..Retention::default() });
    eventually("deletion", || kept.store.min_offset().0 == SEGMENT);
    kept.store.retain(Retention::default());
    for _ in 0..100 {
        append_at(&kept.store, MIDNIGHT, TOPIC, 0, &[0; 1000]);
    }
    assert_eq!(kept.store.min_offset().0, SEGMENT);
}

#[test]
fn rules_may_change_while_the_store_is_open() {
    let kept = kept(|_| {});
    kept.advance(2 * HOUR);
    kept.is_untouched_for_a_while();
    let now = Retention { file_reserved: Duration::from_secs(3600), delete_when: vec![2], ..Retention::default() };
    kept.store.retain(now);
    eventually("deletion", || kept.store.min_offset().0 == kept.old_files() * SEGMENT);
}

#[test]
fn a_file_whose_first_message_is_damaged_keeps_those_before_it_no_longer_than_the_next_one_would() {
    let kept = kept(|_| {});
    let end = kept.old_files() * SEGMENT;
    assert!(end >= 4 * SEGMENT);
    // The magic codes of the first records of a file in the middle, and of the last.
    for damaged in [2 * SEGMENT, end] {
        overwrite(&segment_path(kept.dir.path(), damaged), 4, &[0xff; 4]);
    }
    kept.advance(4 * HOUR);
    eventually("deletion", || kept.store.min_offset().0 == end - SEGMENT);
    // Nobody knows yet how old the last full one is, but that it is no younger than what follows.
    for _ in 0..150 {
        append_at(&kept.store, MIDNIGHT + 4 * HOUR, TOPIC, 0, &[0; 1000]);
    }
    assert!(kept.old_files() * SEGMENT > end + SEGMENT);
    let looks = kept.disk.count(&[Call::Space], &Files::All);
    eventually("further looks", || kept.disk.count(&[Call::Space], &Files::All) > looks + 10);
    assert_eq!(kept.store.min_offset().0, end - SEGMENT);
    kept.advance(2 * HOUR);
    eventually("deletion", || {
        kept.store.delete_expired();
        kept.store.min_offset().0 == kept.old_files() * SEGMENT
    });
}
