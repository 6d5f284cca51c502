//! The accumulator alone: no clock, no socket, no task.

use std::collections::HashSet;
use std::time::Duration;

use protocol::batch as wire;
use protocol::body::MessageQueue;
use protocol::code::request;
use protocol::properties::{self, name};

use super::accumulator::{Accumulator, Limits, Room};
use super::batch::Batch;
use super::*;

pub(super) const DELAY: Duration = Duration::from_millis(10);
pub(super) const BYTES_MAX: usize = 1000;
/// Of a lane.
pub(super) const IN_FLIGHT_MAX: usize = 16;
pub(super) const COMPRESS_OVER: usize = 500;

/// Of which the number of all batches on their way does not count.
fn limits() -> Limits {
    Limits {
        batch_bytes_max: BYTES_MAX,
        delay: DELAY,
        compress_over_bytes: Some(COMPRESS_OVER),
        in_flight_max: usize::MAX,
        reserve_bytes: BYTES_MAX,
    }
}

pub(super) fn queue(queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: "b".into(), queue_id, topic: "t".into() }
}

pub(super) fn logical(queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: "__syslo__global__".into(), queue_id, topic: "t".into() }
}

/// As the tasks of a producer use it, one step after the other.
pub(super) struct Play {
    pub(super) accumulator: Accumulator,
    now: Duration,
    pub(super) next_id: usize,
    /// On their way, in the order in which they left.
    pub(super) flying: Vec<Batch>,
    /// Those that lie on the connection.
    pub(super) laid: HashSet<u64>,
    pub(super) pending: Vec<Pending>,
    /// What was taken of the budget.
    pub(super) room: usize,
}

impl Play {
    fn new() -> Play {
        Play::with(limits())
    }

    /// Of which so many batches may be on their way.
    pub(super) fn of(in_flight_max: usize) -> Play {
        Play::with(Limits { in_flight_max, ..limits() })
    }

    fn with(limits: Limits) -> Play {
        Play {
            accumulator: Accumulator::new(limits),
            now: Duration::ZERO,
            next_id: 0,
            flying: Vec::new(),
            laid: HashSet::new(),
            pending: Vec::new(),
            room: 0,
        }
    }

    /// How many batches left for it.
    pub(super) fn add(&mut self, queue: Option<&MessageQueue>, message: &Message) -> usize {
        let id = format!("ID-{}", self.next_id);
        self.next_id += 1;
        let room = Room { message: message.held_bytes(), with_batch: message.held_bytes() + 1000 };
        let added = self.accumulator.add(self.now, queue, message, &id, room).unwrap();
        self.pending.push(added.pending);
        self.room += added.room;
        self.take()
    }

    fn take(&mut self) -> usize {
        let before = self.flying.len();
        while let Some(batch) = self.accumulator.next_to_leave() {
            self.flying.push(batch);
        }
        self.flying.len() - before
    }

    pub(super) fn left(&mut self, at: usize) -> usize {
        let Batch { lane, number, .. } = self.flying[at];
        self.laid.insert(number);
        self.accumulator.left(lane, number);
        self.take()
    }

    pub(super) fn answer(&mut self, at: usize) -> (Batch, usize) {
        let before = self.flying.len();
        let batch = self.flying.remove(at);
        self.flying.extend(self.accumulator.answered(self.now, batch.lane, batch.number));
        self.take();
        (batch, self.flying.len() + 1 - before)
    }

    /// Whoever sends it ends. What is given up with it.
    pub(super) fn cut_off(&mut self, at: usize) -> Vec<Batch> {
        let batch = self.flying.remove(at);
        let left_behind = self.accumulator.abandon(batch.lane, batch.number);
        std::iter::once(batch).chain(left_behind).collect()
    }

    pub(super) fn tick(&mut self, passed: Duration) -> usize {
        self.now += passed;
        let mut left = 0;
        while self.accumulator.next_overdue(self.now) {
            left += self.take();
        }
        left
    }
}

