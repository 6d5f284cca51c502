use disk::RealDisk;
use disk::faults::{Budget, Call, Fault, FaultDisk, Files, How};

use super::*;
use protocol::record::{self, RecordDraft, Scanned};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SURE: LogState = LogState { end: LogOffset(u64::MAX), was_abnormal: false };
const CRASHED: LogState = LogState { end: LogOffset(u64::MAX), was_abnormal: true };

fn open(dir: &Path, state: LogState) -> TimerFiles {
    open_if(dir, state, &|_| true)
}

fn open_if(dir: &Path, state: LogState, is_whole: &dyn Fn(&TimerUnit) -> bool) -> TimerFiles {
    try_open(dir, 1000, state, is_whole).unwrap()
}

fn try_open(
    dir: &Path,
    precision_ms: i64,
    state: LogState,
    is_whole: &dyn Fn(&TimerUnit) -> bool,
) -> Result<TimerFiles, StoreError> {
    try_open_on(Arc::new(RealDisk), dir, precision_ms, state, is_whole)
}

fn try_open_on(
    disk: Arc<dyn Disk>,
    dir: &Path,
    precision_ms: i64,
    state: LogState,
    is_whole: &dyn Fn(&TimerUnit) -> bool,
) -> Result<TimerFiles, StoreError> {
    let options =
        TimerOptions { root: dir.to_owned(), log_file_bytes: 4096, precision_ms, slots_ahead: TIMER_SLOTS_AHEAD };
    TimerFiles::open(&disk, &options, state, is_whole)
}

fn unit(slot: i64, at: u64) -> TimerUnit {
    TimerUnit { slot, due: slot + 7, written: 100, at: LogOffset(at), size: 10, magic: 1, topic_hash: 5 }
}

/// Once around the wheel, in ms.
const LAP: i64 = 2 * TIMER_SLOTS_AHEAD * 1000;

impl TimerFiles {
    fn note(&mut self, read_time: i64, queue_offset: u64) {
        let checkpoint = self.checkpoint(read_time, queue_offset, 1);
        checkpoint.write().unwrap();
        self.checkpointed(&checkpoint);
    }
}

fn offsets(files: &mut TimerFiles, from: i64, to: i64) -> Vec<u64> {
    let mut units = Vec::new();
    files.read(from, to, usize::MAX, &mut units).unwrap();
    units.iter().map(|unit| unit.at.0).collect()
}

#[test]
fn a_slot_gives_its_units_newest_first_across_files() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    // 78 units fit into a file of 4096 bytes.
    let units: Vec<TimerUnit> = (0..200).map(|n| unit(if n % 2 == 0 { 5000 } else { 9000 }, n * 10)).collect();
    assert_eq!(files.append(&units, 0).unwrap(), 200);
    let even: Vec<u64> = (0..200).rev().filter(|n| n % 2 == 0).map(|n| n * 10).collect();
    assert_eq!((files.next_slot(5000), files.next_slot(6000)), (Some(5000), Some(9000)));
    assert_eq!(offsets(&mut files, 0, 6000), even);
    assert_eq!(files.next_slot(5000), Some(9000), "what was read is not found again");
    drop(files);
    let mut files = open(dir.path(), SURE);
    let mut some = Vec::new();
    assert_eq!(files.read(0, 100_000, 1, &mut some).unwrap(), 6000, "stops behind a whole slot");
    assert_eq!(some.len(), 100);
    assert_eq!(some[0], unit(5000, 1980));
}

/// The device has sectors of 512 bytes, and a unit has 52: of one that was written after the check-point it may have a part.
#[test]
fn a_unit_of_which_the_device_has_a_part_ends_the_timer_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0), unit(9000, 10)], 0).unwrap();
    files.note(0, 2);
    files.append(&[unit(9000, 20), unit(9000, 30), unit(9000, 40)], 0).unwrap();
    drop(files);
    let log = dir.path().join("timerlog").join("00000000000000000000");
    let mut bytes = std::fs::read(&log).unwrap();
    // Its size in the log, and what stands behind it.
    bytes[3 * 52 + 36..4 * 52].fill(0);
    std::fs::write(&log, bytes).unwrap();
    let asked = std::cell::RefCell::new(Vec::new());
    let is_whole = |unit: &TimerUnit| {
        asked.borrow_mut().push(unit.at.0);
        unit.size == 10
    };
    let mut files = open_if(dir.path(), CRASHED, &is_whole);
    assert_eq!(files.last().unwrap().at, LogOffset(20));
    assert_eq!(offsets(&mut files, 0, 10_000), [0, 20, 10]);
    assert_eq!(asked.into_inner(), [20, 30], "the check-point vouches for those before");
}

