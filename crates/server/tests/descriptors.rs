//! Connections that nobody needs take descriptors; the log must have its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::net::TcpStream;
use std::process::Command;

use support::asking::Asking;
use support::{Running, gantry};

/// Fewer than a store with many queues would take.
const OPEN_FILES: u32 = 400;
const IDLE: usize = 500;
/// Each with a file of its own.
const QUEUES: i32 = 250;
const FILE_BYTES: usize = 1 << 20;
const BODY: usize = 16 << 10;

/// Whoever connects and says nothing neither keeps new files of the log from being opened, nor those of queues, nor the next producer out.
#[tokio::test]
async fn idle_connections_leave_descriptors_to_the_store() {
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file_bytes = format!("mappedFileSizeCommitLog={FILE_BYTES}");
    let arguments = ["server", "--data", data.path().to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"];
    let inside = gantry(&[&arguments[..], &["--set", &file_bytes]].concat());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &OPEN_FILES.to_string()]);
    command.arg(inside.get_program()).args(inside.get_args());
    command.env_remove("NAMESRV_ADDR").env_remove("ROCKETMQ_HOME").env("RUST_LOG", "info");
    let running = Running::start(&mut command);
    let asking = Asking::of(&running);
    assert_eq!(asking.create("T", QUEUES, "").await.code, 0);
    assert_eq!(asking.send("T", 0, "", "first").await.unwrap().code, 0);

    // The kernel takes them whether they are accepted or not.
    let idle: Vec<TcpStream> = (0..IDLE)
        .map(|number| TcpStream::connect(running.address(if number % 2 == 0 { "broker" } else { "namesrv" })).unwrap())
        .collect();
    running.logged("too many connections, the oldest that said nothing made way").await;
    // More than four files of the log, and every queue.
    let body = "b".repeat(BODY);
    for number in 0..2 * QUEUES {
        let answer = asking.send("T", number % QUEUES, "", &body).await.unwrap();
        assert_eq!(answer.code, 0, "message {number}: {:?}", answer.remark);
    }
    for queue in 0..QUEUES {
        let mut expected = vec![body.clone(); 2];
        if queue == 0 {
            expected.insert(0, "first".to_owned());
        }
        assert!(asking.bodies("T", queue).await == expected, "queue {queue}");
    }
    drop(idle);
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("Too many open files"), "{said}");
}
