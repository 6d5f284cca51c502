//! The binary on a device that fails: its log, and its timers. What stands beside these is in `failing_files.rs`.
//!
//! The numbers of calls below are those of the thread `flush` or `segments`.

use std::time::{Duration, Instant};

use crate::support::asking::Asking;
use crate::support::failing::{died_of, finds_again, on_failing_device, with_failing_files};
use crate::support::{PATIENCE, Running, until};

const TOPIC: &str = "orders";
const FLUSH_DISK_TIMEOUT: i32 = 10;
const SERVICE_NOT_AVAILABLE: i32 = 14;

/// A body of 8 KiB that begins with its number.
fn body(number: usize) -> String {
    format!("{number:<8192}")
}

/// Sends until the server ends itself, for the reason that `said` begins. Returns what was acknowledged.
async fn acknowledged_until_its_end(running: Running, said: &str) -> Vec<String> {
    let asking = Asking::of(&running);
    let mut acknowledged = Vec::new();
    for number in 0..1000 {
        let Ok(answer) = asking.send(TOPIC, 0, "", &body(number)).await else { break };
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
        acknowledged.push(number.to_string());
    }
    died_of(running, said, "commitlog/00000000000000000000");
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_flushed_ends_the_process_with_its_reason_and_loses_nothing_that_was_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let running = on_failing_device(data.path(), "msync:error=EIO:when=20+", &["flushDiskType=SYNC_FLUSH"]);
    let acknowledged = acknowledged_until_its_end(running, "the log cannot be flushed: ending the process").await;
    assert!((10..20).contains(&acknowledged.len()), "{} were acknowledged", acknowledged.len());

    let again = Running::server(data.path());
    let found = Asking::of(&again).bodies(TOPIC, 0).await;
    // The one that was on its way may be there or not.
    assert_eq!(found[..acknowledged.len()], acknowledged);
    assert!(found.len() <= acknowledged.len() + 1, "{}", found.len());
    assert_eq!(again.end("-TERM").0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_written_from_the_pool_ends_the_process_with_its_reason_and_loses_nothing_that_was_acknowledged()
 {
    let data = tempfile::tempdir().unwrap();
    // No other thread writes so often.
    let running = on_failing_device(
        data.path(),
        "pwrite64:error=EIO:when=60+",
        &["transientStorePoolEnable=true", "messageIndexEnable=false"],
    );
    let acknowledged = acknowledged_until_its_end(running, "the log cannot be written: ending the process").await;
    assert_eq!(acknowledged.len(), 59);
    finds_again(data.path(), TOPIC, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timer_files_that_cannot_be_brought_to_the_device_end_the_process_with_its_reason_and_no_timer_is_lost() {
    let data = tempfile::tempdir().unwrap();
    let running = with_failing_files(data.path(), "fdatasync:error=EIO", &["store/timerwheel"], &[]);
    let asking = Asking::of(&running);
    let answer = asking.send(TOPIC, 0, "TIMER_DELAY_SEC\u{1}3\u{2}", "late").await.unwrap();
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    died_of(running, "cannot be brought to the device: ending the process", "store/timerwheel");

    let again = Running::server(data.path());
    let asking = Asking::of(&again);
    until("the timer message is delivered", async || asking.bodies(TOPIC, 0).await == ["late"]).await;
    assert_eq!(again.end("-TERM").0, Some(0));
}

/// Sends 60 KB that begin with this number. Says why they were refused for want of room; `None`: they are stored.
async fn refusal(asking: &Asking, number: usize) -> Option<String> {
    let answer = asking.send(TOPIC, 0, "", &format!("{number:<60000}")).await.unwrap();
    match answer.code {
        0 => None,
        SERVICE_NOT_AVAILABLE => Some(answer.remark.unwrap_or_default()),
        code => panic!("{code} {:?}", answer.remark),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_without_room_is_an_answer_and_writing_goes_on_by_itself_when_there_is_room() {
    let data = tempfile::tempdir().unwrap();
    // Asked again with each send that is refused, and before with each that comes near the end of the room: these are large, and so few.
    let running = on_failing_device(
        data.path(),
        "fallocate:error=ENOSPC:when=6..150",
        &["mappedFileSizeCommitLog=1048576", "messageIndexEnable=false"],
    );
    let asking = Asking::of(&running);
    let mut acknowledged = Vec::new();
    let mut number = 0;
    let deadline = Instant::now() + PATIENCE;
    let remark = loop {
        assert!(Instant::now() < deadline, "{number} messages, and none was refused");
        match refusal(&asking, number).await {
            Some(remark) => break remark,
            None => acknowledged.push(number.to_string()),
        }
        number += 1;
    };
    let folder = data.path().join("store/commitlog");
    for part in [folder.to_str().unwrap(), "No space left on device", "% of the device are in use", "free space"] {
        assert!(remark.contains(part), "{part}: {remark}");
    }
    // Who reads does not notice.
    assert_eq!(asking.bodies(TOPIC, 0).await, acknowledged);
    number += 1;
    let deadline = Instant::now() + PATIENCE;
    while let Some(remark) = refusal(&asking, number).await {
        assert!(Instant::now() < deadline, "it takes no messages again: {remark}");
        tokio::time::sleep(Duration::from_millis(2)).await;
        number += 1;
    }
    acknowledged.push(number.to_string());
    assert_eq!(asking.bodies(TOPIC, 0).await, acknowledged, "what was refused is not there");
    running.logged("there is room for the log again").await;
    assert_eq!(running.end("-TERM").0, Some(0));
    finds_again(data.path(), TOPIC, &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_is_late_is_told_to_who_waits_for_it_and_everything_is_stored() {
    let data = tempfile::tempdir().unwrap();
    // Every flush takes more than three times as long as a send waits for it.
    let running = on_failing_device(
        data.path(),
        "msync:delay_enter=700000",
        &["flushDiskType=SYNC_FLUSH", "syncFlushTimeout=200", "mappedFileSizeCommitLog=1048576"],
    );
    let asking = Asking::of(&running);
    let mut sent = Vec::new();
    let mut late = 0;
    for number in 0..6 {
        let answer = asking.send(TOPIC, 0, "", &body(number)).await.unwrap();
        sent.push(number.to_string());
        match answer.code {
            0 => {}
            FLUSH_DISK_TIMEOUT => {
                late += 1;
                let remark = answer.remark.unwrap();
                assert!(remark.contains("stored, but not flushed within 200 ms (syncFlushTimeout)"), "{remark}");
            }
            code => panic!("{code} {:?}", answer.remark),
        }
    }
    assert!(late >= 3, "{late} were late");
    // Consumers see what is on the device.
    until("all are found", async || asking.bodies(TOPIC, 0).await == sent).await;
    assert_eq!(running.end("-TERM").0, Some(0));
    finds_again(data.path(), TOPIC, &sent).await;
}
