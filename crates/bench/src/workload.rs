//! What is to be sent and consumed: a workload file of the OpenMessaging benchmark.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::fields::Fields;
use crate::stamp::STAMP_BYTES;

/// The keys of a workload file: those of the OpenMessaging benchmark, and `messages`. docs/bench.md says where a meaning differs.
pub const KEYS: &[&str] = &[
    "name",
    "topics",
    "partitionsPerTopic",
    "messageSize",
    "payloadFile",
    "useRandomizedPayloads",
    "randomBytesRatio",
    "randomizedPayloadPoolSize",
    "keyDistributor",
    "subscriptionsPerTopic",
    "producersPerTopic",
    "consumerPerSubscription",
    "producerRate",
    "consumerBacklogSizeGB",
    "testDurationMinutes",
    "warmupDurationMinutes",
    "messages",
];

/// A message may be so large, which is what a frame of the protocol holds less some room for its header.
pub const MESSAGE_BYTES_MAX: usize = 15 << 20;

/// Queues of all topics, on each broker.
const QUEUES_MAX: u64 = 1_000_000;

/// Producers, and consumers, of a run: each has a connection of its own.
const MEMBERS_MAX: u64 = 10_000;

/// Bodies that are made before the run, together.
const POOL_BYTES_MAX: u64 = 256 << 20;

/// A week: a result has a row for each second.
const MINUTES_MAX: f64 = 10_080.0;

/// Which keys messages carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum KeyDistributor {
    /// None.
    NoKey,
    /// Of 10,000 keys one after the other.
    KeyRoundRobin,
    /// Of 10,000 keys the one that the clock chooses.
    RandomNano,
}

/// A workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// What reports call it.
    pub name: String,
    /// Topics, made for the run.
    pub topics: u32,
    /// Queues of each topic on each broker.
    pub partitions_per_topic: u32,
    /// Bytes of a body.
    pub message_size: usize,
    /// The body, in a file of exactly that size.
    pub payload_file: Option<PathBuf>,
    /// Bodies are drawn from a pool that is partly random.
    pub use_randomized_payloads: bool,
    /// How much of a body is random, from 0 to 1; the rest is zeros.
    pub random_bytes_ratio: f64,
    /// Bodies in the pool.
    pub randomized_payload_pool_size: usize,
    /// Which keys messages carry.
    pub key_distributor: KeyDistributor,
    /// Consumer groups of each topic.
    pub subscriptions_per_topic: u32,
    /// Producers of each topic, each with a connection and a group of its own.
    pub producers_per_topic: u32,
    /// Consumers of each group, each with a connection of its own.
    pub consumer_per_subscription: u32,
    /// Messages a second, of all producers together. 0: as fast as answers come.
    pub producer_rate: f64,
    /// So much is sent before anybody consumes, in GiB of bodies.
    #[serde(rename = "consumerBacklogSizeGB")]
    pub consumer_backlog_size_gb: f64,
    /// How long is measured.
    pub test_duration_minutes: f64,
    /// What comes before it, and is not measured.
    pub warmup_duration_minutes: f64,
    /// The run ends when so many are sent; 0: with its time alone.
    pub messages: u64,
}

