//! The RocketMQ language: frames, headers, request tables, bodies, stored records.
//!
//! Pure: no I/O, no async, no clock, no unsafe. Everything that comes from outside is checked here once, with a typed
//! error for each way of being wrong; what leaves here has RocketMQ's exact bytes (records, binary headers) or fields (JSON).

pub mod batch;
pub mod body;
pub mod code;
pub mod compression;
pub mod delay;
pub mod epoch;
pub mod fastjson;
pub mod frame;
pub mod header;
pub mod java;
pub mod light;
pub mod message_id;
pub mod names;
pub mod position;
pub mod properties;
pub mod record;
pub mod request;
pub mod sys_flag;
pub mod tags;
pub mod together;
pub mod version;

pub use position::{LogOffset, QueueOffset};

/// The version that we put into every header: the ordinal of RocketMQ 5.3.3.
///
/// Clients gate features on the version of a response (SQL subscriptions, go-away, standard JSON), so it must be a real one.
pub const VERSION: i32 = 479;
