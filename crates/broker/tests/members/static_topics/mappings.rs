//! Which mappings a broker takes, and what becomes of them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_new_mapping_is_answered_when_what_was_accepted_under_the_old_one_is_stored() {
    let device = Device::default();
    let running = start(Setup { is_sync: true, device: device.clone(), ..Setup::default() }).await;
    let here = item(0, "broker-a", 0, 0);
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&here))]), false).await.0, 0);
    device.hold_flush(true);
    let answered = Mutex::new(Vec::new());
    let sending = async {
        put(&running, 0, "late").await;
        answered.lock().push("send");
    };
    let mapping_anew = async {
        until("the message is in the log", || running.store().queue(T, 0).unwrap().max_offset() == 1).await;
        let moved = detail("broker-a", 2, &[(0, &[here, item(1, "broker-b", 0, 10_000)])]);
        assert_eq!(map(&running, &moved, false).await, (0, None));
        answered.lock().push("mapping");
    };
    let again = async {
        while mapping(&running).await.is_none_or(|mapping| mapping.epoch != 2) {
            tokio::task::yield_now().await;
        }
        // Nobody holds the mapping that this one replaces.
        let moved = detail("broker-a", 3, &[(0, &[item(0, "broker-a", 0, 0), item(1, "broker-b", 0, 10_000)])]);
        assert_eq!(map(&running, &moved, false).await, (0, None));
        answered.lock().push("another mapping");
    };
    let letting_go = async {
        while mapping(&running).await.is_none_or(|mapping| mapping.epoch != 3) {
            tokio::task::yield_now().await;
        }
        // Behind the mapping in the journal.
        crate::make_topic(&running, "another").await;
        let too_early = answered.lock().clone();
        device.hold_flush(false);
        assert_eq!(too_early, [""; 0]);
    };
    tokio::join!(sending, mapping_anew, again, letting_go);
    assert_eq!(answered.lock().len(), 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_survives_a_restart_and_goes_with_its_topic() {
    let running = start(Setup::default()).await;
    let mapped = detail("broker-a", 7, &[(0, &[item(0, "broker-a", 0, 0)])]);
    assert_eq!(map(&running, &mapped, false).await.0, 0);
    let whole = mapping(&running).await.unwrap();
    assert_eq!((whole.scope.as_deref(), &whole.hosted_queues), (Some("__global__"), &mapped.hosted_queues));
    let crashed = start_on(Setup::default(), running.image()).await;
    assert_eq!(mapping(&crashed).await.as_ref(), Some(&whole));
    crashed.stop().await;
    let left = running.stop().await;
    let file = left.path().join("config/topicQueueMapping.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"hostedQueues\""), "{text}");

    // Another broker has written it meanwhile, in Apache's JSON.
    let changed = r#"{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":1},"topicQueueMappingInfoMap":{"T":{"bname":"broker-a","currIdMap":{},
        "dirty":false,"epoch":8,"hostedQueues":{0:[{"bname":"broker-a","endOffset":-1,"gen":0,"logicOffset":0,"queueId":0,"startOffset":0,"timeOfEnd":-1,
        "timeOfStart":-1}]},"scope":"__global__","topic":"T","totalQueues":4}}}"#;
    std::fs::write(&file, changed).unwrap();
    let running = start_on(Setup::default(), left).await;
    assert_eq!(mapping(&running).await.map(|detail| detail.epoch), Some(8));
    let all = GetAllTopicConfig { topic_seq: None, data_version: None, max_topic_num: None };
    let all = running.call(request::GET_ALL_TOPIC_CONFIG, &all, "").await;
    let all: TopicConfigTable = fastjson::from_slice(&all.body).unwrap();
    assert!(all.topic_queue_mapping_detail_map.unwrap().contains_key(T));
    assert_eq!(all.mapping_data_version.unwrap().counter, 9);
    assert_eq!(running.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: T }, "").await.code, 0);
    let left = running.stop().await;
    let running = start_on(Setup::default(), left).await;
    crate::make_topic(&running, T).await;
    assert_eq!(mapping(&running).await, None);
    assert_eq!(put(&running, 3, "ordinary").await, (3, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_that_does_not_fit_changes_nothing() {
    let running = start(Setup::default()).await;
    let good = detail("broker-a", 5, &[(0, &[item(0, "broker-a", 0, 0)])]);
    let foreign = TopicQueueMappingDetail { bname: "broker-b".to_owned(), ..good.clone() };
    let (code, remark) = map(&running, &foreign, false).await;
    assert_eq!((code, remark.as_deref()), (1, Some("The broker name is not equal broker-a != broker-b")));
    let topic = GetTopicConfig { topic: T, lo: None };
    assert_eq!(running.call(request::GET_TOPIC_CONFIG, &topic, "").await.code, 17, "the topic was not made");
    assert_eq!(map(&running, &good, false).await.0, 0);
    let (code, remark) = map(&running, &detail("broker-a", 4, &[]), false).await;
    assert_eq!((code, remark.as_deref()), (1, Some("Can't accept data with small epoch 4 < 5")));
    assert_eq!(mapping(&running).await.unwrap().epoch, 5);
    assert_eq!(map(&running, &detail("broker-a", 4, &[]), true).await.0, 0, "an operator may insist");
    let fields = CreateTopic { topic: "TBW102", ..create() };
    let answer = running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, json(&good)).await;
    assert_eq!(answer.code, ResponseCode::InvalidParameter as i32, "{:?}", answer.remark);
    let answer = running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &create(), "").await;
    assert_eq!(answer.remark.as_deref(), Some("the request has no body"));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_light_queue_gets_no_mapping() {
    let running = start(Setup { light_queues: Some("100"), ..Setup::default() }).await;
    let fields = CreateTopic { topic: "%LMQ%x", read_queue_nums: 1, write_queue_nums: 1, ..create() };
    let mapped = detail("broker-a", 1, &[(0, &[item(0, "broker-a", 0, 0)])]);
    let mapped = TopicQueueMappingDetail { topic: "%LMQ%x".to_owned(), ..mapped };
    let answer = running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, json(&mapped)).await;
    assert_eq!(answer.code, 29, "{:?}", answer.remark);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_static_topic_keeps_the_queues_that_its_mapping_needs() {
    let running = start(Setup::default()).await;
    let mapped = detail("broker-a", 1, &[(0, &[item(0, "broker-a", 3, 0)])]);
    let fewer = CreateTopic { read_queue_nums: 3, ..create() };
    let answer = running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fewer, json(&mapped)).await;
    assert_eq!(answer.code, 1, "what cannot be read must not be sent to");
    assert_eq!(map(&running, &mapped, false).await.0, 0);
    assert_eq!(running.call(request::UPDATE_AND_CREATE_TOPIC, &fewer, "").await.code, 29);
    assert_eq!(running.call(request::UPDATE_AND_CREATE_TOPIC, &create(), "").await.code, 0);
    // The queue that is kept is one of those of the new mapping.
    let twice = detail("broker-a", 2, &[(1, &[item(0, "broker-a", 3, 0)])]);
    assert_eq!(map(&running, &twice, false).await.0, 1);
    running.stop().await;
}

