//! RocketMQ's `config/*.json`: read when another broker has written them, and written so that another broker can take over.
//!
//! The state lives in the journal. A file that we did not write wins for its table: then Apache ran here in between, or this is its store
//! and we start on it for the first time. What we wrote is known by its hash, which is in the journal before the file is in its place;
//! so a crash between the two never makes our own older file win. Members that we do not know are kept beside the state and written back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::body::{
    ConsumerOffsets, DelayOffsets, LmqConsumerOffsets, MessageRequestModes, SubscriptionGroupTable, TopicConfigTable,
    TopicQueueMappingTable,
};
use protocol::fastjson::{self, Dialect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use store::Store;
use store::journal::Table;

use crate::admin;
use crate::broker::Broker;
use crate::offsets::{OffsetTable, split_key};
use crate::pop::OrderTable;
use crate::refusal::Refusal;
use crate::session::JOURNAL_TIMEOUT;
use crate::static_topic::accept;
use crate::tables::{self, Keeper};
use crate::topics::QUEUES_MAX;

/// Hashes that are remembered of writes that may have been cut short, beside those of the file in place and of its backup.
const ATTEMPTS_KEPT: usize = 4;
/// Derived from the offsets and written by some versions of Apache only; a stale one would mislead.
const GROUP_TOPICS: &str = "groupTopicMap";

/// The end of a backup's name.
const BACKUP: &str = "bak";

/// One of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Json {
    Topics,
    Groups,
    Offsets,
    /// With light queues Apache reads and writes this one in the place of the one before.
    LightOffsets,
    Delays,
    Modes,
    Orders,
    Mappings,
}

/// In the order in which they are taken over: of two files with offsets, the later one counts; a mapping needs its topic.
const ALL: [Json; 8] = [
    Json::Topics,
    Json::Mappings,
    Json::Groups,
    Json::Offsets,
    Json::LightOffsets,
    Json::Delays,
    Json::Modes,
    Json::Orders,
];

impl Json {
    fn file(self) -> &'static str {
        match self {
            Json::Topics => "topics.json",
            Json::Groups => "subscriptionGroup.json",
            Json::Offsets => "consumerOffset.json",
            Json::LightOffsets => "lmqConsumerOffset.json",
            Json::Delays => "delayOffset.json",
            Json::Modes => "messageRequestMode.json",
            Json::Orders => "consumerOrderInfo.json",
            Json::Mappings => "topicQueueMapping.json",
        }
    }
}

