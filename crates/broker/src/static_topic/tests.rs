//! The arithmetic of mappings, by example and against a model: a logical queue as the list of messages that were sent to it.

use proptest::prelude::*;
use protocol::body::{LogicQueueMappingItem, TopicQueueMappingDetail};
use protocol::code::ResponseCode;
use protocol::names::GLOBAL_SCOPE;
use protocol::request::PullReply;

use super::accept::{check, check_places, check_room, succeed};
use super::pull::{Found, rewrite};
use crate::parked::Asked;
use crate::state::topics::QUEUES_MAX;
use crate::state::topics::mapping::{Mapping, end, find, locate, logical, logical_or_unknown, next, physical};

fn item(generation: i32, bname: &str, queue_id: i32, logic_offset: i64) -> LogicQueueMappingItem {
    LogicQueueMappingItem {
        bname: bname.to_owned(),
        end_offset: -1,
        generation,
        logic_offset,
        queue_id,
        start_offset: 0,
        time_of_end: -1,
        time_of_start: -1,
    }
}

fn detail(epoch: i64, queues: Vec<(i32, Vec<LogicQueueMappingItem>)>) -> TopicQueueMappingDetail {
    TopicQueueMappingDetail {
        bname: "a".to_owned(),
        epoch,
        hosted_queues: queues.into_iter().collect(),
        scope: Some(GLOBAL_SCOPE.to_owned()),
        topic: "T".to_owned(),
        total_queues: 4,
        ..TopicQueueMappingDetail::default()
    }
}

fn refused(result: Result<impl std::fmt::Debug, crate::Refusal>) -> String {
    let refusal = result.unwrap_err();
    assert_eq!(refusal.code, ResponseCode::SystemError);
    refusal.remark
}

fn check_it(mut detail: TopicQueueMappingDetail) -> Result<(), crate::Refusal> {
    check(&mut detail, "a", "T", 8)
}

#[test]
fn a_broker_leads_the_queues_whose_last_place_it_holds() {
    let queues = vec![(0, vec![item(0, "a", 0, 0)]), (1, vec![item(0, "a", 1, 0), item(1, "b", 0, 10_000)])];
    let mapping = Mapping::new(detail(1, queues));
    assert_eq!(mapping.info().curr_id_map, [(0, 0)].into());
    assert!(mapping.led(0).is_ok());
    for queue in [1, 2, -1] {
        let refusal = mapping.led(queue).unwrap_err();
        assert_eq!(refusal.code, ResponseCode::NotLeaderForQueue);
        assert_eq!(refusal.remark, format!("T-{queue} does not exit in request process of current broker a"));
    }
}

#[test]
fn the_offset_of_a_message_is_unknown_while_its_queue_moves_and_ends_with_its_place() {
    assert_eq!(logical_or_unknown(&item(1, "a", 0, -1), 7), -1);
    assert_eq!(logical_or_unknown(&item(1, "a", 0, 10_000), 7), 10_007);
    let ended = LogicQueueMappingItem { end_offset: 5, ..item(0, "a", 0, 100) };
    assert_eq!(logical_or_unknown(&ended, 9), 105);
}

#[test]
fn what_operators_send_does_not_overflow() {
    let edge = LogicQueueMappingItem { start_offset: i64::MAX, ..item(i32::MAX, "a", 0, i64::MAX) };
    for offset in [i64::MIN, -1, 0, i64::MAX] {
        let _ = (logical(&edge, offset), physical(&edge, offset), logical_or_unknown(&edge, offset));
        let _ = find(std::slice::from_ref(&edge), offset);
    }
}

