//! What clients say of themselves, and what is said of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::loose::{loose, loose_i32s};
use super::queue::{MessageQueue, QueueMap};

/// 34: a client lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Heartbeat {
    /// Who.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// The groups that it consumes in.
    pub consumer_data_set: Vec<ConsumerData>,
    /// Hash of its subscriptions (heartbeat v2); 0: none.
    pub heartbeat_fingerprint: i32,
    /// The groups that it produces in.
    pub producer_data_set: Vec<ProducerData>,
    /// The subscriptions are left out: they are those of the fingerprint.
    #[serde(alias = "isWithoutSub")]
    pub without_sub: bool,
}

/// A group that a client produces in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProducerData {
    /// The group.
    pub group_name: String,
}

/// A group that a client consumes in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerData {
    /// Where a new group begins.
    pub consume_from_where: ConsumeFromWhere,
    /// How it gets its messages.
    pub consume_type: ConsumeType,
    /// The group.
    pub group_name: String,
    /// Whether its members share the messages.
    pub message_model: MessageModel,
    /// Its subscriptions.
    pub subscription_data_set: Vec<SubscriptionData>,
    /// Units of old.
    pub unit_mode: bool,
}

/// A constant of a Java enum: by its name, or by its ordinal, as C++ clients say it. fastjson takes both.
#[derive(Deserialize)]
#[serde(untagged)]
enum Constant {
    Ordinal(i64),
    Name(String),
}

impl Constant {
    /// Which of these it is, which stand in Java's order.
    fn among<T: Copy>(&self, constants: &[(&str, T)]) -> Option<T> {
        let found = match self {
            Constant::Ordinal(ordinal) => usize::try_from(*ordinal).ok().and_then(|place| constants.get(place)),
            Constant::Name(name) => constants.iter().find(|(known, _)| *known == name.as_str()),
        };
        found.map(|(_, constant)| *constant)
    }
}

/// How a consumer gets its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", from = "Constant")]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum ConsumeType {
    ConsumeActively,
    ConsumePop,
    /// Also whatever this table does not know.
    #[default]
    ConsumePassively,
}

impl From<Constant> for ConsumeType {
    fn from(said: Constant) -> ConsumeType {
        let constants = [
            ("CONSUME_ACTIVELY", ConsumeType::ConsumeActively),
            ("CONSUME_PASSIVELY", ConsumeType::ConsumePassively),
            ("CONSUME_POP", ConsumeType::ConsumePop),
        ];
        said.among(&constants).unwrap_or_default()
    }
}

/// Whether the members of a group share its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", from = "Constant")]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum MessageModel {
    Broadcasting,
    /// Also whatever this table does not know.
    #[default]
    Clustering,
}

impl From<Constant> for MessageModel {
    fn from(said: Constant) -> MessageModel {
        let constants = [("BROADCASTING", MessageModel::Broadcasting), ("CLUSTERING", MessageModel::Clustering)];
        said.among(&constants).unwrap_or_default()
    }
}

/// Where a new group begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE", from = "Constant")]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum ConsumeFromWhere {
    ConsumeFromLastOffsetAndFromMinWhenBootFirst,
    ConsumeFromMinOffset,
    ConsumeFromMaxOffset,
    ConsumeFromFirstOffset,
    ConsumeFromTimestamp,
    /// Also whatever this table does not know.
    #[default]
    ConsumeFromLastOffset,
}

impl From<Constant> for ConsumeFromWhere {
    fn from(said: Constant) -> ConsumeFromWhere {
        let constants = [
            ("CONSUME_FROM_LAST_OFFSET", ConsumeFromWhere::ConsumeFromLastOffset),
            (
                "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
                ConsumeFromWhere::ConsumeFromLastOffsetAndFromMinWhenBootFirst,
            ),
            ("CONSUME_FROM_MIN_OFFSET", ConsumeFromWhere::ConsumeFromMinOffset),
            ("CONSUME_FROM_MAX_OFFSET", ConsumeFromWhere::ConsumeFromMaxOffset),
            ("CONSUME_FROM_FIRST_OFFSET", ConsumeFromWhere::ConsumeFromFirstOffset),
            ("CONSUME_FROM_TIMESTAMP", ConsumeFromWhere::ConsumeFromTimestamp),
        ];
        said.among(&constants).unwrap_or_default()
    }
}

/// A subscription to a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionData {
    /// Class filters of old.
    pub class_filter_mode: bool,
    /// Java's hash of each tag.
    #[serde(deserialize_with = "loose_i32s")]
    pub code_set: Vec<i32>,
    /// `TAG` or `SQL92`.
    pub expression_type: String,
    /// The expression.
    pub sub_string: String,
    /// The client's clock when it subscribed.
    #[serde(deserialize_with = "loose")]
    pub sub_version: i64,
    /// The tags.
    pub tags_set: Vec<String>,
    /// The topic.
    pub topic: String,
}

