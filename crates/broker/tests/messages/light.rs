use std::sync::Arc;
use std::time::Duration;

use net::Response;
use protocol::code::request;
use protocol::request::{
    DeleteTopic, EndTransaction, GetMaxOffset, GetMinOffset, GetTopicStats, QueryConsumerOffset, SendMessage,
    UpdateConsumerOffset,
};
use tokio::time::timeout;

use crate::batch_queues::{create, send_batch};
use crate::support::*;

fn setup() -> Setup {
    Setup { light_queues: Some("100"), ..Setup::default() }
}

pub(super) fn listed(queues: &str) -> String {
    properties(&[("INNER_MULTI_DISPATCH", queues)])
}

/// Bodies of a light queue with the numbers that the messages say they have there, in the order of the list.
async fn light(running: &Running, queue: &str) -> Vec<(String, String)> {
    let found = running.all(queue, 0).await;
    found
        .into_iter()
        .map(|found| (found.property("INNER_MULTI_QUEUE_OFFSET").unwrap_or("none").to_owned(), found.body))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(numbers, body)| ((*numbers).to_owned(), (*body).to_owned())).collect()
}

async fn refused(running: &Running, message: &SendMessage<'_>, body: &str) -> (i32, String) {
    let response = running.send(message, body).await;
    (response.code, response.remark.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_pulled_from_its_topic_and_from_each_light_queue_that_it_names() {
    let running = start(setup()).await;
    running.put("Orders", 1, &listed("%LMQ%a,%LMQ%b"), "one").await;
    running.put("Orders", 1, &listed("%LMQ%b"), "two").await;
    running.put("Orders", 1, "", "three").await;
    running.put("Orders", 1, &listed("%LMQ%b,%LMQ%GID@@@device$1"), "four").await;
    assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0,0", "one")]));
    assert_eq!(light(&running, "%LMQ%b").await, pairs(&[("0,0", "one"), ("1", "two"), ("2,0", "four")]));
    assert_eq!(light(&running, "%LMQ%GID@@@device$1").await, pairs(&[("2,0", "four")]));
    let own: Vec<_> =
        running.all("Orders", 1).await.into_iter().map(|found| (found.topic, found.queue_offset)).collect();
    assert_eq!(own, (0..4).map(|offset| ("Orders".to_owned(), offset)).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_waits_on_a_light_queue_is_woken_also_with_sync_flush_and_before_there_is_one() {
    for is_sync in [false, true] {
        let running = Arc::new(start(Setup { is_sync, ..setup() }).await);
        for round in 0..20 {
            let pulls: Vec<_> = ["%LMQ%a", "%LMQ%b"]
                .map(|queue| {
                    let running = Arc::clone(&running);
                    tokio::spawn(async move { running.pull(&waiting(from(queue, 0, round), 15_000)).await })
                })
                .into();
            if round % 2 == 0 {
                running.until_parked(2).await;
            }
            running.put("Orders", 0, &listed("%LMQ%a,%LMQ%b"), "x").await;
            for pull in pulls {
                let found = timeout(DEADLINE, pull).await.expect("a wake-up was lost").unwrap();
                assert_eq!((found.code, found.messages.len()), (0, 1));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn light_queues_and_their_numbers_are_the_same_after_a_stop_and_after_a_crash() {
    let running = start(setup()).await;
    for number in 0..20 {
        running.put("Orders", 0, &listed(&format!("%LMQ%all,%LMQ%q{}", number % 3)), &number.to_string()).await;
    }
    let before = (light(&running, "%LMQ%all").await, light(&running, "%LMQ%q1").await);
    let image = running.image();
    for dir in [image, running.stop().await] {
        let running = start_on(setup(), dir).await;
        assert_eq!((light(&running, "%LMQ%all").await, light(&running, "%LMQ%q1").await), before);
        running.put("Orders", 0, &listed("%LMQ%all"), "next").await;
        assert_eq!(light(&running, "%LMQ%all").await.last(), Some(&("20".to_owned(), "next".to_owned())));
    }
}

async fn offset(running: &Running, code: i32, queue: &str) -> i64 {
    let fields = GetMaxOffset { topic: queue, queue_id: 0, committed: false };
    let min = GetMinOffset { topic: queue, queue_id: 0 };
    let response = match code {
        request::GET_MIN_OFFSET => running.call(code, &min, "").await,
        _ => running.call(code, &fields, "").await,
    };
    assert_eq!(response.code, 0, "{:?}", response.remark);
    response.fields.get("offset").unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_keep_their_offsets_of_light_queues_and_apache_finds_them_in_its_file() {
    let running = start(setup()).await;
    for _ in 0..3 {
        running.put("Orders", 0, &listed("%LMQ%a"), "x").await;
    }
    assert_eq!(offset(&running, request::GET_MAX_OFFSET, "%LMQ%a").await, 3);
    assert_eq!(offset(&running, request::GET_MIN_OFFSET, "%LMQ%a").await, 0);
    let commit = |consumer_group, topic, commit_offset| UpdateConsumerOffset {
        consumer_group,
        topic,
        queue_id: 0,
        commit_offset,
    };
    let group = r#"{"groupName":"CG"}"#;
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), group).await.code, 0);
    for (group, topic, offset) in [("CG", "%LMQ%a", 2), ("%LMQ%g", "%LMQ%a", 1), ("CG", "Orders", 3)] {
        let response = running.call(request::UPDATE_CONSUMER_OFFSET, &commit(group, topic, offset), "").await;
        assert_eq!((response.code, response.remark), (0, None), "{group} {topic}");
    }
    let dir = running.stop().await;
    let file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("config/lmqConsumerOffset.json")).unwrap()).unwrap();
    assert_eq!(file["lmqOffsetTable"], serde_json::json!({"%LMQ%a@%LMQ%g": 1}));
    assert_eq!(file["offsetTable"], serde_json::json!({"%LMQ%a@CG": {"0": 2}, "Orders@CG": {"0": 3}}));
    // Another broker goes on.
    let changed = r#"{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":9},"lmqOffsetTable":{"%LMQ%a@%LMQ%g":3},"offsetTable":{"Orders@CG":{0:1}}}"#;
    std::fs::write(dir.path().join("config/lmqConsumerOffset.json"), changed).unwrap();
    let running = start_on(setup(), dir).await;
    let ask = |consumer_group, topic| QueryConsumerOffset {
        consumer_group,
        topic,
        queue_id: 0,
        set_zero_if_not_found: Some(false),
    };
    for (group, topic, expected) in [("%LMQ%g", "%LMQ%a", Some(3)), ("CG", "Orders", Some(1)), ("CG", "%LMQ%a", None)] {
        let response = running.call(request::QUERY_CONSUMER_OFFSET, &ask(group, topic), "").await;
        let found: Option<i64> = (response.code == 0).then(|| response.fields.get("offset").unwrap().parse().unwrap());
        assert_eq!(found, expected, "{group} {topic}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_keep_their_offsets_when_apaches_light_queues_are_switched_on() {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    std::fs::create_dir_all(dir.path().join("config")).unwrap();
    let offsets = r#"{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":9},"offsetTable":{"Orders@CG":{0:1}}}"#;
    std::fs::write(dir.path().join("config/consumerOffset.json"), offsets).unwrap();
    let running = start_on(setup(), dir).await;
    let asked =
        QueryConsumerOffset { consumer_group: "CG", topic: "Orders", queue_id: 0, set_zero_if_not_found: Some(false) };
    let response = running.call(request::QUERY_CONSUMER_OFFSET, &asked, "").await;
    assert_eq!((response.code, response.fields.get("offset")), (0, Some("1")));
    let dir = running.stop().await;
    for file in ["consumerOffset.json", "lmqConsumerOffset.json"] {
        let written: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.path().join("config").join(file)).unwrap()).unwrap();
        assert_eq!(written["offsetTable"], serde_json::json!({"Orders@CG": {"0": 1}}), "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn light_queues_and_groups_named_like_them_are_in_no_list_and_in_no_file() {
    let running = start(setup()).await;
    running.put("Orders", 0, &listed("%LMQ%a"), "x").await;
    assert_eq!(
        running.pull(&protocol::request::PullMessage { consumer_group: "%LMQ%g", ..from("%LMQ%a", 0, 0) }).await.code,
        0
    );
    let says = |response: Response| String::from_utf8(response.body.to_vec()).unwrap();
    let topics = says(running.call(request::GET_ALL_TOPIC_CONFIG, &(), "").await);
    assert!(topics.contains("Orders") && !topics.contains("LMQ"), "{topics}");
    let groups = says(running.call(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, &(), "").await);
    assert!(groups.contains("TOOLS_CONSUMER") && !groups.contains("LMQ"), "{groups}");
    // Whoever asks for one gets its figures.
    let stats = says(running.call(request::GET_TOPIC_STATS_INFO, &GetTopicStats { topic: "%LMQ%a" }, "").await);
    assert!(stats.contains("\"maxOffset\":1"), "{stats}");
    let dir = running.stop().await;
    for file in ["topics.json", "subscriptionGroup.json"] {
        let text = std::fs::read_to_string(dir.path().join("config").join(file)).unwrap();
        assert!(!text.contains("LMQ"), "{file}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_and_half_messages_come_into_their_light_queues_when_they_come_into_their_topic() {
    let (setup, hand) = setup().standing();
    let running = start(setup.clone()).await;
    let delayed = properties(&[("DELAY", "1"), ("INNER_MULTI_DISPATCH", "%LMQ%a"), ("INNER_MULTI_QUEUE_OFFSET", "77")]);
    running.put("Orders", 0, &delayed, "late").await;
    let half =
        properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", "u"), ("INNER_MULTI_DISPATCH", "%LMQ%a")]);
    running.put("Orders", 0, &half, "half").await;
    running.put("Orders", 0, &listed("%LMQ%a"), "first").await;
    let found = running.all("RMQ_SYS_TRANS_HALF_TOPIC", 0).await.remove(0);
    let end = EndTransaction {
        topic: None,
        producer_group: "PG",
        tran_state_table_offset: 0,
        commit_log_offset: found.log_offset as i64,
        commit_or_rollback: 8,
        from_transaction_check: false,
        msg_id: "x",
        transaction_id: None,
    };
    assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0", "first")]));
    hand.advance(Duration::from_secs(1));
    running.wait_for("%LMQ%a", 0, 2).await;
    assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0", "first"), ("1", "late")]));
    assert_eq!(running.call(request::END_TRANSACTION, &end, "").await.code, 0);
    assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0", "first"), ("1", "late"), ("2", "half")]));
    let image = running.image();
    let again = start_on(setup, image).await;
    assert_eq!(light(&again, "%LMQ%a").await.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_batch_stand_in_their_light_queues_each_for_itself() {
    let running = start(setup()).await;
    let one = listed("%LMQ%a,%LMQ%b");
    let two = properties(&[("INNER_MULTI_QUEUE_OFFSET", "9"), ("INNER_MULTI_DISPATCH", "%LMQ%b")]);
    let body = batch_of(&[("one", &one), ("two", &two), ("three", "")]);
    let batch = SendMessage { batch: Some(true), ..to("Orders", 0, "") };
    let response = running.call(request::SEND_BATCH_MESSAGE, &batch, body).await;
    assert_eq!((response.code, response.remark), (0, None));
    assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0,0", "one")]));
    assert_eq!(light(&running, "%LMQ%b").await, pairs(&[("0,0", "one"), ("1", "two")]));
    let bad = batch_of(&[("one", &one), ("two", &listed("plain"))]);
    let response = running.call(request::SEND_BATCH_MESSAGE, &batch, bad).await;
    assert_eq!(response.code, 13);
    assert!(response.remark.unwrap().contains("message 1 of the batch: INNER_MULTI_DISPATCH names \"plain\""));
    assert_eq!(light(&running, "%LMQ%a").await.len(), 1, "nothing of a refused batch is stored");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_dispatched_is_refused_with_the_name_and_the_limit() {
    let running = start(Setup { light_queues: Some("3"), ..setup() }).await;
    let many = listed(&vec!["%LMQ%x"; 4_000].join(","));
    let long = listed(&format!("%LMQ%{}", "n".repeat(300)));
    for (list, why) in [
        (listed("orders"), "\"orders\", which is no light queue"),
        (listed("%LMQ%a,,%LMQ%b"), "\"\", which is no light queue"),
        (listed("%LMQ%a,%LMQ%a"), "\"%LMQ%a\" twice"),
        (listed("%LMQ%a/../b"), "no /"),
        (long, "limit is 255"),
        (many, "limit for a message is 1000"),
    ] {
        let (code, remark) = refused(&running, &to("Orders", 0, &list), "x").await;
        assert_eq!(code, 13, "{remark}");
        assert!(remark.contains(why), "{remark}");
    }
    let (code, remark) = refused(&running, &to("%LMQ%a", 0, &listed("%LMQ%a")), "x").await;
    assert!(code == 13 && remark.contains("itself"), "{remark}");
    let (code, remark) = refused(&running, &to("Orders", 0, &listed("%LMQ%a,%LMQ%b,%LMQ%c,%LMQ%d")), "x").await;
    assert_eq!(code, 1);
    assert!(remark.starts_with("[LMQ_CONSUME_QUEUE_NUM_EXCEEDED]lmq consume queue num exceeded."), "{remark}");
    assert!(remark.contains("the limit is 3 (maxLmqConsumeQueueNum)"), "{remark}");
    // Its own properties would fit; 20 digits for its number do not.
    let long = "v".repeat(i16::MAX as usize - listed("%LMQ%a").len() - 10);
    let (code, remark) =
        refused(&running, &to("Orders", 0, &format!("k\u{1}{long}\u{2}{}", listed("%LMQ%a"))), "x").await;
    assert!(code == 13 && remark.contains("properties length limit 32KB"), "{remark}");
    assert!(running.all("Orders", 0).await.is_empty(), "nothing that was refused is stored");
    assert_eq!(running.send(&to("Orders", 0, &listed("%LMQ%a,%LMQ%b,%LMQ%c")), "x").await.code, 0);
    // The limit may be raised while the broker runs.
    assert_eq!(running.call(request::UPDATE_BROKER_CONFIG, &(), "maxLmqConsumeQueueNum=4").await.code, 0);
    assert_eq!(running.send(&to("Orders", 0, &listed("%LMQ%d")), "x").await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_that_a_client_makes_up_are_never_stored() {
    for setup in [Setup::default(), setup()] {
        let running = start(setup).await;
        let forged = properties(&[("INNER_MULTI_QUEUE_OFFSET", "5"), ("a", "b")]);
        running.put("Orders", 0, &forged, "x").await;
        let found = running.all("Orders", 0).await.remove(0);
        assert_eq!((found.property("INNER_MULTI_QUEUE_OFFSET"), found.property("a")), (None, Some("b")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_settings_the_property_is_one_like_others() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, &listed("%LMQ%a,plain"), "x").await;
    let found = running.all("Orders", 0).await.remove(0);
    assert_eq!(found.property("INNER_MULTI_DISPATCH"), Some("%LMQ%a,plain"));
    assert_eq!(running.pull(&from("%LMQ%a", 0, 0)).await.code, 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_light_queue_can_be_sent_to_and_deleted_like_a_topic() {
    let running = start(setup()).await;
    running.put("Orders", 0, &listed("%LMQ%a"), "listed").await;
    assert_eq!(running.put("%LMQ%a", 0, "", "sent").await.queue_offset, 1);
    let found: Vec<_> = running.all("%LMQ%a", 0).await.into_iter().map(|found| found.body).collect();
    assert_eq!(found, ["listed", "sent"]);
    let image = running.image();
    let crashed = start_on(setup(), image).await;
    assert_eq!(crashed.all("%LMQ%a", 0).await.len(), 2);
    let deleted = running.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "%LMQ%a" }, "").await;
    assert_eq!(deleted.code, 0);
    assert!(running.all("%LMQ%a", 0).await.is_empty());
    running.put("Orders", 0, &listed("%LMQ%a"), "anew").await;
    assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0", "anew")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_stands_in_its_light_queues_when_it_is_due_and_wakes_who_waits_there() {
    for is_sync in [false, true] {
        let (setup, hand) = Setup { is_sync, ..setup() }.standing();
        let running = Arc::new(start(setup.clone()).await);
        let timed = properties(&[("INNER_MULTI_DISPATCH", "%LMQ%a"), ("TIMER_DELAY_MS", "700"), ("UNIQ_KEY", "timed")]);
        running.put("Orders", 0, &timed, "timed").await;
        running.put("%LMQ%b", 0, &properties(&[("TIMER_DELAY_MS", "700")]), "sent there").await;
        assert_eq!(light(&running, "%LMQ%a").await, pairs(&[]), "it is not due");
        let pulls: Vec<_> = ["%LMQ%a", "%LMQ%b"]
            .map(|queue| {
                let running = Arc::clone(&running);
                tokio::spawn(async move { running.pull(&waiting(from(queue, 0, 0), 15_000)).await })
            })
            .into();
        running.until_parked(2).await;
        hand.advance(Duration::from_millis(700));
        for pull in pulls {
            let found = timeout(DEADLINE, pull).await.expect("a wake-up was lost").unwrap();
            assert_eq!((found.code, found.messages.len()), (0, 1));
        }
        assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0", "timed")]));
        let crashed = start_on(setup, running.image()).await;
        assert_eq!(light(&crashed, "%LMQ%a").await, pairs(&[("0", "timed")]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_batch_topic_stands_in_light_queues_and_a_batch_in_none() {
    let running = start(setup()).await;
    assert_eq!(create(&running, "Batches", "+queue.type=BatchCQ").await.0, 0);
    let unique = properties(&[("UNIQ_KEY", "B1"), ("WAIT", "true")]);
    assert_eq!(send_batch(&running, "Batches", &unique, batch_of(&[("1", ""), ("2", "")])).await.code, 0);
    assert_eq!(running.put("Batches", 0, &listed("%LMQ%a"), "alone").await.queue_offset, 2);
    let named = listed("%LMQ%a");
    for (properties, body) in [
        (unique.clone(), batch_of(&[("1", ""), ("2", &named)])),
        (format!("{unique}{named}"), batch_of(&[("1", ""), ("2", "")])),
    ] {
        let response = send_batch(&running, "Batches", &properties, body).await;
        assert!(response.code == 13 && response.remark.unwrap().contains("own queue only"));
    }
    // Numbers that a client makes up lead recovery nowhere.
    let forged = properties(&[("UNIQ_KEY", "B2"), ("WAIT", "true"), ("INNER_MULTI_QUEUE_OFFSET", "1")]);
    assert_eq!(send_batch(&running, "Batches", &forged, batch_of(&[("3", ""), ("4", "")])).await.code, 0);
    let image = running.image();
    std::fs::remove_dir_all(image.path().join("consumequeue")).unwrap();
    for running in [running, start_on(setup(), image).await] {
        assert_eq!(light(&running, "%LMQ%a").await, pairs(&[("0", "alone")]));
        let found = running.pull(&from("Batches", 0, 0)).await;
        let offsets: Vec<_> = found.messages.iter().map(|found| found.queue_offset).collect();
        assert_eq!((offsets, found.next), (vec![0, 2, 3], 5));
    }
}
