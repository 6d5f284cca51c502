//! Copies of the log, as brokers and controllers describe them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::route::BrokerMemberGroup;

/// The answer to 907: how replication goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HaRuntimeInfo {
    /// The slave's side, on a slave.
    pub ha_client_runtime_info: Option<HaClientRuntimeInfo>,
    /// The slaves, on a master.
    pub ha_connection_info: Vec<HaConnectionRuntimeInfo>,
    /// How many of them keep up.
    pub in_sync_slave_nums: i32,
    /// Whether this is a master.
    pub master: bool,
    /// Where its log ends.
    pub master_commit_log_max_offset: i64,
}

/// One slave, seen from its master.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HaConnectionRuntimeInfo {
    /// Its address.
    pub addr: String,
    /// Bytes behind.
    pub diff: i64,
    /// Whether it keeps up.
    pub in_sync: bool,
    /// How far it says it has come.
    pub slave_ack_offset: i64,
    /// Where the transfer began.
    pub transfer_from_where: i64,
    /// Bytes a second.
    pub transferred_byte_in_second: i64,
    /// Its `brokerId`, of a slave of Gantry. Apache's brokers do not tell it, and its tools pass over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broker_id: Option<i64>,
    /// How far it says its device has come, of a slave of Gantry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slave_flush_offset: Option<i64>,
}

/// A slave, seen from itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HaClientRuntimeInfo {
    /// Whether it is connected.
    pub activated: bool,
    /// When it last heard of its master.
    pub last_read_timestamp: i64,
    /// When it last reported.
    pub last_write_timestamp: i64,
    /// Its master.
    pub master_addr: Option<String>,
    /// How far its master has flushed.
    pub master_flush_offset: i64,
    /// How far it has come.
    pub max_offset: i64,
    /// Bytes a second.
    pub transferred_byte_in_second: i64,
    /// Why the log does not come from its master, of a slave of Gantry that is not connected. Apache's brokers do not tell it, and its tools pass
    /// over it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// The answer to 1007: the epochs of a broker's log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochEntryCache {
    /// Its id.
    pub broker_id: i64,
    /// Its name.
    pub broker_name: String,
    /// Its cluster.
    pub cluster_name: String,
    /// The epochs, oldest first.
    pub epoch_list: Vec<EpochEntry>,
    /// Where its log ends.
    pub max_offset: i64,
}

/// One master's stretch of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochEntry {
    /// Where it ends; `i64::MAX` while it goes on.
    pub end_offset: i64,
    /// Its number.
    pub epoch: i32,
    /// Where it begins.
    pub start_offset: i64,
}

/// The answer to 1006: who keeps up with whom.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BrokerReplicasInfo {
    /// By broker name.
    pub replicas_info_table: BTreeMap<String, ReplicasInfo>,
}

/// The replicas of one broker name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicasInfo {
    /// Those that keep up.
    pub in_sync_replicas: Vec<ReplicaIdentity>,
    /// The master's address.
    pub master_address: Option<String>,
    /// The master's id.
    pub master_broker_id: Option<i64>,
    /// Grows with each election.
    pub master_epoch: Option<i32>,
    /// Those that do not.
    pub not_in_sync_replicas: Vec<ReplicaIdentity>,
    /// Grows with each change of the set.
    pub sync_state_set_epoch: Option<i32>,
}

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaIdentity {
    /// Whether the controller hears of it.
    pub alive: Option<bool>,
    /// Its address.
    pub broker_address: Option<String>,
    /// Its id.
    pub broker_id: Option<i64>,
    /// Its name.
    pub broker_name: Option<String>,
}

/// The body of the answer to 1002.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ElectMasterReplyBody {
    /// The brokers of the name.
    pub broker_member_group: Option<BrokerMemberGroup>,
    /// Those that keep up.
    pub sync_state_set: Option<BTreeSet<i64>>,
}

/// The body of 1008: which replicas are in sync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncStateSet {
    /// Their ids.
    pub sync_state_set: BTreeSet<i64>,
    /// Counts its changes.
    pub sync_state_set_epoch: i32,
}

/// The answer to 354.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RocksdbCqProgress {
    /// What was found.
    pub check_result: Option<String>,
    /// 0 in order, 1 not in order, 2 under way, 3 failed.
    pub check_status: i32,
}

/// The answer to 30003, which is our own: the part that a broker plays in its set, and how far it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberState {
    /// Its cluster.
    pub cluster_name: String,
    /// The name of its set.
    pub broker_name: String,
    /// Its id; 0 of a master.
    pub broker_id: i64,
    /// Where clients reach it, as name servers have it.
    pub broker_addr: String,
    /// `SLAVE`, `ASYNC_MASTER` or `SYNC_MASTER`.
    pub broker_role: String,
    /// It takes no messages any more, and is about to change its role.
    pub is_fenced: bool,
    /// A name server has registered it with this role, or it has none.
    pub is_registered: bool,
    /// The highest epoch that it knows.
    pub epoch: i64,
    /// The epochs of its log.
    pub epochs: Vec<EpochStart>,
    /// Where its log begins.
    pub log_min: i64,
    /// Where its log ends.
    pub log_end: i64,
    /// Where its journal ends.
    pub journal_end: i64,
    /// A slave's master, if that is known.
    pub master_addr: Option<String>,
    /// The log comes from there, or did within its time-out.
    pub is_following: bool,
    /// It is about to follow the journal of its master, and has not all of it yet.
    pub awaits_journal: bool,
    /// Bytes that it is behind there, as its master said a few seconds ago.
    pub behind_bytes: Option<i64>,
    /// The id that a master had as a slave.
    pub former_id: Option<i64>,
    /// It was the master, and asks the broker there to be it.
    pub handed_to: Option<String>,
    /// How the last change of roles went here, since the start.
    pub last_switch: Option<String>,
}

/// Where an epoch begins in a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EpochStart {
    /// Its number.
    pub epoch: i64,
    /// A log offset.
    pub start: i64,
}
