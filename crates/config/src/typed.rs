//! The settings as plain structs, one for each consumer. (The name server has its own table of options, fed key by key.)
//!
//! A line reads: field, type, key. Every key that the table calls used is read here, and no other (a test holds the two together).

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::finding::{RATIO_LIMITS, round_up};
use crate::key::{Kind, parse_bool, parse_number};
use crate::keys;
use crate::labels;
use crate::networks::Networks;
use crate::settings::{ConfigError, Settings};

/// A type that a setting can have. The text has passed the key's own check.
trait Typed: Sized {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError>;
}

fn number(settings: &Settings, name: &str) -> Result<i64, ConfigError> {
    let text = settings.text(name);
    let scaled =
        matches!(keys::find(settings.role(), name).map(|key| key.kind), Some(Kind::Number { scaled: true, .. }));
    parse_number(&text, scaled).ok_or_else(|| invalid(settings, name, "not a whole number"))
}

fn invalid(settings: &Settings, name: &str, objection: &str) -> ConfigError {
    let (key, value, origin) = (name.to_owned(), settings.text(name), settings.origin(name));
    ConfigError::Invalid { key, value, origin, objection: objection.to_owned() }
}

macro_rules! whole_numbers {
    ($($type:ty),*) => {$(
        impl Typed for $type {
            fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
                <$type>::try_from(number(settings, name)?).map_err(|_| invalid(settings, name, "out of range"))
            }
        }
    )*};
}
whole_numbers!(i32, i64, u16, u32, u64, usize);

impl Typed for bool {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        parse_bool(&settings.text(name)).ok_or_else(|| invalid(settings, name, "neither true nor false"))
    }
}

impl Typed for String {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Ok(settings.text(name))
    }
}

impl Typed for PathBuf {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Ok(PathBuf::from(settings.text(name)))
    }
}

/// Joined by commas.
impl Typed for Vec<PathBuf> {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        let text = settings.text(name);
        Ok(text.split(',').map(str::trim).filter(|path| !path.is_empty()).map(PathBuf::from).collect())
    }
}

impl Typed for Option<PathBuf> {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Ok(Some(settings.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from))
    }
}

impl Typed for Option<String> {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Ok(Some(settings.text(name)).filter(|text| !text.is_empty()))
    }
}

/// A text that no output of the settings shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("******")
    }
}

impl Typed for Option<Hidden> {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Ok(Some(settings.text(name)).filter(|text| !text.is_empty()).map(Hidden))
    }
}

impl Typed for IpAddr {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        settings.text(name).parse().map_err(|_| invalid(settings, name, "not an IP address"))
    }
}

/// Semicolons between, as everywhere in RocketMQ.
impl Typed for Vec<String> {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        let text = settings.text(name);
        Ok(text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect())
    }
}

/// Labels of metrics, with what a start has to object to left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(pub Vec<(String, String)>);

impl Typed for Labels {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Ok(Labels(labels::parse(&settings.text(name)).labels))
    }
}

/// The port at which slaves get the log. Where it is not set, or not above 0, it is the one behind `listenPort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HaPort(pub u16);

impl Typed for HaPort {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        let set = number(settings, name)?;
        let port = if set > 0 { set } else { number(settings, "listenPort")?.saturating_add(1) };
        let objection = "no port: listenPort + 1 is above 65535; set haListenPort to a port that is free";
        u16::try_from(port).map(HaPort).map_err(|_| invalid(settings, name, objection))
    }
}

impl Typed for Networks {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        Networks::parse(&settings.text(name)).map_err(|objection| invalid(settings, name, &objection))
    }
}

/// Hours of the day.
impl Typed for Vec<u8> {
    fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        let hour = |text: &String| text.parse::<u8>().ok().filter(|hour| *hour < 24);
        let hours: Option<Vec<u8>> = Vec::<String>::read(settings, name)?.iter().map(hour).collect();
        hours.ok_or_else(|| invalid(settings, name, "not a list of hours from 00 to 23, separated by semicolons"))
    }
}

/// A closed set of words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$word_doc])* $variant),* }

        impl Typed for $name {
            fn read(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
                let text = settings.text(name);
                $(if text.eq_ignore_ascii_case($word) { return Ok($name::$variant); })*
                Err(invalid(settings, name, "not one of the words it takes"))
            }
        }
    };
}

words! {
    /// How consumers get their messages.
    RequestMode {
        /// They pull from queues that are theirs.
        Pull = "PULL",
        /// They pop what the broker gives them.
        Pop = "POP",
    }
}

