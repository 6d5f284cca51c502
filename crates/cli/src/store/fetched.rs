//! `config/fetched.json`: what `gantry store fetch` learned of an Apache broker that is in none of Apache's files, for `repair`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Apache's files of what it may keep in RocksDB.
pub const FILES: [&str; 3] = ["topics.json", "subscriptionGroup.json", "consumerOffset.json"];

/// What was learned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetched {
    /// Where the broker was.
    pub broker: String,
    /// When, in ms.
    pub at: i64,
    /// Whether popped messages that were not acknowledged are in the log again.
    pub has_popped: bool,
    /// One more than the highest offset of each queue that had messages, by topic and number.
    pub queues: BTreeMap<String, BTreeMap<u32, u64>>,
}

impl Fetched {
    /// Where it lies in a store.
    pub fn path(root: &Path) -> PathBuf {
        store::fetched_file(root)
    }

    /// Reads it; none if nothing was fetched.
    pub fn read(root: &Path) -> anyhow::Result<Option<Fetched>> {
        let path = Fetched::path(root);
        match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            bytes => {
                let bytes = bytes.with_context(|| format!("cannot read {}", path.display()))?;
                let fetched = serde_json::from_slice(&bytes);
                fetched.with_context(|| format!("{} is not what gantry store fetch wrote", path.display())).map(Some)
            }
        }
    }

    /// A file that a fetch writes and that is not there; none if all are.
    pub fn missing(root: &Path) -> Option<PathBuf> {
        let paths = FILES.map(|name| root.join("config").join(name));
        paths.into_iter().chain([Fetched::path(root)]).find(|path| !path.is_file())
    }
}

/// What JSON files of Apache's look like.
pub fn text(value: &Value) -> anyhow::Result<Vec<u8>> {
    let mut out = Vec::new();
    let indent = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, indent))?;
    Ok(out)
}

/// Puts a file in place, whole or not at all; what was there becomes the backup, if it is to be kept.
pub fn put_in_place(path: &Path, bytes: &[u8], keeps: bool) -> anyhow::Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let new = beside(path, ".tmp");
    let mut file = File::create(&new).with_context(|| format!("cannot create {}", new.display()))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).with_context(|| format!("cannot write {}", new.display()))?;
    if keeps && path.exists() {
        fs::rename(path, beside(path, ".bak")).with_context(|| format!("cannot rename {}", path.display()))?;
    }
    fs::rename(&new, path).with_context(|| format!("cannot rename {}", new.display()))?;
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.with_context(|| format!("cannot sync {}", folder.display()))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
