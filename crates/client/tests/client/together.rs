//! Small batches of several topics and queues that share a request, where the broker has said that it takes that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{Answer, Asked, Fake, until};
use client::{AutoBatch, Client, ClientConfig, ClientError, Message, MessageQueue, Producer, ProducerConfig};
use protocol::batch;
use protocol::code::{ResponseCode, request};
use protocol::together::{self, PartAnswer};

/// What a part holds: its topic, its queue, its bodies.
type Sent = (String, i32, Vec<String>);

fn parts(asked: &Asked) -> Vec<Sent> {
    let parts: Vec<_> = together::parts(&asked.body).map(Result::unwrap).collect();
    assert_eq!(asked.number("parts"), parts.len() as i64);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let bodies = |part: &together::Part<'_>| match (&asked.body[part.body.clone()], part.is_batch) {
        (body, false) => vec![text(body)],
        (body, true) => batch::iter(body).map(|inner| text(inner.unwrap().body)).collect(),
    };
    parts.iter().map(|part| (part.topic.to_owned(), part.queue_id, bodies(part))).collect()
}

fn offered(parts_max: i32) -> Answer {
    (ResponseCode::Success, vec![("sendTogetherPartsMax", parts_max.to_string())], Vec::new())
}

/// Answers each part that `refuse` does not: with the next offsets of its queue, and records that lie where its first message says.
struct Broker {
    next: std::sync::Mutex<BTreeMap<(String, i32), i64>>,
    records: AtomicUsize,
}

impl Broker {
    fn new() -> Broker {
        Broker { next: std::sync::Mutex::default(), records: AtomicUsize::new(0) }
    }

