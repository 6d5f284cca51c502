//! What every test here needs: a small store in a temporary folder, records, and a file system that can be made to fail.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use disk::{Disk, DiskFile, DiskUse, OpenHow, RealDisk};
use env::TimeMs;
use memmap2::MmapRaw;
use parking_lot::{Condvar, Mutex};
use protocol::record::{self, RecordDraft, Scanned};
use store::{
    AppendError, FlushMode, Landed, LogSlice, Read, ReadLimits, RecordBatch, Recovered, RecoveryOptions, Retention,
    Store, StoreEnv, StoreError, StoreOptions, TagsCode,
};

pub const SEGMENT: u64 = 64 << 10;
pub const TOPIC: &str = "orders";

/// Long enough for a busy machine; a test that waits so long has failed.
pub fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = deadline();
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        // What is waited for needs the processor.
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn options(root: &Path) -> StoreOptions {
    StoreOptions {
        segment_bytes: SEGMENT,
        queue_file_bytes: 20 * 100,
        flush_interval: Duration::from_millis(5),
        // Whatever the machine's disk is at.
        retention: Retention {
            disk_max_used_percent: 100,
            disk_clean_forcibly_percent: 100,
            disk_warning_percent: 100,
            delete_when: Vec::new(),
            ..Retention::default()
        },
        // Small files are several blocks too.
        recovery: RecoveryOptions { threads: 3, block_bytes: 4 << 10, ..RecoveryOptions::default() },
        ..StoreOptions::at(root)
    }
}

pub fn try_open(options: StoreOptions) -> Result<(Arc<Store>, Recovered), StoreError> {
    Store::open(options, StoreEnv::real())
}

/// Opens it as soon as the threads of a store that was dropped have ended: one of them may be the last to hold it, and gives its lock back later.
/// Before each try something is done.
pub fn reopen_as(options: &StoreOptions, disk: &Arc<dyn Disk>, done_before: &dyn Fn()) -> (Arc<Store>, Recovered) {
    let mut opened = None;
    eventually("the store's lock", || {
        done_before();
        match Store::open(options.clone(), StoreEnv { disk: Arc::clone(disk), ..StoreEnv::real() }) {
            Err(StoreError::Locked { .. }) => false,
            done => {
                opened = Some(done.unwrap());
                true
            }
        }
    });
    opened.unwrap()
}

/// The same on the machine's files, with nothing to be done before.
pub fn open_as(options: &StoreOptions) -> (Arc<Store>, Recovered) {
    reopen_as(options, &StoreEnv::real().disk, &|| {})
}

pub fn open(root: &Path) -> (Arc<Store>, Recovered) {
    open_as(&options(root))
}

pub fn open_on(disk: &Arc<FaultyDisk>, options: StoreOptions) -> (Arc<Store>, Recovered) {
    reopen_as(&options, &(Arc::clone(disk) as Arc<dyn Disk>), &|| {})
}

pub fn open_sync(root: &Path) -> (Arc<Store>, Recovered) {
    open_as(&StoreOptions { flush: FlushMode::Sync, ..options(root) })
}

pub fn encode(topic: &str, queue_id: u32, body: &[u8], properties: &[u8], out: &mut Vec<u8>) {
    let host = "127.0.0.1:10911".parse().unwrap();
    RecordDraft {
        queue_id: queue_id as i32,
        born_timestamp: 1_700_000_000_000,
        body,
        properties,
        ..RecordDraft::plain(topic, host)
    }
    .encode(out)
    .unwrap();
}

/// Bytes of a record with such a body.
pub fn record_bytes(body: usize) -> u64 {
    let mut out = Vec::new();
    encode(TOPIC, 0, &vec![0; body], b"", &mut out);
    out.len() as u64
}

pub fn push(store: &Store, batch: &mut RecordBatch, topic: &str, queue_id: u32, body: &[u8]) {
    let queue = store.queue(topic, queue_id).unwrap();
    batch.push(&queue, TagsCode::Code(0), |out| encode(topic, queue_id, body, b"", out));
}

