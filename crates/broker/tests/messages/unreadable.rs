//! A page of the log that the device does not give: what waits there waits on, and nobody behind it does.

use std::collections::BTreeMap;
use std::time::Duration;

use broker::{PageOptions, ProcessFigures};
use env::ManualClock;
use protocol::code::request;
use protocol::request::{PopMessage, RecallMessage};

use super::popping::{self, pop, pop_any};
use tokio::time::timeout;

use crate::support::*;

/// How many messages the broker says that the device does not give it.
fn unreadable(running: &Running, waits_for: &str) -> u64 {
    let options = PageOptions { labels: Vec::new(), label_sets_max: 100 };
    let page = running.broker.metrics(ProcessFigures::default(), &options);
    let label = format!("waits_for=\"{waits_for}\"");
    let line = page.lines().find(|line| line.starts_with("gantry_unreadable_messages{") && line.contains(&label));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.as_str()).collect()
}

/// Has the timers look at the clock, which a hand has moved: they wait for what is due next by the machine's time.
async fn look_at_clock(running: &Running) {
    let told = running.call(request::UPDATE_BROKER_CONFIG, &(), "timerStopEnqueue=false\n").await;
    assert_eq!(told.code, 0, "{:?}", told.remark);
}

/// Moves the clock by seconds until a queue holds so many: when something is tried again depends on when it was tried before.
async fn in_time(running: &Running, hand: &ManualClock, (topic, queue_id): (&str, i32), count: usize) -> Vec<Message> {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let found = running.all(topic, queue_id).await;
        if found.len() >= count {
            return found;
        }
        assert!(tokio::time::Instant::now() < deadline, "{topic}/{queue_id} holds {:?}", bodies(&found));
        hand.advance(Duration::from_secs(1));
        look_at_clock(running).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How often each is there.
fn counted(messages: &[Message]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for body in bodies(messages) {
        *counts.entry(body).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_message_that_cannot_be_read_waits_alone_over_a_kill_and_comes_once_when_it_can() {
    let (setup, hand) = Setup { levels: "3s 5s", ..Setup::default() }.standing();
    let device = setup.device.clone();
    let running = start(setup.clone()).await;
    for (level, body) in [("1", "0"), ("1", "1"), ("1", "2"), ("2", "other level"), ("1", "3")] {
        running.put("Orders", 0, &properties(&[("DELAY", level)]), body).await;
    }
    let waiting = running.all("SCHEDULE_TOPIC_XXXX", 0).await;
    assert_eq!(bodies(&waiting), ["0", "1", "2", "3"]);
    let dir = running.stop().await;

    let running = start_on(setup.clone(), dir).await;
    device.break_log_at(&[waiting[1].log_offset + 30]);
    hand.advance(Duration::from_secs(3));
    assert_eq!(bodies(&running.wait_for("Orders", 0, 3).await), ["0", "2", "3"]);
    hand.advance(Duration::from_secs(2));
    assert_eq!(running.wait_for("Orders", 0, 4).await[3].body, "other level");
    // What is new comes too.
    running.put("Orders", 0, &properties(&[("DELAY", "1")]), "new").await;
    hand.advance(Duration::from_secs(3));
    assert_eq!(running.wait_for("Orders", 0, 5).await[4].body, "new");
    until("it is counted", || unreadable(&running, "delay") == 1).await;

    let killed = running.image();
    device.break_log_at(&[]);
    running.stop().await;
    let running = start_on(setup.clone(), killed).await;
    until("the next start knows of it", || unreadable(&running, "delay") == 1).await;
    assert_eq!(in_time(&running, &hand, ("Orders", 0), 6).await[5].body, "1");
    until("it is flushed, and waits no more", || unreadable(&running, "delay") == 0).await;
    let dir = running.stop().await;
    let running = start_on(setup, dir).await;
    assert_eq!(unreadable(&running, "delay"), 0);
    // Longer than any pause.
    hand.advance(Duration::from_secs(700));
    running.put("Orders", 0, &properties(&[("DELAY", "1")]), "last").await;
    hand.advance(Duration::from_secs(3));
    let all = running.wait_for("Orders", 0, 7).await;
    assert!(counted(&all).values().all(|count| *count == 1) && all.len() == 7, "{:?}", bodies(&all));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_that_cannot_be_read_holds_up_no_other_and_comes_once_when_it_can() {
    let (setup, hand) = Setup::default().standing();
    let device = setup.device.clone();
    let running = start(setup.clone()).await;
    for (number, due) in [3_000, 3_001, 3_002, 6_000].into_iter().enumerate() {
        let timed = properties(&[("TIMER_DELIVER_MS", &(STANDS_AT + due).to_string())]);
        running.put("Orders", 1, &timed, &number.to_string()).await;
    }
    let waiting = running.all("rmq_sys_wheel_timer", 0).await;
    let dir = running.stop().await;

    let running = start_on(setup.clone(), dir).await;
    device.break_log_at(&[waiting[1].log_offset + 30]);
    hand.advance(Duration::from_millis(3_100));
    assert_eq!(bodies(&running.wait_for("Orders", 1, 2).await), ["0", "2"]);
    hand.advance(Duration::from_secs(3));
    assert_eq!(running.wait_for("Orders", 1, 3).await[2].body, "3");
    until("it is counted", || unreadable(&running, "timer") == 1).await;

    // A stop does not wait for it, and the next start finds it.
    device.break_log_at(&[]);
    let dir = timeout(DEADLINE, running.stop()).await.unwrap();
    let running = start_on(setup, dir).await;
    assert_eq!(in_time(&running, &hand, ("Orders", 1), 4).await[3].body, "1");
    running.put("Orders", 1, &properties(&[("TIMER_DELAY_MS", "1000")]), "last").await;
    hand.advance(Duration::from_secs(2));
    let all = running.wait_for("Orders", 1, 5).await;
    assert!(counted(&all).values().all(|count| *count == 1) && all.len() == 5, "{:?}", bodies(&all));
    until("none waits any more", || unreadable(&running, "timer") == 0).await;
    running.stop().await;
}

const TIMER: &str = "rmq_sys_wheel_timer";

/// Sends what is due so many ms after the clock's beginning, and returns its handle.
async fn send_timed(running: &Running, due: i64, body: &str) -> String {
    let timed = properties(&[("TIMER_DELIVER_MS", &(STANDS_AT + due).to_string()), ("UNIQ_KEY", body)]);
    let response = running.send(&to("Orders", 1, &timed), body).await;
    assert_eq!((response.code, &response.remark), (0, &None));
    response.fields.get("recallHandle").unwrap().to_owned()
}

async fn take_back(running: &Running, handle: &str) {
    let fields = RecallMessage { producer_group: Some("PG"), topic: "Orders", recall_handle: handle };
    let response = running.call(request::RECALL_MESSAGE, &fields, "").await;
    assert_eq!((response.code, &response.remark), (0, &None));
}

/// The slot that the next start reads from, after the clock's beginning, in ms.
async fn noted_slot(running: &Running) -> i64 {
    let response = running.call(request::GET_TIMER_CHECK_POINT, &(), "").await;
    i64::from_be_bytes(*response.body.first_chunk().unwrap()) - STANDS_AT
}

async fn until_passed(running: &Running, hand: &ManualClock, slot: i64) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let mut turns = 0;
    while noted_slot(running).await <= slot {
        assert!(tokio::time::Instant::now() < deadline, "a start would read from {}", noted_slot(running).await);
        // Ten seconds in all, however long the device takes.
        if turns < 100 {
            hand.advance(Duration::from_millis(100));
            look_at_clock(running).await;
        }
        turns += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_that_cannot_be_read_keeps_no_start_at_its_slot_and_comes_once_over_kills() {
    let recalls = Setup { more: &[("recallMessageEnable", "true")], ..Setup::default() };
    let (setup, hand) = recalls.standing();
    let device = setup.device.clone();
    let running = start(setup.clone()).await;
    for body in ["0", "1", "2"] {
        send_timed(&running, 3_000, body).await;
    }
    let handle = send_timed(&running, 3_000, "taken-back").await;
    take_back(&running, &handle).await;
    let waiting = running.all(TIMER, 0).await;
    let dir = running.stop().await;

    let running = start_on(setup.clone(), dir).await;
    device.break_log_at(&[waiting[1].log_offset + 30, waiting[3].log_offset + 30]);
    hand.advance(Duration::from_millis(3_100));
    assert_eq!(bodies(&running.wait_for("Orders", 1, 2).await), ["0", "2"]);
    until("they are counted", || unreadable(&running, "timer") == 2).await;
    // The check-point may say so, or not yet.
    let at_once = running.image();
    until_passed(&running, &hand, 3_000).await;
    let later = running.image();
    running.stop().await;
    device.break_log_at(&[]);
    for dir in [at_once, later] {
        let running = start_on(setup.clone(), dir).await;
        let found = in_time(&running, &hand, ("Orders", 1), 3).await;
        assert_eq!(bodies(&found), ["0", "2", "1"]);
        until("none waits any more", || unreadable(&running, "timer") == 0).await;
        let killed = running.image();
        running.stop().await;
        let running = start_on(setup.clone(), killed).await;
        until("none waits there either", || unreadable(&running, "timer") == 0).await;
        running.put("Orders", 1, &properties(&[("TIMER_DELAY_MS", "1000")]), "last").await;
        let all = in_time(&running, &hand, ("Orders", 1), 4).await;
        assert_eq!(bodies(&all), ["0", "2", "1", "last"]);
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_that_cannot_be_read_when_it_is_taken_in_holds_up_none_behind_it_and_comes_once() {
    let (given, hand) = Setup { more: &[("recallMessageEnable", "true")], ..Setup::default() }.standing();
    let device = given.device.clone();
    let stopped = Setup { more: &[("recallMessageEnable", "true"), ("timerStopEnqueue", "true")], ..given.clone() };
    let running = start(stopped.clone()).await;
    let mut handles = Vec::new();
    for (due, body) in [(3_000, "0"), (3_000, "1"), (3_000, "2"), (40_000, "far"), (3_000, "taken-back"), (3_500, "3")]
    {
        handles.push(send_timed(&running, due, body).await);
    }
    let waiting = running.all(TIMER, 0).await;
    let dir = running.stop().await;

    let running = start_on(stopped, dir).await;
    device.break_log_at(&[1, 3, 4].map(|broken: usize| waiting[broken].log_offset + 30));
    look_at_clock(&running).await;
    until("they are counted", || unreadable(&running, "timer") == 3).await;
    take_back(&running, &handles[4]).await;
    hand.advance(Duration::from_millis(3_600));
    let mut first = running.wait_for("Orders", 1, 3).await;
    first.sort_by_key(|message| message.body.clone());
    assert_eq!(bodies(&first), ["0", "2", "3"]);
    // What is new comes too.
    send_timed(&running, 5_000, "new").await;
    hand.advance(Duration::from_millis(1_500));
    assert_eq!(running.wait_for("Orders", 1, 4).await[3].body, "new");

    let killed = running.image();
    until_passed(&running, &hand, 5_000).await;
    let passed = running.image();
    let dir = running.stop().await;
    device.break_log_at(&[]);
    let begun = given.clock.clone().unwrap().now().0;
    assert!(begun < STANDS_AT + 30_000, "the one that is due later is to be readable before");
    for dir in [killed, passed, dir] {
        let running = start_on(given.clone(), dir).await;
        until("the next start knows of them", || unreadable(&running, "timer") == 3).await;
        let found = in_time(&running, &hand, ("Orders", 1), 5).await;
        assert_eq!(found[4].body, "1");
        until("none waits any more", || unreadable(&running, "timer") == 0).await;
        // It was stored once more, and waits for its time.
        let killed = running.image();
        running.stop().await;
        let running = start_on(given.clone(), killed).await;
        let found = in_time(&running, &hand, ("Orders", 1), 6).await;
        assert_eq!(found[5].body, "far");
        assert!(found[5].store_timestamp >= STANDS_AT + 40_000, "{}", found[5].store_timestamp);
        running.put("Orders", 1, &properties(&[("TIMER_DELAY_MS", "1000")]), "last").await;
        let all = in_time(&running, &hand, ("Orders", 1), 7).await;
        assert_eq!(all[6].body, "last");
        assert!(counted(&all).values().all(|count| *count == 1), "{:?}", bodies(&all));
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_message_whose_place_in_the_log_cannot_be_read_keeps_all_of_the_log() {
    let (given, _hand) = Setup { more: &[("timerStopEnqueue", "true")], ..Setup::default() }.standing();
    let device = given.device.clone();
    let running = start(given.clone()).await;
    running.put("Other", 0, "", "first").await;
    send_timed(&running, 3_600_000, "late").await;
    let at = running.all(TIMER, 0).await[0].log_offset;
    assert!(at > 0);
    // So that its unit is in the file only.
    let running = start_on(given, running.stop().await).await;
    let needed_from = || running.store().end().0 - metric(&running.metrics(), "gantry_log_needed_bytes");
    assert_eq!(needed_from(), at);
    device.break_queues(true);
    assert_eq!(needed_from(), 0, "it may be anywhere");
    device.break_queues(false);
    assert_eq!(needed_from(), at);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_on_lease_that_cannot_be_read_keeps_no_other_from_coming_again() {
    let (setup, hand) = popping::standing();
    let device = setup.device.clone();
    let running = start(setup.clone()).await;
    for number in 0..4 {
        running.put("T", 0, "", &number.to_string()).await;
    }
    let popped = pop(&running, &PopMessage { queue_id: 0, ..popping::from("T", 1_000) }).await;
    assert_eq!(popped.bodies(), ["0", "1", "2", "3"], "one lease");
    let at = running.all("T", 0).await[1].log_offset;
    let dir = running.stop().await;

    let running = start_on(setup, dir).await;
    device.break_log_at(&[at + 30]);
    hand.advance(Duration::from_secs(1));
    let retry = "%RETRY%CG_T";
    assert_eq!(bodies(&running.wait_for(retry, 0, 3).await), ["0", "2", "3"]);
    until("it is counted", || unreadable(&running, "lease") == 1).await;
    device.break_log_at(&[]);
    assert_eq!(bodies(&in_time(&running, &hand, (retry, 0), 4).await), ["0", "2", "3", "1"]);
    until("it waits no more", || unreadable(&running, "lease") == 0).await;
    hand.advance(Duration::from_secs(5));
    running.put("T", 0, "", "last").await;
    let again = pop_any(&running, &popping::from("T", 60_000)).await;
    assert!(!again.messages.is_empty());
    assert_eq!(running.all(retry, 0).await.len(), 4, "each came once");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_message_that_cannot_be_read_stays_open_and_holds_up_no_other() {
    let (setup, hand) = Setup::default().standing();
    let device = setup.device.clone();
    let running = start(setup.clone()).await;
    for body in ["0", "1", "2"] {
        running.put("Orders", 0, &properties(&[("TRAN_MSG", "true"), ("PGROUP", "PG")]), body).await;
    }
    let at = running.all("RMQ_SYS_TRANS_HALF_TOPIC", 0).await[1].log_offset;
    let dir = running.stop().await;

    let running = start_on(setup, dir).await;
    device.break_log_at(&[at + 30]);
    // Older than the log is kept: each is given up as soon as it is looked at.
    hand.advance(Duration::from_secs(73 * 3600));
    // Their task sleeps until the first of them is due by the clock of its start.
    let given_up = "TRANS_CHECK_MAX_TIME_TOPIC";
    assert_eq!(bodies(&running.wait_for(given_up, 0, 2).await), ["0", "2"]);
    until("it is counted", || unreadable(&running, "transaction") == 1).await;
    device.break_log_at(&[]);
    assert_eq!(bodies(&in_time(&running, &hand, (given_up, 0), 3).await), ["0", "2", "1"]);
    until("it waits no more", || unreadable(&running, "transaction") == 0).await;
    running.stop().await;
}
