//! Logical queues, as clients and tools see them, on one broker and on two.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::slice::from_ref;
use std::sync::Arc;

use bytes::Bytes;
use net::{Burst, Connection, Listener, ListenerOptions, Outgoing, Service};
use parking_lot::Mutex;
use protocol::body::{
    BrokerData, ClusterInfo, ConsumeStats, LogicQueueMappingItem, TopicConfigAndQueueMapping, TopicConfigTable,
    TopicQueueMappingDetail,
};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::message_id::parse_offset_message_id;
use protocol::request::{
    CreateTopic, DeleteTopic, EarliestStoreTimeReply, EndTransaction, GetAllTopicConfig, GetConsumeStats,
    GetEarliestStoreTime, GetMaxOffset, GetMinOffset, GetTopicConfig, OffsetReply, PullMessage, QueryConsumerOffset,
    ResetOffset, SearchOffset, UpdateConsumerOffset, WhichQueue,
};
use protocol::sys_flag::{self, pull as bits};

use crate::support::{Device, Pulled, Running, Sent, Setup, from, start, start_on, to, until, waiting};
use crate::{json, make_group};

const T: &str = "T";

fn item(generation: i32, bname: &str, queue_id: i32, logic_offset: i64) -> LogicQueueMappingItem {
    LogicQueueMappingItem {
        bname: bname.to_owned(),
        end_offset: -1,
        generation,
        logic_offset,
        queue_id,
        start_offset: 0,
        time_of_end: -1,
        time_of_start: -1,
    }
}

fn detail(bname: &str, epoch: i64, queues: &[(i32, &[LogicQueueMappingItem])]) -> TopicQueueMappingDetail {
    TopicQueueMappingDetail {
        bname: bname.to_owned(),
        epoch,
        hosted_queues: queues.iter().map(|(id, items)| (*id, items.to_vec())).collect(),
        topic: T.to_owned(),
        total_queues: 4,
        ..TopicQueueMappingDetail::default()
    }
}

async fn map(running: &Running, detail: &TopicQueueMappingDetail, is_forced: bool) -> (i32, Option<String>) {
    let fields = CreateTopic {
        topic: T,
        default_topic: Some("TBW102"),
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: is_forced,
    };
    let answer = running.call(request::UPDATE_AND_CREATE_STATIC_TOPIC, &fields, json(detail)).await;
    (answer.code, answer.remark)
}

async fn put(running: &Running, queue_id: i32, body: &str) -> (i32, i64) {
    let response = running.send(&to(T, queue_id, ""), body).await;
    assert_eq!((response.code, &response.remark), (0, &None));
    let sent = Sent::of(&response);
    (sent.queue_id, sent.queue_offset)
}

async fn mapping(running: &Running) -> Option<TopicQueueMappingDetail> {
    let answer = running.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: T, lo: Some(true) }, "").await;
    fastjson::from_slice::<TopicConfigAndQueueMapping>(&answer.body).unwrap().mapping_detail
}

async fn commit(running: &Running, queue_id: i32, commit_offset: i64) -> i32 {
    let fields = UpdateConsumerOffset { consumer_group: "CG", topic: T, queue_id, commit_offset };
    running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code
}

async fn committed(running: &Running, queue_id: i32) -> Result<i64, i32> {
    let fields = QueryConsumerOffset { consumer_group: "CG", topic: T, queue_id, set_zero_if_not_found: Some(false) };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    if answer.code != 0 {
        Err(answer.code)
    } else {
        Ok(OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset)
    }
}

async fn bounds(running: &Running, queue_id: i32) -> (i64, i64) {
    let offset = |answer: net::Response| {
        assert_eq!((answer.code, &answer.remark), (0, &None));
        OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset
    };
    let min = running.call(request::GET_MIN_OFFSET, &GetMinOffset { topic: T, queue_id }, "").await;
    let max = GetMaxOffset { topic: T, queue_id, committed: true };
    (offset(min), offset(running.call(request::GET_MAX_OFFSET, &max, "").await))
}

