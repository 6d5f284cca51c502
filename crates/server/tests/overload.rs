//! More than the device takes: a send is stored and found under its offset, or refused with what is in the way and how long to wait; one that nobody
//! waits for is held back at its socket and stored.
//!
//! `strace` makes each flush of the log take its time; so the numbers below are far beyond what any machine takes here.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::SendMessage;
use support::asking::Asking;
use support::failing::on_failing_device;
use support::{PATIENCE, Running};
use tokio::task::JoinSet;

const LIMIT: u64 = 64 << 20;
const BODY: usize = 200 << 10;
const CLIENTS: usize = 12;
/// At a time, of each client.
const PIPELINED: usize = 4;
const ROUNDS: usize = 6;
const ONEWAY: usize = 12;
const OK: i32 = 0;
const BUSY: i32 = 2;
/// Stored, and the device was late with it.
const FLUSH_DISK_TIMEOUT: i32 = 10;

fn start(data: &Path) -> Running {
    let settings = [
        "flushDiskType=SYNC_FLUSH",
        "memoryLimit=67108864",
        "roomTimeoutMillis=400",
        "mappedFileSizeCommitLog=16777216",
        "messageIndexEnable=false",
    ];
    on_failing_device(data, "msync:delay_enter=1500000", &settings)
}

fn message(topic: &str, queue_id: i32) -> SendMessage<'_> {
    SendMessage {
        producer_group: "PG",
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id,
        ..SendMessage::default()
    }
}

/// A body of 200 KiB that begins with these words.
fn sized(words: &str) -> String {
    format!("{words}{}", " ".repeat(BODY - words.len()))
}

/// What became of the sends of one client: places and bodies of what is stored, and why others are not.
#[derive(Default)]
struct Outcome {
    stored: Vec<(i32, u64, String)>,
    refused: Vec<String>,
}

/// Sends several at a time, each once, and hears what became of each.
async fn produce(broker: String, number: usize) -> Outcome {
    let client = Client::new(ClientOptions::default());
    let queue = (number % 4) as i32;
    let mut outcome = Outcome::default();
    for round in 0..ROUNDS {
        let bodies: Vec<String> = (0..PIPELINED).map(|place| format!("{number}/{round}/{place}")).collect();
        let mut calls = Vec::new();
        for body in &bodies {
            let bytes = sized(body).into();
            let fields = message("T", queue);
            calls.push(client.begin(&broker, request::SEND_MESSAGE_V2, &fields, &bytes, PATIENCE).await.unwrap());
        }
        for (call, body) in calls.into_iter().zip(bodies) {
            let answer = call.response().await.expect("each send has its answer");
            let remark = answer.remark.unwrap_or_default();
            match answer.code {
                OK | FLUSH_DISK_TIMEOUT => {
                    let number = |name: &str| answer.fields.get(name).unwrap().parse::<u64>().unwrap();
                    outcome.stored.push((number("queueId") as i32, number("queueOffset"), body));
                }
                BUSY => outcome.refused.push(remark),
                code => panic!("{code} {remark}"),
            }
        }
    }
    outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_what_the_device_takes_each_send_is_stored_or_refused_with_its_cause_and_none_is_dropped() {
    // On a disk: what is written to a file system in memory cannot be given back.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let running = start(data.path());
    let asking = Asking::of(&running);
    assert_eq!(asking.create("T", 4, "").await.code, 0);
    assert_eq!(asking.create("quiet", 1, "").await.code, 0);
    // What the device takes is never refused.
    let calm = asking.send("T", 0, "", "calm").await.unwrap();
    assert!(matches!(calm.code, OK | FLUSH_DISK_TIMEOUT), "{:?}", calm.remark);

    let is_over = Arc::new(AtomicBool::new(false));
    let watching = tokio::spawn({
        let (asking, is_over) = (Asking::of(&running), Arc::clone(&is_over));
        async move {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = asking.figure("memoryBytes").await.max(most);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            most
        }
    });
    let quiet = Client::new(ClientOptions::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(produce(asking.broker.clone(), number));
        let body = sized(&format!("quiet {number}")).into();
        quiet.oneway(&asking.broker, request::SEND_MESSAGE_V2, &message("quiet", 0), body).await.unwrap();
    }
    let mut all = Outcome::default();
    while let Some(outcome) = clients.join_next().await {
        let outcome = outcome.unwrap();
        all.stored.extend(outcome.stored);
        all.refused.extend(outcome.refused);
    }
    is_over.store(true, Ordering::Relaxed);
    let most = watching.await.unwrap();
    assert!(most <= LIMIT + LIMIT / 20, "{most} bytes were occupied, the limit is {LIMIT}");
    assert_eq!(all.stored.len() + all.refused.len(), CLIENTS * PIPELINED * ROUNDS);
    assert!(
        !all.refused.is_empty() && !all.stored.is_empty(),
        "{} stored, {} refused",
        all.stored.len(),
        all.refused.len()
    );
    for remark in &all.refused {
        for part in [
            "[GANTRY]broker busy, start flow control for a while: no room in the commit log",
            "400 ms (roomTimeoutMillis)",
            "the disk does not keep up",
            "; try again in 400 ms",
        ] {
            assert!(remark.contains(part), "{part}: {remark}");
        }
    }

    // All that was said to be stored lies where that was said, and nothing else does; what nobody waited for is there.
    let deadline = Instant::now() + PATIENCE;
    let mut expected: BTreeMap<i32, BTreeMap<u64, String>> =
        BTreeMap::from([(0, BTreeMap::from([(0, "calm".to_owned())]))]);
    for (queue, offset, body) in all.stored {
        assert!(expected.entry(queue).or_default().insert(offset, body).is_none(), "two at {queue}/{offset}");
    }
    let found = async |asking: &Asking| {
        let mut found = BTreeMap::new();
        for queue in 0..4 {
            let messages: BTreeMap<u64, String> = asking.all("T", queue).await.into_iter().collect();
            if !messages.is_empty() {
                found.insert(queue, messages);
            }
        }
        found
    };
    // Consumers see what is on the device.
    while found(&asking).await != expected || asking.all("quiet", 0).await.len() < ONEWAY {
        assert!(Instant::now() < deadline, "not all of it is there: {} quiet ones", asking.all("quiet", 0).await.len());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // And it serves as ever.
    let after = asking.send("T", 0, "", "after").await.unwrap();
    assert!(matches!(after.code, OK | FLUSH_DISK_TIMEOUT), "{:?}", after.remark);
    expected
        .entry(0)
        .or_default()
        .insert(after.fields.get("queueOffset").unwrap().parse().unwrap(), "after".to_owned());
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("CLEAN_QUEUE"), "{said}");
    let again = Running::server(data.path());
    let asking = Asking::of(&again);
    assert!(found(&asking).await == expected, "a restart has lost or found some");
    assert_eq!(asking.all("quiet", 0).await.len(), ONEWAY);
    assert_eq!(again.end("-TERM").0, Some(0));
}
