use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use env::Clock;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::disk::{DirEntry, DiskFile, OpenHow, RealDisk};

const TABLE: TableId = TableId(1);

fn options() -> JournalOptions {
    JournalOptions { snapshot_min_bytes: u64::MAX, ..JournalOptions::default() }
}

fn try_open(dir: &Path, options: JournalOptions) -> Result<Journal, JournalError> {
    Journal::open(dir, options, Clock::real(), Arc::new(RealDisk))
}

fn open(dir: &Path) -> Journal {
    try_open(dir, options()).unwrap()
}

type State = BTreeMap<Vec<u8>, Vec<u8>>;

fn state(journal: &Journal) -> State {
    let mut state = State::new();
    journal.load(TABLE, |key, value| {
        state.insert(key.to_vec(), value.to_vec());
    });
    state
}

fn wait(journal: &Journal, position: u64) {
    assert!(journal.written().wait_until(position, Instant::now() + Duration::from_secs(30)), "{:?}", journal.stats());
}

/// Waits, without sleeping, for what another thread will do.
fn until(mut what: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !what() {
        assert!(Instant::now() < deadline, "waited too long");
        std::thread::yield_now();
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn what_was_put_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    assert_eq!(journal.put(TABLE, b"a", b"1"), 1);
    journal.put(TABLE, b"b", b"");
    journal.put(TABLE, b"a", b"2");
    journal.put(TableId(9), b"a", b"other");
    assert_eq!(journal.delete(TABLE, b"b"), 5);
    assert!(journal.close());
    let journal = open(dir.path());
    assert_eq!(journal.position(), 5);
    assert_eq!(state(&journal), State::from([(b"a".to_vec(), b"2".to_vec())]));
}

#[test]
fn a_change_is_in_the_file_before_it_counts_as_written() {
    for sync in [JournalSync::Always, JournalSync::Every(Duration::from_secs(3_600))] {
        let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let journal = try_open(dir.path(), JournalOptions { sync, ..options() }).unwrap();
        let position = journal.put(TABLE, b"k", b"v");
        wait(&journal, position);
        // The process ends here, for all that the image knows.
        copy(dir.path(), image.path());
        assert_eq!(state(&open(image.path())).len(), 1);
        assert_eq!(journal.stats().syncs > 0, sync == JournalSync::Always);
    }
}

/// Puts changes until one is written before anybody else had to do anything.
fn put_until_copied(journal: &Journal) -> u64 {
    let mut n = 0u32;
    until(|| {
        n += 1;
        let position = journal.put(TABLE, b"k", &n.to_le_bytes());
        journal.written().get() >= position
    });
    u64::from(n)
}

#[test]
fn what_was_put_into_room_made_ahead_is_there_after_a_crash_and_a_torn_copy_of_it_is_not() {
    let (dir, image) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let journal = open(dir.path());
    let n = put_until_copied(&journal);
    journal.put_together(&[b"a", b"b"].map(|key| Change { table: TABLE, key, value: Some(b"together") }));
    let newest = State::from([
        (b"k".to_vec(), (n as u32).to_le_bytes().to_vec()),
        (b"a".to_vec(), b"together".to_vec()),
        (b"b".to_vec(), b"together".to_vec()),
    ]);
    copy(dir.path(), image.path());
    let path = files::journal_path(image.path(), 0);
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.ends_with(&[0; 4096]), "room ahead");
    let found = open(image.path());
    assert_eq!(state(&found), newest);
    assert_eq!(found.findings(), &[] as &[String]);
    assert!(found.close());
    assert!(std::fs::read(&path).unwrap().len() < bytes.len(), "a journal that is closed has no room ahead");

    // The process died when half of the last bundle was copied.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let mut torn = bytes.clone();
    torn[end - 8..].fill(0);
    std::fs::write(&path, &torn).unwrap();
    let found = open(image.path());
    assert_eq!(state(&found), State::from([(b"k".to_vec(), (n as u32).to_le_bytes().to_vec())]));
    assert_eq!(found.findings().len(), 1);
}

#[test]
fn changes_of_many_threads_through_many_windows_and_snapshots_are_all_there() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0..3_000u32 {
                    let position = journal.put(TABLE, &[thread, (n % 200) as u8], &[n as u8; 300]);
                    if n % 1_000 == 500 {
                        journal.snapshot();
                    }
                    if n % 64 == 0 {
                        wait(journal, position);
                    }
                }
            });
        }
    });
    assert_eq!(journal.position(), 12_000);
    assert!(journal.close());
    let found = state(&open(dir.path()));
    assert_eq!(found.len(), 800);
    for (key, value) in found {
        // The last of each key: 2,800 to 2,999.
        assert_eq!(value, [(2_800 + u32::from(key[1])) as u8; 300]);
    }
}

