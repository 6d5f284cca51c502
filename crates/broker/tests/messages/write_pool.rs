//! Sends that gather in a write pool: what an acknowledgement says, who waits, and who does not.

use std::sync::Arc;
use std::time::Duration;

use net::Response;
use protocol::code::request;
use store::PoolOptions;
use tokio::task::JoinHandle;

use crate::batch_queues::create;
use crate::copies::set;
use crate::durability::{hold, release};
use crate::support::*;

/// The device was not there in time.
const LATE: i32 = 10;
const BUSY: i32 = 2;
const POOL: PoolOptions = PoolOptions { buffers: 3, buffer_bytes: 4096 };

/// A broker with a pool, with one message in queue 0 of `Orders`. Its flush thread goes round once an hour unless somebody waits for it.
async fn started(setup: Setup) -> (Arc<Running>, Device) {
    let device = Device::default();
    let flush_interval = Duration::from_secs(3600);
    let running = start(Setup { device: device.clone(), pool: Some(POOL), flush_interval, ..setup }).await;
    running.put("Orders", 0, "", "first").await;
    (Arc::new(running), device)
}

async fn stop(running: Arc<Running>) -> Arc<tempfile::TempDir> {
    Arc::into_inner(running).expect("nobody else asks any more").stop().await
}

/// Sends without waiting for the answer.
fn sending(
    running: &Arc<Running>,
    topic: &'static str,
    properties: &'static str,
    body: String,
) -> JoinHandle<Response> {
    let running = Arc::clone(running);
    tokio::spawn(async move { running.send(&to(topic, 0, properties), &body).await })
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.trim_end()).collect()
}

