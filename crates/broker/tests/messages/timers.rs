use std::sync::Arc;
use std::time::Duration;

use disk::RealDisk;
use env::{Clock, ManualClock};
use journal::{Journal, JournalOptions, TableId};
use net::Response;
use protocol::code::request;
use protocol::request::RecallMessage;
use store::Retention;

use crate::limits::figure;
use crate::support::*;

const TIMER: &str = "rmq_sys_wheel_timer";

fn with(more: &'static [(&'static str, &'static str)]) -> Setup {
    Setup { more, ..Setup::default() }
}

fn now() -> i64 {
    Clock::real().now().0
}

/// Sends what is due at a time, and returns its handle.
async fn send_at(running: &Running, due: i64, body: &str) -> String {
    let timed = properties(&[("TIMER_DELIVER_MS", &due.to_string()), ("UNIQ_KEY", body)]);
    let response = running.send(&to("Orders", 1, &timed), body).await;
    assert_eq!((response.code, &response.remark), (0, &None));
    response.fields.get("recallHandle").unwrap().to_owned()
}

async fn recall(running: &Running, handle: &str) -> Response {
    let fields = RecallMessage { producer_group: Some("PG"), topic: "Orders", recall_handle: handle };
    running.call(request::RECALL_MESSAGE, &fields, "").await
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.as_str()).collect()
}

