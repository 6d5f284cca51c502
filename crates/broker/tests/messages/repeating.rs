//! Sends that come a second time.

use protocol::code::request;
use protocol::request::SendMessage;

use crate::support::*;

fn window(is_sync: bool) -> Setup {
    Setup { repeated_send_window: "600000", is_sync, ..Setup::default() }
}

async fn bodies(running: &Running, topic: &str, queue_id: i32) -> Vec<String> {
    running.all(topic, queue_id).await.into_iter().map(|message| message.body).collect()
}

async fn a_repeated_send_is_stored_once(is_sync: bool) {
    let running = start(window(is_sync)).await;
    let (one, other) = (properties(&[("UNIQ_KEY", "U1")]), properties(&[("UNIQ_KEY", "U2")]));
    running.put("Orders", 1, &other, "before").await;
    let first = running.put("Orders", 1, &one, "x").await;
    assert_eq!((first.queue_id, first.queue_offset), (1, 1));
    // A producer sends again to another queue.
    assert_eq!(running.put("Orders", 2, &one, "x").await, first);
    assert_eq!(running.put("Orders", 1, &one, "x").await, first);
    running.wait_for("Orders", 1, 2).await;
    assert_eq!(bodies(&running, "Orders", 1).await, ["before", "x"]);
    assert!(bodies(&running, "Orders", 2).await.is_empty());
    assert_eq!(running.put("Payments", 0, &one, "another topic").await.queue_offset, 0);
    running.wait_for("Payments", 0, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_comes_again_is_answered_with_the_place_of_the_first() {
    a_repeated_send_is_stored_once(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_comes_again_is_answered_with_the_place_of_the_first_with_sync_flush_too() {
    a_repeated_send_is_stored_once(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_window_every_send_is_stored() {
    let running = start(Setup::default()).await;
    let key = properties(&[("UNIQ_KEY", "U1")]);
    running.put("Orders", 0, &key, "x").await;
    assert_eq!(running.put("Orders", 0, &key, "x").await.queue_offset, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_leaves_messages_without_a_key_and_batches_alone() {
    let running = start(window(false)).await;
    running.put("Orders", 0, "", "x").await;
    assert_eq!(running.put("Orders", 0, "", "x").await.queue_offset, 1);
    let key = properties(&[("UNIQ_KEY", "U1")]);
    for offset in [2, 3] {
        let batch = SendMessage { batch: Some(true), ..to("Orders", 0, &key) };
        let answer = running.call(request::SEND_BATCH_MESSAGE, &batch, batch_of(&[("x", &key)])).await;
        assert_eq!((answer.code, Sent::of(&answer).queue_offset), (0, offset));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_was_refused_may_come_again() {
    let running = start(window(false)).await;
    let key = properties(&[("UNIQ_KEY", "U1")]);
    assert_ne!(running.send(&to("Orders", 99, &key), "x").await.code, 0);
    assert_ne!(running.send(&to("Orders", 0, &key), "").await.code, 0);
    assert_eq!(running.put("Orders", 0, &key, "x").await.queue_offset, 0);
}
