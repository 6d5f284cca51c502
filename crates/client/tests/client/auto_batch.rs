//! Messages that are sent one by one and leave in batches, against a broker that holds answers back, fails, or goes away.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::support::{Answer, Asked, Fake, until};
use client::{
    AutoBatch, Client, ClientConfig, ClientError, Message, MessageQueue, Pending, Producer, ProducerConfig, SendResult,
    SendStatus,
};
use protocol::batch;
use protocol::code::{ResponseCode, request};
use protocol::compression::{Compression, decompress};
use protocol::fastjson::{self, Dialect};
use protocol::{properties, sys_flag};

/// So long that no test depends on it.
fn patient() -> AutoBatch {
    AutoBatch::default().batch_max_delay(Duration::from_secs(30)).unwrap()
}

fn producer(client: &Client, auto_batch: AutoBatch) -> Producer {
    client.producer_with(ProducerConfig { auto_batch: Some(auto_batch), ..ProducerConfig::new("p") })
}

fn queue() -> MessageQueue {
    MessageQueue { topic: "t".into(), broker_name: "b".into(), queue_id: 0 }
}

/// Bodies of a send, in their order.
fn bodies(asked: &Asked) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if asked.code == request::SEND_MESSAGE_V2 {
        return vec![text(&asked.body)];
    }
    batch::iter(&asked.body).map(|inner| text(inner.unwrap().body)).collect()
}

/// Stores: each message gets the next offset of the one queue, and an id that tells its offset.
fn stores() -> impl Fn(&Asked) -> Option<Answer> {
    let next = AtomicUsize::new(0);
    move |asked| {
        let is_send = [request::SEND_MESSAGE_V2, request::SEND_BATCH_MESSAGE].contains(&asked.code);
        is_send.then(|| {
            let count = bodies(asked).len();
            let first = next.fetch_add(count, Ordering::SeqCst);
            let ids: Vec<String> = (first..first + count).map(|at| format!("AT{at:05}")).collect();
            stored(ids.join(","), first)
        })
    }
}

fn stored(ids: String, first: usize) -> Answer {
    let fields = vec![("msgId", ids), ("queueId", "0".to_owned()), ("queueOffset", first.to_string())];
    (ResponseCode::Success, fields, Vec::new())
}

/// Whether something is ready now: it is looked at once.
async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

async fn all(pending: Vec<Pending>) -> Vec<Result<SendResult, ClientError>> {
    let mut results = Vec::new();
    for one in pending {
        results.push(one.await);
    }
    results
}

