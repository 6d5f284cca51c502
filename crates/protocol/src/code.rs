//! The numbers of requests and responses.
//!
//! All are RocketMQ's but `SEND_TOGETHER`, which is far from those: it fits into the 16 bits that a binary header has for it.

/// Where a server carries out a request.
///
/// A thread that serves connections carries out only what costs at most some 2 ms, however large the tables are: while it computes,
/// it reads no other connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Runs {
    /// On the network worker of its connection: neither a table nor the request's length decides what it costs.
    OnWorker,
    /// On the network worker if the request, and what it is about, are small; otherwise beside.
    BySize,
    /// On a thread that serves no connection: its cost grows with a table, or it waits for the device.
    Beside,
    /// Nowhere: a server sends it, or refuses it.
    Unserved,
}

/// What is known of a request code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// Its number.
    pub code: i32,
    /// RocketMQ's name.
    pub name: &'static str,
    /// Where it is carried out.
    pub runs: Runs,
}

macro_rules! request_codes {
    ($($code:literal $name:ident $runs:ident)*) => {
        /// What a request asks for. RocketMQ's, and one of our own: `SEND_TOGETHER`, see [`crate::together`].
        #[allow(missing_docs, reason = "RocketMQ's names")]
        pub mod request {
            $(pub const $name: i32 = $code;)*
        }

        /// RocketMQ's name of a request code, for logs and metrics.
        pub fn request_name(code: i32) -> Option<&'static str> {
            match code {
                $($code => Some(stringify!($name)),)*
                _ => None,
            }
        }

        /// Where a request of this code is carried out. An unknown one is answered at once.
        pub fn request_runs(code: i32) -> Runs {
            match code {
                $($code => Runs::$runs,)*
                _ => Runs::Unserved,
            }
        }

        /// Every request code, in the order of the numbers.
        pub const REQUESTS: &[RequestRow] =
            &[$(RequestRow { code: $code, name: stringify!($name), runs: Runs::$runs },)*];
    };
}

macro_rules! response_codes {
    ($($code:literal $variant:ident $name:ident)*) => {
        /// How a request ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(i32)]
        #[allow(missing_docs, reason = "RocketMQ's names")]
        pub enum ResponseCode {
            $($variant = $code,)*
        }

        impl ResponseCode {
            /// The code of a number, if it is one.
            pub fn from_i32(code: i32) -> Option<ResponseCode> {
                match code {
                    $($code => Some(ResponseCode::$variant),)*
                    _ => None,
                }
            }

            /// RocketMQ's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(ResponseCode::$variant => stringify!($name),)*
                }
            }
        }
    };
}

impl From<ResponseCode> for i32 {
    fn from(code: ResponseCode) -> i32 {
        code as i32
    }
}

