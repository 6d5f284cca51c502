//! Tables of the broker, and what changes them. Nothing here knows a request, a connection or the
//! broker.

pub(crate) mod clients;
pub(crate) mod cold_limits;
pub(crate) mod conditions;
pub(crate) mod configuration;
pub(crate) mod copies;
pub(crate) mod falls;
pub(crate) mod filters;
pub(crate) mod following;
pub(crate) mod groups;
pub(crate) mod journal_copies;
pub(crate) mod log_port;
pub(crate) mod master_journal;
pub(crate) mod members;
pub(crate) mod message_filter;
pub(crate) mod needs;
pub(crate) mod offsets;
pub(crate) mod order_locks;
pub(crate) mod owed;
pub(crate) mod placement;
pub(crate) mod registry;
pub(crate) mod repeats;
pub(crate) mod role;
pub(crate) mod routes;
pub(crate) mod slave_places;
pub(crate) mod stats;
pub(crate) mod switch;
pub(crate) mod to_master;
pub(crate) mod topics;
