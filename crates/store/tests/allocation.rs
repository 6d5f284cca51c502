//! An append allocates nothing once buffers have their size. Its own binary, because it counts for the whole process.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "a test")]

use std::time::{Duration, Instant};

use env::TimeMs;
use protocol::record::RecordDraft;
use store::{AppendError, ReadLimits, RecordBatch, Store, StoreEnv, StoreOptions, TagsCode};
use testing::allocator::{Counting, by_this_thread};

// Of this thread: the store's own may allocate, since nobody waits for them.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn fill(store: &Store, batch: &mut RecordBatch, messages: u32) {
    batch.clear();
    for number in 0..messages {
        let queue = store.queue("orders", number % 4).unwrap();
        let host = "127.0.0.1:10911".parse().unwrap();
        batch.push(&queue, TagsCode::Code(0), |out| {
            let draft =
                RecordDraft { queue_id: (number % 4) as i32, body: &[7; 1024], ..RecordDraft::plain("orders", host) };
            draft.encode(out).unwrap();
        });
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = store.append(batch, TimeMs(1)) {
        let AppendError::NoRoomYet { needed } = error else { panic!("{error}") };
        assert!(store.room().wait_until(needed, deadline));
    }
}

#[test]
fn an_append_and_a_read_in_steady_state_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let retention = store::Retention { disk_warning_percent: 100, ..store::Retention::default() };
    let options = StoreOptions { retention, ..StoreOptions::at(dir.path()) };
    let (store, _) = Store::open(options, StoreEnv::real()).unwrap();
    let queue = store.queue("orders", 1).unwrap();
    let limits = ReadLimits {
        max_count: 32,
        count_memory: 32,
        bytes_memory: 256 << 10,
        count_disk: 8,
        bytes_disk: 64 << 10,
        scan_bytes: 16_000,
        may_fault: false,
    };
    let mut batch = RecordBatch::new();
    let mut slices = Vec::new();
    let mut counts = Vec::new();
    for _ in 0..2000 {
        // Waiting for room may allocate; what is counted is an append that finds it.
        let end = store.end().0 + (64 << 10);
        assert!(
            store.room().wait_until(end, Instant::now() + Duration::from_secs(60))
                || store.room().get() > store.end().0
        );
        let before = by_this_thread();
        fill(&store, &mut batch, 16);
        let from = batch.landed()[1].queue_offset as i64;
        slices.clear();
        let read = store.read(&queue, from, &limits, &mut |_| true, &mut slices);
        assert_eq!(read.count, 4);
        counts.push(by_this_thread() - before);
    }
    // The buffers of the queues grow to what is pushed between two flushes, by doubling, and no more.
    let allocating = counts[200..].iter().filter(|count| **count > 0).count();
    assert!(allocating <= 40, "{allocating} of {} rounds allocated", counts.len() - 200);
    store.close().unwrap();
}
