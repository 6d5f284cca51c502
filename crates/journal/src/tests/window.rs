//! Changes that whoever puts them copies into the mapped end of the file.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use super::device::Lost;
use super::*;

/// Puts changes until there is room ahead that the next ones go to.
fn put_until_copied(journal: &Journal) -> u64 {
    let mut n = 0u32;
    until(|| {
        n += 1;
        let position = journal.put(TABLE, b"k", &n.to_le_bytes());
        wait(journal, position);
        journal.shared.inner.lock().window.is_some()
    });
    u64::from(n)
}

#[test]
fn with_a_sync_for_each_change_none_counts_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let safe = JournalOptions { sync: JournalSync::Always, ..options() };
    let journal = Journal::open(dir.path(), safe.clone(), Clock::real(), device.disk()).unwrap();
    let check = || {
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (journal, device) = (&journal, &device);
                scope.spawn(move || {
                    for n in 0..100u8 {
                        let position = journal.put(TABLE, &[thread], &[n]);
                        wait(journal, position);
                        if n % 20 == 0 {
                            let image = device.image(dir_of(journal), Lost::All);
                            assert!(open(image.path()).position() >= position);
                        }
                    }
                });
            }
        });
    };
    check();
    // Room was made ahead meanwhile, and is not used again.
    journal.configure(options());
    put_until_copied(&journal);
    journal.configure(safe);
    check();
}

fn dir_of(journal: &Journal) -> &Path {
    &journal.shared.dir
}

#[test]
fn what_was_copied_is_synced_in_time_and_a_loss_of_power_leaves_no_broken_start() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let soon = JournalOptions { sync: JournalSync::Every(Duration::from_millis(10)), ..options() };
    let journal = Journal::open(dir.path(), soon, Clock::real(), device.disk()).unwrap();
    put_until_copied(&journal);
    let copied = journal.put(TABLE, b"copied", b"");
    until(|| journal.shared.synced.get() >= copied);
    assert!(open(device.image(dir.path(), Lost::All).path()).position() >= copied);
    for round in 0..200u32 {
        for n in 0..30 {
            journal.put(TABLE, &[n], &vec![round as u8; 1 + usize::from(n) * 37 % 700]);
        }
        let synced = journal.shared.synced.get();
        let image = device.image(dir.path(), Lost::Some(round));
        let found = try_open(image.path(), options()).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(found.position() >= synced, "round {round}: {} of {synced}", found.position());
    }
}

#[test]
fn a_device_that_becomes_full_while_there_is_room_ahead_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let journal = Journal::open(dir.path(), options(), Clock::real(), device.disk()).unwrap();
    put_until_copied(&journal);
    device.be_full(true);
    let mut last = 0u64;
    until(|| {
        last = journal.put(TABLE, &last.to_le_bytes(), &[7; 1_000]);
        journal.stats().is_failing
    });
    // What is written is in the file although it is full.
    let image = tempfile::tempdir().unwrap();
    let written = journal.written().get();
    copy_files(dir.path(), image.path());
    assert!(open(image.path()).position() >= written);
    device.be_full(false);
    wait(&journal, last);
    assert!(journal.close());
    assert_eq!(open(dir.path()).position(), last);
}

#[test]
fn whoever_is_woken_by_a_change_may_ask_the_journal() {
    struct Asks(Arc<Journal>, AtomicU64);
    impl Wake for Asks {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0.position(), Ordering::SeqCst);
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let journal = Arc::new(open(dir.path()));
    put_until_copied(&journal);
    let asks = Arc::new(Asks(Arc::clone(&journal), AtomicU64::new(0)));
    let next = journal.position() + 1;
    let mut reached = std::pin::pin!(journal.written().reached(next));
    let waker = Waker::from(Arc::clone(&asks));
    assert!(reached.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    journal.put(TABLE, b"k", b"v");
    until(|| asks.1.load(Ordering::SeqCst) == next);
}

#[test]
fn changes_of_nothing_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    put_until_copied(&journal);
    let before = (journal.position(), journal.stats().bundles);
    assert_eq!(journal.put_together(&[]), before.0);
    assert_eq!((journal.position(), journal.stats().bundles), before);
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
    copy_files(dir.path(), image.path());
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