words! {
    /// When a send is acknowledged with respect to the disk.
    FlushDiskType {
        /// When the bytes are in the kernel.
        Async = "ASYNC_FLUSH",
        /// When the device has them.
        Sync = "SYNC_FLUSH",
    }
}

words! {
    /// What a broker is in its group.
    BrokerRole {
        /// Replicas follow when they can.
        AsyncMaster = "ASYNC_MASTER",
        /// An acknowledgement stands for `inSyncReplicas` copies.
        SyncMaster = "SYNC_MASTER",
        /// It copies what its master has.
        Slave = "SLAVE",
    }
}

words! {
    /// What a port takes.
    TlsMode {
        /// Plain connections only.
        Disabled = "disabled",
        /// Both; the first byte decides.
        Permissive = "permissive",
        /// TLS only.
        Enforcing = "enforcing",
    }
}

words! {
    /// Whether a client has to show a certificate.
    ClientAuth {
        /// It is not asked.
        None = "none",
        /// It is asked and may decline.
        Optional = "optional",
        /// Without one it is not let in.
        Require = "require",
    }
}

words! {
    /// How metrics are given out.
    MetricsExporter {
        /// Not at all.
        Disable = "DISABLE",
        /// Pushed: not by us.
        OtlpGrpc = "OTLP_GRPC",
        /// At `/metrics`, for Prometheus.
        Prom = "PROM",
        /// Into the log, now and then.
        Log = "LOG",
    }
}

/// A struct of settings, the function that reads it, and the list of keys it reads.
macro_rules! settings {
    ($(#[$doc:meta])* $name:ident via $read:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $key:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type),* }

        impl $name {
            /// The keys this is made from.
            pub const KEYS: &'static [&'static str] = &[$($key),*];
        }

        impl Settings {
            fn $read(&self) -> Result<$name, ConfigError> {
                Ok($name { $($field: <$type as Typed>::read(self, $key)?),* })
            }
        }
    };
}

