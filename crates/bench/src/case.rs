//! A case: workload and driver, from a preset, files, and single values, the later winning.

use std::path::Path;

use crate::driver::{self, ConsumeMode, Driver, SendMode};
use crate::error::BenchError;
use crate::fields::Fields;
use crate::ledger;
use crate::presets;
use crate::workload::{self, MESSAGE_BYTES_MAX, Workload};

/// What has been said so far.
#[derive(Clone, Debug)]
pub struct Case {
    workload: Fields,
    driver: Fields,
}

impl Default for Case {
    fn default() -> Case {
        Case::new()
    }
}

impl Case {
    /// Everything as usual.
    pub fn new() -> Case {
        Case { workload: Fields::new("workload", workload::KEYS), driver: Fields::new("driver", driver::KEYS) }
    }

    /// Takes a preset.
    pub fn preset(&mut self, name: &str) -> Result<(), BenchError> {
        let Some(preset) = presets::find(name) else {
            let names: Vec<String> = presets::all().into_iter().map(|preset| preset.name).collect();
            return Err(BenchError::Invalid(format!("there is no preset {name}; there are {}", names.join(", "))));
        };
        self.workload.read(&preset.workload, &format!("preset {name}"))?;
        self.driver.read(&preset.driver, &format!("preset {name}"))
    }

    /// Takes a workload file. Without a `name` in it the file's own name is taken.
    pub fn workload_file(&mut self, path: &Path) -> Result<(), BenchError> {
        let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        self.workload.set("name", stem, "the file's name")?;
        self.workload.read_file(path)
    }

    /// Takes a driver file.
    pub fn driver_file(&mut self, path: &Path) -> Result<(), BenchError> {
        self.driver.read_file(path)
    }

    /// Takes one value, of the workload or the driver; `name` is the workload's.
    pub fn set(&mut self, key: &str, value: &str, origin: &str) -> Result<(), BenchError> {
        let value = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
        if self.workload.knows(key) {
            return self.workload.set(key, value, origin);
        }
        if self.driver.knows(key) {
            return self.driver.set(key, value, origin);
        }
        let known = [workload::KEYS, driver::KEYS].concat().join(", ");
        let (origin, key) = (origin.to_owned(), key.to_owned());
        Err(BenchError::UnknownKey { origin, key, kind: "workload or driver", known })
    }

    /// Checks it all.
    pub fn finish(&self) -> Result<(Workload, Driver), BenchError> {
        let (workload, driver) = (Workload::from_fields(&self.workload)?, Driver::from_fields(&self.driver)?);
        check(&workload, &driver)?;
        Ok((workload, driver))
    }
}

/// Sends at once, and reads at once, of a run: each has a task, of some kilobytes.
pub const TASKS_MAX: u64 = 100_000;

/// Bodies that may be on their way at once.
const IN_FLIGHT_BYTES_MAX: u64 = 2 << 30;

/// What the protocol adds to a message of a batch: lengths, flags, and the properties that a client gives each.
const INNER_BYTES: u64 = 128;

