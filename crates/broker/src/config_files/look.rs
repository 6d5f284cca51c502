//! What a start would take from the folder `config` and what from the journal, without starting.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use journal::JournalLook;
use protocol::fastjson;
use serde_json::Value;
use store::look::Committed;

use super::hash;
use super::place::backup;
use super::state::{ALL, Json};
use crate::state::offsets::{rows, split_key};
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
            journal.load(tables::OFFSETS, |key, value| look.offsets.extend(rows::committed(key, value)));
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
            Json::LightOffsets => return self.take_light(writer, path, value),
            Json::Topics => ("topicConfigTable", Some(&mut self.topics)),
            Json::Groups => ("subscriptionGroupTable", Some(&mut self.groups)),
            Json::Offsets | Json::Delays => ("offsetTable", None),
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
            self.half_offset = half_offset(entries);
        }
        if json == Json::Offsets && writer == Writer::Another {
            self.offsets = entries.iter().flat_map(|(key, queues)| offsets_of(key, queues)).collect();
            self.offsets_in = path.to_owned();
        }
        entries.len()
    }

    /// The same of the file that Apache has with light queues: it holds the offsets of all groups, and what the file before it says is of old.
    fn take_light(&mut self, writer: Writer, path: &Path, value: &Value) -> usize {
        let (of_groups, of_light_groups) = (table(value, "offsetTable"), table(value, "lmqOffsetTable"));
        if writer == Writer::Another {
            let of_queues = of_groups.into_iter().flatten().flat_map(|(key, queues)| offsets_of(key, queues));
            let of_light = of_light_groups.into_iter().flatten();
            self.offsets = of_queues.chain(of_light.filter_map(|(key, offset)| committed(key, 0, offset))).collect();
            self.half_offset = of_groups.and_then(half_offset);
            self.offsets_in = path.to_owned();
        }
        [of_groups, of_light_groups].into_iter().flatten().map(serde_json::Map::len).sum()
    }
}

fn table<'a>(value: &'a Value, name: &str) -> Option<&'a serde_json::Map<String, Value>> {
    value.get(name)?.as_object()
}

/// Where the half messages begin that are not done with, by a table of offsets.
fn half_offset(offsets: &serde_json::Map<String, Value>) -> Option<u64> {
    offsets.get("RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS")?.get("0")?.as_u64()
}

/// The offsets of an entry of `consumerOffset.json`: `topic@group`, and numbers of queues with their offsets.
fn offsets_of(key: &str, queues: &Value) -> Vec<Committed> {
    let of_queue = |(id, offset): (&String, &Value)| committed(key, id.parse().ok()?, offset);
    queues.as_object().into_iter().flatten().filter_map(of_queue).collect()
}

/// The offset of a queue, by `topic@group`.
fn committed(key: &str, queue_id: u32, offset: &Value) -> Option<Committed> {
    let (topic, group) = split_key(key)?;
    Some(Committed { group: group.to_owned(), topic: topic.to_owned(), queue_id, offset: offset.as_u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_light_queues_the_file_of_all_offsets_counts_and_the_one_before_is_of_old() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config");
        fs::create_dir(&config).unwrap();
        let old = r#"{"offsetTable":{"orders@CG":{"0":5},"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{"0":1}}}"#;
        fs::write(config.join("consumerOffset.json"), old).unwrap();
        let look = ConfigLook::at(folder.path(), None);
        assert_eq!((look.half_offset, look.offsets.len()), (Some(1), 2));
        let file = config.join("lmqConsumerOffset.json");
        let light = r#"{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":3},
            "offsetTable":{"orders@CG":{0:7,1:8},"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:9}}}"#;
        fs::write(&file, light).unwrap();
        let look = ConfigLook::at(folder.path(), None);
        let found: HashSet<(&str, &str, u32, u64)> =
            look.offsets.iter().map(|one| (one.topic.as_str(), one.group.as_str(), one.queue_id, one.offset)).collect();
        let expected = [
            ("orders", "CG", 0, 7),
            ("orders", "CG", 1, 8),
            ("%LMQ%a", "%LMQ%g", 0, 3),
            ("RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS", 0, 9),
        ];
        assert_eq!(found, HashSet::from(expected));
        assert_eq!((look.half_offset, look.offsets_in), (Some(9), file));
        assert_eq!(look.files.last().unwrap().entries, Ok(3));
    }
}
