//! What an acknowledgement waits for: said by the broker while it runs, by a topic, and by a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::code::request;
use protocol::request::GetTopicConfig;
use tokio::time::timeout;

use crate::batch_queues::{create, send_batch};
use crate::copies::set;
use crate::support::*;
use crate::taking_and_giving::back_of;

/// The device was not there in time.
const LATE: i32 = 10;

/// From now on the device is late, which is told soon. What waits for it before has time enough on a busy machine.
pub async fn hold(running: &Running, device: &Device) {
    device.hold_flush(true);
    set(running, "syncFlushTimeout=300").await;
}

/// The device is there again.
pub async fn release(running: &Running, device: &Device) {
    set(running, "syncFlushTimeout=60000").await;
    device.hold_flush(false);
}

/// A broker whose flush thread goes round once an hour unless somebody waits for it.
async fn started(is_sync: bool) -> (Running, Device) {
    started_on(Device::default(), is_sync).await
}

async fn started_on(device: Device, is_sync: bool) -> (Running, Device) {
    let setup = Setup {
        is_sync,
        sync_flush_timeout: "60000",
        flush_interval: Duration::from_secs(3600),
        device: device.clone(),
        ..Setup::default()
    };
    let running = start(setup).await;
    // The topic is there, and nothing but the log is waited for.
    running.put("Orders", 0, "", "first").await;
    (running, device)
}

async fn code_of(running: &Running, topic: &str, properties: &str) -> i32 {
    running.send(&to(topic, 0, properties), "x").await.code
}

