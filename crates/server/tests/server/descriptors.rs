//! Connections that nobody needs take descriptors; the log must have its own.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::asking::Asking;
use crate::support::{PATIENCE, Running, gantry, until, without_environment};
use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::request;

/// Fewer than a store with many queues would take.
const OPEN_FILES: u32 = 400;
const IDLE: usize = 500;
/// Each with a file of its own.
const QUEUES: i32 = 250;
const FILE_BYTES: usize = 1 << 20;
const BODY: usize = 16 << 10;

fn start_with_few_descriptors(data: &Path, settings: &[&str]) -> Running {
    let arguments = ["server", "--data", data.to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"];
    let inside = gantry(&[&arguments[..], settings].concat());
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &OPEN_FILES.to_string()]);
    command.arg(inside.get_program()).args(inside.get_args());
    without_environment(&mut command);
    Running::start(&mut command)
}

/// Sockets of which the kernel takes each, whether it is accepted or not.
fn silent(running: &Running, count: usize) -> Vec<TcpStream> {
    let port = |number: usize| if number.is_multiple_of(2) { "broker" } else { "namesrv" };
    (0..count).map(|number| TcpStream::connect(running.address(port(number))).unwrap()).collect()
}

/// Whoever connects and says nothing neither keeps new files of the log from being opened, nor those of queues, nor the next producer out.
/// Sockets of ours are descriptors too, and half of what a process usually may have.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn idle_connections_leave_descriptors_to_the_store() {
    let _turn = TURN.lock().await;
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file_bytes = format!("mappedFileSizeCommitLog={FILE_BYTES}");
    let running = start_with_few_descriptors(data.path(), &["--set", &file_bytes]);
    let asking = Asking::of(&running);
    assert_eq!(asking.create("T", QUEUES, "").await.code, 0);
    assert_eq!(asking.send("T", 0, "", "first").await.unwrap().code, 0);

    let idle = silent(&running, IDLE);
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

/// Which connection of its own a client has to the broker.
async fn connection(asking: &Asking) -> u64 {
    let nothing = Bytes::new();
    let call = asking.client.begin(&asking.broker, request::GET_BROKER_RUNTIME_INFO, &(), &nothing, PATIENCE);
    let call = call.await.unwrap();
    let connection = call.connection();
    assert_eq!(call.response().await.unwrap().code, 0);
    connection
}

#[tokio::test]
async fn a_flood_of_silent_connections_keeps_nobody_out_and_is_over_soon() {
    let _turn = TURN.lock().await;
    let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let running = start_with_few_descriptors(data.path(), &["--set", "firstFrameTimeoutSeconds=3"]);
    let established = Asking::of(&running);
    assert_eq!(established.send("T", 0, "", "0").await.unwrap().code, 0);
    let before = connection(&established).await;

    let mut flood = silent(&running, IDLE);
    let deadline = Instant::now() + PATIENCE;
    for number in 1..=20 {
        flood.extend(silent(&running, 10));
        // A client of its own each time. One that comes while others are on their way out is closed as it came, and comes again.
        let newcomer = Asking { client: Client::new(ClientOptions::default()), broker: established.broker.clone() };
        while newcomer.send("T", 0, "", &number.to_string()).await.is_err() {
            assert!(Instant::now() < deadline, "{number} does not get in");
        }
        assert_eq!(established.send("E", 0, "", "established").await.unwrap().code, 0);
    }
    assert_eq!(connection(&established).await, before, "it was cut off");
    assert!(established.figure("connectionsThatMadeWay").await > 0);
    let (taken, most) =
        (established.figure("connectionsOfAllPorts").await, established.figure("connectionsOfAllPortsMax").await);
    assert!(taken <= most && most < OPEN_FILES as u64, "{taken} of {most}");
    let bodies = established.bodies("T", 0).await;
    // One whose connection went before its answer was sent twice.
    assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), 21, "{bodies:?}");

    // The last of them is let alone by everybody, and closed all the same.
    let mut last = TcpStream::connect(running.address("broker")).unwrap();
    last.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let begun = Instant::now();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(begun.elapsed() < Duration::from_secs(30), "it stays");
    until("silent connections are gone", async || established.figure("connectionsThatSaidNothing").await == 0).await;
    assert_eq!(connection(&established).await, before);
    let (code, said) = running.end("-TERM");
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("Too many open files"), "{said}");
}
