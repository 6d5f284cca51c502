//! What a consumer says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::SubscriptionData;
use super::loose::loose;
use super::queue::QueueMap;

/// The answer to 307.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerRunningInfo {
    /// The stacks of its threads, if they were asked for.
    pub jstack: Option<String>,
    /// Queues that it pops from.
    pub mq_pop_table: QueueMap<PopProcessQueueInfo>,
    /// Queues that it pulls from.
    pub mq_table: QueueMap<ProcessQueueInfo>,
    /// Its settings and states; see [`ConsumerRunningInfo::property`].
    pub properties: BTreeMap<String, serde_json::Value>,
    /// Figures by topic.
    pub status_table: BTreeMap<String, ConsumeStatus>,
    /// What it subscribes to.
    pub subscription_set: Vec<SubscriptionData>,
    /// What its user adds.
    pub user_consumer_info: BTreeMap<String, String>,
}

impl ConsumerRunningInfo {
    /// A property as text: Java writes some of them as text and some as numbers.
    pub fn property(&self, name: &str) -> Option<String> {
        self.properties.get(name).map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }
}

/// One queue of a consumer that pulls. C++ clients write the long numbers as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessQueueInfo {
    /// Messages that wait or are being consumed.
    pub cached_msg_count: i32,
    /// The last of them.
    #[serde(deserialize_with = "loose")]
    pub cached_msg_max_offset: i64,
    /// The first of them.
    #[serde(deserialize_with = "loose")]
    pub cached_msg_min_offset: i64,
    /// Their size, in MiB.
    pub cached_msg_size_in_mi_b: i32,
    /// What is committed.
    #[serde(deserialize_with = "loose")]
    pub commit_offset: i64,
    /// Given to another consumer.
    pub droped: bool,
    /// When it last consumed.
    #[serde(deserialize_with = "loose")]
    pub last_consume_timestamp: i64,
    /// When it last renewed its lock.
    #[serde(deserialize_with = "loose")]
    pub last_lock_timestamp: i64,
    /// When it last pulled.
    #[serde(deserialize_with = "loose")]
    pub last_pull_timestamp: i64,
    /// Locked, for orderly consumption.
    pub locked: bool,
    /// Messages being consumed in order.
    pub transaction_msg_count: i32,
    /// The last of them.
    #[serde(deserialize_with = "loose")]
    pub transaction_msg_max_offset: i64,
    /// The first of them.
    #[serde(deserialize_with = "loose")]
    pub transaction_msg_min_offset: i64,
    /// How often unlocking failed.
    pub try_unlock_times: i64,
}

/// One queue of a consumer that pops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PopProcessQueueInfo {
    /// Given to another consumer.
    pub droped: bool,
    /// When it last popped.
    pub last_pop_timestamp: i64,
    /// Messages that are not acknowledged yet.
    pub wait_ack_count: i32,
}

/// Figures of one topic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConsumeStatus {
    /// In the last hour.
    #[serde(rename = "consumeFailedMsgs")]
    pub consume_failed_msgs: i64,
    /// A second.
    #[serde(rename = "consumeFailedTPS")]
    pub consume_failed_tps: f64,
    /// A second.
    #[serde(rename = "consumeOKTPS")]
    pub consume_ok_tps: f64,
    /// Milliseconds.
    #[serde(rename = "consumeRT")]
    pub consume_rt: f64,
    /// Milliseconds.
    #[serde(rename = "pullRT")]
    pub pull_rt: f64,
    /// A second.
    #[serde(rename = "pullTPS")]
    pub pull_tps: f64,
}

/// The answer to 309.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeMessageDirectlyReply {
    /// Whether the offset is committed by itself.
    pub auto_commit: bool,
    /// `CR_SUCCESS`, `CR_LATER` and so on.
    pub consume_result: String,
    /// Whether the consumer is orderly.
    pub order: bool,
    /// What went wrong.
    pub remark: Option<String>,
    /// Milliseconds.
    pub spent_time_mills: i64,
}