fn bodies(batch: &Batch) -> Vec<String> {
    batch.messages().into_iter().map(|(body, _)| String::from_utf8(body.to_vec()).unwrap()).collect()
}

pub(super) fn message(body: &str) -> Message {
    Message::new("t", body.to_owned())
}

#[test]
fn a_topic_of_a_name_that_no_broker_takes_is_refused_and_leaves_nothing_behind() {
    let mut play = Play::new();
    let room = Room { message: 100, with_batch: 1100 };
    let name = "a topic";
    let chosen = MessageQueue { topic: name.into(), ..queue(0) };
    for queue in [None, Some(&chosen)] {
        let added = play.accumulator.add(Duration::ZERO, queue, &Message::new(name, "x"), "ID", room);
        let refusal = added.err().unwrap().to_string();
        assert!(refusal.contains(name), "{refusal}");
    }
    assert_eq!((play.accumulator.lanes(), play.accumulator.next_deadline()), (0, None));
}

#[test]
fn a_lone_message_leaves_at_once_and_those_behind_it_leave_together_with_its_answer() {
    let mut play = Play::new();
    assert_eq!(play.add(None, &message("a")), 1);
    assert_eq!((play.add(None, &message("b")), play.add(None, &message("c"))), (0, 0));
    let (first, left) = play.answer(0);
    assert_eq!((bodies(&first), left), (vec!["a".to_owned()], 1));
    assert_eq!(bodies(&play.flying[0]), ["b", "c"]);
    assert_eq!(play.answer(0).1, 0);
    assert_eq!(play.add(None, &message("d")), 1);
}

#[test]
fn a_batch_that_is_full_does_not_wait_but_only_so_many_are_on_their_way() {
    let mut play = Play::new();
    let large = message(&"x".repeat(COMPRESS_OVER));
    assert_eq!(play.add(None, &large), 1);
    // Each fills a batch: another one of its size would not fit.
    for _ in 1..IN_FLIGHT_MAX {
        assert_eq!(play.add(None, &large), 1);
    }
    assert_eq!((play.add(None, &large), play.add(None, &large)), (0, 0));
    assert_eq!((play.answer(0).1, play.answer(3).1, play.answer(0).1), (1, 1, 0));
}

#[test]
fn what_has_waited_for_long_enough_leaves_before_the_answer() {
    let mut play = Play::new();
    play.add(None, &message("a"));
    play.now += Duration::from_millis(3);
    play.add(None, &message("b"));
    assert_eq!(play.accumulator.next_deadline(), Some(Duration::from_millis(13)));
    assert_eq!(play.tick(Duration::from_millis(9)), 0);
    assert_eq!(play.tick(Duration::from_millis(1)), 1);
    assert_eq!((bodies(&play.flying[1]), play.accumulator.next_deadline()), (vec!["b".to_owned()], None));
    // As many as may be are on their way: it leaves with the next answer.
    while play.flying.len() < IN_FLIGHT_MAX {
        play.add(None, &message("c"));
        play.tick(DELAY);
    }
    play.add(None, &message("last"));
    assert_eq!((play.tick(DELAY), play.accumulator.next_deadline()), (0, None));
    assert_eq!(play.answer(4).1, 1);
    assert_eq!(bodies(play.flying.last().unwrap()), ["last"]);
}

/// Messages of which ten fill a batch, some of them in a millisecond.
fn add_in_a_millisecond(play: &mut Play, messages: usize) -> usize {
    let tenth = message(&"x".repeat(60));
    let left = (0..messages).map(|_| play.add(None, &tenth)).sum();
    play.now += Duration::from_millis(1);
    left
}

