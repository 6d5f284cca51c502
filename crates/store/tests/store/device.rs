//! The device: flushes, full disks, file systems that cannot allocate.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disk::turns::Turns;
use disk::{Disk, DiskUse};
use env::{Clock, Random, TimeMs};
use store::{AppendError, FlushMode, NotWritable, ReadStatus, RecordBatch, Store, StoreEnv, StoreOptions};

use crate::support::*;

#[test]
fn a_sync_store_shows_and_promises_only_what_is_flushed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, StoreOptions { flush: FlushMode::Sync, ..options(dir.path()) });
    let first = append(&store, TOPIC, 0, b"one");
    assert!(store.confirmed().wait_until(first.end.0, deadline()));
    disk.set(STALLED, true);
    let second = append(&store, TOPIC, 0, b"two");
    assert_eq!(store.end(), second.end);
    assert!(store.flushed().get() < second.end.0);
    let (read, _) = read(&store, TOPIC, 0, 0, &limits(32));
    assert_eq!((read.status, read.count, read.max), (ReadStatus::Found, 1, 1));
    let (read, _) = crate::support::read(&store, TOPIC, 0, 1, &limits(32));
    assert_eq!((read.status, read.next), (ReadStatus::OffsetOverflowOne, 1));
    assert!(store.record_at(second.at).unwrap().is_none());
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert_eq!([0, 1, 2].map(|offset| store.is_visible(&queue, offset)), [true, false, false]);
    assert_eq!((store.visible_end(&queue), queue.max_offset()), (1, 2));
    append_run(&store, 2..9);
    assert_eq!(store.visible_end(&queue), 1);
    let (read, _) = crate::support::read(&store, TOPIC, 0, 50, &limits(32));
    assert_eq!((read.status, read.next), (ReadStatus::OffsetOverflowBadly, 1));
    disk.set(STALLED, false);
    assert!(store.flushed().wait_until(second.end.0, deadline()));
    assert!(store.is_visible(&queue, 1));
    assert!(store.flushed().wait_until(store.end().0, deadline()));
    assert_eq!((store.visible_end(&queue), read_all(&store, TOPIC, 0).len()), (9, 9));
    store.close().unwrap();
}

#[test]
fn the_flush_thread_loses_no_wake_up() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_sync(dir.path());
    std::thread::scope(|scope| {
        for queue in 0..3 {
            let store = &store;
            scope.spawn(move || {
                for _ in 0..400 {
                    let landed = append(store, TOPIC, queue, b"x");
                    // There is no timer behind it: a lost wake-up would wait for ever.
                    assert!(store.flushed().wait_until(landed.end.0, deadline()));
                }
            });
        }
    });
    store.close().unwrap();
}

#[test]
fn a_flush_writes_what_was_appended_and_leaves_what_is_prepared_alone() {
    const SEGMENT: u64 = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, StoreOptions { segment_bytes: SEGMENT, ..options(dir.path()) });
    // Over the end of a segment.
    let mut end = 0;
    while end < SEGMENT + (64 << 10) {
        end = append(&store, TOPIC, 0, &[7; 30_000]).end.0;
        assert!(store.flushed().wait_until(end, deadline()));
    }
    let synced: usize = disk.stretches(&[Call::SyncMapped]).iter().map(|range| range.len()).sum();
    let syncs = disk.stretches(&[Call::SyncMapped]).len();
    assert!(synced as u64 >= end, "{synced} of {end} bytes");
    // Each may begin and end in the middle of a page.
    assert!(synced <= end as usize + syncs * 2 * 4096, "{synced} bytes for {end} in {syncs} flushes");
    store.close().unwrap();
}

#[test]
fn one_flush_serves_everybody_who_waits() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) =
        open_on(&disk, StoreOptions { flush: FlushMode::Sync, segment_bytes: 4 << 20, ..options(dir.path()) });
    disk.set(STALLED, true);
    append(&store, TOPIC, 0, b"x");
    for _ in 0..500 {
        append(&store, TOPIC, 0, b"y");
    }
    let before = disk.count(SYNCS, &Files::All) as u64;
    disk.set(STALLED, false);
    assert!(store.flushed().wait_until(store.end().0, deadline()));
    let syncs = disk.count(SYNCS, &Files::All) as u64 - before;
    assert!(syncs < 20, "{syncs}");
}

#[test]
fn an_async_store_flushes_within_its_interval_also_after_a_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    for _ in 0..20 {
        let landed = append(&store, TOPIC, 0, b"x");
        assert!(store.flushed().wait_until(landed.end.0, deadline()));
    }
}

