//! What the name server takes from the wire: how long a name may be, which numbers are possible, and how much there may be of
//! everything. A value that breaks one of these is refused, or left out, with the field, the value and the limit.

use protocol::body::{TopicConfig, TopicQueueMappingInfo};
use protocol::request::RegisterBroker;
use protocol::sys_flag::perm;

use crate::options::Options;

/// All bits of a permission.
const PERM_BITS: i32 = perm::PRIORITY | perm::READ | perm::WRITE | perm::INHERIT;

/// More bytes of a value are not repeated in a remark.
const SHOWN_BYTES_MAX: usize = 80;

/// The limits that are in force, from the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `brokersMax`: addresses, and broker names.
    pub brokers: usize,
    /// `topicsMax`: names of topics.
    pub topics: usize,
    /// `topicRoutesMax`: pairs of a topic and a broker name that serves it.
    pub routes: usize,
    /// `topicQueuesMax`: queues of a topic at one broker name.
    pub queues: i32,
    /// `nameBytesMax`: bytes of a name or an address.
    pub name_bytes: usize,
    /// `kvEntriesMax`: key-value settings.
    pub kv_entries: usize,
    /// `kvValueBytesMax`: bytes of one value.
    pub kv_value_bytes: usize,
    /// `kvBytesMax`: bytes of all namespaces, keys and values.
    pub kv_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::of(&Options::default())
    }
}

/// A value that is not taken: its field, what it says, and what it may say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}={value}: {limit}")]
pub struct Unfit {
    field: &'static str,
    value: String,
    limit: String,
}

impl Unfit {
    pub(crate) fn new(field: &'static str, value: &dyn std::fmt::Display, limit: impl Into<String>) -> Unfit {
        let mut value = value.to_string();
        if value.len() > SHOWN_BYTES_MAX {
            let bytes = value.len();
            value.truncate(value.floor_char_boundary(SHOWN_BYTES_MAX));
            value.push_str(&format!("… ({bytes} bytes)"));
        }
        Unfit { field, value, limit: limit.into() }
    }

    /// A table has as much as it may.
    pub(crate) fn full(field: &'static str, value: &dyn std::fmt::Display, limit: &str, max: usize) -> Unfit {
        Unfit::new(field, value, format!("the name server has as many as {limit} allows, {max}"))
    }
}

impl Limits {
    /// The limits that `options` name.
    pub fn of(options: &Options) -> Limits {
        let size = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        Limits {
            brokers: size(options.brokers_max),
            topics: size(options.topics_max),
            routes: size(options.topic_routes_max),
            queues: i32::try_from(options.topic_queues_max).unwrap_or(i32::MAX),
            name_bytes: size(options.name_bytes_max),
            kv_entries: size(options.kv_entries_max),
            kv_value_bytes: size(options.kv_value_bytes_max),
            kv_bytes: size(options.kv_bytes_max),
        }
    }

    /// A name: something, not too long, and nothing that breaks a line or a terminal.
    pub(crate) fn name(&self, field: &'static str, name: &str) -> Result<(), Unfit> {
        if name.is_empty() {
            return Err(Unfit::new(field, &"", "empty"));
        }
        if name.len() > self.name_bytes {
            let limit = format!("{} bytes are more than nameBytesMax allows, {}", name.len(), self.name_bytes);
            return Err(Unfit::new(field, &name, limit));
        }
        if name.chars().any(char::is_control) {
            return Err(Unfit::new(field, &name.escape_default(), "has a control character"));
        }
        Ok(())
    }

    /// `host:port`, as clients connect to it.
    fn address(&self, field: &'static str, address: &str) -> Result<(), Unfit> {
        self.name(field, address)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(|| Unfit::new(field, &address, "not host:port"))?;
        if host.is_empty() || address.chars().any(char::is_whitespace) {
            return Err(Unfit::new(field, &address, "not host:port"));
        }
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
        if !is_port {
            return Err(Unfit::new(field, &address, format!("port {port} is not between 1 and {}", u16::MAX)));
        }
        Ok(())
    }

    /// What a registration says of the broker itself.
    pub(crate) fn broker(&self, header: &RegisterBroker<'_>) -> Result<(), Unfit> {
        self.name("clusterName", header.cluster_name)?;
        self.name("brokerName", header.broker_name)?;
        self.address("brokerAddr", header.broker_addr)?;
        if header.broker_id < 0 {
            return Err(Unfit::new("brokerId", &header.broker_id, "below 0"));
        }
        // Nobody connects to it by our word alone: slaves that cannot use it say so themselves.
        if let Some(address) = header.ha_server_addr.filter(|address| !address.is_empty()) {
            self.name("haServerAddr", address)?;
        }
        if let Some(zone) = header.zone_name.filter(|zone| !zone.is_empty()) {
            self.name("zoneName", zone)?;
        }
        match header.heartbeat_timeout_millis {
            Some(life) if life <= 0 => Err(Unfit::new("heartbeatTimeoutMillis", &life, "below 1")),
            _ => Ok(()),
        }
    }