#[test]
fn a_start_goes_on_where_the_files_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0), unit(9000, 10)], 0).unwrap();
    files.note(6000, 2);
    files.append(&[unit(9000, 20)], 6000).unwrap();
    drop(files);
    for state in [SURE, CRASHED] {
        let mut files = open(dir.path(), state);
        assert_eq!((files.marks().read_time, files.marks().queue_offset), (6000, 2));
        assert_eq!(files.last(), Some(unit(9000, 20)));
        assert_eq!(files.pending(), 2);
        assert_eq!((files.first_slot(), files.next_slot(0)), (Some(9000), Some(9000)), "5000 is done with");
        assert_eq!(offsets(&mut files, 6000, 100_000), [20, 10]);
    }
}

#[test]
fn after_a_loss_of_power_units_end_where_the_commit_log_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    let units: Vec<TimerUnit> = (0..100).map(|n| unit(5000, n * 10)).collect();
    files.append(&units, 0).unwrap();
    drop(files);
    let mut files = open(dir.path(), LogState { end: LogOffset(55), was_abnormal: true });
    assert_eq!(offsets(&mut files, 0, 6000), [40, 30, 20, 10, 0]);
    // What was behind does not come back.
    files.append(&[unit(5000, 50)], 0).unwrap();
    drop(files);
    let mut files = open(dir.path(), CRASHED);
    assert_eq!(offsets(&mut files, 0, 6000), [50, 40, 30, 20, 10, 0]);
}

#[test]
fn the_oldest_message_that_waits_is_known_and_older_files_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    let units: Vec<TimerUnit> = (0..200).map(|n| unit(1000 + n as i64 / 50 * 1000, n * 10)).collect();
    files.append(&units, 0).unwrap();
    assert_eq!(files.needed_from().unwrap(), Some(LogOffset(0)));
    files.note(3000, 200);
    assert_eq!(files.needed_from().unwrap(), Some(LogOffset(1000)));
    assert_eq!(std::fs::read_dir(dir.path().join("timerlog")).unwrap().count(), 2);
    files.note(9000, 200);
    assert_eq!(files.needed_from().unwrap(), None);
}

#[test]
fn an_old_file_that_cannot_be_removed_goes_before_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::default();
    let mut files = try_open_on(Arc::new(disk.clone()), dir.path(), 1000, SURE, &|_| true).unwrap();
    let units: Vec<TimerUnit> = (0..300).map(|n| unit(1000 + n as i64 / 100 * 1000, n * 10)).collect();
    files.append(&units, 0).unwrap();
    let cannot_remove = Fault::new(&[Call::Remove], Files::Under("timerlog"), How::Breaks);
    disk.set(cannot_remove.clone(), true);
    files.note(2000, 300);
    files.needed_from().unwrap_err();
    disk.set(cannot_remove, false);
    files.note(3000, 300);
    assert_eq!(files.needed_from().unwrap(), Some(LogOffset(2000)));
    assert_eq!(std::fs::read_dir(dir.path().join("timerlog")).unwrap().count(), 2);
    drop(files);
    let mut files = open(dir.path(), SURE);
    assert_eq!(offsets(&mut files, 3000, 4000).len(), 100);
}

#[test]
fn a_file_of_units_that_failed_goes_before_others_take_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::default();
    let mut files = try_open_on(Arc::new(disk.clone()), dir.path(), 1000, SURE, &|_| true).unwrap();
    let units = |numbers: std::ops::Range<u64>| numbers.map(|n| unit(5000, n * 10)).collect::<Vec<_>>();
    files.append(&units(0..70), 0).unwrap();
    // Those of the first file are all in; of the second one, the wheel does not lead to them.
    let wheel = Fault::new(&[Call::Write], Files::Is(dir.path().join("timerwheel")), How::Breaks);
    disk.set(wheel.after(Budget::Calls(1)), true);
    let cannot_remove = Fault::new(&[Call::Remove], Files::Under("timerlog"), How::Breaks);
    disk.set(cannot_remove.clone(), true);
    files.append(&units(70..110), 0).unwrap_err();
    files.append(&units(70..110), 0).unwrap_err();
    disk.lift(&[Call::Write], &Files::Is(dir.path().join("timerwheel")));
    disk.set(cannot_remove, false);
    files.append(&units(70..80), 0).unwrap();
    drop(files);
    let mut files = open(dir.path(), CRASHED);
    assert!(offsets(&mut files, 0, 6000).into_iter().eq((0..80).rev().map(|n| n * 10)));
}

