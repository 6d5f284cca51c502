//! Clients, groups, offsets and operators, over a socket and a real store.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, reason = "a test that cannot go on stops")]

mod asking;
mod cleaning;
mod conditions;
mod forwarding;
mod gates;
mod journal_copies;
mod lite;
mod lite_pops;
mod lite_races;
mod long_requests;
mod masters;
mod own_stream;
mod passing_on;
mod relaying;
mod replicas;
mod replying;
mod slave_reads;
mod slaves;
mod static_topics;
mod switching;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use net::{Client, ClientOptions, Connection, Inbound, Outgoing, Request};
use protocol::body::{
    ConsumerData, ConsumerIdList, ConsumerOffsets, Heartbeat, KvTable, LockBatch, LockBatchReply, MessageQueue,
    ProducerData, ProducerTable, SubscriptionData, SubscriptionGroupConfig, TopicConfig, TopicConfigTable,
};
use protocol::code::request;
use protocol::fastjson::{self, Dialect};
use protocol::header::EncodeFields;
use protocol::request::{
    CreateTopic, DeleteGroup, DeleteTopic, GetConsumerList, GetTopicConfig, NotifyConsumerIdsChanged, OffsetReply,
    PopMessage, PullMessage, QueryConsumerOffset, ResetOffset, SendBack, SendMessage, UnregisterClient,
    UpdateConsumerOffset,
};
use testing::running as support;
use testing::running::{DEADLINE, Running, Setup, from, start, start_on};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Hears what the broker asks of a client.
struct Ear(mpsc::UnboundedSender<(i32, String)>);

impl Inbound for Ear {
    fn request(&self, _: &Connection<()>, request: &Request<'_>, _: &mut Outgoing) {
        let group =
            NotifyConsumerIdsChanged::decode(&request.header.fields).map(|fields| fields.consumer_group.to_owned());
        let _ = self.0.send((request.header.code, group.unwrap_or_default()));
    }
}

fn listening_client() -> (Client, mpsc::UnboundedReceiver<(i32, String)>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Client::with_inbound(ClientOptions::default(), Arc::new(Ear(sender))), receiver)
}

fn json<T: serde::Serialize>(value: &T) -> Bytes {
    fastjson::to_vec(value, Dialect::FastJson).into()
}

async fn beat(running: &Running, client: &Client, id: &str) {
    let subscription = SubscriptionData {
        topic: "T".to_owned(),
        sub_string: "*".to_owned(),
        sub_version: 1,
        ..SubscriptionData::default()
    };
    let consumer = ConsumerData {
        group_name: "G".to_owned(),
        subscription_data_set: vec![subscription],
        ..ConsumerData::default()
    };
    let body = Heartbeat { client_id: id.to_owned(), consumer_data_set: vec![consumer], ..Heartbeat::default() };
    let answer = client.call(&running.address, request::HEART_BEAT, &(), json(&body), DEADLINE).await.unwrap();
    assert_eq!((answer.code, answer.fields.get("IS_SUPPORT_HEART_BEAT_V2")), (0, Some("true")));
}

async fn ids(running: &Running) -> Vec<String> {
    let answer = running.call(request::GET_CONSUMER_LIST_BY_GROUP, &GetConsumerList { consumer_group: "G" }, "").await;
    fastjson::from_slice::<ConsumerIdList>(&answer.body).unwrap().consumer_id_list
}

async fn make_topic(running: &Running, topic: &str) {
    make_topic_with(running, topic, 4).await;
}

async fn make_topic_with(running: &Running, topic: &str, queues: i32) {
    let fields = CreateTopic {
        topic,
        default_topic: None,
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: Some("+message.type=NORMAL"),
        force: false,
    };
    assert_eq!(running.call(request::UPDATE_AND_CREATE_TOPIC, &fields, "").await.code, 0);
}

async fn make_group(running: &Running, name: &str, retry_queue_nums: i32) {
    let group =
        SubscriptionGroupConfig { group_name: name.to_owned(), retry_queue_nums, ..SubscriptionGroupConfig::default() };
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), json(&group)).await.code, 0);
}

async fn topic(running: &Running, topic: &str) -> TopicConfig {
    let answer = running.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic, lo: None }, "").await;
    fastjson::from_slice(&answer.body).unwrap()
}

