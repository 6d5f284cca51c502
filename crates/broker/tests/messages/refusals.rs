use std::time::Duration;

use bytes::BytesMut;
use protocol::code::request;
use protocol::frame::Serialization;
use protocol::header::{FLAG_ONEWAY, Head, write_frame};
use protocol::request::{RecallMessage, SendMessage};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::limits::figure;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_breaks_a_rule_is_refused_with_apaches_code_and_leaves_nothing() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "good").await;
    let long = "a".repeat(200);
    let fat = properties(&[("p", &"x".repeat(33_000))]);
    let half = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("DELAY", "1")]);
    let timer = properties(&[("TIMER_DELAY_SEC", "259201")]);
    let strange = properties(&[("TIMER_DELAY_MS", "soon")]);
    let timed_half = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("TIMER_DELAY_MS", "1")]);
    let delay = properties(&[("DELAY", "soon")]);
    let inner = properties(&[("INNER_NUM", "2")]);
    let rows: [(&str, SendMessage<'_>, &str, i32, &str); 15] = [
        ("illegal character", to("a b", 0, ""), "x", 29, "contains illegal characters"),
        ("long name", to(&long, 0, ""), "x", 29, "longer than topic max length"),
        (
            "not sendable",
            to("SCHEDULE_TOPIC_XXXX", 0, ""),
            "x",
            16,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        (
            "no template",
            SendMessage { default_topic: "Nothing", ..to("New", 0, "") },
            "x",
            17,
            "topic[New] not exist, apply first please!",
        ),
        ("queue", to("Orders", 99, ""), "x", 29, "request queueId[99] is illegal"),
        ("empty body", to("Orders", 0, ""), "", 13, "the message is illegal"),
        ("properties", to("Orders", 0, &fat), "x", 13, "properties length"),
        ("delayed half", to("Orders", 0, &half), "x", 13, "a half message cannot be delayed, its DELAY is 1"),
        ("prepared", SendMessage { sys_flag: 4, ..to("Orders", 0, "") }, "x", 13, "TRAN_MSG is not true"),
        ("rolled back", SendMessage { sys_flag: 12, ..to("Orders", 0, "") }, "x", 13, "is rolled back (12)"),
        ("timer", to("Orders", 0, &timer), "x", 13, "TIMER_DELAY_SEC is 259201, further away than 259200 s"),
        ("no time", to("Orders", 0, &strange), "x", 13, "TIMER_DELAY_MS \"soon\" is not a number"),
        (
            "timed half",
            to("Orders", 0, &timed_half),
            "x",
            13,
            "a half message cannot be delayed, it has TIMER_DELAY_MS",
        ),
        ("delay", to("Orders", 0, &delay), "x", 13, "\"soon\" is not a number"),
        ("inner", to("Orders", 0, &inner), "x", 13, "INNER_NUM"),
    ];
    for (what, message, body, code, remark) in rows {
        let response = running.send(&message, body).await;
        let found = response.remark.unwrap_or_default();
        assert_eq!(response.code, code, "{what}: {found}");
        assert!(found.contains(remark), "{what}: {found}");
    }
    let stored = running.pull(&from("Orders", 0, 0)).await;
    assert_eq!(stored.messages.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_limit_is_refused_with_both_numbers() {
    let running = start(Setup::default()).await;
    let body = "x".repeat((4 << 20) + 1);
    let response = running.send(&to("Orders", 0, ""), &body).await;
    let remark = response.remark.unwrap();
    assert_eq!(response.code, 13);
    assert!(remark.contains("4194304B") && remark.contains("4194305B"), "{remark}");
    let largest = running.send(&to("Orders", 0, ""), &body[1..]).await;
    assert_eq!(largest.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_breaks_a_rule_is_refused_whole() {
    let running = start(Setup::default()).await;
    let plain = batch_of(&[("a", ""), ("b", "")]);
    let delayed = batch_of(&[("a", ""), ("b", &properties(&[("DELAY", "1")]))]);
    let hasty = batch_of(&[("a", ""), ("b", &properties(&[("WAIT", "false")]))]);
    let half = batch_of(&[("a", &properties(&[("TRAN_MSG", "true")]))]);
    let level = properties(&[("DELAY", "2")]);
    let mut torn = plain.clone();
    torn.truncate(plain.len() - 1);
    let rows = [
        ("retry topic", to("%RETRY%CG", 0, ""), &plain, "batch request does not support retry group %RETRY%"),
        ("delayed batch", to("Orders", 0, &level), &plain, "cannot be delayed"),
        ("delayed message", to("Orders", 0, ""), &delayed, "message 1 of the batch has DELAY 1"),
        ("mixed WAIT", to("Orders", 0, ""), &hasty, "all must have the same"),
        ("half message", to("Orders", 0, ""), &half, "cannot be transactional"),
        ("rolled back", SendMessage { sys_flag: 12, ..to("Orders", 0, "") }, &plain, "is rolled back (12)"),
        ("torn", to("Orders", 0, ""), &torn, "message 1 of the batch"),
    ];
    for (what, message, body, remark) in rows {
        let message = SendMessage { batch: Some(true), ..message };
        let response = running.call(request::SEND_BATCH_MESSAGE, &message, body.clone()).await;
        let found = response.remark.unwrap_or_default();
        assert_eq!(response.code, 13, "{what}: {found}");
        assert!(found.contains(remark), "{what}: {found}");
    }
    running.put("Orders", 0, "", "only").await;
    let stored = running.pull(&from("Orders", 0, 0)).await;
    assert_eq!(stored.messages.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_breaks_a_rule_is_refused_with_apaches_code() {
    use protocol::request::PullMessage;
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "x").await;
    let rows = [
        ("topic", from("Nothing", 0, 0), 17, "topic[Nothing] not exist, apply first please!"),
        ("queue", from("Orders", 99, 0), 29, "queueId[99] is illegal, topic:[Orders]"),
        ("negative queue", from("Orders", -1, 0), 29, "queueId[-1] is illegal"),
        (
            "no heartbeat",
            PullMessage { sys_flag: 0, ..from("Orders", 0, 0) },
            24,
            "the consumer's group info not exist",
        ),
        (
            "bars",
            PullMessage { subscription: Some("||"), ..from("Orders", 0, 0) },
            23,
            "parse the consumer's subscription failed",
        ),
        (
            "sql",
            PullMessage { subscription: Some("a > 1"), expression_type: Some("SQL92"), ..from("Orders", 0, 0) },
            1,
            "The broker does not support consumer to filter message by SQL92",
        ),
    ];
    for (what, pull, code, remark) in rows {
        let found = running.pull(&pull).await;
        assert_eq!(found.code, code, "{what}: {:?}", found.remark);
        assert!(found.remark.as_deref().unwrap_or_default().contains(remark), "{what}: {:?}", found.remark);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_sends_that_are_refused_are_counted_since_nobody_is_told() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "good").await;
    let inner = properties(&[("INNER_NUM", "2")]);
    for message in [to("Orders", 99, ""), to("Orders", 0, &inner), to("SCHEDULE_TOPIC_XXXX", 0, "")] {
        let address = &running.address;
        running.client.oneway(address, request::SEND_MESSAGE_V2, &message, "x".into()).await.unwrap();
    }
    // On the same connection: it comes behind them.
    running.put("Orders", 0, "", "after").await;
    let page = running.metrics();
    let counted = page.lines().filter(|line| line.starts_with("gantry_oneway_refused_total{"));
    let codes: Vec<&str> = counted.filter_map(|line| line.split_once("response_code=")).map(|(_, rest)| rest).collect();
    assert_eq!(codes, ["\"13\"} 1", "\"16\"} 1", "\"29\"} 1"]);
    assert_eq!(running.all("Orders", 0).await.len(), 2);
}

/// The device is full. Who waits for an answer is told at once; who does not waits as long as there may be room again soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_sends_wait_for_room_on_a_full_device_before_they_are_lost() {
    const FULL: i32 = 14;
    let device = Device::default();
    let more: &[_] = &[("roomTimeoutMillis", "60000")];
    let setup = Setup { device: device.clone(), segment_bytes: 1 << 20, more, ..Setup::default() };
    let running = start(setup).await;
    let body = "x".repeat(200 << 10);
    let refused = async || {
        let (deadline, mut stored) = (Instant::now() + DEADLINE, 0);
        while running.send(&to("Orders", 0, ""), &body).await.code != FULL {
            assert!(Instant::now() < deadline, "{stored} were stored");
            stored += 1;
        }
        stored
    };
    // On a connection of its own, since it is not read while they wait.
    let quiet = net::Client::new(net::ClientOptions::default());
    let send_quietly = async |name: &str| {
        let body = name.to_owned() + &" ".repeat((200 << 10) - name.len());
        let message = to("Orders", 0, "");
        quiet.oneway(&running.address, request::SEND_MESSAGE_V2, &message, body.into()).await.unwrap();
    };
    let lost = || running.metrics().lines().any(|line| line.starts_with("gantry_oneway_refused_total{"));

    device.fill_log(true);
    let stored = refused().await;
    send_quietly("late").await;
    until("a send that waits", || metric(&running.metrics(), "gantry_room_wait_millis_peak") > 0).await;
    assert!(!lost());
    device.fill_log(false);
    let found = running.wait_for("Orders", 0, stored + 1).await;
    assert_eq!(found[stored].body.trim_end(), "late");

    // Not for ever: other requests of its connection are behind it.
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), "roomTimeoutMillis=300\n").await;
    assert_eq!(changed.code, 0, "{:?}", changed.remark);
    device.fill_log(true);
    refused().await;
    send_quietly("lost").await;
    until("a send that is lost", lost).await;
    device.fill_log(false);
    running.stop().await;
}

/// The clock stands: who waits anew waits until somebody moves it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_sends_on_a_full_device_wait_once_for_all_of_them() {
    let device = Device::default();
    let (setup, hand) = Setup { device: device.clone(), segment_bytes: 1 << 20, ..Setup::default() }.standing();
    let running = start(setup).await;
    let body = "x".repeat(200 << 10);
    device.fill_log(true);
    let deadline = Instant::now() + DEADLINE;
    while running.send(&to("Orders", 0, ""), &body).await.code != 14 {
        assert!(Instant::now() < deadline, "there is room still");
    }
    let lost = || {
        let page = running.metrics();
        let of_topics = page.lines().filter(|line| line.starts_with("gantry_oneway_refused_total{"));
        of_topics.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let quiet = net::Client::new(net::ClientOptions::default());
    for n in 1..=3 {
        quiet
            .oneway(&running.address, request::SEND_MESSAGE_V2, &to("Orders", 0, ""), body.clone().into())
            .await
            .unwrap();
        if n == 1 {
            hand.advance(Duration::from_secs(60));
        }
        until("the send is lost", || lost() == f64::from(n)).await;
    }
    // Others of that connection are not behind them any more.
    let behind = to("Orders", 0, "");
    let answer = quiet.call(&running.address, request::SEND_MESSAGE_V2, &behind, body.clone().into(), DEADLINE).await;
    assert_eq!(answer.unwrap().code, 14);
    device.fill_log(false);
    running.stop().await;
}

/// Who waits for an answer is told at once that the device is full, and takes nobody along who does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_way_sends_wait_for_room_on_a_full_device_also_with_a_recall_behind_them() {
    let device = Device::default();
    let more: &[_] = &[("roomTimeoutMillis", "60000"), ("recallMessageEnable", "true")];
    let setup = Setup { device: device.clone(), segment_bytes: 1 << 20, more, ..Setup::default() };
    let running = start(setup).await;
    let timed = running.send(&to("Orders", 0, &properties(&[("TIMER_DELAY_SEC", "600")])), "timed").await;
    let recall_handle = timed.fields.get("recallHandle").unwrap();
    let recall = RecallMessage { producer_group: Some("PG"), topic: "Orders", recall_handle };

    device.fill_log(true);
    let (deadline, mut stored) = (Instant::now() + DEADLINE, 0);
    // The last file takes small ones for longer.
    for body_bytes in [200 << 10, 20 << 10, 2 << 10] {
        let body = "x".repeat(body_bytes);
        while running.send(&to("Orders", 0, ""), &body).await.code == 0 {
            assert!(Instant::now() < deadline, "{stored} were stored");
            stored += 1;
        }
    }
    let mut burst = BytesMut::new();
    for name in ["one", "two", "three"] {
        let body = name.to_owned() + &" ".repeat(4 << 10);
        let head = Head { code: request::SEND_MESSAGE_V2, flag: FLAG_ONEWAY, ..Head::default() };
        write_frame(&mut burst, Serialization::Json, &head, &to("Orders", 0, ""), body.len());
        burst.extend_from_slice(body.as_bytes());
    }
    let head = Head { code: request::RECALL_MESSAGE, ..Head::default() };
    write_frame(&mut burst, Serialization::Json, &head, &recall, 0);
    let waited = || metric(&running.metrics(), "gantry_room_wait_millis_peak");
    let before = waited();
    let mut quiet = TcpStream::connect(&running.address).await.unwrap();
    quiet.write_all(&burst).await.unwrap();
    until("sends that wait", || waited() > before).await;
    device.fill_log(false);
    let found = running.wait_for("Orders", 0, stored + 3).await;
    let bodies: Vec<&str> = found[stored..].iter().map(|message| message.body.trim_end()).collect();
    assert_eq!(bodies, ["one", "two", "three"]);
    drop(quiet);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_that_finds_no_room_is_not_counted_as_put() {
    let device = Device::default();
    let more: &[_] = &[("recallMessageEnable", "true")];
    let setup = Setup { device: device.clone(), segment_bytes: 64 << 10, more, ..Setup::default() };
    let running = start(setup).await;
    let timed = running.send(&to("Orders", 0, &properties(&[("TIMER_DELAY_SEC", "600")])), "timed").await;
    let recall_handle = timed.fields.get("recallHandle").unwrap();
    let recall = RecallMessage { producer_group: Some("PG"), topic: "Orders", recall_handle };
    device.fill_log(true);
    let deadline = Instant::now() + DEADLINE;
    let mut taken = 1;
    while running.call(request::RECALL_MESSAGE, &recall, "").await.code == 0 {
        assert!(Instant::now() < deadline, "{taken} were stored");
        taken += 1;
    }
    assert_eq!(figure(&running, "putMessageTimesTotal").await, Some(taken.to_string()));
    device.fill_log(false);
    running.stop().await;
}
