//! The table of configuration keys, where each value came from, and what is wrong with a file.
//!
//! Reads RocketMQ's own property files under its own names. A process that starts reads files and environment, and hands
//! them in as [`Sources`]. Only [`Machine::read`], [`environment::read`] and [`file`], the one writer of property files, ask
//! the system. Nothing is taken silently: a key without effect is a [`Finding`].

pub mod environment;
pub mod file;
mod finding;
pub mod key;
pub mod keys;
pub mod labels;
mod machine;
mod networks;
pub mod properties;
mod settings;
mod typed;
mod values;

pub use finding::{Finding, Weight};
pub use key::Role;
pub use machine::Machine;
pub use networks::Networks;
pub use settings::{AboveFile, Change, ConfigError, ConfigErrors, Origin, Settings, SourceFile, Sources};
pub use typed::{
    BrokerRole, BrokerSettings, ClientAuth, ClientTlsSettings, ControllerSettings, ControllerType, FlushDiskType,
    HaPort, Hidden, Labels, MemorySettings, MetricsExporter, MetricsSettings, NetSettings, RequestMode, StoreSettings,
    TlsMode, TlsSettings,
};
