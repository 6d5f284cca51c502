//! What RocketMQ promises, a file for each promise.
//!
//! [`Broker`] holds the state; `serve.rs` has the one match on the request code. Each other file keeps
//! one promise: `send` takes messages, `pull` gives them, `hold` parks a pull until there is something to give, and so on.
//! Nothing here touches a socket or a file: `net` brings requests, `store` keeps bytes.

mod admin;
mod answer;
mod beside;
mod blocking;
mod broker;
mod caller;
mod client;
mod client_handle;
mod cold;
mod config_files;
mod critical;
mod delay;
mod duties;
mod group_topic;
mod hashing;
mod housekeeping;
mod ids;
mod inbox;
mod journal;
mod limits;
mod lite;
mod master;
mod metrics;
mod minute_log;
mod oneway_refusals;
mod parked;
mod parts;
mod per_queue;
mod pop;
mod put_times;
mod refusal;
mod retention_floor;
mod schedule;
mod sends;
mod serve;
mod session;
mod slave;
#[cfg(test)]
mod started;
mod state;
mod static_topic;
mod switch;
mod tables;
mod tasks;
mod timer;
mod to_master;
mod transaction;
mod unreadable;
mod waiting;
mod wall_time;
mod write;

pub use self::journal::options as journal_options;
pub use broker::Broker;
pub use caller::Caller;
pub use client::pull::{PullOrder, PullOutcome, PullStatus, PullSubscription};
pub use client::{SendBackOrder, SendOrder};
pub use client_handle::{ClientAnswer, ClientHandle, ClientQuestion, Hears, LocalClient, Work};
pub use config_files::{ConfigFile, ConfigLook, Writer};
pub use duties::{Start, StartError};
pub use metrics::{PageOptions, ProcessFigures};
pub use pop::{
    AckOrder, ChangeOrder, ChangeOutcome, NotifyOrder, NotifyOutcome, PeekOrder, PeekOutcome, PollingOrder, PopOrder,
    PopOutcome, PopStatus, Popped,
};
pub use refusal::Refusal;
pub use retention_floor::retention;
pub use sends::SendOutcome;
pub use session::Session;
pub use state::registry::Identity;
pub use state::switch::role_in_force;
pub use state::topics::{Topic, Topics, batch_topics};
pub use timer::RecallOrder;
pub use transaction::EndOrder;
