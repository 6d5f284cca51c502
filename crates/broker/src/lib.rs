//! What RocketMQ promises, a file for each promise.
//!
//! [`Broker`] holds the state and answers requests; `broker.rs` has the one match on the request code. Each other file keeps
//! one promise: `send` takes messages, `pull` gives them, `hold` parks a pull until there is something to give, and so on.
//! Nothing here touches a socket or a file: `net` brings requests, `store` keeps bytes.

mod acknowledgements;
mod admin;
mod append;
mod assignment;
mod beside;
mod blocking;
mod broker;
mod clients;
mod conditions;
mod delay;
mod durability;
mod exchange;
mod facts;
mod falls;
mod fetch;
mod filters;
mod groups;
mod hashing;
mod heartbeat;
mod hold;
mod ids;
mod inner_batch;
mod journal;
mod late_subscription;
mod light;
mod limits;
mod lite;
mod metrics;
mod minutes;
mod offsets;
mod order_lock;
mod placement;
mod places;
mod pop;
mod protect;
mod pull;
mod put_times;
mod query;
mod refusal;
mod register;
mod repeats;
mod reply;
mod retry;
mod routes;
mod schedule;
mod send;
mod session;
mod static_topic;
mod stats;
mod tables;
mod timer;
mod together;
mod topics;
mod transaction;
mod unheard;
mod unreadable;
mod upkeep;
mod view;
mod vital;
mod wake_up;
mod wall_time;
mod want;

pub use broker::{Broker, Start};
pub use exchange::{ConfigFile, ConfigLook, Writer};
pub use journal::options as journal_options;
pub use metrics::{PageOptions, ProcessFigures};
pub use protect::retention;
pub use refusal::Refusal;
pub use register::Identity;
pub use session::{Session, Work};
pub use topics::{Topic, Topics, batch_topics};
