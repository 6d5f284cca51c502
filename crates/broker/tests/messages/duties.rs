//! Duties that end and begin again while the broker lives.

use std::time::Duration;

use crate::popping::{self, ack, pop, pop_any};
use crate::support::*;
use crate::timers::until_waiting;
use crate::transactions::{COMMIT, end, half};

async fn bodies(running: &Running, queue_id: i32, count: usize) -> Vec<String> {
    running.wait_for("Orders", queue_id, count).await.into_iter().map(|message| message.body).collect()
}

async fn restart(running: &Running, hand: &env::ManualClock, pause: Duration) {
    running.broker.end_duties().await;
    hand.advance(pause);
    running.broker.begin_duties().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_comes_once_though_the_duties_of_a_master_end_and_begin_again() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    let delayed = |level: &str| properties(&[("DELAY", level)]);
    let timed = |ms: &str| properties(&[("TIMER_DELAY_MS", ms)]);
    // What was delivered before is in the part of the log that is read again.
    running.put("Orders", 0, &delayed("1"), "delayed early").await;
    running.put("Orders", 2, &timed("1000"), "timed early").await;
    until_waiting(&running, 1).await;
    hand.advance(Duration::from_secs(1));
    assert_eq!(bodies(&running, 0, 1).await, ["delayed early"]);
    assert_eq!(bodies(&running, 2, 1).await, ["timed early"]);

    running.put("Orders", 0, &delayed("2"), "delayed late").await;
    running.put("Orders", 2, &timed("4000"), "timed late").await;
    until_waiting(&running, 1).await;
    let (first, second) = (half(&running, "first").await, half(&running, "second").await);
    running.put("T", 0, "", "leased").await;
    assert_eq!(pop(&running, &popping::from("T", 4000)).await.bodies(), ["leased"]);

    restart(&running, &hand, Duration::from_secs(10)).await;
    assert_eq!(bodies(&running, 0, 2).await, ["delayed early", "delayed late"]);
    assert_eq!(bodies(&running, 2, 2).await, ["timed early", "timed late"]);
    assert_eq!(end(&running, &first, COMMIT).await.code, 0);
    let again = pop_any(&running, &popping::from("T", 60_000)).await;
    assert_eq!(again.bodies(), ["leased"]);

    restart(&running, &hand, Duration::from_secs(1)).await;
    assert_eq!(end(&running, &second, COMMIT).await.code, 0);
    assert_ne!(end(&running, &first, COMMIT).await.code, 0, "it was ended before");
    assert_eq!(bodies(&running, 1, 2).await, ["first", "second"]);
    assert_eq!(ack(&running, "T", &again.handle(0)).await, 0);
    hand.advance(Duration::from_secs(100));
    assert_eq!(pop(&running, &popping::from("T", 1000)).await.code, 210, "it is acknowledged");
    // Behind whatever would come twice.
    running.put("Orders", 0, &delayed("1"), "delayed last").await;
    running.put("Orders", 2, &timed("1000"), "timed last").await;
    until_waiting(&running, 1).await;
    hand.advance(Duration::from_secs(2));
    assert_eq!(bodies(&running, 0, 3).await, ["delayed early", "delayed late", "delayed last"]);
    assert_eq!(bodies(&running, 2, 3).await, ["timed early", "timed late", "timed last"]);
    running.stop().await;
}
