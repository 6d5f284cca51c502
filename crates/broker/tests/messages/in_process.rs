//! A caller in this process: what it asks for, and what the broker asks it, goes through no protocol.

use std::sync::Arc;
use std::time::Duration;

use broker::{
    AckOrder, Broker, Caller, ChangeOrder, ClientQuestion, EndOrder, LocalClient, PopOrder, PopOutcome, PopStatus,
    Popped, SendOrder, SendOutcome,
};
use protocol::code::ResponseCode;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::popping::ack;
use super::support::{DEADLINE, Message, Running, Setup, messages, properties, start, until};

pub(super) fn caller() -> Caller {
    Caller::local(LocalClient::new("127.0.0.1:8081".parse().unwrap(), Box::new(|_, _| false)), None)
}

fn order(invisible_ms: i64, poll_ms: i64) -> PopOrder<'static> {
    PopOrder {
        group: "CG",
        topic: "T",
        queue_id: -1,
        count_max: 32,
        invisible_ms,
        poll_ms,
        born_ms: 0,
        init_mode: 0,
        is_order: false,
        attempt_id: None,
        expression_type: None,
        expression: None,
    }
}

/// A message as a client in this process sends it.
pub(super) fn message<'a>(topic: &'a str, queue_id: i32, properties: &'a str, body: &'a str) -> SendOrder<'a> {
    SendOrder {
        group: "PG",
        topic,
        default_topic: "TBW102",
        default_topic_queue_nums: 4,
        queue_id,
        born_ms: 1_700_000_000_000,
        properties,
        body: body.as_bytes(),
        ..SendOrder::default()
    }
}

/// Sends it and expects success.
pub(super) async fn put(running: &Running, order: SendOrder<'_>) -> SendOutcome {
    let stored = order.call(&running.broker, &mut caller()).await.unwrap();
    assert_eq!((stored.code, &stored.remark), (ResponseCode::Success, &None));
    stored
}

/// What a pop of one queue has brought: its messages, and a receipt for each.
fn brought(outcome: &PopOutcome) -> Vec<(Message, String)> {
    let found = messages(&outcome.pieces().collect::<Vec<_>>().concat());
    let start = outcome.start_info().rsplit(' ').next().unwrap_or_default().to_owned();
    let (pop_time, invisible_ms, revive) = (outcome.pop_time(), outcome.invisible_ms, outcome.revive_qid());
    let with_receipt = |message: Message| {
        let Message { queue_id, queue_offset, .. } = message;
        let receipt = format!("{start} {pop_time} {invisible_ms} {revive} 0 broker-a {queue_id} {queue_offset}");
        (message, receipt)
    };
    found.into_iter().map(with_receipt).collect()
}

fn popped<'a>(message: &Message, receipt: &'a str) -> Popped<'a> {
    let (queue_id, offset) = (message.queue_id, message.queue_offset as i64);
    Popped { group: "CG", topic: "T", lite_topic: None, queue_id, offset, receipt }
}

async fn bodies(broker: &Broker, caller: &mut Caller, order: PopOrder<'_>) -> Vec<String> {
    let outcome = order.call(broker, caller).await.unwrap();
    brought(&outcome).into_iter().map(|(message, _)| message.body).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_and_ended_by_whoever_has_its_receipt() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    let mut caller = caller();
    for body in ["a", "b"] {
        put(&running, message("T", 0, "", body)).await;
    }
    let first = order(1000, 0).call(&running.broker, &mut caller).await.unwrap();
    assert_eq!(first.status, PopStatus::Found);
    let found = brought(&first);
    let [(a, of_a), (b, of_b)] = found.as_slice() else { panic!("{} messages", found.len()) };
    assert_eq!((&*a.body, &*b.body), ("a", "b"));

    let renew = ChangeOrder { popped: popped(a, of_a), invisible_ms: 60_000, is_suspended: false };
    let renewed = renew.call(&running.broker, &mut caller).await.unwrap();
    // The lease may get another pop time than the first one, and ends when it was asked to.
    assert_eq!(renewed.pop_time + renewed.invisible_ms, first.pop_time() + 60_000);
    // A client on a connection has the same leases.
    assert_eq!(ack(&running, "T", of_b).await, 0);
    hand.advance(Duration::from_millis(1000));
    assert_eq!(bodies(&running.broker, &mut caller, order(1000, 0)).await, [""; 0], "one is renewed, one acknowledged");

    let newer = format!("0 {} {} {} 0 broker-a 0 0", renewed.pop_time, renewed.invisible_ms, renewed.revive_qid);
    AckOrder { popped: popped(a, &newer) }.call(&running.broker, &mut caller).await.unwrap();
    hand.advance(Duration::from_secs(120));
    assert_eq!(bodies(&running.broker, &mut caller, order(1000, 0)).await, [""; 0], "both are done with");
    let late = AckOrder { popped: popped(a, "no receipt") }.call(&running.broker, &mut caller).await;
    assert!(late.is_err());
    running.stop().await;
}

