//! Where topics are: what a name server tells.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::topic::TopicQueueMappingInfo;

/// The id of a master.
pub const MASTER_ID: i64 = 0;

/// The answer to 105: the brokers of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicRoute {
    /// The brokers.
    pub broker_datas: Vec<BrokerData>,
    /// Filter servers of old.
    pub filter_server_table: BTreeMap<String, Vec<String>>,
    /// `broker:queues;broker:queues`, for ordered topics.
    pub order_topic_conf: Option<String>,
    /// The queues.
    pub queue_datas: Vec<QueueData>,
    /// Static topics.
    pub topic_queue_mapping_by_broker: Option<BTreeMap<String, TopicQueueMappingInfo>>,
}

/// The queues of a topic on one broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueData {
    /// The broker's name.
    pub broker_name: String,
    /// See [`crate::sys_flag::perm`].
    pub perm: i32,
    /// Queues to read.
    pub read_queue_nums: i32,
    /// Units.
    pub topic_sys_flag: i32,
    /// Queues to write.
    pub write_queue_nums: i32,
}

/// The replicas of one broker name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerData {
    /// Addresses by id.
    pub broker_addrs: BTreeMap<i64, String>,
    /// The name.
    pub broker_name: String,
    /// The cluster.
    pub cluster: String,
    /// A slave may act for a master that is gone.
    pub enable_acting_master: bool,
    /// Where the broker stands.
    pub zone_name: Option<String>,
}

/// The answer to 106.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    /// Brokers by name.
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Broker names by cluster.
    pub cluster_addr_table: BTreeMap<String, BTreeSet<String>>,
}

/// The replicas of one broker name, as 901 tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerMemberGroup {
    /// Addresses by id.
    pub broker_addrs: BTreeMap<i64, String>,
    /// The name.
    pub broker_name: String,
    /// The cluster.
    pub cluster: String,
}

/// The answer to 901.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerMemberGroupReply {
    /// None when nobody of that name is known.
    pub broker_member_group: Option<BrokerMemberGroup>,
}
