//! Consumers that ask and do not read their answers: what is copied for them leaves room for others, and when they go nothing of theirs stays.

use std::time::{Duration, Instant};

use crate::support::asking::Asking;
use crate::support::{PATIENCE, Running, until};
use bytes::BytesMut;
use protocol::code::request;
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::PullMessage;
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

/// Connections that ask for small messages in memory, and do not read.
const CROWD: usize = 40;
const QUEUES: i32 = 4;
/// In each queue, of 1 KB.
const SMALL: usize = 400;
/// Each would bring 256 KiB.
const ASKED: usize = 16;
/// What a connection may hold of its own, of each kind.
const OWN: u64 = 64 << 10;

fn body(number: usize) -> String {
    format!("{number:<BODY$}")
}

/// Asks for more than sockets hold, and reads none of it.
async fn stalled(broker: &str, pulls: impl Iterator<Item = PullMessage<'static>>) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    let mut stream = socket.connect(broker.parse().unwrap()).await.unwrap();
    let mut asked = BytesMut::new();
    for (number, pull) in pulls.enumerate() {
        let head = Head { code: request::PULL_MESSAGE, flag: 0, opaque: number as i32, remark: None };
        write_frame(&mut asked, Serialization::Json, &head, &pull, 0);
    }
    stream.write_all(&asked).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_do_not_read_take_nothing_from_one_that_does_and_leave_nothing_behind() {
    // On a disk: what is written to a file system in memory cannot be given back.
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let settings = [
        "memoryLimit=67108864",
        // All of it in one file: an answer from two files is copied in two pieces, of which the second is not the reader's first.
        "mappedFileSizeCommitLog=268435456",
        "serverSocketSndBufSize=65536",
        // They are there until the end, however slow the machine is.
        "unreadTimeoutSeconds=600",
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
        let pulls = (0..PULLS).map(|number| PullMessage::at("STALLED", TOPIC, 0, (number * 4) as i64));
        kept.push(stalled(&asking.broker, pulls).await);
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

    drop(kept);
    until("what is copied for nobody is given back", async || asking.figure("coldCopyBytes").await == 0).await;
    assert_eq!(running.end("-TERM").0, Some(0));
}

/// Neighbours in a queue are not neighbours in the log, so what is answered is copied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_reads_nothing_has_as_much_copied_as_replies_may_hold_and_who_reads_is_served() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let settings = [
        "memoryLimit=134217728",
        "maxTransferCountOnMessageInMemory=1000",
        "serverSocketSndBufSize=65536",
        "mappedFileSizeCommitLog=16777216",
        "unreadTimeoutSeconds=600",
    ];
    let settings: Vec<&str> = settings.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let running = Running::server_with(data.path(), &settings);
    let asking = Asking::of(&running);
    assert_eq!(asking.create(TOPIC, QUEUES, "").await.code, 0);
    for number in 0..SMALL {
        for queue in 0..QUEUES {
            let sent = asking.send(TOPIC, queue, "", &format!("{number:<1000}")).await.unwrap();
            assert_eq!(sent.code, 0, "{:?}", sent.remark);
        }
    }
    assert_eq!(asking.bodies(TOPIC, 0).await.len(), SMALL);
    let (before, most) = (running.own_kib(), asking.figure("requestBytesMax").await);

    let mut kept = Vec::new();
    for _ in 0..CROWD {
        let pulls = (0..ASKED).map(|number| {
            let pull = PullMessage::at("STALLED", TOPIC, number as i32 % QUEUES, 0);
            PullMessage { max_msg_nums: 1000, ..pull }
        });
        kept.push(stalled(&asking.broker, pulls).await);
    }
    let deadline = Instant::now() + PATIENCE;
    let (mut held, mut looks) = (0, 0);
    while looks < 10 {
        assert!(Instant::now() < deadline, "{held} bytes are held");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = asking.figure("requestBytes").await;
        // That may be less than half of what they may hold: a buffer that grows is counted with its spare, others stop by that, and go on
        // only when they are read.
        looks = if now == held && now > 0 { looks + 1 } else { 0 };
        held = now;
    }
    let crowd = CROWD as u64;
    // Half, what each may have, and what two threads had begun: a buffer grows by doubling.
    let begun = 8 << 20;
    assert!(held <= most / 2 + crowd * OWN + begun, "{held} bytes are held, the limit is {most}");
    let cost = running.own_kib().saturating_sub(before) << 10;
    // With what is not counted: 64 KiB each for what is asked and what is owed.
    assert!(cost <= most / 2 + crowd * 3 * OWN + 2 * begun, "{cost} bytes of its own");

    for queue in 0..QUEUES {
        assert_eq!(asking.bodies(TOPIC, queue).await.len(), SMALL);
    }
    // One that has many answers on their way at once, and reads them.
    let mut answers = tokio::task::JoinSet::new();
    for number in 0..50 {
        let asking = asking.clone();
        answers.spawn(async move { asking.pull(TOPIC, number % QUEUES, 0).await.unwrap() });
    }
    while let Some(answer) = answers.join_next().await {
        let (code, _, messages) = answer.unwrap();
        assert!(code == 0 && messages.len() > 200, "{code}, {} messages", messages.len());
    }
    eprintln!("{crowd} connections: {held} bytes of answers, {cost} bytes of its own; the limit is {most}");
    drop(kept);
    until("what is copied for nobody is given back", async || asking.figure("requestBytes").await == 0).await;
    assert_eq!(running.end("-TERM").0, Some(0));
}
