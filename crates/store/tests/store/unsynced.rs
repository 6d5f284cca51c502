//! A sync that fails, and a machine that goes on: what the kernel still has, and takes for clean, the next start does not vouch for as it is.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use disk::turns::{InCharge, Turns};
use disk::{Disk, DiskFile, OpenHow, RealDisk};
use env::{Clock, ManualClock, Random, TimeMs};
use journal::TableId;
use memmap2::MmapRaw;
use parking_lot::Mutex;
use store::{
    FlushMode, IndexOptions, KeyKind, KeyQuery, RecordBatch, Recovered, Store, StoreEnv, StoreOptions, TagsCode,
};
use tempfile::TempDir;

use crate::support::*;

const PAGE: usize = 4096;
const BEGIN_MS: i64 = 1_700_000_000_000;
const TABLE: TableId = TableId(1);

/// What the device has of the files, beside what the kernel has. Paths are those below the root.
#[derive(Clone, Debug, Default)]
struct Device {
    safe: BTreeMap<PathBuf, Vec<u8>>,
    /// Pages, by their number, as the kernel had them when a sync failed: as long as they stay so, no sync brings them.
    dropped: BTreeMap<(PathBuf, usize), Vec<u8>>,
    /// The next sync of a file in this folder fails, and none of them has come to the device.
    fails: Option<&'static str>,
}

impl Device {
    /// Of one file, the bytes `from..to`.
    fn sync(&mut self, path: &Path, now: &[u8], from: usize, to: usize, is_dropped: bool) {
        let Device { safe, dropped, .. } = self;
        let safe = safe.entry(path.to_owned()).or_default();
        safe.resize(now.len(), 0);
        for (number, page) in now.chunks(PAGE).enumerate() {
            let at = number * PAGE;
            let safe = &mut safe[at..at + page.len()];
            if at + PAGE <= from || at >= to || safe == page {
                continue;
            }
            let key = (path.to_owned(), number);
            if is_dropped {
                dropped.insert(key, page.to_vec());
            } else if dropped.get(&key).is_none_or(|dropped| dropped != page) {
                safe.copy_from_slice(page);
            }
        }
    }
}

/// A disk whose failed syncs leave pages as ext4 and XFS do.
#[derive(Clone, Debug)]
struct DroppingDisk {
    root: PathBuf,
    device: Arc<Mutex<Device>>,
}

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

impl DroppingDisk {
    fn new(root: &Path) -> DroppingDisk {
        DroppingDisk { root: root.to_owned(), device: Arc::default() }
    }

    fn fail(&self, folder: &'static str) {
        self.device.lock().fails = Some(folder);
    }

    fn relative<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap()
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        files_in(&self.root, &mut files);
        files
    }

    fn sync(&self, path: &Path, from: usize, to: usize) -> io::Result<()> {
        let relative = self.relative(path);
        let mut device = self.device.lock();
        let Some(folder) = device.fails.take_if(|folder| relative.starts_with(*folder)) else {
            device.sync(relative, &std::fs::read(path)?, from, to, false);
            return Ok(());
        };
        for path in self.files().iter().filter(|path| self.relative(path).starts_with(folder)) {
            device.sync(self.relative(path), &std::fs::read(path)?, 0, usize::MAX, true);
        }
        // EIO.
        Err(io::Error::from_raw_os_error(5))
    }

    /// Pages of this folder that the kernel takes for clean.
    fn dropped(&self, folder: &str) -> usize {
        self.device.lock().dropped.keys().filter(|(path, _)| path.starts_with(folder)).count()
    }

    /// What the next process finds: all that the kernel has, and the device as it is.
    fn next_process(&self) -> (TempDir, DroppingDisk) {
        let device = self.device.lock().clone();
        let left = image(&self.root);
        let disk = DroppingDisk { root: left.path().to_owned(), device: Arc::new(Mutex::new(device)) };
        (left, disk)
    }

    /// What a loss of power leaves.
    fn after_power_loss(&self) -> TempDir {
        let left = tempfile::tempdir().unwrap();
        let device = self.device.lock();
        for path in self.files() {
            let relative = self.relative(&path);
            let to = left.path().join(relative);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            if let Some(safe) = device.safe.get(relative) {
                std::fs::write(to, safe).unwrap();
            } else if relative == Path::new("abort") {
                // Its name is what counts.
                std::fs::write(to, "").unwrap();
            }
        }
        left
    }
}

impl disk::DiskLayer for DroppingDisk {
    fn inner(&self) -> &dyn Disk {
        &RealDisk
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let file = RealDisk.open(path, how)?;
        Ok(Arc::new(DroppingFile { file, path: path.to_owned(), disk: self.clone() }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)?;
        let mut device = self.device.lock();
        let safe = device.safe.remove(self.relative(from));
        device.safe.extend(safe.map(|safe| (self.relative(to).to_owned(), safe)));
        Ok(())
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        std::fs::metadata(dir).map(drop)
    }
    fn sync_file_system(&self, _dir: &Path) -> io::Result<()> {
        self.files().iter().try_for_each(|path| self.sync(path, 0, usize::MAX))
    }
}

#[derive(Debug)]
struct DroppingFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    disk: DroppingDisk,
}

impl disk::FileLayer for DroppingFile {
    fn inner(&self) -> &dyn DiskFile {
        &*self.file
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let pages = at as usize / PAGE..(at as usize + bytes.len()).div_ceil(PAGE);
        let relative = self.disk.relative(&self.path);
        self.disk.device.lock().dropped.retain(|(path, page), _| path != relative || !pages.contains(page));
        self.file.write_at(bytes, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.disk.sync(&self.path, 0, usize::MAX)
    }
    fn sync_mapped(&self, _map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        self.disk.sync(&self.path, start, start + bytes)
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
        let env = StoreEnv { clock, random: Random::seeded(1), disk: Arc::new(disk.clone()), ..StoreEnv::real() };
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
    let env = StoreEnv { disk: Arc::new(disk.clone()), ..StoreEnv::real() };
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
        let device = disk.device.lock();
        device.safe.get(Path::new("checkpoint")).is_some_and(|bytes| bytes.starts_with(&later.to_be_bytes()))
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
    let env = StoreEnv { disk: Arc::new(disk), ..StoreEnv::real() };
    let refused = Store::open(options.clone(), env).err().unwrap().to_string();
    assert!(refused.contains("cannot write again") && refused.contains("/index/"), "{refused}");

    let disk = FaultyDisk::new();
    *disk.faults.unreadable.lock() = Some(files[1].clone());
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