pub fn append_batch(store: &Store, batch: &mut RecordBatch, now: TimeMs) -> Result<(), AppendError> {
    let deadline = deadline();
    loop {
        match store.append(batch, now) {
            Err(AppendError::PoolFull { from, .. }) => {
                assert!(
                    store.written().wait_until(from + 1, deadline),
                    "the pool stays full: nothing beyond {from} is written"
                );
            }
            Err(AppendError::NoRoomYet { needed }) => {
                // In steps: if the device turns out to be full meanwhile, only another append says so.
                store.room().wait_until(needed, deadline.min(std::time::Instant::now() + Duration::from_millis(100)));
                assert!(std::time::Instant::now() < deadline, "no room up to {needed}, only {}", store.room().get());
            }
            done => return done,
        }
    }
}

pub fn append_at(store: &Store, now: i64, topic: &str, queue_id: u32, body: &[u8]) -> Landed {
    let mut batch = RecordBatch::new();
    push(store, &mut batch, topic, queue_id, body);
    append_batch(store, &mut batch, TimeMs(now)).unwrap();
    batch.landed()[0]
}

pub fn append(store: &Store, topic: &str, queue_id: u32, body: &[u8]) -> Landed {
    append_at(store, 1_700_000_000_000, topic, queue_id, body)
}

/// Message number `number` of a run, of varying length.
pub fn body(number: u64) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(8 + (number as usize * 37) % 900, number as u8);
    body
}

/// Appends messages `from..to` to queue 0 of [`TOPIC`].
pub fn append_run(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        append(store, TOPIC, 0, &body(number));
    }
}

pub fn limits(max_count: usize) -> ReadLimits {
    ReadLimits {
        max_count,
        count_memory: 1000,
        bytes_memory: 1 << 30,
        count_disk: 1000,
        bytes_disk: 1 << 30,
        scan_bytes: 16_000,
        may_fault: true,
    }
}

pub fn read(store: &Store, topic: &str, queue_id: u32, from: i64, limits: &ReadLimits) -> (Read, Vec<LogSlice>) {
    let mut out = Vec::new();
    let queue = store.existing_queue(topic, queue_id).expect("the queue exists");
    let read = store.read(&queue, from, limits, &mut |_| true, &mut out);
    assert_eq!(read.count, out.len());
    assert_eq!(read.bytes, out.iter().map(|slice| slice.as_ref().len()).sum::<usize>());
    (read, out)
}

/// Every message of a queue, with its offset. Checks each record's CRC, place and number on the way.
pub fn read_all(store: &Store, topic: &str, queue_id: u32) -> Vec<(u64, Vec<u8>)> {
    let Some(queue) = store.existing_queue(topic, queue_id) else { return Vec::new() };
    let mut all = Vec::new();
    let mut next = queue.min_offset() as i64;
    while next < queue.max_offset() as i64 {
        let (read, slices) = read(store, topic, queue_id, next, &limits(32));
        assert!(read.next > next, "a read at {next} of {queue:?} did not get on: {read:?}");
        for slice in slices {
            let Ok(Scanned::Record(view)) = record::scan(slice.as_ref(), true) else {
                panic!("no record at {:?}", slice.at())
            };
            assert_eq!((view.log_offset(), view.topic(), view.queue_id()), (slice.at().0, topic, queue_id as i32));
            all.push((view.queue_offset(), view.body().to_vec()));
        }
        next = read.next;
    }
    all
}

/// Whether queue 0 of [`TOPIC`] holds exactly the run `from..to`.
#[track_caller]
pub fn assert_run(store: &Store, numbers: std::ops::Range<u64>) {
    let expected: Vec<_> = numbers.map(|number| (number, body(number))).collect();
    let found = read_all(store, TOPIC, 0);
    assert_eq!(found.len(), expected.len(), "{:?}", store.existing_queue(TOPIC, 0));
    assert!(found == expected);
}

/// What a start found, but for a file that was being made in the moment of the crash.
pub fn damage(found: &Recovered) -> Vec<String> {
    found.findings.iter().filter(|finding| !finding.ends_with("empty, removed")).cloned().collect()
}