impl Workload {
    /// Reads and checks.
    pub fn from_fields(fields: &Fields) -> Result<Workload, BenchError> {
        let messages = fields.number("messages", 0, 0..=1_000_000_000_000)?;
        let consumer_backlog_size_gb = fields.number("consumerBacklogSizeGB", 0.0, 0.0..=1024.0)?;
        // A number of messages would be spent on the warm-up, and a backlog has none.
        let usual_warmup = if messages > 0 || consumer_backlog_size_gb > 0.0 { 0.0 } else { 1.0 };
        let workload = Workload {
            name: fields.text("name").unwrap_or_else(|| "unnamed".to_owned()),
            topics: fields.number("topics", 1, 1..=10_000)?,
            partitions_per_topic: fields.number("partitionsPerTopic", 1, 1..=65_536)?,
            message_size: fields.number("messageSize", 1024, STAMP_BYTES..=MESSAGE_BYTES_MAX)?,
            payload_file: fields.text("payloadFile").map(PathBuf::from),
            use_randomized_payloads: fields.truth("useRandomizedPayloads", false)?,
            random_bytes_ratio: fields.number("randomBytesRatio", 0.0, 0.0..=1.0)?,
            randomized_payload_pool_size: fields.number("randomizedPayloadPoolSize", 1000, 1..=1_000_000)?,
            key_distributor: fields.choice(
                "keyDistributor",
                KeyDistributor::NoKey,
                &[
                    ("NO_KEY", KeyDistributor::NoKey),
                    ("KEY_ROUND_ROBIN", KeyDistributor::KeyRoundRobin),
                    ("RANDOM_NANO", KeyDistributor::RandomNano),
                ],
            )?,
            subscriptions_per_topic: fields.number("subscriptionsPerTopic", 1, 0..=1000)?,
            producers_per_topic: fields.number("producersPerTopic", 1, 1..=1000)?,
            consumer_per_subscription: fields.number("consumerPerSubscription", 1, 1..=1000)?,
            producer_rate: fields.number("producerRate", 0.0, 0.0..=100_000_000.0)?,
            consumer_backlog_size_gb,
            test_duration_minutes: fields.number("testDurationMinutes", 1.0, 0.001..=MINUTES_MAX)?,
            warmup_duration_minutes: fields.number("warmupDurationMinutes", usual_warmup, 0.0..=MINUTES_MAX)?,
            messages,
        };
        workload.check(fields)?;
        Ok(workload)
    }

    /// Limits of several values together.
    fn check(&self, fields: &Fields) -> Result<(), BenchError> {
        let topics = u64::from(self.topics);
        let queues = topics * u64::from(self.partitions_per_topic);
        if queues > QUEUES_MAX {
            let text =
                format!("topics × partitionsPerTopic is {queues}; at most {QUEUES_MAX} queues are made on a broker");
            return Err(BenchError::Invalid(text));
        }
        let producers = topics * u64::from(self.producers_per_topic);
        if producers > MEMBERS_MAX {
            let text = format!("topics × producersPerTopic is {producers}; at most {MEMBERS_MAX} connections are made");
            return Err(BenchError::Invalid(text));
        }
        let consumers = self.groups() * u64::from(self.consumer_per_subscription);
        if consumers > MEMBERS_MAX {
            let text = format!(
                "topics × subscriptionsPerTopic × consumerPerSubscription is {consumers}; at most {MEMBERS_MAX} connections are made"
            );
            return Err(BenchError::Invalid(text));
        }
        let pool = self.randomized_payload_pool_size as u64 * self.message_size as u64;
        if self.use_randomized_payloads && pool > POOL_BYTES_MAX {
            let expected = format!(
                "with messageSize {} the pool would have {pool} bytes; {POOL_BYTES_MAX} are allowed",
                self.message_size
            );
            return Err(fields.bad("randomizedPayloadPoolSize", expected));
        }
        if self.use_randomized_payloads && self.payload_file.is_some() {
            return Err(BenchError::Invalid(
                "payloadFile and useRandomizedPayloads are given; bodies have one source".to_owned(),
            ));
        }
        if self.consumer_backlog_size_gb > 0.0 && self.subscriptions_per_topic == 0 {
            let text = "consumerBacklogSizeGB is given, and subscriptionsPerTopic is 0: nobody consumes the backlog";
            return Err(BenchError::Invalid(text.to_owned()));
        }
        if self.consumer_backlog_size_gb > 0.0 && self.warmup_duration_minutes > 0.0 {
            let expected = "with consumerBacklogSizeGB 0 is expected: a backlog is consumed without warm-up".to_owned();
            return Err(fields.bad("warmupDurationMinutes", expected));
        }
        if self.consumer_backlog_size_gb > 0.0 && self.messages > 0 {
            let expected = "with consumerBacklogSizeGB 0 is expected: the backlog says how many are sent".to_owned();
            return Err(fields.bad("messages", expected));
        }
        Ok(())
    }