#[test]
fn a_batch_that_will_soon_be_full_is_waited_for_though_nothing_is_on_its_way() {
    let mut play = Play::new();
    play.add(None, &message("a"));
    assert_eq!(add_in_a_millisecond(&mut play, 4), 0);
    // Six are missing, and come within two and a half milliseconds if they come as fast.
    assert_eq!(play.answer(0).1, 0);
    assert_eq!((add_in_a_millisecond(&mut play, 4), add_in_a_millisecond(&mut play, 4)), (0, 1));
    assert_eq!(bodies(&play.flying[0]).len(), 10);
    // Two gathered meanwhile, and two more are slower than that.
    assert_eq!(add_in_a_millisecond(&mut play, 2), 0);
    assert_eq!((play.answer(0).1, bodies(&play.flying[0]).len()), (1, 4));
    // One says nothing of how fast others come.
    play.add(None, &message("b"));
    play.now += Duration::from_micros(1);
    assert_eq!(play.answer(0).1, 1);
}

#[test]
fn a_batch_that_is_waited_for_leaves_in_time_and_the_next_ones_are_not_waited_for() {
    let mut play = Play::new();
    play.add(None, &message("a"));
    add_in_a_millisecond(&mut play, 4);
    assert_eq!(play.answer(0).1, 0);
    assert_eq!((play.tick(Duration::from_millis(2)), play.tick(Duration::from_millis(1))), (0, 1));
    for _ in 0..15 {
        add_in_a_millisecond(&mut play, 4);
        assert_eq!((play.answer(0).1, bodies(&play.flying[0]).len()), (1, 4));
    }
    // Another try; in vain again, it is not made so soon.
    add_in_a_millisecond(&mut play, 4);
    assert_eq!((play.answer(0).1, play.tick(DELAY)), (0, 1));
    for _ in 0..31 {
        add_in_a_millisecond(&mut play, 4);
        assert_eq!(play.answer(0).1, 1);
    }
    add_in_a_millisecond(&mut play, 4);
    assert_eq!(play.answer(0).1, 0);
    // This one becomes full.
    assert_eq!(add_in_a_millisecond(&mut play, 6), 1);
    add_in_a_millisecond(&mut play, 4);
    assert_eq!((play.answer(0).1, play.tick(DELAY)), (0, 1));
}

#[test]
fn a_batch_is_not_waited_for_when_there_is_no_room_for_more_messages() {
    let mut play = Play::new();
    play.add(None, &message("a"));
    play.add(Some(&queue(0)), &message("b"));
    add_in_a_millisecond(&mut play, 4);
    assert_eq!(play.answer(0).1, 0);
    play.accumulator.stop_filling();
    assert_eq!(play.take(), 0, "the other one gives room back");
    assert_eq!(play.answer(0).1, 0);
    play.accumulator.stop_filling();
    assert_eq!((play.take(), bodies(&play.flying[0]).len()), (1, 4));
}

#[test]
fn to_a_chosen_queue_a_batch_leaves_when_the_one_before_it_lies_on_the_connection() {
    let mut play = Play::new();
    let large = message(&"x".repeat(COMPRESS_OVER));
    assert_eq!(play.add(Some(&queue(0)), &large), 1);
    assert_eq!((play.add(Some(&queue(0)), &large), play.add(Some(&queue(1)), &large)), (0, 1));
    assert_eq!(play.left(0), 1);
    // Of a static topic, when it is answered.
    let mut play = Play::new();
    assert_eq!((play.add(Some(&logical(0)), &large), play.add(Some(&logical(0)), &large)), (1, 0));
    assert_eq!((play.left(0), play.answer(0).1), (0, 1));
}

#[test]
fn messages_that_a_batch_cannot_have_together_leave_apart_and_to_a_chosen_queue_in_their_order() {
    let kinds = || {
        [
            message("0"),
            message("1"),
            message("2").tag("A"),
            message("3").tag("A").property(name::WAIT, "false"),
            message("4").tag("B"),
            message("5").tag("B"),
            message("6"),
        ]
    };
    let mut play = Play::new();
    for message in kinds() {
        play.add(Some(&queue(0)), &message);
    }
    let mut left = Vec::new();
    while !play.flying.is_empty() {
        left.push(bodies(&play.answer(0).0).concat());
    }
    assert_eq!(left, ["0", "1", "2", "3", "45", "6"]);
    // To any queue those that belong together meet, and the first of each leaves at once.
    let mut play = Play::new();
    for message in kinds() {
        play.add(None, &message);
    }
    assert_eq!(play.flying.iter().map(|batch| bodies(batch).concat()).collect::<Vec<_>>(), ["0", "2", "3", "4"]);
    assert_eq!((play.answer(0).1, bodies(play.flying.last().unwrap()).concat()), (1, "16".to_owned()));
}

