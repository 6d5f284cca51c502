//! Subscription groups and their offsets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::SubscriptionData;
use super::data_version::DataVersion;

/// A subscription group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupConfig {
    /// Anything else that is set.
    pub attributes: BTreeMap<String, String>,
    /// The replica to read from.
    pub broker_id: i64,
    /// It may consume in broadcast.
    pub consume_broadcast_enable: bool,
    /// It may consume.
    pub consume_enable: bool,
    /// A new member may begin at the smallest offset.
    pub consume_from_min_enable: bool,
    /// It consumes in order.
    pub consume_message_orderly: bool,
    /// When a message counts as stuck.
    pub consume_timeout_minute: i32,
    /// Its name.
    pub group_name: String,
    /// How long a message waits for its next try.
    pub group_retry_policy: GroupRetryPolicy,
    /// Units.
    pub group_sys_flag: i32,
    /// Its members are told when one comes or goes.
    pub notify_consumer_ids_changed_enable: bool,
    /// Tries before the dead-letter queue.
    pub retry_max_times: i32,
    /// Queues of its retry topic.
    pub retry_queue_nums: i32,
    /// What it is expected to subscribe to.
    pub subscription_data_set: Option<Vec<SimpleSubscriptionData>>,
    /// The replica to read from when it is far behind.
    pub which_broker_when_consume_slowly: i64,
}

impl Default for SubscriptionGroupConfig {
    fn default() -> Self {
        SubscriptionGroupConfig {
            attributes: BTreeMap::new(),
            broker_id: 0,
            consume_broadcast_enable: true,
            consume_enable: true,
            consume_from_min_enable: true,
            consume_message_orderly: false,
            consume_timeout_minute: 15,
            group_name: String::new(),
            group_retry_policy: GroupRetryPolicy::default(),
            group_sys_flag: 0,
            notify_consumer_ids_changed_enable: true,
            retry_max_times: 16,
            retry_queue_nums: 1,
            subscription_data_set: None,
            which_broker_when_consume_slowly: 1,
        }
    }
}

/// How long a message waits for its next try.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupRetryPolicy {
    /// By a table.
    pub customized_retry_policy: Option<CustomizedRetryPolicy>,
    /// By doubling.
    pub exponential_retry_policy: Option<ExponentialRetryPolicy>,
    /// Which of the two.
    #[serde(rename = "type")]
    pub kind: GroupRetryPolicyKind,
}

/// Which policy of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum GroupRetryPolicyKind {
    Exponential,
    #[default]
    #[serde(other)]
    Customized,
}

/// A table of delays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CustomizedRetryPolicy {
    /// Milliseconds by try.
    pub next: Vec<i64>,
}

/// Delays that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExponentialRetryPolicy {
    /// The first.
    pub initial: i64,
    /// The longest.
    pub max: i64,
    /// The growth.
    pub multiplier: i64,
}

impl Default for ExponentialRetryPolicy {
    fn default() -> Self {
        ExponentialRetryPolicy { initial: 5000, max: 7_200_000, multiplier: 2 }
    }
}

/// What a group is expected to subscribe to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SimpleSubscriptionData {
    /// The expression.
    pub expression: String,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// The topic.
    pub topic: String,
    /// When it was set.
    pub version: i64,
}

/// 225: several groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupList {
    /// The groups.
    pub group_config_list: Vec<SubscriptionGroupConfig>,
}

/// The answer to 201, and `subscriptionGroup.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionGroupTable {
    /// Its version.
    pub data_version: DataVersion,
    /// What groups may not read: bits by group and topic.
    pub forbidden_table: BTreeMap<String, BTreeMap<String, i32>>,
    /// The groups by name.
    pub subscription_group_table: BTreeMap<String, SubscriptionGroupConfig>,
}

/// The answer to 43, and `consumerOffset.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerOffsets {
    /// Its version.
    pub data_version: Option<DataVersion>,
    /// Offsets by `topic@group` and queue.
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}

/// `lmqConsumerOffset.json`, which takes the place of `consumerOffset.json` where there are light queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LmqConsumerOffsets {
    /// Its version.
    pub data_version: Option<DataVersion>,
    /// Offsets of groups that are named like a light queue, by `topic@group`.
    pub lmq_offset_table: BTreeMap<String, i64>,
    /// Offsets of other groups, by `topic@group` and queue.
    pub offset_table: BTreeMap<String, BTreeMap<i32, i64>>,
}

/// The answer to 45, and `delayOffset.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DelayOffsets {
    /// Its version.
    pub data_version: Option<DataVersion>,
    /// Offsets by level.
    pub offset_table: BTreeMap<i32, i64>,
}

/// The answer to 345.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuerySubscriptionReply {
    /// The group.
    pub group: String,
    /// What it subscribes to.
    pub subscription_data: Option<SubscriptionData>,
    /// The topic.
    pub topic: String,
}

/// The answer to 353.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupForbidden {
    /// The group.
    pub group: String,
    /// Whether it may read.
    pub readable: bool,
    /// The topic.
    pub topic: String,
}