async fn commit(running: &Running, queue_id: i32, commit_offset: i64) -> (i32, Option<String>) {
    let fields = UpdateConsumerOffset { consumer_group: "G", topic: "T", queue_id, commit_offset };
    let answer = running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await;
    (answer.code, answer.remark)
}

async fn committed(running: &Running, queue_id: i32) -> Result<i64, i32> {
    let fields = QueryConsumerOffset { consumer_group: "G", topic: "T", queue_id, set_zero_if_not_found: Some(false) };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    if answer.code == 0 {
        Ok(OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset)
    } else {
        Err(answer.code)
    }
}

/// A pop that does not wait, of messages that are away for a minute then.
fn pop_of<'a>(consumer_group: &'a str, topic: &'a str, queue_id: i32, max_msg_nums: i32) -> PopMessage<'a> {
    PopMessage {
        consumer_group,
        topic,
        queue_id,
        max_msg_nums,
        invisible_time: 60_000,
        poll_time: 0,
        born_time: 0,
        init_mode: 0,
        exp_type: None,
        exp: None,
        order: false,
        attempt_id: None,
    }
}

/// Where the broker lets a group begin that has committed nothing yet.
async fn beginning(running: &Running, topic: &str, queue_id: i32) -> Result<i64, i32> {
    let fields = QueryConsumerOffset { consumer_group: "New", topic, queue_id, set_zero_if_not_found: None };
    let answer = running.call(request::QUERY_CONSUMER_OFFSET, &fields, "").await;
    if answer.code == 0 {
        Ok(OffsetReply::decode(&answer.fields.as_fields()).unwrap().offset)
    } else {
        Err(answer.code)
    }
}

async fn code_of(running: &Running, code: i32, fields: &(dyn EncodeFields + Sync)) -> i32 {
    running.call(code, fields, "").await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_group_hear_of_each_other_and_of_a_closed_connection() {
    let running = start(Setup::default()).await;
    let (first, mut heard_by_first) = listening_client();
    let (second, _heard_by_second) = listening_client();
    beat(&running, &first, "a").await;
    let heard = timeout(DEADLINE, heard_by_first.recv()).await.unwrap();
    assert_eq!(heard, Some((request::NOTIFY_CONSUMER_IDS_CHANGED, "G".to_owned())));
    beat(&running, &second, "b").await;
    timeout(DEADLINE, heard_by_first.recv()).await.unwrap();
    assert_eq!(ids(&running).await, ["a", "b"]);
    assert_eq!(code_of(&running, request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: "%RETRY%G", lo: None }).await, 0);
    second.disconnect(&running.address);
    timeout(DEADLINE, heard_by_first.recv()).await.unwrap();
    assert_eq!(ids(&running).await, ["a"]);
    running.stop().await;
}