#[test]
fn what_a_broker_does_for_single_messages_only_goes_alone() {
    let alone = [
        message("x").delay_level(3),
        message("x").property(name::TIMER_DELAY_SEC, "1"),
        message("x").property(name::TIMER_DELAY_MS, "1"),
        message("x").property(name::TIMER_DELIVER_MS, "1"),
        message("x").property(name::PGROUP, "g"),
        message("x").property(name::TRAN_MSG, "true"),
        message("x").property(name::INNER_MULTI_DISPATCH, "%LMQ%a"),
        message("x").property(name::LITE_TOPIC, "a"),
        message("x").property(name::PRIORITY, "1"),
        message("x").property(name::WAIT, "perhaps"),
        message(&"x".repeat(COMPRESS_OVER + 1)),
        // Refused; in a batch it would be stored.
        message(""),
    ];
    for alone in alone {
        let mut play = Play::new();
        for message in [message("a"), message("b"), alone.clone(), message("c"), message("d")] {
            play.add(Some(&queue(0)), &message);
        }
        let mut counts = Vec::new();
        while !play.flying.is_empty() {
            counts.push(bodies(&play.answer(0).0).len());
        }
        assert_eq!(counts, [1, 1, 1, 2], "{alone:?}");
    }
    let retry = Message::new("%RETRY%g", "x");
    let mut play = Play::new();
    let left: usize = (0..3).map(|_| play.add(None, &retry)).sum();
    assert_eq!(left, 3);
}

#[test]
fn a_message_that_is_refused_changes_nothing() {
    let mut play = Play::new();
    let room = Room { message: 1, with_batch: 1 };
    let bad = [message("x").key("\u{1}"), message("x").key("k".repeat(40_000))];
    for bad in bad {
        assert!(play.accumulator.add(play.now, None, &bad, "ID", room).is_err());
    }
    assert!(play.accumulator.add(play.now, Some(&queue(0)), &Message::new("other", ""), "ID", room).is_err());
    assert_eq!((play.accumulator.next_deadline(), play.add(None, &message("a"))), (None, 1));
    assert_eq!(bodies(&play.flying[0]), ["a"]);
}

#[test]
fn a_batch_says_as_a_whole_what_its_messages_have_in_common_and_one_message_is_no_batch() {
    let mut play = Play::new();
    play.add(None, &message("a").tag("A"));
    for key in ["k1", "k2", "k3"] {
        play.add(None, &message("b").tag("A").key(key).property(name::WAIT, "true"));
    }
    let (mut alone, _) = play.answer(0);
    let whole = || "WHOLE".to_owned();
    let prepared = alone.prepare(whole, None, true).unwrap();
    assert_eq!((prepared.code(), &prepared.body[..]), (request::SEND_MESSAGE_V2, &b"a"[..]));
    assert_eq!((prepared.message_id.as_str(), properties::get(&prepared.properties, name::TAGS)), ("ID-0", Some("A")));
    let (mut batch, _) = play.answer(0);
    let prepared = batch.prepare(whole, Some(1), true).unwrap();
    let property = |name| properties::get(&prepared.properties, name);
    assert_eq!((prepared.code(), prepared.sys_flag), (request::SEND_BATCH_MESSAGE, 0));
    assert_eq!((property(name::UNIQ_KEY), property(name::TAGS)), (Some("WHOLE"), Some("A")));
    assert_eq!((property(name::WAIT), property(name::KEYS)), (Some("true"), None));
    let ids: Vec<Option<&str>> =
        wire::iter(&prepared.body).map(|inner| properties::get(inner.unwrap().properties, name::UNIQ_KEY)).collect();
    assert_eq!(ids, [Some("ID-1"), Some("ID-2"), Some("ID-3")]);
    // Alone, and large: compressed.
    play.add(None, &message(&"x".repeat(300)));
    let prepared = play.answer(0).0.prepare(whole, Some(100), true).unwrap();
    assert!(prepared.sys_flag != 0 && prepared.body.len() < 100);
}

