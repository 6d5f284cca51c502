//! Who flushes: a thread of the store, or whoever appends.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use env::{Clock, ManualClock, TimeMs};
use protocol::LogOffset;
use store::disk::Disk;
use store::{AppendError, FlushMode, RecordBatch, Store, StoreEnv, StoreOptions};

use crate::support::*;

/// A store with SYNC_FLUSH whose clock stands still, on a device that can stall.
fn open_still(root: &Path, disk: &Arc<FaultyDisk>) -> (Arc<Store>, ManualClock) {
    let (clock, hands) = Clock::manual(TimeMs(1_700_000_000_000));
    let env = StoreEnv { disk: Arc::clone(disk) as Arc<dyn Disk>, clock, ..StoreEnv::real() };
    let (store, _) = Store::open(StoreOptions { flush: FlushMode::Sync, ..options(root) }, env).unwrap();
    (store, hands)
}

/// Appends a message, and leaves its flush to be asked for.
fn append_unflushed(store: &Store) -> LogOffset {
    let mut batch = RecordBatch::new();
    push(store, &mut batch, TOPIC, 0, b"x");
    while let Err(error) = store.append_unflushed(&mut batch, TimeMs(1_700_000_000_000)) {
        let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
        assert!(store.room().wait_until(needed, deadline()));
    }
    batch.landed()[0].end
}

/// Whether the thread that appends a message has it flushed by itself.
fn flushes_here(store: &Store) -> bool {
    let end = append_unflushed(store);
    let is_flushed = store.flush_soon(end, true);
    if is_flushed {
        assert!(store.flushed().get() >= end.0);
    } else {
        assert!(store.flushed().wait_until(end.0, deadline()), "nobody flushed it");
    }
    is_flushed
}

#[test]
fn a_producer_alone_waits_for_no_other_thread() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let (store, _) = open_still(dir.path(), &disk);
    eventually("a flush by who appends", || flushes_here(&store));
    let syncs = disk.faults.syncs.load(Ordering::SeqCst);
    eventually("another", || flushes_here(&store));
    assert!(disk.faults.syncs.load(Ordering::SeqCst) > syncs, "it was said to be on the device");
    // Who may not wait has it done.
    let end = append_unflushed(&store);
    assert!(!store.flush_soon(end, false));
    assert!(store.flushed().wait_until(end.0, deadline()));
}

#[test]
fn producers_that_come_together_leave_the_flush_to_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open_still(dir.path(), &FaultyDisk::new());
    // Whether the thread was still awake and flushed one of the two by itself is chance.
    eventually("a flush by the thread", || {
        eventually("a flush by who appends", || flushes_here(&store));
        append_unflushed(&store);
        flushes_here(&store);
        !flushes_here(&store)
    });
    eventually("a flush by who appends, again", || flushes_here(&store));
}

#[test]
fn nobody_who_appends_waits_for_a_slow_device_twice() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let (store, hands) = open_still(dir.path(), &disk);
    eventually("a flush by the thread", || {
        eventually("a flush by who appends", || flushes_here(&store));
        disk.stall();
        std::thread::scope(|scope| {
            scope.spawn(|| flushes_here(&store));
            eventually("a sync", || disk.faults.waiting_syncs.load(Ordering::SeqCst) > 0);
            hands.advance(Duration::from_millis(2));
            disk.resume();
        });
        !flushes_here(&store)
    });
}

#[test]
fn what_is_appended_while_somebody_flushes_is_flushed_next() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    let (store, _) = open_still(dir.path(), &disk);
    eventually("a flush by who appends", || flushes_here(&store));
    disk.stall();
    std::thread::scope(|scope| {
        scope.spawn(|| flushes_here(&store));
        eventually("a sync", || disk.faults.waiting_syncs.load(Ordering::SeqCst) > 0);
        let end = append_unflushed(&store);
        assert!(!store.flush_soon(end, true), "the device stands still");
        disk.resume();
        assert!(store.flushed().wait_until(end.0, deadline()));
    });
}