/// Enums as ordinals, a number as text: `HeartbeatData.h` of Apache's C++ client, which Python, Node and PHP wrap.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_of_the_cpp_client_is_a_member_of_its_group() {
    let running = start(Setup::default()).await;
    let beat = r#"{"clientID":"c","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"G","messageModel":1,"subscriptionDataSet":[{"codeSet":[0],"subString":"TagA","subVersion":"1700000000000","tagsSet":["TagA"],"topic":"T"}]}]}"#;
    let answer = running.call(request::HEART_BEAT, &(), beat).await;
    assert_eq!((answer.code, answer.remark), (0, None));
    assert_eq!(ids(&running).await, ["c"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn offsets_topics_and_groups_survive_a_restart_and_stand_in_rocketmqs_files() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    let group = SubscriptionGroupConfig {
        group_name: "G".to_owned(),
        retry_max_times: 3,
        ..SubscriptionGroupConfig::default()
    };
    assert_eq!(running.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), json(&group)).await.code, 0);
    assert_eq!(committed(&running, 1).await, Err(22));
    assert_eq!(commit(&running, 1, 42).await, (0, None));
    for queue_id in [-1, 4, 65_535] {
        assert_eq!(commit(&running, queue_id, 42).await.0, 29, "the topic has no queue {queue_id}");
    }
    let left = running.stop().await;

    let offsets: ConsumerOffsets =
        fastjson::from_slice(&fs::read(left.path().join("config/consumerOffset.json")).unwrap()).unwrap();
    assert_eq!(offsets.offset_table["T@G"][&1], 42);
    let topics: TopicConfigTable =
        fastjson::from_slice(&fs::read(left.path().join("config/topics.json")).unwrap()).unwrap();
    assert_eq!(topics.topic_config_table["T"].attributes["message.type"], "NORMAL");

    let running = start_on(Setup::default(), left).await;
    assert_eq!(committed(&running, 1).await, Ok(42));
    let answer = running.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: "T", lo: None }, "").await;
    assert_eq!(fastjson::from_slice::<TopicConfig>(&answer.body).unwrap().write_queue_nums, 4);
    let left = running.stop().await;

    // Another broker ran here and its consumers went on.
    let path = left.path().join("config/consumerOffset.json");
    fs::write(&path, r#"{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":2},"offsetTable":{"T@G":{1:77}}}"#)
        .unwrap();
    let running = start_on(Setup::default(), left).await;
    assert_eq!(committed(&running, 1).await, Ok(77));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_takes_its_offsets_along_though_the_broker_crashes_after_the_answer() {
    // Nothing carries them to the journal by itself before the test is over.
    let setup = Setup { more: &[("journalOffsetsMillis", "10000")], ..Setup::default() };
    for is_topic in [true, false] {
        let running = start(setup.clone()).await;
        make_topic(&running, "T").await;
        make_group(&running, "G", 1).await;
        for body in ["a", "b", "c"] {
            running.put("T", 1, "", body).await;
        }
        assert_eq!(commit(&running, 1, 2).await, (0, None));
        // Whoever is told an offset has it in the journal.
        assert_eq!(committed(&running, 1).await, Ok(2));
        let deleted = match is_topic {
            true => code_of(&running, request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "T" }).await,
            false => {
                let fields = DeleteGroup { group_name: "G", clean_offset: true };
                code_of(&running, request::DELETE_SUBSCRIPTIONGROUP, &fields).await
            }
        };
        assert_eq!(deleted, 0);
        let again = start_on(setup.clone(), running.image()).await;
        make_topic(&again, "T").await;
        assert_eq!(committed(&again, 1).await, Err(22), "is_topic={is_topic}");
        again.stop().await;
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_mistyped_is_refused_and_not_made_by_a_commit_or_a_reset() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    assert_eq!(commit(&running, 1, 0).await, (26, Some("Group G not exist!".to_owned())));
    for offset in [Some(0), None] {
        let fields = ResetOffset { group: "G", topic: "T", queue_id: 1, offset, timestamp: -1, is_force: true };
        assert_eq!(code_of(&running, request::INVOKE_BROKER_TO_RESET_OFFSET, &fields).await, 26);
    }
    assert_eq!(committed(&running, 1).await, Err(22));
    let groups = running.call(request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG, &(), "").await;
    assert!(!String::from_utf8_lossy(&groups.body).contains("\"G\""), "a group was made");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_holds_against_commits_until_a_pull_has_heard_of_it() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    for body in ["a", "b", "c"] {
        running.put("T", 1, "", body).await;
    }
    make_group(&running, "G", 1).await;
    assert_eq!(commit(&running, 1, 3).await, (0, None));
    let fields = ResetOffset { group: "G", topic: "T", queue_id: 1, offset: Some(1), timestamp: -1, is_force: true };
    assert_eq!(code_of(&running, request::INVOKE_BROKER_TO_RESET_OFFSET, &fields).await, 0);
    assert_eq!(commit(&running, 1, 3).await, (0, Some("Offset has been previously reset".to_owned())));
    assert_eq!(committed(&running, 1).await, Ok(1));
    let beyond = ResetOffset { offset: Some(9), ..fields };
    assert_eq!(code_of(&running, request::INVOKE_BROKER_TO_RESET_OFFSET, &beyond).await, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_locked_by_one_client_at_a_time() {
    let running = start(Setup::default()).await;
    let queue = MessageQueue { broker_name: "broker-a".to_owned(), queue_id: 0, topic: "T".to_owned() };
    let lock = |client: &str| {
        let batch = LockBatch {
            client_id: client.to_owned(),
            consumer_group: "G".to_owned(),
            mq_set: vec![queue.clone()],
            only_this_broker: false,
        };
        json(&batch)
    };
    let locked = async |client: &str| {
        let answer = running.call(request::LOCK_BATCH_MQ, &(), lock(client)).await;
        fastjson::from_slice::<LockBatchReply>(&answer.body).unwrap().lock_ok_mq_set.len()
    };
    let long = "x".repeat(300);
    assert_eq!(running.call(request::LOCK_BATCH_MQ, &(), lock(&long)).await.code, 29);
    let nameless = LockBatch { consumer_group: long, mq_set: vec![queue.clone()], ..LockBatch::default() };
    assert_eq!(running.call(request::LOCK_BATCH_MQ, &(), json(&nameless)).await.code, 29);
    assert_eq!(locked("a").await, 1);
    assert_eq!(locked("b").await, 0);
    assert_eq!(running.call(request::UNLOCK_BATCH_MQ, &(), lock("a")).await.code, 0);
    assert_eq!(locked("b").await, 1);
    running.stop().await;
}

/// How many of one queue a client locks in the name of `G`.
async fn lock_as(running: &Running, client: &str) -> usize {
    let queue = MessageQueue { broker_name: "broker-a".to_owned(), queue_id: 0, topic: "T".to_owned() };
    let batch = LockBatch {
        client_id: client.to_owned(),
        consumer_group: "G".to_owned(),
        mq_set: vec![queue],
        only_this_broker: false,
    };
    let answer = running.call(request::LOCK_BATCH_MQ, &(), json(&batch)).await;
    fastjson::from_slice::<LockBatchReply>(&answer.body).unwrap().lock_ok_mq_set.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_gone_keeps_its_queues_for_45_s_and_sends_no_retry_to_dead_letters() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    let (first, _heard_by_first) = listening_client();
    let (second, mut heard_by_second) = listening_client();
    beat(&running, &first, "a").await;
    beat(&running, &second, "b").await;
    timeout(DEADLINE, heard_by_second.recv()).await.unwrap();
    assert_eq!([lock_as(&running, "a").await, lock_as(&running, "b").await], [1, 0]);
    let retry = SendMessage { reconsume_times: Some(1), ..support::to("%RETRY%G", 0, "") };
    assert_eq!(running.send(&retry, "in order").await.code, 0);
    assert_eq!(running.all("%DLQ%G", 0).await.len(), 1);

    first.disconnect(&running.address);
    timeout(DEADLINE, heard_by_second.recv()).await.unwrap();
    assert_eq!(ids(&running).await, ["b"]);
    assert_eq!(running.send(&retry, "again").await.code, 0);
    assert_eq!((running.all("%RETRY%G", 0).await.len(), running.all("%DLQ%G", 0).await.len()), (1, 1));
    hand.advance(Duration::from_secs(31));
    assert_eq!(lock_as(&running, "b").await, 0, "it may still consume");
    hand.advance(Duration::from_secs(15));
    assert_eq!([lock_as(&running, "b").await, lock_as(&running, "c").await], [1, 0]);

    let leaves = UnregisterClient { client_id: "b", producer_group: None, consumer_group: Some("G") };
    let left = second.call(&running.address, request::UNREGISTER_CLIENT, &leaves, Bytes::new(), DEADLINE).await;
    assert_eq!((left.unwrap().code, lock_as(&running, "c").await), (0, 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_sends_back_is_a_dead_letter_from_when_it_has_come_back_to_its_queues() {
    let (setup, _hand) = Setup::default().standing();
    let running = start(setup).await;
    let (old, _heard_by_old) = listening_client();
    let (other, mut heard_by_other) = listening_client();
    let (new, _heard_by_new) = listening_client();
    beat(&running, &old, "a").await;
    beat(&running, &other, "b").await;
    timeout(DEADLINE, heard_by_other.recv()).await.unwrap();
    assert_eq!(lock_as(&running, "a").await, 1);
    old.disconnect(&running.address);
    // The others are told when its locks are marked.
    timeout(DEADLINE, heard_by_other.recv()).await.unwrap();
    beat(&running, &new, "a").await;
    let retry = SendMessage { reconsume_times: Some(1), ..support::to("%RETRY%G", 0, "") };
    assert_eq!(running.send(&retry, "in order").await.code, 0);
    assert_eq!((running.all("%RETRY%G", 0).await.len(), running.all("%DLQ%G", 0).await.len()), (0, 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_has_come_back_on_another_connection_has_left_nothing() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    let (old, _heard_by_old) = listening_client();
    let (new, mut heard_by_new) = listening_client();
    beat(&running, &old, "a").await;
    assert_eq!(lock_as(&running, "a").await, 1);
    beat(&running, &new, "a").await;
    timeout(DEADLINE, heard_by_new.recv()).await.unwrap();
    old.disconnect(&running.address);
    timeout(DEADLINE, heard_by_new.recv()).await.unwrap();
    hand.advance(Duration::from_secs(31));
    assert_eq!(lock_as(&running, "b").await, 0);
    hand.advance(Duration::from_secs(30));
    assert_eq!(lock_as(&running, "b").await, 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_change_live_settings_only() {
    let running = start(Setup::default()).await;
    let update = async |text: &'static str| running.call(request::UPDATE_BROKER_CONFIG, &(), text).await;
    assert_eq!(update("brokerPermission=4\n").await.code, 0);
    let all = running.call(request::GET_BROKER_CONFIG, &(), "").await;
    assert!(std::str::from_utf8(&all.body).unwrap().lines().any(|line| line == "brokerPermission=4"));
    assert_eq!(update("configBlackList=x\n").await.code, 16);
    assert_eq!(update("brokerPermission=5x\n").await.code, 29);
    assert!(update("listenPort=1\n").await.remark.unwrap().contains("listenPort"));
    let unknown = running.call(209, &(), "").await;
    assert_eq!((unknown.code, unknown.remark.as_deref()), (3, Some(" request type 209 not supported")));
    running.stop().await;
}

/// The keys of Apache 5.5.0 with the forms that its tools and exporters read.
#[tokio::test(flavor = "multi_thread")]
async fn the_runtime_information_has_every_key_that_exporters_read() {
    let running = start(Setup::default()).await;
    let earliest = async || {
        let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
        let table = fastjson::from_slice::<KvTable>(&answer.body).unwrap().table;
        (table["earliestMessageTimeStamp"].parse::<i64>().unwrap(), table)
    };
    assert_eq!(earliest().await.0, -1);
    running.put("T", 0, "", "x").await;
    let (earliest, table) = earliest().await;
    assert!(earliest > 1_600_000_000_000, "{earliest}");
    for whole in [
        "bootTimestamp",
        "commitLogMaxOffset",
        "commitLogMinOffset",
        "dispatchBehindBytes",
        "dispatchMaxBuffer",
        "getMessageEntireTimeMax",
        "msgGetTotalTodayMorning",
        "msgGetTotalTodayNow",
        "msgGetTotalYesterdayMorning",
        "msgPutTotalTodayMorning",
        "msgPutTotalTodayNow",
        "msgPutTotalYesterdayMorning",
        "pageCacheLockTimeMills",
        "putMessageEntireTimeMax",
        "putMessageFailedTimes",
        "putMessageSizeTotal",
        "putMessageTimesTotal",
        "remainTransientStoreBufferNumbs",
        "startAcceptSendRequestTimeStamp",
        "EndTransactionQueueSize",
        "EndTransactionThreadPoolQueueCapacity",
        "timerReadBehind",
        "timerOffsetBehind",
        "timerCongestNum",
        "sendThreadPoolQueueSize",
        "sendThreadPoolQueueCapacity",
        "sendThreadPoolQueueHeadWaitTimeMills",
        "pullThreadPoolQueueSize",
        "pullThreadPoolQueueCapacity",
        "pullThreadPoolQueueHeadWaitTimeMills",
        "litePullThreadPoolQueueSize",
        "litePullThreadPoolQueueCapacity",
        "litePullThreadPoolQueueHeadWaitTimeMills",
        "queryThreadPoolQueueSize",
        "queryThreadPoolQueueCapacity",
        "queryThreadPoolQueueHeadWaitTimeMills",
        "ackThreadPoolQueueSize",
        "ackThreadPoolQueueCapacity",
        "ackThreadPoolQueueHeadWaitTimeMills",
    ] {
        assert!(table.get(whole).is_some_and(|text| text.parse::<i64>().is_ok()), "{whole}: {:?}", table.get(whole));
    }
    for number in [
        "commitLogDiskRatio",
        "consumeQueueDiskRatio",
        "putMessageAverageSize",
        "putLatency99",
        "putLatency999",
        "timerEnqueueTps",
        "timerDequeueTps",
    ] {
        assert!(table.get(number).is_some_and(|text| text.parse::<f64>().is_ok()), "{number}: {:?}", table.get(number));
    }
    for rates in ["putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"] {
        assert_eq!(table[rates].split(' ').filter(|rate| rate.parse::<f64>().is_ok()).count(), 3, "{}", table[rates]);
    }
    let classes: Vec<_> = table["putMessageDistributeTime"].split_whitespace().collect();
    let counts = classes.iter().map(|class| class.split_once(':').unwrap().1.parse::<u64>().unwrap());
    assert_eq!((classes.len(), counts.sum::<u64>()), (13, 1));
    let capacity: Vec<_> = table["commitLogDirCapacity"].split(' ').collect();
    assert!(capacity.len() == 8 && capacity[3].ends_with("iB,"), "{capacity:?}");
    // A message was stored, and nobody has consumed it; then a consumer has.
    assert_eq!(table["consumeProduceRatio"], "0.0");
    running.pull(&support::from("T", 0, 0)).await;
    let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    let table = fastjson::from_slice::<KvTable>(&answer.body).unwrap().table;
    assert_eq!(table["consumeProduceRatio"], "1.0");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_are_kept_by_names_that_a_group_may_have() {
    let running = start(Setup::default()).await;
    let groups = ["P".to_owned(), "not legal".to_owned(), "x".repeat(10_000)];
    let producer_data_set = groups.map(|group_name| ProducerData { group_name }).into();
    let said = Heartbeat { client_id: "a".to_owned(), producer_data_set, ..Heartbeat::default() };
    assert_eq!(running.call(request::HEART_BEAT, &(), json(&said)).await.code, 0);
    let answer = running.call(request::GET_ALL_PRODUCER_INFO, &(), "").await;
    let table: ProducerTable = fastjson::from_slice(&answer.body).unwrap();
    assert_eq!(table.data.keys().collect::<Vec<_>>(), ["P"]);
    let long = Heartbeat { client_id: "x".repeat(300), ..Heartbeat::default() };
    assert_eq!(running.call(request::HEART_BEAT, &(), json(&long)).await.code, 29);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_go_to_queues_that_the_group_reads_and_there_are_more_when_it_wants_more() {
    let running = start(Setup::default()).await;
    make_group(&running, "G", 64).await;
    make_topic_with(&running, "%RETRY%G", 1).await;
    for n in 0..8 {
        running.put("T", 0, "", &n.to_string()).await;
    }
    for message in running.wait_for("T", 0, 8).await {
        let back = SendBack {
            offset: message.log_offset as i64,
            group: "G",
            delay_level: 1,
            origin_msg_id: None,
            origin_topic: None,
            unit_mode: false,
            max_reconsume_times: None,
            broker_name: None,
        };
        assert_eq!(code_of(&running, request::CONSUMER_SEND_MSG_BACK, &back).await, 0);
    }
    running.wait_for("%RETRY%G", 0, 8).await;

    make_group(&running, "G", 65).await;
    let wider = topic(&running, "%RETRY%G").await;
    assert_eq!((wider.read_queue_nums, wider.write_queue_nums), (65, 65));
    make_group(&running, "G", 1).await;
    assert_eq!(topic(&running, "%RETRY%G").await.read_queue_nums, 65, "messages may wait in the others");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_group_begins_at_the_first_message_of_a_young_queue_though_it_joins_before_it() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    assert_eq!(beginning(&running, "T", 0).await, Ok(0), "nothing was ever stored in the queue");
    running.put("T", 0, "", "a").await;
    assert_eq!(beginning(&running, "T", 0).await, Ok(0));
    assert_eq!(beginning(&running, "T", 4).await, Err(22), "the topic has four queues");
    assert_eq!(beginning(&running, "Unknown", 0).await, Err(22));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_nobody_made_is_refused_where_groups_are_not_made_on_use() {
    let running = start(Setup { more: &[("autoCreateSubscriptionGroup", "false")], ..Setup::default() }).await;
    running.put("Orders", 0, "", "x").await;
    let refused = running.pull(&from("Orders", 0, 0)).await;
    assert_eq!(refused.code, 26, "{:?}", refused.remark);
    assert!(refused.remark.as_deref().is_some_and(|remark| remark.contains("CG")), "{:?}", refused.remark);

    make_group(&running, "CG", 1).await;
    assert_eq!(running.pull(&from("Orders", 0, 0)).await.messages.len(), 1);
    let named = |group| PullMessage { consumer_group: group, ..from("Orders", 0, 0) };
    assert_eq!(running.pull(&named("Others")).await.code, 26, "still");
}