/// Why the files cannot be exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The world.
    #[error("cannot {what} {}: {cause}", .path.display())]
    Io {
        /// read, write …
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The journal, which has to know of a file before it is there.
    #[error("cannot write {}: the journal, which has to know of it first, is not written in time", .path.display())]
    Journal {
        /// Which file.
        path: PathBuf,
    },
    /// Not what the file should hold.
    #[error("{} is not readable ({cause}); repair it, or move {} away to start with what this broker remembers", .path.display(), to_move(.path))]
    Content {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
}

/// What has to go before a start reads neither a file nor the backup that stands in for it.
fn to_move(path: &Path) -> String {
    if path.extension().is_some_and(|extension| extension == BACKUP) {
        return "it".to_owned();
    }
    format!("it and {} (if that is there)", backup(path).display())
}

#[derive(Clone, Debug, Default)]
struct Known {
    /// Newest first.
    hashes: Vec<u64>,
    /// Of these, the file in place and its backup: never forgotten, however often replacing them fails.
    in_place: Vec<u64>,
    extras: Value,
    /// What the state looked like when it was last written.
    stamp: Option<(i64, i64, u64)>,
}

impl Known {
    /// What lies in place now. One that could not be read is as it was.
    fn note_in_place(&mut self, hashes: Vec<u64>) {
        if !hashes.is_empty() {
            self.in_place = hashes;
            self.in_place.retain(|hash| self.hashes.contains(hash));
        }
    }
}

/// The exchange of one broker with the folder `config`.
pub(crate) struct Exchange {
    folder: PathBuf,
    known: Mutex<[Known; ALL.len()]>,
    keeper: Keeper,
}

impl Exchange {
    /// What the journal remembers of the files.
    pub(crate) fn load(folder: PathBuf, store: &Arc<Store>) -> Exchange {
        let mut known: [Known; ALL.len()] = Default::default();
        store.journal().load(tables::EXPORTS, |file, value| {
            if let Some(json) = named(file) {
                known[json as usize].hashes = serde_json::from_slice(value).unwrap_or_default();
            }
        });
        store.journal().load(tables::EXTRAS, |file, value| {
            if let Some(json) = named(file) {
                known[json as usize].extras = serde_json::from_slice(value).unwrap_or_default();
            }
        });
        Exchange { folder, known: Mutex::new(known), keeper: Keeper::of(store) }
    }

    /// Takes over the files that others have written. Says what was taken over, a sentence each.
    pub(crate) fn import(&self, broker: &Broker) -> Result<Vec<String>, ExchangeError> {
        let mut report = Vec::new();
        for json in used(broker) {
            let Some((path, bytes)) = self.read(json)? else { continue };
            let is_first = {
                let mut known = self.known.lock();
                let known = &mut known[json as usize];
                if known.hashes.contains(&hash(&bytes)) {
                    known.note_in_place(hashes_of(&self.folder.join(json.file())));
                    continue;
                }
                known.hashes.is_empty()
            };
            let count = self.take(broker, json, &path, &bytes)?;
            let who = if is_first { "found" } else { "changed by another broker" };
            report.push(format!("{} {who}: {count} entries taken over from it", path.display()));
        }
        Ok(report)
    }

    /// The file, or its backup where the file is missing or empty, as Apache does it.
    fn read(&self, json: Json) -> Result<Option<(PathBuf, Vec<u8>)>, ExchangeError> {
        let main = self.folder.join(json.file());
        for path in [main.clone(), backup(&main)] {
            match fs::read(&path) {
                Ok(bytes) if bytes.iter().all(u8::is_ascii_whitespace) => {}
                Ok(bytes) => return Ok(Some((path, bytes))),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(ExchangeError::Io { what: "read", path, cause }),
            }
        }
        Ok(None)
    }

    fn take(&self, broker: &Broker, json: Json, path: &Path, bytes: &[u8]) -> Result<usize, ExchangeError> {
        let (count, extras) = match json {
            Json::Topics => {
                let (table, extras) = parse::<TopicConfigTable>(path, bytes)?;
                for topic in broker.topics.all() {
                    if !table.topic_config_table.contains_key(topic.name())
                        && !protocol::names::is_system_topic(topic.name())
                    {
                        broker.topics.forget(topic.name());
                    }
                }
                let count = table.topic_config_table.len();
                for (topic_name, config) in table.topic_config_table {
                    broker.topics.create(protocol::body::TopicConfig { topic_name, ..config });
                }
                broker.topics.set_version(table.data_version);
                (count, extras)
            }
            Json::Groups => {
                let (table, extras) = parse::<SubscriptionGroupTable>(path, bytes)?;
                let count = table.subscription_group_table.len();
                broker.groups.replace(table.subscription_group_table, &table.forbidden_table, table.data_version);
                (count, extras)
            }
            Json::Offsets => {
                let (mut table, extras) = parse::<ConsumerOffsets>(path, bytes)?;
                if broker.store.has_light_queues() {
                    // It says nothing of these groups.
                    table.offset_table.extend(light_groups(broker.offsets.table(), true));
                }
                broker.offsets.replace(&table.offset_table);
                broker.offsets.set_version(table.data_version.unwrap_or_default());
                (table.offset_table.len(), extras)
            }
            Json::LightOffsets => {
                let (mut table, extras) = parse::<LmqConsumerOffsets>(path, bytes)?;
                let of_light_groups = table.lmq_offset_table.into_iter();
                table.offset_table.extend(of_light_groups.map(|(key, offset)| (key, [(0, offset)].into())));
                broker.offsets.replace(&table.offset_table);
                broker.offsets.set_version(table.data_version.unwrap_or_default());
                (table.offset_table.len(), extras)
            }
            Json::Delays => {
                let (table, extras) = parse::<DelayOffsets>(path, bytes)?;
                for (level, offset) in &table.offset_table {
                    broker.delay.import(&broker.store, *level, *offset);
                }
                (table.offset_table.len(), extras)
            }
            Json::Modes => {
                let (modes, extras) = parse::<MessageRequestModes>(path, bytes)?;
                (broker.pops.modes.replace(modes), extras)
            }
            Json::Orders => {
                let (orders, extras) = parse::<OrderTable>(path, bytes)?;
                let count = orders.table.len();
                broker.pops.orders.replace(orders.table);
                (count, extras)
            }
            Json::Mappings => {
                let (mut table, extras) = parse::<TopicQueueMappingTable>(path, bytes)?;
                let bad = |refusal: Refusal| ExchangeError::Content { path: path.to_owned(), cause: refusal.remark };
                for (topic, detail) in &mut table.topic_queue_mapping_info_map {
                    let owner = detail.bname.clone();
                    accept::check(detail, &owner, topic, QUEUES_MAX).map_err(bad)?;
                }
                let count = table.topic_queue_mapping_info_map.len();
                broker.topics.replace_mappings(table.topic_queue_mapping_info_map);
                broker.topics.set_mapping_version(table.data_version.unwrap_or_default());
                (count, extras)
            }
        };
        let value = serde_json::to_vec(&extras).unwrap_or_default();
        self.known.lock()[json as usize].extras = extras;
        self.keeper.put(tables::EXTRAS, json.file().as_bytes(), &value);
        self.remember(json, hash(bytes));
        self.known.lock()[json as usize].note_in_place(vec![hash(bytes)]);
        Ok(count)
    }

    /// Writes the files whose state has changed since they were last written. Called by one task at a time.
    pub(crate) async fn export(&self, broker: &Broker) -> Result<(), ExchangeError> {
        for json in used(broker) {
            let stamp = stamp(broker, json);
            let extras = {
                let known = self.known.lock();
                let known = &known[json as usize];
                if known.stamp == Some(stamp) {
                    continue;
                }
                known.extras.clone()
            };
            let text = render(broker, json, &extras);
            let new = hash(text.as_bytes());
            let position = self.remember(json, new);
            let before = self.known.lock()[json as usize].in_place.first().copied();
            let path = self.folder.join(json.file());
            let written = broker.store.journal().written().reached(position);
            if tokio::time::timeout(JOURNAL_TIMEOUT, written).await.is_err() {
                return Err(ExchangeError::Journal { path });
            }
            let written = tokio::task::spawn_blocking(move || {
                let written = put_in_place(&path, text.as_bytes());
                // One that failed may have come as far as to replace either of the two.
                let in_place =
                    if written.is_ok() { Vec::from_iter([new].into_iter().chain(before)) } else { hashes_of(&path) };
                (written, in_place)
            });
            // The task cannot be cancelled here, and a panic in it would be ours.
            if let Ok((written, in_place)) = written.await {
                self.known.lock()[json as usize].note_in_place(in_place);
                written?;
            }
            self.known.lock()[json as usize].stamp = Some(stamp);
        }
        Ok(())
    }

    fn remember(&self, json: Json, hash: u64) -> u64 {
        let mut known = self.known.lock();
        let Known { hashes, in_place, .. } = &mut known[json as usize];
        hashes.retain(|other| *other != hash);
        hashes.insert(0, hash);
        let mut attempts = 0;
        hashes.retain(|hash| {
            attempts += usize::from(!in_place.contains(hash));
            in_place.contains(hash) || attempts <= ATTEMPTS_KEPT
        });
        let value = serde_json::to_vec(hashes).unwrap_or_default();
        self.keeper.put(tables::EXPORTS, json.file().as_bytes(), &value)
    }

    fn show(&self, value: impl Fn(&Known) -> Vec<u8>, f: &mut dyn FnMut(&[u8], &[u8])) {
        let known = self.known.lock().clone();
        for json in ALL {
            f(json.file().as_bytes(), &value(&known[json as usize]));
        }
    }
}

/// The hashes, for the journal's snapshots.
pub(crate) struct Exports(pub(crate) Arc<Exchange>);

impl Table for Exports {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.show(|known| serde_json::to_vec(&known.hashes).unwrap_or_default(), f);
    }
}