#[tokio::test]
async fn what_gathers_while_an_answer_is_out_leaves_together_and_each_message_gets_its_own_result() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, patient());
    fake.hold();
    let mut pending = vec![producer.hand_over(Message::new("t", "0")).await.unwrap()];
    until("a lone message is sent at once", || fake.sends().len() == 1).await;
    for number in 1..100 {
        pending.push(producer.hand_over(Message::new("t", number.to_string())).await.unwrap());
    }
    fake.release();
    let results = all(pending).await;
    let sends = fake.sends();
    assert_eq!(sends.iter().map(|asked| bodies(asked).len()).collect::<Vec<_>>(), [1, 99]);
    let inner: Vec<_> = batch::iter(&sends[1].body).map(Result::unwrap).collect();
    let mut ids = BTreeSet::new();
    for (number, result) in results.into_iter().enumerate() {
        let sent = result.unwrap();
        assert_eq!((sent.queue_offset, sent.offset_message_id), (number as i64, format!("AT{number:05}")));
        assert_eq!((sent.status, sent.queue, sent.broker_name.as_str()), (SendStatus::Ok, queue(), "b"));
        if number > 0 {
            assert_eq!(properties::get(inner[number - 1].properties, "UNIQ_KEY"), Some(sent.message_id.as_str()));
        }
        ids.insert(sent.message_id);
    }
    assert_eq!(ids.len(), 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_that_send_and_wait_share_batches() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, AutoBatch::default());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..200 {
        let producer = producer.clone();
        tasks.spawn(async move {
            let mut offsets = Vec::new();
            for number in 0..50 {
                let message = Message::new("t", format!("{task}-{number}"));
                offsets.push(match task % 3 {
                    0 => producer.send(message).await.unwrap().queue_offset,
                    1 => producer.send_to(&queue(), message).await.unwrap().queue_offset,
                    _ => producer.hand_over(message).await.unwrap().await.unwrap().queue_offset,
                });
            }
            assert!(offsets.is_sorted(), "each was sent when the one before was stored");
            offsets
        });
    }
    let offsets: BTreeSet<i64> = tasks.join_all().await.into_iter().flatten().collect();
    assert_eq!((offsets.len(), offsets.last()), (10_000, Some(&9_999)));
    let sent: BTreeSet<String> = fake.sends().iter().flat_map(bodies).collect();
    assert_eq!(sent.len(), 10_000);
    assert!(fake.sends().len() < 5_000, "{} requests", fake.sends().len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_one_task_hands_over_for_a_queue_arrives_in_its_order() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, AutoBatch::default().batch_max_bytes(2_000).unwrap());
    let mut pending = Vec::new();
    for number in 0..5_000 {
        let message = Message::new("t", number.to_string());
        // Those that go alone keep their place.
        let message = if number % 97 == 0 { message.delay_level(1) } else { message };
        let message = if number % 71 == 0 { message.tag("other") } else { message };
        pending.push(producer.hand_over_to(&queue(), message).await.unwrap());
    }
    let results = all(pending).await;
    let arrived: Vec<usize> = fake.sends().iter().flat_map(bodies).map(|body| body.parse().unwrap()).collect();
    assert_eq!(arrived, (0..5_000).collect::<Vec<_>>());
    assert!((0..).zip(results).all(|(at, result)| result.unwrap().queue_offset == at));
}

#[tokio::test]
async fn a_batch_max_delay_is_the_longest_that_a_message_waits_for_an_answer() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, AutoBatch::default().batch_max_delay(Duration::from_millis(1)).unwrap());
    fake.hold();
    let first = producer.hand_over(Message::new("t", "0")).await.unwrap();
    let second = producer.hand_over(Message::new("t", "1")).await.unwrap();
    until("the second leaves without the first one's answer", || fake.sends().len() == 2).await;
    // The look for late ones has ended, and begins again.
    let third = producer.hand_over(Message::new("t", "2")).await.unwrap();
    until("the third leaves too", || fake.sends().len() == 3).await;
    fake.release();
    assert!(all(vec![first, second, third]).await.into_iter().all(|result| result.is_ok()));
}

#[tokio::test]
async fn what_waits_or_is_on_its_way_stays_within_the_budget_and_a_send_that_is_dropped_takes_nothing_of_it() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, patient().total_batch_max_bytes(10_000).unwrap());
    let message = || Message::new("t", vec![b'x'; 1_000]);
    for _ in 0..3 {
        fake.hold();
        let mut pending = Vec::new();
        let blocked = loop {
            let mut handing = Box::pin(producer.hand_over(message()));
            match now(&mut handing).await {
                Some(handed) => pending.push(handed.unwrap()),
                None => break handing,
            }
        };
        // Each takes a little more than its body, each of the two batches as much as a message more, and who comes next might need a
        // batch too. No more, and no fewer, when all before was given back.
        assert_eq!(pending.len(), 6);
        let other = producer.hand_over(message());
        assert!(now(other).await.is_none());
        // The one who has waited for the longest is dropped too.
        drop(blocked);
        fake.release();
        assert!(all(pending).await.into_iter().all(|result| result.is_ok()));
        producer.flush().await;
    }
    assert_eq!(fake.sends().iter().map(|asked| bodies(asked).len()).sum::<usize>(), 18);
    // What has more than all of the budget has all of it for itself.
    let large = Message::new("t", vec![b'y'; 20_000]).property("WAIT", "false");
    assert!(producer.send(large).await.is_ok());
    assert!(producer.send(message()).await.is_ok());
}

