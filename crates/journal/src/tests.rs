use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk::RealDisk;
use env::Clock;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

mod copy;
mod device;
mod follow;
mod memory;
mod pace;
mod power;
mod window;

use device::Device;

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

fn copy_files(from: &Path, to: &Path) {
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
        copy_files(dir.path(), image.path());
        assert_eq!(state(&open(image.path())).len(), 1);
        assert_eq!(journal.stats().syncs > 0, sync == JournalSync::Always);
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
            Err(error @ JournalError::Damaged { .. }) => {
                assert!(
                    error.to_string().contains("put the folder journal back from a copy; or move it away"),
                    "{error}"
                );
                let JournalError::Damaged { path: named, at: place, .. } = error else { unreachable!() };
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
    let bytes = std::fs::read(files::journal_path(dir.path(), 0)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    // The older state of a page ends with any byte, and what follows the page may be there.
    for from in [2_560, 3_000, 3_996, 4_090] {
        let mut bytes = bytes[..end].to_vec();
        bytes[from..4_096].fill(0);
        let image = tempfile::tempdir().unwrap();
        std::fs::write(files::journal_path(image.path(), 0), &bytes).unwrap();
        let journal = open(image.path());
        assert_eq!(state(&journal).len(), 1, "from {from}");
        assert_eq!(journal.findings().len(), 1);
    }
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
    let mut change = || {
        n += 1;
        let (key, value) = ((n % 100).to_le_bytes().to_vec(), n.to_le_bytes().to_vec());
        let mut state = owner.0.lock();
        if n.is_multiple_of(17) {
            state.remove(&key);
            journal.delete(TABLE, &key)
        } else {
            state.insert(key.clone(), value.clone());
            journal.put(TABLE, &key, &value)
        }
    };
    for snapshots in 1..=3 {
        until(|| {
            journal.stats().snapshots >= snapshots || {
                (1..50).for_each(|_| _ = change());
                wait(&journal, change());
                false
            }
        });
    }
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

#[test]
fn a_full_disk_holds_changes_back_in_bounded_memory_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let tight = JournalOptions { pending_bytes: 10_000, ..options() };
    let journal = Journal::open(dir.path(), tight, Clock::real(), device.disk()).unwrap();
    wait(&journal, journal.put(TABLE, b"before", b""));
    device.be_full(true);
    let (mut last, mut round) = (0, 0u32);
    // Room that was made before the device was full takes some thousands.
    until(|| {
        for n in 0..1000 {
            last = journal.put(TABLE, &(n % 50u32).to_le_bytes(), &round.to_le_bytes());
        }
        round += 1;
        round >= 20 && journal.stats().is_failing
    });
    assert!(journal.stats().pending_bytes <= 20_000);
    assert!(journal.written().get() < last);
    device.be_full(false);
    wait(&journal, last);
    assert!(!journal.stats().is_failing && journal.close());
    let found = state(&open(dir.path()));
    assert_eq!(found.len(), 51);
    assert_eq!(found[&7u32.to_le_bytes().to_vec()], (round - 1).to_le_bytes());
}

/// Of a bundle that waits, in the two tests below.
const BUNDLE_BYTES: usize = 2000;

/// A journal in which little may wait, on a device that takes nothing.
fn tight_and_full(dir: &Path) -> (Journal, Device) {
    let device = Device::default();
    let tight =
        JournalOptions { sync: JournalSync::Always, pending_bytes: 500, bundle_bytes: BUNDLE_BYTES, ..options() };
    let journal = Journal::open(dir, tight, Clock::real(), device.disk()).unwrap();
    device.be_full(true);
    (journal, device)
}

#[test]
fn what_gathers_while_the_device_stands_still_becomes_bundles_of_a_length_that_a_start_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, device) = tight_and_full(dir.path());
    // No key repeats, so nothing can be folded.
    let mut last = 0;
    for n in 0..200u32 {
        let (one, other) = (n.to_le_bytes(), (n + 1000).to_le_bytes());
        let put = |key| Change { table: TABLE, key, value: Some(&[7; 40]) };
        last = journal.put_together(&[put(&one), put(&other)]);
    }
    assert!(journal.stats().pending_bytes > 5 * BUNDLE_BYTES as u64, "{:?}", journal.stats());
    device.be_full(false);
    wait(&journal, last);
    assert!(journal.close());

    let bytes = std::fs::read(files::journal_path(dir.path(), 0)).unwrap();
    let (mut at, mut bundles) = (0, 0);
    while let Some((_, payload)) = bundle::open(&bytes[at..]) {
        assert!(payload.len() <= 4 * BUNDLE_BYTES, "{} bytes", payload.len());
        let numbers: Vec<u32> =
            bundle::entries(payload).flatten().map(|entry| u32::from_le_bytes(entry.key.try_into().unwrap())).collect();
        assert!(numbers.iter().all(|n| numbers.contains(&((n + 1000) % 2000))), "what was put together is together");
        at += bundle::HEADER_BYTES + payload.len();
        bundles += 1;
    }
    // Between the head and the end's mark.
    assert!(at == bytes.len() && bundles >= 2 + 3, "{bundles} bundles end at {at} of {}", bytes.len());
    assert_eq!(state(&open(dir.path())).len(), 400);
}

#[test]
fn what_gathers_while_the_device_stands_still_grows_with_the_keys_and_not_with_their_changes() {
    // None repeats within a bundle.
    const KEYS: u32 = 60;
    let dir = tempfile::tempdir().unwrap();
    let (journal, device) = tight_and_full(dir.path());
    let mut last = 0;
    for n in 0..100 * KEYS {
        last = journal.put(TABLE, &(n % KEYS).to_le_bytes(), &[(n / KEYS) as u8; 40]);
    }
    let waits = journal.stats().pending_bytes;
    assert!(waits <= u64::from(KEYS) * 54 + 2 * BUNDLE_BYTES as u64, "{waits} bytes for {KEYS} keys");
    device.be_full(false);
    wait(&journal, last);
    assert!(journal.close());
    let found = open(dir.path());
    assert_eq!((found.position(), state(&found).len()), (last, KEYS as usize));
    assert!(state(&found).values().all(|value| *value == [99; 40]));
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
                    copy_files(dir.path(), image.path());
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
    let device = Device::default();
    let late = JournalOptions { sync: JournalSync::Every(Duration::from_secs(3600)), ..options() };
    let journal = Arc::new(Journal::open(dir.path(), late, Clock::real(), device.disk()).unwrap());
    let twins = Arc::new(Twins { number: Mutex::new(0), journal: Arc::clone(&journal) });
    for table in [TABLE, TWIN] {
        journal.attach(table, Arc::new(Twin(Arc::clone(&twins), table)));
    }
    wait(&journal, twins.change(1));
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    let images = device.images();
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