#[test]
fn mappings_that_contradict_themselves_are_refused() {
    let with = |items: Vec<LogicQueueMappingItem>| check_it(detail(1, vec![(0, items)]));
    assert!(with(vec![item(0, "a", 0, 0), item(1, "b", 0, 10_000)]).is_ok());
    assert!(with(vec![item(0, "a", 0, 0), item(1, "b", 0, -1)]).is_ok());
    assert!(refused(with(vec![item(-1, "a", 0, 0)])).starts_with("The field is illegal, should not be negative"));
    assert!(
        refused(with(vec![item(0, "a", 0, -1), item(1, "b", 0, -1)])).starts_with("The non-latest item has negative")
    );
    assert!(refused(with(vec![item(1, "a", 0, 0), item(1, "b", 0, 9)])).starts_with("The gen does not increase"));
    assert!(refused(with(vec![item(0, "a", 0, 9), item(1, "b", 0, 9)])).starts_with("The base logic offset does not"));
    let ended = LogicQueueMappingItem { end_offset: 9, ..item(0, "a", 0, 0) };
    assert!(
        refused(with(vec![ended.clone(), item(1, "b", 0, 9)])).starts_with("The max logic offset does not increase")
    );
    let backwards = LogicQueueMappingItem { start_offset: 10, ..ended };
    assert!(refused(with(vec![backwards])).starts_with("The endOffset is smaller than the start offset"));
    assert!(refused(with(vec![item(0, "a", 8, 0)])).contains("queue 0 is 8 of 8"));
    assert!(refused(with(vec![])).contains("queue 0 has 0 items"));
    let twice = detail(1, vec![(0, vec![item(0, "a", 0, 0)]), (1, vec![item(0, "a", 0, 0)])]);
    assert!(refused(check_it(twice)).contains("global queue id 1 and 0 shared the same physical queue a-0"));
    assert!(refused(check_it(detail(1, vec![(4, vec![item(0, "a", 0, 0)])]))).contains("number 4 is not one of 4"));
    let other = TopicQueueMappingDetail { bname: "b".to_owned(), ..detail(1, vec![]) };
    assert_eq!(refused(check_it(other)), "The broker name is not equal a != b");
    let huge = TopicQueueMappingDetail { total_queues: QUEUES_MAX + 1, ..detail(1, vec![]) };
    assert!(refused(check_it(huge)).contains("is not between 0 and"));
}

#[test]
fn a_mapping_follows_only_one_that_it_continues() {
    let old = detail(5, vec![(0, vec![item(0, "a", 0, 0)]), (1, vec![item(0, "a", 1, 0)])]);
    let then = |new: TopicQueueMappingDetail| succeed(Some(&old), new, false);
    assert_eq!(refused(then(detail(4, vec![]))), "Can't accept data with small epoch 4 < 5");
    assert_eq!(refused(then(detail(5, vec![]))), "Cannot accept equal epoch with null data (queue 0)");
    let kept = then(detail(6, vec![])).unwrap();
    assert_eq!(kept.hosted_queues, old.hosted_queues, "what the new one does not speak of stays");
    let moved = vec![item(0, "a", 0, 0), item(1, "b", 0, 10_000)];
    let second = (1, vec![item(0, "a", 1, 0)]);
    assert!(then(detail(6, vec![(0, moved.clone()), second.clone()])).is_ok());
    let same_epoch = refused(then(detail(5, vec![(0, moved), second.clone()])));
    assert_eq!(same_epoch, "The new leader is different but epoch equal (queue 0)");
    let elsewhere = refused(then(detail(6, vec![(0, vec![item(0, "b", 3, 0)]), second.clone()])));
    assert!(
        elsewhere.contains("gen 0 of queue 0 is different: b-3 from 0 at 0, it was a-0 from 0 at 0"),
        "{elsewhere}"
    );
    let scope = TopicQueueMappingDetail { scope: Some("__x__".to_owned()), ..detail(6, vec![]) };
    assert_eq!(refused(then(scope)), "Can't accept data with unmatched scope __x__ != __global__");
    let fewer = TopicQueueMappingDetail { total_queues: 1, ..detail(6, vec![]) };
    assert!(refused(then(fewer)).starts_with("Cannot decrease the queue num"));
    assert!(succeed(Some(&old), detail(1, vec![]), true).is_ok(), "an operator may say that the old one is wrong");
    // The logical offset of a new place is decided once.
    let undecided = detail(6, vec![(0, vec![item(0, "a", 0, 0), item(1, "b", 0, -1)])]);
    let decided = |at| detail(6, vec![(0, vec![item(0, "a", 0, 0), item(1, "b", 0, at)])]);
    assert!(succeed(Some(&undecided), decided(10_000), false).is_ok());
    assert!(succeed(Some(&decided(10_000)), decided(20_000), false).is_err());
    // The oldest place goes when it is empty; the youngest stays.
    let cleaned = detail(6, vec![(0, vec![item(1, "b", 0, 10_000)])]);
    assert!(succeed(Some(&decided(10_000)), cleaned, false).is_ok());
    let back = detail(7, vec![(0, vec![item(0, "a", 0, 0)])]);
    assert!(refused(succeed(Some(&decided(10_000)), back, false)).contains("goes back from 1 to 0"));
}