    /// Consumer groups of all topics.
    pub fn groups(&self) -> u64 {
        u64::from(self.topics) * u64::from(self.subscriptions_per_topic)
    }

    /// Messages that make the backlog; 0 if there is to be none.
    pub fn backlog_messages(&self) -> u64 {
        let bytes = self.consumer_backlog_size_gb * f64::from(1 << 30);
        (bytes / self.message_size as f64).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Workload, BenchError> {
        let mut fields = Fields::new("workload", KEYS);
        fields.read(text, "w.yaml")?;
        Workload::from_fields(&fields)
    }

    #[test]
    fn a_workload_of_the_openmessaging_benchmark_is_read_as_it_is() {
        let workload = read(
            "name: 1 producer / 1 consumers on 1 topic\n\ntopics: 1\npartitionsPerTopic: 100\nkeyDistributor: \"NO_KEY\"\n\
             messageSize: 1024\nuseRandomizedPayloads: true\nrandomBytesRatio: 0.5\nrandomizedPayloadPoolSize: 1000\n\
             subscriptionsPerTopic: 1\nconsumerPerSubscription: 4\nproducersPerTopic: 4\nproducerRate: 1000000\n\
             consumerBacklogSizeGB: 0\ntestDurationMinutes: 5\n",
        )
        .unwrap();
        assert_eq!((workload.partitions_per_topic, workload.message_size, workload.producer_rate), (100, 1024, 1e6));
        assert_eq!((workload.producers_per_topic, workload.consumer_per_subscription), (4, 4));
        assert_eq!((workload.test_duration_minutes, workload.warmup_duration_minutes), (5.0, 1.0));
    }

    #[test]
    fn a_backlog_is_counted_in_messages() {
        let workload = read("messageSize: 100\nconsumerBacklogSizeGB: 0.5").unwrap();
        assert_eq!(workload.backlog_messages(), 5_368_710);
        assert_eq!(read("messageSize: 100").unwrap().backlog_messages(), 0);
    }

    #[test]
    fn bad_values_are_told_with_field_value_and_limit() {
        for (text, words) in [
            ("messageSize: 10", "w.yaml line 1: messageSize is \"10\"; a number from 32 to 15728640 is expected"),
            ("topics: 0", "topics is \"0\"; a number from 1 to 10000"),
            ("topics: two", "topics is \"two\"; a number from 1"),
            ("producerRate: -1", "producerRate is \"-1\"; a number from 0 to"),
            ("producerRate: NaN", "producerRate is \"NaN\"; a number from 0 to"),
            ("randomBytesRatio: 1.5", "randomBytesRatio is \"1.5\"; a number from 0 to 1"),
            ("keyDistributor: ALL", "keyDistributor is \"ALL\"; NO_KEY or KEY_ROUND_ROBIN or RANDOM_NANO is expected"),
            ("useRandomizedPayloads: 1", "useRandomizedPayloads is \"1\"; true or false"),
            ("topics: 10000\npartitionsPerTopic: 1000", "is 10000000; at most 1000000 queues"),
            ("topics: 1000\nproducersPerTopic: 1000", "topics × producersPerTopic is 1000000; at most 10000"),
            (
                "useRandomizedPayloads: true\nmessageSize: 1000000\nrandomizedPayloadPoolSize: 1000",
                "the pool would have 1000000000 bytes; 268435456 are allowed",
            ),
            ("consumerBacklogSizeGB: 1\nsubscriptionsPerTopic: 0", "nobody consumes the backlog"),
            (
                "consumerBacklogSizeGB: 1\nwarmupDurationMinutes: 1",
                "warmupDurationMinutes is \"1\"; with consumerBacklogSizeGB 0 is expected",
            ),
            ("consumerBacklogSizeGB: 1\nmessages: 9", "messages is \"9\"; with consumerBacklogSizeGB 0 is expected"),
            ("partitionPerTopic: 1", "partitionPerTopic is no key of a workload; known are name, topics"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text:?}: {said}");
        }
    }
}
