//! How the kernel is told to read the log.

use std::fs;

use store::ReadMode;

use crate::support::{SEGMENT, TOPIC, append, eventually, open};

/// Whether the kernel reads pages of each of the log's mappings alone, in the order of their files. Other stores of this process do not count.
fn is_random(root: &std::path::Path) -> Vec<bool> {
    let log = root.join("commitlog");
    let log = log.to_str().unwrap();
    let mut found = Vec::new();
    let mut is_ours = None;
    for line in fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        if let Some(at) = line.find(log) {
            is_ours = Some(line[at..].to_owned());
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && let Some(file) = is_ours.take()
        {
            found.push((file, flags.split_whitespace().any(|flag| flag == "rr")));
        }
    }
    found.sort();
    found.into_iter().map(|(_, is_random)| is_random).collect()
}

#[test]
fn a_read_mode_holds_for_the_files_that_are_there_and_for_those_to_come() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    append(&store, TOPIC, 0, b"x");
    assert!(is_random(folder.path()).iter().all(|is_random| !is_random));
    store.set_read_mode(ReadMode::Random).unwrap();
    let body = vec![b'x'; SEGMENT as usize / 2];
    for _ in 0..6 {
        append(&store, TOPIC, 0, &body);
    }
    // The file that is being prepared is mapped a moment before the kernel is told of it.
    eventually("all are read page by page", || {
        let modes = is_random(folder.path());
        modes.len() >= 3 && modes.iter().all(|is_random| *is_random)
    });
    store.set_read_mode(ReadMode::Ahead).unwrap();
    eventually("all are read ahead", || is_random(folder.path()).iter().all(|is_random| !is_random));
    store.close().unwrap();
}
