//! Leases of popped messages over the end of a process. The clock stands still but for what a test moves it, so a slow machine ends no lease.

use std::time::Duration;

use env::ManualClock;
use protocol::request::PopMessage;

use super::popping::{ack, from, pop, pop_any, standing};
use super::support::{Running, Setup, start, start_on};

/// What has come again so far, when everything has that is to by now.
async fn come_again(broker: &Running, hand: &ManualClock) -> Vec<String> {
    broker.put("T", 0, "", "last").await;
    let last = pop(broker, &from("T", 100)).await;
    assert_eq!(last.bodies(), ["last"]);
    hand.advance(Duration::from_millis(100));
    // Leases are given up in the order of their ends, so nothing comes behind this one.
    assert_eq!(pop_any(broker, &from("T", 60_000)).await.bodies(), ["last"]);
    let all = broker.all("%RETRY%CG_T", 0).await;
    all.into_iter().map(|message| message.body).filter(|body| body != "last").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_and_acknowledgements_survive_a_kill() {
    let (setup, hand) = standing();
    let broker = start(setup.clone()).await;
    for number in 0..6 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let first = pop(&broker, &PopMessage { max_msg_nums: 4, queue_id: 0, ..from("T", 300) }).await;
    assert_eq!(first.bodies(), ["0", "1", "2", "3"]);
    assert_eq!(first.field("restNum"), "2");
    for place in [0, 2] {
        assert_eq!(ack(&broker, "T", &first.handle(place)).await, 0);
    }
    let image = broker.image();
    broker.stop().await;

    let broker = start_on(setup.clone(), image).await;
    let rest = pop(&broker, &from("T", 60_000)).await;
    assert_eq!(rest.bodies(), ["4", "5"], "the others are on lease still");
    assert_eq!(ack(&broker, "T", &first.handle(1)).await, 0, "its lease lives on");
    hand.advance(Duration::from_millis(300));
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(again.bodies(), ["3"]);

    // The message came again and its lease may not be settled: a start does not bring it a second time.
    let image = broker.image();
    broker.stop().await;
    let broker = start_on(setup, image).await;
    assert_eq!(ack(&broker, "T", &again.handle(0)).await, 0);
    assert_eq!(come_again(&broker, &hand).await, ["3"]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_hands_leases_over_and_the_next_start_keeps_them() {
    let (setup, hand) = standing();
    let broker = start(setup.clone()).await;
    for number in 0..3 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let first = pop(&broker, &from("T", 400)).await;
    assert_eq!(ack(&broker, "T", &first.handle(1)).await, 0);
    let dir = broker.stop().await;

    let broker = start_on(setup, dir).await;
    let mut handed = Vec::new();
    for queue_id in 0..8 {
        handed.extend(broker.all("rmq_sys_REVIVE_LOG_DefaultCluster", queue_id).await);
    }
    let [point] = handed.as_slice() else { panic!("{} check-points", handed.len()) };
    assert_eq!(point.property("TAGS"), Some("ck"));
    let pop_time = first.field("popTime");
    for part in [r#""bm":2,"bn":"broker-a","c":"CG","d":[0,1,2],"it":400,"n":3"#, &format!(r#""pt":{pop_time},"q":0"#)]
    {
        assert!(point.body.contains(part), "{} lacks {part}", point.body);
    }
    assert_eq!(ack(&broker, "T", &first.handle(0)).await, 0, "the lease lives on");
    hand.advance(Duration::from_millis(400));
    let again = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(again.bodies(), ["2"]);
    assert_eq!(come_again(&broker, &hand).await, ["2"], "once");
    broker.stop().await;
}