settings! {
    /// What `broker` is made with.
    BrokerSettings via read_broker {
        /// The name of the group of master and slaves.
        broker_name: String = "brokerName";
        /// The cluster it belongs to.
        broker_cluster_name: String = "brokerClusterName";
        /// 0: a master.
        broker_id: i64 = "brokerId";
        /// What clients are told to connect to: an address, or a DNS name, which they resolve. Records hold the address that it had
        /// at the start.
        broker_ip1: String = "brokerIP1";
        /// What slaves are told to connect to.
        broker_ip2: String = "brokerIP2";
        /// Where clients connect.
        listen_port: u16 = "listenPort";
        /// Where slaves get the log; told to the name server as `haServerAddr`.
        ha_listen_port: HaPort = "haListenPort";
        /// Master, or a slave that follows one.
        broker_role: BrokerRole = "brokerRole";
        /// Where a slave finds its master's log, if not where the name servers say.
        ha_master_address: Option<String> = "haMasterAddress";
        /// A slave that has reported nothing for so many ms repeats its last report; a master that has sent nothing sends a heartbeat.
        ha_send_heartbeat_interval: u64 = "haSendHeartbeatInterval";
        /// A master that has sent nothing for so many ms is gone, and a slave that has reported nothing.
        ha_housekeeping_interval: u64 = "haHousekeepingInterval";
        /// Does a slave with an empty log copy the last file only, and does a master give it no more?
        sync_from_last_file: bool = "syncFromLastFile";
        /// The longest body of a frame to a slave, in bytes.
        ha_transfer_batch_size: usize = "haTransferBatchSize";
        /// Is there a limit to what goes to a slave in a second?
        ha_flow_control_enable: bool = "haFlowControlEnable";
        /// The limit, in bytes.
        max_ha_transfer_byte_in_second: u64 = "maxHaTransferByteInSecond";
        /// A slave that is so many bytes behind is not in sync.
        ha_max_gap_not_in_sync: u64 = "haMaxGapNotInSync";
        /// Addresses that may have the log, besides those of this set.
        replica_allow: Networks = "replicaAllow";
        /// Does a slave ask its master for what only that may do, in the name of its clients?
        forward_to_master: bool = "forwardToMaster";
        /// What the brokers of a set prove to each other before the log goes from one to the other.
        replica_secret: Option<Hidden> = "replicaSecret";
        /// Percent of the log's file system that is kept for slaves which are behind.
        replica_retention_max: u64 = "replicaRetentionMax";
        /// Does a slave answer pulls, and does a master send readers to slaves?
        slave_read_enable: bool = "slaveReadEnable";
        /// Where to register.
        namesrv_addr: Vec<String> = "namesrvAddr";
        /// Read 4, write 2: laid over the permission of every topic at registration.
        broker_permission: i32 = "brokerPermission";
        /// Queues of a topic that is made by its first send, at most.
        default_topic_queue_nums: i32 = "defaultTopicQueueNums";
        /// Does a send make its topic?
        auto_create_topic_enable: bool = "autoCreateTopicEnable";
        /// Does a consumer make its group?
        auto_create_subscription_group: bool = "autoCreateSubscriptionGroup";
        /// Is there a topic named like the cluster?
        cluster_topic_enable: bool = "clusterTopicEnable";
        /// Is there a topic named like the broker?
        broker_topic_enable: bool = "brokerTopicEnable";
        /// Is the trace topic made at start?
        trace_topic_enable: bool = "traceTopicEnable";
        /// Its name.
        msg_trace_topic_name: String = "msgTraceTopicName";
        /// Told to producers in every send reply.
        region_id: String = "regionId";
        /// Told to producers in every send reply.
        trace_on: bool = "traceOn";
        /// May messages that wait for their time be taken back?
        recall_message_enable: bool = "recallMessageEnable";
        /// Also while the broker may not be written to?
        allow_recall_when_broker_not_writeable: bool = "allowRecallWhenBrokerNotWriteable";
        /// May a pull wait as long as its client says?
        long_polling_enable: bool = "longPollingEnable";
        /// How long it waits otherwise.
        short_polling_time_mills: u64 = "shortPollingTimeMills";
        /// Are the members of a group told when it changes?
        notify_consumer_ids_changed_enable: bool = "notifyConsumerIdsChangedEnable";
        /// At once, or in the next round?
        real_time_notify_consumer_change: bool = "realTimeNotifyConsumerChange";
        /// Is request 361 answered?
        lite_pull_message_enable: bool = "litePullMessageEnable";
        /// Are consumers that pull by themselves refused?
        reject_pull_consumer_enable: bool = "rejectPullConsumerEnable";
        /// May consumers filter by conditions on properties (SQL92)?
        enable_property_filter: bool = "enablePropertyFilter";
        /// How many consumers a bloom filter of `consumerFilter.json` is for.
        expect_consumer_num_use_filter: u32 = "expectConsumerNumUseFilter";
        /// In how many percent of all cases it may err.
        max_error_rate_of_bloom_filter: u32 = "maxErrorRateOfBloomFilter";
        /// How long a group that has left is remembered there, in ms.
        filter_data_clean_time_span: i64 = "filterDataCleanTimeSpan";
        /// Do retries pass the filter that their message passed?
        filter_support_retry: bool = "filterSupportRetry";
        /// Are half messages refused?
        reject_transaction_message: bool = "rejectTransactionMessage";
        /// How old a half message is when its producer is asked first, in ms.
        transaction_time_out: i64 = "transactionTimeOut";
        /// Are replies to requests stored, besides being pushed?
        store_reply_message_enable: bool = "storeReplyMessageEnable";
        /// How often a producer is asked before a half message is given up.
        transaction_check_max: u32 = "transactionCheckMax";
        /// Pause between two questions about one half message, in ms.
        transaction_check_interval: i64 = "transactionCheckInterval";
        /// Sends are refused before this time, in ms since 1970.
        start_accept_send_request_time_stamp: i64 = "startAcceptSendRequestTimeStamp";
        /// Pause between registrations, in ms.
        register_name_server_period: u64 = "registerNameServerPeriod";
        /// How long a registration may take, in ms.
        register_broker_timeout_mills: u64 = "registerBrokerTimeoutMills";
        /// Is the body of a registration compressed?
        compressed_register: bool = "compressedRegister";
        /// Are many topics registered in several requests?
        enable_split_registration: bool = "enableSplitRegistration";
        /// How many go into one.
        split_registration_size: usize = "splitRegistrationSize";
        /// A client that says nothing for so many ms is gone.
        channel_expired_timeout: u64 = "channelExpiredTimeout";
        /// Does the broker itself reset offsets (222)?
        use_server_side_reset_offset: bool = "useServerSideResetOffset";
        /// Is request 400 answered with queues that the broker shared out?
        server_load_balancer_enable: bool = "serverLoadBalancerEnable";
        /// Pause between exports of the offsets into `config/*.json`, in ms.
        flush_consumer_offset_interval: u64 = "flushConsumerOffsetInterval";
        /// Is an administrator kept from changing system topics?
        validate_system_topic_when_update_topic: bool = "validateSystemTopicWhenUpdateTopic";
        /// May a topic be of type MIXED?
        enable_mixed_message_type: bool = "enableMixedMessageType";
        /// Are producers remembered by their heartbeats?
        enable_register_producer: bool = "enableRegisterProducer";
        /// Keys that request 25 must not change.
        config_black_list: Vec<String> = "configBlackList";
        /// Pulls that may wait for a message.
        parked_pulls_max: usize = "parkedPullsMax";
        /// Those of one connection.
        parked_pulls_per_connection_max: usize = "parkedPullsPerConnectionMax";
        /// Pops of one group and topic that may wait for a message.
        pop_polling_size: usize = "popPollingSize";
        /// Groups and topics that pops may wait for.
        pop_polling_map_size: usize = "popPollingMapSize";
        /// One that nobody waits for is forgotten after so many seconds.
        pop_polling_map_expire_time_seconds: u64 = "popPollingMapExpireTimeSeconds";
        /// Pops that may wait for a message.
        max_pop_polling_size: usize = "maxPopPollingSize";
        /// Queues of the topic where Apache keeps its check-points.
        revive_queue_num: i32 = "reviveQueueNum";
        /// May a group that is new begin with the first message, if that is in memory?
        init_pop_offset_by_check_msg_in_mem: bool = "initPopOffsetByCheckMsgInMem";
        /// Are retries of the first form read besides those of the second?
        retrieve_message_from_pop_retry_topic_v1: bool = "retrieveMessageFromPopRetryTopicV1";
        /// Do retries go to `%RETRY%group+topic`?
        enable_retry_topic_v2: bool = "enableRetryTopicV2";
        /// In how many of a hundred pops do retries come first?
        pop_from_retry_probability: u32 = "popFromRetryProbability";
        /// The same of pops that look into the queues of a topic by priority.
        pop_from_retry_probability_for_priority: u32 = "popFromRetryProbabilityForPriority";
        /// Does a larger priority go first?
        priority_order_asc: bool = "priorityOrderAsc";
        /// How groups get their messages where nobody said it.
        default_message_request_mode: RequestMode = "defaultMessageRequestMode";
        /// How many members share a queue then.
        default_pop_share_queue_num: i32 = "defaultPopShareQueueNum";
        /// Do retries keep the name of their topic?
        pop_response_return_actual_retry_topic: bool = "popResponseReturnActualRetryTopic";
        /// Messages of one queue and group that may be on lease …
        pop_inflight_message_threshold: usize = "popInflightMessageThreshold";
        /// … if so.
        enable_pop_message_threshold: bool = "enablePopMessageThreshold";
        /// Do retry topics go with their topic?
        clear_retry_topic_when_delete_topic: bool = "clearRetryTopicWhenDeleteTopic";
        /// Pops whose messages are neither acknowledged nor over.
        pop_leases_max: usize = "popLeasesMax";
        /// Half messages that wait for their end; more are refused.
        open_half_messages_max: usize = "openHalfMessagesMax";
        /// How long a send waits for room in the log, in ms.
        room_timeout_millis: u64 = "roomTimeoutMillis";
        /// Messages and waits are compared by windows of so many ms.
        throughput_window_millis: u64 = "throughputWindowMillis";
        /// A send that was there within so many ms is not stored again; 0: off.
        repeated_send_window_millis: u64 = "repeatedSendWindowMillis";
        /// Sends that are remembered for it.
        repeated_sends_max: usize = "repeatedSendsMax";
        /// Subscriptions to lite topics at most.
        max_lite_subscription_count: usize = "maxLiteSubscriptionCount";
        /// Pause between looks for silent lite topics, in ms.
        lite_ttl_check_interval: u64 = "liteTtlCheckInterval";
        /// A lite topic lives so long at least, in ms.
        min_lite_ttl: u64 = "minLiteTTl";
        /// Pause between looks for silent subscribers of lite topics, in ms.
        lite_subscription_check_interval: u64 = "liteSubscriptionCheckInterval";
        /// One that is silent for so long is forgotten, in ms.
        lite_subscription_check_timeout_mills: u64 = "liteSubscriptionCheckTimeoutMills";
        /// Pause between looks for clients of lite topics that do not read, in ms.
        lite_event_check_interval: u64 = "liteEventCheckInterval";
        /// A client that could not be told of more lite topics is told so much later, in ms.
        lite_event_full_dispatch_delay_time: u64 = "liteEventFullDispatchDelayTime";
        /// The same for groups that get all lite topics.
        lite_event_full_dispatch_delay_time_for_wildcard_group: u64 = "liteEventFullDispatchDelayTimeForWildcardGroup";
        /// Lite topics that a client is told of at once.
        max_client_event_count: usize = "maxClientEventCount";
        /// Is each light queue counted for itself?
        enable_lmq_stats: bool = "enableLmqStats";
        /// Bursts of one connection that may wait for the device.
        unflushed_bursts_per_connection_max: usize = "unflushedBurstsPerConnectionMax";
        /// Sends that a client may put into one request; 0: clients are not told that they may.
        send_together_parts_max: usize = "sendTogetherPartsMax";
        /// Connections of one port; shown by the broker, kept by its listeners.
        connections_max: usize = "connectionsMax";
        /// A queue lock that is not renewed for so many ms is free.
        rebalance_lock_max_live_time: u64 = "rocketmq.broker.rebalance.lockMaxLiveTime";
    }
}

