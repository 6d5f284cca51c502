//! What a master keeps of the slaves that copy its journal (30002): where each has come to, so that its next request goes on there.
//! `master/journal.rs` answers them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use env::{Random, TimeMs};
use journal::JournalCopier;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Slaves whose place is kept: more than a set has. Of one more the oldest place goes.
const PLACES_MAX: usize = 16;
/// After so long without a request a place is given up: it holds a file open.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Requests under way: each holds a piece.
const UNDER_WAY_MAX: usize = 32;

/// A piece, as a request asks for it: the piece of this number behind a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) from: u64,
    pub(crate) piece: u64,
}

struct Place {
    copier: JournalCopier,
    /// The piece that it gives next.
    next: Asked,
    left_at: Duration,
}

/// The copies of the journal that are made.
pub(crate) struct JournalCopies {
    life: u64,
    /// By the id of the slave. Taken out while a request is answered. Guards itself only.
    places: Mutex<BTreeMap<i64, Place>>,
    under_way: Arc<Semaphore>,
}

impl JournalCopies {
    pub(crate) fn new(random: &Random, now: TimeMs) -> JournalCopies {
        // Runs of one broker differ also where chance is seeded.
        let life = (random.next_u64() ^ now.0.unsigned_abs()).max(1);
        JournalCopies { life, places: Mutex::default(), under_way: Arc::new(Semaphore::new(UNDER_WAY_MAX)) }
    }

    /// Names this run of the broker, not 0. A loss of power may take the end of a journal: its positions mean others in another run.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Room for one more request; none if too many are under way.
    pub(crate) fn begin(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.under_way).try_acquire_owned().ok()
    }

    /// Takes the place of a slave, if it is what is asked for.
    pub(crate) fn take(&self, slave: i64, asked: Asked, now: Duration) -> Option<JournalCopier> {
        let (mine, silent) = {
            let mut places = self.places.lock();
            let mine = places.remove(&slave);
            let is_silent = |place: &Place| now.saturating_sub(place.left_at) >= KEPT_FOR;
            let silent: Vec<(i64, Place)> = places.extract_if(.., |_, place| is_silent(place)).collect();
            (mine, silent)
        };
        // They close files.
        drop(silent);
        mine.filter(|place| place.next == asked).map(|place| place.copier)
    }

    /// Keeps the place of a slave, whose next piece is this one.
    pub(crate) fn keep(&self, slave: i64, copier: JournalCopier, next: Asked, now: Duration) {
        let mut places = self.places.lock();
        let oldest = places.iter().min_by_key(|(_, place)| place.left_at).map(|(slave, _)| *slave);
        let too_many = oldest.filter(|_| places.len() >= PLACES_MAX && !places.contains_key(&slave));
        let gone = too_many.and_then(|oldest| places.remove(&oldest));
        let before = places.insert(slave, Place { copier, next, left_at: now });
        drop(places);
        // They close files.
        drop((gone, before));
    }
}
