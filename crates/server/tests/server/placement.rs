//! Topics that come into being by a send, in a cluster of two brokers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, Running, gantry};
use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::body::{TopicConfig, TopicRoute};
use protocol::code::request;
use protocol::fastjson;
use protocol::request::{CreateTopic, GetRouteInfo, GetTopicConfig, SendMessage};

const DEADLINE: Duration = Duration::from_secs(60);

/// Queues to write to by broker, as the name server says.
async fn route(client: &Client, names: &str, topic: &str) -> BTreeMap<String, i32> {
    let fields = GetRouteInfo { topic, accept_standard_json_only: Some(true), zone_mode: None, zone_name: None };
    let answer = client.call(names, request::GET_ROUTEINFO_BY_TOPIC, &fields, Bytes::new(), DEADLINE).await.unwrap();
    if answer.code != 0 {
        return BTreeMap::new();
    }
    let route: TopicRoute = fastjson::from_slice(&answer.body).unwrap();
    route.queue_datas.into_iter().map(|data| (data.broker_name, data.write_queue_nums)).collect()
}

async fn until_route(client: &Client, names: &str, topic: &str, wanted: &[(&str, i32)]) {
    let wanted: BTreeMap<String, i32> = wanted.iter().map(|(name, queues)| ((*name).to_owned(), *queues)).collect();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = route(client, names, topic).await;
        if found == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{topic} is at {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn send(client: &Client, broker: &str, topic: &str) -> i32 {
    let fields = SendMessage {
        producer_group: "P",
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 3,
        ..SendMessage::default()
    };
    client.call(broker, request::SEND_MESSAGE_V2, &fields, Bytes::from_static(b"x"), DEADLINE).await.unwrap().code
}

#[tokio::test]
async fn a_topic_that_a_send_made_on_one_broker_is_spread_evenly_over_the_cluster() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let write = |at: usize, text: String| {
        let file = folders[at].path().join("broker.conf");
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let file = write(0, "brokerName=broker-a\nbrokerIP1=127.0.0.1\n".to_owned());
    let first = Running::server_with(&folders[0].path().join("data"), &["-c", &file]);
    let names = first.address("namesrv");
    let root = folders[1].path().join("store");
    let settings =
        format!("brokerName=broker-b\nbrokerIP1=127.0.0.1\nlistenPort=0\nstorePathRootDir={}\n", root.display());
    let file = write(1, settings);
    let second = Running::start(&mut gantry(&["broker", "-c", &file, "-n", names]));
    let client = Client::new(ClientOptions::default());
    until_route(&client, names, "TBW102", &[("broker-a", 8), ("broker-b", 8)]).await;

    assert_eq!(send(&client, first.address("broker"), "Spread").await, 0);
    until_route(&client, names, "Spread", &[("broker-a", 3), ("broker-b", 3)]).await;
    assert_eq!(send(&client, second.address("broker"), "Back").await, 0);
    until_route(&client, names, "Back", &[("broker-a", 3), ("broker-b", 3)]).await;

    // What an operator made on the other broker stays as it is, and what he makes on one broker stays there.
    let fields = CreateTopic {
        topic: "Made",
        default_topic: None,
        read_queue_nums: 9,
        write_queue_nums: 9,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: None,
        order: false,
        attributes: None,
        force: false,
    };
    let made = client.call(second.address("broker"), request::UPDATE_AND_CREATE_TOPIC, &fields, Bytes::new(), DEADLINE);
    assert_eq!(made.await.unwrap().code, 0);
    until_route(&client, names, "Made", &[("broker-b", 9)]).await;
    assert_eq!(send(&client, first.address("broker"), "Made").await, 0);
    assert_eq!(send(&client, first.address("broker"), "After").await, 0);
    // One task places them one after the other, so Made was looked at before After.
    until_route(&client, names, "After", &[("broker-a", 3), ("broker-b", 3)]).await;
    let fields = GetTopicConfig { topic: "Made", lo: None };
    let kept = client.call(second.address("broker"), request::GET_TOPIC_CONFIG, &fields, Bytes::new(), DEADLINE);
    let kept: TopicConfig = fastjson::from_slice(&kept.await.unwrap().body).unwrap();
    assert_eq!(kept.write_queue_nums, 9);
}
