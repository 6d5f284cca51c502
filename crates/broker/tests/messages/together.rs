//! Sends that travel together: one request for several topics and queues.

use std::sync::Arc;

use net::Response;
use protocol::body::Heartbeat;
use protocol::code::request;
use protocol::fastjson::{self, Dialect};
use protocol::message_id::offset_message_ids;
use protocol::request::{AskTogether, SendMessage, SendTogether};
use protocol::together::{self, Part};

use crate::durability::{hold, release};
use crate::support::*;

/// What became of a part, as the answer to a single send would say it.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: i32,
    queue_id: i32,
    queue_offset: i64,
    ids: String,
    remark: Option<String>,
    handle: Option<String>,
}

/// The client asks whether it may; says what it was told.
async fn ask(running: &Running) -> Option<String> {
    let beat = Heartbeat { client_id: "c@1".to_owned(), ..Heartbeat::default() };
    let body = fastjson::to_vec(&beat, Dialect::FastJson);
    let answer = running.call(request::HEART_BEAT, &AskTogether { send_together: true }, body).await;
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    answer.fields.get("sendTogetherPartsMax").map(str::to_owned)
}

async fn started(setup: Setup) -> Running {
    let running = start(setup).await;
    assert_eq!(ask(&running).await.as_deref(), Some("256"));
    running
}

fn common(parts: usize) -> SendTogether<'static> {
    SendTogether {
        producer_group: "PG",
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        born_timestamp: 1_700_000_000_000,
        parts: parts as i32,
        broker_name: None,
    }
}

/// A send of one message, as a part, and its body.
fn one<'a>(topic: &'a str, queue_id: i32, properties: &'a str, body: &str) -> (Part<'a>, Vec<u8>) {
    let part = Part { queue_id, sys_flag: 0, flag: 0, is_batch: false, topic, properties, body: 0..0 };
    (part, body.as_bytes().to_vec())
}

fn batch<'a>(topic: &'a str, queue_id: i32, properties: &'a str, bodies: &[&str]) -> (Part<'a>, Vec<u8>) {
    let inner: Vec<(&str, &str)> = bodies.iter().map(|body| (*body, "")).collect();
    let (part, _) = one(topic, queue_id, properties, "");
    (Part { is_batch: true, ..part }, batch_of(&inner))
}

