//! The table of configuration keys, where each value came from, and what is wrong with a file.
//!
//! Reads RocketMQ's own property files under its own names. Pure but for [`Machine::read`]: whoever starts a process reads files and
//! environment and hands them in as [`Sources`]. Nothing is taken silently: a key without effect is a [`Finding`].

mod finding;
pub mod key;
pub mod keys;
pub mod labels;
mod machine;
pub mod properties;
mod settings;
mod typed;

pub use finding::{Finding, Weight};
pub use key::Role;
pub use machine::Machine;
pub use settings::{Change, ConfigError, Origin, Settings, SourceFile, Sources};
pub use typed::{
    BrokerRole, BrokerSettings, ClientAuth, ClientTlsSettings, FlushDiskType, Labels, MemorySettings, MetricsExporter,
    MetricsSettings, NetSettings, RequestMode, StoreSettings, TlsMode, TlsSettings,
};
