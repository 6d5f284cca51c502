//! A second machine that gets a journal in pieces.

use super::*;
use crate::{JournalCopier, Piece, read_changes};

/// A table that is left out.
const LEFT_OUT: TableId = TableId(TABLE.0 + 1);

fn keep(table: TableId) -> bool {
    table == TABLE
}

/// What a copy has made of the pieces that it got.
#[derive(Default)]
struct Copied {
    state: State,
    position: u64,
    pieces: usize,
    snapshots: usize,
}

impl Copied {
    /// Takes the next piece, if there is one.
    fn take(&mut self, copier: &mut JournalCopier, bytes_max: usize) -> Option<Piece> {
        let mut entries = Vec::new();
        let piece = copier.next_piece(bytes_max, &mut entries).unwrap()?;
        let changes = read_changes(&entries).unwrap();
        assert!(entries.len() <= bytes_max || changes.len() == 1, "{} bytes", entries.len());
        if piece.begins_snapshot {
            self.state.clear();
            self.snapshots += 1;
        }
        for change in changes {
            assert_eq!(change.table, TABLE);
            match change.value {
                Some(value) => self.state.insert(change.key.to_vec(), value.to_vec()),
                None => self.state.remove(change.key),
            };
        }
        self.pieces += 1;
        if !piece.is_open {
            self.position = piece.position;
        }
        Some(piece)
    }

    fn take_all(&mut self, copier: &mut JournalCopier, bytes_max: usize) {
        while self.take(copier, bytes_max).is_some() {}
    }
}

/// Changes of both tables, of which that of `TABLE` are done to `state`.
fn put(journal: &Journal, state: &mut State, from: u64, count: u64) {
    for n in from..from + count {
        let key = [(n % 50) as u8];
        let value = [n.to_le_bytes(); 4].concat();
        let other = Change { table: LEFT_OUT, key: &key, value: Some(&value) };
        journal.put_together(&[other, Change { table: TABLE, key: &key, value: Some(&value) }]);
        state.insert(key.to_vec(), value);
    }
    wait(journal, journal.position());
}

#[test]
fn pieces_of_any_length_make_the_same_tables_and_have_nothing_of_those_that_are_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, mut state) = (open(dir.path()), State::new());
    put(&journal, &mut state, 0, 100);
    journal.snapshot();
    until(|| journal.stats().snapshots == 1);
    put(&journal, &mut state, 100, 100);
    // One bundle of many changes.
    let value = [7; 100];
    let keys: Vec<[u8; 2]> = (0..100u8).map(|n| [200, n]).collect();
    let changes: Vec<_> = keys.iter().map(|key| Change { table: TABLE, key, value: Some(&value) }).collect();
    let position = journal.put_together(&changes);
    wait(&journal, position);
    state.extend(keys.iter().map(|key| (key.to_vec(), value.to_vec())));
    for (bytes_max, least) in [(1, 250), (300, 50), (5_000, 4), (1 << 20, 2)] {
        let (mut copier, mut copied) = (journal.copier(0, keep).unwrap(), Copied::default());
        copied.take_all(&mut copier, bytes_max);
        assert_eq!((copied.position, &copied.state, copied.snapshots), (position, &state, 1), "{bytes_max}");
        assert!(copied.pieces >= least, "{} pieces of {bytes_max} bytes", copied.pieces);
        assert!(copier.whole_from() <= position);
        assert_eq!(copied.take(&mut copier, bytes_max), None);
    }
}

#[test]
fn a_copy_goes_on_at_each_position_that_it_was_told_and_an_open_bundle_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, mut state) = (open(dir.path()), State::new());
    // A bundle each.
    (0..20).for_each(|n| put(&journal, &mut state, n, 1));
    let (mut copier, mut copied) = (journal.copier(0, keep).unwrap(), Copied::default());
    let (mut opens, mut before) = (0, 0);
    while let Some(piece) = copied.take(&mut copier, 1) {
        opens += usize::from(piece.is_open);
        assert!(piece.position > before || piece.is_open);
        if piece.is_open {
            continue;
        }
        before = piece.position;
        let (mut late, mut again) = (journal.copier(piece.position, keep).unwrap(), Copied::default());
        again.state = copied.state.clone();
        again.take_all(&mut late, 1 << 20);
        assert_eq!(again.state, state, "from {}", piece.position);
    }
    assert_eq!((copied.position, copied.state), (journal.position(), state));
    assert_eq!(opens, 0, "one change of each bundle is kept");
    let changes: Vec<_> = (0..9u8).map(|n| [n]).collect();
    let changes: Vec<_> = changes.iter().map(|key| Change { table: TABLE, key, value: Some(b"v") }).collect();
    let last = journal.put_together(&changes);
    wait(&journal, last);
    let pieces: Vec<Piece> = std::iter::from_fn(|| copier.next_piece(1, &mut Vec::new()).unwrap()).collect();
    let open: Vec<bool> = pieces.iter().map(|piece| piece.is_open).collect();
    assert_eq!(open, [[true; 8].as_slice(), &[false]].concat());
    assert!(pieces.iter().all(|piece| piece.position == last && !piece.is_of_snapshot));
}
