//! Parking and waking: requests that wait, as numbers. Nothing here knows what waits.

pub(crate) mod fetch;
pub(crate) mod hold;
pub(crate) mod pop_waiters;
pub(crate) mod sent_back;
pub(crate) mod wake_up;
