//! Topics with `queue.type=BatchCQ`: a batch is one record, and each message in it has an offset.

use std::time::Duration;

use protocol::code::request;
use protocol::compression::{self, Compression};
use protocol::record::{self, Scanned};
use protocol::request::{CreateTopic, QueryMessage, SearchOffset, SendBack, SendMessage, ViewMessage};
use protocol::sys_flag;

use crate::support::*;

const TOPIC: &str = "Batches";

pub(super) fn topic_of<'a>(topic: &'a str, attributes: &'a str) -> CreateTopic<'a> {
    CreateTopic {
        topic,
        default_topic: Some("TBW102"),
        read_queue_nums: 1,
        write_queue_nums: 1,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: Some(0),
        order: false,
        attributes: Some(attributes),
        force: false,
    }
}

pub(super) async fn create(running: &Running, topic: &str, attributes: &str) -> (i32, String) {
    let create = topic_of(topic, attributes);
    let response = running.call(request::UPDATE_AND_CREATE_TOPIC, &create, Vec::new()).await;
    (response.code, response.remark.unwrap_or_default())
}

async fn started() -> Running {
    started_as(Setup::default()).await
}

async fn started_as(setup: Setup) -> Running {
    let running = start(Setup { has_index: true, ..setup }).await;
    assert_eq!(create(&running, TOPIC, "+queue.type=BatchCQ").await.0, 0);
    running
}

pub(super) async fn send_batch(running: &Running, topic: &str, properties: &str, body: Vec<u8>) -> net::Response {
    let message = SendMessage { batch: Some(true), ..to(topic, 0, properties) };
    running.call(request::SEND_BATCH_MESSAGE, &message, body).await
}

