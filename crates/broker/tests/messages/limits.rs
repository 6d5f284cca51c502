//! Limits that an operator sets, and how close we are.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use net::{Budget, ConnectionSlots, Listener, ListenerOptions};
use protocol::code::{ResponseCode, request};
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;

use crate::batch_queues::{create, send_batch};
use crate::support::{DEADLINE, Running, Setup, batch_of, from, properties, start, to, waiting};

pub(super) async fn figure(running: &Running, name: &str) -> Option<String> {
    let response = running.call(request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new()).await;
    let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
    Some(body["table"][name].as_str()?.to_owned())
}

#[tokio::test]
async fn the_limit_of_parked_pulls_is_set_while_running_and_shown_with_how_many_there_are() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "one").await;
    assert_eq!(figure(&running, "parkedPullsMax").await.unwrap(), "1000000");
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), "parkedPullsMax=2\n").await;
    assert_eq!(changed.code, 0, "{:?}", changed.remark);

    let pull = |queue_id| waiting(from("T", queue_id, 0), 60_000);
    let parked: Vec<_> = (1..3)
        .map(|queue_id| {
            let (client, address) = (running.client.clone(), running.address.clone());
            tokio::spawn(async move {
                let pull = waiting(from("T", queue_id, 0), 60_000);
                client.call(&address, request::PULL_MESSAGE, &pull, Bytes::new(), DEADLINE).await
            })
        })
        .collect();
    running.until_parked(2).await;
    let refused = running.try_pull(&pull(3)).await.unwrap();
    assert_eq!(refused.code, ResponseCode::SystemBusy as i32);
    let remark = refused.remark.unwrap();
    assert!(remark.contains("2 pulls") && remark.contains("parkedPullsMax"), "{remark}");
    assert!(remark.ends_with("; try again in 100 ms"), "{remark}");

    for (name, value) in [
        ("parkedPulls", "2"),
        ("parkedPullsMax", "2"),
        ("parkedPullsPerConnectionPeak", "2"),
        ("connections", "1"),
        ("unflushedBurstsPerConnectionMax", "256"),
        ("roomTimeoutMillis", "2500"),
        ("throughputWindowMillis", "10000"),
    ] {
        assert_eq!(figure(&running, name).await.as_deref(), Some(value), "{name}");
    }
    parked.into_iter().for_each(|pull| pull.abort());
    running.stop().await;
}

#[tokio::test]
async fn answers_that_nobody_takes_are_shown_with_how_much_they_may_hold() {
    let running = start(Setup::default()).await;
    let budget = Arc::new(Budget::new(64 << 20));
    running.broker.show(Arc::clone(&budget), Arc::new(ConnectionSlots::new(100)));
    let options =
        ListenerOptions { tls: None, budget, send_buffer_bytes: Some(16 << 10), ..ListenerOptions::default() };
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), options, Arc::clone(&running.broker)).unwrap();
    let address = listener.local_addr();
    let port = tokio::spawn(listener.run(std::future::pending()));
    assert_eq!(figure(&running, "replyBytes").await.as_deref(), Some("0"));
    assert_eq!(figure(&running, "replyBytesMax").await, Some((32 << 20).to_string()));

    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    let mut silent = socket.connect(address).await.unwrap();
    let mut asked = BytesMut::new();
    for opaque in 0..300 {
        let head = Head { code: request::GET_BROKER_CONFIG, opaque, ..Head::default() };
        write_frame(&mut asked, Serialization::Json, &head, &(), 0);
    }
    silent.write_all(&asked).await.unwrap();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while figure(&running, "replyBytes").await.as_deref() == Some("0") {
        assert!(tokio::time::Instant::now() < deadline, "they are not shown");
    }
    drop(silent);
    while figure(&running, "replyBytes").await.as_deref() != Some("0") {
        assert!(tokio::time::Instant::now() < deadline, "they are shown when they are gone");
    }
    port.abort();
    running.stop().await;
}

