//! Messages that our own client sends in batches by itself, through the binary: where they are, in which order, and who finds them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use crate::support::{PATIENCE, Running};
use bytes::Bytes;
use client::{
    AutoBatch, Client, ClientConfig, Message, MessageQueue, Producer, ProducerConfig, PullConsumer, Received,
};
use protocol::code::request;
use protocol::record::{Scanned, scan};
use protocol::request::{CreateTopic, QueryMessage};
use protocol::sys_flag;

fn start(folder: &Path) -> Running {
    let file = folder.join("broker.conf");
    std::fs::write(&file, "brokerName=broker-a\nbrokerIP1=127.0.0.1\n").unwrap();
    Running::server_with(&folder.join("data"), &["-c", file.to_str().unwrap()])
}

async fn topic(client: &Client, broker: &str, topic: &str, attributes: &str, queues: i32) {
    let fields = CreateTopic {
        topic,
        default_topic: Some(protocol::names::AUTO_CREATE_TOPIC),
        read_queue_nums: queues,
        write_queue_nums: queues,
        perm: 6,
        topic_filter_type: "SINGLE_TAG",
        topic_sys_flag: Some(0),
        order: false,
        attributes: Some(attributes),
        force: false,
    };
    client.admin().tell(broker, request::UPDATE_AND_CREATE_TOPIC, &fields).await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !client.route(topic).await.is_ok_and(|route| route.writable.len() == queues as usize) {
        assert!(tokio::time::Instant::now() < deadline, "{topic} has no route");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn producer(client: &Client) -> Producer {
    client.producer_with(ProducerConfig { auto_batch: Some(AutoBatch::default()), ..ProducerConfig::new("p") })
}

/// How many records of a queue are batches that are compressed as a whole.
async fn compressed_batches(consumer: &PullConsumer, queue: &MessageQueue) -> usize {
    const BITS: i32 = sys_flag::COMPRESSED | sys_flag::INNER_BATCH | sys_flag::NEED_UNWRAP;
    let end = consumer.max_offset(queue).await.unwrap();
    let (mut offset, mut count) = (0, 0);
    while offset < end {
        let pulled = consumer.pull_records(queue, offset, 1000, Duration::ZERO).await.unwrap();
        let mut rest = &pulled.records[..];
        while let Ok(Scanned::Record(record)) = scan(rest, false) {
            count += usize::from(record.sys_flag() & BITS == BITS);
            rest = &rest[record.total_size()..];
        }
        assert!(rest.is_empty() && pulled.next_offset > offset);
        offset = pulled.next_offset;
    }
    count
}

/// All of a queue that a subscription wants.
async fn read(consumer: &PullConsumer, queue: &MessageQueue, expression: &str) -> Vec<Received> {
    let end = consumer.max_offset(queue).await.unwrap();
    let (mut offset, mut found) = (0, Vec::new());
    while offset < end {
        let pulled = consumer.pull(queue, offset, 1000, expression, Duration::ZERO).await.unwrap();
        assert!(pulled.next_offset > offset, "{queue:?} stands still at {offset} of {end}");
        found.extend(pulled.messages);
        offset = pulled.next_offset;
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn every_message_is_where_its_result_says_in_ordinary_topics_and_those_that_keep_batches_whole() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let client = Client::start(ClientConfig::new(server.address("namesrv")));
    for (name, attributes) in [("Plain", ""), ("Whole", "+queue.type=BatchCQ")] {
        topic(&client, server.address("broker"), name, attributes, 4).await;
        let producer = producer(&client);
        let chosen = MessageQueue { topic: name.to_owned(), broker_name: "broker-a".to_owned(), queue_id: 1 };
        // In blocks: a batch for a chosen queue has one tag.
        let tag = |number: usize| ["", "A", "B"][number / 40 % 3];
        // Up to some 300 bytes, and some that are compressed, for the chosen queue and for others.
        let body = |number: usize| match number % 501 {
            0 => format!("{number} {}", "x".repeat(5_000)),
            _ => format!("{number} {}", "x".repeat(number % 300)),
        };
        let mut pending = Vec::new();
        for number in 0..6_000 {
            let message = Message::new(name, body(number)).tag(tag(number)).key(format!("k{number}"));
            pending.push(match number % 2 {
                0 => producer.hand_over(message).await.unwrap(),
                _ => producer.hand_over_to(&chosen, message).await.unwrap(),
            });
        }
        let mut places = HashMap::new();
        let mut records = [HashSet::new(), HashSet::new()];
        for (number, pending) in pending.into_iter().enumerate() {
            let sent = pending.await.unwrap();
            assert!(number % 2 == 0 || sent.queue == chosen);
            records[number % 2].insert(sent.offset_message_id.clone());
            let place = (sent.queue, sent.queue_offset);
            assert!(places.insert(place, (number, sent.message_id, sent.offset_message_id)).is_none());
        }
        // Where batches are kept whole it shows that there are batches, for the chosen queue too: the messages of one share a record.
        for records in records {
            let is_shared = records.len() < 1_500;
            assert_eq!(is_shared, name == "Whole", "3000 messages are {} records in {name}", records.len());
        }
        let consumer = client.pull_consumer("c");
        let (mut in_order, mut by_tag, mut compressed) = (Vec::new(), HashMap::new(), 0);
        for queue in consumer.queues(name).await.unwrap() {
            compressed += compressed_batches(&consumer, &queue).await;
            for message in read(&consumer, &queue, "*").await {
                let place = (queue.clone(), message.queue_offset);
                let (number, message_id, offset_message_id) = places.remove(&place).expect("nobody was told of it");
                assert_eq!((&message.body[..], message.unreadable.as_ref()), (body(number).as_bytes(), None));
                assert_eq!((&message.message_id, &message.offset_message_id), (&message_id, &offset_message_id));
                assert_eq!(message.property("KEYS"), Some(format!("k{number}").as_str()));
                assert_eq!(message.tag().unwrap_or_default(), tag(number));
                if number % 2 == 1 {
                    in_order.push(number);
                }
            }
            for expression in ["A", "B", "A || B"] {
                *by_tag.entry(expression).or_insert(0) += read(&consumer, &queue, expression).await.len();
            }
        }
        assert_eq!(compressed > 0, name == "Whole", "{compressed} batches of {name} are compressed");
        assert!(places.is_empty() && in_order.is_sorted(), "{} are missing", places.len());
        let tagged = |wanted: &str| (0..6_000).filter(|number| tag(*number) == wanted).count();
        assert_eq!((by_tag["A"], by_tag["B"]), (tagged("A"), tagged("B")), "{name}");
        assert_eq!(by_tag["A || B"], tagged("A") + tagged("B"), "{name}");
        // One is found by its key, as a message of its own.
        let query = QueryMessage {
            topic: name,
            key: "k4321",
            max_num: 32,
            begin_timestamp: 0,
            end_timestamp: i64::MAX,
            unique_key_query: None,
            index_type: None,
            last_key: None,
        };
        let found = client.admin().messages_by_key(server.address("broker"), "broker-a", &query).await.unwrap();
        assert_eq!(found.iter().map(|one| &one.body[..]).collect::<Vec<_>>(), [body(4321).as_bytes()], "{name}");
    }
    client.stop().await;
    server.end("-TERM");
}

/// The most sends that one request has brought so far.
async fn parts_peak(broker: &str) -> usize {
    let asked = net::Client::new(net::ClientOptions::default());
    let answer = asked.call(broker, request::GET_BROKER_RUNTIME_INFO, &(), Bytes::new(), PATIENCE).await.unwrap();
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    let value = text.split_once("\"sendTogetherPartsPeak\":\"").unwrap().1;
    value.split_once('"').unwrap().0.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_for_many_queues_travel_together_and_are_in_order_where_their_results_say() {
    for flush in ["ASYNC_FLUSH", "SYNC_FLUSH"] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broker.conf");
        std::fs::write(&file, format!("brokerName=broker-a\nbrokerIP1=127.0.0.1\nflushDiskType={flush}\n")).unwrap();
        let server = Running::server_with(&folder.path().join("data"), &["-c", file.to_str().unwrap()]);
        let client = Client::start(ClientConfig::new(server.address("namesrv")));
        for (name, attributes) in [("Plain", ""), ("Whole", "+queue.type=BatchCQ")] {
            topic(&client, server.address("broker"), name, attributes, 16).await;
        }
        let together = AutoBatch::default().send_together(true);
        let config = ProducerConfig { auto_batch: Some(together), ..ProducerConfig::new("p") };
        let producer = client.producer_with(config);
        let queue = |number: usize| MessageQueue {
            topic: ["Plain", "Whole"][number % 2].to_owned(),
            broker_name: "broker-a".to_owned(),
            queue_id: (number / 2 % 16) as i32,
        };
        let (mut sent, mut number) = (HashMap::new(), 0);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        // The broker says that it takes them together when it has heard of the producer, and that it has heard of it comes with a heartbeat.
        while parts_peak(server.address("broker")).await < 8 {
            assert!(tokio::time::Instant::now() < deadline, "nothing travels together");
            let mut pending = Vec::new();
            for at in number..number + 1_000 {
                let message = Message::new(queue(at).topic, at.to_string());
                pending.push((at, producer.hand_over_to(&queue(at), message).await.unwrap()));
            }
            number += 1_000;
            for (at, pending) in pending {
                let result = pending.await.unwrap();
                assert_eq!(result.queue, queue(at));
                sent.insert((result.queue, result.queue_offset), (at, result.offset_message_id));
            }
        }
        assert_eq!(sent.len(), number);
        let consumer = client.pull_consumer("c");
        for at in 0..32 {
            let mut last = None;
            for message in read(&consumer, &queue(at), "*").await {
                let found = sent.remove(&(queue(at), message.queue_offset)).expect("nobody was told of it");
                let said: usize = String::from_utf8_lossy(&message.body).parse().unwrap();
                assert_eq!(found, (said, message.offset_message_id));
                assert!(last < Some(said), "{said} comes behind {last:?}");
                last = Some(said);
            }
        }
        assert!(sent.is_empty(), "{} are missing", sent.len());
        client.stop().await;
        server.end("-TERM");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_broker_is_killed_every_message_that_was_handed_over_hears_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(folder.path());
    let client = Client::start(ClientConfig::new(server.address("namesrv")));
    topic(&client, server.address("broker"), "Killed", "", 4).await;
    let producer = producer(&client);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let sending = producer.clone();
    let sender = tokio::spawn(async move {
        for number in 0..1_000_000 {
            let handed = sending.hand_over(Message::new("Killed", format!("{number} {}", "x".repeat(1_000)))).await;
            if tell.send(handed.unwrap()).is_err() {
                return;
            }
        }
    });
    for _ in 0..1_000 {
        told.recv().await.unwrap().await.unwrap();
    }
    server.end("-KILL");
    let failed = tokio::time::timeout(PATIENCE, async {
        loop {
            if let Err(error) = told.recv().await.unwrap().await {
                return error;
            }
        }
    });
    failed.await.unwrap();
    told.close();
    let rest = async {
        while let Some(pending) = told.recv().await {
            // It failed, or was stored before: it ends.
            drop(pending.await);
        }
        producer.flush().await;
    };
    tokio::time::timeout(PATIENCE, rest).await.unwrap();
    sender.await.unwrap();
}
