//! The accumulator under whatever may happen, in any order.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use protocol::names::is_logical_broker;
use protocol::properties::{self, name};

use super::batch::Batch;
use super::lanes::LaneId;
use super::tests::{BYTES_MAX, COMPRESS_OVER, DELAY, IN_FLIGHT_MAX, Play, logical, message, queue};
use super::*;
use crate::producer::sent::SendStatus;

#[derive(Clone, Debug)]
enum Step {
    Add { queue: Option<i32>, is_logical: bool, tag: u8, waits: bool, bytes: usize, is_alone: bool },
    Left(usize),
    Answer(usize),
    CutOff(usize),
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
        12 => add,
        4 => (0..1000_usize).prop_map(Step::Left),
        6 => (0..1000_usize).prop_map(Step::Answer),
        1 => (0..1000_usize).prop_map(Step::CutOff),
        2 => (0..12_u64).prop_map(Step::Tick),
    ];
    prop::collection::vec(step, 1..300)
}

/// What is known of each lane, for the checks.
#[derive(Default)]
struct Seen {
    /// Ids by lane, as they were given and as they left: the lane is what `add` was told.
    given: BTreeMap<String, Vec<String>>,
    gone: BTreeMap<String, Vec<String>>,
    room_back: usize,
}

impl Seen {
    /// Messages that have not left.
    fn waiting(&self) -> usize {
        let count = |lanes: &BTreeMap<String, Vec<String>>| lanes.values().map(Vec::len).sum::<usize>();
        count(&self.given) - count(&self.gone)
    }
}

fn lane_name(topic: &str, queue: Option<&MessageQueue>, tag: &str, waits: bool) -> String {
    match queue {
        Some(queue) => format!("{} {}", queue.broker_name, queue.queue_id),
        None => format!("{topic} {tag} {waits}"),
    }
}

fn ids(batches: &[Batch]) -> Vec<String> {
    let messages = batches.iter().flat_map(Batch::messages);
    messages.map(|(_, properties)| properties::get(&properties, name::UNIQ_KEY).unwrap().to_owned()).collect()
}

/// A batch has left: what may be together, within its size, in its place.
fn check_left(seen: &mut Seen, batch: &Batch) {
    let inner = batch.messages();
    let of = |properties: &str| {
        let get = |name| properties::get(properties, name).unwrap_or_default().to_owned();
        (get(name::TAGS), get(name::WAIT))
    };
    let (tag, waits) = of(&inner[0].1);
    let is_alone = |properties: &str| properties::get(properties, name::DELAY).is_some();
    for (body, properties) in &inner {
        assert_eq!(of(properties), (tag.clone(), waits.clone()));
        let fits = (1..=COMPRESS_OVER).contains(&body.len());
        assert!(inner.len() == 1 || (fits && !is_alone(properties)));
    }
    assert!(inner.len() == 1 || batch.body_len() <= BYTES_MAX);
    let lane = lane_name(&batch.target.topic, batch.target.queue.as_ref(), &tag, waits == "true");
    seen.gone.entry(lane).or_default().extend(ids(std::slice::from_ref(batch)));
}

fn settle(seen: &mut Seen, batch: Batch) {
    let count = batch.messages().len();
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
    fn whatever_happens_each_message_leaves_once_in_its_lanes_order_and_nothing_waits_for_nobody(
        steps in steps(),
        all_max in prop_oneof![1..8_usize, Just(usize::MAX)],
    ) {
        let (mut play, mut seen) = (Play::of(all_max), Seen::default());
        let mut checked = 0;
        for step in steps {
            let before = play.flying.len();
            // A flight that is cut off leaves its place to whoever comes next.
            let uses_places = matches!(step, Step::Add { .. } | Step::Answer(_));
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
                    seen.given.entry(lane.clone()).or_default().push(format!("ID-{}", play.next_id));
                    play.add(queue.as_ref(), &message);
                    let has_left = ids(&play.flying[before..]).contains(seen.given[&lane].last().unwrap());
                    prop_assert!(!is_idle || has_left || play.flying.len() == all_max, "a lone message has to wait");
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
                Step::CutOff(at) if before > 0 => {
                    let mut given_up = play.cut_off(at % before).into_iter();
                    checked -= 1;
                    settle(&mut seen, given_up.next().unwrap());
                    for left_behind in given_up {
                        prop_assert!(play.flying.is_empty(), "given up while something is on its way");
                        check_left(&mut seen, &left_behind);
                        settle(&mut seen, left_behind);
                    }
                }
                Step::Left(_) | Step::Answer(_) | Step::CutOff(_) => {}
            }
            for batch in &play.flying[checked..] {
                check_left(&mut seen, batch);
            }
            checked = play.flying.len();
            prop_assert!(play.flying.len() <= all_max);
            prop_assert!(!uses_places || play.accumulator.ready() == 0 || play.flying.len() == all_max, "a place is free");
            let is_looked_for = !play.flying.is_empty() || play.accumulator.next_deadline().is_some();
            prop_assert!(seen.waiting() == 0 || is_looked_for, "what waits, waits for nobody");
            let mut by_lane: HashMap<LaneId, Vec<&Batch>> = HashMap::new();
            for batch in &play.flying {
                by_lane.entry(batch.lane).or_default().push(batch);
            }
            for flying in by_lane.values() {
                let max = match &flying[0].target.queue {
                    Some(queue) if is_logical_broker(&queue.broker_name) => 1,
                    Some(_) | None => IN_FLIGHT_MAX,
                };
                prop_assert!(flying.len() <= max);
                let to_be_laid = flying.iter().filter(|batch| !play.laid.contains(&batch.number)).count();
                prop_assert!(flying[0].target.queue.is_none() || to_be_laid <= 1, "two at a time to a chosen queue");
            }
        }
        // Answers and time bring all of it out.
        while !play.flying.is_empty() || play.accumulator.next_deadline().is_some() {
            if play.flying.is_empty() {
                play.tick(DELAY);
            } else {
                let (batch, _) = play.answer(0);
                checked -= 1;
                settle(&mut seen, batch);
            }
            for batch in &play.flying[checked..] {
                check_left(&mut seen, batch);
            }
            checked = play.flying.len();
        }
        prop_assert_eq!(play.accumulator.next_deadline(), None);
        prop_assert_eq!(seen.gone, seen.given);
        prop_assert_eq!(seen.room_back, play.room);
    }
}
