//! The accumulator alone: no clock, no socket, no task.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use protocol::batch as wire;
use protocol::body::MessageQueue;
use protocol::code::request;
use protocol::properties::{self, name};

use super::accumulator::{Accumulator, LaneId, Limits};
use super::batch::Batch;
use super::*;
use crate::producer::SendStatus;

const DELAY: Duration = Duration::from_millis(10);
const BYTES_MAX: usize = 1000;
const IN_FLIGHT_MAX: usize = 16;
const COMPRESS_OVER: usize = 500;

fn accumulator() -> Accumulator {
    Accumulator::new(Limits { batch_bytes_max: BYTES_MAX, delay: DELAY, compress_over_bytes: Some(COMPRESS_OVER) })
}

fn queue(queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: "b".into(), queue_id, topic: "t".into() }
}

fn logical(queue_id: i32) -> MessageQueue {
    MessageQueue { broker_name: "__syslo__global__".into(), queue_id, topic: "t".into() }
}

/// As the tasks of a producer use it, one step after the other.
struct Play {
    accumulator: Accumulator,
    now: Duration,
    next_id: usize,
    /// On their way, in the order in which they left.
    flying: Vec<Batch>,
    pending: Vec<Pending>,
}

impl Play {
    fn new() -> Play {
        let (flying, pending) = (Vec::new(), Vec::new());
        Play { accumulator: accumulator(), now: Duration::ZERO, next_id: 0, flying, pending }
    }

    /// How many batches left for it.
    fn add(&mut self, queue: Option<&MessageQueue>, message: &Message) -> usize {
        let id = format!("ID-{}", self.next_id);
        self.next_id += 1;
        let (lane, pending) = self.accumulator.add(self.now, queue, message, &id, message.held_bytes()).unwrap();
        self.pending.push(pending);
        self.take(lane)
    }

    fn take(&mut self, lane: LaneId) -> usize {
        let before = self.flying.len();
        while let Some(batch) = self.accumulator.next_to_leave(lane) {
            self.flying.push(batch);
        }
        self.flying.len() - before
    }

    fn left(&mut self, at: usize) -> usize {
        let Batch { lane, number, .. } = self.flying[at];
        self.accumulator.left(lane, number);
        self.take(lane)
    }

    fn answer(&mut self, at: usize) -> (Batch, usize) {
        let batch = self.flying.remove(at);
        self.accumulator.answered(batch.lane, batch.number);
        let left = self.take(batch.lane);
        (batch, left)
    }

    fn tick(&mut self, passed: Duration) -> usize {
        self.now += passed;
        let mut left = 0;
        while let Some(lane) = self.accumulator.next_overdue(self.now) {
            left += self.take(lane);
        }
        left
    }
}

fn bodies(batch: &Batch) -> Vec<String> {
    wire::iter(batch.body()).map(|inner| String::from_utf8(inner.unwrap().body.to_vec()).unwrap()).collect()
}

fn message(body: &str) -> Message {
    Message::new("t", body.to_owned())
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
    let bad = [message("x").key("\u{1}"), message("x").key("k".repeat(40_000))];
    for bad in bad {
        assert!(play.accumulator.add(play.now, None, &bad, "ID", 1).is_err());
    }
    assert!(play.accumulator.add(play.now, Some(&queue(0)), &Message::new("other", ""), "ID", 1).is_err());
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
    let prepared = alone.prepare(whole, None).unwrap();
    assert_eq!((prepared.code(), &prepared.body[..]), (request::SEND_MESSAGE_V2, &b"a"[..]));
    assert_eq!((prepared.message_id.as_str(), properties::get(&prepared.properties, name::TAGS)), ("ID-0", Some("A")));
    let (mut batch, _) = play.answer(0);
    let prepared = batch.prepare(whole, Some(1)).unwrap();
    let property = |name| properties::get(&prepared.properties, name);
    assert_eq!((prepared.code(), prepared.sys_flag), (request::SEND_BATCH_MESSAGE, 0));
    assert_eq!((property(name::UNIQ_KEY), property(name::TAGS)), (Some("WHOLE"), Some("A")));
    assert_eq!((property(name::WAIT), property(name::KEYS)), (Some("true"), None));
    let ids: Vec<Option<&str>> =
        wire::iter(&prepared.body).map(|inner| properties::get(inner.unwrap().properties, name::UNIQ_KEY)).collect();
    assert_eq!(ids, [Some("ID-1"), Some("ID-2"), Some("ID-3")]);
    // Alone, and large: compressed.
    play.add(None, &message(&"x".repeat(300)));
    let prepared = play.answer(0).0.prepare(whole, Some(100)).unwrap();
    assert!(prepared.sys_flag != 0 && prepared.body.len() < 100);
}