settings! {
    /// What `store` is made with, and the limits that `broker` checks for it.
    StoreSettings via read_store {
        /// Everything lies below it.
        store_path_root_dir: PathBuf = "storePathRootDir";
        /// The commit log: one folder, or several that share its files.
        store_path_commit_log: Vec<PathBuf> = "storePathCommitLog";
        /// Folders that hold files of the log and get no more.
        read_only_commit_log_store_paths: Vec<PathBuf> = "readOnlyCommitLogStorePaths";
        /// Bytes of one file of the log, if there are none yet on disk.
        mapped_file_size_commit_log: u64 = "mappedFileSizeCommitLog";
        /// Bytes of one file of a consume queue: a multiple of 20.
        mapped_file_size_consume_queue: u64 = "mappedFileSizeConsumeQueue";
        /// Bytes of a file of a consume queue of a BatchCQ topic.
        mapper_file_size_batch_consume_queue: u64 = "mapperFileSizeBatchConsumeQueue";
        /// When a send is acknowledged.
        flush_disk_type: FlushDiskType = "flushDiskType";
        /// Master, alone or waiting for copies.
        broker_role: BrokerRole = "brokerRole";
        /// How many copies an acknowledgement stands for, our own included.
        in_sync_replicas: u32 = "inSyncReplicas";
        /// With fewer copies in sync, our own included, sends are refused.
        min_in_sync_replicas: u32 = "minInSyncReplicas";
        /// Does an acknowledgement wait for no more copies than are in sync?
        enable_auto_in_sync_replicas: bool = "enableAutoInSyncReplicas";
        /// How long a send may wait for slaves, in ms.
        slave_timeout: u64 = "slaveTimeout";
        /// A slave that is so many bytes behind is not in sync.
        ha_max_gap_not_in_sync: u64 = "haMaxGapNotInSync";
        /// How long a send may wait for the device, in ms.
        sync_flush_timeout: u64 = "syncFlushTimeout";
        /// Do records gather in a pool before a thread writes them to the log?
        transient_store_pool_enable: bool = "transientStorePoolEnable";
        /// In so many buffers.
        transient_store_pool_size: usize = "transientStorePoolSize";
        /// Is a send refused when none is free?
        fast_fail_if_no_buffer_in_store_pool: bool = "fastFailIfNoBufferInStorePool";
        /// Pause between flushes of the log in ASYNC_FLUSH, in ms.
        flush_interval_commit_log: u64 = "flushIntervalCommitLog";
        /// Hours of the day at which expired files go.
        delete_when: Vec<u8> = "deleteWhen";
        /// Files of the log that go in one look at most.
        delete_file_batch_max: usize = "deleteFileBatchMax";
        /// Hours that a file is kept.
        file_reserved_time: u64 = "fileReservedTime";
        /// Hours after its last commit for which a group that is not connected is active; 0: as `fileReservedTime`.
        active_group_hours: u64 = "activeGroupHours";
        /// Percent of the disk above which expired files go at any hour.
        disk_max_used_space_ratio: u32 = "diskMaxUsedSpaceRatio";
        /// Percent above which the oldest files go, expired or not.
        disk_space_clean_forcibly_ratio: u32 = "diskSpaceCleanForciblyRatio";
        /// Percent above which sends are refused.
        disk_space_warning_level_ratio: u32 = "diskSpaceWarningLevelRatio";
        /// May files go that have not expired?
        clean_file_forcibly_enable: bool = "cleanFileForciblyEnable";
        /// Bytes of the log above which the oldest files are expired; 0: no limit.
        commit_log_bytes_max: u64 = "commitLogBytesMax";
        /// Pause between looks at the disk, in ms.
        clean_resource_interval: u64 = "cleanResourceInterval";
        /// Are there light queues? With the next one only.
        enable_lmq: bool = "enableLmq";
        /// Do messages stand in the light queues that they name?
        enable_multi_dispatch: bool = "enableMultiDispatch";
        /// Light queues at most.
        max_lmq_consume_queue_num: usize = "maxLmqConsumeQueueNum";
        /// Longest body, in bytes.
        max_message_size: usize = "maxMessageSize";
        /// Are bodies checked against their CRC in recovery?
        check_crc_on_recover: bool = "checkCRCOnRecover";
        /// Are they when they come from the device, before a consumer gets them?
        check_crc_on_read: bool = "checkCRCOnRead";
        /// Limits of one pull from memory and from disk.
        max_transfer_bytes_on_message_in_memory: usize = "maxTransferBytesOnMessageInMemory";
        /// See above.
        max_transfer_count_on_message_in_memory: usize = "maxTransferCountOnMessageInMemory";
        /// See above.
        max_transfer_bytes_on_message_in_disk: usize = "maxTransferBytesOnMessageInDisk";
        /// See above.
        max_transfer_count_on_message_in_disk: usize = "maxTransferCountOnMessageInDisk";
        /// A reader that is farther behind the log's end than so much of the memory, in percent, is one for a slave.
        access_message_in_memory_max_ratio: u64 = "accessMessageInMemoryMaxRatio";
        /// Bytes of a consume queue that one filtered pull looks through.
        max_filter_message_size: usize = "maxFilterMessageSize";
        /// Are messages found by key?
        message_index_enable: bool = "messageIndexEnable";
        /// Slots of a file of the key index.
        max_hash_slot_num: u32 = "maxHashSlotNum";
        /// Keys of a file of the key index, and one.
        max_index_num: u32 = "maxIndexNum";
        /// Messages in one answer to a query at most.
        max_msgs_num_batch: usize = "maxMsgsNumBatch";
        /// Messages in the answer to a query by unique id at most.
        default_query_max_num: usize = "defaultQueryMaxNum";
        /// The delay table.
        message_delay_level: String = "messageDelayLevel";
        /// Are delivery times taken, and messages delivered at them?
        timer_wheel_enable: bool = "timerWheelEnable";
        /// The length of a slot of time, in ms.
        timer_precision_ms: i64 = "timerPrecisionMs";
        /// Messages due later than so many slots are stored again on the way.
        timer_roll_window_slot: i64 = "timerRollWindowSlot";
        /// Pause between check-points of timer messages, in ms.
        timer_flush_interval_ms: u64 = "timerFlushIntervalMs";
        /// Bytes of a file of the timer log.
        mapped_file_size_timer_log: u64 = "mappedFileSizeTimerLog";
        /// Longest delay, in seconds.
        timer_max_delay_sec: i64 = "timerMaxDelaySec";
        /// Are stored timer messages left in their queue?
        timer_stop_enqueue: bool = "timerStopEnqueue";
        /// Are timer messages that are due kept back?
        timer_stop_dequeue: bool = "timerStopDequeue";
        /// Messages due in one slot from which on sends are refused at random; all of them at twice as many.
        timer_congest_num_each_slot: i64 = "timerCongestNumEachSlot";
        /// How long changes wait in the journal for others, in ms.
        journal_bundle_delay_millis: u64 = "journalBundleDelayMillis";
        /// The same when somebody waits for one.
        journal_complete_delay_millis: u64 = "journalCompleteDelayMillis";
        /// How long committed offsets gather before they go there, in ms.
        journal_offsets_millis: u64 = "journalOffsetsMillis";
        /// When the journal is snapshotted: bytes …
        journal_snapshot_min_bytes: u64 = "journalSnapshotMinBytes";
        /// … percent of the last snapshot …
        journal_snapshot_ratio_percent: u64 = "journalSnapshotRatioPercent";
        /// … and which share of all that is written the last one may be, in percent.
        journal_maintenance_percent: u64 = "journalMaintenancePercent";
        /// How long a changed file of the configuration waits at most until it is paid, in ms.
        journal_unpaid_millis: u64 = "journalUnpaidMillis";
        /// How long nothing changed when the journal is idle, in ms.
        journal_idle_millis: u64 = "journalIdleMillis";
        /// Bytes of changes that may wait for the device before they are folded.
        journal_pending_bytes_max: usize = "journalPendingBytesMax";
        /// Bytes of the journal's file made ready at a time.
        journal_room_bytes: u64 = "journalRoomBytes";
    }
}

