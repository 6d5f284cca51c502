use std::collections::BTreeMap;

use super::*;
use crate::body::{
    ConsumeFromWhere, ConsumeType, ConsumerOffsets, ConsumerRunningInfo, Heartbeat, LockBatch, MessageModel,
    TopicRoute, TopicStatsTable,
};

#[test]
fn a_number_as_key_is_read_with_and_without_quotes() {
    for text in [
        r#"{"offsetTable":{"T@G":{0:5}}}"#,
        r#"{"offsetTable":{"T@G":{"0":5}}}"#,
        r#"{"offsetTable":{"T@G":{ 0 : 5 }}}"#,
    ] {
        let offsets: ConsumerOffsets = from_slice(text.as_bytes()).unwrap();
        assert_eq!(offsets.offset_table["T@G"][&0], 5, "{text}");
    }
}

#[test]
fn a_queue_as_key_is_read_as_object_and_as_text() {
    let fast = r#"{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"maxOffset":3}},"topicPutTps":0.0}"#;
    let standard =
        r#"{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":{"maxOffset":3}},"topicPutTps":0}"#;
    let table: TopicStatsTable = from_slice(fast.as_bytes()).unwrap();
    assert_eq!(table.offset_table.values().next().unwrap().max_offset, 3);
    assert_eq!(table, from_slice(standard.as_bytes()).unwrap());
}

#[test]
fn null_members_are_missing_members() {
    let go =
        r#"{"clientID":"c","consumerDataSet":null,"producerDataSet":[{"groupName":"g"}],"heartbeatFingerprint":null}"#;
    let heartbeat: Heartbeat = from_slice(go.as_bytes()).unwrap();
    assert_eq!((heartbeat.client_id.as_str(), heartbeat.producer_data_set.len()), ("c", 1));
    let lock: LockBatch =
        from_slice(br#"{"mqSet":[{"topic":null,"queueId":1}],"clientId":null,"consumerGroup":"g"}"#).unwrap();
    assert_eq!((lock.mq_set[0].queue_id, lock.consumer_group.as_str()), (1, "g"));
}

#[test]
fn gos_code_set_of_strings_is_a_code_set() {
    let go = r#"{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_NEW","subscriptionDataSet":
        [{"topic":"T","codeSet":["2598919",-7],"tagsSet":["TagA"],"subString":"TagA"}]}]}"#;
    let heartbeat: Heartbeat = from_slice(go.as_bytes()).unwrap();
    let consumer = &heartbeat.consumer_data_set[0];
    assert_eq!(consumer.subscription_data_set[0].code_set, [2_598_919, -7]);
    assert_eq!(consumer.subscription_data_set[0].expression_type, "TAG");
}