async fn at_time(running: &Running, queue_id: i32, timestamp: i64, boundary_type: &str) -> i64 {
    let fields = SearchOffset { topic: T, queue_id, timestamp, boundary_type: Some(boundary_type), lite_topic: None };
    let answer = running.call(request::SEARCH_OFFSET_BY_TIMESTAMP, &fields, "").await;
    OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset
}

/// Everything a logical queue holds, with the offsets that clients make of it, and where the next pull would begin.
async fn read(running: &Running, queue_id: i32, mut at: i64) -> (Vec<(i64, String)>, i64) {
    let mut all = Vec::new();
    loop {
        let response = running.call(request::PULL_MESSAGE, &from(T, queue_id, at), "").await;
        let delta: i64 = response.fields.get("offsetDelta").map_or(0, |delta| delta.parse().unwrap());
        let pulled = Pulled::of(response);
        match pulled.code {
            0 => {
                all.extend(pulled.messages.into_iter().map(|found| (found.queue_offset as i64 + delta, found.body)));
                at = pulled.next;
            }
            20 => {
                assert_ne!(pulled.next, at, "turns on the spot");
                at = pulled.next;
            }
            19 => return (all, pulled.next),
            code => panic!("{code}: {:?}", pulled.remark),
        }
    }
}

fn bodies(read: &(Vec<(i64, String)>, i64)) -> Vec<(i64, &str)> {
    read.0.iter().map(|(at, body)| (*at, body.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_and_pulls_speak_of_logical_queues_and_what_is_not_led_is_refused() {
    let running = start(Setup::default()).await;
    let mapped = detail("broker-a", 1, &[(2, &[item(0, "broker-a", 0, 0)]), (3, &[item(0, "broker-b", 0, 0)])]);
    assert_eq!(map(&running, &mapped, false).await, (0, None));
    for (offset, body) in ["one", "two"].into_iter().enumerate() {
        assert_eq!(put(&running, 2, body).await, (2, offset as i64));
    }
    assert_eq!(put(&running, -1, "any").await, (2, 2), "the only queue that is led here");
    assert_eq!(bodies(&read(&running, 2, 0).await), [(0, "one"), (1, "two"), (2, "any")]);
    assert_eq!(bounds(&running, 2).await, (0, 3));

    let not_led = "T-3 does not exit in request process of current broker broker-a";
    let response = running.send(&to(T, 3, ""), "x").await;
    assert_eq!((response.code, response.remark.as_deref()), (501, Some(not_led)));
    let pulled = running.pull(&from(T, 3, 0)).await;
    let no_item = "T-3 cannot find mapping item in request process of current broker broker-a";
    assert_eq!((pulled.code, pulled.remark.as_deref()), (501, Some(no_item)));
    assert_eq!((commit(&running, 3, 0).await, committed(&running, 3).await), (501, Err(501)));
    for code in [request::GET_MAX_OFFSET, request::GET_MIN_OFFSET, request::GET_EARLIEST_MSG_STORETIME] {
        assert_eq!(running.call(code, &GetMinOffset { topic: T, queue_id: 1 }, "").await.code, 501, "{code}");
    }
    // Another leader asks about a physical queue.
    let physical = WhichQueue { lo: false, broker_name: "broker-a" };
    let answer = running.call(request::PULL_MESSAGE, &(from(T, 0, 0), physical.clone()), "").await;
    assert_eq!((answer.code, answer.fields.get("offsetDelta"), answer.fields.get("maxOffset")), (0, None, Some("3")));
    let priority = running.send(&to(T, 2, "_SYS_MSG_PRIORITY_\u{1}1\u{2}"), "x").await;
    assert_eq!(priority.code, 13, "{:?}", priority.remark);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_moved_is_read_from_its_first_place_to_its_last() {
    let running = start(Setup::default()).await;
    let (first, second) = (item(0, "broker-a", 0, 0), |at| item(1, "broker-a", 1, at));
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for body in ["a", "b", "c"] {
        put(&running, 0, body).await;
    }
    make_group(&running, "CG", 1).await;
    assert_eq!(commit(&running, 0, 2).await, 0);
    // The queue moves: its new place takes messages before it is decided at which offset it begins.
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &[first.clone(), second(-1)])]), false).await.0, 0);
    assert_eq!(put(&running, 0, "d").await, (0, -1));
    let halfway = read(&running, 0, 0).await;
    assert_eq!((bodies(&halfway), halfway.1), (vec![(0, "a"), (1, "b"), (2, "c")], 3));
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &[first, second(10_000)])]), false).await.0, 0);
    assert_eq!(put(&running, 0, "e").await, (0, 10_001));
    let whole = [(0, "a"), (1, "b"), (2, "c"), (10_000, "d"), (10_001, "e")];
    assert_eq!(bodies(&read(&running, 0, 0).await), whole);
    assert_eq!(bodies(&read(&running, 0, 5_000).await), whole[3..], "between the places");
    assert_eq!(bodies(&read(&running, 0, 10_001).await), whole[4..]);
    assert_eq!(bounds(&running, 0).await, (0, 10_002));

    let moved = running.pull(&from(T, 0, 20_000)).await;
    assert_eq!((moved.code, moved.next), (21, 10_002), "beyond the end");
    assert_eq!(committed(&running, 0).await, Ok(2), "the offset lies in the first place");
    assert_eq!((commit(&running, 0, 10_001).await, committed(&running, 0).await), (0, Ok(10_001)));
    // What a pull commits is a logical offset too.
    let pull =
        PullMessage { commit_offset: 10_002, sys_flag: bits::SUBSCRIPTION | bits::COMMIT_OFFSET, ..from(T, 0, 10_002) };
    running.pull(&pull).await;
    assert_eq!(committed(&running, 0).await, Ok(10_002));

    assert_eq!(at_time(&running, 0, 0, "LOWER").await, 0);
    assert_eq!(at_time(&running, 0, i64::MAX / 2, "LOWER").await, 10_002);
    assert_eq!(at_time(&running, 0, i64::MAX / 2, "UPPER").await, 10_001);
    let fields = GetEarliestStoreTime { topic: T, queue_id: 0 };
    let answer = running.call(request::GET_EARLIEST_MSG_STORETIME, &fields, "").await;
    assert!(EarliestStoreTimeReply::decode(&answer.fields.as_fields()).unwrap().timestamp > 0);
    let stats = GetConsumeStats { consumer_group: "CG", topic: Some(T), topic_list: None };
    let stats = running.call(request::GET_CONSUME_STATS, &stats, "").await;
    let stats: ConsumeStats = fastjson::from_slice(&stats.body).unwrap();
    let offsets: Vec<i64> = stats.offset_table.values().map(|offset| offset.consumer_offset).collect();
    assert_eq!(offsets, [2, 2, -1, -1], "of physical queues; nowhere is not the beginning");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_wait_at_the_last_place_and_hear_when_their_queue_moves_away() {
    let running = start(Setup::default()).await;
    let here = item(0, "broker-a", 0, 0);
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&here))]), false).await.0, 0);
    let pull = waiting(from(T, 0, 0), 15_000);
    let (found, ()) = tokio::join!(running.pull(&pull), async {
        running.until_parked(1).await;
        put(&running, 0, "woken").await;
    });
    assert_eq!((found.code, found.messages.len()), (0, 1));
    let pull = waiting(from(T, 0, 1), 15_000);
    let moved = detail("broker-a", 2, &[(0, &[here, item(1, "broker-b", 0, 10_000)])]);
    let (found, ()) = tokio::join!(running.pull(&pull), async {
        running.until_parked(1).await;
        assert_eq!(map(&running, &moved, false).await.0, 0);
    });
    assert_eq!(found.code, 501);
    running.stop().await;
}

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
async fn a_message_that_waits_is_named_by_where_it_waits() {
    let running = start(Setup::default()).await;
    let moved = [item(0, "broker-b", 0, 0), item(1, "broker-a", 0, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, &moved)]), false).await.0, 0);
    let properties = "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}UNIQ_KEY\u{1}KEY\u{2}";
    let half = Sent::of(&running.send(&to(T, 0, properties), "half").await);
    assert_eq!((half.queue_id, half.queue_offset), (0, 0));
    let end = EndTransaction {
        producer_group: "PG",
        tran_state_table_offset: half.queue_offset,
        commit_log_offset: parse_offset_message_id(&half.id).unwrap().1 as i64,
        commit_or_rollback: sys_flag::TRANSACTION_COMMIT,
        from_transaction_check: false,
        msg_id: "KEY",
        transaction_id: None,
        topic: None,
    };
    let answer = running.call(request::END_TRANSACTION, &end, "").await;
    assert_eq!((answer.code, answer.remark), (0, None));
    assert_eq!(bodies(&read(&running, 0, 10_000).await), [(10_000, "half")]);
    let delayed = Sent::of(&running.send(&to(T, 0, "DELAY\u{1}18\u{2}"), "delayed").await);
    assert_eq!((delayed.queue_id, delayed.queue_offset), (0, 0));
    assert_eq!(put(&running, 0, "plain").await, (0, 10_001));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_has_ended_is_not_read_beyond_its_end() {
    let running = start(Setup::default()).await;
    let first = item(0, "broker-a", 0, 0);
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for body in ["a", "b"] {
        put(&running, 0, body).await;
    }
    let ended = LogicQueueMappingItem { end_offset: 2, ..first };
    let moved = [ended, item(1, "broker-a", 1, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &moved)]), false).await, (0, None));
    put(&running, 0, "c").await;
    // It waited while the queue moved.
    let physical = WhichQueue { lo: false, broker_name: "broker-a" };
    let late = running.call(request::SEND_MESSAGE_V2, &(to(T, 0, "TAGS\u{1}late\u{2}"), physical), "late").await;
    assert_eq!((late.code, late.remark), (0, None));
    assert_eq!(bodies(&read(&running, 0, 0).await), [(0, "a"), (1, "b"), (10_000, "c")]);
    assert_eq!(bodies(&read(&running, 0, 2).await), [(10_000, "c")]);
    // A filter passes over all that is before the end.
    let only = PullMessage { subscription: Some("late"), ..from(T, 0, 0) };
    let response = running.pull(&only).await;
    assert_eq!((response.code, response.next, response.messages.len()), (20, 2, 0));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_goes_back_to_an_older_place_begins_there() {
    let running = start(Setup::default()).await;
    let moved = [item(0, "broker-a", 0, 0), item(1, "broker-a", 1, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, &moved)]), false).await.0, 0);
    make_group(&running, "CG", 1).await;
    assert_eq!((commit(&running, 0, 10_050).await, committed(&running, 0).await), (0, Ok(10_050)));
    assert_eq!((commit(&running, 0, 2).await, committed(&running, 0).await), (0, Ok(2)));
    let left = running.stop().await;
    let running = start_on(Setup::default(), left).await;
    assert_eq!(committed(&running, 0).await, Ok(2));
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

