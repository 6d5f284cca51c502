//! Many who wait cost little: pulls that are parked, and connections on which nothing moves.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::PullMessage;
use protocol::sys_flag::pull as bits;
use support::asking::Asking;
use support::{PATIENCE, Running};
use tokio::task::JoinSet;

const QUEUES: i32 = 4;
/// Connections that have asked something, and then say nothing.
const IDLE: usize = 300;
/// Connections with pulls that wait.
const WAITING: usize = 50;
const PULLS: usize = 1000;
/// What all of them may cost together; five measured.
const KIB_MAX: u64 = 12 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_pulls_that_wait_and_hundreds_of_idle_connections_cost_little_and_are_all_woken() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let asking = Asking::of(&running);
    assert_eq!(asking.create("T", QUEUES, "").await.code, 0);
    for queue_id in 0..QUEUES {
        assert_eq!(asking.send("T", queue_id, "", "first").await.unwrap().code, 0);
    }
    let before = running.own_kib();

    let clients: Vec<Client> = (0..IDLE + WAITING).map(|_| Client::new(ClientOptions::default())).collect();
    for client in &clients {
        let answer = client.call(&asking.broker, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE).await;
        assert_eq!(answer.unwrap().code, 0);
    }
    let mut pulls = JoinSet::new();
    for number in 0..PULLS {
        let (client, broker) = (clients[number % WAITING].clone(), asking.broker.clone());
        pulls.spawn(async move {
            let pull = PullMessage::at("CG", "T", number as i32 % QUEUES, 1);
            let pull = PullMessage {
                sys_flag: pull.sys_flag | bits::SUSPEND,
                suspend_timeout_millis: PATIENCE.as_millis() as i64,
                ..pull
            };
            client.call(&broker, request::PULL_MESSAGE, &pull, Bytes::new(), PATIENCE).await.unwrap()
        });
    }
    let deadline = Instant::now() + PATIENCE;
    while asking.figure("parkedPulls").await != PULLS as u64 {
        assert!(Instant::now() < deadline, "{:?} pulls wait", asking.status("parkedPulls").await);
    }
    // Connections that rest give their buffers back.
    loop {
        let cost = running.own_kib().saturating_sub(before);
        if cost <= KIB_MAX {
            eprintln!("{PULLS} pulls and {} connections: {cost} KiB", IDLE + WAITING);
            break;
        }
        assert!(Instant::now() < deadline, "they cost {cost} KiB");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for queue_id in 0..QUEUES {
        assert_eq!(asking.send("T", queue_id, "", "second").await.unwrap().code, 0);
    }
    let mut woken = 0;
    while let Some(answer) = pulls.join_next().await {
        let answer = answer.unwrap();
        assert_eq!((answer.code, answer.fields.get("nextBeginOffset")), (0, Some("2")), "{:?}", answer.remark);
        woken += 1;
    }
    assert_eq!(woken, PULLS);
    assert_eq!(asking.figure("parkedPulls").await, 0);
    drop(clients);
    assert_eq!(running.end("-TERM").0, Some(0));
}
