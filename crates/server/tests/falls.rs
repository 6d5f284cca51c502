//! The binary on a device that becomes slow while it works: what it says of why throughput fell.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod support;

use std::process::Command;
use std::time::Duration;

use support::Running;
use support::asking::Asking;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Batches a second, few enough for a machine that does much else. A window of ten seconds has to have a thousand messages to say anything.
const PACE: u64 = 20;
const BATCH: usize = 50;
/// Flushes, one for each batch, before each takes longer: what is usual is known after seven windows.
const QUICK: u64 = 75 * PACE;
/// A machine may be so slow that this takes several times as long as the above says.
const DEADLINE: Duration = Duration::from_secs(400);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_whose_flushes_become_slow_is_named_when_throughput_falls() {
    let data = tempfile::tempdir().unwrap();
    let mut command = Command::new("strace");
    // With -D it is the server that is our child, and not strace.
    command.args(["-D", "-f", "-qqq", "-o", "/dev/null", "-e", "trace=msync"]);
    command.args(["-e", &format!("inject=msync:delay_enter=500000:when={QUICK}+"), env!("CARGO_BIN_EXE_gantry")]);
    command.args(["server", "--data", data.path().to_str().unwrap(), "--namesrv-port", "0", "--broker-port", "0"]);
    command.args(["--set", "flushDiskType=SYNC_FLUSH"]);
    command.env_remove("NAMESRV_ADDR").env_remove("ROCKETMQ_HOME").env("RUST_LOG", "info");
    let running = Running::start(&mut command);
    let asking = Asking::of(&running);
    assert_eq!(asking.send("orders", 0, "", "the topic is made").await.unwrap().code, 0);
    let bodies = vec!["body".to_owned(); BATCH];
    let load = tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(1000 / PACE));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let began = Instant::now();
        // Ended by whoever waits for the line.
        while began.elapsed() < DEADLINE {
            ticks.tick().await;
            let answer = asking.send_batch("orders", 0, &bodies).await.unwrap();
            assert_eq!(answer.code, 0, "{:?}", answer.remark);
        }
    });
    let deadline = Instant::now() + DEADLINE;
    while !running.has_logged("fewer messages are stored than usual") {
        assert!(Instant::now() < deadline && !load.is_finished(), "nothing is said of a fall");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    load.abort();
    let _ = load.await;
    let (code, log) = running.end("-TERM");
    assert_eq!(code, Some(0), "{log}");
    let said: Vec<&str> = log.lines().filter(|line| line.contains("fewer messages are stored than usual")).collect();
    assert!(said.len() == 1 && said[0].contains("cause=\"flush\""), "{said:?}");
    // What the broker did before stands in the log, a line a minute.
    let minute = log.lines().find(|line| line.contains("the last minute put_tps=")).expect(&log);
    assert!(minute.contains("failed=0") && minute.contains("p99_ms="), "{minute}");
}
