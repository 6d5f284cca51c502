//! A store that is to stay within a limit of memory.

use std::path::Path;
use std::time::Duration;

use store::{FlushMode, GovernorOptions, ReadStatus, Shares, StoreOptions, resident_below};

use crate::support::*;

const MIB: u64 = 1 << 20;
const SHARES: Shares = Shares {
    program: 0,
    requests: 0,
    pool: 0,
    log: 8 * MIB,
    hot: 4 * MIB,
    ahead: MIB,
    dirty: MIB,
    cold: MIB,
    files: MIB,
};
const MESSAGES: u64 = 40 * MIB / BODY;
const BODY: u64 = 16 << 10;

/// Without feedback: the shares alone are looked at.
pub(crate) fn plenty() -> GovernorOptions {
    GovernorOptions { limit: 1 << 40, period: Duration::from_millis(10), weight: 1, shares: SHARES }
}

fn governed(root: &Path, flush: FlushMode) -> StoreOptions {
    let governor = Some(plenty());
    StoreOptions { segment_bytes: 4 * MIB, hot_bytes: SHARES.hot, flush, governor, ..options(root) }
}

/// On a disk: pages of a file system in memory cannot be given back.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn body_of(number: u64) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(BODY as usize, number as u8);
    body
}

#[test]
fn what_is_written_and_read_again_stays_within_its_shares_in_both_flush_modes() {
    for flush in [FlushMode::Async, FlushMode::Sync] {
        let dir = folder();
        let (store, _) = try_open(governed(dir.path(), flush)).unwrap();
        let log = dir.path().join("commitlog");
        let mut most = 0;
        for number in 0..MESSAGES {
            append(&store, TOPIC, 0, &body_of(number));
            if number % 16 == 0 {
                most = most.max(resident_below(&log).unwrap());
            }
        }
        // A burst may go beyond what is flushed; a large page goes as a whole.
        assert!(most <= SHARES.log + 3 * MIB, "{most} bytes of the log were in memory, {flush:?}");
        store.flushed().wait_until(store.end().0, deadline());
        let bodies = read_all(&store, TOPIC, 0);
        assert_eq!(bodies.len() as u64, MESSAGES);
        for (number, read) in (0..).zip(&bodies) {
            assert_eq!(*read, (number, body_of(number)), "message {number}");
        }
        eventually("the rest is given back", || resident_below(&log).unwrap() <= SHARES.log + SHARES.cold + 2 * MIB);
        let figures = store.memory().unwrap();
        assert!(figures.dropped >= MESSAGES * BODY - SHARES.log && figures.cold <= SHARES.cold, "{figures:?}");
    }
}

#[test]
fn what_lies_in_the_hot_window_is_in_memory_and_what_lies_before_it_is_not() {
    let dir = folder();
    let (store, _) = try_open(governed(dir.path(), FlushMode::Async)).unwrap();
    for number in 0..MESSAGES {
        append(&store, TOPIC, 0, &body_of(number));
    }
    let impatient = store::ReadLimits { may_fault: false, ..limits(1) };
    // So many of the last records are hot for certain.
    let hot = SHARES.hot / 8 * 7 / record_bytes(BODY as usize) - 1;
    let from = (MESSAGES - hot) as i64;
    assert_eq!(read(&store, TOPIC, 0, from, &impatient).0.status, ReadStatus::Found);
    assert_eq!(read(&store, TOPIC, 0, 0, &impatient).0.status, ReadStatus::Cold);
    store.flushed().wait_until(store.end().0, deadline());
    let log = dir.path().join("commitlog");
    eventually("what is hot is kept, and no more", || {
        let resident = resident_below(&log).unwrap();
        (SHARES.hot..=SHARES.log + MIB).contains(&resident)
    });
}

#[test]
fn behind_a_device_that_stands_still_senders_wait_and_memory_does_not_grow() {
    let dir = folder();
    let disk = fault_disk();
    let (store, _) = open_on(&disk, governed(dir.path(), FlushMode::Async));
    append(&store, TOPIC, 0, &body_of(0));
    disk.set(STALLED, true);
    // Ends when a sender has waited for so long that nothing comes any more.
    let mut number = 1;
    let held = loop {
        let mut batch = store::RecordBatch::new();
        push(&store, &mut batch, TOPIC, 0, &body_of(number));
        match store.append(&mut batch, env::TimeMs(1_700_000_000_000)) {
            Ok(()) => number += 1,
            Err(store::AppendError::NoRoomYet { needed }) => {
                let patience = std::time::Instant::now() + Duration::from_millis(500);
                if !store.room().wait_until(needed, patience) {
                    break needed;
                }
            }
            Err(error) => panic!("{error}"),
        }
        assert!(number < MESSAGES, "{number} messages went into memory");
    };
    assert!(held <= SHARES.log + MIB, "{held}");
    disk.set(STALLED, false);
    assert!(store.room().wait_until(held, deadline()), "there is room when the device goes on");
    append(&store, TOPIC, 0, &body_of(number));
    assert_eq!(read_all(&store, TOPIC, 0).len() as u64, number + 1);
}

#[test]
fn a_start_that_reads_all_of_the_log_again_gives_it_back_while_it_reads() {
    let dir = folder();
    {
        let (store, _) = try_open(governed(dir.path(), FlushMode::Sync)).unwrap();
        for number in 0..MESSAGES {
            append(&store, TOPIC, 0, &body_of(number));
        }
        store.flushed().wait_until(store.end().0, deadline());
        store.close().unwrap();
    }
    // As if it had been killed.
    std::fs::write(dir.path().join("abort"), "1").unwrap();
    std::fs::remove_dir_all(dir.path().join("consumequeue")).unwrap();
    let (store, found) = try_open(governed(dir.path(), FlushMode::Sync)).unwrap();
    assert_eq!(found.records_scanned, MESSAGES);
    let log = dir.path().join("commitlog");
    let resident = resident_below(&log).unwrap();
    assert!(resident <= SHARES.log + SHARES.cold + 3 * MIB, "{resident} bytes of the log are in memory");
    assert_eq!(read_all(&store, TOPIC, 0).len() as u64, MESSAGES);
}
