//! A caller in this process pulls, looks what could be popped, and waits for something to pop.

use std::sync::Arc;
use std::time::Duration;

use broker::{
    Broker, Caller, NotifyOrder, NotifyOutcome, PeekOrder, PollingOrder, PullOrder, PullOutcome, PullStatus,
    PullSubscription,
};
use protocol::code::ResponseCode;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::in_process::caller;
use super::support::{DEADLINE, Message, Running, Setup, from, messages, start, until};

const ALL: PullSubscription<'static> = PullSubscription { expression: "*", expression_type: None };

fn order(offset: i64, wait_ms: Option<i64>) -> PullOrder<'static> {
    PullOrder {
        group: "CG",
        topic: "T",
        queue_id: 0,
        is_physical: false,
        offset,
        count_max: 32,
        bytes_max: None,
        wait_ms,
        commit_offset: None,
        subscription: Some(ALL),
        subscription_version: 0,
        lite_topic: None,
        is_lite_consumer: false,
    }
}

fn brought(outcome: &PullOutcome) -> Vec<Message> {
    messages(&outcome.pieces().collect::<Vec<_>>().concat())
}

async fn pulled(broker: &Broker, caller: &mut Caller, order: PullOrder<'_>) -> (PullStatus, Vec<String>) {
    let outcome = order.call(broker, caller).await.unwrap();
    (outcome.status(), brought(&outcome).into_iter().map(|message| message.body).collect())
}

