//! Delayed messages: the 18 levels of `messageDelayLevel`, in Apache's form on disk.
//!
//! A delayed message lies in queue `level - 1` of `SCHEDULE_TOPIC_XXXX`; its unit carries the
//! delivery time where others carry a tag code. One task (`duty.rs`) delivers for all levels.
//!
//! Exactly once over kill -9: a delivered record names the scheduled one in its prepared offset, as
//! `!log_offset`, a negative number that nobody else uses. The journal holds, for each level, the
//! next offset to deliver, written only when what was delivered before is flushed, and a place in
//! the log behind which every delivery lies that the journal does not know of. A start reads the
//! log from there and skips what it finds delivered. A message that the device did not give when it
//! was due is set aside (`duty/aside.rs`).

mod duty;
mod state;

pub(crate) use duty::{deliver, load};
pub(crate) use state::Delay;
