//! How often name servers are asked, seen from one of them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{ClientConfig, ClientError, Message};
use env::{Clock, TimeMs};
use protocol::code::{ResponseCode, request};
use support::{Fake, until};

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
