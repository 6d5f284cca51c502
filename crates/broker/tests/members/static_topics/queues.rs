//! Sends and pulls of logical queues, on one broker.

use broker::{Caller, LocalClient, SendOrder};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn sends_and_pulls_speak_of_logical_queues_and_what_is_not_led_is_refused() {
    let running = start(Setup::default()).await;
    let mapped = detail("broker-a", 1, &[(2, &[item(0, "broker-a", 0, 0)]), (3, &[item(0, "broker-b", 0, 0)])]);
    assert_eq!(map(&running, &mapped, false).await, (0, None));
    for (offset, body) in ["one", "two"].into_iter().enumerate() {
        assert_eq!(put(&running, 2, body).await, (2, offset as i64));
    }
    assert_eq!(put(&running, -1, "any").await, (2, 2), "the only queue that is led here");
    assert_eq!(bodies(&read(&running, 2, 0).await), [(0, "one"), (1, "two"), (2, "any")]);
    assert_eq!(bounds(&running, 2).await, (0, 3));

    let not_led = "T-3 does not exit in request process of current broker broker-a";
    let response = running.send(&to(T, 3, ""), "x").await;
    assert_eq!((response.code, response.remark.as_deref()), (501, Some(not_led)));
    let pulled = running.pull(&from(T, 3, 0)).await;
    let no_item = "T-3 cannot find mapping item in request process of current broker broker-a";
    assert_eq!((pulled.code, pulled.remark.as_deref()), (501, Some(no_item)));
    assert_eq!((commit(&running, 3, 0).await, committed(&running, 3).await), (501, Err(501)));
    for code in [request::GET_MAX_OFFSET, request::GET_MIN_OFFSET, request::GET_EARLIEST_MSG_STORETIME] {
        assert_eq!(running.call(code, &GetMinOffset { topic: T, queue_id: 1 }, "").await.code, 501, "{code}");
    }
    // Another leader asks about a physical queue.
    let physical = WhichQueue { lo: false, broker_name: "broker-a" };
    let answer = running.call(request::PULL_MESSAGE, &(from(T, 0, 0), physical.clone()), "").await;
    assert_eq!((answer.code, answer.fields.get("offsetDelta"), answer.fields.get("maxOffset")), (0, None, Some("3")));
    let priority = running.send(&to(T, 2, "_SYS_MSG_PRIORITY_\u{1}1\u{2}"), "x").await;
    assert_eq!(priority.code, 13, "{:?}", priority.remark);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_in_this_process_sends_to_logical_queues_too() {
    let running = start(Setup::default()).await;
    let mapped = detail("broker-a", 1, &[(2, &[item(0, "broker-a", 0, 100)]), (3, &[item(0, "broker-b", 0, 0)])]);
    assert_eq!(map(&running, &mapped, false).await, (0, None));
    let mut caller = Caller::local(LocalClient::new("127.0.0.1:8081".parse().unwrap(), Box::new(|_, _| false)), None);
    let order = SendOrder { group: "PG", topic: T, queue_id: 2, body: b"one", ..SendOrder::default() };
    let stored = order.call(&running.broker, &mut caller).await.unwrap();
    assert_eq!((stored.queue_id, stored.queue_offset), (2, 100));
    // What waits elsewhere keeps the offset that it has there.
    let half = SendOrder { properties: "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}", ..order };
    let stored = half.call(&running.broker, &mut caller).await.unwrap();
    assert_eq!((stored.queue_id, stored.queue_offset), (2, 0));
    let not_led = SendOrder { queue_id: 3, ..order }.call(&running.broker, &mut caller).await.unwrap_err();
    assert_eq!(not_led.code as i32, 501);
    let physical = SendOrder { queue_id: 0, is_physical: true, ..order };
    let stored = physical.call(&running.broker, &mut caller).await.unwrap();
    assert_eq!((stored.queue_id, stored.queue_offset), (0, 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_moved_is_read_from_its_first_place_to_its_last() {
    let running = start(Setup::default()).await;
    let (first, second) = (item(0, "broker-a", 0, 0), |at| item(1, "broker-a", 1, at));
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for body in ["a", "b", "c"] {
        put(&running, 0, body).await;
    }
    make_group(&running, "CG", 1).await;
    assert_eq!(commit(&running, 0, 2).await, 0);
    // The queue moves: its new place takes messages before it is decided at which offset it begins.
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &[first.clone(), second(-1)])]), false).await.0, 0);
    assert_eq!(put(&running, 0, "d").await, (0, -1));
    let halfway = read(&running, 0, 0).await;
    assert_eq!((bodies(&halfway), halfway.1), (vec![(0, "a"), (1, "b"), (2, "c")], 3));
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &[first, second(10_000)])]), false).await.0, 0);
    assert_eq!(put(&running, 0, "e").await, (0, 10_001));
    let whole = [(0, "a"), (1, "b"), (2, "c"), (10_000, "d"), (10_001, "e")];
    assert_eq!(bodies(&read(&running, 0, 0).await), whole);
    assert_eq!(bodies(&read(&running, 0, 5_000).await), whole[3..], "between the places");
    assert_eq!(bodies(&read(&running, 0, 10_001).await), whole[4..]);
    assert_eq!(bounds(&running, 0).await, (0, 10_002));

    let moved = running.pull(&from(T, 0, 20_000)).await;
    assert_eq!((moved.code, moved.next), (21, 10_002), "beyond the end");
    assert_eq!(committed(&running, 0).await, Ok(2), "the offset lies in the first place");
    assert_eq!((commit(&running, 0, 10_001).await, committed(&running, 0).await), (0, Ok(10_001)));
    // What a pull commits is a logical offset too.
    let pull =
        PullMessage { commit_offset: 10_002, sys_flag: bits::SUBSCRIPTION | bits::COMMIT_OFFSET, ..from(T, 0, 10_002) };
    running.pull(&pull).await;
    assert_eq!(committed(&running, 0).await, Ok(10_002));

    assert_eq!(at_time(&running, 0, 0, "LOWER").await, 0);
    assert_eq!(at_time(&running, 0, i64::MAX / 2, "LOWER").await, 10_002);
    assert_eq!(at_time(&running, 0, i64::MAX / 2, "UPPER").await, 10_001);
    let fields = GetEarliestStoreTime { topic: T, queue_id: 0 };
    let answer = running.call(request::GET_EARLIEST_MSG_STORETIME, &fields, "").await;
    assert!(EarliestStoreTimeReply::decode(&answer.fields.as_fields()).unwrap().timestamp > 0);
    let stats = GetConsumeStats { consumer_group: "CG", topic: Some(T), topic_list: None };
    let stats = running.call(request::GET_CONSUME_STATS, &stats, "").await;
    let stats: ConsumeStats = fastjson::from_slice(&stats.body).unwrap();
    let offsets: Vec<i64> = stats.offset_table.values().map(|offset| offset.consumer_offset).collect();
    assert_eq!(offsets, [2, 2, -1, -1], "of physical queues; nowhere is not the beginning");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_wait_at_the_last_place_and_hear_when_their_queue_moves_away() {
    let running = start(Setup::default()).await;
    let here = item(0, "broker-a", 0, 0);
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&here))]), false).await.0, 0);
    let pull = waiting(from(T, 0, 0), 15_000);
    let (found, ()) = tokio::join!(running.pull(&pull), async {
        running.until_parked(1).await;
        put(&running, 0, "woken").await;
    });
    assert_eq!((found.code, found.messages.len()), (0, 1));
    let pull = waiting(from(T, 0, 1), 15_000);
    let moved = detail("broker-a", 2, &[(0, &[here, item(1, "broker-b", 0, 10_000)])]);
    let (found, ()) = tokio::join!(running.pull(&pull), async {
        running.until_parked(1).await;
        assert_eq!(map(&running, &moved, false).await.0, 0);
    });
    assert_eq!(found.code, 501);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_is_named_by_where_it_waits() {
    let running = start(Setup::default()).await;
    let moved = [item(0, "broker-b", 0, 0), item(1, "broker-a", 0, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, &moved)]), false).await.0, 0);
    let properties = "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}PG\u{2}UNIQ_KEY\u{1}KEY\u{2}";
    let half = Sent::of(&running.send(&to(T, 0, properties), "half").await);
    assert_eq!((half.queue_id, half.queue_offset), (0, 0));
    let end = EndTransaction {
        producer_group: "PG",
        tran_state_table_offset: half.queue_offset,
        commit_log_offset: parse_offset_message_id(&half.id).unwrap().1 as i64,
        commit_or_rollback: sys_flag::TRANSACTION_COMMIT,
        from_transaction_check: false,
        msg_id: "KEY",
        transaction_id: None,
        topic: None,
    };
    let answer = running.call(request::END_TRANSACTION, &end, "").await;
    assert_eq!((answer.code, answer.remark), (0, None));
    assert_eq!(bodies(&read(&running, 0, 10_000).await), [(10_000, "half")]);
    let delayed = Sent::of(&running.send(&to(T, 0, "DELAY\u{1}18\u{2}"), "delayed").await);
    assert_eq!((delayed.queue_id, delayed.queue_offset), (0, 0));
    assert_eq!(put(&running, 0, "plain").await, (0, 10_001));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_has_ended_is_not_read_beyond_its_end() {
    let running = start(Setup::default()).await;
    let first = item(0, "broker-a", 0, 0);
    assert_eq!(map(&running, &detail("broker-a", 1, &[(0, from_ref(&first))]), false).await.0, 0);
    for body in ["a", "b"] {
        put(&running, 0, body).await;
    }
    let ended = LogicQueueMappingItem { end_offset: 2, ..first };
    let moved = [ended, item(1, "broker-a", 1, 10_000)];
    assert_eq!(map(&running, &detail("broker-a", 2, &[(0, &moved)]), false).await, (0, None));
    put(&running, 0, "c").await;
    // It waited while the queue moved.
    let physical = WhichQueue { lo: false, broker_name: "broker-a" };
    let late = running.call(request::SEND_MESSAGE_V2, &(to(T, 0, "TAGS\u{1}late\u{2}"), physical), "late").await;
    assert_eq!((late.code, late.remark), (0, None));
    assert_eq!(bodies(&read(&running, 0, 0).await), [(0, "a"), (1, "b"), (10_000, "c")]);
    assert_eq!(bodies(&read(&running, 0, 2).await), [(10_000, "c")]);
    // A filter passes over all that is before the end.
    let only = PullMessage { subscription: Some("late"), ..from(T, 0, 0) };
    let response = running.pull(&only).await;
    assert_eq!((response.code, response.next, response.messages.len()), (20, 2, 0));
    running.stop().await;
}