/// The same as [`map`] by a tool that has seen a mapping of this epoch.
async fn map_if(running: &Running, detail: &TopicQueueMappingDetail, expected: i64) -> i32 {
    let fields = (create(), ExpectedEpoch { expected_epoch: Some(expected) });
    running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, json(detail)).await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_operators_who_saw_the_same_mapping_one_changes_it() {
    let running = start(Setup::default()).await;
    let first = item(0, "broker-a", 0, 0);
    let made = detail("broker-a", 5, &[(0, from_ref(&first))]);
    assert_eq!(map_if(&running, &made, 3).await, 1, "there is no mapping of epoch 3, and none at all");
    assert_eq!(map_if(&running, &made, -1).await, 0);
    let to = |epoch, broker: &str| detail("broker-a", epoch, &[(0, &[first.clone(), item(1, broker, 0, -1)])]);
    assert_eq!(map_if(&running, &to(6, "broker-b"), 5).await, 0);
    assert_eq!(map_if(&running, &to(7, "broker-b"), 5).await, 1, "he is too late, though his epoch is newer");
    assert_eq!(map_if(&running, &to(6, "broker-c"), 5).await, 1, "and so is he, with the same one");
    assert_eq!(map_if(&running, &to(6, "broker-b"), 5).await, 0, "what comes twice is the same change");
    assert_eq!(mapping(&running).await.unwrap().hosted_queues, to(6, "broker-b").hosted_queues);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_a_move_that_comes_late_or_twice_takes_nothing_back() {
    let running = start(Setup::default()).await;
    let first = item(0, "broker-a", 0, 0);
    let old = detail("broker-a", 5, &[(0, from_ref(&first))]);
    let step = |at| detail("broker-a", 6, &[(0, &[first.clone(), item(1, "broker-b", 0, at)])]);
    for (step, code) in [(&old, 0), (&step(-1), 0), (&step(-1), 0), (&step(10_000), 0)] {
        assert_eq!(map(&running, step, false).await.0, code);
    }
    for late in [&step(-1), &old, &step(20_000)] {
        assert_eq!(map(&running, late, false).await.0, 1);
    }
    assert_eq!(map(&running, &step(10_000), false).await.0, 0);
    assert_eq!(mapping(&running).await.unwrap().hosted_queues, step(10_000).hosted_queues);
    running.stop().await;
}
