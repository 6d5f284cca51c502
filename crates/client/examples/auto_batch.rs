//! Messages that are sent one by one leave in batches, against a running cluster:
//!
//! ```text
//! cargo run --release -p client --example auto_batch -- 127.0.0.1:9876
//! ```

use std::collections::HashSet;
use std::time::{Duration, Instant};

use client::{AutoBatch, Client, ClientConfig, Message, Producer, ProducerConfig};

const MESSAGES: usize = 20_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name_servers = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".to_owned());
    let client = Client::start(ClientConfig::new(&name_servers));
    // A run of its own: what earlier runs left behind is none of its business.
    let topic = format!("auto-batch-{}", std::process::id());

    let single = client.producer("auto-batch-example");
    println!("one by one:  {}", rate(&single, &topic).await?);

    // The defaults, spelled out: batches of 32 KiB, 10 ms at most, 32 MiB in all.
    let auto_batch = AutoBatch::default()
        .batch_max_bytes(32 << 10)?
        .batch_max_delay(Duration::from_millis(10))?
        .total_batch_max_bytes(32 << 20)?;
    let batching = client
        .producer_with(ProducerConfig { auto_batch: Some(auto_batch), ..ProducerConfig::new("auto-batch-example") });
    // The same calls as before: those that wait for their answers at once share batches.
    println!("auto-batch:  {}", rate(&batching, &topic).await?);

    // One task can have many messages on their way: it hands them over, and looks at the answers later.
    let started = Instant::now();
    let mut pending = Vec::new();
    for number in 0..MESSAGES {
        // Waits while 32 MiB are on their way.
        pending.push(batching.hand_over(Message::new(topic.as_str(), format!("handed over {number}"))).await?);
    }
    let mut places = HashSet::new();
    for one in pending {
        let sent = one.await?;
        places.insert((sent.queue, sent.queue_offset));
    }
    println!("handed over: {:.0} messages a second", MESSAGES as f64 / started.elapsed().as_secs_f64());

    // To one queue messages go in the order in which they are handed over. Nobody looks at these answers; `flush` waits for them.
    let queue = client.route(&topic).await?.writable[0].clone();
    for number in 0..1000 {
        drop(batching.hand_over_to(&queue, Message::new(topic.as_str(), format!("in order {number}"))).await?);
    }
    batching.flush().await;

    let found = read(&client, &topic).await?;
    let in_order: Vec<usize> = found.iter().filter_map(|body| body.strip_prefix("in order ")?.parse().ok()).collect();
    if places.len() != MESSAGES || found.len() != 3 * MESSAGES + 1000 || in_order != (0..1000).collect::<Vec<_>>() {
        return Err(format!("{} places, {} messages, {} in order", places.len(), found.len(), in_order.len()).into());
    }
    println!("all of them are there");
    client.stop().await;
    Ok(())
}

/// A hundred tasks send, each waiting for its answers.
async fn rate(producer: &Producer, topic: &str) -> Result<String, Box<dyn std::error::Error>> {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..100 {
        let (producer, topic) = (producer.clone(), topic.to_owned());
        tasks.spawn(async move {
            for number in 0..MESSAGES / 100 {
                producer.send(Message::new(topic.as_str(), format!("task {task}, message {number}"))).await?;
            }
            Ok::<(), client::ClientError>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(format!("{:.0} messages a second", MESSAGES as f64 / started.elapsed().as_secs_f64()))
}

async fn read(client: &Client, topic: &str) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let consumer = client.pull_consumer("auto-batch-example");
    let mut found = Vec::new();
    for queue in consumer.queues(topic).await? {
        let mut offset = consumer.min_offset(&queue).await?;
        while offset < consumer.max_offset(&queue).await? {
            let pulled = consumer.pull(&queue, offset, 1000, "*", Duration::ZERO).await?;
            found.extend(pulled.messages.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()));
            offset = pulled.next_offset;
        }
    }
    Ok(found)
}