impl Default for SubscriptionData {
    fn default() -> Self {
        SubscriptionData {
            class_filter_mode: false,
            code_set: Vec::new(),
            expression_type: "TAG".to_owned(),
            sub_string: String::new(),
            sub_version: 0,
            tags_set: Vec::new(),
            topic: String::new(),
        }
    }
}

/// 46: would this subscription do?
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckClientConfig {
    /// Who asks.
    pub client_id: String,
    /// For which group.
    pub group: String,
    /// In which namespace.
    pub namespace: Option<String>,
    /// Which subscription.
    pub subscription_data: Option<SubscriptionData>,
}

/// 41 and 42: lock or unlock queues for orderly consumption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LockBatch {
    /// Who.
    pub client_id: String,
    /// For which group.
    pub consumer_group: String,
    /// Which queues.
    pub mq_set: Vec<MessageQueue>,
    /// Do not ask the other replicas.
    pub only_this_broker: bool,
}

/// The answer to 41: the queues that are locked now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LockBatchReply {
    /// The queues.
    #[serde(rename = "lockOKMQSet")]
    pub lock_ok_mq_set: Vec<MessageQueue>,
}

/// The answer to 38.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerIdList {
    /// The members of the group.
    pub consumer_id_list: Vec<String>,
}

/// One connection, as 203 and 204 show it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Connection {
    /// Where it comes from.
    pub client_addr: String,
    /// Who it is.
    pub client_id: String,
    /// Its language, by RocketMQ's name.
    pub language: String,
    /// Its version's ordinal.
    pub version: i32,
}

/// The answer to 203.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerConnection {
    /// Who is there.
    pub connection_set: Vec<Connection>,
    /// Where the group begins.
    pub consume_from_where: ConsumeFromWhere,
    /// How it gets its messages.
    pub consume_type: ConsumeType,
    /// Whether its members share them.
    pub message_model: MessageModel,
    /// Its subscriptions by topic.
    pub subscription_table: BTreeMap<String, SubscriptionData>,
}

/// The answer to 204.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProducerConnection {
    /// Who is there.
    pub connection_set: Vec<Connection>,
}

/// One producer, as 328 shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProducerInfo {
    /// Who it is.
    pub client_id: String,
    /// Its language, by RocketMQ's name.
    pub language: String,
    /// When it was last heard of.
    pub last_update_timestamp: i64,
    /// Where it comes from.
    #[serde(rename = "remoteIP")]
    pub remote_ip: String,
    /// Its version's ordinal.
    pub version: i32,
}

/// The answer to 328.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProducerTable {
    /// Producers by group.
    pub data: BTreeMap<String, Vec<ProducerInfo>>,
}

/// 400: which queues are mine?
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryAssignment {
    /// Who asks.
    pub client_id: String,
    /// For which group.
    pub consumer_group: String,
    /// Whether its members share.
    pub message_model: MessageModel,
    /// `AVG` and the like.
    pub strategy_name: Option<String>,
    /// For which topic.
    pub topic: String,
}

/// The answer to 400.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryAssignmentReply {
    /// The queues. None: nobody knows, and the client keeps what it has; empty: none is its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_queue_assignments: Option<Vec<MessageQueueAssignment>>,
}

/// One queue that a client is to consume, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MessageQueueAssignment {
    /// Whatever else.
    pub attachments: Option<BTreeMap<String, String>>,
    /// The queue.
    pub message_queue: MessageQueue,
    /// How.
    pub mode: MessageRequestMode,
}

/// Pull or pop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "RocketMQ's names")]
pub enum MessageRequestMode {
    #[default]
    Pull,
    Pop,
}

/// 401: how a group is to get the messages of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SetMessageRequestMode {
    /// The group.
    pub consumer_group: String,
    /// How.
    pub mode: MessageRequestMode,
    /// How many clients share a queue.
    pub pop_share_queue_num: i32,
    /// The topic.
    pub topic: String,
}

/// 220 and the answer to 222: where each queue begins again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetOffsetBody {
    /// The offsets.
    pub offset_table: QueueMap<i64>,
}

/// 220 as C++ clients read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResetOffsetBodyForC {
    /// The offsets.
    pub offset_table: Vec<QueueOffsetForC>,
}

/// One queue of [`ResetOffsetBodyForC`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueOffsetForC {
    /// The broker's name.
    pub broker_name: String,
    /// Where it begins again.
    pub offset: i64,
    /// The queue's number.
    pub queue_id: i32,
    /// The topic.
    pub topic: String,
}

/// The answer to 221 and 223: the offsets that clients hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumerStatus {
    /// By client.
    pub consumer_table: BTreeMap<String, QueueMap<i64>>,
    /// Of one client.
    pub message_queue_table: QueueMap<i64>,
}
