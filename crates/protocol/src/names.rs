//! Names of topics and groups: what is legal, what is reserved, what is derived.

/// Longest name of an ordinary topic.
pub const TOPIC_MAX: usize = 127;
/// Longest name of a retry or dead-letter topic.
pub const DERIVED_TOPIC_MAX: usize = 255;
/// Longest name of a group.
pub const GROUP_MAX: usize = 120;

/// Topics that carry messages back to one group.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Topics of messages that a group gave up.
pub const DLQ_PREFIX: &str = "%DLQ%";
/// Queues within a topic that look like topics.
pub const LMQ_PREFIX: &str = "%LMQ%";
/// Light queues of lite topics.
const LITE_PREFIX: &str = "%LMQ%$";
/// Between the name of the topic that holds lite topics and theirs.
const LITE_SEPARATOR: char = '$';
/// Topics of RocketMQ's own.
pub const SYSTEM_TOPIC_PREFIX: &str = "rmq_sys_";
/// Groups of RocketMQ's own.
pub const SYSTEM_GROUP_PREFIX: &str = "CID_RMQ_SYS_";
/// Between a namespace and a name.
pub const NAMESPACE_SEPARATOR: char = '%';

/// The one scope of static topics.
pub const GLOBAL_SCOPE: &str = "__global__";
/// Begins the broker name by which clients know the queues of a static topic, see [`logical_broker`].
pub const LOGICAL_BROKER_PREFIX: &str = "__syslo__";

/// New topics inherit from this one.
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
/// Holds delayed messages, a queue for each level.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Load tests.
pub const BENCHMARK_TOPIC: &str = "BenchmarkTest";
/// Half messages.
pub const TRANS_HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// What became of half messages.
pub const TRANS_OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Message traces.
pub const TRACE_TOPIC: &str = "RMQ_SYS_TRACE_TOPIC";
/// Half messages that were checked too often.
pub const TRANS_CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// Self tests of old.
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
/// Events of old.
pub const OFFSET_MOVED_EVENT: &str = "OFFSET_MOVED_EVENT";
/// Timer messages.
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// Where Apache keeps check-points of pops; the cluster's name follows.
pub const REVIVE_TOPIC_PREFIX: &str = "rmq_sys_REVIVE_LOG_";
/// Under this group Apache's broker commits how far it has come in its revive topic.
pub const REVIVE_GROUP: &str = "CID_RMQ_SYS_REVIVE_GROUP";
/// A topic of Apache's brokers that tells members of each other; the broker's name follows.
pub const BROKER_MEMBER_PREFIX: &str = "rmq_sys_SYNC_BROKER_MEMBER_";
/// End of the name of a cluster's topic of replies.
pub const REPLY_TOPIC_SUFFIX: &str = "_REPLY_TOPIC";

/// Topics of RocketMQ's own, as Apache lists them; names with [`SYSTEM_TOPIC_PREFIX`] belong to it too.
pub const SYSTEM_TOPICS: &[&str] = &[
    AUTO_CREATE_TOPIC,
    SCHEDULE_TOPIC,
    BENCHMARK_TOPIC,
    TRANS_HALF_TOPIC,
    TRACE_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT,
    "CHECKPOINT_TOPIC",
];

/// Topics that clients may not send to.
pub const NOT_SENDABLE_TOPICS: &[&str] = &[
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    SELF_TEST_TOPIC,
    OFFSET_MOVED_EVENT,
];

/// Groups of RocketMQ's own; names with [`SYSTEM_GROUP_PREFIX`] belong to it too.
pub const SYSTEM_GROUPS: &[&str] = &[
    "DEFAULT_CONSUMER",
    "DEFAULT_PRODUCER",
    "TOOLS_CONSUMER",
    "SCHEDULE_CONSUMER",
    "FILTERSRV_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "SELF_TEST_P_GROUP",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
];

/// Groups that a broker makes at its start.
pub const PREDEFINED_GROUPS: &[&str] = &[
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
];

/// What a name is wrong in. The text is the remark that clients get, in Apache's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing, or white space.
    #[error("The specified {0} is blank.")]
    Blank(&'static str),
    /// A character outside of the table.
    #[error("The specified {what}: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")]
    IllegalCharacter {
        /// Topic or group.
        what: &'static str,
        /// As far as it is worth showing.
        name: String,
    },
    /// Too long.
    #[error("The specified {what}: {name}, is longer than {what} max length: {max}")]
    TooLong {
        /// Topic or group.
        what: &'static str,
        /// As far as it is worth showing.
        name: String,
        /// The limit.
        max: usize,
    },
}

/// The bytes that a name may hold.
const LEGAL: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || matches!(byte as u8, b'%' | b'|' | b'-' | b'_');
        byte += 1;
    }
    table
};

/// Whether all characters are legal, in one look-up a byte.
pub fn is_legal(name: &str) -> bool {
    name.bytes().all(|byte| LEGAL[usize::from(byte)])
}

/// Of a name that may be as long as a frame, what a remark shows.
fn shown(name: &str) -> String {
    const SHOWN_MAX: usize = 1024;
    name.chars().take(SHOWN_MAX).collect()
}

