use std::sync::Arc;
use std::time::Duration;

use protocol::record::at::SYS_FLAG;
use protocol::request::{PullMessage, SendMessage};
use tokio::time::{Instant, timeout};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_pull_is_answered_by_the_next_message() {
    let running = Arc::new(start(Setup::default()).await);
    running.put("Orders", 0, "", "first").await;
    let parked = tokio::spawn({
        let running = Arc::clone(&running);
        async move { running.pull(&waiting(from("Orders", 0, 1), 15_000)).await }
    });
    running.until_parked(1).await;
    running.put("Orders", 0, "", "second").await;
    let found = timeout(DEADLINE, parked).await.unwrap().unwrap();
    assert_eq!((found.code, found.messages[0].body.as_str()), (0, "second"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_pulls_on_as_many_queues_lose_no_wake_up() {
    let running = Arc::new(start(Setup::default()).await);
    let wide = SendMessage { default_topic: "TBW102", default_topic_queue_nums: 8, ..to("Wide", 0, "") };
    assert_eq!(running.send(&wide, "x").await.code, 0);
    for round in 0..50 {
        // Every message races with the pull that waits for it.
        let mut pulls = Vec::new();
        for queue in 0..8 {
            let offset = if queue == 0 { round + 1 } else { round };
            pulls.push(tokio::spawn({
                let running = Arc::clone(&running);
                async move { running.pull(&waiting(from("Wide", queue, offset), 15_000)).await }
            }));
        }
        let sends = (0..8).map(|queue| running.put("Wide", queue, "", "x"));
        for sent in sends {
            sent.await;
        }
        for pull in pulls {
            let found = timeout(DEADLINE, pull).await.expect("a wake-up was lost").unwrap();
            assert_eq!((found.code, found.messages.len()), (0, 1));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_waits_in_vain_is_told_so_when_its_time_is_over() {
    let running = start(Setup::default()).await;
    running.put("Orders", 0, "", "x").await;
    let began = Instant::now();
    let found = running.pull(&waiting(from("Orders", 0, 1), 300)).await;
    assert_eq!((found.code, found.next), (19, 1));
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_pull_sleeps_on_when_the_message_is_for_others_and_goes_on_behind_it() {
    let (setup, hand) = Setup::default().standing();
    let running = Arc::new(start(setup).await);
    running.put("Orders", 0, "", "x").await;

    let parked = tokio::spawn({
        let running = Arc::clone(&running);
        let order = PullMessage { subscription: Some("A"), ..waiting(from("Orders", 0, 1), 15_000) };
        async move { running.pull(&order).await }
    });
    running.until_parked(1).await;
    running.put("Orders", 0, &properties(&[("TAGS", "B")]), "theirs").await;
    running.put("Orders", 0, &properties(&[("TAGS", "A")]), "ours").await;
    let found = timeout(DEADLINE, parked).await.unwrap().unwrap();
    assert_eq!((found.code, found.messages[0].body.as_str(), found.next), (0, "ours", 3));

    let parked = tokio::spawn({
        let running = Arc::clone(&running);
        let order = PullMessage { subscription: Some("A"), ..waiting(from("Orders", 0, 3), 1_000) };
        async move { running.pull(&order).await }
    });
    running.until_parked(1).await;
    running.put("Orders", 0, &properties(&[("TAGS", "B")]), "theirs").await;
    hand.advance(Duration::from_secs(2));
    let later = timeout(DEADLINE, parked).await.unwrap().unwrap();
    assert_eq!((later.code, later.next), (20, 4), "what was skipped is not scanned twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_connection_leaves_nothing_parked() {
    let running = Arc::new(start(Setup::default()).await);
    running.put("Orders", 0, "", "x").await;
    let parked = tokio::spawn({
        let running = Arc::clone(&running);
        async move {
            let _ = running.try_pull(&waiting(from("Orders", 0, 1), 60_000)).await;
        }
    });
    running.until_parked(1).await;
    running.client.disconnect(&running.address);
    running.until_parked(0).await;
    parked.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_due_before_it_is_on_the_device_is_delivered_all_the_same() {
    let running = start(Setup { levels: "0s 1s", is_sync: true, ..Setup::default() }).await;
    let delay = properties(&[("DELAY", "1")]);
    for number in 0..100 {
        running.put("Orders", 0, &delay, &format!("{number}")).await;
    }
    let came: Vec<String> = running.wait_for("Orders", 0, 100).await.into_iter().map(|message| message.body).collect();
    assert_eq!(came, (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_is_invisible_until_its_time_and_then_comes_once() {
    let (setup, hand) = Setup { levels: "1s 2s", ..Setup::default() }.standing();
    let running = start(setup).await;
    // Level 9 does not exist: the longest one is taken.
    for (level, body) in [("1", "soon"), ("9", "later")] {
        running.put("Orders", 1, &properties(&[("DELAY", level), ("TAGS", "A")]), body).await;
    }
    let at_once = running.pull(&from("Orders", 1, 0)).await;
    assert_eq!(at_once.code, 19);

    for count in 1..=2 {
        hand.advance(Duration::from_secs(1));
        running.wait_for("Orders", 1, count).await;
    }
    let came = running.all("Orders", 1).await;
    let waited: Vec<_> =
        came.iter().map(|message| (message.body.as_str(), message.store_timestamp - STANDS_AT)).collect();
    assert_eq!(waited, [("soon", 1000), ("later", 2000)]);
    assert_eq!(came[0].property("REAL_TOPIC"), Some("Orders"));

    // The tags of a delayed message work as those of any other.
    let tagged = running.pull(&PullMessage { subscription: Some("A"), ..from("Orders", 1, 0) }).await;
    assert_eq!(tagged.messages.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_whose_unit_has_the_address_of_an_extension_waits_all_the_same() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup.clone()).await;
    running.put("Orders", 0, &properties(&[("DELAY", "2")]), "later").await;
    let dir = running.stop().await;
    // As Apache's broker writes it with enableConsumeQueueExt.
    let queue = dir.path().join("consumequeue/SCHEDULE_TOPIC_XXXX/1/00000000000000000000");
    let mut units = std::fs::read(&queue).unwrap();
    units[12..20].copy_from_slice(&(i64::from(i32::MIN) - 1).to_be_bytes());
    std::fs::write(&queue, units).unwrap();

    let running = start_on(setup, dir).await;
    running.put("Orders", 0, &properties(&[("DELAY", "1")]), "sooner").await;
    for (seconds, count) in [(1, 1), (4, 2)] {
        hand.advance(Duration::from_secs(seconds));
        running.wait_for("Orders", 0, count).await;
    }
    let came = running.all("Orders", 0).await;
    let waited: Vec<_> =
        came.iter().map(|message| (message.body.as_str(), message.store_timestamp - STANDS_AT)).collect();
    assert_eq!(waited, [("sooner", 1000), ("later", 5000)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_with_the_bits_of_a_transaction_stands_in_its_queue_also_when_that_is_built_from_the_log() {
    let (setup, hand) = Setup { levels: "5s", ..Setup::default() }.standing();
    let running = start(setup.clone()).await;
    for (queue_id, wait) in [(0, ("DELAY", "1")), (1, ("DELAY", "1")), (2, ("TIMER_DELAY_SEC", "5"))] {
        running.put("Orders", queue_id, &properties(&[wait]), "waited").await;
    }
    crate::timers::until_waiting(&running, 1).await;
    let delayed = running.all("SCHEDULE_TOPIC_XXXX", 0).await;
    let timer = running.all("rmq_sys_wheel_timer", 0).await;
    let places: Vec<u64> = delayed.iter().chain(&timer).map(|message| message.log_offset).collect();
    assert_eq!(places.len(), 3);
    let dir = running.stop().await;
    // A half message of a broker before 4.3, and one that was rolled back.
    let log = dir.path().join("commitlog/00000000000000000000");
    let mut bytes = std::fs::read(&log).unwrap();
    for (at, bits) in places.iter().zip([0x4, 0xc, 0xc]) {
        bytes[*at as usize + SYS_FLAG + 3] |= bits;
    }
    std::fs::write(&log, bytes).unwrap();

    let running = start_on(setup.clone(), dir).await;
    hand.advance(Duration::from_secs(6));
    for queue_id in 0..3 {
        assert_eq!(running.wait_for("Orders", queue_id, 1).await[0].body, "waited");
    }
    let dir = running.stop().await;
    std::fs::remove_dir_all(dir.path().join("consumequeue/Orders")).unwrap();
    let running = start_on(setup, dir).await;
    for queue_id in 0..3 {
        assert_eq!(running.wait_for("Orders", queue_id, 1).await[0].body, "waited");
    }
}

/// As behind a time in which the machine was suspended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_an_hour_comes_when_the_wall_clock_is_set_forward_by_one() {
    let more = &[("transactionCheckMax", "0"), ("transactionTimeOut", "3600000")];
    let (setup, hand) = Setup { levels: "1h", more, ..Setup::default() }.standing();
    let running = start(setup).await;
    running.put("Orders", 0, &properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG")]), "half").await;
    running.put("Orders", 1, &properties(&[("DELAY", "1")]), "delayed").await;
    running.put("Orders", 2, &properties(&[("TIMER_DELAY_SEC", "3600")]), "timer").await;
    crate::timers::until_waiting(&running, 1).await;
    hand.set_by(3_600_000);
    for (topic, queue_id, body) in
        [("Orders", 1, "delayed"), ("Orders", 2, "timer"), ("TRANS_CHECK_MAX_TIME_TOPIC", 0, "half")]
    {
        assert_eq!(running.wait_for(topic, queue_id, 1).await[0].body, body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_that_one_message_wakes_are_all_answered_also_when_their_replies_are_more_than_may_be_owed_at_once() {
    let running = Arc::new(start(Setup::default()).await);
    running.put("Orders", 0, "", "x").await;
    // On one connection: 12 MB of replies, of which it may owe 4 MiB.
    let pulls: Vec<_> = (0..100)
        .map(|_| {
            let running = Arc::clone(&running);
            tokio::spawn(async move { running.pull(&waiting(from("Orders", 0, 1), 15_000)).await })
        })
        .collect();
    running.until_parked(100).await;
    let large = "y".repeat(120_000);
    running.put("Orders", 0, "", &large).await;
    for pull in pulls {
        let found = timeout(DEADLINE, pull).await.expect("a wake-up was lost").unwrap();
        assert_eq!((found.code, found.messages.len()), (0, 1));
        assert!(found.messages[0].body == large);
    }
}