#[tokio::test]
async fn with_very_many_tags_only_so_many_requests_are_on_their_way_and_all_messages_arrive() {
    // A request for each 32 KiB of the budget.
    const REQUESTS: usize = 32;
    const TAGS: usize = 500;
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, AutoBatch::default().total_batch_max_bytes(REQUESTS << 15).unwrap());
    fake.hold();
    let mut pending = Vec::new();
    for number in 0..2 * TAGS {
        let message = Message::new("t", number.to_string()).tag((number % TAGS).to_string());
        pending.push(producer.hand_over(message).await.unwrap());
    }
    until("as many as may be are on their way", || fake.sends().len() >= REQUESTS).await;
    // What was sent before this question has arrived.
    client.pull_consumer("c").max_offset(&queue()).await.unwrap();
    assert_eq!(fake.sends().len(), REQUESTS);
    fake.release();
    assert!(all(pending).await.into_iter().all(|result| result.is_ok()));
    // The second message of a tag waited with the first one.
    let mut sizes: Vec<usize> = fake.sends().iter().map(|asked| bodies(asked).len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [[1; 2 * REQUESTS].as_slice(), &[2; TAGS - REQUESTS]].concat());
}

#[tokio::test]
async fn a_send_that_nobody_waits_for_any_more_takes_no_other_message_along() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, patient());
    fake.hold();
    let first = producer.hand_over(Message::new("t", "0")).await.unwrap();
    // Dropped while it waits for its answer: it is sent all the same.
    assert!(now(producer.send(Message::new("t", "1"))).await.is_none());
    let third = producer.hand_over(Message::new("t", "2")).await.unwrap();
    drop(first);
    fake.release();
    assert_eq!(third.await.unwrap().queue_offset, 2);
    assert_eq!(fake.sends().iter().flat_map(bodies).collect::<Vec<_>>(), ["0", "1", "2"]);
}

#[tokio::test]
async fn oneway_messages_share_batches_and_flush_waits_for_them() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, AutoBatch::default());
    for number in 0..1_000 {
        producer.send_oneway(Message::new("t", number.to_string())).await.unwrap();
    }
    producer.flush().await;
    let sent: BTreeSet<String> = fake.sends().iter().flat_map(bodies).collect();
    assert_eq!(sent.len(), 1_000);
    assert!(fake.sends().len() < 500, "{} requests", fake.sends().len());
}

#[tokio::test]
async fn a_broker_that_fails_is_asked_again_for_the_whole_batch_and_then_each_of_its_messages_fails() {
    let refused = Arc::new(AtomicUsize::new(0));
    let (count, store) = (Arc::clone(&refused), stores());
    // Five refusals: of three attempts for the first batch all, of the second one's the first two.
    let fake = Fake::start(move |asked| {
        let answer = store(asked)?;
        let is_refused = count.fetch_add(1, Ordering::SeqCst) < 5;
        Some(if is_refused { (ResponseCode::SystemError, Vec::new(), Vec::new()) } else { answer })
    });
    let client = fake.client();
    let producer = producer(&client, patient());
    let lost = producer.hand_over(Message::new("t", "0")).await.unwrap();
    let mut pending = Vec::new();
    for number in 1..10 {
        pending.push(producer.hand_over(Message::new("t", number.to_string())).await.unwrap());
    }
    assert!(matches!(lost.await, Err(ClientError::Exhausted { attempts: 3, .. })));
    assert!(all(pending).await.into_iter().all(|result| result.is_ok()));
    // To a chosen queue nothing is sent again.
    refused.store(4, Ordering::SeqCst);
    let failed = producer.send_to(&queue(), Message::new("t", "10")).await;
    assert!(matches!(failed, Err(ClientError::Refused { .. })), "{failed:?}");
    assert!(producer.send_to(&queue(), Message::new("t", "11")).await.is_ok());
}

