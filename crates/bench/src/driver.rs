//! How it is sent and consumed: a driver file.
//!
//! The keys of the OpenMessaging benchmark's RocketMQ driver are taken where the load generator can do what they say, and refused
//! with a reason where it cannot.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use client::AutoBatch;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::fields::Fields;

/// The keys of a driver file.
pub const KEYS: &[&str] = &[
    "name",
    "driverClass",
    "namesrvAddr",
    "clusterName",
    "accessKey",
    "secretKey",
    "vipChannelEnabled",
    "autoBatch",
    "batchMaxBytes",
    "batchMaxDelayMs",
    "totalBatchMaxBytes",
    "chosenQueues",
    "sendTogether",
    "batchCQ",
    "enableBackpressure",
    "backpressureConcurrency",
    "topicAttributes",
    "sendMode",
    "threads",
    "batchSize",
    "compressOverBytes",
    "sendTimeoutMillis",
    "retries",
    "header",
    "consumeMode",
    "pullBatch",
    "pullWaitMillis",
    "consumeThreads",
    "popInvisibleMillis",
    "topicsPerClient",
];

/// What a send waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendMode {
    /// Each thread sends, and waits for the answer.
    Sync,
    /// Up to `backpressureConcurrency` sends of a producer wait for their answers at once.
    Async,
    /// Nobody answers.
    Oneway,
}

impl SendMode {
    /// As a driver file says it.
    pub fn word(self) -> &'static str {
        match self {
            SendMode::Sync => "sync",
            SendMode::Async => "async",
            SendMode::Oneway => "oneway",
        }
    }
}

/// Who keeps track of what is consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsumeMode {
    /// Each consumer reads its share of the queues, and keeps its offsets to itself.
    Pull,
    /// The group shares the queues out, and commits offsets.
    Push,
    /// The broker gives out messages, which are acknowledged.
    Pop,
}

impl ConsumeMode {
    /// As a driver file says it.
    pub fn word(self) -> &'static str {
        match self {
            ConsumeMode::Pull => "pull",
            ConsumeMode::Push => "push",
            ConsumeMode::Pop => "pop",
        }
    }
}

/// How headers of requests are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HeaderKind {
    /// As Java's client does unless told otherwise.
    Json,
    /// The short form.
    Binary,
}

impl HeaderKind {
    /// As a driver file says it.
    pub fn word(self) -> &'static str {
        match self {
            HeaderKind::Json => "json",
            HeaderKind::Binary => "binary",
        }
    }
}

/// A driver.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Driver {
    /// What reports call it.
    pub name: String,
    /// Name servers, separated by semicolons.
    pub namesrv_addr: String,
    /// The cluster whose masters get the topics. Empty: all that the name server knows.
    pub cluster_name: String,
    /// Signs requests, with the next. Not written into results.
    #[serde(skip)]
    pub access_key: Option<String>,
    /// Signs requests, with the one before. Not written into results.
    #[serde(skip)]
    pub secret_key: Option<String>,
    /// Attributes of the topics, without the `+` that a request puts before them.
    pub topic_attributes: BTreeMap<String, String>,
    /// What a send waits for.
    pub send_mode: SendMode,
    /// Sends of a producer that wait for their answers at once.
    pub in_flight: usize,
    /// Messages of a send.
    pub batch_size: usize,
    /// The client makes batches of messages that are sent one by one.
    #[serde(default)]
    pub auto_batch: bool,
    /// Of such a batch; 0 without [`auto_batch`](Driver::auto_batch).
    #[serde(default)]
    pub batch_max_bytes: usize,
    /// How long a message waits for such a batch; 0 without [`auto_batch`](Driver::auto_batch).
    #[serde(default)]
    pub batch_max_delay_ms: u64,
    /// Of all messages that wait in a producer; 0 without [`auto_batch`](Driver::auto_batch).
    #[serde(default)]
    pub total_batch_max_bytes: usize,
    /// Each message is for a chosen queue, one after the other; only with [`auto_batch`](Driver::auto_batch).
    #[serde(default)]
    pub chosen_queues: bool,
    /// Batches of several topics or queues may share a request; only with [`auto_batch`](Driver::auto_batch).
    #[serde(default)]
    pub send_together: bool,
    /// Larger bodies are compressed; 0: none.
    pub compress_over_bytes: usize,
    /// How long an answer may take.
    pub send_timeout_millis: u64,
    /// How often a send that failed is tried again elsewhere.
    pub retries: usize,
    /// How headers are written.
    pub header: HeaderKind,
    /// Who keeps track of what is consumed.
    pub consume_mode: ConsumeMode,
    /// Messages of a pull or pop, at most.
    pub pull_batch: i32,
    /// How long the broker may hold a pull or pop.
    pub pull_wait_millis: u64,
    /// Handlers of a push consumer, or pops of a pop consumer, at once.
    pub consume_threads: usize,
    /// How long popped messages stay hidden from others.
    pub pop_invisible_millis: i64,
    /// Topics, one after the other, whose producers share a client and its connections; their consumers too. Members of one group never do.
    #[serde(default = "one")]
    pub topics_per_client: usize,
}

