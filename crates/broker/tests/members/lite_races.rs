//! Lite topics whose messages are acknowledged over several connections at once.

use std::collections::BTreeMap;

use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::request::{DeleteTopic, PopLiteMessage};
use tokio::task::yield_now;

use super::lite::*;
use super::lite_pops::*;
use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_comes_twice_though_two_connections_acknowledge_while_messages_come() {
    const MESSAGES: usize = 3000;
    let running = chat(&[]).await;
    for client in ["c1", "c2"] {
        add(&running, client, &["a"]).await;
    }
    let (one, other) = (Client::new(ClientOptions::default()), Client::new(ClientOptions::default()));
    let saying = async {
        for number in 0..MESSAGES {
            say(&running, "a", &number.to_string()).await;
        }
    };
    let seen = parking_lot::Mutex::new(BTreeMap::<String, usize>::new());
    let consuming = async |client: &str| {
        while seen.lock().len() < MESSAGES {
            let popped = pop(&running, &PopLiteMessage { max_msg_num: 2, ..order(client) }).await;
            for body in popped.bodies() {
                *seen.lock().entry(body.to_owned()).or_default() += 1;
            }
            match popped.messages.len() {
                0 => yield_now().await,
                1 => assert_eq!(ack_by(&running, &one, &popped, 0).await, 0),
                _ => {
                    let acked = tokio::join!(ack_by(&running, &one, &popped, 0), ack_by(&running, &other, &popped, 1));
                    assert_eq!(acked, (0, 0));
                }
            }
        }
    };
    tokio::time::timeout(4 * DEADLINE, async { tokio::join!(saying, consuming("c1"), consuming("c2")) }).await.unwrap();
    let twice: Vec<_> = seen.lock().iter().filter(|(_, times)| **times > 1).map(|(body, _)| body.clone()).collect();
    assert_eq!(twice, [""; 0], "given to somebody again though acknowledged or held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_acknowledgement_is_answered_no_sooner_than_the_journal_has_the_first() {
    let setup = Setup { device: Device::to_be_filled(), ..setup() };
    let device = setup.device.clone();
    let running = start(setup).await;
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE").await.0, 0);
    make_group(&running, "G", &[("lite.bind.topic", "Chat")]).await;
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "0").await;
    let popped = pop(&running, &order("c1")).await;
    assert_eq!(popped.bodies(), ["0"]);
    let other = Client::new(ClientOptions::default());
    device.fill_journal(true);
    assert_eq!(ack(&running, &popped, 0).await, 2);
    let again = tokio::join!(ack_by(&running, &other, &popped, 0), put_off(&running, &popped, 0, 1000, false));
    assert_eq!(again, (2, 2), "answered before the first one is written down");
    device.fill_journal(false);
    assert_eq!(ack_by(&running, &other, &popped, 0).await, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lite_topic_that_is_deleted_while_it_is_popped_begins_anew() {
    let running = chat(&[]).await;
    add(&running, "c1", &["a"]).await;
    for body in ["old0", "old1", "old2"] {
        say(&running, "a", body).await;
    }
    let first = pop(&running, &PopLiteMessage { max_msg_num: 1, ..order("c1") }).await;
    assert_eq!((first.bodies(), ack(&running, &first, 0).await), (vec!["old0"], 0));
    let dir = running.stop().await;
    let device = Device::default();
    let running = start_on(Setup { device: device.clone(), ..setup() }, dir).await;
    add(&running, "c1", &["a"]).await;
    device.hold_reads(true);
    let all = order("c1");
    let popping = pop(&running, &all);
    let deleting = async {
        until("the pop waits for the device", || device.reads_waiting() == 1).await;
        let other = Client::new(ClientOptions::default());
        let fields = DeleteTopic { topic: "Chat" };
        let deleted = other.call(&running.address, request::DELETE_TOPIC_IN_BROKER, &fields, Bytes::new(), DEADLINE);
        assert_eq!(deleted.await.unwrap().code, 0);
        device.hold_reads(false);
    };
    tokio::join!(popping, deleting);
    assert_eq!(make_parent(&running, "Chat", "+message.type=LITE").await.0, 0);
    add(&running, "c1", &["a"]).await;
    say(&running, "a", "new0").await;
    assert_eq!(pop(&running, &patient("c1")).await.bodies(), ["new0"]);
}