fn create() -> CreateTopic<'static> {
    CreateTopic {
        topic: T,
        default_topic: None,
        read_queue_nums: 4,
        write_queue_nums: 4,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    }
}

const OF_B: &[(&str, &str)] = &[("brokerName", "broker-b"), ("autoCreateSubscriptionGroup", "false")];

/// A name server that knows where brokers are, and nothing else.
#[derive(Default)]
struct Names(Mutex<BTreeMap<String, String>>);

impl Service for Names {
    type Session = ();
    type Work = ();

    fn open(&self, _: &Connection<()>) {}

    async fn serve(&self, _: &mut (), burst: &mut Burst<'_>, out: &mut Outgoing) {
        while let Some(request) = burst.next() {
            let brokers = self.0.lock().clone().into_iter().map(|(name, address)| {
                let data = BrokerData {
                    broker_name: name.clone(),
                    broker_addrs: [(0, address)].into(),
                    ..BrokerData::default()
                };
                (name, data)
            });
            let info = ClusterInfo { broker_addr_table: brokers.collect(), ..ClusterInfo::default() };
            let body = if request.header.code == request::GET_BROKER_CLUSTER_INFO { json(&info) } else { Bytes::new() };
            out.reply(request.reply_to(), ResponseCode::Success, None, &(), &body);
        }
    }

