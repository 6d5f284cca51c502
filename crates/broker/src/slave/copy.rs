//! How pieces of the master's journal become changes of the tables here. Without a clock and a socket.
//!
//! A slave that has a place goes on behind it: each piece is changes. One that has none, or whose master has another life, or that a snapshot has
//! passed, gathers all rows until it has come to where the journal ended when it began; then they take the place of all that is here.

use std::collections::BTreeMap;

use bytes::Bytes;
use journal::{EntriesError, TableId, read_changes};
use protocol::LogOffset;

use crate::state::master_journal::Place;

/// Bytes of rows that are gathered: a slave has as many in its tables. As much as a million topics, groups, and leases take together.
const GATHERED_BYTES_MAX: usize = 2 << 30;
/// What a row takes beside its key and its value.
const ROW_BYTES: usize = 96;

/// Why answers of the master are no journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    /// The rows of a piece.
    #[error("the master's answer to 30002: {0}")]
    Entries(#[from] EntriesError),
    /// It is another piece.
    #[error("the master's answer to 30002 is {what}")]
    Unexpected { what: String },
    /// There is more than can be held.
    #[error(
        "the journal of the master has more than {GATHERED_BYTES_MAX} bytes of rows, which is more than a slave gathers"
    )]
    TooMuch,
}

/// A piece, as the master gives it.
pub(crate) struct Told {
    pub(crate) life: u64,
    pub(crate) from: u64,
    pub(crate) piece: u64,
    pub(crate) position: u64,
    pub(crate) has_more: bool,
    pub(crate) begins_snapshot: bool,
    pub(crate) whole_from: u64,
    pub(crate) journal_end: u64,
    pub(crate) log_end: LogOffset,
    pub(crate) entries: Bytes,
}

/// The piece that is to come next: that of this number behind a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) place: Place,
    pub(crate) piece: u64,
}

/// All rows of the master, by table and key.
pub(crate) type Rows = BTreeMap<(TableId, Box<[u8]>), Box<[u8]>>;

/// What is to be done with what has come.
pub(crate) enum Step {
    /// More is to come first.
    Nothing,
    /// These are changes, whose form was looked at. They go up to the place, if they are a whole bundle.
    Change(Bytes, Option<Place>),
    /// These are all rows, at the place.
    Replace(Rows, Place),
}

struct Gathered {
    rows: Rows,
    bytes: usize,
    /// The rows are whole from this position on.
    until: u64,
}

/// A journal that is copied.
pub(crate) struct Copy {
    place: Place,
    piece: u64,
    /// Rows that are no changes of what is here.
    gathered: Option<Gathered>,
    /// Changes of a bundle of which more is to come: a master that dies leaves all of a bundle here, or nothing.
    begun: Vec<u8>,
}

impl Copy {
    /// Goes on behind a place, or begins.
    pub(crate) fn new(place: Option<Place>) -> Copy {
        let gathered = place.is_none().then(|| Gathered { rows: Rows::new(), bytes: 0, until: u64::MAX });
        Copy { place: place.unwrap_or(Place { life: 0, position: 0 }), piece: 0, gathered, begun: Vec::new() }
    }

    /// What to ask for.
    pub(crate) fn wanted(&self) -> Wanted {
        Wanted { place: self.place, piece: self.piece }
    }

    /// How many rows are gathered that will take the place of what is here; none if what comes are changes of that: the tables are those of the place.
    pub(crate) fn gathered(&self) -> Option<usize> {
        self.gathered.as_ref().map(|gathered| gathered.rows.len())
    }

    /// The bundle, or the snapshot, of which some pieces have come, comes again from its first one. False if none has.
    pub(crate) fn begin_bundle_again(&mut self) -> bool {
        self.begun.clear();
        std::mem::take(&mut self.piece) > 0
    }