request_codes! {
    10 SEND_MESSAGE OnWorker
    11 PULL_MESSAGE OnWorker
    12 QUERY_MESSAGE Beside
    13 QUERY_BROKER_OFFSET Unserved
    14 QUERY_CONSUMER_OFFSET OnWorker
    15 UPDATE_CONSUMER_OFFSET OnWorker
    17 UPDATE_AND_CREATE_TOPIC OnWorker
    18 UPDATE_AND_CREATE_TOPIC_LIST Beside
    21 GET_ALL_TOPIC_CONFIG Beside
    22 GET_TOPIC_CONFIG_LIST Unserved
    23 GET_TOPIC_NAME_LIST Unserved
    25 UPDATE_BROKER_CONFIG BySize
    26 GET_BROKER_CONFIG Beside
    27 TRIGGER_DELETE_FILES Unserved
    28 GET_BROKER_RUNTIME_INFO Beside
    29 SEARCH_OFFSET_BY_TIMESTAMP OnWorker
    30 GET_MAX_OFFSET OnWorker
    31 GET_MIN_OFFSET OnWorker
    32 GET_EARLIEST_MSG_STORETIME OnWorker
    33 VIEW_MESSAGE_BY_ID OnWorker
    34 HEART_BEAT BySize
    35 UNREGISTER_CLIENT BySize
    36 CONSUMER_SEND_MSG_BACK OnWorker
    37 END_TRANSACTION OnWorker
    38 GET_CONSUMER_LIST_BY_GROUP BySize
    39 CHECK_TRANSACTION_STATE Unserved
    40 NOTIFY_CONSUMER_IDS_CHANGED Unserved
    41 LOCK_BATCH_MQ BySize
    42 UNLOCK_BATCH_MQ BySize
    43 GET_ALL_CONSUMER_OFFSET Beside
    45 GET_ALL_DELAY_OFFSET OnWorker
    46 CHECK_CLIENT_CONFIG BySize
    47 GET_CLIENT_CONFIG Unserved
    50 UPDATE_AND_CREATE_ACL_CONFIG Unserved
    51 DELETE_ACL_CONFIG Unserved
    52 GET_BROKER_CLUSTER_ACL_INFO Unserved
    53 UPDATE_GLOBAL_WHITE_ADDRS_CONFIG Unserved
    54 GET_BROKER_CLUSTER_ACL_CONFIG Unserved
    60 GET_TIMER_CHECK_POINT Beside
    61 GET_TIMER_METRICS Beside
    100 PUT_KV_CONFIG OnWorker
    101 GET_KV_CONFIG OnWorker
    102 DELETE_KV_CONFIG OnWorker
    103 REGISTER_BROKER BySize
    104 UNREGISTER_BROKER Beside
    105 GET_ROUTEINFO_BY_TOPIC OnWorker
    106 GET_BROKER_CLUSTER_INFO Beside
    200 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP BySize
    201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG Beside
    202 GET_TOPIC_STATS_INFO Beside
    203 GET_CONSUMER_CONNECTION_LIST BySize
    204 GET_PRODUCER_CONNECTION_LIST BySize
    205 WIPE_WRITE_PERM_OF_BROKER Beside
    206 GET_ALL_TOPIC_LIST_FROM_NAMESERVER Beside
    207 DELETE_SUBSCRIPTIONGROUP Beside
    208 GET_CONSUME_STATS Beside
    209 SUSPEND_CONSUMER Unserved
    210 RESUME_CONSUMER Unserved
    211 RESET_CONSUMER_OFFSET_IN_CONSUMER Unserved
    212 RESET_CONSUMER_OFFSET_IN_BROKER Unserved
    213 ADJUST_CONSUMER_THREAD_POOL Unserved
    214 WHO_CONSUME_THE_MESSAGE Unserved
    215 DELETE_TOPIC_IN_BROKER Beside
    216 DELETE_TOPIC_IN_NAMESRV Beside
    217 REGISTER_TOPIC_IN_NAMESRV BySize
    219 GET_KVLIST_BY_NAMESPACE Beside
    220 RESET_CONSUMER_CLIENT_OFFSET Unserved
    221 GET_CONSUMER_STATUS_FROM_CLIENT Unserved
    222 INVOKE_BROKER_TO_RESET_OFFSET Beside
    223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS Beside
    224 GET_TOPICS_BY_CLUSTER Beside
    225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST Beside
    300 QUERY_TOPIC_CONSUME_BY_WHO Beside
    301 REGISTER_FILTER_SERVER Unserved
    302 REGISTER_MESSAGE_FILTER_CLASS Unserved
    303 QUERY_CONSUME_TIME_SPAN Beside
    304 GET_SYSTEM_TOPIC_LIST_FROM_NS Beside
    305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER Beside
    306 CLEAN_EXPIRED_CONSUMEQUEUE OnWorker
    307 GET_CONSUMER_RUNNING_INFO OnWorker
    308 QUERY_CORRECTION_OFFSET Beside
    309 CONSUME_MESSAGE_DIRECTLY OnWorker
    310 SEND_MESSAGE_V2 OnWorker
    311 GET_UNIT_TOPIC_LIST Beside
    312 GET_HAS_UNIT_SUB_TOPIC_LIST Beside
    313 GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST Beside
    314 CLONE_GROUP_OFFSET Beside
    315 VIEW_BROKER_STATS_DATA OnWorker
    316 CLEAN_UNUSED_TOPIC Beside
    317 GET_BROKER_CONSUME_STATS Beside
    318 UPDATE_NAMESRV_CONFIG BySize
    319 GET_NAMESRV_CONFIG OnWorker
    320 SEND_BATCH_MESSAGE OnWorker
    321 QUERY_CONSUME_QUEUE Beside
    322 QUERY_DATA_VERSION BySize
    323 RESUME_CHECK_HALF_MESSAGE OnWorker
    324 SEND_REPLY_MESSAGE OnWorker
    325 SEND_REPLY_MESSAGE_V2 OnWorker
    326 PUSH_REPLY_MESSAGE_TO_CLIENT Unserved
    327 ADD_WRITE_PERM_OF_BROKER Beside
    328 GET_ALL_PRODUCER_INFO Beside
    329 DELETE_EXPIRED_COMMITLOG OnWorker
    343 QUERY_TOPICS_BY_CONSUMER Beside
    345 QUERY_SUBSCRIPTION_BY_CONSUMER OnWorker
    351 GET_TOPIC_CONFIG OnWorker
    352 GET_SUBSCRIPTIONGROUP_CONFIG OnWorker
    353 UPDATE_AND_GET_GROUP_FORBIDDEN BySize
    354 CHECK_ROCKSDB_CQ_WRITE_PROGRESS OnWorker
    355 EXPORT_ROCKSDB_CONFIG_TO_JSON OnWorker
    361 LITE_PULL_MESSAGE OnWorker
    370 RECALL_MESSAGE OnWorker
    400 QUERY_ASSIGNMENT BySize
    401 SET_MESSAGE_REQUEST_MODE BySize
    402 GET_ALL_MESSAGE_REQUEST_MODE Beside
    513 UPDATE_AND_CREATE_STATIC_TOPIC Beside
    901 GET_BROKER_MEMBER_GROUP OnWorker
    902 ADD_BROKER Unserved
    903 REMOVE_BROKER Unserved
    904 BROKER_HEARTBEAT OnWorker
    905 NOTIFY_MIN_BROKER_ID_CHANGE OnWorker
    906 EXCHANGE_BROKER_HA_INFO OnWorker
    907 GET_BROKER_HA_STATUS OnWorker
    908 RESET_MASTER_FLUSH_OFFSET OnWorker
    1001 CONTROLLER_ALTER_SYNC_STATE_SET Unserved
    1002 CONTROLLER_ELECT_MASTER Unserved
    1003 CONTROLLER_REGISTER_BROKER Unserved
    1004 CONTROLLER_GET_REPLICA_INFO Unserved
    1005 CONTROLLER_GET_METADATA_INFO Unserved
    1006 CONTROLLER_GET_SYNC_STATE_DATA Unserved
    1007 GET_BROKER_EPOCH_CACHE OnWorker
    1008 NOTIFY_BROKER_ROLE_CHANGED OnWorker
    1009 UPDATE_CONTROLLER_CONFIG Unserved
    1010 GET_CONTROLLER_CONFIG Unserved
    1011 CLEAN_BROKER_DATA Unserved
    1012 CONTROLLER_GET_NEXT_BROKER_ID Unserved
    1013 CONTROLLER_APPLY_BROKER_ID Unserved
    2001 UPDATE_COLD_DATA_FLOW_CTR_CONFIG OnWorker
    2002 REMOVE_COLD_DATA_FLOW_CTR_CONFIG OnWorker
    2003 GET_COLD_DATA_FLOW_CTR_INFO Beside
    2004 SET_COMMITLOG_READ_MODE OnWorker
    3001 AUTH_CREATE_USER OnWorker
    3002 AUTH_UPDATE_USER OnWorker
    3003 AUTH_DELETE_USER OnWorker
    3004 AUTH_GET_USER OnWorker
    3005 AUTH_LIST_USER OnWorker
    3006 AUTH_CREATE_ACL OnWorker
    3007 AUTH_UPDATE_ACL OnWorker
    3008 AUTH_DELETE_ACL OnWorker
    3009 AUTH_GET_ACL OnWorker
    3010 AUTH_LIST_ACL OnWorker
    5001 SWITCH_TIMER_ENGINE OnWorker
    5002 DELETE_TOPIC_IN_BROKER_LIST Unserved
    5003 DELETE_SUBSCRIPTION_GROUP_LIST Unserved
    30001 SEND_TOGETHER OnWorker
    200050 POP_MESSAGE OnWorker
    200051 ACK_MESSAGE OnWorker
    200052 PEEK_MESSAGE OnWorker
    200053 CHANGE_MESSAGE_INVISIBLETIME OnWorker
    200054 NOTIFICATION OnWorker
    200055 POLLING_INFO OnWorker
    200056 POP_ROLLBACK OnWorker
    200070 POP_LITE_MESSAGE OnWorker
    200071 LITE_SUBSCRIPTION_CTL BySize
    200072 ACK_LITE_MESSAGE Unserved
    200073 NOTIFY_UNSUBSCRIBE_LITE Unserved
    200074 GET_BROKER_LITE_INFO Beside
    200075 GET_PARENT_TOPIC_INFO Beside
    200076 GET_LITE_TOPIC_INFO Beside
    200077 GET_LITE_CLIENT_INFO Beside
    200078 GET_LITE_GROUP_INFO Beside
    200079 TRIGGER_LITE_DISPATCH Beside
    200151 BATCH_ACK_MESSAGE BySize
}

