//! How often name servers are asked, seen from one of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::support::{Fake, PATIENCE, until};
use client::{ClientConfig, ClientError, Message, MessageQueue, PullStatus};
use env::{Clock, TimeMs};
use protocol::body::{BrokerData, TopicQueueMappingInfo, TopicRoute};
use protocol::code::{ResponseCode, request};
use protocol::fastjson::{self, Dialect};

#[tokio::test]
async fn a_name_server_that_fails_is_asked_once_in_a_while_and_the_old_route_is_used_meanwhile() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = Arc::clone(&is_down);
    let fake = Fake::start(move |asked| {
        let fails = asked.code == request::GET_ROUTEINFO_BY_TOPIC && down.load(Ordering::SeqCst);
        fails.then(|| (ResponseCode::SystemError, Vec::new(), Vec::new()))
    });
    let (clock, hand) = Clock::manual(TimeMs(1_795_248_000_000));
    let client = fake.client_with(ClientConfig { clock, ..ClientConfig::new(&fake.address()) });
    let asked = || fake.asked(request::GET_ROUTEINFO_BY_TOPIC).len();
    client.route("t").await.unwrap();
    is_down.store(true, Ordering::SeqCst);
    hand.advance(Duration::from_secs(31));
    for _ in 0..20 {
        assert_eq!(client.route("t").await.unwrap().readable.len(), 1);
    }
    until("it is asked again", || asked() == 2).await;
    assert_eq!(client.route("t").await.unwrap().readable.len(), 1);
    assert_eq!(asked(), 2);
    hand.advance(Duration::from_secs(6));
    client.route("t").await.unwrap();
    until("it is asked again later", || asked() == 3).await;
}

#[tokio::test]
async fn a_broker_that_is_busy_is_no_reason_to_ask_for_the_route_and_one_that_has_not_the_topic_is() {
    let is_gone = Arc::new(AtomicBool::new(false));
    let gone = Arc::clone(&is_gone);
    let fake = Fake::start(move |asked| {
        let code = if gone.load(Ordering::SeqCst) { ResponseCode::TopicNotExist } else { ResponseCode::SystemBusy };
        (asked.code == request::SEND_MESSAGE_V2).then(|| (code, Vec::new(), Vec::new()))
    });
    let (clock, hand) = Clock::manual(TimeMs(1_795_248_000_000));
    let client = fake.client_with(ClientConfig { clock, ..ClientConfig::new(&fake.address()) });
    let producer = client.producer("p");
    let asked = || fake.asked(request::GET_ROUTEINFO_BY_TOPIC).len();
    client.route("t").await.unwrap();
    for (gone, routes) in [(false, 1), (true, 2)] {
        is_gone.store(gone, Ordering::SeqCst);
        hand.advance(Duration::from_secs(2));
        let refused = producer.send(Message::new("t", "body")).await;
        assert!(matches!(refused, Err(ClientError::Exhausted { .. })), "{refused:?}");
        assert_eq!(asked(), routes);
    }
}

/// A route of a static topic with one queue, which is led by this broker.
fn led_by(leader: &str, address: &str, epoch: i64) -> Vec<u8> {
    with_mapping(leader, address, epoch, &[0])
}

/// A route of a static topic with one queue, as far as one broker has said what it leads.
fn with_mapping(leader: &str, address: &str, epoch: i64, led: &[i32]) -> Vec<u8> {
    let broker = |name: &str| BrokerData {
        broker_name: name.to_owned(),
        broker_addrs: [(0, address.to_owned())].into(),
        ..BrokerData::default()
    };
    let info = TopicQueueMappingInfo {
        bname: leader.to_owned(),
        curr_id_map: led.iter().map(|id| (*id, 0)).collect(),
        epoch,
        scope: Some("__global__".to_owned()),
        total_queues: 1,
        ..TopicQueueMappingInfo::default()
    };
    let route = TopicRoute {
        broker_datas: vec![broker("old"), broker("new")],
        topic_queue_mapping_by_broker: Some(BTreeMap::from([(leader.to_owned(), info)])),
        ..TopicRoute::default()
    };
    fastjson::to_vec(&route, Dialect::FastJson)
}

