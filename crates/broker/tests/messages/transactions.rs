use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use net::Response;
use protocol::code::request;
use protocol::request::EndTransaction;

use crate::support::*;

const HALF: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
const OP: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
pub const COMMIT: i32 = 8;
pub const ROLLBACK: i32 = 12;

/// Stores a half message and returns it as it lies in its queue.
pub async fn half(running: &Running, body: &str) -> Message {
    let marked = properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("UNIQ_KEY", body)]);
    let sent = running.put("Orders", 1, &marked, body).await;
    assert_eq!((sent.queue_id, sent.transaction_id.as_deref()), (1, Some(body)));
    running.all(HALF, 0).await.into_iter().find(|message| message.body == body).unwrap()
}

pub async fn end(running: &Running, half: &Message, how: i32) -> Response {
    let fields = EndTransaction {
        topic: None,
        producer_group: "PG",
        tran_state_table_offset: half.queue_offset as i64,
        commit_log_offset: half.log_offset as i64,
        commit_or_rollback: how,
        from_transaction_check: false,
        msg_id: "x",
        transaction_id: None,
    };
    running.call(request::END_TRANSACTION, &fields, "").await
}

fn bodies(messages: Vec<Message>) -> Vec<String> {
    messages.into_iter().map(|message| message.body).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_messages_are_seen_when_committed_and_ends_stand_in_apaches_form() {
    let running = start(Setup::default()).await;
    let (yes, no) = (half(&running, "yes").await, half(&running, "no").await);
    assert_eq!((yes.property("REAL_TOPIC"), yes.property("REAL_QID")), (Some("Orders"), Some("1")));
    assert_eq!(yes.property("__transactionId__"), Some("yes"));
    assert!(running.all("Orders", 1).await.is_empty());
    assert_eq!(end(&running, &yes, COMMIT).await.code, 0);
    assert_eq!(end(&running, &no, ROLLBACK).await.code, 0);
    assert_eq!(bodies(running.all("Orders", 1).await), ["yes"]);
    // Apache 4.x reads a number and nothing behind it; 5.x numbers with commas between them.
    assert_eq!(bodies(running.all(OP, 0).await), ["0", "1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parked_pull_is_woken_by_a_commit_also_with_sync_flush() {
    for is_sync in [false, true] {
        let running = Arc::new(start(Setup { is_sync, ..Setup::default() }).await);
        let open = half(&running, "late").await;
        let parked = tokio::spawn({
            let running = Arc::clone(&running);
            async move { running.pull(&waiting(from("Orders", 1, 0), 15_000)).await }
        });
        running.until_parked(1).await;
        assert_eq!(end(&running, &open, COMMIT).await.code, 0);
        let found = tokio::time::timeout(DEADLINE, parked).await.unwrap().unwrap();
        assert_eq!(bodies(found.messages), ["late"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_ends_of_one_message_one_counts() {
    let running = start(Setup::default()).await;
    let open = half(&running, "once").await;
    let running = Arc::new(running);
    let ends: Vec<_> = (0..16)
        .map(|place| {
            let (running, open) = (Arc::clone(&running), open.clone());
            tokio::spawn(async move { end(&running, &open, if place % 2 == 0 { COMMIT } else { ROLLBACK }).await })
        })
        .collect();
    let mut counted = 0;
    for end in ends {
        let response = end.await.unwrap();
        match response.code {
            0 => counted += 1,
            code => assert_eq!((code, response.remark.unwrap().contains("ended before")), (1, true)),
        }
    }
    assert_eq!(counted, 1);
    assert!(running.all("Orders", 1).await.len() <= 1);
    assert_eq!(running.all(OP, 0).await.len(), 1);
}

/// One thread: whoever is woken has run when the test has given way a few times.
#[tokio::test]
async fn a_half_message_whose_flush_is_under_way_while_another_is_ended_can_be_committed() {
    let device = Device::default();
    let setup = Setup { is_sync: true, sync_flush_timeout: "60000", device: device.clone(), ..Setup::default() };
    let running = Arc::new(start(setup).await);
    let first = half(&running, "first").await;
    device.hold_flush(true);
    let end_of_log = running.store().end();
    let second = tokio::spawn({
        let running = Arc::clone(&running);
        async move { half(&running, "second").await }
    });
    until("the second is in the log", || running.store().end() > end_of_log).await;
    let end_of_log = running.store().end();
    let ending = tokio::spawn({
        let running = Arc::clone(&running);
        async move { end(&running, &first, ROLLBACK).await.code }
    });
    until("the first one's end is in the log", || running.store().end() > end_of_log).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    device.hold_flush(false);
    assert_eq!(ending.await.unwrap(), 0);
    let second = second.await.unwrap();
    let ended = end(&running, &second, COMMIT).await;
    assert_eq!((ended.code, ended.remark), (0, None));
    assert_eq!(bodies(running.wait_for("Orders", 1, 1).await), ["second"]);
}

/// Overwrites the log from an offset on with zeros, as a crash of the machine may leave it.
pub(super) fn cut_log(dir: &Path, from: u64) {
    let log = dir.join("commitlog/00000000000000000000");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[from as usize..].fill(0);
    std::fs::write(&log, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_at_any_record_ends_no_transaction_twice_and_forgets_none() {
    // Nothing reaches the device by itself, so the log may end anywhere.
    let running = start(Setup { flush_interval: Duration::from_secs(3600), ..Setup::default() }).await;
    let first = half(&running, "first").await;
    let second = half(&running, "second").await;
    assert_eq!(end(&running, &first, COMMIT).await.code, 0);
    assert_eq!(end(&running, &second, ROLLBACK).await.code, 0);
    let committed = running.all("Orders", 1).await.remove(0).log_offset;
    let ends: Vec<u64> = running.all(OP, 0).await.iter().map(|end| end.log_offset).collect();
    // What is left of the log, which of the two can still be committed, and what consumers see in the end.
    let cases = [
        ("no end", committed, [0, 0], ["first", "second"].as_slice()),
        ("a commit without its end", ends[0], [1, 0], &["first", "second"]),
        ("one end", ends[1], [1, 0], &["first", "second"]),
        ("both ends", u64::MAX, [1, 1], &["first"]),
    ];
    for (what, cut, codes, seen) in cases {
        let image = running.image();
        if cut != u64::MAX {
            cut_log(image.path(), cut);
        }
        let again = start_on(Setup::default(), image).await;
        for (half, code) in [&first, &second].into_iter().zip(codes) {
            assert_eq!(end(&again, half, COMMIT).await.code, code, "{what}: {}", half.body);
        }
        assert_eq!(bodies(again.all("Orders", 1).await), seen, "{what}");
        // And the start after that, which reads from where this one had come to.
        let image = again.stop().await;
        let last = start_on(Setup::default(), image).await;
        for half in [&first, &second] {
            assert_eq!(end(&last, half, COMMIT).await.code, 1, "{what}: {}", half.body);
        }
        assert_eq!(bodies(last.all("Orders", 1).await), seen, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_immunity_keeps_a_half_message_longer_than_the_log_is_kept() {
    let (setup, hand) = Setup { more: &[("fileReservedTime", "1")], ..Setup::default() }.standing();
    let running = start(setup).await;
    let immune =
        properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", "999999999999")]);
    running.put("Orders", 1, &immune, "immune").await;
    hand.advance(Duration::from_millis(3_599_999));
    // Whoever comes next has the others looked at.
    half(&running, "next").await;
    hand.advance(Duration::from_millis(1));
    half(&running, "last").await;
    let given_up = running.wait_for("TRANS_CHECK_MAX_TIME_TOPIC", 0, 1).await;
    assert_eq!((given_up[0].body.as_str(), given_up[0].store_timestamp), ("immune", STANDS_AT + 3_600_000));
    running.stop().await;
}

#[tokio::test]
async fn a_commit_that_no_file_of_the_log_can_hold_costs_those_behind_it_nothing_and_leaves_its_message_open() {
    let running = start(Setup { segment_bytes: 64 << 10, ..Setup::default() }).await;
    let (marked, plain) = (properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG")]), to("Orders", 0, ""));
    assert_eq!(running.send(&plain, "the topic is there").await.code, 0);
    // The largest that a file holds: there is no room beside it for its end.
    let mut body = "x".repeat(64 << 10);
    while running.send(&to("Orders", 1, &marked), &body).await.code != 0 {
        body.truncate(body.len() - 16);
    }
    let large = running.all(HALF, 0).await.remove(0);
    // One connection, so likely one burst.
    let answers = tokio::join!(end(&running, &large, COMMIT), running.send(&plain, "behind"));
    assert_eq!((answers.0.code, answers.1.code), (13, 0));
    assert!(answers.0.remark.unwrap().contains("does not fit a log file"));
    assert_eq!(end(&running, &large, ROLLBACK).await.code, 0);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_are_asked_in_time_though_the_clock_stood_ahead_for_a_moment() {
    const HOUR_MS: i64 = 3_600_000;
    // Whoever would be asked is given up, which can be seen.
    let more = &[("transactionCheckMax", "0"), ("transactionTimeOut", "6000")];
    let (setup, hand) = Setup { more, ..Setup::default() }.standing();
    let running = start(setup.clone()).await;
    hand.set_by(HOUR_MS);
    running.put("Orders", 0, "", "from then on the log's times are ahead").await;
    hand.set_by(-HOUR_MS);
    assert_eq!(half(&running, "first").await.store_timestamp, STANDS_AT + HOUR_MS);
    // Its time counts from then on.
    until("it is taken in", || metric(&running.metrics(), "rocketmq_half_messages") == 1).await;
    hand.advance(Duration::from_secs(6));
    // Whoever comes next has the others looked at.
    half(&running, "second").await;
    assert_eq!(bodies(running.wait_for("TRANS_CHECK_MAX_TIME_TOPIC", 0, 1).await), ["first"]);

    let dir = running.stop().await;
    let running = start_on(setup, dir).await;
    hand.advance(Duration::from_secs(6));
    half(&running, "third").await;
    assert_eq!(bodies(running.wait_for("TRANS_CHECK_MAX_TIME_TOPIC", 0, 2).await), ["first", "second"]);
    running.stop().await;
}