    fn answer(&self, asked: &Asked, refuse: impl Fn(&Sent) -> Option<(i32, &'static str)>) -> Answer {
        let mut body = Vec::new();
        together::put_host(&mut body, "127.0.0.1:1".parse().unwrap());
        // In any order.
        for (number, sent) in parts(asked).into_iter().enumerate().rev() {
            if let Some((code, remark)) = refuse(&sent) {
                together::put_answer(&mut body, &PartAnswer::refused(number, code, remark), std::iter::empty());
                continue;
            }
            let (topic, queue_id, bodies) = sent;
            let mut next = self.next.lock().unwrap();
            let next = next.entry((topic, queue_id)).or_insert(0);
            let at = self.records.fetch_add(bodies.len(), Ordering::SeqCst);
            let said = PartAnswer::stored(number, 0, queue_id, *next);
            together::put_answer(&mut body, &said, (at..at + bodies.len()).map(|at| at as u64));
            *next += bodies.len() as i64;
        }
        (ResponseCode::Success, Vec::new(), body)
    }
}

fn together() -> AutoBatch {
    AutoBatch::default().send_together(true)
}

fn producer(client: &Client, auto_batch: AutoBatch) -> Producer {
    let plain = ProducerConfig { compress_over_bytes: None, ..ProducerConfig::new("p") };
    client.producer_with(ProducerConfig { auto_batch: Some(auto_batch), ..plain })
}

fn queue(topic: &str, queue_id: i32) -> MessageQueue {
    MessageQueue { topic: topic.into(), broker_name: "b".into(), queue_id }
}

fn stored() -> Answer {
    let fields = ["msgId", "queueId", "queueOffset"].map(|name| (name, "0".to_owned()));
    (ResponseCode::Success, fields.to_vec(), Vec::new())
}

/// A broker that says that it takes sends together, and a producer that has heard of it.
async fn heard(
    refuse: impl Fn(&Sent) -> Option<(i32, &'static str)> + Send + Sync + 'static,
    parts_max: i32,
) -> (Arc<Fake>, Client, Producer) {
    let broker = Broker::new();
    let fake = Fake::start(move |asked| match asked.code {
        request::HEART_BEAT => Some(offered(parts_max)),
        request::SEND_TOGETHER => Some(broker.answer(asked, &refuse)),
        request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => Some(stored()),
        _ => None,
    });
    let client = fake.client();
    let producer = producer(&client, together());
    until_heard(&fake, &producer).await;
    (fake, client, producer)
}

async fn until_heard(fake: &Fake, producer: &Producer) {
    let before = fake.asked(request::SEND_TOGETHER).len();
    let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
    while fake.asked(request::SEND_TOGETHER).len() == before {
        assert!(tokio::time::Instant::now() < deadline, "the producer does not hear that it may");
        // The first ones travel alone.
        producer.send(Message::new("first", "x")).await.unwrap();
    }
}

#[tokio::test]
async fn what_leaves_at_the_same_time_shares_a_request_and_each_message_gets_its_own_result() {
    let (fake, _client, producer) = heard(|_| None, 256).await;
    let before = fake.asked(request::SEND_TOGETHER).len();
    let mut pending = Vec::new();
    for number in 0..50 {
        let topic = ["t", "u"][number as usize % 2];
        let message = Message::new(topic, number.to_string());
        pending.push((number, producer.hand_over_to(&queue(topic, number), message).await.unwrap()));
    }
    let mut ids = BTreeSet::new();
    for (number, pending) in pending {
        let sent = pending.await.unwrap();
        assert_eq!((sent.queue.queue_id, sent.queue_offset, sent.broker_name.as_str()), (number, 0, "b"));
        assert_eq!(sent.offset_message_id.len(), 32);
        ids.insert(sent.offset_message_id);
    }
    assert_eq!(ids.len(), 50);
    let requests = fake.asked(request::SEND_TOGETHER);
    let sent: Vec<Sent> = requests[before..].iter().flat_map(parts).collect();
    let expected = |number: i32| (["t", "u"][number as usize % 2].to_owned(), number, vec![number.to_string()]);
    assert_eq!(sent, (0..50).map(expected).collect::<Vec<_>>());
    assert!(requests.len() - before < 25, "{} requests", requests.len() - before);
    let fields = &requests[before].fields;
    assert_eq!((fields["producerGroup"].as_str(), fields["defaultTopic"].as_str()), ("p", "TBW102"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_for_many_chosen_queues_stay_in_their_order_whatever_their_size() {
    let (fake, _client, producer) = heard(|_| None, 16).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let producer = producer.clone();
        tasks.spawn(async move {
            let mut pending = Vec::new();
            for number in 0..2_000 {
                let queue = queue("t", 10 * task + number % 10);
                // Now and then one that is too large to travel with others.
                let fill = "x".repeat(if number % 331 == 0 { 20_000 } else { 1 });
                let message = Message::new("t", format!("{number:05} {fill}"));
                pending.push(producer.hand_over_to(&queue, message).await.unwrap());
            }
            for one in pending {
                one.await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    let mut by_queue: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    let number = |body: &String| body[..5].parse::<i32>().unwrap();
    for asked in fake.sends() {
        if asked.code == request::SEND_TOGETHER {
            let parts = parts(&asked);
            assert!((1..=16).contains(&parts.len()));
            for (topic, queue_id, bodies) in parts.into_iter().filter(|(topic, ..)| topic == "t") {
                assert_eq!(topic, "t");
                by_queue.entry(queue_id).or_default().extend(bodies.iter().map(number));
            }
        } else if asked.fields["b"] == "t" {
            let bodies = match asked.code {
                request::SEND_MESSAGE_V2 => vec![String::from_utf8(asked.body.clone()).unwrap()],
                _ => {
                    batch::iter(&asked.body).map(|one| String::from_utf8(one.unwrap().body.to_vec()).unwrap()).collect()
                }
            };
            by_queue.entry(asked.number("e") as i32).or_default().extend(bodies.iter().map(number));
        }
    }
    let expected: Vec<i32> = (0..200).map(|turn| turn * 10).collect();
    assert_eq!(by_queue.len(), 40);
    for (queue, numbers) in by_queue {
        assert_eq!(numbers, expected.iter().map(|number| number + queue % 10).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_never_sent_several_together_and_who_does_not_want_it_does_not_ask() {
    for wants in [true, false] {
        // One that would offer it, were it asked.
        let fake = Fake::start(move |asked| match asked.code {
            request::HEART_BEAT if !wants => Some(offered(256)),
            request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => Some(stored()),
            _ => None,
        });
        let client = fake.client();
        let producer = producer(&client, AutoBatch::default().send_together(wants));
        producer.send(Message::new("t", "x")).await.unwrap();
        until("a heartbeat is answered", || !fake.asked(request::HEART_BEAT).is_empty()).await;
        let mut pending = Vec::new();
        for number in 0..500 {
            pending.push(producer.hand_over_to(&queue("t", number), Message::new("t", "x")).await.unwrap());
            tokio::task::yield_now().await;
        }
        for one in pending {
            one.await.unwrap();
        }
        assert_eq!(fake.asked(request::SEND_TOGETHER).len(), 0);
        let asks = fake.asked(request::HEART_BEAT).iter().any(|asked| asked.fields.contains_key("sendTogether"));
        assert_eq!(asks, wants);
    }
}

#[tokio::test]
async fn a_broker_that_comes_back_as_another_one_is_asked_anew() {
    let (broker, takes) = (Broker::new(), Arc::new(AtomicBool::new(true)));
    let offers = Arc::clone(&takes);
    let fake = Fake::start(move |asked| match asked.code {
        request::HEART_BEAT if offers.load(Ordering::SeqCst) => Some(offered(8)),
        request::SEND_TOGETHER => {
            assert!(offers.load(Ordering::SeqCst), "this broker does not know it");
            Some(broker.answer(asked, |_| None))
        }
        request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => Some(stored()),
        _ => None,
    });
    let every = Duration::from_millis(50);
    let client = fake.client_with(ClientConfig { heartbeat_every: every, ..ClientConfig::new(&fake.address()) });
    let producer = producer(&client, together());
    until_heard(&fake, &producer).await;
    let together = fake.asked(request::SEND_TOGETHER).len();
    takes.store(false, Ordering::SeqCst);
    let beats = fake.asked(request::HEART_BEAT).len();
    fake.hang_up();
    // Sends find another connection, and heartbeats ask on it.
    until("it is asked again", || fake.asked(request::HEART_BEAT).len() > beats + 2).await;
    for _ in 0..20 {
        producer.send(Message::new("t", "x")).await.unwrap();
    }
    assert_eq!(fake.asked(request::SEND_TOGETHER).len(), together);
    // And once more it is one that does.
    takes.store(true, Ordering::SeqCst);
    fake.hang_up();
    until_heard(&fake, &producer).await;
}

#[tokio::test]
async fn a_part_that_is_refused_fails_or_is_sent_again_alone() {
    let busy = AtomicI32::new(1);
    let (fake, _client, producer) = heard(
        move |(topic, _, _)| match topic.as_str() {
            "illegal" => Some((13, "no")),
            // Once.
            "busy" if busy.fetch_sub(1, Ordering::SeqCst) > 0 => Some((2, "later")),
            _ => None,
        },
        256,
    )
    .await;
    let before = fake.asked(request::SEND_TOGETHER).len();
    let mut pending = Vec::new();
    for topic in ["a", "illegal", "busy", "b"] {
        producer.send(Message::new("warm", "x")).await.unwrap();
        pending.push((topic, producer.hand_over(Message::new(topic, topic)).await.unwrap()));
    }
    for (topic, pending) in pending {
        match pending.await {
            Ok(sent) => assert!(topic != "illegal" && sent.queue_offset == 0),
            Err(ClientError::Refused { code: 13, remark, .. }) => {
                assert_eq!((topic, remark.as_str()), ("illegal", "no"))
            }
            Err(other) => panic!("{topic}: {other}"),
        }
    }
    let sent: Vec<Sent> = fake.asked(request::SEND_TOGETHER)[before..].iter().flat_map(parts).collect();
    let times = |topic: &str| sent.iter().filter(|part| part.0 == topic).count();
    assert_eq!(["a", "illegal", "busy", "b"].map(times), [1, 1, 2, 1]);
}

#[tokio::test]
async fn a_whole_request_that_fails_fails_all_of_its_sends_and_one_that_is_not_known_is_made_up_for() {
    for (code, body, expected) in [
        (ResponseCode::InvalidParameter, Vec::new(), "INVALID_PARAMETER"),
        (ResponseCode::Success, b"what?".to_vec(), "cannot be read"),
        // Of nobody.
        (ResponseCode::Success, vec![4, 127, 0, 0, 1, 0, 1], "it does not answer each"),
        (ResponseCode::RequestCodeNotSupported, Vec::new(), ""),
    ] {
        let asked_for = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked_for);
        let fake = Fake::start(move |asked| match asked.code {
            request::HEART_BEAT => Some(offered(8)),
            request::SEND_TOGETHER => {
                count.fetch_add(1, Ordering::SeqCst);
                Some((code, Vec::new(), body.clone()))
            }
            request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => Some(stored()),
            _ => None,
        });
        let client = fake.client();
        let producer = producer(&client, together());
        let mut failed = None;
        let deadline = tokio::time::Instant::now() + crate::support::PATIENCE;
        while asked_for.load(Ordering::SeqCst) == 0 {
            assert!(tokio::time::Instant::now() < deadline);
            failed = producer.send(Message::new("t", "x")).await.err();
        }
        match expected {
            // Sent again by itself.
            "" => assert!(failed.is_none()),
            words => assert!(failed.as_ref().is_some_and(|error| error.to_string().contains(words)), "{failed:?}"),
        }
    }
}

#[tokio::test]
async fn what_is_on_its_way_when_the_connection_ends_is_sent_again() {
    let (fake, _client, producer) = heard(|_| None, 256).await;
    fake.hold();
    let before = fake.sends().len();
    let mut pending = Vec::new();
    for number in 0..10 {
        pending.push(producer.hand_over(Message::new(format!("t{number}"), "x")).await.unwrap());
    }
    let count = |asked: &Asked| if asked.code == request::SEND_TOGETHER { parts(asked).len() } else { 1 };
    until("they are on their way", || fake.sends()[before..].iter().map(count).sum::<usize>() == 10).await;
    fake.hang_up();
    until("they are sent again", || fake.sends()[before..].iter().map(count).sum::<usize>() >= 20).await;
    fake.release();
    for one in pending {
        one.await.unwrap();
    }
}

#[tokio::test]
async fn an_answer_that_is_late_does_not_hold_back_other_lanes() {
    let (fake, _client, producer) = heard(|_| None, 256).await;
    fake.hold();
    let before = fake.sends().len();
    let mut pending = Vec::new();
    for number in 0..5 {
        pending.push(producer.hand_over(Message::new(format!("t{number}"), "x")).await.unwrap());
        until("it leaves although those before are not answered", || fake.sends().len() == before + 1 + number).await;
    }
    fake.release();
    for one in pending {
        one.await.unwrap();
    }
}
