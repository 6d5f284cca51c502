//! Tables of the broker, and what changes them. Nothing here knows a request, a connection or the broker.

pub(crate) mod cold_limits;
pub(crate) mod configuration;
pub(crate) mod order_locks;
pub(crate) mod placement;
pub(crate) mod registry;
pub(crate) mod repeats;
