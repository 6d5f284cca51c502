//! What a start would take from the folder `config` and what from the journal, without starting.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::fastjson;
use serde_json::Value;
use store::journal::JournalLook;

use super::files::{ALL, Json};
use super::hash;
use super::place::backup;
use crate::tables;

/// Who wrote a file of the folder `config`, as the journal knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// We did, and the state in the journal counts.
    Gantry,
    /// Another broker did, and it counts at the next start.
    Another,
}

/// A file of the folder `config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// The file, or the backup that stands in for it.
    pub path: PathBuf,
    /// Who wrote it.
    pub writer: Writer,
    /// Its `dataVersion` as counter and time in ms, if it says one.
    pub version: Option<[i64; 2]>,
    /// How many entries it has; the parser's sentence if it cannot be read.
    pub entries: Result<usize, String>,
}

/// What a start would find to be topics, groups and offsets.
#[derive(Clone, Debug, Default)]
pub struct ConfigLook {
    /// The files that there are.
    pub files: Vec<ConfigFile>,
    /// Names of topics, in the journal or in the files that count.
    pub topics: HashSet<String>,
    /// Names of groups, likewise.
    pub groups: HashSet<String>,
    /// Offset of the first half message that is not done with, as committed.
    pub half_offset: Option<u64>,
}

impl ConfigLook {
    /// Looks into `<root>/config` and the journal.
    pub fn at(root: &Path, journal: Option<&JournalLook>) -> ConfigLook {
        let mut look = ConfigLook::default();
        let names = |table| {
            let mut names = HashSet::new();
            if let Some(journal) = journal {
                journal.load(table, |name, _| {
                    names.insert(String::from_utf8_lossy(name).into_owned());
                });
            }
            names
        };
        (look.topics, look.groups) = (names(tables::TOPICS), names(tables::GROUPS));
        for json in ALL {
            let main = root.join("config").join(json.file());
            let Some((path, bytes)) = [main.clone(), backup(&main)].into_iter().find_map(|path| {
                let bytes = fs::read(&path).ok()?;
                (!bytes.iter().all(u8::is_ascii_whitespace)).then_some((path, bytes))
            }) else {
                continue;
            };
            let mut hashes: Vec<u64> = Vec::new();
            if let Some(journal) = journal {
                journal.load(tables::EXPORTS, |file, value| {
                    if file == json.file().as_bytes() {
                        hashes = serde_json::from_slice(value).unwrap_or_default();
                    }
                });
            }
            let writer = if hashes.contains(&hash(&bytes)) { Writer::Gantry } else { Writer::Another };
            let parsed = fastjson::from_slice::<Value>(&bytes).map_err(|error| error.to_string());
            let version = parsed.as_ref().ok().and_then(|value| {
                let version = value.get("dataVersion")?;
                Some([version.get("counter")?.as_i64()?, version.get("timestamp")?.as_i64()?])
            });
            let entries = parsed.map(|value| look.take(json, writer, &value));
            look.files.push(ConfigFile { path, writer, version, entries });
        }
        look
    }

    /// Notes the names in a file, and counts its entries.
    fn take(&mut self, json: Json, writer: Writer, value: &Value) -> usize {
        let table = |name: &str| value.get(name).and_then(Value::as_object);
        let (name, names) = match json {
            Json::Topics => ("topicConfigTable", Some(&mut self.topics)),
            Json::Groups => ("subscriptionGroupTable", Some(&mut self.groups)),
            Json::Offsets | Json::Delays => ("offsetTable", None),
            Json::LightOffsets => ("lmqOffsetTable", None),
            Json::Modes => ("messageRequestModeMap", None),
            Json::Orders => ("table", None),
            Json::Mappings => ("topicQueueMappingInfoMap", None),
            Json::Conditions => ("filterDataByTopic", None),
        };
        let Some(entries) = table(name) else { return 0 };
        if let Some(names) = names {
            if writer == Writer::Another {
                names.clear();
            }
            names.extend(entries.keys().cloned());
        }
        if json == Json::Offsets {
            let half = entries.get("RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS").and_then(|queues| queues.get("0"));
            self.half_offset = half.and_then(Value::as_u64);
        }
        entries.len()
    }
}
