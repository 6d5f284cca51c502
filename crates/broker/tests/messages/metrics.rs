//! What Prometheus is shown of messages, groups and clients, by RocketMQ's names and labels.

use std::time::Duration;

use protocol::body::{ConsumeType, ConsumerData, Heartbeat, ProducerData};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};
use protocol::request::{PopMessage, PullMessage, UpdateConsumerOffset};

use crate::popping;
use crate::support::*;
use crate::transactions::{COMMIT, ROLLBACK, end, half};

/// The value of the only line of a metric that has all these labels.
fn value(page: &str, metric: &str, labels: &[&str]) -> i64 {
    let begin = format!("{metric}{{");
    let has = |line: &&str| line.starts_with(&begin) && labels.iter().all(|label| line.contains(label));
    let found: Vec<&str> = page.lines().filter(has).collect();
    assert_eq!(found.len(), 1, "{metric} {labels:?}: {found:#?}");
    found[0].rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// How many lines a metric has.
fn lines(page: &str, metric: &str) -> usize {
    let begin = format!("{metric}{{");
    page.lines().filter(|line| line.starts_with(&begin)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_told_apart_by_what_they_are() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "plain").await;
    running.put("Orders", 0, &properties(&[("__SHARDINGKEY", "k")]), "in order").await;
    // An order wins over a delay, as in RocketMQ.
    running.put("Orders", 0, &properties(&[("__SHARDINGKEY", "k"), ("DELAY", "2")]), "both").await;
    running.put("Orders", 0, &properties(&[("DELAY", "2")]), "delayed").await;
    running.put("Orders", 0, &properties(&[("TIMER_DELAY_SEC", "3600")]), "timer").await;
    running.put("Orders", 0, &properties(&[("_SYS_MSG_PRIORITY_", "1")]), "important").await;
    let batch = batch_of(&[("a", ""), ("b", "")]);
    assert_eq!(running.call(request::SEND_BATCH_MESSAGE, &to("Orders", 0, ""), batch).await.code, 0);
    let (yes, no) = (half(&running, "yes").await, half(&running, "no").await);
    // They are taken into the ledger when the log's end has passed them.
    let open = || value(&running.metrics(), "rocketmq_half_messages", &[]);
    until("both half messages wait for their end", || open() == 2).await;
    let page = running.metrics();
    for (sort, messages) in [("normal", 4), ("fifo", 2), ("delay", 2)] {
        let labels = ["topic=\"Orders\"", &format!("message_type=\"{sort}\""), "is_system=\"false\""];
        assert_eq!(value(&page, "rocketmq_messages_in_total", &labels), messages, "{sort}");
        assert_eq!(value(&page, "rocketmq_message_size_count", &labels), messages, "{sort}");
        assert!(value(&page, "rocketmq_throughput_in_total", &labels) > 0, "{sort}");
        let small = [labels[0], labels[1], "le=\"1024.0\""];
        assert_eq!(value(&page, "rocketmq_message_size_bucket", &small), messages, "{sort}");
    }
    let halves = ["topic=\"RMQ_SYS_TRANS_HALF_TOPIC\"", "message_type=\"transaction\"", "is_system=\"true\""];
    assert_eq!(value(&page, "rocketmq_messages_in_total", &halves), 2);
    assert_eq!(lines(&page, "rocketmq_commit_messages_total"), 0, "nothing has ended");

    assert_eq!(end(&running, &yes, COMMIT).await.code, 0);
    assert_eq!(end(&running, &no, ROLLBACK).await.code, 0);
    assert_ne!(end(&running, &no, COMMIT).await.code, 0, "it has ended before");
    let page = running.metrics();
    let orders = ["topic=\"Orders\""];
    let committed = ["topic=\"Orders\"", "message_type=\"transaction\""];
    assert_eq!(value(&page, "rocketmq_messages_in_total", &committed), 1);
    assert_eq!(value(&page, "rocketmq_commit_messages_total", &orders), 1);
    assert_eq!(value(&page, "rocketmq_rollback_messages_total", &orders), 1);
    // The producer's clock says when the half message was sent: years ago.
    assert_eq!(value(&page, "rocketmq_finish_message_latency_milliseconds_bucket", &["Orders", "le=\"86400.0\""]), 0);
    assert_eq!(value(&page, "rocketmq_finish_message_latency_milliseconds_count", &orders), 1);
    until("no half message waits for its end", || open() == 0).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_size_is_counted_in_its_class_and_those_above() {
    let running = start(Setup::default()).await;
    for bytes in [10, 3000, 100_000, 3 << 20] {
        running.put("Sizes", 0, "", &"x".repeat(bytes)).await;
    }
    let page = running.metrics();
    let classes = ["1024.0", "4096.0", "524288.0", "1048576.0", "2097152.0", "4194304.0", "+Inf"].map(|bound| {
        let bound = format!("le=\"{bound}\"");
        value(&page, "rocketmq_message_size_bucket", &["topic=\"Sizes\"", "message_type=\"normal\"", &bound])
    });
    assert_eq!(classes, [1, 2, 3, 3, 3, 4, 4]);
    assert!(value(&page, "rocketmq_message_size_sum", &["topic=\"Sizes\""]) > 3 << 20);
    assert_eq!(value(&page, "gantry_store_seconds_count", &[]), 4);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_behind_is_shown_with_what_it_has_and_what_waits_and_how_old_that_is() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    for body in ["a", "b", "c", "d"] {
        running.put("T", 0, "", body).await;
        hand.advance(Duration::from_secs(10));
    }
    let group = r#"{"groupName":"CG"}"#;
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group).await.code, 0);
    let mut fields = UpdateConsumerOffset { consumer_group: "CG", topic: "T", queue_id: 0, commit_offset: 1 };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code, 0);
    let two = PullMessage { max_msg_nums: 2, ..from("T", 0, 1) };
    assert_eq!(running.pull(&two).await.messages.len(), 2);
    let page = running.metrics();
    let of = ["topic=\"T\"", "consumer_group=\"CG\"", "is_retry=\"false\"", "is_system=\"false\""];
    let figures = |page: &str| {
        [
            "lag_messages",
            "inflight_messages",
            "ready_messages",
            "lag_latency_milliseconds",
            "queueing_latency_milliseconds",
        ]
        .map(|name| value(page, &format!("rocketmq_consumer_{name}"), &of))
    };
    assert_eq!(figures(&page), [3, 2, 1, 30_000, 10_000]);
    fields.commit_offset = 4;
    running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await;
    assert_eq!(figures(&running.metrics()), [0, 0, 0, 0, 0]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_popped_is_in_flight_until_it_is_acknowledged() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    for body in ["a", "b", "c"] {
        running.put("T", 0, "", body).await;
        hand.advance(Duration::from_secs(10));
    }
    let order = PopMessage { max_msg_nums: 2, ..popping::from("T", 600_000) };
    let popped = popping::pop_any(&running, &order).await;
    assert_eq!(popped.bodies(), ["a", "b"]);
    let of = ["topic=\"T\"", "consumer_group=\"CG\""];
    let figures = || {
        let page = running.metrics();
        [
            "lag_messages",
            "inflight_messages",
            "ready_messages",
            "lag_latency_milliseconds",
            "queueing_latency_milliseconds",
        ]
        .map(|name| value(&page, &format!("rocketmq_consumer_{name}"), &of))
    };
    assert_eq!(figures(), [3, 2, 1, 30_000, 10_000]);
    assert_eq!(popping::ack(&running, "T", &popped.handle(0)).await, 0);
    assert_eq!(figures(), [2, 1, 1, 20_000, 10_000]);
    assert_eq!(popping::ack(&running, "T", &popped.handle(1)).await, 0);
    assert_eq!(figures(), [1, 0, 1, 10_000, 10_000]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_counted_by_what_they_say_of_themselves() {
    let running = start(Setup::default()).await;
    let consumer =
        ConsumerData { group_name: "CG".to_owned(), consume_type: ConsumeType::ConsumePop, ..ConsumerData::default() };
    let producer = ProducerData { group_name: "PG".to_owned() };
    let beat = Heartbeat {
        client_id: "c@1".to_owned(),
        consumer_data_set: vec![consumer],
        producer_data_set: vec![producer],
        ..Heartbeat::default()
    };
    let body = fastjson::to_vec(&beat, Dialect::FastJson);
    assert_eq!(running.call(request::HEART_BEAT, &(), body).await.code, 0);
    let page = running.metrics();
    let who = ["version=\"v5_3_3\"", "protocol_type=\"remoting\""];
    assert_eq!(value(&page, "rocketmq_producer_connections", &who), 1);
    let who = ["consumer_group=\"CG\"", "consume_mode=\"pop\"", "version=\"v5_3_3\"", "is_system=\"false\""];
    assert_eq!(value(&page, "rocketmq_consumer_connections", &who), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timer_messages_are_counted_as_they_come_and_go() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    running.put("Orders", 1, &properties(&[("TIMER_DELAY_SEC", "1"), ("UNIQ_KEY", "soon")]), "soon").await;
    running.put("Orders", 1, &properties(&[("TIMER_DELAY_SEC", "3600"), ("UNIQ_KEY", "late")]), "late").await;
    let of = ["topic=\"Orders\"", "storage_type=\"local\"", "storage_medium=\"disk\""];
    let waiting = |running: &Running| {
        let page = running.metrics();
        (lines(&page, "rocketmq_timing_messages") > 0).then(|| value(&page, "rocketmq_timing_messages", &of))
    };
    until("both are taken in", || waiting(&running) == Some(2)).await;
    // Each is counted in one place after the other.
    let lags = |page: &str| {
        ["dequeue", "enqueue"].map(|of_what| value(page, &format!("rocketmq_timer_{of_what}_lag"), &of[1..]))
    };
    until("both wait, and none is behind", || lags(&running.metrics()) == [2, 0]).await;
    hand.advance(Duration::from_millis(1000));
    running.wait_for("Orders", 1, 1).await;
    until("one has left", || waiting(&running) == Some(1)).await;
    let page = running.metrics();
    assert_eq!(value(&page, "rocketmq_timer_enqueue_total", &of), 2);
    assert_eq!(value(&page, "rocketmq_timer_dequeue_total", &of), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_that_ask_for_what_a_queue_does_not_have_are_counted() {
    let running = start(Setup::default()).await;
    for body in ["a", "b", "c"] {
        running.put("T", 0, "", body).await;
    }
    let moved = || {
        let page = running.metrics();
        ["reason=\"too_small\"", "reason=\"overflow\""].map(|why| value(&page, "gantry_offsets_moved_total", &[why]))
    };
    assert_eq!(running.pull(&from("T", 0, 3)).await.code, ResponseCode::PullNotFound as i32);
    assert_eq!(moved(), [0, 0]);
    let behind = running.pull(&from("T", 0, 3 + 5)).await;
    assert_eq!((behind.code, behind.next, moved()), (ResponseCode::PullOffsetMoved as i32, 3, [0, 1]));
    let before = running.pull(&from("T", 0, -1)).await;
    assert_eq!((before.code, before.next, moved()), (ResponseCode::PullOffsetMoved as i32, 0, [1, 1]));
    // A pop goes on by itself.
    let fields = UpdateConsumerOffset { consumer_group: "CG", topic: "T", queue_id: 0, commit_offset: 8 };
    assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code, 0);
    assert!(popping::pop(&running, &popping::from("T", 60_000)).await.messages.is_empty());
    assert_eq!(moved(), [1, 2]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_counted_by_what_was_asked_and_how_it_ended() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "a").await;
    running.put("Orders", 0, "", "b").await;
    assert_eq!(running.pull(&from("Orders", 0, 0)).await.messages.len(), 2);
    let held = running.pull(&waiting(from("Orders", 0, 2), 50)).await;
    assert_eq!(held.code, ResponseCode::PullNotFound as i32);
    assert_eq!(running.call(7_000_001, &(), "").await.code, 3);
    let expected = [
        (r#"request_code="send_message_v2",response_code="success",is_long_polling="false""#, 2),
        (r#"request_code="pull_message",response_code="success",is_long_polling="false""#, 1),
        (r#"request_code="pull_message",response_code="pull_not_found",is_long_polling="true""#, 1),
        (r#"request_code="other",response_code="request_code_not_supported",is_long_polling="false""#, 1),
    ];
    for (labels, count) in expected {
        let labels = format!(r#"protocol_type="remoting",{labels},result="success""#);
        // A client may have its answer before the broker has counted it.
        until(&labels, || {
            let page = running.metrics();
            let has =
                |line: &str| line.starts_with("rocketmq_rpc_latency_milliseconds_count{") && line.contains(&labels);
            page.lines().any(|line| has(line) && line.ends_with(&format!("}} {count}")))
        })
        .await;
    }
    let page = running.metrics();
    let of_held = ["is_long_polling=\"true\"", "le=\"10.0\""];
    assert_eq!(value(&page, "rocketmq_rpc_latency_milliseconds_bucket", &of_held), 0, "it waited for 50 ms");
    running.stop().await;
}
