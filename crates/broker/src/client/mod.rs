//! Requests of clients.

pub(crate) mod assignment;
pub(crate) mod heartbeat;
pub(crate) mod inner_batch;
pub(crate) mod late_subscription;
mod local;
pub(crate) mod offsets;
pub(crate) mod order_lock;
pub(crate) mod pull;
pub(crate) mod query;
pub(crate) mod register;
pub(crate) mod reply;
pub(crate) mod retry;
pub(crate) mod send;
pub(crate) mod together;
pub(crate) mod view;
