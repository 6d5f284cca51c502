//! The log's files as found: which are taken, which are refused by name.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use store::look::Look;
use store::{StoreError, StoreOptions};

use crate::support::*;

/// A closed store with several files.
fn closed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..700);
    store.close().unwrap();
    dir
}

fn set_len(path: &std::path::Path, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

#[test]
fn an_empty_last_file_is_removed() {
    let dir = closed();
    let last = open(image(dir.path()).path()).0.end().0 / SEGMENT * SEGMENT;
    let mut beyond = last + SEGMENT;
    while segment_path(dir.path(), beyond).exists() {
        beyond += SEGMENT;
    }
    File::create(segment_path(dir.path(), beyond)).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found.findings.len(), 1);
    assert!(found.findings[0].contains("empty, removed"));
    assert_run(&store, 0..700);
}

#[test]
fn a_file_of_another_length_in_the_middle_is_refused_by_name() {
    for bytes in [SEGMENT - 1, SEGMENT + 1, 0] {
        let dir = closed();
        let middle = segment_path(dir.path(), SEGMENT);
        set_len(&middle, bytes);
        let refused = try_open(options(dir.path()));
        let Err(StoreError::Malformed { path, why }) = refused else { panic!("{refused:?}") };
        assert_eq!(path, middle);
        assert!(why.contains(&bytes.to_string()) && why.contains(&SEGMENT.to_string()), "{why}");
    }
}

#[test]
fn a_refused_start_does_not_make_the_next_one_abnormal() {
    let dir = closed();
    let middle = segment_path(dir.path(), SEGMENT);
    set_len(&middle, SEGMENT + 1);
    try_open(options(dir.path())).unwrap_err();
    set_len(&middle, SEGMENT);
    let (store, found) = open(dir.path());
    assert!(!found.was_abnormal);
    assert_run(&store, 0..700);
}

#[test]
fn a_missing_file_in_the_middle_is_refused_by_name() {
    let dir = closed();
    std::fs::remove_file(segment_path(dir.path(), SEGMENT)).unwrap();
    let refused = try_open(options(dir.path()));
    let Err(StoreError::Malformed { path, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(path, segment_path(dir.path(), 2 * SEGMENT));
}

#[test]
fn oldest_files_that_were_removed_by_hand_are_as_good_as_expired() {
    let dir = closed();
    std::fs::remove_file(segment_path(dir.path(), 0)).unwrap();
    std::fs::remove_file(segment_path(dir.path(), SEGMENT)).unwrap();
    let (store, _) = open(dir.path());
    assert_eq!(store.min_offset().0, 2 * SEGMENT);
    let queue = store.queue(TOPIC, 0).unwrap();
    eventually("the queue's lower end", || queue.unit_at(queue.min_offset()).unwrap().unwrap().at.0 >= 2 * SEGMENT);
    let kept: Vec<u64> = read_all(&store, TOPIC, 0).into_iter().map(|(number, _)| number).collect();
    assert_eq!(kept, (queue.min_offset()..700).collect::<Vec<_>>());
    append_run(&store, 700..701);
}

#[test]
fn a_last_file_that_lost_its_end_is_extended() {
    let dir = closed();
    let end = open(image(dir.path()).path()).0.end().0;
    let mut last = end / SEGMENT * SEGMENT;
    while segment_path(dir.path(), last + SEGMENT).exists() {
        last += SEGMENT;
        std::fs::remove_file(segment_path(dir.path(), last)).unwrap();
    }
    let last = segment_path(dir.path(), end / SEGMENT * SEGMENT);
    set_len(&last, end % SEGMENT + 10);
    let (store, found) = open(dir.path());
    assert!(found.findings[0].contains("extended"), "{:?}", found.findings);
    assert_eq!(std::fs::metadata(last).unwrap().len(), SEGMENT);
    assert_run(&store, 0..700);
}

#[test]
fn files_of_another_size_than_configured_are_kept_and_gone_on_with() {
    let dir = closed();
    let larger = StoreOptions { segment_bytes: 4 * SEGMENT, ..options(dir.path()) };
    let (store, found) = try_open(larger).unwrap();
    assert!(found.findings[0].contains("the files win"), "{:?}", found.findings);
    append_run(&store, 700..1000);
    assert_run(&store, 0..1000);
    store.close().unwrap();
    for entry in std::fs::read_dir(dir.path().join("commitlog")).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().len(), SEGMENT);
    }
}

