//! When bundles and snapshots are written, by what was set.

use std::sync::atomic::{AtomicU64, Ordering};

use super::device::Lost;
use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// So many changes of one key each; the position of the last.
fn put(journal: &Journal, changes: u8) -> u64 {
    (0..changes).map(|n| journal.put(TABLE, &[n], b"v")).last().unwrap()
}

#[test]
fn changes_that_nobody_waits_for_gather_until_somebody_does() {
    for sync in [JournalSync::Always, JournalSync::Every(HOUR)] {
        let dir = tempfile::tempdir().unwrap();
        let journal = try_open(dir.path(), JournalOptions { sync, bundle_delay: HOUR, ..options() }).unwrap();
        put(&journal, 50);
        let last = put(&journal, 50);
        assert_eq!(journal.stats().bundles, 0);
        wait(&journal, last);
        assert_eq!(journal.stats().bundles, 1, "all of them together");
        assert!(journal.close());
        assert_eq!(state(&open(dir.path())).len(), 50);
    }
}

#[test]
fn changes_that_somebody_waits_for_have_a_delay_of_their_own_which_is_changed_while_they_gather() {
    let dir = tempfile::tempdir().unwrap();
    let slow = JournalOptions { complete_delay: HOUR, ..options() };
    let journal = try_open(dir.path(), slow).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| wait(&journal, 100));
        until(|| journal.written().waiters() == 1);
        let last = put(&journal, 100);
        assert_eq!((last, journal.stats().bundles), (100, 0));
        journal.configure(options());
    });
    assert_eq!(journal.stats().bundles, 1);
    // And without a wait nothing waits, as nobody asks.
    journal.configure(JournalOptions { complete_delay: HOUR, ..options() });
    let last = put(&journal, 1);
    until(|| journal.written().get() >= last);
}

#[test]
fn who_waits_for_the_device_waits_for_what_gathers_too() {
    let dir = tempfile::tempdir().unwrap();
    let slow = JournalOptions { sync: JournalSync::Every(HOUR), bundle_delay: HOUR, ..options() };
    let journal = try_open(dir.path(), slow).unwrap();
    let last = put(&journal, 50);
    assert_eq!(journal.stats().bundles, 0);
    let mark = journal.mark_of(last, true);
    assert!(mark.wait_until(last, Instant::now() + Duration::from_secs(30)), "{:?}", journal.stats());
    assert_eq!(journal.stats().bundles, 1);
    assert!(journal.close());
}

#[test]
fn a_sync_that_was_wanted_when_the_disk_refused_a_write_comes_with_the_one_that_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let slow = JournalOptions { sync: JournalSync::Every(HOUR), bundle_delay: HOUR, ..options() };
    let journal = Journal::open(dir.path(), slow, Clock::real(), device.disk()).unwrap();
    device.be_full(true);
    let last = put(&journal, 10);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The wish is there before anybody waits for what gathers, and so before that is written.
            let mark = journal.mark_of(last, true);
            assert!(mark.wait_until(last, Instant::now() + Duration::from_secs(30)), "{:?}", journal.stats());
        });
        until(|| journal.is_failing());
        device.be_full(false);
    });
    assert_eq!(state(&open(device.image(dir.path(), Lost::All).path())).len(), 10);
    assert!(journal.close());
}

#[test]
fn a_delay_that_is_over_writes_what_has_gathered() {
    let dir = tempfile::tempdir().unwrap();
    let journal =
        try_open(dir.path(), JournalOptions { bundle_delay: Duration::from_millis(20), ..options() }).unwrap();
    let last = put(&journal, 10);
    until(|| journal.written().get() >= last);
    assert!(journal.close());
}

#[test]
fn a_journal_that_is_closed_waits_for_no_company() {
    let dir = tempfile::tempdir().unwrap();
    let journal =
        try_open(dir.path(), JournalOptions { bundle_delay: HOUR, complete_delay: HOUR, ..options() }).unwrap();
    put(&journal, 10);
    assert!(journal.close());
    assert_eq!(state(&open(dir.path())).len(), 10);
}

