//! One node, and three in one process over real connections.

mod folder;
mod group;
mod messages;
mod single;
mod suite;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as StdInstant;

use disk::RealDisk;
use disk::faults::FaultDisk;
use env::Random;
use net::{Client, ClientOptions};
use serde::Deserialize;
use tempfile::TempDir;

use super::*;
use crate::machine::RestoreError;

/// What a device writes whole or not at all.
const SECTOR_BYTES: usize = 512;

const DEADLINE: Duration = Duration::from_secs(60);

/// Keeps all commands in their order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Ledger {
    all: Vec<String>,
}

impl Machine for Ledger {
    type Command = String;
    type Reply = usize;

    fn apply(&mut self, command: &String) -> usize {
        self.all.push(command.clone());
        self.all.len()
    }

    fn snapshot(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap()
    }

    fn restore(bytes: &[u8]) -> Result<Ledger, RestoreError> {
        serde_json::from_slice(bytes).map_err(|error| RestoreError { what: error.to_string() })
    }
}

type Node = Consensus<Ledger>;

fn client() -> Client {
    Client::new(ClientOptions { back_off_max: Duration::from_millis(100), ..ClientOptions::default() })
}

fn alone(dir: &Path) -> ConsensusOptions {
    ConsensusOptions::new("group", 1, BTreeMap::from([(1, "127.0.0.1:9".to_owned())]), dir)
}

async fn started(options: ConsensusOptions) -> Arc<Node> {
    on_disk(options, Arc::new(RealDisk)).await
}

async fn on_disk(options: ConsensusOptions, disk: Arc<dyn Disk>) -> Arc<Node> {
    Consensus::start(options, Ledger::default(), client(), Clock::real(), disk).await.unwrap()
}

async fn refused(options: ConsensusOptions) -> String {
    let started = Consensus::start(options, Ledger::default(), client(), Clock::real(), Arc::new(RealDisk)).await;
    started.err().unwrap().to_string()
}

/// Waits until it is so.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = StdInstant::now() + DEADLINE;
    while !is_so() {
        assert!(StdInstant::now() < deadline, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn leads(node: &Node) {
    until("it leads", || node.is_leader()).await;
    node.confirm_leader().await.unwrap();
}

fn all(node: &Node) -> Vec<String> {
    node.read(|ledger| ledger.all.clone())
}

fn name(n: u64) -> String {
    format!("command {n}")
}

/// What the kernel has of a node's folder.
fn copy(dir: &Path) -> TempDir {
    image_of(dir, |path| std::fs::read(path).unwrap())
}

fn image_of(dir: &Path, bytes: impl Fn(&Path) -> Vec<u8>) -> TempDir {
    let image = tempfile::tempdir().unwrap();
    let (from, to) = (unsynced::journal_dir(dir), unsynced::journal_dir(image.path()));
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::write(to.join(entry.file_name()), bytes(&entry.path())).unwrap();
    }
    image
}

/// What a loss of power leaves: of each file what was synced; with dice, of each sector that or the newest.
fn image(disk: &FaultDisk, dir: &Path, dice: Option<&Random>) -> TempDir {
    image_of(dir, |path| {
        let newest = std::fs::read(path).unwrap();
        match (disk.safe(path), dice) {
            (None, _) => newest,
            (Some(synced), None) => synced,
            (Some(synced), Some(dice)) => mixed(&synced, newest, dice),
        }
    })
}

fn mixed(synced: &[u8], mut newest: Vec<u8>, dice: &Random) -> Vec<u8> {
    for (at, sector) in newest.chunks_mut(SECTOR_BYTES).enumerate() {
        if dice.below(2) == 0 {
            sector.fill(0);
            let from = synced.get(at * SECTOR_BYTES..).unwrap_or_default();
            let bytes = from.len().min(sector.len());
            sector[..bytes].copy_from_slice(&from[..bytes]);
        }
    }
    newest
}
