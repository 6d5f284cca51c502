//! Every way of sending and receiving, against a running cluster:
//!
//! ```text
//! cargo run -p client --example round_trip -- 127.0.0.1:9876
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::{Client, ClientConfig, ClientError, ConsumeFromWhere, Message, Outcome, PullStatus, PushConfig, Received};
use tokio::sync::mpsc;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_servers = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".to_owned());
    // A run of its own: what earlier runs left behind is none of its business.
    let run = std::process::id();
    let client = Client::start(ClientConfig::new(&name_servers));
    println!("client {}", client.id());

    let topic = format!("round-trip-{run}");
    let sent = send(&client, &topic).await?;
    println!("sent {sent} messages in every way");
    println!("pulled {} messages", pull(&client, &topic).await?);
    println!("pushed {} messages with tag A", push(&client, &topic, run, "A").await?);
    println!("a message that failed came again after {:?}", retry(&client, run).await?);
    println!("in order: {:?}", orderly(&client, run).await?);
    println!("shared between two members: {:?}", share(&client, &name_servers, run).await?);
    client.stop().await;
    Ok(())
}

/// Alone, compressed, as a batch, and without an answer.
async fn send(client: &Client, topic: &str) -> Result<usize, ClientError> {
    let producer = client.producer("round-trip-producer");
    let mut sent = 0;
    for n in 0..20 {
        let tag = if n % 2 == 0 { "A" } else { "B" };
        producer.send(Message::new(topic, format!("message {n}")).tag(tag).key(format!("key-{n}"))).await?;
        sent += 1;
    }
    let large = producer.send(Message::new(topic, vec![b'x'; 1 << 20]).tag("A").property("näme", "wert ✓")).await?;
    println!("the large one: {large:?}");
    let batch = (0..10).map(|n| Message::new(topic, format!("of a batch {n}")).tag("A")).collect();
    println!("the batch: {:?}", producer.send_batch(batch).await?.message_id.split(',').count());
    producer.send_oneway(Message::new(topic, "nobody answers").tag("A")).await?;
    Ok(sent + 12)
}

async fn pull(client: &Client, topic: &str) -> Result<usize, Box<dyn std::error::Error>> {
    let consumer = client.pull_consumer("round-trip-puller");
    let (mut count, mut seen) = (0, BTreeSet::new());
    for queue in consumer.queues(topic).await? {
        let mut offset = consumer.min_offset(&queue).await?;
        loop {
            let pulled = consumer.pull(&queue, offset, 32, "*", Duration::from_millis(200)).await?;
            offset = pulled.next_offset;
            match pulled.status {
                PullStatus::Found => {
                    count += pulled.messages.len();
                    seen.extend(pulled.messages.into_iter().map(|message| message.message_id));
                }
                PullStatus::NothingNew => break,
                PullStatus::NothingMatched | PullStatus::OffsetOutOfRange => {}
            }
        }
        consumer.commit(&queue, offset).await?;
        assert_eq!(consumer.committed(&queue).await?, Some(offset));
        assert_eq!(consumer.max_offset(&queue).await?, offset);
    }
    assert_eq!(count, seen.len(), "every message once");
    Ok(count)
}

fn config(group: String, topic: &str, expression: &str) -> Result<PushConfig, ClientError> {
    let from = ConsumeFromWhere::ConsumeFromFirstOffset;
    PushConfig { from, ..PushConfig::new(&group) }.subscribe(topic, expression)
}

async fn push(client: &Client, topic: &str, run: u32, tag: &str) -> Result<usize, Box<dyn std::error::Error>> {
    let (heard, mut hear) = mpsc::unbounded_channel();
    let config = config(format!("round-trip-pusher-{run}"), topic, tag)?;
    let consumer = client
        .push_consumer(config, move |messages: Arc<[Received]>| {
            let heard = heard.clone();
            async move {
                messages.iter().for_each(|message| drop(heard.send(message.clone())));
                Outcome::Done
            }
        })
        .await?;
    let mut seen = BTreeSet::new();
    while seen.len() < 22 {
        let message = timeout(PATIENCE, hear.recv()).await?.ok_or("the consumer is gone")?;
        assert_eq!(message.tag(), Some(tag));
        seen.insert(message.message_id);
    }
    consumer.stop().await;
    Ok(seen.len())
}

