//! Pops under settings and of topics that are not the usual ones.

use std::time::Duration;

use bytes::Bytes;
use protocol::code::request;
use protocol::request::{AckMessage, PopMessage};

use super::batch_queues::{create, send_batch};
use super::popping::{ack, from, pop, pop_any};
use super::support::{Running, Setup, batch_of, properties, start, start_on, until};

/// An acknowledgement of what came from a queue of this topic.
async fn ack_in(broker: &Running, topic: &str, handle: &str) -> i32 {
    let offset = handle.rsplit(' ').next().unwrap().parse().unwrap();
    let ack = AckMessage { consumer_group: "CG", topic, queue_id: 0, extra_info: handle, offset, lite_topic: None };
    broker.call(request::ACK_MESSAGE, &ack, Bytes::new()).await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_again_is_in_the_retry_topic_of_the_second_kind_if_that_is_switched_on() {
    let broker = start(Setup { more: &[("enableRetryTopicV2", "true")], ..Setup::default() }).await;
    broker.put("T", 0, "", "a").await;
    assert_eq!(pop(&broker, &from("T", 300)).await.bodies(), ["a"]);
    let again = pop_any(&broker, &from("T", 300)).await;
    assert_eq!((again.bodies(), again.messages[0].reconsume_times), (vec!["a"], 1));
    let handle = again.handle(0);
    assert_eq!(handle.split(' ').nth(4), Some("2"), "{handle}");
    assert_eq!(broker.all("%RETRY%CG+T", 0).await.len(), 1);
    let third = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(third.messages[0].reconsume_times, 2);
    assert_eq!(ack_in(&broker, "%RETRY%CG+T", &handle).await, 208, "its lease is over");
    assert_eq!(ack_in(&broker, "%RETRY%CG+T", &third.handle(0)).await, 0);
    assert_eq!(pop(&broker, &from("T", 1000)).await.code, 210);

    // What waits in the topic of the first kind from before is not forgotten.
    let dir = broker.stop().await;
    let broker = start_on(Setup::default(), dir).await;
    broker.put("T", 0, "", "b").await;
    assert_eq!(pop(&broker, &from("T", 100)).await.bodies(), ["b"]);
    broker.wait_for("%RETRY%CG_T", 0, 1).await;
    let dir = broker.stop().await;
    let broker = start_on(Setup { more: &[("enableRetryTopicV2", "true")], ..Setup::default() }, dir).await;
    let of_first = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(of_first.bodies(), ["b"]);
    assert_eq!(ack(&broker, "T", &of_first.handle(0)).await, 0);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_too_many_open_messages_gives_no_more_until_some_are_acknowledged() {
    let more = &[("enablePopMessageThreshold", "true"), ("popInflightMessageThreshold", "3")];
    let broker = start(Setup { more, ..Setup::default() }).await;
    for number in 0..6 {
        broker.put("T", 0, "", &number.to_string()).await;
    }
    let two = PopMessage { max_msg_nums: 2, queue_id: 0, ..from("T", 60_000) };
    let first = pop(&broker, &two).await;
    let second = pop(&broker, &two).await;
    assert_eq!((first.bodies(), second.bodies()), (vec!["0", "1"], vec!["2", "3"]));
    let refused = pop(&broker, &two).await;
    assert_eq!((refused.code, refused.field("restNum")), (210, "2"), "four are open");
    assert_eq!(ack(&broker, "T", &first.handle(0)).await, 0);
    assert_eq!(pop(&broker, &two).await.code, 210, "three are open");
    assert_eq!(ack(&broker, "T", &second.handle(1)).await, 0);
    assert_eq!(pop(&broker, &two).await.bodies(), ["4", "5"]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_by_a_condition_brings_what_matches_also_when_it_comes_again() {
    let (setup, hand) = Setup { more: &[("enablePropertyFilter", "true")], ..Setup::default() }.standing();
    let broker = start(setup).await;
    for number in 0..6 {
        broker.put("T", 0, &properties(&[("n", &number.to_string())]), &number.to_string()).await;
    }
    let order = PopMessage { exp_type: Some("SQL92"), exp: Some("n > 1 AND n <> 4"), ..from("T", 300) };
    let first = pop(&broker, &order).await;
    assert_eq!(first.bodies(), ["2", "3", "5"]);
    assert_eq!(first.field("msgOffsetInfo"), "0 0 2,3,5");
    for place in [0, 2] {
        assert_eq!(ack(&broker, "T", &first.handle(place)).await, 0);
    }
    hand.advance(Duration::from_millis(300));
    let again = pop_any(&broker, &PopMessage { invisible_time: 60_000, ..order.clone() }).await;
    assert_eq!(again.bodies(), ["3"]);
    assert_eq!(pop(&broker, &from("T", 1000)).await.code, 210, "what does not match is behind the group");
    // A pop that waits is not answered with what it does not want.
    let brief = PopMessage { poll_time: 500, ..order.clone() };
    let unwanted = properties(&[("n", "0")]);
    let (none, ()) = tokio::join!(pop(&broker, &brief), async {
        until("it waits", || broker.broker.waiting_pops() == 1).await;
        broker.put("T", 1, &unwanted, "no").await;
        hand.advance(Duration::from_secs(1));
    });
    assert_eq!(none.code, 210);
    let wrong = pop(&broker, &PopMessage { exp: Some("n >"), ..order }).await;
    assert_eq!(wrong.code, 23, "{:?}", wrong.remark);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lies_on_the_disk_only_is_popped_by_tag_by_condition_in_order_and_again() {
    let (setup, hand) = Setup { more: &[("enablePropertyFilter", "true")], ..Setup::default() }.standing();
    let broker = start(setup.clone()).await;
    for number in 0..40 {
        let tag = if number % 2 == 0 { "even" } else { "odd" };
        let given = properties(&[("TAGS", tag), ("n", &number.to_string())]);
        broker.put("T", 0, &given, &number.to_string()).await;
        broker.put("U", 0, &given, &number.to_string()).await;
    }
    let image = broker.image();
    broker.stop().await;

    let broker = start_on(setup, image).await;
    let mut got = Vec::new();
    for _ in 0..4 {
        let order = PopMessage { exp: Some("even"), exp_type: Some("TAG"), max_msg_nums: 5, ..from("T", 500) };
        got.extend(pop(&broker, &order).await.messages.into_iter().map(|message| message.body));
    }
    let evens: Vec<String> = (0..40).step_by(2).map(|number| number.to_string()).collect();
    assert_eq!(got, evens);
    hand.advance(Duration::from_millis(500));
    let mut again = Vec::new();
    while again.len() < 20 {
        let popped = pop_any(&broker, &PopMessage { exp: Some("even"), ..from("T", 60_000) }).await;
        again.extend(popped.messages.into_iter().map(|message| message.body));
    }
    again.sort_by_key(|body| body.parse::<i32>().unwrap());
    assert_eq!(again, evens, "the last leases come again, each message once");

    let sql = PopMessage { exp: Some("n >= 30"), exp_type: Some("SQL92"), ..from("U", 60_000) };
    let found = pop(&broker, &sql).await;
    assert!(
        !found.messages.is_empty() && found.messages.iter().all(|message| message.body.parse::<i32>().unwrap() >= 30)
    );
    let order = PopMessage { consumer_group: "OG", order: true, queue_id: 0, max_msg_nums: 3, ..from("U", 60_000) };
    assert_eq!(pop(&broker, &order).await.bodies(), ["0", "1", "2"]);
    assert_eq!(pop(&broker, &order).await.code, 210, "one batch at a time");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_popped_and_not_acknowledged_comes_again_as_a_whole() {
    let (setup, hand) = Setup::default().standing();
    let broker = start(setup).await;
    assert_eq!(create(&broker, "B", "+queue.type=BatchCQ").await.0, 0);
    let three = batch_of(&[("a", ""), ("b", ""), ("c", "")]);
    assert_eq!(send_batch(&broker, "B", "UNIQ_KEY\u{1}B1\u{2}", three.clone()).await.code, 0);
    assert_eq!(send_batch(&broker, "B", "UNIQ_KEY\u{1}B2\u{2}", batch_of(&[("d", ""), ("e", "")])).await.code, 0);
    let first = pop(&broker, &from("B", 300)).await;
    assert_eq!((first.code, first.messages.len()), (0, 2), "{:?}", first.remark);
    assert_eq!(first.messages[0].body.as_bytes(), three);
    assert_eq!(first.field("msgOffsetInfo"), "0 0 0,3");
    assert_eq!(ack(&broker, "B", &first.handle(1)).await, 0);
    assert_eq!(pop(&broker, &from("B", 300)).await.code, 210);
    hand.advance(Duration::from_millis(300));
    let again = pop_any(&broker, &from("B", 60_000)).await;
    assert_eq!(again.messages.len(), 1);
    assert_eq!((again.messages[0].body.as_bytes(), again.messages[0].reconsume_times), (&three[..], 1));
    assert_eq!(again.messages[0].property("INNER_NUM"), Some("3"));
    assert_eq!(ack(&broker, "B", &again.handle(0)).await, 0);
    assert_eq!(pop(&broker, &from("B", 1000)).await.code, 210);
    broker.stop().await;
}
