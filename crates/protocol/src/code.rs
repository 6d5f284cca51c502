//! The codes of requests and responses.

mod requests;

pub use self::requests::{
    Action, Family, Gathers, Named, NamedIn, REQUESTS, RequestCode, RequestRow, Runs, ServedBy, request,
};

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