#[test]
fn what_is_kept_of_a_mapping_must_fit_to_what_is_new() {
    let old = detail(5, vec![(0, vec![item(0, "a", 0, 0)]), (1, vec![item(0, "a", 5, 0)])]);
    let twice = succeed(Some(&old), detail(6, vec![(2, vec![item(0, "a", 0, 0)])]), false).unwrap();
    assert!(refused(check_places(&twice, 8)).contains("global queue id 2 and 0 shared the same physical queue a-0"));
    let smaller = succeed(Some(&old), detail(6, vec![(0, vec![item(0, "a", 0, 0)])]), false).unwrap();
    assert!(refused(check_places(&smaller, 5)).contains("queue 1 is 5 of 5"));
    let mapping = Mapping::new(smaller);
    assert!(check_room(&mapping, 6).is_ok());
    assert_eq!(check_room(&mapping, 5).unwrap_err().code, ResponseCode::InvalidParameter);
}

#[test]
fn the_place_that_takes_messages_has_no_end() {
    let ended = LogicQueueMappingItem { end_offset: 5, ..item(0, "a", 0, 0) };
    assert!(refused(check_it(detail(1, vec![(0, vec![ended.clone()])]))).contains("The latest item has an end offset"));
    let moved = vec![ended, item(1, "b", 0, 10_000)];
    assert!(check_it(detail(1, vec![(0, moved.clone())])).is_ok());
    assert_eq!((end(&moved, 0), end(&moved, 1)), (5, i64::MAX));
    assert_eq!(
        (locate(&moved, 4), locate(&moved, 5), locate(&moved, 10_003)),
        (Some((0, 4)), Some((1, 0)), Some((1, 3)))
    );
}

fn reply() -> PullReply {
    PullReply {
        suggest_which_broker_id: 0,
        next_begin_offset: 0,
        min_offset: 0,
        max_offset: 0,
        offset_delta: None,
        topic_sys_flag: None,
        group_sys_flag: None,
        forbidden_type: None,
    }
}

/// A physical queue of a logical one.
#[derive(Clone, Debug)]
struct Stock {
    /// Logical offset of its beginning, and the physical one.
    begin: i64,
    start: i64,
    /// Messages are there from `min` to before `max`; those before `start`, and behind the end, are not of the logical queue.
    min: i64,
    max: i64,
    end: i64,
}

/// A logical queue as a row of physical ones.
#[derive(Clone, Debug)]
struct Model(Vec<Stock>);

impl Model {
    fn items(&self) -> Vec<LogicQueueMappingItem> {
        let places = (0..).zip(&self.0).map(|(at, stock)| LogicQueueMappingItem {
            start_offset: stock.start,
            end_offset: stock.end,
            ..item(at, if at % 2 == 0 { "a" } else { "b" }, at, stock.begin)
        });
        places.collect()
    }

    /// The logical offsets of all messages that are left.
    fn messages(&self) -> Vec<i64> {
        let mut all = Vec::new();
        for (at, stock) in self.0.iter().enumerate() {
            let before_next = self.0.get(at + 1).map_or(i64::MAX, |next| next.begin);
            let offsets = stock.min.max(stock.start)..if stock.end > stock.start { stock.end } else { stock.max };
            let logical = offsets.map(|offset| stock.begin + offset - stock.start);
            all.extend(logical.filter(|logical| *logical < before_next));
        }
        all
    }