#[tokio::test]
async fn what_is_given_up_says_so_and_takes_what_waits_behind_it_along() {
    let mut play = Play::new();
    for _ in 0..3 {
        play.add(None, &message("a"));
    }
    let first = play.flying.remove(0);
    let behind = play.accumulator.abandon(first.lane, first.number);
    assert_eq!(behind.len(), 1);
    drop((first, behind));
    for pending in std::mem::take(&mut play.pending) {
        assert!(matches!(pending.await, Err(ClientError::GivenUp)));
    }
    assert_eq!(play.add(None, &message("b")), 1);
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

#[derive(Clone, Debug)]
enum Step {
    Add { queue: Option<i32>, is_logical: bool, tag: u8, waits: bool, bytes: usize, is_alone: bool },
    Left(usize),
    Answer(usize),
    Tick(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let add = (
        prop::option::of(0..3),
        prop::bool::weighted(0.2),
        0..2_u8,
        prop::bool::weighted(0.9),
        0..600_usize,
        prop::bool::weighted(0.05),
    )
        .prop_map(|(queue, is_logical, tag, waits, bytes, is_alone)| Step::Add {
            queue,
            is_logical,
            tag,
            waits,
            bytes,
            is_alone,
        });
    let step = prop_oneof![
        6 => add,
        2 => (0..1000_usize).prop_map(Step::Left),
        3 => (0..1000_usize).prop_map(Step::Answer),
        1 => (0..12_u64).prop_map(Step::Tick),
    ];
    prop::collection::vec(step, 1..300)
}

/// What is known of each lane, for the checks.
#[derive(Default)]
struct Seen {
    /// Ids by lane, as they were given and as they left: the lane is what `add` was told.
    given: BTreeMap<String, Vec<String>>,
    gone: BTreeMap<String, Vec<String>>,
    room_given: usize,
    room_back: usize,
}

fn lane_name(topic: &str, queue: Option<&MessageQueue>, tag: &str, waits: bool) -> String {
    match queue {
        Some(queue) => format!("{} {}", queue.broker_name, queue.queue_id),
        None => format!("{topic} {tag} {waits}"),
    }
}

/// A batch has left: what may be together, within its size, in its place.
fn check_left(seen: &mut Seen, batch: &Batch) {
    let inner: Vec<_> = wire::iter(batch.body()).map(Result::unwrap).collect();
    let of = |properties: &str| {
        let get = |name| properties::get(properties, name).unwrap_or_default().to_owned();
        (get(name::TAGS), get(name::WAIT))
    };
    let (tag, waits) = of(inner[0].properties);
    let is_alone = |properties: &str| properties::get(properties, name::DELAY).is_some();
    for message in &inner {
        assert_eq!(of(message.properties), (tag.clone(), waits.clone()));
        let fits = (1..=COMPRESS_OVER).contains(&message.body.len());
        assert!(inner.len() == 1 || (fits && !is_alone(message.properties)));
    }
    assert!(inner.len() == 1 || batch.body_len() <= BYTES_MAX);
    let lane = lane_name(&batch.target.topic, batch.target.queue.as_ref(), &tag, waits == "true");
    let ids = inner.iter().map(|message| properties::get(message.properties, name::UNIQ_KEY).unwrap().to_owned());
    seen.gone.entry(lane).or_default().extend(ids);
}

fn settle(seen: &mut Seen, batch: Batch) {
    let count = wire::iter(batch.body()).count();
    let offset_message_id = vec!["X"; count].join(",");
    let queue = batch.target.queue.clone().unwrap_or_else(|| queue(0));
    seen.room_back += batch.room();
    batch.settle(Ok(SendResult {
        status: SendStatus::Ok,
        message_id: String::new(),
        offset_message_id,
        queue,
        broker_name: "b".into(),
        queue_offset: 0,
    }));
}

proptest! {
    #[test]
    fn whatever_happens_each_message_leaves_once_in_its_lanes_order_and_nothing_waits_for_nobody(steps in steps()) {
        let (mut play, mut seen) = (Play::new(), Seen::default());
        let mut checked = 0;
        for step in steps {
            let before = play.flying.len();
            match step {
                Step::Add { queue: queue_id, is_logical, tag, waits, bytes, is_alone } => {
                    let tag = if tag == 0 { String::new() } else { "A".to_owned() };
                    let queue = queue_id.map(if is_logical { logical } else { queue });
                    let message = message(&"x".repeat(bytes)).tag(tag.clone()).property(name::WAIT, waits.to_string());
                    let message = if is_alone { message.delay_level(1) } else { message };
                    let lane = lane_name("t", queue.as_ref(), &tag, waits);
                    let is_idle = seen.given.get(&lane).map_or(0, Vec::len) == seen.gone.get(&lane).map_or(0, Vec::len)
                        && !play.flying.iter().any(|batch| {
                            lane_name("t", batch.target.queue.as_ref(), &tag, waits) == lane && batch.target.queue == queue
                        });
                    seen.given.entry(lane).or_default().push(format!("ID-{}", play.next_id));
                    seen.room_given += message.held_bytes();
                    let left = play.add(queue.as_ref(), &message);
                    prop_assert!(!is_idle || left == 1, "a lone message has to wait");
                }
                Step::Left(at) if before > 0 => {
                    play.left(at % before);
                }
                Step::Answer(at) if before > 0 => {
                    let (batch, _) = play.answer(at % before);
                    checked -= 1;
                    settle(&mut seen, batch);
                }
                Step::Tick(ms) => {
                    play.tick(Duration::from_millis(ms));
                }
                Step::Left(_) | Step::Answer(_) => {}
            }
            for batch in &play.flying[checked..] {
                check_left(&mut seen, batch);
            }
            checked = play.flying.len();
            let mut by_lane: HashMap<LaneId, usize> = HashMap::new();
            for batch in &play.flying {
                *by_lane.entry(batch.lane).or_default() += 1;
            }
            prop_assert!(by_lane.values().all(|count| *count <= IN_FLIGHT_MAX));
        }
        // Answers alone bring all of it out.
        while !play.flying.is_empty() {
            let (batch, _) = play.answer(0);
            settle(&mut seen, batch);
            for batch in &play.flying[checked - 1..] {
                check_left(&mut seen, batch);
            }
            checked = play.flying.len();
        }
        prop_assert_eq!(play.accumulator.next_deadline(), None);
        prop_assert_eq!(seen.gone, seen.given);
        prop_assert_eq!(seen.room_back, seen.room_given);
    }
}
