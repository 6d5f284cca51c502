//! Changes of the journal, and what of them a start may find: all up to some change, none behind it, never half of what belongs together.

use std::collections::BTreeMap;

use journal::{Change, Journal, Table, TableId};

use crate::verdict::{Report, Verdict};
use crate::world::World;

/// Not one of the broker's.
const TABLE: TableId = TableId(0xF0);
const COUNT: &[u8] = b"count";

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;
/// Keys and what they have from now on; none: they are gone.
type Put = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// What was put, and how far it is known to be safe.
#[derive(Default)]
pub struct Tables {
    /// All puts since the last start, each with its position: keys and their values.
    puts: Vec<(u64, Put)>,
    /// The state before them.
    base: Entries,
    /// How many puts were before them.
    count: u64,
    /// Up to here changes were promised to survive.
    promised: u64,
    owner: std::sync::Arc<Owner>,
}

/// Has the state, as an owner in the broker does.
#[derive(Default)]
struct Owner(parking_lot::Mutex<Entries>);

impl Table for Owner {
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        let entries = self.0.lock().clone();
        entries.iter().for_each(|(key, value)| show(key, value));
    }
}

fn apply(entries: &mut Entries, put: &[(Vec<u8>, Option<Vec<u8>>)]) {
    for (key, value) in put {
        match value {
            Some(value) => entries.insert(key.clone(), value.clone()),
            None => entries.remove(key),
        };
    }
}

impl Tables {
    /// One more put, of a few keys together.
    pub fn put(&mut self, journal: &Journal, world: &World) {
        let number = self.count + self.puts.len() as u64 + 1;
        let mut put: Put = vec![(COUNT.to_vec(), Some(number.to_be_bytes().to_vec()))];
        for _ in 0..world.dice.below(4) {
            let key = format!("key-{}", world.dice.below(12)).into_bytes();
            let bytes = world.pick(&[0, 8, 100, 3000, 20_000]) as usize;
            put.push((key, (!world.one_in(4)).then(|| vec![number as u8; bytes])));
        }
        let changes: Vec<_> =
            put.iter().map(|(key, value)| Change { table: TABLE, key, value: value.as_deref() }).collect();
        let mut state = self.owner.0.lock();
        apply(&mut state, &put);
        let position = journal.put_together(&changes);
        drop(state);
        self.puts.push((position, put));
    }

    /// Takes note of what the journal promises now.
    pub fn see(&mut self, promised: u64) {
        self.promised = self.promised.max(promised);
    }

    /// Looks at what a start found, and goes on with it. `is_promised`: whether what was noted counts for the crash that was.
    pub fn check(&mut self, journal: &Journal, is_promised: bool, report: &mut Report) {
        let mut found = Entries::new();
        journal.load(TABLE, |key, value| {
            found.insert(key.to_vec(), value.to_vec());
        });
        let number = found.get(COUNT).and_then(|count| count.as_slice().try_into().ok()).map_or(0, u64::from_be_bytes);
        let must = self.puts.iter().filter(|(position, _)| is_promised && *position <= self.promised).count();
        let (least, most) = (self.count + must as u64, self.count + self.puts.len() as u64);
        if number < least {
            report.find(Verdict::WentBack, format!("the journal is at put {number}, {least} was promised"));
        } else if number > most {
            report.find(Verdict::Foreign, format!("the journal is at put {number} of {most}"));
        } else {
            let mut expected = std::mem::take(&mut self.base);
            for (_, put) in &self.puts[..(number - self.count) as usize] {
                apply(&mut expected, put);
            }
            if expected != found {
                let wrong: Vec<_> = expected
                    .keys()
                    .chain(found.keys())
                    .filter(|key| expected.get(*key) != found.get(*key))
                    .map(|key| String::from_utf8_lossy(key).into_owned())
                    .collect();
                report.find(Verdict::WentBack, format!("the journal at put {number} has other values of {wrong:?}"));
            }
        }
        self.puts.clear();
        self.count = number;
        self.promised = 0;
        self.base.clone_from(&found);
        self.owner = std::sync::Arc::new(Owner(parking_lot::Mutex::new(found)));
        journal.attach(TABLE, std::sync::Arc::clone(&self.owner) as std::sync::Arc<dyn Table>);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use disk::RealDisk;
    use env::Clock;
    use journal::JournalOptions;

    use super::*;
    use crate::world::Twist;

    fn journal(dir: &tempfile::TempDir) -> Journal {
        Journal::open(dir.path(), JournalOptions::default(), Clock::real(), Arc::new(RealDisk)).unwrap()
    }

    /// Puts what `Tables` knows into one journal, lets it look at another one, and says what it found.
    fn found(other: impl FnOnce(&Journal), is_promised: bool) -> Vec<Verdict> {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let world = World::new(1, Twist::default()).unwrap();
        let mut tables = Tables::default();
        let journals = dirs.each_ref().map(journal);
        (0..10).for_each(|_| tables.put(&journals[0], &world));
        tables.see(u64::MAX);
        other(&journals[1]);
        let mut report = Report::new(false);
        tables.check(&journals[1], is_promised, &mut report);
        report.verdicts()
    }

    #[test]
    fn a_journal_that_has_lost_what_was_promised_went_back() {
        assert_eq!(found(|_| {}, true), [Verdict::WentBack]);
        assert_eq!(found(|_| {}, false), [], "nothing was promised");
    }

    #[test]
    fn a_journal_that_has_half_of_what_belongs_together_went_back() {
        let half = |journal: &Journal| {
            journal.put(TABLE, COUNT, &1_u64.to_be_bytes());
            journal.put(TABLE, b"key-0", b"of another put");
        };
        assert_eq!(found(half, false), [Verdict::WentBack]);
    }

    #[test]
    fn a_journal_with_more_than_was_put_is_foreign() {
        let more = |journal: &Journal| {
            journal.put(TABLE, COUNT, &11_u64.to_be_bytes());
        };
        assert_eq!(found(more, true), [Verdict::Foreign]);
    }
}
