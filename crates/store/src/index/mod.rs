//! The key index: where messages lie by topic and key, in RocketMQ's files (`index/`).
//!
//! The thread `index` (follow.rs) follows the log in batches; who asks waits until the index has come as far as the log had when the
//! question came. Most appends tell it their keys (ahead.rs), the others are read. What a crash takes from the index is built again
//! from the log.

mod ahead;
mod check;
mod file;
mod files;
mod follow;
pub(crate) mod query;

pub(crate) use self::ahead::{Ahead, Hasher};
pub(crate) use self::check::{ENTRIES_AT_ONCE, check_chains};
pub(crate) use self::file::{ENTRY_BYTES, Header, IndexEntry, Shape};
pub use self::files::IndexOptions;
pub(crate) use self::files::{KeyIndex, LogNow, is_index_file};
pub(crate) use self::follow::{finish, run};