#[test]
fn a_full_device_is_an_answer_and_writing_goes_on_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(room_for(3 << 20), true);
    let (store, _) = open_on(&disk, StoreOptions { segment_bytes: 1 << 20, ..options(dir.path()) });
    let mut taken = 0;
    let refused = loop {
        let mut batch = RecordBatch::new();
        push(&store, &mut batch, TOPIC, 0, &body(taken));
        match append_batch(&store, &mut batch, TimeMs(1)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 20_000);
    };
    let AppendError::NotWritable(NotWritable::NoRoom { path, bytes, .. }) = &refused else { panic!("{refused}") };
    assert!(path.starts_with(dir.path().join("commitlog")) && *bytes > 0);
    assert!(taken > 1000);
    assert_run(&store, 0..taken);
    // Somebody makes room; nobody tells the store.
    disk.set(room_for(3 << 20), false);
    eventually("room", || {
        let mut batch = RecordBatch::new();
        push(&store, &mut batch, TOPIC, 0, &body(taken));
        append_batch(&store, &mut batch, TimeMs(1)).is_ok()
    });
    assert_run(&store, 0..taken + 1);
    store.close().unwrap();
}

#[test]
fn room_that_is_gone_when_its_pages_are_made_is_an_answer_and_no_signal_to_whoever_appends() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, options(dir.path()));
    disk.set(LOSES_ROOM, true);
    let mut taken = 0;
    let mut batch = RecordBatch::new();
    let refused = loop {
        batch.clear();
        push(&store, &mut batch, TOPIC, 0, &body(taken));
        match append_batch(&store, &mut batch, TimeMs(1)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 20_000);
    };
    assert!(matches!(&refused, AppendError::NotWritable(NotWritable::NoRoom { .. })), "{refused}");
    disk.set(LOSES_ROOM, false);
    eventually("room", || append_batch(&store, &mut batch, TimeMs(1)).is_ok());
    append_run(&store, taken + 1..taken + 300);
    assert_run(&store, 0..taken + 300);
    store.close().unwrap();
}

#[test]
fn a_file_system_that_cannot_allocate_keeps_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    disk.set(NO_ROOM_AHEAD, true);
    let (store, _) = open_on(&disk, StoreOptions { segment_bytes: 4 << 20, ..options(dir.path()) });
    append_run(&store, 0..5000);
    assert_run(&store, 0..5000);
    let crashed = image(dir.path());
    drop(store);
    let (store, _) = open_on(&disk, StoreOptions { segment_bytes: 4 << 20, ..options(crashed.path()) });
    assert_run(&store, 0..5000);
    append_run(&store, 5000..6000);
    assert_run(&store, 0..6000);
}

#[test]
fn an_append_without_room_says_how_much_it_needs_and_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = try_open(StoreOptions { segment_bytes: 16 << 20, ..options(dir.path()) }).unwrap();
    let mut batch = RecordBatch::new();
    push(&store, &mut batch, TOPIC, 0, b"small");
    push(&store, &mut batch, TOPIC, 0, &vec![1; 8 << 20]);
    push(&store, &mut batch, TOPIC, 0, b"behind");
    let waits = store.append(&mut batch, TimeMs(1));
    let Err(AppendError::NoRoomYet { needed }) = waits else { panic!("{waits:?}") };
    let landed = batch.landed().len();
    assert!(landed <= 1 && !batch.is_appended());
    assert!(store.room().wait_until(needed, deadline()));
    append_batch(&store, &mut batch, TimeMs(1)).unwrap();
    assert!(batch.is_appended());
    assert_eq!(read_all(&store, TOPIC, 0).len(), 3);
}

#[test]
fn a_store_that_just_opened_takes_a_message_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    let mut batch = RecordBatch::new();
    push(&store, &mut batch, TOPIC, 0, b"first");
    store.append(&mut batch, TimeMs(1)).unwrap();
}

/// Files of the log below `root` that this process has open.
fn open_files(root: &std::path::Path) -> usize {
    let dir = root.join("commitlog");
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    open.filter(|target| target.starts_with(&dir)).count()
}

#[test]
fn a_log_of_many_files_needs_few_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..10_000);
    assert!(store.end().0 > 60 * SEGMENT);
    assert!(store.flushed().wait_until(store.end().0, deadline()));
    // The tail's file, and those that are ready for it: a megabyte, however fast the log grew.
    let ahead = 1 + ((1 << 20) / SEGMENT) as usize;
    eventually("closing files", || open_files(dir.path()) <= ahead);
    store.close().unwrap();
    drop(store);
    let (store, _) = open(dir.path());
    eventually("a start with few files", || open_files(dir.path()) <= ahead);
    assert_run(&store, 0..10_000);
}

