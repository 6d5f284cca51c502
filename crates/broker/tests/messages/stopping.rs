//! What connections are still owed when the broker stops.

use net::{CallError, Client, ClientOptions};
use protocol::code::request;

use crate::support::{DEADLINE, Device, Setup, from, start, to, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_send_that_was_stored_before_a_stop_is_answered_and_parked_pulls_hold_nothing_up() {
    const SENDS: usize = 200;
    let device = Device::default();
    let setup = Setup { is_sync: true, sync_flush_timeout: "60000", device: device.clone(), ..Setup::default() };
    let mut running = start(setup).await;
    let first = running.put("T", 0, "", "first").await;
    let consumer = Client::new(ClientOptions::default());
    let address = running.address.clone();
    let parked = tokio::spawn(async move {
        let pull = waiting(from("T", 1, 0), 60_000);
        consumer.call(&address, request::PULL_MESSAGE, &pull, bytes::Bytes::new(), DEADLINE).await
    });
    running.until_parked(1).await;

    device.hold_flush(true);
    let sends: Vec<_> = (0..SENDS)
        .map(|number| {
            let (client, address) = (running.client.clone(), running.address.clone());
            tokio::spawn(async move {
                let body = number.to_string().into_bytes().into();
                client.call(&address, request::SEND_MESSAGE_V2, &to("T", 0, ""), body, DEADLINE).await
            })
        })
        .collect();
    let queue = running.store().existing_queue("T", 0).unwrap();
    crate::support::until("all are stored", || queue.max_offset() == first.queue_offset as u64 + 1 + SENDS as u64)
        .await;

    running.begin_stop();
    // The consumer is let go while the producer's replies are still held up: the stop has begun and has not ended.
    let let_go = parked.await.unwrap();
    assert!(matches!(let_go, Err(CallError::Closed { .. })), "{let_go:?}");
    assert!(!running.is_quiet());
    device.hold_flush(false);
    for send in sends {
        let answer = send.await.unwrap();
        assert_eq!(answer.as_ref().map(|answer| answer.code).ok(), Some(0), "{answer:?}");
    }
    running.stop().await;
}
