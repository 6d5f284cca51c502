//! Static topics: a fixed number of logical queues, each mapped to physical queues of brokers, one after the other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::data_version::DataVersion;
use super::topic::{TopicConfig, TopicFilterType};

/// 513: the logical queues of a static topic that a broker holds, or once held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicQueueMappingDetail {
    /// The broker's name.
    pub bname: String,
    /// Physical queue by logical queue, of those that it holds now. Brokers work it out themselves.
    pub curr_id_map: BTreeMap<i32, i32>,
    /// Not yet complete.
    pub dirty: bool,
    /// Grows with each change of the topic.
    pub epoch: i64,
    /// By logical queue: its physical queues, oldest first. The last one takes the messages.
    pub hosted_queues: BTreeMap<i32, Vec<LogicQueueMappingItem>>,
    /// `__global__`.
    pub scope: Option<String>,
    /// The topic.
    pub topic: String,
    /// Logical queues in all.
    pub total_queues: i32,
}

/// One physical queue of a logical one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LogicQueueMappingItem {
    /// The broker's name.
    pub bname: String,
    /// The first physical offset that does not belong to it; -1: it goes on.
    pub end_offset: i64,
    /// Grows with each move of the queue.
    #[serde(rename = "gen")]
    pub generation: i32,
    /// The logical offset of its first message; -1: not decided yet.
    pub logic_offset: i64,
    /// The physical queue.
    pub queue_id: i32,
    /// The physical offset of its first message.
    pub start_offset: i64,
    /// When its last message was stored; -1: unknown.
    pub time_of_end: i64,
    /// When its first message was stored; -1: unknown.
    pub time_of_start: i64,
}

/// `topicQueueMapping.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicQueueMappingTable {
    /// Its version.
    pub data_version: Option<DataVersion>,
    /// The mappings by topic; Apache's name says otherwise.
    pub topic_queue_mapping_info_map: BTreeMap<String, TopicQueueMappingDetail>,
}

/// The answer to 351: a topic, and its mapping if it is static.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicConfigAndQueueMapping {
    /// See [`TopicConfig`].
    pub attributes: BTreeMap<String, String>,
    /// The mapping.
    pub mapping_detail: Option<TopicQueueMappingDetail>,
    /// See [`TopicConfig`].
    pub order: bool,
    /// See [`TopicConfig`].
    pub perm: i32,
    /// See [`TopicConfig`].
    pub read_queue_nums: i32,
    /// See [`TopicConfig`].
    pub topic_filter_type: TopicFilterType,
    /// See [`TopicConfig`].
    pub topic_name: String,
    /// See [`TopicConfig`].
    pub topic_sys_flag: i32,
    /// See [`TopicConfig`].
    pub write_queue_nums: i32,
}

impl Default for TopicConfigAndQueueMapping {
    fn default() -> Self {
        TopicConfig::default().into()
    }
}

impl From<TopicConfig> for TopicConfigAndQueueMapping {
    fn from(config: TopicConfig) -> Self {
        TopicConfigAndQueueMapping {
            attributes: config.attributes,
            mapping_detail: None,
            order: config.order,
            perm: config.perm,
            read_queue_nums: config.read_queue_nums,
            topic_filter_type: config.topic_filter_type,
            topic_name: config.topic_name,
            topic_sys_flag: config.topic_sys_flag,
            write_queue_nums: config.write_queue_nums,
        }
    }
}

/// A change of a static topic, as tools write it into files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicRemappingDetail {
    /// What each broker is to have.
    pub broker_config_map: BTreeMap<String, TopicConfigAndQueueMapping>,
    /// Brokers that get queues from others.
    pub broker_to_map_in: BTreeSet<String>,
    /// Brokers that give queues away.
    pub broker_to_map_out: BTreeSet<String>,
    /// The epoch of the change.
    pub epoch: i64,
    /// The topic.
    pub topic: String,
    /// `CREATE_OR_UPDATE` or `REMAPPING`.
    #[serde(rename = "type")]
    pub kind: String,
}
