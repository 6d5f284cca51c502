//! Pops under settings and of topics that are not the usual ones.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use protocol::code::request;
use protocol::request::{AckMessage, CreateTopic, DeleteGroup, DeleteTopic, Notification, PopMessage};
use tokio::time::Instant;

use super::batch_queues::{create, send_batch, topic_of};
use super::limits::figure;
use super::popping::{ack, from, pop, pop_any};
use super::support::{
    DEADLINE, Device, Running, Setup, batch_of, from as pull_from, properties, start, start_on, to, until,
};

/// An acknowledgement of what came from a queue of this topic.
async fn ack_in(broker: &Running, topic: &str, handle: &str) -> i32 {
    let offset = handle.rsplit(' ').next().unwrap().parse().unwrap();
    let ack = AckMessage { consumer_group: "CG", topic, queue_id: 0, extra_info: handle, offset, lite_topic: None };
    broker.call(request::ACK_MESSAGE, &ack, Bytes::new()).await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_again_is_in_the_retry_topic_of_the_second_kind_if_that_is_switched_on() {
    let (usual, hand) = Setup::default().standing();
    let second = Setup { more: &[("enableRetryTopicV2", "true")], ..usual.clone() };
    let broker = start(second.clone()).await;
    broker.put("T", 0, "", "a").await;
    assert_eq!(pop(&broker, &from("T", 300)).await.bodies(), ["a"]);
    hand.advance(Duration::from_millis(300));
    let again = pop_any(&broker, &from("T", 300)).await;
    assert_eq!((again.bodies(), again.messages[0].reconsume_times), (vec!["a"], 1));
    let handle = again.handle(0);
    assert_eq!(handle.split(' ').nth(4), Some("2"), "{handle}");
    assert_eq!(broker.all("%RETRY%CG+T", 0).await.len(), 1);
    hand.advance(Duration::from_millis(300));
    let third = pop_any(&broker, &from("T", 60_000)).await;
    assert_eq!(third.messages[0].reconsume_times, 2);
    assert_eq!(ack_in(&broker, "%RETRY%CG+T", &handle).await, 208, "its lease is over");
    assert_eq!(ack_in(&broker, "%RETRY%CG+T", &third.handle(0)).await, 0);
    assert_eq!(pop(&broker, &from("T", 1000)).await.code, 210);

    // What waits in the topic of the first kind from before is not forgotten.
    let dir = broker.stop().await;
    let broker = start_on(usual, dir).await;
    broker.put("T", 0, "", "b").await;
    assert_eq!(pop(&broker, &from("T", 100)).await.bodies(), ["b"]);
    hand.advance(Duration::from_millis(100));
    broker.wait_for("%RETRY%CG_T", 0, 1).await;
    let dir = broker.stop().await;
    let broker = start_on(second, dir).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_message_wakes_the_first_pop_that_may_take_from_its_queue() {
    let broker = start(Setup::default()).await;
    broker.put("T", 0, "", "before").await;
    assert_eq!(pop(&broker, &from("T", 60_000)).await.bodies(), ["before"]);
    let of = |queue_id| PopMessage { queue_id, poll_time: 10_000, ..from("T", 60_000) };
    let (of_first, of_second) = (of(0), of(1));
    let (first, second, ()) = tokio::join!(pop(&broker, &of_first), pop(&broker, &of_second), async {
        until("two pops wait", || broker.broker.waiting_pops() == 2).await;
        broker.put("T", 1, "", "to the second").await;
        until("one pop waits", || broker.broker.waiting_pops() == 1).await;
        broker.put("T", 0, "", "to the first").await;
    });
    assert_eq!((first.bodies(), second.bodies()), (vec!["to the first"], vec!["to the second"]));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_to_no_queue_in_particular_wakes_pops_of_each() {
    let (setup, hand) = Setup::default().standing();
    let broker = start(setup).await;
    broker.put("T", 1, "", "again").await;
    let of = |queue_id, attempt| PopMessage {
        queue_id,
        order: true,
        attempt_id: Some(attempt),
        poll_time: 10_000,
        ..from("T", 300)
    };
    assert_eq!(pop(&broker, &of(1, "one")).await.bodies(), ["again"]);
    let (of_first, of_second) = (of(0, "two"), of(1, "three"));
    let (first, second, ()) = tokio::join!(pop(&broker, &of_first), pop(&broker, &of_second), async {
        until("two pops wait", || broker.broker.waiting_pops() == 2).await;
        // The batch of queue 1 is over.
        hand.advance(Duration::from_millis(300));
        until("one pop waits", || broker.broker.waiting_pops() == 1).await;
        broker.put("T", 0, "", "new").await;
    });
    assert_eq!((first.bodies(), second.bodies()), (vec!["new"], vec!["again"]));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_is_woken_when_the_batch_that_another_has_taken_in_order_meanwhile_is_over() {
    let (setup, hand) = Setup::default().standing();
    let broker = start(setup).await;
    broker.put("T", 0, "", "before").await;
    let of = |attempt| PopMessage {
        queue_id: 0,
        order: true,
        attempt_id: Some(attempt),
        poll_time: 10_000,
        ..from("T", 300)
    };
    let before = pop(&broker, &of("zero")).await;
    assert_eq!((before.bodies(), ack(&broker, "T", &before.handle(0)).await), (vec!["before"], 0));
    let answered = AtomicUsize::new(0);
    let popped = async |attempt: &'static str| {
        let found = pop(&broker, &of(attempt)).await;
        answered.fetch_add(1, Ordering::Relaxed);
        found.messages.into_iter().map(|message| message.body).collect::<Vec<String>>()
    };
    let (first, second, ()) = tokio::join!(popped("one"), popped("two"), async {
        until("two pops wait", || broker.broker.waiting_pops() == 2).await;
        broker.put("T", 0, "", "new").await;
        // It is all that there is, and who has it never says a word of it.
        until("one has it", || answered.load(Ordering::Relaxed) == 1 && broker.broker.waiting_pops() == 1).await;
        hand.advance(Duration::from_millis(300));
    });
    assert_eq!([first, second], [["new"], ["new"]]);
    broker.stop().await;
}

/// A broker with three messages in a queue of `T` that are on the device only, whose reads wait.
async fn with_three_on_a_device_that_stands_still() -> (Running, Device) {
    let broker = start(Setup::default()).await;
    for body in ["0", "1", "2"] {
        broker.put("T", 0, "", body).await;
    }
    let dir = broker.stop().await;
    let device = Device::default();
    let broker = start_on(Setup { device: device.clone(), ..Setup::default() }, dir).await;
    device.hold_reads(true);
    (broker, device)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_of_a_topic_that_is_deleted_and_made_anew_meanwhile_leaves_its_next_life_alone() {
    for order in [false, true] {
        let (broker, device) = with_three_on_a_device_that_stands_still().await;
        let old = PopMessage { queue_id: 0, order, attempt_id: Some("old"), ..from("T", 60_000) };
        let new = PopMessage { attempt_id: Some("new"), max_msg_nums: 2, ..old.clone() };
        let (of_old, ()) = tokio::join!(pop(&broker, &old), async {
            until("the pop waits for the device", || device.reads_waiting() == 1).await;
            let deleted = broker.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "T" }, Bytes::new());
            assert_eq!(deleted.await.code, 0);
            for body in ["3", "4", "5"] {
                broker.put("T", 0, "", body).await;
            }
            let of_new = pop(&broker, &new).await;
            assert_eq!(of_new.bodies(), ["3", "4"]);
            for place in 0..2 {
                assert_eq!(ack(&broker, "T", &of_new.handle(place)).await, 0);
            }
            device.hold_reads(false);
        });
        // It has gone on in the topic that has the name by then, where the group was.
        assert_eq!(of_old.bodies(), ["5"], "order {order}: {:?}", of_old.remark);
        assert_eq!(pop(&broker, &new).await.code, 210, "order {order}");
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_of_a_group_that_is_deleted_and_comes_again_meanwhile_leaves_its_next_life_alone() {
    for order in [false, true] {
        let (broker, device) = with_three_on_a_device_that_stands_still().await;
        // Not from the device.
        broker.put("T", 0, "", "3").await;
        let old = PopMessage { queue_id: 0, order, attempt_id: Some("old"), ..from("T", 60_000) };
        let new = PopMessage { attempt_id: Some("new"), init_mode: 1, ..old.clone() };
        let (of_old, ()) = tokio::join!(pop(&broker, &old), async {
            until("the pop waits for the device", || device.reads_waiting() == 1).await;
            let group = DeleteGroup { group_name: "CG", clean_offset: true };
            assert_eq!(broker.call(request::DELETE_SUBSCRIPTIONGROUP, &group, Bytes::new()).await.code, 0);
            let of_new = pop(&broker, &new).await;
            assert_eq!(of_new.bodies(), ["3"]);
            device.hold_reads(false);
            // Whatever the old one does now, this is known of and is the last of the queue.
            assert_eq!(ack(&broker, "T", &of_new.handle(0)).await, 0);
        });
        assert!(of_old.messages.is_empty(), "order {order}: {:?}", of_old.bodies());
        assert_eq!(pop(&broker, &new).await.code, 210, "order {order}");
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_hears_that_his_topic_is_deleted_and_its_next_life_is_popped_from_its_beginning() {
    for init_mode in [0, 1] {
        let broker = start(Setup::default()).await;
        let order = PopMessage { init_mode, ..from("T", 60_000) };
        for body in ["0", "1", "2"] {
            broker.put("T", 0, "", body).await;
        }
        let first = pop(&broker, &order).await;
        assert_eq!(first.bodies(), ["0", "1", "2"]);
        for place in 0..3 {
            assert_eq!(ack(&broker, "T", &first.handle(place)).await, 0);
        }
        let waiting = PopMessage { poll_time: 10_000, ..order.clone() };
        let question = Notification {
            consumer_group: "CG",
            topic: "T",
            queue_id: -1,
            poll_time: 10_000,
            born_time: 0,
            order: false,
            attempt_id: None,
            exp_type: None,
            exp: None,
        };
        let asked = broker.call(request::NOTIFICATION, &question, Bytes::new());
        let (popped, asked, ()) = tokio::join!(pop(&broker, &waiting), asked, async {
            until("both wait", || broker.broker.waiting_pops() == 2).await;
            let deleted = broker.call(request::DELETE_TOPIC_IN_BROKER, &DeleteTopic { topic: "T" }, Bytes::new());
            assert_eq!(deleted.await.code, 0);
        });
        assert_eq!((popped.code, asked.code), (17, 17));
        assert!(popped.remark.unwrap().contains("topic[T] not exist"));
        for body in ["3", "4", "5"] {
            broker.put("T", 0, "", body).await;
        }
        assert_eq!(pop(&broker, &order).await.bodies(), ["3", "4", "5"], "initMode {init_mode}");
        broker.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_a_light_queue_whose_name_holds_a_separator_survives_a_kill() {
    const NAME: &str = "%LMQ%GID@@@device";
    let (setup, hand) = Setup { light_queues: Some("100"), ..Setup::default() }.standing();
    let broker = start(setup.clone()).await;
    let listed = properties(&[("INNER_MULTI_DISPATCH", NAME)]);
    for body in ["a", "b"] {
        broker.put("T", 0, &listed, body).await;
    }
    let first = pop(&broker, &from(NAME, 300)).await;
    assert_eq!(first.bodies(), ["a", "b"]);
    let image = broker.image();
    broker.stop().await;
    let broker = start_on(setup, image).await;
    assert_eq!(ack(&broker, NAME, &first.handle(0)).await, 0);
    hand.advance(Duration::from_millis(300));
    assert_eq!(pop_any(&broker, &from(NAME, 60_000)).await.bodies(), ["b"]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_that_cannot_wait_says_which_limit_is_reached() {
    let broker = start(Setup::default()).await;
    broker.put("T", 0, "", "before").await;
    assert_eq!(pop(&broker, &from("T", 60_000)).await.bodies(), ["before"]);
    let waiting = PopMessage { poll_time: 10_000, ..from("T", 60_000) };
    let ((), refused) = tokio::join!(
        async {
            assert_eq!(pop(&broker, &waiting).await.bodies(), ["last"]);
        },
        async {
            until("a pop waits", || broker.broker.waiting_pops() == 1).await;
            let mut refused = Vec::new();
            for settings in ["popPollingSize=1\n", "popPollingSize=9\nmaxPopPollingSize=1\n"] {
                let changed = broker.call(request::UPDATE_BROKER_CONFIG, &(), settings).await;
                assert_eq!(changed.code, 0, "{:?}", changed.remark);
                let answer = pop(&broker, &waiting).await;
                refused.push((answer.code, answer.remark.unwrap()));
            }
            broker.put("T", 0, "", "last").await;
            refused
        }
    );
    let of_topic =
        "POLLING_FULL: 1 requests of this group wait for this topic already, the limit is 1 (popPollingSize)";
    let of_broker = "POLLING_FULL: 1 requests wait on this broker already, the limit is 1 (maxPopPollingSize)";
    assert_eq!(refused, [(209, of_topic.to_owned()), (209, of_broker.to_owned())]);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_again_just_before_a_clean_stop_is_not_handed_over() {
    // Only what somebody wants flushed is.
    let (setup, hand) = Setup { flush_interval: Duration::from_secs(60), ..Setup::default() }.standing();
    let broker = start(setup.clone()).await;
    broker.put("T", 0, "", "a").await;
    assert_eq!(pop(&broker, &from("T", 300)).await.bodies(), ["a"]);
    hand.advance(Duration::from_millis(300));
    broker.wait_for("%RETRY%CG_T", 0, 1).await;
    let broker = start_on(setup, broker.stop().await).await;
    for queue_id in 0..8 {
        let handed = broker.all("rmq_sys_REVIVE_LOG_DefaultCluster", queue_id).await;
        assert!(handed.is_empty(), "{handed:?}");
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_again_is_counted_when_it_is_stored() {
    let device = Device::default();
    let (setup, hand) = Setup { device: device.clone(), segment_bytes: 64 << 10, ..Setup::default() }.standing();
    let broker = start(setup).await;
    let body = "x".repeat(20 << 10);
    broker.put("T", 0, "", &body).await;
    assert_eq!(pop(&broker, &from("T", 300)).await.messages.len(), 1);
    device.fill_log(true);
    let (deadline, mut stored) = (Instant::now() + DEADLINE, 1);
    // The last file takes small ones for longer.
    for bytes in [20 << 10, 2 << 10, 1] {
        while broker.send(&to("Other", 0, ""), &body[..bytes]).await.code == 0 {
            assert!(Instant::now() < deadline, "{stored} were stored");
            stored += 1;
        }
    }
    hand.advance(Duration::from_millis(300));
    // It is made for what comes again, for which there is no room.
    while broker.pull(&pull_from("%RETRY%CG_T", 0, 0)).await.code == 17 {
        assert!(Instant::now() < deadline, "nothing is to come again");
    }
    assert_eq!(figure(&broker, "putMessageTimesTotal").await, Some(stored.to_string()));
    device.fill_log(false);
    while broker.all("%RETRY%CG_T", 0).await.is_empty() {
        assert!(Instant::now() < deadline, "it does not come again");
        hand.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    while figure(&broker, "putMessageTimesTotal").await == Some(stored.to_string()) {
        assert!(Instant::now() < deadline, "it is not counted");
    }
    assert_eq!(figure(&broker, "putMessageTimesTotal").await, Some((stored + 1).to_string()));
    broker.stop().await;
}

/// Sends a message of each priority, and pops them one by one.
async fn by_priority(broker: &Running, group: &str) -> Vec<String> {
    let one = PopMessage { consumer_group: group, max_msg_nums: 1, ..from("P", 60_000) };
    let mut got = Vec::new();
    for _ in 0..12 {
        got.extend(pop(broker, &one).await.messages.into_iter().map(|message| message.body));
    }
    got
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pop_of_a_topic_with_priorities_gives_the_highest_first_as_far_as_its_group_wants() {
    let broker = start(Setup::default()).await;
    let attributes = CreateTopic { read_queue_nums: 4, write_queue_nums: 4, ..topic_of("P", "+message.type=PRIORITY") };
    assert_eq!(broker.call(request::UPDATE_AND_CREATE_TOPIC, &attributes, "").await.code, 0);
    for body in ["0", "3", "1", "2"].iter().cycle().take(12) {
        let sent = broker.put("P", 0, &properties(&[("_SYS_MSG_PRIORITY_", body)]), body).await;
        assert_eq!(sent.queue_id.to_string(), *body);
    }
    let highest = ["3", "3", "3", "2", "2", "2", "1", "1", "1", "0", "0", "0"];
    assert_eq!(by_priority(&broker, "Usual").await, highest);
    // A group that is to see low priorities in between.
    let fair = r#"{"groupName":"Fair","attributes":{"+priority.factor":"0"}}"#;
    assert_eq!(broker.call(request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, &(), fair).await.code, 0);
    let mixed = by_priority(&broker, "Fair").await;
    assert_eq!(mixed.len(), 12);
    assert_ne!(mixed, highest);
    let set = broker.call(request::UPDATE_BROKER_CONFIG, &(), "priorityOrderAsc=false").await;
    assert_eq!(set.code, 0, "{:?}", set.remark);
    let lowest: Vec<&str> = highest.iter().rev().copied().collect();
    assert_eq!(by_priority(&broker, "Lowest").await, lowest);
    broker.stop().await;
}
