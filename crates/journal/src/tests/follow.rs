//! A second machine that follows a journal.

use std::os::unix::fs::FileExt;

use super::*;
use crate::{FollowError, Follower, PartOf};

/// What a follower has made of the parts that it got.
#[derive(Default)]
struct Copied {
    state: State,
    snapshots: u64,
}

impl Copied {
    /// Takes the next part, if there is one.
    fn take(&mut self, follower: &mut Follower) -> Result<bool, FollowError> {
        let Some(part) = follower.next_part()? else { return Ok(false) };
        if let PartOf::Snapshot { is_first: true, .. } = part.of {
            self.state.clear();
            self.snapshots += 1;
        }
        for change in part.changes() {
            assert_eq!(change.table, TABLE);
            match change.value {
                Some(value) => self.state.insert(change.key.to_vec(), value.to_vec()),
                None => self.state.remove(change.key),
            };
        }
        Ok(true)
    }

    fn take_all(&mut self, follower: &mut Follower) -> Result<(), FollowError> {
        while self.take(follower)? {}
        Ok(())
    }
}

/// Puts the change that makes position `n`, and does the same to `state`.
fn put(journal: &Journal, state: &mut State, n: u64) {
    let key = [(n * 7 % 13) as u8];
    let position = if n.is_multiple_of(5) {
        state.remove(&key[..]);
        journal.delete(TABLE, &key)
    } else {
        state.insert(key.to_vec(), n.to_le_bytes().to_vec());
        journal.put(TABLE, &key, &n.to_le_bytes())
    };
    assert_eq!(position, n);
}

/// A journal of `count` changes, with its state after each.
fn written(dir: &Path, options: JournalOptions, count: u64) -> (Journal, Vec<State>) {
    let journal = try_open(dir, options).unwrap();
    let mut states = vec![State::new()];
    for n in 1..=count {
        let mut state = states[states.len() - 1].clone();
        put(&journal, &mut state, n);
        states.push(state);
        if n % 3 == 0 {
            wait(&journal, n);
        }
    }
    wait(&journal, count);
    (journal, states)
}

#[test]
fn a_follower_holds_the_same_tables_as_the_journal_at_each_position_and_can_stop_and_go_on_there() {
    let dir = tempfile::tempdir().unwrap();
    for sync in [JournalSync::Always, JournalSync::Every(Duration::from_secs(3_600))] {
        let dir = dir.path().join(format!("{sync:?}"));
        let (journal, states) = written(&dir, JournalOptions { sync, ..options() }, 300);
        let (mut follower, mut copied) = (journal.follow(0).unwrap(), Copied::default());
        let mut places = vec![0];
        while copied.take(&mut follower).unwrap() {
            assert_eq!(copied.state, states[follower.position() as usize], "{}", follower.position());
            places.push(follower.position());
        }
        assert_eq!(follower.position(), 300);
        // The end that a close marks is passed over, and so is that of the process.
        drop(journal);
        let journal = try_open(&dir, options()).unwrap();
        journal.put(TABLE, b"more", b"1");
        wait(&journal, 301);
        for place in places {
            let state = states[place as usize].clone();
            let (mut follower, mut copied) = (journal.follow(place).unwrap(), Copied { state, snapshots: 0 });
            copied.take_all(&mut follower).unwrap();
            assert_eq!(follower.position(), 301);
            assert_eq!(copied.state.remove(&b"more"[..]).as_deref(), Some(&b"1"[..]));
            assert_eq!(copied.state, states[300]);
        }
        assert!(matches!(journal.follow(302), Err(FollowError::Ahead { from: 302, last: 301 })));
    }
}

#[test]
fn a_follower_that_a_snapshot_has_passed_gets_the_snapshot_and_then_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, states) = written(dir.path(), options(), 100);
    let (mut early, mut copied) = (journal.follow(0).unwrap(), Copied::default());
    assert!(copied.take(&mut early).unwrap());
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    let mut state = states[100].clone();
    (101..=120).for_each(|n| put(&journal, &mut state, n));
    wait(&journal, 120);
    // It has the old file open, and needs none of the snapshot.
    copied.take_all(&mut early).unwrap();
    assert_eq!((early.position(), copied.snapshots, &copied.state), (120, 0, &state));
    for from in [0, 40, 99] {
        let old = State::from([(b"not there any more".to_vec(), Vec::new())]);
        let (mut late, mut copied) = (journal.follow(from).unwrap(), Copied { state: old, snapshots: 0 });
        copied.take_all(&mut late).unwrap();
        assert_eq!((late.position(), copied.snapshots, &copied.state), (120, 1, &state));
        assert!((100..=120).contains(&late.whole_from()));
    }
    let (mut late, mut copied) = (journal.follow(100).unwrap(), Copied { state: states[100].clone(), snapshots: 0 });
    copied.take_all(&mut late).unwrap();
    assert_eq!((late.position(), copied.snapshots, &copied.state), (120, 0, &state));
}

#[test]
fn a_follower_keeps_up_while_bundles_and_snapshots_are_written() {
    const CHANGES: u64 = 5_000;
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path());
    let (mut follower, mut copied) = (journal.follow(0).unwrap(), Copied::default());
    let state = std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            let mut state = State::new();
            for n in 1..=CHANGES {
                put(&journal, &mut state, n);
                if n % 1_000 == 0 {
                    journal.snapshot();
                    wait(&journal, n);
                }
            }
            state
        });
        while follower.position() < CHANGES {
            if !copied.take(&mut follower).unwrap() {
                wait(&journal, follower.position() + 1);
            }
        }
        putting.join().unwrap()
    });
    assert_eq!(copied.state, state);
    assert!(!copied.take(&mut follower).unwrap());
}

#[test]
fn a_file_that_is_damaged_or_cut_ends_with_an_error_and_nothing_of_it_is_taken_for_a_change() {
    let dir = tempfile::tempdir().unwrap();
    // Without a window: nothing of the file is mapped.
    let (journal, states) = written(dir.path(), JournalOptions { sync: JournalSync::Always, ..options() }, 12);
    let path = files::journal_path(dir.path(), 0);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let fails = |what: &str| {
        let (mut follower, mut copied) = (journal.follow(0).unwrap(), Copied::default());
        assert!(copied.take_all(&mut follower).is_err(), "{what}");
        assert_eq!(copied.state, states[follower.position() as usize], "{what}");
    };
    let bytes = file.metadata().unwrap().len();
    for at in 0..bytes {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x41], at).unwrap();
        fails(&format!("byte {at} is another one"));
        file.write_all_at(&byte, at).unwrap();
    }
    for cut in (0..bytes).rev() {
        file.set_len(cut).unwrap();
        fails(&format!("{cut} bytes are left"));
    }
}