settings! {
    /// What listeners are made with.
    NetSettings via read_net {
        /// Where to listen.
        bind_address: IpAddr = "bindAddress";
        /// The port of the broker, or of a name server that runs alone.
        listen_port: u16 = "listenPort";
        /// A connection that says nothing for so many seconds is closed.
        server_channel_max_idle_time_seconds: u64 = "serverChannelMaxIdleTimeSeconds";
        /// The kernel's send buffer; 0 leaves it to the kernel.
        server_socket_snd_buf_size: usize = "serverSocketSndBufSize";
        /// The kernel's receive buffer; 0 leaves it to the kernel.
        server_socket_rcv_buf_size: usize = "serverSocketRcvBufSize";
        /// Are clients sent away before connections close?
        enable_shutdown_gracefully: bool = "enableShutdownGracefully";
        /// For so many seconds.
        shutdown_wait_time_seconds: u64 = "shutdownWaitTimeSeconds";
        /// Connections of one port.
        connections_max: usize = "connectionsMax";
        /// Connections of one address; 0: any number.
        connections_per_address_max: usize = "connectionsPerAddressMax";
        /// A connection that has not said anything after so many seconds is closed; 0: when it is idle.
        first_frame_timeout_seconds: u64 = "firstFrameTimeoutSeconds";
        /// A connection that takes none of its answers for so many seconds is closed; 0: when it is idle.
        unread_timeout_seconds: u64 = "unreadTimeoutSeconds";
        /// What large requests and replies may hold together.
        request_bytes_max: usize = "requestBytesMax";
        /// Longest frame.
        frame_max_length: usize = "com.rocketmq.remoting.frameMaxLength";
    }
}