/// Whether a topic may have this name.
pub fn check_topic(topic: &str) -> Result<(), NameError> {
    if topic.trim().is_empty() {
        return Err(NameError::Blank("topic"));
    }
    if !is_legal(topic) {
        return Err(NameError::IllegalCharacter { what: "topic", name: shown(topic) });
    }
    let is_derived = is_retry_topic(topic) || is_dlq_topic(topic);
    if !is_derived && topic.len() > TOPIC_MAX {
        return Err(NameError::TooLong { what: "topic", name: shown(topic), max: TOPIC_MAX });
    }
    if topic.len() > DERIVED_TOPIC_MAX {
        return Err(NameError::TooLong { what: "topic", name: shown(topic), max: DERIVED_TOPIC_MAX });
    }
    Ok(())
}

/// Whether a group may have this name.
pub fn check_group(group: &str) -> Result<(), NameError> {
    if group.trim().is_empty() {
        return Err(NameError::Blank("group"));
    }
    if group.len() > GROUP_MAX {
        return Err(NameError::TooLong { what: "group", name: shown(group), max: GROUP_MAX });
    }
    if !is_legal(group) {
        return Err(NameError::IllegalCharacter { what: "group", name: shown(group) });
    }
    Ok(())
}

/// Whether a topic is RocketMQ's own.
pub fn is_system_topic(topic: &str) -> bool {
    SYSTEM_TOPICS.contains(&topic) || topic.starts_with(SYSTEM_TOPIC_PREFIX)
}

/// Whether a group is RocketMQ's own.
pub fn is_system_group(group: &str) -> bool {
    SYSTEM_GROUPS.contains(&group) || group.starts_with(SYSTEM_GROUP_PREFIX)
}

/// Whether clients may not send to a topic.
pub fn is_not_sendable(topic: &str) -> bool {
    NOT_SENDABLE_TOPICS.contains(&topic)
}

/// Whether a topic carries messages back to a group.
pub fn is_retry_topic(topic: &str) -> bool {
    topic.starts_with(RETRY_PREFIX)
}

/// Whether a topic holds messages that a group gave up.
pub fn is_dlq_topic(topic: &str) -> bool {
    topic.starts_with(DLQ_PREFIX)
}

/// Whether a topic is a queue that looks like one.
pub fn is_lmq(topic: &str) -> bool {
    topic.starts_with(LMQ_PREFIX)
}

/// The light queue of a lite topic.
pub fn lite_queue(parent: &str, lite_topic: &str) -> String {
    format!("{LITE_PREFIX}{parent}{LITE_SEPARATOR}{lite_topic}")
}

/// The topic that holds a lite topic, and the lite topic, of a light queue that belongs to one.
pub fn lite_parts(queue: &str) -> Option<(&str, &str)> {
    let (parent, lite_topic) = queue.strip_prefix(LITE_PREFIX)?.split_once(LITE_SEPARATOR)?;
    let is_whole = !parent.is_empty() && !lite_topic.is_empty() && !lite_topic.contains(LITE_SEPARATOR);
    is_whole.then_some((parent, lite_topic))
}

/// Whether messages stored in a topic stand in the light queues that they name. Apache's list, and a topic more: what waits there for a
/// person keeps the properties of a message that was never delivered.
pub fn takes_light_queues(topic: &str) -> bool {
    !is_retry_topic(topic)
        && !is_dlq_topic(topic)
        && !topic.starts_with(SYSTEM_TOPIC_PREFIX)
        && topic != SCHEDULE_TOPIC
        && topic != TRANS_CHECK_MAX_TIME_TOPIC
}

/// The topic that carries messages back to a group.
pub fn retry_topic(group: &str) -> String {
    [RETRY_PREFIX, group].concat()
}

/// The topic of messages that a group gave up.
pub fn dlq_topic(group: &str) -> String {
    [DLQ_PREFIX, group].concat()
}

/// The broker name by which clients know the queues of a static topic of this scope: it stays while they move between brokers.
pub fn logical_broker(scope: &str) -> String {
    // Apache leaves out the two characters that its one scope begins with.
    let scope = if scope == GLOBAL_SCOPE { scope.strip_prefix("__").unwrap_or(scope) } else { scope };
    format!("{LOGICAL_BROKER_PREFIX}{scope}")
}

/// Whether a broker name stands for the queues of static topics.
pub fn is_logical_broker(name: &str) -> bool {
    name.starts_with(LOGICAL_BROKER_PREFIX)
}

/// The group of a retry or dead-letter topic.
pub fn group_of(topic: &str) -> Option<&str> {
    topic.strip_prefix(RETRY_PREFIX).or_else(|| topic.strip_prefix(DLQ_PREFIX))
}

/// A name without its namespace, as clients show it.
pub fn without_namespace(name: &str) -> String {
    if is_system_topic(name) || is_system_group(name) {
        return name.to_owned();
    }
    let (prefix, rest) = match (name.strip_prefix(RETRY_PREFIX), name.strip_prefix(DLQ_PREFIX)) {
        (Some(rest), _) => (RETRY_PREFIX, rest),
        (None, Some(rest)) => (DLQ_PREFIX, rest),
        (None, None) => ("", name),
    };
    match rest.split_once(NAMESPACE_SEPARATOR) {
        Some((namespace, bare)) if !namespace.is_empty() => [prefix, bare].concat(),
        Some(_) | None => name.to_owned(),
    }
}
