//! The journal's settings, changed while the broker runs, and what they do.

use protocol::code::request;
use protocol::request::CreateTopic;
use tokio::time::Instant;

use crate::support::*;

async fn figures(running: &Running) -> serde_json::Value {
    let response = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    body["table"].clone()
}

fn number(figures: &serde_json::Value, name: &str) -> u64 {
    let Some(text) = figures[name].as_str() else { panic!("no {name} in {figures}") };
    text.parse().unwrap()
}

async fn set(running: &Running, lines: &'static str) {
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), lines).await;
    assert_eq!(changed.code, 0, "{:?}", (changed.remark, lines));
}

async fn create(running: &Running, topic: &str) {
    let fields = CreateTopic {
        topic,
        default_topic: None,
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    };
    assert_eq!(running.call(request::UPDATE_AND_CREATE_TOPIC, &fields, "").await.code, 0);
}

/// As metrics are named.
fn snake(name: &str) -> String {
    name.chars().fold(String::new(), |mut told, letter| {
        if letter.is_ascii_uppercase() {
            told.push('_');
        }
        told.push(letter.to_ascii_lowercase());
        told
    })
}

#[tokio::test]
async fn settings_of_the_journal_are_changed_while_it_runs_and_shown_with_what_they_do() {
    let running = start(Setup::default()).await;
    let before = figures(&running).await;
    for (name, value) in [
        ("journalBundleDelayMillis", 0),
        ("journalCompleteDelayMillis", 0),
        ("journalSnapshotMinBytes", 4 << 20),
        ("journalSnapshotRatioPercent", 200),
        ("journalMaintenancePercent", 2),
        ("journalIdleMillis", 10_000),
        ("journalPendingBytesMax", 4 << 20),
        ("journalRoomBytes", 256 << 10),
        ("journalOffsetsMillis", 5),
        ("journalUnpaidMillis", 600_000),
    ] {
        assert_eq!(number(&before, name), value, "{name}");
    }
    assert_eq!(number(&before, "journalSnapshots"), 0);
    let page = running.metrics();
    let keys = config::keys::TABLES.iter().flat_map(|table| table.iter());
    for key in keys.filter(|key| key.section == config::key::Section::Journal) {
        assert!(key.is_live, "{}", key.name);
        number(&before, key.name);
        metric(&page, &format!("gantry_{}", snake(key.name)));
    }
    set(&running, "journalSnapshotMinBytes=4096\njournalSnapshotRatioPercent=0\njournalMaintenancePercent=100\n").await;
    let deadline = Instant::now() + DEADLINE;
    let mut topics = 0u64;
    let after = loop {
        create(&running, &format!("topic-{topics}")).await;
        topics += 1;
        let now = figures(&running).await;
        if number(&now, "journalSnapshots") >= 2 {
            break now;
        }
        assert!(Instant::now() < deadline, "no snapshots: {now}");
    };
    assert!(number(&after, "journalEntries") >= topics, "{after}");
    assert!(number(&after, "journalBundles") > number(&before, "journalBundles"), "{after}");
    assert!(number(&after, "journalMaintenanceBytes") >= number(&after, "journalLastSnapshotBytes"), "{after}");
    assert!(number(&after, "journalForegroundBytes") >= number(&after, "journalWrittenBytes"), "{after}");

    let page = running.metrics();
    assert_eq!(metric(&page, "gantry_journal_snapshot_min_bytes"), 4096);
    assert!(metric(&page, "gantry_journal_snapshots_total") >= 2);
    assert!(metric(&page, "gantry_journal_written_bytes_total") > topics * 100);
    assert!(metric(&page, "gantry_journal_maintenance_bytes_total") > 0);
    assert_eq!(metric(&page, "gantry_journal_failing"), 0);
    running.stop().await;
}

#[tokio::test]
async fn who_waits_for_the_journal_waits_for_the_delay_that_was_set() {
    let running = start(Setup::default()).await;
    set(&running, "journalBundleDelayMillis=1000\njournalCompleteDelayMillis=300\n").await;
    let began = Instant::now();
    create(&running, "late").await;
    assert!(began.elapsed().as_millis() >= 290, "{:?}", began.elapsed());
    set(&running, "journalBundleDelayMillis=0\njournalCompleteDelayMillis=0\n").await;
    create(&running, "at-once").await;
    assert_eq!(number(&figures(&running).await, "journalCompleteDelayMillis"), 0);
    running.stop().await;
}

