//! Consumers that ask and do not read their answers: what is copied for them leaves room for others, and after a while they are given up.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::time::{Duration, Instant};

use bytes::BytesMut;
use protocol::code::request;
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::PullMessage;
use support::asking::Asking;
use support::{PATIENCE, Running};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

const TOPIC: &str = "far";
const BATCHES: usize = 64;
const IN_BATCH: usize = 32;
const BODY: usize = 16 << 10;
const LIMIT: u64 = 64 << 20;
const STALLED: usize = 6;
/// Each would bring 64 KiB.
const PULLS: usize = 200;

fn body(number: usize) -> String {
    format!("{number:<BODY$}")
}

/// Asks for more than sockets hold, and reads none of it.
async fn stalled(broker: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    let mut stream = socket.connect(broker.parse().unwrap()).await.unwrap();
    let mut asked = BytesMut::new();
    for number in 0..PULLS {
        let pull = PullMessage::at("STALLED", TOPIC, 0, (number * 4) as i64);
        let head = Head { code: request::PULL_MESSAGE, flag: 0, opaque: number as i32, remark: None };
        write_frame(&mut asked, Serialization::Json, &head, &pull, 0);
    }
    stream.write_all(&asked).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_do_not_read_take_nothing_from_one_that_does_and_are_given_up() {
    // On a disk: what is written to a file system in memory cannot be given back.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let settings = [
        "memoryLimit=67108864",
        // All of it in one file: an answer from two files is copied in two pieces, of which the second is not the reader's first.
        "mappedFileSizeCommitLog=268435456",
        "serverSocketSndBufSize=65536",
        "unreadTimeoutSeconds=15",
    ];
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    for batch in 0..BATCHES {
        let bodies: Vec<String> = (0..IN_BATCH).map(|place| body(batch * IN_BATCH + place)).collect();
        let sent = asking.send_batch(TOPIC, 0, &bodies).await.unwrap();
        assert_eq!(sent.code, 0, "{:?}", sent.remark);
    }
    // What another process has written comes from the device.
    assert_eq!(running.end("-TERM").0, Some(0));

    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    let mut kept = Vec::new();
    for _ in 0..STALLED {
        kept.push(stalled(&asking.broker).await);
    }
    // Until each of them has what it may have, and nothing moves any more.
    let deadline = Instant::now() + PATIENCE;
    let (mut before, mut looks) = ((0, 0), 0);
    while looks < 10 {
        assert!(Instant::now() < deadline, "{before:?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = (asking.figure("coldCopyBytes").await, asking.figure("coldReadsWithoutCopy").await);
        looks = if now == before && now.0 > 0 && now.1 > 0 { looks + 1 } else { 0 };
        before = now;
    }
    let (held, without) = before;
    let most = asking.figure("coldCopyBytesMax").await;
    assert!(held < most, "{held} of {most} bytes are theirs");

    // One that reads gets everything, and none of it in the slow way.
    let mut number = 0;
    while number < BATCHES * IN_BATCH {
        let (code, next, messages) = asking.pull(TOPIC, 0, number as u64).await.unwrap();
        assert!(code == 0 && !messages.is_empty(), "{code} at {number}");
        for (offset, found) in messages {
            assert_eq!((offset, found), (number as u64, number.to_string()));
            number += 1;
        }
        assert_eq!(next, number as u64);
        if number.is_multiple_of(64) {
            let occupied = asking.figure("memoryBytes").await;
            assert!(occupied <= LIMIT + LIMIT / 20, "{occupied} bytes are occupied, the limit is {LIMIT}");
        }
    }
    assert_eq!(asking.figure("coldReadsWithoutCopy").await, without, "it found no room for a copy");

    running.logged("what is owed to it was not taken in time").await;
    while asking.figure("coldCopyBytes").await > 0 {
        assert!(Instant::now() < deadline + PATIENCE, "what is copied for nobody stays");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(kept);
    assert_eq!(running.end("-TERM").0, Some(0));
}