#[tokio::test]
async fn what_is_given_up_says_so_and_takes_what_waits_along_if_nothing_else_is_on_its_way() {
    let mut play = Play::new();
    for _ in 0..3 {
        play.add(None, &message("a"));
    }
    assert_eq!(play.cut_off(0).len(), 2);
    for pending in std::mem::take(&mut play.pending) {
        assert!(matches!(pending.await, Err(ClientError::GivenUp)));
    }
    assert_eq!(play.add(None, &message("b")), 1);
}

#[test]
fn what_waits_is_not_given_up_while_another_batch_is_on_its_way() {
    let mut play = Play::of(2);
    // Two of one lane on their way and one that waits; another lane stands in line.
    for body in ["a", "b"] {
        play.add(None, &message(body));
        play.tick(DELAY);
    }
    for body in ["c", "d"] {
        play.add(None, &message(body));
    }
    play.add(None, &message("e").tag("A"));
    assert_eq!((play.flying.len(), play.cut_off(0).len()), (2, 1));
    // The answer to the other one brings all of it out: both lanes have a place now.
    let (other, left) = play.answer(0);
    assert_eq!((bodies(&other), left), (vec!["b".to_owned()], 2));
    let mut gone: Vec<String> = play.flying.iter().map(|batch| bodies(batch).concat()).collect();
    gone.sort();
    assert_eq!(gone, ["cd", "e"]);
    // The last one that is cut off gives up what stands in line, of all lanes.
    let mut play = Play::of(1);
    for tag in ["A", "B", "C"] {
        play.add(None, &message("a").tag(tag));
    }
    assert_eq!((play.accumulator.ready(), play.cut_off(0).len(), play.accumulator.ready()), (2, 3, 0));
    assert_eq!(play.add(None, &message("b").tag("B")), 1);
}

#[test]
fn of_all_lanes_only_so_many_batches_are_on_their_way_and_lanes_take_turns() {
    const ALL: usize = 3;
    let mut play = Play::of(ALL);
    let tag = |lane: usize| format!("{lane}");
    let large = message(&"x".repeat(COMPRESS_OVER));
    // Lane 0 alone could have all places: each of its messages fills a batch.
    for _ in 0..6 {
        play.add(None, &large.clone().tag("0"));
    }
    // Those that find none gather in the meantime.
    for round in 0..2 {
        for lane in 1..10 {
            assert_eq!(play.add(None, &message(&format!("{lane}{round} ")).tag(tag(lane))), 0);
        }
    }
    assert_eq!((play.flying.len(), play.accumulator.ready()), (ALL, 10));
    let mut gone = Vec::new();
    while !play.flying.is_empty() {
        assert!(play.flying.len() <= ALL);
        gone.push(bodies(&play.answer(0).0).concat().replace(&"x".repeat(COMPRESS_OVER), "x"));
    }
    let gathered = (1..10).map(|lane| format!("{lane}0 {lane}1 "));
    let expected: Vec<String> =
        ["x"; 4].map(str::to_owned).into_iter().chain(gathered).chain(["x".to_owned(), "x".to_owned()]).collect();
    assert_eq!(gone, expected);
}

#[test]
fn a_message_that_nothing_joins_is_not_copied() {
    let mut play = Play::new();
    play.add(Some(&logical(0)), &message("first"));
    let whole = || "WHOLE".to_owned();
    // Delayed, larger than a batch, and with nobody behind it.
    let larger = Message::new("t", vec![b'x'; COMPRESS_OVER]).key("k".repeat(BYTES_MAX));
    for message in [message("delayed").delay_level(1), larger, message("last")] {
        play.add(Some(&logical(0)), &message);
        drop(play.answer(0));
        let prepared = play.flying[0].prepare(whole, Some(COMPRESS_OVER), true).unwrap();
        assert_eq!(prepared.body.as_ptr(), message.body.as_ptr(), "{message:?}");
    }
}