async fn retry(client: &Client, run: u32) -> Result<Duration, Box<dyn std::error::Error>> {
    let topic = format!("round-trip-retry-{run}");
    client.producer("round-trip-producer").send(Message::new(topic.as_str(), "try me twice")).await?;
    let (heard, mut hear) = mpsc::unbounded_channel();
    let config = config(format!("round-trip-retry-{run}"), &topic, "*")?;
    let consumer = client
        .push_consumer(config, move |messages: Arc<[Received]>| {
            let heard = heard.clone();
            async move {
                let first = &messages[0];
                drop(heard.send((first.topic.clone(), first.reconsume_times)));
                if first.reconsume_times == 0 { Outcome::Again { delay_level: 1 } } else { Outcome::Done }
            }
        })
        .await?;
    assert_eq!(timeout(PATIENCE, hear.recv()).await?, Some((topic.clone(), 0)));
    let started = tokio::time::Instant::now();
    assert_eq!(timeout(PATIENCE, hear.recv()).await?, Some((topic, 1)));
    consumer.stop().await;
    Ok(started.elapsed())
}

async fn orderly(client: &Client, run: u32) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let topic = format!("round-trip-order-{run}");
    let producer = client.producer("round-trip-producer");
    let queue = producer.send(Message::new(topic.as_str(), "0")).await?.queue;
    for n in 1..6 {
        producer.send_to(&queue, Message::new(topic.as_str(), n.to_string())).await?;
    }
    let (heard, mut hear) = mpsc::unbounded_channel();
    let config = PushConfig { is_orderly: true, ..config(format!("round-trip-order-{run}"), &topic, "*")? };
    let tries = Arc::new(AtomicUsize::new(0));
    let consumer = client
        .push_consumer(config, move |messages: Arc<[Received]>| {
            let (heard, tries) = (heard.clone(), Arc::clone(&tries));
            async move {
                // The third one fails once; nothing may overtake it.
                if messages[0].body == "2" && tries.fetch_add(1, Ordering::SeqCst) == 0 {
                    return Outcome::Again { delay_level: 0 };
                }
                drop(heard.send(String::from_utf8_lossy(&messages[0].body).into_owned()));
                Outcome::Done
            }
        })
        .await?;
    let mut order = Vec::new();
    while order.len() < 6 {
        order.push(timeout(PATIENCE, hear.recv()).await?.ok_or("the consumer is gone")?);
    }
    assert!(order.is_sorted());
    consumer.stop().await;
    Ok(order)
}

/// Two members of a group share the queues; when one leaves, the other has them all.
async fn share(client: &Client, name_servers: &str, run: u32) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
    let topic = format!("round-trip-share-{run}");
    client.producer("round-trip-producer").send(Message::new(topic.as_str(), "x")).await?;
    let other = Client::start(ClientConfig::new(name_servers));
    let config = config(format!("round-trip-share-{run}"), &topic, "*")?;
    let quiet = |_: Arc<[Received]>| async { Outcome::Done };
    let first = client.push_consumer(config.clone(), quiet).await?;
    let second = other.push_consumer(config, quiet).await?;
    let count =
        |consumer: &client::PushConsumer| consumer.assigned().iter().filter(|queue| queue.topic == topic).count();
    let assigned = async |first_has: usize| {
        timeout(PATIENCE, async {
            while count(&first) != first_has {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
    };
    assigned(2).await?;
    let halves = vec![count(&first), count(&second)];
    second.stop().await;
    assigned(4).await?;
    first.stop().await;
    other.stop().await;
    Ok(halves)
}
