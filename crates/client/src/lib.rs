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

pub mod admin;
mod allocation;
mod broker;
mod error;
mod logical;
mod member;
mod message;
mod producer;
mod progress;
mod pull_consumer;
mod push_consumer;
mod queue_task;
mod route;
mod sign;
mod unique_id;

pub use admin::Admin;
pub use allocation::allocate;
pub use error::ClientError;
pub use member::{Client, ClientConfig};
pub use message::{Message, Received, decode};
pub use net::{CallError, ClientOptions, ClientTls, ServerCheck};
pub use producer::{Producer, ProducerConfig, SendResult, SendStatus};
pub use protocol::body::{ConsumeFromWhere, MessageModel, MessageQueue};
pub use pull_consumer::{PullConsumer, PullStatus, Pulled, PulledRecords};
pub use push_consumer::{Handler, Outcome, PushConfig, PushConsumer};
pub use route::Route;
pub use sign::Credentials;