fn own(mode: &str) -> String {
    properties(&[("flush.disk.type", mode)])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_brokers_word_changes_while_it_runs() {
    let (running, device) = started(false).await;
    hold(&running, &device).await;
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    release(&running, &device).await;

    set(&running, "flushDiskType=SYNC_FLUSH").await;
    // Acknowledged after a flush, though the next one would have been due in an hour.
    running.put("Orders", 0, "", "flushed").await;
    hold(&running, &device).await;
    assert_eq!(code_of(&running, "Orders", "").await, LATE);
    assert_eq!(running.all("Orders", 0).await.len(), 3, "what is not flushed is not shown");
    release(&running, &device).await;
    assert_eq!(running.wait_for("Orders", 0, 4).await.len(), 4, "late is stored");

    set(&running, "flushDiskType=ASYNC_FLUSH").await;
    hold(&running, &device).await;
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    assert_eq!(running.all("Orders", 0).await.len(), 5);
    release(&running, &device).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_waits_for_the_device_whatever_the_broker_does() {
    let (running, device) = started(false).await;
    assert_eq!(create(&running, "Payments", "+flush.disk.type=SYNC_FLUSH").await.0, 0);
    // The flush thread goes round for it.
    running.put("Payments", 0, "", "flushed").await;
    assert_eq!(running.store().flushed().get(), running.store().end().0);
    hold(&running, &device).await;
    let late = running.send(&to("Payments", 0, ""), "late").await;
    assert_eq!(late.code, LATE, "{:?}", late.remark);
    assert_eq!(Sent::of(&late).queue_offset, 1);
    // A delayed message waits elsewhere, and is no less its topic's.
    assert_eq!(code_of(&running, "Payments", &properties(&[("DELAY", "1")])).await, LATE);
    // Others do not wait, and neither do consumers.
    assert_eq!(code_of(&running, "Orders", "").await, 0);
    assert_eq!(running.all("Payments", 0).await.len(), 2);
    // Nor does whoever does not want to.
    assert_eq!(code_of(&running, "Payments", &properties(&[("WAIT", "false")])).await, 0);
    assert_eq!(code_of(&running, "Payments", &own("ASYNC_FLUSH")).await, 0);

    // It may say something else at any time.
    assert_eq!(create(&running, "Payments", "+flush.disk.type=ASYNC_FLUSH").await.0, 0);
    assert_eq!(code_of(&running, "Payments", "").await, 0);
    assert_eq!(create(&running, "Payments", "+flush.disk.type=SYNC_FLUSH").await.0, 0);
    assert_eq!(code_of(&running, "Payments", "").await, LATE);
    release(&running, &device).await;
    let dir = running.stop().await;

    // And it says so after a restart.
    let setup = Setup { sync_flush_timeout: "60000", device: device.clone(), ..Setup::default() };
    let running = start_on(setup, dir).await;
    hold(&running, &device).await;
    assert_eq!(code_of(&running, "Payments", "").await, LATE);
    assert_eq!(create(&running, "Payments", "-flush.disk.type").await.0, 0);
    assert_eq!(code_of(&running, "Payments", "").await, 0);
    release(&running, &device).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_does_not_wait_for_the_device_whatever_the_broker_does() {
    let (running, device) = started(true).await;
    assert_eq!(create(&running, "Samples", "+flush.disk.type=ASYNC_FLUSH").await.0, 0);
    running.put("Samples", 0, "", "first").await;
    hold(&running, &device).await;
    assert_eq!(code_of(&running, "Samples", "").await, 0);
    assert_eq!(code_of(&running, "Samples", &own("SYNC_FLUSH")).await, LATE);
    assert_eq!(code_of(&running, "Orders", "").await, LATE);
    release(&running, &device).await;
    assert_eq!(running.wait_for("Samples", 0, 3).await.len(), 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_says_for_itself_what_it_waits_for() {
    let (running, device) = started(false).await;
    assert_eq!(code_of(&running, "Orders", &own("SYNC_FLUSH")).await, 0, "the flush thread goes round for it");
    assert_eq!(running.store().flushed().get(), running.store().end().0);
    hold(&running, &device).await;
    assert_eq!(code_of(&running, "Orders", &own("SYNC_FLUSH")).await, LATE);
    // All Java clients say this, so it asks for nothing.
    assert_eq!(code_of(&running, "Orders", &properties(&[("WAIT", "true")])).await, 0);
    // Of a batch, one message is enough.
    let batch = batch_of(&[("a", ""), ("b", &own("SYNC_FLUSH"))]);
    assert_eq!(send_batch(&running, "Orders", "", batch).await.code, LATE);
    assert_eq!(send_batch(&running, "Orders", "", batch_of(&[("a", ""), ("b", "")])).await.code, 0);
    release(&running, &device).await;

    let refused = running.send(&to("Orders", 0, &own("sometimes")), "x").await;
    let remark = refused.remark.unwrap_or_default();
    assert_eq!(refused.code, 13);
    assert!(remark.contains("flush.disk.type: \"sometimes\" is neither ASYNC_FLUSH nor SYNC_FLUSH"), "{remark}");
    assert_eq!(running.wait_for("Orders", 0, 8).await.len(), 8);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waited_for_the_device_can_be_asked_for_after_a_loss_of_power() {
    // Its journal goes to the device once an hour, unless somebody waits for it.
    let (running, device) = started_on(Device::to_lose_power(), false).await;
    let after_loss = async || {
        let image = running.image_without_power(&device);
        start_on(Setup::default(), image).await
    };
    // A topic that is made for it; one that a message before has made, for which the kernel was enough; and one of several in a batch.
    running.put("New", 0, &own("SYNC_FLUSH"), "safe").await;
    running.put("Known", 0, "", "first").await;
    running.put("Known", 0, "", "second").await;
    running.put("Known", 0, &own("SYNC_FLUSH"), "safe").await;
    let batch = batch_of(&[("a", ""), ("safe", &own("SYNC_FLUSH"))]);
    assert_eq!(send_batch(&running, "Batch", "", batch).await.code, 0);
    let after = after_loss().await;
    for topic in ["New", "Known", "Batch"] {
        let found = after.all(topic, 0).await;
        assert_eq!(found.last().map(|message| message.body.as_str()), Some("safe"), "{topic}");
    }
    after.stop().await;

    // What a topic says of the device is as safe as what it promises with it.
    assert_eq!(create(&running, "Payments", "+flush.disk.type=SYNC_FLUSH").await.0, 0);
    let after = after_loss().await;
    let known = after.call(request::GET_TOPIC_CONFIG, &GetTopicConfig { topic: "Payments", lo: None }, "").await;
    let config = String::from_utf8(known.body.to_vec()).unwrap();
    assert!(known.code == 0 && config.contains(r#""flush.disk.type":"SYNC_FLUSH""#), "{:?} {config}", known.remark);
    after.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_safe_stays_safe_when_its_consumer_gives_it_back() {
    let (running, device) = started(false).await;
    assert_eq!(create(&running, "Payments", "+flush.disk.type=SYNC_FLUSH").await.0, 0);
    running.put("Payments", 0, "", "of the topic").await;
    running.put("Orders", 0, &own("SYNC_FLUSH"), "of its own").await;
    let of_topic = running.all("Payments", 0).await.remove(0);
    let orders = running.all("Orders", 0).await;
    // The first one waits for the journal too, where its retry topic is new.
    assert_eq!(running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(&orders[0]), "").await.code, 0);
    hold(&running, &device).await;
    for (message, code) in [(&of_topic, LATE), (&orders[1], LATE), (&orders[0], 0)] {
        let answer = running.call(request::CONSUMER_SEND_MSG_BACK, &back_of(message), "").await;
        assert_eq!(answer.code, code, "{}: {:?}", message.body, answer.remark);
    }
    release(&running, &device).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_pull_misses_its_message_while_the_brokers_word_changes() {
    let running = Arc::new(start(Setup { flush_interval: Duration::from_millis(20), ..Setup::default() }).await);
    running.put("Orders", 0, "", "first").await;
    let is_over = Arc::new(AtomicBool::new(false));
    let changing = {
        let (running, is_over) = (Arc::clone(&running), Arc::clone(&is_over));
        tokio::spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                set(&running, "flushDiskType=SYNC_FLUSH").await;
                set(&running, "flushDiskType=ASYNC_FLUSH").await;
            }
        })
    };
    for offset in 1..300 {
        let pulling = {
            let running = Arc::clone(&running);
            // Longer than the deadline: one that is not woken fails the test.
            tokio::spawn(async move { running.pull(&waiting(from("Orders", 0, offset), 200_000)).await })
        };
        running.put("Orders", 0, "", &offset.to_string()).await;
        let found = timeout(DEADLINE, pulling).await.expect("the pull was not woken").unwrap();
        assert_eq!((found.code, found.messages[0].body.as_str()), (0, offset.to_string().as_str()));
    }
    is_over.store(true, Ordering::SeqCst);
    changing.await.unwrap();
}
