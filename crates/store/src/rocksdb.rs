//! RocksDB databases of Apache's 5.x in the folder of a store: found, and refused where leaving them out would lose something.
//!
//! They are known by what every database of RocksDB has, the files `CURRENT` and `MANIFEST-…`, not by their names alone. Nothing
//! in them is read. `rocksdbstore` is made by every broker of late 5.x, used or not, so that one alone says nothing: whether timers and half
//! messages wait there is said by `timerRocksDBEnable` and `transRocksDBEnable`, with which the configuration refuses a start.

use std::io;
use std::path::{Path, PathBuf};

use disk::Disk;

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
    /// What a broker of 5.x makes for timers, half messages and keys, to be used only if settings say so. Such settings are refused.
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
        Some(format!("{}. {}", self.loss()?, self.way_out()?))
    }

    /// What would be lost without it; none if nothing would.
    pub fn loss(&self) -> Option<&'static str> {
        match self.kind {
            RocksDbKind::Configuration | RocksDbKind::ConfigurationV2 => Some(
                "topics, groups and offsets are in RocksDB, which is not read here, and without them consumers would lose their place",
            ),
            RocksDbKind::Queues => {
                Some("the consume queues are in RocksDB (storeType=defaultRocksDB), which is not read here")
            }
            RocksDbKind::Leases => Some(
                "popped messages that are not acknowledged are in RocksDB (popConsumerKVServiceInit), which is not read here, and would be lost",
            ),
            RocksDbKind::QueuesBesideFiles | RocksDbKind::Unused => None,
        }
    }

    /// How the store can be had without it.
    pub fn way_out(&self) -> Option<String> {
        let path = self.path.display();
        match self.kind {
            RocksDbKind::Configuration | RocksDbKind::ConfigurationV2 => Some(format!(
                "While Apache's broker runs, gantry store fetch -b HOST:PORT writes them into config/*.json; when it has stopped, gantry store \
                 repair --rocksdb moves {path} aside"
            )),
            RocksDbKind::Queues => Some(format!(
                "They are built from the log: gantry store repair --rocksdb moves {path} aside and does it. Queues of which the log has no message \
                 any more go on at their numbers if gantry store fetch -b HOST:PORT was run while Apache's broker ran, and begin at 0 otherwise"
            )),
            RocksDbKind::Leases => Some(format!(
                "While Apache's broker runs and nobody pops, gantry store fetch --popped -b HOST:PORT has it bring them back into its log; when it \
                 has stopped, gantry store repair --rocksdb moves {path} aside"
            )),
            RocksDbKind::QueuesBesideFiles | RocksDbKind::Unused => None,
        }
    }
}

/// Where `gantry store fetch` writes what it has learned of queues, until a repair has used it.
pub fn fetched_file(root: &Path) -> PathBuf {
    root.join("config/fetched.json")
}

/// Why a start has to wait for a repair; none if it has not. Where databases are aside already, nothing but that file knows the numbers of queues of
/// which the log has no message any more: a start would let them begin at 0, and groups would pass over new messages.
pub fn unfinished_repair(root: &Path) -> Option<String> {
    let file = fetched_file(root);
    file.exists().then(|| {
        format!(
            "{}: what gantry store fetch has learned of queues is not used yet, or its use was interrupted: run gantry store repair --rocksdb \
             with the options that it had, or for the first time; it moves the file aside in the end",
            file.display()
        )
    })
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
    // RocksDB makes no folders: what is one is a topic.
    let has_files = disk.list(queue_dir)?.iter().any(|entry| entry.is_dir);
    // The second with `useSeparateStorePathForRocksdbCQ`.
    for path in [queue_dir.to_owned(), root.join("consumequeue_rocksdb")] {
        if is_database(disk, &path)? {
            let kind = if has_files { RocksDbKind::QueuesBesideFiles } else { RocksDbKind::Queues };
            found.push(RocksDb { path, kind });
        }
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