async fn free_buffers(running: &Running) -> String {
    let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
    let info: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    info["table"]["remainTransientStoreBufferNumbs"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_is_acknowledged_and_seen_when_it_is_written_and_holds_up_nobody_before() {
    let (running, device) = started(Setup { sync_flush_timeout: "60000", ..Setup::default() }).await;
    assert_eq!(free_buffers(&running).await, "3");
    device.hold_log(true);
    let puller = Arc::clone(&running);
    let pull = tokio::spawn(async move { puller.pull(&waiting(from("Orders", 0, 1), 30_000)).await });
    running.until_parked(1).await;
    let sent = sending(&running, "Orders", "", "second".to_owned());
    until("the record in the pool", || running.store().free_buffers() == Some(2)).await;
    assert_eq!(free_buffers(&running).await, "2");
    // Everybody else is served, on the same connection too.
    assert_eq!(bodies(&running.all("Orders", 0).await), ["first"]);
    assert_eq!(create(&running, "Others", "").await.0, 0);
    assert!(!sent.is_finished() && !pull.is_finished());
    // What a kill would leave now.
    let killed = running.image();
    device.hold_log(false);
    let sent = sent.await.unwrap();
    assert_eq!((sent.code, Sent::of(&sent).queue_offset), (0, 1));
    assert_eq!(bodies(&pull.await.unwrap().messages), ["second"]);
    until("a free pool", || running.store().free_buffers() == Some(3)).await;
    stop(running).await;

    let running = start_on(Setup { pool: Some(POOL), ..Setup::default() }, killed).await;
    assert_eq!(bodies(&running.all("Orders", 0).await), ["first"]);
    running.put("Orders", 0, "", "instead").await;
    assert_eq!(bodies(&running.all("Orders", 0).await), ["first", "instead"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_the_device_does_so_with_a_pool_too_and_others_do_not() {
    let (running, device) = started(Setup { sync_flush_timeout: "60000", ..Setup::default() }).await;
    assert_eq!(create(&running, "Payments", "+flush.disk.type=SYNC_FLUSH").await.0, 0);
    running.put("Payments", 0, "", "flushed").await;
    assert_eq!(running.store().flushed().get(), running.store().end().0);
    hold(&running, &device).await;
    let late = running.send(&to("Payments", 0, ""), "late").await;
    assert_eq!(late.code, LATE, "{:?}", late.remark);
    assert!(late.remark.unwrap().contains("stored, but not flushed within 300 ms"));
    running.put("Orders", 0, "", "second").await;
    assert_eq!(bodies(&running.all("Payments", 0).await), ["flushed", "late"]);
    release(&running, &device).await;

    // Written late is another matter: it is in memory only.
    device.hold_log(true);
    set(&running, "syncFlushTimeout=300").await;
    for topic in ["Orders", "Payments"] {
        let late = running.send(&to(topic, 0, ""), "gathered").await;
        assert_eq!(late.code, LATE, "{:?}", late.remark);
        let remark = late.remark.unwrap();
        assert!(remark.contains("not written to the log within 300 ms (syncFlushTimeout)"), "{remark}");
    }
    assert_eq!(running.all("Orders", 0).await.len(), 2);
    device.hold_log(false);
    assert_eq!(bodies(&running.wait_for("Orders", 0, 3).await), ["first", "second", "gathered"]);
    assert_eq!(bodies(&running.wait_for("Payments", 0, 3).await), ["flushed", "late", "gathered"]);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sync_flush_consumers_see_what_is_on_the_device() {
    let (running, device) = started(Setup { is_sync: true, sync_flush_timeout: "60000", ..Setup::default() }).await;
    device.hold_flush(true);
    let puller = Arc::clone(&running);
    let pull = tokio::spawn(async move { puller.pull(&waiting(from("Orders", 0, 1), 30_000)).await });
    running.until_parked(1).await;
    let sent = sending(&running, "Orders", "", "second".to_owned());
    let end_before = running.store().flushed().get();
    until("a written record", || running.store().written().get() > end_before).await;
    // Who does not want to wait is answered, and shown to nobody.
    let hasty = running.send(&to("Orders", 0, &properties(&[("WAIT", "false")])), "third").await;
    assert_eq!(hasty.code, 0);
    assert_eq!(running.all("Orders", 0).await.len(), 1);
    assert!(!sent.is_finished() && !pull.is_finished());
    device.hold_flush(false);
    assert_eq!(sent.await.unwrap().code, 0);
    assert_eq!(pull.await.unwrap().messages[0].body, "second");
    assert_eq!(running.wait_for("Orders", 0, 3).await.len(), 3);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_pool_is_an_answer_with_its_limit_where_that_is_asked_for() {
    let more: &[_] = &[("fastFailIfNoBufferInStorePool", "true")];
    let (running, device) = started(Setup { more, sync_flush_timeout: "60000", ..Setup::default() }).await;
    device.hold_log(true);
    let mut sent = Vec::new();
    for free in [2, 1, 0] {
        sent.push(sending(&running, "Orders", "", format!("{free:<3000}")));
        until("the next buffer in use", || running.store().free_buffers() == Some(free)).await;
    }
    assert_eq!(free_buffers(&running).await, "0");
    let refused = running.send(&to("Orders", 0, ""), &format!("{:<3000}", "refused")).await;
    let remark = refused.remark.unwrap_or_default();
    assert_eq!(refused.code, BUSY, "{remark}");
    for part in [
        "[REJECTREQUEST]system busy, start flow control for a while",
        "12288 (transientStorePoolSize",
        "fastFailIfNoBufferInStorePool",
    ] {
        assert!(remark.contains(part), "{part}: {remark}");
    }
    device.hold_log(false);
    for sent in sent {
        assert_eq!(sent.await.unwrap().code, 0);
    }
    running.put("Orders", 0, "", "again").await;
    assert_eq!(bodies(&running.all("Orders", 0).await), ["first", "2", "1", "0", "again"]);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_waits_for_a_full_pool_and_is_not_lost() {
    let more: &[_] = &[("roomTimeoutMillis", "60000")];
    let (running, device) = started(Setup { more, sync_flush_timeout: "60000", ..Setup::default() }).await;
    device.hold_log(true);
    let mut sent = Vec::new();
    for free in [2, 1, 0] {
        sent.push(sending(&running, "Orders", "", format!("{free:<3000}")));
        until("the next buffer in use", || running.store().free_buffers() == Some(free)).await;
    }
    sent.push(sending(&running, "Orders", "", format!("{:<3000}", "waits")));
    // It has looked at the pool, and waits.
    tokio::time::timeout(Duration::from_millis(300), &mut sent[3]).await.unwrap_err();
    device.hold_log(false);
    for sent in sent {
        assert_eq!(sent.await.unwrap().code, 0);
    }
    assert_eq!(bodies(&running.all("Orders", 0).await), ["first", "2", "1", "0", "waits"]);
    stop(running).await;
}

/// The device stands still. Who waits for an answer is told when his time is over, and who comes then is told at once; who does not is held
/// back at his socket, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_that_nobody_waits_for_wait_for_room_and_others_are_refused_in_time() {
    let more: &[_] = &[("roomTimeoutMillis", "1000")];
    let (running, device) = started(Setup { more, sync_flush_timeout: "60000", ..Setup::default() }).await;
    device.hold_log(true);
    let mut sent = Vec::new();
    for free in [2, 1, 0] {
        sent.push(sending(&running, "Orders", "", format!("{free:<3000}")));
        until("the next buffer in use", || running.store().free_buffers() == Some(free)).await;
    }
    // On a connection of its own, since it is not read while they wait.
    let quiet = net::Client::new(net::ClientOptions::default());
    for number in 0..5 {
        let message = to("Orders", 0, "");
        let body = format!("{:<3000}", format!("oneway {number}"));
        quiet.oneway(&running.address, request::SEND_MESSAGE_V2, &message, body.into()).await.unwrap();
    }
    let begun = std::time::Instant::now();
    let refused = running.send(&to("Orders", 0, ""), &format!("{:<3000}", "refused")).await;
    let (waited, remark) = (begun.elapsed(), refused.remark.unwrap_or_default());
    assert_eq!(refused.code, BUSY, "{remark}");
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
    for part in [
        "[GANTRY]broker busy, start flow control for a while: no room in the commit log",
        "within 1000 ms (roomTimeoutMillis)",
        "12288 (transientStorePoolSize",
        "; try again in 1000 ms",
    ] {
        assert!(remark.contains(part), "{part}: {remark}");
    }
    let mut refusals = Vec::new();
    for _ in 0..3 {
        refusals.push(running.send(&to("Orders", 0, ""), &format!("{:<3000}", "refused")).await.remark.unwrap());
    }
    let at_once = refusals.iter().filter(|remark| remark.contains("sends before it have waited for that time")).count();
    assert!(at_once > 0 && refusals.iter().all(|remark| remark.contains("; try again in 1000 ms")), "{refusals:?}");
    device.hold_log(false);
    for sent in sent {
        assert_eq!(sent.await.unwrap().code, 0);
    }
    let found = running.wait_for("Orders", 0, 9).await;
    let mut expected = vec!["first".to_owned(), "2".to_owned(), "1".to_owned(), "0".to_owned()];
    expected.extend((0..5).map(|number| format!("oneway {number}")));
    assert_eq!(bodies(&found), expected);
    running.put("Orders", 0, "", "and on").await;
    assert_eq!(running.all("Orders", 0).await.len(), 10, "what was refused is not there");
    stop(running).await;
}
