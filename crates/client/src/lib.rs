//! The Rust client: producer and consumers.
//!
//! Thin on purpose: what the load generator, the command line and the tests need, done well. A [`Client`] is one member of a
//! cluster (one client id, one connection to each broker); producers and consumers are made from it and share it.
//!
//! ```no_run
//! use client::{Client, ClientConfig, Message, Outcome, PushConfig, Received};
//! use std::sync::Arc;
//!
//! # async fn example() -> Result<(), client::ClientError> {
//! let client = Client::start(ClientConfig::new("127.0.0.1:9876"));
//!
//! let producer = client.producer("orders-producer");
//! let sent = producer.send(Message::new("orders", "hello").tag("paid").key("order-1")).await?;
//! println!("{} at {}", sent.message_id, sent.queue_offset);
//!
//! let config = PushConfig::new("orders-consumer").subscribe("orders", "paid || cancelled")?;
//! let consumer = client
//!     .push_consumer(config, |messages: Arc<[Received]>| async move {
//!         for message in messages.iter() {
//!             println!("{}: {:?}", message.message_id, message.body);
//!         }
//!         Outcome::Done
//!     })
//!     .await?;
//!
//! consumer.stop().await;
//! client.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Batches of messages that are sent one by one
//!
//! With [`ProducerConfig::auto_batch`] messages that are sent at the same time share requests. A lone one leaves at once; while an answer
//! is out the next ones gather. [`Producer::send`] and the others stay as they are; [`Producer::hand_over`] lets one task have
//! many messages on their way, in order. [`AutoBatch`] bounds the size of a batch, the time that a message waits, and roughly the memory
//! of all: a send waits for room.
//!
//! ```no_run
//! use client::{AutoBatch, Client, ClientConfig, Message, ProducerConfig};
//!
//! # async fn example() -> Result<(), client::ClientError> {
//! let client = Client::start(ClientConfig::new("127.0.0.1:9876"));
//! let auto_batch = AutoBatch::default().batch_max_bytes(64 << 10)?;
//! let config = ProducerConfig { auto_batch: Some(auto_batch), ..ProducerConfig::new("orders-producer") };
//! let producer = client.producer_with(config);
//!
//! let mut pending = Vec::new();
//! for number in 0..10_000 {
//!     pending.push(producer.hand_over(Message::new("orders", format!("order {number}"))).await?);
//! }
//! for one in pending {
//!     let sent = one.await?;
//!     println!("{} at {}", sent.message_id, sent.queue_offset);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What goes together: messages of one topic with the same tag and the same `WAIT`, since in a BatchCQ topic a batch has one of each; for a
//! chosen queue in their order, else to the next queue in turn, a batch at a time. What a broker does for single messages only (delays,
//! transactions, light queues, priorities, retry topics) goes alone, and so does what is larger than
//! [`ProducerConfig::compress_over_bytes`], compressed. A message without a body goes alone too, and is refused.
//!
//! A batch as a whole is compressed where it stays whole, in a BatchCQ topic, if it is larger than that and becomes smaller. Which topics
//! are of that kind the first answer to a large batch says, so the first ones are plain. Where such a topic is deleted and made anew as an
//! ordinary one, those that were compressed already are sent again plain, or fail if they are for a chosen queue. Ordinary batches are never
//! compressed: brokers take them apart, and need them plain.
//!
//! Two things brokers look at in single messages only, and so not in those of a batch: whether one for a topic with
//! `cleanup.policy=COMPACTION` has a key, and whether it repeats another one (`repeatedSendWindowMillis`). Where they count, a producer
//! should do without [`ProducerConfig::auto_batch`].
//!
//! If a batch fails each of its messages does; it is sent again as a single message would be, so with retries all of it may be stored
//! twice. What was handed over is sent also if nobody waits for it and if the producer is dropped; [`Producer::flush`] waits for it.
//! Where the runtime that sends it ends before, [`ClientError::GivenUp`] says so.

pub mod admin;
mod allocation;
mod broker;
mod client;
mod error;
mod logical;
mod member;
mod message;
mod offers;
mod producer;
mod pull_consumer;
mod push_consumer;
mod route;
mod sign;
mod tries;
mod unique_id;

pub use admin::Admin;
pub use allocation::allocate;
pub use client::Client;
pub use error::ClientError;
pub use member::ClientConfig;
pub use message::{Message, Received, decode};
pub use net::{CallError, ClientOptions, ClientTls, ServerCheck};
pub use producer::{AutoBatch, Pending, Producer, ProducerConfig, SendResult, SendStatus};
pub use protocol::body::{ConsumeFromWhere, MessageModel, MessageQueue};
pub use pull_consumer::{PullConsumer, PullStatus, Pulled, PulledRecords};
pub use push_consumer::{Handler, Outcome, PushConfig, PushConsumer};
pub use route::Route;
pub use sign::Credentials;
