//! Topics as a broker keeps them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::data_version::DataVersion;
use super::static_topic::TopicQueueMappingDetail;
use crate::sys_flag::perm;

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfig {
    /// Anything else that is set, such as `message.type`.
    pub attributes: BTreeMap<String, String>,
    /// Its messages are ordered.
    pub order: bool,
    /// See [`crate::sys_flag::perm`].
    pub perm: i32,
    /// Queues to read.
    pub read_queue_nums: i32,
    /// `SINGLE_TAG` or `MULTI_TAG`.
    pub topic_filter_type: TopicFilterType,
    /// Its name.
    pub topic_name: String,
    /// Units.
    pub topic_sys_flag: i32,
    /// Queues to write.
    pub write_queue_nums: i32,
}

impl Default for TopicConfig {
    fn default() -> Self {
        TopicConfig {
            attributes: BTreeMap::new(),
            order: false,
            perm: perm::READ | perm::WRITE,
            read_queue_nums: 16,
            topic_filter_type: TopicFilterType::SingleTag,
            topic_name: String::new(),
            topic_sys_flag: 0,
            write_queue_nums: 16,
        }
    }
}

/// Whether a message has one tag or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum TopicFilterType {
    MultiTag,
    /// Also whatever this table does not know.
    #[default]
    #[serde(other)]
    SingleTag,
}

impl TopicFilterType {
    /// RocketMQ's name.
    pub fn name(self) -> &'static str {
        match self {
            TopicFilterType::SingleTag => "SINGLE_TAG",
            TopicFilterType::MultiTag => "MULTI_TAG",
        }
    }

    /// The type of a name, if it is one.
    pub fn from_name(name: &str) -> Option<TopicFilterType> {
        match name {
            "SINGLE_TAG" => Some(TopicFilterType::SingleTag),
            "MULTI_TAG" => Some(TopicFilterType::MultiTag),
            _ => None,
        }
    }
}

/// 18: several topics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigList {
    /// The topics.
    pub topic_config_list: Vec<TopicConfig>,
}

/// The answer to 21, part of a registration, and `topics.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigTable {
    /// Its version.
    pub data_version: DataVersion,
    /// The version of the mappings.
    pub mapping_data_version: Option<DataVersion>,
    /// The topics by name.
    pub topic_config_table: BTreeMap<String, TopicConfig>,
    /// Static topics, in full.
    pub topic_queue_mapping_detail_map: Option<BTreeMap<String, TopicQueueMappingDetail>>,
    /// Static topics, as name servers need them.
    pub topic_queue_mapping_info_map: Option<BTreeMap<String, TopicQueueMappingInfo>>,
}

/// Which logical queues of a static topic a broker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicQueueMappingInfo {
    /// The broker's name.
    pub bname: String,
    /// Physical queue by logical queue.
    pub curr_id_map: BTreeMap<i32, i32>,
    /// Not yet complete.
    pub dirty: bool,
    /// Grows with each move.
    pub epoch: i64,
    /// `__global__`.
    pub scope: Option<String>,
    /// The topic.
    pub topic: String,
    /// Logical queues in all.
    pub total_queues: i32,
}
