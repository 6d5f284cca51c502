//! Copies of a log between brokers.
//!
//! The master's side of a slave is [`feed`], the slave's is [`follow`]. Each is a state machine without socket and clock, which the
//! simulator can step, and a thin driver on tokio. [`wire`] has what goes over the connection, [`lag`] how far slaves have come. A slave asks its
//! master how its log lies, before it lets it go on here ([`asking`]). [`epochs`] says what of a log two brokers have in common when the master has
//! changed.
//!
//! Nobody here decides who is master, or what an acknowledgement to a producer waits for.

pub mod asking;
pub mod epochs;
pub mod feed;
pub mod follow;
pub mod lag;
pub mod wire;
