//! The load generator: `gantry bench`.
//!
//! A [`Case`] says what to send and consume and how; any endpoint that speaks RocketMQ's protocol is a target, Apache's included.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic when their reader has gone: env::say")]

mod accounts;
mod book;
mod case;
mod chart;
mod clients;
mod command;
mod consume;
mod crew;
mod driver;
mod drops;
mod echo;
mod error;
mod fields;
mod hands;
mod html;
mod ledger;
mod lines;
mod machine;
mod meter;
mod pace;
mod payload;
mod pop;
mod presets;
mod process;
mod produce;
mod reader;
mod result;
mod run;
mod scene;
mod sink;
mod stamp;
mod sweep;
mod target;
mod team;
mod text;
mod words;
mod worker;
mod workload;

pub use book::Watcher;
pub use case::Case;
pub use command::{BenchArgs, execute};
pub use driver::{ConsumeMode, Driver, HeaderKind, SendMode};
pub use drops::Steadiness;
pub use error::BenchError;
pub use html::page;
pub use ledger::Tally;
pub use meter::Latency;
pub use process::{Disk, MeasureDisk, ServerProcess};
pub use result::{Phase, RunResult, Summary, Window};
pub use run::{Options, run};
pub use sink::{Served, Sink};
pub use sweep::{SweepWatcher, Swept, sweep};
pub use team::Processes;
pub use text::{summary, table};
pub use workload::{KeyDistributor, Workload};
