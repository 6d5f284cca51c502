//! Bodies that are JSON.
//!
//! Members stand in alphabetical order, because they are written in the order of the struct and fastjson sorts them. Missing
//! and unknown members are tolerated everywhere: peers are of many versions and languages.

mod auth;
mod client;
mod filter;
mod group;
mod lite;
mod pop;
mod register;
mod replica;
mod route;
mod running;
mod static_topic;
mod stats;
mod topic;

pub use auth::*;
pub use client::*;
pub use filter::*;
pub use group::*;
pub use lite::*;
pub use pop::*;
pub use register::*;
pub use replica::*;
pub use route::*;
pub use running::*;
pub use static_topic::*;
pub use stats::*;
pub use topic::*;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

/// One queue of one topic on one broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageQueue {
    /// The broker's name.
    pub broker_name: String,
    /// Its number.
    pub queue_id: i32,
    /// The topic.
    pub topic: String,
}

/// Which of two states is newer: it changes with every change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DataVersion {
    /// Changes since the start.
    pub counter: i64,
    /// The epoch of the master that made them.
    pub state_version: i64,
    /// When the last one was made.
    pub timestamp: i64,
}

impl DataVersion {
    /// Notes a change.
    pub fn advance(&mut self, now_ms: i64) {
        self.counter += 1;
        self.timestamp = now_ms;
    }
}

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

/// A number or its text: other languages write some numbers as strings (Go's code set, C++'s versions and offsets), and they are numbers all
/// the same, as fastjson has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Loose<N> {
    Number(N),
    Text(String),
}

impl<N: FromStr<Err: Display>> Loose<N> {
    fn number<E: serde::de::Error>(self) -> Result<N, E> {
        match self {
            Loose::Number(number) => Ok(number),
            Loose::Text(text) => text.parse().map_err(E::custom),
        }
    }
}

fn loose<'de, D, N>(deserializer: D) -> Result<N, D::Error>
where
    D: serde::Deserializer<'de>,
    N: Deserialize<'de> + FromStr<Err: Display>,
{
    Loose::<N>::deserialize(deserializer)?.number()
}

fn loose_i32s<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<i32>, D::Error> {
    Vec::<Loose<i32>>::deserialize(deserializer)?.into_iter().map(Loose::number).collect()
}
