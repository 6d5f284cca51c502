//! Shared by tests and benches, and by nothing else: other crates name it under
//! `[dev-dependencies]` only.
//!
//! [`imports`] and [`circles`] read our own source, [`allocator`] counts allocations. With the
//! feature `ending`, `ending` says whether something ends the process. With the feature `broker` there are brokers to ask: `running` behind a port and on a device with faults,
//! `warm` with one connection and no socket, `served` with the threads of a server.

pub mod allocator;
pub mod circles;
#[cfg(feature = "broker")]
pub mod device;
#[cfg(feature = "ending")]
pub mod ending;
pub mod imports;
#[cfg(feature = "broker")]
pub mod running;
#[cfg(feature = "broker")]
pub mod served;
#[cfg(feature = "broker")]
pub mod warm;
