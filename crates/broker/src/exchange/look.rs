//! What a start would take from the folder `config` and what from the journal, without starting.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::{fastjson, names};
use serde_json::Value;
use store::journal::JournalLook;
use store::look::Committed;

use super::files::{ALL, Json};
use super::hash;
use super::place::backup;
use crate::offsets::split_key;
use crate::{tables, upkeep};

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
    /// Committed offsets, likewise, but for static topics: there they count in logical queues, which may be elsewhere.
    pub offsets: Vec<Committed>,
    /// Where the offsets stand: the journal's folder, or the file of another broker.
    pub offsets_in: PathBuf,
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
        let mut static_topics = names(tables::MAPPINGS);
        look.offsets_in = root.join("journal");
        if let Some(journal) = journal {
            journal.load(tables::OFFSETS, |key, value| look.offsets.extend(upkeep::committed(key, value)));
        }
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
            if json == Json::Mappings
                && let Ok(value) = &parsed
            {
                static_topics.extend(
                    table(value, "topicQueueMappingInfoMap").into_iter().flatten().map(|(name, _)| name.clone()),
                );
            }
            let entries = parsed.map(|value| look.take(json, writer, &path, &value));
            look.files.push(ConfigFile { path, writer, version, entries });
        }
        look.offsets.retain(|one| !static_topics.contains(&one.topic));
        look
    }

    /// Notes names and offsets in a file, and counts its entries.
    fn take(&mut self, json: Json, writer: Writer, path: &Path, value: &Value) -> usize {
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
        let Some(entries) = table(value, name) else { return 0 };
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
        if json == Json::Offsets && writer == Writer::Another {
            self.offsets = entries.iter().flat_map(|(key, queues)| offsets_of(key, queues)).collect();
            self.offsets_in = path.to_owned();
        }
        if json == Json::LightOffsets && writer == Writer::Another {
            // What we knew of light queues does not count any more.
            self.offsets.retain(|one| !names::is_lmq(&one.topic));
        }
        entries.len()
    }
}

fn table<'a>(value: &'a Value, name: &str) -> Option<&'a serde_json::Map<String, Value>> {
    value.get(name)?.as_object()
}

/// The offsets of an entry of `consumerOffset.json`: `topic@group`, and numbers of queues with their offsets.
fn offsets_of(key: &str, queues: &Value) -> Vec<Committed> {
    let Some((topic, group)) = split_key(key) else { return Vec::new() };
    let of_queue = |(id, offset): (&String, &Value)| {
        let (queue_id, offset) = (id.parse().ok()?, offset.as_u64()?);
        Some(Committed { group: group.to_owned(), topic: topic.to_owned(), queue_id, offset })
    };
    queues.as_object().into_iter().flatten().filter_map(of_queue).collect()
}
