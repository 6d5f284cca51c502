//! Topics on a broker: 17, 21, 202, 215, 300, 303, 351.

use super::field::headers;

headers! {
    /// 17: make or change a topic.
    CreateTopic<'a> {
        topic: &'a str = "topic",
        default_topic: Option<&'a str> = "defaultTopic",
        read_queue_nums: i32 = "readQueueNums",
        write_queue_nums: i32 = "writeQueueNums",
        perm: i32 = "perm",
        topic_filter_type: &'a str = "topicFilterType" or "SINGLE_TAG",
        topic_sys_flag: Option<i32> = "topicSysFlag",
        order: bool = "order" or false,
        attributes: Option<&'a str> = "attributes",
        force: bool = "force" or false,
    }

    /// 215: delete a topic.
    DeleteTopic<'a> {
        topic: &'a str = "topic",
    }

    /// 21: all topics, in pieces when the caller says so.
    GetAllTopicConfig<'a> {
        topic_seq: Option<i32> = "topicSeq",
        data_version: Option<&'a str> = "dataVersion",
        max_topic_num: Option<i32> = "maxTopicNum",
    }

    /// The answer to 21.
    GetAllTopicConfigReply {
        total_topic_num: Option<i32> = "totalTopicNum",
    }

    /// 202: offsets and times of the queues of a topic.
    GetTopicStats<'a> {
        topic: &'a str = "topic",
    }

    /// 351: one topic.
    GetTopicConfig<'a> {
        topic: &'a str = "topic",
        lo: Option<bool> = "lo",
    }

    /// What Gantry's tool adds to 513: the epoch of the mapping that it wants to change, -1 where there is none. Another one is left alone.
    ExpectedEpoch {
        expected_epoch: Option<i64> = "expectedEpoch",
    }

    /// What a broker adds to a request about a static topic that it asks another one: whether it means a logical queue or a physical one.
    WhichQueue<'a> {
        lo: bool = "lo",
        broker_name: &'a str = "bname",
    }

    /// 300: which groups consume a topic.
    QueryTopicConsumeByWho<'a> {
        topic: &'a str = "topic",
    }

    /// 303: the times between which a group consumes.
    QueryConsumeTimeSpan<'a> {
        topic: &'a str = "topic",
        group: &'a str = "group",
    }
}
