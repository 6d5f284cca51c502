//! The name server: 100 to 106, 205, 216, 217, 219, 224, 322, 327, 901, 904, 905.

use super::field::headers;

headers! {
    /// 103: a broker and its topics.
    RegisterBroker<'a> {
        broker_name: &'a str = "brokerName",
        broker_addr: &'a str = "brokerAddr",
        cluster_name: &'a str = "clusterName",
        ha_server_addr: Option<&'a str> = "haServerAddr",
        broker_id: i64 = "brokerId",
        heartbeat_timeout_millis: Option<i64> = "heartbeatTimeoutMillis",
        enable_acting_master: Option<bool> = "enableActingMaster",
        compressed: bool = "compressed" or false,
        body_crc32: i32 = "bodyCrc32" or 0,
        zone_name: Option<&'a str> = "__ZONE_NAME",
    }

    /// The answer to 103: who is master.
    RegisterBrokerReply<'a> {
        ha_server_addr: Option<&'a str> = "haServerAddr",
        master_addr: Option<&'a str> = "masterAddr",
    }

    /// 104: a broker leaves.
    UnregisterBroker<'a> {
        broker_name: &'a str = "brokerName",
        broker_addr: &'a str = "brokerAddr",
        cluster_name: &'a str = "clusterName",
        broker_id: i64 = "brokerId",
    }

    /// 105: where a topic is.
    GetRouteInfo<'a> {
        topic: &'a str = "topic",
        accept_standard_json_only: Option<bool> = "acceptStandardJsonOnly",
        zone_mode: Option<bool> = "__ZONE_MODE",
        zone_name: Option<&'a str> = "__ZONE_NAME",
    }

    /// 100: put a key.
    PutKv<'a> {
        namespace: &'a str = "namespace",
        key: &'a str = "key",
        value: &'a str = "value",
    }

    /// 101: get a key.
    GetKv<'a> {
        namespace: &'a str = "namespace",
        key: &'a str = "key",
    }

    /// The answer to 101.
    GetKvReply<'a> {
        value: Option<&'a str> = "value",
    }

    /// 102: delete a key.
    DeleteKv<'a> {
        namespace: &'a str = "namespace",
        key: &'a str = "key",
    }

    /// 219: all keys of a namespace.
    GetKvList<'a> {
        namespace: &'a str = "namespace",
    }

    /// 205: take a broker out of writing.
    WipeWritePerm<'a> {
        broker_name: &'a str = "brokerName",
    }

    /// The answer to 205.
    WipeWritePermReply {
        wipe_topic_count: i32 = "wipeTopicCount",
    }

    /// 327: put a broker back into writing.
    AddWritePerm<'a> {
        broker_name: &'a str = "brokerName",
    }

    /// The answer to 327.
    AddWritePermReply {
        add_topic_count: i32 = "addTopicCount",
    }

    /// 216: forget a topic.
    DeleteTopicInNames<'a> {
        topic: &'a str = "topic",
        cluster_name: Option<&'a str> = "clusterName",
    }

    /// 217: one topic of brokers that are registered already.
    RegisterTopic<'a> {
        topic: &'a str = "topic",
    }

    /// 224: the topics of a cluster.
    GetTopicsByCluster<'a> {
        cluster: &'a str = "cluster",
    }

    /// 322: is this still what you know of me?
    QueryDataVersion<'a> {
        broker_name: &'a str = "brokerName",
        broker_addr: &'a str = "brokerAddr",
        cluster_name: &'a str = "clusterName",
        broker_id: i64 = "brokerId",
    }

    /// The answer to 322.
    QueryDataVersionReply {
        changed: bool = "changed",
    }

    /// 901: the brokers of one name.
    GetBrokerMemberGroup<'a> {
        cluster_name: &'a str = "clusterName",
        broker_name: &'a str = "brokerName",
    }

    /// 904: a broker lives.
    BrokerHeartbeat<'a> {
        cluster_name: &'a str = "clusterName",
        broker_addr: &'a str = "brokerAddr",
        broker_name: &'a str = "brokerName",
        broker_id: Option<i64> = "brokerId",
        epoch: Option<i32> = "epoch",
        max_offset: Option<i64> = "maxOffset",
        confirm_offset: Option<i64> = "confirmOffset",
        heartbeat_timeout_mills: Option<i64> = "heartbeatTimeoutMills",
        election_priority: Option<i32> = "electionPriority",
    }

    /// 905, name server to broker: another broker of your name has the smallest id now.
    NotifyMinBrokerIdChange<'a> {
        min_broker_id: Option<i64> = "minBrokerId",
        broker_name: Option<&'a str> = "brokerName",
        min_broker_addr: Option<&'a str> = "minBrokerAddr",
        offline_broker_addr: Option<&'a str> = "offlineBrokerAddr",
        ha_broker_addr: Option<&'a str> = "haBrokerAddr",
    }
}
