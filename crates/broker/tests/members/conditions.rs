//! Groups that filter by conditions, and `consumerFilter.json`.

use protocol::request::QueryConsumeQueue;
use serde_json::Value;

use super::*;

fn setup() -> Setup {
    Setup { more: &[("enablePropertyFilter", "true")], ..Setup::default() }
}

async fn say(running: &Running, client: &Client, version: i64, condition: &str) {
    let subscription = SubscriptionData {
        topic: "T".to_owned(),
        expression_type: "SQL92".to_owned(),
        sub_string: condition.to_owned(),
        sub_version: version,
        ..SubscriptionData::default()
    };
    let consumer = ConsumerData {
        group_name: "GS".to_owned(),
        subscription_data_set: vec![subscription],
        ..ConsumerData::default()
    };
    let body = Heartbeat { client_id: "a".to_owned(), consumer_data_set: vec![consumer], ..Heartbeat::default() };
    let answer = client.call(&running.address, request::HEART_BEAT, &(), json(&body), DEADLINE).await.unwrap();
    assert_eq!(answer.code, 0);
}

/// What 321 says of how the group filters.
async fn filter_data(running: &Running) -> String {
    let fields = QueryConsumeQueue { topic: Some("T"), queue_id: 0, index: 0, count: 1, consumer_group: Some("GS") };
    let answer = running.call(request::QUERY_CONSUME_QUEUE, &fields, "").await;
    assert_eq!(answer.code, 0);
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    body["filterData"].as_str().unwrap().to_owned()
}

fn file(running: &Running) -> std::path::PathBuf {
    running.dir().join("config/consumerFilter.json")
}

fn read(path: &std::path::Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_is_remembered_where_apache_looks_for_it_and_taken_from_there() {
    let running = start(setup()).await;
    running.put("T", 0, "", "one").await;
    let client = Client::new(ClientOptions::default());
    say(&running, &client, 7, "a = 1").await;
    let row: Value = serde_json::from_str(&filter_data(&running).await).unwrap();
    assert_eq!((&row["expression"], &row["clientVersion"], &row["dead"]), (&"a = 1".into(), &7.into(), &false.into()));
    drop(client);

    let path = file(&running);
    let dir = running.stop().await;
    let mut written = read(&path);
    let left = &written["filterDataByTopic"]["T"]["groupFilterData"]["GS"];
    assert_eq!((&left["bornTime"], &left["dead"]), (&row["bornTime"], &true.into()), "nobody is connected any more");
    assert_eq!(left["bloomFilterData"], row["bloomFilterData"]);

    // Another broker goes on with it.
    written["filterDataByTopic"]["T"]["groupFilterData"]["GS"]["bornTime"] = 1_000.into();
    fs::write(&path, written.to_string()).unwrap();
    let running = start_on(setup(), dir).await;
    assert_eq!(filter_data(&running).await, "GS@T is not online!");
    let client = Client::new(ClientOptions::default());
    say(&running, &client, 8, "a = 1").await;
    let row: Value = serde_json::from_str(&filter_data(&running).await).unwrap();
    assert_eq!((&row["bornTime"], &row["clientVersion"], &row["dead"]), (&1_000.into(), &8.into(), &false.into()));
}
