use std::sync::mpsc;

use bytes::BytesMut;
use env::{ManualClock, TimeMs};
use net::Detached;
use protocol::body::{RegisterBrokerBody, TopicConfig};
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::{BrokerHeartbeat, GetBrokerMemberGroup, GetRouteInfo, RegisterBroker};
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
    let mut broker = Detached::open(Arc::clone(names), ([127, 0, 0, 1], 40_000).into());
    broker.serve(&registration(address, broker_id, ["A", "B"].map(str::to_owned))).await.discard();
    broker
}

/// The request by which a replica of `b` registers.
fn registration(address: &str, broker_id: i64, topics: impl IntoIterator<Item = String>) -> Bytes {
    let topic = |name: String| (name.clone(), TopicConfig { topic_name: name, ..TopicConfig::default() });
    let mut body = RegisterBrokerBody::default();
    body.topics.topic_config_table = topics.into_iter().map(topic).collect();
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
    frame.freeze()
}

/// A change that takes until it is let go, as one of a large table does on its thread.
struct LongChange {
    release: mpsc::Sender<()>,
    thread: std::thread::JoinHandle<Result<(), mpsc::RecvTimeoutError>>,
}

impl LongChange {
    fn begin(names: &Arc<Names>) -> LongChange {
        let ((held, is_held), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let names = Arc::clone(names);
        let thread = std::thread::spawn(move || {
            let _entry = names.entry.blocking_write();
            let _table = names.table.write();
            held.send(()).unwrap();
            released.recv_timeout(Duration::from_secs(30))
        });
        is_held.recv().unwrap();
        LongChange { release, thread }
    }

    /// Ends it. It fails if the test came here only because the change was given up.
    fn end(self) {
        let _ = self.release.send(());
        assert!(self.thread.join().unwrap().is_ok(), "the thread that serves connections waited for the change");
    }
}

fn request_of(code: i32, fields: &dyn EncodeFields) -> Bytes {
    let mut frame = BytesMut::new();
    write_frame(&mut frame, Serialization::Json, &Head { code, ..Head::default() }, fields, 0);
    frame.freeze()
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
    let of_a = GetRouteInfo { topic: "A", accept_standard_json_only: None, zone_mode: None, zone_name: None };
    let route = || request_of(request::GET_ROUTEINFO_BY_TOPIC, &of_a);
    let list = || request_of(request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &());
    let open = || Detached::open(Arc::clone(&names), ([127, 0, 0, 1], 40_001).into());
    let before = open().serve(&route()).await.to_vec();

    let change = LongChange::begin(&names);
    let (mut lists, asked) = (open(), list());
    let listing = tokio::spawn(async move { lists.serve(&asked).await.to_vec() });
    tokio::task::yield_now().await;
    assert_eq!(open().serve(&route()).await.to_vec(), before);
    change.end();
    let listed = listing.await.unwrap();
    assert!(String::from_utf8_lossy(&listed).contains("\"A\""), "{}", String::from_utf8_lossy(&listed));
}

// One thread serves all connections of these two: what blocks it blocks the test.

#[tokio::test]
async fn requests_that_need_the_table_wait_for_a_long_change_without_keeping_the_thread() {
    let (names, _) = name_server(Options::default());
    let _broker = registered(&names, "127.0.0.1:1", 0).await;
    let of = |topic| GetRouteInfo { topic, accept_standard_json_only: None, zone_mode: None, zone_name: None };
    let route = |topic| request_of(request::GET_ROUTEINFO_BY_TOPIC, &of(topic));
    let of_zone = GetRouteInfo { zone_mode: Some(true), zone_name: Some("z"), ..of("A") };
    let member = GetBrokerMemberGroup { cluster_name: "C", broker_name: "b" };
    let heartbeat = BrokerHeartbeat {
        cluster_name: "C",
        broker_addr: "127.0.0.1:1",
        broker_name: "b",
        broker_id: Some(0),
        epoch: None,
        max_offset: None,
        confirm_offset: None,
        heartbeat_timeout_mills: None,
        election_priority: None,
    };
    let open = || Detached::open(Arc::clone(&names), ([127, 0, 0, 1], 40_001).into());
    open().serve(&route("A")).await.discard();

    let change = LongChange::begin(&names);
    let asked = [
        route("B"),
        request_of(request::GET_ROUTEINFO_BY_TOPIC, &of_zone),
        request_of(request::GET_BROKER_MEMBER_GROUP, &member),
        request_of(request::GET_NAMESRV_CONFIG, &()),
        request_of(request::BROKER_HEARTBEAT, &heartbeat),
        registration("127.0.0.1:1", 0, ["A", "B"].map(str::to_owned)),
    ];
    let waiting: Vec<_> = asked
        .into_iter()
        .map(|asked| {
            let mut peer = open();
            tokio::spawn(async move { peer.serve(&asked).await.to_vec() })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(!open().serve(&route("A")).await.to_vec().is_empty(), "a route that is kept");
    assert!(waiting.iter().all(|one| !one.is_finished()));
    change.end();
    for one in waiting {
        assert!(!one.await.unwrap().is_empty());
    }
}

#[test]
fn a_large_registration_waits_for_a_thread_that_serves_no_connection() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (names, _) = name_server(Options::default());
        let mut broker = Detached::open(Arc::clone(&names), ([127, 0, 0, 1], 40_000).into());
        let registering = registration("127.0.0.1:1", 0, (0..3_000).map(|at| format!("T{at}")));
        // The only such thread is occupied.
        let (free, occupied) = std::sync::mpsc::channel::<()>();
        let occupation = tokio::task::spawn_blocking(move || occupied.recv());
        let mut serving = std::pin::pin!(broker.serve(&registering));
        tokio::select! {
            biased;
            _ = &mut serving => panic!("the thread of the connection has taken it in"),
            () = std::future::ready(()) => {}
        }
        free.send(()).unwrap();
        occupation.await.unwrap().unwrap();
        serving.await.discard();
        assert_eq!(names.table.read().topic_count(), 3_000);
    });
}

#[tokio::test]
async fn a_large_registration_comes_and_goes_on_a_thread_that_serves_no_connection() {
    const TOPICS: usize = 3_000;
    let (names, _) = name_server(Options::default());
    let topics = |names: &Names| names.table.read().topic_count();
    let mut broker = Detached::open(Arc::clone(&names), ([127, 0, 0, 1], 40_000).into());
    let registering = registration("127.0.0.1:1", 0, (0..TOPICS).map(|at| format!("T{at}")));
    let change = LongChange::begin(&names);
    let registered = tokio::spawn(async move {
        broker.serve(&registering).await.discard();
        broker
    });
    tokio::task::yield_now().await;
    change.end();
    let broker = registered.await.unwrap();
    assert_eq!(topics(&names), TOPICS);

    drop(broker);
    assert_eq!(topics(&names), TOPICS, "nothing is taken out before this thread is free again");
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while topics(&names) > 0 {
        assert!(std::time::Instant::now() < deadline, "the topics of a broker that has gone are still there");
        tokio::task::yield_now().await;
    }
}