#[test]
fn what_was_put_before_changes_have_to_be_on_the_device_is_there_soon_after() {
    for room_bytes in [0, 64 << 10] {
        let dir = tempfile::tempdir().unwrap();
        let device = Device::default();
        let late = JournalOptions { sync: JournalSync::Every(HOUR), room_bytes, ..options() };
        let journal = Journal::open(dir.path(), late, Clock::real(), device.disk()).unwrap();
        for n in 0..10 {
            wait(&journal, journal.put(TABLE, &[n], b"v"));
        }
        let on_device = || state(&open(device.image(dir.path(), Lost::All).path())).len();
        assert_eq!(on_device(), 0);
        journal.configure(JournalOptions { sync: JournalSync::Always, room_bytes, ..options() });
        // And nothing is put that would take it along.
        until(|| on_device() == 10);
    }
}

/// A state of a hundred rows, 20 KB, of which `change` changes one.
fn rows(journal: &Journal) -> (Arc<Owner>, impl FnMut() -> u64 + '_) {
    let owner = Arc::new(Owner(Mutex::default()));
    journal.attach(TABLE, Arc::clone(&owner) as Arc<dyn Table>);
    let (mut n, of) = (0u32, Arc::clone(&owner));
    let change = move || {
        n += 1;
        let (key, value) = (vec![(n % 100) as u8], vec![n as u8; 200]);
        let mut state = of.0.lock();
        state.insert(key.clone(), value.clone());
        journal.put(TABLE, &key, &value)
    };
    (owner, change)
}

/// Waits for as many snapshots, while nothing is put: the thread looks with the next sync.
fn snapshots(journal: &Journal, count: u64) -> JournalStats {
    until(|| journal.stats().snapshots >= count);
    journal.stats()
}

#[test]
fn snapshots_are_two_percent_of_what_is_written_counted_in_bytes_and_the_last_one_more() {
    const STATE: u64 = 22_000;
    let dir = tempfile::tempdir().unwrap();
    let sync = JournalSync::Every(Duration::from_millis(10));
    let eager = JournalOptions { sync, snapshot_min_bytes: 4096, snapshot_ratio_percent: 0, ..options() };
    let journal = try_open(dir.path(), eager.clone()).unwrap();
    let (_owner, mut change) = rows(&journal);
    let mut put = |changes: usize| {
        (1..changes).for_each(|_| _ = change());
        wait(&journal, change());
    };
    let before = loop {
        put(200);
        let stats = journal.stats();
        assert!(stats.snapshot_bytes < STATE, "{stats:?}");
        // The last one is not paid yet, and another may be on its way.
        let paid = stats.maintenance_bytes.saturating_sub(2 * STATE + 40 * (stats.snapshots + 2));
        assert!(paid * 50 <= stats.foreground_bytes, "{stats:?}");
        if stats.snapshots >= 6 {
            break stats;
        }
    };
    assert!(before.snapshot_bytes > 20_000 && before.written_bytes > 4 * 50 * 20_000, "{before:?}");

    // What is written beside pays too. A snapshot that is on its way was begun before, and does not count.
    let beside = Arc::new(AtomicU64::new(7));
    let counted = Arc::clone(&beside);
    journal.count_beside(Box::new(move || counted.load(Ordering::Relaxed)));
    beside.fetch_add(10 << 20, Ordering::Relaxed);
    put(30);
    let after = snapshots(&journal, before.snapshots + 1);
    // What the journal wrote meanwhile (the gauge is a round of its thread late) would have paid less than half of it.
    assert!(after.written_bytes - before.written_bytes < 50 * STATE / 2, "{before:?}, {after:?}");
    assert_eq!(after.foreground_bytes - after.written_bytes, 10 << 20);

    // And who allows more gets more.
    journal.configure(JournalOptions { maintenance_percent: 100, ..eager });
    let before = journal.stats();
    for round in 1..=5 {
        put(100);
        snapshots(&journal, before.snapshots + round);
    }
    let after = journal.stats();
    assert!(after.written_bytes - before.written_bytes < 5 * 2 * STATE, "{before:?}, {after:?}");
}