#[test]
fn queues_that_cannot_be_written_stop_the_log_before_they_fill_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, StoreOptions { queue_buffered_bytes: 20 * 500, ..options(dir.path()) });
    disk.set(QUEUES_FULL, true);
    let mut taken = 0;
    let refused = loop {
        let mut batch = RecordBatch::new();
        push(&store, &mut batch, TOPIC, 0, b"x");
        match append_batch(&store, &mut batch, TimeMs(1)) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 200_000, "units gather in memory without end");
    };
    let AppendError::NotWritable(NotWritable::NoRoom { path, .. }) = &refused else { panic!("{refused}") };
    assert_eq!(*path, dir.path().join("consumequeue"));
    assert!(taken >= 4000, "{taken}");
    assert!(store.close().is_err() && dir.path().join("abort").exists(), "the next start is told to look");
    disk.set(QUEUES_FULL, false);
    drop(store);
    let (store, found) = open(dir.path());
    assert!(found.was_abnormal);
    assert_eq!(read_all(&store, TOPIC, 0).len(), taken);
}

#[test]
fn queues_that_can_be_written_again_let_the_log_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, StoreOptions { queue_buffered_bytes: 20 * 10, ..options(dir.path()) });
    disk.set(QUEUES_FULL, true);
    let mut batch = RecordBatch::new();
    eventually("a refusal", || {
        batch.clear();
        push(&store, &mut batch, TOPIC, 0, b"x");
        append_batch(&store, &mut batch, TimeMs(1)).is_err()
    });
    disk.set(QUEUES_FULL, false);
    eventually("an append", || append_batch(&store, &mut batch, TimeMs(1)).is_ok());
}

#[test]
fn with_sync_flush_nothing_is_appended_where_nothing_was_ever_written() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) =
        open_on(&disk, StoreOptions { flush: FlushMode::Sync, segment_bytes: 16 << 20, ..options(dir.path()) });
    let written = || {
        let mut ranges = disk.stretches(&[Call::SyncMapped]);
        ranges.sort_by_key(|range| range.start);
        ranges.iter().fold(0, |end, range| if range.start <= end { end.max(range.end) } else { end })
    };
    let room = store.room().get();
    assert!(written() as u64 >= room, "{} of {room} bytes", written());
    // The tail's page is synced with the stretch behind it, and keeps its records.
    append_run(&store, 0..5000);
    let room = store.room().get();
    assert!(room > 2 << 20 && written() as u64 >= room, "{} of {room} bytes", written());
    store.close().unwrap();
    drop(store);
    let (store, _) = open_sync(dir.path());
    assert_run(&store, 0..5000);
}

#[test]
fn a_flush_needs_no_name_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).0.close().unwrap();
    let (store, _) = open_sync(dir.path());
    std::fs::remove_dir_all(dir.path().join("commitlog")).unwrap();
    // Asking for the name again would end the process, as any flush does that fails.
    let landed = append(&store, TOPIC, 0, b"x");
    assert!(store.flushed().wait_until(landed.end.0, deadline()));
}

#[test]
fn a_change_does_not_wait_for_the_sync_of_those_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, options(dir.path()));
    let journal = store.journal();
    let put = |value: u8| journal.put(journal::TableId(1), b"key", &[value]);
    disk.set(STALLED, true);
    let first = put(1);
    assert!(journal.written().wait_until(first, deadline()));
    eventually("a sync", || disk.waiting(&STALLED) > 0);
    // While the device stands still.
    for value in 2..10 {
        let next = put(value);
        assert!(journal.written().wait_until(next, deadline()), "change {value} waits for the device");
    }
    // The one that waits, and that of the rest.
    let syncs = journal.stats().syncs;
    disk.set(STALLED, false);
    eventually("the sync of the rest", || journal.stats().syncs > syncs + 1);
    store.close().unwrap();
}

#[test]
fn units_are_written_while_the_device_takes_its_time_with_earlier_ones() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, options(dir.path()));
    disk.set(QUEUES_STALLED, true);
    append_run(&store, 0..10);
    eventually("a sync of the queue", || disk.waiting(&QUEUES_STALLED) > 0);
    append_run(&store, 10..50);
    let file = queue_file(dir.path(), TOPIC, 0, 0);
    eventually("the units in their file", || std::fs::read(&file).unwrap()[49 * 20..50 * 20] != [0; 20]);
    disk.set(QUEUES_STALLED, false);
    store.close().unwrap();
}

#[test]
fn units_in_memory_have_a_bound_whatever_keeps_them_there() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { queue_buffered_bytes: 20, ..options(dir.path()) };
    let (store, _) = open_on(&fault_disk(), options);
    let mut batch = RecordBatch::new();
    for _ in 0..100 {
        push(&store, &mut batch, TOPIC, 0, b"x");
    }
    append_batch(&store, &mut batch, TimeMs(1)).unwrap();
    // As soon as they are written, there is room again.
    eventually("room for more", || {
        batch.clear();
        push(&store, &mut batch, TOPIC, 0, b"y");
        match store.append(&mut batch, TimeMs(1)) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.to_string().contains("more slowly than messages come"), "{error}");
                false
            }
        }
    });
    store.close().unwrap();
}

