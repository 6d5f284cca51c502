use disk::RealDisk;

use super::*;

fn segment(dir: &Path, base: u64) -> Arc<Segment> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    Segment::open(&disk, dir, base, 1 << 20, &Arc::new(ColdPages::unbounded())).unwrap()
}

#[test]
fn pages_are_let_go_of_inside_the_segment_only_and_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 5 << 20);
    let bytes = vec![7; 1 << 20];
    segment.write(5 << 20, &bytes);
    segment.publish(6 << 20);
    for (from, to) in [(0, 0), (0, 1), (0, 5 << 20), (0, u64::MAX), ((5 << 20) + 1, (6 << 20) - 1), (6 << 20, 7 << 20)]
    {
        segment.let_go(from, to);
        assert_eq!((*segment).as_ref(), bytes, "{from}..{to}");
    }
}

/// Page faults of this thread that waited for nothing.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    stat.rsplit_once(") ").unwrap().1.split(' ').nth(7).unwrap().parse().unwrap()
}

#[test]
fn pages_that_are_touched_for_an_old_kernel_keep_their_bytes_and_are_written_without_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 1 << 20);
    let (base, appended) = (segment.base(), 5_000);
    segment.write(base, &vec![7; appended]);
    segment.publish(base + appended as u64);
    segment.touch(base + appended as u64, segment.end());
    let page = [9; PAGE as usize];
    let before = minor_faults();
    for at in (2 * PAGE..1 << 20).step_by(PAGE as usize) {
        segment.write(base + at, &page);
    }
    let faults = minor_faults() - before;
    assert!(faults < 32, "{faults} faults for 254 pages");
    let file = std::fs::read(segment.path()).unwrap();
    assert!(file[..appended].iter().all(|byte| *byte == 7));
    assert!(file[appended..2 * PAGE as usize].iter().all(|byte| *byte == 0));
    assert!(file[2 * PAGE as usize..].iter().all(|byte| *byte == 9));
}

#[test]
fn reads_bring_in_what_is_accounted_for_and_nothing_ahead_of_it() {
    // On a disk: what is in a file system in memory cannot be dropped.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let cold = Arc::new(ColdPages::new(Some(1 << 30), false, Arc::default()));
    let segment = Segment::open(&disk, dir.path(), 0, 8 << 20, &cold).unwrap();
    segment.write(0, &vec![7; 8 << 20]);
    segment.publish(8 << 20);
    segment.sync().unwrap();
    cold.keep_from(8 << 20);
    // Once with the file as it was made, once with one that is opened for each read.
    for is_resting in [false, true] {
        if is_resting {
            segment.rest();
        }
        assert!(segment.forget_cached(0, 8 << 20));
        assert_eq!(segment.resident().unwrap().cached, 0);
        cold.clear();
        for page in 0..16 {
            let page = page * PAGE as usize;
            assert_eq!(segment.scratch(page..page + PAGE as usize).unwrap(), Some(vec![7; PAGE as usize]));
        }
        assert_eq!((segment.resident().unwrap().cached, cold.bytes()), (16 * PAGE, 16 * PAGE));
    }
}

#[test]
fn what_is_published_does_not_change() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 0);
    segment.write(0, b"record");
    segment.publish(6);
    let overwritten = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| segment.write(3, b"x")));
    assert!(overwritten.is_err());
    let outside = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| segment.write((1 << 20) - 1, b"xy")));
    assert!(outside.is_err());
    assert_eq!((*segment).as_ref(), b"record");
}

#[test]
fn slices_are_made_of_published_bytes_only() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 1 << 20);
    let base = segment.base();
    segment.write(base, b"0123456789");
    assert!(LogSlice::new(&segment, base, 1).is_none());
    segment.publish(base + 10);
    assert_eq!(LogSlice::new(&segment, base + 2, 8).unwrap().as_ref(), b"23456789");
    for (at, bytes) in [(base + 2, 9), (base - 1, 1), (base, usize::MAX), (u64::MAX, 1), (base + 11, 0)] {
        assert!(LogSlice::new(&segment, at, bytes).is_none(), "{at} +{bytes}");
    }
}

#[test]
fn pages_that_the_file_system_does_not_give_are_an_error_and_no_signal() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 0);
    let file = std::fs::File::options().write(true).open(segment.path()).unwrap();
    file.set_len(0).unwrap();
    assert!(segment.populate(0, 1 << 20, true).is_err());
    file.set_len(1 << 20).unwrap();
    segment.populate(0, 1 << 20, true).unwrap();
    segment.write(0, b"record");
}

#[test]
fn what_is_mapped_is_synced_without_a_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 0);
    segment.write(0, b"record");
    segment.publish(6);
    segment.rest();
    std::fs::remove_file(segment.path()).unwrap();
    segment.sync_range(0, 6).unwrap();
}

#[test]
fn a_cut_leaves_zeros_to_the_end_and_nothing_else_changed() {
    let dir = tempfile::tempdir().unwrap();
    let segment = segment(dir.path(), 0);
    segment.write(0, &vec![9; 1 << 20]);
    segment.cut(5000).unwrap();
    let file = std::fs::read(segment.path()).unwrap();
    assert_eq!(file.len(), 1 << 20);
    assert!(file[..5000].iter().all(|byte| *byte == 9) && file[5000..].iter().all(|byte| *byte == 0));
}
