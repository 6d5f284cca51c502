//! What a message costs in allocations from socket to socket: connection, broker and store, all threads of theirs. Alone in its binary,
//! because it counts.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test")]

use store::FlushMode;
use testing::allocator::{self, Counting, Threads};
use testing::served::Served;
use testing::warm::{BODY, TOPIC, pull_and_commit, sends, sends_in_turn};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const QUEUES: i32 = 4;
const BURST: usize = 64;
const PULLED: usize = 32;
/// What comes with time and with the log's growth is shared by fewer messages where the machine is slow (0.06 beside eight busy loops; 0.13 of
/// pulled ones in some runs right after a build of everything). One a message would be 1.
const FEW: f64 = 0.5;

/// Plays so many rounds of `messages` each, after a tenth as many that do not count, prints what a message cost, and says it.
fn measure(what: &str, rounds: usize, messages: usize, mut round: impl FnMut()) -> f64 {
    (0..rounds / 10).for_each(|_| round());
    let before = (allocator::by(Threads::Runtime), allocator::by(Threads::Other));
    (0..rounds).for_each(|_| round());
    let runtime = allocator::by(Threads::Runtime) - before.0;
    let store = allocator::by(Threads::Other) - before.1;
    let all = rounds * messages;
    let each = |count: u64| count as f64 / all as f64;
    println!(
        "{what}: {all} messages, allocations a message: {:.5} on the runtime's threads, {:.5} on the store's",
        each(runtime),
        each(store)
    );
    each(runtime + store)
}

#[test]
fn messages_go_from_socket_to_socket_without_an_allocation() {
    allocator::join(Threads::Client);
    let served = Served::start(FlushMode::Async, || allocator::join(Threads::Runtime), |broker| broker);
    let mut producer = served.connect();
    // Makes the topic.
    producer.exchange(&sends(1, 0), 1);

    let one = sends(1, 0);
    let sent = measure("sends, one at a time", 50_000, 1, || producer.exchange(&one, 1));
    assert!(sent < FEW, "{sent} allocations a send");

    let burst = sends_in_turn(BURST, QUEUES, &BODY);
    let sent = measure("sends, in bursts of 64", 100_000 / BURST, BURST, || producer.exchange(&burst, BURST));
    assert!(sent < FEW, "{sent} allocations a send of a burst");

    // Not before: a connection that says nothing is closed after a while.
    let mut consumer = served.connect();
    // In queue 0 the messages lie behind each other and are written from where they lie; each of queue 1 is copied.
    for (queue_id, pulls) in [(0, 1_500), (1, 750)] {
        let mut offset = 0;
        let what = format!("pulls of 32 from queue {queue_id}");
        let pulled = measure(&what, pulls, PULLED, || {
            consumer.send(&pull_and_commit(queue_id, offset, 0));
            offset = consumer.answer().next_offset;
        });
        assert!(pulled < FEW, "{pulled} allocations a pulled message of queue {queue_id}");
    }

    let one = sends(1, 3);
    let mut offset = served.store.queue(TOPIC, 3).unwrap().max_offset() as i64;
    let woken = measure("pulls that wait, woken for each message", 20_000, 1, || {
        consumer.send(&pull_and_commit(3, offset, 30_000));
        served.until_parked(1);
        producer.exchange(&one, 1);
        offset = consumer.answer().next_offset;
    });
    assert!(woken < FEW, "{woken} allocations a message that wakes a pull");
    drop(served);

    // A burst that waits for its flush takes its receipts along.
    let served = Served::start(FlushMode::Sync, || allocator::join(Threads::Runtime), |broker| broker);
    let mut producer = served.connect();
    producer.exchange(&sends(1, 0), 1);
    let burst = sends_in_turn(BURST, QUEUES, &BODY);
    let sent = measure("sends with SYNC_FLUSH, in bursts of 64", 500, BURST, || producer.exchange(&burst, BURST));
    assert!(sent < FEW, "{sent} allocations a send of a burst that waits for its flush");
}
