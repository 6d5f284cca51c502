//! A sync that fails, and a machine that goes on: what the kernel still has, and takes for clean, the next start does not vouch for as it is.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use disk::Disk;
use disk::turns::{InCharge, Turns};
use env::{Clock, ManualClock, Random, TimeMs};
use journal::TableId;
use parking_lot::Mutex;
use store::{
    FlushMode, IndexOptions, KeyKind, KeyQuery, RecordBatch, Recovered, Store, StoreEnv, StoreOptions, TagsCode,
};
use tempfile::TempDir;

use crate::support::*;

const PAGE: usize = 4096;
const BEGIN_MS: i64 = 1_700_000_000_000;
const TABLE: TableId = TableId(1);

/// All files below a folder.
fn files_in(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files_in(&entry.path(), found);
        } else {
            found.push(entry.path());
        }
    }
}

/// A disk whose failed syncs leave pages as ext4 and XFS do.
#[derive(Clone, Debug)]
struct DroppingDisk {
    root: PathBuf,
    disk: FaultDisk,
}

impl DroppingDisk {
    fn new(root: &Path) -> DroppingDisk {
        DroppingDisk::on(root, FaultDisk::default().keeping(Files::In(root.to_owned())))
    }

    /// It knows what the device has; the machine's own has nothing to do.
    fn on(root: &Path, disk: FaultDisk) -> DroppingDisk {
        for calls in [SYNCS, &[Call::SyncDir], &[Call::SyncFileSystem]] {
            disk.set(Fault::new(calls, Files::All, How::Skipped), true);
        }
        DroppingDisk { root: root.to_owned(), disk }
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    /// The next sync of a file in this folder fails, and none of them has come to the device.
    fn fail(&self, folder: &str) {
        self.disk.set(Fault::new(SYNCS, Files::In(self.root.join(folder)), How::Loses).once(), true);
    }

    /// Pages of this folder that the kernel takes for clean.
    fn dropped(&self, folder: &str) -> usize {
        self.disk.dropped_pages(&self.root.join(folder))
    }

    /// What the next process finds: all that the kernel has, and the device as it is.
    fn next_process(&self) -> (TempDir, DroppingDisk) {
        let left = image(&self.root);
        let disk = DroppingDisk::on(left.path(), self.disk.moved(&self.root, left.path()));
        (left, disk)
    }

    /// What a loss of power leaves.
    fn after_power_loss(&self) -> TempDir {
        let left = tempfile::tempdir().unwrap();
        for path in self.disk.kept_files().unwrap() {
            let relative = path.strip_prefix(&self.root).unwrap();
            let to = left.path().join(relative);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            if let Some(safe) = self.disk.safe(&path) {
                std::fs::write(to, safe).unwrap();
            } else if relative == Path::new("abort") {
                // Its name is what counts.
                std::fs::write(to, "").unwrap();
            }
        }
        left
    }
}

/// A process, until it ends itself.
struct Life {
    store: Arc<Store>,
    found: Recovered,
    turns: Turns,
    hand: ManualClock,
    /// What it has left.
    left: Arc<Mutex<Option<(TempDir, DroppingDisk)>>>,
    _in_charge: InCharge,
}

impl Life {
    fn begin(disk: &DroppingDisk, flush: FlushMode) -> Life {
        let (clock, hand) = Clock::manual(TimeMs(BEGIN_MS));
        let turns = Turns::new(clock.clone(), Random::seeded(1));
        let in_charge = turns.enter();
        let left = Arc::new(Mutex::new(None));
        let (kept, ended) = (Arc::clone(&left), disk.clone());
        turns.begin_process(move || *kept.lock() = Some(ended.next_process()));
        let env = StoreEnv { clock, random: Random::seeded(1), disk: disk.disk(), ..StoreEnv::real() };
        let (store, found) = Store::open(StoreOptions { flush, ..options(&disk.root) }, env).unwrap();
        Life { store, found, turns, hand, left, _in_charge: in_charge }
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        for _ in 0..100_000 {
            if holds() {
                return;
            }
            self.turns.give();
            self.hand.advance(Duration::from_millis(1));
        }
        panic!("{what} did not happen");
    }

    fn until_flushed(&self) {
        self.until("a flush", || self.store.flushed().get() >= self.store.end().0);
    }

    fn put(&self, key: &[u8], bytes: usize) -> u64 {
        self.store.journal().put(TABLE, key, &vec![7; bytes])
    }

    fn keys(&self) -> Vec<Vec<u8>> {
        keys(&self.store)
    }

    /// What the process has left that ends itself.
    fn end(self) -> (TempDir, DroppingDisk) {
        self.until("the end of the process", || self.turns.has_ended_process());
        let left = self.left.lock().take().unwrap();
        assert!(left.0.path().join("unsynced").exists());
        left
    }

    /// This start has worked off what the process before it had left.
    fn wrote_again(&self, disk: &DroppingDisk) {
        let said = self.found.findings.iter().any(|finding| finding.starts_with("after a failed sync, "));
        assert!(said && !disk.root.join("unsynced").exists(), "{:?}", self.found);
    }
}

fn keys(store: &Store) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    store.journal().load(TABLE, |key, _| keys.push(key.to_vec()));
    keys
}