    /// Takes what has come.
    pub(crate) fn take(&mut self, told: Told) -> Result<Step, CopyError> {
        let unexpected = |what: String| CopyError::Unexpected { what };
        if told.life == 0 {
            return Err(unexpected("without the life of the master".to_owned()));
        }
        if told.life != self.place.life {
            self.place = Place { life: told.life, position: 0 };
            self.piece = 0;
            self.begun.clear();
            self.gathered = Some(Gathered { rows: Rows::new(), bytes: 0, until: told.journal_end });
        }
        if (told.from, told.piece) != (self.place.position, self.piece) {
            return Err(unexpected(format!(
                "piece {} behind {}, and piece {} behind {} was asked for",
                told.piece, told.from, self.piece, self.place.position
            )));
        }
        if told.position < told.from {
            return Err(unexpected(format!("a piece that goes back from {} to {}", told.from, told.position)));
        }
        if told.begins_snapshot {
            self.begun.clear();
            self.gathered = Some(Gathered { rows: Rows::new(), bytes: 0, until: told.journal_end });
        }
        let changes = read_changes(&told.entries)?;
        if let Some(gathered) = &mut self.gathered {
            gathered.until = gathered.until.max(told.whole_from);
            for change in &changes {
                gathered.put(change)?;
            }
        }
        if told.has_more {
            self.piece += 1;
        } else {
            self.place.position = told.position;
            self.piece = 0;
        }
        let place = (!told.has_more).then_some(self.place);
        if self.gathered.is_none() {
            return self.change(told, place);
        }
        match (self.gathered.take_if(|gathered| place.is_some_and(|place| place.position >= gathered.until)), place) {
            (Some(gathered), Some(place)) => Ok(Step::Replace(gathered.rows, place)),
            (None, _) | (_, None) => Ok(Step::Nothing),
        }
    }

    /// Changes of what is here, once all of their bundle has come.
    fn change(&mut self, told: Told, place: Option<Place>) -> Result<Step, CopyError> {
        if self.begun.len() + told.entries.len() > GATHERED_BYTES_MAX {
            return Err(CopyError::TooMuch);
        }
        if place.is_none() {
            self.begun.extend_from_slice(&told.entries);
            return Ok(Step::Nothing);
        }
        let mut all = std::mem::take(&mut self.begun);
        let entries = if all.is_empty() {
            told.entries
        } else {
            all.extend_from_slice(&told.entries);
            Bytes::from(all)
        };
        let is_nothing = entries.is_empty() && told.position == told.from;
        Ok(if is_nothing { Step::Nothing } else { Step::Change(entries, place) })
    }
}