/// The members that we do not know, for the journal's snapshots.
pub(crate) struct Extras(pub(crate) Arc<Exchange>);

impl Table for Extras {
    fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.0.show(|known| serde_json::to_vec(&known.extras).unwrap_or_default(), f);
    }
}

/// Changes whenever the state does.
fn stamp(broker: &Broker, json: Json) -> (i64, i64, u64) {
    match json {
        Json::Topics => {
            let version = broker.topics.version();
            (version.counter, version.timestamp, broker.topics.len() as u64)
        }
        Json::Groups => {
            let version = broker.groups.version();
            (version.counter, version.timestamp, broker.groups.len() as u64)
        }
        Json::Offsets | Json::LightOffsets => (0, 0, broker.offsets.changes()),
        Json::Modes => (0, 0, broker.pops.modes.changes()),
        Json::Orders => {
            let (sum, count) = broker.pops.orders.stamp();
            (0, sum, count)
        }
        Json::Mappings => {
            let version = broker.topics.mapping_version();
            (version.counter, version.timestamp, 0)
        }
        Json::Delays => (0, broker.delay.offsets().map(|(_, offset)| offset).sum(), 0),
    }
}

fn render(broker: &Broker, json: Json, extras: &Value) -> String {
    match json {
        Json::Topics => {
            let topics = broker.topics.all();
            let table = TopicConfigTable {
                data_version: broker.topics.version(),
                topic_config_table: topics
                    .iter()
                    .map(|topic| (topic.name().to_owned(), protocol::body::TopicConfig::clone(&topic.config())))
                    .collect(),
                ..TopicConfigTable::default()
            };
            text(&table, extras)
        }
        Json::Groups => text(&admin::groups::table(broker), extras),
        Json::Offsets => {
            let all = broker.offsets.table();
            let offset_table = if broker.store.has_light_queues() { light_groups(all, false) } else { all };
            text(&ConsumerOffsets { data_version: Some(broker.offsets.version()), offset_table }, extras)
        }
        Json::LightOffsets => {
            let of_light_groups = light_groups(broker.offsets.table(), true).into_iter();
            let table = LmqConsumerOffsets {
                data_version: Some(broker.offsets.version()),
                lmq_offset_table: of_light_groups
                    .filter_map(|(key, offsets)| Some((key, offsets.into_values().next()?)))
                    .collect(),
                offset_table: light_groups(broker.offsets.table(), false),
            };
            text(&table, extras)
        }
        Json::Modes => text(&broker.pops.modes.table(), extras),
        Json::Orders => text(&OrderTable { table: broker.pops.orders.table() }, extras),
        Json::Mappings => {
            let mappings = broker.topics.mappings().into_iter();
            let table = TopicQueueMappingTable {
                data_version: Some(broker.topics.mapping_version()),
                topic_queue_mapping_info_map: mappings
                    .map(|(topic, mapping)| (topic.name().to_owned(), mapping.detail().clone()))
                    .collect(),
            };
            text(&table, extras)
        }
        Json::Delays => {
            let offset_table = broker.delay.offsets().filter(|(_, offset)| *offset > 0).collect();
            text(&DelayOffsets { data_version: Some(protocol::body::DataVersion::default()), offset_table }, extras)
        }
    }
}

