//! Timer messages: delivered at any time that their producer names, in Apache's form on disk.
//!
//! A timer message lies in queue 0 of `rmq_sys_wheel_timer`. One task (`duty.rs`) takes it from
//! there into the files of [`store::TimerFiles`], by slots of `timerPrecisionMs`, and delivers at
//! the millisecond. Memory holds the messages of the next seconds only (`agenda.rs`).
//!
//! Exactly once over kill -9: a delivered record names the one that waited in its prepared offset, as `!log_offset`, as delayed messages do.
//! The check-point passes a slot only when all of its deliveries are on the device; the journal holds a place in the log behind which every
//! delivery lies that the check-point may not know of. A start reads the log from there and skips what it finds delivered. What the device does not
//! give is in the journal, too, and tried again (`duty/aside.rs`).

mod agenda;
mod asked;
mod duty;
#[cfg(test)]
mod model;
mod recall;
mod state;

pub(crate) use asked::when;
pub(crate) use duty::{deliver, load};
pub use recall::RecallOrder;
pub(crate) use recall::{handle, recall};
pub(crate) use state::Timers;