#[test]
fn a_wheel_of_another_precision_is_not_taken_for_ours() {
    let dir = tempfile::tempdir().unwrap();
    let with = |precision_ms, state| try_open(dir.path(), precision_ms, state, &|_| true);
    open(dir.path(), SURE).append(&[unit(5000, 0)], 0).unwrap();
    let refused = with(100, SURE).unwrap_err().to_string();
    assert!(refused.contains("timerPrecisionMs=1000, not 100"), "{refused}");

    // When nothing waits any more, the precision may change.
    open(dir.path(), SURE).note(6000, 1);
    let mut files = with(100, SURE).unwrap();
    assert_eq!(files.pending(), 0);
    assert_eq!(files.append(&[unit(6100, 10)], 6000).unwrap(), 1);
    drop(files);
    let refused = with(1000, SURE).unwrap_err().to_string();
    assert!(refused.contains("timerPrecisionMs=100, not 1000"), "{refused}");
    let refused = with(1000, CRASHED).unwrap_err().to_string();
    assert!(refused.contains("which timerPrecisionMs=1000 does not have"), "{refused}");
    assert_eq!(offsets(&mut with(100, SURE).unwrap(), 6000, 7000), [10], "it waits all the same");
}

/// So Apache's broker leaves the file when it stops: as it was at the last flush, or at none.
#[test]
fn what_no_slot_of_the_wheel_leads_to_is_found_after_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let (wheel, flushed) = (dir.path().join("timerwheel"), dir.path().join("flushed"));
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0), unit(9000, 10)], 0).unwrap();
    std::fs::copy(&wheel, &flushed).unwrap();
    files.append(&[unit(9000, 20), unit(12_000, 30)], 0).unwrap();
    files.note(6000, 4);
    drop(files);
    for is_flushed in [true, false] {
        if is_flushed {
            std::fs::copy(&flushed, &wheel).unwrap();
        } else {
            let file = std::fs::OpenOptions::new().write(true).open(&wheel).unwrap();
            file.set_len(0).and_then(|()| file.set_len(wheel::file_bytes(TIMER_SLOTS_AHEAD))).unwrap();
        }
        let mut files = open(dir.path(), SURE);
        assert_eq!((files.pending(), files.first_slot()), (3, Some(9000)), "5000 is done with");
        assert_eq!(files.last(), Some(unit(12_000, 30)));
        assert_eq!(offsets(&mut files, 0, 20_000), [20, 10, 30]);
    }
}

#[test]
fn the_wheel_has_apaches_length_whatever_a_tick_is() {
    for precision_ms in [1, 100, 1000, 10_000] {
        let dir = tempfile::tempdir().unwrap();
        let with = || try_open(dir.path(), precision_ms, SURE, &|_| true).unwrap();
        with().append(&[unit(50_000, 0)], 0).unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("timerwheel")).unwrap().len(), 38_707_200);
        let mut files = with();
        assert_eq!((files.pending(), files.next_slot(0)), (1, Some(50_000)), "{precision_ms}");
        assert_eq!(offsets(&mut files, 0, 60_000), [0], "{precision_ms}");
    }
}

#[test]
fn a_unit_for_which_the_wheel_turns_once_more_stays_when_its_place_is_read_before() {
    const DAY: i64 = 86_400_000;
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(15 * DAY, 0)], 0).unwrap();
    assert!(offsets(&mut files, 0, 2 * DAY).is_empty());
    assert_eq!(files.next_slot(2 * DAY), Some(15 * DAY));
    assert_eq!(offsets(&mut files, 2 * DAY, 16 * DAY), [0]);
}

/// A file is made longer when it is made, and shorter and longer when its end is cut: a loss of power may leave any length that it had.
#[test]
fn a_last_file_of_which_a_loss_of_power_left_less_is_as_long_as_the_others_again() {
    // 78 units fit into a file of 4096 bytes.
    for count in [1, 5, 78, 80, 200] {
        for left in [UNIT_BYTES as u64, 3 * UNIT_BYTES as u64, 4000] {
            let dir = tempfile::tempdir().unwrap();
            let mut files = open(dir.path(), SURE);
            let units: Vec<TimerUnit> = (0..count).map(|n| unit(5000, n * 10)).collect();
            assert_eq!(files.append(&units, 0).unwrap() as u64, count);
            drop(files);
            let last = dir.path().join("timerlog").join(format!("{:020}", (count - 1) / 78 * 4096));
            std::fs::OpenOptions::new().write(true).open(&last).unwrap().set_len(left).unwrap();
            let kept = (count - 1) / 78 * 78 + (left / UNIT_BYTES as u64).min((count - 1) % 78 + 1);

            // Of a unit that was cut in two the rest says something else.
            let mut files = open_if(dir.path(), CRASHED, &|unit| unit.due == unit.slot + 7);
            assert_eq!(files.pending(), kept, "{count} units, {left} bytes");
            let more: Vec<TimerUnit> = (0..100).map(|n| unit(9000, n * 10)).collect();
            assert_eq!(files.append(&more, 0).unwrap(), 100);
            drop(files);
            for entry in std::fs::read_dir(dir.path().join("timerlog")).unwrap() {
                assert_eq!(entry.unwrap().metadata().unwrap().len(), 4096, "{count} units, {left} bytes");
            }
            let mut files = open(dir.path(), SURE);
            assert_eq!(offsets(&mut files, 0, 6000).len() as u64, kept, "{count} units, {left} bytes");
            assert_eq!(offsets(&mut files, 6000, 10_000).len(), 100, "{count} units, {left} bytes");
        }
    }
}

