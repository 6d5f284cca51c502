//! Subscription groups on a broker: 201, 207, 208, 317, 343, 345, 352, 353.

use super::field::headers;

headers! {
    /// 201: all groups.
    GetAllGroups<'a> {
        group_seq: Option<i32> = "groupSeq",
        data_version: Option<&'a str> = "dataVersion",
        max_group_num: Option<i32> = "maxGroupNum",
    }

    /// The answer to 201.
    GetAllGroupsReply {
        total_group_num: Option<i32> = "totalGroupNum",
    }

    /// 207: delete a group.
    DeleteGroup<'a> {
        group_name: &'a str = "groupName",
        clean_offset: bool = "cleanOffset" or false,
    }

    /// 208: how far a group is behind.
    GetConsumeStats<'a> {
        consumer_group: &'a str = "consumerGroup",
        topic: Option<&'a str> = "topic",
        topic_list: Option<&'a str> = "topicList",
    }

    /// 317: the same for all groups of a broker.
    GetBrokerConsumeStats {
        is_order: bool = "isOrder" or false,
    }

    /// 343: what a group consumes.
    QueryTopicsByConsumer<'a> {
        group: &'a str = "group",
    }

    /// 345: the subscription of a group to a topic.
    QuerySubscriptionByConsumer<'a> {
        group: &'a str = "group",
        topic: Option<&'a str> = "topic",
    }

    /// 352: one group.
    GetGroupConfig<'a> {
        group: &'a str = "group",
    }

    /// 353: may this group read that topic?
    UpdateGroupForbidden<'a> {
        group: &'a str = "group",
        topic: &'a str = "topic",
        readable: Option<bool> = "readable",
    }
}
