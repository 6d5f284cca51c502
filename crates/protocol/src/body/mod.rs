//! Bodies that are JSON.
//!
//! Members stand in alphabetical order, because they are written in the order of the struct and fastjson sorts them. Missing
//! and unknown members are tolerated everywhere: peers are of many versions and languages.

mod auth;
mod client;
mod data_version;
mod filter;
mod group;
mod lite;
mod loose;
mod pop;
mod queue;
mod register;
mod replica;
mod route;
mod running;
mod static_topic;
mod stats;
mod topic;

pub use auth::*;
pub use client::*;
pub use data_version::DataVersion;
pub use filter::*;
pub use group::*;
pub use lite::*;
pub use pop::*;
pub use queue::{MessageQueue, QueueMap};
pub use register::*;
pub use replica::*;
pub use route::*;
pub use running::*;
pub use static_topic::*;
pub use stats::*;
pub use topic::*;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvTable {
    /// The table.
    pub table: BTreeMap<String, String>,
}

/// Names of topics.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicList {
    /// A broker to ask more, if any.
    pub broker_addr: Option<String>,
    /// The names.
    pub topic_list: Vec<String>,
}

/// Names of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupList {
    /// The names.
    pub group_list: Vec<String>,
}
