//! Lite topics: pops (200070), figures for operators, 200075 to 200079 (200074 has no fields), and what a client is told, 200073.

use super::field::headers;

headers! {
    /// 200070: messages of the lite topics that a client subscribes to.
    PopLiteMessage<'a> {
        client_id: &'a str = "clientId",
        consumer_group: &'a str = "consumerGroup",
        topic: &'a str = "topic",
        max_msg_num: i32 = "maxMsgNum",
        invisible_time: i64 = "invisibleTime",
        poll_time: i64 = "pollTime",
        born_time: i64 = "bornTime" or 0,
        attempt_id: Option<&'a str> = "attemptId",
    }

    /// The answer to 200070, also to one that found nothing.
    PopLiteReply<'a> {
        pop_time: i64 = "popTime",
        invisible_time: i64 = "invisibleTime",
        revive_qid: i32 = "reviveQid",
        order_count_info: &'a str = "orderCountInfo",
    }

    /// 200073, from broker to client: another client of its group has this lite topic now.
    NotifyUnsubscribeLite<'a> {
        lite_topic: &'a str = "liteTopic",
        consumer_group: &'a str = "consumerGroup",
        client_id: &'a str = "clientId",
    }

    /// 200075: a topic that holds lite topics.
    GetParentTopicInfo<'a> {
        topic: &'a str = "topic",
    }

    /// 200076: one lite topic.
    GetLiteTopicInfo<'a> {
        parent_topic: Option<&'a str> = "parentTopic",
        lite_topic: Option<&'a str> = "liteTopic",
    }

    /// 200077: what one client subscribes to.
    GetLiteClientInfo<'a> {
        parent_topic: Option<&'a str> = "parentTopic",
        group: Option<&'a str> = "group",
        client_id: Option<&'a str> = "clientId",
        max_count: i32 = "maxCount" or 0,
    }

    /// 200078: how far a group is behind.
    GetLiteGroupInfo<'a> {
        group: &'a str = "group",
        lite_topic: Option<&'a str> = "liteTopic",
        top_k: i32 = "topK" or 0,
    }

    /// 200079: tell clients once more what there is.
    TriggerLiteDispatch<'a> {
        group: &'a str = "group",
        client_id: Option<&'a str> = "clientId",
    }
}