#[test]
fn sizes_that_no_broker_writes_are_refused() {
    for bytes in [0, 1, 100, 1 << 31] {
        let dir = tempfile::tempdir().unwrap();
        let refused = try_open(StoreOptions { segment_bytes: bytes, ..options(dir.path()) });
        assert!(matches!(refused, Err(StoreError::Malformed { .. })), "{bytes}: {refused:?}");
    }
    let dir = closed();
    for name in ["18446744073709551615", "18446744073709486080", "09223372036854775807"] {
        let path = dir.path().join("commitlog").join(name);
        let file = File::create(&path).unwrap();
        file.set_len(SEGMENT).unwrap();
        assert!(matches!(try_open(options(dir.path())), Err(StoreError::Malformed { .. })), "{name}");
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn strange_names_among_the_files_are_left_alone() {
    let dir = closed();
    std::fs::write(dir.path().join("commitlog").join("README"), "mine").unwrap();
    std::fs::create_dir(dir.path().join("commitlog").join("00000000000000065537")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(found.findings.len(), 2);
    assert_run(&store, 0..700);
    assert!(dir.path().join("commitlog").join("README").exists());
}

#[test]
fn a_second_open_is_refused_until_the_first_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..3);
    let refused = try_open(options(dir.path()));
    let Err(StoreError::Locked { path, holder: None }) = refused else { panic!("{refused:?}") };
    assert_eq!(path, dir.path().join("lock"));
    append_run(&store, 3..5);
    store.close().unwrap();
    let (again, found) = open(dir.path());
    assert!(!found.was_abnormal);
    assert_run(&again, 0..5);
}

/// The other process of the test below, which starts it with a folder; without one there is nothing to hold.
#[test]
fn holder_of_a_store() {
    let Ok(root) = std::env::var("STORE_TO_HOLD") else { return };
    let (store, _) = open(root.as_ref());
    println!("open");
    // Until the other end is closed.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    store.close().unwrap();
}

#[test]
fn whoever_finds_a_store_locked_is_told_by_which_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "files::holder_of_a_store", "--nocapture"])
        .env("STORE_TO_HOLD", dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut says = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(says.any(|line| line.unwrap().ends_with("open")));
    let refused = try_open(options(dir.path())).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains(&format!("process {}", holder.id())), "{refused}");
    drop(holder.stdin.take());
    assert!(says.all(|line| line.is_ok()) && holder.wait().unwrap().success());
    open(dir.path());
}

#[test]
fn a_store_may_have_a_bare_name() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let (store, _) = open(std::path::Path::new(dir.path().file_name().unwrap()));
    append_run(&store, 0..3);
    assert_run(&store, 0..3);
    store.close().unwrap();
}

/// As somebody for whom a file may be closed, which to root none is.
fn as_anybody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    // Rights are a thread's.
    let act = || {
        let mut mine = capabilities(None).unwrap();
        mine.effective.remove(CapabilitySet::DAC_OVERRIDE);
        set_capabilities(None, mine).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

#[test]
fn a_store_that_cannot_be_written_is_looked_at_as_long_as_no_broker_has_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = closed();
    let lock = dir.path().join("lock");
    let permit = |mode| std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(mode)).unwrap();
    let look = || as_anybody(|| Look::stopped(options(dir.path())));
    permit(0o444);
    assert!(as_anybody(|| File::options().write(true).open(&lock).is_err()));
    let looks = [look().unwrap(), look().unwrap()];
    assert_eq!(looks.each_ref().map(|look| look.survey().unwrap().queues[0].max), [700, 700]);
    permit(0o644);
    let refused = try_open(options(dir.path()));
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    drop(looks);
    let (store, _) = open(dir.path());
    permit(0o444);
    let refused = look().map(|_| ());
    assert!(matches!(refused, Err(StoreError::Locked { .. })), "{refused:?}");
    store.close().unwrap();
    look().unwrap();
}
