//! What a broker remembers of consumers that filter by conditions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `consumerFilter.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerFilterTable {
    /// The rows by topic.
    pub filter_data_by_topic: BTreeMap<String, ConsumerFiltersOfTopic>,
}

/// The rows of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerFiltersOfTopic {
    /// By group.
    pub group_filter_data: BTreeMap<String, ConsumerFilterRow>,
    /// Its name.
    pub topic: String,
}

/// How a group filters a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerFilterRow {
    /// Its places in the bitmaps of messages.
    pub bloom_filter_data: Option<BloomFilterPlaces>,
    /// Since when it filters so, in ms since 1970.
    pub born_time: i64,
    /// The client's clock when it subscribed so, in ms.
    pub client_version: i64,
    /// The group.
    pub consumer_group: String,
    /// Whether it has left. Derived by Apache from the two times.
    pub dead: bool,
    /// When it left, in ms since 1970; 0: it has not.
    pub dead_time: i64,
    /// The condition.
    pub expression: String,
    /// What kind of condition: `SQL92`.
    pub expression_type: String,
    /// The topic.
    pub topic: String,
}

/// Places in a bitmap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BloomFilterPlaces {
    /// Bits of the bitmap.
    pub bit_num: u32,
    /// Which of them.
    pub bit_pos: Vec<u32>,
}