/// Pulls in a task, from where it waits.
async fn waiting(running: &Running, offset: i64) -> JoinHandle<(PullStatus, Vec<String>)> {
    let (broker, before) = (Arc::clone(&running.broker), running.broker.parked_pulls());
    let task = tokio::spawn(async move { pulled(&broker, &mut caller(), order(offset, Some(20_000))).await });
    until("the pull waits", || running.broker.parked_pulls() > before).await;
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_brings_what_a_remoting_client_gets() {
    let running = start(Setup::default()).await;
    for body in ["a", "b", "c"] {
        running.put("T", 0, "", body).await;
    }
    let mut caller = caller();
    let found = order(1, None).call(&running.broker, &mut caller).await.unwrap();
    let told = running.pull(&from("T", 0, 1)).await;
    assert_eq!((found.status(), told.code), (PullStatus::Found, 0));
    assert_eq!(brought(&found), told.messages);
    assert_eq!((found.next(), found.min(), found.max()), (told.next, told.min, told.max));
    assert_eq!((found.next(), found.offset_delta()), (3, None));

    let two = PullOrder { count_max: 2, ..order(0, None) };
    assert_eq!(pulled(&running.broker, &mut caller, two).await, (PullStatus::Found, vec!["a".into(), "b".into()]));
    let end = PullOrder { commit_offset: Some(3), ..order(3, None) };
    assert_eq!(pulled(&running.broker, &mut caller, end).await, (PullStatus::NotFound, vec![]));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_pull_is_woken_by_a_send_or_by_its_time() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "a").await;
    let task = waiting(&running, 1).await;
    running.put("T", 0, "", "b").await;
    assert_eq!(timeout(DEADLINE, task).await.unwrap().unwrap(), (PullStatus::Found, vec!["b".into()]));
    let mut caller = caller();
    let in_vain = order(2, Some(50));
    assert_eq!(pulled(&running.broker, &mut caller, in_vain).await, (PullStatus::NotFound, vec![]));
    assert_eq!(running.broker.parked_pulls(), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_a_queue_does_not_have_is_told_or_refused() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "a").await;
    let mut caller = caller();
    let beyond = order(99, Some(20_000)).call(&running.broker, &mut caller).await.unwrap();
    assert_eq!((beyond.status(), beyond.next(), beyond.pieces().count()), (PullStatus::OffsetMoved, 1, 0));
    let told = running.pull(&from("T", 0, 99)).await;
    assert_eq!((told.code, told.next), (ResponseCode::PullOffsetMoved as i32, 1));

    let no_queue = PullOrder { queue_id: 99, ..order(0, None) };
    let refused = no_queue.call(&running.broker, &mut caller).await.map(|found| found.status()).unwrap_err();
    let remark = "queueId[99] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[127.0.0.1:8081]";
    assert_eq!((refused.code, &*refused.remark), (ResponseCode::InvalidParameter, remark));
    let of_heartbeats = PullOrder { subscription: None, ..order(0, None) };
    let refused = of_heartbeats.call(&running.broker, &mut caller).await.map(|found| found.status()).unwrap_err();
    assert_eq!(refused.code, ResponseCode::SubscriptionNotExist);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_was_given_up_leaves_nothing_parked() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "a").await;
    let given_up = waiting(&running, 1).await;
    let other = waiting(&running, 1).await;
    given_up.abort();
    running.until_parked(1).await;

    // The same caller asks anew after it has given up.
    let mut caller = caller();
    let waits = order(1, Some(20_000));
    assert!(timeout(Duration::from_millis(50), waits.call(&running.broker, &mut caller)).await.is_err());
    assert_eq!(running.broker.parked_pulls(), 1);
    running.put("T", 0, "", "b").await;
    assert_eq!(timeout(DEADLINE, other).await.unwrap().unwrap(), (PullStatus::Found, vec!["b".into()]));
    assert_eq!(pulled(&running.broker, &mut caller, waits).await, (PullStatus::Found, vec!["b".into()]));
    assert_eq!(running.broker.parked_pulls(), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ends_waits_no_more() {
    let running = start(Setup::default()).await;
    running.put("T", 0, "", "a").await;
    let mut caller = caller();
    let client = caller.client().clone();
    let broker = Arc::clone(&running.broker);
    let task = tokio::spawn(async move { order(1, Some(20_000)).call(&broker, &mut caller).await.map(drop) });
    running.until_parked(1).await;
    running.broker.ended(&client);
    let refused = timeout(DEADLINE, task).await.unwrap().unwrap().unwrap_err();
    assert_eq!(refused.remark, "[GANTRY]given up: the client is ending");
    assert_eq!(running.broker.parked_pulls(), 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_takes_long_is_looked_through_elsewhere_and_waited_for() {
    let running = start(Setup { more: &[("enablePropertyFilter", "true")], ..Setup::default() }).await;
    running.put("T", 0, "", "a").await;
    let terms: Vec<String> = (0..2400).map(|n| format!("a CONTAINS 'x{n}'")).collect();
    let condition = format!("a IS NULL OR {}", terms.join(" OR "));
    let subscription = PullSubscription { expression: &condition, expression_type: Some("SQL92") };
    let by_condition = |offset| PullOrder { subscription: Some(subscription), ..order(offset, Some(20_000)) };
    let mut caller = caller();
    let found = pulled(&running.broker, &mut caller, by_condition(0)).await;
    assert_eq!(found, (PullStatus::Found, vec!["a".into()]));
    let (found, ()) = tokio::join!(pulled(&running.broker, &mut caller, by_condition(1)), async {
        running.until_parked(1).await;
        running.put("T", 0, "", "b").await;
    });
    assert_eq!(found, (PullStatus::Found, vec!["b".into()]));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_notified_of_something_to_pop_and_sees_it_without_taking_it() {
    let running = start(Setup::default()).await;
    running.put("Other", 0, "", "makes the group").await;
    running.pull(&from("Other", 0, 0)).await;
    running.put("T", 1, "", "a").await;
    let mut caller = caller();
    let (peek, polling) = (
        PeekOrder { group: "CG", topic: "T", queue_id: 0, count_max: 32 },
        PollingOrder { group: "CG", topic: "T", queue_id: 0 },
    );
    let notify =
        |poll_ms| NotifyOrder { group: "CG", topic: "T", queue_id: 0, poll_ms, is_order: false, attempt_id: None };
    assert_eq!(notify(0).call(&running.broker, &mut caller).await.unwrap(), NotifyOutcome::Nothing);
    assert_eq!(peek.call(&running.broker, &mut caller).await.unwrap().pieces().count(), 0);

    let waits = notify(20_000);
    assert!(timeout(Duration::from_millis(50), waits.call(&running.broker, &mut caller)).await.is_err());
    assert_eq!(running.broker.waiting_pops(), 0, "a question that was given up waits no more");
    let mut other = super::in_process::caller();
    let (told, ()) = tokio::join!(waits.call(&running.broker, &mut caller), async {
        until("the question waits", || running.broker.waiting_pops() == 1).await;
        assert_eq!(polling.run(&running.broker, &mut other).unwrap(), 1);
        running.put("T", 0, "", "b").await;
    });
    assert_eq!(told.unwrap(), NotifyOutcome::Something);
    for _ in 0..2 {
        let seen = peek.call(&running.broker, &mut caller).await.unwrap();
        let shown = messages(&seen.pieces().collect::<Vec<_>>().concat());
        assert_eq!((&*shown[0].body, shown.len(), seen.rest()), ("b", 1, 1));
    }
    assert_eq!(polling.run(&running.broker, &mut other).unwrap(), 0);
    running.stop().await;
}