#[test]
fn with_sync_flush_that_is_set_while_running_changes_of_state_are_synced_before_they_count_too() {
    let dir = tempfile::tempdir().unwrap();
    let hour = Duration::from_secs(3_600);
    let (store, _) = try_open(StoreOptions { flush_interval: hour, ..options(dir.path()) }).unwrap();
    let change = |key: &[u8]| {
        let position = store.journal().put(journal::TableId(1), key, b"value");
        assert!(store.journal().written().wait_until(position, deadline()));
        store.journal().stats().syncs
    };
    let before = change(b"asynchronously");
    assert_eq!(change(b"once more"), before);
    store.set_flush(FlushMode::Sync);
    assert!(change(b"synchronously") > before);
    store.set_flush(FlushMode::Async);
    let after = change(b"asynchronously again");
    assert_eq!(change(b"and again"), after);
}

/// What a crash leaves of a store with messages, and with a folder for queues of batches.
fn crashed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..10);
    let crashed = image(dir.path());
    std::fs::create_dir_all(crashed.path().join("batchconsumequeue")).unwrap();
    crashed
}

/// Opens what a crash left, where something of this folder's file system did not reach the device. Says whether the process ends, and what the
/// check-point was before and is then.
fn ends_with_lost_writes(root: &Path, folder: &str) -> (bool, [Option<Vec<u8>>; 2]) {
    let (clock, hand) = Clock::manual(TimeMs(1_700_000_000_000));
    let turns = Turns::new(clock.clone(), Random::seeded(1));
    let _in_charge = turns.enter();
    turns.begin_process(|| {});
    let disk = fault_disk();
    disk.set(own_device(root.join("batchconsumequeue")), true);
    let lost = Fault::new(&[Call::SyncFileSystem], Files::Is(root.join(folder)), How::Breaks);
    // As the kernel does, it says so to the first who asks, and to nobody else.
    disk.set(lost.once(), true);
    let checkpoint = || std::fs::read(root.join("checkpoint")).ok();
    let before = checkpoint();
    let env =
        StoreEnv { clock, random: Random::seeded(1), disk: Arc::clone(&disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    let (store, found) = Store::open(options(root), env).unwrap();
    assert!(found.was_abnormal);
    append(&store, TOPIC, 0, &body(10));
    // Some hundred seconds: the queues are looked at each second.
    for _ in 0..100_000 {
        if turns.has_ended_process() {
            break;
        }
        turns.give();
        hand.advance(Duration::from_millis(1));
    }
    (turns.has_ended_process(), [before, checkpoint()])
}

#[test]
fn what_a_process_wrote_that_crashed_and_the_device_has_lost_ends_the_next_one_before_the_check_point_moves() {
    for folder in ["consumequeue", "batchconsumequeue"] {
        let crashed = crashed();
        let (has_ended, [before, after]) = ends_with_lost_writes(crashed.path(), folder);
        assert!(has_ended && before == after, "{folder}: {has_ended}, {before:?}, {after:?}");
        assert!(!crashed.path().join("resume").exists(), "the next start reads from the check-point on");
        // Which gives back all that was lost.
        let (store, _) = open(crashed.path());
        assert_run(&store, 0..11);
    }
}

#[test]
fn queues_of_batches_on_a_device_of_their_own_are_brought_there_too() {
    let dir = tempfile::tempdir().unwrap();
    let disk = fault_disk();
    let batches = dir.path().join("batchconsumequeue");
    disk.set(own_device(batches.clone()), true);
    let (store, _) = open_on(&disk, options(dir.path()));
    std::fs::create_dir_all(&batches).unwrap();
    // More files than are synced one by one.
    let mut batch = RecordBatch::new();
    for queue in 0..300 {
        push(&store, &mut batch, TOPIC, queue, b"x");
    }
    append_batch(&store, &mut batch, TimeMs(1_700_000_000_000)).unwrap();
    eventually("a sync of the whole", || disk.paths(&[Call::SyncFileSystem]).contains(&batches));
    assert!(disk.paths(&[Call::SyncFileSystem]).contains(&dir.path().join("consumequeue")));
    store.close().unwrap();
}

#[test]
fn a_device_is_above_a_limit_as_soon_as_it_is_and_not_a_percent_later() {
    let used = |available| DiskUse { total: 1000, available }.used_percent();
    assert_eq!([1000, 999, 101, 100, 99, 91, 90, 0].map(used), [0, 1, 90, 90, 91, 91, 91, 100]);
    assert_eq!(DiskUse { total: 0, available: 0 }.used_percent(), 0);
}
