use std::sync::mpsc;

use bytes::BytesMut;
use env::{ManualClock, TimeMs};
use net::Detached;
use protocol::body::{RegisterBrokerBody, TopicConfig};
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::{GetRouteInfo, RegisterBroker};
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

#[tokio::test]
async fn routes_that_are_kept_are_answered_while_the_table_changes_and_a_list_of_it_waits() {
    let (names, _) = name_server(Options::default());
    let _broker = registered(&names, "127.0.0.1:1", 0).await;
    let ask = |code: i32, fields: &dyn EncodeFields| {
        let mut frame = BytesMut::new();
        write_frame(&mut frame, Serialization::Json, &Head { code, ..Head::default() }, fields, 0);
        frame.freeze()
    };
    let of_a = GetRouteInfo { topic: "A", accept_standard_json_only: None, zone_mode: None, zone_name: None };
    let route = || ask(request::GET_ROUTEINFO_BY_TOPIC, &of_a);
    let list = || ask(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &());
    let open = || Detached::open(Arc::clone(&names), ([127, 0, 0, 1], 40_001).into());
    let before = open().serve(&route()).await.to_vec();

    // A change that takes until the test says so.
    let ((held, is_held), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
    let changing = {
        let names = Arc::clone(&names);
        std::thread::spawn(move || {
            let _table = names.table.write();
            held.send(()).unwrap();
            released.recv_timeout(Duration::from_secs(30))
        })
    };
    is_held.recv().unwrap();
    let (mut lists, asked) = (open(), list());
    let listing = tokio::spawn(async move { lists.serve(&asked).await.to_vec() });
    tokio::task::yield_now().await;
    assert_eq!(open().serve(&route()).await.to_vec(), before);
    release.send(()).unwrap();
    assert!(changing.join().unwrap().is_ok(), "the route waited for the change");
    let listed = listing.await.unwrap();
    assert!(String::from_utf8_lossy(&listed).contains("\"A\""), "{}", String::from_utf8_lossy(&listed));
}