/// A journal of some bundles, each of two entries that must stay together, with the state after each.
fn recorded(dir: &Path) -> Vec<State> {
    let mut states = vec![State::new()];
    let journal = open(dir);
    for n in 0..6u8 {
        journal.put(TABLE, &[n % 3], &[n; 5]);
        let position = journal.put(TABLE, b"count", &[n]);
        wait(&journal, position);
    }
    journal.close();
    // As they stand in the file, bundle by bundle: the thread may have written the two entries apart.
    let bytes = std::fs::read(files::journal_path(dir, 0)).unwrap();
    let (mut at, mut now) = (0, State::new());
    while let Some((_, payload)) = bundle::open(&bytes[at..]) {
        for entry in bundle::entries(payload).flatten() {
            now.insert(entry.key.to_vec(), entry.value.unwrap().to_vec());
        }
        states.push(now.clone());
        at += bundle::HEADER_BYTES + payload.len();
    }
    assert_eq!(at, bytes.len());
    states
}

#[test]
fn a_journal_cut_at_any_byte_gives_the_state_of_a_bundles_end() {
    let dir = tempfile::tempdir().unwrap();
    let states = recorded(dir.path());
    let bytes = std::fs::read(files::journal_path(dir.path(), 0)).unwrap();
    let mut oldest = 0;
    for cut in 0..=bytes.len() {
        let image = tempfile::tempdir().unwrap();
        std::fs::write(files::journal_path(image.path(), 0), &bytes[..cut]).unwrap();
        let journal = open(image.path());
        let found = states.iter().rposition(|state| *state == self::state(&journal)).expect("a state that was");
        assert!(found >= oldest || states[found] == states[oldest], "{cut} bytes gave less than {} did", cut - 1);
        oldest = found;
        // And it can be written on.
        journal.put(TABLE, b"new", b"new");
        journal.close();
        assert_eq!(state(&open(image.path())).len(), states[found].len() + 1);
    }
    assert_eq!(states[oldest], states[states.len() - 1]);
}

#[test]
fn a_journal_damaged_at_any_byte_is_named_and_never_read_as_something_else() {
    let dir = tempfile::tempdir().unwrap();
    let states = recorded(dir.path());
    let bytes = std::fs::read(files::journal_path(dir.path(), 0)).unwrap();
    let end_mark = bytes.len() - bundle::HEADER_BYTES;
    for at in 0..bytes.len() {
        let image = tempfile::tempdir().unwrap();
        let path = files::journal_path(image.path(), 0);
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x41;
        std::fs::write(&path, &damaged).unwrap();
        match try_open(image.path(), options()) {
            // Only the mark of a clean end may go: it carries no change.
            Ok(journal) => assert!(at >= end_mark && state(&journal) == states[states.len() - 1], "byte {at}"),
            Err(JournalError::Damaged { path: named, at: place, .. }) => {
                assert!(named == path && place as usize <= at && at < end_mark, "byte {at}");
            }
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
}

#[test]
fn a_page_that_a_loss_of_power_left_out_ends_the_journal_and_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let journal =
        try_open(dir.path(), JournalOptions { sync: JournalSync::Every(Duration::from_secs(3_600)), ..options() })
            .unwrap();
    for n in 0..4u8 {
        wait(&journal, journal.put(TABLE, &[n], &[n + 1; 2_000]));
    }
    let image = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(files::journal_path(dir.path(), 0)).unwrap();
    bytes[2_560..4_096].fill(0);
    std::fs::write(files::journal_path(image.path(), 0), &bytes).unwrap();
    let journal = open(image.path());
    assert_eq!(state(&journal).len(), 1);
    assert_eq!(journal.findings().len(), 1);
}

struct Owner(Mutex<State>);

impl Table for Owner {
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        let entries = self.0.lock().clone();
        entries.iter().for_each(|(key, value)| show(key, value));
    }
}

