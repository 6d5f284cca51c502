//! A master of slaves: the port at which it gives its log, and who may have it.
//!
//! `port.rs` serves the port (`replica/feed`), `members.rs` knows who may come. Slaves ask for the tables, which are not in the log, at the main port, as in Apache.

mod members;
mod port;

pub(crate) use members::{brokers, keep as keep_members};
pub(crate) use port::serve;