fn three() -> Vec<u8> {
    batch_of(&[("a", "KEYS\u{1}ka\u{2}"), ("b", ""), ("c", "TAGS\u{1}x\u{2}")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_one_record_and_each_of_its_messages_has_an_offset() {
    let running = started().await;
    let unique = properties(&[("UNIQ_KEY", "B1"), ("WAIT", "true"), ("TAGS", "T")]);
    running.put(TOPIC, 0, "", "first").await;
    let sent = send_batch(&running, TOPIC, &unique, three()).await;
    assert_eq!(sent.code, 0, "{:?}", sent.remark);
    assert_eq!(sent.fields.get("batchUniqId"), Some("B1"));
    let place = Sent::of(&sent);
    assert_eq!((place.queue_offset, place.transaction_id.as_deref()), (1, Some("B1")));
    assert_eq!(place.id.len(), 32, "one record, one id: {}", place.id);
    assert_eq!(running.put(TOPIC, 0, "", "last").await.queue_offset, 4);

    for (offset, next) in [(1, 5), (2, 5), (3, 5), (4, 5)] {
        let found = running.pull(&from(TOPIC, 0, offset)).await;
        assert_eq!((found.code, found.next, found.min, found.max), (0, next, 0, 5));
        assert_eq!(found.messages[0].queue_offset, if offset < 4 { 1 } else { 4 });
    }
    let record = running.pull(&from(TOPIC, 0, 1)).await.messages.remove(0);
    assert_eq!(record.body.as_bytes(), three());
    for (name, value) in [("UNIQ_KEY", "B1"), ("INNER_NUM", "3"), ("TAGS", "T"), ("MSG_REGION", "DefaultRegion")] {
        assert_eq!(record.property(name), Some(value), "{name}");
    }
    assert_eq!(record.property("INNER_BASE").unwrap().parse(), Ok(1));
    let view = ViewMessage { topic: Some(TOPIC), offset: record.log_offset as i64 };
    let viewed = running.call(request::VIEW_MESSAGE_BY_ID, &view, Vec::new()).await;
    let Ok(Scanned::Record(stored)) = record::scan(&viewed.body, true) else { panic!("no record") };
    assert_eq!(stored.sys_flag(), sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP);

    let tagged = |tag| protocol::request::PullMessage { subscription: Some(tag), ..from(TOPIC, 0, 1) };
    assert_eq!(running.pull(&tagged("T")).await.messages.len(), 1, "by the tag of the batch");
    assert_eq!(running.pull(&tagged("x")).await.messages.len(), 0, "not by that of one message");

    let search = SearchOffset { topic: TOPIC, queue_id: 0, timestamp: i64::MAX, boundary_type: None, lite_topic: None };
    let found = running.call(request::SEARCH_OFFSET_BY_TIMESTAMP, &search, Vec::new()).await;
    assert_eq!(found.fields.get("offset"), Some("4"), "as Apache: the newest batch, not the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_waits_gets_the_batch_that_comes() {
    let running = started().await;
    let pull = waiting(from(TOPIC, 0, 0), 20_000);
    let (found, sent) = tokio::join!(running.pull(&pull), async {
        running.until_parked(1).await;
        send_batch(&running, TOPIC, "UNIQ_KEY\u{1}B\u{2}", three()).await
    });
    assert_eq!((sent.code, found.code, found.next), (0, 0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_without_a_key_of_its_own_is_taken_apart_as_in_apache() {
    let running = started().await;
    let sent = send_batch(&running, TOPIC, "", three()).await;
    assert_eq!((sent.code, sent.fields.get("batchUniqId")), (0, None));
    assert_eq!(Sent::of(&sent).id.split(',').count(), 3);
    let bodies: Vec<_> = running.all(TOPIC, 0).await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_batch_passes_through_untouched() {
    let running = started().await;
    let packed = compression::compress(Compression::Zlib, &three(), 5).unwrap();
    let flag = sys_flag::COMPRESSED | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    let unique = properties(&[("UNIQ_KEY", "B"), ("INNER_NUM", "3")]);
    let one = SendMessage { sys_flag: flag, ..to(TOPIC, 0, &unique) };
    let sent = running.call(request::SEND_MESSAGE_V2, &one, packed.clone()).await;
    assert_eq!(sent.code, 0, "{:?}", sent.remark);
    let batch = SendMessage { sys_flag: sys_flag::COMPRESSED, batch: Some(true), ..to(TOPIC, 0, &unique) };
    let sent = running.call(request::SEND_BATCH_MESSAGE, &batch, packed.clone()).await;
    assert_eq!((sent.code, Sent::of(&sent).queue_offset), (0, 3));
    let found = running.call(request::PULL_MESSAGE, &from(TOPIC, 0, 0), Vec::new()).await;
    let Ok(Scanned::Record(record)) = record::scan(&found.body, true) else { panic!("no record") };
    assert_eq!((record.body(), record.sys_flag()), (&packed[..], flag));
    assert_eq!(found.fields.get("nextBeginOffset"), Some("6"));
}

async fn with_key(running: &Running, key: &str) -> Vec<(String, u64, String)> {
    let query = QueryMessage {
        topic: TOPIC,
        key,
        max_num: 32,
        begin_timestamp: 0,
        end_timestamp: i64::MAX,
        index_type: None,
        last_key: None,
        unique_key_query: None,
    };
    let found = running.call(request::QUERY_MESSAGE, &query, Vec::new()).await;
    let mut messages = Vec::new();
    let mut rest = &found.body[..];
    while let Ok(Scanned::Record(record)) = record::scan(rest, true) {
        rest = &rest[record.total_size()..];
        let body = String::from_utf8_lossy(record.body()).into_owned();
        messages.push((body, record.queue_offset(), record.properties().into_owned()));
    }
    assert!(rest.is_empty(), "{found:?}");
    messages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_batch_is_found_by_its_own_key_as_a_message_of_its_own() {
    let running = started().await;
    running.put(TOPIC, 0, "", "first").await;
    send_batch(&running, TOPIC, "UNIQ_KEY\u{1}B1\u{2}KEYS\u{1}all\u{2}", three()).await;
    let packed = compression::compress(Compression::Zstd, &three(), 5).unwrap();
    let flag = Compression::Zstd.bits() | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    let unique = properties(&[("UNIQ_KEY", "B2"), ("INNER_NUM", "3")]);
    let one = SendMessage { sys_flag: flag, ..to(TOPIC, 0, &unique) };
    assert_eq!(running.call(request::SEND_MESSAGE_V2, &one, packed).await.code, 0);
    let own = "KEYS\u{1}ka\u{2}".to_owned();
    assert_eq!(with_key(&running, "ka").await, [("a".to_owned(), 4, own.clone()), ("a".to_owned(), 1, own)]);
    let whole = with_key(&running, "all").await;
    assert_eq!(whole.len(), 1);
    assert_eq!((whole[0].0.as_bytes(), whole[0].1), (&three()[..], 1), "by the batch's own key the batch");
    assert_eq!(with_key(&running, "kb").await, []);
    // More than it says, and far more than was sent: neither is looked at.
    let more =
        compression::compress(Compression::Zlib, &batch_of(&[("", ""), ("x", "KEYS\u{1}beyond\u{2}")]), 5).unwrap();
    let bomb = "x".repeat(1 << 20);
    let bomb = compression::compress(Compression::Zlib, &batch_of(&[(&bomb, "KEYS\u{1}bomb\u{2}")]), 5).unwrap();
    for packed in [more, bomb] {
        let unique = properties(&[("UNIQ_KEY", "B3"), ("INNER_NUM", "1")]);
        let flag = Compression::Zlib.bits() | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
        let one = SendMessage { sys_flag: flag, ..to(TOPIC, 0, &unique) };
        assert_eq!(running.call(request::SEND_MESSAGE_V2, &one, packed).await.code, 0);
    }
    for key in ["beyond", "bomb"] {
        assert_eq!(with_key(&running, key).await, []);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_batch_or_has_no_place_is_refused_with_the_reason() {
    let running = started().await;
    running.put("Orders", 0, "", "x").await;
    let marked = sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    let (bare, compressed) = (marked, marked | sys_flag::COMPRESSED);
    let mut torn = three();
    torn.truncate(torn.len() - 1);
    let many = batch_of(&[("", ""); 40_000]);
    let rows = [
        ("ordinary topic", "Orders", bare, false, "INNER_NUM=3", three(), "Orders has not queue.type=BatchCQ"),
        ("ordinary topic, 320", "Orders", bare, true, "UNIQ_KEY=B", three(), "this batch or its topic is not"),
        ("no bit", TOPIC, 0, false, "INNER_NUM=3", three(), "sysFlag does not say that this is a batch (128)"),
        ("no number", TOPIC, bare, false, "", three(), "INNER_NUM is missing"),
        ("no number, compressed", TOPIC, 1, true, "UNIQ_KEY=B", three(), "INNER_NUM is missing"),
        ("nonsense", TOPIC, compressed, false, "INNER_NUM=many", three(), "INNER_NUM is \"many\""),
        ("zero", TOPIC, compressed, false, "INNER_NUM=0", three(), "a batch has 1 to 32767 messages"),
        ("too many", TOPIC, compressed, false, "INNER_NUM=32768", three(), "a batch has 1 to 32767 messages"),
        ("wrong", TOPIC, bare, false, "INNER_NUM=4", three(), "INNER_NUM is 4, and the body holds 3 messages"),
        ("torn", TOPIC, bare, false, "INNER_NUM=3", torn.clone(), "message 2 of the batch"),
        ("torn, 320", TOPIC, 0, true, "UNIQ_KEY=B", torn, "message 2 of the batch"),
        ("too many, 320", TOPIC, 0, true, "UNIQ_KEY=B", many, "40000 messages in a batch"),
        ("delayed", TOPIC, bare, false, "INNER_NUM=3,DELAY=1", three(), "cannot be delayed, transactional or dead"),
    ];
    for (what, topic, flag, is_batch, pairs, body, remark) in rows {
        let pairs: Vec<_> = pairs.split(',').filter_map(|pair| pair.split_once('=')).collect();
        let properties = properties(&pairs);
        let message = SendMessage { sys_flag: flag, batch: Some(is_batch), ..to(topic, 0, &properties) };
        let code = if is_batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 };
        let response = running.call(code, &message, body).await;
        let found = response.remark.unwrap_or_default();
        assert_eq!(response.code, 13, "{what}: {found}");
        assert!(found.contains(remark), "{what}: {found}");
    }
    assert_eq!(running.put(TOPIC, 0, "", "only").await.queue_offset, 0, "nothing was left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_comes_alone_may_be_delayed() {
    let (setup, hand) = Setup::default().standing();
    let running = started_as(setup).await;
    running.put(TOPIC, 0, &properties(&[("DELAY", "1")]), "late").await;
    send_batch(&running, TOPIC, "UNIQ_KEY\u{1}B\u{2}", three()).await;
    hand.advance(Duration::from_secs(1));
    until("the delayed one is there", || running.store().existing_queue(TOPIC, 0).unwrap().max_offset() == 4).await;
    let late = running.pull(&from(TOPIC, 0, 3)).await.messages.remove(0);
    assert_eq!((&late.body[..], late.queue_offset), ("late", 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_cannot_give_a_whole_batch_back_in_the_place_of_one_message() {
    let running = started().await;
    send_batch(&running, TOPIC, "UNIQ_KEY\u{1}B\u{2}", three()).await;
    let group = r#"{"groupName":"CG"}"#;
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group).await.code, 0);
    let back = SendBack {
        offset: 0,
        group: "CG",
        delay_level: 0,
        origin_msg_id: None,
        origin_topic: Some(TOPIC),
        unit_mode: false,
        max_reconsume_times: Some(16),
        broker_name: None,
    };
    let response = running.call(request::CONSUMER_SEND_MSG_BACK, &back, Vec::new()).await;
    assert_eq!(response.code, 1);
    assert!(response.remark.unwrap().contains("MESSAGE_ILLEGAL"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_type_of_a_topic_cannot_change_but_a_topic_of_that_name_may_come_again() {
    let running = started().await;
    let (code, remark) = create(&running, TOPIC, "+queue.type=SimpleCQ").await;
    assert!(code == 1 && remark.contains("unchangeable"), "{code} {remark}");
    send_batch(&running, TOPIC, "UNIQ_KEY\u{1}B\u{2}", three()).await;
    let delete = protocol::request::DeleteTopic { topic: TOPIC };
    assert_eq!(running.call(request::DELETE_TOPIC_IN_BROKER, &delete, Vec::new()).await.code, 0);
    assert_eq!(create(&running, TOPIC, "").await.0, 0);
    send_batch(&running, TOPIC, "UNIQ_KEY\u{1}B\u{2}", three()).await;
    assert_eq!(running.all(TOPIC, 0).await.len(), 3);
    let again = start_on(Setup::default(), running.image()).await;
    assert_eq!(again.all(TOPIC, 0).await.len(), 3, "after a crash too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_there_after_a_crash_and_after_a_stop_without_their_queues() {
    let running = started().await;
    // The journal knows the type; alone, the record does not say it.
    running.put(TOPIC, 0, "", "alone").await;
    let crashed = start_on(Setup::default(), running.image()).await;
    assert_eq!(Sent::of(&send_batch(&crashed, TOPIC, "UNIQ_KEY\u{1}B\u{2}", three()).await).queue_offset, 1);
    let dir = crashed.stop().await;
    std::fs::remove_dir_all(dir.path().join("batchconsumequeue")).unwrap();
    let running = start_on(Setup::default(), dir).await;
    let found = running.pull(&from(TOPIC, 0, 0)).await;
    assert_eq!((found.messages.len(), found.next, found.max), (2, 4, 4));
    assert!(running.store().existing_queue(TOPIC, 0).unwrap().is_batch());
}
