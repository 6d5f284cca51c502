//! The load generator: `gantry bench`.
//!
//! A [`Case`] says what to send and consume and how; any endpoint that speaks RocketMQ's protocol is a target, Apache's included.

mod case;
mod driver;
mod drops;
mod error;
mod fields;
mod ledger;
mod meter;
mod presets;
mod process;
mod stamp;
mod workload;

pub use case::Case;
pub use driver::{ConsumeMode, Driver, HeaderKind, SendMode};
pub use error::BenchError;
pub use ledger::{Ledger, Tally};
pub use presets::Preset;
pub use stamp::Stamp;
pub use workload::{KeyDistributor, Workload};
