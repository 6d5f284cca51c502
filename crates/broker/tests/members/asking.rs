//! What operators, other brokers and controllers ask, of a broker that stands alone, has no RocksDB and no access control.

use protocol::body::{CorrectionOffsets, QueryConsumeQueueReply, RocksdbCqProgress};
use protocol::code::request;
use protocol::fastjson;
use protocol::request::{
    CheckRocksdbCqWriteProgress, ExchangeHaInfo, ExchangeHaInfoReply, ExportRocksdbConfig, NotifyBrokerRoleChanged,
    NotifyMinBrokerIdChange, QueryConsumeQueue, QueryCorrectionOffset, SetCommitLogReadMode, UpdateConsumerOffset,
};
use serde_json::{Value, json};

use crate::support::{Running, Setup, start, start_on};
use crate::{beat, listening_client, make_group, make_topic};

async fn queue(running: &Running, fields: QueryConsumeQueue<'_>) -> (i32, String, Option<QueryConsumeQueueReply>) {
    let answer = running.call(request::QUERY_CONSUME_QUEUE, &fields, "").await;
    (answer.code, answer.remark.unwrap_or_default(), fastjson::from_slice(&answer.body).ok())
}

const WHOLE: QueryConsumeQueue<'_> =
    QueryConsumeQueue { topic: Some("T"), queue_id: 0, index: 0, count: 10, consumer_group: None };

