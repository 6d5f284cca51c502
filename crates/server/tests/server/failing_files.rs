//! The binary where files beside the log fail: the journal, consume queues, the key index, `config/*.json`; and where the log cannot be read.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::support::asking::Asking;
use crate::support::failing::{died_of, finds_again, with_failing_files};
use crate::support::{PATIENCE, Running, until};

const TOPIC: &str = "orders";
const SYSTEM_ERROR: i32 = 1;

const JOURNAL: &str = "store/journal/00000000000000000000.journal";
const QUEUE: &str = "store/consumequeue/orders/0/00000000000000000000";
const LOG: &str = "store/commitlog/00000000000000000000";

/// Sends to one new topic after the other until something else is answered, or nothing. Returns those that were acknowledged.
async fn topics_until_one_is_not(asking: &Asking) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for number in 0..1000 {
        let topic = format!("topic-{number}");
        match asking.send(&topic, 0, "", &topic).await {
            Ok(answer) if answer.code == 0 => acknowledged.push(topic),
            Ok(_) | Err(_) => return acknowledged,
        }
    }
    panic!("a thousand topics, and nothing fails");
}

/// Where nothing fails any more each topic is there, with the message that has made it, and a stop is clean.
async fn finds_topics_again(data: &Path, topics: &[String]) {
    let again = Running::server(data);
    let asking = Asking::of(&again);
    for topic in topics {
        assert_eq!(asking.bodies(topic, 0).await, [topic.as_str()]);
    }
    assert_eq!(again.end("-TERM").0, Some(0));
}

/// Sends so many messages and returns their bodies.
async fn send(asking: &Asking, count: usize) -> Vec<String> {
    let mut sent = Vec::new();
    for number in 0..count {
        let answer = asking.send(TOPIC, 0, "", &number.to_string()).await.unwrap();
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
        sent.push(number.to_string());
    }
    sent
}

async fn figure_becomes(asking: &Asking, name: &str, value: u64) {
    until(&format!("{name} is {value}"), async || asking.figure(name).await == value).await;
}

