use bytes::BytesMut;
use env::{ManualClock, TimeMs};
use net::Detached;
use protocol::body::{RegisterBrokerBody, TopicConfig};
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::RegisterBroker;
use tokio::runtime::Handle;

use super::*;

const HOUR_MS: i64 = 3_600_000;

/// A name server without a port, and the hand of its clock.
pub(crate) fn name_server(options: Options) -> (Arc<Names>, ManualClock) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { kv_config_path: dir.path().join("kvConfig.json"), ..options };
    let (clock, hand) = Clock::manual(TimeMs(1_700_000_000_000));
    (Names::new(options, ClientOptions::default(), clock).unwrap(), hand)
}

/// The connection by which a replica of `b` has registered, with the topics `A` and `B`.
pub(crate) async fn registered(names: &Arc<Names>, address: &str, broker_id: i64) -> Detached<Names> {
    let topic = |name: &str| (name.to_owned(), TopicConfig { topic_name: name.to_owned(), ..TopicConfig::default() });
    let mut body = RegisterBrokerBody::default();
    body.topics.topic_config_table = [topic("A"), topic("B")].into();
    let body = body.to_json();
    let fields = RegisterBroker {
        broker_name: "b",
        broker_addr: address,
        cluster_name: "C",
        ha_server_addr: None,
        broker_id,
        heartbeat_timeout_millis: None,
        enable_acting_master: Some(true),
        compressed: false,
        body_crc32: 0,
        zone_name: None,
    };
    let mut frame = BytesMut::new();
    let head = Head { code: request::REGISTER_BROKER, ..Head::default() };
    write_frame(&mut frame, Serialization::Json, &head, &fields, body.len());
    frame.extend_from_slice(&body);
    let mut broker = Detached::open(Arc::clone(names), ([127, 0, 0, 1], 40_000).into());
    broker.serve(&frame.freeze()).await.discard();
    broker
}

/// How many replicas of `b` are in the route of topic `A`.
fn replicas(names: &Names) -> usize {
    let route = names.table.read().route("A", false);
    route.map_or(0, |route| route.broker_datas[0].broker_addrs.len())
}

#[tokio::test]
async fn setting_the_clock_takes_no_broker_out_and_keeps_no_silent_one() {
    let (names, hand) = name_server(Options::default());
    let _broker = registered(&names, "m:1", 0).await;
    hand.set_by(HOUR_MS);
    names.tidy();
    assert_eq!(replicas(&names), 1, "no time has passed");
    hand.set_by(-2 * HOUR_MS);
    hand.advance(Duration::from_secs(121));
    names.tidy();
    assert_eq!(replicas(&names), 0, "it was silent for longer than its two minutes");
}

#[tokio::test]
async fn a_name_server_that_stops_tells_no_slave_that_its_master_is_gone() {
    for is_stopping in [false, true] {
        let (names, _) = name_server(Options { notify_min_broker_id_changed: true, ..Options::default() });
        let master = registered(&names, "127.0.0.1:1", 0).await;
        let _slave = registered(&names, "127.0.0.1:2", 1).await;
        if is_stopping {
            names.stop();
        }
        // Whom there is something to tell is told by a task of its own, and none of them runs before this test waits again.
        let tasks = Handle::current().metrics();
        let before = tasks.num_alive_tasks();
        drop(master);
        let told = tasks.num_alive_tasks() - before;
        assert_eq!((told, replicas(&names)), if is_stopping { (0, 2) } else { (1, 1) });
    }
}
