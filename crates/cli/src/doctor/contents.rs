//! Files of a store that nobody has open, read as a start reads them: what would stop it.
//!
//! The journal, the files that another broker may have written, and the lengths of the consume queues; not the log, which takes as long as it
//! is. Nothing is changed, and brokers are kept out meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use protocol::fastjson;
use serde_json::Value;
use store::journal::JournalError;
use store::look::Look;
use store::{QueueError, StoreError, StoreOptions};

use super::finding::Finding;
use super::patient::{Lock, Patient};

/// Files of the folder `config` that a start reads, by Apache's names.
const JSON: [&str; 9] = [
    "topics.json",
    "topicQueueMapping.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "lmqConsumerOffset.json",
    "delayOffset.json",
    "messageRequestMode.json",
    "consumerOrderInfo.json",
    "consumerFilter.json",
];
const ENDS: &str = "a start ends here";

/// What of it a start would not read. Nothing where somebody has the store open: his start has read it.
pub fn unreadable(patient: &Patient) -> Vec<Finding> {
    let store = &patient.target.store;
    if patient.lock() != Lock::Free || !store.is_dir() {
        return Vec::new();
    }
    let look = match Look::stopped(options(patient)) {
        Ok(look) => look,
        // Somebody was quicker.
        Err(StoreError::Locked { .. }) => return Vec::new(),
        Err(error) => return vec![not_seen(store, &error)],
    };
    let mut findings: Vec<Finding> = journal(&look, store).into_iter().collect();
    findings.extend(JSON.iter().filter_map(|name| json(store, name)));
    findings.extend(queues(&look, store));
    findings
}

/// Where the files are, and how long they should be.
fn options(patient: &Patient) -> StoreOptions {
    let options = StoreOptions::at(&patient.target.store);
    match patient.target.settings.store() {
        Ok(settings) => StoreOptions {
            queue_file_bytes: settings.mapped_file_size_consume_queue,
            batch_queue_file_bytes: settings.mapper_file_size_batch_consume_queue,
            ..options
        },
        // What is wrong with them is the check `configuration`'s to say. Files on disk of another length win anyway.
        Err(_) => options,
    }
}

fn not_seen(store: &Path, error: &dyn std::error::Error) -> Finding {
    Finding::unknown("the files of the store cannot be looked at")
        .of("files")
        .seen(store.display().to_string(), error)
        .effect("whether a start could read them is not known")
        .fix("run gantry doctor as the user of the broker, or as root")
}

/// An error about a file of the store, or a folder of it.
fn ends(store: &Path, path: &Path, title: String) -> Finding {
    let subject = path.strip_prefix(store).unwrap_or(path).display().to_string();
    Finding::error(title).of(subject).effect(ENDS)
}

fn journal(look: &Look, store: &Path) -> Option<Finding> {
    let (path, seen) = match look.journal() {
        Ok(_) => return None,
        Err(JournalError::Damaged { path, at, what }) => (path, format!("byte {at}: {what}")),
        Err(JournalError::Missing { path, what }) => (path, what),
        Err(error @ (JournalError::Disk { .. } | JournalError::Thread(_))) => return Some(not_seen(store, &error)),
    };
    let title = "the journal, which holds topics, groups and offsets, is damaged".to_owned();
    Some(ends(store, &path, title).seen(path.display().to_string(), seen).fix(
        "put the folder journal back from a copy; or move it away, and a start takes config/*.json as they were last written (docs/migrate.md)",
    ))
}

/// A file of the folder `config`, or the backup that stands in for it where it is empty or not there.
fn json(store: &Path, name: &str) -> Option<Finding> {
    let main = store.join("config").join(name);
    let backup = PathBuf::from(format!("{}.bak", main.display()));
    let (path, bytes) = [main, backup].into_iter().find_map(|path| {
        let bytes = fs::read(&path).ok()?;
        (!bytes.iter().all(u8::is_ascii_whitespace)).then_some((path, bytes))
    })?;
    let error = fastjson::from_slice::<Value>(&bytes).err()?;
    Some(
        ends(store, &path, format!("{} cannot be read", path.display()))
            .seen(path.display().to_string(), error)
            .fix("repair it, or move it and its .bak away to start with what the journal has"),
    )
}

fn queues(look: &Look, store: &Path) -> Option<Finding> {
    let error = match look.queue_files() {
        Ok(()) => return None,
        Err(StoreError::Queue(QueueError::FileLength { path, bytes, expected })) => {
            let title = "a file of a consume queue has a length that none has".to_owned();
            return Some(
                ends(store, &path, title)
                    .seen(path.display().to_string(), format!("{bytes} bytes, and not {expected}"))
                    .fix(format!(
                        "gantry store repair --queues --store {} builds the queues again from the log",
                        store.display()
                    )),
            );
        }
        Err(error) => error,
    };
    Some(not_seen(store, &error))
}
