use super::*;
use crate::body::{ConsumerOffsets, Heartbeat, LockBatch, TopicRoute, TopicStatsTable};

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
