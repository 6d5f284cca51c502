//! Small settings that operators keep at the name server (100, 101, 102, 219), such as the queues of ordered topics.
//!
//! They live in memory and in `kvConfig.json`, which is written whole, beside, and renamed, before a change is acknowledged.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::RwLock;
use protocol::body::KvTable;
use protocol::fastjson::{self, Dialect};
use serde::{Deserialize, Serialize};

/// Where the queues of ordered topics are kept: `broker:queues;broker:queues` by topic.
pub(crate) const ORDER_TOPICS: &str = "ORDER_TOPIC_CONFIG";

/// Why the settings cannot be read or written.
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
    /// The file is not what it should be.
    #[error("{}: not a kvConfig.json: {source}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: fastjson::JsonError,
    },
}

/// The file's shape.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    config_table: BTreeMap<String, BTreeMap<String, String>>,
}

/// Settings by namespace and key.
#[derive(Debug)]
pub(crate) struct KvConfig {
    path: PathBuf,
    table: RwLock<File>,
    /// Lets one change at a time through, from looking at the old state until the new one is in the file and in force.
    writing: tokio::sync::Mutex<()>,
}

impl KvConfig {
    pub fn load(path: &Path) -> Result<KvConfig, KvError> {
        let io = |source| KvError::Io { path: path.to_owned(), source };
        let table = match std::fs::read(path) {
            Ok(text) if text.is_empty() => File::default(),
            Ok(text) => {
                fastjson::from_slice(&text).map_err(|source| KvError::Malformed { path: path.to_owned(), source })?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => File::default(),
            Err(error) => return Err(io(error)),
        };
        Ok(KvConfig { path: path.to_owned(), table: RwLock::new(table), writing: tokio::sync::Mutex::new(()) })
    }

    pub fn get(&self, namespace: &str, key: &str) -> Option<String> {
        self.table.read().config_table.get(namespace)?.get(key).cloned()
    }

    pub fn list(&self, namespace: &str) -> Option<KvTable> {
        self.table.read().config_table.get(namespace).map(|table| KvTable { table: table.clone() })
    }

    pub async fn put(&self, namespace: &str, key: &str, value: &str) -> Result<(), KvError> {
        self.change(|table| {
            let entry = (key.to_owned(), value.to_owned());
            table.entry(namespace.to_owned()).or_default().extend([entry]);
            true
        })
        .await
    }

    pub async fn delete(&self, namespace: &str, key: &str) -> Result<(), KvError> {
        self.change(|table| table.get_mut(namespace).is_some_and(|keys| keys.remove(key).is_some())).await
    }

    /// Changes the table, if `change` says that there is something to change. What the file does not have nobody is told.
    async fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, BTreeMap<String, String>>) -> bool,
    ) -> Result<(), KvError> {
        let _turn = self.writing.lock().await;
        let mut changed = File { config_table: self.table.read().config_table.clone() };
        if !change(&mut changed.config_table) {
            return Ok(());
        }
        let text = fastjson::to_vec(&changed, Dialect::Standard);
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || replace(&path, &text)).await;
        written
            .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
            .map_err(|source| KvError::Io { path: self.path.clone(), source })?;
        *self.table.write() = changed;
        Ok(())
    }
}

/// Puts a new file in the place of an old one: after a crash, one of the two is there, whole.
pub(crate) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".tmp");
    let beside = PathBuf::from(beside);
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    std::fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_written_is_not_in_force_either() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvConfig.json");
        let kv = KvConfig::load(&path).unwrap();
        kv.put("n", "kept", "1").await.unwrap();
        // Nothing can take the place of a folder that is not empty.
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("in the way")).unwrap();
        kv.put("n", "lost", "2").await.unwrap_err();
        kv.delete("n", "kept").await.unwrap_err();
        assert_eq!((kv.get("n", "lost"), kv.get("n", "kept").as_deref()), (None, Some("1")));
    }
}
