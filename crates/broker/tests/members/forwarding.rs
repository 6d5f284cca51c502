//! A slave that asks its master in its clients' name, and what they hear if there is none.

use std::time::Duration;

use bytes::Bytes;
use net::{Client, ClientOptions};
use protocol::code::request;
use protocol::frame::{self, Serialization};
use protocol::record::{self, Scanned};
use protocol::request::{AskForClient, NOT_MASTER};
use tokio::time::Instant;

use crate::journal_copies::{ack, bodies, order, pop};
use crate::slaves::{figure, until, until_connected, until_equal};
use crate::support::{Setup, from, start, to};
use crate::{DEADLINE, Running, lock_as, make_group, make_topic_with};

async fn master() -> Running {
    start(Setup { main_port: Some(0), ..Setup::default() }).await
}

async fn slave_with(log: &str, more: &[(&'static str, &'static str)]) -> Running {
    let log: &'static str = log.to_owned().leak();
    let own = [("brokerRole", "SLAVE"), ("brokerId", "1"), ("haMasterAddress", log)];
    start(Setup { more: [&own, more].concat().leak(), ..Setup::default() }).await
}

async fn slave(master: &Running) -> Running {
    let slave = slave_with(&master.log.unwrap().to_string(), &[]).await;
    until_connected(&slave, true).await;
    slave
}

/// No broker listens there.
const NOWHERE: &str = "127.0.0.1:2";

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_passes_on_sends_and_pops_and_the_master_sees_the_client() {
    let master = master().await;
    make_topic_with(&master, "T", 1).await;
    make_group(&master, "G", 1).await;
    let slave = slave(&master).await;
    for number in 0..100 {
        let sent = slave.send(&to("T", 0, ""), &format!("message {number}")).await;
        let offset = sent.fields.get("queueOffset").map(str::to_owned);
        assert_eq!((sent.code, offset), (0, Some(number.to_string())), "{:?}", sent.remark);
    }
    slave.client.oneway(&slave.address, request::SEND_MESSAGE_V2, &to("T", 0, ""), "one-way".into()).await.unwrap();
    let all = master.wait_for("T", 0, 101).await;
    assert_eq!((&*all[99].body, &*all[100].body), ("message 99", "one-way"));

    // Where the record says that its producer is: a connection of its own has another port than
    // that of the slave.
    let producer = Client::new(ClientOptions::default());
    let connection = producer.connect(&slave.address).await.unwrap();
    let sent = producer.call(&slave.address, request::SEND_MESSAGE_V2, &to("T", 0, ""), "x".into(), DEADLINE).await;
    assert_eq!(sent.unwrap().code, 0);
    let pull = from("T", 0, 101);
    let pulled =
        master.client.call(&master.address, request::PULL_MESSAGE, &pull, Bytes::new(), DEADLINE).await.unwrap();
    let Scanned::Record(record) = record::scan(&pulled.body, true).unwrap() else { panic!("no record") };
    assert_eq!(record.born_host(), connection.local());

    let popped = pop(&slave, &order("T", false, 2)).await;
    assert_eq!(bodies(&popped), ["message 0", "message 1"]);
    for message in &popped {
        assert_eq!(ack(&slave, "T", message).await, 0);
    }
    let leases = figure(&master, "popLeases").await;
    assert_eq!(leases.as_deref(), Some("0"), "both are acknowledged");
    assert_eq!((lock_as(&slave, "one").await, lock_as(&master, "other").await), (1, 0));
    until_equal(&master, &slave).await;
    assert_eq!(figure(&slave, "requestsMasterNotAsked").await.as_deref(), Some("0"));
    assert!(slave.metrics().contains("gantry_requests_for_master_total"));
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_passes_nothing_on_that_another_broker_has_passed_on() {
    let master = master().await;
    let slave = slave(&master).await;
    let asked = AskForClient { client: "10.0.0.1:1234" };
    let answer = slave.call(request::ASK_FOR_CLIENT, &asked, "anything").await;
    assert_eq!((answer.code, answer.fields.get(NOT_MASTER)), (14, Some("true")));
    assert!(answer.remark.unwrap().contains(&master.address));
    // The master takes no more than it should, either.
    let header = |code: i32| format!(r#"{{"code":{code},"flag":0,"language":"JAVA","opaque":1,"version":1}}"#);
    for (client, body, words) in [
        ("nobody", frame::of_parts(Serialization::Json, header(10).as_bytes(), b""), "client=nobody"),
        ("10.0.0.1:1", Bytes::from_static(b"\0\0\0"), "not one whole frame"),
        ("10.0.0.1:1", frame::of_parts(Serialization::Json, b"{", b""), "the body is no request"),
        ("10.0.0.1:1", frame::of_parts(Serialization::Json, header(11).as_bytes(), b""), "request 11 is not passed on"),
        ("10.0.0.1:1", frame::of_parts(Serialization::Json, header(30006).as_bytes(), b""), "30006 is not passed on"),
        ("10.0.0.1:1", frame::of_parts(Serialization::Json, header(17).as_bytes(), b""), "request 17 is not passed on"),
    ] {
        let answer = master.call(request::ASK_FOR_CLIENT, &AskForClient { client }, body).await;
        let remark = answer.remark.unwrap_or_default();
        assert!(answer.code != 0 && remark.contains(words), "{}: {remark}", answer.code);
    }
    slave.stop().await;
    master.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_a_master_and_then_hears_that_there_is_none() {
    let running = slave_with(NOWHERE, &[]).await;
    let (slave, began) = (&running, Instant::now());
    let sends = (0..20).map(|_| async move { slave.send(&to("T", 0, ""), "x").await });
    for sent in futures(sends).await {
        let remark = sent.remark.unwrap_or_default();
        assert!(
            sent.code == 2 && remark.contains("system busy") && remark.contains("the master at 127.0.0.1:1:"),
            "{remark}"
        );
    }
    assert!(began.elapsed() > Duration::from_secs(1), "it does not wait");
    assert_eq!(figure(slave, "requestsMasterNotAsked").await.as_deref(), Some("20"));
    running.stop().await;
}

/// All of them, at the same time.
async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| match one.as_mut().poll(cx) {
            std::task::Poll::Ready(got) => {
                done.push(got);
                false
            }
            std::task::Poll::Pending => true,
        });
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slave_that_is_told_to_asks_no_master() {
    let master = master().await;
    let slave = slave_with(&master.log.unwrap().to_string(), &[("forwardToMaster", "false")]).await;
    until("it follows", || async { figure(&slave, "masterConnected").await.as_deref() == Some("true") }).await;
    let sent = slave.send(&to("T", 0, ""), "x").await;
    assert_eq!(
        (sent.code, sent.remark.as_deref()),
        (2, Some("[REJECTREQUEST]system busy, start flow control for a while"))
    );
    slave.stop().await;
    master.stop().await;
}
