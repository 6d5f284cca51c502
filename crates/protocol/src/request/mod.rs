//! The fields of every request and response that has any.
//!
//! The macro calls in these files are the tables of the protocol as well as the structs: `field: type = "name on the wire"`.
//! A type says all about presence: `Option` may be missing, anything else may not, unless `or value` stands after the name.

mod admin;
mod auth;
mod client;
mod controller;
mod field;
mod group;
mod lite;
mod names;
mod offset;
mod pop;
mod pull;
mod send;
mod topic;
mod upkeep;

pub use admin::*;
pub use auth::*;
pub use client::*;
pub use controller::*;
pub use field::{FieldError, FieldKind, FieldSpec};
pub use group::*;
pub use lite::*;
pub use names::*;
pub use offset::*;
pub use pop::*;
pub use pull::*;
pub use send::*;
pub use topic::*;
pub use upkeep::*;