#[tokio::test]
async fn every_message_of_a_batch_that_fails_is_told_why() {
    let fake = Fake::start(|asked| match asked.code {
        request::SEND_MESSAGE_V2 => Some(stored("AT".to_owned(), 0)),
        request::SEND_BATCH_MESSAGE => Some((ResponseCode::MessageIllegal, Vec::new(), Vec::new())),
        _ => None,
    });
    let client = fake.client();
    let producer = producer(&client, patient());
    fake.hold();
    let mut pending = Vec::new();
    for number in 0..5 {
        pending.push(producer.hand_over(Message::new("t", number.to_string())).await.unwrap());
    }
    fake.release();
    let mut results = all(pending).await.into_iter();
    assert!(results.next().unwrap().is_ok());
    for failed in results {
        assert_eq!(failed.unwrap_err().code(), Some(ResponseCode::MessageIllegal as i32));
    }
}

#[tokio::test]
async fn a_producer_that_is_dropped_sends_what_was_handed_over() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let producer = producer(&client, patient());
    fake.hold();
    let mut pending = Vec::new();
    for number in 0..50 {
        pending.push(producer.hand_over(Message::new("t", number.to_string())).await.unwrap());
    }
    drop((producer, client));
    fake.release();
    assert!(all(pending).await.into_iter().all(|result| result.is_ok()));
    assert_eq!(fake.sends().iter().flat_map(bodies).count(), 50);
}

#[test]
fn when_the_runtime_ends_nobody_waits_for_ever() {
    let server = tokio::runtime::Runtime::new().unwrap();
    let fake = server.block_on(async { Fake::start(stores()) });
    fake.hold();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (pending, producer) = runtime.block_on(async {
        let client = Client::start(ClientConfig::new(&fake.address()));
        // A batch a message: some are on their way, most wait.
        let producer = producer(&client, patient().batch_max_bytes(1).unwrap());
        let mut pending = Vec::new();
        for number in 0..1_000 {
            pending.push(producer.hand_over(Message::new("t", number.to_string())).await.unwrap());
        }
        (pending, producer)
    });
    runtime.shutdown_background();
    let results = server.block_on(all(pending));
    // The connection may end before those that wait for its answers, which then hear of that.
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert!(matches!(results.last(), Some(Err(ClientError::GivenUp))), "{results:?}");
    // All of its room is free again.
    server.block_on(producer.flush());
}

#[test]
fn a_message_waits_no_longer_although_the_runtime_that_looked_at_the_time_has_ended() {
    let lasting = tokio::runtime::Runtime::new().unwrap();
    let fake = lasting.block_on(async { Fake::start(stores()) });
    fake.hold();
    let delay = AutoBatch::default().batch_max_delay(Duration::from_millis(1)).unwrap();
    let producer = lasting.block_on(async { producer(&fake.client(), delay) });
    // Its tasks run only while it is blocked on: what it has begun ends with it.
    let short = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lost = short.block_on(async {
        let first = producer.hand_over(Message::new("t", "0")).await.unwrap();
        vec![first, producer.hand_over(Message::new("t", "1")).await.unwrap()]
    });
    drop(short);
    lasting.block_on(async {
        assert!(all(lost).await.into_iter().all(|result| result.is_err()));
        let before = fake.sends().len();
        let first = producer.hand_over(Message::new("t", "2")).await.unwrap();
        let second = producer.hand_over(Message::new("t", "3")).await.unwrap();
        until("the second leaves without the first one's answer", || fake.sends().len() == before + 2).await;
        fake.release();
        assert!(all(vec![first, second]).await.into_iter().all(|result| result.is_ok()));
    });
}

