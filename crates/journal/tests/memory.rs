//! A journal's memory does not grow with what goes through it. Its own binary, because it counts for the whole process.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs, reason = "a test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use disk::RealDisk;
use env::Clock;
use journal::{Journal, JournalOptions, Table, TableId};
use testing::allocator::{self, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Offsets of a thousand queues, which have no memory of their own here: each is what the counter makes it.
struct Offsets(AtomicI64);

const QUEUES: i64 = 1_000;
const TABLE: TableId = TableId(1);

impl Offsets {
    fn commit(&self, journal: &Journal) -> u64 {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        journal.put(TABLE, &key(n % QUEUES), &n.to_le_bytes())
    }
}

impl Table for Offsets {
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        let n = self.0.load(Ordering::Relaxed);
        (0..QUEUES).for_each(|queue| show(&key(queue), &n.to_le_bytes()));
    }
}

/// As long as `topic@group` and a number.
fn key(queue: i64) -> [u8; 40] {
    let mut key = [b'k'; 40];
    key[..8].copy_from_slice(&queue.to_le_bytes());
    key
}

#[test]
fn a_million_commits_of_offsets_leave_the_heap_as_it_was_whatever_the_journal_may_grow_to() {
    for snapshot_min_bytes in [50_000, 500_000, 5_000_000, u64::MAX] {
        let dir = tempfile::tempdir().unwrap();
        let options = JournalOptions { snapshot_min_bytes, ..JournalOptions::default() };
        let journal = Journal::open(dir.path(), options, Clock::real(), Arc::new(RealDisk)).unwrap();
        let offsets = Arc::new(Offsets(AtomicI64::new(0)));
        journal.attach(TABLE, Arc::clone(&offsets) as Arc<dyn Table>);
        let commit = |commits: u32| {
            for n in 1..=commits {
                let position = offsets.commit(&journal);
                let deadline = Instant::now() + Duration::from_secs(60);
                assert!(n % 64 != 0 || journal.written().wait_until(position, deadline));
            }
        };
        commit(20_000);
        let before = allocator::forget_peak();
        commit(1_000_000);
        let (after, peak) = (allocator::bytes(), allocator::peak_bytes());
        let stats = journal.stats();
        // Buffers of the thread, and of a snapshot that runs beside.
        assert!(after - before < 512 << 10, "{} bytes more, {stats:?}", after - before);
        assert!(peak - before < 1 << 20, "{} bytes more for a while, {stats:?}", peak - before);
        assert!(stats.written_bytes > 90 << 20, "{stats:?}");
        assert_eq!(stats.snapshots == 0, snapshot_min_bytes == u64::MAX, "{stats:?}");
        assert!(journal.close());
    }
}
