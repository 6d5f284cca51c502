//! What RocketMQ promises, a file for each promise.
//!
//! [`Broker`] holds the state and answers requests; `broker.rs` has the one match on the request code. Each other file keeps
//! one promise: `send` takes messages, `pull` gives them, `hold` parks a pull until there is something to give, and so on.
//! Nothing here touches a socket or a file: `net` brings requests, `store` keeps bytes.

mod append;
mod broker;
mod delay;
mod facts;
mod hold;
mod ids;
mod pull;
mod refusal;
mod retry;
mod schedule;
mod send;
mod session;
mod tables;
mod topics;
mod view;

pub use broker::{Broker, Start};
pub use refusal::Refusal;
pub use session::{Session, Work};
pub use topics::{Topic, Topics};
