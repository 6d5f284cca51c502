//! RocksDB databases of Apache's 5.x in the folder of a store: found, and refused where leaving them out would lose something.
//!
//! They are known by what every database of RocksDB has, the files `CURRENT` and `MANIFEST-…`, not by their names alone. Nothing
//! in them is read. `rocksdbstore` is made by every broker of late 5.x, used or not, so that one alone says nothing.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::Disk;
use crate::error::StoreError;

/// What a database holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RocksDbKind {
    /// Topics, groups or offsets, in one of `config/topics`, `subscriptionGroups`, `consumerOffsets`, or all of them in `metadata`.
    Configuration,
    /// All of them as `configManagerVersion=v2` has it, in `config/rdb`.
    ConfigurationV2,
    /// Consume queues, with no queue in files beside them.
    Queues,
    /// Consume queues that are in files too: those are read, and what they lack is built from the log.
    QueuesBesideFiles,
    /// Leases of popped messages (`popConsumerKVServiceInit`).
    Leases,
    /// What a broker of 5.x makes for timers, half messages and keys, to be used only if settings say so.
    Unused,
}

/// A database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RocksDb {
    /// Its folder.
    pub path: PathBuf,
    /// What it holds.
    pub kind: RocksDbKind,
}

impl RocksDb {
    /// What it is, and what to do about it; none if a start may pass it by.
    pub fn refusal(&self) -> Option<String> {
        let path = self.path.display();
        match self.kind {
            RocksDbKind::Configuration => Some(format!(
                "topics, groups or offsets are in RocksDB, which is not read here, and without them consumers would lose their place. Let the \
                 Apache broker write them into config/*.json while it runs (mqadmin rocksDBConfigToJson -b HOST:PORT), stop it, and move {path} \
                 out of the store"
            )),
            RocksDbKind::ConfigurationV2 => Some(format!(
                "topics, groups and offsets are in RocksDB (configManagerVersion=v2), which is not read here, and without them consumers would \
                 lose their place. Write config/topics.json, subscriptionGroup.json and consumerOffset.json from what mqadmin shows of the \
                 running Apache broker, stop it, and move {path} out of the store"
            )),
            RocksDbKind::Queues => Some(format!(
                "the consume queues are in RocksDB (storeType=defaultRocksDB), which is not read here. They can be built from the log: \
                 gantry store repair --queues moves {path} aside and does it. Queues of which the log has no message any more begin at 0 then"
            )),
            RocksDbKind::Leases => Some(format!(
                "popped messages that are not acknowledged are in RocksDB (popConsumerKVServiceEnable), which is not read here, and would be \
                 lost. Let the Apache broker bring them back into its log (request 200056, POP_ROLLBACK), stop it, and move {path} out of the store"
            )),
            RocksDbKind::QueuesBesideFiles | RocksDbKind::Unused => None,
        }
    }
}

/// The databases in a store whose consume queues are in `queue_dir`.
pub fn rocksdb_in(disk: &dyn Disk, root: &Path, queue_dir: &Path) -> io::Result<Vec<RocksDb>> {
    let mut found = Vec::new();
    let config = root.join("config");
    for entry in disk.list(&config)?.into_iter().filter(|entry| entry.is_dir) {
        let path = config.join(&entry.name);
        if is_database(disk, &path)? {
            let kind = if entry.name == "rdb" { RocksDbKind::ConfigurationV2 } else { RocksDbKind::Configuration };
            found.push(RocksDb { path, kind });
        }
    }
    if is_database(disk, queue_dir)? {
        // RocksDB makes no folders: what is one is a topic.
        let has_files = disk.list(queue_dir)?.iter().any(|entry| entry.is_dir);
        let kind = if has_files { RocksDbKind::QueuesBesideFiles } else { RocksDbKind::Queues };
        found.push(RocksDb { path: queue_dir.to_owned(), kind });
    }
    for (name, kind) in [("kvStore", RocksDbKind::Leases), ("rocksdbstore", RocksDbKind::Unused)] {
        let path = root.join(name);
        if is_database(disk, &path)? {
            found.push(RocksDb { path, kind });
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// Refuses a store that is not whole without its databases.
pub(crate) fn refuse(disk: &dyn Disk, root: &Path, queue_dir: &Path) -> Result<(), StoreError> {
    let found = rocksdb_in(disk, root, queue_dir).map_err(|source| StoreError::Disk {
        doing: "look for RocksDB in",
        path: root.to_owned(),
        source,
    })?;
    match found.iter().find_map(|one| Some((one.path.clone(), one.refusal()?))) {
        Some((path, why)) => Err(StoreError::RocksDb { path, why }),
        None => Ok(()),
    }
}

fn is_database(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let entries = disk.list(dir)?;
    let has = |is_it: fn(&str) -> bool| entries.iter().any(|entry| !entry.is_dir && is_it(&entry.name));
    Ok(has(|name| name == "CURRENT") && has(|name| name.starts_with("MANIFEST-")))
}
