//! A store in a file system in memory, as test suites and containers have it: what is looked at there and was never written, takes room.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use env::TimeMs;
use store::{AppendError, NotWritable, RecordBatch, StoreOptions};

use crate::support::*;

/// With files as large as those of a broker.
fn large(root: &Path) -> StoreOptions {
    StoreOptions { segment_bytes: 1 << 30, ..options(root) }
}

/// What the log takes, in bytes.
fn occupied(root: &Path) -> u64 {
    let files = std::fs::read_dir(root.join("commitlog")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn a_start_in_memory_occupies_what_it_uses() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (store, _) = open_as(&large(dir.path()));
    assert!(occupied(dir.path()) < 16 << 20, "fresh: {}", occupied(dir.path()));
    append_run(&store, 0..100);
    store.close().unwrap();
    drop(store);
    let (store, _) = open_as(&large(dir.path()));
    append_run(&store, 100..110);
    assert!(occupied(dir.path()) < 16 << 20, "after a stop: {}", occupied(dir.path()));
    // Nobody closes it.
    drop(store);
    let (store, _) = open_as(&large(dir.path()));
    assert!(occupied(dir.path()) < 16 << 20, "after a kill: {}", occupied(dir.path()));
    assert_run(&store, 0..110);
}

/// Where the test below mounts a file system of its own.
const MOUNTED: &str = "GANTRY_TEST_SMALL_FILE_SYSTEM";

#[test]
fn a_small_file_system_in_memory_takes_messages_until_it_is_full_and_opens_again() {
    let Ok(root) = std::env::var(MOUNTED) else {
        // Again, in a name space of its own, with which the mount goes.
        let dir = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=17m gantry \"$1\" && exec \"$2\" --exact \"$3\" --nocapture";
        let name = "in_memory::a_small_file_system_in_memory_takes_messages_until_it_is_full_and_opens_again";
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(MOUNTED, dir.path())
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    };
    let root = Path::new(&root);
    let mut messages = 0;
    for life in 0..3 {
        let (store, _) = open_as(&large(root));
        assert_eq!(read_all(&store, TOPIC, 0).len() as u64, messages);
        if life == 0 {
            let mut batch = RecordBatch::new();
            // Ends when there is no room for more.
            loop {
                push(&store, &mut batch, TOPIC, 0, &[7; 60_000]);
                match append_batch(&store, &mut batch, TimeMs(1)) {
                    Ok(()) => messages += 1,
                    Err(AppendError::NotWritable(NotWritable::NoRoom { .. })) => break,
                    Err(other) => panic!("{other}"),
                }
                batch.clear();
            }
            assert!((100..300).contains(&messages), "{messages} messages of 60 kB on 17 MiB");
        }
        if life == 1 {
            store.close().unwrap();
        }
    }
}
