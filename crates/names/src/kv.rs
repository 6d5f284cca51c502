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
    /// Lets one writer at a time through to the file, so that the newest state is written last.
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
        let entry = (key.to_owned(), value.to_owned());
        self.table.write().config_table.entry(namespace.to_owned()).or_default().extend([entry]);
        self.store().await
    }

    pub async fn delete(&self, namespace: &str, key: &str) -> Result<(), KvError> {
        let is_gone = self.table.write().config_table.get_mut(namespace).is_some_and(|keys| keys.remove(key).is_some());
        if is_gone { self.store().await } else { Ok(()) }
    }

    async fn store(&self) -> Result<(), KvError> {
        let _turn = self.writing.lock().await;
        let text = fastjson::to_vec(&*self.table.read(), Dialect::Standard);
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || replace(&path, &text)).await;
        written
            .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
            .map_err(|source| KvError::Io { path: self.path.clone(), source })
    }
}

/// Puts a new file in the place of an old one: after a crash, one of the two is there, whole.
pub(crate) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let beside = path.with_extension("tmp");
    let mut file = std::fs::File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    std::fs::File::open(folder)?.sync_all()
}
