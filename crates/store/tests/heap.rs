//! Memory that is freed leaves the process at once. Without a harness: the option is set before there are threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PIECE: usize = 48 << 10;
const PIECES: usize = 1024;

/// Anonymous memory of this process in KiB.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn main() {
    assert!(store::keep_no_freed_pages());
    let pieces: Vec<Vec<u8>> = (0..PIECES).map(|number| vec![number as u8 | 1; PIECE]).collect();
    let (before, bytes) = (anonymous(), (PIECE * PIECES / 1024) as u64);
    assert!(before > bytes, "{before} KiB");
    drop(pieces);
    let after = anonymous();
    assert!(after < before - bytes / 10 * 9, "{after} KiB of {before} are kept");
    // Whoever has threads comes too late.
    std::thread::scope(|scope| {
        let asked = scope.spawn(store::keep_no_freed_pages);
        assert!(!asked.join().unwrap());
    });
    println!("test memory_that_is_freed_leaves_the_process_at_once ... ok");
}
