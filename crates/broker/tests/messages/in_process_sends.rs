//! Sends of a caller in this process: they are stored, refused and answered as those of a connection.

use std::sync::Arc;
use std::time::Duration;

use broker::{Caller, ClientAnswer, ClientQuestion, LocalClient, RecallOrder, SendBackOrder, SendOrder, SendOutcome};
use bytes::Bytes;
use protocol::code::ResponseCode;
use protocol::request::SendMessage;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::batch_queues::create;
use super::durability::{hold, release};
use super::in_process::{caller, message, put};
use super::light::listed;
use super::support::{DEADLINE, Device, Message, Running, Setup, batch_of, from, properties, start, to, waiting};
use super::timers::until_waiting;

async fn refused(running: &Running, order: SendOrder<'_>) -> (ResponseCode, String) {
    let refusal = order.call(&running.broker, &mut caller()).await.unwrap_err();
    (refusal.code, refusal.remark)
}

fn bodies(messages: Vec<Message>) -> Vec<String> {
    messages.into_iter().map(|message| message.body).collect()
}

fn places(stored: &SendOutcome) -> Vec<u64> {
    stored.places.iter().map(|place| place.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_hears_where_its_message_is_stored_in_each_flush_mode() {
    for is_sync in [false, true] {
        let running = Arc::new(start(Setup { is_sync, ..Setup::default() }).await);
        let keyed = properties(&[("UNIQ_KEY", "U1")]);
        let first = put(&running, message("T", 1, &keyed, "a")).await;
        assert_eq!((first.queue_id, first.queue_offset, first.uniq_key.as_deref()), (1, 0, Some("U1")));
        let parked = tokio::spawn({
            let running = Arc::clone(&running);
            async move { running.pull(&waiting(from("T", 1, 1), 15_000)).await }
        });
        running.until_parked(1).await;
        // Over a connection, for comparison.
        let over_wire = running.put("T", 2, "", "b").await;
        assert_eq!((over_wire.queue_id, over_wire.queue_offset), (2, 0));
        let next = put(&running, message("T", 1, "", "c")).await;
        assert_eq!((next.queue_id, next.queue_offset), (1, 1));
        assert!(next.uniq_key.is_some_and(|key| !key.is_empty()), "the broker makes one");
        assert_eq!(bodies(timeout(DEADLINE, parked).await.unwrap().unwrap().messages), ["c"]);
        let stored = running.wait_for("T", 1, 2).await;
        assert_eq!(stored[0].log_offset, first.places[0].0);
        assert_eq!(stored[1].log_offset, next.places[0].0);
        assert!((0..4).contains(&put(&running, message("T", -1, "", "any")).await.queue_id));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_is_late_for_the_device_says_so_and_is_stored() {
    let device = Device::default();
    let setup = Setup { is_sync: true, sync_flush_timeout: "60000", device: device.clone(), ..Setup::default() };
    let running = start(setup).await;
    put(&running, message("T", 0, "", "first")).await;
    hold(&running, &device).await;
    let late = message("T", 0, "", "late").call(&running.broker, &mut caller()).await.unwrap();
    assert_eq!((late.code, late.queue_offset, late.places.len()), (ResponseCode::FlushDiskTimeout, 1, 1));
    assert_eq!(late.remark.as_deref(), Some("stored, but not flushed within 300 ms (syncFlushTimeout)"));
    put(&running, message("T", 0, &properties(&[("WAIT", "false")]), "hasty")).await;
    release(&running, &device).await;
    assert_eq!(bodies(running.wait_for("T", 0, 3).await), ["first", "late", "hasty"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_connection_would_be_refused_is_refused_in_the_same_words() {
    let running = start(Setup::default()).await;
    put(&running, message("T", 0, "", "a")).await;
    let no_level = properties(&[("DELAY", "x")]);
    let orders = [
        SendOrder { default_topic: "", ..message("Unknown", 0, "", "a") },
        message("T", 9, "", "a"),
        message("T", 0, "", ""),
        message("T", 0, &no_level, "a"),
        SendOrder { sys_flag: 12, ..message("T", 0, "", "a") },
        SendOrder { is_batch: true, ..message("T", 0, "", "no batch") },
    ];
    for order in orders {
        let fields = SendMessage {
            default_topic: order.default_topic,
            sys_flag: order.sys_flag,
            batch: Some(order.is_batch),
            ..to(order.topic, order.queue_id, order.properties)
        };
        let response = running.send(&fields, std::str::from_utf8(order.body).unwrap()).await;
        let (code, remark) = refused(&running, order).await;
        assert_eq!((code as i32, Some(remark)), (response.code, response.remark));
    }
    assert_eq!(bodies(running.all("T", 0).await), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_stored_apart_or_as_one_record() {
    let running = start(Setup { has_index: true, ..Setup::default() }).await;
    let body = batch_of(&[("a", ""), ("b", "TAGS\u{1}x\u{2}")]);
    let batch = SendOrder { is_batch: true, body: &body, ..message("T", 0, "", "") };
    let apart = put(&running, batch).await;
    assert_eq!((apart.queue_offset, apart.places.len()), (0, 2));
    let stored = running.all("T", 0).await;
    assert_eq!(stored.iter().map(|message| message.log_offset).collect::<Vec<_>>(), places(&apart));
    assert_eq!(bodies(stored), ["a", "b"]);

    assert_eq!(create(&running, "Batches", "+queue.type=BatchCQ").await.0, 0);
    let keyed = properties(&[("UNIQ_KEY", "B1")]);
    let batch = SendOrder { is_batch: true, body: &body, ..message("Batches", 0, &keyed, "") };
    let first = put(&running, batch).await;
    let second = put(&running, batch).await;
    assert_eq!((first.queue_offset, second.queue_offset, second.places.len()), (0, 2, 1));
    assert_eq!(second.uniq_key.as_deref(), Some("B1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_names_the_queue_that_it_will_come_to() {
    let running = start(Setup { light_queues: Some("100"), ..Setup::default() }).await;
    let delayed = put(&running, message("T", 1, &properties(&[("DELAY", "1")]), "delayed")).await;
    assert_eq!((delayed.queue_id, &delayed.recall_handle), (1, &None));
    let timed = put(&running, message("T", 2, &properties(&[("TIMER_DELAY_SEC", "60")]), "timed")).await;
    assert_eq!(timed.queue_id, 2);
    assert!(timed.recall_handle.is_some_and(|handle| !handle.is_empty()));
    put(&running, message("T", 3, &listed("%LMQ%a"), "light")).await;
    assert_eq!(bodies(running.all("%LMQ%a", 0).await), ["light"]);
    assert_eq!(bodies(running.wait_for("T", 1, 1).await), ["delayed"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_comes_again_hears_the_place_of_the_first() {
    for is_sync in [false, true] {
        let running = start(Setup { repeated_send_window: "600000", is_sync, ..Setup::default() }).await;
        let keyed = properties(&[("UNIQ_KEY", "U1")]);
        let first = put(&running, message("T", 1, &keyed, "x")).await;
        assert_eq!(put(&running, message("T", 2, &keyed, "x")).await, first);
        let over_wire = running.put("T", 0, &keyed, "x").await;
        assert_eq!((over_wire.queue_id, over_wire.queue_offset), (1, 0));
        assert_eq!(bodies(running.wait_for("T", 1, 1).await), ["x"]);
        assert!(running.all("T", 2).await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_pushed_to_the_client_that_asked_and_stored() {
    const REPLIES: &str = "DefaultCluster_REPLY_TOPIC";
    let running = start(Setup::default()).await;
    let (pushed, mut replies) = mpsc::unbounded_channel();
    let asker = LocalClient::new(
        "127.0.0.1:8081".parse().unwrap(),
        Box::new(move |question, answer| {
            let (ClientQuestion::Reply(fields, body), Some(answer)) = (question, answer) else { return false };
            pushed.send((fields.topic.to_owned(), body.clone())).unwrap();
            answer.send(ClientAnswer { code: 0, remark: None, body: Bytes::new() }).is_ok()
        }),
    );
    let asking = Caller::local(asker, None);
    running.broker.produces(&asking, "asker", "PG").unwrap();
    let to_asker = properties(&[("CORRELATION_ID", "c1"), ("REPLY_TO_CLIENT", "asker")]);
    let reply = message(REPLIES, 0, &to_asker, "pong");
    let stored = reply.call_as_reply(&running.broker, &mut caller()).await.unwrap();
    assert_eq!((stored.code, stored.queue_offset, stored.places.len()), (ResponseCode::Success, 0, 1));
    let (topic, body) = timeout(DEADLINE, replies.recv()).await.unwrap().unwrap();
    assert_eq!((&*topic, &*body), (REPLIES, &b"pong"[..]));
    assert_eq!(bodies(running.all(REPLIES, 0).await), ["pong"]);

    running.broker.ended(asking.client());
    let late = reply.call_as_reply(&running.broker, &mut caller()).await.unwrap();
    assert_eq!(late.code, ResponseCode::SystemError);
    assert_eq!(late.remark.as_deref(), Some("push reply message fail, channel of <asker> not found."));
    assert_eq!(late.places.len(), 1, "it is stored all the same");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_given_back_comes_again_later_and_then_never() {
    let running = start(Setup { levels: "1s", ..Setup::default() }).await;
    let stored = put(&running, message("T", 0, "", "bad")).await;
    let give_back = async |offset: u64| {
        let offset = i64::try_from(offset).unwrap();
        let order = SendBackOrder { group: "CG", offset, delay_level: 0, unit_mode: false, retry_max: Some(1) };
        order.call(&running.broker, &mut caller()).await
    };
    give_back(stored.places[0].0).await.unwrap();
    let retried = running.wait_for("%RETRY%CG", 0, 1).await.remove(0);
    assert_eq!((&*retried.body, retried.reconsume_times, retried.property("RETRY_TOPIC")), ("bad", 1, Some("T")));
    give_back(retried.log_offset).await.unwrap();
    assert_eq!(bodies(running.wait_for("%DLQ%CG", 0, 1).await), ["bad"]);
    assert_eq!(running.all("%RETRY%CG", 0).await.len(), 1);
    let nowhere = give_back(retried.log_offset + 1).await.unwrap_err();
    assert_eq!(nowhere.code, ResponseCode::SystemError);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_taken_back_does_not_come() {
    let (setup, hand) = Setup { more: &[("recallMessageEnable", "true")], ..Setup::default() }.standing();
    let running = start(setup).await;
    let timed = |name: &'static str| properties(&[("TIMER_DELAY_SEC", "60"), ("UNIQ_KEY", name)]);
    let taken = put(&running, message("T", 0, &timed("U1"), "taken")).await;
    put(&running, message("T", 0, &timed("U2"), "left")).await;
    let handle = taken.recall_handle.unwrap();
    let recall = RecallOrder { topic: "T", handle: &handle, producer_group: "PG" };
    assert_eq!(&*recall.call(&running.broker, &mut caller()).await.unwrap(), "U1");
    let unknown = RecallOrder { handle: "no handle", ..recall };
    let refused = unknown.call(&running.broker, &mut caller()).await.unwrap_err();
    assert_eq!((refused.code, &*refused.remark), (ResponseCode::IllegalOperation, "recall handle is invalid"));
    // Taken in behind their time, they would wait for a clock that goes on.
    until_waiting(&running, 2).await;
    hand.advance(Duration::from_secs(120));
    assert_eq!(bodies(running.wait_for("T", 0, 1).await), ["left"]);
    running.stop().await;
}