settings! {
    /// How metrics are given out.
    MetricsSettings via read_metrics {
        /// In which way.
        exporter: MetricsExporter = "metricsExporterType";
        /// The port of `/metrics`.
        port: u16 = "metricsPromExporterPort";
        /// Its address; none: where the broker listens.
        host: Option<String> = "metricsPromExporterHost";
        /// How often they are logged, in ms.
        log_every_ms: u64 = "metricLoggingExporterIntervalInMills";
        /// What each has besides its own labels.
        labels: Labels = "metricsLabel";
        /// Sets of labels that one metric may have.
        label_sets_max: usize = "metricsOtelCardinalityLimit";
    }
}

settings! {
    /// How much memory the process may occupy.
    MemorySettings via read_memory {
        /// In bytes; 0: found out.
        memory_limit: u64 = "memoryLimit";
        /// Is the page cache of the store's files kept within it?
        cache_reclaim_enable: bool = "cacheReclaimEnable";
        /// Pause between two passes, in ms.
        cache_reclaim_millis: u64 = "cacheReclaimMillis";
        /// 32 pages for each processor and unit of weight go in one pass, at least.
        cache_reclaim_weight: u32 = "cacheReclaimWeight";
    }
}

words! {
    /// By which keys the controllers are named.
    ControllerType {
        /// `controllerDLeger…`
        DLedger = "DLedger",
        /// `jRaft…`
        JRaft = "jRaft",
    }
}