#[tokio::test]
async fn a_setting_of_the_journal_out_of_its_range_is_refused_and_changes_nothing() {
    let running = start(Setup::default()).await;
    for line in [
        "journalMaintenancePercent=0\n",
        "journalMaintenancePercent=101\n",
        "journalSnapshotMinBytes=100\n",
        "journalBundleDelayMillis=1001\n",
        "journalRoomBytes=8M\n",
        "journalOffsetsMillis=-1\n",
    ] {
        let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), line).await;
        assert_ne!(changed.code, 0, "{line}");
    }
    let after = figures(&running).await;
    assert_eq!(number(&after, "journalMaintenancePercent"), 2);
    assert_eq!(number(&after, "journalRoomBytes"), 256 << 10);
    running.stop().await;
}

/// Sends what pays for all that was written beside messages, and hardly more.
async fn pay(running: &Running) {
    loop {
        let page = running.metrics();
        let written = ["gantry_configuration_bytes_total", "gantry_journal_maintenance_bytes_total"];
        let spent: u64 = written.iter().map(|name| metric(&page, name)).sum();
        let left = (spent * 50).saturating_sub(metric(&page, "gantry_journal_foreground_bytes_total"));
        if left == 0 {
            return;
        }
        running.put("T0", 0, "", &"x".repeat(left.min(3 << 20) as usize)).await;
    }
}

/// A file of `config/`.
fn read(running: &Running, file: &str) -> String {
    std::fs::read_to_string(running.dir().join("config").join(file)).unwrap_or_default()
}

/// Makes a topic, and a change in a file that is much shorter, and so has for longer what nobody pays. When that one is written, says whether
/// the topic is: it comes before in the same turn.
async fn is_written_beside_a_short_file(running: &Running, first: &str, topic: &str, number: u32) -> bool {
    running.put(topic, 0, "", "x").await;
    let mode = format!(r#"{{"consumerGroup":"CG","mode":"POP","popShareQueueNum":{number},"topic":"{first}"}}"#);
    assert_eq!(running.call(request::SET_MESSAGE_REQUEST_MODE, &(), mode).await.code, 0);
    let written = format!("\"popShareQueueNum\":{number},");
    let modes = || read(running, "messageRequestMode.json").replace(char::is_whitespace, "");
    until("the mode is written", || modes().contains(&written)).await;
    read(running, "topics.json").contains(&format!("\"{topic}\""))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_files_of_the_configuration_are_written_as_far_as_messages_pay_for_them() {
    let running = start(Setup { more: &[("flushConsumerOffsetInterval", "100")], ..Setup::default() }).await;
    let read = |file: &str| read(&running, file);
    for topic in 0..200 {
        running.put(&format!("T{topic}"), 0, "", "x").await;
    }
    pay(&running).await;
    until("topics.json is long and whole", || read("topics.json").contains("\"T199\"")).await;
    // As far as its share goes that nobody pays, which comes back in ten minutes.
    let mut last = String::new();
    for number in 0.. {
        assert!(number < 5, "each of five changes was written");
        last = format!("Late{number}");
        if !is_written_beside_a_short_file(&running, "T0", &last, number).await {
            break;
        }
    }
    pay(&running).await;
    until("the topic is written", || read("topics.json").contains(&last)).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_files_of_the_configuration_that_change_all_the_time_wait_too_and_not_for_ever() {
    let more: &[_] = &[("flushConsumerOffsetInterval", "100"), ("journalUnpaidMillis", "86400000")];
    let running = start(Setup { more, ..Setup::default() }).await;
    let read = |file: &str| read(&running, file);
    let mut last = String::new();
    for number in 0.. {
        assert!(number < 50, "each of 50 changes was written");
        last = format!("T{number:03}");
        if !is_written_beside_a_short_file(&running, "T000", &last, number).await {
            assert!(number > 0, "the first change after the start is written at once");
            break;
        }
    }
    let unpaid = metric(&running.metrics(), "gantry_configuration_unpaid_bytes_total");
    assert!((4 << 10..64 << 10).contains(&unpaid), "{unpaid}");
    set(&running, "journalUnpaidMillis=100\n").await;
    until("the topic is written", || read("topics.json").contains(&last)).await;
    running.stop().await;
}
