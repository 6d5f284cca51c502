//! Clients as such: 35, 38, 40, 203, 204, 307, 309. (34, 41, 42, 46, 400, 401 have no fields of their own.)

use super::field::headers;

headers! {
    /// 35: a client leaves.
    UnregisterClient<'a> {
        client_id: &'a str = "clientID",
        producer_group: Option<&'a str> = "producerGroup",
        consumer_group: Option<&'a str> = "consumerGroup",
    }

    /// The answer to a heartbeat.
    HeartbeatReply {
        is_support_heart_beat_v2: bool = "IS_SUPPORT_HEART_BEAT_V2",
        is_sub_change: bool = "IS_SUB_CHANGE",
    }

    /// With a heartbeat of our own client: does the broker take sends together (30001)?
    AskTogether {
        send_together: bool = "sendTogether" or false,
    }

    /// With the answer to such a heartbeat: how many there may be in one request, from now on and on this connection. A broker that does
    /// not take them leaves it out, as RocketMQ's do.
    OfferTogether {
        send_together_parts_max: i32 = "sendTogetherPartsMax" or 0,
    }

    /// 38: who consumes in this group?
    GetConsumerList<'a> {
        consumer_group: &'a str = "consumerGroup",
    }

    /// 40, broker to client: the members of a group have changed.
    NotifyConsumerIdsChanged<'a> {
        consumer_group: &'a str = "consumerGroup",
    }

    /// 203: the connections of a group.
    GetConsumerConnections<'a> {
        consumer_group: &'a str = "consumerGroup",
    }

    /// 204: the connections of a producer group.
    GetProducerConnections<'a> {
        producer_group: &'a str = "producerGroup",
    }

    /// 307: what a consumer is doing, asked of itself.
    GetConsumerRunningInfo<'a> {
        consumer_group: &'a str = "consumerGroup",
        client_id: &'a str = "clientId",
        jstack_enable: bool = "jstackEnable" or false,
    }

    /// 309: let a consumer have one message, now.
    ConsumeMessageDirectly<'a> {
        consumer_group: &'a str = "consumerGroup",
        client_id: Option<&'a str> = "clientId",
        msg_id: Option<&'a str> = "msgId",
        broker_name: Option<&'a str> = "brokerName",
        topic: Option<&'a str> = "topic",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        group_sys_flag: Option<i32> = "groupSysFlag",
    }
}
