//! The binary in trouble of several kinds while it works: what it says of why throughput fell.
//!
//! `strace` delays what the kernel would do at once; it counts the calls of each thread by itself. Nothing from outside makes appends wait for each
//! other's lock and for nothing else, so that cause is played in `crates/broker/src/state/falls.rs`
//! only.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;
use protocol::batch::{self, InnerMessage};
use protocol::code::request;
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::{PullMessage, SendMessage};
use support::Running;
use support::asking::Asking;
use support::failing::on_failing_device;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Batches a second, few enough for a machine that does much else. A window has to have a thousand messages to say anything.
const PACE: u64 = 40;
const BATCH: usize = 100;
/// What each server is started with. What is usual is known after seven windows.
const ALWAYS: [&str; 2] = ["throughputWindowMillis=500", "messageIndexEnable=false"];
const FELL: &str = "fewer messages are stored than usual";
/// A machine may be so slow that this takes many times as long as it should.
const DEADLINE: Duration = Duration::from_secs(120);

/// A server of which calls are late.
fn delayed(data: &Path, injected: &str, settings: &[&str]) -> Running {
    on_failing_device(data, injected, &[&ALWAYS[..], settings].concat())
}

/// Sends a steady load, until the line is there. Ended by whoever waits for that.
fn load(running: &Running, body: usize) -> JoinHandle<()> {
    let asking = Asking::of(running);
    let bodies = vec!["x".repeat(body); BATCH];
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(1000 / PACE));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let began = Instant::now();
        while began.elapsed() < DEADLINE {
            ticks.tick().await;
            let answer = asking.send_batch("orders", 0, &bodies).await.unwrap();
            // While it is late, some are refused, or answered before they are on the device.
            assert!([0, 2, 10].contains(&answer.code), "{} {:?}", answer.code, answer.remark);
        }
    })
}

async fn until_fallen<T>(running: &Running, load: &JoinHandle<T>) {
    let deadline = Instant::now() + DEADLINE;
    while !running.has_logged(FELL) {
        assert!(!load.is_finished(), "the load has ended");
        assert!(Instant::now() < deadline, "nothing is said of a fall");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Which cause the first fall was put down to, at the end of the process. Not by a stop, which would wait for all that is late.
fn ended(running: Running, cause: &str) {
    let (_, log) = running.end("-KILL");
    let first = log.lines().find(|line| line.contains(FELL)).unwrap();
    assert!(first.contains(&format!("cause=\"{cause}\"")), "{first}");
}

async fn is_named(running: Running, body: usize, cause: &str) {
    let load = load(&running, body);
    until_fallen(&running, &load).await;
    load.abort();
    let _ = load.await;
    ended(running, cause);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_whose_flushes_become_slow_is_named_when_throughput_falls() {
    let data = tempfile::tempdir().unwrap();
    let quick = 6 * PACE;
    let injected = format!("msync:delay_enter=400000:when={quick}+");
    let running = delayed(data.path(), &injected, &["flushDiskType=SYNC_FLUSH"]);
    is_named(running, 10, "flush").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_late_with_room_for_the_log_is_named_when_throughput_falls() {
    let data = tempfile::tempdir().unwrap();
    let injected = "fallocate:delay_enter=2000000:when=30+";
    let running = delayed(data.path(), injected, &["mappedFileSizeCommitLog=1048576"]);
    is_named(running, 1000, "disk").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_cannot_be_given_back_is_named_when_throughput_falls() {
    // On a disk: what is written to a file system in memory cannot be given back.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let injected = "msync:delay_enter=3000000:when=120+";
    let settings = ["memoryLimit=67108864", "mappedFileSizeCommitLog=16777216"];
    let running = delayed(data.path(), injected, &settings);
    is_named(running, 4000, "reclaim").await;
}

fn batch_of(bodies: usize, body: &str) -> Vec<u8> {
    let mut batch = Vec::new();
    for _ in 0..bodies {
        batch::encode(&mut batch, &InnerMessage { flag: 0, body: body.as_bytes(), properties: "" }).unwrap();
    }
    batch
}

/// Sends as the others do, over a connection of its own, and reads the answers until it is told to ask for much and to read no more.
async fn produce_and_stop_reading(broker: String, mut stop: oneshot::Receiver<()>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    let (mut read, mut write) = socket.connect(broker.parse().unwrap()).await.unwrap().into_split();
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while read.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {
            if !matches!(stop.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                // Held, so that the connection stays.
                return read;
            }
        }
        panic!("the broker has closed the connection");
    });
    let (body, mut frames) = (batch_of(BATCH, &"x".repeat(1000)), BytesMut::new());
    let send = SendMessage {
        producer_group: "PG",
        topic: "orders",
        default_topic: "TBW102",
        default_topic_queue_nums: 1,
        queue_id: 0,
        batch: Some(true),
        ..SendMessage::default()
    };
    let mut ticks = interval(Duration::from_millis(1000 / PACE));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for opaque in 0.. {
        ticks.tick().await;
        frames.clear();
        if reading.is_finished() {
            for number in 0..8 {
                let pull = PullMessage::at("CG", "orders", 0, number * 32);
                let head = Head { code: request::PULL_MESSAGE, flag: 0, opaque, remark: None };
                write_frame(&mut frames, Serialization::Json, &head, &pull, 0);
            }
        }
        let head = Head { code: request::SEND_BATCH_MESSAGE, flag: 0, opaque, remark: None };
        write_frame(&mut frames, Serialization::Json, &head, &send, body.len());
        frames.extend_from_slice(&body);
        // Waits as soon as it is not read any more.
        write.write_all(&frames).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_no_answers_is_named_when_throughput_falls() {
    let data = tempfile::tempdir().unwrap();
    let settings = ["serverSocketSndBufSize=65536"];
    let settings: Vec<&str> = ALWAYS.into_iter().chain(settings).flat_map(|setting| ["--set", setting]).collect();
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    assert_eq!(asking.create("orders", 1, "").await.code, 0);
    let (stop, stopped) = oneshot::channel();
    let load = tokio::spawn(produce_and_stop_reading(asking.broker.clone(), stopped));
    let usual = 10 * PACE * BATCH as u64 / 2;
    let deadline = Instant::now() + DEADLINE;
    while asking.figure("msgPutTotalTodayNow").await < usual {
        assert!(Instant::now() < deadline && !load.is_finished(), "it is not stored");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.send(()).unwrap();
    until_fallen(&running, &load).await;
    load.abort();
    let _ = load.await;
    ended(running, "network");
}