#[test]
fn what_was_given_a_place_before_the_check_point_knew_that_it_is_free_is_not_lost() {
    for is_noted in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut files = open(dir.path(), SURE);
        files.append(&[unit(5000, 0)], 0).unwrap();
        let later = TimerUnit { written: 7000, ..unit(5000 + LAP, 10) };
        assert_eq!(files.append(&[later, unit(9000, 20)], 6000).unwrap(), 2);
        if is_noted {
            files.note(0, 3);
        }
        drop(files);
        let mut files = open(dir.path(), CRASHED);
        if is_noted {
            assert_eq!((files.last(), files.pending()), (Some(unit(9000, 20)), 2));
        } else {
            assert_eq!((files.last(), files.pending()), (Some(unit(5000, 0)), 1), "the others are taken in again");
            assert_eq!(files.append(&[later], 5000).unwrap(), 0, "as soon as there is a place");
            assert_eq!(offsets(&mut files, 0, 6000), [0]);
            assert_eq!(files.append(&[later, unit(9000, 20)], 6000).unwrap(), 2);
        }
        assert_eq!(offsets(&mut files, 6000, 2 * LAP), [20, 10]);
    }
}

#[test]
fn messages_of_a_longer_wheel_that_have_one_place_in_ours_are_not_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0)], 0).unwrap();
    files.append(&[unit(5000 + LAP, 10)], 6000).unwrap();
    files.note(0, 2);
    drop(files);
    let refused = try_open(dir.path(), 1000, CRASHED, &|_| true).unwrap_err().to_string();
    assert!(refused.contains("have one place in the wheel"), "{refused}");
    let mut files = open_if(dir.path(), CRASHED, &|unit| unit.at != LogOffset(10));
    assert_eq!(offsets(&mut files, 0, 2 * LAP), [0], "there is no such message");
}

#[test]
fn a_unit_whose_time_is_damaged_keeps_no_start_from_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0), unit(9000, 10)], 0).unwrap();
    files.note(0, 2);
    drop(files);
    // How long it is from the time of writing to the slot.
    let log = dir.path().join("timerlog").join("00000000000000000000");
    let mut ahead = std::fs::read(&log).unwrap()[24..28].to_vec();
    ahead[3] ^= 4;
    std::fs::OpenOptions::new().write(true).open(&log).unwrap().write_all_at(&ahead, 24).unwrap();
    // One that its message confirms, but for what follows from the precision.
    let refused = try_open(dir.path(), 1000, CRASHED, &|unit| unit.due == 0).unwrap_err().to_string();
    assert!(refused.contains("which timerPrecisionMs=1000 does not have"), "{refused}");
    let mut files = open_if(dir.path(), CRASHED, &|unit| [5000, 9000].contains(&unit.slot));
    assert_eq!((files.pending(), files.last()), (1, Some(unit(9000, 10))));
    assert_eq!(offsets(&mut files, 0, 10_000), [10]);
}

#[test]
fn a_damaged_unit_leads_to_those_before_it_and_holds_up_no_later_write() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0), unit(5000, 10), unit(5000, 20)], 0).unwrap();
    files.note(0, 3);
    drop(files);
    let log = dir.path().join("timerlog").join("00000000000000000000");
    let mut bytes = std::fs::read(&log).unwrap();
    // How long it is from the time of writing to the slot, of the second one.
    bytes[UNIT_BYTES + 27] ^= 4;
    std::fs::write(&log, bytes).unwrap();
    let mut files = open_if(dir.path(), CRASHED, &|unit| unit.slot == 5000);
    // As after a write that failed.
    files.broken_at = Some(files.log.end);
    assert_eq!(offsets(&mut files, 0, 10_000), [20, 0]);
}

