//! What must not be lost: forced deletion knows when to stop, one bad bit costs one message, a gap in a queue is filled from the log.
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::{LogOffset, record};
use store::disk::Disk;
use store::{Retention, Store, StoreEnv, StoreOptions};

use crate::support::*;

fn closed(messages: u64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..messages);
    store.close().unwrap();
    dir
}

/// 86 % in use; each removed file frees 1 %. Two files bring the disk under the forced level of 85 %.
#[test]
fn forced_deletion_ends_when_the_disk_is_below_the_level() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    disk.faults.used_percent.store(10, Ordering::SeqCst);
    let retention = Retention { delete_when: vec![], ..Retention::default() };
    let options = StoreOptions { retention, clean_interval: Duration::from_millis(5), ..options(dir.path()) };
    let env = StoreEnv { disk: Arc::clone(&disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    let now = env.clock.now().0;
    let (store, _) = Store::open(options, env).unwrap();
    store.protect(Box::new(|| Some(LogOffset(0))));
    for _ in 0..600 {
        append_at(&store, now, TOPIC, 0, &[0; 1000]);
    }
    let old = store.end().0 / SEGMENT;
    disk.faults.frees_on_remove.store(true, Ordering::SeqCst);
    eventually("a deletion", || store.min_offset().0 > 0);
    // Let it run to its rest.
    let mut last = (0, std::time::Instant::now());
    eventually("rest", || {
        let gone = disk.faults.removed.load(Ordering::SeqCst);
        if gone != last.0 {
            last = (gone, std::time::Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(1)
    });
    let gone = disk.faults.removed.load(Ordering::SeqCst);
    assert!(gone <= 2, "{gone} of {old} full files removed where 1 (or 2) was enough, all protected and minutes old");
}

/// A clean stop, one lost queue folder, one flipped bit in the oldest file: intact newer messages must survive.
#[test]
fn one_flipped_bit_in_an_old_file_costs_no_newer_file_after_a_clean_stop() {
    let dir = closed(700);
    let files = std::fs::read_dir(dir.path().join("commitlog")).unwrap().count();
    overwrite(&segment_path(dir.path(), 0), 105 + 88 + 20, &[0xff]);
    std::fs::remove_dir_all(dir.path().join("consumequeue").join(TOPIC).join("0")).unwrap();
    let (store, found) = open(dir.path());
    let files_left = std::fs::read_dir(dir.path().join("commitlog")).unwrap().count();
    assert!(files_left >= files, "{files_left} of {files} files left: {:#?}", found.findings);
    assert!(found.findings.iter().any(|line| line.contains("is damaged")), "{:#?}", found.findings);
    // The damaged record keeps its place; a client sees by its checksum that it is not what was sent.
    let queue = store.existing_queue(TOPIC, 0).unwrap();
    assert_eq!((queue.min_offset(), queue.max_offset()), (0, 700));
    let mut next = 0;
    let mut whole = 0;
    while next < 700 {
        let (read, slices) = read(&store, TOPIC, 0, next, &limits(32));
        whole += slices.iter().filter(|slice| record::scan(slice.as_ref(), true).is_ok()).count();
        next = read.next;
    }
    assert_eq!(whole, 699);
}

#[test]
fn the_same_flipped_bit_alone_is_not_noticed_on_a_clean_start() {
    let dir = closed(700);
    overwrite(&segment_path(dir.path(), 0), 105 + 88 + 20, &[0xff]);
    let (store, found) = open(dir.path());
    assert_eq!(found.findings, Vec::<String>::new());
    assert_eq!(store.existing_queue(TOPIC, 0).unwrap().max_offset(), 700);
}

#[test]
fn a_queue_that_lost_a_file_in_its_middle_is_built_again() {
    let dir = closed(700);
    std::fs::remove_file(queue_file(dir.path(), TOPIC, 0, 2 * 2000)).unwrap();
    let (store, found) = open(dir.path());
    let left = read_all(&store, TOPIC, 0).len();
    assert_eq!(left, 700, "{:#?}", found.findings);
}

#[test]
fn a_start_on_a_full_disk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::new();
    *disk.faults.allocatable.lock() = Some(0);
    let env = StoreEnv { disk: Arc::clone(&disk) as Arc<dyn Disk>, ..StoreEnv::real() };
    let opened = Store::open(options(dir.path()), env);
    let writable = opened.as_ref().map(|(store, _)| store.writable());
    assert!(opened.is_err(), "opened; writable() says {writable:?}");
}

/// A header that is hit loses its lengths: what was whole behind it is cut off, and kept beside the log.
#[test]
fn what_is_cut_off_although_it_is_whole_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path());
    append_run(&store, 0..10);
    let bad = append(&store, TOPIC, 0, &body(10));
    append_run(&store, 11..20);
    let end = store.end();
    store.close().unwrap();
    drop(store);
    overwrite(&segment_path(dir.path(), 0), bad.at.0, &[0xff; 8]);
    std::fs::remove_dir_all(dir.path().join("consumequeue").join(TOPIC).join("0")).unwrap();
    let (store, found) = open(dir.path());
    assert_eq!(store.end(), bad.at);
    assert_run(&store, 0..10);
    assert!(found.findings.iter().any(|line| line.contains("is kept in")), "{:#?}", found.findings);
    let kept = std::fs::read(dir.path().join("cut").join(format!("{:020}", bad.at.0))).unwrap();
    assert!(kept.len() as u64 >= end.0 - bad.at.0, "{} bytes kept of {}", kept.len(), end.0 - bad.at.0);
}