/// What a crash leaves: the files as they are now.
pub fn image(root: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    copy(root, to.path());
    to
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&target).unwrap();
            copy(&entry.path(), &target);
        } else if entry.file_name() != "lock" {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}

pub fn segment_path(root: &Path, base: u64) -> PathBuf {
    root.join("commitlog").join(format!("{base:020}"))
}

pub fn queue_file(root: &Path, topic: &str, queue_id: u32, first_byte: u64) -> PathBuf {
    root.join("consumequeue").join(topic).join(queue_id.to_string()).join(format!("{first_byte:020}"))
}

/// Leaves a store as one that never had a journal: the check-point says nothing of it either.
pub fn forget_journal(root: &Path) {
    let _ = std::fs::remove_dir_all(root.join("journal"));
    let checkpoint = root.join("checkpoint");
    if checkpoint.exists() {
        overwrite(&checkpoint, 4088, &[0; 8]);
    }
}

/// Changes one file in place.
pub fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

/// The machine's files, with a device that can be filled, emptied, slowed down and broken.
#[derive(Debug, Default)]
pub struct FaultyDisk {
    pub faults: Arc<Faults>,
}

#[derive(Debug, Default)]
pub struct Faults {
    /// Bytes that may still be allocated; none: any number.
    pub allocatable: Mutex<Option<u64>>,
    pub cannot_allocate: AtomicBool,
    pub cannot_remove: AtomicBool,
    /// A file that cannot be removed.
    pub stuck: Mutex<Option<PathBuf>>,
    /// Names of files of the log cannot be made durable.
    pub cannot_sync_log_dir: AtomicBool,
    /// Nor can those in this folder.
    pub unsyncable_dir: Mutex<Option<PathBuf>>,
    /// Writes that files of the key index may still have; none: any number.
    pub index_writes: Mutex<Option<u64>>,
    /// Files of consume queues cannot be written.
    pub cannot_write_queues: AtomicBool,
    /// How full the device says it is, in percent; 0: as the machine says.
    pub used_percent: AtomicU64,
    /// This folder's device is nearly full, whatever others say.
    pub full_dir: Mutex<Option<PathBuf>>,
    /// This folder lies on a device of its own.
    pub own_device: Mutex<Option<PathBuf>>,
    /// Nothing in this folder can be opened for writing.
    pub read_only_dir: Mutex<Option<PathBuf>>,
    /// What lies in this folder does not say how full it is.
    pub unmeasurable: Mutex<Option<PathBuf>>,
    /// Files in this folder get no room.
    pub without_room: Mutex<Option<PathBuf>>,
    /// How often they were refused it.
    pub refused_room: AtomicU64,
    /// Files of the log get room and lose it again before its pages are made: for files that hold nothing yet.
    pub loses_room: AtomicBool,
    pub frees_on_remove: AtomicBool,
    pub removed: AtomicU64,
    /// This file cannot be read, until it is removed.
    pub unreadable: Mutex<Option<PathBuf>>,
    /// This file is cut to nothing as soon as it has been mapped.
    pub loses_its_end: Mutex<Option<PathBuf>>,
    /// How often somebody asked how full the device is.
    pub looks: AtomicU64,
    /// Only files of consume queues stall.
    pub stalls_queues_only: AtomicBool,
    /// While true, writes to files of the log do not come to an end.
    pub log_writes_stalled: Mutex<bool>,
    /// Writes to files of the log so far, by their lengths.
    pub log_writes: Mutex<Vec<usize>>,
    /// While true, no file reaches the device.
    pub stalled: Mutex<bool>,
    pub resumed: Condvar,
    /// Files that wait for the device to go on.
    pub waiting_syncs: AtomicU64,
    /// Nothing reaches the device, and nobody waits for it: for tests that lose no power and open very many stores.
    pub skips_syncs: AtomicBool,
    /// Files made durable since the start.
    pub syncs: AtomicU64,
    /// Stretches of mapped files made durable since the start, in bytes of the file.
    pub mapped_syncs: Mutex<Vec<Range<usize>>>,
    /// Folders whose names were made durable.
    pub synced_dirs: Mutex<Vec<PathBuf>>,
    /// The same, with the files that were removed, in the order of all that.
    pub name_changes: Mutex<Vec<PathBuf>>,
    /// Folders whose file systems were made durable as a whole.
    pub synced_file_systems: Mutex<Vec<PathBuf>>,
    /// The file system of this folder has lost something that was written. As the kernel does, it says so to the first who asks, and to nobody else.
    pub lost_writes_of: Mutex<Option<PathBuf>>,
}

