//! Figures that a broker tells operators.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::SubscriptionData;
use super::data_version::DataVersion;
use super::queue::{MessageQueue, QueueMap};

/// The answer to 202.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicStatsTable {
    /// By queue.
    pub offset_table: QueueMap<TopicOffset>,
    /// Messages a second.
    pub topic_put_tps: f64,
}

/// One queue of [`TopicStatsTable`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicOffset {
    /// When its last message was stored.
    pub last_update_timestamp: i64,
    /// Where it ends.
    pub max_offset: i64,
    /// Where it begins.
    pub min_offset: i64,
}

/// The answer to 208.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeStats {
    /// Messages a second.
    pub consume_tps: f64,
    /// By queue.
    pub offset_table: QueueMap<ConsumeOffset>,
}

/// One queue of [`ConsumeStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeOffset {
    /// Where the queue ends.
    pub broker_offset: i64,
    /// What is committed.
    pub consumer_offset: i64,
    /// When the message at the committed offset was stored.
    pub last_timestamp: i64,
    /// What was pulled.
    pub pull_offset: i64,
}

/// The answer to 317.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerConsumeStats {
    /// The broker.
    pub broker_addr: String,
    /// Each entry holds one group.
    pub consume_stats_list: Vec<BTreeMap<String, Vec<ConsumeStats>>>,
    /// How far all are behind.
    pub total_diff: i64,
    /// What is pulled but not committed.
    pub total_inflight_diff: i64,
}

/// The answer to 315.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerStatsData {
    /// Of the last day.
    pub stats_day: BrokerStatsItem,
    /// Of the last hour.
    pub stats_hour: BrokerStatsItem,
    /// Of the last minute.
    pub stats_minute: BrokerStatsItem,
}

/// One span of [`BrokerStatsData`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BrokerStatsItem {
    /// For each call.
    pub avgpt: f64,
    /// In all.
    pub sum: i64,
    /// A second.
    pub tps: f64,
}

/// The answer to 303.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeTimeSpans {
    /// One for each queue.
    pub consume_time_span_set: Vec<QueueTimeSpan>,
}

/// One queue of [`ConsumeTimeSpans`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueTimeSpan {
    /// When the message at the committed offset was stored.
    pub consume_time_stamp: i64,
    /// How far that is behind.
    pub delay_time: i64,
    /// When the last message was stored.
    pub max_time_stamp: i64,
    /// The queue.
    pub message_queue: MessageQueue,
    /// When the first message was stored.
    pub min_time_stamp: i64,
}

/// The answer to 321.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryConsumeQueueReply {
    /// The filter of the group.
    pub filter_data: Option<String>,
    /// Where the queue ends.
    pub max_queue_index: i64,
    /// Where it begins.
    pub min_queue_index: i64,
    /// The units.
    pub queue_data: Vec<ConsumeQueueUnit>,
    /// The subscription of the group.
    pub subscription_data: Option<SubscriptionData>,
}

/// One unit of [`QueryConsumeQueueReply`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumeQueueUnit {
    /// Of the filter.
    pub bit_map: Option<String>,
    /// Whether the subscription matches.
    pub eval: bool,
    /// Of the extension.
    pub extend_data_json: Option<String>,
    /// Why the message could not be looked at.
    pub msg: Option<String>,
    /// Where the record lies.
    pub physic_offset: i64,
    /// Its size.
    pub physic_size: i32,
    /// The code of its tags.
    pub tags_code: i64,
}

/// The answer to 308.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CorrectionOffsets {
    /// By queue.
    pub correction_offsets: BTreeMap<i32, i64>,
}

/// The answer to 61, and `config/timermetrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TimerMetrics {
    /// Its version.
    pub data_version: DataVersion,
    /// By topic.
    pub timing_count: BTreeMap<String, TopicTimers>,
}

/// The timer messages of a topic that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopicTimers {
    /// How many.
    pub count: i64,
    /// When their number changed last, in ms since 1970.
    pub time_stamp: i64,
}
