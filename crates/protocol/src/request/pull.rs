//! Pulling and looking at messages: 11, 361, 33, 12, 321.

use super::field::headers;
use crate::sys_flag::pull;

headers! {
    /// 11 and 361: messages of one queue.
    PullMessage<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        queue_offset: i64 = "queueOffset",
        max_msg_nums: i32 = "maxMsgNums",
        sys_flag: i32 = "sysFlag",
        commit_offset: i64 = "commitOffset" or 0,
        suspend_timeout_millis: i64 = "suspendTimeoutMillis" or 0,
        subscription: Option<&'a str> = "subscription",
        sub_version: i64 = "subVersion" or 0,
        expression_type: Option<&'a str> = "expressionType",
        max_msg_bytes: Option<i32> = "maxMsgBytes",
        request_source: Option<i32> = "requestSource",
        proxy_forward_client_id: Option<&'a str> = "proxyFrowardClientId",
        lite_topic: Option<&'a str> = "liteTopic",
        broker_name: Option<&'a str> = "bname",
    }

    /// The answer to a pull, also to one that found nothing.
    PullReply {
        suggest_which_broker_id: i64 = "suggestWhichBrokerId",
        next_begin_offset: i64 = "nextBeginOffset",
        min_offset: i64 = "minOffset",
        max_offset: i64 = "maxOffset",
        offset_delta: Option<i64> = "offsetDelta",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        group_sys_flag: Option<i32> = "groupSysFlag",
        forbidden_type: Option<i32> = "forbiddenType",
    }

    /// The answer to a pull that is forbidden: by what.
    PullForbidden {
        forbidden_type: i32 = "forbiddenType",
    }

    /// 33: the record at a place of the commit log.
    ViewMessage<'a> {
        topic: Option<&'a str> = "topic",
        offset: i64 = "offset",
    }

    /// 12: records by key.
    QueryMessage<'a> {
        topic: &'a str = "topic",
        key: &'a str = "key",
        max_num: i32 = "maxNum",
        begin_timestamp: i64 = "beginTimestamp",
        end_timestamp: i64 = "endTimestamp",
        unique_key_query: Option<bool> = "_UNIQUE_KEY_QUERY",
        index_type: Option<&'a str> = "indexType",
        last_key: Option<&'a str> = "lastKey",
    }

    /// The answer to 12.
    QueryMessageReply {
        index_last_update_timestamp: i64 = "indexLastUpdateTimestamp",
        index_last_update_phyoffset: i64 = "indexLastUpdatePhyoffset",
    }

    /// 321: units of a consume queue.
    QueryConsumeQueue<'a> {
        topic: Option<&'a str> = "topic",
        queue_id: i32 = "queueId" or 0,
        index: i64 = "index" or 0,
        count: i32 = "count" or 0,
        consumer_group: Option<&'a str> = "consumerGroup",
    }
}

impl<'a> PullMessage<'a> {
    /// A pull at an offset that brings its subscription along: messages of all tags, 32 at most, those that are there.
    pub fn at(consumer_group: &'a str, topic: &'a str, queue_id: i32, queue_offset: i64) -> PullMessage<'a> {
        PullMessage {
            consumer_group,
            topic,
            queue_id,
            queue_offset,
            max_msg_nums: 32,
            sys_flag: pull::SUBSCRIPTION,
            commit_offset: 0,
            suspend_timeout_millis: 0,
            subscription: Some("*"),
            sub_version: 0,
            expression_type: None,
            max_msg_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
            lite_topic: None,
            broker_name: None,
        }
    }
}