    /// Reads up to `count` messages of a place from a physical offset, as a broker does.
    fn read(&self, place: usize, offset: i64, count: i64) -> (Found, Vec<i64>) {
        let Stock { min, max, .. } = self.0[place];
        let found = |code, next| Found { code, next, min, max };
        if max == 0 {
            let code = if offset == 0 { ResponseCode::PullNotFound } else { ResponseCode::PullOffsetMoved };
            return (found(code, 0), vec![]);
        }
        if offset < min {
            return (found(ResponseCode::PullOffsetMoved, min), vec![]);
        }
        if offset > max {
            return (found(ResponseCode::PullOffsetMoved, max), vec![]);
        }
        if offset == max {
            return (found(ResponseCode::PullNotFound, offset), vec![]);
        }
        let end = max.min(offset + count);
        (found(ResponseCode::Success, end), (offset..end).collect())
    }

    /// What a consumer gets that begins at a logical offset and pulls until it has to wait.
    fn consume(&self, from: i64, count: i64) -> Vec<i64> {
        let items = self.items();
        let (mut at, mut got) = (from, Vec::new());
        // Each pull brings messages, goes on to another place, or waits.
        for _ in 0..self.messages().len() + 3 * items.len() + 3 {
            let (place, offset) = locate(&items, at).unwrap();
            let asked = Asked::of(0, at, &items, place);
            let left = end(&items, place).saturating_sub(offset.max(items[place].start_offset));
            let (found, physical_offsets) = self.read(place, offset, count.min(left).max(1));
            let fields =
                PullReply { next_begin_offset: found.next, min_offset: found.min, max_offset: found.max, ..reply() };
            let (code, told) = rewrite(&items, &asked, offset, found, fields);
            if code == ResponseCode::Success {
                let delta = told.offset_delta.unwrap();
                got.extend(physical_offsets.iter().map(|physical| physical + delta));
            }
            assert!(told.next_begin_offset <= told.max_offset.max(at), "{told:?}");
            if code == ResponseCode::PullNotFound {
                return got;
            }
            assert!(told.next_begin_offset != at || code == ResponseCode::PullOffsetMoved, "turns on the spot at {at}");
            at = told.next_begin_offset;
        }
        panic!("never waits: {self:?}");
    }
}

fn models() -> impl Strategy<Value = Model> {
    // The last two: messages that came when the place had ended already, and by how much the next place begins behind the end.
    let stock = (0i64..4, 0i64..6, 0i64..6, 0i64..4, any::<bool>(), 1i64..50);
    (0i64..5, prop::collection::vec(stock, 1..5)).prop_map(|(first, stocks)| {
        let (mut begin, last) = (first, stocks.len() - 1);
        let stocks = stocks.into_iter().enumerate().map(|(at, (start, gone, left, late, is_decided, gap))| {
            let sent = (gone + left).max(start);
            let end = if is_decided && at < last { sent } else { -1 };
            let stock = Stock { begin, start, min: gone, max: sent + late, end };
            // Where no end is decided, the next place may begin before the messages of this one are at an end.
            begin += if is_decided { sent - start + gap } else { gap };
            stock
        });
        Model(stocks.collect())
    })
}

proptest! {
    #[test]
    fn a_consumer_gets_every_message_once_and_in_order_wherever_it_begins(
        model in models(), from in 0i64..300, count in 1i64..8,
    ) {
        let wanted: Vec<i64> = model.messages().into_iter().filter(|at| *at >= from).collect();
        prop_assert_eq!(model.consume(from, count), wanted);
    }

    #[test]
    fn logical_and_physical_offsets_are_each_others_inverse(model in models(), place in 0usize..4, offset in 0i64..100) {
        let items = model.items();
        let item = &items[place % items.len()];
        prop_assert_eq!(physical(item, logical(item, item.start_offset + offset)), item.start_offset + offset);
    }

    #[test]
    fn a_logical_offset_lies_in_the_last_place_that_begins_before_it(model in models(), offset in 0i64..300) {
        let items = model.items();
        let at = find(&items, offset).unwrap();
        prop_assert!(at == 0 || items[at].logic_offset <= offset);
        prop_assert!(next(&items, at).is_none_or(|next| items[next].logic_offset > offset));
    }
}
