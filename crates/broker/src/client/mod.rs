//! Requests of clients.
//!
//! A request that a second protocol brings too takes three steps: it is decoded into an order, the
//! order runs without it, and the outcome is encoded. `tests.rs` runs orders that come by no wire.

pub(crate) mod assignment;
pub(crate) mod commit_at_slave;
pub(crate) mod eventual;
pub(crate) mod heartbeat;
pub(crate) mod inner_batch;
pub(crate) mod late_subscription;
mod local;
pub(crate) mod multi_send;
pub(crate) mod offsets;
pub(crate) mod order_lock;
pub(crate) mod pull;
pub(crate) mod query;
pub(crate) mod register;
pub(crate) mod reply;
pub(crate) mod retry;
pub(crate) mod send;
pub(crate) mod view;

pub use retry::SendBackOrder;
pub use send::order::SendOrder;

#[cfg(test)]
mod tests;
