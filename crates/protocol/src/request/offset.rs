//! Offsets: 14, 15, 29 to 32, 220 to 223, 308, 314.

use super::field::headers;

headers! {
    /// 14: how far a group has come in a queue.
    QueryConsumerOffset<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        set_zero_if_not_found: Option<bool> = "setZeroIfNotFound",
    }

    /// 15: how far a group has come in a queue.
    UpdateConsumerOffset<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        commit_offset: i64 = "commitOffset",
    }

    /// The answer to 14, 29, 30 and 31.
    OffsetReply {
        offset: i64 = "offset",
    }

    /// 29: the offset at a time.
    SearchOffset<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        timestamp: i64 = "timestamp",
        boundary_type: Option<&'a str> = "boundaryType",
        lite_topic: Option<&'a str> = "liteTopic",
    }

    /// 30: where a queue ends.
    GetMaxOffset<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        committed: bool = "committed" or true,
    }

    /// 31: where a queue begins.
    GetMinOffset<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
    }

    /// 32: when the first message of a queue was stored.
    GetEarliestStoreTime<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
    }

    /// The answer to 32.
    EarliestStoreTimeReply {
        timestamp: i64 = "timestamp",
    }

    /// 222 and 220: set the offsets of a group back or forth.
    ResetOffset<'a> {
        group: &'a str = "group",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId" or -1,
        offset: Option<i64> = "offset",
        timestamp: i64 = "timestamp",
        is_force: bool = "isForce" or false,
    }

    /// 221 and 223: the offsets that clients hold.
    GetConsumerStatus<'a> {
        topic: &'a str = "topic",
        group: &'a str = "group",
        client_addr: Option<&'a str> = "clientAddr",
    }

    /// 308.
    QueryCorrectionOffset<'a> {
        filter_groups: Option<&'a str> = "filterGroups",
        compare_group: &'a str = "compareGroup",
        topic: &'a str = "topic",
    }

    /// 314: copy the offsets of a group to another.
    CloneGroupOffset<'a> {
        src_group: &'a str = "srcGroup",
        dest_group: &'a str = "destGroup",
        topic: Option<&'a str> = "topic",
        offline: bool = "offline" or false,
    }
}