    async fn resume(&self, _: &mut (), (): (), _: &mut Outgoing) {}

    fn close(&self, (): ()) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_at_another_broker_is_asked_for_there() {
    let names = Arc::new(Names::default());
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(any, ListenerOptions { tls: None, ..ListenerOptions::default() }, Arc::clone(&names));
    let listener = listener.unwrap();
    let name_servers = vec![listener.local_addr().to_string()];
    let serving = tokio::spawn(listener.run(std::future::pending()));
    let a = start(Setup { name_servers: name_servers.clone(), ..Setup::default() }).await;
    let b = start(Setup { name_servers, more: OF_B, ..Setup::default() }).await;
    let (first, second) = (item(0, "broker-a", 0, 0), item(1, "broker-b", 0, 10_000));
    assert_eq!(map(&a, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for body in ["a", "b"] {
        put(&a, 0, body).await;
    }
    for running in [&a, &b] {
        make_group(running, "CG", 1).await;
    }
    assert_eq!(commit(&a, 0, 1).await, 0);
    let moved = [first, second];
    assert_eq!(map(&a, &detail("broker-a", 2, &[(0, &moved)]), false).await.0, 0);
    let lost = [item(0, "broker-c", 0, 0), item(1, "broker-b", 1, 10_000)];
    assert_eq!(map(&b, &detail("broker-b", 2, &[(0, &moved), (1, &lost)]), false).await.0, 0);
    names.0.lock().insert("broker-a".to_owned(), a.address.clone());
    let unknown = b.pull(&from(T, 1, 0)).await;
    assert_eq!((unknown.code, unknown.remark.as_deref()), (1, Some("cannot find addr for broker broker-c")));

    assert_eq!(put(&b, 0, "c").await, (0, 10_000));
    assert_eq!(bodies(&read(&b, 0, 0).await), [(0, "a"), (1, "b"), (10_000, "c")]);
    assert_eq!(bounds(&b, 0).await, (0, 10_001));
    assert_eq!(committed(&b, 0).await, Ok(1), "as it was committed at the broker before");
    assert_eq!((commit(&b, 0, 2).await, committed(&b, 0).await), (0, Ok(2)));
    assert_eq!((commit(&b, 0, 10_000).await, committed(&b, 0).await), (0, Ok(10_000)));
    assert_eq!((commit(&b, 0, 1).await, committed(&b, 0).await), (0, Ok(1)), "back where the other broker holds it");
    let nobody = UpdateConsumerOffset { consumer_group: "nobody", topic: T, queue_id: 0, commit_offset: 1 };
    assert_eq!(b.call(request::UPDATE_CONSUMER_OFFSET, &nobody, "").await.code, 26, "whoever holds the place");
    // A tool resets the group at the broker that holds the place; the consumer hears of it here.
    let fields = ResetOffset { group: "CG", topic: T, queue_id: 0, offset: Some(0), timestamp: -1, is_force: true };
    assert_eq!(a.call(request::INVOKE_BROKER_TO_RESET_OFFSET, &fields, "").await.code, 0);
    let reset = b.pull(&from(T, 0, 2)).await;
    assert_eq!((reset.code, reset.next, reset.remark.as_deref()), (21, 0, Some("OFFSET_RESET")));
    assert_eq!(at_time(&b, 0, 0, "LOWER").await, 0);
    assert_eq!(at_time(&b, 0, i64::MAX / 2, "LOWER").await, 10_001);
    let answer = b.call(request::GET_EARLIEST_MSG_STORETIME, &GetEarliestStoreTime { topic: T, queue_id: 0 }, "").await;
    assert!(EarliestStoreTimeReply::decode(&answer.fields.as_fields()).unwrap().timestamp > 0);
    a.stop().await;
    let gone = b.pull(&from(T, 0, 0)).await;
    assert_eq!(gone.code, 1, "{:?}", gone.remark);
    b.stop().await;
    serving.abort();
}
