//! Files of a store that nobody has open, read as a start reads them: what would stop it.
//!
//! The journal, the files that another broker may have written (that they are JSON and have their tables, not each entry), and the lengths of the
//! consume queues; not the log, which takes as long as it is. Nothing is changed, and brokers are kept out meanwhile.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use journal::JournalError;
use protocol::fastjson;
use serde_json::Value;
use store::look::Look;
use store::{QueueError, StoreError, StoreOptions};

use super::finding::Finding;
use super::patient::{Lock, Patient};

/// Files of the folder `config` that a start reads, by Apache's names, and the tables in them.
const JSON: [(&str, &[&str]); 9] = [
    ("topics.json", &["topicConfigTable"]),
    ("topicQueueMapping.json", &["topicQueueMappingInfoMap"]),
    ("subscriptionGroup.json", &["subscriptionGroupTable", "forbiddenTable"]),
    ("consumerOffset.json", &["offsetTable"]),
    (LIGHT_OFFSETS, &["lmqOffsetTable", "offsetTable"]),
    ("delayOffset.json", &["offsetTable"]),
    ("messageRequestMode.json", &["messageRequestModeMap"]),
    ("consumerOrderInfo.json", &["table"]),
    ("consumerFilter.json", &["filterDataByTopic"]),
];
/// Read with light queues only.
const LIGHT_OFFSETS: &str = "lmqConsumerOffset.json";
const ENDS: &str = "a start ends here";

/// What of it a start would not read; none where it was not looked at, since somebody has the store open.
pub fn unreadable(patient: &Patient) -> Option<Vec<Finding>> {
    let store = &patient.target.store;
    if patient.lock() != Lock::Free {
        return None;
    }
    if !store.is_dir() {
        return Some(Vec::new());
    }
    let look = match Look::stopped(options(patient)) {
        Ok(look) => look,
        // Somebody was quicker.
        Err(StoreError::Locked { .. }) => return None,
        Err(error) => return Some(vec![not_seen(store, store, &error)]),
    };
    let settings = patient.target.settings.store();
    let has_light_queues = settings.is_ok_and(|store| store.enable_lmq && store.enable_multi_dispatch);
    let mut findings: Vec<Finding> = journal(&look, store).into_iter().collect();
    let used = JSON.iter().filter(|(name, _)| *name != LIGHT_OFFSETS || has_light_queues);
    findings.extend(used.filter_map(|(name, tables)| json(store, name, tables)));
    findings.extend(queues(&look, store));
    Some(findings)
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

fn not_seen(store: &Path, path: &Path, error: &dyn std::error::Error) -> Finding {
    let subject = match path.strip_prefix(store) {
        Ok(file) if !file.as_os_str().is_empty() => file.display().to_string(),
        Ok(_) | Err(_) => "files".to_owned(),
    };
    Finding::unknown(format!("{} cannot be looked at", path.display()))
        .of(subject)
        .seen(path.display().to_string(), error)
        .effect("whether a start could read it is not known")
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
        Err(error @ (JournalError::Disk { .. } | JournalError::Thread(_))) => {
            return Some(not_seen(store, store, &error));
        }
    };
    let title = "the journal, which holds topics, groups and offsets, is damaged".to_owned();
    Some(ends(store, &path, title).seen(path.display().to_string(), seen).fix(
        "put the folder journal back from a copy; or move it away, and a start takes config/*.json as they were last written (docs/migrate.md)",
    ))
}

/// A file of the folder `config`, or the backup that stands in for it where it is empty or not there.
fn json(store: &Path, name: &str, tables: &[&str]) -> Option<Finding> {
    let main = store.join("config").join(name);
    let backup = PathBuf::from(format!("{}.bak", main.display()));
    for path in [main, backup] {
        let bytes = match fs::read(&path) {
            Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => continue,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Some(not_seen(store, &path, &error)),
        };
        let why = match fastjson::from_slice::<Value>(&bytes) {
            Ok(value) => no_table(&value, tables)?,
            Err(error) => error.to_string(),
        };
        return Some(
            ends(store, &path, format!("{} cannot be read", path.display()))
                .seen(path.display().to_string(), why)
                .fix("repair it, or move it and its .bak away to start with what the journal has"),
        );
    }
    None
}

/// Why a file has not its tables; none if it may have them. One that is not there, or null, is an empty one.
fn no_table(value: &Value, tables: &[&str]) -> Option<String> {
    match value {
        Value::Object(members) => tables.iter().find_map(|table| match members.get(*table) {
            None | Some(Value::Null | Value::Object(_)) => None,
            Some(Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_)) => {
                Some(format!("{table} is no object"))
            }
        }),
        // Members in their order: nobody writes it, and a start reads it.
        Value::Array(_) => None,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Some("no object".to_owned()),
    }
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
    Some(not_seen(store, store, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::host::fake::FakeHost;
    use crate::patient::fake::patient;

    /// What is said of a store with this text in a file of the folder `config`; without a text a folder is in its place, which nobody can read.
    fn said_of(settings: &str, name: &str, text: Option<&str>) -> Vec<(Option<String>, Severity)> {
        let fake = FakeHost::with(&[]);
        let patient = patient(&fake, settings);
        let path = patient.target.store.join("config").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::create_dir(&path).unwrap(),
        }
        unreadable(&patient).unwrap().into_iter().map(|one| (one.subject, one.severity)).collect()
    }

    #[test]
    fn a_file_that_cannot_be_read_is_unknown_and_not_taken_for_one_that_is_not_there() {
        let topics = (Some("config/topics.json".to_owned()), Severity::Unknown);
        assert_eq!(said_of("", "topics.json", None), [topics]);
        let backup = (Some("config/topics.json.bak".to_owned()), Severity::Unknown);
        assert_eq!(said_of("", "topics.json.bak", None), [backup]);
        assert!(said_of("", "another.json", None).is_empty());
    }

    #[test]
    fn a_table_that_is_none_stops_a_start_as_bad_json_does() {
        for text in ["{", "7", r#"{"topicConfigTable":[]}"#, r#"{"topicConfigTable":"none"}"#] {
            let expected = (Some("config/topics.json".to_owned()), Severity::Error);
            assert_eq!(said_of("", "topics.json", Some(text)), [expected], "{text}");
        }
        for text in ["", "{}", r#"{"topicConfigTable":{}}"#, r#"{"topicConfigTable":null}"#, r#"{"another":[1]}"#] {
            assert!(said_of("", "topics.json", Some(text)).is_empty(), "{text}");
        }
    }

    #[test]
    fn offsets_of_light_queues_are_judged_where_there_are_light_queues() {
        let both = "enableLmq=true\nenableMultiDispatch=true\n";
        for settings in ["", "enableLmq=true\n"] {
            assert!(said_of(settings, LIGHT_OFFSETS, Some("{")).is_empty(), "{settings}");
        }
        let expected = (Some(format!("config/{LIGHT_OFFSETS}")), Severity::Error);
        assert_eq!(said_of(both, LIGHT_OFFSETS, Some("{")), [expected]);
    }
}