    /// A topic, as a broker has it.
    pub(crate) fn topic(&self, name: &str, topic: &TopicConfig) -> Result<(), Unfit> {
        self.name("topicName", name)?;
        self.queues(topic.perm, topic.read_queue_nums, topic.write_queue_nums)
    }

    /// The numbers of a topic.
    pub(crate) fn queues(&self, perm: i32, read_queue_nums: i32, write_queue_nums: i32) -> Result<(), Unfit> {
        if perm & !PERM_BITS != 0 {
            return Err(Unfit::new("perm", &perm, format!("not between 0 and {PERM_BITS}")));
        }
        for (field, queues) in [("readQueueNums", read_queue_nums), ("writeQueueNums", write_queue_nums)] {
            if !(0..=self.queues).contains(&queues) {
                let limit = format!("not between 0 and {} (topicQueuesMax)", self.queues);
                return Err(Unfit::new(field, &queues, limit));
            }
        }
        Ok(())
    }

    /// Which queues of a static topic are at a broker.
    pub(crate) fn mapping(&self, broker_name: &str, topic: &str, mapping: &TopicQueueMappingInfo) -> Result<(), Unfit> {
        if mapping.bname != broker_name {
            return Err(Unfit::new("bname", &mapping.bname, "not the name of the broker that registers"));
        }
        if mapping.topic != topic {
            return Err(Unfit::new("topic", &mapping.topic, "not the topic that it stands under"));
        }
        if let Some(scope) = mapping.scope.as_deref().filter(|scope| !scope.is_empty()) {
            self.name("scope", scope)?;
        }
        let count = i32::try_from(mapping.curr_id_map.len()).unwrap_or(i32::MAX);
        for (field, queues) in [("totalQueues", mapping.total_queues), ("currIdMap", count)] {
            if !(0..=self.queues).contains(&queues) {
                let limit = format!("not between 0 and {} (topicQueuesMax)", self.queues);
                return Err(Unfit::new(field, &queues, limit));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> RegisterBroker<'static> {
        RegisterBroker {
            broker_name: "经纪人",
            broker_addr: "[::1]:10911",
            cluster_name: "C",
            ha_server_addr: Some(""),
            broker_id: 0,
            heartbeat_timeout_millis: Some(10_000),
            enable_acting_master: None,
            compressed: false,
            body_crc32: 0,
            zone_name: None,
        }
    }

    #[test]
    fn a_broker_that_nobody_could_reach_is_refused_by_the_field() {
        let limits = Limits::default();
        assert_eq!(limits.broker(&header()), Ok(()));
        let long = "x".repeat(513);
        let refused = [
            (RegisterBroker { broker_name: "", ..header() }, "brokerName=: empty"),
            (RegisterBroker { cluster_name: "a\nb", ..header() }, "clusterName=a\\nb: has a control character"),
            (RegisterBroker { broker_addr: "10.0.0.1", ..header() }, "brokerAddr=10.0.0.1: not host:port"),
            (RegisterBroker { broker_addr: ":1", ..header() }, "brokerAddr=:1: not host:port"),
            (RegisterBroker { broker_addr: "h:0", ..header() }, "brokerAddr=h:0: port 0 is not between 1 and 65535"),
            (
                RegisterBroker { broker_addr: "h:65536", ..header() },
                "brokerAddr=h:65536: port 65536 is not between 1 and 65535",
            ),
            (RegisterBroker { broker_id: -1, ..header() }, "brokerId=-1: below 0"),
            (RegisterBroker { heartbeat_timeout_millis: Some(0), ..header() }, "heartbeatTimeoutMillis=0: below 1"),
        ];
        for (header, why) in refused {
            assert_eq!(limits.broker(&header).map_err(|unfit| unfit.to_string()), Err(why.to_owned()));
        }
        let said = limits.broker(&RegisterBroker { broker_name: &long, ..header() }).unwrap_err().to_string();
        assert!(said.ends_with("… (513 bytes): 513 bytes are more than nameBytesMax allows, 512"), "{said}");
    }

    #[test]
    fn a_topic_with_impossible_numbers_is_refused_by_the_field() {
        let limits = Limits::default();
        let topic = TopicConfig::default();
        assert_eq!(limits.topic("T", &topic), Ok(()));
        let said = |name: &str, topic: TopicConfig| limits.topic(name, &topic).unwrap_err().to_string();
        assert_eq!(said("", topic.clone()), "topicName=: empty");
        assert_eq!(said("T", TopicConfig { perm: 99, ..topic.clone() }), "perm=99: not between 0 and 15");
        assert_eq!(said("T", TopicConfig { perm: -1, ..topic.clone() }), "perm=-1: not between 0 and 15");
        assert_eq!(
            said("T", TopicConfig { write_queue_nums: 2_000_000_000, ..topic.clone() }),
            "writeQueueNums=2000000000: not between 0 and 65536 (topicQueuesMax)"
        );
        assert_eq!(
            said("T", TopicConfig { read_queue_nums: -1, ..topic }),
            "readQueueNums=-1: not between 0 and 65536 (topicQueuesMax)"
        );
    }
}
