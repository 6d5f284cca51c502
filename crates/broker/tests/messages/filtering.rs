//! Filters that cost much: long conditions and huge sets of tags.

use std::time::Duration;

use bytes::Bytes;
use protocol::body::{ConsumerData, Heartbeat, SubscriptionData};
use protocol::code::request;
use protocol::request::{PopMessage, PullMessage};
use protocol::sys_flag::pull as bits;

use super::popping::{from as pop_from, pop};
use super::support::{Running, Setup, from, properties, start, waiting};

const FOUND: i32 = 0;
const RETRY_IMMEDIATELY: i32 = 20;
const MESSAGES: i64 = 120;

/// `a CONTAINS 'x0' OR a CONTAINS 'x1' …`: 2,500 terms in 54 KB.
fn long_condition() -> String {
    let terms: Vec<String> = (0..2500).map(|n| format!("a CONTAINS 'x{n}'")).collect();
    terms.join(" OR ")
}

fn by<'a>(condition: &'a str, pull: PullMessage<'a>) -> PullMessage<'a> {
    PullMessage { subscription: Some(condition), expression_type: Some("SQL92"), ..pull }
}

fn setup() -> Setup {
    Setup { more: &[("enablePropertyFilter", "true"), ("parkedPullsPerConnectionMax", "1000")], ..Setup::default() }
}