response_codes! {
    0 Success SUCCESS
    1 SystemError SYSTEM_ERROR
    2 SystemBusy SYSTEM_BUSY
    3 RequestCodeNotSupported REQUEST_CODE_NOT_SUPPORTED
    4 TransactionFailed TRANSACTION_FAILED
    10 FlushDiskTimeout FLUSH_DISK_TIMEOUT
    11 SlaveNotAvailable SLAVE_NOT_AVAILABLE
    12 FlushSlaveTimeout FLUSH_SLAVE_TIMEOUT
    13 MessageIllegal MESSAGE_ILLEGAL
    14 ServiceNotAvailable SERVICE_NOT_AVAILABLE
    15 VersionNotSupported VERSION_NOT_SUPPORTED
    16 NoPermission NO_PERMISSION
    17 TopicNotExist TOPIC_NOT_EXIST
    18 TopicExistAlready TOPIC_EXIST_ALREADY
    19 PullNotFound PULL_NOT_FOUND
    20 PullRetryImmediately PULL_RETRY_IMMEDIATELY
    21 PullOffsetMoved PULL_OFFSET_MOVED
    22 QueryNotFound QUERY_NOT_FOUND
    23 SubscriptionParseFailed SUBSCRIPTION_PARSE_FAILED
    24 SubscriptionNotExist SUBSCRIPTION_NOT_EXIST
    25 SubscriptionNotLatest SUBSCRIPTION_NOT_LATEST
    26 SubscriptionGroupNotExist SUBSCRIPTION_GROUP_NOT_EXIST
    27 FilterDataNotExist FILTER_DATA_NOT_EXIST
    28 FilterDataNotLatest FILTER_DATA_NOT_LATEST
    29 InvalidParameter INVALID_PARAMETER
    200 TransactionShouldCommit TRANSACTION_SHOULD_COMMIT
    201 TransactionShouldRollback TRANSACTION_SHOULD_ROLLBACK
    202 TransactionStateUnknow TRANSACTION_STATE_UNKNOW
    203 TransactionStateGroupWrong TRANSACTION_STATE_GROUP_WRONG
    204 NoBuyerId NO_BUYER_ID
    205 NotInCurrentUnit NOT_IN_CURRENT_UNIT
    206 ConsumerNotOnline CONSUMER_NOT_ONLINE
    207 ConsumeMsgTimeout CONSUME_MSG_TIMEOUT
    208 NoMessage NO_MESSAGE
    209 PollingFull POLLING_FULL
    210 PollingTimeout POLLING_TIMEOUT
    211 BrokerNotExist BROKER_NOT_EXIST
    212 BrokerDispatchNotComplete BROKER_DISPATCH_NOT_COMPLETE
    213 BroadcastConsumption BROADCAST_CONSUMPTION
    215 FlowControl FLOW_CONTROL
    501 NotLeaderForQueue NOT_LEADER_FOR_QUEUE
    604 IllegalOperation ILLEGAL_OPERATION
    1500 GoAway GO_AWAY
    2000 ControllerFencedMasterEpoch CONTROLLER_FENCED_MASTER_EPOCH
    2001 ControllerFencedSyncStateSetEpoch CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    2002 ControllerInvalidMaster CONTROLLER_INVALID_MASTER
    2003 ControllerInvalidReplicas CONTROLLER_INVALID_REPLICAS
    2004 ControllerMasterNotAvailable CONTROLLER_MASTER_NOT_AVAILABLE
    2005 ControllerInvalidRequest CONTROLLER_INVALID_REQUEST
    2006 ControllerBrokerNotAlive CONTROLLER_BROKER_NOT_ALIVE
    2007 ControllerNotLeader CONTROLLER_NOT_LEADER
    2008 ControllerBrokerMetadataNotExist CONTROLLER_BROKER_METADATA_NOT_EXIST
    2009 ControllerInvalidCleanBrokerMetadata CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    2010 ControllerBrokerNeedToBeRegistered CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    2011 ControllerMasterStillExist CONTROLLER_MASTER_STILL_EXIST
    2012 ControllerElectMasterFailed CONTROLLER_ELECT_MASTER_FAILED
    2013 ControllerAlterSyncStateSetFailed CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    2014 ControllerBrokerIdInvalid CONTROLLER_BROKER_ID_INVALID
    2015 ControllerJraftInternalError CONTROLLER_JRAFT_INTERNAL_ERROR
    2016 ControllerBrokerLiveInfoNotExists CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS
    2017 LmqQuotaExceeded LMQ_QUOTA_EXCEEDED
    2018 LiteSubscriptionQuotaExceeded LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    3001 UserNotExist USER_NOT_EXIST
    3002 PolicyNotExist POLICY_NOT_EXIST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_whose_body_decides_what_they_cost_are_not_bound_to_a_network_worker() {
        for code in [
            request::UPDATE_AND_CREATE_TOPIC_LIST,
            request::UPDATE_BROKER_CONFIG,
            request::HEART_BEAT,
            request::LOCK_BATCH_MQ,
            request::UNLOCK_BATCH_MQ,
            request::CHECK_CLIENT_CONFIG,
            request::REGISTER_BROKER,
            request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            request::REGISTER_TOPIC_IN_NAMESRV,
            request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            request::UPDATE_NAMESRV_CONFIG,
            request::QUERY_DATA_VERSION,
            request::QUERY_ASSIGNMENT,
            request::SET_MESSAGE_REQUEST_MODE,
            request::UPDATE_AND_CREATE_STATIC_TOPIC,
            request::LITE_SUBSCRIPTION_CTL,
            request::BATCH_ACK_MESSAGE,
        ] {
            let runs = request_runs(code);
            assert!(matches!(runs, Runs::BySize | Runs::Beside), "{code} runs {runs:?}");
        }
    }
}
