use std::os::unix::fs::FileExt;

use env::Clock;
use protocol::body::TopicConfig;
use protocol::code::request;
use protocol::fastjson;
use protocol::request::{
    GetMaxOffset, GetTopicConfig, PopMessage, PullMessage, ResetOffset, SendBack, SendMessage, ViewMessage,
};

use crate::durability::{hold, release};
use crate::popping;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_given_as_it_was_taken_with_the_brokers_properties_behind_it() {
    let running = start(Setup::default()).await;
    let sent =
        running.put("Orders", 1, &properties(&[("TAGS", "TagA"), ("KEYS", "k1"), ("UNIQ_KEY", "U1")]), "hello").await;
    assert_eq!((sent.queue_id, sent.queue_offset, sent.transaction_id.as_deref()), (1, 0, Some("U1")));
    assert_eq!(sent.id.len(), 32);

    let found = running.pull(&from("Orders", 1, 0)).await;
    assert_eq!((found.code, found.remark.as_deref(), found.next, found.min, found.max), (0, Some("FOUND"), 1, 0, 1));
    let message = &found.messages[0];
    assert_eq!((message.topic.as_str(), message.queue_id, message.body.as_str()), ("Orders", 1, "hello"));
    assert_eq!(message.property("KEYS"), Some("k1"));
    assert_eq!(message.property("CLUSTER"), Some("DefaultCluster"));
    assert_eq!(message.property("TRACE_ON"), Some("true"));

    let at = i64::try_from(message.log_offset).unwrap();
    let viewed = running.call(request::VIEW_MESSAGE_BY_ID, &ViewMessage { topic: None, offset: at }, "").await;
    assert_eq!(messages(&viewed.body), found.messages);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_to_a_send_tells_region_and_tracing() {
    let running = start(Setup::default()).await;
    let taken = running.send(&to("Orders", 0, ""), "x").await;
    let refused = running.send(&to("a b", 0, ""), "x").await;
    for response in [taken, refused] {
        assert_eq!(response.fields.get("MSG_REGION"), Some("DefaultRegion"));
        assert_eq!(response.fields.get("TRACE_ON"), Some("true"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_a_unique_key_gets_one() {
    let running = start(Setup::default()).await;
    let sent = running.put("Orders", 0, "", "x").await;
    let found = running.pull(&from("Orders", 0, 0)).await;
    assert_eq!(found.messages[0].property("UNIQ_KEY"), sent.transaction_id.as_deref());
    assert_eq!(sent.transaction_id.map(|id| id.len()), Some(32));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_spellings_of_a_send_and_a_oneway_send_are_stored() {
    let running = start(Setup::default()).await;
    struct Old<'a>(SendMessage<'a>);
    impl protocol::header::EncodeFields for Old<'_> {
        fn encode(&self, sink: &mut protocol::header::FieldSink<'_>) {
            self.0.encode_v1(sink);
        }
    }
    let old = running.call(request::SEND_MESSAGE, &Old(to("Orders", 0, "")), "old").await;
    assert_eq!(old.code, 0);
    running
        .client
        .oneway(&running.address, request::SEND_MESSAGE_V2, &to("Orders", 0, ""), "oneway".into())
        .await
        .unwrap();
    let bodies: Vec<String> = running.wait_for("Orders", 0, 2).await.into_iter().map(|message| message.body).collect();
    assert_eq!(bodies, ["old", "oneway"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sends_on_the_way_at_once_leave_a_dense_queue() {
    let running = std::sync::Arc::new(start(Setup::default()).await);
    running.put("Orders", 0, "", "first").await;
    let sends: Vec<_> = (0..1000)
        .map(|n| {
            let running = std::sync::Arc::clone(&running);
            tokio::spawn(async move { running.put("Orders", 0, "", &n.to_string()).await.queue_offset })
        })
        .collect();
    let mut offsets = Vec::new();
    for send in sends {
        offsets.push(send.await.unwrap());
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (1..=1000).collect::<Vec<i64>>());

    let mut next = 0;
    while next < 1001 {
        let found = running.pull(&from("Orders", 0, next)).await;
        assert_eq!(found.code, 0);
        for message in &found.messages {
            assert_eq!(message.queue_offset as i64, next);
            next += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_becomes_single_messages_with_ids_of_their_own() {
    let running = start(Setup::default()).await;
    running.put("Orders", 2, "", "before").await;
    let body = batch_of(&[
        ("a", &properties(&[("TAGS", "A"), ("UNIQ_KEY", "U1")])),
        ("b", &properties(&[("TAGS", "B"), ("UNIQ_KEY", "U2")])),
        ("c", &properties(&[("UNIQ_KEY", "U3")])),
    ]);
    let response = running
        .call(request::SEND_BATCH_MESSAGE, &SendMessage { batch: Some(true), ..to("Orders", 2, "") }, body)
        .await;
    let sent = Sent::of(&response);
    assert_eq!((response.code, sent.queue_offset), (0, 1));

    let found = running.pull(&from("Orders", 2, 1)).await;
    let seen: Vec<_> = found.messages.iter().map(|message| (message.body.as_str(), message.queue_offset)).collect();
    assert_eq!(seen, [("a", 1), ("b", 2), ("c", 3)]);
    let ids: Vec<u64> =
        sent.id.split(',').map(|id| protocol::message_id::parse_offset_message_id(id).unwrap().1).collect();
    assert_eq!(ids, found.messages.iter().map(|message| message.log_offset).collect::<Vec<_>>());

    let tagged = running.pull(&PullMessage { subscription: Some("B"), ..from("Orders", 2, 0) }).await;
    assert_eq!(tagged.messages.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(tagged.next, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_begins_where_the_queue_allows_and_is_told_where_else_to() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "x").await;
    // Offset, code, remark, next.
    let rows =
        [(1, 19, "OFFSET_OVERFLOW_ONE", 1), (9, 21, "OFFSET_OVERFLOW_BADLY", 1), (-1, 21, "OFFSET_TOO_SMALL", 0)];
    for (offset, code, remark, next) in rows {
        let found = running.pull(&from("Orders", 0, offset)).await;
        assert_eq!((found.code, found.remark.as_deref(), found.next), (code, Some(remark), next), "offset {offset}");
    }
    let unmatched = running.pull(&PullMessage { subscription: Some("Other"), ..from("Orders", 0, 0) }).await;
    assert_eq!((unmatched.code, unmatched.remark.as_deref(), unmatched.next), (20, Some("NO_MATCHED_MESSAGE"), 1));
    let empty = running.pull(&from("Orders", 3, 0)).await;
    assert_eq!((empty.code, empty.next), (19, 0));
    let beyond_empty = running.pull(&from("Orders", 3, 7)).await;
    assert_eq!((beyond_empty.code, beyond_empty.next), (21, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_given_back_comes_again_later_and_then_never() {
    let running = start(Setup { levels: "1s 1s 1s 1s", ..Setup::default() }).await;
    running.put("Orders", 0, &properties(&[("TAGS", "A"), ("UNIQ_KEY", "U1")]), "bad").await;
    let mut message = running.pull(&from("Orders", 0, 0)).await.messages.remove(0);
    let origin = message.log_offset;
    for times in 1..=2 {
        let back = back_of(&message);
        let response =
            running.call(request::CONSUMER_SEND_MSG_BACK, &SendBack { max_reconsume_times: Some(2), ..back }, "").await;
        assert_eq!((response.code, &response.remark), (0, &None));
        message = running.wait_for("%RETRY%CG", 0, times).await.remove(times - 1);
        assert_eq!(message.body, "bad");
        assert_eq!(message.reconsume_times, times as i32);
        assert_eq!(message.property("RETRY_TOPIC"), Some("Orders"));
        let id = message.property("ORIGIN_MESSAGE_ID").unwrap();
        assert_eq!(protocol::message_id::parse_offset_message_id(id).unwrap().1, origin);
    }
    let response = running
        .call(request::CONSUMER_SEND_MSG_BACK, &SendBack { max_reconsume_times: Some(2), ..back_of(&message) }, "")
        .await;
    assert_eq!(response.code, 0);
    let dead = running.wait_for("%DLQ%CG", 0, 1).await.remove(0);
    assert_eq!((dead.body.as_str(), dead.property("DLQ_ORIGIN_TOPIC")), ("bad", Some("Orders")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_fails_in_a_group_without_retries_is_a_dead_letter_and_not_lost() {
    let running = start(Setup::default()).await;
    let group = r#"{"groupName":"CG","retryQueueNums":0}"#;
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group).await.code, 0);
    running.put("Orders", 0, "", "bad").await;
    let message = running.pull(&from("Orders", 0, 0)).await.messages.remove(0);
    assert_eq!(running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(&message), "").await.code, 0);
    let dead = running.wait_for("%DLQ%CG", 0, 1).await.remove(0);
    assert_eq!((dead.body.as_str(), dead.property("DLQ_ORIGIN_TOPIC")), ("bad", Some("Orders")));
    assert!(running.all("%RETRY%CG", 0).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_made_on_use_gets_as_many_queues_as_the_broker_gives_at_most() {
    for (most, expected) in [("4", [2, 4, 4]), ("8", [2, 4, 8])] {
        let more: &'static [(&str, &str)] =
            if most == "4" { &[("defaultTopicQueueNums", "4")] } else { &[("defaultTopicQueueNums", "8")] };
        let running = start(Setup { more, ..Setup::default() }).await;
        for (asked, given) in [2, 4, 16].into_iter().zip(expected) {
            let topic = format!("Asked{asked}");
            let message = SendMessage { default_topic_queue_nums: asked, ..to(&topic, 0, "") };
            assert_eq!(running.send(&message, "x").await.code, 0);
            let answer = running.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: &topic, lo: None }, "").await;
            let config: TopicConfig = fastjson::from_slice(&answer.body).unwrap();
            let queues = (config.read_queue_nums, config.write_queue_nums);
            assert_eq!(queues, (given, given), "defaultTopicQueueNums={most}, the client asks for {asked}");
        }
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_to_a_time_in_seconds_is_refused_and_changes_nothing() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "a").await;
    running.pull(&from("Orders", 0, 0)).await;
    let reset =
        |timestamp| ResetOffset { group: "CG", topic: "Orders", queue_id: -1, offset: None, timestamp, is_force: true };
    let seconds = Clock::real().now().0 / 1000;
    for timestamp in [1, seconds] {
        let refused = running.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &reset(timestamp), "").await;
        let remark = refused.remark.unwrap_or_default();
        assert!(refused.code == 29 && remark.contains(&format!("timestamp is {timestamp} ms")), "{remark}");
    }
    for timestamp in [0, -1, seconds * 1000] {
        assert_eq!(running.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &reset(timestamp), "").await.code, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_says_it_was_tried_less_than_never_is_retried_at_the_first_level() {
    let running = start(Setup { levels: "1s 1s 1s 1s", ..Setup::default() }).await;
    for times in [-3, -10, i32::MIN] {
        let sent = running.send(&SendMessage { reconsume_times: Some(times), ..to("Orders", 0, "") }, "x").await;
        assert_eq!(sent.code, 0);
    }
    for (message, count) in running.all("Orders", 0).await.iter().zip(1..) {
        let answer = running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(message), "").await;
        assert_eq!((answer.code, answer.remark), (0, None));
        let again = running.wait_for("%RETRY%CG", 0, count).await.remove(count - 1);
        assert_eq!(again.property("DELAY"), Some("1"));
    }
}

pub(super) fn back_of(message: &Message) -> SendBack<'static> {
    SendBack {
        offset: i64::try_from(message.log_offset).unwrap(),
        group: "CG",
        delay_level: 0,
        origin_msg_id: None,
        origin_topic: None,
        unit_mode: false,
        max_reconsume_times: None,
        broker_name: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_to_a_retry_topic_too_often_is_a_dead_letter() {
    let running = start(Setup::default()).await;
    let delay = properties(&[("DELAY", "3")]);
    let message = SendMessage { reconsume_times: Some(3), max_reconsume_times: Some(2), ..to("%RETRY%CG", 0, &delay) };
    let response = running.send(&message, "spent").await;
    assert_eq!(response.code, 0);
    let dead = running.wait_for("%DLQ%CG", 0, 1).await.remove(0);
    assert_eq!((dead.body.as_str(), dead.property("DELAY")), ("spent", Some("-1")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asking_for_the_end_of_a_queue_does_not_create_it() {
    let running = start(Setup::default()).await;
    let asked = GetMaxOffset { topic: "Nobody", queue_id: 0, committed: true };
    let response = running.call(request::GET_MAX_OFFSET, &asked, "").await;
    assert_eq!((response.code, response.fields.get("offset")), (0, Some("0")));
    let pulled = running.pull(&from("Nobody", 0, 0)).await;
    assert_eq!(pulled.code, 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_code_that_nobody_knows_is_answered_in_apaches_words() {
    let running = start(Setup::default()).await;
    let response = running.call(12_345, &(), "").await;
    assert_eq!((response.code, response.remark.as_deref()), (3, Some(" request type 12345 not supported")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sync_flush_a_message_that_was_sent_back_is_not_acknowledged_before_it_is_flushed() {
    let setup = Setup { is_sync: true, sync_flush_timeout: "60000", ..Setup::default() };
    let device = setup.device.clone();
    let running = start(setup).await;
    running.put("Orders", 0, "", "one").await;
    let message = running.all("Orders", 0).await.remove(0);
    // The first one waits for the journal too, where its retry topic is new.
    assert_eq!(running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(&message), "").await.code, 0);
    hold(&running, &device).await;
    let answer = running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(&message), "").await;
    release(&running, &device).await;
    assert_eq!(answer.code, 10, "{:?}", answer.remark);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_priority_chooses_the_queue() {
    let running = start(Setup::default()).await;
    let queue_of = async |pairs: &[(&str, &str)]| {
        let sent = running.put("Orders", 0, &properties(pairs), "x").await;
        let found = running.pull(&from("Orders", sent.queue_id, sent.queue_offset)).await;
        (sent.queue_id, found.messages[0].property("_SYS_MSG_PRIORITY_").map(str::to_owned))
    };
    assert_eq!(queue_of(&[("_SYS_MSG_PRIORITY_", "2")]).await, (2, Some("2".to_owned())));
    assert_eq!(queue_of(&[("_SYS_MSG_PRIORITY_", "900")]).await, (3, Some("900".to_owned())), "there are four queues");
    assert_eq!(queue_of(&[("_SYS_MSG_PRIORITY_", "2"), ("__SHARDINGKEY", "a")]).await, (0, None));
    assert_eq!(queue_of(&[]).await, (0, None));
}

/// `enableConsumeQueueExt`: in the place of the hash stands where Apache's file of extensions has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_apache_stored_with_extension_files_is_filtered_by_the_tags_of_the_messages() {
    let running = start(Setup::default()).await;
    for tag in ["A", "B", "A"] {
        running.put("Orders", 0, &properties(&[("TAGS", tag)]), tag).await;
    }
    let dir = running.stop().await;
    let path = dir.path().join("consumequeue/Orders/0").join(format!("{:020}", 0));
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for unit in 0..3 {
        let address = i64::from(i32::MIN) - 1 - 52 * unit;
        file.write_all_at(&address.to_be_bytes(), 20 * unit as u64 + 12).unwrap();
    }
    drop(file);
    let running = start_on(Setup::default(), dir).await;
    running.put("Orders", 0, &properties(&[("TAGS", "B")]), "ours").await;
    let found = running.pull(&PullMessage { subscription: Some("A"), ..from("Orders", 0, 0) }).await;
    let bodies: Vec<&str> = found.messages.iter().map(|message| message.body.as_str()).collect();
    assert_eq!((found.code, bodies, found.next), (0, vec!["A", "A"], 4));
    let order = PopMessage { exp: Some("B"), queue_id: 0, ..popping::from("Orders", 60_000) };
    assert_eq!(popping::pop(&running, &order).await.bodies(), ["B", "ours"]);
    running.stop().await;
}