/// Before the key was known.
fn one() -> usize {
    1
}

/// Without the keys.
impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_signed = self.access_key.is_some();
        let Driver { name, namesrv_addr, send_mode, consume_mode, .. } = self;
        write!(f, "Driver {{ {name:?} at {namesrv_addr:?}, {send_mode:?}, {consume_mode:?}, signed: {is_signed} }}")
    }
}

impl Driver {
    /// Reads and checks.
    pub fn from_fields(fields: &Fields) -> Result<Driver, BenchError> {
        refuse_what_is_not_there(fields)?;
        let send_mode = fields.choice(
            "sendMode",
            SendMode::Async,
            &[("sync", SendMode::Sync), ("async", SendMode::Async), ("oneway", SendMode::Oneway)],
        )?;
        let (threads, concurrency) =
            (fields.number("threads", 1, 1..=10_000)?, fields.number("backpressureConcurrency", 1024, 1..=60_000)?);
        if send_mode == SendMode::Async && fields.text("threads").is_some() {
            let expected = "with sendMode async backpressureConcurrency says how many sends wait at once".to_owned();
            return Err(fields.bad("threads", expected));
        }
        // What a unit of a BatchCQ queue can state.
        let batch_size = fields.number("batchSize", 1, 1..=32_767)?;
        if send_mode == SendMode::Oneway && batch_size > 1 {
            return Err(fields.bad("batchSize", "with sendMode oneway 1 is expected: batches are answered".to_owned()));
        }
        let compress_over_bytes = fields.number("compressOverBytes", 0, 0..=1 << 30)?;
        if compress_over_bytes > 0 && batch_size > 1 {
            let expected = "with a batchSize 0 is expected: batches are not compressed".to_owned();
            return Err(fields.bad("compressOverBytes", expected));
        }
        let retries = fields.number("retries", 0, 0..=100)?;
        if send_mode == SendMode::Oneway && retries > 0 {
            let expected = "with sendMode oneway 0 is expected: nobody says what failed".to_owned();
            return Err(fields.bad("retries", expected));
        }
        let auto_batch = fields.truth("autoBatch", false)?;
        if auto_batch && batch_size > 1 {
            let expected = "with autoBatch 1 is expected: the client makes the batches".to_owned();
            return Err(fields.bad("batchSize", expected));
        }
        // The client's defaults and limits; nothing where it does not gather.
        let gathering = |key: &str, usual: u64, max: u64| -> Result<u64, BenchError> {
            match fields.number(key, usual, 1..=max)? {
                value if auto_batch => Ok(value),
                _ if fields.text(key).is_none() => Ok(0),
                _ => Err(fields.bad(key, "without autoBatch it has no meaning".to_owned())),
            }
        };
        let batch_max_bytes = gathering("batchMaxBytes", 32 << 10, 2 << 20)? as usize;
        let batch_max_delay_ms = gathering("batchMaxDelayMs", 10, 30_000)?;
        let total_batch_max_bytes = gathering("totalBatchMaxBytes", 32 << 20, u64::from(u32::MAX))? as usize;
        let of_gathering = |key: &str, usual: bool| match fields.truth(key, usual)? {
            value if auto_batch => Ok(value),
            _ if fields.text(key).is_none() => Ok(false),
            _ => Err(fields.bad(key, "without autoBatch it has no meaning".to_owned())),
        };
        let (chosen_queues, send_together) =
            (of_gathering("chosenQueues", false)?, of_gathering("sendTogether", false)?);
        if chosen_queues && send_mode == SendMode::Oneway {
            return Err(fields.bad("chosenQueues", "with sendMode oneway false is expected".to_owned()));
        }
        let (access_key, secret_key) = (fields.text("accessKey"), fields.text("secretKey"));
        if access_key.is_some() != secret_key.is_some() {
            return Err(BenchError::Invalid("accessKey and secretKey are given together or not at all".to_owned()));
        }
        let consume_mode = consume_mode(fields)?;
        let topic_attributes = attributes(fields)?;
        if consume_mode == ConsumeMode::Pop && topic_attributes.contains_key("queue.type") {
            return Err(fields.bad("consumeMode", "pull or push is expected where a queue.type is given".to_owned()));
        }
        Ok(Driver {
            name: fields.text("name").unwrap_or_else(|| "RocketMQ".to_owned()),
            namesrv_addr: fields.text("namesrvAddr").unwrap_or_else(|| "127.0.0.1:9876".to_owned()),
            cluster_name: fields.text("clusterName").unwrap_or_default(),
            access_key,
            secret_key,
            topic_attributes,
            send_mode,
            in_flight: if send_mode == SendMode::Async { concurrency } else { threads },
            batch_size,
            auto_batch,
            batch_max_bytes,
            batch_max_delay_ms,
            total_batch_max_bytes,
            chosen_queues,
            send_together,
            compress_over_bytes,
            send_timeout_millis: fields.number("sendTimeoutMillis", 3000, 1..=600_000)?,
            retries,
            header: fields.choice(
                "header",
                HeaderKind::Json,
                &[("json", HeaderKind::Json), ("binary", HeaderKind::Binary)],
            )?,
            // A broker refuses to pop more than 32 at once.
            pull_batch: match consume_mode {
                ConsumeMode::Pull | ConsumeMode::Push => fields.number("pullBatch", 1000, 1..=100_000)?,
                ConsumeMode::Pop => fields.number("pullBatch", 32, 1..=32)?,
            },
            consume_mode,
            pull_wait_millis: fields.number("pullWaitMillis", 15_000, 0..=600_000)?,
            consume_threads: fields.number("consumeThreads", 20, 1..=10_000)?,
            pop_invisible_millis: fields.number("popInvisibleMillis", 60_000, 10_000..=300_000)?,
            topics_per_client: fields.number("topicsPerClient", 1, 1..=100_000)?,
        })
    }

