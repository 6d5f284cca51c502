//! Small settings that operators keep at the name server (100, 101, 102, 219), such as the queues of ordered topics.
//!
//! They live in memory and in `kvConfig.json`, which is written whole before a change is acknowledged. A
//! change copies its namespace and writes the file on a thread that may wait, one change at a time; [`Limits`] bound what it copies.
//! The list of a namespace is kept as the JSON that it is asked for in: each registration of a broker is answered with one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use config::file::{self, FileError};
use parking_lot::RwLock;
use protocol::body::KvTable;
use protocol::fastjson::{self, Dialect};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::limits::{Limits, Unfit};

/// Where the queues of ordered topics are kept: `broker:queues;broker:queues` by topic.
pub(crate) const ORDER_TOPICS: &str = "ORDER_TOPIC_CONFIG";

/// Why the settings cannot be read, written or changed.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The file system said no.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It is as it was.
    #[error(transparent)]
    Unwritten(#[from] FileError),
    /// The file is not what it should be.
    #[error("{}: not a kvConfig.json: {source}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: fastjson::JsonError,
    },
    /// More than the limits allow.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// The file's shape.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    config_table: BTreeMap<String, BTreeMap<String, String>>,
}

/// The same, as it is written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    config_table: BTreeMap<&'a str, &'a BTreeMap<String, String>>,
}

#[derive(Debug, Default)]
struct Namespace {
    entries: BTreeMap<String, String>,
    /// The answer to 219.
    json: Bytes,
}

impl Namespace {
    fn new(entries: BTreeMap<String, String>) -> Namespace {
        let table = KvTable { table: entries };
        let json = Bytes::from(fastjson::to_vec(&table, Dialect::FastJson));
        Namespace { entries: table.table, json }
    }
}

/// How much there is of the settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KvSize {
    /// Namespaces without an entry count as one, too.
    pub entries: usize,
    /// Of namespaces, keys and values.
    pub bytes: usize,
}

/// All settings. A change makes a new one, which shares the namespaces that did not change.
#[derive(Clone, Debug, Default)]
struct Table {
    namespaces: BTreeMap<String, Arc<Namespace>>,
    size: KvSize,
}

impl Table {
    fn new(file: File) -> Table {
        let mut size = KvSize::default();
        for (namespace, entries) in &file.config_table {
            size.entries += entries.len().max(1);
            size.bytes += namespace.len() + entries.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        }
        let namespaces = file.config_table.into_iter().map(|(name, table)| (name, Arc::new(Namespace::new(table))));
        Table { namespaces: namespaces.collect(), size }
    }

    /// The table after a change, if it changes anything.
    fn changed(&self, change: &Change, limits: &Limits) -> Result<Option<Table>, Unfit> {
        let Change { namespace, key, value } = change;
        let old = self.namespaces.get(namespace);
        let mut entries = old.map(|old| old.entries.clone()).unwrap_or_default();
        let mut size = self.size;
        if old.is_some() {
            size.entries -= entries.len().max(1);
        } else {
            size.bytes += namespace.len();
        }
        match value {
            Some(value) => {
                limits.name("namespace", namespace)?;
                limits.name("key", key)?;
                if value.len() > limits.kv_value_bytes {
                    let full = format!(
                        "{} bytes are more than kvValueBytesMax allows, {}",
                        value.len(),
                        limits.kv_value_bytes
                    );
                    return Err(Unfit::new("value", value, full));
                }
                size.bytes += value.len();
                match entries.insert(key.clone(), value.clone()) {
                    Some(before) => size.bytes -= before.len(),
                    None => size.bytes += key.len(),
                }
            }
            None => match entries.remove(key) {
                Some(before) => size.bytes -= key.len() + before.len(),
                None => return Ok(None),
            },
        }
        size.entries += entries.len().max(1);
        // What a file brought may be more than the limits allow: it may still become less.
        if size.entries > limits.kv_entries && size.entries > self.size.entries {
            return Err(Unfit::full("key", key, "kvEntriesMax", limits.kv_entries));
        }
        if size.bytes > limits.kv_bytes && size.bytes > self.size.bytes {
            let full = format!("with it all settings have {} bytes, kvBytesMax allows {}", size.bytes, limits.kv_bytes);
            return Err(Unfit::new("key", key, full));
        }
        let mut namespaces = self.namespaces.clone();
        namespaces.insert(namespace.clone(), Arc::new(Namespace::new(entries)));
        Ok(Some(Table { namespaces, size }))
    }

    fn text(&self) -> Vec<u8> {
        let tables = self.namespaces.iter().map(|(name, namespace)| (name.as_str(), &namespace.entries));
        fastjson::to_vec(&Written { config_table: tables.collect() }, Dialect::Standard)
    }
}

/// A key gets a value, or loses its.
#[derive(Debug)]
struct Change {
    namespace: String,
    key: String,
    value: Option<String>,
}