/// Limits of workload and driver together.
fn check(workload: &Workload, driver: &Driver) -> Result<(), BenchError> {
    let (batch, size) = (driver.batch_size as u64, workload.message_size as u64);
    let producers = u64::from(workload.topics) * u64::from(workload.producers_per_topic);
    let consumers = workload.groups() * u64::from(workload.consumer_per_subscription);
    let sends = producers * driver.in_flight as u64;
    let (reads, what) = match driver.consume_mode {
        ConsumeMode::Pull => {
            let reads = workload.groups() * u64::from(workload.partitions_per_topic);
            (reads, "topics × partitionsPerTopic × subscriptionsPerTopic")
        }
        ConsumeMode::Push | ConsumeMode::Pop => (
            consumers * driver.consume_threads as u64,
            "topics × subscriptionsPerTopic × consumerPerSubscription × consumeThreads",
        ),
    };
    let lanes = match driver.send_mode {
        SendMode::Async => "backpressureConcurrency",
        SendMode::Sync | SendMode::Oneway => "threads",
    };
    let limits = [
        (format!("topics × producersPerTopic × {lanes}"), sends, TASKS_MAX, "sends are made at once"),
        (what.to_owned(), reads, TASKS_MAX, "reads are made at once"),
        (
            format!("batchSize × (messageSize + {INNER_BYTES})"),
            if batch > 1 { batch * (size + INNER_BYTES) } else { 0 },
            MESSAGE_BYTES_MAX as u64,
            "bytes go into a request",
        ),
        (
            format!("topics × producersPerTopic × {lanes} × batchSize × messageSize"),
            sends.saturating_mul(batch * size),
            IN_FLIGHT_BYTES_MAX,
            "bytes are on their way at once",
        ),
        (
            "topics × producersPerTopic × (2 + subscriptionsPerTopic)".to_owned(),
            producers * ledger::rows(u64::from(workload.subscriptions_per_topic)),
            ledger::ROWS_MAX,
            "are followed to their end",
        ),
    ];
    match limits.into_iter().find(|(_, value, max, _)| value > max) {
        Some((what, value, max, why)) => Err(BenchError::Invalid(format!("{what} is {value}; at most {max} {why}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_a_preset_and_single_values_change_files() {
        let dir = tempfile::tempdir().unwrap();
        let (workload, driver) = (dir.path().join("mine.yaml"), dir.path().join("driver.yaml"));
        std::fs::write(&workload, "messageSize: 200\npartitionsPerTopic: 8\n").unwrap();
        std::fs::write(&driver, "namesrvAddr: a:1;b:2\nthreads: 5\n").unwrap();
        let mut case = Case::new();
        case.preset("sync-64").unwrap();
        case.workload_file(&workload).unwrap();
        case.driver_file(&driver).unwrap();
        case.set("partitionsPerTopic", "4", "--set").unwrap();
        let (workload, driver) = case.finish().unwrap();
        assert_eq!((workload.name.as_str(), workload.message_size, workload.partitions_per_topic), ("mine", 200, 4));
        assert_eq!((workload.messages, driver.in_flight, driver.namesrv_addr.as_str()), (1_000_000, 5, "a:1;b:2"));
        let said = case.set("treads", "4", "--set").unwrap_err().to_string();
        assert!(said.starts_with("--set: treads is no key of a workload or driver; known are name, topics"), "{said}");
        let said = case.preset("none").unwrap_err().to_string();
        assert!(said.starts_with("there is no preset none; there are batch-16"), "{said}");
    }

    #[test]
    fn what_together_takes_too_much_is_refused_with_its_limit() {
        let said = |values: &[(&str, &str)]| {
            let mut case = Case::new();
            values.iter().for_each(|(key, value)| case.set(key, value, "test").unwrap());
            case.finish().err().map(|error| error.to_string()).unwrap_or_default()
        };
        for (values, words) in [
            (
                &[("topics", "100"), ("producersPerTopic", "100")][..],
                "topics × producersPerTopic × backpressureConcurrency is 10240000; at most 100000 sends",
            ),
            (
                &[("partitionsPerTopic", "1000"), ("subscriptionsPerTopic", "1000")],
                "partitionsPerTopic × subscriptionsPerTopic is 1000000; at most 100000 reads",
            ),
            (
                &[("consumeMode", "pop"), ("consumeThreads", "10000"), ("consumerPerSubscription", "1000")],
                "× consumeThreads is 10000000; at most 100000 reads",
            ),
            (&[("batchSize", "20000")], "batchSize × (messageSize + 128) is 23040000; at most 15728640 bytes"),
            (&[("messageSize", "15000000")], "× batchSize × messageSize is 15360000000; at most 2147483648 bytes"),
            (
                &[("producersPerTopic", "1000"), ("subscriptionsPerTopic", "1000"), ("backpressureConcurrency", "1")],
                "(2 + subscriptionsPerTopic) is 1002000; at most 131072",
            ),
        ] {
            assert!(said(values).contains(words), "{values:?}: {}", said(values));
        }
    }

    #[test]
    fn a_number_of_messages_is_not_spent_on_a_warm_up() {
        let warmup = |key: &str| {
            let mut case = Case::new();
            case.set(key, "1", "test").unwrap();
            case.finish().unwrap().0.warmup_duration_minutes
        };
        assert_eq!(["messages", "consumerBacklogSizeGB", "topics"].map(warmup), [0.0, 0.0, 1.0]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let said = Case::new().workload_file(Path::new("/nowhere/w.yaml")).unwrap_err().to_string();
        assert!(said.starts_with("/nowhere/w.yaml: "), "{said}");
    }
}