settings! {
    /// What a controller is made with.
    ControllerSettings via read_controller {
        /// By which keys the controllers are named.
        controller_type: ControllerType = "controllerType";
        /// The name of the group.
        group: String = "controllerDLegerGroup";
        /// Its controllers.
        peers: String = "controllerDLegerPeers";
        /// Which of them this one is.
        self_id: String = "controllerDLegerSelfId";
        /// Its folder.
        store_path: PathBuf = "controllerStorePath";
        /// May a broker be elected that is not in sync?
        enable_elect_unclean_master: bool = "enableElectUncleanMaster";
        /// Are brokers told of elections?
        notify_broker_role_changed: bool = "notifyBrokerRoleChanged";
        /// Keys that cannot be changed from afar, separated by semicolons.
        config_black_list: String = "configBlackList";
        /// With JRaft's keys: the name of the group.
        jraft_group: String = "jRaftGroupId";
        /// This controller in the list below.
        jraft_server: String = "jRaftServerId";
        /// The controllers.
        jraft_servers: String = "jRaftInitConf";
        /// Where each of them listens.
        jraft_addresses: String = "jRaftControllerRPCAddr";
    }
}

settings! {
    /// TLS on our ports.
    TlsSettings via read_tls {
        /// What our port takes.
        mode: TlsMode = "tls.server.mode";
        /// Make a certificate at start, and ask no client for one.
        test_mode: bool = "tls.test.mode.enable";
        /// Must clients show a certificate?
        need_client_auth: ClientAuth = "tls.server.need.client.auth";
        /// Our key.
        key_path: Option<PathBuf> = "tls.server.keyPath";
        /// Our certificates.
        cert_path: Option<PathBuf> = "tls.server.certPath";
        /// Are the certificates of clients checked?
        auth_client: bool = "tls.server.authClient";
        /// Against these.
        trust_cert_path: Option<PathBuf> = "tls.server.trustCertPath";
        /// Where these lines were looked for besides `broker.conf`.
        config_file: PathBuf = "tls.config.file";
    }
}

