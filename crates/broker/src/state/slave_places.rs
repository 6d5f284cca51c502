//! From where slaves still needed the log in this run, for the next one: its files are kept for them until they have had time to come back.

use std::collections::BTreeSet;
use std::sync::Arc;

use journal::{Journal, Table};
use parking_lot::Mutex;
use protocol::LogOffset;
use store::Store;

use crate::tables::{self, Keeper};

/// Rows that a start reads: more than a set has slaves.
const PLACES_MAX: usize = 1_000;

/// Where the files of the log begin that slaves need, as the journal has them: a row changes once for each file.
pub(crate) struct SlavePlaces {
    keeper: Keeper,
    segment_bytes: u64,
    /// The rows. Held while they are put.
    kept: Mutex<BTreeSet<u64>>,
}

impl SlavePlaces {
    /// As the last run left them.
    pub(crate) fn load(store: &Arc<Store>) -> SlavePlaces {
        SlavePlaces {
            keeper: Keeper::of(store),
            segment_bytes: store.options().segment_bytes.max(1),
            kept: Mutex::new(read(store.journal())),
        }
    }

    /// What slaves of the last run needed.
    pub(crate) fn kept(&self) -> Vec<LogOffset> {
        self.kept.lock().iter().copied().map(LogOffset).collect()
    }

    /// This is what slaves need now.
    pub(crate) fn keep(&self, needs: &[LogOffset]) {
        let places: BTreeSet<u64> = needs.iter().map(|at| at.0 - at.0 % self.segment_bytes).collect();
        let mut kept = self.kept.lock();
        let before = std::mem::replace(&mut *kept, places);
        for new in kept.difference(&before) {
            self.keeper.put(tables::SLAVE_PLACES, &new.to_be_bytes(), &[]);
        }
        for gone in before.difference(&kept) {
            self.keeper.delete(tables::SLAVE_PLACES, &gone.to_be_bytes());
        }
    }
}

fn read(journal: &Journal) -> BTreeSet<u64> {
    let mut places = BTreeSet::new();
    journal.load(tables::SLAVE_PLACES, |key, _| {
        if let Ok(place) = key.try_into()
            && places.len() < PLACES_MAX
        {
            places.insert(u64::from_be_bytes(place));
        }
    });
    places
}

impl Table for SlavePlaces {
    fn for_each(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        for place in self.kept() {
            show(&place.0.to_be_bytes(), &[]);
        }
    }
}
