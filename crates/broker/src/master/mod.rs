//! A master of slaves: the port at which it gives its log, and who may have it.
//!
//! `port.rs` serves the port (`replica/feed`). Slaves ask for the tables, which are not in the log, at the main port, as in Apache.

mod port;

pub(crate) use port::{LogPort, serve};