settings! {
    /// TLS towards name servers.
    ClientTlsSettings via read_client_tls {
        /// Do our calls speak TLS?
        use_tls: bool = "useTLS";
        /// What `useTLS` is when nobody sets it.
        enable: bool = "tls.enable";
        /// Ask nobody for a proof, and show none.
        test_mode: bool = "tls.test.mode.enable";
        /// Are the certificates of name servers checked?
        auth_server: bool = "tls.client.authServer";
        /// Against these.
        trust_cert_path: Option<PathBuf> = "tls.client.trustCertPath";
        /// Our certificates.
        cert_path: Option<PathBuf> = "tls.client.certPath";
        /// Our key.
        key_path: Option<PathBuf> = "tls.client.keyPath";
    }
}

impl Settings {
    /// What the broker is made with.
    pub fn broker(&self) -> Result<BrokerSettings, ConfigError> {
        self.read_broker()
    }

    /// What the store is made with.
    pub fn store(&self) -> Result<StoreSettings, ConfigError> {
        let mut store = self.read_store()?;
        let rounded = round_up(i64::try_from(store.mapped_file_size_consume_queue).unwrap_or(i64::MAX));
        store.mapped_file_size_consume_queue = rounded.unsigned_abs();
        let clamp = |ratio: &mut u32, (_, low, high): (&str, i64, i64)| {
            *ratio = u32::try_from(i64::from(*ratio).clamp(low, high)).unwrap_or(*ratio);
        };
        let [max_used, forcibly, warning] = RATIO_LIMITS;
        clamp(&mut store.disk_max_used_space_ratio, max_used);
        clamp(&mut store.disk_space_clean_forcibly_ratio, forcibly);
        clamp(&mut store.disk_space_warning_level_ratio, warning);
        Ok(store)
    }

    /// What listeners are made with.
    pub fn net(&self) -> Result<NetSettings, ConfigError> {
        self.read_net()
    }

    /// What a controller is made with.
    pub fn controller(&self) -> Result<ControllerSettings, ConfigError> {
        self.read_controller()
    }

    /// How metrics are given out.
    pub fn metrics(&self) -> Result<MetricsSettings, ConfigError> {
        self.read_metrics()
    }

    /// How much memory the process may occupy.
    pub fn memory(&self) -> Result<MemorySettings, ConfigError> {
        self.read_memory()
    }

    /// TLS on our ports.
    pub fn tls(&self) -> Result<TlsSettings, ConfigError> {
        self.read_tls()
    }

    /// TLS towards name servers.
    pub fn client_tls(&self) -> Result<ClientTlsSettings, ConfigError> {
        self.read_client_tls()
    }

    /// Defaults that are found out at start.
    pub(crate) fn found(&self, name: &str) -> Option<String> {
        let path = |path: PathBuf| Some(path.to_string_lossy().into_owned());
        let in_data = |leaf: &str, home_leaf: &str| match &self.data {
            Some(data) => path(data.join(leaf)),
            None => path(self.machine.home.join(home_leaf)),
        };
        match name {
            "brokerName" => Some(self.machine.host_name.clone()),
            "brokerIP1" => Some(self.own_address()),
            "brokerIP2" => Some(self.text("brokerIP1")),
            "bindAddress" => Some(if self.has_file { "0.0.0.0" } else { "127.0.0.1" }.to_owned()),
            "listenPort" => Some(if self.role().has_broker() { "10911" } else { "9876" }.to_owned()),
            "haListenPort" => self.text("listenPort").parse().ok().map(|port: u16| (u32::from(port) + 1).to_string()),
            "storePathRootDir" => in_data("store", "store"),
            "storePathCommitLog" => path(PathBuf::from(self.text("storePathRootDir")).join("commitlog")),
            "kvConfigPath" => in_data("namesrv/kvConfig.json", "namesrv/kvConfig.json"),
            "configStorePath" => in_data("namesrv/namesrv.properties", "namesrv/namesrv.properties"),
            "controllerDLegerPeers" => Some(format!("n0-{}:9878", self.own_address())),
            "controllerStorePath" => in_data("controller", "DledgerController"),
            "useTLS" => Some(self.text("tls.enable")),
            // Who takes no plain calls makes none: RocketMQ's default.
            "tls.enable" => Some(self.text("tls.server.mode").eq_ignore_ascii_case("enforcing").to_string()),
            _ => None,
        }
    }

    /// What others reach us by, when nobody says: the address we listen on if it is one, else the machine's own.
    fn own_address(&self) -> String {
        match self.text("bindAddress").parse::<IpAddr>() {
            Ok(bound) if !bound.is_unspecified() => bound.to_string(),
            Ok(_) | Err(_) => self.machine.address.to_string(),
        }
    }
}