/// As `HeartbeatData.h` and `SubscriptionData.cpp` of Apache's C++ client write it; other languages wrap that client.
#[test]
fn cpps_ordinals_are_constants_and_its_texts_are_numbers() {
    let heartbeat = |from: &str, kind: &str, model: &str| -> Heartbeat {
        let text = format!(
            r#"{{"clientID":"c","consumerDataSet":[{{"consumeFromWhere":{from},"consumeType":{kind},"groupName":"CG","messageModel":{model},"subscriptionDataSet":[{{"codeSet":[0],"subString":"TagA","subVersion":"1700000000000","tagsSet":["TagA"],"topic":"T"}}]}}]}}"#
        );
        from_slice(text.as_bytes()).unwrap()
    };
    let said = heartbeat("0", "1", "1");
    assert_eq!((said.client_id.as_str(), said.consumer_data_set[0].group_name.as_str()), ("c", "CG"));
    let subscription = &said.consumer_data_set[0].subscription_data_set[0];
    assert_eq!((subscription.topic.as_str(), subscription.sub_version), ("T", 1_700_000_000_000));
    let constants = |from: &str, kind: &str, model: &str| {
        let data = &heartbeat(from, kind, model).consumer_data_set[0];
        (data.consume_from_where, data.consume_type, data.message_model)
    };
    let froms = [
        ConsumeFromWhere::ConsumeFromLastOffset,
        ConsumeFromWhere::ConsumeFromLastOffsetAndFromMinWhenBootFirst,
        ConsumeFromWhere::ConsumeFromMinOffset,
        ConsumeFromWhere::ConsumeFromMaxOffset,
        ConsumeFromWhere::ConsumeFromFirstOffset,
        ConsumeFromWhere::ConsumeFromTimestamp,
    ];
    let kinds = [ConsumeType::ConsumeActively, ConsumeType::ConsumePassively, ConsumeType::ConsumePop];
    let models = [MessageModel::Broadcasting, MessageModel::Clustering];
    for (ordinal, from) in froms.into_iter().enumerate() {
        let (kind, model) = (ordinal % kinds.len(), ordinal % models.len());
        let expected = (from, kinds[kind], models[model]);
        assert_eq!(constants(&ordinal.to_string(), &kind.to_string(), &model.to_string()), expected);
        let names = [
            serde_json::to_string(&from).unwrap(),
            serde_json::to_string(&kinds[kind]).unwrap(),
            serde_json::to_string(&models[model]).unwrap(),
        ];
        assert_eq!(constants(&names[0], &names[1], &names[2]), expected, "{names:?}");
    }
    let unknown = (ConsumeFromWhere::default(), ConsumeType::default(), MessageModel::default());
    assert_eq!(constants("6", "-1", "99"), unknown);
    assert_eq!(constants(r#""X""#, r#""Y""#, r#""Z""#), unknown);
    assert_eq!(constants("null", "null", "null"), unknown);
}

/// As `ConsumerRunningInfo.cpp` and `ProcessQueueInfo.h` of Apache's C++ client write it.
#[test]
fn what_a_cpp_consumer_says_of_itself_is_read() {
    let cpp = r#"{"mqTable":{{
   "brokerName" : "b", "queueId" : 0, "topic" : "T"
}:{"cachedMsgCount" : 2, "cachedMsgMaxOffset" : "8", "cachedMsgMinOffset" : "7", "commitOffset" : "6", "droped" : false,
   "lastConsumeTimestamp" : "1700000000001", "lastLockTimestamp" : "123", "lastPullTimestamp" : "1700000000002", "locked" : false,
   "transactionMsgCount" : 0, "transactionMsgMaxOffset" : "0", "transactionMsgMinOffset" : "0", "tryUnlockTimes" : 0
}},"jstack":"","properties":{"PROP_CONSUMEORDERLY":"false"},
"subscriptionSet":[{"subString":"*","subVersion":"1700000000000","topic":"T"}]}"#;
    let info: ConsumerRunningInfo = from_slice(cpp.as_bytes()).unwrap();
    assert_eq!(info.subscription_set[0].sub_version, 1_700_000_000_000);
    let queue = info.mq_table.values().next().unwrap();
    assert_eq!((queue.commit_offset, queue.cached_msg_min_offset, queue.cached_msg_max_offset), (6, 7, 8));
    assert_eq!((queue.last_pull_timestamp, queue.last_lock_timestamp), (1_700_000_000_002, 123));
}

#[test]
fn each_dialect_writes_keys_its_own_way_and_leaves_null_out() {
    let mut route = TopicRoute::default();
    route.broker_datas.push(crate::body::BrokerData {
        broker_addrs: BTreeMap::from([(0, "a".into()), (1, "b".into())]),
        broker_name: "n\"1".into(),
        cluster: "C".into(),
        enable_acting_master: false,
        zone_name: None,
    });
    let text = |dialect| String::from_utf8(to_vec(&route, dialect)).unwrap();
    assert_eq!(
        text(Dialect::FastJson),
        r#"{"brokerDatas":[{"brokerAddrs":{0:"a",1:"b"},"brokerName":"n\"1","cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[]}"#
    );
    assert!(text(Dialect::Standard).contains(r#"{"0":"a","1":"b"}"#));
}

#[test]
fn what_is_wrong_in_both_dialects_is_an_error() {
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    for text in ["", "{", "{0}", "{0:", "{{:1}}", r#"{"clientID":5}"#, "[]x", &deep, r#"{"a":"b"#, "\u{1}"] {
        assert!(from_slice::<Heartbeat>(text.as_bytes()).is_err(), "{text}");
    }
}

/// Each level would double what the levels inside it take.
#[test]
fn a_key_within_a_key_is_refused() {
    for depth in 3..8 {
        let text = format!("{}a:1{}}}", "{".repeat(depth), "}:1".repeat(depth - 1));
        let read = from_slice::<serde_json::Value>(text.as_bytes());
        assert!(read.is_err(), "{text}: {} bytes", read.unwrap().to_string().len());
    }
}