impl FaultyDisk {
    pub fn new() -> Arc<FaultyDisk> {
        Arc::default()
    }

    pub fn stall(&self) {
        *self.faults.stalled.lock() = true;
    }

    /// Until it is resumed, or what comes of it is dropped: a store can be dropped then, also where a test fails.
    pub fn stall_log_writes(self: &Arc<FaultyDisk>) -> impl Drop + use<> {
        *self.faults.log_writes_stalled.lock() = true;
        Resumes(Arc::clone(self))
    }

    /// As `stall`.
    pub fn stall_until_dropped(self: &Arc<FaultyDisk>) -> impl Drop + use<> {
        self.stall();
        Resumes(Arc::clone(self))
    }

    pub fn resume_log_writes(&self) {
        *self.faults.log_writes_stalled.lock() = false;
        self.faults.resumed.notify_all();
    }

    pub fn resume(&self) {
        *self.faults.stalled.lock() = false;
        self.faults.resumed.notify_all();
    }
}

struct Resumes(Arc<FaultyDisk>);

impl Drop for Resumes {
    fn drop(&mut self) {
        self.0.resume();
        self.0.resume_log_writes();
    }
}

impl disk::DiskLayer for FaultyDisk {
    fn inner(&self) -> &dyn Disk {
        &RealDisk
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let read_only = self.faults.read_only_dir.lock();
        if how != OpenHow::Read && read_only.as_ref().is_some_and(|dir| path.starts_with(dir)) {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        drop(read_only);
        let is_in = |dir: &str| path.components().any(|part| part.as_os_str() == dir);
        let (is_log, is_queue, is_index) = (is_in("commitlog"), is_in("consumequeue"), is_in("index"));
        let file = RealDisk.open(path, how)?;
        let is_lost = self.faults.loses_its_end.lock().take_if(|lost| lost == path).is_some();
        let (path, faults) = (path.to_owned(), Arc::clone(&self.faults));
        Ok(Arc::new(FaultyFile { file, path, is_log, is_queue, is_index, is_lost, faults }))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let is_stuck = self.faults.stuck.lock().as_deref() == Some(path);
        if is_stuck || self.faults.cannot_remove.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if path.components().any(|part| part.as_os_str() == "commitlog") {
            self.faults.removed.fetch_add(1, Ordering::SeqCst);
        }
        self.faults.name_changes.lock().push(path.to_owned());
        let mut unreadable = self.faults.unreadable.lock();
        if unreadable.as_deref() == Some(path) {
            *unreadable = None;
        }
        drop(unreadable);
        RealDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.faults.cannot_sync_log_dir.load(Ordering::SeqCst) && dir.ends_with("commitlog") {
            return Err(io::Error::other("broken"));
        }
        if self.faults.unsyncable_dir.lock().as_deref() == Some(dir) {
            return Err(io::Error::other("broken"));
        }
        self.faults.synced_dirs.lock().push(dir.to_owned());
        self.faults.name_changes.lock().push(dir.to_owned());
        if self.faults.skips_syncs.load(Ordering::SeqCst) { Ok(()) } else { RealDisk.sync_dir(dir) }
    }
    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        if self.faults.lost_writes_of.lock().take_if(|lost| lost == dir).is_some() {
            return Err(io::Error::other("broken"));
        }
        // Noted only: the machine has other things to write.
        self.faults.synced_file_systems.lock().push(dir.to_owned());
        Ok(())
    }
    /// What is nearly full is a device of its own.
    fn device(&self, path: &Path) -> io::Result<u64> {
        let is_in = |dir: &Mutex<Option<PathBuf>>| dir.lock().as_ref().is_some_and(|dir| path.starts_with(dir));
        Ok(u64::from(is_in(&self.faults.full_dir)) + 2 * u64::from(is_in(&self.faults.own_device)))
    }
    fn space(&self, path: &Path) -> io::Result<DiskUse> {
        self.faults.looks.fetch_add(1, Ordering::SeqCst);
        if self.faults.unmeasurable.lock().as_ref().is_some_and(|dir| path.starts_with(dir)) {
            return Err(io::Error::other("broken"));
        }
        if self.faults.frees_on_remove.load(Ordering::SeqCst) {
            let gone = self.faults.removed.load(Ordering::SeqCst);
            return Ok(DiskUse { total: 100 << 20, available: (14 + gone.min(80)) << 20 });
        }
        if self.faults.full_dir.lock().as_ref().is_some_and(|dir| path.starts_with(dir)) {
            return Ok(DiskUse { total: 100 << 20, available: 1 << 20 });
        }
        match self.faults.used_percent.load(Ordering::SeqCst) {
            0 => RealDisk.space(path),
            used => Ok(DiskUse { total: 100 << 20, available: (100 - used) << 20 }),
        }
    }
}

