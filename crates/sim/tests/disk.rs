//! What a disk that loses power leaves.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use disk::{Disk, OpenHow};
use env::Random;
use sim::disk::{Crash, CrashDisk, Failure, Names, Rules};

const RULES: Rules = Rules { names: Names::InOrder, sync_turns_max: 0, boot: 0, counts_reading: true, lies: false };

/// What is left of a file; none if its name is gone.
fn left(disk: &CrashDisk, how: Crash, name: &str) -> Option<Vec<u8>> {
    disk.crash_now(how).unwrap();
    let to = tempfile::tempdir().unwrap();
    disk.take_image().unwrap().write(to.path()).unwrap();
    std::fs::read(to.path().join(name)).ok()
}

fn disk(root: &Path, names: Names, seed: u64) -> CrashDisk {
    CrashDisk::new(root, Rules { names, ..RULES }, Random::seeded(seed)).unwrap()
}

#[test]
fn what_was_synced_with_its_name_survives_and_what_came_later_may_or_may_not() {
    let mut later = [0; 3];
    for seed in 0..60 {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path(), Names::ByFolder, seed);
        let file = disk.open(&dir.path().join("a"), OpenHow::Create).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(dir.path()).unwrap();
        file.write_at(&[2; 2048], 1024).unwrap();
        let left = left(&disk, Crash::Power, "a").unwrap();
        assert_eq!((&left[..1024], &left[3072..]), (&[1; 1024][..], &[1; 1024][..]));
        // Sectors are old or new as a whole.
        let new = left[1024..3072].chunks(512).filter(|sector| **sector == [2; 512]).count();
        let old = left[1024..3072].chunks(512).filter(|sector| **sector == [1; 512]).count();
        assert_eq!(new + old, 4);
        later[usize::from(new > 0) + usize::from(new == 4)] += 1;
    }
    assert!(later.iter().all(|count| *count > 0), "none, some, all: {later:?}");
}

#[test]
fn a_killed_process_leaves_what_the_kernel_has() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(dir.path(), Names::InOrder, 1);
    let file = disk.open(&dir.path().join("a"), OpenHow::Create).unwrap();
    file.write_at(b"not synced", 0).unwrap();
    assert_eq!(left(&disk, Crash::Killed, "a").as_deref(), Some(&b"not synced"[..]));
}

#[test]
fn what_a_failed_sync_left_to_the_kernel_is_not_on_the_device_for_the_next_process_either_until_that_writes_it_again() {
    let (dir, next) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let before = disk(dir.path(), Names::InOrder, 1);
    let file = before.open(&dir.path().join("a"), OpenHow::Create).unwrap();
    file.write_at(&[1; 64 * 512], 0).unwrap();
    before.fail(Failure::Unsynced, 1, Random::seeded(1));
    file.sync_data().unwrap_err();
    before.crash_now(Crash::Killed).unwrap();
    let image = before.take_image().unwrap();
    image.write(next.path()).unwrap();
    let missing = |is_written_again: bool| {
        let disk = disk(next.path(), Names::InOrder, 2);
        disk.go_on(&image);
        let file = disk.open(&next.path().join("a"), OpenHow::Write).unwrap();
        let mut bytes = [0; 64 * 512];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes == [1; 64 * 512], "the kernel has all of it");
        if is_written_again {
            file.write_at(&bytes, 0).unwrap();
        }
        file.sync_data().unwrap();
        left(&disk, Crash::Power, "a").unwrap().chunks(512).filter(|sector| **sector != [1; 512]).count()
    };
    assert!((1..64).contains(&missing(false)));
    assert_eq!(missing(true), 0);
}

#[test]
fn a_name_that_was_not_synced_may_be_gone_and_its_bytes_with_it() {
    let mut gone = 0;
    for seed in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let disk = disk(dir.path(), Names::ByFolder, seed);
        let file = disk.open(&dir.path().join("a"), OpenHow::Create).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        file.sync_data().unwrap();
        match left(&disk, Crash::Power, "a") {
            Some(bytes) => assert_eq!(bytes, [1; 100]),
            None => gone += 1,
        }
    }
    assert!((1..40).contains(&gone), "{gone} of 40");
}

#[test]
fn a_rename_leaves_the_old_file_or_the_new_one() {
    let mut new = 0;
    for seed in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "old").unwrap();
        let disk = disk(dir.path(), Names::InOrder, seed);
        let file = disk.open(&dir.path().join("b"), OpenHow::Create).unwrap();
        file.write_at(b"new", 0).unwrap();
        file.sync_data().unwrap();
        disk.rename(&dir.path().join("b"), &dir.path().join("a")).unwrap();
        match left(&disk, Crash::Power, "a").as_deref() {
            Some(b"new") => new += 1,
            found => assert_eq!(found, Some(&b"old"[..])),
        }
    }
    assert!((1..40).contains(&new), "{new} of 40");
}

#[test]
fn a_crash_that_was_asked_for_comes_before_that_call() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(dir.path(), Names::InOrder, 1);
    disk.crash_in(3, Crash::Killed);
    let file = disk.open(&dir.path().join("a"), OpenHow::Create).unwrap();
    file.write_at(b"one", 0).unwrap();
    assert!(!disk.has_crashed());
    file.write_at(b"two", 0).unwrap();
    assert!(disk.has_crashed());
    assert_eq!(left(&disk, Crash::Killed, "a").as_deref(), Some(&b"one"[..]));
}