#[test]
fn what_a_failed_flush_left_of_the_log_is_on_the_device_before_anything_behind_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let disk = DroppingDisk::new(dir.path());
    let life = Life::begin(&disk, FlushMode::Sync);
    append_run(&life.store, 0..20);
    life.until_flushed();
    disk.fail("commitlog");
    append_run(&life.store, 20..60);
    let (left, disk) = life.end();
    assert!(disk.dropped("commitlog") > 2, "whole pages are missing on the device");

    // A start that cannot write it again says so, and leaves it to the next one.
    disk.fail("commitlog");
    let env = StoreEnv { disk: disk.disk(), ..StoreEnv::real() };
    let options = StoreOptions { flush: FlushMode::Sync, ..options(left.path()) };
    let refused = Store::open(options, env).err().unwrap().to_string();
    assert!(refused.contains("cannot write again"), "{refused}");
    assert!(left.path().join("unsynced").exists() && disk.dropped("commitlog") > 2);

    let life = Life::begin(&disk, FlushMode::Sync);
    life.wrote_again(&disk);
    assert_run(&life.store, 0..60);
    append_run(&life.store, 60..80);
    life.until_flushed();
    let after = disk.after_power_loss();
    drop(life);
    let (store, _) = open_sync(after.path());
    assert_run(&store, 0..80);
}

#[test]
fn what_a_failed_sync_left_of_consume_queues_is_on_the_device_before_the_check_point_passes_it() {
    let dir = tempfile::tempdir().unwrap();
    let disk = DroppingDisk::new(dir.path());
    let life = Life::begin(&disk, FlushMode::Async);
    disk.fail("consumequeue");
    append_run(&life.store, 0..300);
    let (_left, disk) = life.end();
    assert!(disk.dropped("consumequeue") > 0);

    let life = Life::begin(&disk, FlushMode::Async);
    life.wrote_again(&disk);
    // So much, and so much later, that a start after the check-point does not read the first files of the log again.
    let later = BEGIN_MS + 60_000;
    for number in 300..800 {
        append_at(&life.store, later, TOPIC, 0, &body(number));
    }
    life.until("a check-point", || {
        let checkpoint = disk.disk.safe(&disk.root.join("checkpoint"));
        checkpoint.is_some_and(|bytes| bytes.starts_with(&later.to_be_bytes()))
    });
    let after = disk.after_power_loss();
    drop(life);
    let (store, _) = open(after.path());
    assert_run(&store, 0..800);
}

#[test]
fn what_a_failed_sync_left_of_the_journal_is_on_the_device_before_a_change_behind_it_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let disk = DroppingDisk::new(dir.path());
    let life = Life::begin(&disk, FlushMode::Sync);
    let first = life.put(b"first", 10);
    life.until("a change", || life.store.journal().written().get() >= first);
    disk.fail("journal");
    life.put(b"second", 3 * PAGE);
    let (_left, disk) = life.end();
    assert!(disk.dropped("journal") > 2);

    let life = Life::begin(&disk, FlushMode::Sync);
    life.wrote_again(&disk);
    assert_eq!(life.keys(), [b"first".to_vec(), b"second".to_vec()]);
    // The second one says that what was before it is on the device.
    for key in [&b"third"[..], b"fourth"] {
        let position = life.put(key, 10);
        life.until("a change", || life.store.journal().written().get() >= position);
    }
    let after = disk.after_power_loss();
    drop(life);
    let (store, _) = open_sync(after.path());
    assert_eq!(keys(&store), [&b"first"[..], b"fourth", b"second", b"third"]);
}

#[test]
fn a_key_index_that_cannot_be_synced_again_keeps_a_start_from_going_on_and_one_that_cannot_be_read_is_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let index_dir = dir.path().join("index");
    let index = IndexOptions { slots: 7, entries: 10, ..IndexOptions::at(index_dir.clone()) };
    let options = StoreOptions { index: Some(index), ..options(dir.path()) };
    let (store, _) = open_as(&options);
    let queue = store.queue(TOPIC, 0).unwrap();
    for number in 0..25 {
        let (mut batch, properties) = (RecordBatch::new(), format!("KEYS\u{1}k{number}\u{2}"));
        batch.push(&queue, TagsCode::Code(0), |out| encode(TOPIC, 0, b"body", properties.as_bytes(), out));
        append_batch(&store, &mut batch, TimeMs(BEGIN_MS)).unwrap();
    }
    store.close().unwrap();
    drop((queue, store));
    let mut files = Vec::new();
    files_in(&index_dir, &mut files);
    files.sort_unstable();
    assert_eq!(files.len(), 3, "{files:?}");
    std::fs::write(dir.path().join("unsynced"), "broken").unwrap();

    let disk = DroppingDisk::new(dir.path());
    disk.fail("index");
    let env = StoreEnv { disk: disk.disk(), ..StoreEnv::real() };
    let refused = Store::open(options.clone(), env).err().unwrap().to_string();
    assert!(refused.contains("cannot write again") && refused.contains("/index/"), "{refused}");

    let disk = fault_disk();
    let unreadable = Fault::new(&[Call::Read], Files::Is(files[1].clone()), How::Fails(ErrorKind::Other));
    disk.set(unreadable, true);
    let (store, found) = open_on(&disk, options);
    let is_said = |finding: &String| finding.starts_with(&*files[1].to_string_lossy()) && finding.contains("broken");
    assert!(found.findings.iter().any(is_said), "{found:?}");
    for number in 0..25 {
        let (topic, key) = (TOPIC.into(), format!("k{number}"));
        let query = KeyQuery { topic, key, kind: KeyKind::Key, max: 32, begin: 0, end: i64::MAX };
        assert_eq!(store.query(&query).unwrap().found.len(), 1, "{number}");
    }
    store.close().unwrap();
}