/// The files that are exchanged.
fn used(broker: &Broker) -> impl Iterator<Item = Json> {
    let has_light_queues = broker.store.has_light_queues();
    ALL.into_iter().filter(move |json| *json != Json::LightOffsets || has_light_queues)
}

/// The offsets of groups that are named like a light queue, or those of the others.
fn light_groups(mut table: OffsetTable, is_light: bool) -> OffsetTable {
    table.retain(|key, _| split_key(key).is_some_and(|(_, group)| protocol::names::is_lmq(group)) == is_light);
    table
}

fn parse<T: DeserializeOwned + Serialize>(path: &Path, bytes: &[u8]) -> Result<(T, Value), ExchangeError> {
    let bad = |error: fastjson::JsonError| ExchangeError::Content { path: path.to_owned(), cause: error.to_string() };
    let known: T = fastjson::from_slice(bytes).map_err(bad)?;
    let whole: Value = fastjson::from_slice(bytes).map_err(bad)?;
    let mut extras = unknown(&whole, &plain(&known));
    if let Value::Object(members) = &mut extras {
        members.remove(GROUP_TOPICS);
    }
    Ok((known, extras))
}

/// As a tree, null members left out.
fn plain<T: Serialize>(table: &T) -> Value {
    serde_json::from_slice(&fastjson::to_vec(table, Dialect::Standard)).unwrap_or_default()
}

/// Members of `whole` that `known` lacks, at their places.
fn unknown(whole: &Value, known: &Value) -> Value {
    let (Value::Object(whole), Value::Object(known)) = (whole, known) else { return Value::Null };
    let mut rest = Map::new();
    for (name, value) in whole {
        match known.get(name) {
            None if value.is_null() => {}
            None => {
                rest.insert(name.clone(), value.clone());
            }
            Some(known) => {
                let below = unknown(value, known);
                if !below.is_null() {
                    rest.insert(name.clone(), below);
                }
            }
        }
    }
    if rest.is_empty() { Value::Null } else { Value::Object(rest) }
}

/// Puts unknown members back to their places. Depth 1 is inside a table: an entry that is gone does not come back.
fn put_back(target: &mut Value, extras: &Value, depth: usize) {
    let (Value::Object(target), Value::Object(extras)) = (target, extras) else { return };
    for (name, value) in extras {
        match target.get_mut(name) {
            Some(below) => put_back(below, value, depth + 1),
            None if depth == 1 => {}
            None => {
                target.insert(name.clone(), value.clone());
            }
        }
    }
}

