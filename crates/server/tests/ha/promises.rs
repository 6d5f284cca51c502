//! What an acknowledgement stands for: while both go on, while the slave stands still, when the master is gone, and while the promise changes.

use std::time::Instant;

use crate::ledger::Ledger;
use crate::row::{Outcome, Row};
use crate::set::{Set, end_of, same_bytes, set, signal, until_same_end};
use crate::support::asking::Asking;

const SYNC: [&str; 3] = ["brokerRole=SYNC_MASTER", "flushDiskType=ASYNC_FLUSH", "inSyncReplicas=2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_a_slave_has_what_is_acknowledged_and_the_same_bytes() {
    let row = Row {
        id: "T1",
        mode: "SYNC_MASTER ASYNC_FLUSH inSyncReplicas=2",
        time: "back",
        may_lose: false,
        may_vanish: false,
    };
    row.play(async || {
        let pair = Set::start(&SYNC).await;
        let (master, slave) = (Asking::of(&pair.master), Asking::of(&pair.slave));
        let ledger = Ledger::begin(&master);
        ledger.acknowledges(2_000).await;
        signal(&pair.slave, "-STOP");
        ledger.forbid();
        // Of each producer, with the 2.5 s that a send waits for the slave.
        ledger.refuses(16).await;
        assert_eq!(ledger.allow(), 0, "acknowledged while the slave stands still");
        let refusal = ledger.first_refusal().unwrap();
        assert!(refusal.starts_with("12 "), "{refusal}");
        let began = Instant::now();
        signal(&pair.slave, "-CONT");
        ledger.acknowledges(1).await;
        let time = began.elapsed();
        ledger.acknowledges(1_000).await;
        let outcome = ledger.check(&master, 0).await;
        until_same_end(&master, &slave).await;
        let end = end_of(&master).await;
        let Set { first, second, .. } = &pair;
        let stores = [first.store(), second.store()];
        same_bytes(&stores[0], &stores[1], end);
        let Set { first, second, master, slave, .. } = pair;
        assert_eq!(slave.end("-TERM").0, Some(0));
        assert_eq!(master.end("-TERM").0, Some(0));
        first.is_sound();
        second.is_sound();
        Outcome { time, ..outcome }
    })
    .await;
}

/// A kill of the master under load, and the slave as the new one.
async fn killed(lines: &[&str]) -> Outcome {
    let pair = Set::start(lines).await;
    let ledger = Ledger::begin(&Asking::of(&pair.master));
    let random = env::Random::from_entropy();
    ledger.acknowledges(500 + random.below(2_000) as usize).await;
    let (asking, time, _kept) = pair.promote().await;
    Outcome { time, ..ledger.check(&asking, 0).await }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_what_a_sync_master_acknowledged_is_on_the_slave_that_takes_its_place() {
    let mode = "SYNC_MASTER inSyncReplicas=2, slave promoted by hand";
    let row = Row { id: "F1", mode, time: "RTO", may_lose: false, may_vanish: true };
    row.play(async || killed(&SYNC).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1a_what_an_async_master_acknowledged_may_be_lost_with_it() {
    let mode = "ASYNC_MASTER, slave promoted by hand";
    let row = Row { id: "F1a", mode, time: "RTO", may_lose: true, may_vanish: true };
    row.play(async || killed(&["brokerRole=ASYNC_MASTER"]).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s3_the_promise_changes_under_load_and_no_send_is_refused() {
    let mode = "SYNC/ASYNC, replica.ack, minInSyncReplicas under load";
    let row = Row { id: "S3", mode, time: "RTO", may_lose: false, may_vanish: true };
    row.play(async || {
        let pair = Set::start(&["brokerRole=ASYNC_MASTER", "inSyncReplicas=2", "slaveTimeout=15000"]).await;
        let master = Asking::of(&pair.master);
        let ledger = Ledger::begin(&master);
        for _ in 0..5 {
            for lines in
                ["brokerRole=SYNC_MASTER", "minInSyncReplicas=2", "minInSyncReplicas=1", "brokerRole=ASYNC_MASTER"]
            {
                set(&master, lines).await;
                ledger.acknowledges(50).await;
            }
            for attributes in ["+replica.ack=SYNC", "+replica.ack=ALL", "+replica.ack=NONE", "-replica.ack"] {
                assert_eq!(master.create(crate::set::TOPIC, crate::set::QUEUES, attributes).await.code, 0);
                ledger.acknowledges(50).await;
            }
        }
        assert_eq!((ledger.refused(), ledger.first_refusal()), (0, None));
        // What begins after the answer to the change is on the slave.
        set(&master, "brokerRole=SYNC_MASTER").await;
        let stage = ledger.next_stage();
        ledger.acknowledges(200).await;
        let (asking, time, _kept) = pair.promote().await;
        Outcome { time, ..ledger.check(&asking, stage).await }
    })
    .await;
}
