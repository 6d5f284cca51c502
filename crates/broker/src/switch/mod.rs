//! Switches of masters by hand (`gantry admin switchMaster`): what brokers of a set ask each other, and what each does then.
//!
//! `requests.rs` answers, `ask.rs` asks, `duty.rs` carries out what is ordered, and `rivals.rs` has a deposed master fence itself. What is kept and
//! why no epoch has two masters, `state/switch.rs` says.

pub(crate) mod ask;
mod duty;
pub(crate) mod requests;
pub(crate) mod rivals;

pub(crate) use duty::run;
