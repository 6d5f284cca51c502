//! Pop consumption: 200050 to 200055. (200151 has a body instead of fields, 200056 has neither.)

use super::field::headers;

headers! {
    /// 200050: messages of a topic, which are the group's until they are acknowledged or their time is over.
    PopMessage<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        max_msg_nums: i32 = "maxMsgNums",
        invisible_time: i64 = "invisibleTime",
        poll_time: i64 = "pollTime",
        born_time: i64 = "bornTime" or 0,
        init_mode: i32 = "initMode",
        exp_type: Option<&'a str> = "expType",
        exp: Option<&'a str> = "exp",
        order: bool = "order" or false,
        attempt_id: Option<&'a str> = "attemptId",
    }

    /// The answer to 200050 and 200052, also to one that found nothing.
    PopReply<'a> {
        pop_time: i64 = "popTime",
        invisible_time: i64 = "invisibleTime",
        revive_qid: i32 = "reviveQid",
        rest_num: i64 = "restNum",
        start_offset_info: Option<&'a str> = "startOffsetInfo",
        msg_offset_info: Option<&'a str> = "msgOffsetInfo",
        order_count_info: Option<&'a str> = "orderCountInfo",
    }

    /// 200051: one message is done with.
    AckMessage<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        extra_info: &'a str = "extraInfo",
        offset: i64 = "offset",
        lite_topic: Option<&'a str> = "liteTopic",
    }

    /// 200053: one message stays invisible for so long from now on.
    ChangeInvisibleTime<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        extra_info: &'a str = "extraInfo",
        offset: i64 = "offset",
        invisible_time: i64 = "invisibleTime",
        lite_topic: Option<&'a str> = "liteTopic",
        suspend: bool = "suspend" or false,
    }

    /// The answer to 200053: what the new handle is made of.
    ChangeInvisibleTimeReply {
        pop_time: i64 = "popTime",
        invisible_time: i64 = "invisibleTime",
        revive_qid: i32 = "reviveQid",
    }

    /// 200052: a look at messages that changes nothing.
    PeekMessage<'a> {
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        max_msg_nums: i32 = "maxMsgNums",
        consumer_group: &'a str = "consumerGroup",
    }

    /// 200054: is there anything to pop?
    Notification<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
        poll_time: i64 = "pollTime",
        born_time: i64 = "bornTime" or 0,
        order: bool = "order" or false,
        attempt_id: Option<&'a str> = "attemptId",
        exp_type: Option<&'a str> = "expType",
        exp: Option<&'a str> = "exp",
    }

    /// The answer to 200054.
    NotificationReply {
        has_msg: bool = "hasMsg",
        polling_full: bool = "pollingFull",
    }

    /// 200055: how many requests wait for messages?
    PollingInfo<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        queue_id: i32 = "queueId",
    }

    /// The answer to 200055.
    PollingInfoReply {
        polling_num: i32 = "pollingNum",
    }
}
