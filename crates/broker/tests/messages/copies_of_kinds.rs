//! SYNC_MASTER: what waits for slaves beside plain sends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use broker::{RecallOrder, SendBackOrder};
use bytes::BytesMut;
use protocol::code::{ResponseCode, request};
use protocol::frame::Serialization;
use protocol::header::{Head, write_frame};
use protocol::request::RecallMessage;
use store::PoolOptions;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::copies::*;
use crate::in_process::{caller, message};
use crate::support::*;
use crate::taking_and_giving::back_of;
use crate::transactions::{COMMIT, end};

const SCHEDULE: &str = "SCHEDULE_TOPIC_XXXX";
const HALF: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const ASYNC_FLUSH: (&str, &str) = ("flush.disk.type", "ASYNC_FLUSH");

/// Retries that wait for their time, of messages that were given back for the first time.
async fn retries(running: &Running) -> usize {
    let mut found = 0;
    for queue_id in 0..2 {
        found += running.all(SCHEDULE, queue_id).await.len();
    }
    found
}

/// To any error a stock consumer sends the retry itself, beside the one that is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_succeeds_once_it_is_stored_though_slaves_are_missing_or_late() {
    let running = master(PATIENT).await;
    assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    let stored = running.wait_for("Orders", 0, 1).await.remove(0);
    assert_eq!(give_back(&running, &stored).await.unwrap(), 0);
    let order = SendBackOrder {
        group: back_of(&stored).group,
        offset: stored.log_offset as i64,
        delay_level: 0,
        unit_mode: false,
        retry_max: None,
    };
    assert_eq!(order.call(&running.broker, &mut caller()).await, Ok(()));
    // Nor does it fail where sends are refused.
    set(&running, "minInSyncReplicas=2").await;
    assert_eq!(give_back(&running, &stored).await.unwrap(), 0);
    set(&running, "minInSyncReplicas=1").await;
    assert_eq!(retries(&running).await, 3);

    let slave = Slave::of(&running).await;
    slave.acknowledge(false);
    let giving = give_back(&running, &stored);
    until("the slave to get it", || slave.got.load(Ordering::SeqCst) >= running.store().end().0).await;
    assert!(!giving.is_finished(), "it waits for slaves");
    slave.acknowledge(true);
    assert_eq!(giving.await.unwrap(), 0);
    set(&running, "slaveTimeout=200").await;
    slave.acknowledge(false);
    assert_eq!(give_back(&running, &stored).await.unwrap(), 0, "and no longer than slaveTimeout");
    assert_eq!(order.call(&running.broker, &mut caller()).await, Ok(()));
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_given_back_still_waits_for_the_device_when_slaves_are_missing() {
    let device = Device::default();
    let running = patient_on(&device, "60000").await;
    assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    let stored = running.wait_for("Orders", 0, 1).await.remove(0);
    // The retry topic is in the journal from now on.
    assert_eq!(give_back(&running, &stored).await.unwrap(), 0);
    device.hold_flush(true);
    let end = running.store().end();
    let giving = give_back(&running, &stored);
    until("the retry", || running.store().end() > end).await;
    // A later one has been told that there is no slave.
    assert_eq!(code_of(&running, "Orders", &properties(&[ASYNC_FLUSH])).await, NO_SLAVE);
    assert!(!giving.is_finished());
    device.hold_flush(false);
    assert_eq!(giving.await.unwrap(), 0);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_send_waits_for_what_is_promised_now() {
    let setup = Setup {
        repeated_send_window: "600000",
        main_port: Some(0),
        more: &[("slaveTimeout", "60000")],
        ..Setup::default()
    };
    let running = Arc::new(start(setup).await);
    let key = properties(&[("UNIQ_KEY", "U1")]);
    let first = running.put("Orders", 0, &key, "x").await;
    // Without a slave it was acknowledged by what was promised then.
    set(&running, "brokerRole=SYNC_MASTER").await;
    let again = running.send(&to("Orders", 0, &key), "x").await;
    assert_eq!((again.code, &Sent::of(&again)), (NO_SLAVE, &first));
    let local = message("Orders", 0, &key, "x").call(&running.broker, &mut caller()).await.unwrap();
    assert_eq!(local.code, ResponseCode::SlaveNotAvailable);
    let slave = Slave::of(&running).await;
    assert_eq!(running.put("Orders", 0, &key, "x").await, first);
    set(&running, "inSyncReplicas=3").await;
    assert_eq!(code_of(&running, "Orders", &key).await, NO_SLAVE);
    set(&running, "inSyncReplicas=2").await;
    let local = message("Orders", 0, &key, "x").call(&running.broker, &mut caller()).await.unwrap();
    assert_eq!(local.code, ResponseCode::Success);
    assert_eq!(running.all("Orders", 0).await.len(), 1);
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_messages_and_timers_wait_for_slaves_and_ends_and_recalls_do_not_fail_without() {
    const TIMED: &[(&str, &str)] =
        &[("brokerRole", "SYNC_MASTER"), ("slaveTimeout", "60000"), ("recallMessageEnable", "true")];
    let running = master(TIMED).await;
    let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", "T1")]);
    assert_eq!(code_of(&running, "Orders", &marked).await, NO_SLAVE);
    let half = running.wait_for(HALF, 0, 1).await.remove(0);
    assert_eq!(end(&running, &half, COMMIT).await.code, 0);
    assert_eq!(running.wait_for("Orders", 0, 1).await.len(), 1);

    let mut handles = Vec::new();
    for key in ["U1", "U2"] {
        let timed = properties(&[("TIMER_DELAY_SEC", "600"), ("UNIQ_KEY", key)]);
        let timed = running.send(&to("Orders", 0, &timed), "timed").await;
        assert_eq!(timed.code, NO_SLAVE, "{:?}", timed.remark);
        handles.push(timed.fields.get("recallHandle").unwrap().to_owned());
    }
    let fields = RecallMessage { producer_group: Some("PG"), topic: "Orders", recall_handle: &handles[0] };
    assert_eq!(running.call(request::RECALL_MESSAGE, &fields, "").await.code, 0);
    let recall = RecallOrder { topic: "Orders", handle: &handles[1], producer_group: "PG" };
    assert_eq!(recall.call(&running.broker, &mut caller()).await.as_deref(), Ok("U2"), "as over a connection");

    let slave = Slave::of(&running).await;
    let half = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", "T2")]);
    assert_eq!(code_of(&running, "Orders", &half).await, 0);
    let timed = properties(&[("TIMER_DELAY_SEC", "600"), ("UNIQ_KEY", "U3")]);
    assert_eq!(code_of(&running, "Orders", &timed).await, 0);
    slave.acknowledge(false);
    let sent = begin(&running, "Orders", &timed);
    until("the slave to get it", || slave.got.load(Ordering::SeqCst) >= running.store().end().0).await;
    assert!(!sent.is_finished());
    slave.acknowledge(true);
    assert_eq!(sent.await.unwrap(), 0);
    drop(slave);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_thread_has_written_yet_is_on_no_slave_and_is_late_for_the_device() {
    let device = Device::default();
    let setup = Setup {
        pool: Some(PoolOptions { buffers: 3, buffer_bytes: 4096 }),
        sync_flush_timeout: "60000",
        device: device.clone(),
        main_port: Some(0),
        more: PATIENT,
        ..Setup::default()
    };
    let running = Arc::new(start(setup).await);
    let slave = Slave::of(&running).await;
    running.put("Orders", 0, "", "first").await;
    device.hold_log(true);
    let end = running.store().end();
    let sent = begin(&running, "Orders", "");
    until("the record", || running.store().end() > end).await;
    assert!(!sent.is_finished());
    assert!(slave.got.load(Ordering::SeqCst) <= end.0, "it gets nothing that is not written");
    device.hold_log(false);
    assert_eq!(sent.await.unwrap(), 0);
    assert!(slave.acknowledged.load(Ordering::SeqCst) >= running.store().end().0);

    slave.leave(&running).await;
    device.hold_log(true);
    set(&running, "syncFlushTimeout=300").await;
    assert_eq!(code_of(&running, "Orders", "").await, DISK_LATE, "without a slave, too");
    device.hold_log(false);
    set(&running, "syncFlushTimeout=60000").await;
    assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    stop(running).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_send_that_is_not_acknowledged_counts_once() {
    let running = master(PATIENT).await;
    let counted = |code: i32| {
        let page = running.metrics();
        let of_code = format!("response_code=\"{code}\"");
        let is_it =
            |line: &&str| line.starts_with("gantry_replica_unacknowledged_sends_total{") && line.contains(&of_code);
        page.lines().find(is_it).unwrap().rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
    };
    assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    assert_eq!((counted(NO_SLAVE), counted(SLAVE_LATE)), (1, 0));
    // Three in one burst, of which one waits for more than one stage.
    let mut burst = BytesMut::new();
    for own in [String::new(), own("SYNC"), own("ALL")] {
        let head = Head { code: request::SEND_MESSAGE_V2, ..Head::default() };
        write_frame(&mut burst, Serialization::Json, &head, &to("Orders", 0, &own), 1);
        burst.extend_from_slice(b"x");
    }
    let mut producer = TcpStream::connect(&running.address).await.unwrap();
    producer.write_all(&burst).await.unwrap();
    until("the answers", || counted(NO_SLAVE) >= 4).await;
    assert_eq!(code_of(&running, "Orders", "").await, NO_SLAVE);
    assert_eq!((counted(NO_SLAVE), counted(SLAVE_LATE)), (5, 0));
    drop(producer);
    stop(running).await;
}
