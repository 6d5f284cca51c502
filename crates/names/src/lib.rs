//! The name server: who serves which topic, told to whoever asks.
//!
//! Name servers know nothing of each other: every broker registers at each of them. The route table is a pure state machine
//! ([`RouteTable`], the time is an argument); [`Names`] puts it behind one lock and answers requests. Routes are asked for far
//! more often than they change, so their JSON is kept until the table changes.

mod beside;
mod configuration;
mod kv;
mod limits;
mod lists;
mod names;
mod options;
mod order;
mod register;
mod route;
mod routes;

pub use kv::KvError;
pub use limits::{Limits, Unfit};
pub use names::Names;
pub use options::{Options, SettingError};
pub use routes::{
    BrokerAddress, Departure, LeftOut, MinBrokerIdChange, Registered, Registration, RouteTable, Rules, TableSize,
    TurnedDown, Unregistration,
};