/// Sends a message, and a hundred that gather behind it: what became of these, and how they came.
async fn behind_another(
    fake: &Fake,
    producer: &Producer,
    chosen: Option<&MessageQueue>,
) -> (Vec<Result<SendResult, ClientError>>, Vec<Asked>) {
    let before = fake.sends().len();
    let mut pending = Vec::new();
    fake.hold();
    for number in 0..101 {
        let message = Message::new("t", format!("{number:0100}"));
        pending.push(match chosen {
            Some(queue) => producer.hand_over_to(queue, message).await.unwrap(),
            None => producer.hand_over(message).await.unwrap(),
        });
    }
    fake.release();
    let first = pending.remove(0);
    assert!(first.await.is_ok());
    (all(pending).await, fake.sends().split_off(before + 1))
}

#[tokio::test]
async fn a_large_batch_is_compressed_where_it_stays_whole_and_plain_where_the_topic_is_of_the_other_kind_now() {
    let marks = Compression::Zlib.bits() | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    let is_whole = Arc::new(AtomicBool::new(true));
    let (is_kept, store) = (Arc::clone(&is_whole), stores());
    let fake = Fake::start(move |asked| {
        let is_kept = is_kept.load(Ordering::SeqCst);
        let is_marked = asked.code == request::SEND_MESSAGE_V2 && asked.number("f") == i64::from(marks);
        match (asked.code, is_kept) {
            (request::SEND_MESSAGE_V2, false) if is_marked => {
                Some((ResponseCode::MessageIllegal, Vec::new(), Vec::new()))
            }
            (request::SEND_BATCH_MESSAGE, true) => Some(stored("WHOLE".to_owned(), 7)),
            _ if is_marked => Some(stored("WHOLE".to_owned(), 7)),
            _ => store(asked),
        }
    });
    let client = fake.client();
    let producer = producer(&client, patient());
    let codes = |sends: &[Asked]| sends.iter().map(|asked| asked.code).collect::<Vec<_>>();
    let (plain, marked) = (request::SEND_BATCH_MESSAGE, request::SEND_MESSAGE_V2);
    let is_ok = |results: &[Result<SendResult, ClientError>]| results.iter().all(Result::is_ok);

    // The first answer says what kind of topic this is.
    let (results, sends) = behind_another(&fake, &producer, None).await;
    assert_eq!((codes(&sends), is_ok(&results)), (vec![plain], true));
    let (results, sends) = behind_another(&fake, &producer, None).await;
    assert_eq!((codes(&sends), sends[0].number("f")), (vec![marked], i64::from(marks)));
    assert_eq!(properties::get(&sends[0].fields["i"], "INNER_NUM"), Some("100"));
    assert!(sends[0].body.len() < 5_000, "{} bytes", sends[0].body.len());
    let unpacked = decompress(Compression::Zlib, &sends[0].body, 1 << 20).unwrap();
    for (at, (inner, result)) in batch::iter(&unpacked).zip(results).enumerate() {
        let (inner, sent) = (inner.unwrap(), result.unwrap());
        assert_eq!(inner.body, format!("{:0100}", at + 1).as_bytes());
        assert_eq!((sent.offset_message_id.as_str(), sent.queue_offset), ("WHOLE", 7 + at as i64));
        assert_eq!(properties::get(inner.properties, "UNIQ_KEY"), Some(sent.message_id.as_str()));
    }

    // It was deleted, and made anew.
    is_whole.store(false, Ordering::SeqCst);
    let (results, sends) = behind_another(&fake, &producer, None).await;
    assert_eq!((codes(&sends), is_ok(&results)), (vec![marked, plain], true));
    let (results, sends) = behind_another(&fake, &producer, None).await;
    assert_eq!((codes(&sends), is_ok(&results)), (vec![plain], true));

    // To a chosen queue nothing is sent again: it might overtake what is behind it, or be overtaken. Another producer knows nothing yet.
    let producer = self::producer(&client, patient());
    is_whole.store(true, Ordering::SeqCst);
    behind_another(&fake, &producer, Some(&queue())).await;
    is_whole.store(false, Ordering::SeqCst);
    let (results, sends) = behind_another(&fake, &producer, Some(&queue())).await;
    assert_eq!(codes(&sends), [marked]);
    let illegal = Some(ResponseCode::MessageIllegal as i32);
    assert!(results.into_iter().all(|result| result.unwrap_err().code() == illegal));
    let (results, sends) = behind_another(&fake, &producer, Some(&queue())).await;
    assert_eq!((codes(&sends), is_ok(&results)), (vec![plain], true));
}