#[test]
fn lanes_do_not_ask_for_more_ahead_than_they_may_together() {
    const RESERVE: usize = 100_000;
    let mut play = Play::with(Limits { reserve_bytes: RESERVE, batch_bytes_max: 32 << 10, ..limits() });
    for tag in 0..500 {
        // A large batch leaves, so the next one is expected to be large.
        for _ in 0..50 {
            play.add(None, &message(&"x".repeat(COMPRESS_OVER)).tag(tag.to_string()));
        }
        play.answer(tag);
    }
    let flying = play.flying.len();
    for tag in 0..500 {
        for _ in 0..2 {
            play.add(None, &message("small").tag(tag.to_string()));
        }
    }
    for at in 0..flying {
        // The small one of its lane leaves.
        let Batch { lane, number, .. } = play.flying[at];
        play.flying.extend(play.accumulator.answered(play.now, lane, number));
    }
    let spare: Vec<usize> = play.flying[flying..].iter().map(Batch::spare_bytes).collect();
    assert_eq!(spare.len(), flying);
    assert!(spare.iter().any(|spare| *spare > 0) && spare.iter().sum::<usize>() <= RESERVE, "{spare:?}");
}

#[test]
fn lanes_of_yesterday_do_not_stay() {
    let mut play = Play::new();
    for tag in 0..5000 {
        play.add(None, &message("a").tag(tag.to_string()));
        play.answer(0);
    }
    for queue_id in 0..5000 {
        play.add(Some(&queue(queue_id)), &message("a"));
        play.answer(0);
    }
    assert!(play.accumulator.lanes() <= 1024, "{}", play.accumulator.lanes());
    // Those that stay, and those that come anew, work.
    for tag in 0..5000 {
        assert_eq!(play.add(None, &message("b").tag(tag.to_string())), 1);
        assert_eq!(play.add(None, &message("b").tag(tag.to_string())), 0);
        assert_eq!(play.answer(0).1, 1);
        play.answer(0);
    }
}

#[test]
fn what_has_left_is_not_remembered_although_an_older_batch_waits_and_nobody_looks_at_the_time() {
    let mut play = Play::new();
    for _ in 0..2 {
        play.add(Some(&queue(0)), &message("a"));
    }
    for _ in 0..10_000 {
        for _ in 0..2 {
            play.add(Some(&queue(1)), &message("b"));
        }
        while play.flying.len() > 1 {
            play.answer(1);
        }
    }
    assert!(play.accumulator.waiting() <= 64, "{}", play.accumulator.waiting());
    // The one that waits is still due.
    assert_eq!(play.accumulator.next_deadline(), Some(DELAY));
    assert_eq!((play.left(0), play.tick(DELAY)), (0, 1));
}

#[test]
fn settings_out_of_their_limits_are_refused_with_field_value_and_limit() {
    let usual = AutoBatch::default();
    for (refused, words) in [
        (usual.batch_max_bytes(0), "batch_max_bytes is 0 bytes; 1 to 2097152 are allowed"),
        (usual.batch_max_bytes((2 << 20) + 1), "batch_max_bytes is 2097153 bytes"),
        (usual.batch_max_delay(Duration::ZERO), "batch_max_delay is 0 µs; 1000 to 30000000 are allowed"),
        (usual.batch_max_delay(Duration::from_secs(31)), "batch_max_delay is 31000000 µs"),
        (usual.total_batch_max_bytes(0), "total_batch_max_bytes is 0 bytes; 1 to 4294967295 are allowed"),
        (usual.total_batch_max_bytes(1 << 32), "total_batch_max_bytes is 4294967296 bytes"),
    ] {
        let said = refused.unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
    }
    for taken in [usual.batch_max_bytes(1), usual.batch_max_bytes(2 << 20), usual.total_batch_max_bytes(1)] {
        assert!(taken.is_ok());
    }
}