#[test]
fn snapshots_beside_changes_lose_none_and_keep_the_files_small() {
    let dir = tempfile::tempdir().unwrap();
    let small = JournalOptions { snapshot_min_bytes: 20_000, ..JournalOptions::default() };
    let journal = try_open(dir.path(), small).unwrap();
    let owner = Arc::new(Owner(Mutex::default()));
    journal.attach(TABLE, Arc::clone(&owner) as Arc<dyn Table>);
    journal.put(TableId(7), b"of nobody", b"kept");
    let mut n = 0u32;
    until(|| {
        journal.stats().snapshots >= 3 || {
            n += 1;
            let (key, value) = ((n % 100).to_le_bytes().to_vec(), n.to_le_bytes().to_vec());
            let mut state = owner.0.lock();
            let position = if n.is_multiple_of(17) {
                state.remove(&key);
                journal.delete(TABLE, &key)
            } else {
                state.insert(key.clone(), value.clone());
                journal.put(TABLE, &key, &value)
            };
            drop(state);
            if n.is_multiple_of(50) {
                wait(&journal, position);
            }
            false
        }
    });
    let (snapshot_bytes, at) = (journal.stats().snapshot_bytes, journal.stats().snapshot_at);
    assert!(snapshot_bytes < 5_000 && at.is_some());
    journal.close();
    let journal = open(dir.path());
    assert_eq!(state(&journal), *owner.0.lock());
    let mut of_nobody = 0;
    journal.load(TableId(7), |_, _| of_nobody += 1);
    assert_eq!(of_nobody, 1);
    let files = files::list(&RealDisk, dir.path()).unwrap();
    assert_eq!(files.snapshots.len(), 1);
    assert!(files.unfinished.is_empty());
}

#[test]
fn an_idle_journal_that_has_grown_is_snapshotted_and_then_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let idle = JournalOptions { snapshot_min_bytes: 10_000, idle_after: Duration::from_millis(1), ..options() };
    let journal = try_open(dir.path(), idle).unwrap();
    for n in 0..50u8 {
        journal.put(TABLE, &[1], &[n; 100]);
    }
    until(|| journal.stats().snapshots == 1);
    until(|| journal.stats().journal_bytes == 0);
    assert_eq!(state(&journal).len(), 1);
}

#[test]
fn a_damaged_snapshot_and_a_missing_journal_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    for n in 0..100u8 {
        journal.put(TABLE, &[n], &[n; 100]);
    }
    wait(&journal, 100);
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    journal.put(TABLE, b"after", b"");
    journal.close();
    let path = files::snapshot_path(dir.path(), 100);
    let bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(matches!(try_open(dir.path(), options()), Err(JournalError::Damaged { .. })), "byte {at}");
    }
    for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(matches!(try_open(dir.path(), options()), Err(JournalError::Damaged { .. })), "{cut} bytes");
    }
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(state(&open(dir.path())).len(), 101);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(try_open(dir.path(), options()), Err(JournalError::Missing { .. })));
}

/// A disk that is full while its flag says so, and that keeps what a loss of power behind each rename would leave of the folder.
#[derive(Debug, Default)]
struct FullDisk(Arc<AtomicBool>, Arc<Lost>);

#[derive(Debug, Default)]
struct Lost {
    /// Bytes of files that the device has for sure.
    synced: Mutex<BTreeMap<PathBuf, u64>>,
    images: Mutex<Vec<tempfile::TempDir>>,
}

impl Lost {
    fn keep_image(&self, dir: &Path) {
        let image = tempfile::tempdir().unwrap();
        let synced = self.synced.lock();
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            bytes.truncate(synced.get(&entry.path()).map_or(bytes.len(), |synced| *synced as usize));
            std::fs::write(image.path().join(entry.file_name()), bytes).unwrap();
        }
        self.images.lock().push(image);
    }
}

#[derive(Debug)]
struct FullFile(Arc<dyn DiskFile>, Arc<AtomicBool>, PathBuf, Arc<Lost>);

impl Disk for FullDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.create_dir(path)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        RealDisk.list(dir)
    }
    fn len(&self, path: &Path) -> io::Result<u64> {
        RealDisk.len(path)
    }
    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn DiskFile>> {
        let file = RealDisk.open(path, how)?;
        Ok(Arc::new(FullFile(file, Arc::clone(&self.0), path.to_owned(), Arc::clone(&self.1))))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)?;
        let synced = self.1.synced.lock().remove(from);
        self.1.synced.lock().extend(synced.map(|synced| (to.to_owned(), synced)));
        self.1.keep_image(to.parent().unwrap());
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }
    fn remove_tree(&self, dir: &Path) -> io::Result<()> {
        RealDisk.remove_tree(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
    fn sync_file_system(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_file_system(dir)
    }
}

impl DiskFile for FullFile {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.read_at(buffer, at)
    }
    fn read_cached_at(&self, buffer: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        self.0.read_cached_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        if self.1.load(Ordering::SeqCst) {
            // Half of it went through.
            self.0.write_at(&bytes[..bytes.len() / 2], at)?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(bytes, at)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn sync_data(&self) -> io::Result<()> {
        let len = self.0.len()?;
        self.0.sync_data()?;
        self.3.synced.lock().insert(self.2.clone(), len);
        Ok(())
    }
    fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.descriptor()
    }
    fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        if self.1.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { self.0.allocate(at, bytes) }
    }
}

