//! A master of slaves: the port at which it gives its log, and who may have it.
//!
//! `port.rs` serves the port (`replica/feed`), `members.rs` knows who may come. What is not in the log slaves ask for at the main port: slaves of ours
//! for the journal (`journal.rs`), those of Apache for tables.

mod journal;
mod members;
mod port;

pub(crate) use journal::copy as copy_journal;
pub(crate) use members::{brokers, is_member, keep as keep_members};
pub(crate) use port::serve;