#[tokio::test(flavor = "multi_thread")]
async fn units_of_a_queue_are_shown_from_an_index_on() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    running.put("T", 0, "TAGS\u{1}TagA\u{2}", "a").await;
    running.put("T", 0, "", "b").await;
    let (code, _, reply) = queue(&running, WHOLE).await;
    let reply = reply.unwrap();
    assert_eq!((code, reply.min_queue_index, reply.max_queue_index), (0, 0, 2));
    assert_eq!(reply.queue_data.iter().map(|unit| unit.tags_code).collect::<Vec<_>>(), [2_598_919, 0]);
    let [first, second] = &reply.queue_data[..] else { panic!("{reply:?}") };
    assert_eq!((first.physic_offset, second.physic_offset), (0, i64::from(first.physic_size)));
    assert_eq!((reply.filter_data, reply.subscription_data), (None, None));

    let (_, _, one) = queue(&running, QueryConsumeQueue { index: 1, count: 1, ..WHOLE }).await;
    assert_eq!(one.unwrap().queue_data, std::slice::from_ref(second));
    for count in [0, -1] {
        let (code, _, none) = queue(&running, QueryConsumeQueue { count, ..WHOLE }).await;
        assert_eq!((code, none.unwrap().queue_data.len()), (0, 0));
    }
    for index in [2, 99, -5] {
        let (code, remark, reply) = queue(&running, QueryConsumeQueue { index, ..WHOLE }).await;
        assert_eq!((code, remark, reply), (0, format!("Index {index} of 0@T is not exist!"), None));
    }
    for (topic, queue_id) in [("T", 9), ("T", -9), ("Nope", 0)] {
        let (code, remark, _) = queue(&running, QueryConsumeQueue { topic: Some(topic), queue_id, ..WHOLE }).await;
        assert_eq!((code, remark), (1, format!("{queue_id}@{topic} is not exist!")));
    }
    let (code, remark, _) = queue(&running, QueryConsumeQueue { topic: None, ..WHOLE }).await;
    assert_eq!((code, remark.as_str()), (1, "field topic is missing"));
    let long = "x".repeat(100_000);
    for huge in
        [QueryConsumeQueue { topic: Some(&long), ..WHOLE }, QueryConsumeQueue { consumer_group: Some(&long), ..WHOLE }]
    {
        let (code, remark, _) = queue(&running, huge).await;
        assert!(code == 29 && remark.contains("100000 bytes, more than 512"), "{remark}");
    }
    let (code, remark, _) = queue(&running, QueryConsumeQueue { count: i32::MAX, ..WHOLE }).await;
    assert!(code == 29 && remark.contains("count") && remark.contains("32768"), "{remark}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_of_a_queue_are_read_from_its_file_after_a_restart() {
    let running = start(Setup::default()).await;
    for body in ["a", "b", "c"] {
        running.put("T", 0, "", body).await;
    }
    let left = running.stop().await;
    let running = start_on(Setup::default(), left).await;
    assert_eq!(queue(&running, WHOLE).await.2.unwrap().queue_data.len(), 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_come_with_the_subscription_of_a_group_that_is_connected() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    running.put("T", 0, "", "a").await;
    let of_group = QueryConsumeQueue { consumer_group: Some("G"), ..WHOLE };
    let reply = queue(&running, of_group.clone()).await.2.unwrap();
    assert_eq!(reply.filter_data.as_deref(), Some("G@T is not online!"));
    let (client, _heard) = listening_client();
    beat(&running, &client, "a").await;
    let reply = queue(&running, of_group).await.2.unwrap();
    assert_eq!(
        (reply.filter_data.as_deref(), reply.subscription_data.unwrap().sub_string.as_str()),
        (Some("null"), "*")
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn correction_offsets_are_the_smallest_of_all_groups_but_those_left_out() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    for (group, queue_id, commit_offset) in [("A", 0, 1), ("A", 1, 1), ("B", 0, 2), ("C", 0, 3)] {
        make_group(&running, group, 1).await;
        let fields = UpdateConsumerOffset { consumer_group: group, topic: "T", queue_id, commit_offset };
        assert_eq!(running.call(request::UPDATE_CONSUMER_OFFSET, &fields, "").await.code, 0);
    }
    let corrections = async |compare_group, filter_groups| {
        let fields = QueryCorrectionOffset { filter_groups, compare_group, topic: "T" };
        let answer = running.call(request::QUERY_CORRECTION_OFFSET, &fields, "").await;
        let found: CorrectionOffsets = fastjson::from_slice(&answer.body).unwrap();
        found.correction_offsets.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(corrections("C", None).await, [(0, 1), (1, 1)]);
    assert_eq!(corrections("C", Some("A")).await, [(0, 2)]);
    assert_eq!(corrections("C", Some("A,B")).await, [(0, 3)]);
    assert_eq!(corrections("A", Some("A")).await, [(0, i64::MAX)], "the compared group is behind the others");
    assert_eq!(corrections("C", None).await, [(0, 1), (1, 1)], "who was left out keeps his offsets");
    let missing = running.call(request::QUERY_CORRECTION_OFFSET, &(), "").await;
    assert_eq!((missing.code, missing.remark.as_deref()), (1, Some("field compareGroup is missing")));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_files_has_nothing_to_check_or_export_from_rocksdb() {
    let running = start(Setup::default()).await;
    make_topic(&running, "T").await;
    let check = async |topic| {
        let fields = CheckRocksdbCqWriteProgress { topic, check_store_time: 0 };
        running.call(request::CHECK_ROCKSDB_CQ_WRITE_PROGRESS, &fields, "").await
    };
    let result: RocksdbCqProgress = fastjson::from_slice(&check("T").await.body).unwrap();
    assert_eq!((result.check_status, result.check_result.unwrap().contains("no need check")), (0, true));
    assert_eq!(check("Nope").await.code, 17);
    let export = async |config_type| {
        let answer =
            running.call(request::EXPORT_ROCKSDB_CONFIG_TO_JSON, &ExportRocksdbConfig { config_type }, "").await;
        (answer.code, answer.remark.unwrap_or_default())
    };
    assert_eq!(export("topics;subscriptionGroups;consumerOffsets").await, (0, "export done.".to_owned()));
    let (code, remark) = export("topics;bogus").await;
    assert!(code == 1 && remark.starts_with("Unknown config type: bogus"), "{remark}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_cold_reads_are_kept_and_shown_and_said_to_have_no_effect() {
    let running = start(Setup::default()).await;
    let shown = async || {
        let answer = running.call(request::GET_COLD_DATA_FLOW_CTR_INFO, &(), "").await;
        serde_json::from_slice::<Value>(&answer.body).unwrap()
    };
    let update = async |text: &'static str| {
        let answer = running.call(request::UPDATE_COLD_DATA_FLOW_CTR_CONFIG, &(), text).await;
        (answer.code, answer.remark.unwrap_or_default())
    };
    let (code, remark) = update("G=4194304\nH=-1\n").await;
    assert!(code == 0 && remark.contains("without effect"), "{remark}");
    let wanted = json!({
        "runtimeTable": {}, "configTable": {"G": 4_194_304, "H": -1},
        "cgColdReadThreshold": 3_145_728, "globalColdReadThreshold": 104_857_600, "globalAcc": 0,
    });
    assert_eq!(shown().await, wanted);
    let (code, remark) = update("G=1\nI=many\n").await;
    assert!(code == 29 && remark.contains('I') && remark.contains("many"), "{remark}");
    assert_eq!(update("not legal!=1\n").await.0, 29);
    assert_eq!(shown().await, wanted, "all or none");
    assert_eq!(running.call(request::REMOVE_COLD_DATA_FLOW_CTR_CONFIG, &(), "G").await.code, 0);
    assert_eq!(shown().await["configTable"], json!({"H": -1}));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_read_mode_of_the_log_is_set_or_refused_with_the_values_that_are_known() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "x").await;
    for mode in ["1", "0"] {
        let answer =
            running.call(request::SET_COMMITLOG_READ_MODE, &SetCommitLogReadMode { read_ahead_mode: mode }, "").await;
        let said = format!("set commitlog readahead mode success, mode: {mode}");
        assert_eq!((answer.code, answer.remark), (0, Some(said)));
    }
    for mode in ["2", "-1", "x", ""] {
        let answer =
            running.call(request::SET_COMMITLOG_READ_MODE, &SetCommitLogReadMode { read_ahead_mode: mode }, "").await;
        let remark = answer.remark.unwrap();
        assert!(answer.code == 29 && remark.contains(&format!("READ_AHEAD_MODE is \"{mode}\"")), "{remark}");
    }
    assert_eq!(running.call(request::SET_COMMITLOG_READ_MODE, &(), "").await.code, 1);
    assert_eq!(running.all("T", 0).await.len(), 1);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_tells_a_slave_where_its_log_is_and_lets_nobody_change_its_role() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "x").await;
    let left = running.stop().await;
    let running = start_on(Setup::default(), left).await;
    let end = running.store().end().0 as i64;
    running.put("T", 0, "", "y").await;
    let nothing = ExchangeHaInfo { master_ha_address: None, master_flush_offset: None, master_address: None };
    let answer = running.call(request::EXCHANGE_BROKER_HA_INFO, &nothing, "").await;
    let fields = answer.fields.as_fields();
    let told = ExchangeHaInfoReply::decode(&fields).unwrap();
    assert_eq!((told.master_address, told.master_flush_offset), (Some("127.0.0.1:10911"), Some(end)));
    assert_eq!(told.master_ha_address, Some("127.0.0.1:10912"));
    let other = ExchangeHaInfo { master_ha_address: Some("10.0.0.9:10912"), master_flush_offset: Some(7), ..nothing };
    let answer = running.call(request::EXCHANGE_BROKER_HA_INFO, &other, "").await;
    assert_eq!((answer.code, answer.fields.get("masterAddress")), (0, None));

    let smallest = NotifyMinBrokerIdChange {
        min_broker_id: Some(1),
        broker_name: Some("broker-a"),
        min_broker_addr: Some("10.0.0.9:10911"),
        offline_broker_addr: None,
        ha_broker_addr: None,
    };
    assert_eq!(running.call(request::NOTIFY_MIN_BROKER_ID_CHANGE, &smallest, "").await.code, 0);
    let missing = running.call(request::NOTIFY_MIN_BROKER_ID_CHANGE, &(), "").await;
    assert_eq!((missing.code, missing.remark.as_deref()), (1, Some("field minBrokerId is missing")));
    let role = NotifyBrokerRoleChanged {
        master_address: Some("10.0.0.9:10911"),
        master_epoch: Some(3),
        sync_state_set_epoch: Some(2),
        master_broker_id: Some(2),
    };
    let body = r#"{"syncStateSet":[1,2],"syncStateSetEpoch":2}"#;
    let answer = running.call(request::NOTIFY_BROKER_ROLE_CHANGED, &role, body).await;
    assert!(answer.code == 0 && answer.remark.unwrap().contains("enableControllerMode"));
    assert_eq!(running.call(request::NOTIFY_BROKER_ROLE_CHANGED, &role, "{").await.code, 29);
    assert_eq!(running.call(request::EXCHANGE_BROKER_HA_INFO, &nothing, "").await.code, 0, "it is a master still");
    running.put("T", 0, "", "z").await;
    running.stop().await;
}

struct Named(&'static str, &'static str);

impl protocol::header::EncodeFields for Named {
    fn encode(&self, sink: &mut protocol::header::FieldSink<'_>) {
        sink.str(self.0, self.1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_access_control_users_and_rules_are_checked_and_refused() {
    let running = start(Setup::default()).await;
    let ask = async |code, fields: Named, body: &'static str| {
        let answer = running.call(code, &fields, body).await;
        (answer.code, answer.remark.unwrap_or_default())
    };
    let user = r#"{"username":"u","password":"p","userType":"Normal","userStatus":"enable"}"#;
    let rules = r#"{"subject":"User:u","policies":[{"policyType":"Custom","entries":[]}]}"#;
    for code in [request::AUTH_CREATE_USER, request::AUTH_UPDATE_USER, request::AUTH_GET_USER] {
        assert_eq!(ask(code, Named("username", " "), user).await, (29, "The username is blank".to_owned()));
        let (code, remark) = ask(code, Named("username", "u"), user).await;
        assert!(code == 1 && remark.contains("authenticationEnabled"), "{remark}");
    }
    assert_eq!(ask(request::AUTH_CREATE_USER, Named("username", "u"), "").await.0, 29);
    assert_eq!(ask(request::AUTH_DELETE_USER, Named("x", ""), "").await.0, 16);
    for code in [request::AUTH_CREATE_ACL, request::AUTH_UPDATE_ACL] {
        assert_eq!(ask(code, Named("subject", "User:u"), "{}").await, (1, "The body of acl is null".to_owned()));
        assert!(ask(code, Named("subject", "User:u"), rules).await.1.contains("authorizationEnabled"));
    }
    for code in [request::AUTH_DELETE_ACL, request::AUTH_GET_ACL] {
        let (refused, remark) = ask(code, Named("subject", "bogus"), "").await;
        assert!(refused == 16 && remark.starts_with("The subject is null.") && remark.contains("bogus"), "{remark}");
        assert_eq!(ask(code, Named("subject", "User:u"), "").await.0, 1);
    }
    for code in [request::AUTH_LIST_USER, request::AUTH_LIST_ACL] {
        assert_eq!(ask(code, Named("filter", ""), "").await.0, 1);
    }
    running.stop().await;
}
