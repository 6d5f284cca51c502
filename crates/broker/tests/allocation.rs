//! What goes through a warm broker allocates nothing for a message. Alone in its binary, because it counts.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use bytes::Bytes;
use store::FlushMode;
use testing::allocator::{Counting, by_this_thread};
use testing::warm::{Warm, pull, sends};

// Of this thread: nobody waits for allocations of the store's own.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ROUNDS: usize = 1000;
const WARM_UP: usize = 200;

/// Serves a burst and counts. `None` if it had to wait, which may allocate.
fn count(warm: &mut Warm, frames: &Bytes) -> Option<u64> {
    let before = by_this_thread();
    let (at_once, out) = warm.serve(frames);
    assert!(out.bytes() > 0, "there is an answer");
    out.discard();
    at_once.then(|| by_this_thread() - before)
}

/// How many rounds that had not to wait allocated, and what all of them did together.
fn allocating(counts: &[Option<u64>]) -> (usize, u64) {
    let counted: Vec<u64> = counts[WARM_UP..].iter().flatten().copied().collect();
    assert!(counted.len() > (ROUNDS - WARM_UP) / 2, "most rounds need no wait");
    (counted.iter().filter(|count| **count > 0).count(), counted.iter().sum())
}

#[test]
fn warm_sends_and_pulls_of_found_messages_allocate_nothing() {
    let mut warm = Warm::start(FlushMode::Async);
    let burst = sends(16, 1);
    let (mut sent, mut pulled) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        sent.push(count(&mut warm, &burst));
        let ask = pull(1, round as i64 * 16, 0);
        pulled.push(count(&mut warm, &ask));
    }
    // Buffers of the queues grow to what is pushed between two flushes, by doubling, and no more.
    let (rounds, all) = allocating(&sent);
    assert!(rounds <= 40, "{rounds} bursts of 16 sends allocated, {all} times");
    let (rounds, all) = allocating(&pulled);
    assert!(rounds <= 20, "{rounds} pulls allocated, {all} times");
}

#[test]
fn a_wake_up_allocates_nothing_for_the_pull_that_it_answers() {
    let mut warm = Warm::start(FlushMode::Async);
    let one = sends(1, 2);
    let mut woken = Vec::new();
    let nothing = Bytes::new();
    for round in 0..ROUNDS {
        if round > 0 {
            // Parking allocates: an entry in the wheel of times.
            let (_, out) = warm.serve(&pull(2, round as i64, 60_000));
            assert_eq!((out.bytes(), warm.parked_pulls()), (0, 1));
        } else {
            warm.serve(&nothing);
        }
        let sent = count(&mut warm, &one);
        // What the append woke lies in the inbox, or was answered with the burst itself.
        woken.push(sent);
        warm.serve(&nothing).1.discard();
        assert_eq!(warm.parked_pulls(), 0);
    }
    let (rounds, all) = allocating(&woken);
    assert!(rounds <= 40, "{rounds} wake-ups allocated, {all} times");
}

#[test]
fn a_burst_that_waits_for_its_flush_allocates_for_the_burst_and_not_for_each_message() {
    let mut warm = Warm::start(FlushMode::Sync);
    let mut each = Vec::new();
    for burst in [sends(1, 3), sends(64, 3)] {
        let mut counts = Vec::new();
        for _ in 0..200 {
            let before = by_this_thread();
            warm.serve(&burst);
            counts.push(by_this_thread() - before);
            // The answers come when the flush has been.
            let nothing = Bytes::new();
            while warm.serve(&nothing).1.bytes() == 0 {
                std::thread::yield_now();
            }
            warm.serve(&nothing).1.discard();
        }
        counts.sort_unstable();
        each.push(counts[100]);
    }
    // Vectors that go along with the burst grow by doubling.
    assert!(each[1] <= each[0] + 16, "a burst of one allocates {} times, of 64 {} times", each[0], each[1]);
}
