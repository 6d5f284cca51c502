//! What brokers and operators see of a name server, over connections.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::Clock;
use names::{Names, Options};
use net::{Client, ClientOptions, Listener, ListenerOptions, Response};
use protocol::body::{ClusterInfo, RegisterBrokerBody, TopicConfig, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson;
use protocol::header::EncodeFields;
use protocol::request::{GetKv, GetRouteInfo, PutKv, RegisterBroker, UnregisterBroker};
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(30);

/// A name server behind a port.
struct Served {
    at: String,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start(options: Options) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let options = Options { kv_config_path: folder.path().join("kvConfig.json"), ..options };
        let names = Names::new(options, ClientOptions::default(), Clock::real()).unwrap();
        let listener =
            Listener::bind("127.0.0.1:0".parse().unwrap(), ListenerOptions::default(), Arc::clone(&names)).unwrap();
        let at = listener.local_addr().to_string();
        tokio::spawn(listener.run(std::future::pending()));
        Served { at, _folder: folder }
    }

    /// A peer with a connection of its own, which ends when it is dropped.
    fn peer(&self) -> Peer {
        Peer { client: Client::new(ClientOptions::default()), at: self.at.clone() }
    }
}

struct Peer {
    client: Client,
    at: String,
}

fn is_ok(answer: &Response) -> bool {
    answer.code == ResponseCode::Success as i32
}

fn remark(answer: &Response) -> &str {
    answer.remark.as_deref().unwrap_or_default()
}

fn topic(name: &str) -> TopicConfig {
    TopicConfig { topic_name: name.to_owned(), ..TopicConfig::default() }
}

fn broker<'a>(address: &'a str) -> RegisterBroker<'a> {
    RegisterBroker {
        broker_name: "b",
        broker_addr: address,
        cluster_name: "C",
        ha_server_addr: None,
        broker_id: 0,
        heartbeat_timeout_millis: None,
        enable_acting_master: None,
        compressed: false,
        body_crc32: 0,
        zone_name: None,
    }
}

impl Peer {
    async fn ask(&self, code: i32, fields: &(dyn EncodeFields + Sync), body: &[u8]) -> Response {
        self.client.call(&self.at, code, fields, Bytes::copy_from_slice(body), PATIENCE).await.unwrap()
    }

    async fn register(&self, header: RegisterBroker<'_>, topics: &[TopicConfig]) -> Response {
        let mut body = RegisterBrokerBody::default();
        let table = topics.iter().map(|topic| (topic.topic_name.clone(), topic.clone()));
        body.topics.topic_config_table = table.collect();
        self.ask(request::REGISTER_BROKER, &header, &body.to_json()).await
    }

    async fn route(&self, topic: &str) -> Option<TopicRoute> {
        let fields = GetRouteInfo { topic, accept_standard_json_only: Some(true), zone_name: None, zone_mode: None };
        let answer = self.ask(request::GET_ROUTEINFO_BY_TOPIC, &fields, &[]).await;
        is_ok(&answer).then(|| fastjson::from_slice(&answer.body).unwrap())
    }

    async fn clusters(&self) -> ClusterInfo {
        fastjson::from_slice(&self.ask(request::GET_BROKER_CLUSTER_INFO, &(), &[]).await.body).unwrap()
    }

    /// The address of the master of a topic.
    async fn master(&self, topic: &str) -> Option<String> {
        self.route(topic).await?.broker_datas[0].broker_addrs.get(&0).cloned()
    }
}

#[tokio::test]
async fn a_broker_that_nobody_could_reach_is_refused_with_the_field_and_the_limit() {
    let served = Served::start(Options::default());
    let peer = served.peer();
    let topics = [topic("A"), topic("B")];
    let long = "x".repeat(100_000);
    let refused = [
        (RegisterBroker { broker_name: "", ..broker("h:1") }, "brokerName"),
        (RegisterBroker { broker_name: &long, ..broker("h:1") }, "brokerName"),
        (RegisterBroker { cluster_name: "", ..broker("h:1") }, "clusterName"),
        (RegisterBroker { broker_id: -7, ..broker("h:1") }, "brokerId=-7"),
        (RegisterBroker { heartbeat_timeout_millis: Some(-1), ..broker("h:1") }, "heartbeatTimeoutMillis=-1"),
        (broker(""), "brokerAddr"),
        (broker("h"), "brokerAddr=h"),
        (broker("h:0"), "brokerAddr=h:0"),
        (broker("h:99999"), "brokerAddr=h:99999"),
    ];
    for (header, why) in refused {
        let answer = peer.register(header, &topics).await;
        assert!(answer.code == ResponseCode::SystemError as i32 && remark(&answer).starts_with(why), "{answer:?}");
        assert!(remark(&answer).len() < 300, "{answer:?}");
    }
    let clusters = peer.clusters().await;
    assert!(clusters.broker_addr_table.is_empty() && clusters.cluster_addr_table.is_empty(), "{clusters:?}");
}

#[tokio::test]
async fn a_topic_with_impossible_numbers_is_left_out_of_the_routes_and_the_others_are_served() {
    let served = Served::start(Options::default());
    let peer = served.peer();
    let long = "x".repeat(5_000);
    let odd = [
        TopicConfig { perm: 99, ..topic("odd-perm") },
        TopicConfig { read_queue_nums: -1, ..topic("odd-reads") },
        TopicConfig { write_queue_nums: 2_000_000_000, ..topic("odd-writes") },
        topic(&long),
        topic(""),
    ];
    let answer = peer.register(broker("h:1"), &[&odd[..], &[topic("A"), topic("B")]].concat()).await;
    assert!(is_ok(&answer) && remark(&answer).starts_with("5 topics left out, first "), "{answer:?}");
    assert!(peer.route("A").await.is_some() && peer.route("B").await.is_some());
    for topic in &odd {
        assert_eq!(peer.route(&topic.topic_name).await, None, "{}", topic.topic_name);
    }
    // Nor are they taken one by one (217).
    let route = r#"{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"writeQueueNums":-4}]}"#;
    let fields = protocol::request::RegisterTopic { topic: "odd" };
    let answer = peer.ask(request::REGISTER_TOPIC_IN_NAMESRV, &fields, route.as_bytes()).await;
    assert!(!is_ok(&answer) && remark(&answer).starts_with("writeQueueNums=-4"), "{answer:?}");
}