impl Gathered {
    fn put(&mut self, change: &journal::Change<'_>) -> Result<(), CopyError> {
        let bytes_of = |key: &[u8], value: &[u8]| ROW_BYTES + key.len() + value.len();
        let key = (change.table, Box::from(change.key));
        let before = match change.value {
            Some(value) => {
                self.bytes += bytes_of(change.key, value);
                self.rows.insert(key, value.into())
            }
            None => self.rows.remove(&key),
        };
        self.bytes -= before.map_or(0, |before| bytes_of(change.key, &before));
        if self.bytes > GATHERED_BYTES_MAX { Err(CopyError::TooMuch) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use journal::{Change, write_change};

    use super::*;

    const TABLE: TableId = TableId(1);

    /// A piece of life 7, with these rows; none: it is gone.
    fn told(from: u64, piece: u64, position: u64, rows: &[(&str, Option<&str>)]) -> Told {
        let mut entries = Vec::new();
        for (key, value) in rows {
            let value = value.map(str::as_bytes);
            write_change(&mut entries, Change { table: TABLE, key: key.as_bytes(), value });
        }
        Told {
            life: 7,
            from,
            piece,
            position,
            has_more: false,
            begins_snapshot: false,
            whole_from: 0,
            journal_end: 10,
            log_end: LogOffset(0),
            entries: entries.into(),
        }
    }

    fn replaced(step: Step) -> (Vec<(String, String)>, Place) {
        let Step::Replace(rows, place) = step else { panic!("not all rows") };
        let text = |bytes: Box<[u8]>| String::from_utf8(bytes.into()).unwrap();
        (rows.into_iter().map(|((_, key), value)| (text(key), text(value))).collect(), place)
    }

    fn is_nothing(step: Result<Step, CopyError>) -> bool {
        matches!(step.unwrap(), Step::Nothing)
    }

    #[test]
    fn a_slave_without_a_place_gathers_rows_until_it_is_where_the_journal_was_and_then_changes_them() {
        let mut copy = Copy::new(None);
        assert_eq!(copy.wanted(), Wanted { place: Place { life: 0, position: 0 }, piece: 0 });
        assert!(is_nothing(copy.take(told(0, 0, 4, &[("a", Some("1")), ("b", Some("1"))]))));
        assert_eq!(copy.wanted(), Wanted { place: Place { life: 7, position: 4 }, piece: 0 });
        let open = Told { has_more: true, ..told(4, 0, 12, &[("a", Some("2"))]) };
        assert!(is_nothing(copy.take(open)));
        assert_eq!(copy.wanted().piece, 1);
        let (rows, place) = replaced(copy.take(told(4, 1, 12, &[("b", None)])).unwrap());
        assert_eq!((rows, place), (vec![("a".into(), "2".into())], Place { life: 7, position: 12 }));
        let Step::Change(_, place) = copy.take(told(12, 0, 13, &[("c", Some("1"))])).unwrap() else { panic!() };
        assert_eq!(place, Some(Place { life: 7, position: 13 }));
        let open = Told { has_more: true, ..told(13, 0, 20, &[("c", Some("2"))]) };
        assert!(is_nothing(copy.take(open)), "a part of a bundle");
        assert!(copy.begin_bundle_again() && !copy.begin_bundle_again());
        assert!(is_nothing(copy.take(told(13, 0, 13, &[]))));
    }

    #[test]
    fn a_snapshot_and_another_life_take_the_place_of_all_that_is_here() {
        let place = Place { life: 7, position: 5 };
        let mut copy = Copy::new(Some(place));
        let Step::Change(..) = copy.take(told(5, 0, 6, &[("a", Some("1"))])).unwrap() else { panic!() };
        let first = Told { begins_snapshot: true, has_more: true, ..told(6, 0, 9, &[("x", Some("1"))]) };
        assert!(is_nothing(copy.take(first)));
        // It may lack what belongs to a change that it has.
        let last = Told { whole_from: 11, ..told(6, 1, 9, &[("y", Some("1"))]) };
        assert!(is_nothing(copy.take(last)));
        assert!(is_nothing(copy.take(told(9, 0, 10, &[("x", Some("2"))]))));
        let (rows, _) = replaced(copy.take(told(10, 0, 11, &[])).unwrap());
        assert_eq!(rows, [("x".into(), "2".into()), ("y".into(), "1".into())]);

        let mut copy = Copy::new(Some(Place { life: 6, position: 500 }));
        let (rows, place) = replaced(copy.take(told(0, 0, 10, &[("z", Some("1"))])).unwrap());
        assert_eq!((rows, place), (vec![("z".into(), "1".into())], Place { life: 7, position: 10 }));
    }

    #[test]
    fn pieces_that_were_not_asked_for_end_the_copy_with_a_reason() {
        let place = Place { life: 7, position: 5 };
        let why =
            |told: Told| Copy::new(Some(place)).take(told).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(why(told(4, 0, 6, &[])).contains("piece 0 behind 4, and piece 0 behind 5 was asked for"));
        assert!(why(told(5, 1, 6, &[])).contains("piece 1 behind 5"));
        assert!(why(told(5, 0, 4, &[])).contains("goes back from 5 to 4"));
        assert!(why(Told { life: 0, ..told(5, 0, 6, &[]) }).contains("without the life"));
        assert!(why(Told { life: 8, ..told(5, 0, 6, &[]) }).contains("piece 0 behind 0 was asked for"));
        assert!(why(Told { entries: Bytes::from_static(&[1, 1, 0]), ..told(5, 0, 6, &[]) }).contains("do not add up"));
    }
}
