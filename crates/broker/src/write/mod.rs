//! From a checked message to its acknowledgement.

pub(crate) mod acknowledgements;
pub(crate) mod append;
mod came;
mod copied;
pub(crate) mod durability;
pub(crate) mod light;
pub(crate) mod local;
pub(crate) mod placement;
pub(crate) mod repeats;
pub(crate) mod send_properties;