fn lines_with(log: &str, words: &str) -> usize {
    log.lines().filter(|line| line.contains(words)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_cannot_be_brought_to_the_device_ends_the_process_with_its_reason_and_loses_no_topic() {
    let data = tempfile::tempdir().unwrap();
    let settings = &["flushDiskType=SYNC_FLUSH"];
    let running = with_failing_files(data.path(), "fdatasync:error=EIO:when=100+", &[JOURNAL], settings);
    let acknowledged = topics_until_one_is_not(&Asking::of(&running)).await;
    assert!(acknowledged.len() > 10, "{} topics", acknowledged.len());
    died_of(running, "what is on the device is unknown after a failed sync", JOURNAL);
    finds_topics_again(data.path(), &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_without_room_holds_its_changes_and_goes_on_by_itself() {
    let data = tempfile::tempdir().unwrap();
    // Each change is a write of its thread, which tries again five times a second: for more than the two seconds that an answer waits for it.
    let settings = &["flushDiskType=SYNC_FLUSH"];
    let running = with_failing_files(data.path(), "pwrite64:error=ENOSPC:when=100..125", &[JOURNAL], settings);
    let asking = Asking::of(&running);
    // Looked at meanwhile: when the answer is here it may be over.
    let failing = figure_becomes(&asking, "journalFailing", 1);
    let (mut acknowledged, ()) = tokio::join!(topics_until_one_is_not(&asking), failing);
    assert!(acknowledged.len() > 10, "{} topics", acknowledged.len());
    let said = running.logged("cannot write the journal, changes wait in memory").await;
    assert!(said.contains(JOURNAL) && said.contains("No space left on device"), "{said}");
    running.logged("the journal can be written again").await;
    figure_becomes(&asking, "journalFailing", 0).await;
    // That which was told that it may not be safe is so now.
    acknowledged.push(format!("topic-{}", acknowledged.len()));
    assert_eq!(asking.send("after", 0, "", "after").await.unwrap().code, 0);
    acknowledged.push("after".to_owned());
    running.end("-KILL");
    finds_topics_again(data.path(), &acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consume_queue_that_cannot_be_written_costs_nobody_a_message() {
    let data = tempfile::tempdir().unwrap();
    let running = with_failing_files(data.path(), "pwrite64:error=EIO", &[QUEUE], &[]);
    let asking = Asking::of(&running);
    let mut sent = send(&asking, 100).await;
    let said = running.logged("consume queues cannot be written").await;
    assert!(said.contains("consumequeue/orders") && said.contains("Input/output error"), "{said}");
    sent.extend(send(&asking, 100).await);
    assert_eq!(asking.bodies(TOPIC, 0).await, sent);
    running.end("-KILL");

    // What was only in memory comes from the log. This time the device fails for a while.
    let running = with_failing_files(data.path(), "pwrite64:error=EIO:when=1..5", &[QUEUE], &[]);
    let asking = Asking::of(&running);
    assert_eq!(asking.bodies(TOPIC, 0).await, sent);
    sent.extend(send(&asking, 100).await);
    running.logged("consume queues are written again").await;
    assert_eq!(asking.bodies(TOPIC, 0).await, sent);
    assert_eq!(running.end("-TERM").0, Some(0));
    finds_again(data.path(), TOPIC, &sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_the_configuration_that_cannot_be_replaced_is_named_once_and_holds_up_nothing() {
    let data = tempfile::tempdir().unwrap();
    let settings = &["flushConsumerOffsetInterval=100"];
    let file = "store/config/topics.json.tmp";
    let running = with_failing_files(data.path(), "openat:error=EROFS", &[file], settings);
    let asking = Asking::of(&running);
    let said = running.logged("configuration not exported").await;
    assert!(said.contains(file) && said.contains("Read-only file system"), "{said}");
    assert_eq!(asking.create("made", 1, "").await.code, 0);
    let sent = send(&asking, 3).await;
    // Files behind it are written. And it is tried again: the journal has to know of each attempt.
    let groups = data.path().join("store/config/subscriptionGroup.json");
    let before = asking.figure("journalEntries").await;
    until("the groups are written, and the topics tried again", async || {
        groups.exists() && asking.figure("journalEntries").await >= before + 3
    })
    .await;
    let (code, log) = running.end("-TERM");
    assert_eq!(code, Some(1), "{log}");
    // Once while it ran, and at the stop what is to be done about it.
    assert_eq!(lines_with(&log, "configuration not exported"), 1, "{log}");
    assert_eq!(lines_with(&log, "config/*.json are behind the journal: `gantry store export`"), 1, "{log}");
    assert!(!data.path().join("store/config/topics.json").exists());

    let again = Running::server(data.path());
    let asking = Asking::of(&again);
    assert_eq!(asking.bodies(TOPIC, 0).await, sent);
    assert_eq!(asking.pull("made", 0, 0).await.unwrap().0, PULL_NOT_FOUND);
    assert_eq!(again.end("-TERM").0, Some(0));
    assert!(std::fs::read_to_string(data.path().join("store/config/topics.json")).unwrap().contains("\"made\""));
}

/// Nothing at that place yet.
const PULL_NOT_FOUND: i32 = 19;

/// The only file of the key index.
fn index_file(data: &Path) -> String {
    let files: Vec<_> =
        std::fs::read_dir(data.join("store/index")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    format!("store/index/{}", files[0].to_str().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_index_that_cannot_be_brought_to_the_device_ends_the_process_with_its_reason() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let mut sent = send(&Asking::of(&running), 3).await;
    assert_eq!(running.end("-TERM").0, Some(0));

    let file = index_file(data.path());
    let running = with_failing_files(data.path(), "fdatasync:error=EIO", &[&file], &[]);
    sent.extend(send(&Asking::of(&running), 3).await);
    // It is brought there when it is full, or at the end.
    assert!(Command::new("kill").args(["-TERM", &running.pid().to_string()]).status().unwrap().success());
    died_of(running, "cannot be brought to the device: ending the process", &file);
    finds_again(data.path(), TOPIC, &sent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_read_for_a_while_is_an_answer_that_names_it() {
    let data = tempfile::tempdir().unwrap();
    let running = Running::server(data.path());
    let sent = send(&Asking::of(&running), 10).await;
    assert_eq!(running.end("-TERM").0, Some(0));

    // Of each thread that reads what is not in memory.
    let running = with_failing_files(data.path(), "pread64:error=EIO:when=1..2", &[LOG], &[]);
    let asking = Asking::of(&running);
    let mut refused = 0;
    let deadline = Instant::now() + PATIENCE;
    // Ends when the device is well again.
    loop {
        assert!(Instant::now() < deadline, "refused {refused} times");
        let answer = asking.try_pull(TOPIC, 0, 0).await;
        match answer.code {
            0 => break,
            SYSTEM_ERROR => {
                let remark = answer.remark.unwrap_or_default();
                assert!(remark.contains(LOG) && remark.contains("Input/output error"), "{remark}");
                refused += 1;
            }
            code => panic!("{code}: {:?}", answer.remark),
        }
    }
    assert!(refused > 0);
    assert_eq!(asking.bodies(TOPIC, 0).await, sent);
    assert_eq!(asking.send(TOPIC, 0, "", "after").await.unwrap().code, 0);
    assert_eq!(running.end("-TERM").0, Some(0));
}