/// Settings by namespace and key.
#[derive(Debug)]
pub(crate) struct KvConfig {
    path: PathBuf,
    table: RwLock<Table>,
    /// Lets one change at a time through, from looking at the old state until the new one is in the file and in force.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl KvConfig {
    pub fn load(path: &Path, limits: &Limits) -> Result<KvConfig, KvError> {
        let io = |source| KvError::Io { path: path.to_owned(), source };
        let file = match std::fs::read(path) {
            Ok(text) if text.is_empty() => File::default(),
            Ok(text) => {
                fastjson::from_slice(&text).map_err(|source| KvError::Malformed { path: path.to_owned(), source })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::default(),
            Err(error) => return Err(io(error)),
        };
        let table = Table::new(file);
        let KvSize { entries, bytes } = table.size;
        if entries > limits.kv_entries || bytes > limits.kv_bytes {
            let (entries_max, bytes_max) = (limits.kv_entries, limits.kv_bytes);
            let what = "more key-value settings than kvEntriesMax or kvBytesMax allows: none can be added";
            warn!(file = %path.display(), entries, entries_max, bytes, bytes_max, "{what}");
        }
        Ok(KvConfig { path: path.to_owned(), table: RwLock::new(table), writing: Arc::default() })
    }

    pub fn get(&self, namespace: &str, key: &str) -> Option<String> {
        self.table.read().namespaces.get(namespace)?.entries.get(key).cloned()
    }

    /// The answer to 219.
    pub fn list(&self, namespace: &str) -> Option<Bytes> {
        self.table.read().namespaces.get(namespace).map(|namespace| namespace.json.clone())
    }

    /// How much there is.
    pub fn size(&self) -> KvSize {
        self.table.read().size
    }

    pub async fn put(self: &Arc<Self>, limits: Limits, namespace: &str, key: &str, value: &str) -> Result<(), KvError> {
        let (namespace, key) = (namespace.to_owned(), key.to_owned());
        self.change(limits, Change { namespace, key, value: Some(value.to_owned()) }).await
    }

    pub async fn delete(self: &Arc<Self>, limits: Limits, namespace: &str, key: &str) -> Result<(), KvError> {
        let (namespace, key) = (namespace.to_owned(), key.to_owned());
        self.change(limits, Change { namespace, key, value: None }).await
    }

    /// Changes the file, then the table. The turn ends with the work, even if nobody waits for it any more.
    async fn change(self: &Arc<Self>, limits: Limits, change: Change) -> Result<(), KvError> {
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let kv = Arc::clone(self);
        let changed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            kv.change_now(&change, &limits)
        });
        changed
            .await
            .unwrap_or_else(|panicked| Err(KvError::Io { path: self.path.clone(), source: io::Error::other(panicked) }))
    }

    fn change_now(&self, change: &Change, limits: &Limits) -> Result<(), KvError> {
        let before = self.table.read().clone();
        let Some(after) = before.changed(change, limits)? else { return Ok(()) };
        file::write(&self.path, &after.text())?;
        // The old one goes without the lock: it may have very many entries.
        let old = std::mem::replace(&mut *self.table.write(), after);
        drop((before, old));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> (tempfile::TempDir, PathBuf, Arc<KvConfig>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvConfig.json");
        let kv = Arc::new(KvConfig::load(&path, &Limits::default()).unwrap());
        (folder, path, kv)
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_not_in_force_either() {
        let (_folder, path, kv) = settings();
        let limits = Limits::default();
        kv.put(limits, "n", "kept", "1").await.unwrap();
        // Nothing can take the place of a folder that is not empty.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("in the way")).unwrap();
        kv.put(limits, "n", "lost", "2").await.unwrap_err();
        kv.delete(limits, "n", "kept").await.unwrap_err();
        assert_eq!((kv.get("n", "lost"), kv.get("n", "kept").as_deref()), (None, Some("1")));
    }

    #[tokio::test]
    async fn settings_have_limits_and_a_refused_one_leaves_nothing() {
        let (_folder, path, kv) = settings();
        let limits = Limits { kv_entries: 3, kv_value_bytes: 5, kv_bytes: 20, ..Limits::default() };
        let refused = async |namespace: &str, key: &str, value: &str| {
            kv.put(limits, namespace, key, value).await.unwrap_err().to_string()
        };
        kv.put(limits, "n", "a", "12345").await.unwrap();
        assert_eq!(refused("n", "b", "123456").await, "value=123456: 6 bytes are more than kvValueBytesMax allows, 5");
        assert_eq!(refused("", "b", "1").await, "namespace=: empty");
        assert_eq!(refused("n", "b\n", "1").await, "key=b\\n: has a control character");
        kv.put(limits, "n", "b", "1").await.unwrap();
        assert_eq!(kv.size(), KvSize { entries: 2, bytes: 9 });
        let full = "key=long key: with it all settings have 22 bytes, kvBytesMax allows 20";
        assert_eq!(refused("n", "long key", "12345").await, full);
        kv.put(limits, "o", "c", "1").await.unwrap();
        let full = "key=d: the name server has as many as kvEntriesMax allows, 3";
        assert_eq!(refused("p", "d", "1").await, full);
        // What is there may change, and go.
        kv.put(limits, "n", "b", "12345").await.unwrap();
        kv.delete(limits, "o", "c").await.unwrap();
        kv.delete(limits, "n", "a").await.unwrap();
        assert_eq!(kv.size(), KvSize { entries: 2, bytes: 8 });
        let again = KvConfig::load(&path, &limits).unwrap();
        assert_eq!((again.size(), again.get("n", "b").as_deref()), (kv.size(), Some("12345")));
        assert_eq!(again.list("o").as_deref(), Some(&br#"{"table":{}}"#[..]));
    }

    #[tokio::test]
    async fn a_file_beyond_the_limits_is_read_and_may_only_shrink() {
        let (_folder, path, kv) = settings();
        let wide = Limits::default();
        for key in ["a", "b", "c"] {
            kv.put(wide, "n", key, "123").await.unwrap();
        }
        let narrow = Limits { kv_entries: 1, kv_bytes: 1, ..wide };
        let kv = Arc::new(KvConfig::load(&path, &narrow).unwrap());
        kv.put(narrow, "n", "d", "1").await.unwrap_err();
        kv.put(narrow, "n", "a", "1234").await.unwrap_err();
        kv.put(narrow, "n", "a", "12").await.unwrap();
        kv.delete(narrow, "n", "b").await.unwrap();
        assert_eq!(kv.size(), KvSize { entries: 2, bytes: 8 });
    }
}