    /// How the client makes batches, if it does.
    pub fn gathers(&self) -> Result<Option<AutoBatch>, BenchError> {
        if !self.auto_batch {
            return Ok(None);
        }
        let settings = AutoBatch::default()
            .batch_max_bytes(self.batch_max_bytes)
            .and_then(|settings| settings.batch_max_delay(Duration::from_millis(self.batch_max_delay_ms)))
            .and_then(|settings| settings.total_batch_max_bytes(self.total_batch_max_bytes))
            .map(|settings| settings.send_together(self.send_together));
        settings.map(Some).map_err(|error| BenchError::Invalid(error.to_string()))
    }

    /// Whether messages of one thread to one queue have to be consumed in the order in which they were sent: only where a thread
    /// waits for one before it sends the next, never sends one again, and queues are read one record after the other.
    pub fn promises_order(&self) -> bool {
        self.send_mode == SendMode::Sync && self.retries == 0 && self.consume_mode == ConsumeMode::Pull
    }
}

/// Keys of the OpenMessaging driver with values that ask for something else than what would happen.
fn refuse_what_is_not_there(fields: &Fields) -> Result<(), BenchError> {
    if let Some(class) = fields.text("driverClass")
        && !class.to_ascii_lowercase().contains("rocketmq")
    {
        return Err(fields.bad("driverClass", "only targets that speak RocketMQ's protocol can be loaded".to_owned()));
    }
    if fields.truth("vipChannelEnabled", false)? {
        let expected = "false is expected: the load goes to the port that the route names".to_owned();
        return Err(fields.bad("vipChannelEnabled", expected));
    }
    if !fields.truth("enableBackpressure", true)? {
        let expected = "true is expected: sends in flight are always bounded, by backpressureConcurrency".to_owned();
        return Err(fields.bad("enableBackpressure", expected));
    }
    Ok(())
}

/// How messages are consumed. Refuses what has no meaning then.
fn consume_mode(fields: &Fields) -> Result<ConsumeMode, BenchError> {
    let consume_mode = fields.choice(
        "consumeMode",
        ConsumeMode::Pull,
        &[("pull", ConsumeMode::Pull), ("push", ConsumeMode::Push), ("pop", ConsumeMode::Pop)],
    )?;
    for (key, is_taken) in [
        ("consumeThreads", consume_mode != ConsumeMode::Pull),
        ("popInvisibleMillis", consume_mode == ConsumeMode::Pop),
    ] {
        if fields.text(key).is_some() && !is_taken {
            let expected = format!("with consumeMode {} it has no meaning", consume_mode.word());
            return Err(fields.bad(key, expected));
        }
    }
    Ok(consume_mode)
}

