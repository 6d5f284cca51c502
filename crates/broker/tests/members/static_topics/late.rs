//! Messages that wait while their queue moves.

use std::time::Duration;

use env::ManualClock;

use super::*;
use crate::support::DEADLINE;

fn levels() -> Setup {
    Setup { levels: "1s 1s", ..Setup::default() }
}

/// Two brokers that know where the other one is; the first holds the first place of queue 0. Their clock stands, so that nothing is due
/// before the queue has moved.
async fn two(setup: Setup) -> (Arc<Names>, Running, Running) {
    let names = Arc::new(Names::default());
    let name_servers = vec![listen(&names)];
    let a = start(Setup { name_servers: name_servers.clone(), ..setup.clone() }).await;
    let b = start(Setup { name_servers, more: OF_B, ..setup }).await;
    names.0.lock().insert("broker-a".to_owned(), a.address.clone());
    make_group(&b, "CG", 1).await;
    assert_eq!(map(&a, &detail("broker-a", 1, &[(0, &[item(0, "broker-a", 0, 0)])]), false).await, (0, None));
    (names, a, b)
}

/// Moves queue 0 from the first broker to the second.
async fn move_to_b(a: &Running, b: &Running) {
    let moved = [item(0, "broker-a", 0, 0), item(1, "broker-b", 0, 10_000)];
    assert_eq!(map(b, &detail("broker-b", 2, &[(0, &moved)]), false).await, (0, None));
    assert_eq!(map(a, &detail("broker-a", 2, &[(0, &moved)]), false).await, (0, None));
}

/// What consumers of the queue get from the second place on, once it is so much. Lets the clock go on until then.
async fn come(leader: &Running, hand: &ManualClock, count: usize) -> Vec<String> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let mut come: Vec<String> = read(leader, 0, 10_000).await.0.into_iter().map(|(_, body)| body).collect();
        if come.len() >= count {
            come.sort();
            return come;
        }
        assert!(tokio::time::Instant::now() < deadline, "only {come:?} came");
        go_on(hand).await;
    }
}

/// A moment passes, by the brokers' clock too.
async fn go_on(hand: &ManualClock) {
    const MOMENT: Duration = Duration::from_millis(20);
    tokio::time::sleep(MOMENT).await;
    hand.advance(MOMENT);
}

async fn send_half(running: &Running) -> EndTransaction<'static> {
    let properties = "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}UNIQ_KEY\u{1}KEY\u{2}";
    let half = Sent::of(&running.send(&to(T, 0, properties), "half").await);
    EndTransaction {
        producer_group: "PG",
        tran_state_table_offset: half.queue_offset,
        commit_log_offset: parse_offset_message_id(&half.id).unwrap().1 as i64,
        commit_or_rollback: sys_flag::TRANSACTION_COMMIT,
        from_transaction_check: false,
        msg_id: "KEY",
        transaction_id: None,
        topic: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_comes_to_the_broker_that_leads_its_queue_now() {
    let (setup, hand) = levels().standing();
    let (names, a, b) = two(setup).await;
    names.0.lock().insert("broker-b".to_owned(), b.address.clone());
    for (properties, body) in [("DELAY\u{1}1\u{2}TAGS\u{1}x\u{2}", "delayed"), ("TIMER_DELAY_MS\u{1}900\u{2}", "timed")]
    {
        assert_eq!(a.send(&to(T, 0, properties), body).await.code, 0);
    }
    let end = send_half(&a).await;
    move_to_b(&a, &b).await;
    assert_eq!(a.call(request::END_TRANSACTION, &end, "").await.code, 0);
    assert_eq!(come(&b, &hand, 3).await, ["delayed", "half", "timed"]);
    assert_eq!(bodies(&read(&b, 0, 0).await).len(), 3, "nothing came into the place that the queue has left");
    let tagged = PullMessage { subscription: Some("x"), ..from(T, 0, 10_000) };
    assert_eq!(b.pull(&tagged).await.messages.iter().map(|found| &*found.body).collect::<Vec<_>>(), ["delayed"]);
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_comes_into_the_place_that_its_queue_has_on_the_same_broker_now() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    let first = item(0, "broker-a", 0, 0);
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for (properties, body) in [("DELAY\u{1}1\u{2}", "delayed"), ("TIMER_DELAY_MS\u{1}900\u{2}", "timed")] {
        assert_eq!(running.send(&to(T, 0, properties), body).await.code, 0);
    }
    let end = send_half(&running).await;
    let moved = [first, item(1, "broker-a", 1, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &moved)]), false).await, (0, None));
    assert_eq!(running.call(request::END_TRANSACTION, &end, "").await.code, 0);
    assert_eq!(come(&running, &hand, 3).await, ["delayed", "half", "timed"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waited_waits_on_for_a_leader_that_is_away_and_comes_once_over_a_crash() {
    let (setup, hand) = levels().standing();
    let (names, a, b) = two(setup.clone()).await;
    assert_eq!(a.send(&to(T, 0, "DELAY\u{1}1\u{2}"), "first").await.code, 0);
    move_to_b(&a, &b).await;
    // Nobody knows where the leader is: it waits once more, in the second level.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while a.store().queue("SCHEDULE_TOPIC_XXXX", 1).unwrap().max_offset() == 0 {
        assert!(tokio::time::Instant::now() < deadline, "it does not wait once more");
        go_on(&hand).await;
    }
    names.0.lock().insert("broker-b".to_owned(), b.address.clone());
    assert_eq!(come(&b, &hand, 1).await, ["first"]);
    // The journal knows that both levels are done with all that they held.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let sent = a.store().queue("SCHEDULE_TOPIC_XXXX", 1).unwrap().max_offset();
        let offsets = a.call(request::GET_ALL_DELAY_OFFSET, &(), "").await;
        if std::str::from_utf8(&offsets.body).unwrap().contains(&format!("2:{sent}")) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{:?}", offsets.body);
        go_on(&hand).await;
    }
    let name_servers = vec![listen(&names)];
    let crashed = start_on(Setup { name_servers, ..setup }, a.image()).await;
    a.stop().await;
    let physical = WhichQueue { lo: false, broker_name: "broker-a" };
    let late = (to(T, 0, "DELAY\u{1}1\u{2}"), physical);
    assert_eq!(crashed.call(request::SEND_MESSAGE_V2, &late, "second").await.code, 0);
    assert_eq!(come(&b, &hand, 2).await, ["first", "second"]);
    crashed.stop().await;
    b.stop().await;
}