#[derive(Debug)]
struct FaultyFile {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    is_log: bool,
    is_queue: bool,
    is_index: bool,
    is_lost: bool,
    faults: Arc<Faults>,
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        if self.is_lost {
            self.file.set_len(0).unwrap();
        }
    }
}

impl FaultyFile {
    fn wait_while_stalled(&self) {
        let stalls = self.is_queue || !self.faults.stalls_queues_only.load(Ordering::SeqCst);
        let mut stalled = self.faults.stalled.lock();
        if !stalls || !*stalled {
            return;
        }
        self.faults.waiting_syncs.fetch_add(1, Ordering::SeqCst);
        while *stalled {
            self.faults.resumed.wait(&mut stalled);
        }
        self.faults.waiting_syncs.fetch_sub(1, Ordering::SeqCst);
    }
}

impl disk::FileLayer for FaultyFile {
    fn inner(&self) -> &dyn DiskFile {
        &*self.file
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        if self.faults.unreadable.lock().as_ref() == Some(&self.path) {
            return Err(io::Error::other("broken"));
        }
        self.file.read_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.is_log {
            let mut stalled = self.faults.log_writes_stalled.lock();
            while *stalled {
                self.faults.resumed.wait(&mut stalled);
            }
            drop(stalled);
            self.faults.log_writes.lock().push(bytes.len());
        }
        if self.is_queue && self.faults.cannot_write_queues.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.is_index
            && let Some(left) = &mut *self.faults.index_writes.lock()
        {
            *left = left.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        }
        self.file.write_at(bytes, at)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.wait_while_stalled();
        self.faults.syncs.fetch_add(1, Ordering::SeqCst);
        if self.faults.skips_syncs.load(Ordering::SeqCst) { Ok(()) } else { self.file.sync_data() }
    }
    fn sync_mapped(&self, map: &MmapRaw, start: usize, bytes: usize) -> io::Result<()> {
        self.wait_while_stalled();
        self.faults.syncs.fetch_add(1, Ordering::SeqCst);
        self.faults.mapped_syncs.lock().push(start..start + bytes);
        self.file.sync_mapped(map, start, bytes)
    }
    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        if self.faults.cannot_allocate.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if self.faults.without_room.lock().as_ref().is_some_and(|dir| self.path.starts_with(dir)) {
            self.faults.refused_room.fetch_add(1, Ordering::SeqCst);
            return Err(io::ErrorKind::StorageFull.into());
        }
        if let Some(left) = &mut *self.faults.allocatable.lock() {
            *left = left.checked_sub(bytes).ok_or(io::ErrorKind::StorageFull)?;
        }
        let loses = self.is_log && at == 0 && self.faults.loses_room.load(Ordering::SeqCst);
        let loses = loses && self.file.data_from(0)?.is_none();
        self.file.allocate(at, bytes)?;
        if loses { self.file.set_len(0) } else { Ok(()) }
    }
    fn punch(&self, at: u64, bytes: u64) -> io::Result<()> {
        if self.faults.cannot_allocate.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.punch(at, bytes)
    }
}