#[tokio::test]
async fn a_queue_that_has_moved_is_found_where_it_is_now_and_keeps_its_name() {
    let (address, has_moved) = (Arc::new(OnceLock::<String>::new()), Arc::new(AtomicBool::new(false)));
    let (at, moved) = (Arc::clone(&address), Arc::clone(&has_moved));
    let fake = Fake::start(move |asked| match asked.code {
        request::GET_ROUTEINFO_BY_TOPIC => {
            let (leader, epoch) = if moved.load(Ordering::SeqCst) { ("new", 2) } else { ("old", 1) };
            Some((ResponseCode::Success, Vec::new(), led_by(leader, at.get().unwrap(), epoch)))
        }
        request::SEND_MESSAGE_V2 if moved.load(Ordering::SeqCst) && asked.fields["n"] == "old" => {
            Some((ResponseCode::NotLeaderForQueue, Vec::new(), Vec::new()))
        }
        request::SEND_MESSAGE_V2 => {
            let fields = [("msgId", "ID"), ("queueId", "0"), ("queueOffset", "7")];
            Some((ResponseCode::Success, fields.map(|(name, value)| (name, value.to_owned())).into(), Vec::new()))
        }
        _ => None,
    });
    address.set(fake.address()).unwrap();
    let client = fake.client();
    let producer = client.producer("p");
    let logical = MessageQueue { topic: "t".into(), broker_name: "__syslo__global__".into(), queue_id: 0 };
    for (leader, moved) in [("old", false), ("new", true)] {
        has_moved.store(moved, Ordering::SeqCst);
        let sent = producer.send_to(&logical, Message::new("t", "body")).await.unwrap();
        assert_eq!((&sent.queue, sent.broker_name.as_str(), sent.queue_offset), (&logical, leader, 7));
    }
    let asked = fake.asked(request::SEND_MESSAGE_V2);
    assert!(asked.iter().all(|asked| asked.fields["lo"] == "true"));
    assert_eq!(asked.iter().map(|asked| asked.fields["n"].as_str()).collect::<Vec<_>>(), ["old", "old", "new"]);

    // A queue that nobody leads is looked for, and refused in the end.
    let other = MessageQueue { queue_id: 1, ..logical };
    let refused = producer.send_to(&other, Message::new("t", "body")).await;
    assert!(matches!(refused, Err(ClientError::NoLeader { queue_id: 1, .. })), "{refused:?}");
}

#[tokio::test]
async fn a_queue_whose_leader_the_name_server_has_not_heard_of_yet_is_looked_for() {
    let (address, routes_asked) = (Arc::new(OnceLock::<String>::new()), Arc::new(AtomicUsize::new(0)));
    let (at, asked) = (Arc::clone(&address), Arc::clone(&routes_asked));
    let fake = Fake::start(move |request| match request.code {
        // More answers without a leader than a producer has attempts.
        request::GET_ROUTEINFO_BY_TOPIC => {
            let led: &[i32] = if asked.fetch_add(1, Ordering::SeqCst) < 6 { &[] } else { &[0] };
            Some((ResponseCode::Success, Vec::new(), with_mapping("new", at.get().unwrap(), 1, led)))
        }
        request::SEND_MESSAGE_V2 => {
            let fields = [("msgId", "ID"), ("queueId", "0"), ("queueOffset", "0")];
            Some((ResponseCode::Success, fields.map(|(name, value)| (name, value.to_owned())).into(), Vec::new()))
        }
        _ => None,
    });
    address.set(fake.address()).unwrap();
    let sent = fake.client().producer("p").send(Message::new("t", "body")).await.unwrap();
    assert_eq!(sent.broker_name, "new");
    assert_eq!(routes_asked.load(Ordering::SeqCst), 7);
}

#[tokio::test]
async fn pulls_commits_and_questions_about_offsets_look_for_a_queue_that_nobody_leads_for_a_moment() {
    let (address, left) = (Arc::new(OnceLock::<String>::new()), Arc::new(AtomicUsize::new(0)));
    let (at, without_leader) = (Arc::clone(&address), Arc::clone(&left));
    let fake = Fake::start(move |asked| match asked.code {
        request::GET_ROUTEINFO_BY_TOPIC => {
            let less = without_leader.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            let led: &[i32] = if less.is_ok() { &[] } else { &[0] };
            Some((ResponseCode::Success, Vec::new(), with_mapping("new", at.get().unwrap(), 1, led)))
        }
        _ => None,
    });
    address.set(fake.address()).unwrap();
    // A new one knows no route, and the name server knows of no leader the first two times.
    let consumer = || {
        left.store(2, Ordering::SeqCst);
        let config = ClientConfig { timeout: PATIENCE, ..ClientConfig::new(&fake.address()) };
        fake.client_with(config).pull_consumer("g")
    };
    let queue = MessageQueue { topic: "t".into(), broker_name: "__syslo__global__".into(), queue_id: 0 };
    let pulled = consumer().pull(&queue, 3, 32, "*", Duration::ZERO).await.unwrap();
    assert_eq!((pulled.status, pulled.next_offset), (PullStatus::NothingNew, 3));
    consumer().commit(&queue, 5).await.unwrap();
    assert_eq!(consumer().max_offset(&queue).await.unwrap(), 0);
    for code in [request::PULL_MESSAGE, request::UPDATE_CONSUMER_OFFSET, request::GET_MAX_OFFSET] {
        assert_eq!(fake.asked(code).len(), 1);
    }
    assert_eq!(fake.asked(request::GET_ROUTEINFO_BY_TOPIC).len(), 9);
}
