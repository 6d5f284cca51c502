//! Lite topics: who wants which, and figures.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::stats::{ConsumeOffset, TopicOffset};

/// 200071: changes of what clients subscribe to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiteSubscriptions {
    /// One by one.
    pub subscription_set: Vec<LiteSubscription>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiteSubscription {
    /// Which.
    pub action: LiteSubscriptionAction,
    /// Whose.
    #[serde(default)]
    pub client_id: String,
    /// The client's group.
    #[serde(default)]
    pub group: String,
    /// The topic that holds the lite topics.
    #[serde(default)]
    pub topic: String,
    /// The lite topics.
    #[serde(default)]
    pub lite_topic_set: BTreeSet<String>,
    /// Where the group begins in them; none: where it has come.
    #[serde(default)]
    pub offset_option: Option<LiteOffset>,
    /// Of the client's set; nobody compares it.
    #[serde(default)]
    pub version: i64,
}

/// What becomes of a client's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LiteSubscriptionAction {
    /// These come to them.
    PartialAdd,
    /// These go.
    PartialRemove,
    /// These are all.
    CompleteAdd,
    /// There are none any more.
    CompleteRemove,
}

/// Where a group begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiteOffset {
    /// How to read the value.
    #[serde(rename = "type")]
    pub kind: LiteOffsetKind,
    /// An offset, a number of messages, a time, or a policy: 0 last, 1 first, 2 end.
    #[serde(default)]
    pub value: i64,
}

/// What the value of a [`LiteOffset`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum LiteOffsetKind {
    /// A policy.
    Policy,
    /// An offset.
    Offset,
    /// So many messages before where the group has come.
    TailN,
    /// Milliseconds.
    Timestamp,
}

/// The answer to 200074.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerLiteInfo {
    /// Consume queues in memory.
    pub cq_table_size: i32,
    /// Lite topics in use.
    pub current_lmq_num: i32,
    /// Clients with something to be told.
    pub event_map_size: i32,
    /// Topics that each group subscribes to.
    pub group_meta: BTreeMap<String, BTreeSet<String>>,
    /// Subscriptions in all.
    pub lite_subscription_count: i32,
    /// Lite topics at most.
    pub max_lmq_num: i32,
    /// Committed offsets.
    pub offset_table_size: i32,
    /// Groups that consume in order.
    pub order_info_count: i32,
    /// How queues are stored.
    pub store_type: Option<String>,
    /// Life time of each parent topic's lite topics, in minutes.
    pub topic_meta: BTreeMap<String, i32>,
}

/// The answer to 200075.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentTopicInfo {
    /// Who subscribes.
    pub groups: BTreeSet<String>,
    /// Its lite topics.
    pub lite_topic_count: i32,
    /// Lite topics of the broker.
    pub lmq_num: i32,
    /// The topic.
    pub topic: String,
    /// Minutes that an unused lite topic lives.
    pub ttl: i32,
}

/// The answer to 200076.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiteTopicInfo {
    /// The lite topic.
    pub lite_topic: String,
    /// The topic that holds it.
    pub parent_topic: String,
    /// Whether this broker holds it.
    pub sharding_to_broker: bool,
    /// Who subscribes.
    pub subscriber: Option<Vec<ClientGroup>>,
    /// Its offsets.
    pub topic_offset: Option<TopicOffset>,
}

/// A client in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientGroup {
    /// The client.
    pub client_id: String,
    /// The group.
    pub group: String,
}

/// The answer to 200077.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiteClientInfo {
    /// The client.
    pub client_id: String,
    /// The group.
    pub group: String,
    /// When it was last heard of.
    pub last_access_time: i64,
    /// When it last consumed.
    pub last_consume_time: i64,
    /// How many lite topics it subscribes to.
    pub lite_topic_count: i32,
    /// Which.
    pub lite_topic_set: Option<BTreeSet<String>>,
    /// The topic that holds them.
    pub parent_topic: String,
}

/// The answer to 200078.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiteGroupInfo {
    /// When the oldest message that is not consumed was stored.
    pub earliest_unconsumed_timestamp: i64,
    /// The group.
    pub group: String,
    /// The lite topics with most to do.
    pub lag_count_top_k: Option<Vec<LiteLagInfo>>,
    /// The lite topics that wait longest.
    pub lag_timestamp_top_k: Option<Vec<LiteLagInfo>>,
    /// The lite topic that was asked for.
    pub lite_topic: Option<String>,
    /// Its offsets.
    pub lite_topic_offset_wrapper: Option<ConsumeOffset>,
    /// The topic that holds it.
    pub parent_topic: Option<String>,
    /// Messages that are not consumed.
    pub total_lag_count: i64,
}

/// How far behind one lite topic is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LiteLagInfo {
    /// When its oldest message that is not consumed was stored.
    pub earliest_unconsumed_timestamp: i64,
    /// Messages that are not consumed.
    pub lag_count: i64,
    /// The lite topic.
    pub lite_topic: String,
}