#[test]
fn an_idle_journal_takes_no_snapshot_that_is_not_paid() {
    let dir = tempfile::tempdir().unwrap();
    let idle = JournalOptions { idle_after: Duration::from_millis(1), snapshot_min_bytes: 4096, ..options() };
    let journal = try_open(dir.path(), idle).unwrap();
    let (owner, mut change) = rows(&journal);
    for _ in 0..100 {
        wait(&journal, change());
    }
    until(|| journal.stats().snapshots >= 1);
    journal.snapshot();
    until(|| journal.stats().journal_bytes == 0 || journal.stats().snapshots >= 2);
    let before = journal.stats();
    assert!((15_000..30_000).contains(&before.snapshot_bytes), "{before:?}");
    // Three times the state, with a pause behind each change.
    for _ in 0..300 {
        let position = change();
        wait(&journal, position);
        until(|| journal.written().get() >= position);
    }
    let after = journal.stats();
    assert_eq!(after.snapshots, before.snapshots, "{after:?}");
    assert!(journal.close());
    assert_eq!(state(&open(dir.path())), *owner.0.lock());
}

#[test]
fn snapshots_that_fail_are_tried_again_with_growing_pauses() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let (clock, hand) = Clock::manual(env::TimeMs(1_000_000));
    let eager = JournalOptions {
        sync: JournalSync::Every(HOUR),
        snapshot_min_bytes: 100,
        snapshot_ratio_percent: 0,
        maintenance_percent: 100,
        ..options()
    };
    let journal = Journal::open(dir.path(), eager, clock, device.disk()).unwrap();
    // When the device has what was put, the thread has looked whether a snapshot is due.
    let look = || {
        let position = journal.put(TABLE, b"key", &[7; 1000]);
        journal.want_sync();
        assert!(journal.synced().wait_until(position, Instant::now() + Duration::from_secs(30)));
    };
    let failed = || journal.stats().snapshots_failed;
    let fails_again_after = |pause: Duration| {
        let before = failed();
        hand.advance(pause - Duration::from_millis(1));
        look();
        look();
        assert_eq!(failed(), before, "within {pause:?}");
        hand.advance(Duration::from_millis(1));
        look();
        until(|| failed() == before + 1);
    };
    device.refuse_snapshots(true);
    look();
    until(|| failed() == 1);
    for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
        fails_again_after(Duration::from_secs(seconds));
    }
    device.refuse_snapshots(false);
    hand.advance(Duration::from_secs(600));
    look();
    until(|| journal.stats().snapshots == 1);
    // It began anew. The last one has to be paid first.
    device.refuse_snapshots(true);
    look();
    look();
    until(|| failed() == 10);
    fails_again_after(Duration::from_secs(10));
    assert!(journal.close());
}

#[test]
fn a_folder_that_cannot_be_opened_now_puts_a_snapshot_off_and_the_journal_goes_on_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let journal = Journal::open(dir.path(), options(), Clock::real(), device.disk()).unwrap();
    wait(&journal, journal.put(TABLE, b"a", b"1"));
    device.refuse_folders();
    journal.snapshot();
    until(|| journal.stats().snapshots_failed == 1);
    assert_eq!(files::list(&RealDisk, dir.path()).unwrap().journals, [0]);
    wait(&journal, journal.put(TABLE, b"b", b"2"));
    assert!(journal.close());
    assert_eq!(state(&open(dir.path())).len(), 2);
}

#[test]
fn a_snapshot_is_synced_once_however_large_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let device = Device::default();
    let journal = Journal::open(dir.path(), options(), Clock::real(), device.disk()).unwrap();
    for key in 0..24 {
        wait(&journal, journal.put(TABLE, &[key], &vec![key; 1 << 20]));
    }
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    assert!(journal.stats().snapshot_bytes > 24 << 20);
    assert_eq!(device.snapshot_syncs(), 1);
    assert!(journal.close());
    assert_eq!(state(&open(dir.path())).len(), 24);
}

#[test]
fn room_made_ahead_becomes_more_and_less_while_others_fill_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let rooms = [64 << 10, 4 << 20, 100_000, 0, u64::MAX];
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let journal = &journal;
            scope.spawn(move || {
                for n in 0..20_000u32 {
                    let position = journal.put(TABLE, &[thread, n as u8], &[n as u8; 250]);
                    if n % 50 == 0 {
                        wait(journal, position);
                    }
                    if thread == 0 && n % 200 == 0 {
                        let room_bytes = rooms[(n / 200) as usize % rooms.len()];
                        journal.configure(JournalOptions { room_bytes, ..options() });
                    }
                }
            });
        }
    });
    assert!(journal.stats().room_bytes <= (4 << 20) + 4096);
    assert!(journal.close());
    let found = open(dir.path());
    assert_eq!((found.position(), state(&found).len()), (60_000, 3 * 256));
}
