//! What of the journal stays in memory.

use super::*;
use crate::window::ROOM_BYTES_MAX;

/// What is mapped, and what is not worth a call.
const FEW: u64 = ROOM_BYTES_MAX + (1 << 20);

#[test]
fn what_was_written_and_what_a_start_read_does_not_stay_in_memory() {
    // On a disk: what is in a file system in memory cannot be dropped.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let in_memory = || resident(&RealDisk, dir.path());
    for (sync, round) in [(JournalSync::Every(Duration::from_millis(10)), 0), (JournalSync::Always, 1)] {
        let journal = try_open(dir.path(), JournalOptions { sync, ..options() }).unwrap();
        assert_eq!(state(&journal).len(), round * 512);
        assert!(in_memory() <= FEW, "a start left {} bytes", in_memory());
        for key in 0..512_u32 {
            let position = journal.put(TABLE, &key.to_be_bytes(), &[round as u8; 64 << 10]);
            wait(&journal, position);
        }
        journal.want_sync();
        // 32 MiB of changes.
        until(|| journal.synced().get() == journal.position() && in_memory() <= FEW);
        assert!(journal.close());
    }
    let journal = open(dir.path());
    assert!(in_memory() <= FEW, "a start left {} bytes", in_memory());
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    assert!(in_memory() <= FEW, "a snapshot left {} bytes", in_memory());
    assert!(journal.close());
    let journal = open(dir.path());
    assert!(in_memory() <= FEW, "a start from a snapshot left {} bytes", in_memory());
    assert_eq!(state(&journal).len(), 512);
}
