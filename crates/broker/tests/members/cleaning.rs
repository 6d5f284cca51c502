//! What operators have cleaned up.

use std::fs;
use std::time::SystemTime;

use protocol::body::{KvTable, TopicConfigTable};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};

use crate::support::{Running, Setup, start, start_on, until};
use crate::{commit, make_group};

const EVERY_HOUR: &str = "00;01;02;03;04;05;06;07;08;09;10;11;12;13;14;15;16;17;18;19;20;21;22;23";

/// A broker whose log has files that nobody needs.
async fn with_old_files() -> Running {
    let running = start(Setup { segment_bytes: 256 << 10, ..Setup::default() }).await;
    let body = "x".repeat(60 << 10);
    for _ in 0..20 {
        running.put("T", 0, "", &body).await;
    }
    running
}

/// Waits until files of the log are gone.
async fn until_gone(running: &Running) {
    until("a file is gone", || running.store().min_offset().0 > 0).await;
}

async fn update(running: &Running, text: String) {
    let answer = running.call(request::UPDATE_BROKER_CONFIG, &(), text).await;
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shorter_reserved_time_is_followed_without_a_restart() {
    let running = with_old_files().await;
    update(&running, format!("fileReservedTime=0\ndeleteWhen={EVERY_HOUR}\n")).await;
    until_gone(&running).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_the_log_is_shown_and_followed_without_a_restart() {
    let running = with_old_files().await;
    let refused = running.call(request::UPDATE_BROKER_CONFIG, &(), "commitLogBytesMax=-1\n").await;
    assert_eq!(refused.code, ResponseCode::InvalidParameter as i32);
    assert!(refused.remark.unwrap().contains("commitLogBytesMax"));
    assert_eq!(running.store().min_offset().0, 0);
    update(&running, "commitLogBytesMax=512K\n".to_owned()).await;
    let shown = running.call(request::GET_BROKER_CONFIG, &(), "").await.body;
    assert!(String::from_utf8_lossy(&shown).lines().any(|line| line == "commitLogBytesMax=512K"));
    until_gone(&running).await;
    until("the log is no longer than it may be", || running.store().log_bytes() <= 512 << 10).await;
    let status = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await.body;
    let status: KvTable = fastjson::from_slice(&status).unwrap();
    assert_eq!(status.table["commitLogBytesMax"], (512 << 10).to_string());
    assert_eq!(status.table["commitLogBytes"], running.store().log_bytes().to_string());
    running.stop().await;
}

/// The first value of a metric on the page, whatever its labels are but for this one.
fn figure(page: &str, name: &str, label: &str) -> Option<u64> {
    let line = page.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(label))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_committed_a_while_ago_keeps_its_messages_for_as_long_as_is_said_and_is_named() {
    let running = with_old_files().await;
    make_group(&running, "G", 1).await;
    assert_eq!(commit(&running, 0, 10).await.0, 0);
    let queue = running.store().existing_queue("T", 0).unwrap();
    let needed = queue.unit_at(10).unwrap().unwrap().at.0;
    // The hour is that of an active group; files are old at once.
    update(&running, format!("activeGroupHours=1\nfileReservedTime=0\ndeleteWhen={EVERY_HOUR}\n")).await;
    until_gone(&running).await;
    // What it has consumed goes, to the file that has its next message.
    until("the files before it are gone", || running.store().min_offset().0 + (256 << 10) > needed).await;
    assert_eq!(running.call(request::DELETE_EXPIRED_COMMITLOG, &(), "").await.code, 0);
    let page = running.metrics();
    assert!(running.store().min_offset().0 <= needed, "a message is gone that G has yet to consume");
    let kept = running.store().end().0 - needed;
    assert_eq!(figure(&page, "gantry_log_needed_bytes", ""), Some(kept));
    assert_eq!(figure(&page, "gantry_log_needed_by_group_bytes", "consumer_group=\"G\""), Some(kept), "{page}");
    // It is not connected, so it has no claim when only connected groups have one.
    update(&running, "activeGroupHours=0\n".to_owned()).await;
    until("its file is gone", || running.store().min_offset().0 > needed).await;
    let page = running.metrics();
    assert_eq!(figure(&page, "gantry_log_needed_bytes", ""), Some(0));
    assert_eq!(figure(&page, "gantry_log_needed_by_group_bytes", ""), None);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_files_go_when_an_operator_says_so() {
    let running = with_old_files().await;
    // Their hour is half a day away.
    let hour = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() / 3600 % 24;
    update(&running, format!("fileReservedTime=0\ndeleteWhen={:02}\n", (hour + 12) % 24)).await;
    assert_eq!(running.call(request::DELETE_EXPIRED_COMMITLOG, &(), "").await.code, 0);
    until_gone(&running).await;
    assert_eq!(running.call(request::CLEAN_EXPIRED_CONSUMEQUEUE, &(), "").await.code, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_of_topics_that_do_not_exist_are_removed_and_no_others() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "kept").await;
    running.put("Forgotten", 0, "", "not kept").await;
    let left = running.stop().await;
    // Another broker ran here, and the topic was deleted in it.
    let path = left.path().join("config/topics.json");
    let mut topics: TopicConfigTable = fastjson::from_slice(&fs::read(&path).unwrap()).unwrap();
    topics.topic_config_table.remove("Forgotten").unwrap();
    fs::write(&path, fastjson::to_vec(&topics, Dialect::FastJson)).unwrap();
    let running = start_on(Setup::default(), left).await;
    assert_eq!(running.store().queues_of("Forgotten").len(), 1);
    assert_eq!(running.call(request::CLEAN_UNUSED_TOPIC, &(), "").await.code, 0);
    assert!(running.store().queues_of("Forgotten").is_empty());
    assert_eq!(running.store().queues_of("T").len(), 1);
    running.stop().await;
}