#[tokio::test]
async fn a_limit_out_of_its_range_is_refused() {
    let running = start(Setup::default()).await;
    for line in ["parkedPullsMax=0\n", "roomTimeoutMillis=5\n", "throughputWindowMillis=99\n"] {
        let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), line).await;
        assert_ne!(changed.code, 0, "{line}");
    }
    assert_eq!(figure(&running, "parkedPullsMax").await.unwrap(), "1000000");
    running.stop().await;
}

#[tokio::test]
async fn open_half_messages_have_a_limit() {
    let running = start(Setup::default()).await;
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), "openHalfMessagesMax=2\n").await;
    assert_eq!(changed.code, 0, "{:?}", changed.remark);
    let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG")]);
    for _ in 0..2 {
        running.put("T", 0, &marked, "half").await;
    }
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while figure(&running, "openHalfMessages").await.as_deref() != Some("2") {
        assert!(tokio::time::Instant::now() < deadline, "they are not open");
    }
    let refused = running.send(&to("T", 0, &marked), "one too many").await;
    assert_eq!(refused.code, ResponseCode::SystemBusy as i32);
    let remark = refused.remark.unwrap();
    // Then producers are asked about theirs (transactionCheckInterval).
    assert!(remark.contains("openHalfMessagesMax") && remark.ends_with("; try again in 30000 ms"), "{remark}");
    assert_eq!(figure(&running, "openHalfMessagesMax").await.as_deref(), Some("2"));
    running.put("T", 0, "", "others are taken").await;
    running.stop().await;
}

#[tokio::test]
async fn half_messages_of_one_burst_count_before_they_are_found_open() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "the topic is there").await;
    let changed = running.call(request::UPDATE_BROKER_CONFIG, &(), "openHalfMessagesMax=2\n").await;
    assert_eq!(changed.code, 0, "{:?}", changed.remark);
    let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG")]);
    let half = to("T", 0, &marked);
    // One connection, so likely one burst.
    let sent = tokio::join!(running.send(&half, "a"), running.send(&half, "b"), running.send(&half, "one too many"));
    assert_eq!([sent.0.code, sent.1.code, sent.2.code], [0, 0, ResponseCode::SystemBusy as i32]);
    let remark = sent.2.remark.unwrap();
    assert!(remark.contains("2 half messages are open") && remark.contains("openHalfMessagesMax"), "{remark}");
    running.stop().await;
}

#[tokio::test]
async fn a_message_that_no_file_of_the_log_can_hold_costs_those_behind_it_nothing_and_is_not_counted() {
    let running = start(Setup { segment_bytes: 64 << 10, ..Setup::default() }).await;
    running.put("T", 0, "", "the topic is there").await;
    let (message, big) = (to("T", 0, ""), "x".repeat(100 << 10));
    // One connection, so likely one burst.
    let sent = tokio::join!(running.send(&message, "a"), running.send(&message, &big), running.send(&message, "b"));
    assert_eq!([sent.0.code, sent.1.code, sent.2.code], [0, ResponseCode::MessageIllegal as i32, 0]);
    assert!(sent.1.remark.unwrap().contains("does not fit a log file"));
    assert_eq!(figure(&running, "putMessageTimesTotal").await.as_deref(), Some("3"));
    running.stop().await;
}

#[tokio::test]
async fn a_batch_in_one_record_that_no_file_of_the_log_can_hold_costs_those_behind_it_nothing_and_is_not_counted() {
    let running = start(Setup { segment_bytes: 64 << 10, ..Setup::default() }).await;
    assert_eq!(create(&running, "B", "+queue.type=BatchCQ").await.0, 0);
    let (unique, big) = (properties(&[("UNIQ_KEY", "B1")]), "x".repeat(100 << 10));
    let (message, batch) = (to("B", 0, ""), batch_of(&[("inner", ""), (&big, "")]));
    // One connection, so likely one burst.
    let sent = tokio::join!(
        running.send(&message, "a"),
        send_batch(&running, "B", &unique, batch),
        running.send(&message, "b")
    );
    assert_eq!([sent.0.code, sent.1.code, sent.2.code], [0, ResponseCode::MessageIllegal as i32, 0]);
    assert!(sent.1.remark.unwrap().contains("does not fit a log file"));
    assert_eq!(figure(&running, "putMessageTimesTotal").await.as_deref(), Some("2"));
    running.stop().await;
}
