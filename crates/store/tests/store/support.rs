//! What every test here needs: a small store in a temporary folder, records, and a file system that can be made to fail.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::Disk;
pub use disk::faults::{Budget, Call, Fault, FaultDisk, Files, How, SYNCS};
use env::TimeMs;
use protocol::record::{self, RecordDraft, Scanned};
use store::{
    AppendError, FlushMode, Landed, LogSlice, NotWritable, Read, ReadLimits, RecordBatch, Recovered, RecoveryOptions,
    Retention, Store, StoreEnv, StoreError, StoreOptions, TagsCode,
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

/// Waits until the store takes no messages for this reason. A look at the devices that began before
/// the test's last change may have measured only a part of them after it, and names that part until
/// the next look.
pub fn eventually_refused(store: &Store, full: &NotWritable) {
    let mut last = Ok(());
    let deadline = deadline();
    while last.as_ref() != Err(full) {
        assert!(Instant::now() < deadline, "{last:?} is not {full:?}");
        std::thread::sleep(Duration::from_millis(1));
        last = store.writable();
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

pub fn open_on(disk: &Arc<FaultDisk>, options: StoreOptions) -> (Arc<Store>, Recovered) {
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

/// What a crash leaves: the files as they are now, and not a copy of them.
pub fn image(root: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    copy(root, to.path());
    let abort = to.path().join("abort");
    if abort.exists() {
        std::fs::write(abort, "1").unwrap();
    }
    to
}

pub fn copy(from: &Path, to: &Path) {
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

/// A disk that can be filled, emptied, slowed down and broken. The machine's own file system is
/// never brought to the device as a whole: it has other things to write.
pub fn fault_disk() -> Arc<FaultDisk> {
    let disk = FaultDisk::noting();
    disk.set(Fault::new(&[Call::SyncFileSystem], Files::All, How::Skipped), true);
    Arc::new(disk)
}

pub const LOG: Files = Files::Under("commitlog");
pub const QUEUES: Files = Files::Under("consumequeue");
/// Files of consume queues cannot be written.
pub const QUEUES_FULL: Fault = Fault::new(&[Call::Write], QUEUES, How::Fails(ErrorKind::StorageFull));
/// The file system gives no blocks ahead.
pub const NO_ROOM_AHEAD: Fault =
    Fault::new(&[Call::Allocate, Call::Punch], Files::All, How::Fails(ErrorKind::Unsupported));
pub const CANNOT_REMOVE: Fault = Fault::new(&[Call::Remove], Files::All, How::Fails(ErrorKind::PermissionDenied));
/// Names of files of the log cannot be made durable.
pub const CANNOT_SYNC_LOG_DIR: Fault = Fault::new(&[Call::SyncDir], LOG, How::Fails(ErrorKind::Other));
/// Files of the log get room and lose it again before its pages are made: for files that hold nothing yet.
pub const LOSES_ROOM: Fault = Fault::new(&[Call::Allocate], LOG, How::TakenBack);
/// No file reaches the device, nor is it known whether it will.
pub const STALLED: Fault = Fault::new(SYNCS, Files::All, How::Waits);
pub const QUEUES_STALLED: Fault = Fault::new(SYNCS, QUEUES, How::Waits);
/// Writes to files of the log do not come to an end.
pub const LOG_WRITES_STALLED: Fault = Fault::new(&[Call::Write], LOG, How::Waits);

/// So many bytes may still be allocated.
pub fn room_for(bytes: u64) -> Fault {
    Fault::new(&[Call::Allocate], Files::All, How::Fails(ErrorKind::StorageFull)).after(Budget::Bytes(bytes))
}

/// How full the device says it is, in percent.
pub const fn used(percent: u8) -> Fault {
    Fault::new(&[Call::Space], Files::All, How::Used(percent))
}

/// A folder whose device is nearly full, whatever others say.
pub fn full_dir(dir: PathBuf) -> Fault {
    Fault::new(&[Call::Space], Files::In(dir), How::Used(99))
}

/// A folder that lies on a device of its own.
pub fn own_device(dir: PathBuf) -> Fault {
    Fault::new(&[Call::Space], Files::In(dir), How::OwnDevice)
}

/// A folder that does not say how full it is.
pub fn unmeasurable(dir: PathBuf) -> Fault {
    Fault::new(&[Call::Space], Files::In(dir), How::Fails(ErrorKind::Other))
}

/// A folder in which nothing can be opened for writing.
pub fn read_only_dir(dir: PathBuf) -> Fault {
    Fault::new(&[Call::OpenToWrite], Files::In(dir), How::Fails(ErrorKind::ReadOnlyFilesystem))
}

/// A folder whose files get no room.
pub fn without_room(dir: PathBuf) -> Fault {
    Fault::new(&[Call::Allocate], Files::In(dir), How::Fails(ErrorKind::StorageFull))
}

/// A folder whose names cannot be made durable.
pub fn unsyncable_dir(dir: PathBuf) -> Fault {
    Fault::new(&[Call::SyncDir], Files::Is(dir), How::Fails(ErrorKind::Other))
}

/// A file that cannot be removed.
pub fn unremovable(path: &Path) -> Fault {
    Fault::new(&[Call::Remove], Files::Is(path.to_owned()), How::Fails(ErrorKind::PermissionDenied))
}

/// A file that is cut to nothing as soon as it has been mapped.
pub fn loses_its_end(path: PathBuf) -> Fault {
    Fault::new(&[Call::Open, Call::OpenToWrite], Files::Is(path), How::CutOff).once()
}

/// The faults hold until they are lifted, or what comes of it is dropped: a store can be dropped then, also where a test fails.
pub fn until_dropped(disk: &Arc<FaultDisk>, fault: Fault) -> impl Drop + use<> {
    disk.set(fault.clone(), true);
    Lifts(Arc::clone(disk), fault)
}

struct Lifts(Arc<FaultDisk>, Fault);

impl Drop for Lifts {
    fn drop(&mut self) {
        self.0.set(self.1.clone(), false);
    }
}