/// Reads `+a=b,c=d`, and `batchCQ`.
fn attributes(fields: &Fields) -> Result<BTreeMap<String, String>, BenchError> {
    let mut read = BTreeMap::new();
    let text = fields.text("topicAttributes").unwrap_or_default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        match part.trim_start_matches('+').split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                read.insert(name.trim().to_owned(), value.trim().to_owned());
            }
            Some(_) | None => {
                return Err(fields
                    .bad("topicAttributes", format!("\"{part}\" is not name=value; several are separated by commas")));
            }
        }
    }
    if fields.truth("batchCQ", false)? {
        read.insert("queue.type".to_owned(), "BatchCQ".to_owned());
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Driver, BenchError> {
        let mut fields = Fields::new("driver", KEYS);
        fields.read(text, "d.yaml")?;
        Driver::from_fields(&fields)
    }

    #[test]
    fn the_driver_file_of_the_openmessaging_benchmark_is_taken() {
        let driver = read(
            "name: RocketMQ\ndriverClass: io.openmessaging.benchmark.driver.rocketmq.RocketMQBenchmarkDriver\n\
             namesrvAddr: localhost:9876\nclusterName: DefaultCluster\nvipChannelEnabled: false\nbatchCQ: true\n\
             autoBatch: true\nenableBackpressure: true\nbackpressureConcurrency: 512\naccessKey:\nsecretKey:\n",
        )
        .unwrap();
        assert_eq!((driver.send_mode, driver.in_flight), (SendMode::Async, 512));
        assert_eq!(driver.gathers().unwrap(), Some(AutoBatch::default()));
        assert_eq!(driver.topic_attributes.get("queue.type").map(String::as_str), Some("BatchCQ"));
    }

    #[test]
    fn what_would_not_happen_is_refused_and_not_ignored() {
        for (text, words) in [
            ("autoBatch: true\nbatchSize: 2", "batchSize is \"2\"; with autoBatch 1 is expected"),
            ("batchMaxBytes: 5", "batchMaxBytes is \"5\"; without autoBatch it has no meaning"),
            ("batchMaxDelayMs: 5", "without autoBatch it has no meaning"),
            ("autoBatch: true\nbatchMaxBytes: 3000000", "batchMaxBytes is \"3000000\"; a number from 1 to 2097152"),
            ("autoBatch: true\nbatchMaxDelayMs: 0", "batchMaxDelayMs is \"0\"; a number from 1 to 30000"),
            ("sendTogether: true", "sendTogether is \"true\"; without autoBatch it has no meaning"),
            ("autoBatch: true\nsendMode: oneway\nchosenQueues: true", "with sendMode oneway false is expected"),
            ("vipChannelEnabled: true", "vipChannelEnabled is \"true\"; false is expected"),
            ("enableBackpressure: false", "sends in flight are always bounded"),
            ("driverClass: a.KafkaDriver", "only targets that speak RocketMQ's protocol"),
            ("batchSize: 40000", "batchSize is \"40000\"; a number from 1 to 32767"),
            ("consumeMode: pop\npullBatch: 64", "pullBatch is \"64\"; a number from 1 to 32"),
            ("sendMode: oneway\nbatchSize: 2", "batchSize is \"2\"; with sendMode oneway 1"),
            ("consumeMode: pop\nbatchCQ: true", "consumeMode is \"pop\"; pull or push"),
            ("sendMode: oneway\nretries: 1", "retries is \"1\"; with sendMode oneway 0"),
            ("batchSize: 2\ncompressOverBytes: 9", "compressOverBytes is \"9\"; with a batchSize 0"),
            ("consumeThreads: 9", "consumeThreads is \"9\"; with consumeMode pull"),
            ("consumeMode: push\npopInvisibleMillis: 10000", "with consumeMode push it has no meaning"),
            ("threads: 4", "backpressureConcurrency says"),
            ("topicAttributes: a", "\"a\" is not name=value"),
            ("accessKey: a", "accessKey and secretKey are given together"),
        ] {
            let said = read(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text:?}: {said}");
        }
    }

    #[test]
    fn keys_do_not_get_into_results_or_logs() {
        let driver = read("accessKey: who\nsecretKey: word").unwrap();
        let (json, debug) = (serde_json::to_string(&driver).unwrap(), format!("{driver:?}"));
        assert!([&json, &debug].iter().all(|text| !text.contains("who") && !text.contains("word")), "{json} {debug}");
    }
}