/// Standard JSON, which fastjson 1 and 2 and every other tool read, indented by tabs as Apache's files are.
fn text<T: Serialize>(table: &T, extras: &Value) -> String {
    let mut tree = plain(table);
    put_back(&mut tree, extras, 0);
    let mut out = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut out, serde_json::ser::PrettyFormatter::with_indent(b"\t"));
    // Writing to memory, and a tree of strings and numbers, cannot fail.
    let _ = tree.serialize(&mut serializer);
    String::from_utf8(out).unwrap_or_default()
}

fn named(file: &[u8]) -> Option<Json> {
    ALL.into_iter().find(|json| json.file().as_bytes() == file)
}

fn backup(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(BACKUP);
    name.into()
}

/// FNV-1a: tells whether somebody has changed a file; nobody gains from forging one.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The hashes of a file and of its backup, of those that can be read. Waits for the device.
fn hashes_of(path: &Path) -> Vec<u64> {
    [path.to_owned(), backup(path)].iter().filter_map(|path| fs::read(path).ok()).map(|bytes| hash(&bytes)).collect()
}

/// The old file becomes the backup, the new one takes its place; at every moment one of the two is whole.
pub(crate) fn put_in_place(path: &Path, bytes: &[u8]) -> Result<(), ExchangeError> {
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |cause| ExchangeError::Io { what, path, cause }
    };
    // The parent of a bare name is empty.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let mut new = path.as_os_str().to_owned();
    new.push(".tmp");
    let new = PathBuf::from(new);
    let mut file = File::create(&new).map_err(failed("create", &new))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("write", &new))?;
    match fs::rename(path, backup(path)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("rename", path)(error)),
        Ok(()) | Err(_) => {}
    }
    fs::rename(&new, path).map_err(failed("rename", &new))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::body::SubscriptionGroupConfig;

    const GROUPS: &str = r#"{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":7},"forbiddenTable":{},"futureTop":[1],
        "subscriptionGroupTable":{"CG":{"attributes":{},"groupName":"CG","groupRetryPolicy":{"type":"EXPONENTIAL",
        "exponentialRetryPolicy":{"initial":1000,"max":2000,"multiplier":3,"jitter":9}},"futureMember":{"a":1},"retryMaxTimes":4}}}"#;

    #[test]
    fn members_that_we_do_not_know_survive_the_round_trip() {
        let (mut table, extras) = parse::<SubscriptionGroupTable>(Path::new("x"), GROUPS.as_bytes()).unwrap();
        table.subscription_group_table.get_mut("CG").unwrap().retry_max_times = 5;
        let written: Value = serde_json::from_str(&text(&table, &extras)).unwrap();
        let group = &written["subscriptionGroupTable"]["CG"];
        assert_eq!(group["futureMember"]["a"], 1);
        assert_eq!(group["groupRetryPolicy"]["exponentialRetryPolicy"]["jitter"], 9);
        assert_eq!(group["retryMaxTimes"], 5);
        assert_eq!(written["futureTop"][0], 1);
        assert_eq!(written["dataVersion"]["counter"], 3);
    }

    #[test]
    fn an_entry_that_is_gone_does_not_come_back_with_its_unknown_members() {
        let (mut table, extras) = parse::<SubscriptionGroupTable>(Path::new("x"), GROUPS.as_bytes()).unwrap();
        table.subscription_group_table.clear();
        table.subscription_group_table.insert("New".to_owned(), SubscriptionGroupConfig::default());
        let written: Value = serde_json::from_str(&text(&table, &extras)).unwrap();
        assert!(written["subscriptionGroupTable"].get("CG").is_none());
        assert!(written["subscriptionGroupTable"].get("New").is_some());
    }

    #[test]
    fn offsets_with_bare_keys_are_read_and_derived_members_dropped() {
        let apache = br#"{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":2},"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:5,1:7}}}"#;
        let (table, extras) = parse::<ConsumerOffsets>(Path::new("x"), apache).unwrap();
        assert_eq!(table.offset_table["T@G"][&1], 7);
        assert!(!text(&table, &extras).contains(GROUP_TOPICS));
    }

    #[test]
    fn a_file_is_replaced_whole_and_its_predecessor_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config/topics.json");
        put_in_place(&path, b"one").unwrap();
        put_in_place(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read(backup(&path)).unwrap(), b"one");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_the_way_out() {
        let error = parse::<TopicConfigTable>(Path::new("config/topics.json"), b"{\"topicConfigTable\":").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("config/topics.json is not readable"), "{text}");
        assert!(text.contains("move it and config/topics.json.bak"), "the backup would be read in its place: {text}");
        let error = parse::<TopicConfigTable>(Path::new("config/topics.json.bak"), b"{").unwrap_err();
        assert!(error.to_string().contains("move it away"), "{error}");
    }
}
