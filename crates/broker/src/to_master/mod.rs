//! Requests that only a master may carry out, and that come to a broker which is none: it asks the
//! master in the client's name (30006), and passes the answer on as it is.
//!
//! So a client whose route is old is served at the address that it knows, behind a switch of
//! masters for example. The master may change meanwhile, or be about to come up: requests wait for
//! it, for [`HELD_MAX`] at most, and are then refused with what is known. How many wait, and what
//! they hold, has bounds (`state/to_master.rs`); behind them a connection is not read.
//!
//! `pass.rs` takes requests, one task (`way.rs`) sends them in the order in which they came, by a
//! connection of its own, and `asked.rs` is the master's side. A broker that is asked by another
//! one and is no master says so, and passes nothing on: no request goes round. A broker of Apache
//! is never asked.

mod asked;
mod pass;
mod way;

pub(crate) use asked::{Inner, refuse_asked};
pub(crate) use pass::{pass_on, pass_on_left, refuse_left};
pub(crate) use way::run;