fn body_of(parts: &[(Part<'_>, Vec<u8>)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (part, of_part) in parts {
        together::put_part(&mut body, part, of_part).unwrap();
    }
    body
}

async fn send(running: &Running, parts: &[(Part<'_>, Vec<u8>)]) -> Response {
    running.call(request::SEND_TOGETHER, &common(parts.len()), body_of(parts)).await
}

/// What became of each, in their order.
fn read(response: &Response) -> Vec<Answer> {
    assert_eq!(response.code, 0, "{:?}", response.remark);
    assert_eq!(response.fields.get("MSG_REGION"), Some("DefaultRegion"));
    let (host, answers) = together::answers(&response.body).unwrap();
    let mut numbered: Vec<(usize, Answer)> = answers
        .map(Result::unwrap)
        .map(|said| {
            let mut ids = String::new();
            offset_message_ids(&mut ids, host, said.places());
            let answer = Answer {
                code: said.code,
                queue_id: said.queue_id,
                queue_offset: said.queue_offset,
                ids,
                remark: said.remark.map(str::to_owned),
                handle: said.recall_handle.map(str::to_owned),
            };
            (said.number, answer)
        })
        .collect();
    numbered.sort_by_key(|(number, _)| *number);
    assert!(numbered.iter().map(|(number, _)| *number).eq(0..numbered.len()));
    numbered.into_iter().map(|(_, answer)| answer).collect()
}

async fn together(running: &Running, parts: &[(Part<'_>, Vec<u8>)]) -> Vec<Answer> {
    let answers = read(&send(running, parts).await);
    assert_eq!(answers.len(), parts.len());
    answers
}

async fn bodies(running: &Running, topic: &str, queue_id: i32) -> Vec<String> {
    running.all(topic, queue_id).await.into_iter().map(|message| message.body).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_several_topics_and_queues_are_stored_in_order_and_each_is_told_where() {
    for is_sync in [false, true] {
        let running = started(Setup { is_sync, ..Setup::default() }).await;
        running.put("Orders", 1, "", "before").await;
        let tagged = properties(&[("TAGS", "A"), ("UNIQ_KEY", "U1")]);
        let parts = [
            one("Orders", 1, &tagged, "a"),
            one("Payments", 0, "", "b"),
            batch("Orders", 1, "", &["c", "d"]),
            batch("Orders", 2, "", &["e", "f", "g"]),
            one("Orders", 1, "", "h"),
        ];
        let answers = together(&running, &parts).await;
        assert!(answers.iter().all(|answer| (answer.code, &answer.remark) == (0, &None)), "{answers:?}");
        let places: Vec<(i32, i64)> = answers.iter().map(|answer| (answer.queue_id, answer.queue_offset)).collect();
        assert_eq!(places, [(1, 1), (0, 0), (1, 2), (2, 0), (1, 4)]);
        running.wait_for("Orders", 1, 5).await;
        assert_eq!(bodies(&running, "Orders", 1).await, ["before", "a", "c", "d", "h"]);
        running.wait_for("Orders", 2, 3).await;
        assert_eq!(bodies(&running, "Orders", 2).await, ["e", "f", "g"]);
        let stored = running.wait_for("Payments", 0, 1).await;
        assert_eq!((stored[0].body.as_str(), stored[0].property("CLUSTER")), ("b", Some("DefaultCluster")));
        // An id for each record, which leads to it.
        let counts: Vec<usize> = answers.iter().map(|answer| answer.ids.split(',').count()).collect();
        assert_eq!(counts, [1, 1, 2, 3, 1]);
        let in_queue = running.all("Orders", 1).await;
        let (host, at) = protocol::message_id::parse_offset_message_id(&answers[0].ids).unwrap();
        assert_eq!((host.to_string().as_str(), at), ("127.0.0.1:10911", in_queue[1].log_offset));
        assert_eq!((in_queue[1].property("UNIQ_KEY"), in_queue[1].property("TAGS")), (Some("U1"), Some("A")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_is_refused_alone_and_in_the_words_of_a_single_send() {
    let running = started(Setup::default()).await;
    running.put("Orders", 0, "", "before").await;
    let fat = properties(&[("p", &"x".repeat(33_000))]);
    let (delay, half) =
        (properties(&[("DELAY", "soon")]), properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("DELAY", "1")]));
    let bad: [(&str, i32, &str, &str); 7] = [
        ("a b", 0, "", "x"),
        ("SCHEDULE_TOPIC_XXXX", 0, "", "x"),
        ("Orders", 99, "", "x"),
        ("Orders", 0, "", ""),
        ("Orders", 0, &fat, "x"),
        ("Orders", 0, &delay, "x"),
        ("Orders", 0, &half, "x"),
    ];
    let mut parts = Vec::new();
    let mut alone = Vec::new();
    for (topic, queue_id, properties, body) in bad {
        alone.push(running.send(&to(topic, queue_id, properties), body).await);
        parts.extend([one(topic, queue_id, properties, body), one("Orders", 0, "", "good")]);
    }
    // A batch that cannot be taken apart, too.
    let broken = [0, 0, 0, 99, 1];
    let message = SendMessage { batch: Some(true), ..to("Orders", 0, "") };
    alone.push(running.call(request::SEND_BATCH_MESSAGE, &message, broken.to_vec()).await);
    let (part, _) = batch("Orders", 0, "", &[]);
    parts.extend([(part, broken.to_vec()), one("Orders", 0, "", "good")]);
    let answers = together(&running, &parts).await;
    for (pair, alone) in answers.chunks(2).zip(&alone) {
        assert_ne!(alone.code, 0);
        assert_eq!((pair[0].code, &pair[0].remark, pair[0].ids.as_str()), (alone.code, &alone.remark, ""));
        assert_eq!(pair[1].code, 0);
    }
    let expected = [&["before"][..], &["good"; 8]].concat();
    assert_eq!(bodies(&running, "Orders", 0).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_not_whole_costs_an_answer_and_stores_nothing() {
    let running = started(Setup::default()).await;
    running.put("Orders", 0, "", "before").await;
    let parts = [one("Orders", 0, "", "a"), one("Orders", 0, "", "b")];
    let body = body_of(&parts);
    let mut longer = body.clone();
    longer[0] = 0x7f;
    let rows = [
        (common(3), body.clone(), "parts is 3, and the body holds 2"),
        (common(0), body.clone(), "parts is 0; 1 to 256 are allowed (sendTogetherPartsMax)"),
        (SendTogether { parts: -1, ..common(0) }, body.clone(), "parts is -1; 1 to 256 are allowed"),
        (common(257), body.clone(), "parts is 257; 1 to 256 are allowed"),
        (common(2), body[..body.len() - 1].to_vec(), "part 1: part has length"),
        (common(2), longer, "part 0: part has length 213"),
        (common(2), Vec::new(), "parts is 2, and the body holds 0"),
    ];
    for (fields, body, words) in rows {
        let answer = running.call(request::SEND_TOGETHER, &fields, body).await;
        let remark = answer.remark.unwrap_or_default();
        assert!(answer.code == 29 && remark.contains(words), "{words}: {} {remark}", answer.code);
    }
    // Where only a part is broken inside, the other one is stored.
    let mut inside = body_of(&parts);
    inside[16] = 9;
    let answers = read(&running.call(request::SEND_TOGETHER, &common(2), inside).await);
    assert_eq!((answers[0].code, answers[1].code), (13, 0));
    assert_eq!(answers[0].remark.as_deref(), Some("part 0: kind is 9; 0 is a message, 1 a batch"));
    assert_eq!(bodies(&running, "Orders", 0).await, ["before", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sync_flush_the_answer_comes_when_all_parts_are_on_the_device() {
    let device = Device::default();
    let setup = Setup { is_sync: true, device: device.clone(), sync_flush_timeout: "60000", ..Setup::default() };
    let running = Arc::new(started(setup).await);
    running.put("Orders", 0, "", "before").await;
    device.hold_flush(true);
    let sending = Arc::clone(&running);
    let sent = tokio::spawn(async move {
        // One does not ask to wait, and one is refused: the answer waits for the last of them.
        let hasty = properties(&[("WAIT", "false")]);
        let parts = [one("Orders", 0, "", "a"), one("Orders", 1, &hasty, "b"), one("a b", 0, "", "c")];
        together(&sending, &parts).await
    });
    // When the part that does not wait stands in its queue, the request was read.
    let (hasty, mut behind) = (properties(&[("WAIT", "false")]), 0);
    while running.put("Orders", 1, &hasty, "behind").await.queue_offset == behind {
        behind += 1;
    }
    assert!(!sent.is_finished());
    device.hold_flush(false);
    let answers = sent.await.unwrap();
    assert_eq!(answers.iter().map(|answer| answer.code).collect::<Vec<_>>(), [0, 0, 29]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sync_flush_a_device_that_is_late_is_told_for_each_part() {
    let device = Device::default();
    let setup = Setup { is_sync: true, device: device.clone(), sync_flush_timeout: "60000", ..Setup::default() };
    let running = started(setup).await;
    // The topic is there, so that nothing but the log is waited for.
    running.put("Orders", 0, "", "before").await;
    hold(&running, &device).await;
    let answers = together(&running, &[one("Orders", 0, "", "a"), batch("Orders", 1, "", &["b", "c"])]).await;
    release(&running, &device).await;
    assert_eq!(answers.iter().map(|answer| answer.code).collect::<Vec<_>>(), [10, 10]);
    assert_eq!((answers[0].queue_offset, answers[1].ids.split(',').count()), (1, 2));
    assert!(answers[1].remark.as_deref().is_some_and(|remark| remark.contains("syncFlushTimeout")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_nobody_waits_for_is_stored() {
    let running = started(Setup::default()).await;
    let parts = [one("Orders", 0, "", "a"), one("a b", 0, "", "x"), one("Orders", 0, "", "b")];
    let (fields, body) = (common(3), body_of(&parts));
    running.client.oneway(&running.address, request::SEND_TOGETHER, &fields, body.into()).await.unwrap();
    running.wait_for("Orders", 0, 2).await;
    assert_eq!(bodies(&running, "Orders", 0).await, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_is_appended_at_once_is_answered_with_one_answer() {
    let running = started(Setup::default()).await;
    let inner: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    let inner: Vec<&str> = inner.iter().map(String::as_str).collect();
    // 60 times 300 records: appended in several goes.
    let parts: Vec<_> = (0..60).map(|part| batch("Orders", part % 4, "", &inner)).collect();
    let answers = together(&running, &parts).await;
    for (part, answer) in (0..).zip(&answers) {
        assert_eq!((answer.code, answer.queue_offset), (0, part / 4 * 300));
        assert_eq!(answer.ids.split(',').count(), 300);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_repeats_a_message_is_answered_with_the_place_of_the_first() {
    for is_sync in [false, true] {
        let running = started(Setup { repeated_send_window: "600000", is_sync, ..Setup::default() }).await;
        let key = properties(&[("UNIQ_KEY", "U1")]);
        let first = running.put("Orders", 1, &key, "x").await;
        let answers = together(&running, &[one("Orders", 2, &key, "x"), one("Orders", 1, "", "y")]).await;
        assert_eq!((answers[0].code, answers[0].queue_id, answers[0].queue_offset), (0, 1, 0));
        assert_eq!((&answers[0].ids, answers[1].queue_offset), (&first.id, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_repeats_a_message_is_refused_alone_where_no_more_may_wait_for_the_device() {
    let device = Device::default();
    let setup = Setup {
        is_sync: true,
        device: device.clone(),
        sync_flush_timeout: "60000",
        repeated_send_window: "600000",
        more: &[("unflushedBurstsPerConnectionMax", "1")],
        ..Setup::default()
    };
    let running = Arc::new(started(setup).await);
    running.put("Orders", 0, "", "before").await;
    device.hold_flush(true);
    let (sending, end) = (Arc::clone(&running), running.store().end());
    let first = tokio::spawn(async move {
        let key = properties(&[("UNIQ_KEY", "U1")]);
        sending.put("Orders", 0, &key, "x").await
    });
    // From then on it waits for the device, before anything else of its connection is read.
    until("the first is in the log", || running.store().end() > end).await;
    let key = properties(&[("UNIQ_KEY", "U1")]);
    let answers = together(&running, &[one("Orders", 1, &key, "x"), one("a b", 0, "", "y")]).await;
    assert_eq!(answers.iter().map(|answer| answer.code).collect::<Vec<_>>(), [2, 29]);
    let remark = answers[0].remark.as_deref().unwrap_or_default();
    assert!(remark.contains("unflushedBurstsPerConnectionMax"), "{remark}");
    device.hold_flush(false);
    assert_eq!(first.await.unwrap().queue_offset, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_waits_for_its_time_gets_the_handle_that_takes_it_back() {
    let running = started(Setup::default()).await;
    let timer = properties(&[("TIMER_DELAY_SEC", "600")]);
    let alone = running.send(&to("Orders", 0, &timer), "x").await;
    assert!(alone.fields.get("recallHandle").is_some());
    let answers = together(&running, &[one("Orders", 0, &timer, "x"), one("Orders", 0, "", "y")]).await;
    assert!(answers[0].handle.as_ref().is_some_and(|handle| !handle.is_empty()) && answers[1].handle.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_taken_only_where_it_was_offered_and_offered_only_to_who_asks() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "before").await;
    let part = [one("Orders", 0, "", "a")];
    let refused = send(&running, &part).await;
    assert_eq!(refused.code, 3);
    assert!(refused.remark.is_some_and(|remark| remark.starts_with(" request type 30001 not supported: it is not")));
    // A heartbeat that does not ask is told nothing, as from RocketMQ.
    let beat = Heartbeat { client_id: "c@1".to_owned(), ..Heartbeat::default() };
    let answer = running.call(request::HEART_BEAT, &(), fastjson::to_vec(&beat, Dialect::FastJson)).await;
    let names: Vec<&str> = answer.fields.as_fields().iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"]);
    assert_eq!(send(&running, &part).await.code, 3);
    assert_eq!(ask(&running).await.as_deref(), Some("256"));
    assert_eq!(together(&running, &part).await[0].code, 0);
    // Another connection was told nothing.
    running.client.disconnect(&running.address);
    assert_eq!(send(&running, &part).await.code, 3);

    let off = start(Setup { more: &[("sendTogetherPartsMax", "0")], ..Setup::default() }).await;
    off.put("Orders", 0, "", "before").await;
    assert_eq!((ask(&off).await, send(&off, &part).await.code), (None, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_limit_holds_for_who_is_told_of_it_and_shows_with_the_figures() {
    let running = started(Setup::default()).await;
    running.put("Orders", 0, "", "before").await;
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), "sendTogetherPartsMax=0\n").await;
    assert_eq!(changed.code, 0, "{:?}", changed.remark);
    let shown = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    assert!(String::from_utf8_lossy(&shown.body).contains("\"sendTogetherPartsMax\":\"0\""));
    // What is on its way when it changes is taken; the next heartbeat is not told any more that it may.
    let part = [one("Orders", 0, "", "a")];
    assert_eq!(together(&running, &part).await[0].code, 0);
    assert_eq!(ask(&running).await, None);
}