#[tokio::test]
async fn a_connection_without_room_is_waited_for_and_no_attempt_more_is_made_than_allowed() {
    const ROOM: usize = 4;
    let full = Fake::start(stores());
    full.hold();
    let refusing = Fake::start(|asked| {
        (asked.code == request::SEND_MESSAGE_V2).then_some((ResponseCode::SystemError, Vec::new(), Vec::new()))
    });
    let mut route = full.route();
    route.broker_datas[0].broker_name = "full".to_owned();
    route.queue_datas[0].broker_name = "full".to_owned();
    route.broker_datas.extend(refusing.route().broker_datas);
    route.queue_datas.extend(refusing.route().queue_datas);
    let route = fastjson::to_vec(&route, Dialect::FastJson);
    let names = Fake::start(move |asked| {
        let asks = asked.code == request::GET_ROUTEINFO_BY_TOPIC;
        asks.then(|| (ResponseCode::Success, Vec::new(), route.clone()))
    });
    let mut config = ClientConfig::new(&names.address());
    config.net.calls_max = ROOM;
    let client = names.client_with(config);
    let plain = client.producer_with(ProducerConfig { timeout: crate::support::PATIENCE, ..ProducerConfig::new("p") });
    let mut held = tokio::task::JoinSet::new();
    for number in 0..ROOM {
        let plain = plain.clone();
        held.spawn(async move {
            let queue = MessageQueue { broker_name: "full".into(), ..queue() };
            // A heartbeat may be on its way and take the room.
            while plain.send_to(&queue, Message::new("t", number.to_string())).await.is_err() {
                tokio::task::yield_now().await;
            }
        });
    }
    until("it has no room", || full.sends().len() == ROOM).await;
    let with_timeout = |timeout| {
        let auto_batch = Some(patient());
        client.producer_with(ProducerConfig { auto_batch, timeout, ..ProducerConfig::new("p") })
    };
    let failed = with_timeout(Duration::from_millis(100)).send(Message::new("t", "x")).await;
    assert!(matches!(failed, Err(ClientError::Exhausted { attempts: 3, .. })), "{failed:?}");
    assert!((1..=2).contains(&refusing.sends().len()), "{} times", refusing.sends().len());
    let waits = with_timeout(crate::support::PATIENCE).hand_over(Message::new("t", "y")).await.unwrap();
    full.release();
    assert!(waits.await.is_ok());
    held.join_all().await;
}

#[tokio::test]
async fn without_auto_batch_nothing_can_be_handed_over_and_nothing_is_gathered() {
    let fake = Fake::start(stores());
    let client = fake.client();
    let plain = client.producer("p");
    let refused = plain.hand_over(Message::new("t", "0")).await;
    assert!(matches!(refused, Err(ClientError::Invalid(_))));
    plain.flush().await;
    fake.hold();
    let sends = async move { tokio::join!(plain.send(Message::new("t", "0")), plain.send(Message::new("t", "1"))) };
    let sends = tokio::spawn(sends);
    until("both are sent, each for itself", || fake.sends().len() == 2).await;
    fake.release();
    let (first, second) = sends.await.unwrap();
    assert!(first.is_ok() && second.is_ok());
}
