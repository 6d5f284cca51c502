//! The lines of the budget (design §10) that the store owns: append with its copy, queue entry, read.

#![allow(clippy::unwrap_used, reason = "what fails here fails the run")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use disk::RealDisk;
use env::TimeMs;
use protocol::LogOffset;
use protocol::record::RecordDraft;
use store::queue_log::{QueueLogOptions, QueueLogs};
use store::{ConsumeQueue, ReadLimits, RecordBatch, Retention, Store, StoreEnv, StoreOptions, TagsCode, Unit};

/// Records in one measured stretch: fewer bytes than a log at rest has ready, so that no append waits for room.
const STRETCH: usize = 256;

fn open(root: &std::path::Path) -> Arc<Store> {
    let options = StoreOptions {
        segment_bytes: 256 << 20,
        // Old files go while the benchmark runs.
        retention: Retention { disk_clean_forcibly_percent: 0, disk_warning_percent: 100, ..Retention::default() },
        clean_interval: Duration::from_millis(100),
        ..StoreOptions::at(root)
    };
    Store::open(options, StoreEnv::real()).unwrap().0
}

fn record() -> Vec<u8> {
    let mut record = Vec::new();
    let host = "127.0.0.1:10911".parse().unwrap();
    let draft = RecordDraft {
        born_timestamp: 1_700_000_000_000,
        body: &[7; 1024],
        properties: b"UNIQ_KEY\x017F0000010B2C4DC639969F7E2A350001\x02WAIT\x01true\x02TAGS\x01TagA\x02",
        ..RecordDraft::plain("BenchmarkTest", host)
    };
    draft.encode(&mut record).unwrap();
    record
}

fn wait_for_room(store: &Store) {
    let stretch = (STRETCH * 1400) as u64;
    assert!(store.room().wait_until(store.end().0 + stretch, Instant::now() + Duration::from_secs(30)));
}

fn fill(batch: &mut RecordBatch, queues: &[Arc<ConsumeQueue>], record: &[u8], count: usize) {
    batch.clear();
    for number in 0..count {
        batch.push(&queues[number % queues.len()], TagsCode::Code(1), |out| out.extend_from_slice(record));
    }
}

fn appending(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let queues: Vec<_> = (0..4).map(|id| store.queue("BenchmarkTest", id).unwrap()).collect();
    let record = record();
    let mut group = c.benchmark_group("append");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_secs(1)).sample_size(20);
    for size in [1, 8, 64] {
        group.throughput(Throughput::Elements(STRETCH as u64));
        let mut batches: Vec<_> = (0..STRETCH / size).map(|_| RecordBatch::new()).collect();
        group.bench_function(format!("256 records of 1 KB in batches of {size}"), |b| {
            b.iter_custom(|rounds| {
                let mut took = Duration::ZERO;
                for _ in 0..rounds {
                    for batch in &mut batches {
                        fill(batch, &queues, &record, size);
                    }
                    wait_for_room(&store);
                    let began = Instant::now();
                    for batch in &mut batches {
                        store.append(batch, TimeMs(1_700_000_000_000)).unwrap();
                    }
                    took += began.elapsed();
                }
                took
            });
        });
    }
    group.finish();
    store.close().unwrap();
}

/// Alone, and while the thread that writes units has to keep up with all that one core can push.
fn pushing(c: &mut Criterion) {
    let mut group = c.benchmark_group("queue");
    group.measurement_time(Duration::from_secs(2)).throughput(Throughput::Elements(STRETCH as u64));
    let dir = tempfile::tempdir().unwrap();
    let (logs, _) = QueueLogs::open(dir.path(), QueueLogOptions::default(), Arc::new(RealDisk)).unwrap();
    let queues: Vec<_> = (0..4).map(|id| logs.get_or_create("BenchmarkTest", id)).collect();
    let mut at = 0;
    group.bench_function("256 entries", |b| {
        b.iter_custom(|rounds| {
            let mut took = Duration::ZERO;
            for round in 0..rounds {
                let began = Instant::now();
                push_stretch(&queues, &mut at);
                took += began.elapsed();
                if round % 64 == 63 {
                    logs.flush_all().unwrap();
                }
            }
            took
        });
    });

    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let queues: Vec<_> = (0..4).map(|id| store.queue("BenchmarkTest", id).unwrap()).collect();
    at = 0;
    group.bench_function("256 entries, written at once", |b| b.iter(|| push_stretch(&queues, &mut at)));
    group.finish();
}

fn push_stretch(queues: &[Arc<ConsumeQueue>], at: &mut u64) {
    for number in 0..STRETCH {
        queues[number % queues.len()].push(Unit { at: LogOffset(*at), size: 1024, tags: 1 });
        *at += 1024;
    }
}

fn reading(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let queue = store.queue("BenchmarkTest", 0).unwrap();
    let (record, mut batch) = (record(), RecordBatch::new());
    fill(&mut batch, std::slice::from_ref(&queue), &record, 64);
    for _ in 0..4 {
        wait_for_room(&store);
        fill(&mut batch, std::slice::from_ref(&queue), &record, 64);
        store.append(&mut batch, TimeMs(1_700_000_000_000)).unwrap();
    }
    let limits = ReadLimits {
        max_count: 32,
        count_memory: 32,
        bytes_memory: 256 << 10,
        count_disk: 8,
        bytes_disk: 64 << 10,
        scan_bytes: 16_000,
        // The kernel may have no opinion on whether a page is in memory.
        may_fault: true,
    };
    let mut slices = Vec::new();
    c.bench_function("read 32 of 1 KB", |b| {
        b.iter(|| {
            slices.clear();
            let read = store.read(&queue, 100, &limits, &mut |_| true, &mut slices);
            assert_eq!(read.count, 32);
            black_box(&slices);
        });
    });
    store.close().unwrap();
}

criterion_group!(benches, appending, pushing, reading);
criterion_main!(benches);