#[tokio::test]
async fn a_key_value_setting_of_15_mb_is_refused_and_leaves_nothing() {
    let served = Served::start(Options::default());
    let peer = served.peer();
    let value = "v".repeat(15_000_000);
    let put = PutKv { namespace: "n", key: "k", value: &value };
    let answer = peer.ask(request::PUT_KV_CONFIG, &put, &[]).await;
    assert!(!is_ok(&answer) && remark(&answer).contains("kvValueBytesMax"), "{}", remark(&answer));
    let answer = peer.ask(request::GET_KV_CONFIG, &GetKv { namespace: "n", key: "k" }, &[]).await;
    assert_eq!(answer.code, ResponseCode::QueryNotFound as i32);
}

#[tokio::test]
async fn the_newest_of_two_brokers_alike_has_the_place_and_the_other_one_has_it_at_once_when_it_leaves() {
    for unregisters in [true, false] {
        let served = Served::start(Options::default());
        let (first, second, client) = (served.peer(), served.peer(), served.peer());
        let own = [topic("A"), topic("first")];
        assert!(is_ok(&first.register(broker("first:1"), &own).await));
        assert!(is_ok(&second.register(broker("second:1"), &[topic("A"), topic("second")]).await));
        assert_eq!(client.master("A").await.as_deref(), Some("second:1"));
        // It registers again and again, and does not know that it is displaced.
        assert!(is_ok(&first.register(broker("first:1"), &own).await));
        assert_eq!(client.master("A").await.as_deref(), Some("second:1"), "the newest keeps the place");
        if unregisters {
            let leaving =
                UnregisterBroker { broker_name: "b", broker_addr: "second:1", cluster_name: "C", broker_id: 0 };
            assert!(is_ok(&second.ask(request::UNREGISTER_BROKER, &leaving, &[]).await));
        } else {
            drop(second);
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let master = client.master("A").await;
            assert!(master.is_some(), "there was no route in between");
            if master.as_deref() == Some("first:1") {
                break;
            }
            assert!(!unregisters && Instant::now() < deadline, "{master:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(client.master("first").await.as_deref(), Some("first:1"));
        assert_eq!(client.route("second").await, None, "that topic was the other one's alone");
        drop(first);
        while client.route("A").await.is_some() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_broker_that_stands_by_and_leaves_takes_nothing_along() {
    let served = Served::start(Options::default());
    let (first, second, client) = (served.peer(), served.peer(), served.peer());
    let topics = [topic("A"), topic("B")];
    assert!(is_ok(&first.register(broker("first:1"), &topics).await));
    assert!(is_ok(&second.register(broker("second:1"), &topics).await));
    let leaving = UnregisterBroker { broker_name: "b", broker_addr: "first:1", cluster_name: "C", broker_id: 0 };
    assert!(is_ok(&first.ask(request::UNREGISTER_BROKER, &leaving, &[]).await));
    assert_eq!(client.master("A").await.as_deref(), Some("second:1"));
    let leaving = UnregisterBroker { broker_addr: "second:1", ..leaving };
    assert!(is_ok(&second.ask(request::UNREGISTER_BROKER, &leaving, &[]).await));
    assert_eq!(client.route("A").await, None, "the other one has left before");
}

#[tokio::test]
async fn the_settings_show_the_version_and_how_close_the_name_server_is_to_its_limits() {
    let served = Served::start(Options::default());
    let peer = served.peer();
    assert!(is_ok(&peer.register(broker("h:1"), &[topic("A"), topic("B")]).await));
    let put = PutKv { namespace: "n", key: "k", value: "värde" };
    assert!(is_ok(&peer.ask(request::PUT_KV_CONFIG, &put, &[]).await));
    let answer = peer.ask(request::GET_NAMESRV_CONFIG, &(), &[]).await;
    let text = std::str::from_utf8(&answer.body).unwrap();
    let version = format!("gantryVersion={}", env!("CARGO_PKG_VERSION"));
    let figures = ["brokers=1", "brokersMax=10000", "topics=2", "topicRoutes=2", "kvEntries=1", "kvBytes=8"];
    for line in figures.into_iter().chain([version.as_str()]) {
        assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
    }
}

#[tokio::test]
async fn settings_and_values_that_are_too_long_are_refused_by_their_length() {
    let served = Served::start(Options::default());
    let peer = served.peer();
    let text = "enableTopicList=false\n".repeat(1_000);
    let answer = peer.ask(request::UPDATE_NAMESRV_CONFIG, &(), text.as_bytes()).await;
    let why = "body: 22000 bytes of settings are more than the limit, 16384";
    assert_eq!((answer.code, remark(&answer)), (ResponseCode::InvalidParameter as i32, why));
    let long = "a:4;".repeat(100_000);
    let put = PutKv { namespace: "ORDER_TOPIC_CONFIG", key: "T", value: &long };
    let answer = peer.ask(request::PUT_KV_CONFIG, &put, &[]).await;
    assert!(remark(&answer).ends_with("400000 bytes are more than kvValueBytesMax allows, 131072"), "{answer:?}");
}