#[test]
fn a_message_tells_whether_its_unit_is_in_its_slot() {
    let host = std::net::SocketAddr::from(([127, 0, 0, 1], 10911));
    let draft = RecordDraft { properties: b"TIMER_OUT_MS\x015000\x02", ..RecordDraft::plain("t", host) };
    let mut bytes = Vec::new();
    draft.encode(&mut bytes).unwrap();
    let Ok(Scanned::Record(view)) = record::scan(&bytes, false) else { panic!("no record") };
    let is_in = |slot, written, magic| is_in_its_slot(&TimerUnit { written, magic, ..unit(slot, 0) }, &view, 1000);
    let (whole, rolled) = (timer_magic::DEFAULT, timer_magic::DEFAULT | timer_magic::ROLL);
    assert!(is_in(5000, 100, whole) && !is_in(5004, 100, whole) && !is_in(4000, 100, whole));
    assert!(is_in(4800, 100, whole) && !is_in(-56_100, 100, whole), "with a precision of 300 ms");
    assert!(is_in(8000, 8500, whole) && is_in(9000, 8500, whole) && !is_in(12_000, 8500, whole), "late ones");
    assert!(is_in(3000, 100, rolled) && !is_in(6000, 100, rolled));
}

#[test]
fn a_wheel_that_was_built_anew_is_kept_although_its_newest_unit_is_done_with() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    files.append(&[unit(5000, 0), unit(9000, 10)], 0).unwrap();
    files.note(10_000, 2);
    drop(files);
    let files = open(dir.path(), CRASHED);
    assert_eq!((files.pending(), files.next_slot(0)), (0, None));
    drop(files);
    // What nobody looks at is gone when the wheel is built anew.
    let wheel = std::fs::OpenOptions::new().read(true).write(true).open(dir.path().join("timerwheel")).unwrap();
    wheel.write_all_at(&[7], 100 * 32 + 31).unwrap();
    let files = open(dir.path(), SURE);
    assert_eq!((files.pending(), files.next_slot(0)), (0, None));
    let mut byte = [0];
    wheel.read_exact_at(&mut byte, 100 * 32 + 31).unwrap();
    assert_eq!(byte, [7]);
}

/// As Apache's broker walks a slot: whatever the slot leads to is delivered.
fn chain(files: &mut TimerFiles, time: i64) -> Vec<TimerUnit> {
    let mut units = Vec::new();
    let mut position = files.wheel.slot(time).unwrap().last;
    while let Ok(at) = u64::try_from(position) {
        let (unit, previous) = files.log.unit_at(at).unwrap().unwrap();
        units.push(unit);
        position = previous;
    }
    units
}

#[test]
fn slots_whose_time_comes_a_second_time_hold_nothing_of_the_first_and_units_that_move_are_where_they_belong() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = open(dir.path(), SURE);
    // Done with: 0 and 10. Of the slot 90,000 the message 20 is dealt with. 50 moves from there to 31,000, where 30 is, and 70 is behind it.
    let times =
        [(20_000, 0), (30_000, 10), (90_000, 20), (31_000, 30), (90_000, 40), (90_000, 50), (90_000, 60), (31_000, 70)];
    let units: Vec<TimerUnit> = times.iter().map(|(slot, at)| unit(*slot, *at)).collect();
    files.append(&units[..3], 0).unwrap();
    files.note(80_000, 3);
    files.append(&units[3..], 0).unwrap();
    let mut decide = |unit: &TimerUnit| match unit.at.0 {
        0 | 10 | 20 => Turned::Done,
        50 => Turned::Moves(TimerUnit { slot: 31_000, due: 31_500, ..*unit }),
        _ => Turned::Stays,
    };
    files.set_back(15_000, 8, 15_000, &mut decide).unwrap();
    files.append(&[unit(20_000, 80)], 15_000).unwrap();
    drop(files);
    for state in [SURE, CRASHED] {
        let mut files = open(dir.path(), state);
        assert_eq!((files.marks().read_time, files.marks().queue_offset), (15_000, 8));
        assert_eq!(files.pending(), 6, "30, 70, 80, 40, 50 and 60");
        let found = [20_000, 30_000, 31_000, 90_000].map(|time| {
            let units = chain(&mut files, time);
            assert!(units.iter().all(|unit| unit.slot == time), "another broker would deliver {units:?} at {time}");
            units.iter().map(|unit| unit.at.0).collect::<Vec<_>>()
        });
        assert_eq!(found, [vec![80], vec![], vec![70, 50, 30], vec![60, 40]]);
        assert_eq!(offsets(&mut files, 15_000, 100_000), [80, 70, 50, 30, 60, 40]);
    }
}