/// Messages that the long condition does not want, and one that it wants behind them.
async fn fill(broker: &Running) {
    for number in 0..MESSAGES - 1 {
        broker.put("T", 0, &properties(&[("a", "nothing of it")]), &number.to_string()).await;
    }
    broker.put("T", 0, &properties(&[("a", "it is x7")]), "wanted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_by_a_long_condition_ends_after_so_many_steps_and_the_next_one_goes_on_from_there() {
    let broker = start(setup()).await;
    fill(&broker).await;
    let condition = long_condition();
    let mut offset = 0;
    let mut pulls = 0;
    let found = loop {
        let found = broker.pull(&by(&condition, from("T", 0, offset))).await;
        if found.code != RETRY_IMMEDIATELY {
            break found;
        }
        pulls += 1;
        // 2,500 terms of about ten steps each, and half a million steps.
        assert!((offset + 1..=offset + 40).contains(&found.next), "from {offset} to {}", found.next);
        offset = found.next;
    };
    assert_eq!((found.code, found.next, found.messages.len()), (FOUND, MESSAGES, 1), "{:?}", found.remark);
    assert!(pulls >= 3, "{pulls}");
    // A condition of a few terms passes over as many as ever.
    let short = broker.pull(&by("a CONTAINS 'x7' OR a CONTAINS 'x8'", from("T", 0, 0))).await;
    assert_eq!((short.code, short.next, short.messages.len()), (FOUND, MESSAGES, 1));
    // On a network worker the steps are fewer, and they are counted there, too.
    let terms: Vec<String> = (0..100).map(|n| format!("a CONTAINS 'y{n}'")).collect();
    let middling = broker.pull(&by(&terms.join(" OR "), from("T", 0, 0))).await;
    assert_eq!(middling.code, RETRY_IMMEDIATELY);
    assert!((40..MESSAGES).contains(&middling.next), "{}", middling.next);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pulls_that_wait_by_a_long_condition_get_what_they_want_and_nothing_else() {
    let broker = start(setup()).await;
    broker.put("T", 0, &properties(&[("a", "first")]), "first").await;
    let condition = long_condition();
    let pull = by(&condition, waiting(from("T", 0, 1), 30_000));
    let all = async {
        let (mut one, mut other) = (std::pin::pin!(broker.pull(&pull)), std::pin::pin!(broker.pull(&pull)));
        tokio::join!(&mut one, &mut other)
    };
    let feed = async {
        broker.until_parked(2).await;
        broker.put("T", 0, &properties(&[("a", "nothing of it")]), "unwanted").await;
        broker.put("T", 0, &properties(&[("a", "x7")]), "wanted").await;
    };
    let ((one, other), ()) = tokio::join!(all, feed);
    for mut found in [one, other] {
        // The first message may have been looked at before the second one came, or with it.
        while found.code == RETRY_IMMEDIATELY {
            found = broker.pull(&by(&condition, waiting(from("T", 0, found.next), 30_000))).await;
        }
        assert_eq!((found.code, found.next, found.messages.len()), (FOUND, 3, 1), "{:?}", found.remark);
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pop_by_a_long_condition_finds_what_lies_far_behind_what_it_does_not_want() {
    let broker = start(setup()).await;
    fill(&broker).await;
    let condition = long_condition();
    let order = PopMessage { exp_type: Some("SQL92"), exp: Some(&condition), ..pop_from("T", 60_000) };
    let found = pop(&broker, &order).await;
    assert_eq!((found.code, found.bodies()), (FOUND, vec!["wanted"]), "{:?}", found.remark);
    // So does one by a tag that none of ten thousand messages has, where a pop looks at 6,400 in one go.
    let sends: Vec<u8> = super::support::batch_of(&vec![("x", ""); 1000]);
    for _ in 0..10 {
        let batch = super::support::to("Many", 0, "");
        let answer = broker.call(request::SEND_BATCH_MESSAGE, &batch, sends.clone()).await;
        assert_eq!(answer.code, 0, "{:?}", answer.remark);
    }
    broker.put("Many", 0, &properties(&[("TAGS", "last")]), "tagged").await;
    let by_tag = PopMessage { exp_type: Some("TAG"), exp: Some("last"), ..pop_from("Many", 60_000) };
    let found = pop(&broker, &by_tag).await;
    assert_eq!((found.code, found.bodies()), (FOUND, vec!["tagged"]), "{:?}", found.remark);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_by_a_hundred_thousand_tags_gets_the_messages_that_have_one_of_them() {
    let broker = start(Setup::default()).await;
    for tag in ["other", "tag99999", "none"] {
        broker.put("T", 0, &properties(&[("TAGS", tag)]), tag).await;
    }
    let tags: Vec<String> = (0..100_000).map(|n| format!("tag{n}")).collect();
    let tags = tags.join("||");
    for _ in 0..2 {
        let found = broker.pull(&PullMessage { subscription: Some(&tags), ..from("T", 0, 0) }).await;
        let offsets: Vec<u64> = found.messages.iter().map(|message| message.queue_offset).collect();
        assert_eq!((found.code, found.next, offsets), (FOUND, 3, vec![1]), "{:?}", found.remark);
    }
    let too_many = "t||".repeat(1_400_000);
    let refused = broker.pull(&PullMessage { subscription: Some(&too_many), ..from("T", 0, 0) }).await;
    assert_eq!(refused.code, 23);
    let remark = refused.remark.unwrap();
    assert!(remark.contains("have 4200000 bytes, the limit is 4194304"), "{remark}");
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_of_many_long_conditions_is_taken_and_each_of_them_filters() {
    const TOPICS: usize = 100;
    let broker = start(setup()).await;
    broker.put("T7", 0, &properties(&[("a", "nothing of it")]), "unwanted").await;
    broker.put("T7", 0, &properties(&[("a", "it is x7")]), "wanted").await;
    let subscription = |number: usize| SubscriptionData {
        topic: format!("T{number}"),
        expression_type: "SQL92".to_owned(),
        sub_string: long_condition(),
        sub_version: 5,
        ..SubscriptionData::default()
    };
    let consumer = ConsumerData {
        group_name: "CG".to_owned(),
        subscription_data_set: (0..TOPICS).map(subscription).collect(),
        ..ConsumerData::default()
    };
    let body = Heartbeat { client_id: "one".to_owned(), consumer_data_set: vec![consumer], ..Heartbeat::default() };
    let body = Bytes::from(serde_json::to_vec(&body).unwrap());
    let answer = broker.call(request::HEART_BEAT, &(), body).await;
    assert_eq!(answer.code, 0, "{:?}", answer.remark);
    let pull = PullMessage { sys_flag: bits::SUSPEND, suspend_timeout_millis: 10, sub_version: 5, ..from("T7", 0, 0) };
    let found = tokio::time::timeout(Duration::from_secs(60), broker.pull(&pull)).await.unwrap();
    assert_eq!((found.code, found.next, found.messages.len()), (FOUND, 2, 1), "{:?}", found.remark);
    broker.stop().await;
}