#[test]
fn a_full_disk_holds_changes_back_in_bounded_memory_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let is_full = Arc::new(AtomicBool::new(false));
    let tight = JournalOptions { pending_bytes: 10_000, ..options() };
    let journal =
        Journal::open(dir.path(), tight, Clock::real(), Arc::new(FullDisk(Arc::clone(&is_full), Arc::default())))
            .unwrap();
    wait(&journal, journal.put(TABLE, b"before", b""));
    is_full.store(true, Ordering::SeqCst);
    let mut last = 0;
    for n in 0..20_000u32 {
        last = journal.put(TABLE, &(n % 50).to_le_bytes(), &n.to_le_bytes());
    }
    until(|| journal.stats().is_failing);
    assert!(journal.stats().pending_bytes <= 20_000);
    assert!(journal.written().get() < last);
    is_full.store(false, Ordering::SeqCst);
    wait(&journal, last);
    assert!(!journal.stats().is_failing && journal.close());
    let found = state(&open(dir.path()));
    assert_eq!(found.len(), 51);
    assert_eq!(found[&7u32.to_le_bytes().to_vec()], 19_957u32.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_journal_is_the_map_that_its_changes_make(
        steps in prop::collection::vec((0u8..12, 0u8..6, prop::collection::vec(any::<u8>(), 0..40)), 1..150),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = open(dir.path());
        let mut model = State::new();
        for (step, key, value) in steps {
            match step {
                0 => {
                    drop(journal);
                    journal = open(dir.path());
                }
                1 => {
                    // A crash: what the kernel has at this moment is what the next process finds.
                    wait(&journal, journal.position());
                    let image = tempfile::tempdir().unwrap();
                    until(|| !files::list(&RealDisk, dir.path()).unwrap().journals.is_empty());
                    copy(dir.path(), image.path());
                    prop_assert_eq!(state(&open(image.path())), model.clone());
                }
                2 => {
                    wait(&journal, journal.position());
                    let before = journal.stats();
                    // Where nothing changed since the last one, none is taken; a wish left over would run beside a copy,
                    // and files copied while others are removed are no crash's image.
                    if before.journal_bytes > 0 {
                        journal.snapshot();
                        until(|| journal.stats().snapshots > before.snapshots);
                    }
                }
                3 | 4 => {
                    journal.delete(TABLE, &[key]);
                    model.remove([key].as_slice());
                }
                _put => {
                    journal.put(TABLE, &[key], &value);
                    model.insert(vec![key], value);
                }
            }
            prop_assert_eq!(&state(&journal), &model);
        }
    }
}

const TWIN: TableId = TableId(2);

/// One number in two tables, changed in both together.
struct Twins {
    number: Mutex<u32>,
    journal: Arc<Journal>,
}

impl Twins {
    fn change(&self, to: u32) -> u64 {
        let mut number = self.number.lock();
        *number = to;
        let value = to.to_le_bytes();
        self.journal.put_together(&[TABLE, TWIN].map(|table| Change { table, key: b"n", value: Some(&value) }))
    }
}

struct Twin(Arc<Twins>, TableId);

impl Table for Twin {
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        let number = *self.0.number.lock();
        show(b"n", &number.to_le_bytes());
        // The tables are shown one after the other, and both change in between.
        if self.1 == TABLE {
            self.0.change(number + 1);
        }
    }
}

#[test]
fn a_loss_of_power_behind_a_snapshot_parts_no_changes_that_belong_together() {
    let dir = tempfile::tempdir().unwrap();
    let lost = Arc::new(Lost::default());
    let late = JournalOptions { sync: JournalSync::Every(Duration::from_secs(3600)), ..options() };
    let disk = FullDisk(Arc::default(), Arc::clone(&lost));
    let journal = Arc::new(Journal::open(dir.path(), late, Clock::real(), Arc::new(disk)).unwrap());
    let twins = Arc::new(Twins { number: Mutex::new(0), journal: Arc::clone(&journal) });
    for table in [TABLE, TWIN] {
        journal.attach(table, Arc::new(Twin(Arc::clone(&twins), table)));
    }
    wait(&journal, twins.change(1));
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    let images = std::mem::take(&mut *lost.images.lock());
    assert!(!images.is_empty());
    for image in images {
        let found = open(image.path());
        let of = |table| {
            let mut values = Vec::new();
            found.load(table, |_, value| values.push(value.to_vec()));
            values
        };
        assert_eq!(of(TABLE), of(TWIN));
    }
}
