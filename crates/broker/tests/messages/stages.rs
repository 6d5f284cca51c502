//! Answers and consumers that wait for replicas. These are played by hand.

use std::sync::Arc;

use store::FlushMode;

use crate::support::*;

/// FLUSH_DISK_TIMEOUT and FLUSH_SLAVE_TIMEOUT.
const DISK_LATE: i32 = 10;
const REPLICAS_LATE: i32 = 12;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_names_the_stage_that_is_late_and_consumers_wait_for_all_that_is_asked_for() {
    let device = Device::default();
    let setup = Setup { sync_flush_timeout: "300", device: device.clone(), ..Setup::default() };
    let running = Arc::new(start(setup).await);
    running.put("Orders", 0, "", "first").await;
    running.store().wait_for_replicas(true);
    let late = running.send(&to("Orders", 0, ""), "second").await;
    assert_eq!(late.code, REPLICAS_LATE, "{:?}", late.remark);
    assert!(late.remark.unwrap().contains("stored, but not on enough replicas within 300 ms"));
    // An answer that does not wait is given; its message is shown no sooner.
    running.put("Orders", 0, &properties(&[("WAIT", "false")]), "third").await;
    assert_eq!(running.all("Orders", 0).await.len(), 1);

    let puller = Arc::clone(&running);
    let pull = tokio::spawn(async move { puller.pull(&waiting(from("Orders", 0, 1), 30_000)).await });
    running.until_parked(1).await;
    running.store().replicated_to(running.store().end()).unwrap();
    assert_eq!(pull.await.unwrap().messages[0].body, "second");
    assert_eq!(running.wait_for("Orders", 0, 3).await.len(), 3);

    // Of two that are asked for, the answer names the one that is late.
    running.store().set_flush(FlushMode::Sync);
    device.hold_flush(true);
    let (sender, before) = (Arc::clone(&running), running.store().end());
    let sent = tokio::spawn(async move { sender.send(&to("Orders", 0, ""), "fourth").await });
    until("the record", || running.store().end() > before).await;
    running.store().replicated_to(running.store().end()).unwrap();
    let late = sent.await.unwrap();
    assert_eq!(late.code, DISK_LATE, "{:?}", late.remark);
    assert!(late.remark.unwrap().contains("stored, but not flushed within 300 ms"));
    assert_eq!(running.all("Orders", 0).await.len(), 3);
    device.hold_flush(false);
    assert_eq!(running.wait_for("Orders", 0, 4).await.len(), 4);
    Arc::into_inner(running).unwrap().stop().await;
}