/// Pops in a task, from where it waits.
async fn waiting(running: &Running) -> tokio::task::JoinHandle<Vec<String>> {
    let (broker, before) = (Arc::clone(&running.broker), running.broker.waiting_pops());
    let task = tokio::spawn(async move { bodies(&broker, &mut caller(), order(60_000, 20_000)).await });
    until("the pop waits", || running.broker.waiting_pops() > before).await;
    task
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pop_is_woken_by_a_send_or_by_its_time() {
    let running = start(Setup::default()).await;
    put(&running, message("T", 0, "", "a")).await;
    let mut caller = caller();
    assert_eq!(bodies(&running.broker, &mut caller, order(60_000, 0)).await, ["a"]);
    let task = waiting(&running).await;
    put(&running, message("T", 0, "", "b")).await;
    assert_eq!(timeout(DEADLINE, task).await.unwrap().unwrap(), ["b"]);
    let nothing = order(60_000, 50).call(&running.broker, &mut caller).await.unwrap();
    assert_eq!(nothing.status, PopStatus::Nothing);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_for_a_pop_that_was_given_up_is_for_another_one() {
    let running = start(Setup::default()).await;
    put(&running, message("T", 0, "", "a")).await;
    assert_eq!(bodies(&running.broker, &mut caller(), order(60_000, 0)).await, ["a"]);
    let given_up = waiting(&running).await;
    let other = waiting(&running).await;
    given_up.abort();
    until("one waits", || running.broker.waiting_pops() == 1).await;
    put(&running, message("T", 0, "", "b")).await;
    assert_eq!(timeout(DEADLINE, other).await.unwrap().unwrap(), ["b"]);

    // The same caller asks anew after it has given up.
    let mut caller = caller();
    let waits = order(60_000, 20_000);
    assert!(timeout(Duration::from_millis(50), waits.call(&running.broker, &mut caller)).await.is_err());
    assert_eq!(running.broker.waiting_pops(), 0);
    put(&running, message("T", 0, "", "c")).await;
    assert_eq!(bodies(&running.broker, &mut caller, order(60_000, 20_000)).await, ["c"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_pop_was_woken_for_is_for_another_one_if_it_is_given_up_on_its_next_try() {
    let running = start(Setup { more: &[("enablePropertyFilter", "true")], ..Setup::default() }).await;
    put(&running, message("T", 0, "", "a")).await;
    assert_eq!(bodies(&running.broker, &mut caller(), order(60_000, 0)).await, ["a"]);
    // Each try of such a long condition is made on the thread of filters.
    let terms: Vec<String> = (0..2400).map(|n| format!("a CONTAINS 'x{n}'")).collect();
    let condition = format!("a IS NULL OR {}", terms.join(" OR "));
    let by_condition =
        PopOrder { expression_type: Some("SQL92"), expression: Some(&condition), ..order(60_000, 20_000) };
    let mut given_up = caller();
    let mut first = Box::pin(by_condition.call(&running.broker, &mut given_up));
    let waits_alone = until("the pop waits", || running.broker.waiting_pops() == 1);
    tokio::select! {
        ended = &mut first => panic!("there is nothing to pop: {:?}", ended.map(|found| found.status)),
        () = waits_alone => {}
    }
    let other = waiting(&running).await;
    // The thread is busy from now on, so the try that the wake-up brings comes to no end.
    let (release, released) = std::sync::mpsc::channel::<()>();
    let job = Box::new(move || {
        let _ = released.recv();
    });
    running.store().filter_read(job).unwrap();
    put(&running, message("T", 0, "", "b")).await;
    until("one was woken", || running.broker.waiting_pops() == 1).await;
    assert!(timeout(Duration::from_millis(50), &mut first).await.is_err());
    drop(first);
    drop(release);
    assert_eq!(timeout(Duration::from_secs(10), other).await.unwrap().unwrap(), ["b"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_has_ended_is_no_producer_any_more() {
    let running = start(Setup::default()).await;
    let caller = caller();
    running.broker.produces(&caller, "local-1", "PG").unwrap();
    running.broker.ended(caller.client());
    let refused = running.broker.produces(&caller, "local-1", "PG").unwrap_err();
    assert_eq!(refused.remark, "[GANTRY]given up: the client is ending");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_is_asked_about_its_transaction() {
    let more = &[("transactionTimeOut", "1")];
    let running = start(Setup { more, ..Setup::default() }).await;
    let (asked, mut questions) = mpsc::unbounded_channel();
    let client = LocalClient::new(
        "127.0.0.1:8081".parse().unwrap(),
        Box::new(move |question, _| {
            let ClientQuestion::CheckTransaction(fields, half) = question else { return false };
            asked.send((fields.tran_state_table_offset, fields.commit_log_offset, half.clone())).is_ok()
        }),
    );
    let mut caller = Caller::local(client, None);
    running.broker.produces(&caller, "local-1", "PG").unwrap();
    let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", "x")]);
    let half = put(&running, message("Orders", 1, &marked, "x")).await;
    let (half_offset, log_offset, record) = timeout(DEADLINE, questions.recv()).await.unwrap().unwrap();
    assert_eq!((half_offset, log_offset), (half.queue_offset, half.places[0].0 as i64));
    let shown = messages(&record);
    assert_eq!((&*shown[0].topic, shown[0].queue_id, &*shown[0].body), ("Orders", 1, "x"));
    let end = EndOrder { group: "PG".into(), is_commit: Some(true), is_from_check: true, half_offset, log_offset };
    let stranger = EndOrder { group: "PX".into(), ..end.clone() };
    assert!(stranger.call(&running.broker, &mut caller).await.is_err());
    end.call(&running.broker, &mut caller).await.unwrap();
    assert!(end.call(&running.broker, &mut caller).await.is_err(), "one end counts");
    let stored = running.all("Orders", 1).await;
    assert_eq!(stored.iter().map(|message| &*message.body).collect::<Vec<_>>(), ["x"]);
    running.broker.ended(caller.client());
    running.stop().await;
}