/// Waits until everything is taken in, and so many messages wait.
pub(super) async fn until_waiting(running: &Running, count: usize) {
    let waiting = format!("\"timerCongestNum\":\"{count}\"");
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let answer = running.call(request::GET_BROKER_RUNTIME_INFO, &(), "").await;
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        if text.contains(&waiting) && text.contains("\"timerOffsetBehind\":\"0\"") {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the queue holds `count` messages, and then until nothing waits any more. Moves the clock by a millisecond.
async fn all_delivered(running: &Running, hand: &ManualClock, count: usize) -> Vec<Message> {
    running.wait_for("Orders", 1, count).await;
    running.put("Orders", 1, &properties(&[("TIMER_DELAY_MS", "1")]), "last").await;
    hand.advance(Duration::from_millis(1));
    let mut found = running.wait_for("Orders", 1, count + 1).await;
    assert_eq!(found.pop().unwrap().body, "last");
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_delivered_at_the_time_that_their_producer_names() {
    for is_sync in [false, true] {
        let (setup, hand) = Setup { is_sync, ..Setup::default() }.standing();
        let running = start(setup).await;
        let deliver_at = (STANDS_AT + 600).to_string();
        for (name, value, body) in
            [("TIMER_DELAY_SEC", "1", "c"), ("TIMER_DELAY_MS", "300", "a"), ("TIMER_DELIVER_MS", &deliver_at, "b")]
        {
            let timed = properties(&[(name, value), ("TAGS", "t"), ("KEYS", body), ("UNIQ_KEY", body)]);
            let sent = running.put("Orders", 1, &timed, body).await;
            assert_eq!((sent.queue_id, sent.transaction_id.as_deref()), (1, Some(body)));
        }
        assert!(running.all("Orders", 1).await.is_empty());
        let waiting = running.all(TIMER, 0).await;
        assert_eq!(bodies(&waiting), ["c", "a", "b"]);
        assert_eq!((waiting[0].property("REAL_TOPIC"), waiting[0].property("REAL_QID")), (Some("Orders"), Some("1")));

        for (moved, count) in [(300, 1), (300, 2), (400, 3)] {
            hand.advance(Duration::from_millis(moved));
            running.wait_for("Orders", 1, count).await;
        }
        let found = running.all("Orders", 1).await;
        assert_eq!(bodies(&found), ["a", "b", "c"]);
        for (message, after) in found.iter().zip([300, 600, 1000]) {
            assert_eq!(message.store_timestamp, STANDS_AT + after, "{}", message.body);
            assert_eq!((message.property("KEYS"), message.property("TAGS")), (Some(message.body.as_str()), Some("t")));
            assert_eq!(message.property("REAL_TOPIC"), Some("Orders"), "as in Apache");
            assert!(message.property("TIMER_OUT_MS").is_some() && message.property("TIMER_DEQUEUE_MS").is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_that_is_past_is_no_time_and_a_delay_level_wins() {
    let running = start(Setup::default()).await;
    let past = properties(&[("TIMER_DELIVER_MS", "1")]);
    running.put("Orders", 1, &past, "past").await;
    assert_eq!(bodies(&running.all("Orders", 1).await), ["past"]);
    let both = properties(&[("TIMER_DELAY_SEC", "3600"), ("DELAY", "1")]);
    running.put("Orders", 1, &both, "level").await;
    let found = running.wait_for("Orders", 1, 2).await;
    assert_eq!((found[1].body.as_str(), found[1].property("TIMER_DELAY_SEC")), ("level", None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_with_a_time_is_refused_and_so_is_any_time_without_the_wheel() {
    let running = start(Setup::default()).await;
    let timed = properties(&[("TIMER_DELAY_MS", "5")]);
    let batch = batch_of(&[("one", ""), ("two", &timed)]);
    let response = running.call(request::SEND_BATCH_MESSAGE, &to("Orders", 1, ""), batch).await;
    assert_eq!(response.code, 13);
    assert!(response.remark.unwrap().contains("message 1 of the batch has TIMER_DELAY_MS"));
    let running = start(with(&[("timerWheelEnable", "false")])).await;
    let response = running.send(&to("Orders", 1, &timed), "x").await;
    assert_eq!(response.code, 1);
    assert!(response.remark.unwrap().contains("timerWheelEnable is false"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_back_is_never_delivered_and_the_rest_is() {
    let (allowed, hand) = with(&[("recallMessageEnable", "true")]).standing();
    let running = start(allowed.clone()).await;
    let due = STANDS_AT + 2_500;
    let mut handles = Vec::new();
    for body in ["a", "b", "c", "d"] {
        handles.push(send_at(&running, due, body).await);
    }
    let answer = recall(&running, &handles[1]).await;
    assert_eq!((answer.code, answer.fields.get("msgId")), (0, Some("b")));
    assert_eq!(recall(&running, &handles[3]).await.code, 0);
    // Also when the process dies right after it said so.
    let again = start_on(allowed, running.image()).await;
    hand.advance(Duration::from_millis(2_500));
    for running in [running, again] {
        assert_eq!(bodies(&all_delivered(&running, &hand, 2).await), ["a", "c"]);
        assert_eq!(recall(&running, &handles[0]).await.code, 604, "it is delivered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recall_that_breaks_a_rule_is_refused_with_apaches_code() {
    let running = start(Setup::default()).await;
    let handle = send_at(&running, now() + 60_000, "x").await;
    assert_eq!(recall(&running, &handle).await.code, 16, "recallMessageEnable is false by default");
    let running = start(with(&[("recallMessageEnable", "true")])).await;
    assert_eq!(recall(&running, &handle).await.code, 17);
    running.put("Orders", 0, "", "here").await;
    assert_eq!(recall(&running, "nonsense").await.code, 604);
    running.put("Other", 0, "", "here").await;
    let fields = RecallMessage { producer_group: None, topic: "Other", recall_handle: &handle };
    let answer = running.call(request::RECALL_MESSAGE, &fields, "").await;
    assert_eq!((answer.code, answer.remark.unwrap().contains("topic not match")), (604, true));
    assert_eq!(recall(&running, &handle).await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_is_delivered_once_over_a_stop_and_over_a_crash_in_the_middle_of_a_slot() {
    // One slot lasts for ten seconds, so that a crash finds it half delivered.
    let (long, hand) = with(&[("timerPrecisionMs", "10000"), ("timerFlushIntervalMs", "50")]).standing();
    let running = start(long.clone()).await;
    let begin = STANDS_AT + 300;
    send_at(&running, begin, "a").await;
    send_at(&running, begin + 100, "b").await;
    send_at(&running, begin + 3_000, "c").await;
    send_at(&running, begin + 12_000, "d").await;
    hand.advance(Duration::from_millis(400));
    running.wait_for("Orders", 1, 2).await;
    let crashed = start_on(long.clone(), running.image()).await;
    hand.advance(Duration::from_millis(2_900));
    assert_eq!(bodies(&crashed.wait_for("Orders", 1, 3).await), ["a", "b", "c"]);
    // An orderly stop in the middle of a slot.
    let stopped = start_on(long, running.stop().await).await;
    assert_eq!(bodies(&stopped.wait_for("Orders", 1, 3).await), ["a", "b", "c"]);
    hand.advance(Duration::from_secs(9));
    for running in [crashed, stopped] {
        let found = all_delivered(&running, &hand, 4).await;
        assert_eq!(bodies(&found), ["a", "b", "c", "d"]);
        assert!(found[3].store_timestamp >= begin + 12_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_after_a_start_does_not_wait_for_what_waits_already() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup.clone()).await;
    send_at(&running, STANDS_AT + 3_600_000, "in an hour").await;
    all_delivered(&running, &hand, 0).await;
    let crashed = start_on(setup.clone(), running.image()).await;
    let stopped = start_on(setup, running.stop().await).await;
    for running in [&crashed, &stopped] {
        send_at(running, STANDS_AT + 2_000, "soon").await;
    }
    hand.advance(Duration::from_secs(2));
    for running in [&crashed, &stopped] {
        assert_eq!(bodies(&running.wait_for("Orders", 1, 2).await), ["last", "soon"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_due_beyond_the_wheel_is_stored_again_on_the_way() {
    let (short, hand) = with(&[("timerRollWindowSlot", "2"), ("recallMessageEnable", "true")]).standing();
    let running = start(short).await;
    let due = STANDS_AT + 4_500;
    send_at(&running, due, "far").await;
    let handle = send_at(&running, due, "back").await;
    assert_eq!(recall(&running, &handle).await.code, 0);
    // Taken in when they are due, they would not be stored again on the way. The recall is, too.
    until_waiting(&running, 3).await;
    hand.advance(Duration::from_millis(4_500));
    let found = all_delivered(&running, &hand, 1).await;
    assert_eq!(bodies(&found), ["far"]);
    assert!(found[0].store_timestamp >= due);
    assert!(found[0].property("TIMER_ROLL_TIMES").is_some_and(|times| times.parse::<i32>().unwrap() >= 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taking_in_and_delivering_can_be_stopped_and_figures_say_what_waits() {
    let (held, hand) = with(&[("timerStopDequeue", "true"), ("timerFlushIntervalMs", "50")]).standing();
    let running = start(held.clone()).await;
    send_at(&running, STANDS_AT + 2_000, "a").await;
    send_at(&running, STANDS_AT + 90_000, "b").await;
    until_waiting(&running, 2).await;
    let answer = running.call(request::GET_TIMER_METRICS, &(), "").await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.contains("\"Orders\":{\"count\":2"), "{text}");
    assert_eq!(running.call(request::GET_TIMER_CHECK_POINT, &(), "").await.body.len(), 56);
    hand.advance(Duration::from_millis(2_100));
    let deadline = tokio::time::Instant::now() + DEADLINE;
    // Its slot is a second ago, and those before it are done with.
    while figure(&running, "timerReadBehind").await.as_deref() != Some("1") {
        assert!(tokio::time::Instant::now() < deadline, "nobody looks at the time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(running.all("Orders", 1).await.is_empty(), "it is held back");
    let again = start_on(Setup { more: &[], ..held }, running.image()).await;
    assert_eq!(bodies(&again.wait_for("Orders", 1, 1).await), ["a"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_for_its_place_in_the_wheel_is_counted_once() {
    // With ticks of a millisecond the wheel turns in twenty minutes.
    const TURN_MS: i64 = 2 * 604_800;
    let (setup, hand) = with(&[("timerPrecisionMs", "1"), ("timerFlushIntervalMs", "50")]).standing();
    let device = setup.device.clone();
    let running = start(setup).await;
    send_at(&running, STANDS_AT + 1_000, "a").await;
    // Taken in behind its time, it would belong to a slot that begins only when the clock goes on.
    until_waiting(&running, 1).await;
    device.hold_flush(true);
    hand.advance(Duration::from_secs(1));
    // Its slot is not done with before the device has what was delivered.
    running.wait_for("Orders", 1, 1).await;
    hand.advance(Duration::from_millis(TURN_MS as u64 - 60_000));
    send_at(&running, STANDS_AT + 1_000 + TURN_MS, "b").await;
    assert_eq!(bodies(&running.all(TIMER, 0).await), ["a", "b"]);
    device.hold_flush(false);
    until_waiting(&running, 1).await;
    let answer = running.call(request::GET_TIMER_METRICS, &(), "").await;
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(text.contains("\"Orders\":{\"count\":1,"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_leaves_how_many_messages_wait_where_apache_counts_on() {
    let (setup, hand) = Setup::default().standing();
    let running = start(setup).await;
    send_at(&running, STANDS_AT + 90_000, "a").await;
    send_at(&running, STANDS_AT + 91_000, "b").await;
    send_at(&running, STANDS_AT + 200, "c").await;
    hand.advance(Duration::from_millis(200));
    running.wait_for("Orders", 1, 1).await;
    let dir = running.stop().await;
    let written = std::fs::read_to_string(dir.path().join("config/timermetrics")).unwrap();
    let written: protocol::body::TimerMetrics = serde_json::from_str(&written).unwrap();
    let counts: Vec<_> = written.timing_count.iter().map(|(topic, timers)| (topic.as_str(), timers.count)).collect();
    assert_eq!(counts, [("Orders", 2)]);
}

/// Messages come closer than the log is flushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_delivers_the_slot_that_has_begun_and_begins_no_other() {
    let (setup, hand) = Setup::default().standing();
    let clock = setup.clock.clone().unwrap();
    let running = start(setup.clone()).await;
    for number in 0..150 {
        send_at(&running, STANDS_AT + 1_000 + number * 100, &number.to_string()).await;
    }
    until_waiting(&running, 150).await;
    // None came too late. From here on the clock goes, over the stop too.
    tokio::spawn(async move {
        for _ in 0..6_000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            hand.advance(Duration::from_millis(10));
        }
    });
    running.wait_for("Orders", 1, 3).await;
    let stopped = clock.now().0;
    let dir = running.stop().await;
    let noted = std::fs::read(dir.path().join("config/timercheck")).unwrap();
    let done_before = i64::from_be_bytes(noted[..8].try_into().unwrap());
    let again = start_on(Setup { more: &[("timerStopDequeue", "true")], ..setup }, dir).await;
    for message in again.all("Orders", 1).await {
        let slot: i64 = message.property("TIMER_OUT_MS").unwrap().parse().unwrap();
        assert!(slot < done_before, "another broker would deliver {} again", message.body);
        // A busy machine may hear of the stop seconds late; the last slot is fifteen seconds away.
        assert!(slot <= stopped + 5_000, "the slot of {} has begun {} ms after the stop", message.body, slot - stopped);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_the_log_that_hold_messages_which_wait_stay_until_these_are_delivered() {
    const FILE: u64 = 1 << 16;
    let (setup, hand) = Setup { segment_bytes: FILE, ..Setup::default() }.standing();
    let running = start(setup).await;
    let store = running.store();
    let filler = "x".repeat(8 << 10);
    let fill_to = async |end: u64| {
        while store.end().0 < end {
            running.put("Other", 0, "", &filler).await;
        }
    };
    fill_to(FILE).await;
    send_at(&running, STANDS_AT + 1_500, "late").await;
    let file = running.all(TIMER, 0).await[0].log_offset / FILE * FILE;
    fill_to(4 * FILE).await;
    hand.advance(Duration::from_millis(10));
    // Everything is old, and nobody has subscribed to it.
    store.retain(Retention { file_reserved: Duration::ZERO, clean_forcibly: false, ..Retention::default() });
    store.delete_expired();
    // Files go one after the other in one look, so the next one would have gone by itself.
    until("the files before it are gone", || store.min_offset().0 >= file).await;
    hand.advance(Duration::from_secs(2));
    assert_eq!(bodies(&running.wait_for("Orders", 1, 1).await), ["late"]);
    fill_to(store.end().0 + FILE).await;
    hand.advance(Duration::from_secs(2));
    until("the file is gone", || {
        store.delete_expired();
        store.min_offset().0 > file
    })
    .await;
}

const DAY_MS: i64 = 86_400_000;

/// Sends what is to wait for so long.
async fn send_in(running: &Running, delay_ms: i64, body: &str) {
    let timed = properties(&[("TIMER_DELAY_MS", &delay_ms.to_string()), ("UNIQ_KEY", body)]);
    running.put("Orders", 1, &timed, body).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_in_time_after_the_clock_was_a_day_ahead_and_none_comes_twice() {
    let (setup, hand) = with(&[("timerFlushIntervalMs", "50")]).standing();
    let running = start(setup.clone()).await;
    send_at(&running, STANDS_AT + 500, "before").await;
    send_at(&running, STANDS_AT + 2 * DAY_MS, "in two days").await;
    until_waiting(&running, 2).await;
    hand.set_by(DAY_MS);
    running.wait_for("Orders", 1, 1).await;
    send_in(&running, 500, "ahead").await;
    hand.advance(Duration::from_millis(500));
    running.wait_for("Orders", 1, 2).await;
    send_in(&running, 30_000, "for a while").await;
    send_at(&running, STANDS_AT + DAY_MS + 40_000, "at a time").await;
    until_waiting(&running, 3).await;

    hand.set_by(-DAY_MS);
    send_in(&running, 3_000, "after").await;
    // The messages that wait are those that waited, and this one.
    until_waiting(&running, 4).await;
    hand.advance(Duration::from_secs(3));
    running.wait_for("Orders", 1, 3).await;
    // What was to wait for half a minute has waited for some of it.
    hand.advance(Duration::from_secs(30));
    let expected = ["before", "ahead", "after", "for a while"];
    assert_eq!(bodies(&running.wait_for("Orders", 1, 4).await), expected);

    // When the time comes for the second time, nothing of the first comes again: here, after a crash and after a stop.
    let crashed = start_on(setup.clone(), running.image()).await;
    let stopped = start_on(setup, running.stop().await).await;
    hand.advance(Duration::from_millis(DAY_MS as u64 + 60_000));
    for running in [&crashed, &stopped] {
        let expected = ["before", "ahead", "after", "for a while", "at a time"];
        assert_eq!(bodies(&running.wait_for("Orders", 1, 5).await), expected);
    }
    hand.advance(Duration::from_millis(DAY_MS as u64));
    for running in [&crashed, &stopped] {
        let expected = ["before", "ahead", "after", "for a while", "at a time", "in two days"];
        assert_eq!(bodies(&all_delivered(running, &hand, 6).await), expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_delivers_in_time_after_the_clock_was_ahead_when_the_broker_stopped_or_died() {
    let (setup, hand) = with(&[("timerFlushIntervalMs", "50")]).standing();
    let running = start(setup.clone()).await;
    hand.set_by(DAY_MS);
    send_in(&running, 500, "ahead").await;
    hand.advance(Duration::from_millis(500));
    running.wait_for("Orders", 1, 1).await;
    send_in(&running, 30_000, "for a while").await;
    until_waiting(&running, 1).await;
    let image = running.image();
    let dir = running.stop().await;
    hand.set_by(-DAY_MS);
    let crashed = start_on(setup.clone(), image).await;
    let stopped = start_on(setup, dir).await;
    for running in [&crashed, &stopped] {
        send_in(running, 3_000, "after").await;
        until_waiting(running, 2).await;
    }
    hand.advance(Duration::from_secs(3));
    for running in [&crashed, &stopped] {
        assert_eq!(bodies(&running.wait_for("Orders", 1, 2).await), ["ahead", "after"]);
    }
    hand.advance(Duration::from_secs(60));
    for running in [&crashed, &stopped] {
        assert_eq!(bodies(&running.wait_for("Orders", 1, 3).await), ["ahead", "after", "for a while"]);
    }
    hand.advance(Duration::from_millis(2 * DAY_MS as u64));
    for running in [&crashed, &stopped] {
        assert_eq!(bodies(&all_delivered(running, &hand, 3).await), ["ahead", "after", "for a while"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_was_behind_for_a_while_makes_no_message_late() {
    let (setup, hand) = with(&[("timerFlushIntervalMs", "50")]).standing();
    let running = start(setup).await;
    send_in(&running, 5_000, "before").await;
    send_at(&running, STANDS_AT + 20_000, "at a time").await;
    until_waiting(&running, 2).await;
    hand.set_by(-DAY_MS);
    send_in(&running, 2_000, "behind").await;
    until_waiting(&running, 3).await;
    hand.advance(Duration::from_secs(5));
    assert_eq!(bodies(&running.wait_for("Orders", 1, 2).await), ["behind", "before"]);
    hand.set_by(DAY_MS);
    send_in(&running, 2_000, "after").await;
    until_waiting(&running, 2).await;
    hand.advance(Duration::from_secs(15));
    let found = all_delivered(&running, &hand, 4).await;
    assert_eq!(bodies(&found), ["behind", "before", "after", "at a time"]);
}

/// Where a start after a crash would begin to look for timer messages and for delayed ones that were delivered, by the journal as it is now.
fn looks_from(running: &Running) -> [Option<u64>; 2] {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(running.dir().join("journal")).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let journal = Journal::open(copy.path(), JournalOptions::default(), Clock::real(), Arc::new(RealDisk)).unwrap();
    let mut found = [None; 2];
    journal.load(TableId(12), |_, value| found[0] = Some(u64::from_be_bytes(value.try_into().unwrap())));
    journal.load(TableId(3), |key, value| {
        if key == [0xff; 4] {
            found[1] = Some(u64::from_be_bytes(value.try_into().unwrap()));
        }
    });
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_after_a_crash_reads_little_of_a_log_in_which_no_message_had_to_wait() {
    let running = start(Setup::default()).await;
    let body = "x".repeat(1 << 20);
    let mut written = 0;
    for _ in 0..140 {
        written = running.put("Orders", 0, "", &body).await.queue_offset;
    }
    assert_eq!(written, 139);
    // At most 64 MiB, and what was not flushed when they were full.
    let is_near = || looks_from(&running).iter().all(|from| from.is_some_and(|from| from >= 64 << 20));
    until("a start begins near the end", is_near).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_master_had_delivered_its_slave_does_not_deliver_also_after_a_restart_as_master() {
    const LEFT: &[(&str, &str)] = &[("timerStopEnqueue", "true")];
    let (setup, hand) = with(LEFT).standing();
    let running = start(setup.clone()).await;
    for (body, due) in [("waits", STANDS_AT + 100_000), ("done", STANDS_AT + 2_000)] {
        send_at(&running, due, body).await;
    }
    assert_eq!(bodies(&running.all(TIMER, 0).await), ["waits", "done"]);
    let left = running.stop().await;
    // As a slave leaves it: the master had taken in both, and come to a time between them.
    let path = left.path().join("config/timercheck");
    let mut checkpoint = std::fs::read(&path).unwrap();
    assert_eq!(checkpoint[16..24], [0; 8], "none is taken in here");
    checkpoint[..8].copy_from_slice(&(STANDS_AT + 50_000).to_be_bytes());
    checkpoint[24..32].copy_from_slice(&2_u64.to_be_bytes());
    std::fs::write(&path, &checkpoint).unwrap();

    // It stops before it has taken them in, and its own check-point has taken the place of the slave's.
    hand.advance(Duration::from_secs(60));
    let left = start_on(setup.clone(), left).await.stop().await;
    let checkpoint = std::fs::read(&path).unwrap();
    assert_eq!((&checkpoint[16..24], &checkpoint[24..32]), (&[0; 8][..], &[0; 8][..]));
    let running = start_on(Setup { more: &[], ..setup }, left).await;
    until_waiting(&running, 1).await;
    hand.advance(Duration::from_secs(45));
    assert_eq!(bodies(&all_delivered(&running, &hand, 1).await), ["waits"]);
}
