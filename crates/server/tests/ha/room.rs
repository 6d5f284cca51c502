//! A slave without room, and one that is so far behind that its master does not keep what it needs.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bytes::Bytes;
use protocol::code::request;

use crate::ledger::Ledger;
use crate::row::{Outcome, Row};
use crate::set::{SEGMENT, SLAVE, Set, end_of, log_files, set, try_end_of, until_refused, until_same_end};
use crate::support::asking::Asking;
use crate::support::{PATIENCE, until};

/// A file system of its own, as long as this is there.
struct Mounted(PathBuf);

impl Mounted {
    /// In memory; none where we may not mount.
    fn make(at: &Path, bytes: u64) -> Option<Mounted> {
        std::fs::create_dir_all(at).unwrap();
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at).output().ok()?;
        mounted.status.success().then(|| Mounted(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a process of a failed test may have it still.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

const DISK: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_slave_without_room_says_so_and_its_master_goes_on() {
    let probe = tempfile::tempdir().unwrap();
    if Mounted::make(&probe.path().join("disk"), DISK).is_none() {
        println!("F8 did not run: nobody but root may mount a disk that fills up");
        return;
    }
    let row =
        Row { id: "F8", mode: "ASYNC_MASTER, slave's disk full", time: "back", may_lose: false, may_vanish: false };
    row.play(async || {
        let pair = Set::start(&["brokerRole=ASYNC_MASTER"]).await;
        let master = Asking::of(&pair.master);
        let disk = pair.second.store().with_file_name("disk");
        let mounted = Mounted::make(&disk, DISK).unwrap();
        let store = format!("storePathRootDir={}", disk.join("store").display());
        let Set { first: _first, second, master: _master, slave, names: names_of, folder: _folder } = pair;
        assert_eq!(slave.end("-TERM").0, Some(0));
        let lines = [&SLAVE[..], &[store.as_str(), "cleanFileForciblyEnable=false"]].concat();
        let slave = second.start(names_of.address("namesrv"), &lines);
        let there = Asking::of(&slave);
        let ledger = Ledger::begin(&master);
        ledger.acknowledges(200).await;
        until_same_end_or_near(&master, &there).await;
        let filler = disk.join("filler");
        fill_up(&filler);
        fill(&master, 4 * SEGMENT).await;
        until("the slave says that it has no room", async || there.status("copyBlocked").await.is_some()).await;
        ledger.acknowledges(500).await;
        assert_eq!((ledger.refused(), ledger.first_refusal()), (0, None));
        let began = Instant::now();
        std::fs::remove_file(&filler).unwrap();
        let outcome = ledger.check(&master, 0).await;
        until_same_end(&master, &there).await;
        let time = began.elapsed();
        assert_eq!(slave.end("-TERM").0, Some(0));
        drop(mounted);
        Outcome { time, ..outcome }
    })
    .await;
}

/// Takes all the room that there is.
fn fill_up(file: &Path) {
    let mut file = std::fs::File::create(file).unwrap();
    let piece = vec![1; 64 << 10];
    // Ends with the file system.
    loop {
        if let Err(error) = file.write(&piece) {
            assert_eq!(error.kind(), ErrorKind::StorageFull);
            return;
        }
    }
}

/// Under load the master's end is ahead of what a slave can have at any moment.
async fn until_same_end_or_near(master: &Asking, slave: &Asking) {
    let end = end_of(master).await;
    until("the slave follows", async || try_end_of(slave).await.is_some_and(|there| there >= end)).await;
}

/// Messages of another topic, so many bytes of them.
async fn fill(master: &Asking, bytes: u64) {
    let body = "f".repeat(100_000);
    for _ in 0..=bytes / body.len() as u64 {
        assert_eq!(master.send("filler", 0, "", &body).await.unwrap().code, 0);
    }
}

/// Lets the master remove what has expired, and waits until its log begins at `least` or behind it; none: it was asked, and that is all.
async fn expire(master: &Asking, store: &Path, least: Option<u64>) {
    let begins = || log_files(store)[0].file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap();
    let ask = async || {
        let call = master.client.call(&master.broker, request::DELETE_EXPIRED_COMMITLOG, &(), Bytes::new(), PATIENCE);
        assert_eq!(call.await.unwrap().code, 0);
    };
    match least {
        None => ask().await,
        Some(least) => {
            until("old files go", async || {
                ask().await;
                begins() >= least
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f9_what_a_slave_needs_is_kept_up_to_the_limit_and_behind_it_the_slave_says_so() {
    let row = Row {
        id: "F9",
        mode: "ASYNC_MASTER replicaRetentionMax, slave far behind",
        time: "copied",
        may_lose: false,
        may_vanish: false,
    };
    row.play(async || {
        let lines = ["brokerRole=ASYNC_MASTER", "fileReservedTime=0"];
        let Set { folder: _folder, names, first, second, master: _master, slave } = Set::start(&lines).await;
        let master = Asking::of(&_master);
        let store = first.store();
        fill(&master, 2 * SEGMENT).await;
        until_same_end(&master, &Asking::of(&slave)).await;
        let place = end_of(&master).await;
        assert_eq!(slave.end("-TERM").0, Some(0));
        fill(&master, 3 * SEGMENT).await;
        // What the slave has goes, what it needs stays.
        expire(&master, &store, Some(place / SEGMENT * SEGMENT)).await;
        expire(&master, &store, None).await;
        let slave = second.start(names.address("namesrv"), &SLAVE);
        until_same_end(&master, &Asking::of(&slave)).await;
        assert_eq!(slave.end("-TERM").0, Some(0));

        let place = end_of(&master).await;
        fill(&master, 3 * SEGMENT).await;
        set(&master, "replicaRetentionMax=0").await;
        expire(&master, &store, Some((place / SEGMENT + 1) * SEGMENT)).await;
        let slave = second.start(names.address("namesrv"), &SLAVE);
        let there = Asking::of(&slave);
        until_refused(&there, "move the store of this broker away").await;
        assert_eq!(end_of(&there).await, place, "its log was changed");
        assert_eq!(slave.end("-TERM").0, Some(0));
        // As it says.
        std::fs::rename(second.store(), second.store().with_file_name("moved away")).unwrap();
        let ledger = Ledger::begin(&master);
        let began = Instant::now();
        let slave = second.start(names.address("namesrv"), &SLAVE);
        until_same_end_or_near(&master, &Asking::of(&slave)).await;
        let time = began.elapsed();
        ledger.acknowledges(500).await;
        let outcome = ledger.check(&master, 0).await;
        until_same_end(&master, &Asking::of(&slave)).await;
        Outcome { time, ..outcome }
    })
    .await;
}
